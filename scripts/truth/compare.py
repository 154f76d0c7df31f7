#!/usr/bin/env python3
"""Sets what `memplan estimate` says beside what XLA said of the programs of this folder.

usage: compare.py [--folder FOLDER] [--table FILE] [--memplan FILE] [--jax VERSION] [--only BACKEND] [--write]

From the project's root. Reads truth.tsv, estimates the modules in FOLDER (target/truth; `measure.py --modules` makes them),
and writes estimates.tsv beside the table and docs/truth.md. With --only, estimates for the other compilers are those of
estimates.tsv, and their modules need not be there. --write puts how far estimates are off into the files of the
compilers (intervals.py).
"""

import argparse
import collections
import csv
import json
import math
import os
import pathlib
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor

import intervals

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NEAR = dict(cpu=0.10, gpu=0.10, tpu=0.15)
NAMES = dict(cpu='XLA CPU', gpu='XLA GPU (H100)', tpu='libtpu (v5e)')
ESTIMATES = HERE / 'estimates.tsv'
COLUMNS = ['program', 'backend', 'jax', 'total', 'estimate', 'ratio', 'kind']
WORST = 40

# A program under one compiler: bytes that XLA needs and that memplan says, None where it says nothing.
Compared = collections.namedtuple('Compared', 'program backend jax total estimate seconds kind')


def family(of):
    return of.program.split('/')[0]


def ratio(of):
    return of.estimate / of.total


def is_near(of):
    return of.estimate is not None and abs(ratio(of) - 1) <= NEAR[of.backend]


def distance(of):
    return abs(math.log(ratio(of))) if of.estimate else math.inf


def version(jax):
    """As names of compilers have it."""
    return '.'.join(jax.split('.')[:2])


def estimate(memplan, module, backend, jax):
    """Bytes, or None where memplan refuses."""
    said = estimated(memplan, module, backend, jax)
    return said and said['total']


def estimated(memplan, module, backend, jax):
    """What `memplan estimate` says, or None where it refuses."""
    command = [memplan, 'estimate', module, '--compiler', f'xla-{backend}@{version(jax)}', '--format', 'json']
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode not in (0, 3):  # 3: it does not fit
        print(f'{module}: {run.stderr.strip()[:200]}')
        return None
    return json.loads(run.stdout)


def compare(rows, folder, memplan):
    """Everything that XLA compiled, with estimates."""
    known = [row for row in rows if row['total']]
    modules = [folder / row['jax'] / row['backend'] / f'{row["program"]}.hlo.gz' for row in known]
    if missing := [module for module in modules if not module.exists()]:
        raise SystemExit(f'{len(missing)} modules are not there, as {missing[0]}: make them with measure.py --modules')
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda row, module: estimate(memplan, module, row['backend'], row['jax']), known, modules)
        return [compared(row, said, intervals.kind(module)) for row, said, module in zip(known, found, modules)]


def compared(row, estimate, kind):
    said = row['program'], row['backend'], row['jax'], int(row['total']), estimate
    return Compared(*said, float(row['processor_seconds']), kind)


def compared_before(rows):
    """What estimates.tsv has of some programs."""
    key = lambda row: (row['program'], row['backend'], row['jax'])
    with open(ESTIMATES) as file:
        before = {key(row): row for row in csv.DictReader(file, delimiter='\t')}
    known = [(row, before[key(row)]) for row in rows if key(row) in before]
    return [compared(row, int(said['estimate']) if said['estimate'] else None, said['kind']) for row, said in known]


def table(head, lines):
    yield f'| {" | ".join(head)} |\n|---|' + '---:|' * (len(head) - 1)
    for line in lines:
        yield f'| {" | ".join(line)} |'
    yield ''


def cells(compared):
    """How many, the share that is near, the median and the worst ratio."""
    if not compared:
        return ['', '', '', '']
    near = sum(map(is_near, compared))
    ratios = [ratio(of) for of in compared if of.estimate]
    worst = max(compared, key=distance)
    middle = f'{statistics.median(ratios):.2f}' if ratios else ''
    return [str(len(compared)), f'{near / len(compared):.0%}', middle, f'{ratio(worst):.2f}' if worst.estimate else 'refused']


def residuals(compared):
    return [intervals.Residual(family(c), c.kind, c.total / c.estimate) for c in compared if c.estimate]


def within(compared, backend):
    """The shares of programs within their intervals, in cells."""
    return [f'{share:.0%}' for share in intervals.coverage(residuals(compared), backend)]


