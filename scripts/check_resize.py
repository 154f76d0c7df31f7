"""Sets programs that memplan resized beside those that JAX makes at that size.

usage: python scripts/check_resize.py PROGRAMS.py CORPUS [NAME...]     (a python with jax)

PROGRAMS.py has PROGRAMS, name -> () -> (function, arguments, options), and CORPUS/NAME/before.hlo.txt is each program as JAX
hands it over. For twice and half the batch, the program is traced again with arguments of that size, and
`memplan opt --resize batch=N` makes the other; both are planned and estimated alike. A row per program, target and size, as Markdown;
status 1 if any figure differs by more than 2 %.
"""
import json, os, subprocess, sys, tempfile

from training_steps import TRAIN, at_batch, load

programs, corpus, *names = sys.argv[1:]
PROGRAMS = load(programs)
MEMPLAN = os.environ.get('MEMPLAN', 'target/release/memplan')
MOST = 0.02


def memplan(*args):
    return subprocess.run([MEMPLAN, '-q', *args], check=True, capture_output=True, text=True).stdout


def figures(path, target, compiler):
    compiled = json.loads(memplan('compile', path, '--target', target, '--effort', 'quick', '--format', 'json'))
    expected = json.loads(memplan('estimate', path, '--compiler', compiler, '--format', 'json'))
    return compiled['totals']['total'], expected['total']


failed = False
print('| program | batch | target | JAX, compiled | resized | off by | JAX, estimated for XLA | resized | off by |\n|---|---:|---|---:|---:|---:|---:|---:|---:|')
with tempfile.TemporaryDirectory() as folder:
    for name in names or TRAIN:
        for scale in (2, 0.5):
            text, batch = at_batch(PROGRAMS, name, scale)
            jaxs, own = f'{folder}/jax.hlo', f'{folder}/own.hlo'
            open(jaxs, 'w').write(text)
            memplan('opt', f'{corpus}/{name}/before.hlo.txt', '--resize', f'batch={batch}', '-o', own)
            for target, compiler in (('gpu-h100', 'xla-gpu'), ('tpu-v5e', 'xla-tpu')):
                rows = list(zip(figures(jaxs, target, compiler), figures(own, target, compiler)))
                off = [b / a - 1 for a, b in rows]
                failed |= any(abs(x) > MOST for x in off)
                cells = [f'{a} | {b} | {100 * x:+.2f} %' for (a, b), x in zip(rows, off)]
                print(f'| {name} | {batch} | {target} | {" | ".join(cells)} |', flush=True)
sys.exit(failed)
