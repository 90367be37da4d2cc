/// @file
/// The status page: whole in itself, so that it works in a cluster without a way out. It shows `/api/status`
/// and follows `/api/events`. Whatever a run says of itself goes into text nodes only.
#pragma once

#include <string_view>

namespace troop::monitor::detail {

inline constexpr std::string_view kStatusPage = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>troop</title>
<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E
%3Cpath d='M1 14 6 8l3 2 6-8' fill='none' stroke='%232f6fd0' stroke-width='2.5'/%3E%3C/svg%3E">
<style>
:root {
  color-scheme: light dark;
  --back: #ffffff; --panel: #f5f7f9; --text: #17202b; --faint: #52606f; --line: #cfd6de;
  --first: #1b5fc1; --second: #9c4a08; --good: #176b3a; --bad: #ae1f1f; --focus: #1b5fc1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #0f141a; --panel: #18202a; --text: #e5eaf0; --faint: #a3afbd; --line: #34404d;
    --first: #7db4ff; --second: #ffb570; --good: #74d69a; --bad: #ff9a90; --focus: #7db4ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem; max-width: 90rem; background: var(--back); color: var(--text);
  font: 0.95rem/1.45 system-ui, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
h1 { font-size: 1.4rem; margin: 0; }
h2 { font-size: 1rem; margin: 0 0 0.5rem; }
p { margin: 0.2rem 0; }
a { color: var(--first); }
.faint, dt, legend, th { color: var(--faint); }
.good { color: var(--good); }
.bad { color: var(--bad); }
header, .heading { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; align-items: baseline; }
header > :last-child, .heading > :last-child { margin-left: auto; }
section { margin-top: 1rem; min-width: 0; }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 0.8rem; }
.alarm { border-left: 5px solid var(--bad); margin-top: 0.5rem; }
.advice { border-left-color: var(--second); }
.columns, #figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(var(--least), 1fr)); }
.columns { --least: min(100%, 17rem); gap: 0 1rem; }
.columns.narrow { --least: min(100%, 14rem); }
#figures { --least: 9.5rem; gap: 0.5rem; margin: 0; }
#figures > div { padding: 0.6rem 0.8rem; }
dt { font-size: 0.85rem; }
dd { margin: 0; }
#figures dd:first-of-type { font-size: 1.35rem; }
#figures dd:last-of-type { font-size: 0.85rem; color: var(--faint); min-height: 1.2em; }
.facts { display: grid; grid-template-columns: 1fr fit-content(70%); gap: 0.1rem 1rem; margin: 0; }
.facts dt { overflow-wrap: normal; }
.facts dd { text-align: right; }
fieldset { border: 0; margin: 0; padding: 0; display: flex; gap: 0 1rem; flex-wrap: wrap; }
label { white-space: nowrap; }
.chart { height: 7.5rem; touch-action: pan-y; }
#curve { height: 19rem; }
.chart svg { display: block; width: 100%; height: 100%; overflow: visible; }
.rule { stroke: var(--line); }
.chart text { fill: var(--faint); font-size: 12px; }
output { display: block; min-height: 1.45em; font-size: 0.85rem; color: var(--faint); }
.mark::before { content: ""; display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; }
.mark.first::before { background: var(--first); }
.mark.second::before { background: var(--second); }
.mark.goal::before { height: 0; border-top: 2px dashed var(--good); vertical-align: middle; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1.2rem; font-size: 0.85rem; }
.bar { height: 0.7rem; background: var(--line); border-radius: 3px; overflow: hidden; margin: 0.3rem 0; }
.bar > div { height: 100%; background: var(--first); }
.scroll { overflow: auto; max-height: 34rem; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; }
th, td { padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap; }
th { position: sticky; top: 0; background: var(--panel); border-bottom: 1px solid var(--line); z-index: 1; }
td { border-top: 1px solid var(--line); }
th:nth-child(2), td:nth-child(2) { text-align: left; white-space: normal; min-width: 8rem; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th[aria-sort=ascending] button::after { content: " \2191"; }
th[aria-sort=descending] button::after { content: " \2193"; }
tr.lost td { color: var(--bad); }
input[type=search] {
  font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--faint); border-radius: 4px;
  padding: 0.2rem 0.5rem; width: 14rem; max-width: 100%;
}
:focus-visible { outline: 2px solid var(--focus) !important; outline-offset: 2px; }
footer { margin-top: 1.5rem; font-size: 0.85rem; }
@media (max-width: 40rem) {
  body { padding: 0.6rem; }
  .wide { display: none; }
  th, td { padding: 0.25rem 0.4rem; }
  #curve { height: 14rem; }
  header > :last-child { margin-left: 0; width: 100%; }
}
</style>
</head>
<body>
<header>
  <h1 id="name">troop</h1>
  <span id="facts" class="faint"></span>
  <span id="link" role="status">connecting</span>
</header>
<main>
  <section id="alarms" aria-live="polite" aria-label="Alarms"></section>
  <section aria-label="Figures"><dl id="figures"></dl></section>
  <section class="panel">
    <div class="heading">
      <h2>Learning curve</h2>
      <fieldset id="axis">
        <legend hidden>x axis</legend>
        <label><input type="radio" name="axis" value="seconds" checked> time</label>
        <label><input type="radio" name="axis" value="environment_steps"> environment steps</label>
        <label><input type="radio" name="axis" value="learner_steps"> learner steps</label>
      </fieldset>
    </div>
    <div class="chart" id="curve"></div>
    <div class="legend">
      <span class="mark first">greedy policy: mean of an evaluation, and one standard deviation</span>
      <span class="mark second">actors as they explore: median, and 10 % to 90 % of them</span>
      <span class="mark goal" id="goal" hidden>target</span>
    </div>
  </section>
  <div class="columns">
    <section class="panel"><h2>Environment steps/s</h2><div class="chart" id="steps"></div></section>
    <section class="panel"><h2>Learner steps/s</h2><div class="chart" id="updates"></div></section>
    <section class="panel"><h2>Loss</h2><div class="chart" id="loss"></div></section>
    <section class="panel"><h2>Policy lag, in versions</h2>
      <div class="chart" id="lag"></div></section>
  </div>
  <div class="columns narrow">
    <section class="panel">
      <h2>Replay</h2>
      <div class="bar" aria-hidden="true"><div id="fill"></div></div>
      <dl class="facts" id="replay"></dl>
    </section>
    <section class="panel"><h2>Items by priority</h2>
      <div class="chart" id="priorities"></div></section>
    <section class="panel"><h2>Learner</h2><dl class="facts" id="learner"></dl></section>
    <section class="panel" id="cluster_panel" hidden><h2>Connections</h2>
      <dl class="facts" id="cluster"></dl></section>
    <section class="panel">
      <h2>Checkpoints</h2>
      <p id="no_checkpoints">This run writes no checkpoints.</p>
      <dl class="facts" id="checkpoints"></dl>
    </section>
  </div>
  <section>
    <div class="heading">
      <h2>Actors <span id="shown" class="faint"></span></h2>
      <label>show only <input type="search" id="filter" placeholder="part of a name, or lost"></label>
    </div>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of actors">
      <table><thead><tr id="heads"></tr></thead><tbody id="actors"></tbody></table>
    </div>
  </section>
</main>
<footer class="faint">
  troop <span id="version"></span>, started <time id="started"></time>; times are those of
  <span id="zone"></span>. <a href="metrics">metrics</a> <a href="api/status">JSON</a>
</footer>
<script>
"use strict";
const $ = id => document.getElementById(id);

// Numbers and times as people read them.

const isNumber = value => typeof value === "number";

/// 950, 3.9k, 31k, 2.4M
function count(value) {
  if (!isNumber(value)) return "\u2013";
  let unit = "";
  for (const larger of ["k", "M", "G", "T"]) {
    if (Math.abs(value) < 999.5) break;
    value /= 1000;
    unit = larger;
  }
  return value.toFixed((unit !== "" || value % 1 !== 0) && Math.abs(value) < 9.95 ? 1 : 0) + unit;
}

/// 500.0, 21.35, 0.743
function figure(value) {
  if (!isNumber(value)) return "\u2013";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toPrecision(3);
  return value.toFixed(size < 9.9995 ? 3 : size < 99.995 ? 2 : 1);
}

function duration(seconds) {
  if (!isNumber(seconds)) return "\u2013";
  if (seconds < 10) return seconds.toFixed(1).replace(/\.0$/, "") + " s";
  if (seconds < 120) return Math.round(seconds) + " s";
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return minutes + " min";
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return hours + " h " + minutes % 60 + " min";
  return Math.floor(hours / 24) + " d " + hours % 24 + " h";
}

const percent = part => isNumber(part) ? Math.round(100 * part) + " %" : "\u2013";
const bytes = value => isNumber(value) ? count(value) + "B" : "\u2013";
const clock = date => date.toLocaleTimeString();

// Elements.

function make(name, content, kind) {
  const element = document.createElement(name);
  if (content !== undefined) element.textContent = content;
  if (kind) element.className = kind;
  return element;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function draw(name, attributes, content) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (content !== undefined) element.textContent = content;
  return element;
}

/// Fills a list of terms; `entries`: [term, text] each.
function list(element, entries) {
  if (element.children.length !== 2 * entries.length)
    element.replaceChildren(...entries.flatMap(() => [make("dt"), make("dd")]));
  entries.flat().forEach((text, i) => say(element.children[i], text));
}

// Charts.

/// Some round numbers from `low` to `high`.
function ticks(low, high, most) {
  const rough = (high - low) / most, ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(factor => factor * ten >= rough) * ten;
  const marks = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step; ++i) marks.push(i * step);
  return marks;
}

