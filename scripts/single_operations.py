#!/usr/bin/env python3
"""Writes docs/single_operations.md: what `memplan estimate` says of programs of one operation, beside what XLA needs.

usage: scripts/single_operations.py [--python PYTHON] [--memplan FILE]     the page, from scripts/single_operations.tsv
       scripts/single_operations.py --truth PYTHON [cpu|gpu|tpu]...        asks XLA what is not known yet (see below)
       scripts/single_operations.py --before FILE                          what FILE, an older memplan, says: the columns "before"

From the project's root. The programs are those of scripts/single_programs.py; their modules are made again in
target/single_operations by PYTHON, which has JAX and XLA's compilers. Asking takes a second a program on CPU and GPU and
some seconds on TPU; it goes on where it stopped.
"""
import collections, csv, math, os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

from estimates import GOALS, Refused, estimate, rows

TRUTH = 'scripts/single_operations.tsv'
BEFORE = 'scripts/single_operations_before.tsv'
MODULES = 'target/single_operations'
LEAST = 100_000   # bytes: of smaller programs, alignment and code are most of what there is
FAR = .67         # no estimate should be below this share of what XLA needs
WORST = 25

# A program under one compiler: bytes that XLA needs, that memplan estimated before, and estimates now (None: refused).
Row = collections.namedtuple('Row', 'program kind backend total before after')


def make_modules(python, backend, *rest):
    """Lowers the programs that are not there yet, and asks XLA where the rest of the arguments says so."""
    subprocess.run([python, 'scripts/single_programs.py', backend, f'{MODULES}/{backend}', TRUTH, *rest], check=True)


def module(name, backend):
    return f'{MODULES}/{backend}/{name}.hlo.txt'


def kinds(python):
    code = ("import sys; sys.path.insert(0, 'scripts'); import single_programs as s; "
            "[print(name, of[0], sep='\\t') for name, of in s.PROGRAMS.items()]")
    told = subprocess.run([python, '-c', code], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(line.split('\t') for line in told.splitlines())


def known():
    """What XLA needs, by program and backend; programs that it refuses are left out."""
    return {(row['program'], row['backend']): int(row['total']) for row in rows(TRUTH) if row['total']}


def estimates(memplan, programs):
    """Estimates by program and backend, None where there is none."""
    def ask(program):
        try:
            return estimate(memplan, module(*program), program[1])[0]
        except Refused as refused:
            print(refused, file=sys.stderr)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(programs, pool.map(ask, programs)))


def write_before(memplan):
    """Asks an older memplan about the programs of which it has not been asked yet."""
    found = {(row['program'], row['backend']): row['estimate'] for row in rows(BEFORE)} if os.path.exists(BEFORE) else {}
    found |= estimates(memplan, [program for program in known() if program not in found])
    with open(BEFORE, 'w') as out:
        writer = csv.writer(out, delimiter='\t', lineterminator='\n')
        writer.writerow(['program', 'backend', 'estimate'])
        writer.writerows(sorted([*program, total or ''] for program, total in found.items()))


def share(found, total):
    return (found or 1) / total


def is_near(found, row):
    return abs(share(found, row.total) - 1) <= GOALS[row.backend][0]


def distance(found, row):
    return abs(math.log(share(found, row.total)))


def count(of):
    """'near before -> near after of all' of some rows."""
    if not of:
        return ''
    before, after = (sum(is_near(getattr(row, when), row) for row in of) for when in ('before', 'after'))
    return f'{before} → {after} of {len(of)}'


def cells(row):
    """Columns of one program under one compiler."""
    if row is None:
        return ['', '', '']
    of = lambda found: f'{share(found, row.total):.2f}' if found else 'refused'
    return [f'{row.total / 1e6:,.2f}', of(row.before), of(row.after) if is_near(row.after, row) else f'**{of(row.after)}**']


def table(head, lines):
    yield f'| {" | ".join(head)} |\n|---|' + '---:|' * (len(head) - 1)
    for line in lines:
        yield f'| {" | ".join(line)} |'
    yield ''


def page(found):
    by_backend = {backend: [row for row in found if row.backend == backend] for backend in GOALS}
    yield '# Estimates of single operations\n'
    yield ('`scripts/single_operations.py` made this: programs of one operation, forward and backward, in types and sizes as '
           'people use them (`scripts/single_programs.py`), lowered by JAX for each compiler, what XLA needs for them (arguments '
           '+ outputs - aliased + temporaries; GPU: an H100, TPU: a v5e), and what `memplan estimate` says, as a share of that, '
           'before single operations were looked at and now. MB are 10^6 bytes; what is not near is bold.\n')
    lines = []
    for backend, of in by_backend.items():
        if not of:
            continue
        near = lambda when: f'{sum(is_near(getattr(row, when), row) for row in of) / len(of):.0%}'
        below = lambda when: str(sum(share(getattr(row, when), row.total) < FAR for row in of))
        above = lambda when: str(sum(share(getattr(row, when), row.total) > 1 / FAR for row in of))
        lines.append([f'xla-{backend}', str(len(of)), f'{GOALS[backend][0]:.0%}',
                      *(of_rows(when) for of_rows in (near, below, above) for when in ('before', 'after'))])
    yield from table(['compiler', 'programs', 'near is within', 'near before', 'now', f'below {FAR} before', 'now',
                      f'above {1 / FAR:.1f} before', 'now'], lines)
    yield '## By kind\n'
    of_kind = lambda kind, backend: [row for row in by_backend[backend] if row.kind == kind]
    yield from table(['near, before → now', *GOALS],
                     ([kind, *(count(of_kind(kind, backend)) for backend in GOALS)] for kind in dict.fromkeys(row.kind for row in found)))
    for backend, of in by_backend.items():
        far = sorted((row for row in of if not is_near(row.after, row)), key=lambda row: -distance(row.after, row))
        if far:
            yield f'## Farthest on xla-{backend}\n'
            yield from table(['program', 'XLA, MB', 'before', 'now'], ([row.program, *cells(row)] for row in far[:WORST]))
    yield '## Every program\n'
    rows_of = {(row.program, row.backend): row for row in found}
    yield from table(['program', *(title for backend in GOALS for title in (f'{backend}: MB', 'before', 'now'))],
                     ([name, *(cell for backend in GOALS for cell in cells(rows_of.get((name, backend))))]
                      for name in dict.fromkeys(row.program for row in found)))


def main():
    arguments = sys.argv[1:]
    options = {key: arguments[arguments.index(key) + 1] for key in ('--memplan', '--python', '--truth', '--before') if key in arguments}
    python = options.get('--truth', options.get('--python', sys.executable))
    for backend in [backend for backend in GOALS if backend in arguments] or GOALS:
        if '--truth' in options:
            make_modules(python, backend, '--ask', 'inf')
        elif not all(os.path.exists(module(*program)) for program in known() if program[1] == backend):
            make_modules(python, backend)
    if '--before' in options:
        write_before(options['--before'])
    if '--truth' in options or '--before' in options:
        return
    truth, before = known(), {(row['program'], row['backend']): int(row['estimate'] or 0) for row in rows(BEFORE)}
    now = estimates(options.get('--memplan', 'target/release/memplan'), [key for key, total in truth.items() if total >= LEAST])
    found = [Row(name, kind, backend, truth[name, backend], before.get((name, backend)), now[name, backend])
             for name, kind in kinds(python).items() for backend in GOALS if (name, backend) in now]
    with open('docs/single_operations.md', 'w') as out:
        out.write('\n'.join(page(found)))


if __name__ == '__main__':
    main()
