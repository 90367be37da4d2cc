#!/usr/bin/env python3
"""Stands for a Google Benchmark program: under its own name it prints that program's JSON with known times.

The time of a benchmark is a base times FACTORS in turn, one a round: a median can then be told from a mean, a
first and a last value. So is the rate of threads. FAKE_STATE is a directory for the counts of rounds.
"""

import json
import os
import re
import sys
from pathlib import Path

FACTORS = (1, 4, 2)
VERBS = {"add50": 1.0, "sample512": 10.0, "update512": 5.0, "mix": 30.0}
FLOOR = {"add50": 0.5, "sample512": 2.0, "update512": 1.0, "mix": 3.0}
REPLAYS = {"bench_replay_prioritized_replay": VERBS, "bench_replay_floor": FLOOR, "other_build": VERBS}
SIZES = {"cart_pole": (44, range(14, 24)), "atari": (56460, range(12, 18))}


def threads(entries, record, record_bytes, factor):
    common = {"record_bytes": float(record_bytes), "efficiency": 0.9, "cpu_efficiency": 0.95}
    inserts = {"inserts_per_s": 1e6 * factor, "own_inserts_per_s": 2e6 * factor}
    samples = {"samples_per_s": 1e5 * factor, "own_samples_per_s": 3e5 * factor}
    for verb, rates, number in (
        ("add", inserts, "threads:1"),
        ("add", inserts, "threads:2"),
        ("learn", samples, "threads:2"),
        ("add_and_learn", {**inserts, **samples}, "adders:2"),
    ):
        name = f"{verb}/prioritized_replay/{record}/entries:{entries}/{number}/real_time"
        yield name, 2e5, {**rates, **common}


def benchmarks(program, factor):
    """(name, microseconds, counters)"""
    verbs = REPLAYS.get(program, {})
    for record, (record_bytes, sizes) in SIZES.items():
        for entries in (2**size for size in sizes):
            for verb, us in verbs.items():
                yield f"{verb}/{record}/entries:{entries}", us, {"record_bytes": float(record_bytes)}
            if program == "bench_replay_prioritized_replay_threads":
                yield from threads(entries, record, record_bytes, factor)
    if program == "bench_replay_floor":
        yield "copy/bytes:1000", 1e5, {"bytes_per_second": 1e10 * factor}
        yield "read/bytes:1000", 5e4, {"bytes_per_second": 2e10 * factor}
    elif program == "bench_env_vector_environment":
        for count in (1, 8, 256):
            yield f"cart_pole_step/environments:{count}", 0.1 * count, {}
    elif program == "bench_nn_eigen_network":
        yield "evaluate/dueling_mlp/batch:512", 11.0, {}
        yield "train_step/dueling_mlp/batch:32", 13.0, {}
        yield "train_step/dueling_mlp/batch:512", 100.0, {}


    elif program == "bench_net_transport":
        for record, (record_bytes, _) in SIZES.items():
            for verb, us in (("insert", 50.0), ("stream", 40.0)):
                for writers in (1, 2, 4, 8):
                    rate = {"items_per_second": 50e6 * writers / (us * factor)}
                    name = f"{verb}/{record}/writers:{writers}/real_time"
                    yield name, 1e5, {"record_bytes": float(record_bytes), **rate}
        memory = {"server_bytes": 1e7 * factor}
        for count in (10, 1000):
            delays = {"p50_ms": 0.5 * factor, "p99_ms": 2.0 * factor, "items_per_second": 3e4}
            yield f"actors/cart_pole/actors:{count}/real_time", 2.8e6, {**delays, **memory}
        for count in (10, 300):
            yield f"fan_out/subscribers:{count}/real_time", 2e6, memory


def next_factor(key):
    counter = Path(os.environ["FAKE_STATE"]) / re.sub(r"\W", "_", key)
    turn = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(turn + 1))
    return FACTORS[turn % len(FACTORS)]


def main():
    program = Path(sys.argv[0]).name
    if program in os.environ.get("FAKE_BROKEN", "").split():
        sys.exit("segmentation fault, so to speak")
    pattern = next((word.split("=", 1)[1] for word in sys.argv if word.startswith("--benchmark_filter=")), "")
    factor = next_factor(program + pattern)
    chosen = [found for found in benchmarks(program, factor) if re.search(pattern, found[0])]
    context = {"troop_version": "9.8.7", "troop_compiler": "fake 1.0", "troop_assertions": "off"}
    context["troop_instructions"] = "none"
    entries = [
        {"name": name, "real_time": us * factor * 1000, "time_unit": "ns", **counters}
        for name, us, counters in chosen
    ]
    print(json.dumps({"context": context, "benchmarks": entries}))


if __name__ == "__main__":
    main()
