#!/usr/bin/env python3
"""Asks whether rewritten programs fit the limits that `memplan rewrite --memory-limit` says they fit: docs/limits.md.

usage: limits.py [--backend gpu] [--families N] [--folder FOLDER] [--table FILE] [--memplan FILE] [--again] [--page]
                 [PROGRAM...]

Run it with the python that environment.py prints, after `measure.py --modules`. Of each of N families (40) it takes the
largest program that computes gradients, and rewrites it for half and for a quarter of what XLA needs for it as written
(truth.tsv). What comes out is compiled by XLA, without a device, in a process of its own. A row of limits.tsv is one program
under one limit; what has a row is not asked again, so the command can be interrupted at any time and goes on where it
stopped. --again rewrites all (or PROGRAM) again, but asks XLA only about modules that it has not seen; --page only writes
the page. FOLDER/limits keeps rewritten modules and what XLA made of them, for `memplan estimate --beside`.
"""

import argparse
import collections
import csv
import gzip
import hashlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import warnings

import intervals
import measure
from compare import NAMES, ROOT, table, version

sys.path.insert(0, str(ROOT / 'scripts'))
from estimates import processor_time

HERE = pathlib.Path(__file__).resolve().parent
JAX = '0.12.0.1'
FAMILIES = 40
SHARES = [0.5, 0.25]
GRADIENT = 'transpose(jvp'  # in the names that JAX gives to operations of a backward half
GOAL = 0.95
COLUMNS = [
    'program',
    'backend',
    'jax',
    'share',
    'limit',
    'verdict',
    'xla_before',
    'expected_before',
    'expected',
    'high',
    'host',
    'slowdown',
    'levers',
    'seconds',
    'module',
    'xla',
    'xla_host',
    'error',
]
# What memplan says of a limit: the upper end of the interval fits, the estimate does, nothing does.
SURELY, PROBABLY, NO = 'surely', 'may not', 'no'


def chosen(rows, folder, n):
    """(program, bytes that XLA needs) of the largest program of each family that computes gradients; the n largest."""
    families = collections.defaultdict(list)
    for row in rows:
        families[row['program'].split('/')[0]].append((int(row['total']), row['program']))
    largest = []
    for programs in families.values():
        trained = (of for of in sorted(programs, reverse=True) if GRADIENT in gzip.open(path(folder, of[1]), 'rt').read())
        largest.extend([of for of in [next(trained, None)] if of])
    return [(name, total) for total, name in sorted(largest, reverse=True)[:n]]


def path(folder, program):
    return folder / f'{program}.hlo.gz'


def rewritten(memplan, module, compiler, limit):
    """What `memplan rewrite` makes of a module under a limit, and what it says of it."""
    with tempfile.TemporaryDirectory() as made:
        out, report = pathlib.Path(made, 'out.hlo'), pathlib.Path(made, 'report.json')
        command = [memplan, '-q', 'rewrite', module, '--compiler', compiler, '--memory-limit', f'{limit}B']
        start = processor_time()
        run = subprocess.run([*command, '-o', out, '--report', report], capture_output=True, text=True)
        if run.returncode not in (0, 3):
            return '', dict(error='memplan: ' + ' '.join(run.stderr.split())[:160])
        said, text = json.loads(report.read_text()), out.read_text()
    before, after = said['before'], said['after']
    fits = SURELY if after['high'] <= limit else PROBABLY
    return text, dict(
        verdict=fits if run.returncode == 0 else NO,
        expected_before=before['total'],
        expected=after['total'],
        high=after['high'],
        host=after['host'],
        slowdown=f'{after["seconds"] / before["seconds"]:.3f}',
        levers=' '.join(dict.fromkeys(step['lever'] for step in said['steps'] if step['kept'])),
        seconds=f'{processor_time() - start:.1f}',
        module=hashlib.sha256(text.encode()).hexdigest()[:12],
    )


def ask(backend, text, scheduled):
    """What XLA needs for a module, as `in_child` carries it; writes what XLA made of it."""
    import xla
    import xla_compilers
    from jaxlib import _hlo

    place = xla.prepare(backend)
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    device = next(iter(place.device_set)) if place else xla.jax.devices('cpu')[0]
    executable = xla_compilers.compiled(proto, device)
    needed = xla_compilers.needed(executable)
    scheduled.write_bytes(gzip.compress(executable.hlo_modules()[0].to_string().encode(), mtime=0))
    return dict(xla=needed['total'], xla_host=needed['host_temp']), []


