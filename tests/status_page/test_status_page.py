#!/usr/bin/env python3
"""test_status_page.py SERVE_RUN [PICTURES]: the status page in a real browser; with a folder, pictures of it go there.
Exit code 77, saying why, where there is no browser."""

import os
import re
import socket
import subprocess
import sys
import time
import unittest

import chromium

SERVE_RUN = PICTURES = None
NUM_ACTORS = 300

# The least contrast of a text with what is behind it, and that text.
CONTRAST = """(() => {
  const parse = text => text.match(/[0-9.]+/g).map(Number);
  const light = rgb => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let least = [Infinity, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), isDrawn = element instanceof SVGElement;
    const a = light(parse(isDrawn ? style.fill : style.color)), b = light(behind(element));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least[0]) least = [contrast, text];
  }
  return least;
})()"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Run:
    def __init__(self, port, actors=NUM_ACTORS, seed=7):
        self.process = subprocess.Popen([SERVE_RUN, str(port), str(actors), str(seed)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


class StatusPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = chromium.Browser(chromium.find())
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.run_ = Run(free_port())
        self.addCleanup(lambda: self.run_.end())
        self.browser.size(1280, 900)
        self.browser.scheme("light")
        self.browser.complaints.clear()
        self.browser.open(self.run_.url)
        self.wait_for_text("link", "^live$")
        self.browser.wait_for(f"document.querySelectorAll('#actors tr').length === {NUM_ACTORS}")

    def text(self, id):
        return self.browser.ask(f"document.getElementById('{id}').textContent")

    def wait_for_text(self, id, pattern):
        self.browser.wait_for(f"new RegExp({pattern!r}).test(document.getElementById('{id}').textContent)")

    def check_silence(self):
        self.assertEqual(self.browser.complaints, [])

    def picture(self, name, **how):
        if PICTURES:
            self.browser.picture(os.path.join(PICTURES, name + ".png"), **how)

    def test_the_page_shows_the_run(self):
        self.wait_for_text("alarms", "^$")
        self.run_.tell("evaluate 80")
        self.wait_for_text("figures", r"Greedy return80\.00\u00b1 1\.414, target 90\.00")
        self.assertEqual(self.text("name"), "Pong-v5")
        self.assertRegex(self.text("facts"), r"^learner · seed 7 · epsilon 0\.0007 to 0\.40 · training for ")
        self.wait_for_text("figures", r"Environment steps/s40k")
        self.wait_for_text("figures", f"Actors{NUM_ACTORS}none lost")
        self.wait_for_text("checkpoints", r"Newest42 s agoAt learner step12kSize31MB")
        self.assertEqual(self.browser.ask("document.querySelectorAll('#priorities rect').length"), 5)
        self.assertEqual(self.browser.ask("document.title"), "Pong-v5 – troop")
        self.assertEqual(len(re.findall("M", self.browser.ask(
            "document.querySelector('#steps path').getAttribute('d')"))), 1)
        self.check_silence()

    def test_the_page_follows_the_run(self):
        for mean in (20, 50, 80):
            self.run_.tell(f"evaluate {mean}")
            self.wait_for_text("figures", rf"Greedy return{mean}\.00")
        line = self.browser.ask("[...document.querySelectorAll('#curve path')].at(-1).getAttribute('d')")
        self.assertEqual(line.count("M") + line.count("L"), 3)
        self.assertEqual(self.browser.ask("document.querySelectorAll('#alarms > div').length"), 0)
        self.run_.tell("skip 3")
        self.wait_for_text("alarms", r"Alarm: 3 learner steps were not applied.*Lower --learning-rate")
        self.browser.wait_for("document.title.startsWith('! ')")
        self.run_.tell("lose 5")
        self.wait_for_text("figures", f"Actors{NUM_ACTORS - 1}1 lost")
        self.browser.wait_for("document.querySelectorAll('#actors tr.lost').length === 1")
        self.assertRegex(self.browser.ask("document.querySelector('#actors tr.lost').textContent"),
                         r"^16–19worker-5\.example:1005.*lost \d+ s ago$")
        self.picture("alarms")
        self.check_silence()

    def test_hostile_names_are_text(self):
        cells = self.browser.ask("[...document.querySelectorAll('#actors tr')].slice(0, 2)"
                                 ".map(row => row.children[1].textContent)")
        self.assertEqual(cells[0], "<img src=x onerror=alert(1)><script>alert(2)</script>")
        self.assertTrue(cells[1].startswith("?[31mred?\"'&amp;xxx"))
        self.assertEqual(len(cells[1]), 128)
        self.assertEqual(self.browser.ask("document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.browser.ask("document.querySelectorAll('script').length"), 1)
        self.check_silence()

    def test_the_table_is_sorted_and_narrowed_by_keyboard(self):
        self.browser.ask("document.querySelector('#filter').focus()")
        self.browser.press("Tab", 9)  # the table's frame, which scrolls
        self.browser.press("Tab", 9)
        self.assertEqual(self.browser.ask("document.activeElement.textContent"), "Index")
        self.assertNotEqual(self.browser.ask("getComputedStyle(document.activeElement).outlineStyle"), "none")
        for expected in ("300", "1"):  # the first press turns what is sorted by it already
            self.browser.press("Enter", 13, "\r")
            self.browser.wait_for(
                f"document.querySelector('#actors td').textContent.startsWith('{4 * (int(expected) - 1)}')")
        self.browser.press("Tab", 9)
        self.browser.press("Enter", 13, "\r")
        self.assertEqual(self.browser.ask("document.querySelector('[aria-sort=ascending]').textContent"), "Process")
        self.browser.ask("(() => { const f = document.querySelector('#filter'); f.value = 'worker-29';"
                         "f.dispatchEvent(new Event('input')); })()")
        self.wait_for_text("shown", "^11 of 300$")
        self.check_silence()

    def test_a_chart_tells_its_values_by_keyboard(self):
        self.browser.wait_for("run.points.length >= 3")
        self.browser.ask("document.querySelector('#steps').focus()")
        self.browser.press("ArrowLeft", 37)
        said = self.browser.ask("document.querySelector('#steps + output').textContent")
        self.assertRegex(said, r"^at [0-9.]+ s: steps/s [0-9.e+]+$")
        self.browser.press("Escape", 27)
        self.assertEqual(self.browser.ask("document.querySelector('#steps + output').textContent"), "")
        label = self.browser.ask("document.querySelector('#steps').getAttribute('aria-label')")
        self.assertRegex(label, "^Environment steps per second, at ")
        self.check_silence()

    def test_everything_can_be_read_light_dark_and_on_a_phone(self):
        self.run_.tell("skip 1")
        self.run_.tell("lose 3")
        for mean in (10, 25, 40, 62, 71, 88):
            self.run_.tell(f"evaluate {mean}")
            self.wait_for_text("figures", rf"Greedy return{mean}\.00")
        self.browser.wait_for("document.querySelectorAll('#actors tr.lost').length === 1")
        for scheme in ("light", "dark"):
            for width in (1280, 360):
                self.browser.size(width, 900)
                self.browser.scheme(scheme)
                with self.subTest(scheme=scheme, width=width):
                    self.browser.listen(0.3)
                    contrast, text = self.browser.ask(CONTRAST)
                    self.assertGreaterEqual(contrast, 4.5, text)
                    self.assertLessEqual(self.browser.ask("document.scrollingElement.scrollWidth"), width)
                    self.picture(f"{scheme}-{width}")
        self.check_silence()

    def test_times_are_of_the_viewers_zone(self):
        hours = []
        for zone in ("Asia/Tokyo", "America/New_York"):
            self.browser.call("Emulation.setTimezoneOverride", timezoneId=zone)
            self.browser.open(self.run_.url)
            self.wait_for_text("started", ":")
            self.assertEqual(self.text("zone"), zone)
            hours.append(self.text("started"))
        self.browser.call("Emulation.setTimezoneOverride", timezoneId="")
        self.assertNotEqual(*hours)
        self.check_silence()

    def test_the_page_finds_the_head_again_after_a_restart(self):
        self.run_.tell("evaluate 80")
        self.wait_for_text("figures", r"Greedy return80\.00")
        port = int(self.run_.url.rstrip("/").rsplit(":", 1)[1])
        self.run_.end()
        self.wait_for_text("link", "^not connected since .*, trying again$")
        self.run_ = Run(port, actors=5, seed=8)
        self.wait_for_text("link", "^live$")
        self.wait_for_text("facts", "seed 8")
        self.wait_for_text("figures", "Greedy return\u2013no evaluation yet")  # nothing is left of the run before
        self.browser.wait_for("document.querySelectorAll('#actors tr').length === 5")
        self.assertEqual(self.browser.ask("run.evaluations.length"), 0)
        others = [c for c in self.browser.complaints if "ERR_CONNECTION_REFUSED" not in c and "ERR_INCOMPLETE" not in c]
        self.assertEqual(others, [])

    def test_the_page_is_small_and_soon_there(self):
        paints = []
        for _ in range(3):
            self.browser.open(self.run_.url)
            self.browser.wait_for("performance.getEntriesByName('first-contentful-paint').length === 1")
            paints.append(self.browser.ask("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        size = self.browser.ask("performance.getEntriesByType('navigation')[0].transferSize")
        self.wait_for_text("link", "^live$")
        self.browser.wait_for(f"document.querySelectorAll('#actors tr').length === {NUM_ACTORS}")
        before, start = self.browser.received_bytes, time.monotonic()
        while time.monotonic() < start + 12:
            self.browser.listen(0.5)
        rate = (self.browser.received_bytes - before) / (time.monotonic() - start)
        print(f"page: {size} bytes, first paint after {min(paints):.0f} ms, updates {rate:.0f} bytes/s "
              f"with {NUM_ACTORS} actors")
        self.assertLess(size, 200_000)
        self.assertLess(min(paints), 500)
        self.assertLess(rate, 20_000)
        self.assertGreater(rate, 1_000)
        self.check_silence()


if __name__ == "__main__":
    SERVE_RUN = sys.argv.pop(1)
    PICTURES = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith(("-", "StatusPage")) else None
    if chromium.find() is None:
        print("not tried: there is no chromium here (Debian package chromium)")
        sys.exit(77)
    unittest.main()
