#!/usr/bin/env python3
"""Writes into the files of compilers how far their own figures are from estimates, by kinds of programs.

usage: intervals.py [--memplan FILE] [--folder FOLDER] [--check]

From the project's root, after compare.py. Estimates every program of truth.tsv anew, with the version of the compiler that
measured it, and takes of each kind (`memory::ProgramKind`) the ratios between which the compiler's bytes over those of the
estimate are for most programs; more than four of five, so that four of five are within for families that were left out.
Prints the share within, fitted and left out. --check only prints.
"""

import argparse
import collections
import csv
import gzip
import pathlib
import re

from compare import HERE, ROOT, compare, family, ratio, version

TAILS = 0.08  # of the programs, on either side
FEWEST = 15  # programs of a kind with ratios of its own
LEAST = 30  # programs, without which nothing is known of a compiler
KINDS = ['checkpointed', 'convolutions-in-loops', 'convolutions', 'loops', 'straight']


def kind(module):
    text = gzip.open(module, 'rt').read()
    if ' opt-barrier(' in text:
        return 'checkpointed'
    loops = ' while(' in text
    if ' convolution(' in text:
        return 'convolutions-in-loops' if loops else 'convolutions'
    return 'loops' if loops else 'straight'


def quantile(values, part):
    values = sorted(values)
    at = part * (len(values) - 1)
    below = values[int(at)]
    return below + (values[min(int(at) + 1, len(values) - 1)] - below) * (at - int(at))


def ratios(programs):
    """Of each kind, the lowest and highest ratio of the compiler's bytes to the estimate, without the tails."""
    of_kind = collections.defaultdict(list)
    for program, its_kind in programs:
        of_kind[its_kind].append(1 / ratio(program))
    every = [value for values in of_kind.values() for value in values]
    chosen = {name: values if len(values) >= FEWEST else every for name in KINDS for values in [of_kind[name]]}
    return {name: (quantile(values, TAILS), quantile(values, 1 - TAILS)) for name, values in chosen.items()}


def is_within(program, bounds):
    low, high = bounds
    return min(low, 1) <= 1 / ratio(program) <= max(high, 1)


def coverage(programs):
    """The shares within their intervals: of all programs, and where the program's own family was left out."""
    fitted = ratios(programs)
    inside = sum(is_within(program, fitted[its_kind]) for program, its_kind in programs)
    left_out = 0
    for name in {family(program) for program, _ in programs}:
        others = ratios([it for it in programs if family(it[0]) != name])
        left_out += sum(is_within(p, others[k]) for p, k in programs if family(p) == name)
    return inside / len(programs), left_out / len(programs)


def write(path, programs):
    """Puts the ratios into the file of a compiler."""
    lines = [f'[intervals]                      # scripts/truth/intervals.py: bytes of the compiler over those of the estimate', f'programs = {len(programs)}']
    lines += [f'{name} = [{low:.3f}, {high:.3f}]' for name, (low, high) in ratios(programs).items()]
    text = re.sub(r'\n\[intervals\][^\[]*(?:\[[^\n]*\]\n)*', '', path.read_text()).rstrip('\n')
    path.write_text(text + '\n\n' + '\n'.join(lines) + '\n')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--folder', type=pathlib.Path, default=ROOT / 'target/truth')
    parser.add_argument('--memplan', default=str(ROOT / 'target/release/memplan'))
    parser.add_argument('--table', type=pathlib.Path, default=HERE / 'truth.tsv')
    parser.add_argument('--check', action='store_true')
    arguments = parser.parse_args()
    with open(arguments.table) as file:
        rows = list(csv.DictReader(file, delimiter='\t'))
    estimated = [it for it in compare(rows, arguments.folder, arguments.memplan) if it.estimate]
    by_compiler = collections.defaultdict(list)
    for it in estimated:
        module = arguments.folder / it.jax / it.backend / f'{it.program}.hlo.gz'
        by_compiler[it.backend, version(it.jax)].append((it, kind(module)))
    for (backend, known), programs in sorted(by_compiler.items()):
        path = ROOT / f'crates/memory/compilers/xla-{backend}@{known}.toml'
        fitted, left_out = coverage(programs)
        print(f'xla-{backend}@{known}: {len(programs)} programs, {fitted:.0%} within fitted, {left_out:.0%} within with their family left out')
        if not arguments.check and path.exists() and len(programs) >= LEAST:
            write(path, programs)


if __name__ == '__main__':
    main()
