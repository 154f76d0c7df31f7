#!/usr/bin/env python3
"""Asks XLA's compilers what each program of this folder needs, and keeps it in truth.tsv.

usage: measure.py [--folder FOLDER] [--table FILE] [--seconds SECONDS] [--again ERROR] [--modules] [PROGRAM...]

Run it with the python that environment.py prints. Each compilation is a process of its own at the lowest priority, ends
after LONGEST seconds or above MOST bytes, and becomes one row; what has a row is not asked again, so the command can be
interrupted at any time and goes on where it stopped. It starts nothing new after SECONDS. The first variants of all
families come first. FOLDER (target/truth) gets modules as JAX hands them over (`VERSION/BACKEND/FAMILY/VARIANT.hlo.gz`) and
what the compilers made of them (`.scheduled.gz`). PROGRAM is a family, `family/variant`, or either with `:BACKEND`, or that alone;
--again asks again about rows whose error has ERROR in it. --modules only makes the modules of all rows again, for
compare.py, and drops the rows of programs that were changed since, which are then asked again.
"""

import argparse
import csv
import gzip
import importlib
import json
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
import warnings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FILES = ['language', 'finetuning', 'recurrent', 'vision', 'generative', 'reinforcement', 'science', 'numerics', 'serving', 'optimization', 'blocks']
BACKENDS = ['cpu', 'gpu', 'tpu']
TPU_VARIANTS = 2  # of a family, which libtpu is asked about
LONGEST = 240  # seconds of a processor of one compilation
PATIENCE = 1800  # seconds of one compilation, however little of a processor it gets
MOST = 8 << 30  # bytes of memory of one compilation
COLUMNS = [
    'program',
    'backend',
    'jax',
    'module',
    'total',
    'argument',
    'output',
    'alias',
    'temp',
    'host_argument',
    'host_output',
    'host_temp',
    'generated_code',
    'seconds',
    'processor_seconds',
    'cycles',
    'error',
]
CYCLES = ['program', 'jax', 'runs', 'cycles', 'opcode', 'instruction', 'shape']


def load():
    """All programs, as program.programs has them."""
    sys.path.insert(0, str(HERE))
    for file in FILES:
        importlib.import_module(file)
    import program

    return program.programs()


def asked(turns):
    """(program, backend) in the order to ask: a variant of every family, then the next; libtpu, the slowest, about the first ones."""
    for turn, programs in enumerate(turns):
        yield from ((program, backend) for program in programs for backend in ('cpu', 'gpu'))
        if turn < TPU_VARIANTS:
            yield from ((program, 'tpu') for program in programs)


def is_wanted(program, backend, names):
    ways = {of + end for of in (program.name, program.name.split('/')[0], '') for end in ('', f':{backend}')}
    return not names or ways & set(names)


def paths(folder, version, backend, name):
    """Where the module of a program is, and what the compiler made of it."""
    place = folder / version / backend
    return place / f'{name}.hlo.gz', place / f'{name}.scheduled.gz'


class Table:
    """A table with a head, to which rows are added one by one; `.gz` is compressed."""

    def __init__(self, path, columns):
        self.path, self.columns = pathlib.Path(path), columns
        if not self.path.exists():
            self.add([dict(zip(columns, columns))])

    def rows(self):
        with self.open('rt') as file:
            return list(csv.DictReader(file, delimiter='\t'))

    def open(self, mode):
        return gzip.open(self.path, mode) if self.path.suffix == '.gz' else open(self.path, mode)

    def add(self, rows):
        with self.open('at') as file:
            csv.DictWriter(file, self.columns, delimiter='\t', lineterminator='\n', restval='').writerows(rows)

    def write(self, rows):
        self.path.unlink()
        self.__init__(self.path, self.columns)
        self.add(rows)


