#!/usr/bin/env python3
"""containers.py: builds the images of examples/kubernetes with buildah from a base that debootstrap makes, and plays the
overlay `local` with podman: each pod as its user, without privileges, with a read-only root. Head and actors are killed
and stopped, and come back. Needs root, a Debian with the packages below, and the packages' mirror. TROOP_LAB is the folder
for base and images, which are kept for the next time."""

import argparse
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import yaml

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import manifests  # noqa: E402

LAB = os.environ.get("TROOP_LAB") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "troop-lab")
PACKAGES = {"podman": "podman", "buildah": "buildah", "runc": "runc", "debootstrap": "debootstrap", "jq": "jq",
            "dnsmasq": "dnsmasq-base"}
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PATIENCE = 120.0  # seconds until something that must happen counts as not happening
LEARNS = r"  [1-9][0-9.]*[kM]? updates/s  "
RESUMED = r"resumed /var/lib/troop/run: learner step (\d+), (\d+) items in the replay"

# Some machines have no CAP_SYS_RESOURCE, no systemd and control groups of both versions: runc without rlimits works
# there and everywhere else.
RUNC = """#!/bin/bash
bundle= process= previous=
for word in "$@"; do
  case "$previous" in --bundle | -b) bundle=$word ;; --process | -p) process=$word ;; esac
  case "$word" in --bundle=*) bundle=${word#*=} ;; --process=*) process=${word#*=} ;; esac
  previous=$word
done
without() { jq "$2" "$1" >"$1.new" && cat "$1.new" >"$1" && rm "$1.new"; }
[ ! -f "$bundle/config.json" ] || without "$bundle/config.json" 'del(.process.rlimits)'
[ ! -f "$process" ] || without "$process" 'del(.rlimits)'
exec runc "$@"
"""


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)} ended with {done.returncode}:\n" + (done.stdout + done.stderr)[-3000:])
    return done.stdout.strip()


