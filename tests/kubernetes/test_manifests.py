#!/usr/bin/env python3
"""test_manifests.py PROGRAM: the manifests of examples/kubernetes, rendered and held against rules, against the
options that PROGRAM has, and, where these tools are installed, against Kubernetes' schemas, yamllint and hadolint."""

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import yaml
    import manifests
except ImportError as missing:
    print(f"not tried: {missing} (Debian package python3-yaml)")
    sys.exit(0)

PROGRAM = None
RENDERER = None
VERSIONS = ("1.31.0", "1.34.0", "1.37.0")  # of Kubernetes, for the schemas


def options_of(program):
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^ +(?:-\w,)?--([a-z0-9-]+)", text, re.MULTILINE))


def edit(document, path, change):
    """Replaces what stands at `path` of nested dicts and lists by change(it); None takes it away."""
    for step in path[:-1]:
        document = document[step]
    value = change(document.get(path[-1]) if isinstance(document, dict) else document[path[-1]])
    if value is None:
        del document[path[-1]]
    else:
        document[path[-1]] = value


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.options = options_of(PROGRAM)
        cls.rendered = {target: manifests.render(RENDERER, target) for target in manifests.TARGETS}

    def test_each_target_is_without_fault(self):
        self.assertIn("planned-environments", self.options)
        for target, documents in self.rendered.items():
            self.assertEqual(manifests.problems(documents, self.options), [], target)

    def test_who_reaches_whom_is_all_that_the_run_needs(self):
        names, elsewhere = {"kubernetes.io/metadata.name": "kube-system"}, {"kubernetes.io/metadata.name": "default"}
        ways = {("Deployment/actor", "StatefulSet/head", 7777), ("Deployment/actor", "StatefulSet/replay", 7778),
                ("StatefulSet/head", "StatefulSet/replay", 7778)}
        for target, documents in self.rendered.items():
            if target in ("batch", "overlays/gke-large", "overlays/local+object-store"):
                continue  # these reach a bucket that may be anywhere
            pods = {manifests.name_of(w): w for w in manifests.workloads(documents)}
            for source, workload in pods.items():
                labels = manifests.labels_of(workload)
                for to, other in pods.items():
                    for port in (22, 80, 6006, 7777, 7778, 8080):
                        found = manifests.is_open(documents, labels, manifests.labels_of(other), port,
                                                  numbers=manifests.ports_of(other))
                        self.assertEqual(found, (source, to, port) in ways, f"{target}: {source} to {to}:{port}")
                        self.assertFalse(manifests.is_open(documents, {"app": "stranger"}, manifests.labels_of(other),
                                                           port, numbers=manifests.ports_of(other)))
                        self.assertFalse(manifests.is_open(documents, {"app": "x"}, labels, port, "TCP", elsewhere))
                for port, there, namespace, expected in ((53, "kube-dns", names, True), (53, "other", names, False),
                                                         (53, "kube-dns", elsewhere, False),
                                                         (443, "kube-dns", names, False)):
                    self.assertEqual(manifests.is_open(documents, labels, {"k8s-app": there}, port, "TCP", namespace),
                                     expected, f"{target}: {source} to {there}:{port}")

    def test_on_gke_actors_go_to_spot_nodes_only_and_the_head_never_does(self):
        documents = self.rendered["overlays/gke-shards"]

        def fits(workload, labels):
            terms = manifests.pod_of(manifests.find(documents, workload))["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            return any(manifests.matches(term, labels) for term in terms)
        gpu = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
        head = manifests.pod_of(manifests.find(documents, "StatefulSet/head"))
        self.assertEqual(head["nodeSelector"], gpu)
        spot, old = {"cloud.google.com/gke-spot": "true"}, {"cloud.google.com/gke-preemptible": "true"}
        self.assertEqual([fits("Deployment/actor", node) for node in (spot, old, {}, gpu)], [True, True, False, False])
        for workload, expected in (("StatefulSet/head", True), ("StatefulSet/replay", False)):
            self.assertEqual([fits(workload, node) for node in (gpu, spot, old)], [expected, False, False])

    def test_the_rules_find_what_is_wrong(self):
        head, actor, spec = "StatefulSet/head", "Deployment/actor", ("spec", "template", "spec")
        container = (*spec, "containers", 0)

        def replaced(old, new):
            return lambda words: [w.replace(old, new) for w in words]
        faults = [
            (head, ("spec", "serviceName"), lambda _: "hade", "there is no Service hade"),
            (head, (*spec, "priorityClassName"), lambda _: "high", "there is no PriorityClass high"),
            (head, (*spec, "serviceAccountName"), lambda _: "root", "there is no ServiceAccount root"),
            (head, (*spec, "securityContext", "runAsUser"), lambda _: None, "does not say which user but root"),
            (head, (*spec, "securityContext", "seccompProfile"), lambda _: None, "no seccomp profile"),
            (head, (*spec, "automountServiceAccountToken"), lambda _: None, "gets a token for the cluster's API"),
            (head, (*spec, "volumes", 0, "configMap", "name"), lambda _: "recipe", "there is no ConfigMap recipe"),
            (head, (*spec, "volumes", 1, "secret", "secretName"), lambda _: "tokens", "there is no Secret tokens"),
            (head, (*spec, "volumes", 1, "secret", "defaultMode"), lambda _: 0o444, "everybody in the pod can read"),
            (head, (*container, "image"), lambda _: "troop/actor:latest", "neither a digest nor a tag that stays"),
            (head, (*container, "livenessProbe", "httpGet", "port"), lambda _: "metrics", "no port named metrics"),
            (head, (*container, "args"), replaced("0.0.0.0:7777", "0.0.0.0:7778"), "nothing listens at its port"),
            (head, (*container, "args"), replaced("--output=/var/lib", "--output=/srv"), "below nothing that is mounted"),
            (head, (*container, "args"), replaced("--listen", "--listne"), "--listne is no option of the program"),
            (head, (*container, "resources", "limits", "memory"), lambda _: "1Gb", "1Gb is no quantity"),
            (head, (*container, "resources", "limits", "memory"), lambda _: "99Gi", "as much memory as its limit"),
            (head, (*container, "securityContext", "readOnlyRootFilesystem"), lambda _: None, "can write to its root"),
            (head, (*container, "securityContext", "capabilities", "drop"), lambda _: [], "keeps privileges"),
            (head, (*container, "volumeMounts", 0, "name"), lambda _: "recipes", "there is no volume recipes"),
            (actor, (*container, "args"), replaced("head-0.head", "head.head-0"), "nobody is to be reached at"),
            (actor, (*container, "env", 0, "name"), lambda _: "TROOP_NUM_ACTRS", "--num-actrs is no option"),
            (actor, (*container, "volumeMounts", 0, "mountPath"), lambda _: "/etc/recipes", "below nothing that"),
            (actor, ("spec", "replicas"), lambda _: 3, "the head plans for 32 environments, and actors have 48"),
            (actor, ("spec", "selector", "matchLabels"), lambda _: {"app": "x"}, "does not select its own pods"),
            (actor, ("spec", "strategy", "rollingUpdate", "maxSurge"), lambda _: "ten", "neither a number nor"),
            (actor, (*spec, "enableServiceLinks"), lambda _: None, "services are put into its environment"),
            (actor, (*spec, "topologySpreadConstraints", 0, "whenUnsatisfiable"), lambda _: "Never", "is none of"),
            ("Service/head", ("spec", "type"), lambda _: "LoadBalancer", "reachable from outside"),
            ("Service/head", ("spec", "selector"), lambda _: {"app": "x"}, "Service/head: selects no pods"),
            ("Service/head", ("spec", "ports", 0, "port"), lambda _: 80, "has no port 7777"),
            ("Service/head", ("spec", "ports", 0, "targetPort"), lambda _: "metrics", "has no port metrics"),
            (actor, (*container, "args"), replaced("0.0.0.0:8080", "0.0.0.0:80"), "nothing listens at its port http"),
            ("Service/head", ("metadata", "name"), lambda _: "he_ad", "no name for a host"),
            ("PodDisruptionBudget/actor", ("spec", "selector"), lambda _: {"matchLabels": {"a": "b"}}, "selects no"),
            ("NetworkPolicy/actor", ("spec", "egress"), lambda _: [], "no NetworkPolicy lets it reach head-0.head:7777"),
            ("NetworkPolicy/default-deny", ("spec", "policyTypes"), lambda _: ["Egress"], "no NetworkPolicy closes it"),
        ]
        for document, path, change, expected in faults:
            with self.subTest(expected):
                documents = copy.deepcopy(self.rendered["overlays/local"])
                edit(manifests.find(documents, document), path, change)
                found = manifests.problems(documents, self.options)
                self.assertTrue(any(expected in sentence for sentence in found), found)
        documents = copy.deepcopy(self.rendered["overlays/gke-spot"])
        edit(manifests.find(documents, actor), (*spec, "terminationGracePeriodSeconds"), lambda _: 30)
        self.assertIn("Deployment/actor: a spot node never gives more than 15 s of grace",
                      manifests.problems(documents, self.options))
        documents = self.rendered["overlays/local"]
        self.assertIn("Service/head is there twice",
                      manifests.problems(documents + [manifests.find(documents, "Service/head")], self.options))
        for path, change, expected in (
                ((*spec, "restartPolicy"), lambda _: "OnFailure", "needs restartPolicy Never"),
                (("spec", "podReplacementPolicy"), lambda _: "Fail", "Fail is none of"),
                ((*container, "envFrom", 0, "configMapRef", "name"), lambda _: "bach", "there is no ConfigMap bach")):
            documents = copy.deepcopy(self.rendered["batch"])
            edit(manifests.find(documents, "Job/batch"), path, change)
            self.assertTrue(any(expected in sentence for sentence in manifests.problems(documents, self.options)))
        large, watch = "overlays/gke-large", "overlays/local+monitoring/operator+autoscale/keda"
        for target, document, path, change, expected in (
                (large, head, (*spec, "tolerations"), lambda _: [], "nodes with a GPU do not take it"),
                (large, "PodMonitoring/head", ("spec", "endpoints", 0, "port"), lambda _: "web", "no port named web"),
                (large, "PodMonitoring/head", ("spec", "selector", "matchLabels"), lambda _: {"a": "b"}, "selects nothing"),
                (large, "HTTPRoute/page", ("spec", "rules", 0, "backendRefs", 0, "port"), lambda _: 81, "with port 81"),
                (large, "HTTPRoute/page", ("spec", "parentRefs", 0, "name"), lambda _: "gate", "there is no Gateway gate"),
                (large, "GCPBackendPolicy/board", ("spec", "default"), lambda _: {}, "everybody can see Service board"),
                (large, "HorizontalPodAutoscaler/actor", ("spec", "maxReplicas"), lambda _: 30, "actors have 900"),
                (large, actor, ("spec", "replicas"), lambda _: 7, "says its own number of replicas"),
                (watch, "ServiceMonitor/head", ("spec", "endpoints", 0, "authorization", "credentials", "name"),
                 lambda _: "troop-htpt", "there is no Secret troop-htpt"),
                (watch, "ScaledObject/actor", ("spec", "scaleTargetRef", "name"), lambda _: "actors", "scales nothing")):
            with self.subTest(expected):
                documents = copy.deepcopy(self.rendered[target])
                edit(manifests.find(documents, document), path, change)
                found = manifests.problems(documents, self.options)
                self.assertTrue(any(expected in sentence for sentence in found), found)
        documents = copy.deepcopy(self.rendered["overlays/local"])
        recipe = next(d for d in documents if d["kind"] == "ConfigMap")
        recipe["data"]["recipe.conf"] += "btach-size = 3\n"
        self.assertIn(f"{manifests.name_of(recipe)}: btach-size is no option of the program",
                      manifests.problems(documents, self.options))

    def test_the_schemas_of_three_versions_of_kubernetes(self):
        if shutil.which("kubernetes-validate") is None:
            self.skipTest("there is no kubernetes-validate")
        with tempfile.TemporaryDirectory() as folder:
            for target, documents in self.rendered.items():
                path = os.path.join(folder, "rendered.yaml")
                with open(path, "w") as file:
                    yaml.safe_dump_all([d for d in documents if manifests.is_of_kubernetes(d)], file)
                for version in VERSIONS:
                    done = subprocess.run(["kubernetes-validate", "--strict", "--quiet", "-k", version, path],
                                          capture_output=True, text=True)
                    said = done.stdout + done.stderr
                    self.assertEqual((done.returncode, said), (0, ""), f"{target} {version}")

    def test_the_alerts_of_a_cluster_are_those_of_everywhere(self):
        with open(os.path.join(manifests.FOLDER, "monitoring", "alerts.yaml")) as file:
            expected = yaml.safe_load(file)
        for target, rules in (("overlays/gke-large", "Rules/troop"),
                              ("overlays/local+monitoring/operator+autoscale/keda", "PrometheusRule/troop")):
            self.assertEqual(manifests.find(self.rendered[target], rules)["spec"], expected)

    def test_yamllint(self):
        if shutil.which("yamllint") is None:
            self.skipTest("there is no yamllint (Debian package yamllint)")
        rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, " \
                "comments: {min-spaces-from-content: 1}}}"
        done = subprocess.run(["yamllint", "-s", "-d", rules, manifests.FOLDER], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_hadolint(self):
        if shutil.which("hadolint") is None:
            self.skipTest("there is no hadolint")
        done = subprocess.run(["hadolint", os.path.join(manifests.FOLDER, "Dockerfile")], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_secrets_are_such_as_the_program_takes(self):
        made = {manifests.name_of(d): d for d in manifests.secrets("red")}
        self.assertEqual(sorted(made), ["Secret/troop-http", "Secret/troop-tls", "Secret/troop-tls-actor",
                                        "Secret/troop-token"])
        self.assertEqual({d["metadata"]["namespace"] for d in made.values()}, {"red"})
        self.assertRegex(made["Secret/troop-token"]["stringData"]["token"], "^[0-9a-f]{64}$")
        again = {manifests.name_of(d): d for d in manifests.secrets("red")}
        self.assertNotEqual(made["Secret/troop-token"], again["Secret/troop-token"])
        with tempfile.TemporaryDirectory() as folder:
            for secret in ("troop-tls", "troop-tls-actor"):
                for name, text in made[f"Secret/{secret}"]["stringData"].items():
                    with open(os.path.join(folder, f"{secret}.{name}"), "w") as file:
                        file.write(text)

            def verified(certificate, *how):
                return subprocess.run(["openssl", "verify", "-CAfile", "troop-tls.ca.crt", *how, certificate],
                                      cwd=folder, capture_output=True).returncode == 0
            for host in ("head-0.head", "head-0.head.red.svc.cluster.local", "replay-0.replay", "replay-7.replay.red.svc"):
                self.assertTrue(verified("troop-tls.tls.crt", "-purpose", "sslserver", "-verify_hostname", host), host)
            for host in ("head-1.head", "head-0.head.troop.svc.cluster.local", "replay-8.replay", "example.org"):
                self.assertFalse(verified("troop-tls.tls.crt", "-verify_hostname", host), host)
            self.assertTrue(verified("troop-tls.tls.crt", "-purpose", "sslclient"))
            self.assertTrue(verified("troop-tls-actor.tls.crt", "-purpose", "sslclient"))
            self.assertFalse(verified("troop-tls-actor.tls.crt", "-purpose", "sslserver"))
        for word in ([], [""], ["--help"], ["Red"], ["a b"], ["red", "many"]):
            done = subprocess.run([os.path.join(manifests.FOLDER, "secrets.sh"), *word], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("NAMESPACE", done.stderr)
            self.assertEqual(done.stdout, "")


class Metrics(unittest.TestCase):
    """What alerts, dashboard and autoscaler ask for, held against a head and an actor that run."""

    def get(self, address, password=None):
        request = urllib.request.Request(f"http://{address}/metrics")
        if password is not None:
            request.add_header("Authorization", "Bearer " + password)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def start(self, folder, *arguments):
        process = subprocess.Popen([PROGRAM, "--token-file", os.path.join(folder, "token"), "--max-seconds", "100",
                                    "--http", "0.0.0.0:0", *arguments], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def addresses(self, process, *lines):
        """Those that follow these beginnings of lines, in whichever order they are said."""
        found = {}
        for said in process.stdout:
            found |= {line: said[len(line):].strip().replace("0.0.0.0", "127.0.0.1") for line in lines
                      if said.startswith(line)}
            if len(found) == len(lines):
                return [found[line] for line in lines]
        self.fail(f"no lines {lines}")

    def test_every_metric_that_is_asked_for_is_there_for_who_has_the_password(self):
        asked = set()
        for target in ("overlays/gke-large", "overlays/local+monitoring/operator+autoscale/keda"):
            for document in manifests.render(RENDERER, target):
                if document["kind"] in ("Rules", "PrometheusRule", "ScaledObject", "ConfigMap"):
                    asked |= set(re.findall(r"\btroop_[a-z0-9_]+", yaml.safe_dump(document)))
        self.assertGreater(len(asked), 20)
        secrets = {manifests.name_of(d): d["stringData"] for d in manifests.secrets()}
        with tempfile.TemporaryDirectory() as folder:
            with open(os.open(os.path.join(folder, "token"), os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(secrets["Secret/troop-token"]["token"])
            head = self.start(folder, "--role", "learner", "--listen", "127.0.0.1:0", "--target-return", "1000")
            listening, page = self.addresses(head, "listening on ", "status page at http://")
            self.start(folder, "--role", "actor", "--connect", listening, "--quiet")
            for password in (None, "0" * 64, secrets["Secret/troop-token"]["token"]):
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    self.get(page, password)
                self.assertEqual(refused.exception.code, 401)
            end = time.monotonic() + 60
            missing = asked
            while missing and time.monotonic() < end:
                text = self.get(page, secrets["Secret/troop-http"]["password"])
                missing = asked - set(re.findall(r"^(troop_[a-z0-9_]+)", text, re.MULTILINE))
                time.sleep(0.2)
            self.assertEqual(missing, set())


class Refusals(unittest.TestCase):
    """The head's own command, with something wrong: one line says what, and the exit code whether waiting may help."""

    def run_head(self, target="overlays/local", recipe=lambda text: text, token="0123456789abcdef", code=2):
        documents = manifests.render(RENDERER, target)
        container = manifests.program_of(manifests.find(documents, "StatefulSet/head"))
        text = next(d["data"]["recipe.conf"] for d in documents if d["kind"] == "ConfigMap" and "recipe.conf" in d["data"])
        with tempfile.TemporaryDirectory() as folder:
            for mounted in ("etc/troop", "etc/troop-token", "var/lib/troop"):
                os.makedirs(os.path.join(folder, mounted))
            with open(os.path.join(folder, "etc/troop/recipe.conf"), "w") as file:
                file.write(recipe(text))
            if token:
                with open(os.open(os.path.join(folder, "etc/troop-token/token"), os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                    file.write(token)

            def placed(text):
                return re.sub(r"0\.0\.0\.0:\d+", "0.0.0.0:0", text).replace("/etc/", folder + "/etc/").replace(
                    "/var/", folder + "/var/")
            given = {k: placed(v) for k, v in manifests.environment_of(container).items() if "TLS" not in k}
            done = subprocess.run([PROGRAM, *map(placed, container["args"])], env={**os.environ, **given},
                                  capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_an_unknown_key_of_the_recipe(self):
        self.assertIn("did you mean --batch-size?", self.run_head(recipe=lambda text: text + "btach-size = 3\n"))

    def test_no_token_and_a_short_one(self):
        self.assertIn("/etc/troop-token/token", self.run_head(token=None, code=1))  # the Secret may be made yet
        self.assertIn("16 to 4096 bytes", self.run_head(token="short", code=1))

    def test_no_gpu(self):
        self.assertIn("cuda", self.run_head(target="overlays/local+gpu+tls"))


class Bucket(unittest.TestCase):
    """bucket.sh with a folder as its bucket."""

    SCRIPT = os.path.join(manifests.FOLDER, "components", "object-store", "bucket.sh")

    def setUp(self):
        if shutil.which("rclone") is None:
            self.skipTest("there is no rclone (Debian package rclone)")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bucket = os.path.join(folder.name, "bucket", "run")
        self.volumes = [os.path.join(folder.name, name) for name in ("first", "second")]
        for volume in self.volumes:
            os.makedirs(os.path.join(volume, "lost+found"))

    def start(self, verb, volume, **environment):
        given = {"TROOP_BUCKET": self.bucket, "TROOP_BUCKET_FOLDER": volume, "TROOP_BUCKET_SECONDS": "1", **environment}
        return subprocess.Popen([self.SCRIPT, verb], env={**os.environ, **given}, text=True, stderr=subprocess.PIPE)

    def done(self, process):
        said = process.communicate(timeout=60)[1]
        return process.returncode, said

    def test_a_new_volume_gets_what_the_old_one_had(self):
        first, second = self.volumes
        code, said = self.done(self.start("fetch", first))
        self.assertEqual((code, said), (0, "bucket: 0 files fetched\n"))  # a new run
        os.makedirs(os.path.join(first, "run"))
        with open(os.path.join(first, "run", "one"), "w") as file:
            file.write("1")
        upload = self.start("upload", first)
        end = time.monotonic() + 60
        while not os.path.exists(os.path.join(self.bucket, "run", "one")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        os.remove(os.path.join(first, "run", "one"))
        with open(os.path.join(first, "run", "two"), "w") as file:
            file.write("2")
        upload.send_signal(signal.SIGTERM)
        code, said = self.done(upload)
        self.assertEqual((code, "all is uploaded" in said), (0, True), said)
        self.assertEqual(os.listdir(os.path.join(self.bucket, "run")), ["two"])  # what the head removed is removed
        code, said = self.done(self.start("fetch", second))
        self.assertEqual((code, said), (0, "bucket: 1 files fetched\n"))
        self.assertEqual(os.listdir(os.path.join(second, "run")), ["two"])
        self.assertIn("there is something here already", self.done(self.start("fetch", second))[1])

    def test_a_bucket_that_cannot_be_read_is_no_empty_one(self):
        with open(os.path.join(os.path.dirname(self.volumes[0]), "bucket"), "w") as file:
            file.write("no folder")
        code, said = self.done(self.start("fetch", self.volumes[0]))
        self.assertEqual((code, "cannot fetch" in said), (1, True), said)
        self.assertEqual(self.done(self.start("fetch", self.volumes[0], TROOP_BUCKET=""))[0], 2)


class Batch(unittest.TestCase):
    """troop-batch with a folder as its bucket."""

    SCRIPT = os.path.join(manifests.FOLDER, "batch", "troop-batch")

    def setUp(self):
        if shutil.which("rclone") is None:
            self.skipTest("there is no rclone (Debian package rclone)")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bucket, self.lives = os.path.join(folder.name, "bucket"), 0
        self.folder = folder.name
        os.makedirs(os.path.join(self.bucket, "in"))

    def start(self, *command, **environment):
        """A new life of the pod: nothing is left of the earlier one but the bucket."""
        self.lives += 1
        given = {"TROOP_BATCH_INPUT": os.path.join(self.bucket, "in"), "TROOP_BATCH_SECONDS": "1",
                 "TROOP_BATCH_OUTPUT": os.path.join(self.bucket, "out"), "TROOP_BATCH_PROGRAM": PROGRAM,
                 "TROOP_BATCH_FOLDER": os.path.join(self.folder, f"work{self.lives}"), **environment}
        return subprocess.Popen([self.SCRIPT, *command], env={**os.environ, **given}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def result(self, name):
        with open(os.path.join(self.bucket, "out", name)) as file:
            return file.read()

    def test_an_attempt_goes_on_where_the_one_before_was_stopped(self):
        work = "cat output/lines 2>/dev/null; i=$(cat output/lines 2>/dev/null | wc -l); " \
               "echo line $i >>output/lines; [ $i -ge 1 ] || exec sleep 60"
        first = self.start("sh", "-c", work)
        while not os.path.exists(os.path.join(self.bucket, "out", "lines")):  # is saved while the work goes on
            self.assertIsNone(first.poll())
            time.sleep(0.05)
        first.send_signal(signal.SIGTERM)
        self.assertIn("told to stop; saving", first.communicate(timeout=60)[1])
        self.assertEqual(first.returncode, 143)
        second = self.start("sh", "-c", work)
        self.assertEqual(second.communicate(timeout=60)[0], "line 0\n")
        self.assertEqual(second.returncode, 0)
        self.assertEqual(self.result("lines"), "line 0\nline 1\n")

    def test_without_a_command_each_saved_network_is_played_once(self):
        networks = os.path.join(self.bucket, "in")
        subprocess.run([PROGRAM, "--max-seconds", "0.5", "--quiet", "--output", "first.troop"], cwd=networks,
                       stdout=subprocess.DEVNULL)
        os.makedirs(os.path.join(networks, "b"))
        shutil.copy(os.path.join(networks, "first.troop"), os.path.join(networks, "b", "second.troop"))
        first = self.start()
        said = first.communicate(timeout=60)
        self.assertEqual(first.returncode, 0, said)
        self.assertEqual(said[0].count("evaluated: mean_return="), 2)
        self.assertIn("evaluated: mean_return=", self.result("b_second.troop.txt"))
        self.assertEqual(sorted(os.listdir(os.path.join(self.bucket, "out"))),
                         ["b_second.troop.txt", "first.troop.txt"])
        again = self.start()
        self.assertEqual(again.communicate(timeout=60)[0], "")  # nothing is left to do
        self.assertEqual(again.returncode, 0)
        with open(os.path.join(networks, "broken.troop"), "w") as file:
            file.write("nothing")
        broken = self.start()
        self.assertIn("broken.troop", broken.communicate(timeout=60)[1])
        self.assertEqual(broken.returncode, 2)  # for good, says podFailurePolicy

    def test_what_is_missing_is_said_in_one_line(self):
        for environment, expected, code in (({"TROOP_BATCH_INPUT": ""}, "TROOP_BATCH_INPUT is not set", 2),
                                            ({"TROOP_BATCH_SECONDS": "soon"}, "TROOP_BATCH_SECONDS=soon is not", 2),
                                            ({"TROOP_BATCH_INPUT": "/nowhere"}, "cannot fetch /nowhere", 1)):
            process = self.start("true", **environment)
            self.assertIn(expected, process.communicate(timeout=60)[1])
            self.assertEqual(process.returncode, code)
        process = self.start("sh", "-c", "exit 7")
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 7)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    RENDERER = manifests.renderer()
    if RENDERER is None:
        print("not tried: there is no kubectl and no kustomize that renders components")
        sys.exit(0)
    unittest.main(verbosity=2)
