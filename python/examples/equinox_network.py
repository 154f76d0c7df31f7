"""An equinox network: models are pytrees with functions in them, so the arrays are what `memplan.jit` is given.

python equinox_network.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import memplan

optimizer = optax.sgd(1e-2, momentum=0.9)


class Network(eqx.Module):
    """Convolutions beside what they read."""

    stem: eqx.nn.Conv2d
    blocks: list[eqx.nn.Conv2d]
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 6)
        self.stem = eqx.nn.Conv2d(3, 16, 3, padding=1, key=keys[0])
        self.blocks = [eqx.nn.Conv2d(16, 16, 3, padding=1, key=k) for k in keys[1:5]]
        self.head = eqx.nn.Linear(16, 10, key=keys[5])

    def __call__(self, image: jax.Array) -> jax.Array:
        x = self.stem(image)
        for block in self.blocks:
            x = x + block(jax.nn.gelu(x))
        return self.head(x.mean((1, 2)))


def main() -> None:
    arrays, rest = eqx.partition(Network(jax.random.key(0)), eqx.is_array)

    def loss(arrays, images, labels):
        logits = jax.vmap(eqx.combine(arrays, rest))(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(arrays, state, images, labels):
        value, gradient = jax.value_and_grad(loss)(arrays, images, labels)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(arrays, updates), state, value

    state = optimizer.init(arrays)
    images = jax.random.normal(jax.random.key(1), (32, 3, 32, 32))
    labels = jnp.arange(32) % 10

    # Who holds the peak, by the lines above.
    estimate = memplan.estimate(step, arrays, state, images, labels, target="gpu-h100")
    for holder in estimate.holders[:3]:
        print(f"{holder.bytes:>12,} bytes  {holder.shape}  {holder.source}")

    train = memplan.jit(step, donate_argnums=(0, 1))
    for i in range(3):
        arrays, state, value = train(arrays, state, images, labels)
        print(f"step {i}: loss {value:.4f}")


if __name__ == "__main__":
    main()
