"""Renders the manifests of examples/kubernetes, and the rules for them that no schema knows."""

import functools
import os
import re
import shutil
import subprocess
import tempfile

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "examples", "kubernetes")
# Overlays as they are, and with components that no overlay has.
TARGETS = ("overlays/local", "overlays/gke-spot", "overlays/gke-shards", "overlays/gke-large", "batch",
           "overlays/local+monitoring/operator+autoscale/keda", "overlays/local+gpu+tls", "overlays/local+object-store")
# As docs/kubernetes.md asks for with an autoscaler: 20 pods of 16 environments.
PLANNED_FOR_ALL = """
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: head}, spec: {template: {spec: {containers: [
  {name: troop, env: [{name: TROOP_PLANNED_ENVIRONMENTS, value: "320"}]}]}}}}
"""

WORKLOADS = ("Deployment", "StatefulSet", "Job")
CHOICES = {
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "podManagementPolicy": {"OrderedReady", "Parallel"},
    "podReplacementPolicy": {"Failed", "TerminatingOrFailed"},
    "completionMode": {"Indexed", "NonIndexed"},
    "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "protocol": {"TCP", "UDP", "SCTP"},
    "preemptionPolicy": {"Never", "PreemptLowerPriority"},
    "unhealthyPodEvictionPolicy": {"IfHealthyBudget", "AlwaysAllow"},
    "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
}
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|Ki|[MGTPE]i?)?$")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
SPOT_SECONDS = 15  # what a GKE spot node leaves to its pods


def renderer():
    """The command that renders a folder, or None: kubectl or kustomize, new enough for components."""
    for words in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(words[0]) and subprocess.run([*words, os.path.join(FOLDER, TARGETS[0])],
                                                     capture_output=True).returncode == 0:
            return words
    return None


def render(command, target):
    """The documents of one of TARGETS."""
    folder, *components = target.split("+")
    with tempfile.TemporaryDirectory() as made:
        path = os.path.join(FOLDER, folder)
        if components:
            def relative(*names):
                return os.path.relpath(os.path.join(FOLDER, *names), os.path.realpath(made))
            with open(os.path.join(made, "kustomization.yaml"), "w") as file:
                yaml.safe_dump({"resources": [relative(folder)],
                                "components": [relative("components", c) for c in components],
                                "images": [{"name": f"troop-{name}", "newTag": "dev"} for name in ("learner", "batch")],
                                "patches": [{"patch": PLANNED_FOR_ALL}] if "autoscale/keda" in components else []},
                               file)
            path = made
        done = subprocess.run([*command, path], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [d for d in yaml.safe_load_all(done.stdout) if d]


def is_of_kubernetes(document):
    """Whether every cluster knows this kind, without definitions of somebody else's."""
    group = document["apiVersion"].rpartition("/")[0]
    return "." not in group or group.endswith(".k8s.io") and group != "gateway.networking.k8s.io"


def secrets(namespace="troop"):
    """What secrets.sh prints."""
    return list(yaml.safe_load_all(secrets_text(namespace)))


def secrets_text(namespace):
    done = subprocess.run([os.path.join(FOLDER, "secrets.sh"), namespace], capture_output=True, text=True, check=True)
    return done.stdout


@functools.lru_cache
def secret_names():
    return {(d["kind"], d["metadata"]["name"]) for d in secrets()}


def name_of(document):
    return f"{document['kind']}/{document['metadata']['name']}"


def workloads(documents):
    return [d for d in documents if d["kind"] in WORKLOADS]


def find(documents, name):
    return next(d for d in documents if name_of(d) == name)


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def labels_of(workload):
    return workload["spec"]["template"]["metadata"].get("labels", {})


def containers_of(workload):
    pod = pod_of(workload)
    return pod.get("initContainers", []) + pod["containers"]


def program_of(workload):
    """The container with our program."""
    return next(c for c in containers_of(workload) if c["name"] == "troop")


def environment_of(container):
    return {e["name"]: e.get("value", "") for e in container.get("env", [])}


def arguments_of(container):
    """{"role": "actor", ...} of --role=actor and of TROOP_ROLE=actor, of which the first one counts."""
    given = {k[6:].lower().replace("_", "-"): v for k, v in environment_of(container).items()
             if k.startswith("TROOP_")}
    for word in container.get("args", []):
        name, _, value = word.partition("=")
        given[name[2:] if name.startswith("--") else name] = value
    return given


def bytes_of(quantity):
    """Of memory: 256Mi, 8Gi."""
    number, unit = re.match(r"(\d+)([KMG]i)?$", quantity).groups()
    return int(number) * 1024 ** {None: 0, "Ki": 1, "Mi": 2, "Gi": 3}[unit]


def matches(selector, labels):
    """Whether a label selector takes these labels; an empty one takes all."""
    for entry in selector.get("matchExpressions", []):
        has = entry["key"] in labels
        inside = labels.get(entry["key"]) in entry.get("values", [])
        if not {"In": inside, "NotIn": not inside, "Exists": has, "DoesNotExist": not has}[entry["operator"]]:
            return False
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())


