#!/usr/bin/env python3
"""Tests of bench/compare.py with programs and peers that print known figures.

With TROOP_BENCH_BUILD=<build directory> also one quick run of the real programs against the fake peers.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPARE = HERE.parent.parent / "bench" / "compare.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(COMPARE.parent))
import compare  # noqa: E402
PROGRAMS = (
    "bench_replay_prioritized_replay",
    "bench_replay_floor",
    "bench_replay_prioritized_replay_threads",
    "bench_env_vector_environment",
    "bench_nn_eigen_network",
    "bench_net_transport",
)

TOP = {"format", "complete", "command", "settings", "troop", "machine", "rows", "threads"}
TOP |= {"connections", "problems"}
TROOP = {"version", "compiler", "instructions", "assertions", "commit"}
MACHINE = {"cpu", "cores", "memory_bytes", "kernel", "system", "python"}
MACHINE |= {"started", "ended", "load_before", "load_after", "copy_bytes_per_s", "read_bytes_per_s"}
ROW = {"part", "work", "record", "record_bytes", "entries", "environments", "batch"}
ROW |= {"writers", "peer", "ratio"}
SERIES = ("us", "us_spread", "rounds", "version", "command", "note")
ROW |= {f"{who}_{what}" for who in ("troop", "peer") for what in SERIES}
ROW |= {"floor_ratio"} | {f"floor_{what}" for what in ("us", "us_spread", "rounds", "command")}
THREADS = {"replay", "record", "record_bytes", "entries", "adders", "learners", "rounds", "command"}
RATES = ("inserts_per_s", "own_inserts_per_s", "samples_per_s", "own_samples_per_s")
THREADS |= {name + end for name in (*RATES, "efficiency", "cpu_efficiency") for end in ("", "_spread")}
CONNECTIONS = {"work", "connections", "rounds", "command"}
FIGURES = ("inserts_per_s", "p50_ms", "p99_ms", "server_bytes", "seconds")
CONNECTIONS |= {name + end for name in FIGURES for end in ("", "_spread")}


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.directory = Path(self.temporary.name)
        self.output = self.directory / "out" / "bench.json"
        self.build = self.directory / "build"
        (self.build / "bench").mkdir(parents=True)
        for program in PROGRAMS:
            self.install("fake_program.py", self.build / "bench" / program)
        self.install("fake_program.py", self.directory / "fake_program.py")  # which the peers import
        self.peers = self.install("fake_peers.py", self.directory / "fake_peers.py")

    def install(self, script, path):
        """Copies a script so that it starts without a search for Python."""
        text = (HERE / script).read_text(encoding="utf-8")
        path.write_text(f"#!{sys.executable} -S\n{text.split(chr(10), 1)[1]}", encoding="utf-8")
        path.chmod(0o755)
        return path

    def start(self, *arguments, peers=None, build=None, **environment):
        command = [sys.executable, "-S", str(COMPARE), "--build", str(build or self.build)]
        command += ["--peers", str(self.peers if peers is None else peers), "--output", str(self.output)]
        command += ["--seconds", "0.01", *arguments]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FAKE_STATE": str(self.directory), **environment},
        )

    def compare(self, *arguments, expected=0, **more):
        process = self.start(*arguments, **more)
        self.said, self.complaints = process.communicate(timeout=60)
        self.assertEqual(process.returncode, expected, self.said + self.complaints)
        return json.loads(self.output.read_text()) if self.output.exists() else None

    def row(self, result, **fields):
        found = [row for row in result["rows"] if fields.items() <= row.items()]
        self.assertEqual(len(found), 1, fields)
        return found[0]

    def test_every_documented_field_is_there(self):
        result = self.compare("--quick")
        self.assertEqual(result.keys(), TOP)
        self.assertEqual(result["troop"].keys(), TROOP)
        self.assertEqual(result["machine"].keys(), MACHINE)
        for row in result["rows"]:
            self.assertEqual(row.keys(), ROW)
        for row in result["threads"]:
            self.assertEqual(row.keys(), THREADS)
        for row in result["connections"]:
            self.assertEqual(row.keys(), CONNECTIONS)
        self.assertIs(result["complete"], True)
        self.assertEqual(result["problems"], [])
        self.assertEqual(result["troop"]["version"], "9.8.7")
        self.assertEqual(result["settings"]["entries"], [2**14])

    def test_ratios_are_those_of_the_medians(self):
        # Three rounds with the factors 1, 4, 2 for troop and for each peer.
        arguments = ("--rounds", "3", "--entries", "131072", "--atari-entries", "4096")
        result = self.compare(*arguments)
        row = self.row(result, work="mix", record="cart_pole", peer="cpprb")
        self.assertEqual((row["record_bytes"], row["entries"]), (44, 131072))
        self.assertAlmostEqual(row["troop_us"], 2 * 30)
        self.assertAlmostEqual(row["peer_us"], 2 * 600)
        self.assertAlmostEqual(row["ratio"], 20)
        self.assertEqual((row["troop_rounds"], row["peer_rounds"]), (3, 3))
        self.assertEqual([round(us, 6) for us in row["troop_us_spread"]], [30, 120])
        # The slowest window of a round had half the rate of its median.
        self.assertEqual([round(us, 6) for us in row["peer_us_spread"]], [600, 4 * 2 * 600])
        self.assertEqual(row["peer_version"], "cpprb 1.2")
        self.assertIn("run cpprb --workload A --cap 131072", row["peer_command"])
        self.assertIn("mix", row["troop_command"])

        # The rate of add50 counts transitions.
        self.assertAlmostEqual(self.row(result, work="add50", record="cart_pole", peer="cpprb")["ratio"], 7)
        row = self.row(result, work="sample512", record="atari", peer="torchrl")
        self.assertAlmostEqual(row["ratio"], 80)
        self.assertEqual(self.row(result, work="mix", record="atari", peer="cpprb")["record_bytes"], 56460)

        # Environments: a call steps all of them. Troop: 0.1 us each, median factor 2.
        for count, peer, us in (
            (1, "envpool CartPole-v1", 100),
            (8, "envpool CartPole-v1, 2 threads", 100),
            (1, "gymnasium CartPole-v1", 10),
            (8, "gymnasium CartPole-v1 vector x8", 100),
        ):
            row = self.row(result, work="cart_pole_step", environments=count, peer=peer)
            self.assertAlmostEqual(row["peer_us"], us)
            self.assertAlmostEqual(row["ratio"], us / (0.2 * count))
        row = self.row(result, work="cart_pole_step", environments=256)
        self.assertEqual((row["peer"], row["ratio"]), (None, None))

        # The learner: the train step of the MLP at 512, and no other.
        row = self.row(result, part="learner", batch=512, peer="pytorch")
        self.assertAlmostEqual(row["ratio"], 3000 / 200)
        self.assertEqual([round(us) for us in row["peer_us_spread"]], [2000, 4000])

    def test_the_floor_stands_beside_each_figure_of_the_replay(self):
        result = self.compare("--rounds", "3", "--entries", "131072", "--atari-entries", "4096")
        row = self.row(result, work="mix", record="cart_pole", peer="cpprb")
        self.assertAlmostEqual(row["floor_us"], 2 * 3)
        self.assertAlmostEqual(row["floor_ratio"], 10)
        self.assertEqual([round(us, 6) for us in row["floor_us_spread"]], [3, 12])
        self.assertEqual(row["floor_rounds"], 3)
        self.assertIn("bench_replay_floor", row["floor_command"])
        self.assertIsNone(self.row(result, part="learner")["floor_us"])
        self.assertNotIn("floor", {row["peer"] for row in result["rows"]})
        self.assertEqual(result["machine"]["copy_bytes_per_s"], 2e10)
        self.assertEqual(result["machine"]["read_bytes_per_s"], 4e10)

        (self.build / "bench" / "bench_replay_floor").unlink()
        result = self.compare("--quick", "--only", "replay")
        self.assertIn("bench_replay_floor was not built", result["problems"][0]["reason"])
        row = self.row(result, work="mix", record="atari", peer="cpprb")
        self.assertEqual((row["floor_us"], row["floor_ratio"], row["floor_rounds"]), (None, None, None))
        self.assertIsNone(result["machine"]["copy_bytes_per_s"])

    def test_threads_are_told_apart_by_their_roles(self):
        result = self.compare("--rounds", "3", "--only", "threads", peers="")
        self.assertEqual(result["rows"], [])
        sizes = {(row["record"], row["entries"]) for row in result["threads"]}
        self.assertEqual(sizes, {("cart_pole", 2**20), ("atari", 2**15)})
        found = {
            (row["adders"], row["learners"]): row for row in result["threads"] if row["record"] == "atari"
        }
        self.assertEqual(found.keys(), {(1, 0), (2, 0), (0, 2), (2, 1)})
        row = found[2, 1]
        self.assertEqual((row["replay"], row["record_bytes"]), ("prioritized_replay", 56460))
        self.assertEqual(row["rounds"], 3)
        self.assertEqual((row["inserts_per_s"], row["inserts_per_s_spread"]), (2e6, [1e6, 4e6]))
        self.assertEqual((row["own_samples_per_s"], row["efficiency"]), (6e5, 0.9))
        self.assertEqual((found[0, 2]["inserts_per_s"], found[0, 2]["inserts_per_s_spread"]), (None, None))
        self.assertIsNone(found[1, 0]["samples_per_s"])

        result = self.compare("--quick", "--only", "threads", "--atari-entries", "none", peers="")
        sizes = {(row["record"], row["entries"]) for row in result["threads"]}
        self.assertEqual(sizes, {("cart_pole", 2**14)})

    def test_writers_stand_beside_bare_sockets_and_reverb(self):
        result = self.compare("--rounds", "3", "--only", "transport", FAKE_INSTALLED="reverb")
        sizes = [(row["record"], row["writers"]) for row in result["rows"]]
        self.assertEqual(sizes, [(record, n) for record in ("cart_pole", "atari") for n in (1, 2, 4, 8)])
        row = self.row(result, record="cart_pole", writers=4)
        self.assertEqual((row["work"], row["record_bytes"], row["peer"]), ("insert50", 44, "reverb-conc"))
        self.assertAlmostEqual(row["troop_us"], 2 * 50 / 4)
        self.assertAlmostEqual(row["floor_ratio"], 50 / 40)
        self.assertAlmostEqual(row["peer_us"], 50e6 / 4e4)
        self.assertIn("run reverb --workload A --cap 262144 --variant 'conc 4'", row["peer_command"])
        self.assertIsNone(self.row(result, record="atari", writers=4)["peer"])

        actors, fan_out = result["connections"]
        self.assertEqual((actors["work"], actors["connections"], actors["rounds"]), ("actors", 1000, 3))
        self.assertEqual((actors["inserts_per_s"], actors["p99_ms"]), (3e4, 4))
        self.assertEqual((actors["server_bytes"], actors["server_bytes_spread"]), (2e7, [1e7, 4e7]))
        self.assertIsNone(actors["seconds"])
        self.assertEqual((fan_out["work"], fan_out["connections"], fan_out["seconds"]), ("fan_out", 300, 4))

    def test_another_build_may_be_a_peer(self):
        other = self.install("fake_program.py", self.directory / "other_build")
        arguments = ("--quick", "--only", "replay", "--program", f"before={other}")
        result = self.compare(*arguments, FAKE_INSTALLED="")
        self.assertEqual({row["peer"] for row in result["rows"]}, {"before"})
        row = self.row(result, work="mix", record="atari")
        self.assertAlmostEqual(row["ratio"], 1)
        self.assertIn(str(other), row["peer_command"])
        self.assertEqual(row["peer_version"], "9.8.7")
        self.assertEqual(result["settings"]["programs"], {"before": str(other)})

    def test_without_peers_troop_alone_is_measured_and_a_line_says_how_to_add_them(self):
        result = self.compare("--quick", peers="")
        self.assertTrue(all(row["peer"] is None and row["ratio"] is None for row in result["rows"]))
        self.assertEqual(len(result["rows"]), 4 + 4 + 3 + 1 + 2)
        self.assertIn("PEERS=", self.said)

    def test_options_choose(self):
        result = self.compare("--quick", "--only", "replay", "--peer", "torchrl", "--atari-entries", "none")
        self.assertEqual({row["peer"] for row in result["rows"]}, {"torchrl"})
        self.assertEqual({row["record"] for row in result["rows"]}, {"cart_pole"})

    def test_peers_that_are_not_installed_are_not_run(self):
        result = self.compare("--quick", FAKE_INSTALLED="cpprb")
        self.assertEqual({row["peer"] for row in result["rows"]}, {None, "cpprb"})
        self.assertIsNone(self.row(result, work="mix", record="atari")["peer"])
        self.assertIn("frames", result["problems"][0]["reason"])

    def test_a_peer_in_trouble_is_reported_and_the_rest_goes_on(self):
        fates = {"fails": "no module of that name", "babbles": "not understood", "dies": "signal 9"}
        for fate, reason in fates.items():
            with self.subTest(fate):
                arguments = ("--quick", "--only", "replay", "--atari-entries", "none", "--rounds", "2")
                result = self.compare(*arguments, FAKE_FATE=f"cpprb:{fate}")
                self.assertEqual(len(result["problems"]), 1)
                self.assertIn("cpprb", result["problems"][0]["what"])
                self.assertIn(reason, result["problems"][0]["reason"])
                self.assertEqual(self.row(result, work="mix", peer="torchrl")["peer_rounds"], 2)
                # What it said before it died is kept, and it is not tried again.
                kept = [row["peer_rounds"] for row in result["rows"] if row["peer"] == "cpprb"]
                self.assertEqual(kept, [1, 1] if fate == "dies" else [])

    def test_a_peer_that_takes_too_long_is_killed(self):
        arguments = ("--quick", "--only", "replay", "--atari-entries", "none", "--timeout", "1")
        result = self.compare(*arguments, FAKE_FATE="cpprb:sleeps")
        self.assertIn("--timeout", result["problems"][0]["reason"])
        self.assert_dead(int((self.directory / "sleeping").read_text()))

    def test_a_peer_beyond_the_patience_is_measured_once(self):
        arguments = ("--quick", "--only", "replay", "--rounds", "3", "--patience", "0.001")
        result = self.compare(*arguments, FAKE_INSTALLED="cpprb env")
        self.assertEqual({(row["troop_rounds"], row["peer_rounds"]) for row in result["rows"]}, {(3, 1)})
        self.assertEqual({row["floor_rounds"] for row in result["rows"]}, {3})
        self.assertEqual([problem["round"] for problem in result["problems"]], [1, 1])
        self.assertIn("not measured again (--patience)", result["problems"][0]["reason"])

    def test_a_missing_program_is_reported_and_the_rest_goes_on(self):
        (self.build / "bench" / "bench_nn_eigen_network").unlink()
        result = self.compare("--quick")
        self.assertIn("bench_nn_eigen_network was not built", result["problems"][0]["reason"])
        self.assertEqual({row["part"] for row in result["rows"]}, {"replay", "environment", "transport"})
        self.assertEqual(len(result["threads"]), 2 * 4)

    def test_a_failing_program_of_troop_is_an_error_and_the_rest_goes_on(self):
        parts = {"replay", "environment", "learner", "transport"}
        for broken, what, rest in (
            ("bench_env_vector_environment", "environment cart_pole, troop", parts - {"environment"}),
            ("bench_replay_floor", "replay cart_pole 16384, floor", parts),
            ("bench_replay_prioritized_replay_threads", "threads cart_pole 16384, troop", parts),
        ):
            with self.subTest(broken):
                result = self.compare("--quick", "--rounds", "2", expected=1, FAKE_BROKEN=broken)
                self.assertIn(what, result["problems"][0]["what"])
                self.assertEqual({row["part"] for row in result["rows"]}, rest)

    def test_nothing_to_measure_is_an_error(self):
        for program in PROGRAMS:
            (self.build / "bench" / program).unlink()
        self.assertIsNone(self.compare(expected=1))

    def test_an_interruption_keeps_what_was_measured(self):
        for stop in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(stop):
                (self.directory / "sleeping").unlink(missing_ok=True)
                self.output.unlink(missing_ok=True)
                process = self.start("--only", "replay", FAKE_FATE="torchrl:sleeps")
                deadline = time.monotonic() + 30
                while not (self.directory / "sleeping").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                process.send_signal(stop)
                said, complaints = process.communicate(timeout=30)
                self.assertEqual(process.returncode, 130, said + complaints)
                result = json.loads(self.output.read_text())
                self.assertIs(result["complete"], False)
                self.assertEqual(self.row(result, work="mix", peer="cpprb")["peer_rounds"], 1)
                self.assertEqual([path.name for path in self.output.parent.iterdir()], ["bench.json"])
                self.assert_dead(int((self.directory / "sleeping").read_text()))

    def test_bad_options_are_named_and_change_nothing(self):
        for option, value in (
            ("--rounds", "0"),
            ("--rounds", "2.5"),
            ("--seconds", "nan"),
            ("--seconds", "0"),
            ("--entries", "1000"),
            ("--entries", ""),
            ("--entries", "none"),
            ("--atari-entries", "8388608"),
            ("--only", "everything"),
            ("--peer", "somebody"),
            ("--timeout", "soon"),
            ("--patience", "0"),
            ("--peers", "/does/not/exist"),
            ("--program", "before"),
            ("--program", "before=/does/not/exist"),
            ("--program", f"={sys.executable}"),
            ("--program", f"troop={sys.executable}"),
            ("--program", f"floor={sys.executable}"),
            ("--build", "/does/not/exist"),
            ("--output", "/"),
        ):
            with self.subTest(f"{option} {value}"):
                complaints = io.StringIO()
                with contextlib.redirect_stderr(complaints), self.assertRaises(SystemExit) as stop:
                    compare.parse_options(["--build", str(self.build), option, value])
                self.assertEqual(stop.exception.code, 2)
                self.assertIn(f"argument {option}: ", complaints.getvalue())
                self.assertIn(repr(value), complaints.getvalue())
        self.assertIsNone(self.compare("--rounds", "0", expected=2))
        self.assertIn("argument --rounds: '0' is not an integer from 1 to 100", self.complaints)

    @unittest.skipUnless("TROOP_BENCH_BUILD" in os.environ, "TROOP_BENCH_BUILD is not set")
    def test_the_real_programs_are_understood(self):
        result = self.compare("--quick", build=os.environ["TROOP_BENCH_BUILD"])
        works = {(row["part"], row["work"], row["record"]) for row in result["rows"]}
        for verb in ("add50", "sample512", "update512", "mix"):
            self.assertIn(("replay", verb, "cart_pole"), works)
            self.assertIn(("replay", verb, "atari"), works)
        self.assertIn(("environment", "cart_pole_step", None), works)
        self.assertIn(("learner", "train_step", "cart_pole"), works)
        self.assertNotIn(None, [result["troop"][field] for field in TROOP - {"commit"}])
        roles = {(row["record"], row["adders"], row["learners"]) for row in result["threads"]}
        for record in ("cart_pole", "atari"):
            self.assertLessEqual({(record, 1, 0), (record, 0, 1), (record, 1, 1), (record, 2, 1)}, roles)
        self.assertIn(("transport", "insert50", "cart_pole"), works)
        self.assertIn(("transport", "insert50", "atari"), works)
        self.assertEqual([row["work"] for row in result["connections"]], ["actors", "fan_out"])
        self.assertGreater(result["machine"]["copy_bytes_per_s"], 0)
        for row in result["rows"]:
            self.assertGreater(row["troop_us"], 0)
            if row["part"] == "replay":
                self.assertAlmostEqual(row["floor_ratio"], row["troop_us"] / row["floor_us"])
            if row["peer"] is not None:
                self.assertAlmostEqual(row["ratio"], row["peer_us"] / row["troop_us"])

    def assert_dead(self, process):
        with self.assertRaises(ProcessLookupError):
            os.kill(process, 0)


if __name__ == "__main__":
    unittest.main()
