#!/usr/bin/env python3
"""test_processes.py PROGRAM: a learner, shards, actors and an evaluator as processes on loopback, and what happens
when some of them vanish. TROOP_TEST_AWAY=30 lets the learner stay away for so many seconds instead of one."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = None
PATIENCE = 120  # seconds until something that must happen counts as not happening
AWAY = float(os.environ.get("TROOP_TEST_AWAY", "1"))
TOKEN = "0123456789abcdef0123456789abcdef"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """One process of the cluster, whose output is in a file. `within` begins its command line."""

    def __init__(self, folder, name, *words, token=TOKEN, within=()):
        self.path = os.path.join(folder, name)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TROOP_")}
        if token:
            environment["TROOP_TOKEN"] = token
        self.out = open(self.path, "w")
        self.process = subprocess.Popen([*within, PROGRAM, *words], stdout=self.out, stderr=subprocess.STDOUT,
                                        env=environment, cwd=folder)

    def text(self):
        with open(self.path) as file:
            return file.read()

    def find(self, pattern, after=0):
        return re.search(pattern, self.text()[after:])

    def wait_for(self, pattern, after=0):
        """Waits until the output has `pattern` beyond its first `after` characters."""
        end = time.monotonic() + PATIENCE
        while not self.find(pattern, after):
            if time.monotonic() > end or (self.process.poll() is not None and not self.find(pattern, after)):
                raise AssertionError(f"{pattern!r} is not in the output of {self.path}:\n{self.text()[-2000:]}")
            time.sleep(0.02)
        return self.find(pattern, after)

    def code(self):
        return self.process.wait(PATIENCE)

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out.close()


class Cluster(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            process.end()
        self.folder.cleanup()

    def start(self, name, *words, **more):
        self.processes.append(Process(self.folder.name, name, *words, **more))
        return self.processes[-1]

    def learner(self, name="learner", port=0, *words):
        learner = self.start(name, "--role", "learner", "--listen", f"127.0.0.1:{port}", "--planned-environments", "16",
                             "--seed", "4", "--output", "", *words)
        self.port = int(learner.wait_for(r"listening on 127\.0\.0\.1:(\d+)").group(1))
        return learner

    def shard(self, name, port=0, *words, **more):
        shard = self.start(name, "--role", "replay", "--listen", f"127.0.0.1:{port}", *words, **more)
        shard.port = int(shard.wait_for(r"listening on 127\.0\.0\.1:(\d+)").group(1))
        return shard

    def actor(self, name, *words, **more):
        return self.start(name, "--role", "actor", "--connect", f"localhost:{self.port}",
                          "--environments-per-actor", "8", *words, **more)

    def evaluator(self, name="evaluator"):
        return self.start(name, "--role", "evaluator", "--connect", f"localhost:{self.port}",
                          "--evaluation-episodes", "20")

    def check_ends_soon(self, process, number, expected):
        begin = time.monotonic()
        process.process.send_signal(number)
        self.assertEqual(process.code(), expected, process.text())
        self.assertLess(time.monotonic() - begin, 5.0)

    def test_a_cluster_solves_the_task_and_everybody_ends(self):
        learner = self.learner()
        others = [self.actor("one"), self.actor("two"), self.evaluator()]
        self.assertEqual(learner.code(), 0, learner.text()[-2000:])
        self.assertTrue(learner.find(r"solved: mean_return=\d+"))
        for process in others:
            self.assertEqual(process.code(), 0, process.text())
            self.assertTrue(process.find("the run is finished"))
        self.assertTrue(self.processes[3].find(r"evaluated: parameters=\d+ mean_return="))

    def test_a_learner_that_is_killed_and_replaced_is_joined_by_the_actors(self):
        learner = self.learner("first", 0, "--target-return", "1000")
        others = [self.actor("one"), self.actor("two"), self.evaluator()]
        learner.wait_for("clients 3")
        learner.process.kill()
        learner.code()
        others[0].wait_for("lost the connection")
        time.sleep(AWAY)
        # One that could solve its task might be gone before everybody has tried again.
        second = self.learner("second", self.port, "--target-return", "1000", "--max-seconds", "8")
        begin = time.monotonic()
        for process in others:
            process.wait_for("connected to localhost:")
        self.assertLess(time.monotonic() - begin, 7.0)
        self.assertEqual(second.code(), 1, second.text()[-2000:])
        self.assertGreater(int(second.find(r"learner_steps=(\d+)").group(1)), 0)
        for process in others:
            self.assertEqual(process.code(), 0, process.text())

    def test_actors_that_are_killed_leave_their_places_to_new_ones(self):
        learner = self.learner("learner", 0, "--target-return", "1000", "--lease-seconds", "0")
        first = self.actor("first")
        first.wait_for("leased environments 0 to 7 of 16")
        second = self.actor("second")
        second.wait_for("leased environments 8 to 15 of 16")
        learner.wait_for("clients 2")
        first.process.kill()
        first.code()
        learner.wait_for("clients 1", after=len(learner.text()))
        self.actor("third").wait_for("leased environments 0 to 7 of 16")
        self.actor("fourth").wait_for("leased environments 16 to 23 of 16")
        learner.wait_for("more environments than the 16 that are planned")

    def test_a_replay_in_two_shards_is_filled_and_drawn_from_until_the_task_is_solved(self):
        shards = [self.shard("left"), self.shard("right")]
        learner = self.learner("learner", 0, "--shards", ",".join(f"localhost:{shard.port}" for shard in shards))
        actors = [self.actor("one"), self.actor("two")]
        self.assertEqual(learner.code(), 0, learner.text()[-2000:])
        self.assertTrue(learner.find(r"solved: mean_return=\d+"))
        for actor in actors:
            self.assertEqual(actor.code(), 0, actor.text())
        for shard in shards:
            self.check_ends_soon(shard, signal.SIGTERM, 128 + signal.SIGTERM)
            self.assertTrue(shard.find(r"inserts [1-9]\d*  samples [1-9]"), shard.text())

    def test_a_shard_that_is_killed_is_left_out_and_taken_back(self):
        lost, kept = self.shard("lost"), self.shard("kept")
        addresses = [f"127.0.0.1:{shard.port}" for shard in (lost, kept)]
        learner = self.learner("learner", 0, "--target-return", "1000", "--shards", ",".join(addresses))
        actor = self.actor("actor")
        works = r"[1-9]\S* steps/s  [1-9]\S* updates/s .*  shards "
        learner.wait_for(works + "2/2")
        before = len(learner.text())
        lost.process.kill()
        lost.code()
        # Not the line of the second in which it was lost, but a later one.
        learner.wait_for("shards 1/2  lost [1-9](.*\n)*?.*" + works + "1/2", after=before)
        again = self.shard("again", lost.port)
        actor.wait_for(f"connected to {addresses[0]} after", after=actor.text().index("lost the connection"))
        learner.wait_for("shards 2/2  lost [1-9](.*\n)*?.*" + works + "2/2", after=before)
        for process in (learner, actor):
            self.assertEqual(process.text().count(f"lost the connection to {addresses[0]}"), 1, process.text())
            self.assertNotIn(f"lost the connection to {addresses[1]}", process.text())
        self.check_ends_soon(again, signal.SIGTERM, 128 + signal.SIGTERM)
        self.assertTrue(again.find(r"inserts [1-9]\d*  samples [1-9]"), again.text())
        learner.wait_for("shards 1/2", after=len(learner.text()))
        self.check_ends_soon(learner, signal.SIGTERM, 128 + signal.SIGTERM)
        self.check_ends_soon(actor, signal.SIGTERM, 128 + signal.SIGTERM)
        self.check_ends_soon(kept, signal.SIGTERM, 128 + signal.SIGTERM)

    def test_processes_end_soon_after_a_signal_though_all_shards_hang(self):
        shard = self.shard("shard")
        learner = self.learner("learner", 0, "--target-return", "1000", "--shards", f"127.0.0.1:{shard.port}")
        actor = self.actor("actor")
        learner.wait_for(r"[1-9]\S* updates/s .*  shards 1/1")
        before = len(learner.text())
        shard.process.send_signal(signal.SIGSTOP)
        learner.wait_for("shards 0/1  lost [1-9]", after=before)
        self.check_ends_soon(actor, signal.SIGTERM, 128 + signal.SIGTERM)
        self.assertTrue(actor.find("the shards did not take the last items in time"), actor.text())
        self.check_ends_soon(learner, signal.SIGTERM, 128 + signal.SIGTERM)
        shard.process.send_signal(signal.SIGCONT)
        self.check_ends_soon(shard, signal.SIGTERM, 128 + signal.SIGTERM)

    def test_a_shard_of_no_use_ends_the_learner_with_the_reason(self):
        for name, words, token, sentence in (
                ("steep", ("--alpha", "0.9"), TOKEN,
                 "error: alpha of the shard at .*: 0.9 is not allowed; expected that of the learner, 0.6"),
                ("closed", (), "another token of enough bytes", "error: the token is not the server's"),
        ):
            shard = self.shard(name, 0, *words, token=token)
            learner = self.learner("of_" + name, 0, "--shards", f"127.0.0.1:{shard.port}")
            self.assertEqual(learner.code(), 1)
            self.assertTrue(learner.find(sentence), learner.text())

    def test_every_role_ends_soon_after_a_signal_whatever_it_waits_for(self):
        self.check_ends_soon(self.shard("shard"), signal.SIGTERM, 128 + signal.SIGTERM)
        learner = self.learner("learner", 0, "--target-return", "1000", "--min-inserts", "100000")
        busy, evaluator = self.actor("busy"), self.evaluator()
        busy.wait_for("leased")
        self.check_ends_soon(busy, signal.SIGTERM, 128 + signal.SIGTERM)
        self.check_ends_soon(evaluator, signal.SIGINT, 128 + signal.SIGINT)
        idle = self.actor("idle")
        idle.wait_for("leased")
        self.check_ends_soon(learner, signal.SIGTERM, 128 + signal.SIGTERM)
        idle.wait_for("lost the connection")
        self.check_ends_soon(idle, signal.SIGTERM, 128 + signal.SIGTERM)
        lost = self.actor("lost")
        lost.wait_for("cannot reach localhost:")
        self.check_ends_soon(lost, signal.SIGTERM, 128 + signal.SIGTERM)

    def test_an_actor_with_a_full_outbox_ends_soon_after_a_signal(self):
        learner = self.learner("learner", 0, "--target-return", "1000", "--num-threads", "1")
        actor = self.actor("actor")
        learner.wait_for(r"updates/s  replay [1-9]")
        learner.process.send_signal(signal.SIGSTOP)  # its system still takes bytes, it does not
        before = actor.cpu_seconds()
        while True:  # until the actor has nowhere to go
            time.sleep(0.5)
            now = actor.cpu_seconds()
            if now - before < 0.1:
                break
            before = now
        self.check_ends_soon(actor, signal.SIGTERM, 128 + signal.SIGTERM)
        self.assertTrue(actor.find("did not take the last items in time"))
        learner.process.send_signal(signal.SIGCONT)
        self.check_ends_soon(learner, signal.SIGTERM, 128 + signal.SIGTERM)

    def test_an_actor_may_drop_its_oldest_batches_and_says_how_many(self):
        self.learner("learner", 0, "--target-return", "1000", "--samples-per-insert", "1000")
        actor = self.actor("actor", "--when-full", "drop-oldest", "--outbox-bytes", "8192")
        actor.wait_for(r"connected  dropped \d+")

    def test_an_evaluator_ends_when_its_time_is_over(self):
        self.learner("learner", 0, "--target-return", "1000")
        evaluator = self.start("evaluator", "--role", "evaluator", "--connect", f"localhost:{self.port}",
                               "--evaluation-episodes", "5", "--max-seconds", "3")
        self.assertEqual(evaluator.code(), 0, evaluator.text())
        self.assertTrue(evaluator.find("evaluated: parameters="))

    def test_a_certificate_that_is_not_trusted_is_said_once_and_one_that_is_lets_the_actor_in(self):
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl to make certificates with")
        for name in ("head", "other"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                            "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
                            "-keyout", f"{name}.key", "-out", f"{name}.pem"],
                           cwd=self.folder.name, check=True, capture_output=True)
        self.learner("learner", 0, "--target-return", "1000", "--tls-certificate", "head.pem", "--tls-key", "head.key")
        wary = self.actor("wary", "--tls-authority", "other.pem")
        wary.wait_for(r"cannot reach localhost:\d+: .*certificate.*; trying again")
        self.actor("sure", "--tls-authority", "head.pem").wait_for("leased environments 0 to 7")
        time.sleep(3.0)  # in which it has tried again
        self.assertEqual(wary.text().count("\n"), 1, wary.text())
        self.check_ends_soon(wary, signal.SIGTERM, 128 + signal.SIGTERM)

    def test_actors_rest_while_the_learner_is_away(self):
        learner = self.learner("learner", 0, "--target-return", "1000")
        actor = self.actor("actor")
        learner.wait_for("clients 1")
        learner.process.kill()
        learner.code()
        actor.wait_for("lost the connection")
        time.sleep(0.5)
        before = actor.cpu_seconds()
        time.sleep(4.0)
        self.assertLess(actor.cpu_seconds() - before, 0.05 * 4.0)

    def test_who_is_refused_says_why_in_one_line(self):
        self.learner()
        refused = self.actor("refused", token="another token of enough bytes")
        self.assertEqual(refused.code(), 2)
        self.assertEqual(refused.text().count("\n"), 2, refused.text())
        self.assertTrue(refused.find("error: the token is not the server's"))
        without = self.actor("without", token=None)
        self.assertEqual(without.code(), 2)
        self.assertTrue(without.find("error: this server wants a token, and the client has none"))
        taken = self.start("taken", "--role", "learner", "--listen", f"127.0.0.1:{self.port}", "--output", "")
        self.assertEqual(taken.code(), 1)
        self.assertTrue(taken.find(f"error: cannot listen on 127.0.0.1:{self.port}: Address already in use"))
        unknown = self.start("unknown", "--role", "actor", "--connect", "no.such.name.invalid:7777")
        unknown.wait_for(r"cannot reach no\.such\.name\.invalid:7777: .+; trying again")

    def test_options_that_do_not_go_together_are_refused(self):
        for words, sentence in (
                (["--role", "actor"], r'--connect: "" is not allowed; expected HOST:PORT of the learner'),
                (["--role", "learner"], r'--listen: "" is not allowed; expected HOST:PORT with --role learner'),
                (["--connect", "a:1"], r'--connect: "a:1" is not allowed; expected nothing with --role all'),
                (["--role", "learner", "--listen", "0.0.0.0:0", "--output", ""], "a token, or TLS, or insecure"),
                (["--role", "replay", "--listen", "0.0.0.0:0"], "a token, or TLS, or insecure"),
                (["--role", "replay"], r'--listen: "" is not allowed; expected HOST:PORT with --role replay'),
                (["--shards", "a:1"], r'--shards: "a:1" is not allowed; expected nothing with --role all'),
                (["--role", "learner", "--listen", "a:1", "--shards", "b"],
                 r'--shards: "b" is not allowed; expected HOST:PORT'),
        ):
            process = self.start("bad", *words, token=None)
            self.assertIn(process.code(), (1, 2))
            self.assertTrue(process.find(sentence), process.text())


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
