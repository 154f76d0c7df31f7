#!/usr/bin/env python3
"""Compares our plans with XLA's own buffer assignments, value by value, on XLA's own schedules.

usage: scripts/compare_assignment.py [MEMPLAN]      needs the corpus ($MEMPLAN_SHARED or ../shared)

For every value of *.assignment.txt outside thread-local allocations: is it in our plan, with the same size, in the
same kind of memory? And do values that XLA must keep in one place (an allocation of a parameter or a result) share one
place in our plan too? Prints counts, and the first of each kind of difference.
"""
import collections, json, os, re, subprocess, sys

CORPUS = f"{os.environ.get('MEMPLAN_SHARED', '../shared')}/corpus"
MEMPLAN = sys.argv[1] if len(sys.argv) > 1 else 'target/release/memplan'
counts, first = collections.Counter(), {}


def note(what, where):
    counts[what] += 1
    first.setdefault(what, where)


def kind_of(tags):
    for word, kind in (('thread-local', None), ('parameter', 'argument'), ('constant', 'constant'), ('preallocated-temp', 'temp')):
        if word in tags:
            return kind
    return 'output'


for name in sorted(os.listdir(CORPUS)):
    for backend, target in (('cpu', 'cpu'), ('gpu', 'gpu-h100')):
        folder = f'{CORPUS}/{name}'
        if not os.path.exists(f'{folder}/{backend}.assignment.txt'):
            continue
        plan = json.loads(subprocess.run([MEMPLAN, 'plan', f'{folder}/{backend}.hlo.txt', '--target', target, '--format', 'json'],
                                         capture_output=True, text=True, check=True).stdout)
        ours = {(v['instruction'], tuple(v['index'])): v for v in plan['values']}
        kinds = {a['index']: a['kind'] for a in plan['allocations']}
        kind = None
        for line in open(f'{folder}/{backend}.assignment.txt'):
            if line.startswith('allocation '):
                kind = kind_of(line)
            found = re.match(r' value: <\d+ (\S+?)(?:\{([\d,]*)\})?( \(phi\))? @\d+> \(size=(\d+),offset=\d+\): (.*)', line)
            if not found or kind is None:
                continue
            value, size, shape = (found[1], tuple(map(int, filter(None, (found[2] or '').split(','))))), int(found[4]), found[5]
            mine = ours.get(value)
            where = f'{name}/{backend} {value}'
            if mine is None:
                reason = 'no bytes' if size == 0 else 'tuple table inside the program' if shape.startswith('(') else 'scalar constant' if kind == 'constant' and size <= 16 else 'OTHER'
                note(f'only XLA has memory for it: {reason}', where)
            elif mine['size'] != size:
                note('DIFFERENT SIZE', where)
            elif kinds[mine['allocation']] == kind:
                note(f'same: {kind}', where)
            else:
                note(f'XLA {kind}, ours {kinds[mine["allocation"]]}', where)

for what, n in sorted(counts.items()):
    print(f'{n:7}  {what:58} e.g. {first[what]}')
