#!/usr/bin/env python3
"""Measures what each rule about XLA's compilers is worth: estimates all programs without it.

usage: rules.py [--memplan FILE] [--truth FOLDER] [--unseen FOLDER] [--others FOLDER] [--jobs N] [--sets SET,...] [--page] [BACKEND|RULE...]

A rule is a pass of a compiler, one of several runs of a pass, or a key of the compiler's file: without it, a boolean has the
other value, a list is empty, and anything else has its default (keys that a file must have are no rules). rules.tsv gets a row
for each compiler, rule and set of programs. What has a row is not asked again, so the command can be interrupted at any time
and goes on where it stopped; delete rows to ask again. Writes docs/rules.md; --page does only that.

FOLDERs have the modules of the sets: `measure.py --modules` makes those of `truth`, `unseen.py --estimate` those of `unseen`.
The other two are in target, or in --others:

    python=$(python3 scripts/truth/environment.py)
    $python scripts/sharded_programs.py target/devices
    for b in cpu gpu tpu; do $python scripts/single_programs.py $b target/single_operations/$b scripts/single_operations.tsv; done
"""

import argparse
import collections
import copy
import csv
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor

import compare
import environment
import measure
from compare import NAMES, ROOT, table

HERE = pathlib.Path(__file__).resolve().parent
JAX = environment.NEWEST
COMPILERS = ROOT / 'crates' / 'memory' / 'compilers'
CASES = ROOT / 'tests' / 'hlo'
ALIKE = 0.002  # of two |log(estimate / XLA)|
SETS = ['truth', 'unseen', 'single', 'devices', 'cases']
SHOWN = ['moved', 'nearer', 'farther', 'with', 'without']
COLUMNS = ['backend', 'rule', 'set', 'programs', *SHOWN, 'refused', 'most', 'most_with', 'most_without']

# A program of a set: the bytes that XLA needs (None where nobody asked), and its module.
Program = collections.namedtuple('Program', 'name xla module')


def merged(base, own):
    """The second table over the first one, table by table."""
    both = dict(base)
    for key, value in own.items():
        is_table = isinstance(value, dict) and isinstance(base.get(key), dict)
        both[key] = merged(base[key], value) if is_table else value
    return both


def compiler(backend):
    """The whole file of a compiler, as `memory/src/compiler_file.rs` reads it."""
    return read(f'xla-{backend}@{compare.version(JAX)}')


def read(name):
    own = tomllib.loads((COMPILERS / f'{name}.toml').read_text())
    if 'based_on' not in own:
        return own
    base = read(own.pop('based_on'))
    base['passes'] = [name for name in base['passes'] if name not in own.get('without', [])]
    for after, name in own.pop('before', {}).items():
        base['passes'].insert(base['passes'].index(after), name)
    own.pop('without', None)
    return merged(base, own)


def toml(value):
    """A value in one line of TOML."""
    if isinstance(value, dict):
        return '{ ' + ', '.join(f'{json.dumps(key)} = {toml(inner)}' for key, inner in value.items()) + ' }'
    if isinstance(value, list):
        return '[' + ', '.join(map(toml, value)) + ']'
    return json.dumps(value)


def rules(file):
    """The rules in the file of a compiler by name, each with a file that has all but that one."""
    passes = file['passes']
    for name in dict.fromkeys(passes):
        places = [place for place, it in enumerate(passes) if it == name]
        yield name, without_passes(file, places)
        if len(places) > 1:
            yield from ((f'{name} {run}', without_passes(file, [place])) for run, place in enumerate(places, 1))
    for keys in leaves({key: value for key, value in file.items() if key not in ('passes', 'intervals')}):
        yield '.'.join(keys), without_key(file, keys)


def without_passes(file, places):
    passes = [name for place, name in enumerate(file['passes']) if place not in places]
    options = {name: value for name, value in file.get('options', {}).items() if name in passes or name not in file['passes']}
    return file | dict(passes=passes, options=options)


def leaves(value, keys=()):
    """The keys of all values, and of the tables within tables."""
    for key, inner in value.items():
        if not isinstance(inner, dict) or keys:
            yield (*keys, key)
        if isinstance(inner, dict):
            yield from leaves(inner, (*keys, key))


