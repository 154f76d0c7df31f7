#!/usr/bin/env python3
"""Sets what `memplan estimate` says beside what XLA needs, for programs of JAX's libraries.

usage: unseen.py [--estimate] [--page] [--folder FOLDER] [--table FILE] [--memplan FILE] [PROGRAM[:BACKEND]|:BACKEND...]

Makes a Python environment with the libraries (200 MB beside that of environment.py, once), lowers the programs of
libraries*.py for GPU, CPU and TPU, asks XLA's compilers what each needs, and `memplan estimate` what it says. A row of unseen.tsv
is a program under one compiler; what has a row is not asked again, so the command can be interrupted at any time and goes on
where it stopped. FOLDER (target/unseen) gets modules as `measure.py` has them. --estimate only estimates again what has a
row, and makes modules that are not there; --page only writes the section of docs/estimate.md.

`first` is what memplan said when a program was new, and never changes: no rule was fitted on the program then, so it tells
what an estimate is worth for others; `first_inside` is whether XLA was in its interval. `estimate` is by the rules of today,
some of which come from causes seen here. So programs come in batches, each written after what the one before it taught.
"""

import argparse
import csv
import importlib
import itertools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import warnings

import environment
import intervals
import measure
import program
from compare import NAMES, NEAR, ROOT, estimated, table

sys.path.insert(0, str(ROOT / 'scripts'))
from tables import put

HERE = pathlib.Path(__file__).resolve().parent
JAX = environment.NEWEST
BATCHES = [  # Of files, by when their programs were written: what was seen of a batch went into rules before the next.
    ['libraries', 'libraries_vision', 'libraries_science', 'libraries_simulation', 'libraries_serving'],
    ['libraries_images', 'libraries_texts', 'libraries_physics', 'libraries_decisions'],
    ['libraries_inference', 'libraries_methods', 'libraries_worlds', 'libraries_senses'],
]
BACKENDS = ['gpu', 'cpu', 'tpu']
LONGEST = dict(gpu=600, cpu=600, tpu=300)  # seconds of a processor of one compilation
COLUMNS = ['program', 'batch', 'backend', 'jax', 'kind', 'total', 'first', 'first_inside', 'estimate', 'low', 'high', 'error']
PAGE = ROOT / 'docs' / 'estimate.md'
SETTINGS = dict(EQX_ON_ERROR='nan', KERAS_BACKEND='jax')  # Equinox then calls nothing on the host
# With all that they need except JAX, which would be replaced.
PACKAGES = """
    absl-py==2.5.1 blackjax==1.7.1 chex==0.1.92 diffrax==0.7.2 dm-haiku==0.0.17 equinox==0.13.8 etils==1.15.0
    fastprogress==1.1.6 flax==0.12.12 fsspec==2026.9.0 h5py==3.16.0 humanize==4.17.0 importlib_resources==7.1.0 jaxopt==0.8.5
    jaxtyping==0.3.11 jmp==0.0.4 jraph==0.0.6.dev0 keras==3.15.1 lineax==0.1.1 markdown-it-py==4.3.0 mdurl==0.1.2
    msgpack==1.2.4 multipledispatch==1.0.0 namex==0.1.0 nest-asyncio==1.6.0 numpyro==0.22.0 optax==0.2.8 optimistix==0.1.0
    optree==0.20.0 orbax-checkpoint==0.12.8 packaging==26.4 protobuf==7.36.2 psutil==7.2.2 Pygments==2.21.0 PyYAML==6.0.4
    rich==15.0.0 simplejson==4.3.0 tabulate==0.10.0 tensorstore==0.1.86 toolz==1.2.0 tqdm==4.70.1 treescope==0.1.10
    typing_extensions==4.16.0 wadler_lindig==0.1.8 zipp==4.1.2
""".split()


def with_libraries():
    """The environment that has the libraries beside the packages of environment.py."""
    base = environment.environment(JAX).parent.parent
    venv = base.with_name(f'{base.name}-libraries')
    if not (venv / 'ready').exists():
        subprocess.run([base / 'bin' / 'python', '-m', 'venv', venv], check=True)
        (packages(venv) / 'jax.pth').write_text(f'{packages(base)}\n')
        subprocess.run([venv / 'bin' / 'pip', 'install', '--quiet', '--no-deps', *PACKAGES], check=True)
        (venv / 'ready').touch()
    return venv


def packages(venv):
    """Where an environment has its packages."""
    return next((venv / 'lib').glob('python3*/site-packages'))


def made(name, backend):
    """A program, in a process of one backend: libraries compute a little when a network is made."""
    import jax
    import libraries
    import xla

    xla.prepare(backend)
    function, arguments, donated = libraries.PROGRAMS[name]()
    return program.Program(name, jax.jit(function, donate_argnums=donated), arguments)


def ask(name, backend, paths):
    """What XLA needs, in cells. For a process of its own."""
    import xla

    row, _ = xla.ask(made(name, backend), backend, *paths)
    return dict(total=row.get('total', ''), error=row.get('error', '')), []


def lower(name, backend, module):
    """Writes a module. For a process of its own."""
    import xla

    xla.lower(made(name, backend), xla.prepare(backend), module)
    return {}, []


def estimate(name, backend, module, memplan):
    """What memplan says, in cells; empty where it refuses."""
    if not module.exists():
        measure.in_child(lambda: lower(name, backend, module), LONGEST[backend])
    said = estimated(memplan, module, backend, JAX) or {}
    return dict(estimate=said.get('total', ''), low=said.get('low', ''), high=said.get('high', ''))


