#!/usr/bin/env python3
"""test_namespaces.py PROGRAM: 32 actor processes in four network namespaces, each a host of its own, train CartPole
to 475 while one of the hosts is cut off for 10 s and three of the processes are killed. Needs root and `ip`."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_processes  # noqa: E402

HOSTS, ACTORS_A_HOST, CUT_SECONDS = 4, 8, 10.0
GOOD_ENOUGH = r".*  return (47[5-9]|4[89]\d|500)\.\d+  clients.*"
NAME = f"troop{os.getpid()}"  # of the hub; those of the hosts follow from it


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def obstacle():
    """Why this cannot be tried here; empty if it can."""
    if shutil.which("ip") is None:
        return "there is no ip (Debian package iproute2)"
    try:
        ip("netns", "add", NAME)
    except subprocess.CalledProcessError as error:
        return "network namespaces cannot be made here: " + error.stderr.strip()
    try:
        ip("-n", NAME, "link", "add", "bridge", "type", "bridge")
    except subprocess.CalledProcessError as error:
        return "a bridge cannot be made here: " + error.stderr.strip()
    finally:
        ip("netns", "del", NAME)
    return ""


class Hosts(unittest.TestCase):
    """A hub, which has the bridge, and hosts: number 0 is the learner's."""

    def setUp(self):
        ip("netns", "add", NAME)
        self.addCleanup(ip, "netns", "del", NAME)
        ip("-n", NAME, "link", "add", "bridge", "type", "bridge")
        ip("-n", NAME, "link", "set", "bridge", "up")
        for number in range(HOSTS + 1):
            host = self.host(number)
            ip("netns", "add", host)
            self.addCleanup(ip, "netns", "del", host)
            ip("-n", NAME, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("-n", NAME, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    @staticmethod
    def host(number):
        return f"{NAME}h{number}"

    def start(self, number, name, *words, before=()):
        process = test_processes.Process(self.folder.name, name, *words,
                                         within=("ip", "netns", "exec", self.host(number), *before))
        self.addCleanup(process.end)
        return process

    def reaches_the_learner(self, number):
        look = "import socket; socket.create_connection(('10.77.0.1', 7777), 1.5).close()"
        return subprocess.run(["ip", "netns", "exec", self.host(number), sys.executable, "-c", look],
                              capture_output=True).returncode == 0

    def test_a_fleet_learns_although_a_host_is_cut_off_and_actors_are_killed(self):
        # The goal is out of reach, so that the run does not end before the link is back.
        learner = self.start(0, "learner", "--role", "learner", "--listen", "0.0.0.0:7777", "--output", "",
                             "--planned-environments", str(2 * HOSTS * ACTORS_A_HOST), "--lease-seconds", "5",
                             "--target-return", "1000")
        learner.wait_for("listening on 0.0.0.0:7777")
        actors = [self.start(1 + i % HOSTS, f"actor{i}", "--role", "actor", "--connect", "10.77.0.1:7777",
                             "--environments-per-actor", "2", "--parameter-interval", "50")
                  for i in range(HOSTS * ACTORS_A_HOST)]
        learner.wait_for(f"clients {len(actors)}")

        # Taken from the bridge, so that nobody is told: bytes just vanish.
        begin = time.monotonic()
        ip("-n", NAME, "link", "set", "port2", "nomaster")
        self.assertTrue(self.reaches_the_learner(1))
        self.assertFalse(self.reaches_the_learner(2))
        seed = random.randrange(1 << 30)
        killed = random.Random(seed).sample(actors, 3)
        print(f"killed with seed {seed}: {', '.join(os.path.basename(a.path) for a in killed)}", flush=True)
        for actor in killed:
            time.sleep(CUT_SECONDS / 5)
            actor.process.kill()
            actor.code()
        time.sleep(max(0.0, begin + CUT_SECONDS - time.monotonic()))
        self.assertFalse(self.reaches_the_learner(2))
        ip("-n", NAME, "link", "set", "port2", "master", "bridge")
        lines_before = learner.text().count("\n")
        back = time.monotonic()

        # Who was cut off sends again.
        left = [actor for actor in actors if actor not in killed]
        cut_off = [actor for i, actor in enumerate(actors) if i % HOSTS == 1 and actor not in killed]
        steps_before = {actor: self.steps(actor) for actor in cut_off}
        for actor in cut_off:
            while self.steps(actor) <= steps_before[actor] or not re.search(r"(?<!not )connected$", self.last(actor)):
                self.assertLess(time.monotonic() - back, test_processes.PATIENCE, actor.text())
                time.sleep(0.1)
        print(f"who was cut off is back {time.monotonic() - back:.0f} s after the link (lines come every 10 s)")

        # And the greedy policy gets there, by one evaluation of the learner's 100 episodes. (A goal within reach
        # would take two, and the run might end while a host is cut off.)
        while not (found := re.search(GOOD_ENOUGH, "\n".join(learner.text().split("\n")[lines_before:]))):
            self.assertIsNone(learner.process.poll(), learner.text()[-2000:])
            self.assertLess(time.monotonic() - back, 3 * test_processes.PATIENCE, learner.text()[-2000:])
            time.sleep(0.1)
        print(found.group(0), flush=True)
        self.assertTrue(learner.find(f"clients {len(left)} "))
        for process in (learner, *left):
            self.assertIsNone(process.process.poll(), process.text())
        for process in (learner, *left):
            process.process.send_signal(signal.SIGTERM)
        for process in (learner, *left):
            self.assertEqual(process.code(), 128 + signal.SIGTERM, process.text())

    @staticmethod
    def last(actor):
        """The last whole line that it printed of its progress."""
        lines = [line for line in actor.text().split("\n")[:-1] if " steps  eps " in line]
        return lines[-1] if lines else ""

    def steps(self, actor):
        found = re.search(r"(\d+) steps", self.last(actor))
        return int(found.group(1)) if found else 0

    def test_a_name_server_that_does_not_answer_keeps_nobody_from_ending(self):
        nobody = os.path.join(self.folder.name, "resolv.conf")
        with open(nobody, "w") as file:
            file.write("nameserver 10.77.0.3\noptions timeout:30\n")
        ip("-n", self.host(2), "route", "add", "blackhole", "10.77.0.2")  # not even that nobody listens is answered
        actor = self.start(1, "actor", "--role", "actor", "--connect", "head.example:7777",
                           before=("sh", "-c", f'mount --bind "{nobody}" /etc/resolv.conf && exec "$@"', "sh"))
        actor.wait_for("cannot reach head.example:7777: its name was not found within 5 s; trying again")
        begin = time.monotonic()
        actor.process.send_signal(signal.SIGTERM)
        self.assertEqual(actor.code(), 128 + signal.SIGTERM, actor.text())
        self.assertLess(time.monotonic() - begin, 5.0)


if __name__ == "__main__":
    test_processes.PROGRAM = os.path.abspath(sys.argv.pop(1))
    reason = obstacle()
    if reason:
        print("not tried: " + reason)
        sys.exit(0)
    unittest.main(verbosity=2)