def without_key(file, keys):
    file = copy.deepcopy(file)
    *above, last = keys
    inner = file
    for key in above:
        inner = inner[key]
    if isinstance(inner[last], bool):
        inner[last] = not inner[last]
    elif isinstance(inner[last], list):
        inner[last] = []
    else:
        del inner[last]
    return file


def programs(of_set, backend, folders):
    """The programs of a set under a compiler."""
    if of_set in ('truth', 'unseen'):
        return [
            Program(row['program'], int(row['total']), measure.paths(folders[of_set], JAX, backend, row['program'])[0])
            for row in rows(HERE / f'{of_set}.tsv')
            if (row['backend'], row['jax']) == (backend, JAX) and row['total']
        ]
    if of_set == 'single':
        folder = folders['others'] / 'single_operations' / backend
        return [
            Program(row['program'], int(row['total']), folder / f'{row["program"]}.hlo.txt')
            for row in rows(ROOT / 'scripts' / 'single_operations.tsv')
            if row['backend'] == backend and row['total']
        ]
    if of_set == 'devices':
        page = (ROOT / 'docs' / 'devices.md').read_text()
        totals = page.partition('<!-- totals')[2].partition('<!-- end')[0]
        lines = re.findall(r'^\| (\w+) \|(.*)\|$', totals, re.M)
        column = 3 * ['gpu', 'cpu', 'tpu'].index(backend)
        cells = [(name, cells.split('|')[column].strip().replace(',', '')) for name, cells in lines if name != 'program']
        return [
            Program(name, int(float(cell) * 1e6), folders['others'] / 'devices' / f'{name}.hlo.txt') for name, cell in cells if cell
        ]
    cases = sorted((CASES / 'estimate').glob(f'xla-{backend}*.hlo'), key=lambda case: case.stat().st_size)
    return [Program(case.stem, None, case) for case in cases]


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file, delimiter='\t'))


def estimates(file, some, memplan, pool):
    """Bytes of each program for a compiler's file; None where memplan refuses."""
    with tempfile.NamedTemporaryFile('w', suffix='.toml') as written:
        written.write(''.join(f'{key} = {toml(value)}\n' for key, value in file.items()))
        written.flush()

        def ask(program):
            command = ['nice', '-n', '10', memplan, 'estimate', program.module, '--compiler', written.name, '--format', 'json']
            run = subprocess.run(command, capture_output=True, text=True)
            return json.loads(run.stdout)['total'] if run.returncode in (0, 3) else None  # 3: it does not fit

        return list(pool.map(ask, some))


def summary(some, before, after):
    """What moves without a rule, in cells."""
    known = [(*of, with_it, without) for of, with_it, without in zip(some, before, after) if with_it]
    moved = [(name, xla, with_it, without) for name, xla, _, with_it, without in known if without not in (None, with_it)]
    off = [(error(with_it, xla), error(without, xla)) for _, xla, _, with_it, without in known if xla and without]
    cells = dict(
        programs=len(known),
        moved=len(moved),
        nearer=sum(without < with_it - ALIKE for with_it, without in off),
        farther=sum(without > with_it + ALIKE for with_it, without in off),
        refused=sum(without is None for *_, without in known),
    )
    if off:
        cells |= {'with': f'{mean(with_it for with_it, _ in off):.4f}', 'without': f'{mean(without for _, without in off):.4f}'}
    if moved:
        name, xla, with_it, without = max(moved, key=lambda of: error(of[3], of[2])) if off else moved[0]
        cells |= dict(most=name, most_with=f'{with_it / (xla or with_it):.3f}', most_without=f'{without / (xla or with_it):.3f}')
    return cells


def error(said, xla):
    return abs(math.log(said / xla))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def complete(arguments):
    """Adds the rows that are missing."""
    found = measure.Table(arguments.table, COLUMNS)
    done = {(row['backend'], row['rule'], row['set']) for row in found.rows()}
    folders = dict(truth=arguments.truth, unseen=arguments.unseen, others=arguments.others)
    backends, chosen = ([name for name in arguments.chosen if (name in NAMES) == is_backend] for is_backend in (True, False))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for backend in backends or NAMES:
            file = compiler(backend)
            some = {of_set: programs(of_set, backend, folders) for of_set in arguments.sets.split(',')}
            before = {}
            for rule, without in rules(file):
                missing = [of_set for of_set in some if (backend, rule, of_set) not in done]
                if not missing or rule not in (chosen or [rule]):
                    continue
                if not any(estimates(without, some[missing[0]][:1], arguments.memplan, pool)):
                    continue  # It is no file of a compiler.
                for of_set in missing:
                    if of_set not in before:
                        before[of_set] = estimates(file, some[of_set], arguments.memplan, pool)
                    row = summary(some[of_set], before[of_set], estimates(without, some[of_set], arguments.memplan, pool))
                    found.add([row | {'backend': backend, 'rule': rule, 'set': of_set}])
                    print(backend, rule, of_set, row['moved'], row.get('with'), row.get('without'), flush=True)