def complete(arguments):
    """Adds the rows that are missing, or estimates again."""
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended'))
    warnings.filterwarnings('ignore', message='os.fork')
    found = measure.Table(arguments.table, COLUMNS)
    known = {(row['program'], row['backend']): row for row in found.rows()}
    for name, batch, backend in list(chosen(arguments.programs)):
        row, paths = known.get((name, backend)), measure.paths(arguments.folder, JAX, backend, name)
        if row and row['total'] and arguments.estimate:
            row |= estimate(name, backend, paths[0], arguments.memplan)
        elif not row and not arguments.estimate:
            row, _ = measure.in_child(lambda: ask(name, backend, paths), LONGEST[backend])
            # A compiler that takes too long says nothing.
            row = dict(total='', error='') | row | dict(program=name, batch=batch, backend=backend, jax=JAX)
            row |= estimate(name, backend, paths[0], arguments.memplan)
            row['kind'] = intervals.kind(paths[0])
            row['first'] = row['estimate']
            row['first_inside'] = yes(is_inside(row)) if row['total'] and row['estimate'] else ''
            found.add([row])
        else:
            continue
        print(name, backend, row['error'] or f'XLA {row["total"]}, memplan {row["estimate"]}', flush=True)
    if arguments.estimate:
        found.write(sorted(known.values(), key=order))


def chosen(only):
    """Names, batches and backends of all programs, or of those that are named."""
    for file in itertools.chain(*BATCHES):
        importlib.import_module(file)
    import libraries
    import xla  # Before the first fork, so that each child finds JAX loaded.

    assert xla.jax.__version__ == JAX
    for name, make in libraries.PROGRAMS.items():
        batch = next(number for number, files in enumerate(BATCHES, 1) if make.__module__ in files)
        yield from ((name, batch, backend) for backend in BACKENDS if not only or {name, f'{name}:{backend}', f':{backend}'} & set(only))


def order(row):
    return row['program'], row['backend']


def ratio(row, of='estimate'):
    return int(row[of]) / int(row['total'])


def is_near(row, of='estimate', near=None):
    return abs(ratio(row, of) - 1) <= (near or NEAR[row['backend']])


def is_inside(row):
    return int(row['low']) <= int(row['total']) <= int(row['high'])


def yes(is_so):
    return 'yes' if is_so else 'no'


def share(some, is_so):
    """How many of some rows, and the part of all."""
    count = sum(map(is_so, some))
    return f'{count} ({count / len(some):.0%})'


def page(rows):
    """What the page says of the rows that have both."""
    rows = sorted((row for row in rows if row['total'] and row['estimate'] and row['first']), key=order)
    parts = [
        (batch, [row for row in rows if row['backend'] == backend and row['batch'] == str(batch)])
        for batch in range(1, len(BATCHES) + 1)
        for backend in BACKENDS
    ]
    yield from table(
        ['batch', 'compiler', 'estimate', 'programs', 'near is within', 'near', 'within 5 %', 'median ratio', 'inside the interval'],
        [summary(batch, some, of) for of in ('first', 'estimate') for batch, some in parts if some],
    )
    yield 'Not near now:\n'
    far = sorted((row for row in rows if not is_near(row)), key=lambda row: (BACKENDS.index(row['backend']), -ratio(row)))
    yield from table(
        ['program', 'batch', 'compiler', 'XLA, MB', 'estimate, MB', 'ratio', 'first ratio', 'inside the interval'], map(line, far)
    )


def summary(batch, some, of):
    """How near estimates of one batch and compiler are. The first batch has no first intervals in the table."""
    is_known = of == 'estimate' or all(row['first_inside'] for row in some)
    return [
        str(batch),
        NAMES[some[0]['backend']],
        'first' if of == 'first' else 'now',
        str(len(some)),
        f'{NEAR[some[0]["backend"]]:.0%}',
        share(some, lambda row: is_near(row, of)),
        share(some, lambda row: is_near(row, of, 0.05)),
        f'{statistics.median(ratio(row, of) for row in some):.3f}',
        share(some, is_inside if of == 'estimate' else lambda row: row['first_inside'] == 'yes') if is_known else '',
    ]


def line(row):
    megabytes = [f'{int(row[of]) / 1e6:,.1f}' for of in ('total', 'estimate')]
    return [
        row['program'],
        row['batch'],
        NAMES[row['backend']],
        *megabytes,
        f'{ratio(row):.3f}',
        f'{ratio(row, "first"):.3f}',
        yes(is_inside(row)),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--estimate', action='store_true')
    parser.add_argument('--page', action='store_true')
    parser.add_argument('--folder', type=pathlib.Path, default=ROOT / 'target' / 'unseen')
    parser.add_argument('--table', type=pathlib.Path, default=HERE / 'unseen.tsv')
    parser.add_argument('--memplan', default=ROOT / 'target' / 'release' / 'memplan')
    parser.add_argument('programs', nargs='*')
    arguments = parser.parse_args()
    if not arguments.page:
        venv = with_libraries()
        if pathlib.Path(sys.prefix) != venv:
            python = venv / 'bin' / 'python'
            os.execve(python, [python, *sys.argv], os.environ | SETTINGS)
        complete(arguments)
    with open(arguments.table) as file:
        rows = list(csv.DictReader(file, delimiter='\t'))
    PAGE.write_text(put(PAGE.read_text(), '<!-- unseen -->\n', '<!-- end -->', '\n' + '\n'.join(page(rows)) + '\n'))


if __name__ == '__main__':
    main()