def ports_of(workload):
    return {p["name"]: p["containerPort"] for c in containers_of(workload) for p in c.get("ports", [])}


# --- which ways the network policies leave open -----------------------------------------------------------------

def peer_allows(rule, side, labels, namespace_labels, port, protocol, numbers):
    """Whether one ingress (side "from") or egress (side "to") rule takes the peer with these labels. `numbers` are
    the named ports of the pod that listens."""
    ports = rule.get("ports")
    if ports is not None and not any(numbers.get(p["port"], p["port"]) == port and p.get("protocol", "TCP") == protocol
                                     for p in ports):
        return False
    if rule.get(side) is None:
        return True
    for peer in rule[side]:
        if "ipBlock" in peer:
            continue
        if "namespaceSelector" not in peer and namespace_labels is not None:
            continue  # another namespace than the policy's own
        if "namespaceSelector" in peer and not matches(peer["namespaceSelector"], namespace_labels or {}):
            continue
        if matches(peer.get("podSelector", {}), labels):
            return True
    return False


def is_open(documents, source, target, port, protocol="TCP", namespace_labels=None, numbers=None):
    """Whether pods with labels `source` may connect to pods with labels `target`. `namespace_labels` are those of the
    other namespace if one of the two is not in the run's own; that one's policies are not ours."""
    numbers = numbers or {}
    policies = [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]

    def side(own, peer, direction, key):
        governing = [p for p in policies if direction in p["policyTypes"] and matches(p["podSelector"], own)]
        return not governing or any(peer_allows(rule, key, peer, namespace_labels, port, protocol, numbers)
                                    for p in governing for rule in p.get(direction.lower(), []))
    if source is not None and not side(source, target or {}, "Egress", "to"):
        return False
    return target is None or namespace_labels is not None or side(target, source or {}, "Ingress", "from")


# --- the rules --------------------------------------------------------------------------------------------------

def walk(value, path, found):
    if isinstance(value, dict):
        for key, inner in value.items():
            here = f"{path}.{key}"
            if key in CHOICES and isinstance(inner, str) and not path.startswith("Gateway/") and inner not in CHOICES[key]:
                found.append(f"{here}: {inner} is none of {', '.join(sorted(CHOICES[key]))}")
            if key in ("requests", "limits") and isinstance(inner, dict):
                found += [f"{here}.{r}: {q} is no quantity" for r, q in inner.items()
                          if not QUANTITY.match(str(q))]
            if key in ("maxUnavailable", "maxSurge", "minAvailable") and isinstance(inner, str) \
                    and not re.match(r"\d+%$", inner):
                found.append(f"{here}: {inner} is neither a number nor a percentage")
            walk(inner, here, found)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            walk(inner, f"{path}[{i}]", found)