def page(found, rows):
    yield '# What XLA needs, for hundreds of programs\n'
    yield (ROOT / 'docs' / 'truth.head.md').read_text()
    versions = sorted({of.jax for of in found}, reverse=True)
    backends = list(NEAR)
    of = lambda backend, version, name=None: [c for c in found if (c.backend, c.jax) == (backend, version) and name in (None, family(c))]
    yield '## All families\n'
    yield "*Within* is the share of programs for which XLA's bytes are between `low` and `high`: fitted on all programs, and with the program's family left out.\n"
    yield from table(
        ['compiler', 'JAX', 'programs', 'families', 'near is within', 'near', 'median', 'worst', 'within', 'left out', 'processor seconds of XLA: median', 'all'],
        [
            [
                NAMES[backend],
                version,
                str(len(some)),
                str(len(set(map(family, some)))),
                f'{NEAR[backend]:.0%}',
                *cells(some)[1:],
                *within(some, backend),
                f'{statistics.median(c.seconds for c in some):.1f}',
                f'{sum(c.seconds for c in some):,.0f}',
            ]
            for version in versions
            for backend in backends
            if (some := of(backend, version))
        ],
    )
    for version in versions:
        yield f'## By family, JAX {version}\n'
        yield 'For each family: the number of programs, the share that is near, the median ratio of estimate to XLA, and the worst.\n'
        names = sorted({family(c) for c in found if c.jax == version})
        head = [f'{backend}: {what}' if what == 'n' else what for backend in backends for what in ('n', 'near', 'median', 'worst')]
        yield from table(
            ['family', *head], [[name, *(cell for backend in backends for cell in cells(of(backend, version, name)))] for name in names]
        )
    yield '## Farthest\n'
    far = sorted((c for c in found if not is_near(c)), key=lambda c: (-distance(c), c))[:WORST]
    yield from table(
        ['program', 'compiler', 'JAX', 'XLA, MB', 'estimate, MB', 'ratio'],
        [
            [
                c.program,
                NAMES[c.backend],
                c.jax,
                f'{c.total / 1e6:,.1f}',
                *([f'{c.estimate / 1e6:,.1f}', f'{ratio(c):.2f}'] if c.estimate else ['refused', '']),
            ]
            for c in far
        ],
    )
    refused = [row for row in rows if row['error']]
    if refused:
        yield '## Not compiled\n'
        yield 'Programs that XLA refuses, or for which it took too long without a device.\n'
        why = collections.defaultdict(list)
        for row in refused:
            why[row['backend'], row['error'][:90].replace('|', '/')].append(row['program'])
        yield from table(
            ['error', 'compiler', 'programs'],
            [[error, NAMES[backend], ', '.join(sorted(set(programs)))] for (backend, error), programs in sorted(why.items())],
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--folder', type=pathlib.Path, default=ROOT / 'target' / 'truth')
    parser.add_argument('--table', type=pathlib.Path, default=HERE / 'truth.tsv')
    parser.add_argument('--memplan', default=ROOT / 'target' / 'release' / 'memplan')
    parser.add_argument('--jax')
    parser.add_argument('--only', choices=NEAR, help='ask for the estimates of this compiler alone')
    parser.add_argument('--write', action='store_true')
    arguments = parser.parse_args()
    with open(arguments.table) as file:
        rows = [row for row in csv.DictReader(file, delimiter='\t') if arguments.jax in (None, row['jax'])]
    asked = [row for row in rows if arguments.only in (None, row['backend'])]
    others = [row for row in rows if arguments.only not in (None, row['backend'])]
    found = sorted([*compare(asked, arguments.folder, arguments.memplan), *(compared_before(others) if others else [])])
    with open(ESTIMATES, 'w') as out:
        writer = csv.writer(out, delimiter='\t', lineterminator='\n')
        writer.writerow(COLUMNS)
        for c in found:
            off = f'{ratio(c):.4f}' if c.estimate else ''
            writer.writerow([c.program, c.backend, c.jax, c.total, c.estimate or '', off, c.kind])
    (ROOT / 'docs' / 'truth.md').write_text('\n'.join(page(found, rows)))
    if arguments.write:
        for backend, jax in sorted({(c.backend, c.jax) for c in found}):
            some = residuals(c for c in found if (c.backend, c.jax) == (backend, jax))
            path = ROOT / 'crates' / 'memory' / 'compilers' / f'xla-{backend}@{version(jax)}.toml'
            if len(some) >= intervals.LEAST and path.exists():
                intervals.write(path, some, backend)


if __name__ == '__main__':
    main()
