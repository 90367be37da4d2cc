#!/usr/bin/env python3
"""Turns the JSON of compare.py into a page with tables and plots.

    report.py build/bench.json --output docs/benchmarks.md --plots docs/images

The same JSON gives the same page and the same plots, byte for byte. Exit status: 0 written, 1 the JSON cannot
be read or the page cannot be written, 2 a bad option.
"""

import argparse
import dataclasses
import html
import json
import math
import os
import re
import sys
from pathlib import Path

from compare import BANDWIDTHS, RECORD_BYTES, TROOP, write_atomically

# In what one work differs from another.
SIZES = ("work", "record", "entries", "environments", "batch", "writers")
README = Path(__file__).resolve().with_name("README.md")


class BadResult(Exception):
    """The JSON is not what compare.py writes."""


# ---- reading


def load(path):
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadResult(error.strerror) from error
    except ValueError as error:
        raise BadResult(f"is no JSON ({error})") from error
    if not isinstance(result, dict) or result.get("format") != 1:
        raise BadResult("is no result of compare.py in format 1")
    for field in ("command", "machine", "troop", "settings", "rows", "threads", "connections", "problems"):
        if field not in result:
            raise BadResult(f"has no field {field!r}")
    if not (result["rows"] or result["threads"] or result["connections"]):
        raise BadResult("holds no figures")
    return result


# ---- numbers and words


def us(value):
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def spread(values):
    return "" if values is None else f" [{us(values[0])}..{us(values[1])}]"


def rate(value):
    """Three digits and k, M or G."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def times(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def ratio(row):
    """The peer's time over troop's, with a ~ where the spreads overlap."""
    ours, theirs = row["troop_us_spread"], row["peer_us_spread"]
    overlap = max(ours[0], theirs[0]) <= min(ours[1], theirs[1])
    return ("~" if overlap else "") + times(row["ratio"])


def entries(count):
    log2 = count.bit_length() - 1
    return f"2^{log2}" if count == 1 << log2 else str(count)


def without_folders(text):
    """The text with absolute paths cut down to their last parts: where somebody's files lie helps nobody."""
    return re.sub(r"(?<![\w./~-])/(?:[^\s/'\",:=]+/)+(?=[^\s/])", "", text)


def table(head, lines, left):
    """`left`: how many of the first columns are words."""
    marks = ["---" if column < left else "---:" for column in range(len(head))]
    cells = [head, marks, *lines]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in cells]


def distinct(values):
    return list(dict.fromkeys(value for value in values if value is not None))


# ---- the page


def works(rows):
    """Rows by what was done: {key: [row, one a peer]}."""
    found = {}
    for row in rows:
        key = tuple(row[field] for field in SIZES)
        found.setdefault(key, []).append(row)
    return found


def comparison(rows, size_name, size_of, has_floor):
    peers = distinct(row["peer"] for row in rows)
    head = ["work", size_name, "troop"] + (["floor", "troop / floor"] if has_floor else []) + peers
    lines = []
    for of_one_work in works(rows).values():
        row = of_one_work[0]
        line = [f"`{row['work']}`", size_of(row), us(row["troop_us"]) + spread(row["troop_us_spread"])]
        if has_floor:
            line += [us(row["floor_us"]), "-" if row["floor_ratio"] is None else times(row["floor_ratio"])]
        by_peer = {found["peer"]: found for found in of_one_work}
        for peer in peers:
            theirs = by_peer.get(peer)
            text = "-"
            if theirs is not None:
                text = f"{us(theirs['peer_us'])}{spread(theirs['peer_us_spread'])}, **{ratio(theirs)}**"
            line.append(text)
        lines.append(line)
    return table(head, lines, 1)


