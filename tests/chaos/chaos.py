#!/usr/bin/env python3
"""chaos.py PROGRAM TOOL FAULTS [--minutes N] [--seed S]: a cluster of a head, two shards and eight actor processes, each
in a network namespace of its own, and one fault after the other from a seeded schedule: kill -9, SIGTERM, SIGSTOP, a link
that is cut, a disk that is full or slow, a clock that jumps. Whoever ends is started again, as a supervisor would.

All along: whoever got SIGTERM ends within 10 s; memory is bounded; a head goes on at the checkpoint that was there, which
never grows old; in the logs of the shards each batch is once, none that was acknowledged is missing, and no key is used
again. In the end the cluster still learns its task. Needs root, `ip` and `mount`."""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "cluster"))
import test_namespaces  # noqa: E402
import test_processes  # noqa: E402
from test_namespaces import NAME, ip  # noqa: E402

SHARDS, ACTORS = 2, 8
CHECKPOINT_SECONDS = 2.0
MOST_MEMORY = 1 << 30  # of a process, in bytes; most of it is the program and its replay
DISK_BYTES = 256 << 20  # of each of those that keep something
PORT = 7777


class Broken(Exception):
    """An invariant that does not hold."""


def require(holds, sentence):
    if not holds:
        raise Broken(sentence)


