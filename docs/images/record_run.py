#!/usr/bin/env python3
"""Runs a command in a terminal of 80 columns and writes what it showed as an animated SVG.

    docs/images/record_run.py docs/images/cart_pole.svg 'make run SEED=7' build/release/examples/cart_pole --seed 7
"""
import html
import os
import pty
import re
import struct
import fcntl
import sys
import termios
import time

COLUMNS, LINE, WIDTH, PAUSE = 80, 20, 8.45, 4.0


def record(command):
    """[(seconds, screen lines)], a frame for every change."""
    pid, master = pty.fork()
    if pid == 0:
        time.sleep(0.1)  # until the parent has set the size
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    frames, done, line, start = [], [], "", time.monotonic()
    while True:
        try:
            data = os.read(master, 65536).decode()
        except OSError:
            break
        if not data:
            break
        for part in re.split(r"(\r\n|\r)", data):
            if part == "\r\n":
                done, line = done + [line], ""
            elif part == "\r":
                line = ""
            else:
                line += re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", part)
        frames.append((time.monotonic() - start, done + [line]))
    os.waitpid(pid, 0)
    return frames


def wrap(lines):
    return [line[i:i + COLUMNS] for line in lines for i in range(0, max(1, len(line)), COLUMNS)]


def svg(title, frames):
    total = frames[-1][0] + PAUSE
    height = (max(len(wrap(lines)) for _, lines in frames) + 2) * LINE + 16
    width = int(COLUMNS * WIDTH) + 32
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
           f"<title>{html.escape(title)}</title>",
           "<style>text{font:14px monospace;fill:#d7dae0;white-space:pre}.p{fill:#98c379}.f{visibility:hidden}",
           "@media (prefers-reduced-motion:reduce){.f{animation:none!important}.last{visibility:visible}}</style>",
           f'<rect width="{width}" height="{height}" rx="8" fill="#1e2127"/>',
           f'<text class="p" x="16" y="28">$ {html.escape(title)}</text>']
    for i, (begin, lines) in enumerate(frames):
        last = i + 1 == len(frames)
        end = total if last else frames[i + 1][0]
        a, b = 100 * begin / total, 100 * end / total
        out.append(f"<style>@keyframes k{i}{{0%,{max(a - 1e-3, 0):.3f}%{{visibility:hidden}}{a:.3f}%,{min(b - 1e-3, 100):.3f}%"
                   f"{{visibility:visible}}{'' if last else f'{b:.3f}%,100%{{visibility:hidden}}'}}}"
                   f"#f{i}{{animation:k{i} {total:.2f}s step-end infinite}}</style>")
        rows = "".join(f'<text x="16" y="{28 + (r + 1) * LINE}" textLength="{len(row) * WIDTH:.1f}">{html.escape(row)}</text>'
                       for r, row in enumerate(wrap(lines)) if row.strip())
        out.append(f'<g id="f{i}" class="f{" last" if last else ""}">{rows}</g>')
    return "\n".join(out + ["</svg>", ""])


if len(sys.argv) < 4:
    sys.exit(__doc__)
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write(svg(sys.argv[2], record(sys.argv[3:])))