def thread_lines(rows):
    head = ["adders", "learners", "inserts/s", "each its own", "samples/s", "each its own"]
    head += ["efficiency", "of CPU time"]
    lines = []
    for row in rows:
        line = [row["adders"], row["learners"]]
        for name in ("inserts_per_s", "own_inserts_per_s", "samples_per_s", "own_samples_per_s"):
            line.append("-" if row[name] is None else rate(row[name]))
        for name in ("efficiency", "cpu_efficiency"):
            low, high = row[f"{name}_spread"]
            line.append(f"{row[name]:.2f} [{low:.2f}..{high:.2f}]")
        lines.append(line)
    return table(head, lines, 0)


def transport_lines(rows):
    """Transitions a second, for a call is a batch of 50 of one of the writers."""
    peers = distinct(row["peer"] for row in rows)
    lines = []
    for row in (of_one_work[0] for of_one_work in works(rows).values()):
        low, high = (rate(50e6 / us) for us in reversed(row["troop_us_spread"]))
        line = [row["writers"], f"{rate(50e6 / row['troop_us'])} [{low}..{high}]"]
        line.append("-" if row["floor_us"] is None else rate(50e6 / row["floor_us"]))
        line.append("-" if row["floor_us"] is None else times(row["floor_us"] / row["troop_us"]))
        for peer in peers:
            theirs = [found for found in rows if (found["peer"], found["writers"]) == (peer, row["writers"])]
            line.append(f"{rate(50e6 / theirs[0]['peer_us'])}, **{ratio(theirs[0])}**" if theirs else "-")
        lines.append(line)
    return table(["writers", "troop", "bare sockets", "troop / bare sockets", *peers], lines, 0)


def connection_lines(rows):
    lines = []
    for row in rows:
        count, memory = row["connections"], f"{row['server_bytes'] / 1e6:.3g} MB"
        if row["work"] == "actors":
            lines.append(
                f"- {count:,} actors that send 50 transitions each 1.4 s: {rate(row['inserts_per_s'])} "
                f"transitions/s, acknowledged after {row['p50_ms']:.3g} ms, 99 % within {row['p99_ms']:.3g} ms; "
                f"the server takes {memory} beyond the replay."
            )
        else:
            lines.append(
                f"- 13 MB of parameters, from their publication to the last byte at the last of {count:,} "
                f"subscribers: {row['seconds']:.3g} s; the server takes {memory} beyond the values published."
            )
    return lines


def load_note(machine):
    before, after = machine.get("load_before"), machine.get("load_after")
    if not before or not after:
        return "The load of the machine is not known."
    shown = [" ".join(f"{value:.2f}" for value in values) for values in (before, after)]
    note = f"Load of 1, 5 and 15 minutes: {shown[0]} before, {shown[1]} after, on {machine['cores']} cores."
    if before[0] >= 0.5:
        note += " **Something else was running when the measurement began: the figures are worth little.**"
    elif after[0] > 2 * machine["cores"]:
        note += " **That is more than the benchmark makes: others were busy, the figures say little.**"
    return note


def about(result):
    machine, troop, settings = result["machine"], result["troop"], result["settings"]
    memory = machine.get("memory_bytes")
    bandwidth = [
        f"{what} {machine[f'{what}_bytes_per_s'] / 1e9:.1f} GB/s"
        for what in BANDWIDTHS
        if machine.get(f"{what}_bytes_per_s")
    ]
    lines = [
        f"- Machine: {machine['cpu']}, {machine['cores']} cores"
        + (f", {memory / 2**30:.0f} GiB" if memory else "")
        + f", {machine['system'] or machine['kernel']}"
        + (f"; one core: {', '.join(bandwidth)}" if bandwidth else "")
        + ".",
        f"- troop {troop.get('version', '?')} ({troop.get('commit') or 'commit unknown'}), "
        f"{troop.get('compiler', '?')}, {troop.get('instructions', '?')}"
        + (", **with assertions**" if troop.get("assertions") == "on" else "")
        + ".",
    ]
    versions = {}
    for row in result["rows"]:
        if row["peer"] is not None:
            versions.setdefault(row["peer_version"] or "version unknown", []).append(row["peer"])
    lines += [f"- {', '.join(distinct(peers))}: {version}." for version, peers in versions.items()]
    lines += [
        f"- From {machine['started']} to {machine['ended']}; {settings['rounds']} rounds, "
        f"{settings['seconds']:g} s for each figure of a round.",
        f"- {load_note(machine)}",
    ]
    command = re.sub(r"^\S*/(python3?)[\d.]*(?= )", r"\1", result["command"])
    lines += ["", "Command (folders left out):", "", "    " + without_folders(command)]
    if not result["complete"]:
        lines += ["", "**The measurement was interrupted: not all rounds are in.**"]
    return lines


