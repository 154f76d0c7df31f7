#!/usr/bin/env python3
"""The cost of allocating memory while a program runs, instead of planning it: docs/replay.md.

memplan plans each program of the corpus for gpu-h100. The simulated allocator of XLA's GPU client then allocates and frees
the values of the program in the order of the same schedule. `needed` is the smallest pool in which this succeeds, `planned`
the size of the plan. At the moment with the most pieces in that pool, memplan makes a hole of nine tenths of the free bytes.

    cargo build --release && scripts/replay_corpus.py > docs/replay.md
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = pathlib.Path(os.environ.get("MEMPLAN_SHARED", ROOT.parent / "shared")) / "corpus"
MEMPLAN = os.environ.get("MEMPLAN", str(ROOT / "target/release/memplan"))


def replay(*arguments):
    result = subprocess.run([MEMPLAN, "replay", *map(str, arguments), "--format", "json"], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: {result.stderr}")
    return json.loads(result.stdout)


def human(size):
    for unit in ["B", "KiB", "MiB"]:
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def main():
    print(__doc__.split("\n    cargo")[0].replace("docs/replay.md.", "`scripts/replay_corpus.py`.").strip() + "\n")
    print("| program | requests | live at most | needed | planned | cost | moved | sliding | at least |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    costs = []
    for path in sorted(CORPUS.glob("*/before.hlo.txt")):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.csv"
            whole = replay(path, "--target", "gpu-h100", "--limit", "1TiB", "--trace", trace)
            needed, planned = whole["smallest_pool"], whole["planned"]
            tight = replay(trace, "--limit", f"{needed}B")
            worst = max(
                range(len(tight["samples"])),
                key=lambda i: (tight["samples"][i]["reserved"] - tight["samples"][i]["in_use"])
                - tight["samples"][i]["largest_free"],
            )
            sample = tight["samples"][worst]
            hole = (sample["reserved"] - sample["in_use"]) * 9 // 10
            arguments = ["--limit", f"{needed}B", "--defragment-at", worst, "--hole", f"{hole}B"]
            tidy = replay(trace, *arguments)["defragmentation"] if hole > 0 else None
        moves = [human(tidy[key]) for key in ("bytes_moved", "slide_all", "lower_bound")] if tidy else ["–"] * 3
        costs.append(needed / planned)
        row = [
            path.parent.name, len(whole["allocations"]), human(whole["peak"]["requested"]), human(needed), human(planned),
            f"{100 * (costs[-1] - 1):+.2f} %", *moves,
        ]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    product = 1.0
    for cost in costs:
        product *= cost ** (1 / len(costs))
    print(f"\nGeometric mean of needed over planned: {product:.4f} over {len(costs)} programs.")


if __name__ == "__main__":
    main()