function timeTicks(low, high, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = steps.find(s => s >= (high - low) / most);
  if (!step || step < (high - low) / most) return ticks(low, high, most);
  const marks = [];
  for (let i = Math.ceil(low / step); i * step <= high; ++i) marks.push(i * step);
  return marks;
}

const edges = { left: 46, right: 10, top: 8, bottom: 20 };

/// Lines and bands over one axis. The pointer, and the arrow keys, show the values at a place.
class Chart {
  constructor(box, name) {
    this.box = box;
    this.name = name;
    this.layers = [];
    this.cursor = null;
    this.svg = draw("svg", { "aria-hidden": "true" });
    this.readout = make("output");
    box.append(this.svg);
    box.after(this.readout);
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.addEventListener("pointermove", event => this.point(event));
    box.addEventListener("pointerleave", () => this.move(null));
    box.addEventListener("blur", () => this.move(null));
    box.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => this.render()).observe(box);
  }

  /// `layers`: {name, color, x, y} for a line, {.., low, high} for a band; `goal`: a line across.
  show(layers, { isTime = true, goal = null, fromZero = false } = {}) {
    Object.assign(this, { layers, isTime, goal, fromZero });
    this.render();
  }

  axisText(x) { return this.isTime ? duration(x) : count(x); }

  range() {
    let left = Infinity, right = -Infinity, low = Infinity, high = -Infinity;
    for (const { x, y, low: lows, high: highs } of this.layers) {
      for (let i = 0; i < x.length; ++i) {
        const values = y ? [y[i]] : [lows[i], highs[i]];
        if (!values.every(isNumber)) continue;
        left = Math.min(left, x[i]);
        right = Math.max(right, x[i]);
        low = Math.min(low, ...values);
        high = Math.max(high, ...values);
      }
    }
    if (left > right) return null;
    if (isNumber(this.goal)) { low = Math.min(low, this.goal); high = Math.max(high, this.goal); }
    if (this.fromZero) low = Math.min(0, low);
    high += high - low > 1e-12 * Math.abs(high) ? (high - low) / 20 : Math.abs(high) / 10 || 1;
    if (right === left) right = left + 1;
    return { left, right, low, high };
  }

  render() {
    const width = this.box.clientWidth, height = this.box.clientHeight;
    const range = this.range();
    this.svg.replaceChildren();
    if (!range) {
      this.svg.append(draw("text", { x: 4, y: 24 }, "nothing yet"));
      this.box.setAttribute("aria-label", this.name + ": nothing yet");
      return;
    }
    const { left, right, low, high } = range;
    const toX = x => edges.left + (x - left) / (right - left) * (width - edges.left - edges.right);
    const toY = y => height - edges.bottom - (y - low) / (high - low) * (height - edges.top - edges.bottom);
    this.toValue = x => left + (x - edges.left) / (width - edges.left - edges.right) * (right - left);
    for (const y of ticks(low, high, height / 45)) {
      this.svg.append(
        draw("line", { x1: edges.left, x2: width - edges.right, y1: toY(y), y2: toY(y), class: "rule" }),
        draw("text", { x: edges.left - 6, y: toY(y) + 4, "text-anchor": "end" }, shortNumber(y)));
    }
    for (const x of (this.isTime ? timeTicks : ticks)(left, right, width / 90)) {
      const anchor = toX(x) > width - 40 ? "end" : "middle";
      this.svg.append(draw("text", { x: toX(x), y: height - 4, "text-anchor": anchor }, this.axisText(x)));
    }
    for (const layer of this.layers) {
      const color = `var(--${layer.color})`, at = values => this.path(layer.x, values, toX, toY);
      if (layer.y) {
        this.svg.append(draw("path", { d: at(layer.y), fill: "none", stroke: color, "stroke-width": 2 }));
      } else {
        const known = layer.x.map((x, i) => [x, layer.low[i], layer.high[i]]).filter(p => p.every(isNumber));
        const corners = [...known.map(p => [p[0], p[2]]), ...known.reverse().map(p => [p[0], p[1]])];
        const points = corners.map(([x, y]) => toX(x).toFixed(1) + "," + toY(y).toFixed(1)).join(" ");
        this.svg.append(draw("polygon", { points, fill: color, opacity: 0.18 }));
      }
    }
    if (isNumber(this.goal)) {
      this.svg.append(draw("line", { x1: edges.left, x2: width - edges.right, y1: toY(this.goal),
        y2: toY(this.goal), stroke: "var(--good)", "stroke-width": 2, "stroke-dasharray": "6 4" }));
    }
    const last = this.textAt(Infinity);
    this.box.setAttribute("aria-label", this.name + ", " + last + ". Arrow keys show earlier values.");
    if (this.cursor !== null) {
      const x = Math.min(right, Math.max(left, this.cursor));
      this.svg.append(draw("line", { x1: toX(x), x2: toX(x), y1: edges.top, y2: height - edges.bottom,
        stroke: "var(--text)" }));
    }
    say(this.readout, this.cursor === null ? "" : this.textAt(this.cursor));
  }

  path(x, y, toX, toY) {
    let d = "", pen = "M";
    for (let i = 0; i < x.length; ++i) {
      if (!isNumber(y[i])) { pen = "M"; continue; }
      d += pen + toX(x[i]).toFixed(1) + " " + toY(y[i]).toFixed(1);
      pen = "L";
    }
    return d;
  }

  /// The layers' values nearest to `x`.
  textAt(x) {
    let where = null;
    const parts = [];
    for (const layer of this.layers) {
      let best = -1;
      for (let i = 0; i < layer.x.length; ++i) {
        if (!isNumber((layer.y || layer.low)[i])) continue;
        if (best < 0 || x === Infinity || Math.abs(layer.x[i] - x) <= Math.abs(layer.x[best] - x)) best = i;
      }
      if (best < 0) continue;
      if (where === null) where = this.axisText(layer.x[best]);
      parts.push(layer.name + " " + (layer.y ? figure(layer.y[best])
        : figure(layer.low[best]) + " to " + figure(layer.high[best])));
    }
    return "at " + where + ": " + parts.join(", ");
  }

  move(x) {
    if (x === this.cursor) return;
    this.cursor = x;
    this.render();
  }

  point(event) {
    if (this.toValue) this.move(this.toValue(event.clientX - this.box.getBoundingClientRect().left));
  }

  key(event) {
    const range = this.range();
    if (!range) return;
    const step = (range.right - range.left) / 40, at = this.cursor === null ? range.right : this.cursor;
    const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: range.left, End: range.right,
      Escape: null };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const to = moves[event.key];
    this.move(to === null ? null : Math.min(range.right, Math.max(range.left, to)));
  }
}

