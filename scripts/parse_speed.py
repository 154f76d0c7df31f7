#!/usr/bin/env python3
"""Parsing speed of memplan and of XLA on the same files, one core, side by side.

    parse_speed.py [FILE...]

Without files: the corpus. Runs `cargo bench -p memplan-hlo --bench parse` for our side. Needs `pip install jaxlib`.
"""

import pathlib
import subprocess
import sys
import time

from jaxlib import _hlo


def main():
    command = ["cargo", "bench", "-q", "-p", "memplan-hlo", "--bench", "parse", "--", *sys.argv[1:]]
    root = pathlib.Path(__file__).resolve().parent.parent
    ours = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    print(f"{'file':60} {'MB':>7} {'XLA MB/s':>9} {'ours MB/s':>10}")
    total_seconds = 0
    for line in ours.splitlines():
        name, size, read, _write = line.split("\t")
        size, read = int(size.split()[0]), float(read.split()[1])
        if name == "all":
            seconds = total_seconds
        else:
            seconds = best(pathlib.Path(name).read_text())
            total_seconds += seconds
            name = "/".join(pathlib.Path(name).parts[-2:])
        print(f"{name:60} {size / 1e6:7.2f} {size / 1e6 / seconds:9.0f} {read:10.0f}", flush=True)


def best(text):
    """Seconds of the fastest of several runs: three, or as many as fit a fifth of a second."""
    begin, fastest, runs = time.perf_counter(), float("inf"), 0
    while runs < 3 or time.perf_counter() - begin < 0.2:
        start = time.perf_counter()
        _hlo.hlo_module_from_text(text)
        fastest, runs = min(fastest, time.perf_counter() - start), runs + 1
    return fastest


if __name__ == "__main__":
    main()