def source(rule):
    """The file or folder with a pass, and its lines; nothing where the rule is no pass."""
    name = rule.split()[0]
    stem = name.replace('-', '_')
    files = sorted(ROOT.glob('crates/*/src/**/*.rs'))
    named = [file for file in files if file.stem == stem or file.parent.name == stem]
    found = named or [file for file in files if f'name: "{name}"' in (text := file.read_text()) or f'=> "{name}"' in text]
    lines = sum(len(file.read_text().splitlines()) for file in found)
    place = next((file if file.stem == stem or not named else file.parent for file in found), None)
    return (str(place.relative_to(ROOT / 'crates')), str(lines)) if place else ('', '')


def page(found):
    """docs/rules.md"""
    yield '# What each rule about XLA is worth\n'
    yield (ROOT / 'docs' / 'rules.head.md').read_text()
    for backend, name in NAMES.items():
        known = {(row['rule'], row['set']): row for row in found if row['backend'] == backend}
        names = [rule for rule, _ in rules(compiler(backend)) if any((rule, of_set) in known for of_set in SETS)]
        base = {of_set: next((row for (_, its_set), row in known.items() if its_set == of_set), None) for of_set in SETS[:-1]}
        yield f'## {name}\n'
        yield 'Error with all rules: ' + ', '.join(f'{row["with"]} {of_set}' for of_set, row in base.items() if row) + '.\n'
        for what, is_wanted in (('pass', bool), ('key', lambda lines: not lines)):
            lines = {rule: source(rule)[1] for rule in names}
            yield from table(
                [what, 'lines', *SETS[:-1], 'case'],
                [
                    [rule, lines[rule], *(cell(known.get((rule, of_set))) for of_set in SETS[:-1]), case(rule, known)]
                    for rule in names
                    if is_wanted(lines[rule])
                ],
            )


def cell(row):
    """How many programs of a set move without a rule, how many get nearer and farther, and by how much the error grows."""
    if not row:
        return ''
    if row['moved'] == '0' and row['refused'] == '0':
        return '0'
    refused = f', {row["refused"]} refused' if row['refused'] != '0' else ''
    grows = float(row['without']) - float(row['with'])
    return f'{row["moved"]} ({row["nearer"]} nearer, {row["farther"]} farther{refused}) {grows:+.4f}'


def case(rule, known):
    """The smallest case whose estimate moves without a rule; else one of the pass alone."""
    row = known.get((rule, 'cases'))
    of_pass = sorted((CASES / 'passes' / rule.split()[0]).glob('*.hlo'))
    return row['most'] if row and row['most'] else next((f'{case.parent.name}/{case.stem}' for case in of_pass), '')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--memplan', default=ROOT / 'target' / 'release' / 'memplan')
    parser.add_argument('--truth', type=pathlib.Path, default=ROOT / 'target' / 'truth')
    parser.add_argument('--unseen', type=pathlib.Path, default=ROOT / 'target' / 'unseen')
    parser.add_argument('--others', type=pathlib.Path, default=ROOT / 'target')
    parser.add_argument('--table', type=pathlib.Path, default=HERE / 'rules.tsv')
    parser.add_argument('--sets', default=','.join(SETS))
    parser.add_argument('--jobs', type=int, default=os.cpu_count())
    parser.add_argument('--page', action='store_true')
    parser.add_argument('chosen', nargs='*')
    arguments = parser.parse_args()
    if not arguments.page:
        complete(arguments)
    (ROOT / 'docs' / 'rules.md').write_text('\n'.join(page(rows(arguments.table))))


if __name__ == '__main__':
    main()
