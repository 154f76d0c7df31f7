"""The training steps of a corpus at other batches, traced anew by JAX: for scripts that compare what memplan makes of them."""
import importlib.util, os

os.environ['JAX_PLATFORMS'] = 'cpu'
import jax

jax.config.update('jax_hlo_source_file_canonicalization_regex', '.*/')
TRAIN = ['mlp_train', 'resnet50_train', 'gpt2_train_unrolled', 'gpt2_train_scan', 'gpt2_train_scan_remat', 'lstm_train', 'unet_train', 'moe_train', 'resnet_tiny_train', 'gpt_tiny_train']


def load(path):
    """PROGRAMS of a file: name -> () -> (function, arguments, options)."""
    spec = importlib.util.spec_from_file_location('programs_', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PROGRAMS


def data_arguments(name, args):
    """What is not state: arguments after parameters, moments and step, or after the parameters alone."""
    return range(1, len(args)) if name == 'moe_train' else range(4, len(args))


def at_batch(programs, name, scale):
    """The text of a program at `scale` times its batch, and that batch."""
    function, args, options = programs[name]()
    args = list(args)
    axis = lambda a: 1 if name == 'lstm_train' and len(a.shape) == 3 else 0
    for i in data_arguments(name, args):
        a = args[i]
        shape = list(a.shape)
        shape[axis(a)] = batch = int(shape[axis(a)] * scale)
        args[i] = jax.ShapeDtypeStruct(tuple(shape), a.dtype)
    return jax.jit(function, **options).lower(*args).as_text(dialect='hlo', debug_info=True), batch
