#!/usr/bin/env python3
"""What training steps can be had for: docs/frontier.md.

    cargo build --release -p memplan-cli
    python3 scripts/make_frontier.py CORPUS [PROGRAM,...] > docs/frontier.md

CORPUS is a folder with a folder for each program, whose `before.hlo.txt` is what JAX hands over. Programs are those whose
name has `train` in it, unless some are named. Bytes and seconds are the same on every machine.
"""

import json
import os
import subprocess
import sys

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
TARGET = "gpu-h100"
SHARES = 1.0, 0.75, 0.5, 0.35
PICTURES = 5


def memplan(path, *flags):
    """The output of a compilation."""
    command = [MEMPLAN, "compile", path, "--target", TARGET, *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def price(path):
    """Total bytes and seconds by default."""
    plan = json.loads(memplan(path, "--format", "json"))
    return plan["totals"]["total"], plan["cost"]["seconds"]


def frontiers(programs):
    """A picture and a table for each of the largest training steps."""
    for name, path, _, _ in programs[:PICTURES]:
        yield f"## {name}\n\n```\n{memplan(path, '--frontier').rstrip()}\n```\n"


def limits(programs):
    """A row for each training step, and a column for each share of what it needs by default."""
    heads = [f"{share:.2f}" for share in SHARES]
    yield f"| program | by default | {' | '.join(heads)} |"
    yield f"|---|---:|{'---:|' * len(heads)}"
    for name, path, total, seconds in programs:
        # `--memory-limit` takes the fastest of these that fits.
        points = json.loads(memplan(path, "--frontier", "--format", "json"))["points"]
        cells = [f"{total / 2**20:.1f} MiB, {seconds * 1e3:.3f} ms"]
        for share in SHARES:
            fits = [point for point in points if point["total"] <= int(total * share)]
            point = fits[-1] if fits else points[0]
            more = f"{100 * (point['seconds'] / seconds - 1):+.1f} %"
            cells.append(more if fits else f"does not fit: {point['total'] / total:.2f}, {more}")
        yield f"| {name} | {' | '.join(cells)} |"


def main():
    corpus = sys.argv[1]
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else [n for n in sorted(os.listdir(corpus)) if "train" in n]
    programs = []
    for name in names:
        path = os.path.join(corpus, name, "before.hlo.txt")
        if os.path.exists(path):
            programs.append((name, path, *price(path)))
    programs.sort(key=lambda program: -program[2])
    print("# Bytes against time of training steps\n")
    print(f"Written by `python3 scripts/make_frontier.py CORPUS` for `{TARGET}`; do not edit. Seconds are those of the cost model.\n")
    print("`memplan compile --frontier` lists the best programs that it found, from fewest bytes to least time. To compile one of them, "
          "pass its bytes as `--memory-limit`.\n")
    print("\n".join(frontiers(programs)))
    print("## Under a limit\n")
    print("The columns are shares of the bytes that a step needs by default, and show how much longer it takes with that limit than by "
          "default. If nothing fits (status 3), they show the smallest share that `compile` found, and its time.\n")
    print("\n".join(limits(programs)))


main()
