#!/usr/bin/env python3
"""Measures troop and, if a script for them is given, its peers on the same work in turns; writes a JSON file.

    compare.py --build build/release --peers path/to/peers.sh --output build/bench.json

bench/README.md says what is measured, what the peers script has to do and what the fields of the JSON mean.
Exit status: 0 measured (what was left out or failed is listed under "problems"), 1 nothing was measured or a
program of troop's own failed, 2 a bad option, 130 interrupted (what was measured until then is written).
"""

import argparse
import dataclasses
import datetime
import functools
import json
import math
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = ("replay", "threads", "environment", "learner", "transport")
VERBS = ("add50", "sample512", "update512", "mix")
ADD_CHUNK = 50
RECORD_BYTES = {"cart_pole": 44, "atari": 56460}
ENTRIES = {"cart_pole": [2**i for i in range(14, 24)], "atari": [2**i for i in range(12, 18)]}
WORKLOADS = {"cart_pole": "A", "atari": "B"}  # the peers script's names of the records
ENVIRONMENTS = (1, 8, 256)
LEARNER_BATCH = 512
WRITERS = (1, 2, 4, 8)
TRANSPORT_ENTRIES = {"cart_pole": 2**18, "atari": 2**11}
QUICK_WRITERS = (1,)
# Connections of one process: how many, how many with --quick, and what is said of them.
CONNECTIONS = {
    "actors": (1000, 10, ("inserts_per_s", "p50_ms", "p99_ms", "server_bytes")),
    "fan_out": (300, 10, ("seconds", "server_bytes")),
}
CONNECTION_FIGURES = tuple(dict.fromkeys(name for _, _, names in CONNECTIONS.values() for name in names))
REPLAY_PEERS = {"cpprb": [], "torchrl": [], "tianshou": ["--variant", "vector"], "reverb": []}
PEERS = (*REPLAY_PEERS, "env")
DEFAULTS = {"rounds": 5, "seconds": 0.3, "entries": [2**17, 2**20], "atari_entries": [2**15]}
QUICK = {"rounds": 1, "seconds": 0.02, "entries": [2**14], "atari_entries": [2**12]}
THREAD_ENTRIES = {"cart_pole": 2**20, "atari": 2**15}
QUICK_THREAD_ENTRIES = {"cart_pole": 2**14, "atari": 2**12}
TROOP = "troop"
FLOOR = "floor"  # what the memory alone allows
OWN = (TROOP, FLOOR)
BANDWIDTHS = ("copy", "read")
# Of a benchmark with threads: what is there always, and what only if there are adders, or learners.
EFFICIENCIES = ("efficiency", "cpu_efficiency")
THREAD_RATES = {
    "adders": ("inserts_per_s", "own_inserts_per_s"),
    "learners": ("samples_per_s", "own_samples_per_s"),
}


@dataclasses.dataclass(frozen=True)
class Work:
    """What one call does; the fields that do not apply are None."""

    part: str
    work: str
    record: str | None = None
    record_bytes: int | None = None
    entries: int | None = None
    environments: int | None = None
    batch: int | None = None
    writers: int | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """Microseconds a call in one round: the median and the extremes of its windows."""

    us: float
    low: float
    high: float


@dataclasses.dataclass
class Series:
    """The figures of one contestant at one work, one a round."""

    command: str
    version: str
    note: str
    figures: list[Figure] = dataclasses.field(default_factory=list)

    def summary(self):
        return {
            "us": statistics.median(figure.us for figure in self.figures),
            "us_spread": [
                min(figure.low for figure in self.figures),
                max(figure.high for figure in self.figures),
            ],
            "rounds": len(self.figures),
            "version": self.version,
            "command": self.command,
            "note": self.note,
        }


@dataclasses.dataclass(frozen=True)
class Threads:
    """Who worked at a replay."""

    replay: str
    record: str
    record_bytes: int
    entries: int
    adders: int
    learners: int


@dataclasses.dataclass(frozen=True)
class Connections:
    """Who was connected to a server."""

    work: str
    connections: int