def prepare():
    """Settings for podman and buildah that touch nothing of the system's own."""
    missing = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    if missing:
        sys.exit("not tried: missing are the Debian packages " + " ".join(missing))
    folder = os.path.join(LAB, "containers")
    os.makedirs(folder, exist_ok=True)
    wrapper = os.path.join(folder, "runc-without-limits")
    with open(wrapper, "w") as file:
        file.write(RUNC)
    os.chmod(wrapper, 0o755)
    for name, text in (("containers.conf", f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
                                           f'runtime = "unlimited"\n[engine.runtimes]\nunlimited = ["{wrapper}"]\n'),
                       ("storage.conf", f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\n'
                                        f'runroot = "{folder}/run"\n')):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    os.environ["CONTAINERS_CONF"] = os.path.join(folder, "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = os.path.join(folder, "storage.conf")


def has_image(name):
    return subprocess.run(["buildah", "inspect", "--type", "image", name], capture_output=True).returncode == 0


def build_base():
    if has_image("localhost/troop-base:12"):
        return
    root, archive = os.path.join(LAB, "base", "rootfs"), os.path.join(LAB, "base", "rootfs.tar")
    if not os.path.exists(archive):
        if not os.path.exists(os.path.join(root, "etc/debian_version")):
            run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", root)
        run("tar", "--numeric-owner", "--exclude=./var/cache/apt/archives/*.deb", "-C", root, "-cf", archive + ".new", ".")
        os.rename(archive + ".new", archive)
    run("buildah", "bud", "--isolation", "chroot", "-t", "localhost/troop-base:12", "-f", "-", os.path.dirname(archive),
        input="FROM scratch\nADD rootfs.tar /\n")


def build(target, *arguments):
    """The image localhost/troop-TARGET:dev; returns its bytes and the seconds that it took."""
    begin = time.monotonic()
    name = f"localhost/troop-{target}:dev"
    run("buildah", "bud", "--isolation", "chroot", "--layers", "--format", "docker", "--target", target, "-t", name,
        "--build-arg", "BASE=localhost/troop-base:12", *arguments,
        "-v", f"{CERTIFICATES}:{CERTIFICATES}:ro",  # whom this machine trusts, pip shall trust
        "-f", os.path.join(manifests.FOLDER, "Dockerfile"), manifests.ROOT)
    size = json.loads(run("podman", "image", "inspect", name))[0]["Size"]
    print(f"image {target}: {size / 1e6:.0f} MB, {time.monotonic() - begin:.0f} s", flush=True)


class Play:
    """The overlay `local` in podman. What podman does not know is put in its place: a StatefulSet becomes its pod, the
    name of its Service an alias, its claim a volume that belongs to the pod's group."""

    NETWORK = "troop-play"

    def __init__(self):
        self.documents, self.made = manifests.render(manifests.renderer(), "overlays/local"), manifests.secrets()
        self.close()
        run("podman", "network", "create", self.NETWORK)
        self.secrets = tempfile.TemporaryDirectory()
        self.head = self.container("head-0", manifests.find(self.documents, "StatefulSet/head"), "head-0.head")
        actors = manifests.find(self.documents, "Deployment/actor")
        self.actors = [self.container(f"actor-{i}", actors) for i in range(actors["spec"]["replicas"])]

    def close(self):
        pods = run("podman", "pod", "ps", "--filter", f"network={self.NETWORK}", "-q").split()
        if pods:
            run("podman", "pod", "rm", "-f", "-t", "1", *pods)
        for kind, ours in (("network", self.NETWORK), ("volume", "run-head-0")):
            if ours in run("podman", kind, "ls", "--format", "{{.Name}}").split():
                run("podman", kind, "rm", ours)

    def write_secret(self, volume, group):
        """A folder with what secrets.sh makes, with the owners and modes that kubelet gives to it, but podman does not."""
        folder = os.path.join(self.secrets.name, volume["secretName"])
        if not os.path.isdir(folder):
            os.makedirs(folder)
            secret = manifests.find(self.made, f"Secret/{volume['secretName']}")
            for name, text in secret["stringData"].items():
                path = os.path.join(folder, name)
                with open(path, "w") as file:
                    file.write(text)
                os.chmod(path, volume["defaultMode"])
                os.chown(path, 0, group)
            os.chmod(self.secrets.name, 0o755)
        return folder

    def container(self, name, workload, alias=None):
        """Plays one pod; returns the name of its container with our program."""
        pod = copy.deepcopy(manifests.pod_of(workload))
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            volume = f"{claim['metadata']['name']}-{name}"
            group = pod["securityContext"]["fsGroup"]
            run("podman", "volume", "create", "--opt", f"o=uid={group},gid={group}", volume)
            pod["volumes"].append({"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": volume}})
        for volume in pod["volumes"]:
            if "secret" in volume:
                volume["hostPath"] = {"path": self.write_secret(volume.pop("secret"), pod["securityContext"]["fsGroup"])}
        # The probes are tried in their own way, below; who is evicted first and what is spread over zones means nothing here.
        for container in pod["containers"]:
            container.pop("ports", None)  # podman would open them on this machine
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                container.pop(probe, None)
            container["securityContext"].update({k: pod["securityContext"][k] for k in ("runAsUser", "runAsGroup")})
        for field in ("priorityClassName", "serviceAccountName", "topologySpreadConstraints"):
            pod.pop(field, None)
        pod["restartPolicy"] = "Never"  # the drill says when
        played = [d for d in self.documents if d["kind"] == "ConfigMap"]
        played.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod})
        # The network of a pod goes when its last container has ended, as in a cluster.
        network = self.NETWORK + (f":alias={alias}" if alias else "")
        run("podman", "play", "kube", "--network", network, "-", input=yaml.safe_dump_all(played))
        return f"{name}-troop"

    def start(self, container):
        """The next life of a pod whose program has ended, with another address."""
        pod = container.removesuffix("-troop")
        run("podman", "pod", "stop", "-t", "5", pod)  # those beside it
        begin = time.monotonic()
        while run("podman", "pod", "inspect", "--format", "{{.State}}", pod) != "Exited":
            assert time.monotonic() - begin < PATIENCE, f"pod {pod} does not end"
            time.sleep(0.05)
        run("podman", "pod", "start", pod)


def logs(container):
    done = subprocess.run(["podman", "logs", container], capture_output=True, text=True)
    return done.stdout + done.stderr


def wait_for(container, pattern, count=1):
    """Waits until `count` lines of the container have `pattern`; returns how long that took."""
    begin = time.monotonic()
    while len(re.findall(pattern, logs(container))) < count:
        if time.monotonic() - begin > PATIENCE:
            raise AssertionError(f"{container} did not say {pattern!r} {count} times:\n" + logs(container)[-2000:])
        time.sleep(0.1)
    return time.monotonic() - begin


