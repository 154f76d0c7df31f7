#!/usr/bin/env python3
"""Carries out in JAX what `memplan fit` advises, and asks XLA whether the result needs what `fit` said: docs/fit.md.

usage: levers.py [--backend gpu] [--folder FOLDER] [--table FILE] [--memplan FILE] [--again] [--page] [PROGRAM...]

Run it with the python that environment.py prints, after `measure.py --modules`. Takes the programs of this folder that are
trained by `layers.training`, two of each family, and of the changes that `fit` lists for each those that a script can make:
policies of jax.checkpoint around the loss or around a function of a layer, half of the batch, the batch in two parts, and
donation. A row of levers.tsv is one change. What has a row is not asked again, so the command can be interrupted at any time
and goes on where it stopped. --again asks `fit` again, but XLA only about changes that it has not seen; --page only writes
the page.
"""

import argparse
import collections
import csv
import functools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import warnings

import measure
import program
from compare import NAMES, ROOT, table, version

sys.path.insert(0, str(ROOT / 'scripts'))
from tables import put

HERE = pathlib.Path(__file__).resolve().parent
JAX = '0.12.0.1'
COLUMNS = ['program', 'backend', 'jax', 'lever', 'what', 'apply', 'promised', 'xla', 'error']
TARGETS = dict(gpu='gpu-h100', tpu='tpu-v5e')
LEVERS = ['recompute', 'batch', 'microbatch', 'donate']
NEAR = 0.15
PER_FAMILY = 2
FAR = 20
PAGE = ROOT / 'docs' / 'fit.md'


def advised(memplan, module, backend):
    """The changes that `fit` lists for one device, and the extent of the batch."""
    command = [memplan, '-q', 'fit', module, '--target', TARGETS[backend], '--compiler', f'xla-{backend}@{version(JAX)}']
    # Under a limit that nothing fits, `fit` tries all that it can.
    run = subprocess.run([*command, '--devices', '1', '--memory-limit', '1B', '--format', 'json'], capture_output=True, text=True)
    if run.returncode not in (0, 3):
        return [], None
    said = json.loads(run.stdout)
    return said['changes'], said['batch'] and said['batch']['extent']