def in_child(work, longest=LONGEST):
    """What a function returns in a process of its own, as JSON carries it, or the error that ended it."""
    with tempfile.TemporaryFile('w+') as answer:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_CPU, (longest, longest))
            try:
                found = work()
            except Exception as error:
                found = dict(error=' '.join(f'{type(error).__name__}: {error}'.split())[:200]), []
            json.dump(found, answer)
            answer.flush()
            os._exit(0)
        try:
            error = watch(child, longest)
        except BaseException:  # This process is being ended.
            os.killpg(child, signal.SIGKILL)
            raise
        if error:
            return dict(error=error), []
        answer.seek(0)
        return json.load(answer)


def watch(child, longest):
    """Waits for a process, and says why it was ended if it was."""
    start, why = time.time(), None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.time() - start > PATIENCE:
            why = f'took more than {PATIENCE} s'
        elif resident(child) > MOST:
            why = f'took more than {MOST >> 30} GiB'
        if why:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.1)
    if why or status == 0:
        return why
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return f'took more than {longest} s of a processor'
    return f'ended with status {status}'


def resident(process):
    """Bytes of memory of a process; 0 if it has ended."""
    try:
        lines = pathlib.Path(f'/proc/{process}/status').read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith('VmRSS')), 0)


def make_modules(turns, folder, table, version):
    """Writes the modules of all rows of a version of JAX again; keeps only rows whose modules are still the same."""
    import xla

    rows = table.rows()
    of_version = {(row['program'], row['backend']): row for row in rows if row['jax'] == version}
    for backend in BACKENDS:

        def lower():
            place = xla.prepare(backend)
            return {
                program.name: xla.lower(program, place, paths(folder, version, backend, program.name)[0])[1]
                for turn in turns
                for program in turn
                if (program.name, backend) in of_version
            }

        fingerprints = in_child(lower, resource.RLIM_INFINITY)
        if not isinstance(fingerprints, dict):
            sys.exit(f'{backend}: {fingerprints[0]["error"]}')
        changed = [key for key, row in of_version.items() if key[1] == backend and row['module'] not in ('', fingerprints.get(key[0]))]
        print(f'{backend}: {len(fingerprints)} modules, {len(changed)} changed', *(name for name, _ in changed), flush=True)
        rows = [row for row in rows if row['jax'] != version or (row['program'], row['backend']) not in changed]
    table.write(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--folder', type=pathlib.Path, default=ROOT / 'target' / 'truth')
    parser.add_argument('--table', type=pathlib.Path, default=HERE / 'truth.tsv')
    parser.add_argument('--seconds', type=float, default=float('inf'))
    parser.add_argument('--again')
    parser.add_argument('--modules', action='store_true')
    parser.add_argument('programs', nargs='*')
    arguments = parser.parse_args()
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended'))
    warnings.filterwarnings('ignore', message='os.fork')
    turns = load()
    import jax
    import xla
    from jax._src import xla_bridge

    assert not xla_bridge.backends_are_initialized(), 'a family computes something: children cannot start a backend of their own'
    table, cycles = Table(arguments.table, COLUMNS), Table(arguments.table.parent / 'cycles.tsv.gz', CYCLES)
    if arguments.modules:
        make_modules(turns, arguments.folder, table, jax.__version__)
        return
    if arguments.again:
        table.write([row for row in table.rows() if arguments.again not in row['error']])
    known = {(row['program'], row['backend']) for row in table.rows() if row['jax'] == jax.__version__}
    todo = [of for of in asked(turns) if is_wanted(*of, arguments.programs) and (of[0].name, of[1]) not in known]
    begin = time.time()
    for number, (program, backend) in enumerate(todo, 1):
        if time.time() - begin > arguments.seconds:
            break
        where = paths(arguments.folder, jax.__version__, backend, program.name)
        row, found = in_child(lambda: xla.ask(program, backend, *where))
        table.add([row | dict(program=program.name, backend=backend, jax=jax.__version__)])
        cycles.add(dict(zip(CYCLES, (program.name, jax.__version__, *of))) for of in found)
        what = row.get('error') or f'{row["total"] / 1e6:,.0f} MB, XLA took {row["seconds"]} s'
        print(f'{number}/{len(todo)} {time.time() - begin:.0f} s {program.name} {backend}: {what}', flush=True)


if __name__ == '__main__':
    main()