function shortNumber(value) {
  if (Math.abs(value) >= 1000) return count(value);
  return String(Number(value.toPrecision(3)));
}

function bars(box, bins) {
  const width = box.clientWidth, height = box.clientHeight, svg = draw("svg", { role: "img" });
  if (bins.length === 0) {
    svg.append(draw("text", { x: 4, y: 24 }, "nothing yet"));
  } else {
    const most = Math.max(...bins.map(bin => bin[1]));
    const each = (width - edges.left - edges.right) / bins.length, room = height - edges.top - edges.bottom;
    const every = Math.ceil(60 / each);
    svg.append(draw("text", { x: edges.left - 6, y: edges.top + 10, "text-anchor": "end" }, count(most)));
    bins.forEach(([exponent, items], i) => {
      const x = edges.left + i * each, size = items / most * room;
      svg.append(draw("rect", { x: x + 1, width: Math.max(1, each - 2), y: height - edges.bottom - size,
        height: size, fill: "var(--first)" }));
      if (i % every === 0)
        svg.append(draw("text", { x, y: height - 4 }, Number((2 ** exponent).toPrecision(2)).toString()));
    });
    const total = bins.reduce((sum, bin) => sum + bin[1], 0);
    svg.setAttribute("aria-label", count(total) + " items with priorities from " +
      (2 ** bins[0][0]).toPrecision(2) + " to " + (2 ** (bins[bins.length - 1][0] + 1)).toPrecision(2));
  }
  box.replaceChildren(svg);
}

