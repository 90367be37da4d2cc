#!/usr/bin/env python3
"""Bytes and FLOP of each part of a training step of the Atari dueling network, and the time that memory and TF32
rate allow: the table of docs/cuda.md. `roofline.py [BATCH]`

Every operand is counted once for each kernel that reads or writes it, as if no cache held it from one kernel to
the next. A part takes the longer of its two times, and parts follow each other.
"""

import sys

# Memory in GB/s and products of TF32 factors in TFLOP/s, dense, by NVIDIA's data sheets; the T4 has no TF32.
GPUS = {"T4": (320, 8.1), "A100 80 GB": (2039, 156), "H200": (4800, 494)}
# name, channels, side of the output, filters, elements of a filter
CONVOLUTIONS = (("conv1", 4, 84, 20, 32, 4 * 64), ("conv2", 32, 20, 9, 64, 32 * 16), ("conv3", 64, 9, 7, 64, 64 * 9))
FEATURES, HIDDEN, ACTIONS = 3136, 1024, 6


def parts(batch):
    """Name, bytes, FLOP of each part; s and s' by the online network, s' by the target network."""
    forward, f = 3 * batch, 4
    rows = [("assembly", 2 * batch * 28224 * (1 + f), 0)]
    parameters = sum(filters * (size + 1) for *_, filters, size in CONVOLUTIONS)
    parameters += (FEATURES + 1) * HIDDEN + (HIDDEN // 2 + 1) * (1 + ACTIONS)
    for name, channels, side, out, filters, size in CONVOLUTIONS:
        read, made, flop = channels * side * side, filters * out * out, 2 * out * out * filters * size
        rows.append((f"{name}, forward", f * (forward * (read + made) + 2 * filters * size), forward * flop))
        rows.append((f"{name}, bias and ReLU", f * forward * 2 * made, 0))
    linear = 2 * FEATURES * HIDDEN
    rows.append(("linear, forward", f * (forward * (FEATURES + HIDDEN) + 2 * FEATURES * HIDDEN), forward * linear))
    heads = HIDDEN // 2 * (1 + ACTIONS)
    rows.append(("heads, forward", f * forward * (HIDDEN + 3 * (1 + ACTIONS)), forward * 2 * heads))
    rows.append(("loss", f * batch * (4 * ACTIONS + 6), 0))
    rows.append(("heads, backward", f * batch * 3 * HIDDEN, 2 * batch * 2 * heads))
    rows.append(("linear, ReLU and bias", f * batch * 3 * HIDDEN, 0))
    rows.append(("linear, backward", f * (batch * 2 * (FEATURES + HIDDEN) + 2 * FEATURES * HIDDEN), 2 * batch * linear))
    for name, channels, side, out, filters, size in reversed(CONVOLUTIONS):
        read, made, flop = channels * side * side, filters * out * out, 2 * out * out * filters * size
        gradients = 1 if name == "conv1" else 2  # nobody wants the image's
        rows.append((f"{name}, ReLU and bias", f * batch * 3 * made, 0))
        rows.append((f"{name}, backward", f * batch * gradients * (read + made), gradients * batch * flop))
    rows.append(("norm, clip, Adam", f * parameters * 8, 0))
    return rows


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    print(f"| batch {batch} | MB | GFLOP | " + " | ".join(f"{gpu}, us" for gpu in GPUS) + " |")
    print("| --- |" + " ---: |" * (2 + len(GPUS)))
    total = [0.0] * (2 + len(GPUS))
    for name, size, flop in parts(batch):
        times = [max(size / (memory * 1e3), flop / (rate * 1e6)) for memory, rate in GPUS.values()]
        row = [size / 1e6, flop / 1e9, *times]
        total = [a + b for a, b in zip(total, row)]
        print(f"| {name} | {row[0]:.1f} | {row[1]:.2f} | " + " | ".join(f"{t:.1f}" for t in times) + " |")
    print(f"| all | {total[0]:.0f} | {total[1]:.1f} | " + " | ".join(f"{t:.0f}" for t in total[2:]) + " |")


if __name__ == "__main__":
    main()
