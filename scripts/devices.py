#!/usr/bin/env python3
"""Makes the table of docs/devices.md: what one device of several needs, by XLA and by memplan.

    python3 scripts/devices.py FOLDER TOTALS.jsonl... > docs/devices.md

FOLDER has the programs of scripts/sharded_programs.py. TOTALS are lines of JSON, one for each program and compiler: `file`,
`backend` (gpu, cpu or tpu) and `total`, the bytes of one device that XLA's own compiler says it needs.
"""

import json
import os
import subprocess
import sys

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
TOLERANCE = {"gpu": 0.10, "cpu": 0.10, "tpu": 0.15}
HEAD = """# Several devices

What one device needs of a program that is spread over several, said before XLA partitions and compiles it: `memplan
estimate` on the programs of `scripts/sharded_programs.py`, beside what XLA itself needed on one device (arguments + outputs -
aliased + temporaries; jaxlib 0.12.0.1; GPU: H100s). Totals are in MB (10^6 bytes). `scripts/devices.py` made this.

memplan partitions the program as XLA does ([`crates/spmd`](../crates/spmd)), so arguments agree to the byte. For GPUs it
combines collectives, gathers along first dimensions, and follows the latency-hiding scheduler, which defers gradients of
weights to hide transfers: programs that are written out may need three times the bytes of the same layers in a loop.
`memplan rewrite` says which option of the compiler avoids that (the lever `flags`). XLA's CPU compiler sends f32, and adds
all gradients up at once. Three causes of the largest differences are known: what attention scores that are computed again
take where gradients are deferred (`transformer_fully_remat_written_4`), gradients of a lookup along a sharded sequence
(`transformer_sequence_2x4`), and on CPUs gathers in a `shard_map` (`gathered_written_8`).

Each small program (`--small`) that has no `shard_map` is run by the evaluator on all devices, and gives what the whole
program gives: `crates/spmd/tests/evaluate.rs`.
"""


def estimate(file, backend):
    command = [MEMPLAN, "estimate", file, "--compiler", f"xla-{backend}@0.12", "--format", "json"]
    try:
        return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout)["total"]
    except (ValueError, KeyError, subprocess.TimeoutExpired):
        return None


folder, *files = sys.argv[1:]
found = {}
for path in files:
    for line in open(path, encoding="utf-8"):
        row = json.loads(line)
        if "total" in row:
            name = os.path.basename(row["file"]).removesuffix(".hlo.txt")
            found.setdefault(name, {})[row["backend"]] = row["total"]
backends = [b for b in TOLERANCE if any(b in totals for totals in found.values())]
good = {b: [] for b in backends}
rows = []
for name in sorted(found):
    cells = [name]
    for backend in backends:
        total = found[name].get(backend)
        own = total and estimate(f"{folder}/{name}.hlo.txt", backend)
        if not own:
            cells += ["" if total is None else f"{total / 1e6:,.1f}", "", ""]
            good[backend] += [] if total is None else [False]
            continue
        good[backend].append(abs(own / total - 1) <= TOLERANCE[backend])
        cells += [f"{total / 1e6:,.1f}", f"{own / 1e6:,.1f}", f"{own / total:.2f}"]
    rows.append(cells)
print(HEAD)
for backend in backends:
    of = good[backend]
    print(f"- xla-{backend}: {sum(of)} of {len(of)} within {TOLERANCE[backend]:.0%}")
print("\n| program | " + " | ".join(f"{b}: XLA | estimate | ratio" for b in backends) + " |")
print("|---|" + "---:|" * (3 * len(backends)))
for cells in rows:
    print("| " + " | ".join(cells) + " |")