// The table of actors.

const span = (first, last) => first === last ? first : first + "\u2013" + last;
const returnOf = (actor, value) => actor.episodes ? figure(value) : "\u2013";
const columns = [
  { name: "first", head: "Index", text: a => String(span(a.first, a.first + a.environments - 1)) },
  { name: "process", head: "Process", text: a => a.process },
  { name: "greatest_epsilon", head: "Epsilon", wide: true,
    text: a => span(a.least_epsilon.toFixed(4), a.greatest_epsilon.toFixed(4)) },
  { name: "last_return", head: "Last return", text: a => returnOf(a, a.last_return), wide: true },
  { name: "mean_return", head: "Mean return", text: a => returnOf(a, a.mean_return) },
  { name: "steps_per_second", head: "Steps/s", text: a => count(a.steps_per_second) },
  { name: "policy_lag", head: "Lag", text: a => count(a.policy_lag) },
  { name: "dropped", head: "Dropped", text: a => count(a.dropped), wide: true },
  { name: "seen", head: "Seen", text: a => (a.lost ? "lost " : "") + duration(Math.round(a.seen)) + " ago" },
];
const order = { name: "first", sign: 1 };

function makeHeads() {
  $("heads").replaceChildren(...columns.map(column => {
    const head = make("th", undefined, column.wide ? "wide" : ""), button = make("button", column.head);
    head.scope = "col";
    button.type = "button";
    button.addEventListener("click", () => {
      order.sign = order.name === column.name ? -order.sign : 1;
      order.name = column.name;
      showActors();
    });
    head.append(button);
    return head;
  }));
}