def differences():
    """What bench/README.md says under "Known differences"."""
    text = README.read_text(encoding="utf-8")
    found = re.search(r"^### Known differences\n[^-]*\n((?:- .*\n|  .*\n)+)", text, re.MULTILINE)
    if found is None:
        raise BadResult(f"{README.name} has no list of known differences")
    return found[1].rstrip().splitlines()


def page(result, links):
    """The page's text; `links` are those of the plots, by title."""
    rows = result["rows"]
    lines = ["# Benchmarks", ""]
    lines += ["Written by `bench/report.py`; `bench/README.md` says what is measured and how.", ""]
    lines += about(result)
    lines += [
        "",
        "Times are microseconds a call, medians of the rounds, with the fastest and the slowest window in",
        "brackets; beside a peer's time stands its **ratio** to troop's. A ratio with ~ is no evidence of a",
        "difference: the spreads overlap. The *floor* is the time of the copies and accesses to memory that",
        "no replay can avoid; troop / floor a little below 1 is noise.",
    ]

    def picture(name):
        if name in links:
            lines.extend(["", f"![{name}]({links[name]})"])

    for record, size in RECORD_BYTES.items():
        chosen = [row for row in rows if row["part"] == "replay" and row["record"] == record]
        if chosen:
            lines.extend(["", f"## Replay, records of {size:,} bytes", ""])
            lines.extend(comparison(chosen, "entries", lambda row: entries(row["entries"]), True))
            picture(mix_title(record))
    for record, size in RECORD_BYTES.items():
        chosen = [row for row in result["threads"] if row["record"] == record]
        for replay, count in distinct((row["replay"], row["entries"]) for row in chosen):
            of_one = [row for row in chosen if (row["replay"], row["entries"]) == (replay, count)]
            lines.extend(["", f"## Threads at one {replay}, {entries(count)} records of {size:,} bytes", ""])
            lines.extend(thread_lines(of_one))
            picture(threads_title(replay, record))
    if result["threads"]:
        lines += [
            "",
            "An adder inserts, a learner samples and updates; samples are counted in items. *Each its own*:",
            "the same threads, each with a replay to itself. *Efficiency*: work at the shared replay over",
            "work at the own ones, items weighed by the CPU time that they cost at the own ones; with one",
            "thread it is 1 but for noise. *Of CPU time*: the same for each second of CPU time, not of",
            "wall-clock time: what waiting costs is left out.",
        ]
    for record, size in RECORD_BYTES.items():
        chosen = [row for row in rows if row["part"] == "transport" and row["record"] == record]
        if chosen:
            lines.extend(["", f"## Transport, transitions a second, {size:,} bytes each", ""])
            lines.extend(transport_lines(chosen))
    if result["connections"]:
        lines.extend(["", "## Transport, many connections", "", *connection_lines(result["connections"])])
    for part, title, size_name in (
        ("environment", "Environments", "environments"),
        ("learner", "Learner", "batch"),
    ):
        chosen = [row for row in rows if row["part"] == part]
        if chosen:
            lines.extend(["", f"## {title}", ""])
            lines.extend(comparison(chosen, size_name, lambda row, name=size_name: row[name], False))

    lines += ["", "## Known differences", "", *differences()]
    notes = {}
    for row in rows:
        if row["peer_note"]:
            of_note = notes.setdefault((row["peer"], row["peer_note"]), [])
            of_note += [entries(row["entries"])] if row["entries"] else []
    if notes:
        lines += ["", "What the peers script noted beside figures:", ""]
    for (peer, note), sizes in notes.items():
        sizes = f", entries {', '.join(distinct(sizes))}" if sizes else ""
        lines.append(f"- {peer}{sizes}: {without_folders(note)}")
    if result["problems"]:
        lines += ["", "## Left out, cut short or failed", ""]
        for problem in result["problems"]:
            lines.append(f"- {without_folders(problem['what'])}: {without_folders(problem['reason'])}")
    return "\n".join(lines) + "\n"


