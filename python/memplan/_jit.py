"""``memplan.jit``: a program compiled as ``jax.jit`` would, in a form that needs less memory.

A jitted function within a jitted function is an equation ``jit`` of JAX, which keeps its name under every
transformation. ``memplan.jit`` gives the function a name that JAX cannot tell from its own (`_lowering.Name`), and the
rule by which JAX lowers such equations looks for that name and rewrites what the equation has become. So what traces a
call meets nothing but ``jax.jit``, and whatever works on ``jax.jit`` works on ``memplan.jit``.

Called by itself, the function is the only equation of a function around it, and so the whole of a program.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from memplan import _targets, _xla
from memplan._lowering import Job, Name, Wish, install, is_off
from memplan._results import Rewritten, load

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
    rewritten: Rewritten | str | os.PathLike[str] | None = None,
    using: Callable[..., Any] | None = None,
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
    rewritten: Rewritten | str | os.PathLike[str] | None = None,
    using: Callable[..., Any] | None = None,
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
    rewritten: Rewritten | str | os.PathLike[str] | None = None,
    using: Callable[..., Any] | None = None,
    **jit_options: Any,
) -> Any:
    """As ``jax.jit``, for programs that need much memory.

    The program is rewritten for the compiler of the device at hand, so that XLA needs fewer bytes for it; its results
    are those of the program as written, up to rounding. Inside of another ``jax.jit`` it is the part of that program
    which is rewritten; it belongs around derivatives, not inside of them. Where it cannot be rewritten, it runs as
    written and a ``FallbackWarning`` says why, once. With ``MEMPLAN=off`` in the environment it is ``jax.jit``.

    Args:
      memory_limit: bytes, or a text as ``"16GiB"``. The fastest program that fits is run. Without it, the smallest one
        that takes at most ``max_slowdown`` more time by the cost model.
      max_slowdown: by default a tenth, ``0.1``, or any time under a limit.
      only, without: names of levers, as ``memplan rewrite --help`` lists them, to pull or not to pull.
      on_fallback: ``"error"`` raises a ``FallbackWarning`` where the program cannot be rewritten.
      report: called with a ``memplan.Rewritten`` whenever a program was rewritten; ``print`` shows a table.
      rewritten: what ``memplan.load`` gives, or a path to it: the program to run instead of searching for one.
      using: the jit of a framework, as ``flax.nnx.jit`` or ``equinox.filter_jit``, by which the function is compiled.
      jit_options: those of ``jax.jit``, or of ``using``.
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
            rewritten=rewritten,
            using=using,
            **jit_options,
        )
    if not callable(fun):
        raise TypeError(f"memplan.jit takes a function, not {fun!r}")
    if on_fallback not in ("warn", "error"):
        raise ValueError(f"on_fallback is 'warn' or 'error', not {on_fallback!r}")
    wish = Wish(_targets.bytes_of(memory_limit), max_slowdown, tuple(only), tuple(without), on_fallback == "error")
    saved = rewritten if rewritten is None or isinstance(rewritten, Rewritten) else load(rewritten)
    if using is None:
        return Jitted(fun, wish, report, saved, jit_options)
    named = _named(fun, Job(_name_of(fun), wish, report, saved, counts_results=False))
    # Frameworks ask what is wrapped for its name.
    named.__signature__ = inspect.signature(fun)  # type: ignore[attr-defined]
    del named.__wrapped__  # type: ignore[attr-defined]
    return using(_around(fun, using(named, **_of_parts(jit_options))), **jit_options)


class Jitted:
    """What ``memplan.jit`` gives: called as the function, and with the stages of ``jax.jit``."""

    def __init__(
        self,
        fun: Callable[..., Any],
        wish: Wish,
        report: Callable[[Rewritten], object] | None,
        saved: Rewritten | None,
        jit_options: dict[str, Any],
    ) -> None:
        import jax

        functools.update_wrapper(self, fun, updated=())
        self._made_of = fun, wish, report, saved, jit_options
        named = _named(fun, Job(_name_of(fun), wish, report, saved))
        # As a part of another program, and as a program.
        self._as_written: Any = jax.jit(named, **jit_options)
        self._rewritten: Any = jax.jit(_around(fun, jax.jit(named, **_of_parts(jit_options))), **jit_options)
        self._is_called_by_itself = _xla.trace_state_is_clean()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._is_called_by_itself() and not is_off():
                return self._rewritten(*args, **kwargs)
            return self._as_written(*args, **kwargs)
        except Exception as error:
            _hide_our_frames(error)
            raise

    def _own(self) -> Any:
        return self._as_written if is_off() else self._rewritten

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


def _name_of(fun: Callable[..., Any]) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def _named(fun: Callable[..., Any], job: Job) -> Callable[..., Any]:
    """The function under the name that our rule looks for."""
    install()

    @functools.wraps(fun, updated=())
    def named(*args: Any, **kwargs: Any) -> Any:
        import jax

        try:
            results = fun(*args, **kwargs)
        except Exception as error:
            _hide_our_frames(error)
            raise
        if job.counts_results:
            job.results.add(len(jax.tree.leaves(results)))
        return results

    named.__name__ = Name(job.name)
    named.__name__.job = job
    return named


def _around(fun: Callable[..., Any], part: Callable[..., Any]) -> Callable[..., Any]:
    """A program that is only a call of ``part``, which is ``fun`` for those who look at names and signatures."""

    @functools.wraps(fun, updated=())
    def whole(*args: Any, **kwargs: Any) -> Any:
        try:
            return part(*args, **kwargs)
        except Exception as error:
            _hide_our_frames(error)
            raise

    whole.__name__ = _name_of(fun)
    return whole


#: Where this package is.
_HERE = os.path.dirname(__file__) + os.sep


def _hide_our_frames(error: Exception) -> None:
    """Takes our frames from a traceback: to people, the function is called by the line that calls it. A ``raise``
    without an argument adds none."""
    frames = []
    link = error.__traceback__
    while link is not None:
        if not link.tb_frame.f_code.co_filename.startswith(_HERE):
            frames.append(link)
        link = link.tb_next
    shown = None
    for link in reversed(frames):
        shown = types.TracebackType(shown, link.tb_frame, link.tb_lasti, link.tb_lineno)
    error.__traceback__ = shown


def _of_parts(jit_options: dict[str, Any]) -> dict[str, Any]:
    """Those options of a jit that say what kind of function it is, rather than how its program is compiled."""
    kinds = ("static_argnums", "static_argnames", "graph", "graph_updates")
    return {name: jit_options[name] for name in kinds if name in jit_options}
