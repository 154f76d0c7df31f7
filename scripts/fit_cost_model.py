#!/usr/bin/env python3
"""Fits the cost model of a TPU to the cycles that libtpu writes beside its instructions (docs/cost_model.md).

usage: fit_cost_model.py [--fit] [--document FILE] CORPUS [MORE...]

CORPUS is a folder with a folder for each program, whose tpu.hlo.txt libtpu compiled for a v5e (1.5 GHz). MORE are files
of other modules of libtpu, which are only tested. Without --fit the numbers of the target file are judged; with it, new
ones are fitted on every other program of the corpus and judged on the rest. Needs numpy and scipy, and cargo.
"""
import argparse
import math
import pathlib
import re
import subprocess
import sys
import tomllib

import numpy as np
from scipy.optimize import minimize

import kernel_features
from tables import put

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLOCK = 1.5e9
# Operations below take little but the overhead, which is the least that libtpu says of any kernel.
COUNTS_FROM = 3000
# Programs below are over in less than a millisecond.
PROGRAM_COUNTS_FROM = 1e6
# Parameters in the order of the fit, with the numbers that it starts from.
START = dict(kernel_share=0.7, evaluation=7e-9, access=4e-9, epilogue=1.5e-9, operand=1e-9, move=8e-10)


class Kernels:
    """The instructions of some modules, as columns."""

    def __init__(self, modules):
        rows = [row | dict(program=name) for name, path in modules for row in features(path)]
        self.program = np.array([row["program"] for row in rows])
        self.kind = np.array([row["kind"] for row in rows])
        number = lambda key: np.array([float(row[key]) for row in rows])
        self.cycles, self.runs = number("cycles"), number("runs")
        self.has_products, self.is_move = number("has_products") > 0, number("is_move") > 0
        self.main, self.other = number("main_memory_seconds"), number("other_memory_seconds")
        self.matrix, self.arithmetic = number("matrix_seconds"), number("arithmetic_seconds")
        self.evaluated, self.accessed = number("evaluated"), number("accessed")

    def seconds(self, p, overhead):
        """The model, as crates/analysis/src/cost/machine.rs has it."""
        registers = np.where(
            self.is_move,
            p["move"] * self.accessed,
            np.where(
                self.has_products,
                p["epilogue"] * self.evaluated + p["operand"] * self.accessed,
                p["evaluation"] * self.evaluated + p["access"] * self.accessed,
            ),
        )
        compute = np.maximum(self.matrix + registers, self.arithmetic)
        return overhead + np.maximum(compute, self.main / p["kernel_share"] + self.other)

    def roofline(self):
        """What the model was before: rates and bandwidths alone."""
        return np.maximum(np.maximum(self.matrix, self.arithmetic), self.main + self.other)


def features(path):
    """Rows of examples/kernel_features.rs, with libtpu's cycles."""
    text = path.read_text()
    try:
        table = kernel_features.rows("tpu-v5e", path)
    except subprocess.CalledProcessError as error:
        print(f"{path.name}: {error.stderr.strip()[-200:]}", file=sys.stderr)
        return
    line = r'^\s*(?:ROOT )?%?([\w.\-]+) = (.*?"estimated_cycles":"(\d+)".*)$'
    said = {m[1]: (int(m[3]), m[2]) for m in re.finditer(line, text, re.MULTILINE)}
    for row in table:
        cycles, printed = said.get(row["instruction"], (0, ""))
        if 0 < cycles < 1e15:
            yield row | dict(cycles=cycles, kind=kind(row, printed))


def kind(row, printed):
    if row["has_products"] == "1":
        return "matrix products and convolutions"
    if row["opcode"] == "fusion":
        return "fusions with a reduction" if "reduce" in row["instruction"] else "other fusions"
    return row["opcode"]


