#!/usr/bin/env python3
"""Stands for the peers script: `list`, and `run NAME ARGUMENTS`, with known figures.

FAKE_STATE: a directory for the counts of rounds. FAKE_INSTALLED: what `list` prints. FAKE_FATE: "NAME:FATE
...", with the fates dies (killed half-way), fails, babbles (no figures), sleeps (until killed; a file tells).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from fake_program import next_factor

# Of cpprb; torchrl takes ten times as long.
US = {"add50": 7.0, "sample512": 80.0, "update512": 25.0, "mix": 600.0}


def say(**line):
    print(json.dumps(line), flush=True)


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def replay(name, fate):
    us_factor = next_factor("peer" + " ".join(sys.argv)) * {"cpprb": 1, "torchrl": 10, "reverb": 10}[name]
    print("a warning that is no JSON")
    say(peer=name, op="fill", rate=1e6)
    for op, us in US.items():
        if fate == "dies" and op == "update512":
            os.kill(os.getpid(), signal.SIGKILL)
        rate = (50 if op == "add50" else 1) * 1e6 / (us * us_factor)
        cap = int(option("--cap"))
        say(peer=name, op=op, rate=rate, lo=rate / 2, hi=rate, versions=f"{name} 1.2", cap=cap)


def main():
    if sys.argv[1] == "list":
        print("\n".join(os.environ.get("FAKE_INSTALLED", "cpprb torchrl env pong_frames.npy").split()))
        return
    name = sys.argv[2]
    fate = dict(word.split(":") for word in os.environ.get("FAKE_FATE", "").split()).get(name)
    if fate == "fails":
        sys.exit("ModuleNotFoundError: no module of that name")
    if fate == "babbles":
        print('{"op": "mix", "peer": "x", "rate": "fast"}\nhello')
    elif fate == "sleeps":
        (Path(os.environ["FAKE_STATE"]) / "sleeping").write_text(str(os.getpid()))
        time.sleep(600)
    elif name == "torch-learner":
        say(peer="pytorch", version="2.0", ms=3.0, min=2.0, max=4.0)
    elif name == "env" and option("--variant") == "envpool-cartpole":
        for count, threads in ((1, 1), (8, 2)):
            counts = {"envs": count, "threads": threads}
            say(peer="envpool CartPole-v1", op="env", **counts, rate=count * 1e4, versions="envpool 1")
    elif name == "env":
        say(peer="gymnasium CartPole-v1", op="env", rate=1e5, versions="gymnasium 1")
        say(peer="gymnasium CartPole-v1 vector x8", op="env", rate=8e4, versions="gymnasium 1")
    elif name == "reverb" and "conc" in sys.argv[-1]:
        writers = int(sys.argv[-1].split()[1])
        say(peer="reverb-conc", op="conc", insert_alone=1e4 * writers, versions="reverb 1")
    else:
        replay(name, fate)


if __name__ == "__main__":
    main()
