"""``memplan.jit``: a program compiled as ``jax.jit`` would, in a form that needs less memory.

The function that ``jit`` gives is a function of ``jax.jit``: what JAX keeps of it, how it calls it, and every
transformation are JAX's own. The program within is one primitive. Where it is lowered as the whole of a program, it is
rewritten on the way; everywhere else, and under every transformation, it is the operations that it stands for.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from memplan import _targets
from memplan._lowering import Job, lower
from memplan._results import Rewritten

if TYPE_CHECKING:
    import jax


@overload
def jit(
    fun: Callable[..., Any],
    *,
    memory_limit: int | str | None = None,
    report: Callable[[Rewritten], object] | None = None,
    **jit_options: Any,
) -> jax.stages.Wrapped: ...
@overload
def jit(
    *,
    memory_limit: int | str | None = None,
    report: Callable[[Rewritten], object] | None = None,
    **jit_options: Any,
) -> Callable[[Callable[..., Any]], jax.stages.Wrapped]: ...
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    memory_limit: int | str | None = None,
    report: Callable[[Rewritten], object] | None = None,
    **jit_options: Any,
) -> Any:
    """As ``jax.jit``, for programs that need much memory.

    The program is rewritten for the compiler of the device at hand, so that XLA needs fewer bytes for it; its results
    are those of the program as written, up to rounding. Inside of another transformation (``jax.jit``, ``vmap``,
    ``grad``) it is the function as written. Where it cannot be rewritten, it runs as written and a ``FallbackWarning``
    says why, once.

    Args:
      memory_limit: bytes, or a text as ``"16GiB"``. As long as the program needs more, bytes are saved at any price in
        time; by default, only where that pays.
      report: called with a ``memplan.Rewritten`` whenever a program was rewritten; ``print`` shows a table.
      jit_options: those of ``jax.jit``.
    """
    if fun is None:
        return functools.partial(jit, memory_limit=memory_limit, report=report, **jit_options)
    import jax

    if not callable(fun):
        raise TypeError(f"memplan.jit takes a function, not {fun!r}")
    job = Job(getattr(fun, "__name__", repr(fun)), _targets.bytes_of(memory_limit), report)
    return jax.jit(_as_one_primitive(fun, job), **jit_options)


def _as_one_primitive(fun: Callable[..., Any], job: Job) -> Callable[..., Any]:
    """A function that does what ``fun`` does, by the primitive."""
    import jax

    @functools.wraps(fun)
    def traced(*args: Any, **kwargs: Any) -> Any:
        # Static arguments are whatever people choose; all others are tracers by now, or trees of tracers.
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_static)
        is_traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]

        def flat(*values: Any) -> Any:
            values_left = iter(values)
            filled = [next(values_left) if traced else leaf for traced, leaf in zip(is_traced, leaves, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, filled)
            return fun(*args, **kwargs)

        # What JAX says of errors names the function and its line, and arguments as they are here.
        flat.__wrapped__, flat.__signature__ = fun, inspect.signature(flat)  # type: ignore[attr-defined]
        dynamic = [leaf for traced, leaf in zip(is_traced, leaves, strict=True) if traced]
        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*dynamic)
        return jax.tree.unflatten(jax.tree.structure(shape), _bind(closed, job, *dynamic))

    with contextlib.suppress(TypeError, ValueError):
        # `jax.jit` finds static and donated arguments by it.
        traced.__signature__ = inspect.signature(fun)  # type: ignore[attr-defined]
    return traced


def _is_static(node: Any) -> bool:
    """Whether a node of the arguments has no tracer in it, so that it is to be passed on as it is."""
    import jax

    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(node))


def _bind(closed: Any, job: Job, *args: Any) -> Any:
    """The results of a program, by the primitive if it can stand for it."""
    # Names of mapped axes are of a transformation around it, and nothing that people need to know of.
    effects = [str(effect) for effect in closed.effects if type(effect).__name__ != "NamedAxisEffect"]
    if effects:
        job.fall_back("it has side effects (" + ", ".join(sorted(effects)) + ")")
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
    """The primitive, and what it is under transformations: the operations that it stands for."""
    import jax
    from jax.extend.core import Primitive, jaxpr_as_fun
    from jax.interpreters import ad, batching, mlir

    program = Primitive("memplan")
    program.multiple_results = True

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

    program.def_impl(run)
    program.def_abstract_eval(shapes)
    ad.primitive_jvps[program] = differentiate
    ad.primitive_transposes[program] = transpose
    batching.primitive_batchers[program] = batch
    # A cached rule would not see where it stands.
    mlir.register_lowering(program, lower, cacheable=False)
    return program
