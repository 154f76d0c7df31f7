"""Writes docs/diff.md: what `memplan diff` says of a corpus' training steps at two batches, and with and without recomputation.

usage: python scripts/make_diff_table.py PROGRAMS.py > docs/diff.md     (a python with jax; MEMPLAN names the command)

PROGRAMS.py has PROGRAMS, name -> () -> (function, arguments, options). Each program is traced at its batch and at twice as
much, and compared as it is planned and as XLA's GPU compiler is expected to have it. Status 1 if the batch is not the first
reason, or, with what the peak moved, stands for less than nine tenths of the growth.
"""
import json, os, subprocess, sys, tempfile

from training_steps import TRAIN, at_batch, load

MEMPLAN = os.environ.get('MEMPLAN', 'target/release/memplan')
PROGRAMS = load(sys.argv[1])
WAYS = {'planned': [], 'expected of XLA, gpu-h100': ['--compiler', 'xla-gpu']}
LEAST = 0.9


def difference(a, b, way):
    done = subprocess.run([MEMPLAN, '-q', 'diff', a, b, '--format', 'json', *WAYS[way]], check=True, capture_output=True, text=True)
    (found,) = json.loads(done.stdout)['programs']
    return found


def mib(n):
    return f'{n / 2**20:.1f} MiB' if n < 2**30 else f'{n / 2**30:.2f} GiB'


def row(name, found, way):
    """A row of the table, and the share of the growth that the first reason stands for, less what the peak moved."""
    before, after = found['before']['total'], found['after']['total']
    first = found['causes'][0]
    moved = sum(cause['bytes'] for cause in found['causes'] if cause['kind'] == 'peak-moved')
    share = first['bytes'] / (after - before)
    rest = [cause for cause in found['causes'][1:] if abs(cause['bytes']) > 0.01 * abs(after - before)]
    others = '; '.join(f'{"-" if c["bytes"] < 0 else "+"}{mib(abs(c["bytes"]))} {c["kind"]}' for c in rest) or 'nothing above 1 %'
    what = first['what'].split(': ')
    print(f'| {name} | {way} | {mib(before)} | {mib(after)} | {": ".join(what[:2])} | {100 * share:.1f} % | {others} |', flush=True)
    return first, (first['bytes'] + moved) / (after - before)


print('''# What `memplan diff` says of programs that changed

Made by `scripts/make_diff_table.py`, which traces the programs with JAX. `memplan diff` compares each training step with itself at
twice the batch: as planned, and as estimated for XLA's GPU compiler (`--compiler xla-gpu`). The share is the part of the growth of the
total that the first reason explains; rounding, padding and gaps are among the rest.
If the peak moves with the batch, `diff` compares the values of both programs at the place of the new peak. What the old program has less
there than at its own peak is a reason of its own, `peak-moved`; the first reason then explains more than the growth.

## Twice the batch

| program | as | before | after | the first reason | share | others |
|---|---|---:|---:|---|---:|---|''')
failed = False
with tempfile.TemporaryDirectory() as folder:
    a, b = f'{folder}/a.hlo', f'{folder}/b.hlo'
    for name in TRAIN:
        for path, scale in ((a, 1), (b, 2)):
            with open(path, 'w') as file:
                file.write(at_batch(PROGRAMS, name, scale)[0])
        for way in WAYS:
            first, share = row(name, difference(a, b, way), way)
            failed |= first['kind'] != 'dimension' or not first['what'].startswith('batch ') or abs(share - 1) > 1 - LEAST
    print('\n## Recomputation\n\n`gpt2_train_scan` beside `gpt2_train_scan_remat`, whose layers are under `jax.checkpoint`.\n\n| as | before | after | reasons |\n|---|---:|---:|---|')
    for path, name in ((a, 'gpt2_train_scan'), (b, 'gpt2_train_scan_remat')):
        with open(path, 'w') as file:
            file.write(at_batch(PROGRAMS, name, 1)[0])
    for way in WAYS:
        found = difference(a, b, way)
        failed |= found['causes'][0]['kind'] != 'residuals'
        reasons = '<br>'.join(f'{"-" if c["bytes"] < 0 else "+"}{mib(abs(c["bytes"]))} {c["what"]}' for c in found['causes'] if abs(c['bytes']) > 1 << 20)
        print(f'| {way} | {mib(found["before"]["total"])} | {mib(found["after"]["total"])} | {reasons} |')
sys.exit(failed)
