"""Write tests/tpu_layouts.tsv: the layouts and padded sizes that the TPU compiler chooses for arguments.

    pip install jax libtpu
    python scripts/make_tpu_layouts.py > tests/tpu_layouts.tsv

One program of one argument a line, compiled without a device: generation, element type, extents, layout, bytes.
"""

import re

import xla_compilers

TOPOLOGIES = {
    "v2": "v2:2x2",
    "v3": "v3:2x2",
    "v4": "v4:2x2x1",
    "v5p": "v5p:2x2x1",
    "v5e": "v5e:2x2",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}

# As HLO and as JAX name them.
TYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "s32": "int32",
    "s16": "int16",
    "s8": "int8",
    "s4": "int4",
    "u4": "uint4",
    "pred": "bool",
    "c64": "complex64",
    "f8e4m3fn": "float8_e4m3fn",
}

# Scalars, vectors around a tile's length, thin and wide matrices, and such that transpose to pad less.
SHAPES = [
    (),
    (5,),
    (1000,),
    (1025,),
    (3, 5),
    (1, 1000),
    (1000, 1),
    (300, 130),
    (100, 48, 24),
    (128, 2, 64),
    (7, 3, 2),
    (2, 48, 300, 20),
    (3, 3, 8, 16),
]

# Of these shapes, each type of each generation takes so many, and the next type goes on where it stopped.
SHAPES_OF_A_TYPE = 3


def main():
    xla_compilers.prepare("tpu")
    import jax
    import jax.numpy as jnp

    print("gen", "dtype", "shape", "entry_layout", "padded_bytes", sep="\t")
    at = 0
    for generation, topology in TOPOLOGIES.items():
        place = xla_compilers.sharding("tpu", topology)
        for name, element in TYPES.items():
            for _ in range(SHAPES_OF_A_TYPE):
                extents, at = SHAPES[at % len(SHAPES)], at + 1
                argument = jax.ShapeDtypeStruct(extents, jnp.dtype(element), sharding=place)
                compiled = jax.jit(lambda x: x).lower(argument).compile()
                layout = re.search(r"entry_computation_layout=\{\((.*?)\)->", compiled.as_text())
                size = compiled.memory_analysis().argument_size_in_bytes
                print(generation, name, str(extents).replace(" ", ""), layout[1], size, sep="\t", flush=True)


if __name__ == "__main__":
    main()
