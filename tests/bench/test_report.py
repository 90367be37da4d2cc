#!/usr/bin/env python3
"""Tests of bench/report.py with a result whose figures are known."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORT = HERE.parent.parent / "bench" / "report.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(REPORT.parent))
import report  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
MIX = "bench_mix_cart_pole.svg"
THREADS = "bench_threads_prioritized_replay_atari.svg"


def row(**fields):
    made = dict.fromkeys(("record", "record_bytes", "entries", "environments", "batch", "writers"))
    for who in ("troop", "peer", "floor"):
        made.update((f"{who}_{what}", None) for what in ("us", "us_spread", "version", "command", "note"))
    return {**made, "peer": None, "ratio": None, "floor_ratio": None, **fields}


def replay_row(work, entries, peer, troop_us, peer_us, **more):
    return row(
        part="replay",
        work=work,
        record="cart_pole",
        record_bytes=44,
        entries=entries,
        peer=peer,
        troop_us=troop_us,
        troop_us_spread=[0.9 * troop_us, 1.1 * troop_us],
        floor_us=troop_us / 4,
        floor_ratio=4.0,
        peer_us=peer_us,
        peer_us_spread=[0.5 * peer_us, 2 * peer_us],
        ratio=peer_us / troop_us,
        peer_version=f"{peer} 1.2",
        **more,
    )


def threads_row(adders, learners):
    made = {"replay": "prioritized_replay", "record": "atari", "record_bytes": 56460, "entries": 2**15}
    made |= {"adders": adders, "learners": learners, "rounds": 3, "command": "c"}
    for names, value in (
        (("inserts_per_s", "own_inserts_per_s"), 123456.0 * adders or None),
        (("samples_per_s", "own_samples_per_s"), 2e6 * learners or None),
        (("efficiency", "cpu_efficiency"), 0.87),
    ):
        made |= {name: value for name in names}
        made |= {f"{name}_spread": None if value is None else [0.8 * value, value] for name in names}
    return made


def result():
    rows = []
    for i, entries in enumerate((2**14, 2**17, 2**20, 2**23)):
        for work, us in (("sample512", 20.0), ("mix", 50.0)):
            rows.append(replay_row(work, entries, "cpprb", us * (1 + i), 30 * us * (1 + i)))
            if i < 3:
                note = "FILL CUT at 666600" if i == 2 else ""
                rows.append(replay_row(work, entries, "re<verb|&", us * (1 + i), 1.2 * us, peer_note=note))
    rows.append(
        row(
            part="environment",
            work="cart_pole_step",
            environments=8,
            troop_us=0.5,
            troop_us_spread=[0.4, 0.6],
        )
    )
    for writers, peer_us in ((1, 5e3), (2, 2e3)):
        rows.append(
            row(
                part="transport",
                work="insert50",
                record="cart_pole",
                writers=writers,
                peer="reverb",
                troop_us=25.0,
                troop_us_spread=[20.0, 30.0],
                floor_us=10.0,
                peer_us=peer_us,
                peer_us_spread=[peer_us, peer_us],
                ratio=peer_us / 25,
            )
        )
    connections = [
        {"work": "actors", "connections": 1000, "inserts_per_s": 35700, "p50_ms": 0.25, "p99_ms": 3.0},
        {"work": "fan_out", "connections": 300, "seconds": 2.5},
    ]
    return {
        "format": 1,
        "complete": True,
        "command": "/usr/bin/python3 bench/compare.py --peers /home/somebody/peers/peers.sh --rounds 3",
        "settings": {"rounds": 3, "seconds": 0.3},
        "troop": {
            "version": "9.8.7",
            "compiler": "GCC 12",
            "instructions": "AVX2",
            "assertions": "off",
            "commit": "c0ffee",
        },
        "machine": {
            "cpu": "Some CPU",
            "cores": 2,
            "memory_bytes": 24 * 2**30,
            "kernel": "Linux",
            "system": "Debian",
            "python": "3.11",
            "started": "2026-01-02T03:04:05+00:00",
            "ended": "2026-01-02T03:14:05+00:00",
            "load_before": [0.1, 0.2, 0.3],
            "load_after": [1.0, 0.9, 0.8],
            "copy_bytes_per_s": 9.5e9,
            "read_bytes_per_s": None,
        },
        "rows": rows,
        "threads": [threads_row(1, 0), threads_row(2, 0), threads_row(0, 1), threads_row(2, 1)],
        "connections": [{**of_one, "server_bytes": 34.5e6} for of_one in connections],
        "problems": [{"round": 1, "what": "tianshou", "reason": "/opt/x/y.py: no such module"}],
    }


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.directory = Path(self.temporary.name)
        self.page = self.directory / "docs" / "benchmarks.md"
        self.plots = self.directory / "docs" / "images"

    def run_report(self, contents, *arguments):
        source = self.directory / "bench.json"
        source.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        command = [sys.executable, "-S", str(REPORT), str(source), *arguments]
        command += ["--output", str(self.page), "--plots", str(self.plots)]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)

    def report(self, contents=None):
        process = self.run_report(result() if contents is None else contents)
        self.assertEqual(process.returncode, 0, process.stderr)
        return self.page.read_text(encoding="utf-8")

    def test_each_figure_stands_in_a_table(self):
        text = self.report()
        self.assertIn("| work | entries | troop | floor | troop / floor | cpprb | re<verb\\|& |", text)
        self.assertIn("| `mix` | 2^14 | 50 [45..55] | 12.5 | 4.00 | 1,500 [750..3,000], **30.0** |", text)
        self.assertIn("| `cart_pole_step` | 8 | 0.5 [0.4..0.6] |", text)
        efficiency = "0.87 [0.70..0.87]"
        self.assertIn(f"| 2 | 1 | 247k | 247k | 2M | 2M | {efficiency} | {efficiency} |", text)
        self.assertIn(f"| 1 | 0 | 123k | 123k | - | - | {efficiency} |", text)
        # A peer that did not measure the largest size.
        self.assertRegex(text, r"\| `mix` \| 2\^23 \|.*\| - \|\n")

    def test_the_transport_is_told_in_transitions_a_second(self):
        text = self.report()
        self.assertIn("| writers | troop | bare sockets | troop / bare sockets | reverb |", text)
        self.assertIn("| 1 | 2M [1.67M..2.5M] | 5M | 0.40 | 10k, **200** |", text)
        self.assertIn("| 2 | 2M [1.67M..2.5M] | 5M | 0.40 | 25k, **80.0** |", text)
        self.assertIn("1,000 actors that send 50 transitions each 1.4 s: 35.7k transitions/s", text)
        self.assertIn("after 0.25 ms, 99 % within 3 ms; the server takes 34.5 MB beyond the replay.", text)
        self.assertIn("at the last of 300 subscribers: 2.5 s; the server takes 34.5 MB", text)

    def test_overlapping_spreads_are_marked(self):
        self.assertIn("60 [30..120], **~1.20** |", self.report())

    def test_it_says_how_and_where_it_was_measured(self):
        text = self.report()
        for said in (
            "Some CPU, 2 cores, 24 GiB, Debian; one core: copy 9.5 GB/s.",
            "troop 9.8.7 (c0ffee), GCC 12, AVX2.",
            "- cpprb: cpprb 1.2.",
            "From 2026-01-02T03:04:05+00:00",
            "0.10 0.20 0.30 before, 1.00 0.90 0.80 after",
            "    python3 bench/compare.py --peers peers.sh --rounds 3\n",
            "entries 2^20: FILL CUT at 666600",
            "- tianshou: y.py: no such module",
            "keeps the discount as a flag",  # of the list in bench/README.md
        ):
            self.assertIn(said, text)
        self.assertNotIn("somebody", text)
        self.assertNotIn("worth little", text)

    def test_a_busy_machine_and_an_interruption_are_said(self):
        contents = result()
        contents["machine"]["load_before"] = [3.0, 2.0, 1.0]
        contents["complete"] = False
        contents["troop"]["assertions"] = "on"
        text = self.report(contents)
        for said in ("worth little", "interrupted", "with assertions"):
            self.assertIn(said, text)
        contents["machine"]["load_before"], contents["machine"]["load_after"] = [0.1, 0, 0], [9.0, 3.0, 1.0]
        self.assertIn("others were busy", self.report(contents))
        contents["machine"]["load_before"] = None
        self.assertIn("The load of the machine is not known", self.report(contents))

    def test_plots_are_well_formed_and_linked(self):
        text = self.report()
        self.assertEqual(re.findall(r"\]\((.*)\)", text), [f"images/{MIX}", f"images/{THREADS}"])
        self.assertEqual({path.name for path in self.plots.iterdir()}, {MIX, THREADS})
        for name, curves in ((MIX, 4), (THREADS, 6)):
            root = ElementTree.parse(self.plots / name).getroot()
            self.assertEqual(root.tag, f"{SVG}svg")
            marks = root.findall(f".//{SVG}g[@class='mark']")
            width, height = (float(root.get(side)) for side in ("width", "height"))
            self.assertGreaterEqual(len(marks), 2 * curves)
            for element in root.iter():
                self.assertNotIn("nan", " ".join(element.attrib.values()))
            for text_element in root.iter(f"{SVG}text"):
                for side, limit in (("x", width), ("y", height)):
                    self.assertTrue(0 < float(text_element.get(side)) < limit, text_element.attrib)

    def test_points_of_the_plot_lie_where_the_axes_say(self):
        self.report()
        root = ElementTree.parse(self.plots / MIX).getroot()
        heights = {}  # of the labelled values
        for text in root.findall(f"{SVG}text"):
            if text.get("text-anchor") == "end":
                heights[text.text] = float(text.get("y")) - 4
        # 20,000 steps a second for troop, 80,000 for memory alone, at 2^14; the axis is logarithmic.
        troop = root.find(f"{SVG}g[@class='troop']/{SVG}g").get("transform")
        found = float(re.match(r"translate\(\S+ (\S+)\)", troop)[1])
        part = (heights["10k"] - found) / (heights["10k"] - heights["100k"])
        self.assertAlmostEqual(part, 0.30103, places=2)

    def test_one_size_gives_no_plot_against_size(self):
        contents = result()
        contents["rows"] = [found for found in contents["rows"] if found["entries"] == 2**20]
        contents["threads"] = []
        self.assertNotIn("![", self.report(contents))
        self.assertEqual(list(self.plots.iterdir()), [])

    def test_the_same_result_gives_the_same_files(self):
        def written():
            self.report()
            return [self.page.read_bytes(), *(path.read_bytes() for path in sorted(self.plots.iterdir()))]

        self.assertEqual(written(), written())

    def test_figures_of_threads_alone_are_enough(self):
        contents = result()
        contents["rows"] = []
        text = self.report(contents)
        self.assertIn("## Threads", text)
        self.assertNotIn("## Replay", text)

    def test_bad_input_is_refused_and_nothing_is_written(self):
        without = result()
        del without["machine"]
        odd = result()
        odd["rows"][0]["troop_us"] = "fast"
        for contents, complaint in (
            ("{", "is no JSON"),
            ("[]", "is no result of compare.py in format 1"),
            ({**result(), "format": 2}, "is no result of compare.py in format 1"),
            (without, "has no field 'machine'"),
            ({**result(), "rows": [], "threads": [], "connections": []}, "holds no figures"),
            ({**result(), "rows": [{}]}, "has something else in a field than compare.py writes (KeyError"),
            (odd, "has something else in a field than compare.py writes (TypeError"),
        ):
            with self.subTest(complaint):
                process = self.run_report(contents)
                self.assertEqual(process.returncode, 1)
                self.assertIn("bench.json " + complaint, process.stderr)
                self.assertNotIn("Traceback", process.stderr)
                self.assertFalse(self.page.exists() or self.plots.exists())
        missing = ["/does/not/exist.json", "--output", str(self.page), "--plots", str(self.plots)]
        process = subprocess.run(
            [sys.executable, "-S", str(REPORT), *missing], stderr=subprocess.PIPE, text=True, timeout=60
        )
        self.assertEqual(process.returncode, 1)
        self.assertIn("/does/not/exist.json No such file or directory", process.stderr)
        self.assertEqual(self.run_report(result(), "--plain").returncode, 2)

    def test_a_page_that_cannot_be_written_is_an_error(self):
        (self.directory / "docs").write_text("in the way")
        process = self.run_report(result())
        self.assertEqual(process.returncode, 1)
        self.assertIn("report.py: cannot write", process.stderr)

    def test_ticks_are_round_and_enclose_the_figures(self):
        for low, high in ((3.0, 3.0), (1.0, 10.0), (95e3, 110e3), (7.0, 4e5), (1e-3, 2e-3)):
            lines, labelled = report.log_ticks(low, high)
            self.assertLessEqual(lines[0], low * 1.001)
            self.assertGreaterEqual(lines[-1], high * 0.999)
            self.assertGreaterEqual(len(labelled), 2)
            self.assertLessEqual(set(labelled), set(lines))
            self.assertLessEqual(len(labelled), 8)
            self.assertTrue(all(f"{line:.3e}"[0] in "125" for line in lines))


if __name__ == "__main__":
    unittest.main()
