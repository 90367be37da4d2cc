#!/usr/bin/env python3
"""test_prometheus.py SERVE_RUN SOURCE: what a run's /metrics says is what Prometheus reads, and what the dashboard and
the alert rules ask for. Exit code 77, saying why, where Prometheus is not installed."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

SERVE_RUN = FOLDER = None


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def names_in(text):
    return set(re.findall(r"\btroop_[a-z_]+", text))


class Prometheus(unittest.TestCase):
    def setUp(self):
        self.run_ = subprocess.Popen([SERVE_RUN, "0", "20", "7"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end)
        self.url = self.run_.stdout.readline().strip()
        end = time.monotonic() + 30
        while 'troop_actor_policy_lag{actor="76"' not in (metrics := get(self.url + "metrics")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        self.metrics = metrics

    def end(self):
        self.run_.stdin.close()
        self.run_.wait(30)
        self.run_.stdout.close()

    def test_promtool_finds_nothing_wrong_with_the_metrics(self):
        check = subprocess.run(["promtool", "check", "metrics"], input=self.metrics, capture_output=True, text=True)
        self.assertEqual((check.returncode, check.stdout + check.stderr), (0, ""))

    def test_rules_are_valid_and_ask_for_what_there_is(self):
        path = os.path.join(FOLDER, "alerts.yaml")
        check = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
        with open(path) as file:
            asked = names_in("\n".join(re.findall("expr: (.*)", file.read())))
        self.assertGreater(len(asked), 5)
        self.assertEqual(asked - names_in(self.metrics), set())

    def test_the_dashboard_asks_for_what_there_is(self):
        with open(os.path.join(FOLDER, "dashboard.json")) as file:
            panels = json.load(file)["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        asked = names_in(" ".join(target["expr"] for panel in panels for target in panel["targets"]))
        self.assertGreater(len(asked), 20)
        self.assertEqual(asked - names_in(self.metrics), set())

    def test_prometheus_scrapes_and_answers_every_query_of_the_dashboard(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{s.getsockname()[1]}"
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "prometheus.yml")
            with open(config, "w") as file:
                file.write("scrape_configs: [{job_name: troop, scrape_interval: 1s, static_configs: [{targets: ['"
                           + self.url[len("http://"):-1] + "']}]}]\n")
            server = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={place}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                self.assertTrue(self.until_found(place, "rate(troop_learner_steps_total[1m])"))
                with open(os.path.join(FOLDER, "dashboard.json")) as file:
                    panels = json.load(file)["panels"]
                for expr in (target["expr"].replace("$job", "troop") for panel in panels for target in panel["targets"]):
                    with self.subTest(expr=expr):
                        self.assertTrue(self.until_found(place, expr))
            finally:
                server.terminate()
                server.wait(30)

    @staticmethod
    def until_found(place, expr):
        """The result of a query, as soon as there is one; else what there is after a minute."""
        url = f"http://{place}/api/v1/query?query=" + urllib.parse.quote(expr)
        end = time.monotonic() + 60
        while True:
            try:
                result = json.loads(get(url))["data"]["result"]
            except OSError:
                result = []
            if result or time.monotonic() > end:
                return result
            time.sleep(0.2)


if __name__ == "__main__":
    SERVE_RUN, FOLDER = sys.argv[1], os.path.join(sys.argv[2], "examples", "kubernetes", "monitoring")
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print("not tried: there is no Prometheus here (Debian package prometheus)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