# ---- plots


@dataclasses.dataclass(frozen=True)
class Curve:
    name: str
    points: list  # (x, y)
    style: str


@dataclasses.dataclass(frozen=True)
class Panel:
    x_name: str
    y_name: str
    curves: list
    x_powers: bool = False  # ticks as powers of two


# Colours that can be told apart by most eyes (Okabe and Ito 2008), once for a light and once for a dark page.
COLOURS = {
    TROOP: ("#d55e00", "#ff8a3d"),
    "floor": ("#6b7280", "#9ca3af"),
    "peer0": ("#0072b2", "#56b4e9"),
    "peer1": ("#009e73", "#2fd6a3"),
    "peer2": ("#b0508a", "#e79bc6"),
    "peer3": ("#a67c00", "#f0c94a"),
    "peer4": ("#5b4fcf", "#a79fff"),
}
NUM_PEER_COLOURS = 5
SHAPES = (
    '<circle r="4"/>',
    '<rect x="-3.6" y="-3.6" width="7.2" height="7.2"/>',
    '<path d="M0-4.8L4.6 3.6L-4.6 3.6Z"/>',
    '<path d="M0-5L5 0L0 5L-5 0Z"/>',
    '<path d="M0 4.8L4.6-3.6L-4.6-3.6Z"/>',
)
HEIGHT, LEGEND = 320, 24  # of a panel, of a line of the legend
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 58, 48  # around a panel's axes


def style_sheet():
    light = "".join(f".{name}{{--c:{pair[0]}}}" for name, pair in COLOURS.items())
    dark = "".join(f".{name}{{--c:{pair[1]}}}" for name, pair in COLOURS.items())
    return (
        "svg{--page:#fff;--ink:#24292f;--grid:#e3e6ea;--axis:#8b949e}"
        + light
        + "text{font:12px system-ui,sans-serif;fill:var(--ink)}.title{font-size:14px;font-weight:600}"
        + ".page{fill:var(--page)}.grid{stroke:var(--grid)}.axis{stroke:var(--axis);fill:none}"
        + ".line{stroke:var(--c);fill:none;stroke-width:2}.troop .line{stroke-width:3}"
        + ".dashed .line{stroke-dasharray:6 4}.mark{fill:var(--c)}"
        + ".dashed .mark{fill:var(--page);stroke:var(--c);stroke-width:1.5}"
        + "@media(prefers-color-scheme:dark){"
        + f"svg{{--page:#0d1117;--ink:#d7dae0;--grid:#272d36;--axis:#6e7681}}{dark}}}"
    )


def log_ticks(low, high):
    """(all lines, those with a label) of a logarithmic axis from 1-2-5 values that enclose [low, high]."""
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [digit * 10.0**exponent for exponent in exponents for digit in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step <= low * 1.0001)
    last = min(i for i, step in enumerate(steps) if step >= high * 0.9999)
    while last - first < 2:
        first, last = first - 1, last + 1
    chosen = steps[first : last + 1]
    if len(chosen) <= 8:
        return chosen, chosen
    return chosen, [step for step in chosen if f"{step:e}".startswith("1.0")]


