#!/usr/bin/env python3
"""Sets the cost model beside the kernels of programs that ran on a GPU.

usage: gpu_kernels.py MEMPLAN FOLDER [--write]

Reads gpu_kernels.jsonl.gz, which scripts/time_on_gpu.py measured: for each program the module that XLA made on that GPU, the
seconds of its kernels, and bytes with the device, and without one (`total_without_device`) where the same version was asked
there. FOLDER has the programs as JAX hands them over (FOLDER/FAMILY/VARIANT.hlo.gz; scripts/truth/measure.py --modules makes
them). --write puts the tables into docs/gpu.md. Needs cargo.
"""

import collections
import gzip
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import kernel_features
from tables import put

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu.md"
TARGET, COMPILER = "gpu-h100", "xla-gpu@0.12"
# Kernels of fewer seconds are mostly launch; what the host adds to a run, seen as the difference to the span of kernels.
LONG, HOST = 2e-5, 1e-4
# Groups of kernels by the name that XLA gives them, or of the library's call: the first that is found.
GROUPS = {
    "products, Triton": r"gemm_fusion",
    "products, cuBLAS": r"__cublas\$(gemm|lt)",
    "convolutions, cuDNN": r"__cudnn\$conv",
    "scatters": r"scatter",
    "reductions": r"reduce",
    "updates in place": r"dynamic_update",
    "transposes, concatenations": r"^(input_|wrapped_transpose)",
    "elementwise": r"^(loop_|wrapped_)",
}

Kernel = collections.namedtuple("Kernel", "program group measured expected runs")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    rows = [json.loads(line) for line in gzip.open(ROOT / "scripts" / "gpu_kernels.jsonl.gz", "rt")]
    found = {
        "kernels": table_of_kernels([kernel for row in rows for kernel in kernels(row)]),
        "programs": table_of_programs(rows, sys.argv[1], pathlib.Path(sys.argv[2])),
    }
    page = PAGE.read_text()
    for name, table in found.items():
        page = put(page, f"<!-- {name} -->\n", "<!-- end -->", table + "\n")
        print(table, "\n")
    if "--write" in sys.argv:
        PAGE.write_text(page)


def kernels(row):
    """Instructions of a program whose kernels the profiler names, with the seconds of one run."""
    lines = {m[1]: m[2] for m in re.finditer(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$", row["module"], re.MULTILINE)}
    features = collections.defaultdict(list)
    for feature in features_of(row["module"]):
        features[feature["instruction"]].append(feature)
    # Generated kernels have the names of their fusions; kernels of a library belong to the call.
    by_kernel = {re.sub(r"[.\-]", "_", name): name for name in features}
    measured = collections.defaultdict(lambda: [0, 0.0])
    for key, (count, nanoseconds) in row["kernels"].items():
        instruction, _, kernel = key.partition("\t")
        name = by_kernel.get(kernel) or (instruction if instruction in features else None)
        if name:
            total = measured[name]
            total[0], total[1] = max(total[0], count), total[1] + nanoseconds * 1e-9
    for name, (count, seconds) in measured.items():
        # Where a call is several kernels, the module says how often it runs.
        runs = float(features[name][0]["runs"]) if "custom-call(" in lines[name] else count
        expected = statistics.mean(float(feature["seconds"]) for feature in features[name])
        yield Kernel(row["program"], group(name, lines[name]), seconds / max(runs, 1), expected, max(runs, 1))


def group(name, line):
    called = re.search(r'custom_call_target="([^"]*)"', line)
    text = called[1] if called else name
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, text)), "others")


def features_of(module):
    with tempfile.NamedTemporaryFile("w", suffix=".hlo.txt") as file:
        file.write(module)
        file.flush()
        return kernel_features.rows(TARGET, file.name, COMPILER)


def table_of_kernels(found):
    lines = ["| kernels | number | seconds | ours: in all | of 20 µs and more | median | within 2x |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name in [*GROUPS, "others"]:
        lines.append(line(name, [kernel for kernel in found if kernel.group == name]))
    return "\n".join([*lines, line("all", found)])


def line(name, found):
    long = [kernel.expected / kernel.measured for kernel in found if kernel.measured >= LONG]
    seconds = sum(kernel.measured * kernel.runs for kernel in found)
    ours = sum(kernel.expected * kernel.runs for kernel in found) / seconds
    within = sum(0.5 <= ratio <= 2 for ratio in long) / len(long)
    return f"| {name} | {len(found)} | {seconds:.3f} | {ours:.2f} | {len(long)} | {statistics.median(long):.2f} | {within:.0%} |"


def table_of_programs(rows, memplan, folder):
    lines = ["| program | ms | expected / measured | GB | without a device | estimate |", "|---|---:|---:|---:|---:|---:|"]
    off = []
    for row in sorted(rows, key=lambda row: row["program"]):
        file = folder / (row["program"].replace(".", "/", 1) + ".hlo.gz")
        command = [memplan, "estimate", file, "--compiler", COMPILER, "--format", "json"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        seconds = min(row["span_seconds"], row["seconds"] - HOST)
        off.append(math.log(found["seconds"] / seconds))
        share = lambda bytes: f"{bytes / row['total']:.2f}" if bytes else ""
        cells = [row["program"], f"{seconds * 1e3:.2f}", f"{math.exp(off[-1]):.2f}", f"{row['total'] / 1e9:.2f}"]
        cells += [share(row.get("total_without_device")), share(found["total"])]
        lines.append("| " + " | ".join(cells) + " |")
    error = math.sqrt(statistics.mean(x * x for x in off))
    near = sum(abs(x) <= math.log(1.25) for x in off)
    lines.append(f"\nSeconds: root of the mean square of logarithms {error:.2f}; within 25 %: {near} of {len(off)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
