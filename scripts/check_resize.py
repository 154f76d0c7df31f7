"""Sets programs that memplan resized beside those that JAX makes at that size.

usage: python scripts/check_resize.py PROGRAMS.py CORPUS [NAME...]     (a python with jax)

PROGRAMS.py has PROGRAMS, name -> () -> (function, arguments, options), and CORPUS/NAME/before.hlo.txt is each program as JAX
hands it over. For twice and half the batch, the program is traced again with arguments of that size, and
`memplan opt --resize batch=N` makes the other; both are planned and estimated alike. A row per program, target and size, as Markdown;
status 1 if any figure differs by more than 2 %.
"""
import importlib.util, json, os, subprocess, sys, tempfile

os.environ['JAX_PLATFORMS'] = 'cpu'
import jax

programs, corpus, *names = sys.argv[1:]
spec = importlib.util.spec_from_file_location('programs_', programs)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
MEMPLAN = os.environ.get('MEMPLAN', 'target/release/memplan')
TRAIN = ['mlp_train', 'resnet50_train', 'gpt2_train_unrolled', 'gpt2_train_scan', 'gpt2_train_scan_remat', 'lstm_train', 'unet_train', 'moe_train', 'resnet_tiny_train', 'gpt_tiny_train']
MOST = 0.02


def memplan(*args):
    return subprocess.run([MEMPLAN, '-q', *args], check=True, capture_output=True, text=True).stdout


def data_arguments(name, args):
    """What is not state: arguments after parameters, moments and step, or after the parameters alone."""
    return range(1, len(args)) if name == 'moe_train' else range(4, len(args))


def at_batch(name, scale):
    """The program at `scale` times its batch, and that batch."""
    function, args, options = module.PROGRAMS[name]()
    args = list(args)
    axis = lambda a: 1 if name == 'lstm_train' and len(a.shape) == 3 else 0
    for i in data_arguments(name, args):
        a = args[i]
        shape = list(a.shape)
        shape[axis(a)] = batch = int(shape[axis(a)] * scale)
        args[i] = jax.ShapeDtypeStruct(tuple(shape), a.dtype)
    return jax.jit(function, **options).lower(*args).as_text(dialect='hlo'), batch


def figures(path, target, compiler):
    compiled = json.loads(memplan('compile', path, '--target', target, '--effort', 'quick', '--format', 'json'))
    expected = json.loads(memplan('estimate', path, '--compiler', compiler, '--format', 'json'))
    return compiled['totals']['total'], expected['total']


failed = False
print('| program | batch | target | JAX, compiled | resized | off by | JAX, estimated for XLA | resized | off by |\n|---|---:|---|---:|---:|---:|---:|---:|---:|')
with tempfile.TemporaryDirectory() as folder:
    for name in names or TRAIN:
        for scale in (2, 0.5):
            text, batch = at_batch(name, scale)
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