def show_panel(panel, left, panel_width):
    xs = sorted({x for curve in panel.curves for x, _ in curve.points})
    ys = [y for curve in panel.curves for _, y in curve.points]
    grid, labelled = log_ticks(min(ys), max(ys))
    low, high = math.log(grid[0]), math.log(grid[-1])
    x_low, x_high = math.log2(xs[0]), math.log2(xs[-1])
    x_pad = 0.06 * (x_high - x_low) if x_high > x_low else 0.5
    right, bottom = left + panel_width - RIGHT, HEIGHT - BOTTOM

    def at_x(x):
        part = (math.log2(x) - x_low + x_pad) / (x_high - x_low + 2 * x_pad)
        return left + LEFT + part * (right - left - LEFT)

    def at_y(y):
        return bottom - (math.log(y) - low) / (high - low) * (bottom - TOP)

    lines = []
    for y in grid:
        lines.append(f'<path class="grid" d="M{left + LEFT} {at_y(y):.1f}H{right}"/>')
        if y in labelled:
            place = f'x="{left + LEFT - 8}" y="{at_y(y) + 4:.1f}" text-anchor="end"'
            lines.append(f"<text {place}>{rate(y)}</text>")
    for x in xs:
        place = f'x="{at_x(x):.1f}" y="{bottom + 20}" text-anchor="middle"'
        label = str(x)
        if panel.x_powers:
            label = f'2<tspan dy="-5" font-size="9">{math.log2(x):g}</tspan>'
        lines.append(f'<path class="axis" d="M{at_x(x):.1f} {bottom}v5"/><text {place}>{label}</text>')
    lines.append(f'<path class="axis" d="M{left + LEFT} {TOP}V{bottom}H{right}"/>')
    place = f'x="{(left + LEFT + right) / 2:.1f}" y="{bottom + 40}" text-anchor="middle"'
    lines.append(f"<text {place}>{html.escape(panel.x_name)}</text>")
    lines.append(f'<text x="{left + 12}" y="{TOP - 14}">{html.escape(panel.y_name)}</text>')
    for index, curve in reversed(list(enumerate(panel.curves))):
        points = [(at_x(x), at_y(y)) for x, y in sorted(curve.points)]
        lines.append(f'<g class="{curve.style}">')
        if len(points) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            lines.append(f'<path class="line" d="M{path}"/>')
        for x, y in points:
            mark = SHAPES[index % len(SHAPES)]
            lines.append(f'<g class="mark" transform="translate({x:.1f} {y:.1f})">{mark}</g>')
        lines.append("</g>")
    return lines