function showActors() {
  const wanted = $("filter").value.toLowerCase();
  const rows = run.actors.filter(a => (a.process + (a.lost ? " lost" : "")).toLowerCase().includes(wanted));
  rows.sort((a, b) => {
    const x = a[order.name], y = b[order.name];
    return order.sign * (x < y ? -1 : x > y ? 1 : 0) || a.first - b.first;
  });
  columns.forEach((column, i) => $("heads").children[i].setAttribute("aria-sort",
    column.name !== order.name ? "none" : order.sign > 0 ? "ascending" : "descending"));
  const body = $("actors");
  while (body.children.length > rows.length) body.lastChild.remove();
  while (body.children.length < rows.length) {
    const row = make("tr");
    row.append(...columns.map(column => make("td", "", column.wide ? "wide" : "")));
    body.append(row);
  }
  rows.forEach((actor, i) => {
    const row = body.children[i];
    row.className = actor.lost ? "lost" : "";
    columns.forEach((column, j) => say(row.children[j], column.text(actor)));
  });
  say($("shown"), wanted ? rows.length + " of " + run.actors.length : String(run.actors.length));
}

// What is known of the run, and how it comes here.

const mostPoints = 480;
const run = { status: null, points: [], evaluations: [], actors: [] };
const link = { isOpen: false, since: new Date(), heard: performance.now(), source: null };

const rowsOf = ({ columns: names, rows }) =>
  rows.map(row => Object.fromEntries(names.map((name, i) => [name, row[i]])));

function add(history, point) {
  if (history.length >= mostPoints) history.splice(0, history.length, ...history.filter((_, i) => i % 2));
  history.push(point);
}

function takeStatus(status) {
  run.status = status;
  const now = status.run, newest = run.points[run.points.length - 1];
  if (now.seconds - (newest ? newest.seconds : 0) >= 2) {  // before, no rates are known
    const [return_low, return_median, return_high] = now.actor_returns;
    add(run.points, { seconds: now.seconds, environment_steps: now.environment_steps,
      learner_steps: status.learner.steps, steps_per_second: now.steps_per_second,
      updates_per_second: status.learner.steps_per_second, loss: status.learner.loss,
      policy_lag: now.policy_lag, return_low, return_median, return_high });
  }
  const last = run.evaluations[run.evaluations.length - 1];
  const isNew = now.evaluation && (!last || now.evaluation.seconds > last.seconds);
  if (isNew) add(run.evaluations, now.evaluation);
}

