"""What cannot be rewritten runs as it is written, and says why, once."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from programs import saves, weights
from test_jit import assert_close

import memplan
from memplan import _memplan, _xla

X, W = weights(0, 2048, 8), weights(1, 64, 8)


def test_side_effects_keep_their_order() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        for i in range(3):
            io_callback(lambda i: seen.append(int(i)), None, i, ordered=True)
        return saves(x, W)

    with pytest.warns(memplan.FallbackWarning, match="side effects are in an order"):
        jax.block_until_ready(memplan.jit(f)(X))
    jax.effects_barrier()
    assert seen == [0, 1, 2]


def test_derivatives_around_it() -> None:
    ours = memplan.jit(lambda x: saves(x, W).sum())
    with pytest.warns(memplan.FallbackWarning, match="put memplan.jit around the derivative"):
        found = jax.jit(jax.grad(ours))(X)
    assert_close(found, jax.grad(lambda x: saves(x, W).sum())(X))
    one = memplan.jit(lambda x: jnp.sin(x @ W.T) @ W)
    loop = lambda x: jax.lax.scan(lambda c, _: (one(c), None), x, None, length=2)[0].sum()  # noqa: E731
    with pytest.warns(memplan.FallbackWarning, match="put memplan.jit around the derivative"):
        jax.jit(jax.grad(loop))(X)


def test_symbolic_shapes() -> None:
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("rows, 8"), jnp.float32)
    with pytest.warns(memplan.FallbackWarning, match="its shapes are symbolic"):
        exported = jax.export.export(memplan.jit(lambda x: x * 2))(spec)
    assert_close(exported.call(X), 2 * X)


@pytest.mark.parametrize("where", [(_memplan, "rewrite"), (_xla, "to_stablehlo"), (_xla, "from_mlir_module")])
def test_an_error_of_ours(where: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(*where, broken)
    ours = memplan.jit(saves)
    with pytest.warns(memplan.FallbackWarning, match="RuntimeError: no such thing"):
        assert_close(ours(X, W), saves(X, W))


def test_a_program_with_other_parameters_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    other = memplan.read(jax.jit(lambda a: a + a).lower(X))
    monkeypatch.setattr(_xla, "to_stablehlo", lambda _, real=_xla.to_stablehlo: real(other))
    with pytest.warns(memplan.FallbackWarning, match="the rewritten program takes"):
        assert_close(memplan.jit(saves)(X, W), saves(X, W))


def test_errors_of_the_user_are_theirs() -> None:
    with pytest.raises(ZeroDivisionError):
        memplan.jit(lambda x: x / (1 // 0))(X)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        memplan.jit(lambda x: x if x.sum() > 0 else -x)(X)
    with pytest.raises(TypeError):
        memplan.jit(saves)(X)


def test_what_jax_says_of_errors_names_the_function() -> None:
    def decides(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"function decides at .*test_jit_falls_back\.py"):
        memplan.jit(decides)(X)
    with pytest.raises(TypeError, match="takes a function, not 3"):
        memplan.jit(3)  # type: ignore[call-overload]


def test_warnings_name_the_line_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_xla, "to_stablehlo", lambda _: 1 / 0)
    with pytest.warns(memplan.FallbackWarning) as seen:
        memplan.jit(saves)(X, W)
    assert seen[0].filename == __file__


def test_a_limit_that_is_not_met() -> None:
    with pytest.warns(memplan.LimitWarning, match="`saves` to need .* more than its limit of 1.00 KiB"):
        memplan.jit(saves, memory_limit="1KiB")(X, W)


def test_an_error_in_the_report_is_the_users() -> None:
    with pytest.raises(ZeroDivisionError):
        memplan.jit(saves, report=lambda _: 1 / 0)(X, W)


def test_report() -> None:
    reports: list[memplan.Rewritten] = []
    memplan.jit(saves, report=reports.append)(X, W)
    (report,) = reports
    assert report.compiler == "xla-cpu" and report.target == "cpu"
    assert report.is_changed and report.after.bytes < report.before.bytes
    assert "loop residuals" in str(report)
    assert "<table>" in report._repr_html_()
