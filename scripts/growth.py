#!/usr/bin/env python3
"""What planning costs as programs grow, as a table in Markdown.

    cargo build --release -p memplan-cli && cargo build --release --example growth_shape
    python scripts/growth.py target/release/memplan [--before OTHER_BINARY] [--small] > docs/growth.md

Each program of `growth_shape` is read and printed (`opt --stop-after 0`), planned, and compiled for three machines. Columns are CPU seconds,
peak memory, and how many times more CPU than reading and printing takes. A command that takes longer than the limit counts as such.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading

SHAPES = {
    # name: sizes for plan, sizes for compile
    # Transformer layers written out, forward, backward and updates.
    "layers": ([10_000, 100_000], [1_000, 10_000, 100_000]),
    "training": ([10_000, 100_000, 1_000_000], [1_000, 10_000, 100_000]),
    "random": ([10_000, 100_000, 1_000_000], [1_000, 10_000, 100_000]),
    "wide loop": ([1_000, 10_000, 100_000, 1_000_000], [1_000, 10_000, 100_000]),
    "loops in a row": ([1_000, 10_000, 100_000], [1_000, 10_000]),
    "nested loops": ([1_000, 10_000, 100_000], [1_000, 10_000]),
    "tuple": ([10_000, 100_000, 1_000_000], [10_000, 100_000, 1_000_000]),
    "parameters": ([10_000, 100_000, 1_000_000], [10_000, 100_000]),
    "rank": ([1_000, 10_000, 100_000], [1_000, 10_000, 100_000]),
}
TARGETS = ["cpu", "gpu-h100", "tpu-v5e"]


def measure(command, limit):
    """CPU seconds and peak gigabytes of a command; None when it fails or takes too long."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    timer = threading.Timer(limit, child.kill)
    timer.start()
    _, status, usage = os.wait4(child.pid, 0)
    timer.cancel()
    return None if status else (usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6)


def cells(found, base):
    if found is None:
        return "–", "–", "–"
    seconds, gigabytes = found
    return f"{seconds:.2f}", f"{gigabytes:.2f}", f"{seconds / max(base[0], 0.01):.1f}" if base else "–"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("memplan")
    parser.add_argument("--before", help="an older binary to compare with")
    parser.add_argument("--shapes", help="the program that writes the shapes", default=None)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one command")
    parser.add_argument("--small", action="store_true", help="leave out the largest size of each")
    parser.add_argument("--only", help="one shape")
    args = parser.parse_args()
    shapes = args.shapes or os.path.join(os.path.dirname(args.memplan), "examples", "growth_shape")
    print("# Growth\n")
    print("CPU seconds and peak GB of one command, and its CPU as a multiple of reading and printing the program;")
    print(f"– is more than {args.limit:.0f} s. Made by `scripts/growth.py`.\n")
    print("| program | n | command | before: s | GB | s | GB | × reading |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "program.hlo"), os.path.join(folder, "out")
        for shape, (plan_sizes, compile_sizes) in SHAPES.items():
            if args.only not in (None, shape):
                continue
            gave_up = set()
            for n in sorted({*plan_sizes, *compile_sizes}):
                if args.small and n == max(*plan_sizes, *compile_sizes):
                    continue
                with open(path, "w") as file:
                    subprocess.run([shapes, shape, str(n)], stdout=file, check=True)
                base = measure([args.memplan, "opt", path, "--stop-after", "0", "-o", out], args.limit)
                commands = [["plan", path, "--target", "gpu-h100", "-o", out]] if n in plan_sizes else []
                if n in compile_sizes:
                    commands += [["compile", path, "--target", target, "-o", out] for target in TARGETS]
                for command in commands:
                    label = command[0] if command[0] == "plan" else f"compile {command[3]}"
                    old = None
                    if args.before and (label, "before") not in gave_up:
                        old = measure([args.before, *command], args.limit)
                        gave_up |= set() if old else {(label, "before")}
                    new = None
                    if label not in gave_up:
                        new = measure([args.memplan, *command], args.limit)
                        gave_up |= set() if new else {label}
                    row = [shape, f"{n:,}", label, *cells(old, None)[:2], *cells(new, base)]
                    print("| " + " | ".join(row) + " |")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
