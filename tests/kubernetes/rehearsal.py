#!/usr/bin/env python3
"""rehearsal.py PROGRAM: the manifests of examples/kubernetes without Kubernetes. Each pod is a network namespace, a
process 1 and a read-only root of its own, runs the very command of the rendered manifest as its user, and finds the
head by name. Pods are preempted, head and shards are killed, and the times until all is well again are measured. Needs
root, `ip`, `unshare` and a kubectl that renders.

--target says which manifests; --minutes for how long a pod a minute is preempted, with 15 s of notice, and the head
twice killed without any, a shard once; without it a pod is preempted once and the head killed twice, the second time
with a name service that does not answer. Each head goes on from where the one before was. At the end CartPole must
be solved."""

import argparse
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import manifests
except ImportError as missing:
    print(f"not tried: {missing} (Debian package python3-yaml)")
    sys.exit(0)

PATIENCE = 180.0  # seconds until something that must happen counts as not happening
NAME = f"troop{os.getpid()}"
ENTRYPOINT = "/usr/local/bin/apex"  # of the image
# Where nothing answers: a neighbour that is not there.
SILENCE = "10.77.255.254"
RESUMED = r"resumed /var/lib/troop/run: learner step (\d+), (\d+) items in the replay"
LEARNED = r"  return (47[5-9]|4[89]\d|500)\."


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def obstacle():
    """Why this cannot be tried here; empty if it can."""
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("chroot", "coreutils"), ("pgrep", "procps"),
                          ("openssl", "openssl")):
        if shutil.which(tool) is None:
            return f"there is no {tool} (Debian package {package})"
    try:
        run("ip", "netns", "add", NAME)
        try:
            run("ip", "-n", NAME, "link", "add", "bridge", "type", "bridge")
            run("unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", "--userspec=65532:65532", "/", "true")
        finally:
            run("ip", "netns", "del", NAME)
    except subprocess.CalledProcessError as error:
        return "namespaces cannot be made here: " + error.stderr.strip()
    if manifests.renderer() is None:
        return "there is no kubectl and no kustomize that renders components"
    return ""