class Member:
    """A process of the cluster that is started again whenever it ends, in a namespace of its own."""

    def __init__(self, chaos, number, name, words, keeps):
        self.chaos, self.number, self.name, self.words = chaos, number, name, words
        self.host, self.lives, self.process, self.expected = f"{NAME}h{number}", 0, None, None
        self.disk = os.path.join(chaos.folder, name + ".disk") if keeps else None
        self.slow, self.clock = (os.path.join(chaos.folder, f"{name}.{what}") for what in ("slow", "clock"))
        if self.disk:
            os.mkdir(self.disk)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", self.disk], check=True)
            chaos.undo.append(lambda: subprocess.run(["umount", "-l", self.disk], check=True))

    @property
    def run_dir(self):
        return os.path.join(self.disk, "run")

    def start(self):
        self.lives += 1
        words = list(self.words)
        if self.disk:
            words += ["--run-dir", self.run_dir, "--resume", "--checkpoint-every", str(CHECKPOINT_SECONDS / 60)]
        within = ["ip", "netns", "exec", self.host, "env", f"LD_PRELOAD={self.chaos.faults}",
                  f"TROOP_CHAOS_SLOW={self.slow}", f"TROOP_CHAOS_CLOCK={self.clock}"]
        self.process = test_processes.Process(self.chaos.folder, f"{self.name}.{self.lives}", *words, within=within)
        self.expected = None

    def is_running(self):
        return self.process.process.poll() is None

    def pid(self):
        return self.process.process.pid  # `ip netns exec` and `env` become the program

    def memory(self):
        try:
            with open(f"/proc/{self.pid()}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def send(self, number):
        self.expected = number
        self.process.process.send_signal(number)


class Chaos:
    def __init__(self, program, tool, faults, seed):
        test_processes.PROGRAM = program
        self.tool, self.faults, self.seed, self.random = tool, faults, seed, random.Random(seed)
        self.undo, self.members, self.steps, self.count = [], [], 0, {}
        self.folder = tempfile.mkdtemp(prefix="troop-chaos-")
        self.begin = time.monotonic()

    # The cluster.

    def build(self):
        ip("netns", "add", NAME)
        self.undo.append(lambda: ip("netns", "del", NAME))
        ip("-n", NAME, "link", "add", "bridge", "type", "bridge")
        ip("-n", NAME, "link", "set", "bridge", "up")
        for number in range(1 + SHARDS + ACTORS):
            host = f"{NAME}h{number}"
            ip("netns", "add", host)
            self.undo.append(lambda host=host: ip("netns", "del", host))
            ip("-n", NAME, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("-n", NAME, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
        shards = ",".join(f"10.77.0.{2 + i}:{PORT}" for i in range(SHARDS))
        self.head = self.add(0, "head", ["--role", "learner", "--listen", f"0.0.0.0:{PORT}", "--output", "", "--seed", "4",
                                         "--planned-environments", str(2 * ACTORS), "--lease-seconds", "3",
                                         "--target-return", "1000", "--max-seconds", "1e6", "--shards", shards], True)
        self.shards = [self.add(1 + i, f"shard{i}", ["--role", "replay", "--listen", f"0.0.0.0:{PORT}"], True)
                       for i in range(SHARDS)]
        self.actors = [self.add(1 + SHARDS + i, f"actor{i}", ["--role", "actor", "--connect", f"10.77.0.1:{PORT}",
                                                              "--environments-per-actor", "2"], False)
                       for i in range(ACTORS)]
        for member in self.members:
            member.start()

    def add(self, number, name, words, keeps):
        self.members.append(Member(self, number, name, words, keeps))
        return self.members[-1]

    def tear_down(self):
        for member in self.members:
            if member.process:
                member.process.process.send_signal(signal.SIGCONT)
                member.process.end()
        for undo in reversed(self.undo):
            undo()

    def say(self, sentence):
        print(f"{time.monotonic() - self.begin:6.1f}s  {sentence}", flush=True)

    # The invariants.

    def watch(self, seconds):
        """Lets time pass, starts again who has ended, and looks at everything that must hold all along."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for member in self.members:
                require(member.memory() < MOST_MEMORY, f"{member.name} has taken {member.memory()} bytes")
                if not member.is_running():
                    self.check_end(member)
                    self.restart(member)
            time.sleep(0.1)

    def check_end(self, member):
        code = member.process.process.returncode
        allowed = {signal.SIGKILL: (-signal.SIGKILL,), signal.SIGTERM: (128 + signal.SIGTERM, -signal.SIGTERM)}
        require(member.expected and code in allowed[member.expected],
                f"{member.name} ended with {code}:\n{member.process.text()[-2000:]}")

    def restart(self, member):
        before = self.inspect(member) if member.disk else None
        member.process.end()
        member.start()
        if member is not self.head:
            return
        steps = int(re.search(r"checkpoint   learner step (\d+)", before).group(1)) if "learner step" in before else 0
        require(steps >= self.steps, f"the newest checkpoint is of step {steps}, there was one of {self.steps}")
        self.steps = steps
        if steps:
            found = member.process.wait_for(r"resumed \S+: learner step (\d+)")
            require(int(found.group(1)) == steps, f"the head went on at step {found.group(1)}, not {steps}")

    def inspect(self, member):
        told = subprocess.run([self.tool, "inspect", member.run_dir, "--verify"], capture_output=True, text=True)
        # What is cut off at its end was being written; all else is whole.
        faults = [line for line in told.stdout.split("\n")
                  if line.startswith("FAULTY") and "it ends in the middle" not in line]
        require(not faults, f"{member.name}: {faults}")
        found = re.search(r"(\d+) repeated, (\d+) missing, (\d+) keys used again", told.stdout)
        require(not found or found.groups() == ("0", "0", "0"), f"{member.name}: {found and found.group(0)}")
        return told.stdout

    # The faults.

    def kill(self):
        member = self.random.choice(self.members)
        self.say(f"kill -9 {member.name}")
        member.send(signal.SIGKILL)

    def stop(self):
        member = self.random.choice(self.members)
        self.say(f"SIGTERM {member.name}")
        member.send(signal.SIGTERM)
        begin = time.monotonic()
        while member.is_running():
            require(time.monotonic() - begin < 10.0, f"{member.name} did not end within 10 s:\n{member.process.text()}")
            time.sleep(0.05)
        self.check_end(member)
        self.restart(member)

    def freeze(self):
        member, seconds = self.random.choice(self.members), self.random.uniform(0.5, 6.0)
        self.say(f"SIGSTOP {member.name} for {seconds:.1f} s")
        member.process.process.send_signal(signal.SIGSTOP)
        self.watch(seconds)
        member.process.process.send_signal(signal.SIGCONT)

    def cut(self):
        member, seconds = self.random.choice(self.members), self.random.uniform(0.5, 8.0)
        self.say(f"cut the link of {member.name} for {seconds:.1f} s")
        ip("-n", NAME, "link", "set", f"port{member.number}", "nomaster")
        self.watch(seconds)
        ip("-n", NAME, "link", "set", f"port{member.number}", "master", "bridge")

    def fill_disk(self):
        member, seconds = self.random.choice([self.head, *self.shards]), self.random.uniform(1.0, 6.0)
        self.say(f"fill the disk of {member.name} for {seconds:.1f} s")
        path = os.path.join(member.disk, "filling")
        try:
            with open(path, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError:
            pass
        self.watch(seconds)
        os.remove(path)

    def slow_disk(self):
        member = self.random.choice([self.head, *self.shards])
        seconds, sync = self.random.uniform(2.0, 6.0), self.random.choice([100, 1000])
        self.say(f"a sync of {member.name} takes {sync} ms for {seconds:.1f} s")
        with open(member.slow, "w") as file:
            file.write(str(sync))
        self.watch(seconds)
        os.remove(member.slow)

    def jump_clock(self):
        member, seconds = self.random.choice(self.members), self.random.choice([-86400, -60, 60, 86400])
        self.say(f"the clock of {member.name} is {seconds} s off")
        with open(member.clock, "w") as file:
            file.write(str(seconds))

    def run(self, minutes):
        self.build()
        self.watch(4.0)
        faults = [self.kill, self.stop, self.freeze, self.cut, self.fill_disk, self.slow_disk, self.jump_clock]
        deck = []
        while time.monotonic() - self.begin < 60.0 * minutes:
            if not deck:  # every kind comes up, in another order each time
                deck = self.random.sample(faults, len(faults))
            deck.pop()()
            self.watch(self.random.uniform(0.5, 3.0))
        self.say("no more faults")
        self.check_learns()
        for member in self.shards:
            self.check_stops(member)
            self.say(f"{member.name}: " + re.search(r"batches .*", self.inspect(member)).group(0))

    def check_learns(self):
        """The same head once more, with a goal: it ends when it is reached."""
        self.check_stops(self.head)
        steps = self.inspect(self.head)
        self.head.process.end()
        self.head.words += ["--target-return", "475"]
        self.head.start()
        self.say(re.search(r"checkpoint .*", steps).group(0))
        end = time.monotonic() + test_processes.PATIENCE
        while self.head.is_running():
            require(time.monotonic() < end, "it does not learn any more:\n" + self.head.process.text()[-1000:])
            time.sleep(0.2)
        require(self.head.process.process.returncode == 0, self.head.process.text()[-2000:])
        self.say(self.head.process.text().strip().split("\n")[-1])

    def check_stops(self, member):
        member.send(signal.SIGTERM)
        member.process.code()
        self.check_end(member)


def main():
    parser = argparse.ArgumentParser()
    for name in ("program", "tool", "faults"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    words = parser.parse_args()
    reason = test_namespaces.obstacle()
    if reason:
        print("not tried: " + reason)
        return 0
    print(f"seed {words.seed}", flush=True)
    chaos = Chaos(words.program, words.tool, words.faults, words.seed)
    try:
        chaos.run(words.minutes)
    except (Broken, AssertionError) as error:
        chaos.say(f"BROKEN with --seed {words.seed}: {error}")
        print(f"the cluster's files and output are in {chaos.folder}", flush=True)
        for member in (m for m in chaos.members if m.disk):  # the disk goes with the cluster
            shutil.copytree(member.run_dir, os.path.join(chaos.folder, member.name + ".kept"), dirs_exist_ok=True)
        return 1
    finally:
        chaos.tear_down()
    shutil.rmtree(chaos.folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