def check_pod(workload, documents, known, found):
    where, pod = name_of(workload), pod_of(workload)
    security = pod.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        found.append(f"{where}: does not say which user but root it runs as")
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append(f"{where}: no seccomp profile RuntimeDefault")
    if pod.get("automountServiceAccountToken") is not False:
        found.append(f"{where}: gets a token for the cluster's API")
    if pod.get("enableServiceLinks") is not False:
        found.append(f"{where}: the cluster's services are put into its environment")
    priority = pod.get("priorityClassName")
    if priority and ("PriorityClass", priority) not in known:
        found.append(f"{where}: there is no PriorityClass {priority}")
    account = pod.get("serviceAccountName")
    if account and ("ServiceAccount", account) not in known:
        found.append(f"{where}: there is no ServiceAccount {account}")
    if any(t.get("key") == "cloud.google.com/gke-spot" for t in pod.get("tolerations", [])) \
            and pod.get("terminationGracePeriodSeconds", 30) > SPOT_SECONDS:
        found.append(f"{where}: a spot node never gives more than {SPOT_SECONDS} s of grace")

    volumes = {v["name"] for v in pod.get("volumes", [])}
    for volume in pod.get("volumes", []):
        for kind, key, field in (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName")):
            if key in volume and (kind, volume[key][field]) not in known:
                found.append(f"{where}: there is no {kind} {volume[key][field]}")
        if "secret" in volume and volume["secret"].get("defaultMode", 0o644) & 0o007:
            found.append(f"{where}: everybody in the pod can read the secret {volume['name']}")
    volumes |= {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}

    has_gpu = any("nvidia.com/gpu" in c.get("resources", {}).get("limits", {}) for c in containers_of(workload))
    if has_gpu and not any(t.get("key") == "nvidia.com/gpu" for t in pod.get("tolerations", [])):
        found.append(f"{where}: nodes with a GPU do not take it")
    ports = ports_of(workload)
    for container in containers_of(workload):
        here = f"{where} {container['name']}"
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
            found.append(f"{here}: keeps privileges")
        if own.get("readOnlyRootFilesystem") is not True:
            found.append(f"{here}: can write to its root")
        image = container["image"]
        if "@sha256:" not in image and (":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")):
            found.append(f"{here}: image {image} has neither a digest nor a tag that stays")
        resources = container.get("resources", {})
        if resources.get("requests", {}).get("memory") != resources.get("limits", {}).get("memory") \
                or "memory" not in resources.get("limits", {}) or "cpu" not in resources.get("requests", {}):
            found.append(f"{here}: must request CPUs, and as much memory as its limit is")
        for source in container.get("envFrom", []):
            if ("ConfigMap", source["configMapRef"]["name"]) not in known:
                found.append(f"{here}: there is no ConfigMap {source['configMapRef']['name']}")
        mounted = {m["name"] for m in container.get("volumeMounts", [])}
        found += [f"{here}: there is no volume {name}" for name in sorted(mounted - volumes)]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for way in ("httpGet", "tcpSocket"):
                port = container.get(probe, {}).get(way, {}).get("port")
                if port is not None and port not in ports:
                    found.append(f"{here} {probe}: there is no port named {port}")
        # A port that is declared is one that the program listens at.
        given = arguments_of(container)
        listening = {address.rsplit(":", 1)[1] for key, address in given.items()
                     if key in ("listen", "http") and ":" in address}
        for name, number in ((p["name"], p["containerPort"]) for p in container.get("ports", [])):
            if "role" in given and str(number) not in listening:
                found.append(f"{here}: nothing listens at its port {name}, {number}")
        # Files that it is told of are below something that is mounted.
        mounts = [m["mountPath"] + "/" for m in container.get("volumeMounts", [])]
        for key, value in given.items():
            if value.startswith("/") and not any(value.startswith(m) or value + "/" == m for m in mounts):
                found.append(f"{here}: {value} of --{key} is below nothing that is mounted")
    used = {m["name"] for c in containers_of(workload) for m in c.get("volumeMounts", [])}
    found += [f"{where}: nobody mounts volume {name}" for name in sorted(volumes - used)]


