"""``memplan.jit``: a program compiled as ``jax.jit`` would, in a form that needs less memory.

What ``jit`` gives stands for two functions of ``jax.jit``. Called by itself, it is one whose program is a single
primitive: where that is lowered as the whole of a program, it is rewritten on the way. Called while JAX traces anything
else (``jax.jit``, ``grad``, ``vmap``, ``checkify``, anybody's interpreter of jaxprs), it is the other: the function as
written, under ``jax.jit``. So what traces a call never meets the primitive, and whatever works on ``jax.jit`` works on
``memplan.jit``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from memplan import _targets, _xla
from memplan._lowering import Job, Wish, lower
from memplan._results import Rewritten

if TYPE_CHECKING:
    import jax


@overload
def jit(
    fun: Callable[..., Any],
    *,
    memory_limit: int | str | None = None,
    max_slowdown: float | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    on_fallback: Literal["warn", "error"] = "warn",
    report: Callable[[Rewritten], object] | None = None,
    **jit_options: Any,
) -> jax.stages.Wrapped: ...
@overload
def jit(
    *,
    memory_limit: int | str | None = None,
    max_slowdown: float | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    on_fallback: Literal["warn", "error"] = "warn",
    report: Callable[[Rewritten], object] | None = None,
    **jit_options: Any,
) -> Callable[[Callable[..., Any]], jax.stages.Wrapped]: ...
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    memory_limit: int | str | None = None,
    max_slowdown: float | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    on_fallback: Literal["warn", "error"] = "warn",
    report: Callable[[Rewritten], object] | None = None,
    **jit_options: Any,
) -> Any:
    """As ``jax.jit``, for programs that need much memory.

    The program is rewritten for the compiler of the device at hand, so that XLA needs fewer bytes for it; its results
    are those of the program as written, up to rounding. Inside of another transformation (``jax.jit``, ``vmap``,
    ``grad``) it is the function as written. Where it cannot be rewritten, it runs as written and a ``FallbackWarning``
    says why, once. With ``MEMPLAN=off`` in the environment it is ``jax.jit``.

    Args:
      memory_limit: bytes, or a text as ``"16GiB"``. The fastest program that fits is run. Without it, the smallest one
        that takes at most ``max_slowdown`` more time by the cost model.
      max_slowdown: by default a tenth, ``0.1``, or any time under a limit.
      only, without: names of levers, as ``memplan rewrite --help`` lists them, to pull or not to pull.
      on_fallback: ``"error"`` raises a ``FallbackWarning`` where the program cannot be rewritten.
      report: called with a ``memplan.Rewritten`` whenever a program was rewritten; ``print`` shows a table.
      jit_options: those of ``jax.jit``.
    """
    if fun is None:
        return functools.partial(
            jit,
            memory_limit=memory_limit,
            max_slowdown=max_slowdown,
            only=only,
            without=without,
            on_fallback=on_fallback,
            report=report,
            **jit_options,
        )
    if not callable(fun):
        raise TypeError(f"memplan.jit takes a function, not {fun!r}")
    if on_fallback not in ("warn", "error"):
        raise ValueError(f"on_fallback is 'warn' or 'error', not {on_fallback!r}")
    wish = Wish(_targets.bytes_of(memory_limit), max_slowdown, tuple(only), tuple(without), on_fallback == "error")
    return Jitted(fun, wish, report, jit_options)


class Jitted:
    """What ``memplan.jit`` gives: called as the function, and with the stages of ``jax.jit``."""

    def __init__(
        self,
        fun: Callable[..., Any],
        wish: Wish,
        report: Callable[[Rewritten], object] | None,
        jit_options: dict[str, Any],
    ) -> None:
        import jax

        functools.update_wrapper(self, fun, updated=())
        self._made_of = fun, wish, report, jit_options
        job = Job(getattr(fun, "__name__", repr(fun)), wish, report)
        self._as_written: Any = jax.jit(fun, **jit_options)
        self._rewritten: Any = jax.jit(_as_one_primitive(fun, self._as_written, job), **jit_options)
        self._is_called_by_itself = _xla.trace_state_is_clean()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_called_by_itself() and not _is_off():
            return self._rewritten(*args, **kwargs)
        return self._as_written(*args, **kwargs)

    def _own(self) -> Any:
        return self._as_written if _is_off() else self._rewritten

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """As ``jax.jit(fun).trace``: lowered, it is the rewritten program."""
        stage: jax.stages.Traced = self._own().trace(*args, **kwargs)
        return stage

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As ``jax.jit(fun).lower``, of the rewritten program."""
        stage: jax.stages.Lowered = self._own().lower(*args, **kwargs)
        return stage

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(fun).eval_shape``: shapes and types of the results."""
        return self._as_written.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets all programs that it has compiled."""
        self._rewritten.clear_cache()
        self._as_written.clear_cache()

    def _cache_size(self) -> int:
        size: int = self._rewritten._cache_size()
        return size

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a function in a class, it is a method of its instances."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return Jitted, self._made_of

    def __repr__(self) -> str:
        return f"<memplan.jit of {self._made_of[0]!r}>"


def _is_off() -> bool:
    """Whether the environment asks for programs as they are written."""
    return os.environ.get("MEMPLAN", "").lower() == "off"


