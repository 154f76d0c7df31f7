"""``memplan.jit`` with all that ``jax.jit`` takes, and inside of other transformations."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import PROGRAMS, saves, weights
from test_jit import assert_close, compare

import memplan

pytestmark = pytest.mark.usefixtures("no_fallback")


X, W = weights(0, 2048, 8), weights(1, 64, 8)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_pytrees_and_keywords() -> None:
    def f(tree: Any, *rest: Any, scale: Any, **more: Any) -> Any:
        return Pair(tree["a"] * scale, [tree["b"].first + rest[0], {"c": more["x"], "none": None}])

    args = ({"a": X, "b": Pair(W, 2)}, W)
    kwargs = {"scale": 3.0, "x": jnp.arange(3)}
    assert_close(memplan.jit(f)(*args, **kwargs), jax.jit(f)(*args, **kwargs))


@pytest.mark.parametrize("options", [{"static_argnums": (1, 2)}, {"static_argnames": ("power", "mode")}])
def test_static_arguments(options: Any) -> None:
    traces = []

    def f(x: Any, power: int, mode: Any = ("sum", 0)) -> Any:
        traces.append(power)
        return getattr(jnp, mode[0])(x**power, mode[1])

    ours = memplan.jit(f, **options)
    for power in (2, 3, 2):
        assert_close(ours(X, power), jax.jit(f, **options)(X, power))
        assert_close(ours(X, power, mode=("max", 1)), (X**power).max(1))
    assert ours(X, 2).shape == (8,)
    assert "static_argnums" in options or ours(X, power=2, mode=("min", 0)).shape == (8,)
    # Each of the two powers and three modes once, here and in `jax.jit`.
    assert len(traces) <= 8


def test_static_objects_are_passed_as_they_are() -> None:
    class Settings:
        scale = 2.0

    settings = Settings()

    def f(x: Any, s: Any, function: Any) -> Any:
        assert s is settings and function is np.sin
        return x * s.scale

    assert_close(memplan.jit(f, static_argnums=(1, 2))(X, settings, np.sin), 2 * X)


def test_donation_of_a_part() -> None:
    fun, args, _ = PROGRAMS["mlp_adam"]()
    compare(fun, args, {"donate_argnums": (1,)})
    ours = memplan.jit(lambda a, b: (a + b, b * 2), donate_argnames="a")
    a, b = jnp.ones((256, 256)), jnp.ones((256, 256))
    ours(a, b)
    assert a.is_deleted() and not b.is_deleted()


def test_rewrites_know_what_is_donated() -> None:
    reports: list[memplan.Rewritten] = []
    memplan.jit(lambda x, w: (x + 1, saves(x, w)), donate_argnums=0, report=reports.append).lower(X, W)
    assert "(0, {}, may-alias)" in reports[0].module.to_text().splitlines()[0]


def test_arguments_that_are_not_read_and_results_that_are_arguments() -> None:
    def f(x: Any, w: Any, unused: Any) -> Any:
        return saves(x, w), x, 3.0, unused["b"]

    args = (X, W, {"a": jnp.ones((512, 512)), "b": jnp.ones(3)})
    compare(f, args, {})
    assert memplan.jit(f)(*args)[1] is not None


def test_two_shapes() -> None:
    ours = memplan.jit(saves)
    for rows in (2048, 512, 2048):
        assert_close(ours(X[:rows], W), saves(X[:rows], W))
    assert ours._cache_size() == 2


def test_inside_of_jit() -> None:
    ours = memplan.jit(saves)
    outer = jax.jit(lambda x, w: ours(x * 2, w) + ours(x, w))
    assert_close(outer(X, W), saves(X * 2, W) + saves(X, W))
    assert_close(memplan.jit(lambda x: ours(x, W))(X), saves(X, W))
    loop = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c + ours(x, W), None), jnp.zeros(64), None, length=3)[0])
    assert_close(loop(X), 3 * saves(X, W))


def test_vmap() -> None:
    xs = jnp.stack([X[:256], X[256:512]])
    assert_close(jax.vmap(memplan.jit(saves), (0, None))(xs, W), jax.vmap(saves, (0, None))(xs, W))
    named = jax.vmap(memplan.jit(lambda x: x / jax.lax.psum(x, "i")), axis_name="i")
    assert_close(named(jnp.arange(1.0, 4)), jnp.arange(1.0, 4) / 6)


def test_grad() -> None:
    ours = memplan.jit(saves)
    loss = lambda f: lambda x, w: f(x, w).sum()  # noqa: E731
    assert_close(jax.grad(loss(ours), (0, 1))(X, W), jax.grad(loss(saves), (0, 1))(X, W))
    assert_close(jax.jvp(ours, (X, W), (X, W)), jax.jvp(saves, (X, W), (X, W)))
    short = lambda w: jnp.sum(jnp.tanh(X[:16] @ w) ** 2)  # noqa: E731
    assert_close(jax.jacfwd(jax.jacrev(memplan.jit(short)))(W[0]), jax.hessian(short)(W[0]))
    within = memplan.jit(jax.grad(loss(ours)))
    assert_close(within(X, W), jax.grad(loss(saves))(X, W))
    assert_close(jax.checkpoint(ours)(X, W), saves(X, W))


def test_transpose() -> None:
    linear = memplan.jit(lambda x, w: x @ w)
    found = jax.linear_transpose(lambda x: linear(x, W.T), X)(jnp.ones((2048, 64)))
    assert_close(found, (jnp.ones((2048, 64)) @ W,))


def test_custom_derivative() -> None:
    @jax.custom_vjp
    def clip(x: Any) -> Any:
        return x

    clip.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))
    f = lambda x: jnp.sum(clip(x) ** 2)  # noqa: E731
    assert_close(jax.grad(memplan.jit(f))(X), jax.grad(f)(X))
    assert_close(memplan.jit(jax.grad(f))(X), jax.grad(f)(X))


def test_closures() -> None:
    table = weights(7, 2048, 8)
    assert_close(memplan.jit(lambda w: saves(table, w))(W), saves(table, W))
    scanned = memplan.jit(lambda w: jax.lax.scan(lambda c, _: (c + saves(table, w), None), jnp.zeros(64), None, 2)[0])
    assert_close(scanned(W), 2 * saves(table, W))
    # Of a value that another transformation is tracing.
    outer = lambda x: memplan.jit(lambda w: saves(x, w).sum())(W)  # noqa: E731
    assert_close(jax.grad(outer)(X), jax.grad(lambda x: saves(x, W).sum())(X))


def test_stages() -> None:
    ours = memplan.jit(saves)
    assert jax.eval_shape(ours, X, W).shape == ours.eval_shape(X, W).shape == (64,)
    lowered = ours.lower(X, W)
    compiled = lowered.compile()
    assert_close(compiled(X, W), saves(X, W))
    assert ours.trace(X, W).jaxpr is not None
    assert ours.__name__ == "saves" and ours.__wrapped__ is not None


def test_as_a_decorator_and_a_method() -> None:
    class Model:
        @functools.partial(memplan.jit, static_argnums=0)
        def predict(self, x: Any) -> Any:
            return saves(x, W)

    @memplan.jit(memory_limit="1GiB", donate_argnums=0)
    def f(x: Any) -> Any:
        return x + 1

    assert_close(Model().predict(X), saves(X, W))
    assert_close(f(jnp.ones(3)), jnp.full(3, 2.0))
    assert_close(memplan.jit(functools.partial(saves, w=W))(X), saves(X, W))


def test_custom_call() -> None:
    compare(*PROGRAMS["cholesky_regression"]())
    symmetric = X[:64].T @ X[:64]
    f = lambda a: (jnp.linalg.eigh(a), jnp.linalg.qr(a), jnp.linalg.slogdet(a + jnp.eye(8)))  # noqa: E731
    assert_close(memplan.jit(f)(symmetric), jax.jit(f)(symmetric))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_keys(impl: str) -> None:
    def f(keys: Any, x: Any) -> Any:
        new, use = jax.random.split(keys)
        return new, x + jax.random.normal(use, x.shape), jax.random.categorical(use, x)

    key = jax.random.key(3, impl=impl)
    compare(f, (key, X), {})
    assert_close(memplan.jit(f, donate_argnums=1)(key, jnp.copy(X)), jax.jit(f)(key, X))


def test_64_bits() -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(512, 8)))
        f = lambda x, n: (saves(x, x[:64]), x.astype(jnp.complex128) * 1j, n * jnp.int64(1 << 40))  # noqa: E731
        results = memplan.jit(f)(x, jnp.int64(3))
        assert_close(results, jax.jit(f)(x, jnp.int64(3)))
        assert [r.dtype for r in results] == [jnp.float64, jnp.complex128, jnp.int64]


def test_other_types() -> None:
    def f(b: Any, i: Any, h: Any, c: Any) -> Any:
        return ~b, i << 2, h @ h.T, jnp.fft.fft(c), h.astype(jnp.float8_e4m3fn).astype(jnp.float32)

    args = (X > 0, jnp.arange(9, dtype=jnp.uint8), X[:9].astype(jnp.float16), X[:9].astype(jnp.complex64))
    assert_close(memplan.jit(f)(*args), jax.jit(f)(*args))


def test_empty_arrays_and_nothing_to_do() -> None:
    assert memplan.jit(lambda x: x)(X) is not None
    assert memplan.jit(lambda: jnp.arange(3))().shape == (3,)
    assert_close(memplan.jit(lambda x: (x @ x.T, x.sum()))(jnp.ones((0, 4))), (jnp.ones((0, 0)), jnp.float32(0)))


def test_disabled_jit() -> None:
    with jax.disable_jit():
        assert_close(memplan.jit(saves)(X, W), saves(X, W))


def test_on_the_second_device() -> None:
    second = jax.devices()[1]
    x, w = jax.device_put(X, second), jax.device_put(W, second)
    result = memplan.jit(saves)(x, w)
    assert result.devices() == {second}
    assert_close(result, saves(X, W))


def test_products_of_ragged_arrays_have_the_name_that_plugins_take() -> None:
    def loss(weights: Any, x: Any, sizes: Any) -> Any:
        for up, down in weights:
            x = x + jax.lax.ragged_dot(jax.nn.gelu(jax.lax.ragged_dot(x, up, sizes)), down, sizes)
        return (x * x).sum()

    def step(weights: Any, x: Any, sizes: Any) -> Any:
        return jax.tree.map(lambda w, d: w - d, weights, jax.grad(loss)(weights, x, sizes))

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    experts = [(array(8, 64, 256), array(8, 256, 64))] * 6
    args = experts, array(2048, 64), jax.ShapeDtypeStruct((8,), jnp.int32)
    traced = memplan.jit(step, donate_argnums=0).trace(*args)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    # As written, rewritten, and the program that calls one of them.
    assert text.count("func.func") == 3
    assert "chlo.ragged_dot" in text and "mhlo.ragged_dot" not in text
