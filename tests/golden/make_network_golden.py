#!/usr/bin/env python3
"""Writes network.txt: Q-networks, batches and ten training steps as PyTorch computes them in float64.

    python3 make_network_golden.py      (needs torch; the file in the tree came from torch 2.15.0)

The file is text, one item a line: a keyword, then values. A case starts with "case NAME" and has

    network TEXT                        canonical text of the bound network
    options KIND LOSS DELTA RATE CLIP   optimizer (beta 0.9, 0.999; decay 0.95, centred; epsilon 1.5e-7), loss, ...
    parameters, target                  flat, in the order of troop::nn::Network
    observations, next_observations     [batch, inputs]
    actions, rewards, discounts, weights
    q                                   [batch, actions], before the first step
    gradient                            of the first step, before clipping
    step LOSS NORM MEAN_Q               ten times, each followed by
    priorities, parameters              the former before, the latter after the step; the target is synced after 5
"""
import math
import pathlib
import re

import torch

BATCH, STEPS, SYNC_AFTER = 7, 10, 5


def input_shape(text):
    return [int(n) for n in re.match(r"input\(([\d,]+)\)", text).group(1).split(",")]


def linear(parameters, offset, n_out, n_in, x):
    weight = parameters[offset:offset + n_out * n_in].view(n_out, n_in)
    offset += n_out * n_in
    return x @ weight.T + parameters[offset:offset + n_out], offset + n_out


def forward(text, parameters, x):
    """Q-values of flat observations, or with parameters None the number of parameters."""
    count = parameters is None
    if count:
        parameters = torch.zeros(100000, dtype=torch.float64)
    offset = 0
    x = x.view(len(x), *input_shape(text))
    for word in text.split()[1:]:
        name, numbers = re.fullmatch(r"([a-z]+)(?:\(([\d,]+)\))?", word).groups()
        numbers = [int(n) for n in numbers.split(",")] if numbers else []
        if name == "conv":
            filters, kernel, stride = numbers
            size = filters * x.shape[1] * kernel * kernel
            weight = parameters[offset:offset + size].view(filters, x.shape[1], kernel, kernel)
            offset += size + filters
            x = torch.nn.functional.conv2d(x, weight, parameters[offset - filters:offset], stride)
        elif name == "relu":
            x = torch.relu(x)
        elif x.dim() > 2:
            x = x.flatten(1)
        if name == "dense":
            x, offset = linear(parameters, offset, numbers[0], x.shape[1], x)
        elif name == "output":
            x, offset = linear(parameters, offset, numbers[0], x.shape[1], x)
        elif name == "dueling":
            hidden, actions = numbers
            value, advantage = x, x
            if hidden > 0:
                x, offset = linear(parameters, offset, 2 * hidden, x.shape[1], x)
                x = torch.relu(x)
                value, advantage = x[:, :hidden], x[:, hidden:]
            v, offset = linear(parameters, offset, 1, value.shape[1], value)
            a, offset = linear(parameters, offset, actions, advantage.shape[1], advantage)
            x = v + a - a.mean(1, keepdim=True)
    return offset if count else x


def as_float32(tensor):
    """Numbers that float32 holds exactly, so that both sides start from the same ones."""
    return tensor.to(torch.float32).to(torch.float64)


def write(out, name, tensor):
    values = tensor.detach().flatten().tolist()
    out.write(name + " " + " ".join(f"{v:.9g}" for v in values) + "\n")


def make_case(out, name, text, kind, loss_name, delta, rate, clip):
    inputs = math.prod(input_shape(text))
    actions = int(re.search(r"(\d+)\)$", text).group(1))
    n = forward(text, None, torch.zeros(1, inputs, dtype=torch.float64))
    online = as_float32(torch.randn(n) * 0.5).requires_grad_()
    target = as_float32(online.detach() + torch.randn(n) * 0.1)
    s, s2 = as_float32(torch.randn(BATCH, inputs)), as_float32(torch.randn(BATCH, inputs))
    a = torch.randint(0, actions, (BATCH,))
    r = as_float32(torch.randn(BATCH) * 2)
    discount = as_float32(torch.full((BATCH,), 0.970299))
    discount[2] = 0.0
    w = as_float32(torch.rand(BATCH) * 0.9 + 0.1)

    out.write(f"case {name}\nnetwork {text}\noptions {kind} {loss_name} {delta} {rate} {clip}\n")
    write(out, "parameters", online)
    write(out, "target", target)
    write(out, "observations", s)
    write(out, "next_observations", s2)
    write(out, "actions", a)
    write(out, "rewards", r)
    write(out, "discounts", discount)
    write(out, "weights", w)
    write(out, "q", forward(text, online, s))

    if kind == "adam":
        optimizer = torch.optim.Adam([online], lr=rate, eps=1.5e-7)
    else:
        optimizer = torch.optim.RMSprop([online], lr=rate, alpha=0.95, eps=1.5e-7, centered=True)
    for step in range(STEPS):
        with torch.no_grad():
            best = forward(text, online, s2).argmax(1, keepdim=True)
            y = r + discount * forward(text, target, s2).gather(1, best).squeeze(1)
        q = forward(text, online, s).gather(1, a[:, None]).squeeze(1)
        if loss_name == "huber":
            losses = torch.nn.functional.huber_loss(q, y, reduction="none", delta=delta)
        else:
            losses = 0.5 * (y - q) ** 2
        loss = (w * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            write(out, "gradient", online.grad)
        norm = online.grad.norm()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_([online], clip)
        optimizer.step()
        write(out, "step", torch.stack([loss.detach(), norm, q.detach().mean()]))
        write(out, "priorities", (y - q).abs())
        write(out, "parameters", online)
        if step + 1 == SYNC_AFTER:
            target = online.detach().clone()


def main():
    torch.manual_seed(20180302)
    with open(pathlib.Path(__file__).parent / "network.txt", "w", encoding="ascii") as out:
        dueling = "input(4) dense(8) relu dueling(6,3)"
        make_case(out, "dueling-adam-huber", dueling, "adam", "huber", 1.0, 0.01, 40.0)
        make_case(out, "dueling-rmsprop-huber-clipped", dueling, "rmsprop", "huber", 0.5, 0.002, 0.1)
        make_case(out, "dueling-rmsprop-squared", dueling, "rmsprop", "squared", 1.0, 0.002, 0)
        make_case(out, "plain-adam-squared-clipped", "input(5) dense(9) relu dense(7) relu output(4)", "adam",
                  "squared", 1.0, 0.01, 0.5)
        make_case(out, "linear-dueling-adam-huber", "input(3) dense(5) relu dueling(0,2)", "adam", "huber", 2.0,
                  0.01, 40.0)
        make_case(out, "wide-rmsprop-huber", "input(7) dense(21) relu dueling(9,5)", "rmsprop", "huber", 1.0, 0.002,
                  40.0)
        # as nature_dueling, in small: three convolutions, the first two with a rest
        make_case(out, "nature-rmsprop-huber-clipped",
                  "input(2,14,13) conv(4,4,3) relu conv(5,2,1) relu conv(3,2,1) relu dueling(6,3)", "rmsprop", "huber",
                  1.0, 0.002, 1.0)
        make_case(out, "convolutions-adam-squared", "input(1,5,7) conv(3,3,2) conv(4,2,3) relu dense(5) relu output(3)",
                  "adam", "squared", 1.0, 0.01, 0)
        make_case(out, "convolution-adam-huber", "input(3,3,4) conv(17,3,1) relu dueling(0,2)", "adam", "huber", 1.0,
                  0.01, 40.0)


if __name__ == "__main__":
    main()