def asked(backend, text, kept):
    """The same, kept by the module's fingerprint."""
    answer = kept.with_suffix('.json')
    if not answer.exists():
        kept.with_suffix('.hlo').write_text(text)
        found, _ = measure.in_child(lambda: ask(backend, text, kept.with_suffix('.scheduled.gz')))
        answer.write_text(json.dumps(found))
    return json.loads(answer.read_text())


def is_fitting(row):
    return row['verdict'] in (SURELY, PROBABLY)


def is_confirmed(row):
    return bool(row['xla']) and int(row['xla']) <= int(row['limit'])


def residuals(rows):
    """XLA's bytes over those of the estimate: one for each rewritten module, since limits may give the same."""
    known = {row['module']: row for row in rows if row['xla']}
    return [intervals.Residual(row['program'].split('/')[0], 'rewritten', int(row['xla']) / int(row['expected'])) for row in known.values()]


def left_out(of_rows):
    """The share of programs that need no more than the upper end of an interval that their family was left out of."""
    below = [it.ratio <= max(1, intervals.without_tails([o.ratio for o in of_rows if o.family != it.family])[1]) for it in of_rows]
    return sum(below) / len(below)


def megabytes(cell):
    return f'{int(cell) / 1e6:,.1f}' if cell else ''


def summary(rows):
    """A line for each limit: what is said, and how much of that is so."""

    def confirmed(verdicts):
        some = [row for row in rows_of if row['verdict'] in verdicts]
        yes = sum(map(is_confirmed, some))
        return f'{yes} of {len(some)}' + (f' ({yes / len(some):.0%})' if some else '')

    for share in [*map(str, SHARES), None]:
        rows_of = [row for row in rows if share in (None, row['share'])]
        fitting = [row for row in rows_of if is_fitting(row)]
        slowdowns = sorted(float(row['slowdown']) for row in fitting)
        yield [
            f'{float(share):.0%}' if share else 'both',
            str(len(rows_of)),
            *map(confirmed, [[SURELY, PROBABLY], [SURELY], [PROBABLY], [NO]]),
            f'{statistics.median(slowdowns):.2f}, {slowdowns[-1]:.2f}' if slowdowns else '',
            f'{statistics.median(float(row["seconds"]) for row in rows_of):.1f}' if rows_of else '',
        ]


def page(rows):
    yield '# Programs under a memory limit\n'
    yield (
        '`scripts/truth/limits.py` made this. It runs `memplan rewrite --memory-limit` with 50 % and 25 % of what XLA needs for a program '
        'as written, and asks XLA, without a device, what the rewritten program needs. From each family of [truth.md](truth.md) it takes '
        f'the largest program with gradients. JAX {JAX}; MB are 10^6 bytes; *time* is the cost model\'s, over that of the program as written.\n'
    )
    yield (
        'A program fits *surely* if the upper end of its interval is within the limit, and *may not* fit if only the estimate is. '
        f'The goal: XLA confirms {GOAL:.0%} of the programs that fit. *No* means that `rewrite` found no program that fits; XLA fits some of them nevertheless.\n'
    )
    for backend in dict.fromkeys(row['backend'] for row in rows):
        some = [row for row in rows if row['backend'] == backend and row['verdict']]
        yield f'## {NAMES[backend]}\n'
        n = len({row['program'] for row in some})
        yield f'{n} programs so far, the largest first; the script continues with the others.\n' if n < FAMILIES else ''
        yield from table(
            ['limit', 'programs', 'fits, and XLA confirms', 'surely', 'may not', 'no, but XLA fits it', 'time: median, most', 's of a core'],
            summary(some),
        )
        off = residuals(some)
        if len({it.family for it in off}) > 1:
            low, high = intervals.without_tails([it.ratio for it in off])
            yield (
                f'Of {len(off)} rewritten programs, XLA needs {statistics.median(it.ratio for it in off):.3f} of the expected bytes as a median, and '
                f'between {low:.3f} and {high:.3f} without the {intervals.TAILS:.0%} on either side. With its own family left out, '
                f'{left_out(off):.0%} need no more than that upper end.\n'
            )
        wrong = [row for row in some if is_fitting(row) and not is_confirmed(row)]
        if wrong:
            yield 'Not confirmed: ' + ', '.join(f'{row["program"]} at {float(row["share"]):.0%}' for row in wrong) + '.\n'
        yield from table(
            ['program', 'limit, MB', 'fits', 'as written: XLA', 'expected', 'rewritten: XLA', 'expected', 'high', 'over expected', 'time', 'levers'],
            map(line, some),
        )