def check_options(workload, documents, options, found):
    """Every option is one of the program's, where it is given as an argument, in the environment or in the recipe."""
    recipes = {d["metadata"]["name"]: d["data"]["recipe.conf"] for d in documents
               if d["kind"] == "ConfigMap" and "recipe.conf" in d.get("data", {})}
    for container in containers_of(workload):
        if "role" not in arguments_of(container):
            continue  # not our program
        here = f"{name_of(workload)} {container['name']}"
        for word in container.get("args", []):
            if not word.startswith("--") or "=" not in word and word[2:] not in options:
                found.append(f"{here}: {word} is not like --option=value")
        found += [f"{here}: --{name} is no option of the program" for name in arguments_of(container)
                  if name not in options]
    for name, text in recipes.items():
        keys = [line.partition("=")[0].strip() for line in text.split("\n") if line.strip() and line.strip()[0] != "#"]
        found += [f"ConfigMap/{name}: {key} is no option of the program" for key in keys if key not in options]


def most_of(workload, documents):
    """How many pods it has at most: an autoscaler overrides what it says itself."""
    for document in documents:
        if document["kind"] in ("HorizontalPodAutoscaler", "ScaledObject") and \
                document["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]:
            return document["spec"].get("maxReplicas") or document["spec"]["maxReplicaCount"]
    return workload["spec"].get("replicas", 1)


def check_others(documents, known, found):
    """References from kinds that belong to somebody else, for which there is no schema here."""
    services = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Service"}
    for document in documents:
        where, spec = name_of(document), document.get("spec", {})
        if document["kind"] in ("ServiceMonitor", "PodMonitoring"):
            if document["kind"] == "ServiceMonitor":
                chosen = [{p["name"] for p in s["spec"]["ports"]} for s in services.values()
                          if matches(spec["selector"], s["metadata"].get("labels", {}))]
            else:
                chosen = [ports_of(w) for w in workloads(documents) if matches(spec["selector"], labels_of(w))]
            if not chosen:
                found.append(f"{where}: selects nothing")
            for endpoint in spec["endpoints"]:
                found += [f"{where}: there is no port named {endpoint['port']}" for ports in chosen
                          if endpoint["port"] not in ports]
                credentials = endpoint["authorization"]["credentials"]
                secret = credentials.get("secret", credentials)["name"]
                if ("Secret", secret) not in known:
                    found.append(f"{where}: there is no Secret {secret}")
        if document["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = next((w for w in workloads(documents)
                           if w["metadata"]["name"] == spec["scaleTargetRef"]["name"]), None)
            if target is None:
                found.append(f"{where}: scales nothing")
            elif "replicas" in target["spec"]:
                found.append(f"{where}: {name_of(target)} says its own number of replicas, and each apply would set it again")
        if document["kind"] == "HTTPRoute":
            backends = [b for rule in spec["rules"] for b in rule["backendRefs"]]
            found += [f"{where}: there is no Service {b['name']} with port {b['port']}" for b in backends
                      if b["port"] not in [p["port"] for p in services.get(b["name"], {"spec": {"ports": []}})["spec"]["ports"]]]
            found += [f"{where}: there is no Gateway {p['name']}" for p in spec["parentRefs"]
                      if ("Gateway", p["name"]) not in known]
            guarded = {d["spec"]["targetRef"]["name"] for d in documents if d["kind"] == "GCPBackendPolicy" and
                       d["spec"]["default"].get("iap", {}).get("enabled")}
            found += [f"{where}: everybody can see Service {b['name']}" for b in backends if b["name"] not in guarded]