def plot(title, panels):
    """One SVG with one panel, or two side by side, and a legend below each."""
    panel_width, columns = (680, 2) if len(panels) == 1 else (440, 1)
    rows = max(-(-len(panel.curves) // columns) for panel in panels)
    width, height = panel_width * len(panels), HEIGHT + LEGEND * rows + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{style_sheet()}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        f'<text class="title" x="12" y="24">{html.escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        lines += show_panel(panel, number * panel_width, panel_width)
        for index, curve in enumerate(panel.curves):
            x = number * panel_width + LEFT + index % columns * (panel_width - LEFT) // columns
            y = HEIGHT + 12 + LEGEND * (index // columns)
            lines.append(
                f'<g class="{curve.style}" transform="translate({x} {y})"><path class="line" d="M0 0h26"/>'
                f'<g class="mark" transform="translate(13 0)">{SHAPES[index % len(SHAPES)]}</g>'
                f'<text x="34" y="4">{html.escape(curve.name)}</text></g>'
            )
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def mix_title(record):
    return f"Learner steps a second, records of {RECORD_BYTES[record]:,} bytes"


def threads_title(replay, record):
    return f"Threads at one {replay}, records of {RECORD_BYTES[record]:,} bytes"


def mix_panels(rows, record):
    """Throughput against size; none with fewer than two sizes, of which no curve can be made."""
    rows = [row for row in rows if (row["part"], row["work"], row["record"]) == ("replay", "mix", record)]
    if len({row["entries"] for row in rows}) < 2:
        return []

    def curve(name, style, field, chosen):
        points = sorted({row["entries"]: 1e6 / row[field] for row in chosen if row[field]}.items())
        return Curve(name, points, style)

    curves = [curve("memory alone", "floor dashed", "floor_us", rows), curve(TROOP, TROOP, "troop_us", rows)]
    for i, peer in enumerate(sorted(distinct(row["peer"] for row in rows))):
        chosen = [row for row in rows if row["peer"] == peer]
        curves.append(curve(peer, f"peer{i % NUM_PEER_COLOURS}", "peer_us", chosen))
    curves = sorted((found for found in curves if found.points), key=lambda found: -found.points[0][1])
    return [Panel("entries", "learner steps/s", curves, x_powers=True)]


def threads_panels(rows, replay, record):
    """Inserts against adders, samples against learners; at a shared replay and at one for each thread."""
    rows = [row for row in rows if (row["replay"], row["record"]) == (replay, record)]
    panels = []
    for x, field, beside, choices in (
        ("adders", "inserts_per_s", "learners", ((0, "adders", TROOP), (1, "beside one learner", "peer0"))),
        ("learners", "samples_per_s", "adders", ((0, "learners", TROOP),)),
    ):
        curves = []
        for others, name, style in choices:
            for prefix, suffix, dashes in (("", "", ""), ("own_", ", each its own replay", " dashed")):
                points = [(row[x], row[prefix + field]) for row in rows if row[x] and row[beside] == others]
                if points:
                    curves.append(Curve(name + suffix, sorted(points), style + dashes))
        if curves:
            panels.append(Panel(x, f"{field.split('_')[0]}/s", curves))
    return panels


def plots_of(result):
    """{title: (file name, SVG)}"""
    drawn = {}
    for record in RECORD_BYTES:
        panels = mix_panels(result["rows"], record)
        if panels:
            drawn[mix_title(record)] = (f"bench_mix_{record}.svg", panels)
    for replay, record in distinct((row["replay"], row["record"]) for row in result["threads"]):
        panels = threads_panels(result["threads"], replay, record)
        if panels:
            drawn[threads_title(replay, record)] = (f"bench_threads_{replay}_{record}.svg", panels)
    return {title: (name, plot(title, panels)) for title, (name, panels) in drawn.items()}


# ---- the program


def main():
    parser = argparse.ArgumentParser(
        description="Turns the JSON of compare.py into a page with tables and plots.", allow_abbrev=False
    )
    parser.add_argument("result", type=Path, help="what compare.py wrote, e.g. build/bench.json")
    parser.add_argument("--output", type=Path, required=True, help="the page, e.g. docs/benchmarks.md")
    parser.add_argument("--plots", type=Path, required=True, help="folder for the plots, e.g. docs/images")
    options = parser.parse_args()
    try:
        result = load(options.result)
        try:
            plots = plots_of(result)
            folder = Path(os.path.relpath(options.plots, options.output.parent)).as_posix()
            text = page(result, {title: f"{folder}/{name}" for title, (name, _) in plots.items()})
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise BadResult(f"has something else in a field than compare.py writes ({error!r})") from error
    except BadResult as error:
        sys.exit(f"report.py: {options.result} {error}")
    try:
        options.plots.mkdir(parents=True, exist_ok=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for name, svg in plots.values():
            write_atomically(options.plots / name, svg)
        write_atomically(options.output, text)
    except OSError as error:
        sys.exit(f"report.py: cannot write: {error}")
    print(f"Written: {options.output}" + "".join(f", {options.plots / name}" for name, _ in plots.values()))


if __name__ == "__main__":
    main()