def carried_out(change, extent):
    """A function that changes how programs are made, or None if a script cannot carry out the change."""
    policy = re.fullmatch(r'(\w+) = jax\.checkpoint\(\w+(?:, policy=jax\.checkpoint_policies\.(\w+))?\)', change['apply'])
    fewer = re.fullmatch(r'batch (\d+) instead of \d+', change['what'])
    parts = re.fullmatch(r'batch \d+ as 2 micro-batches of \d+', change['what'])
    if policy:
        function, saved = policy.groups()
        return functools.partial(around_loss if function == 'loss' else around_function, function, saved)
    if fewer and 2 * int(fewer[1]) == extent:
        return functools.partial(resized, extent, extent // 2)
    if parts:
        return functools.partial(with_options, dict(parts=2))
    if change['lever'] == 'donate':
        return functools.partial(with_options, dict(donate=True))
    return None


def everywhere(name, change):
    """Replaces a function of the families' modules wherever it was imported. Returns it as it was, if there is one."""
    modules = [sys.modules['layers'], *(sys.modules[module] for module, _ in program.FAMILIES.values())]
    found = {id(function): function for function in (getattr(module, name, None) for module in modules) if callable(function)}
    for function in found.values():
        changed = change(function)
        for module in modules:
            if getattr(module, name, None) is function:
                setattr(module, name, changed)
    return list(found.values())


def policies(saved):
    import jax

    return saved and getattr(jax.checkpoint_policies, saved)


def around_loss(_, saved):
    """Checkpoints the differentiated function."""
    import jax

    around = lambda training: lambda loss, *rest, **options: training(jax.checkpoint(loss, policy=policies(saved)), *rest, **options)
    everywhere('training', around)


def around_function(name, saved):
    """Checkpoints a function of a module, or one that `layers.through` calls for each layer. Returns what tells whether it was used."""
    import jax

    found = []

    def around(function):
        found.append(function)
        def checkpointed(*arguments, **named):
            leaves, tree = jax.tree.flatten(arguments)
            is_array = [hasattr(leaf, 'shape') for leaf in leaves]

            def of_arrays(*arrays):
                arrays = iter(arrays)
                merged = [next(arrays) if of else leaf for of, leaf in zip(is_array, leaves)]
                return function(*jax.tree.unflatten(tree, merged), **named)

            return jax.checkpoint(of_arrays, policy=policies(saved))(*[leaf for of, leaf in zip(is_array, leaves) if of])

        return checkpointed

    def through(through):
        return lambda layer, *rest, **options: through(around(layer) if layer.__name__ == name else layer, *rest, **options)

    everywhere(name, around) or everywhere('through', through)
    return lambda: bool(found)


def with_options(options):
    everywhere('training', lambda training: lambda *rest, **others: training(*rest, **(others | options)))


def resized(extent, to):
    """Gives a step fewer examples: in each array of the batch, the first dimension of the batch's extent."""
    import jax

    def smaller(leaf):
        shape = list(leaf.shape)
        if extent in shape:
            shape[shape.index(extent)] = to
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    around = lambda training: lambda loss, parameters, *batch, **options: training(loss, parameters, *jax.tree.map(smaller, batch), **options)
    everywhere('training', around)


def ask(name, backend, change):
    """What XLA needs for a program that is made after a change. For a process of its own."""
    import xla

    was_used = change()
    family, variant = name.split('/')
    made = next(program.Program(name, *rest) for of, *rest in program.FAMILIES[family][1]() if of == variant)
    with tempfile.TemporaryDirectory() as folder:
        row, _ = xla.ask(made, backend, *measure.paths(pathlib.Path(folder), JAX, backend, name))
    # Layers are called when the program is traced.
    if was_used and not was_used():
        return dict(error='not a function of a layer'), []
    return dict(xla=row.get('total'), error=row.get('error')), []


def off(row):
    return int(row['promised']) / int(row['xla'])


def is_near(row):
    return abs(off(row) - 1) <= NEAR


def page(rows):
    """What the page says of the rows that XLA compiled."""
    for backend in dict.fromkeys(row['backend'] for row in rows):
        some = [row for row in rows if row['backend'] == backend and row['xla']]
        groups = {lever: [row for row in some if row['lever'] == lever] for lever in LEVERS} | dict(all=some)
        yield f'{NAMES[backend]}, {len({row["program"] for row in some})} programs:\n'
        lines = ([lever, str(len(of)), share(of), ratio(of, statistics.median), ratio(of, min), ratio(of, max)] for lever, of in groups.items() if of)
        yield from table(['lever', 'changes', f'within {NEAR:.0%}', 'promised over XLA: median', 'least', 'most'], lines)
        far = sorted((row for row in some if not is_near(row)), key=lambda row: -abs(off(row) - 1))[:FAR]
        yield 'The farthest:\n'
        yield from table(['program', 'change', 'promised, MB', 'XLA, MB', 'ratio'], map(line, far))


def share(rows):
    near = sum(map(is_near, rows))
    return f'{near} ({near / len(rows):.0%})'


def ratio(rows, of):
    return f'{of(map(off, rows)):.2f}'


def line(row):
    megabytes = lambda cell: f'{int(cell) / 1e6:,.0f}'
    return [row['program'], row['what'], megabytes(row['promised']), megabytes(row['xla']), f'{off(row):.2f}']


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--backend', choices=TARGETS, default='gpu')
    parser.add_argument('--folder', type=pathlib.Path, default=ROOT / 'target' / 'truth')
    parser.add_argument('--table', type=pathlib.Path, default=HERE / 'levers.tsv')
    parser.add_argument('--memplan', default=ROOT / 'target' / 'release' / 'memplan')
    parser.add_argument('--again', action='store_true')
    parser.add_argument('--page', action='store_true')
    parser.add_argument('programs', nargs='*')
    arguments = parser.parse_args()
    if not arguments.page:
        complete(arguments, measure.Table(arguments.table, COLUMNS))
    with open(arguments.table) as file:
        rows = sorted(csv.DictReader(file, delimiter='\t'), key=lambda row: (row['backend'], row['program'], row['what']))
    PAGE.write_text(put(PAGE.read_text(), '<!-- levers -->\n', '<!-- end -->', '\n' + '\n'.join(page(rows)) + '\n'))


def complete(arguments, found):
    """Adds the rows that are missing, program by program."""
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended'))
    warnings.filterwarnings('ignore', message='os.fork')
    import xla  # Before the first fork, so that each child finds JAX loaded.

    assert xla.jax.__version__ == JAX, f'the python of environment.py has JAX {JAX}'
    backend, folder = arguments.backend, arguments.folder / JAX / arguments.backend
    known = collections.defaultdict(dict)
    for row in found.rows():
        if row['backend'] == backend:
            known[row['program']][row['what'], row['apply']] = row
    for name in list(chosen(arguments.programs)):
        if not arguments.again and name in known:
            continue
        changes, extent = advised(arguments.memplan, folder / f'{name}.hlo.gz', backend)
        rows = []
        for change in changes:
            do = carried_out(change, extent)
            if not do or change['lever'] not in LEVERS:
                continue
            row = dict(program=name, backend=backend, jax=JAX, lever=change['lever'], what=change['what'], apply=change['apply'], promised=change['total'])
            before = known[name].get((change['what'], change['apply']))
            answer = {k: before[k] for k in ('xla', 'error')} if before else measure.in_child(functools.partial(ask, name, backend, do))[0]
            rows.append(row | answer)
            said = f'XLA {int(answer["xla"]) / 1e6:,.0f} MB' if answer.get('xla') else answer['error']
            print(f'{name}: {change["what"]}: {change["total"] / 1e6:,.0f} MB, {said}', flush=True)
        others = [row for row in found.rows() if (row['program'], row['backend']) != (name, backend)]
        found.write(others + rows)


def chosen(only):
    """Of each family two programs that `layers.training` makes, if there are, written out and without a policy; PROGRAM if named."""
    measure.load()
    import layers

    calls = []
    everywhere('training', lambda training: lambda *rest, **options: (calls.append(rest), training(*rest, **options))[1])
    for name, (_, make) in program.FAMILIES.items():
        trained = []
        for variant, *_ in make():
            if calls:
                trained.append(f'{name}/{variant}')
            calls.clear()
        if only:
            yield from (one for one in trained if {one, name} & set(only))
        else:
            yield from sorted(trained, key=lambda one: ('unrolled' not in one, any(of in one for of in layers.POLICIES)))[:PER_FAMILY]


if __name__ == '__main__':
    main()
