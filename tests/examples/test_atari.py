#!/usr/bin/env python3
"""test_atari.py PROGRAM: the Atari example as a user starts it. Exit code 77: Python's packages are missing."""

import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = None
PATIENCE = 120  # seconds until something that must happen counts as not happening
# A network of little training, soon saved; short games.
SHORT = ["--max-episode-frames", "400", "--evaluation-episodes", "2", "--min-inserts", "200", "--evaluation-interval",
         "20", "--capacity", "5000", "--environments-per-actor", "4"]


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TROOP_") or k == "TROOP_PYTHON"}
    return {**kept, "TROOP_TOKEN": "0123456789abcdef0123456789abcdef", **more}


def unpack(packed):
    """The pixels of a picture of a GIF file whose codes begin with 9 bits."""
    pixels, strings, before, width, at = bytearray(), [], b"", 9, 0
    while True:
        code = int.from_bytes(packed[at // 8:at // 8 + 3], "little") >> at % 8 & (1 << width) - 1
        at += width
        if code == 257:
            return bytes(pixels)
        if code == 256:
            strings, before, width = [bytes([i]) for i in range(256)] + [b"", b""], b"", 9
            continue
        string = strings[code] if code < len(strings) else before + before[:1]
        pixels += string
        if before and len(strings) < 4096:
            strings.append(before + string[:1])
        if len(strings) == 1 << width and width < 12:
            width += 1
        before = string


def pictures(data):
    """Size and pictures of a GIF file with one palette of 256 colours."""
    assert data[:6] == b"GIF89a" and data[10] == 0xF7
    size = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    at, found = 13 + 768, []

    def blocks(at):
        parts = []
        while data[at]:
            parts.append(data[at + 1:at + 1 + data[at]])
            at += 1 + data[at]
        return b"".join(parts), at + 1

    while data[at] != 0x3B:
        if data[at] == 0x21:
            _, at = blocks(at + 2)
        else:
            assert data[at] == 0x2C and data[at + 10] == 8
            packed, at = blocks(at + 11)
            found.append(packed)
    assert at == len(data) - 1
    return size, found


class Atari(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trained = cls.run_program(cls, "--game", "pong", *SHORT, "--target-return", "-21", "--output", "pong.troop")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_program(self, *words, **variables):
        return subprocess.run([PROGRAM, *words], cwd=self.folder.name, env=environment(**variables), timeout=PATIENCE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def check(self, done, code, pattern):
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertRegex(done.stdout, pattern)

    def test_a_training_says_how_good_it_is_beside_a_person(self):
        # Pong in 400 frames: some points lost, none or few won; -20.7 is chance, 14.6 a person.
        self.check(self.trained, 0, r"\nsolved: mean_return=-?[\d.]+ episodes=2 .* human_normalised=[\d.]+%\n$")
        steps = re.search(r"learner_steps=(\d+)", self.trained.stdout)
        self.assertGreaterEqual(int(steps.group(1)), 20)

    def test_a_saved_network_is_evaluated(self):
        done = self.run_program("--game", "pong", "--evaluate", "pong.troop", *SHORT, "--evaluation-episodes", "3")
        self.check(done, 0, r"^evaluated: mean_return=(-?[\d.]+) episodes=3 .* human_normalised=[\d.]+% .*\n$")
        mean = float(re.search(r"mean_return=(-?[\d.]+)", done.stdout).group(1))
        normalised = float(re.search(r"human_normalised=([\d.]+)%", done.stdout).group(1))
        self.assertAlmostEqual(normalised, 100 * (mean + 20.7) / (14.6 + 20.7), delta=0.2)

    def test_an_evaluation_is_that_of_the_paper_if_nothing_else_is_said(self):
        self.check(self.run_program("--help"), 0, r"(?s)--evaluation-episodes INT[^\[]*\[30\]"
                                                  r".*--evaluation-epsilon NUMBER[^\[]*\[0\.001\]")
        self.check(self.run_program("--help"), 0, r"(?s)--max-noops INT[^\[]*\[30\]"
                                                  r".*--max-episode-frames INT[^\[]*\[108000\]")

    def test_another_games_network_is_refused(self):
        self.check(self.run_program("--game", "breakout", "--evaluate", "pong.troop"), 2,
                   r"^error: pong.troop: network .* does not fit breakout, which needs .*\n$")
        self.check(self.run_program("--game", "breakout", "--evaluate", "pong.troop", "--record", "x.gif"), 2,
                   r"^error: pong.troop: network .* does not fit breakout.*\n$")

    def test_an_episode_is_recorded_with_its_q_values(self):
        words = ["--game", "pong", "--evaluate", "pong.troop", "--max-episode-frames", "160", "--record"]
        self.check(self.run_program(*words, "pong.gif"), 0,
                   r"^recorded: return=-?[\d.]+ steps=40 file=pong.gif\n$")
        with open(os.path.join(self.folder.name, "pong.gif"), "rb") as file:
            (width, height), packed = pictures(file.read())
        self.assertEqual((width, height), (3 * 84 + 150, 3 * 84))
        self.assertEqual(len(packed), 40)
        self.assertGreater(len(set(packed)), 20)
        for k in (0, 39):
            pixels = unpack(packed[k])
            self.assertEqual(len(pixels), width * height)
            rows = [pixels[y * width:(y + 1) * width] for y in range(height)]
            for y in range(0, height, 3):  # each pixel of the game is a square of three
                self.assertEqual(rows[y][:252], rows[y + 1][:252])
                self.assertEqual(rows[y][:252:3], rows[y][1:252:3])
            panel = b"".join(row[252:] for row in rows)
            self.assertEqual(panel.count(253) > 0, True, "the bar of the action")
            self.assertGreater(panel.count(252), 6 * 5 * 4, "the numbers")
            self.assertGreater(len(set(b"".join(row[:252] for row in rows))), 2)
        self.check(self.run_program(*words, "again.gif"), 0, "^recorded: ")
        with open(os.path.join(self.folder.name, "again.gif"), "rb") as again:
            self.assertEqual(pictures(again.read())[1], packed)
        self.check(self.run_program("--record", "x.gif"), 2,
                   r'^error: --evaluate: "" is not allowed; expected a saved network with --record\n$')
        self.check(self.run_program(*words, "no/such/folder/x.gif"), 2, r"^error: no/such/folder/x.gif: .*\n$")

    def test_an_unknown_game_is_refused_with_a_near_one(self):
        self.check(self.run_program("--game", "space_invader"), 2,
                   r"^error: --game: space_invader is not allowed; expected one of the \d+ that ale_py has; "
                   r"did you mean space_invaders\?\n$")
        self.check(self.run_program("--game", "pong", "--frame-skip", "0"), 2,
                   "^error: --frame-skip: 0 is not allowed")
        self.check(self.run_program("--sticky", "1"), 2, "^error: unknown option --sticky")

    def test_a_python_without_the_packages_is_told_how_to_get_them(self):
        empty = os.path.join(self.folder.name, "empty")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
        done = self.run_program("--game", "pong", TROOP_PYTHON=os.path.join(empty, "bin", "python"))
        self.check(done, 2, r"^error: pong: ModuleNotFoundError: .* -m pip install ale-py==[\d.]+ .*\n$")

    def test_a_cluster_plays_and_an_actor_with_16_games_stays_small(self):
        def start(name, *words):
            path = os.path.join(self.folder.name, name)
            with open(path, "w") as out:
                process = subprocess.Popen([PROGRAM, "--game", "pong", *words], cwd=self.folder.name,
                                           env=environment(), stdout=out, stderr=subprocess.STDOUT)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            return process, path

        def wait_for(path, pattern):
            end = time.monotonic() + PATIENCE
            while True:
                with open(path) as file:
                    text = file.read()
                found = re.search(pattern, text)
                if found:
                    return found
                self.assertLess(time.monotonic(), end, f"{pattern!r} is not in {path}:\n{text}")
                time.sleep(0.05)

        learner, said = start("learner", "--role", "learner", "--listen", "127.0.0.1:0", "--output", "last.troop",
                              *SHORT, "--planned-environments", "16", "--evaluation-interval", "1000000")
        head = wait_for(said, r"listening on (127\.0\.0\.1:\d+)").group(1)
        actor, actor_said = start("actor", "--role", "actor", "--connect", head, "--max-episode-frames", "400",
                                  "--environments-per-actor", "16", "--compression", "lz4")
        evaluator, evaluator_said = start("evaluator", "--role", "evaluator", "--connect", head, "--max-episode-frames",
                                          "400", "--evaluation-episodes", "2")
        wait_for(actor_said, r"\d+s  [1-9]\d* steps .* connected")
        with open(f"/proc/{actor.pid}/status") as file:
            megabytes = int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) / 1024
        print(f"the actor process with 16 games took {megabytes:.0f} MB at most")
        if "libasan" not in subprocess.run(["ldd", PROGRAM], stdout=subprocess.PIPE, text=True).stdout:
            self.assertLess(megabytes, 600)
        wait_for(evaluator_said, r"evaluated: parameters=\d+ mean_return=.* human_normalised=")
        for process in (learner, actor, evaluator):
            process.terminate()
            self.assertEqual(process.wait(PATIENCE), 128 + 15)
        done = wait_for(said, r"environment_steps=(\d+) learner_steps=(\d+)")
        self.assertGreater(int(done.group(1)), 200)
        self.assertGreater(int(done.group(2)), 0)
        self.check(self.run_program("--game", "pong", "--evaluate", "last.troop", *SHORT), 0, "^evaluated: ")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    probe = subprocess.run([PROGRAM, "--game", "no such game"], env=environment(), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    if "pip install" in probe.stdout or "Python" in probe.stdout:
        print(f"skipped: {probe.stdout.strip()}")
        sys.exit(77)
    unittest.main()
