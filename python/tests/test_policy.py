"""``memplan.policy``: checkpoints that are carried out, and what is said of those that there are."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from programs import layer, layer_weights, normalized, sgd, weights
from test_jit import assert_close, total

import memplan

X = weights(5, 4, 128, 32)


def block(x: Any, p: Any) -> Any:
    hidden = jnp.sin(x @ p)
    wide = jax.nn.softmax(hidden @ p.T)
    return x + wide @ p @ p.T


def named_layer(x: Any, p: Any) -> Any:
    """`layer`, with a name for what its first half computes."""
    y = normalized(x)
    q, k, v = (y @ p[n] for n in "qkv")
    scores = jnp.einsum("btd,bsd->bts", q, k) / x.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[-2],) * 2, bool)), scores, -1e9)
    x = x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), v) @ p["o"]
    x = checkpoint_name(x, "x")
    return x + jax.nn.gelu(normalized(x) @ p["a"]) @ p["b"]


def scanned(params: Any, x: Any) -> Any:
    return jnp.mean(lax.scan(lambda x, p: (layer(x, p), None), x, params)[0] ** 2)


def written_out(params: Any, x: Any) -> Any:
    for p in params:
        x = layer(x, p)
    return jnp.mean(x**2)


SCANNED = sgd(scanned), (layer_weights(32, 6), X)
WRITTEN_OUT = sgd(written_out), ([layer_weights(32) for _ in range(6)], X)


def carried_out(policy: memplan.Policy, step: Any, args: Any, jit: Any = jax.jit) -> tuple[int, int]:
    """Bytes of XLA before and after, if the results are the same."""
    plain, ours = (jit(f).lower(*args).compile() for f in (step, policy.apply(step)))
    assert_close(ours(*args), plain(*args))
    return total(plain), total(ours)


def test_what_is_said_is_what_comes() -> None:
    step, args = SCANNED
    found = memplan.policy(step, *args, target="cpu", max_slowdown=0.5)
    before, after = carried_out(found, step, args)
    assert after < 0.3 * before
    assert after == pytest.approx(found.after.bytes, rel=0.3)


def test_written_out() -> None:
    step, args = WRITTEN_OUT
    found = memplan.policy(step, *args, target="gpu-h100", max_slowdown=0.5)
    assert found.checkpoints[0].site.function == "layer" and found.after.bytes < 0.6 * found.before.bytes
    carried_out(found, step, args)
    # XLA's CPU compiler of jaxlib 0.10 merges what is computed twice, and so undoes checkpoints outside of loops.
    on_cpu = memplan.policy(step, *args, target="cpu", max_slowdown=0.5)
    assert not on_cpu.checkpoints or on_cpu.compiler != "xla-cpu@0.10"


def test_a_loop_is_one_checkpoint_around_its_body() -> None:
    found = memplan.policy(*flat(SCANNED), target="gpu-h100")
    (checkpoint,) = found.checkpoints
    assert (checkpoint.site.kind, checkpoint.saves) == ("loop", "nothing")
    assert "jax.lax.scan(jax.checkpoint(layer, prevent_cse=False, policy=" in str(found)


def test_the_state_of_a_loop_waits_on_the_host() -> None:
    args = layer_weights(64, 6), weights(5, 8, 256, 64)
    found = memplan.policy(sgd(scanned), *args, target="gpu-h100", max_slowdown=2)
    (checkpoint,) = found.checkpoints
    assert [value.name for value in checkpoint.on_host] == ["x"] and found.host == 6 * 8 * 256 * 64 * 4
    kept = [trial.bytes for trial in found.tried if trial.checkpoints[0].saves == "nothing"]
    assert found.after.bytes < min(kept) and "and 3.00 MiB in the host's memory" in str(found)
    assert all(trial.host == 0 for trial in memplan.policy(sgd(scanned), *args, target="cpu").tried)
    # As a file, and on a device without a host of its own.
    namespace: dict[str, Any] = {}
    exec(found.to_python(), namespace)
    applied = [memplan.read(jax.jit(f(sgd(scanned))), *args) for f in (namespace["apply"], found.apply)]
    assert applied[0].fingerprint() == applied[1].fingerprint()
    carried_out(found, sgd(scanned), args)


def flat(case: Any) -> tuple[Any, ...]:
    step, args = case
    return step, *args


def test_under_a_limit_it_is_the_fastest_that_fits() -> None:
    trials = memplan.policy(*flat(WRITTEN_OUT), target="gpu-h100", max_slowdown=2).tried
    smallest = min(trial.bytes for trial in trials)
    found = memplan.policy(*flat(WRITTEN_OUT), target="gpu-h100", memory_limit=int(1.4 * smallest))
    assert found.after.bytes <= 1.4 * smallest
    fitting = [trial.seconds for trial in found.tried if trial.bytes <= 1.4 * smallest]
    assert len(fitting) > 1 and found.after.seconds == min(fitting)


def test_values_have_names() -> None:
    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = block(x, p)
        return jnp.mean(x**2)

    args = [weights(i, 32, 512) for i in range(6)], X
    found = memplan.policy(sgd(loss), *args, target="gpu-h100", max_slowdown=0.01)
    named = [trial for trial in found.tried if trial.checkpoints[0].saves == "names"]
    sizes = {len(trial.checkpoints[0].names): trial.bytes for trial in named}
    found_names = {value.name for trial in named for value in trial.checkpoints[0].names}
    assert {"hidden"} <= found_names <= {"hidden", "wide", "x"} and sizes
    # What is saved takes memory.
    least = min(trial.bytes for trial in found.tried)
    assert all(size > least for size in sizes.values())


def test_as_python(tmp_path: Path) -> None:
    step, args = SCANNED
    found = memplan.policy(step, *args, target="cpu")
    namespace: dict[str, Any] = {}
    exec(found.to_python(), namespace)
    assert callable(namespace["policy_1"]) and "around the body of the loop" in found.to_python()
    sizes = [total(jax.jit(f(step)).lower(*args).compile()) for f in (namespace["apply"], found.apply)]
    assert sizes[0] == sizes[1] < total(jax.jit(step).lower(*args).compile())
    # The policy is one of `jax.checkpoint`, for who writes it in the model and names the values that it asks for.
    wrapped = jax.checkpoint(named_layer, policy=namespace["policy_1"], prevent_cse=False)
    loss = lambda params, x: jnp.mean(lax.scan(lambda x, p: (wrapped(x, p), None), x, params)[0] ** 2)  # noqa: E731
    assert total(jax.jit(sgd(loss)).lower(*args).compile()) == pytest.approx(sizes[0], rel=0.02)


def test_with_a_rewrite_on_top() -> None:
    step, args = SCANNED
    found = memplan.policy(step, *args, target="cpu")
    both = memplan.jit(found.apply(step)).lower(*args).compile()
    assert_close(both(*args), jax.jit(step)(*args))
    assert total(both) <= 1.02 * total(jax.jit(found.apply(step)).lower(*args).compile())


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(128)(x)
        y = jnp.sin(nn.Dense(32)(nn.gelu(x)))
        return nn.softmax(nn.Dense(32)(y))


class LinenNetwork(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(6):
            x = Linen()(x)
        return x


def test_linen() -> None:
    network = LinenNetwork()
    params = network.init(jax.random.key(0), X)
    step = sgd(lambda params, x: jnp.mean(network.apply(params, x) ** 2))  # type: ignore[operator]
    found = memplan.policy(step, params, X, target="gpu-h100", max_slowdown=2)
    assert any(how.startswith("Linen = nn.remat(Linen, policy=") for how in found.wrapped_by)
    carried_out(found, step, (params, X))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.a, self.b = nnx.Linear(32, 256, rngs=rngs), nnx.Linear(256, 32, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.b(nnx.softmax(nnx.gelu(self.a(x))))


class NnxNetwork(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Nnx(rngs) for _ in range(6)])

    def __call__(self, x: Any) -> Any:
        for one in self.blocks:
            x = one(x)
        return x


def test_nnx() -> None:
    def step(network: Any, x: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda network: jnp.mean(network(x) ** 2))(network)
        nnx.update(network, jax.tree.map(lambda p, g: p - g, nnx.state(network, nnx.Param), gradient))
        return loss

    found = memplan.policy(step, NnxNetwork(nnx.Rngs(0)), X, target="gpu-h100", using=nnx.jit, max_slowdown=2)
    assert "\n".join(found.wrapped_by).startswith("Nnx.__call__ = nnx.remat(Nnx.__call__, policy=")
    losses = []
    for f in (step, found.apply(step)):
        network = NnxNetwork(nnx.Rngs(0))
        jitted = nnx.jit(f)
        losses.append([float(jitted(network, X)) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][0] != losses[0][2]


class Equinox(eqx.Module):
    a: Any
    b: Any
    activation: Callable[[Any], Any] = jax.nn.gelu

    def __call__(self, x: Any) -> Any:
        return x + jax.nn.softmax(self.activation(x @ self.a)) @ self.b


def test_equinox() -> None:
    def step(network: Any, x: Any) -> Any:
        loss = lambda network: jnp.mean(functools.reduce(lambda x, one: one(x), network, x) ** 2)  # noqa: E731
        value, gradient = eqx.filter_value_and_grad(loss)(network)
        return eqx.apply_updates(network, gradient), value

    network = [Equinox(weights(i, 32, 256), weights(i, 256, 32)) for i in range(6)]
    found = memplan.policy(step, network, X, target="gpu-h100", using=eqx.filter_jit, max_slowdown=2)
    assert "\n".join(found.wrapped_by).startswith("Equinox.__call__ = eqx.filter_checkpoint(Equinox.__call__, policy=")
    ours, theirs = (eqx.filter_jit(f)(network, X) for f in (found.apply(step), step))
    assert_close(eqx.filter(ours, eqx.is_array), eqx.filter(theirs, eqx.is_array))


def test_checkpoints_without_effect_are_named() -> None:
    saves_b = jax.checkpoint_policies.save_only_these_names("b")

    @functools.partial(jax.checkpoint, policy=saves_b)
    def wrong_name(x: Any, p: Any) -> Any:
        return jnp.sin(checkpoint_name(jnp.sin(x @ p), "a") @ p.T)

    around_all = jax.checkpoint(lambda x, p: jnp.sum(x * p[0, 0]))

    def loss(p: Any, x: Any) -> Any:
        return around_all(wrong_name(x, p), p)

    found = memplan.policy(sgd(loss), weights(0, 32, 64), X, target="cpu")
    said = "\n".join(found.notes)
    assert "has no effect: nothing in it has one of its names (b)" in said
    assert "has no effect: without it the program needs as much" in said
    assert all("test_policy.py:" in note for note in found.notes)


def test_what_cannot_have_a_policy() -> None:
    with pytest.raises(memplan.InputError, match="nothing is differentiated"):
        memplan.policy(layer, X, layer_weights(32), target="cpu")
    with pytest.raises(TypeError, match="before it is jitted"):
        memplan.policy(jax.jit(SCANNED[0]), *SCANNED[1], target="cpu")
    small = memplan.policy(sgd(lambda p, x: jnp.sum(x @ p)), weights(0, 32, 8), X, target="cpu")
    assert not small.checkpoints and "no checkpoint makes it smaller" in str(small)
