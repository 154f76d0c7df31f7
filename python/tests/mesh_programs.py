"""Training steps of programs for several devices: a loss in a mesh, its arguments, and their shardings."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import weights


class Size(NamedTuple):
    """How large a program is."""

    layers: int = 4
    width: int = 16
    wide: int = 64
    tokens: int = 128


# A step, its arguments, and how they are spread.
Parts = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]


def mesh_of(n_devices: int) -> jax.sharding.Mesh:
    return jax.make_mesh((n_devices,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n_devices])


def trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def step(params: Any, *data: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *data)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    return step


def transformer(mesh: Any, size: Size) -> Parts:
    """Attention and a perceptron in each layer; parameters fully sharded, gathered layer by layer."""
    keep = NamedSharding(mesh, P("d"))

    def loss(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            x = lax.with_sharding_constraint(x, keep)
            q, k, v = (x @ p[name] for name in "qkv")
            x = x + jax.nn.softmax(q @ k.swapaxes(1, 2) / size.width**0.5) @ v
            return lax.with_sharding_constraint(x + jnp.tanh(x @ p["up"]) @ p["down"], keep), None

        return jnp.mean(lax.scan(layer, x, params)[0] ** 2)

    d, f = size.width, size.wide
    shapes = {"q": (d, d), "k": (d, d), "v": (d, d), "up": (d, f), "down": (f, d)}
    params = {name: weights(i, size.layers, *shape) * 0.1 for i, (name, shape) in enumerate(shapes.items())}
    specs = {name: P(None, "d") for name in shapes}
    return trained(loss), (params, weights(9, 16, size.tokens, size.width)), (specs, P("d"))


def experts(mesh: Any, size: Size) -> Parts:
    """Tokens are exchanged with the devices of their experts, in a `shard_map`."""
    n = mesh.devices.size

    def of_one(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            sent = lax.all_to_all(x.reshape(n, -1, size.width), "d", 0, 0)
            got = jnp.tanh(jnp.sin(sent @ p["up"][0]) * 2) @ p["down"][0]
            return x + lax.all_to_all(got, "d", 0, 0).reshape(x.shape), None

        return lax.pmean(jnp.mean(lax.scan(layer, x, params)[0] ** 2), "d")

    specs = {"up": P(None, "d"), "down": P(None, "d")}
    loss = jax.shard_map(of_one, mesh=mesh, in_specs=(specs, P("d")), out_specs=P())
    params = {
        "up": weights(0, size.layers, n, size.width, size.wide) * 0.1,
        "down": weights(1, size.layers, n, size.wide, size.width) * 0.1,
    }
    return trained(loss), (params, weights(2, 8 * size.tokens, size.width)), (specs, P("d"))


def pipeline(mesh: Any, size: Size) -> Parts:
    """Each device has a stage, and hands what it computed to the next, in a `shard_map`."""
    n = mesh.devices.size

    def of_one(w: Any, x: Any) -> Any:
        stage = lax.axis_index("d")

        def tick(held: Any, t: Any) -> Any:
            h = jnp.where(stage == 0, x[jnp.minimum(t, n - 1)], held)
            h = jnp.tanh(jnp.sin(h @ w[0]) * 2)
            return lax.ppermute(h, "d", [(i, (i + 1) % n) for i in range(n)]), jnp.mean(h**2)

        first = lax.pcast(jnp.zeros_like(x[0]), ("d",), to="varying")
        _, means = lax.scan(tick, first, jnp.arange(2 * n))
        return lax.psum(jnp.where(stage == n - 1, means[n - 1 :].mean(), 0.0), "d")

    loss = jax.shard_map(of_one, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    stages = weights(0, n, size.wide, size.wide) * 3 * size.wide**-0.5
    return trained(loss), (stages, weights(1, n, size.tokens, size.wide)), (P("d"), P())


def placed(mesh: Any, arrays: Any, specs: Any) -> Any:
    """Arrays, spread over a mesh."""
    return jax.tree.map(lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec)), arrays, specs)