def _as_one_primitive(fun: Callable[..., Any], as_written: Any, job: Job) -> Callable[..., Any]:
    """A function that does what ``fun`` does, by the primitive; ``as_written`` is ``fun`` under ``jax.jit``."""
    import jax

    @functools.wraps(fun, updated=())
    def traced(*args: Any, **kwargs: Any) -> Any:
        # Static arguments are whatever people choose; all others are tracers by now, or trees of tracers.
        dynamic = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.core.Tracer)]
        if not dynamic:
            return fun(*args, **kwargs)
        stage = as_written.trace(*args, **kwargs)
        if len(stage.jaxpr.in_avals) != len(dynamic):
            # It closes over values that something around it traces, which JAX makes arguments as well.
            return as_written(*args, **kwargs)
        return jax.tree.unflatten(jax.tree.structure(stage.out_info), _bind(stage.jaxpr, job, *dynamic))

    with contextlib.suppress(TypeError, ValueError):
        # `jax.jit` finds static and donated arguments by it.
        traced.__signature__ = inspect.signature(fun)  # type: ignore[attr-defined]
    return traced


#: Names of what JAX calls it to read and write a reference.
_OF_REFERENCES = {"ReadEffect", "WriteEffect", "AccumEffect"}


def _bind(closed: Any, job: Job, *args: Any) -> Any:
    """The results of a program, by the primitive if it can stand for it."""
    # Names of mapped axes are of a transformation around it, and nothing that people need to know of.
    kinds = {type(effect).__name__: str(effect) for effect in closed.effects}
    kinds.pop("NamedAxisEffect", None)
    if kinds.keys() & _OF_REFERENCES:
        job.fall_back("it changes references (jax.Ref)")
    elif kinds:
        job.fall_back("it has side effects (" + ", ".join(sorted(kinds.values())) + ")")
    if not closed.effects and args and closed.eqns:
        try:
            return _bind_computed(closed, job, *args)
        except Exception as error:
            job.fall_back(f"{type(error).__name__}: {error}")
    from jax.extend.core import jaxpr_as_fun

    return jaxpr_as_fun(closed)(*args)


def _bind_computed(closed: Any, job: Job, *args: Any) -> list[Any]:
    """The results of a program. Only what it computes goes through the primitive: arguments that it does not read and
    results that are arguments stay outside, where ``jax.jit`` sees that they need no memory."""
    from jax.extend.core import ClosedJaxpr, Literal
    from jax.interpreters import partial_eval

    jaxpr = closed.jaxpr
    # What it closes over is an argument too: constants are JAX's own business, and may be tracers.
    inputs = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))
    is_computed = [not isinstance(out, Literal) and out not in inputs for out in jaxpr.outvars]
    jaxpr = jaxpr.replace(constvars=[], invars=list(inputs))
    jaxpr, is_read = partial_eval.dce_jaxpr(jaxpr, is_computed)
    read = [value for value, needed in zip(inputs.values(), is_read, strict=True) if needed]
    computed = iter(_primitive().bind(*read, jaxpr=ClosedJaxpr(jaxpr, ()), job=job) if jaxpr.eqns else ())
    return [
        next(computed) if is_new else out.val if isinstance(out, Literal) else inputs[out]
        for out, is_new in zip(closed.jaxpr.outvars, is_computed, strict=True)
    ]


@functools.cache
def _primitive() -> Any:
    """The primitive, and what it is under transformations: the operations that it stands for.

    It meets them in jaxprs that are taken from a stage, as ``jax.export`` does for derivatives.
    """
    import jax
    from jax.extend.core import Primitive, jaxpr_as_fun
    from jax.interpreters import ad, batching, mlir

    def run(*args: Any, jaxpr: Any, job: Job) -> Any:
        return jaxpr_as_fun(jaxpr)(*args)

    def shapes(*args: Any, jaxpr: Any, job: Job) -> Any:
        return jaxpr.out_avals

    def differentiate(primals: Any, tangents: Any, *, jaxpr: Any, job: Job) -> Any:
        return jax.jvp(jaxpr_as_fun(jaxpr), tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))

    def batch(args: Sequence[Any], axes: Sequence[Any], *, jaxpr: Any, job: Job) -> Any:
        results = jax.vmap(jaxpr_as_fun(jaxpr), in_axes=tuple(axes))(*args)
        return results, [0] * len(results)

    def transpose(cotangents: Sequence[Any], *args: Any, jaxpr: Any, job: Job) -> list[Any]:
        is_linear = [ad.is_undefined_primal(arg) for arg in args]

        def of_linear(*linear: Any) -> Any:
            linear_left = iter(linear)
            filled = [next(linear_left) if new else arg for new, arg in zip(is_linear, args, strict=True)]
            return jaxpr_as_fun(jaxpr)(*filled)

        linear = [jax.ShapeDtypeStruct(arg.aval.shape, arg.aval.dtype) for arg in args if ad.is_undefined_primal(arg)]
        found = iter(jax.linear_transpose(of_linear, *linear)([ad.instantiate_zeros(ct) for ct in cotangents]))
        return [next(found) if new else None for new in is_linear]

    program = Primitive("memplan")
    program.multiple_results = True
    program.def_impl(run)
    program.def_abstract_eval(shapes)
    ad.primitive_jvps[program] = differentiate
    ad.primitive_transposes[program] = transpose
    batching.primitive_batchers[program] = batch
    # A cached rule would not see where it stands.
    mlir.register_lowering(program, lower, cacheable=False)
    return program
