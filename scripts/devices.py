#!/usr/bin/env python3
"""Writes the table of totals in docs/devices.md: what one device of several needs, by XLA and by memplan.

    python3 scripts/devices.py FOLDER TOTALS.jsonl...

FOLDER has the programs of scripts/sharded_programs.py. TOTALS are lines of JSON, one for each program and compiler: `file`,
`backend` (gpu, cpu or tpu) and `total`, the bytes of one device that XLA's own compiler says it needs.
"""

import json
import os
import subprocess
import sys

import tables

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
TOLERANCE = {"gpu": 0.10, "cpu": 0.10, "tpu": 0.15}
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "devices.md")


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
lines = [
    f"- xla-{backend}: {sum(good[backend])} of {len(good[backend])} within {TOLERANCE[backend]:.0%}"
    for backend in backends
]
head = ["program", *(column for b in backends for column in (f"{b}: XLA", "estimate", "ratio"))]
table = tables.markdown(head, ["---"] + ["---:"] * (len(head) - 1), rows)
page = open(PAGE, encoding="utf-8").read()
page = tables.put(page, "<!-- totals: scripts/devices.py -->\n", "<!-- end -->", "\n".join(lines) + "\n\n" + table)
with open(PAGE, "w", encoding="utf-8") as file:
    file.write(page)
