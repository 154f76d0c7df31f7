"""Programs by name: a function, and the shapes of what it is given. `single_programs.py` and `block_programs.py` list them."""
import re

import jax
import jax.numpy as jnp

TYPES = dict(f32=jnp.float32, bf16=jnp.bfloat16, f16=jnp.float16, s32=jnp.int32, s8=jnp.int8, u8=jnp.uint8, u32=jnp.uint32,
             pred=jnp.bool_, c64=jnp.complex64, f8=jnp.float8_e4m3fn, key=jnp.uint32)
PROGRAMS = {}  # name: (kind, function, shapes of its arguments)


def shapes(text):
    """The shapes in 'f32[2,3] s32[4]'."""
    read = lambda extents: tuple(int(extent) for extent in extents.split(',') if extent)
    return tuple(jax.ShapeDtypeStruct(read(extents), TYPES[name]) for name, extents in re.findall(r'(\w+)\[([\d,]*)\]', text))


def backward(function, arguments):
    """The gradient of a function with respect to its floats, given that of its result."""
    moves = [i for i, of in enumerate(arguments) if jnp.issubdtype(of.dtype, jnp.inexact)]

    def gradient(*given):
        *values, received = given

        def of_floats(*floats):
            full = list(values)
            for i, value in zip(moves, floats):
                full[i] = value
            return function(*full)
        return jax.vjp(of_floats, *(values[i] for i in moves))[1](received)
    return gradient, (*arguments, jax.eval_shape(function, *arguments))


def add(kind, name, function, forward='', gradient=''):
    """A program for each list of shapes; lists are separated by ';'."""
    for lists, is_gradient in ((forward, False), (gradient, True)):
        for text in filter(None, (part.strip() for part in lists.split(';'))):
            arguments = shapes(text)
            of, given = backward(function, arguments) if is_gradient else (function, arguments)
            first = text.split()[0].replace('[', '_').replace(']', '').replace(',', 'x')
            full = f'{name}{"_grad" if is_gradient else ""}.{first}'
            assert full not in PROGRAMS, full
            PROGRAMS[full] = kind, of, given