def said(container, pattern):
    return len(re.findall(pattern, logs(container)))


def state(container, field):
    return run("podman", "inspect", "--format", "{{.State." + field + "}}", container)


def check_restricted(container, workload):
    """What the kernel says of process 1."""
    pid = state(container, "Pid")
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    user = str(manifests.pod_of(workload)["securityContext"]["runAsUser"])
    assert status["Uid"].split() == [user] * 4, status["Uid"]
    assert int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0, status["CapEff"]
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status
    with open(f"/proc/{pid}/mounts") as file:
        root = next(line.split() for line in file if line.split()[1] == "/")
    assert "ro" in root[3].split(","), root
    memory = run("podman", "inspect", "--format", "{{.HostConfig.Memory}}", container)
    limit = manifests.program_of(workload)["resources"]["limits"]["memory"]
    assert int(memory) == manifests.bytes_of(limit), (memory, limit)


def end(container, signal_name, code):
    begin = time.monotonic()
    run("podman", "kill", "-s", signal_name, container)
    while state(container, "Status") not in ("exited", "stopped"):
        assert time.monotonic() - begin < PATIENCE, f"{container} goes on after SIG{signal_name}"
        time.sleep(0.02)
    assert state(container, "ExitCode") == str(code), f"{container} ended with {state(container, 'ExitCode')}"
    return time.monotonic() - begin


def wait_for_tensorboard(container):
    """Waits until it shows scalars of the learner."""
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:6006/data/plugin/scalars/tags').read().decode())"
    begin = time.monotonic()
    while True:
        done = subprocess.run(["podman", "exec", container, "/opt/tensorboard/bin/python", "-c", script],
                              capture_output=True, text=True)
        if "learner/" in done.stdout:
            return
        assert time.monotonic() - begin < PATIENCE, done.stdout + done.stderr + logs(container)
        time.sleep(1)


def drill(play):
    head, (actor, *_) = play.head, play.actors
    for container in play.actors:
        wait_for(container, "leased environments")
    wait_for(head, LEARNS)
    print("transitions flow, and the head learns", flush=True)
    wait_for_tensorboard(play.head.replace("troop", "tensorboard"))
    shown = run("podman", "exec", head, "troop", "status", "127.0.0.1:8080", "--token-file", "/etc/troop-token/token")
    print("TensorBoard shows the run; troop status says:\n  " + shown.replace("\n", "\n  "), flush=True)
    check_restricted(head, manifests.find(play.documents, "StatefulSet/head"))
    check_restricted(actor, manifests.find(play.documents, "Deployment/actor"))
    print("head and actors have their user, no privileges, and a root that they cannot write to", flush=True)

    for signal_name, code in (("KILL", 137), ("TERM", 143)):
        before = said(actor, "leased environments")
        seconds = end(actor, signal_name, code)
        play.start(actor)
        back = wait_for(actor, "leased environments", before + 1)
        print(f"actor, SIG{signal_name}: ended in {seconds:.1f} s, has its places {back:.1f} s after its start", flush=True)
    for signal_name, code in (("KILL", 137), ("TERM", 143)):
        before = [said(a, "connected to .* after") for a in play.actors]
        learnt, resumed = said(head, LEARNS), said(head, RESUMED)
        seconds = end(head, signal_name, code)
        play.start(head)
        begin = time.monotonic()
        for container, count in zip(play.actors, before):
            wait_for(container, "connected to .* after", count + 1)
        back = time.monotonic() - begin
        wait_for(head, LEARNS, learnt + 1)
        step, items = re.findall(RESUMED, logs(head))[-1]
        assert said(head, RESUMED) == resumed + 1 and int(items) > 0, logs(head)[-2000:]
        assert signal_name == "KILL" or int(step) > 0, "SIGTERM left no checkpoint"
        print(f"head, SIG{signal_name}: ended in {seconds:.1f} s; actors back {back:.1f} s after its start, it learns after "
              f"{time.monotonic() - begin:.1f} s, from step {step} with {items} items", flush=True)
    for container in (*play.actors, head):
        end(container, "TERM", 143)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", default="actor,tensorboard,batch", help="to build, with commas between")
    given = parser.parse_args()
    prepare()
    build_base()
    for target in given.images.split(","):
        build(target)
    play = Play()
    try:
        drill(play)
    finally:
        play.close()
    print("OK")


if __name__ == "__main__":
    main()