class Failed(Exception):
    """A program that could not be run, or did not say what it should."""


# ---- options


def number(kind, low, high):
    what = "an integer" if kind is int else "a number"

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low} to {high}")
        return value

    return parse


def sizes(record, may_be_none):
    allowed = ENTRIES[record]

    def parse(text):
        if may_be_none and text == "none":
            return []
        values = [int(word) if word.strip().isdecimal() else None for word in text.split(",")]
        if not all(value in allowed for value in values):
            expected = ",".join(map(str, allowed)) + (", or none" if may_be_none else "")
            raise argparse.ArgumentTypeError(f"{text!r} is not one or more of {expected}")
        return list(dict.fromkeys(values))

    return parse


def directory(text):
    path = Path(text).expanduser()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory; make bench builds and names one")
    return path


def script(text):
    if not text:
        return None
    path = Path(text).expanduser()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is not an executable script (empty: no peers)")
    return path.absolute()


def program(text):
    name, equals, path = text.partition("=")
    path = Path(path).expanduser()
    if not name or not equals or name in OWN or not path.is_file() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH of an executable program")
    return name, path.absolute()


def output_file(text):
    path = Path(text).expanduser()
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not the path of a file")
    return path


def parse_options(arguments):
    parser = argparse.ArgumentParser(
        description="Measures troop and its peers on the same work, in turns.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--build", type=directory, required=True, help="CMake's build directory, e.g. build/release")
    add("--peers", type=script, default=None, help="script that runs the peers; empty: only troop")
    add("--output", type=output_file, default=Path("build/bench.json"), help="default %(default)s")
    add("--only", choices=PARTS, help="one part instead of all")
    add("--peer", choices=PEERS, action="append", help="only this peer; may be repeated")
    add(
        "--program",
        type=program,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another build's bench_replay_prioritized_replay as a further peer; may be repeated",
    )
    add("--entries", type=sizes("cart_pole", False), help="of the replay of 44-byte records")
    add("--atari-entries", type=sizes("atari", True), help="of the replay of 56,460-byte records, or none")
    add("--rounds", type=number(int, 1, 100), help="each runs everybody once; default 5")
    add("--seconds", type=number(float, 0.001, 60), help="for each figure of a round; default 0.3")
    add("--timeout", type=number(float, 1, 86400), default=600.0, help="seconds for one run of one program")
    add(
        "--patience",
        type=number(float, 0.001, 86400),
        default=math.inf,
        help="seconds; a peer that takes longer for one size is not measured again there",
    )
    add("--quick", action="store_true", help="the smallest sizes, one very short round")
    options = parser.parse_args(arguments)
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --output: {error}")
    if not os.access(options.output.parent, os.W_OK):
        parser.error(f"argument --output: '{options.output.parent}' cannot be written to")
    for name, value in (QUICK if options.quick else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


# ---- running programs


def run(command, timeout):
    """Standard output of a command; its whole process group dies with it, by time-out or interruption too."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise Failed(str(error)) from error
    try:
        output, complaints = process.communicate(timeout=timeout)
    except BaseException as error:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failed(f"took longer than {timeout:g} s (--timeout)") from error
        raise
    reason = None
    if process.returncode < 0:
        reason = f"killed by signal {-process.returncode} ({signal.strsignal(-process.returncode)})"
    elif process.returncode > 0:
        said = [line for line in complaints.splitlines() if line.strip()]
        reason = f"exit status {process.returncode}" + (f": {said[-1].strip()[:300]}" if said else "")
    return output, reason


class Bench:
    """Runs contestants, collects their figures and writes them."""

    def __init__(self, options):
        self.options = options
        self.series = {}  # Work -> {contestant: Series}
        self.threads = {}  # Threads -> [{counter: value}], one a round
        self.threads_command = {}
        self.connections = {}  # Connections -> [{figure: value}], one a round
        self.connections_command = {}
        self.bandwidths = {}  # "copy" or "read" -> [bytes a second], one a round
        self.troop = {}
        self.problems = []
        self.own_failed = False
        self.left_out = set()
        self.round = 0
        self.commit = commit()
        self.started = now()
        self.load_before = load()

    # -- what is said while it runs

    def say(self, text=""):
        print(text, flush=True)

    def problem(self, what, reason):
        if any((known["what"], known["reason"]) == (what, reason) for known in self.problems):
            return
        self.problems.append({"round": self.round or None, "what": what, "reason": reason})
        self.say(f"  ! {what}: {reason}")

    def record(self, work, contestant, figure, **about):
        series = self.series.setdefault(work, {}).setdefault(contestant, Series(**about))
        series.figures.append(figure)

    def contest(self, label, contestants):
        """One round of one cell; `contestants` are (name, function giving [(what, text)]), troop first."""
        for name, measure in contestants:
            if (label, TROOP) in self.left_out:
                return
            if (label, name) in self.left_out:
                continue
            began = time.monotonic()
            try:
                figures = measure()
            except Failed as error:
                self.left_out.add((label, name))
                further = "; left out of the further rounds" if self.round < self.options.rounds else ""
                self.problem(f"{label}, {name}", f"{error}{further}")
                self.own_failed |= name in OWN
                continue
            seconds = time.monotonic() - began
            if name not in OWN and seconds > self.options.patience and self.round < self.options.rounds:
                self.left_out.add((label, name))
                self.problem(f"{label}, {name}", f"took {seconds:.0f} s; not measured again (--patience)")
            text = "  ".join(f"{what} {figure}" for what, figure in figures)
            self.say(f"[{self.round}/{self.options.rounds}] {label:<28} {name:<10} {text}")

    # -- troop's own programs (Google Benchmark)

    def program(self, name):
        return self.options.build / "bench" / name

    def run_program(self, path, pattern):
        """(name, microseconds, whole JSON entry) of each benchmark that matches, the context, the command."""
        command = [
            str(path),
            f"--benchmark_filter={pattern}",
            f"--benchmark_min_time={self.options.seconds:g}",
            "--benchmark_format=json",
        ]
        output, reason = run(command, self.options.timeout)
        if reason is not None:
            raise Failed(reason)
        try:
            report = json.loads(output)
            context = report["context"]
            entries = []
            for entry in report["benchmarks"]:
                if entry.get("error_occurred"):
                    self.problem(entry["name"], entry.get("error_message", "failed"))
                    continue
                scale = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[entry["time_unit"]]
                entries.append((entry["name"], positive(entry["real_time"]) * scale, entry))
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"did not print the JSON of Google Benchmark ({error!r})") from error
        if not entries:
            raise Failed(f"no benchmark gave a figure for {pattern}")
        return entries, context, shlex.join(command)

    def measure_program(self, path, contestant, pattern, work_of):
        entries, context, command = self.run_program(path, pattern)
        if contestant in OWN:
            self.note_build(path, context)
        figures = []
        for benchmark, us, entry in entries:
            work = work_of(benchmark, entry)
            figure = Figure(us, us, us)
            version = context.get("troop_version", "")
            self.record(work, contestant, figure, command=command, version=version, note="")
            figures.append((short(work), show(us)))
        return figures

    def note_build(self, path, context):
        about = {
            "version": context.get("troop_version"),
            "compiler": context.get("troop_compiler"),
            "instructions": context.get("troop_instructions"),
            "assertions": context.get("troop_assertions"),
        }
        if not self.troop and about["assertions"] == "on":
            self.problem(path.name, "compiled with assertions; measure a release build")
        self.troop.update((key, value) for key, value in about.items() if value is not None)

    def measure_bandwidths(self, path):
        entries, _, _ = self.run_program(path, f"^({'|'.join(BANDWIDTHS)})/")
        figures = []
        for benchmark, _, entry in entries:
            rate = counter(entry, "bytes_per_second")
            what = benchmark.split("/")[0]
            self.bandwidths.setdefault(what, []).append(rate)
            figures.append((what, f"{rate / 1e9:.1f} GB/s"))
        return figures

    def measure_threads(self, path, record, entries):
        """The name says who worked: verb/replay/record/entries:N/threads:K, or adders:K and one learner."""
        pattern = f"^(add|learn|add_and_learn)/[a-z_]+/{record}/entries:{entries}/"
        found, context, command = self.run_program(path, pattern)
        self.note_build(path, context)
        figures = []
        for benchmark, _, entry in found:
            verb, replay, *_, number = benchmark.removesuffix("/real_time").split("/")
            count = int(number.split(":")[1])
            adders, learners = {"add": (count, 0), "learn": (0, count)}.get(verb, (count, 1))
            who = Threads(replay, record, RECORD_BYTES[record], entries, adders, learners)
            if counter(entry, "record_bytes") != who.record_bytes:
                raise Failed(f"{benchmark} has records of {entry['record_bytes']:g} bytes")
            names = [name for role, names in THREAD_RATES.items() if getattr(who, role) for name in names]
            self.threads.setdefault(who, []).append(
                {name: counter(entry, name) for name in (*names, *EFFICIENCIES)}
            )
            self.threads_command[who] = command
            figures.append((f"{adders}+{learners}", f"{counter(entry, 'efficiency'):.2f}"))
        return figures

    def measure_writers(self, path, contestant, pattern, work):
        """Items a second of all writers; a call is a batch of one of them."""
        found, context, command = self.run_program(path, pattern)
        self.note_build(path, context)
        figures = []
        for benchmark, _, entry in found:
            if counter(entry, "record_bytes") != work.record_bytes:
                raise Failed(f"{benchmark} has records of {entry['record_bytes']:g} bytes")
            us = ADD_CHUNK * 1e6 / counter(entry, "items_per_second")
            version = context.get("troop_version", "")
            self.record(work, contestant, Figure(us, us, us), command=command, version=version, note="")
            figures.append((work.work, show(us)))
        return figures

    def measure_connections(self, path, who, names):
        pattern = f"^{who.work}/.*:{who.connections}/"
        found, context, command = self.run_program(path, pattern)
        self.note_build(path, context)
        figures = []
        for _, us, entry in found:
            values = {}
            for name in names:
                source = {"inserts_per_s": "items_per_second"}.get(name, name)
                values[name] = us / 1e6 if name == "seconds" else counter(entry, source)
            self.connections.setdefault(who, []).append(values)
            self.connections_command[who] = command
            figures += [(name, f"{value:.3g}") for name, value in values.items()]
        return figures

    # -- peers

    def run_peer(self, arguments, figure_of):
        """Runs the peers script and takes (work, contestant, figure, version) from each of its JSON lines."""
        command = [str(self.options.peers), "run", *arguments]
        output, reason = run(command, self.options.timeout)
        figures = []
        for line in output.splitlines():
            if not line.startswith("{"):
                continue
            try:
                said = json.loads(line)
                if said.get("op") == "error":
                    reason = reason or str(said.get("error"))
                    continue
                found = figure_of(said)
            except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
                reason = reason or f"printed a line that is not understood ({error!r}): {line[:200]}"
                continue
            if found is None:
                continue
            work, contestant, figure = found
            version = str(said.get("versions") or said.get("version") or "")
            note = str(said.get("note") or "").strip()
            self.record(work, contestant, figure, command=shlex.join(command), version=version, note=note)
            figures.append((short(work), show(figure.us)))
        if reason is not None and figures:
            reason += "; its figures until then are kept"
        if reason is not None or not figures:
            raise Failed(reason or "printed no figures")
        return figures

    # -- the parts: each returns its cells, a list of (label, contestants)

    def built(self, name, part):
        if self.program(name).is_file():
            return True
        self.problem(part, f"{self.program(name)} was not built; left out")
        return False

    def replay_cells(self, installed):
        name = "bench_replay_prioritized_replay"
        if not self.built(name, "replay"):
            return []
        sizes_of = {"cart_pole": self.options.entries, "atari": self.options.atari_entries}
        has_floor = self.built("bench_replay_floor", "floor of the replay")
        floor = self.program("bench_replay_floor") if has_floor else None
        cells = []
        for record in sizes_of:
            peers = [peer for peer in REPLAY_PEERS if peer in installed]
            if record == "atari" and peers and sizes_of[record] and not self.has_frames:
                self.problem("replay atari", "peers left out: their frames come from env, not installed")
                peers = []
            for entries in sizes_of[record]:
                contestants = self.replay_contestants(name, record, entries, peers, floor)
                cells.append((f"replay {record} {entries}", contestants))
        if floor is not None:
            cells.append(("replay bandwidth", [(FLOOR, lambda: self.measure_bandwidths(floor))]))
        return cells

    def replay_contestants(self, name, record, entries, peers, floor):
        works = {verb: Work("replay", verb, record, RECORD_BYTES[record], entries) for verb in VERBS}

        def work_of(benchmark, entry):
            if entry["record_bytes"] != RECORD_BYTES[record]:
                raise Failed(f"{benchmark} has records of {entry['record_bytes']:g} bytes")
            return works[benchmark.split("/")[0]]

        def figure_of(said):
            work = works.get(said["op"])
            if work is None:
                return None
            # The rate of add50 counts transitions, the others' calls.
            return work, said["peer"], from_rates(said, ADD_CHUNK if said["op"] == "add50" else 1)

        pattern = f"^({'|'.join(VERBS)})/{record}/entries:{entries}$"
        programs = [(TROOP, self.program(name))]
        programs += [(FLOOR, floor)] if floor is not None else []
        contestants = []
        for contestant, path in (*programs, *self.options.program):
            measure = functools.partial(self.measure_program, path, contestant, pattern, work_of)
            contestants.append((contestant, measure))
        for peer in peers:
            arguments = [peer, "--workload", WORKLOADS[record], "--cap", str(entries)]
            arguments += [*REPLAY_PEERS[peer], "--repeats", "1", "--min-time", f"{self.options.seconds:g}"]
            contestants.append((peer, lambda arguments=arguments: self.run_peer(arguments, figure_of)))
        return contestants

    def threads_cells(self, _):
        name = "bench_replay_prioritized_replay_threads"
        if not self.built(name, "threads"):
            return []
        cells = []
        for record, entries in (QUICK_THREAD_ENTRIES if self.options.quick else THREAD_ENTRIES).items():
            if record == "atari" and not self.options.atari_entries:
                continue
            measure = functools.partial(self.measure_threads, self.program(name), record, entries)
            cells.append((f"threads {record} {entries}", [(TROOP, measure)]))
        return cells

    def environment_cells(self, installed):
        program = "bench_env_vector_environment"
        if not self.built(program, "environment"):
            return []

        def work_of(benchmark, _):
            return Work("environment", "cart_pole_step", environments=int(benchmark.rsplit(":", 1)[1]))

        def figure_of(said):
            if said["op"] != "env":
                return None
            # A peer that does not say how many environments it stepped has the number at the end of its name.
            named = re.search(r" x(\d+)$", said["peer"])
            count = int(said.get("envs") or (named[1] if named else 1))
            threads = int(said.get("threads") or 1)
            contestant = said["peer"] + (f", {threads} threads" if threads > 1 else "")
            work = Work("environment", "cart_pole_step", environments=count)
            return work, contestant, from_rates(said, count)

        counts = "|".join(map(str, ENVIRONMENTS))
        pattern = f"^cart_pole_step/environments:({counts})$"
        path = self.program(program)
        contestants = [(TROOP, lambda: self.measure_program(path, TROOP, pattern, work_of))]
        if "env" in installed:
            for name, variant in (("envpool", "envpool-cartpole"), ("gymnasium", "gym-cartpole")):
                arguments = ["env", "--variant", variant]
                contestants.append((name, lambda arguments=arguments: self.run_peer(arguments, figure_of)))
        return [("environment cart_pole", contestants)]

    def learner_cells(self, installed):
        program = "bench_nn_eigen_network"
        if not self.built(program, "learner"):
            return []
        work = Work("learner", "train_step", record="cart_pole", batch=LEARNER_BATCH)

        def figure_of(said):
            return work, said["peer"], Figure(*(positive(said[key]) * 1e3 for key in ("ms", "min", "max")))

        pattern = f"^train_step/dueling_mlp/batch:{LEARNER_BATCH}$"
        path = self.program(program)
        contestants = [(TROOP, lambda: self.measure_program(path, TROOP, pattern, lambda *_: work))]
        if "torchrl" in installed:
            arguments = ["torch-learner", "--net", "mlp", "--batch", str(LEARNER_BATCH), "--threads", "1"]
            arguments += ["--repeats", "1", "--seconds", f"{self.options.seconds:g}"]
            contestants.append(("pytorch", lambda: self.run_peer(arguments, figure_of)))
        return [("learner mlp", contestants)]

    def transport_cells(self, installed):
        program = "bench_net_transport"
        if not self.built(program, "transport"):
            return []
        path = self.program(program)
        cells = []
        for record, entries in TRANSPORT_ENTRIES.items():
            if record == "atari" and not self.options.atari_entries:
                continue
            for writers in QUICK_WRITERS if self.options.quick else WRITERS:
                work = Work("transport", "insert50", record, RECORD_BYTES[record], entries, writers=writers)
                contestants = self.transport_contestants(path, work)
                if record == "cart_pole" and "reverb" in installed:
                    contestants.append(("reverb", functools.partial(self.measure_reverb_writers, work)))
                cells.append((f"transport {record} {writers}", contestants))
        for what, (count, quick_count, names) in CONNECTIONS.items():
            who = Connections(what, quick_count if self.options.quick else count)
            measure = functools.partial(self.measure_connections, path, who, names)
            cells.append((f"transport {what} {who.connections}", [(TROOP, measure)]))
        return cells

    def transport_contestants(self, path, work):
        contestants = []
        for contestant, verb in ((TROOP, "insert"), (FLOOR, "stream")):
            pattern = f"^{verb}/{work.record}/writers:{work.writers}/"
            measure = functools.partial(self.measure_writers, path, contestant, pattern, work)
            contestants.append((contestant, measure))
        return contestants

    def measure_reverb_writers(self, work):
        def figure_of(said):
            if said["op"] != "conc":
                return None
            us = ADD_CHUNK * 1e6 / positive(said["insert_alone"])
            return work, said["peer"], Figure(us, us, us)

        arguments = ["reverb", "--workload", WORKLOADS[work.record], "--cap", str(work.entries)]
        return self.run_peer([*arguments, "--variant", f"conc {work.writers}"], figure_of)

    # -- the whole

    def installed_peers(self):
        if self.options.peers is None:
            self.say("Only troop is measured. Peers: make bench PEERS=path/to/peers.sh (bench/README.md)")
            return set()
        try:
            output, reason = run([str(self.options.peers), "list"], self.options.timeout)
        except Failed as error:
            output, reason = "", str(error)
        if reason is not None:
            self.problem(f"{self.options.peers} list", f"{reason}; only troop is measured")
            return set()
        installed = {peer for peer in output.split() if peer in PEERS}
        self.has_frames = "env" in installed
        for peer in self.options.peer or ():
            if peer not in installed:
                self.problem(peer, "is not installed; left out")
        if self.options.peer is not None:
            installed &= set(self.options.peer)
        self.say("Peers: " + (" ".join(sorted(installed)) or "none is installed"))
        return installed

    def measure(self):
        installed = self.installed_peers()
        cells = []
        for part in PARTS:
            if self.options.only in (None, part):
                cells += getattr(self, f"{part}_cells")(installed)
        if not cells:
            return
        began = time.monotonic()
        for self.round in range(1, self.options.rounds + 1):
            for label, contestants in cells:
                self.contest(label, contestants)
            self.write(complete=self.round == self.options.rounds)
            rounds_left = self.options.rounds - self.round
            if rounds_left > 0:
                seconds = rounds_left * (time.monotonic() - began) / self.round
                self.say(f"-- round {self.round} of {self.options.rounds} done, about {seconds:.0f} s to go")

    def rows(self):
        rows = []
        for work, contestants in self.series.items():
            if TROOP not in contestants:
                continue
            ours = contestants[TROOP].summary()
            floor = contestants[FLOOR].summary() if FLOOR in contestants else dict.fromkeys(ours)
            peers = [(name, series) for name, series in contestants.items() if name not in OWN]
            for name, series in peers or [(None, None)]:
                theirs = series.summary() if series else dict.fromkeys(ours)
                row = dataclasses.asdict(work)
                row["peer"] = name
                row["ratio"] = theirs["us"] / ours["us"] if series else None
                row["floor_ratio"] = ours["us"] / floor["us"] if floor["us"] else None
                for prefix, summary in (("troop", ours), ("peer", theirs)):
                    row.update((f"{prefix}_{key}", value) for key, value in summary.items())
                row.update((f"floor_{key}", floor[key]) for key in ("us", "us_spread", "rounds", "command"))
                rows.append(row)
        return rows

    def threads_rows(self):
        rows = []
        for who, rounds in self.threads.items():
            row = dataclasses.asdict(who)
            for name in (*THREAD_RATES["adders"], *THREAD_RATES["learners"], *EFFICIENCIES):
                values = [counters[name] for counters in rounds if name in counters]
                row[name] = statistics.median(values) if values else None
                row[f"{name}_spread"] = [min(values), max(values)] if values else None
            row["rounds"] = len(rounds)
            row["command"] = self.threads_command[who]
            rows.append(row)
        return rows

    def connections_rows(self):
        rows = []
        for who, rounds in self.connections.items():
            row = dataclasses.asdict(who)
            for name in CONNECTION_FIGURES:
                values = [figures[name] for figures in rounds if name in figures]
                row[name] = statistics.median(values) if values else None
                row[f"{name}_spread"] = [min(values), max(values)] if values else None
            row["rounds"] = len(rounds)
            row["command"] = self.connections_command[who]
            rows.append(row)
        return rows

    def bandwidth_medians(self):
        rates = {what: self.bandwidths.get(what) for what in BANDWIDTHS}
        medians = {what: statistics.median(found) if found else None for what, found in rates.items()}
        return {f"{what}_bytes_per_s": median for what, median in medians.items()}

    def measured(self):
        return bool(self.rows() or self.threads or self.connections)

    def write(self, complete):
        options = self.options
        settings = {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "entries": options.entries,
            "atari_entries": options.atari_entries,
            "only": options.only,
            "quick": options.quick,
            "programs": {name: str(path) for name, path in options.program},
        }
        result = {
            "format": 1,
            "complete": complete,
            "command": shlex.join([sys.executable, *sys.argv]),
            "settings": settings,
            "troop": {**self.troop, "commit": self.commit},
            "machine": {
                **machine(),
                "started": self.started,
                "ended": now(),
                "load_before": self.load_before,
                "load_after": load(),
                **self.bandwidth_medians(),
            },
            "rows": self.rows(),
            "threads": self.threads_rows(),
            "connections": self.connections_rows(),
            "problems": self.problems,
        }
        write_atomically(options.output, json.dumps(result, indent=2) + "\n")

    def table(self):
        rows = self.rows()
        if rows:
            self.table_of_rows(rows)
        for row in self.threads_rows():
            names = ("inserts_per_s", "samples_per_s")
            rates = [f"{row[name]:.3g} {name[:7]}/s" for name in names if row[name]]
            self.say(
                f"{row['record']} {row['entries']}, adders {row['adders']}, learners {row['learners']}: "
                f"{', '.join(rates)}, efficiency {row['efficiency']:.2f}"
            )
        for row in self.connections_rows():
            figures = [f"{name} {row[name]:.3g}" for name in CONNECTION_FIGURES if row[name] is not None]
            self.say(f"{row['work']}, {row['connections']} connections: {', '.join(figures)}")

    def table_of_rows(self, rows):
        head = ("work", "record", "size", "troop us", "spread", "floor us", "peer", "us", "spread", "ratio")
        lines = [head]
        for row in rows:
            size = row["writers"] or row["entries"] or row["environments"] or row["batch"]
            line = [row["work"], row["record"] or "-", str(size), show(row["troop_us"])]
            line += [show_spread(row["troop_us_spread"])]
            line += ["-" if row["floor_us"] is None else show(row["floor_us"])]
            if row["peer"] is None:
                line += ["-", "-", "-", "-"]
            else:
                line += [row["peer"], show(row["peer_us"]), show_spread(row["peer_us_spread"])]
                line += [f"{row['ratio']:.2f}"]
            lines.append(line)
        widths = [max(map(len, column)) for column in zip(*lines)]
        left_aligned = (0, 1, 6)
        self.say()
        for line in lines:
            cells = [
                text.ljust(width) if column in left_aligned else text.rjust(width)
                for column, (text, width) in enumerate(zip(line, widths))
            ]
            self.say("  ".join(cells).rstrip())
        self.say("us: microseconds a call, median of the rounds; ratio: the peer's time over troop's")
        self.say()


# ---- small things


def positive(value):
    value = float(value)
    if not 0 < value < math.inf:
        raise ValueError(f"{value} is not a positive number")
    return value


def counter(entry, name):
    """A counter of a benchmark of ours."""
    try:
        return positive(entry[name])
    except (KeyError, TypeError, ValueError) as error:
        raise Failed(f"{entry['name']} gave no usable {name} ({error!r})") from error


def from_rates(said, items_a_call):
    """The figure of a line that gives items a second; its lowest rate is the longest time."""
    rates = (said["rate"], said.get("hi", said["rate"]), said.get("lo", said["rate"]))
    return Figure(*(items_a_call * 1e6 / positive(rate) for rate in rates))


def short(work):
    return work.work if work.environments is None else f"x{work.environments}"


def show(us):
    return f"{us:.3g}" if us < 100 else f"{us:.0f}"


def show_spread(spread):
    return "..".join(show(us) for us in spread)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def load():
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return None


def first_match(path, pattern):
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def machine():
    try:
        cores = len(os.sched_getaffinity(0))
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        cores, memory = os.cpu_count(), None
    return {
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.processor(),
        "cores": cores,
        "memory_bytes": memory,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "system": first_match("/etc/os-release", r'^PRETTY_NAME="?([^"\n]+)'),
        "python": platform.python_version(),
    }


def commit():
    """The commit of the tree that this script lies in, or None where that is not known."""
    here = str(Path(__file__).resolve().parent)
    try:
        output, reason = run(["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12"], 20)
    except Failed:
        return None
    return output.strip() if reason is None else None


def write_atomically(path, text):
    """The file has either its old contents or all of the new ones."""
    make = tempfile.NamedTemporaryFile
    with make("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def main():
    options = parse_options(sys.argv[1:])
    # A scheduler's stop is taken like Ctrl-C: what was measured is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench(options)
    interrupted = False
    try:
        bench.measure()
    except KeyboardInterrupt:
        interrupted = True
    except OSError as error:
        sys.exit(f"compare.py: cannot write {options.output}: {error}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    bench.table()
    if interrupted and bench.measured():
        bench.write(complete=False)
    if bench.problems:
        bench.say(f"{len(bench.problems)} problem(s):")
        for problem in bench.problems:
            bench.say(f"  {problem['what']}: {problem['reason']}")
    if not bench.measured():
        bench.say("Nothing was measured.")
    else:
        bench.say(f"{'Interrupted; what was measured is in' if interrupted else 'Written:'} {options.output}")
    return 130 if interrupted else 1 if not bench.measured() or bench.own_failed else 0


if __name__ == "__main__":
    sys.exit(main())
