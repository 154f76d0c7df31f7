#!/usr/bin/env python3
"""What makes programs fit: the tables of docs/fit.md.

    cargo build --release -p memplan-cli
    python3 scripts/make_fit_table.py CORPUS [PROGRAM,...]

CORPUS is a folder with a folder for each program, whose `before.hlo.txt` is what JAX hands over, and whose `gpu.json` and
`tpu.json` are what XLA said that it needs. Limits are shares of that. Bytes and seconds are the same on every machine, but
for the last two columns.
"""

import json
import os
import resource
import subprocess
import sys
import time

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
PROGRAMS = ["gpt2_train_unrolled", "resnet50_train", "llama1b_decode", "lstm_train"]
TARGETS = [("tpu-v5e", "tpu"), ("gpu-a100-40gb", "gpu")]
SHARES = 0.75, 0.5, 0.25
MIB = 2**20


def needed(corpus, name, backend):
    """What XLA said that it needs."""
    with open(f"{corpus}/{name}/{backend}.json") as file:
        said = json.load(file)
    size = lambda kind: said[f"{kind}_size_in_bytes"]
    return size("argument") + size("output") - size("alias") + size("temp")


def fit(path, target, limit):
    """The advice, and what it took: seconds of processors, and seconds on the clock."""
    command = [MEMPLAN, "-q", "fit", path, "--target", target, "--memory-limit", f"{limit}B", "--format", "json"]
    start, clock = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start, time.monotonic() - clock
    return json.loads(done.stdout), taken


def main():
    corpus, *names = sys.argv[1:]
    names = names[0].split(",") if names else PROGRAMS
    print("| program | target | XLA needs | limit | memplan's estimate | the cheapest set | bytes with it | a step with it | processor time | on the clock |")
    print("|---|---|---:|---:|---:|---|---:|---:|---:|")
    for name in names:
        for target, backend in TARGETS:
            needs = needed(corpus, name, backend)
            for share in SHARES:
                found, (seconds, elapsed) = fit(f"{corpus}/{name}/before.hlo.txt", target, int(share * needs))
                best = found["best"]
                what = "; ".join(change["what"] for change in best["changes"]) or "as it is"
                what = what if best["fits"] else f"**nothing fits**, least: {what}"
                cells = [
                    f"{needs / MIB:.0f} MiB",
                    f"{share:.2f}",
                    f"{found['total'] / MIB:.0f} MiB",
                    what,
                    f"{best['total'] / MIB:.0f} MiB",
                    f"{best['seconds'] * 1e3:.1f} ms ({100 * (best['seconds'] / found['seconds'] - 1):+.0f} %)",
                    f"{seconds:.1f} s",
                    f"{elapsed:.1f} s",
                ]
                print(f"| {name} | {target} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
