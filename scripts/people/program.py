"""What a program is, and the list that the files beside this one add theirs to."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

PROGRAMS = []


@dataclasses.dataclass
class Program:
    name: str
    library: str
    """What makes it: a function without arguments, which returns a jitted function and its arguments."""
    make: Callable
    """Whether it is small enough to be run. If not, its arguments may be shapes."""
    runs: bool


def program(library, runs=True):
    def add(make):
        PROGRAMS.append(Program(make.__name__, library, make, runs))
        return make

    return add


def shape(*extents, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(extents, dtype)


def shapes_of(make, *args):
    """What `make` would return, as shapes: for programs too large to be run."""
    return jax.eval_shape(make, *args)


def normal(seed, *extents, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), extents, dtype)


def integers(seed, limit, *extents):
    return jax.random.randint(jax.random.key(seed), extents, 0, limit)