class Pod:
    """A life of a pod, from its start to its end, with an address of its own."""

    def __init__(self, cluster, name, workload):
        self.cluster, self.name = cluster, name
        cluster.lives += 1
        self.address = f"10.77.{cluster.lives // 250}.{cluster.lives % 250 + 1}"
        self.namespace = f"{NAME}p{cluster.lives}"
        self.root = os.path.join(cluster.folder, f"{name}.{cluster.lives}")
        self.lines, self.ended = [], False
        pod, container = manifests.pod_of(workload), manifests.program_of(workload)
        user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
        self.grace = pod["terminationGracePeriodSeconds"]
        mounts = self.fill(workload, pod, container, group)

        run("ip", "netns", "add", self.namespace)
        port = f"port{cluster.lives}"
        run("ip", "-n", NAME, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "-n", NAME, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", self.namespace, "link", "set", "lo", "up")
        run("ip", "-n", self.namespace, "addr", "add", f"{self.address}/16", "dev", "eth0")
        run("ip", "-n", self.namespace, "link", "set", "eth0", "up")
        run("ip", "-n", self.namespace, "neigh", "add", SILENCE, "lladdr", "02:00:00:00:00:01", "dev", "eth0")

        environment = {"HOSTNAME": name, **manifests.environment_of(container), **cluster.overrides}
        script = ['set -e', f'mount --bind "{self.root}" "{self.root}"',
                  f'mount --rbind /usr/lib "{self.root}/usr/lib"', f'mount -t proc proc "{self.root}/proc"',
                  f'mount --rbind /dev "{self.root}/dev"', f'mount -o remount,bind,ro "{self.root}"']
        script += [f'mount --bind "{source}" "{self.root}{target}"' for source, target in mounts]
        script += [f'exec env -i {shlex.join(f"{k}={v}" for k, v in environment.items())} {shutil.which("chroot")} '
                   f'--userspec={user}:{group} --groups={group} "{self.root}" {ENTRYPOINT} "$@"']
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--pid", "--fork", "--kill-child",
             "--propagation=private", "sh", "-c", "\n".join(script), "sh", *container["args"]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.reading = threading.Thread(target=self.read)
        self.reading.start()

    def fill(self, workload, pod, container, group):
        """Makes the root; returns what is mounted into it and stays writable."""
        for path in ("usr/lib", "usr/local/bin", "proc", "dev", "etc", "tmp"):
            os.makedirs(os.path.join(self.root, path))
        for path in ("lib", "lib64", "bin"):
            if os.path.islink("/" + path):
                os.symlink(os.readlink("/" + path), os.path.join(self.root, path))
        if os.path.isdir("/usr/lib64"):
            os.symlink("lib", os.path.join(self.root, "usr/lib64")) if not os.listdir("/usr/lib64") else \
                shutil.copytree("/usr/lib64", os.path.join(self.root, "usr/lib64"))
        shutil.copy(self.cluster.program, self.root + ENTRYPOINT)
        self.write_hosts()
        options = ["ndots:5", *(f"{o['name']}:{o['value']}" for o in pod.get("dnsConfig", {}).get("options", []))]
        self.write("etc/resolv.conf", f"nameserver {SILENCE}\nsearch troop.svc.cluster.local svc.cluster.local "
                                      f"cluster.local\noptions {' '.join(options)}\n")
        self.write_sources()
        volumes = {v["name"]: v for v in pod["volumes"]}
        mounts = []
        for mount in container["volumeMounts"]:
            target = self.root + mount["mountPath"]
            os.makedirs(target)
            volume = volumes.get(mount["name"])
            if volume is None:  # a claim: it outlives the pod
                source = self.claim()
                os.makedirs(source, exist_ok=True)
                shutil.chown(source, group, group)
                mounts.append((source, mount["mountPath"]))
                continue
            kind, field = ("ConfigMap", "name") if "configMap" in volume else ("Secret", "secretName")
            entry = volume["configMap" if kind == "ConfigMap" else "secret"]
            document = manifests.find(self.cluster.documents, f"{kind}/{entry[field]}")
            for name, text in (document.get("data") or document["stringData"]).items():
                path = os.path.join(target, name)
                with open(path, "w") as file:
                    file.write(text)
                os.chmod(path, entry.get("defaultMode", 0o644))
                os.chown(path, 0, group)
        return mounts

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w") as file:
            file.write(text)

    def write_hosts(self):
        """As the cluster's name service would answer it."""
        self.write("etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in self.cluster.names.items()))

    def write_sources(self):
        """Names that are not known are denied, or get no answer."""
        self.write("etc/nsswitch.conf", "hosts: files dns\n" if self.cluster.is_silent else "hosts: files\n")

    def read(self):
        with open(os.path.join(self.cluster.logs, os.path.basename(self.root)), "w") as log:
            for line in self.process.stdout:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                log.write(f"{time.monotonic() - self.cluster.begin:7.2f} {line}")
                log.flush()

    def wait_for(self, pattern, after=0.0):
        """When the first line with `pattern` later than `after` came."""
        return self.find(pattern, after)[0]

    def find(self, pattern, after=0.0):
        """The same, and the match."""
        end = time.monotonic() + PATIENCE
        seen = 0
        while True:
            lines = self.lines[seen:]
            seen += len(lines)
            for moment, line in lines:
                match = re.search(pattern, line)
                if moment > after and match:
                    return moment, match
            if time.monotonic() > end or (self.process.poll() is not None and not self.reading.is_alive()
                                          and len(self.lines) == seen):
                raise AssertionError(f"{self.name} did not say {pattern!r}:\n" +
                                     "\n".join(line for _, line in self.lines[-20:]))
            time.sleep(0.01)

    def inner(self):
        """The process that is number 1 in the pod."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        return int(found[0]) if found else None

    def claim(self):
        """The folder that outlives the pod."""
        return os.path.join(self.cluster.folder, f"claim.run.{self.name}")

    def memory(self):
        """Bytes that process 1 has in memory."""
        with open(f"/proc/{self.inner()}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) * 1024

    def cpu_seconds(self):
        with open(f"/proc/{self.inner()}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, notice):
        """As kubelet ends it: SIGTERM, and SIGKILL after the grace period; or SIGKILL at once. Returns how long it
        took, and its exit code."""
        begin = time.monotonic()
        number = self.inner()
        if number is not None:
            os.kill(number, signal.SIGTERM if notice else signal.SIGKILL)
        try:
            self.process.wait(self.grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        seconds = time.monotonic() - begin
        self.reading.join()
        run("ip", "netns", "del", self.namespace)
        self.ended = True
        return seconds, self.process.returncode


class Cluster:
    def __init__(self, program, target, folder, logs, replicas=None):
        self.program, self.folder, self.logs = program, folder, logs
        self.overrides = {"TROOP_DEVICE": "cpu"}  # whatever the head's node has
        self.documents = manifests.render(manifests.renderer(), target) + manifests.secrets()
        self.head_workload = manifests.find(self.documents, "StatefulSet/head")
        self.actor_workload = manifests.find(self.documents, "Deployment/actor")
        self.shard_workload = next((d for d in self.documents if manifests.name_of(d) == "StatefulSet/replay"), None)
        if replicas:
            actor = manifests.arguments_of(manifests.program_of(self.actor_workload))
            planned = replicas * int(actor["num-actors"]) * int(actor["environments-per-actor"])
            self.overrides["TROOP_PLANNED_ENVIRONMENTS"] = str(planned)
            self.actor_workload["spec"]["replicas"] = replicas
        self.names, self.lives, self.begin = {}, 0, time.monotonic()
        self.head, self.actors, self.shards, self.is_silent = None, {}, {}, False
        run("ip", "netns", "add", NAME)
        run("ip", "-n", NAME, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", NAME, "link", "set", "bridge", "up")

    def change_recipe(self, old, new):
        data = next(d["data"] for d in self.documents if d["kind"] == "ConfigMap" and "recipe.conf" in d["data"])
        assert old in data["recipe.conf"]
        data["recipe.conf"] = data["recipe.conf"].replace(old, new)

    def close(self):
        for pod in [p for p in (self.head, *self.actors.values(), *self.shards.values()) if p is not None]:
            if not pod.ended:
                pod.end(notice=False)
        run("ip", "netns", "del", NAME)

    def start_head(self):
        self.head = Pod(self, "head-0", self.head_workload)
        self.publish(**{"head-0.head": self.head.address})
        return self.head

    def start_shards(self):
        for number in range(self.shard_workload["spec"]["replicas"] if self.shard_workload else 0):
            self.start_shard(number)

    def start_shard(self, number):
        pod = self.shards[number] = Pod(self, f"replay-{number}", self.shard_workload)
        self.publish(**{f"replay-{number}.replay": pod.address})
        return pod

    def kill_head(self):
        self.head.end(notice=False)
        self.withdraw("head-0.head")  # as soon as the pod is gone

    def kill_shard(self, number):
        self.shards[number].end(notice=False)
        self.withdraw(f"replay-{number}.replay")

    def withdraw(self, name):
        del self.names[name]
        self.publish()

    def answer_names(self, answers):
        """Whether the name service denies names that it does not know; else it says nothing."""
        self.is_silent = not answers
        for actor in self.actors.values():
            actor.write_sources()

    def publish(self, **names):
        self.names.update(names)
        for pod in (*self.actors.values(), *self.shards.values(), *([self.head] if self.head else [])):
            pod.write_hosts()

    def start_actor(self, number):
        self.actors[number] = Pod(self, f"actor-{number}", self.actor_workload)
        return self.actors[number]

    def say(self, text):
        print(f"{time.monotonic() - self.begin:7.1f}s  {text}", flush=True)


def wait_for_checkpoint(head):
    folder = os.path.join(head.claim(), "run", "checkpoints")
    begin = time.monotonic()
    before = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    while not os.path.isdir(folder) or not set(os.listdir(folder)) - before:
        assert time.monotonic() - begin < PATIENCE, "the head keeps no checkpoint"
        time.sleep(0.1)


LEARNS = r"  [1-9][0-9.]*[kM]? updates/s  "


def rehearse(cluster, minutes, solved, seed, pause, silent):
    """The whole play; returns what was measured."""
    draw = random.Random(seed)
    cluster.start_shards()
    head = cluster.start_head()
    count = cluster.actor_workload["spec"]["replicas"]
    for number in range(count):
        cluster.start_actor(number)
    for actor in cluster.actors.values():
        actor.wait_for("leased environments")
    all_here = max(a.wait_for("leased environments") for a in cluster.actors.values())
    cluster.say(f"{count} pods have their places {all_here - head.started:.1f} s after the head's start")
    cluster.say(f"the head learns {head.wait_for(LEARNS) - head.started:.1f} s after its start")

    measured = {"notice to end of an actor pod": [], "start of an actor pod to its places": [],
                "processors of an actor pod without a head": [], "kill of the head to its next start": [],
                "start of the head to its first learner steps": [], "start of the head until all pods are back": []}

    def preempt():
        number = draw.choice(sorted(cluster.actors))
        seconds, code = cluster.actors[number].end(notice=True)
        assert code == 128 + signal.SIGTERM, f"actor-{number} ended with {code}"
        measured["notice to end of an actor pod"].append(seconds)
        pod = cluster.start_actor(number)
        back = pod.wait_for("leased environments") - pod.started
        measured["start of an actor pod to its places"].append(back)
        cluster.say(f"actor-{number} preempted: it ended {seconds:.1f} s after the notice; the next one had its places "
                    f"{back:.1f} s after its start")

    resumed_step = 0

    def kill_head(silent):
        nonlocal resumed_step
        wait_for_checkpoint(cluster.head)
        cluster.answer_names(not silent)
        killed = time.monotonic()
        cluster.kill_head()
        time.sleep(pause / 2)  # until there is no more room for what they do
        used, since = [a.cpu_seconds() for a in cluster.actors.values()], time.monotonic()
        time.sleep(pause / 2)
        processors = [(a.cpu_seconds() - u) / (time.monotonic() - since) for a, u in zip(cluster.actors.values(), used)]
        measured["processors of an actor pod without a head"].append(max(processors))
        head = cluster.start_head()
        match = head.find(RESUMED)[1]
        step, items = int(match[1]), int(match[2])
        assert step > resumed_step, f"the head went on from step {step}, the one before it from step {resumed_step}"
        assert items > 0 or cluster.shards, "the replay is empty"
        resumed_step = step
        measured["kill of the head to its next start"].append(head.started - killed)
        learns = head.wait_for(LEARNS) - head.started
        back = max(a.wait_for("connected to .* after", killed) for a in cluster.actors.values()) - head.started
        measured["start of the head to its first learner steps"].append(learns)
        measured["start of the head until all pods are back"].append(back)
        cluster.say(f"head killed, back with another address at step {step} and with {items} items: all pods there "
                    f"{back:.1f} s after its start, learner steps after {learns:.1f} s")
        cluster.answer_names(True)

    def kill_shard():
        cluster.kill_shard(0)
        pod = cluster.start_shard(0)
        moment, match = pod.find(RESUMED)
        assert int(match[2]) > 0, "the shard is empty"
        measured.setdefault("start of a shard to having its items", []).append(moment - pod.started)
        cluster.say(f"{pod.name} killed: {match[2]} items again {moment - pod.started:.1f} s after its start")

    if minutes == 0:
        preempt()
        kill_head(silent)
        kill_head(silent=True)
    else:
        end = time.monotonic() + 60 * minutes
        todo = [(0.35, lambda: kill_head(silent)), (0.7, lambda: kill_head(silent))]
        if cluster.shards:
            todo.insert(1, (0.5, kill_shard))
        todo = [(end - 60 * minutes * (1 - part), what) for part, what in todo]
        while time.monotonic() < end:
            minute = time.monotonic() + 60
            preempt()
            if todo and time.monotonic() > todo[0][0]:
                todo.pop(0)[1]()
            time.sleep(max(0.0, min(minute, end) - time.monotonic()))
        for _, what in todo:  # what there was no time for
            what()
    if solved:
        moment = cluster.head.wait_for(LEARNED, cluster.head.started)
        cluster.say(f"CartPole is solved {moment - cluster.head.started:.1f} s after the head's last start")
    processor = cluster.head.cpu_seconds() / (time.monotonic() - cluster.head.started)
    cluster.say(f"processors: head {processor:.2f}; memory: head {cluster.head.memory() / 2**20:.0f} MiB, an actor pod at most "
                f"{max(a.memory() for a in cluster.actors.values()) / 2**20:.0f} MiB" +
                "".join(f", {s.name} {s.memory() / 2**20:.0f} MiB" for s in cluster.shards.values()))
    for pod in (cluster.head, *cluster.actors.values(), *cluster.shards.values()):
        seconds, code = pod.end(notice=True)
        assert code == 128 + signal.SIGTERM, f"{pod.name} ended with {code}"
        assert seconds < pod.grace, f"{pod.name} took {seconds:.1f} s to end"
    return measured


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--target", default="overlays/local")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--no-solve", action="store_true")
    parser.add_argument("--replicas", type=int, help="pods of actors, instead of those of the manifest")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds until the killed head's successor starts")
    parser.add_argument("--silent", action="store_true", help="meanwhile the name service does not answer")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--logs", help="folder for what the pods said")
    given = parser.parse_args()
    reason = obstacle()
    if reason:
        print("not tried: " + reason)
        return 0
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder:
        logs = given.logs or os.path.join(folder, "logs")
        os.makedirs(logs, exist_ok=True)
        cluster = Cluster(os.path.abspath(given.program), given.target, folder, logs, given.replicas)
        if given.minutes == 0:
            cluster.change_recipe("checkpoint-every = 1\n", "checkpoint-every = 0.05\n")
        try:
            measured = rehearse(cluster, given.minutes, not given.no_solve, given.seed, given.pause,
                                given.silent)
        finally:
            cluster.close()
    for what, seconds in measured.items():
        if seconds:
            print(f"{what}: median {statistics.median(seconds):.2f}, most {max(seconds):.2f}, of {len(seconds)}")
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
