#!/usr/bin/env python3
"""What planning costs as programs grow, as a table in Markdown.

    cargo build --release -p memplan-cli && cargo build --release --example growth_shape
    python scripts/growth.py target/release/memplan [--before OTHER_BINARY] [--most N] > docs/growth.md

Each program of `growth_shape` goes through passes that are linear or close to it (`opt`), is planned, and compiled.
Columns are CPU seconds, peak memory, and how many times more CPU than reading, verifying, those passes and printing
take together. With `--keep FILE` measurements are kept, so that a run can be taken up again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

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
    # One array of many parts; gradients in one all-reduce.
    "parts": ([10_000, 100_000], [1_000, 10_000, 100_000]),
    "gradients": ([10_000, 100_000], [1_000, 10_000, 100_000]),
    "rank": ([1_000, 10_000, 100_000], [1_000, 10_000, 100_000]),
}

# Passes that every program goes through, none of which searches.
LINEAR_PASSES = "take-apart,simplify,layout-assignment,donation,legalize"


def measure(command, limit):
    """CPU seconds and peak gigabytes of a command; None when it fails or takes too long."""

    def bound():
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=bound)
    _, status, usage = os.wait4(child.pid, 0)
    return None if status else [usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6]


def cells(found, base):
    if found is None:
        return "–", "–", "–"
    seconds, gigabytes = found
    return f"{seconds:.2f}", f"{gigabytes:.2f}", f"{seconds / base[0]:.1f}" if base and base[0] > 0.02 else "–"


class Measured:
    """Measurements, each made once. A command that was given up for some size is given up for all larger ones."""

    def __init__(self, args):
        self.limit, self.keep = args.limit, args.keep
        known = self.keep and os.path.exists(self.keep)
        self.found = json.load(open(self.keep)) if known else {}
        self.given_up = set()

    def get(self, who, binary, shape, n, command):
        if binary is None or (who, shape, tuple(command)) in self.given_up:
            return None
        key = " | ".join([who, shape, str(n), *command])
        if key not in self.found:
            words = [{"PROGRAM": self.program(shape, n), "OUT": self.out}.get(word, word) for word in command]
            self.found[key] = measure([binary, *words], self.limit)
            if self.keep:
                json.dump(self.found, open(self.keep, "w"), indent=1)
        if self.found[key] is None:
            self.given_up.add((who, shape, tuple(command)))
        return self.found[key]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("memplan")
    parser.add_argument("--before", help="an older binary to compare with")
    parser.add_argument("--shapes", help="the program that writes the shapes", default=None)
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds for one command")
    parser.add_argument("--most", type=int, default=1_000_000, help="the largest size")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="these programs")
    parser.add_argument("--targets", nargs="+", default=["cpu", "gpu-h100", "tpu-v5e"], help="machines to compile for")
    parser.add_argument("--keep", help="a file for what was measured")
    args = parser.parse_args()
    shapes = args.shapes or os.path.join(os.path.dirname(args.memplan), "examples", "growth_shape")
    measured = Measured(args)
    print("# Growth\n")
    print("CPU seconds and peak GB of one command, and its CPU as a multiple of what reading, verifying, passes that")
    print(f"are close to linear (`opt --passes {LINEAR_PASSES}`) and printing take together;")
    print(f"– is more than {args.limit} s, or a multiple of less than 0.02 s. Made by `scripts/growth.py`.\n")
    print("| program | n | command | before: s | GB | s | GB | × linear |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        written = []

        def program(shape, n):
            path = os.path.join(folder, "program.hlo")
            if written != [shape, n]:
                with open(path, "w") as file:
                    subprocess.run([shapes, shape, str(n)], stdout=file, check=True)
                written[:] = [shape, n]
            return path

        measured.program, measured.out = program, os.path.join(folder, "out")
        for shape in args.only:
            plan_sizes, compile_sizes = SHAPES[shape]
            for n in sorted(n for n in {*plan_sizes, *compile_sizes} if n <= args.most):
                verbs = [["plan", "gpu-h100"]] if n in plan_sizes else []
                verbs += [["compile", target] for target in args.targets] if n in compile_sizes else []
                for verb, target in verbs:
                    linear = ["opt", "PROGRAM", "--passes", LINEAR_PASSES, "--target", target, "-o", "OUT"]
                    base = measured.get("after", args.memplan, shape, n, linear)
                    command = [verb, "PROGRAM", "--target", target, "-o", "OUT"]
                    old = measured.get("before", args.before, shape, n, command)
                    new = measured.get("after", args.memplan, shape, n, command)
                    row = [shape, f"{n:,}", f"{verb} {target}", *cells(old, None)[:2], *cells(new, base)]
                    print("| " + " | ".join(row) + " |")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