def fit(kernels, train, overhead):
    """The parameters with which operations and whole programs are off by least, in logarithms."""
    counts = train & (kernels.cycles >= COUNTS_FROM)
    # Layers of a model are the same kernel many times.
    keys = list(zip(kernels.program[counts], kernels.cycles[counts]))
    weight = np.array([keys.count(key) ** -0.5 for key in keys]) if len(keys) < 20000 else np.ones(len(keys))
    start = np.log(list(START.values()))

    def loss(logarithms):
        seconds = kernels.seconds(dict(zip(START, np.exp(logarithms))), overhead)
        off = np.log(seconds[counts] * CLOCK / kernels.cycles[counts])
        totals = np.log([ratio for _, ratio in ratios(kernels, seconds, train)])
        stays = 1e-3 * np.square(logarithms - start).mean()
        return np.average(np.sqrt(off**2 + 0.01), weights=weight) + 0.5 * np.sqrt(totals**2 + 0.003).mean() + stays

    found = minimize(loss, start, method="Nelder-Mead", options=dict(maxiter=4000, fatol=1e-7, xatol=1e-5))
    return dict(zip(START, np.exp(found.x)))


def ratios(kernels, seconds, among):
    """Our cycles over libtpu's, for each program that is long enough."""
    for program in sorted(set(kernels.program[among])):
        these = kernels.program == program
        theirs = (kernels.runs * kernels.cycles)[these].sum()
        if theirs >= PROGRAM_COUNTS_FROM:
            yield program, (kernels.runs * seconds)[these].sum() * CLOCK / theirs


def judge(kernels, seconds, among):
    """Operations, the median of our cycles over libtpu's, and the share within a factor of two."""
    counts = among & (kernels.cycles >= COUNTS_FROM)
    off = np.log(np.maximum(seconds[counts] * CLOCK, 1) / kernels.cycles[counts])
    if not len(off):
        return 0, math.nan, math.nan
    return len(off), math.exp(np.median(off)), float((abs(off) <= math.log(2)).mean())


def target_numbers():
    target = tomllib.loads((ROOT / "crates/memory/targets/tpu-v5e.toml").read_text())
    unit = target["vector_unit"]
    numbers = {name: unit[f"{name}_seconds"] for name in START if f"{name}_seconds" in unit}
    return target["kernel_overhead"], dict(kernel_share=target["spaces"][0]["kernel_share"]) | numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--document", type=pathlib.Path)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("more", type=pathlib.Path, nargs="*")
    arguments = parser.parse_args()
    found = sorted((folder.name, folder / "tpu.hlo.txt") for folder in arguments.corpus.iterdir())
    modules = [(name, path) for name, path in found if path.exists()]
    others = [(path.name.split(".")[1], path) for path in arguments.more]
    kernels = Kernels(modules + others)
    train = np.isin(kernels.program, [name for name, _ in modules[::2]])
    test = np.isin(kernels.program, [name for name, _ in modules[1::2]])
    unseen = np.isin(kernels.program, [name for name, _ in others])
    overhead, numbers = target_numbers()
    if arguments.fit:
        numbers = fit(kernels, train, overhead)
        print(f"least cycles of a kernel with arrays: {np.quantile(kernels.cycles, 0.1):.0f}")
        for name, value in numbers.items():
            print(f"{name} = {value:.3g}")
    seconds = kernels.seconds(numbers, overhead)
    groups = [("fitted on", train), ("not fitted on", test)] + ([("of other programs", unseen)] if others else [])
    lines = ["| operations | number | before: median | within 2x | now: median | within 2x |", "|---|---|---|---|---|---|"]
    kinds = [(name, kernels.kind == name) for name in sorted(set(kernels.kind), key=lambda k: -(kernels.kind == k).sum())]
    for name, among in groups + kinds:
        (n, *now), (_, *before) = judge(kernels, seconds, among), judge(kernels, kernels.roofline(), among)
        if n:
            lines.append(f"| {name} | {n:,} | {before[0]:.2f} | {before[1]:.0%} | {now[0]:.2f} | {now[1]:.0%} |")
    lines += ["", "| program | before | now |", "|---|---|---|"]
    everything = np.full(len(kernels.program), True)
    before = dict(ratios(kernels, kernels.roofline(), everything))
    for program, ratio in ratios(kernels, seconds, everything):
        lines.append(f"| {program} | {before[program]:.2f} | {ratio:.2f} |")
    print("\n".join(lines))
    if arguments.document:
        page = put(arguments.document.read_text(), "<!-- tables -->\n", "<!-- end -->", "\n".join(lines) + "\n")
        arguments.document.write_text(page)


if __name__ == "__main__":
    main()
