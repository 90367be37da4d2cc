#!/usr/bin/env python3
"""The learner's step of learner_step.cpp in PyTorch, a line of JSON for each figure; bench/gpu_check runs both.

    learner_step.py --batches 512,32,2048 --seconds 0.5 --items 20000

The same networks, double-Q targets, Huber loss, importance weights, clipping to a norm of 40, Adam and
priorities, in three ways: "eager"; "graph", the eager step captured into one CUDA graph; "compile", torch.compile
with the whole step captured into one CUDA graph, for the first batch size only, since compiling takes long. Frames lie on the device and are gathered there, or a batch of
them is copied from pinned memory. Microseconds a step, the median of several windows; priorities stay on the
device. What is not measured is in a line with "problem".
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

WINDOWS = 5


class Network(nn.Module):
    def __init__(self, name, side):
        super().__init__()
        if name == "atari":
            body = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1),
                    nn.ReLU(), nn.Flatten()]
            size = (((side - 8) // 4 + 1 - 4) // 2 + 1) - 2
            width, hidden, actions = 64 * size * size, 512, 6
        else:
            body = [nn.Linear(4, 64), nn.ReLU()]
            width, hidden, actions = 64, 64, 2
        self.body = nn.Sequential(*body)
        self.hidden = nn.Sequential(nn.Linear(width, 2 * hidden), nn.ReLU())
        self.value, self.advantage = nn.Linear(hidden, 1), nn.Linear(hidden, actions)
        self.half = hidden

    def forward(self, x):
        x = self.hidden(self.body(x))
        advantage = self.advantage(x[:, self.half:])
        return self.value(x[:, : self.half]) + advantage - advantage.mean(1, keepdim=True)


class Step:
    """One training step; what it reads are tensors that stay where they are, so that it can be captured."""

    def __init__(self, name, batch, precision, side, device, pixels):
        self.device, self.bf16 = device, precision == "bf16"
        self.pixels = pixels  # [frames, side, side] on the device, or None
        self.online, self.target = Network(name, side).to(device), Network(name, side).to(device)
        if name == "atari":
            self.online.to(memory_format=torch.channels_last)
            self.target.to(memory_format=torch.channels_last)
        self.target.load_state_dict(self.online.state_dict())
        options = {"capturable": True, "fused": True} if device == "cuda" else {}
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-4, eps=1e-8, **options)
        actions = 6 if name == "atari" else 2
        self.action = torch.randint(actions, (batch, 1), device=device)
        self.reward = torch.randn(batch, device=device)
        self.discount = torch.full((batch,), 0.97, device=device)
        self.weight = torch.rand(batch, device=device)
        if name != "atari":
            self.x = torch.randn(2 * batch, 4, device=device)
        elif pixels is not None:
            start = torch.randint(len(pixels) - 7, (batch, 1), device=device)
            stack = torch.arange(4, device=device)
            self.indices = torch.cat([start + stack, start + 3 + stack])
        else:
            self.bytes = torch.randint(256, (2 * batch, 4, side, side), dtype=torch.uint8, device=device)
        self.name, self.batch = name, batch
        self.loss = self.compute

    def observations(self):
        if self.name != "atari":
            return self.x
        pixels = self.bytes if self.pixels is None else self.pixels[self.indices]
        return (pixels.float() * (1 / 255)).contiguous(memory_format=torch.channels_last)

    def compute(self):
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bf16):
            x = self.observations()
            q = self.online(x[: self.batch]).float()
            with torch.no_grad():
                best = self.online(x[self.batch:]).float().argmax(1, keepdim=True)
                next_q = self.target(x[self.batch:]).float().gather(1, best).squeeze(1)
            error = self.reward + self.discount * next_q - q.gather(1, self.action).squeeze(1)
            size = error.abs()
            huber = torch.where(size > 1, size - 0.5, 0.5 * error * error)
            return (self.weight * huber).mean(), size.detach()

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=False)
        loss, self.priorities = self.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 40.0)
        self.optimizer.step()


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def per_step(run, seconds, device):
    def window(steps):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(steps):
            run()
        synchronize(device)
        return (time.perf_counter() - start) * 1e6 / steps

    window(3)
    steps = max(2, int(seconds * 1e6 / WINDOWS / window(3)))
    return statistics.median(window(steps) for _ in range(WINDOWS))


def capture(step):
    """The step as one CUDA graph, after the runs that warm it up on a stream of their own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(way, frames, name, batch, precision, options, device, pixels):
    step = Step(name, batch, precision, options.side, device, pixels if frames == "device" else None)
    if way == "compile":
        step.loss = torch.compile(step.compute)
    run = step if way == "eager" else capture(step)
    if name == "atari" and frames == "host":
        staged = torch.randint(256, step.bytes.shape, dtype=torch.uint8)
        staged = staged.pin_memory() if device == "cuda" else staged
        inner = run

        def run():
            step.bytes.copy_(staged, non_blocking=True)
            inner()

    return per_step(run, options.seconds, device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", default="512,32,2048")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--items", type=int, default=20000)
    parser.add_argument("--side", type=int, default=84)
    parser.add_argument("--ways", default="graph,eager,compile")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    print(json.dumps({"torch": torch.__version__, "device": device}), flush=True)
    pixels = torch.randint(256, (options.items + 7, options.side, options.side), dtype=torch.uint8, device=device)
    batches = [int(word) for word in options.batches.split(",")]
    for way in options.ways.split(","):
        for name, frames in (("atari", "device"), ("cart_pole", "host"), ("atari", "host")):
            for batch in batches[:1] if way == "compile" else batches:
                for precision in ("tf32", "bf16", "fp32"):
                    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
                    torch.backends.cudnn.allow_tf32 = precision != "fp32"
                    row = {"network": name, "frames": frames, "batch": batch, "precision": precision, "way": way}
                    try:
                        row["step"] = round(measure(way, frames, name, batch, precision, options, device, pixels), 2)
                    except Exception as error:  # one way that does not work must not hide the others
                        row["problem"] = f"{type(error).__name__}: {error}"[:300]
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
