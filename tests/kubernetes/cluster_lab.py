#!/usr/bin/env python3
"""cluster_lab.py: the manifests of examples/kubernetes on a real control plane (control_plane.sh build) with nodes like
those of GKE, whose kubelets are played here. What is tried: everything is accepted, each pod finds its node, nodes are
taken away, quota, drains, a rollout. Needs the built control plane and a kubectl that renders."""

import contextlib
import datetime
import json
import os
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import yaml

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import manifests  # noqa: E402

PATIENCE = 90.0  # seconds until something that must happen counts as not happening
SPOT = "cloud.google.com/gke-spot"
NODES = {  # allocatable, about as of e2-standard-2, g2-standard-8, n2d-standard-4 and n2d-standard-16
    "system": ({}, [], {"cpu": "1930m", "memory": "5900Mi"}),
    "gpu": ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, ["nvidia.com/gpu=present"],
            {"cpu": "7910m", "memory": "28Gi", "nvidia.com/gpu": "1"}),
    "gpu-spot": ({"cloud.google.com/gke-accelerator": "nvidia-l4", SPOT: "true"}, ["nvidia.com/gpu=present", SPOT + "=true"],
                 {"cpu": "7910m", "memory": "28Gi", "nvidia.com/gpu": "1"}),
    "replay": ({}, [], {"cpu": "3920m", "memory": "13Gi"}),
    "spot": ({SPOT: "true"}, [SPOT + "=true"], {"cpu": "15890m", "memory": "57Gi"}),
}
# The volume that GKE would make for the head.
STORAGE = """
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: premium-rwo}, provisioner: none.example/none,
 volumeBindingMode: WaitForFirstConsumer}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: disk},
 spec: {capacity: {storage: 100Gi}, accessModes: [ReadWriteOnce], storageClassName: premium-rwo, hostPath: {path: /nowhere}}}
"""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def for_old_server(documents):
    """What a server of Kubernetes 1.20 knows of them; what is newer is held against schemas only."""
    documents = json.loads(json.dumps([d for d in documents if manifests.is_of_kubernetes(d)]))
    for document in documents:
        if document["kind"] == "PodDisruptionBudget":
            document["apiVersion"] = "policy/v1beta1"
            document["spec"].pop("unhealthyPodEvictionPolicy", None)
        if document["kind"] == "HorizontalPodAutoscaler":
            document["apiVersion"] = "autoscaling/v2beta2"
        if document["kind"] == "Job":
            for field in ("podFailurePolicy", "podReplacementPolicy"):
                document["spec"].pop(field, None)
        if document["kind"] in manifests.WORKLOADS:
            pod = manifests.pod_of(document)
            # A sidecar would be waited for.
            pod["initContainers"] = [c for c in pod.get("initContainers", []) if "restartPolicy" not in c]
    return documents


class Server:
    def __init__(self, kubeconfig):
        self.kubeconfig = kubeconfig
        with open(kubeconfig) as file:
            config = yaml.safe_load(file)
        self.url = config["clusters"][0]["cluster"]["server"]
        self.token = config["users"][0]["user"]["token"]
        self.context = ssl._create_unverified_context()

    def call(self, method, path, body=None, kind="application/json"):
        """Status and answer of the API."""
        request = urllib.request.Request(self.url + path, method=method, headers={
            "Authorization": "Bearer " + self.token, "Content-Type": kind},
            data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def kubectl(self, *words, documents=None):
        done = subprocess.run(["kubectl", "--kubeconfig", self.kubeconfig, *words], capture_output=True, text=True,
                              input=None if documents is None else yaml.safe_dump_all(documents))
        if done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def pods(self, namespace="troop"):
        """Those that are there and not on their way out, by name."""
        return {p["metadata"]["name"]: p for p in self.call("GET", f"/api/v1/namespaces/{namespace}/pods")[1]["items"]
                if "deletionTimestamp" not in p["metadata"] and p["status"].get("phase") != "Failed"}

    def events(self, name, namespace="troop"):
        """What was said of an object."""
        query = f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}"
        return [e["message"] for e in self.call("GET", query)[1]["items"]]