def check_cluster(documents, found):
    """What the processes are told of each other."""
    fleet = {}
    for workload in workloads(documents):
        for container in containers_of(workload):
            fleet.setdefault(arguments_of(container).get("role"), []).append((workload, arguments_of(container)))
    services = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "Service"}
    listeners = {}
    for workload, given in fleet.get("learner", []) + fleet.get("replay", []):
        service = workload["spec"].get("serviceName")
        for i in range(workload["spec"].get("replicas", 1)):
            listeners[f"{workload['metadata']['name']}-{i}.{service}:{given.get('listen', '').rpartition(':')[2]}"] = workload
    for workload, given in fleet.get("actor", []) + fleet.get("learner", []):
        for address in filter(None, (given.get("connect", "") + "," + given.get("shards", "")).split(",")):
            target = listeners.get(address)
            if target is None:
                found.append(f"{name_of(workload)}: nobody is to be reached at {address}")
                continue
            service = services.get(address.split(":")[0].split(".")[1], {})
            port = int(address.rsplit(":", 1)[1])
            if port not in [p["port"] for p in service.get("ports", [])]:
                found.append(f"{name_of(workload)}: Service {address} has no port {port}")
            if not is_open(documents, labels_of(workload), labels_of(target), port, numbers=ports_of(target)):
                found.append(f"{name_of(workload)}: no NetworkPolicy lets it reach {address}")
    planned = sum(int(g.get("planned-environments", 0)) for _, g in fleet.get("learner", []))
    actual = sum(most_of(w, documents) * int(g.get("num-actors", 1)) * int(g.get("environments-per-actor", 16))
                 for w, g in fleet.get("actor", []))
    if planned != actual:
        found.append(f"the head plans for {planned} environments, and actors have {actual}")


def problems(documents, options):
    """Everything that is wrong with rendered documents, as sentences; `options` are those of the program."""
    found = []
    names = [(d["kind"], d["metadata"]["name"]) for d in documents]
    known = set(names) | secret_names()
    found += [f"{kind}/{name} is there twice" for kind, name in sorted(set(names)) if names.count((kind, name)) > 1]
    for document in documents:
        where = name_of(document)
        walk(document, where, found)
        if not DNS_LABEL.match(document["metadata"]["name"]):
            found.append(f"{where}: no name for a host")
        spec = document.get("spec", {})
        if document["kind"] == "Service":
            if spec.get("type", "ClusterIP") != "ClusterIP":
                found.append(f"{where}: reachable from outside")
            chosen = [w for w in workloads(documents) if matches({"matchLabels": spec["selector"]}, labels_of(w))]
            if not chosen:
                found.append(f"{where}: selects no pods")
            for port in spec["ports"]:
                found += [f"{where}: {name_of(w)} has no port {port['targetPort']}" for w in chosen
                          if port["targetPort"] not in ports_of(w)]
        if document["kind"] == "PodDisruptionBudget" and \
                not any(matches(spec["selector"], labels_of(w)) for w in workloads(documents)):
            found.append(f"{where}: selects no pods")
        if document["kind"] == "Job" and pod_of(document).get("restartPolicy") != "Never":
            found.append(f"{where}: a podFailurePolicy needs restartPolicy Never")
        if document["kind"] in ("Deployment", "StatefulSet"):
            if not matches(spec["selector"], labels_of(document)):
                found.append(f"{where}: does not select its own pods")
        if document["kind"] == "StatefulSet" and ("Service", spec["serviceName"]) not in known:
            found.append(f"{where}: there is no Service {spec['serviceName']}")
    for workload in workloads(documents):
        check_pod(workload, documents, known, found)
        check_options(workload, documents, options, found)
        governed = {t for d in documents if d["kind"] == "NetworkPolicy" and
                    matches(d["spec"]["podSelector"], labels_of(workload)) for t in d["spec"]["policyTypes"]}
        if "Ingress" not in governed or workload["kind"] != "Job" and "Egress" not in governed:
            found.append(f"{name_of(workload)}: no NetworkPolicy closes it")
    check_cluster(documents, found)
    check_others(documents, known, found)
    return found
