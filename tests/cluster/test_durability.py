#!/usr/bin/env python3
"""test_durability.py PROGRAM TOOL: runs that are kept in a directory, killed, stopped and resumed. TROOP_TEST_SEED
chooses the moments of the kills."""

import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_processes  # noqa: E402

TOOL = None
SEED = int(os.environ.get("TROOP_TEST_SEED", random.randrange(1 << 30)))
CHECKPOINT_SECONDS = 1.2


class Kept(test_processes.Cluster):
    def setUp(self):
        super().setUp()
        self.run_dir = os.path.join(self.folder.name, "run")
        self.mounted = []

    def tearDown(self):
        for folder in self.mounted:
            subprocess.run(["umount", "-l", folder], check=True)
        super().tearDown()

    def mount(self, folder, options):
        """A disk of its own."""
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "troop", folder], capture_output=True)
        if done.returncode != 0:
            self.skipTest("nothing can be mounted here")
        self.mounted.append(folder)

    def keep(self, *words, run_dir=None):
        return ["--run-dir", run_dir or self.run_dir, "--resume", "--checkpoint-every", str(CHECKPOINT_SECONDS / 60), *words]

    def trains(self, name, *words):
        return self.start(name, "--seed", "3", "--output", "", *self.keep(*words))

    def inspect(self, run_dir=None):
        """What the tool says, all files read; there must be no fault."""
        told = subprocess.run([TOOL, "inspect", run_dir or self.run_dir, "--verify"], capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        return told.stdout

    def steps_on_disk(self):
        found = re.search(r"checkpoint   learner step (\d+)", self.inspect())
        return int(found.group(1)) if found else 0

    def keys_on_disk(self, run_dir=None):
        found = re.search(r"keys (\d+) to (\d+),", self.inspect(run_dir))
        return int(found.group(2)) + 1 if found else 0

    def check_stops_in_time(self, process):
        begin = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        self.assertEqual(process.code(), 128 + signal.SIGTERM, process.text())
        self.assertLess(time.monotonic() - begin, 10.0)

    def test_a_run_that_is_killed_goes_on_with_what_it_had(self):
        print(f"seed {SEED}", flush=True)
        moments, steps, keys = random.Random(SEED), 0, 0
        for life in range(4):
            process = self.trains(f"life{life}", "--target-return", "1000")
            if life > 0:
                found = process.wait_for(r"resumed \S+: learner step (\d+), (\d+) items in the replay")
                self.assertEqual(int(found.group(1)), steps)
                self.assertEqual(int(found.group(2)), min(keys, 100_000))
            process.wait_for(r"updates/s")
            time.sleep(moments.uniform(0.0, 2.5 * CHECKPOINT_SECONDS))
            process.process.kill()
            process.code()
            after = self.steps_on_disk()
            self.assertGreaterEqual(after, steps)
            steps, before, keys = after, keys, self.keys_on_disk()
            self.assertGreater(keys, before)
        self.assertGreater(steps, 0)

    def test_a_stop_by_a_signal_loses_nothing_and_a_finished_run_says_so(self):
        process = self.trains("first", "--target-return", "1000")
        process.wait_for("updates/s")
        self.check_stops_in_time(process)
        ended = process.find(r"environment_steps=(\d+) learner_steps=(\d+)")
        self.assertEqual(self.steps_on_disk(), int(ended.group(2)))
        second = self.trains("second")
        resumed = second.wait_for(r"resumed \S+: learner step (\d+), (\d+) items")
        self.assertEqual(resumed.group(1), ended.group(2))
        self.assertEqual(second.code(), 0, second.text()[-2000:])
        third = self.trains("third")
        self.assertEqual(third.code(), 0)
        self.assertTrue(third.find(r"the run in \S+ was finished before: solved: mean_return="), third.text())

    def test_a_store_of_whole_objects_loses_nothing_either(self):
        kept = ("--store", "sequential", "--target-return", "1000")
        process = self.trains("first", *kept)
        process.wait_for("updates/s")
        time.sleep(2 * CHECKPOINT_SECONDS)
        process.process.kill()
        process.code()
        steps, keys = self.steps_on_disk(), self.keys_on_disk()
        self.assertGreater(steps, 0)
        second = self.trains("second", *kept)
        second.wait_for(rf"resumed \S+: learner step {steps}, {min(keys, 100_000)} items")
        second.wait_for("updates/s")
        self.check_stops_in_time(second)
        self.assertGreater(self.steps_on_disk(), steps)
        self.assertGreater(self.keys_on_disk(), keys)

    @unittest.skipUnless(os.geteuid() == 0, "a disk of its own needs root")
    def test_a_full_disk_is_told_and_the_run_goes_on_and_catches_up(self):
        disk = os.path.join(self.folder.name, "disk")
        os.mkdir(disk)
        self.mount(disk, "size=256k")
        self.run_dir = os.path.join(disk, "run")
        process = self.trains("first", "--durability", "checkpoint", "--target-return", "1000")
        process.wait_for("updates/s")
        filling = os.path.join(disk, "filling")
        with open(filling, "wb", buffering=0) as file, self.assertRaises(OSError):
            while True:
                file.write(bytes(4096))
        after = len(process.text())
        told = process.wait_for(r"no checkpoint was written: \S*checkpoint-\S+: .*No space left on device", after)
        self.assertIn(self.run_dir, told.group(0))
        process.wait_for(r"\[no checkpoint\]", after)
        os.remove(filling)
        after, before = len(process.text()), self.steps_on_disk()
        end = time.monotonic() + test_processes.PATIENCE
        while self.steps_on_disk() == before and time.monotonic() < end:
            time.sleep(0.2)
        self.check_stops_in_time(process)
        self.assertGreater(self.steps_on_disk(), before)

    @unittest.skipUnless(os.geteuid() == 0, "a disk of its own needs root")
    def test_a_disk_that_can_only_be_read_is_refused_at_the_start(self):
        os.mkdir(self.run_dir)
        self.mount(self.run_dir, "ro")
        process = self.trains("first")
        self.assertEqual(process.code(), 2)
        self.assertTrue(process.find(rf"error: {self.run_dir}\S*: .*Read-only file system"), process.text())

    def test_a_checkpoint_that_is_damaged_is_passed_over(self):
        process = self.trains("first", "--target-return", "1000")
        folder = os.path.join(self.run_dir, "checkpoints")
        process.wait_for("updates/s")
        end = time.monotonic() + test_processes.PATIENCE
        while len(os.listdir(folder)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        self.check_stops_in_time(process)
        newest = sorted(os.listdir(folder))[-1]
        os.truncate(os.path.join(folder, newest), 100)
        second = self.trains("second", "--target-return", "1000")
        second.wait_for(f"{newest}: is damaged: it ends in the middle; looking for the one before")
        self.assertGreater(int(second.wait_for(r"resumed \S+: learner step (\d+)").group(1)), 0)

    def test_a_second_program_is_refused_and_told_who_is_there(self):
        process = self.trains("first", "--target-return", "1000")
        process.wait_for("updates/s")
        second = self.trains("second")
        self.assertEqual(second.code(), 2)
        self.assertTrue(second.find(rf"error: \S+: is in use by process {process.process.pid} on "), second.text())
        self.check_stops_in_time(process)
        third = self.start("third", "--run-dir", self.run_dir)
        self.assertEqual(third.code(), 2)
        self.assertTrue(third.find("holds a run already; --resume goes on with it"), third.text())

    def test_the_head_of_a_cluster_is_killed_and_goes_on_with_its_actors(self):
        learner = self.learner("first", 0, *self.keep("--target-return", "1000"))
        actors = [self.actor("one"), self.actor("two")]
        learner.wait_for("clients 2")
        time.sleep(2 * CHECKPOINT_SECONDS)
        learner.process.kill()
        learner.code()
        steps, keys = self.steps_on_disk(), self.keys_on_disk()
        self.assertGreater(steps, 0)
        begun = time.monotonic()
        second = self.learner("second", self.port, *self.keep("--target-return", "1000"))
        self.assertTrue(second.find(rf"resumed \S+: learner step {steps}, {min(keys, 100_000)} items"), second.text())
        second.wait_for("clients 2")
        print(f"both actors were back {time.monotonic() - begun:.1f} s after the restart", flush=True)
        lines = second.text().count("\n")
        while second.text().count("\n") < lines + 3:
            time.sleep(0.1)
        self.check_stops_in_time(second)
        self.assertGreater(self.keys_on_disk(), keys)
        self.assertGreater(self.steps_on_disk(), steps)
        # One that ends at once would be gone before the actors have tried again.
        third = self.learner("third", self.port, *self.keep("--max-seconds", "100", "--evaluation-interval", "5000"))
        self.assertEqual(third.code(), 0, third.text()[-2000:])
        for actor in actors:
            self.assertEqual(actor.code(), 0, actor.text())

    def test_a_shard_that_is_killed_has_its_items_again(self):
        run_dirs = [self.run_dir + "a", self.run_dir + "b"]
        shards = [self.shard(f"shard{i}", 0, *self.keep(run_dir=run_dirs[i])) for i in range(2)]
        addresses = ",".join(f"127.0.0.1:{shard.port}" for shard in shards)
        learner = self.learner("learner", 0, "--shards", addresses, *self.keep("--target-return", "1000"))
        self.actor("one")
        learner.wait_for("shards 2/2")
        learner.wait_for(r"replay [1-9]\d*%")
        shards[0].process.kill()
        shards[0].code()
        keys = self.keys_on_disk(run_dirs[0])
        self.assertGreater(keys, 0)
        again = self.shard("again", shards[0].port, *self.keep(run_dir=run_dirs[0]))
        again.wait_for(rf"resumed \S+: learner step 0, {min(keys, 100_000)} items in the replay")
        learner.wait_for("shards 2/2  lost 1")
        self.check_stops_in_time(again)
        self.assertGreaterEqual(self.keys_on_disk(run_dirs[0]), keys)


# The cases of the class itself, not those that it was made from.
def load_tests(loader, standard_tests, pattern):
    return unittest.TestSuite(Kept(name) for name in sorted(vars(Kept)) if name.startswith("test_"))


if __name__ == "__main__":
    PROGRAM, TOOL = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    test_processes.PROGRAM = PROGRAM
    unittest.main(verbosity=2)
