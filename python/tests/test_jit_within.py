"""``memplan.jit`` as a part of other programs: inside of another jit, of those of frameworks, with prints within."""

import os
import traceback
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import io_callback
from programs import saves, weights
from test_jit import assert_close, total

import memplan
from memplan import _memplan

X, W = weights(0, 2048, 8), weights(1, 64, 8)

pytestmark = pytest.mark.usefixtures("no_fallback")


def outer(inner: Any) -> Any:
    return lambda x, w: inner(x * 2, w) + jnp.sum(x)


def test_it_rewrites_its_part_of_a_program() -> None:
    ours, theirs = (jax.jit(outer(f)).lower(X, W).compile() for f in (memplan.jit(saves), saves))
    assert total(ours) < 0.5 * total(theirs)
    assert_close(ours(X, W), theirs(X, W))


def test_a_part_that_is_called_twice_is_rewritten_once() -> None:
    reports: list[memplan.Rewritten] = []
    inner = memplan.jit(saves, report=reports.append)
    found = jax.jit(lambda x, w: inner(inner(x, w)[:, None] * x[:64], w) + inner(x[:64], w))(X, W)
    assert_close(found, saves(saves(X, W)[:, None] * X[:64], W) + saves(X[:64], W))
    assert len(reports) == 2


def test_in_a_loop_and_under_vmap() -> None:
    reports: list[memplan.Rewritten] = []
    inner = memplan.jit(saves, report=reports.append)
    loop = lambda x: jax.lax.scan(lambda c, _: (c + inner(x, W), None), jnp.zeros(64), None, length=3)[0]  # noqa: E731
    assert_close(jax.jit(loop)(X), 3 * saves(X, W))
    xs = jnp.stack([X[:256], X[256:512]])
    assert_close(jax.jit(jax.vmap(inner, (0, None)))(xs, W), jax.vmap(saves, (0, None))(xs, W))
    assert len(reports) == 2 and all(report.is_changed for report in reports)


def test_within_another_memplan_jit_the_outer_one_rewrites_all() -> None:
    inner_reports: list[memplan.Rewritten] = []
    outer_reports: list[memplan.Rewritten] = []
    inner = memplan.jit(saves, report=inner_reports.append)
    found = memplan.jit(outer(inner), report=outer_reports.append)(X, W)
    assert_close(found, outer(saves)(X, W))
    assert len(outer_reports) == 1 and not inner_reports


