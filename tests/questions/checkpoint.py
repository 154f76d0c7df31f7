"""Which `jax.checkpoint` to write in a network of residual layers."""

import jax
import jax.numpy as jnp

import memplan


def layer(x, weights):
    up, down = weights
    return x + jax.nn.gelu(x @ up) @ down, None


@jax.value_and_grad
def step(weights, x):
    return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()


def floats(*extents):
    return jax.ShapeDtypeStruct(extents, jnp.float32)


weights = floats(12, 512, 2048), floats(12, 2048, 512)
print(memplan.policy(step, weights, floats(4096, 512), target="gpu-h100"))