/// Everything from the beginning: after a pause, and of another run behind the same address.
async function load() {
  const answer = await fetch("api/status", { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.statusText);
  const status = await answer.json();
  run.points = rowsOf(status.history);
  run.evaluations = status.evaluations;
  run.actors = rowsOf(status.actors);
  takeStatus(status);
  heard();
  showActors();
}

function heard() {
  link.heard = performance.now();
  render();
}

function connect() {
  const source = new EventSource("api/events");
  source.addEventListener("open", () => {
    link.isOpen = true;
    load().catch(() => {});
  });
  source.addEventListener("status", event => { takeStatus(JSON.parse(event.data)); heard(); });
  source.addEventListener("actors", event => { run.actors = rowsOf(JSON.parse(event.data)); showActors(); });
  source.addEventListener("error", () => {
    if (link.isOpen) link.since = new Date();
    link.isOpen = false;
    showLink();
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);  // it gave up by itself
  });
}

// The page.

const charts = {
  curve: new Chart($("curve"), "Learning curve"),
  steps: new Chart($("steps"), "Environment steps per second"),
  updates: new Chart($("updates"), "Learner steps per second"),
  loss: new Chart($("loss"), "Loss"),
  lag: new Chart($("lag"), "Policy lag"),
};

function showLink() {
  const silent = (performance.now() - link.heard) / 1000;
  const isLive = link.isOpen && silent < 10;
  say($("link"), isLive ? "live" : link.isOpen ? "connected, but no news for " + duration(silent)
    : "not connected since " + clock(link.since) + ", trying again");
  $("link").className = isLive ? "good" : "bad";
}

function showFigures(status) {
  const { run: r, learner, replay } = status, played = r.evaluation;
  const time = isNumber(r.seconds_to_target) ? " in about " + duration(r.seconds_to_target) : "";
  const target = isNumber(r.target_return) ? "target " + figure(r.target_return) + time : "no target";
  const entries = [
    ["Greedy return", played ? figure(played.mean) : "\u2013",
     played ? "\u00b1 " + figure(played.deviation) + ", " + target : "no evaluation yet"],
    ["Environment steps/s", count(r.steps_per_second), count(r.environment_steps) + " in all"],
    ["Learner steps/s", count(learner.steps_per_second), count(learner.steps) + " in all"],
    ["Replay", percent(replay.capacity ? replay.size / replay.capacity : 0),
     count(replay.size) + " of " + count(replay.capacity) + " items"],
    ["Actors", String(r.actors), r.lost_actors ? r.lost_actors + " lost" : "none lost"],
    ["Policy lag", r.policy_lag.toFixed(1), "versions behind"],
    ["Learner waits", percent(learner.wait_ratio), "of the time, for experience"],
  ];
  const box = $("figures");
  if (box.children.length !== entries.length) {
    box.replaceChildren(...entries.map(() => {
      const tile = make("div", undefined, "panel");
      tile.append(make("dt"), make("dd"), make("dd"));
      return tile;
    }));
  }
  entries.forEach((texts, i) => texts.forEach((text, j) => say(box.children[i].children[j], text)));
}

function showAlarms(alarms) {
  const box = $("alarms"), text = JSON.stringify(alarms);
  if (box.dataset.shown === text) return;
  box.dataset.shown = text;
  box.replaceChildren(...alarms.map(alarm => {
    const panel = make("div", undefined, alarm.serious ? "panel alarm" : "panel alarm advice");
    const what = make("p");
    what.append(make("strong", alarm.serious ? "Alarm: " : "Advice: "), alarm.what);
    panel.append(what, make("p", alarm.to_do));
    return panel;
  }));
}