def test_prints_and_callbacks_stay_where_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []

    def f(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            def body(h: Any, _: Any) -> Any:
                h = jnp.sin(jax.nn.softmax(h @ w.T) @ w)
                jax.debug.print("step {}", h.sum())
                return h, None

            h, _ = jax.lax.scan(body, x, None, length=32)
            return jnp.sum(h**2)

        doubled = jax.pure_callback(lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct(w.shape, w.dtype), w)
        value, gradient = jax.value_and_grad(loss)(doubled)
        io_callback(lambda s: seen.append(float(s)), None, value)
        return gradient.sum(1)

    reports: list[memplan.Rewritten] = []
    ours = memplan.jit(f, report=reports.append)
    plain = jax.jit(f)
    assert_close(jax.block_until_ready(ours(X, W)), jax.block_until_ready(plain(X, W)))
    jax.effects_barrier()
    assert reports[0].is_changed and reports[0].after.bytes < 0.6 * reports[0].before.bytes
    assert capfd.readouterr().out.count("step ") == 2 * 32
    assert len(seen) == 2 and seen[0] == pytest.approx(seen[1], rel=1e-4)


def test_references() -> None:
    def f(r: Any, x: Any) -> Any:
        r[...] += x
        return x

    found = []
    for jit in (jax.jit, memplan.jit):
        reference = jax.new_ref(jnp.ones(3))
        jit(f)(reference, jnp.arange(3.0))
        found.append(reference[...].tolist())
    assert found[0] == found[1] == [1, 2, 3]


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.weight = nnx.Param(weights(1, 64, 8))
        self.norm = nnx.BatchNorm(8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.norm(x)
        w = self.weight[...]
        return jax.lax.scan(lambda x, _: (jnp.sin(jax.nn.softmax(x @ w.T) @ w), None), x, None, 32)[0]


def test_nnx_jit() -> None:
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    reports: list[memplan.Rewritten] = []
    ways = (memplan.jit(step, using=nnx.jit, donate_argnums=(0, 1), report=reports.append), nnx.jit(step))
    found = []
    for way in ways:
        model = Network(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
        losses = [float(way(model, optimizer, X)) for _ in range(3)]
        found.append((losses, model.weight[...], model.norm.mean[...]))
    assert reports[0].is_changed
    # The model and its statistics are updated.
    assert not np.allclose(found[0][2], 0)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    assert_close(found[0][1], found[1][1])
    assert_close(found[0][2], found[1][2])


def test_nnx_jit_within_another() -> None:
    inner = memplan.jit(lambda model, x: (model(x) ** 2).mean(), using=nnx.jit)
    within = nnx.jit(lambda model, x: nnx.jit(lambda model, x: inner(model, x))(model, x))
    model = Network(nnx.Rngs(0))
    assert float(within(model, X)) == pytest.approx(float((Network(nnx.Rngs(0))(X) ** 2).mean()), rel=1e-4)
    assert not np.allclose(model.norm.mean[...], 0)


class Block(eqx.Module):
    weight: Any
    activation: Any = jnp.sin

    def __call__(self, x: Any) -> Any:
        w = self.weight
        step = lambda x, _: (self.activation(jax.nn.softmax(x @ w.T) @ w), None)  # noqa: E731
        return jax.lax.scan(step, x, None, 32)[0]


def test_filter_jit() -> None:
    def step(model: Any, x: Any, name: str) -> Any:
        loss, gradients = eqx.filter_value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        return eqx.apply_updates(model, gradients), loss, name

    reports: list[memplan.Rewritten] = []
    ours = memplan.jit(step, using=eqx.filter_jit, report=reports.append)(Block(W), X, "a name")
    theirs = eqx.filter_jit(step)(Block(W), X, "a name")
    assert reports[0].is_changed and ours[2] == "a name"
    assert_close([ours[0].weight, ours[1]], [theirs[0].weight, theirs[1]])


def test_off_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLAN", "off")
    reports: list[memplan.Rewritten] = []
    ours = memplan.jit(saves, report=reports.append)
    assert_close(jax.jit(outer(ours))(X, W), outer(saves)(X, W))
    assert not reports


def report_of(**options: Any) -> memplan.Rewritten:
    reports: list[memplan.Rewritten] = []
    memplan.jit(saves, report=reports.append, **options).lower(X, W)
    return reports[0]


def test_a_diff() -> None:
    report = report_of()
    lines = report.diff().splitlines()
    assert lines[:2] == ["--- as written", "+++ rewritten"]
    changed = [line for line in lines if line[0] in "+-"]
    assert len(changed) > 20 and "metadata" not in report.diff()
    # What is equal in both but for the numbers of names is not in it.
    assert not {line[1:] for line in changed if "maximum(" in line and "f32[]" in line}


def test_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step.memplan"
    report = report_of(without=["parts"])
    report.save(path)
    again = memplan.load(path)
    assert (str(again), again.after, again.steps) == (str(report), report.after, report.steps)
    assert again.module.to_text() == report.module.to_text() and again.diff() == report.diff()

    def no_search(*_: Any) -> Any:
        raise AssertionError("a search")

    monkeypatch.setattr(_memplan, "rewrite", no_search)
    for saved in (path, again):
        ours = memplan.jit(saves, rewritten=saved).lower(X, W).compile()
        assert_close(ours(X, W), saves(X, W))
        assert total(ours) < 0.5 * total(jax.jit(saves).lower(X, W).compile())


def test_a_saved_program_of_another_one(tmp_path: Path) -> None:
    path = tmp_path / "step.memplan"
    report_of().save(path)
    with pytest.warns(memplan.FallbackWarning, match="searches for a program for `saves`: .* another one"):
        assert_close(memplan.jit(saves, rewritten=path)(X[:512], W), saves(X[:512], W))


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:30], lambda data: b"x" + data])
def test_a_damaged_file(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "step.memplan"
    report_of().save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(memplan.InputError, match=r"step\.memplan"):
        memplan.load(path)
    with pytest.raises(memplan.InputError, match="cannot read"):
        memplan.load(tmp_path / "nothing")


def test_searches_are_kept_beside_what_jax_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    search = _memplan.rewrite
    monkeypatch.setattr(_memplan, "rewrite", lambda *args: (searches.append(args), search(*args))[1])
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        texts = [report_of(), report_of(), report_of(memory_limit="1GiB")]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert len(searches) == 2 and str(texts[0]) == str(texts[1])
    assert len(os.listdir(tmp_path / "memplan")) == 2


def broken(x: Any) -> Any:
    return x / (1 // 0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.grad, lambda f: memplan.jit(f, using=nnx.jit)])
def test_tracebacks_show_nothing_of_memplan(wrap: Any) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        wrap(memplan.jit(broken))(1.0)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not [file for file in files if f"memplan{os.sep}_" in file]
    assert files.count(__file__) == 2
