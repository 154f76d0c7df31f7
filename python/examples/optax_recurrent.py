"""A recurrent network trained with optax: gradients of long loops keep every step, unless they are computed again.

python optax_recurrent.py
"""

import jax
import jax.numpy as jnp
import optax

import memplan

STEPS, BATCH, INPUTS, HIDDEN = 256, 64, 32, 128

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def loss(params, xs, ys):
    """How far the last state of a long loop is from what it should be."""

    def cell(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ params["inputs"] + h @ params["hidden"] + params["bias"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros((BATCH, HIDDEN))
    (h, _), _ = jax.lax.scan(cell, (zeros, zeros), xs)
    return optax.l2_loss(h @ params["out"], ys).mean()


def step(params, state, xs, ys):
    """One step of training."""
    value, gradient = jax.value_and_grad(loss)(params, xs, ys)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value


def temporaries(compiled) -> str:
    """What XLA says that it needs beside arguments and results."""
    return f"{compiled.memory_analysis().temp_size_in_bytes / 2**20:.1f} MiB"


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    params = {
        "inputs": 0.1 * jax.random.normal(keys[0], (INPUTS, 4 * HIDDEN)),
        "hidden": 0.1 * jax.random.normal(keys[1], (HIDDEN, 4 * HIDDEN)),
        "bias": jnp.zeros(4 * HIDDEN),
        "out": 0.1 * jax.random.normal(keys[2], (HIDDEN, 1)),
    }
    state = optimizer.init(params)
    xs, ys = jax.random.normal(keys[3], (STEPS, BATCH, INPUTS)), jax.random.normal(keys[4], (BATCH, 1))

    train = memplan.jit(step, donate_argnums=(0, 1))
    before = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, xs, ys).compile()
    after = train.lower(params, state, xs, ys).compile()
    print(f"temporaries of XLA: {temporaries(before)} with jax.jit, {temporaries(after)} with memplan.jit")
    for i in range(3):
        params, state, value = train(params, state, xs, ys)
        print(f"step {i}: loss {value:.4f}")


if __name__ == "__main__":
    main()