function showCurve() {
  const axis = document.querySelector("#axis input:checked").value;
  const column = (rows, name) => rows.map(row => row[name]);
  const { evaluations: played, points, status } = run;
  const x = column(played, axis), y = column(played, "mean"), times = column(points, axis);
  charts.curve.show([
    { name: "actors", color: "second", x: times,
      low: column(points, "return_low"), high: column(points, "return_high") },
    { name: "median actor", color: "second", x: times, y: column(points, "return_median") },
    { name: "greedy", color: "first", x, low: played.map(p => p.mean - p.deviation),
      high: played.map(p => p.mean + p.deviation) },
    { name: "greedy mean", color: "first", x, y },
  ], { isTime: axis === "seconds", goal: status.run.target_return });
  $("goal").hidden = !isNumber(status.run.target_return);
}

function show() {
  showLink();
  const { status, points } = run;
  if (!status) return;
  const { run: r, learner, replay, cluster, checkpoints } = status;
  document.title = (status.alarms.some(alarm => alarm.serious) ? "! " : "") + r.environment + " \u2013 troop";
  say($("name"), r.environment);
  say($("facts"), [r.role, "seed " + r.seed,
    "epsilon " + r.epsilon[0].toFixed(4) + " to " + r.epsilon[1].toFixed(2), (r.solved ? "solved after " : "training for ") + duration(r.seconds)].join(" \u00b7 "));
  showAlarms(status.alarms);
  showFigures(status);
  showCurve();
  const times = points.map(point => point.seconds);
  const line = (chart, name, title, color) => charts[chart].show(
    [{ name: title, color, x: times, y: points.map(point => point[name]) }], { fromZero: true });
  line("steps", "steps_per_second", "steps/s", "second");
  line("updates", "updates_per_second", "steps/s", "first");
  line("loss", "loss", "loss", "first");
  line("lag", "policy_lag", "lag", "second");
  $("fill").style.width = 100 * (replay.capacity ? replay.size / replay.capacity : 0) + "%";
  list($("replay"), [
    ["Items", count(replay.size) + " of " + count(replay.capacity)],
    ["Age of the oldest", duration(replay.age_seconds)],
    ["Inserted", count(replay.inserts)], ["Drawn", count(replay.samples)],
    ["Drawn for each inserted", figure(replay.samples_per_insert)],
    ["Priorities too late", count(replay.stale_updates)],
  ]);
  bars($("priorities"), replay.priorities);
  list($("learner"), [
    ["Batch size", String(learner.batch_size)], ["Loss", figure(learner.loss)],
    ["Norm of the gradient", figure(learner.gradient_norm)], ["Mean Q-value", figure(learner.mean_q)],
    ["Steps not applied", count(learner.skipped_steps)],
    ["Parameters", "version " + learner.parameter_version],
  ]);
  $("cluster_panel").hidden = !cluster;
  if (cluster) {
    list($("cluster"), [
      ["Connected", String(cluster.clients)], ["Refused", count(cluster.refused)],
      ["Received", bytes(cluster.received_per_second) + "/s"],
      ["Sent", bytes(cluster.sent_per_second) + "/s"],
      ["Batches", count(cluster.batches)], ["Held back", percent(cluster.wait_ratio) + " of them"],
      ["Came again", count(cluster.duplicates)],
    ]);
  }
  $("no_checkpoints").hidden = Boolean(checkpoints);
  if (checkpoints) {
    list($("checkpoints"), [
      ["Newest", isNumber(checkpoints.age_seconds) ? duration(checkpoints.age_seconds) + " ago" : "none yet"],
      ["At learner step", count(checkpoints.learner_steps)], ["Size", bytes(checkpoints.bytes)],
      ["Took", duration(checkpoints.write_seconds)], ["One in", checkpoints.interval_seconds > 0 ? duration(checkpoints.interval_seconds) : "none but at the end"],
      ["Written", count(checkpoints.written)], ["Failed", count(checkpoints.failed)],
      ["Directory", checkpoints.directory],
    ]);
  } else {
    $("checkpoints").replaceChildren();
  }
  say($("version"), status.troop);
  const started = new Date(1000 * status.started);
  $("started").dateTime = started.toISOString();
  say($("started"), started.toLocaleString());
}

let isDue = false;
function render() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; show(); });
}

say($("zone"), Intl.DateTimeFormat().resolvedOptions().timeZone || "this browser");
makeHeads();
$("filter").addEventListener("input", showActors);
$("axis").addEventListener("change", render);
new ResizeObserver(render).observe($("priorities"));
setInterval(showLink, 1000);
connect();
</script>
</body>
</html>
)page";

}  // namespace troop::monitor::detail
