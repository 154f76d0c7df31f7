#!/usr/bin/env python3
"""What libtpu's memory space assignment did with each value, from its log: in which order, and where it put it.

    TPU_MIN_LOG_LEVEL=0 TPU_STDERR_LOG_LEVEL=0 TPU_VMODULE=algorithm=4,cost_analysis=4,memory_space_assignment=3 \\
        python xla_compile.py tpu FILE 2> LOG
    python3 scripts/libtpu_vmem.py LOG[.gz] [LEAST]

A line for each value of LEAST bytes or more (default: 1 MiB), in the order of their assignment: bytes, the result of
each try, and the addresses at which it was kept in VMEM or copied out from, or the instant after which it was fetched.
"""

import gzip
import re
import sys

NOTES = {
    r"Keep the buffer in alternate memory\. Offset = (\d+)": "kept at {}",
    r"Move the buffer to alternate memory after time (\d+)": "fetched after {}",
    r"Evicting buffer at (\d+)": "copied out from {}",
}


def values(lines):
    """The values that were assigned, with what the log says of each."""
    found = []
    for line in lines:
        if begin := re.search(r"Processing buffer: <\d+ (.*)>", line):
            found.append({"name": begin[1], "bytes": 0, "results": [], "notes": []})
        if not found:
            continue
        value = found[-1]
        if size := re.search(r" Size = (\d+)", line):
            value["bytes"] = int(size[1])
        if result := re.search(r"Allocation result = (.*)", line):
            value["results"].append(result[1])
        for pattern, text in NOTES.items():
            note = re.search(pattern, line)
            if note and text.format(note[1]) not in value["notes"][-1:]:
                value["notes"].append(text.format(note[1]))
    return found


if __name__ == "__main__":
    path, *least = sys.argv[1:]
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:
        for value in values(file):
            if value["bytes"] >= int(least[0] if least else 2**20):
                results = "; ".join(value["results"])
                print(f"{value['name']:56} {value['bytes'] / 2**20:8.2f} MiB  {results}  | {', '.join(value['notes'])}")
