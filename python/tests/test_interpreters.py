"""Whatever interpreter works on ``jax.jit`` works on ``memplan.jit``, and prints the same."""

import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import checkify, sparse
from jax.experimental.jet import jet
from programs import saves, weights
from test_jit import assert_close

import memplan

X, W = weights(0, 2048, 8), weights(1, 64, 8)

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_transformations_see_what_they_see_of_jax_jit() -> None:
    def f(x: Any) -> Any:
        return jnp.sin(x) * 2

    assert str(jax.make_jaxpr(memplan.jit(f))(X)) == str(jax.make_jaxpr(jax.jit(f))(X))


@pytest.mark.parametrize(
    ("fun", "args", "errors", "said"),
    [
        (jnp.log, (-1.0,), checkify.nan_checks, "nan"),
        (lambda x: 1 / x, (0.0,), checkify.div_checks, "division by zero"),
        (lambda x, i: x[i], (jnp.ones(3), 7), checkify.index_checks, "out-of-bounds"),
    ],
)
def test_checkify(fun: Any, args: Any, errors: Any, said: str) -> None:
    ours, theirs = (checkify.checkify(jit(fun), errors=errors)(*args)[0].get() for jit in (memplan.jit, jax.jit))
    assert ours == theirs and said in ours
    assert checkify.checkify(memplan.jit(fun), errors=errors)(*(jnp.ones_like(arg) for arg in args))[0].get() is None


def test_checks_of_the_user() -> None:
    def f(x: Any) -> Any:
        checkify.check(jnp.all(x > 0), "not positive")
        return jnp.sqrt(x)

    checked = checkify.checkify(memplan.jit(f))
    assert "not positive" in checked(-X)[0].get()
    assert checked(jnp.abs(X) + 1)[0].get() is None
    # The other way around.
    assert "not positive" in memplan.jit(checkify.checkify(f))(-X)[0].get()


def test_jet() -> None:
    found = [jet(jit(lambda x: jnp.sin(x) * x), (1.0,), ((1.0, 0.0),)) for jit in (memplan.jit, jax.jit)]
    assert_close(*found)


def test_sparsify() -> None:
    matrix = sparse.BCOO.fromdense(jnp.eye(3))
    found = [sparse.sparsify(jit(lambda m, v: m @ v))(matrix, jnp.arange(3.0)) for jit in (memplan.jit, jax.jit)]
    assert_close(*found)


def test_an_interpreter_of_the_user() -> None:
    """One that goes into ``jit``, as the one in JAX's tutorial."""

    def operations(jaxpr: Any) -> list[str]:
        names = []
        for equation in jaxpr.eqns:
            inner = equation.params.get("jaxpr")
            names += operations(inner.jaxpr) if inner is not None else [equation.primitive.name]
        return names

    found = [operations(jax.make_jaxpr(jit(lambda x: jnp.cos(jnp.sin(x))))(X).jaxpr) for jit in (memplan.jit, jax.jit)]
    assert found[0] == found[1] == ["sin", "cos"]


def test_export() -> None:
    ours = memplan.jit(saves)
    exported = jax.export.export(ours, platforms=["cpu"])(X, W)
    assert_close(exported.call(X, W), saves(X, W))
    loss = lambda x: exported.call(x, W).sum()  # noqa: E731
    # JAX exports the derivative of a function as well, which is around `memplan.jit`.
    with pytest.warns(memplan.FallbackWarning, match="put memplan.jit around the derivative"):
        gradient = jax.grad(loss)(X)
    assert_close(gradient, jax.grad(lambda x: saves(x, W).sum())(X))


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layer = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(nnx.gelu(self.norm(self.layer(x))))


WRAPPED = {
    "alone": lambda jit, f: jit(f),
    "inside of nnx.jit": lambda jit, f: nnx.jit(jit(f)),
    "around nnx.jit": lambda jit, f: jit(nnx.jit(f)),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=list(WRAPPED))
def test_nnx_modules_are_arguments(wrap: Callable[[Any, Any], Any]) -> None:
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    losses = []
    for jit in (memplan.jit, jax.jit):
        model = Network(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
        compiled = wrap(jit, step)
        losses.append([float(compiled(model, optimizer, X)) for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_static_trees_are_passed_as_they_are() -> None:
    @jax.tree_util.register_pytree_node_class
    class Settings:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def tree_flatten(self) -> Any:
            return (self.scale,), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    settings = Settings(2.0)

    def f(x: Any, s: Any) -> Any:
        assert s is settings
        return x * s.scale

    assert_close(memplan.jit(f, static_argnums=1)(X, settings), 2 * X)


def test_methods_names_and_copies() -> None:
    class Model:
        @memplan.jit
        def __call__(self: Any, x: Any) -> Any:  # type: ignore[misc]
            return x

        @functools.partial(memplan.jit, static_argnums=0)
        def predict(self, x: Any) -> Any:
            """Says something."""
            return saves(x, W)

    model = Model()
    assert_close(model.predict(X), saves(X, W))
    assert model.predict.__doc__ == "Says something." and Model.predict.__name__ == "predict"
    ours = memplan.jit(saves, memory_limit="1GiB")
    assert isinstance(ours, jax.stages.Wrapped) and "saves" in repr(ours)
    again = pickle.loads(pickle.dumps(ours))
    assert_close(again(X, W), ours(X, W))
    assert again._cache_size() == 1
    again.clear_cache()
    assert again._cache_size() == 0


def test_called_from_many_threads() -> None:
    ours, found = memplan.jit(saves), []

    def call(rows: int) -> None:
        found.append((rows, ours(X[:rows], W), jax.vmap(ours, (0, None))(X[None, :rows], W)))

    threads = [threading.Thread(target=call, args=(rows,)) for rows in (128, 256, 128, 512)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for rows, result, mapped in found:
        assert_close(result, saves(X[:rows], W))
        assert_close(mapped[0], saves(X[:rows], W))


@pytest.mark.parametrize("limit", [1.5, 2.0, True, -1, 1 << 64, "16 QB", "-3"])
def test_limits_are_refused_before_anything_runs(limit: Any) -> None:
    with pytest.raises(memplan.InputError):
        memplan.jit(saves, memory_limit=limit)
    for ask in (memplan.fits, memplan.compile, memplan.rewrite):
        with pytest.raises(memplan.InputError):
            ask("/no/such/file", memory_limit=limit, target="cpu")
    assert memplan.jit(saves, memory_limit=np.int64(1 << 30)) is not None  # type: ignore[call-overload]
