#!/usr/bin/env python3
"""test_manifests.py PROGRAM: the manifests of examples/kubernetes, rendered and held against rules, against the
options that PROGRAM has, and, where these tools are installed, against Kubernetes' schemas, yamllint and hadolint."""

import copy
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

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
            pods = {manifests.name_of(w): w for w in manifests.workloads(documents)}
            for source, workload in pods.items():
                labels = manifests.labels_of(workload)
                for to, other in pods.items():
                    for port in (22, 80, 7777, 7778):
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
        spot, old = {"cloud.google.com/gke-spot": "true"}, {"cloud.google.com/gke-preemptible": "true"}
        self.assertEqual([fits("Deployment/actor", node) for node in (spot, old, {}, gpu)], [True, True, False, False])
        self.assertEqual([fits("StatefulSet/head", node) for node in (gpu, {**gpu, **spot}, {**gpu, **old}, {}, spot)],
                         [True, False, False, False, False])
        self.assertEqual([fits("StatefulSet/replay", node) for node in ({}, spot, old, gpu)], [True, False, False, False])

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
            (head, (*container, "livenessProbe", "tcpSocket", "port"), lambda _: "metrics", "no port named metrics"),
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
            ("Service/head", ("spec", "ports", 0, "targetPort"), lambda _: "http", "has no port http"),
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
                    yaml.safe_dump_all(documents, file)
                for version in VERSIONS:
                    done = subprocess.run(["kubernetes-validate", "--strict", "--quiet", "-k", version, path],
                                          capture_output=True, text=True)
                    said = done.stdout + done.stderr
                    self.assertEqual((done.returncode, said), (0, ""), f"{target} {version}")

    def test_yamllint(self):
        if shutil.which("yamllint") is None:
            self.skipTest("there is no yamllint (Debian package yamllint)")
        rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, " \
                "comments: {min-spaces-from-content: 1}}}"
        done = subprocess.run(["yamllint", "-s", "-d", rules, manifests.FOLDER], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_secrets_are_such_as_the_program_takes(self):
        made = {manifests.name_of(d): d for d in manifests.secrets("red")}
        self.assertEqual(sorted(made), ["Secret/troop-tls", "Secret/troop-tls-actor", "Secret/troop-token"])
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


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    RENDERER = manifests.renderer()
    if RENDERER is None:
        print("not tried: there is no kubectl and no kustomize that renders components")
        sys.exit(0)
    unittest.main(verbosity=2)