def now(microseconds=False):
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if microseconds
                                                                 else "%Y-%m-%dT%H:%M:%SZ")


def is_ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def component_of(pod):
    return pod["metadata"]["labels"].get("app.kubernetes.io/component", pod["metadata"]["labels"].get("job-name"))


class Nodes:
    """Plays the kubelets: pods that are bound to a node run and are ready, those that shall go are gone."""

    def __init__(self, server):
        self.server, self.addresses = server, 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.play)
        self.thread.start()

    def close(self):
        self.stopping.set()
        self.thread.join()

    def add(self, kind, number, zone):
        labels, taints, room = NODES[kind]
        name = f"{kind}-{number}"
        labels = {**labels, "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
        room = {**room, "pods": "110", "ephemeral-storage": "100Gi"}
        spec = {"taints": [{"key": t.split("=")[0], "value": t.split("=")[1], "effect": "NoSchedule"} for t in taints]}
        assert self.server.call("POST", "/api/v1/nodes", {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec})[0] == 201
        self.server.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {
            "capacity": room, "allocatable": room, "conditions": [
                {"type": "Ready", "status": "True", "reason": "Played", "lastHeartbeatTime": now(),
                 "lastTransitionTime": now()}]}}, STRATEGIC)
        self.server.call("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", {
            "metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now(True)}})

    def take(self, name):
        """As GKE takes a spot node: it is not ready any more, its pods fail in an orderly way, then it is gone."""
        self.server.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [
            {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "node is shutting down",
             "lastHeartbeatTime": now(), "lastTransitionTime": now()}]}}, STRATEGIC)
        wait_for("nothing new is put there", lambda: any(
            t["key"] == "node.kubernetes.io/not-ready"
            for t in self.server.call("GET", f"/api/v1/nodes/{name}")[1]["spec"].get("taints", [])))
        for pod in self.server.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={name}")[1]["items"]:
            self.server.call("PATCH", self.path(pod) + "/status", {"status": {
                "phase": "Failed", "reason": "Terminated",
                "message": "Pod was terminated in response to imminent node shutdown."}}, STRATEGIC)
        assert self.server.call("DELETE", f"/api/v1/nodes/{name}")[0] == 200

    @staticmethod
    def path(pod):
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    def play(self):
        while not self.stopping.wait(0.3):
            nodes = {n["metadata"]["name"] for n in self.server.call("GET", "/api/v1/nodes")[1].get("items", [])}
            for name in nodes:
                self.server.call("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}",
                                 {"spec": {"renewTime": now(True)}}, MERGE)
            for pod in self.server.call("GET", "/api/v1/pods")[1].get("items", []):
                if pod["spec"].get("nodeName") not in nodes:
                    continue
                if "deletionTimestamp" in pod["metadata"]:
                    self.server.call("DELETE", self.path(pod), {"gracePeriodSeconds": 0})
                elif pod["status"].get("phase") == "Pending":
                    self.run(pod)

    def run(self, pod):
        self.addresses += 1
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": now()}
                      for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")]
        states = [{"name": c["name"], "ready": True, "started": True, "restartCount": 0, "image": c["image"], "imageID": "x",
                   "state": {"running": {"startedAt": now()}}} for c in pod["spec"]["containers"]]
        self.server.call("PATCH", self.path(pod) + "/status", {"status": {
            "phase": "Running", "podIP": f"10.200.{self.addresses // 250}.{self.addresses % 250 + 1}", "startTime": now(),
            "containerStatuses": states, "conditions": conditions}}, STRATEGIC)


