#!/usr/bin/env python3
"""test_status.py TROOP SERVE_RUN: troop status, troop top and troop password against a run's server."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TROOP = SERVE_RUN = None
TOKEN = "0123456789abcdef0123456789abcdef"


def troop(*words, token=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TROOP_")}
    if token:
        environment["TROOP_TOKEN"] = token
    return subprocess.run([TROOP, *words], capture_output=True, text=True, timeout=60, env=environment)


class Status(unittest.TestCase):
    def serve(self, port=0, token=None):
        environment = dict(os.environ, **({"TROOP_TOKEN": token} if token else {}))
        process = subprocess.Popen([SERVE_RUN, str(port), "20", "7"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env=environment)
        self.addCleanup(lambda: self.stop(process))
        process.place = process.stdout.readline().strip()[len("http://"):-1]
        return process

    @staticmethod
    def stop(process):
        if process.poll() is None:
            process.stdin.close()
            process.wait(30)
        process.stdout.close()

    def until(self, seconds, ask):
        end = time.monotonic() + seconds
        while not (answer := ask()):
            self.assertLess(time.monotonic(), end, "this did not happen in time")
            time.sleep(0.1)
        return answer

    def test_status_says_how_a_run_goes(self):
        run = self.serve()
        run.stdin.write("evaluate 80\n")
        run.stdin.flush()
        text = self.until(30, lambda: (t := troop("status", run.place).stdout).find("80.0 +- 1.414") >= 0 and t)
        self.assertRegex(text, r"^Pong-v5, learner, seed 7, \d+ s\n")
        self.assertRegex(text, r"\nactors       20 here, 0 lost   ")
        self.assertEqual(troop("status", f"http://{run.place}/").returncode, 0)  # as a run prints it

    def test_json_is_what_the_page_gets(self):
        run = self.serve()
        status = json.loads(troop("status", "--json", run.place).stdout)
        self.assertEqual(status["version"], 1)
        self.assertEqual(status["run"]["environment"], "Pong-v5")

    def test_top_shows_lost_actors_first_and_nothing_that_steers_a_terminal(self):
        run = self.serve()
        self.until(30, lambda: troop("top", run.place).stdout.count("\n") == 21)
        run.stdin.write("lose 9\n")
        run.stdin.flush()
        text = self.until(30, lambda: "lost" in (t := troop("top", run.place).stdout) and t)
        self.assertRegex(text.splitlines()[1], r"^ +32 +4  worker-9\.example:1009 .* lost$")
        self.assertIn("<img src=x onerror=alert(1)>", text)
        self.assertNotIn("\x1b", text)

    def test_watch_goes_on_while_the_head_is_away(self):
        run = self.serve()
        screen, terminal = pty.openpty()
        watch = subprocess.Popen([TROOP, "status", "--watch", "--interval", "0.2", run.place], stdout=terminal,
                                 stdin=subprocess.DEVNULL)
        os.close(terminal)
        seen = ""

        def shows(text):
            nonlocal seen
            if select.select([screen], [], [], 0.1)[0]:
                seen += os.read(screen, 65536).decode(errors="replace")
            if text in seen:
                seen = ""
                return True
            return False

        try:
            self.until(30, lambda: shows("seed 7"))
            self.stop(run)
            self.until(30, lambda: shows("Connection refused"))
            self.serve(run.place.rsplit(":", 1)[1])
            self.until(30, lambda: shows("seed 7"))
        finally:
            watch.send_signal(signal.SIGINT)
            self.assertEqual(watch.wait(30), -signal.SIGINT)
            os.close(screen)

    def test_a_token_opens_what_it_guards(self):
        run = self.serve(token=TOKEN)
        refused = troop("status", run.place)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertIn("needs the cluster's token", refused.stderr)
        self.assertIn("has another token", troop("status", run.place, token=TOKEN + "1").stderr)
        self.assertIn("seed 7", troop("status", run.place, token=TOKEN).stdout)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(TOKEN)
            file.flush()
            self.assertIn("seed 7", troop("status", "--token-file", file.name, run.place).stdout)
            self.assertRegex(troop("password", "--token-file", file.name).stdout, r"^[0-9a-f]{64}\n$")

    def test_what_is_wrong_is_said_in_a_line(self):
        for words, code, said in (
                (["status", "127.0.0.1:1"], 1, "error: 127.0.0.1:1: Connection refused\n"),
                (["status", "nowhere"], 2, 'error: HOST:PORT: "nowhere" is not allowed; expected HOST:PORT or '
                                           '[IPV6]:PORT\n'),
                (["status"], 2, "error: server is required (--help tells more)\n"),
                (["status", "--what"], 2, None), (["password"], 2, None), (["what"], 2, None), ([], 2, None)):
            with self.subTest(words=words):
                answer = troop(*words)
                self.assertEqual((answer.returncode, answer.stdout), (code, ""))
                if said is not None:
                    self.assertEqual(answer.stderr, said)
        for words in (["--help"], ["--version"], ["status", "--help"], ["top", "--help"]):
            self.assertEqual(troop(*words).returncode, 0)


if __name__ == "__main__":
    TROOP, SERVE_RUN = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