def line(row):
    fits = row['verdict'] + ('' if not is_fitting(row) or is_confirmed(row) else ', wrong')
    over = f'{int(row["xla"]) / int(row["expected"]):.3f}' if row['xla'] else row['error'][:60]
    bytes_of = [megabytes(row[name]) for name in ('xla_before', 'expected_before', 'xla', 'expected', 'high')]
    return [row['program'], megabytes(row['limit']), fits, *bytes_of, over, row['slowdown'], row['levers']]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--backend', choices=measure.BACKENDS, default='gpu')
    parser.add_argument('--families', type=int, default=FAMILIES)
    parser.add_argument('--folder', type=pathlib.Path, default=ROOT / 'target' / 'truth')
    parser.add_argument('--table', type=pathlib.Path, default=HERE / 'limits.tsv')
    parser.add_argument('--memplan', default=ROOT / 'target' / 'release' / 'memplan')
    parser.add_argument('--again', action='store_true')
    parser.add_argument('--page', action='store_true')
    parser.add_argument('programs', nargs='*')
    arguments = parser.parse_args()
    if not arguments.page:
        complete(arguments, measure.Table(arguments.table, COLUMNS))
    with open(arguments.table) as file:
        rows = sorted(csv.DictReader(file, delimiter='\t'), key=lambda row: (row['backend'], row['program'], -float(row['share'])))
    (ROOT / 'docs' / 'limits.md').write_text('\n'.join(page(rows)))


def complete(arguments, found):
    """Adds the rows that are missing; those of programs that do not fit come last."""
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended'))
    warnings.filterwarnings('ignore', message='os.fork')
    import xla  # Before the first fork, so that each child finds JAX loaded.

    assert xla.jax.__version__ == JAX, f'the python of environment.py has JAX {JAX}'
    backend = arguments.backend
    with open(HERE / 'truth.tsv') as file:
        rows = [row for row in csv.DictReader(file, delimiter='\t') if (row['jax'], row['backend']) == (JAX, backend) and row['total']]
    folder = arguments.folder / JAX / backend
    kept = arguments.folder / 'limits' / backend
    kept.mkdir(parents=True, exist_ok=True)
    programs = chosen(rows, folder, arguments.families)
    if arguments.programs:
        programs = [of for of in programs if {of[0], of[0].split('/')[0]} & set(arguments.programs)]
    todo = {(name, str(share)): dict(xla_before=total, limit=int(total * share)) for name, total in programs for share in SHARES}
    if arguments.again:
        found.write([row for row in found.rows() if (row['program'], row['share']) not in todo or row['backend'] != backend])
    known = {(row['program'], row['share']) for row in found.rows() if row['backend'] == backend}
    later = []
    for (name, share), row in todo.items():
        if (name, share) in known:
            continue
        row |= dict(program=name, backend=backend, jax=JAX, share=share)
        text, said = rewritten(arguments.memplan, path(folder, name), f'xla-{backend}@{version(JAX)}', row['limit'])
        row |= said
        if row.get('verdict') == NO:
            later.append((row, text))
        else:
            add(found, row, text, kept)
    for row, text in later:
        add(found, row, text, kept)


def add(found, row, text, kept):
    if text:
        row |= asked(row['backend'], text, kept / row['module'])
    found.add([row])
    what = row.get('error') or f'{row["verdict"]}: expected {megabytes(row["expected"])}, XLA {megabytes(row["xla"])}'
    print(f'{row["program"]} in {megabytes(row["limit"])} MB: {what}, memplan took {row.get("seconds")} s', flush=True)


if __name__ == '__main__':
    main()