def wait_for(what, condition):
    """Waits until condition() is true; returns how long that took."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > PATIENCE:
            raise AssertionError("this did not happen: " + what)
        time.sleep(0.2)
    return time.monotonic() - begin


@contextlib.contextmanager
def step(name):
    begin = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)


def as_pods(documents):
    """Each pod template as a pod of its own: of a StatefulSet's the server looks at little before it makes pods."""
    for workload in manifests.workloads(documents):
        pod = json.loads(json.dumps(manifests.pod_of(workload)))
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            pod["volumes"].append({"name": claim["metadata"]["name"], "emptyDir": {}})
        pod.pop("priorityClassName", None)
        yield {"apiVersion": "v1", "kind": "Pod", "spec": pod, "metadata": {
            "name": "tried-" + workload["metadata"]["name"], "namespace": workload["metadata"]["namespace"],
            "labels": manifests.labels_of(workload)}}


def drill(server, nodes):
    renderer = manifests.renderer()
    rendered = {t: for_old_server(manifests.render(renderer, t)) for t in manifests.TARGETS}

    def ready(component, namespace="troop"):
        return [p for p in server.pods(namespace).values() if component_of(p) == component and is_ready(p)]

    def places(component):
        return sorted(p["spec"]["nodeName"].rsplit("-", 1)[0] for p in ready(component))

    with step("the server takes all that is rendered"):
        for target, documents in rendered.items():
            server.kubectl("apply", "-f", "-", documents=[d for d in documents if d["kind"] in (
                "Namespace", "ServiceAccount", "PriorityClass")])
            server.kubectl("apply", "--dry-run=server", "-f", "-", documents=documents)
            server.kubectl("apply", "--dry-run=server", "-f", "-", documents=as_pods(documents))
    with step("it refuses what is wrong"):
        documents = json.loads(json.dumps(rendered["overlays/local"]))
        manifests.find(documents, "PodDisruptionBudget/actor")["spec"]["maxUnavailable"] = "half"
        try:
            server.kubectl("apply", "--dry-run=server", "-f", "-", documents=documents)
        except AssertionError as error:
            assert "maxUnavailable" in str(error), error
        else:
            raise AssertionError("half was taken for a number")

    server.kubectl("apply", "-f", "-", documents=list(yaml.safe_load_all(STORAGE)))
    for kind, count in (("system", 1), ("gpu", 1), ("gpu-spot", 1), ("replay", 2), ("spot", 8)):
        for number in range(count):
            nodes.add(kind, number, f"us-central1-{'ab'[number % 2]}" if kind == "spot" else "us-central1-a")
    with step("head, shards and 7 pods of actors run where they should"):
        server.kubectl("apply", "-f", "-", documents=rendered["overlays/gke-shards"] + manifests.secrets())
        wait_for("all pods run", lambda: (len(ready("head")), len(ready("replay")), len(ready("actor"))) == (1, 2, 7))
    assert places("head") == ["gpu"] and places("replay") == ["replay"] * 2 and places("actor") == ["spot"] * 7, \
        [places(c) for c in ("head", "replay", "actor")]
    endpoints = server.call("GET", "/api/v1/namespaces/troop/endpoints/head")[1]["subsets"]
    assert endpoints[0]["addresses"][0]["hostname"] == "head-0", endpoints

    with step("a spot node is taken: 7 pods again, on the others"):
        victim = ready("actor")[0]
        nodes.take(victim["spec"]["nodeName"])
        wait_for("the pod is made anew", lambda: len(ready("actor")) == 7)
    assert victim["metadata"]["name"] not in server.pods()
    with step("another one: there is no room, and that pod waits, as the autoscaler wants it"):
        nodes.take(ready("actor")[0]["spec"]["nodeName"])
        wait_for("one waits", lambda: any("Insufficient cpu" in e for p in server.pods().values()
                                          if component_of(p) == "actor" and not is_ready(p)
                                          for e in server.events(p["metadata"]["name"])))
        assert len(ready("actor")) == 6
    with step("a new spot node, and it runs"):
        nodes.add("spot", 8, "us-central1-b")
        wait_for("it runs", lambda: len(ready("actor")) == 7)
    with step("the head's node is taken; the spot GPU that is free is none for it"):
        claim = server.call("GET", "/api/v1/namespaces/troop/persistentvolumeclaims/run-head-0")[1]["metadata"]["uid"]
        nodes.take("gpu-0")
        wait_for("the head waits", lambda: any("untolerated" in e or "didn't" in e or "had taint" in e
                                               for e in server.events("head-0")) and not ready("head"))
    with step("a new GPU node: the head is there by its old name, with its old volume"):
        nodes.add("gpu", 1, "us-central1-a")
        wait_for("the head runs", lambda: places("head") == ["gpu"])
    assert claim == server.call("GET", "/api/v1/namespaces/troop/persistentvolumeclaims/run-head-0")[1]["metadata"]["uid"]

    def evict(pod):
        return server.call("POST", f"/api/v1/namespaces/troop/pods/{pod}/eviction", {
            "apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "troop"}})[0]
    with step("a drain may take actors, and not the head"):
        wait_for("the budgets are known", lambda: all(
            server.call("GET", f"/apis/policy/v1beta1/namespaces/troop/poddisruptionbudgets/{name}")[1]
            .get("status", {}).get("expectedPods") == count for name, count in (("head", 1), ("actor", 7))))
        assert evict("head-0") == 429
        assert evict(ready("actor")[0]["metadata"]["name"]) == 201
        wait_for("7 actors again", lambda: len(ready("actor")) == 7)
    with step("a new image is rolled out, with at most a quarter of the actors away"):
        server.kubectl("-n", "troop", "set", "image", "deployment/actor", "troop=localhost/troop-actor:next")
        fewest = 7

        def renewed():
            nonlocal fewest
            pods = ready("actor")
            fewest = min(fewest, len(pods))
            return len([p for p in pods if p["spec"]["containers"][0]["image"].endswith(":next")]) == 7
        wait_for("all have it", renewed)
        assert fewest >= 5, fewest
    with step("a quota of one GPU lets no second head in"):
        server.kubectl("apply", "-f", "-", documents=[{
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "troop"},
            "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}])
        wait_for("the quota is known", lambda: server.call("GET", "/api/v1/namespaces/troop/resourcequotas/gpus")[1]
                 .get("status", {}).get("used", {}).get("requests.nvidia.com/gpu") == "1")
        server.kubectl("-n", "troop", "scale", "statefulset/head", "--replicas=2")
        wait_for("it is refused", lambda: any("exceeded quota" in e for e in server.events("head")))
        server.kubectl("-n", "troop", "scale", "statefulset/head", "--replicas=1")
    with step("the batch job runs on the spot GPU, and again when that is taken"):
        server.kubectl("apply", "-f", "-", documents=rendered["batch"])
        wait_for("it runs", lambda: [p["spec"]["nodeName"] for p in ready("batch", "troop-batch")] == ["gpu-spot-0"])
        nodes.take("gpu-spot-0")
        nodes.add("gpu-spot", 1, "us-central1-a")
        wait_for("it runs again", lambda: [p["spec"]["nodeName"] for p in ready("batch", "troop-batch")] == ["gpu-spot-1"])
    with step("all is removed"):
        server.kubectl("delete", "namespace", "troop", "troop-batch")


def main():
    if manifests.renderer() is None:
        sys.exit("there is no kubectl that renders components")
    script = os.path.join(HERE, "control_plane.sh")
    begin = time.monotonic()
    done = subprocess.run([script, "start"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    print(f"control plane: {time.monotonic() - begin:.1f} s", flush=True)
    try:
        server = Server(done.stdout.strip())
        nodes = Nodes(server)
        try:
            drill(server, nodes)
        finally:
            nodes.close()
    finally:
        subprocess.run([script, "stop"], check=True)
    print("OK")


if __name__ == "__main__":
    main()
