"""Hands over the programs of one file as JAX would: HLO for each platform, inputs, and what JAX computes on the CPU.

    lower.py FILE FOLDER [NAME ...]

A process for each file, since the devices of a process are fixed when JAX starts, and so is the backend of Keras.
"""

import importlib
import json
import os
import pathlib
import sys
import time
import traceback

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if sys.argv[1] == "devices":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir
from jaxlib import _jax
from program import PROGRAMS

# No path of this machine in what is written.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")

# What JAX calls the makers of the targets' machines.
PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}

# Types that programs compute in to save memory, as HLO calls them. Compilers may leave out roundings to them.
NARROW = {"bf16": jnp.bfloat16, "f16": jnp.float16}


def main():
    file, folder, *names = sys.argv[1:]
    importlib.import_module(file)
    for program in PROGRAMS:
        if names and program.name not in names:
            continue
        place = pathlib.Path(folder) / program.name
        place.mkdir(parents=True, exist_ok=True)
        about = {"library": program.library, "runs": program.runs}
        start = time.time()
        try:
            about |= hand_over(program, place)
        except Exception as error:
            traceback.print_exc()
            about["failed"] = f"{type(error).__name__}: {error}"[:300]
        (place / "about.json").write_text(json.dumps(about))
        print(f"{program.name}: {about.get('failed', 'ready')} ({time.time() - start:.0f} s)", flush=True)


def hand_over(program, place):
    function, arguments = program.make()
    # What pmap returns can only be lowered for the platform that is there.
    traced = function.trace(*arguments) if hasattr(function, "trace") else None
    why_not = {}
    for platform, name in PLATFORMS.items():
        try:
            lowered = traced.lower(lowering_platforms=(name,)) if traced else function.lower(*arguments)
            hlo = hlo_of(lowered)
            (place / f"{platform}.hlo.pb").write_bytes(hlo.as_serialized_hlo_module_proto())
        except (NotImplementedError, ValueError) as error:
            why_not[platform] = str(error)[:300]
    about = {"not lowered": why_not}
    if program.runs:
        about |= run(function, traced, arguments, place)
    return about


def hlo_of(lowered):
    """The program as HLO. Sizes that were symbols when a function was exported are made known first, as JAX's own compilation does."""
    try:
        return lowered.compiler_ir("hlo")
    except jax.errors.JaxRuntimeError:
        bytecode = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
        known = _jax.mlir.refine_polymorphic_shapes(bytecode, enable_shape_assertions=True, validate_static_shapes=True)
        return _jax.mlir.mlir_module_to_xla_computation(known, use_tuple_args=False, return_tuple=False)


def run(function, traced, arguments, place):
    """Inputs and results; and what rounding may change, which is measured: results of inputs that are a little different."""
    lowered = traced.lower()
    kept = lowered._lowering.compile_args["kept_var_idx"]
    # Static arguments come last: they are in the program.
    leaves = jax.tree.leaves(arguments)[: len(traced.jaxpr.in_avals)]
    save(place / "inputs.npz", "p", [array for i, array in enumerate(leaves) if i in kept])
    text = hlo_of(lowered).as_hlo_text()
    narrowest = next((dtype for name, dtype in NARROW.items() if f"{name}[" in text), jnp.float32)
    others = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        others.append(jax.tree.map(lambda array: jostled(array, rng, float(jnp.finfo(narrowest).eps)), arguments))
    results = jax.tree.leaves(function(*arguments))
    save(place / "outputs.npz", "o", results)
    for seed, other in enumerate(others):
        save(place / f"spread{seed}.npz", "o", jax.tree.leaves(function(*other)))
    return {"dtypes": [str(plain(array).dtype) for array in results]}


def jostled(array, rng, by):
    """Each number of a floating-point array made larger or smaller by a part."""
    if not isinstance(array, jax.Array):
        return array
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.copy(array)
    moved = np.asarray(array, np.float32) * (1 + by * rng.choice([-1, 1], array.shape))
    return jax.device_put(jnp.asarray(moved, array.dtype), array.sharding)


def save(path, letter, arrays):
    np.savez(path, **{f"{letter}{i}": stored(array) for i, array in enumerate(arrays)})


def plain(array):
    """Keys of random numbers are arrays of words to a compiler."""
    if hasattr(array, "dtype") and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(array)
    return jnp.asarray(array)


def stored(array):
    """As npz can hold it: floating-point types that NumPy does not know are stored as bits, small integers in bytes."""
    array = np.asarray(plain(array))
    if array.dtype.name in ("int2", "int4", "uint2", "uint4"):
        return array.astype("uint8" if array.dtype.name.startswith("u") else "int8")
    if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8")):
        return array.view(f"uint{8 * array.dtype.itemsize}")
    return array


if __name__ == "__main__":
    main()
