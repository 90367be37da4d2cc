#!/usr/bin/env python3
"""check_program.py PROGRAM: runs the smallest case of each benchmark in it, briefly; none may fail."""

import json
import re
import subprocess
import sys


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    program = sys.argv[1]
    smallest = {}
    for name in output_of(program, "--benchmark_list_tests=true").split():
        size = [int(digits) for digits in re.findall(r"(?<=[:/])\d+", name)]
        family = re.sub(r"(?<=[:/])\d+", "N", name)
        smallest[family] = min(smallest.get(family, (size, name)), (size, name))
    names = [name for _, name in smallest.values()]
    pattern = "^(" + "|".join(re.escape(name) for name in names) + ")$"
    command = (f"--benchmark_filter={pattern}", "--benchmark_min_time=0.001", "--benchmark_format=json")
    entries = json.loads(output_of(program, *command))["benchmarks"]
    failed = [entry for entry in entries if entry.get("error_occurred")]
    errors = [f"{entry['name']}: {entry['error_message']}" for entry in failed]
    missing = set(names) - {entry["name"] for entry in entries}
    errors += [f"{name}: did not run" for name in sorted(missing)]
    print("\n".join(errors or names))
    return 1 if errors or not names else 0


if __name__ == "__main__":
    sys.exit(main())
