"""``memplan.policy``: which functions to wrap in ``jax.checkpoint``, and what each of them saves.

A function that is differentiated is traced by itself, before it is differentiated. Its equations are in the trace with
the Python frames that made them, so a loop (``jax.lax.scan``) or a function of the user is a list of equations, and a
checkpoint around it is made of these, whatever framework the model is written in. A policy is carried out in that way,
lowered and estimated before anybody hears of it.
"""

from __future__ import annotations

import ast
import bisect
import contextvars
import dataclasses
import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from memplan import _memplan, _xla
from memplan._memplan import InputError
from memplan._programs import read
from memplan._results import Price, readable
from memplan._targets import at_hand, bytes_of, compiler_for

#: Packages whose functions are not the user's to wrap.
_LIBRARIES = ("jax", "jaxlib", "flax", "equinox", "haiku", "optax", "keras", "jaxtyping", "memplan", "numpy")

#: Loops and functions that make less than this share of all bytes are not worth a checkpoint.
_LEAST_SHARE = 0.05

#: Less than this is not sent to the host in each step of a loop: a transfer takes some 10 µs to start.
_LEAST_ON_HOST = 128 << 10

#: How many loops and functions, and how many statements of one, are tried.
_MOST_SITES, _MOST_NAMES = 6, 12


class Site(NamedTuple):
    """A loop or a function that a checkpoint can be around."""

    kind: str
    #: Of the loop's body, or of the function.
    function: str
    #: Where the loop is written, or the function begins.
    file: str
    line: int

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line}"
        return f"the body of the loop at {place}" if self.kind == "loop" else f"`{self.function}` ({place})"


class Value(NamedTuple):
    """What a statement of a program gives a name to."""

    name: str
    file: str
    line: int


class State(Value):
    """What the body of a loop gives a name to in its parameters: the state that each step begins with."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One ``jax.checkpoint``: where it is, and what it saves."""

    site: Site
    #: ``nothing``, ``dots``, ``weights`` (dots without batch dimensions), or ``names``.
    saves: str
    names: tuple[Value, ...] = ()
    #: Values with names that wait in the host's memory.
    on_host: tuple[Value, ...] = ()

    @property
    def expression(self) -> str:
        """The policy, as Python."""
        policies = "jax.checkpoint_policies"
        saved, on_host = (", ".join(f'"{v.name}"' for v in values) for values in (self.names, self.on_host))
        if self.saves != "names":
            name = {"nothing": "nothing", "dots": "dots", "weights": "dots_with_no_batch_dims"}[self.saves]
            return f"{policies}.{name}_saveable"
        if not self.on_host:
            return f"{policies}.save_only_these_names({saved})"
        names = f"names_which_can_be_saved=[{saved}], names_which_can_be_offloaded=[{on_host}]"
        places = 'offload_src="device", offload_dst="pinned_host"'
        return f"{policies}.save_and_offload_only_these_names({names}, {places})"

    @property
    def policy(self) -> Callable[..., Any]:
        """The policy, for ``jax.checkpoint``."""
        import jax

        made: Callable[..., Any] = eval(self.expression, {"jax": jax})
        return made

    def __str__(self) -> str:
        what = {"nothing": "nothing", "dots": "products", "weights": "products with weights"}.get(self.saves)
        if what is None:
            saved, on_host = (", ".join(map(_quoted, values)) for values in (self.names, self.on_host))
            what = " and ".join([saved] * bool(saved) + [f"{on_host} in the host's memory"] * bool(on_host))
        return f"{self.site}, saving {what}"


def _quoted(value: Value) -> str:
    return f"`{value.name}` ({os.path.basename(value.file)}:{value.line})"


@dataclasses.dataclass(frozen=True)
class Trial:
    """Checkpoints that were carried out and estimated."""

    checkpoints: tuple[Checkpoint, ...]
    bytes: int
    seconds: float
    #: Bytes in the host's memory.
    host: int = 0


@dataclasses.dataclass(frozen=True)
class Policy:
    """Checkpoints for a program: as text for people, as code, and as something that carries itself out."""

    checkpoints: tuple[Checkpoint, ...]
    #: What the program is expected to need as it is written, and with the checkpoints.
    before: Price
    after: Price
    #: Whose estimates these are.
    compiler: str
    target: str
    #: All that was tried, in order.
    tried: tuple[Trial, ...]
    #: What is to be said of checkpoints that the program has already.
    notes: tuple[str, ...]
    #: How each site is written in the framework of the program.
    wrapped_by: tuple[str, ...]
    #: Bytes that wait in the host's memory, by the policy.
    host: int = 0

    def apply(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the checkpoints, without changing it: to be wrapped in ``jax.jit`` or ``memplan.jit``."""
        if hasattr(fun, "lower"):
            raise TypeError("policy.apply takes a function before it is jitted: jax.jit(policy.apply(step))")
        run = _Run(self.checkpoints)

        @functools.wraps(fun)
        def applied(*args: Any, **kwargs: Any) -> Any:
            with run.active():
                return fun(*args, **kwargs)

        return applied

    def to_python(self) -> str:
        """A file of Python: ``policy_1``, ... for ``jax.checkpoint``, how to use each, and ``apply``."""
        lines = [f'"""{line}' if i == 0 else line for i, line in enumerate(str(self).splitlines())]
        lines += ['"""', "", "import jax", ""]
        for i, checkpoint in enumerate(self.checkpoints, 1):
            lines += [f"#: For {checkpoint.site}.", f"policy_{i} = {checkpoint.expression}", ""]
        lines += [
            "",
            "def apply(step):",
            '    """The step with these checkpoints, without changing it: jax.jit(apply(step))."""',
            "    from memplan import checkpoints",
            "",
            f"    return checkpoints({[_plain(c) for c in self.checkpoints]!r})(step)",
        ]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        def cost(price: Price) -> str:
            return f"{readable(price.bytes)}, {price.seconds * 1e3:.3f} ms"

        lines = [f"expected of {self.compiler} on {self.target}"]
        lines += [f"as written   {cost(self.before)}"]
        if not self.checkpoints:
            lines += ["no checkpoint makes it smaller: this program has no policy"]
        else:
            change = self.after.seconds / self.before.seconds - 1 if self.before.seconds else 0.0
            host = f", and {readable(self.host)} in the host's memory" if self.host else ""
            lines += [f"by policy    {cost(self.after)} ({change:+.0%}){host}"]
        for i, (checkpoint, how) in enumerate(zip(self.checkpoints, self.wrapped_by, strict=True), 1):
            lines += ["", f"{i}. a checkpoint around {checkpoint}", f"       {how}"]
            for value in (*checkpoint.names, *checkpoint.on_host):
                text = linecache.getline(value.file, value.line).strip()
                place = f"{os.path.basename(value.file)}:{value.line}"
                named = f'{value.name} = checkpoint_name({value.name}, "{value.name}")'
                if isinstance(value, State):
                    lines += [f'   name what each step begins with "{value.name}", at {place}:', f"       {text}"]
                    lines += [f"           {named}"] * text.startswith("def ")
                else:
                    lines += [f'   name what {place} computes "{value.name}":', f"       {text}"]
                    lines += [f"       {named}"] * text.startswith(f"{value.name} =")
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"<memplan.Policy: {readable(self.before.bytes)} -> {readable(self.after.bytes)}>"


def _plain(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """A checkpoint as Python can write it: of each value, whether it is the state of a loop as well."""
    names, on_host = ([(*v, isinstance(v, State)) for v in vs] for vs in (checkpoint.names, checkpoint.on_host))
    return (tuple(checkpoint.site), checkpoint.saves, names, on_host)


def checkpoints(plain: Sequence[tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that carries out what ``Policy.to_python`` wrote."""

    def values(said: Sequence[tuple[Any, ...]]) -> tuple[Value, ...]:
        return tuple(State(*v[:3]) if v[3:] == (True,) else Value(*v[:3]) for v in said)

    made = tuple(Checkpoint(Site(*site), saves, *map(values, named)) for site, saves, *named in plain)
    return Policy(made, Price(0, 0.0), Price(0, 0.0), "", "", (), (), ("",) * len(made)).apply


def policy(
    fun: Callable[..., Any],
    *args: Any,
    target: str | None = None,
    memory_limit: int | str | None = None,
    max_slowdown: float | None = None,
    using: Callable[..., Any] | None = None,
    jit_options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Policy:
    """Which functions of a program to wrap in ``jax.checkpoint``, and what each of them saves.

    ``fun`` is a step of training, not jitted, that differentiates within (``jax.grad``, ``jax.value_and_grad``,
    ``jax.vjp``, and what frameworks make of them). Without a limit, the policy is the one of the fewest bytes that
    takes at most ``max_slowdown`` more time by the cost model, by default a tenth; with ``memory_limit`` it is the
    fastest that fits. ``using`` is the jit of a framework (``flax.nnx.jit``), and ``jit_options`` are its options, such
    as what is donated. Everything that is said was carried out, lowered and estimated.
    """
    if hasattr(fun, "lower"):
        raise TypeError("memplan.policy takes a function before it is jitted, and `using` the jit of its framework")
    import jax

    limit = bytes_of(memory_limit)
    machine = target or at_hand()
    compiler = compiler_for(machine)
    jit = using or jax.jit

    def price(run: _Run) -> tuple[int, float, int]:
        applied = Policy(run.checkpoints, *_NOTHING).apply(fun) if run.checkpoints else _observed(fun, run)
        jitted: Any = jit(applied, **(jit_options or {}))
        planned = _memplan.estimate(read(jitted, *args, target=machine, **kwargs), compiler, machine)
        totals = planned.totals
        host = sum(total for space, _, _, total in planned.spaces if space == _HOST)
        return totals["total"] - totals["constants"], planned.seconds or 0.0, host

    seen = _Run(())
    before = Price(*price(seen)[:2])
    if not seen.losses:
        raise InputError("nothing is differentiated in this program by jax.grad, jax.value_and_grad or jax.vjp")
    slowdown = 0.1 if max_slowdown is None and limit is None else max_slowdown
    search = _Search(before, price, limit, slowdown, has_host=not compiler.startswith("xla-cpu"))
    found = search.best_of(seen)
    return Policy(
        found.checkpoints,
        before,
        Price(found.bytes, found.seconds),
        compiler,
        machine,
        tuple(search.tried),
        tuple(_notes(seen, price, before)),
        tuple(_how(checkpoint, seen) for checkpoint in found.checkpoints),
        found.host,
    )


#: The number of the host's memory among a machine's.
_HOST = 5

_NOTHING: Any = (Price(0, 0.0), Price(0, 0.0), "", "", (), (), ())


def _observed(fun: Callable[..., Any], run: _Run) -> Callable[..., Any]:
    @functools.wraps(fun)
    def observed(*args: Any, **kwargs: Any) -> Any:
        with run.active():
            return fun(*args, **kwargs)

    return observed


class _Search:
    """Tries checkpoints, alone and together."""

    def __init__(
        self,
        before: Price,
        price: Callable[[_Run], tuple[int, float, int]],
        limit: int | None,
        max_slowdown: float | None,
        has_host: bool,
    ) -> None:
        self.before = before
        self.price = price
        self.limit = limit
        self.has_host = has_host
        self.most_seconds = float("inf") if max_slowdown is None else before.seconds * (1 + max_slowdown)
        self.tried: list[Trial] = []
        self._known: dict[tuple[Checkpoint, ...], Trial] = {(): Trial((), *before)}

    def best_of(self, seen: _Run) -> Trial:
        """The best trial: each site by each of the ready policies, sites together, then with values that are named."""
        trials = [trial for site in seen.sites() for trial in self._ready(site)]
        best = min([self._known[()], *trials], key=self._rank)
        # Each trial in the order of its rank is added to the best one, where their sites are apart.
        for trial in sorted(trials, key=self._rank):
            site = trial.checkpoints[0].site
            if all(seen.are_apart(site, checkpoint.site) for checkpoint in best.checkpoints):
                best = min(best, self._try((*best.checkpoints, *trial.checkpoints)), key=self._rank)
        best = self._with_names(best, seen)
        return self._on_host(best, seen) if self.has_host else best

    def _ready(self, site: Site) -> list[Trial]:
        """A site by policies that need no names, those that save more as long as that which saves nothing helps."""
        trials = [self._try((Checkpoint(site, "nothing"),))]
        if trials[0].bytes < 0.99 * self.before.bytes:
            trials += [self._try((Checkpoint(site, saves),)) for saves in ("weights", "dots")]
        return [trial for trial in trials if trial.bytes < 0.99 * self.before.bytes]

    def _with_names(self, best: Trial, seen: _Run) -> Trial:
        """A checkpoint that saves nothing takes most time, and least memory: it saves as many values as it must to be
        fast enough, or as may be under the limit, those first that take most time for their bytes."""
        for start in self._fewest_saved():
            for i, checkpoint in enumerate(start.checkpoints):
                values = seen.values(checkpoint.site)[:_MOST_NAMES]
                counts = range(len(values) + 1)

                def has_enough(count: int, start: Trial = start, i: int = i, values: Any = values) -> bool:
                    """Whether so many values are fast enough, or more than the limit allows."""
                    if count == 0:
                        trial = start
                    else:
                        named = dataclasses.replace(start.checkpoints[i], saves="names", names=tuple(values[:count]))
                        trial = self._try((*start.checkpoints[:i], named, *start.checkpoints[i + 1 :]))
                    if self.limit is not None:
                        return trial.bytes > self.limit
                    return trial.seconds <= self.most_seconds

                bisect.bisect_left(counts, True, key=has_enough)
        return min([best, *self._known.values()], key=self._rank)

    def _on_host(self, best: Trial, seen: _Run) -> Trial:
        """The state of loops, of which a checkpoint keeps every step, and what has names, in the host's memory."""
        for start in [best, *self._fewest_saved()]:
            for i, checkpoint in enumerate(start.checkpoints):
                state = seen.state(checkpoint.site)
                if checkpoint.saves not in ("nothing", "names") or not state or checkpoint.on_host:
                    continue
                others = start.checkpoints[:i], start.checkpoints[i + 1 :]
                for saved in {checkpoint.names, ()}:
                    on_host = (*state, *(value for value in checkpoint.names if value not in saved))
                    moved = dataclasses.replace(checkpoint, saves="names", names=saved, on_host=on_host)
                    self._try((*others[0], moved, *others[1]))
        return min([best, *self._known.values()], key=self._rank)

    def _fewest_saved(self) -> list[Trial]:
        """The two smallest programs whose checkpoints save nothing."""
        starts = [trial for trial in self._known.values() if {c.saves for c in trial.checkpoints} == {"nothing"}]
        return sorted(starts, key=lambda trial: trial.bytes)[:2]

    def _try(self, made: tuple[Checkpoint, ...]) -> Trial:
        if made not in self._known:
            trial = Trial(made, *self.price(_Run(made)))
            self._known[made] = trial
            self.tried.append(trial)
        return self._known[made]

    def _rank(self, trial: Trial) -> tuple[Any, ...]:
        """The better of two programs has the lower one; of two that are as good, the one with less to write."""
        least = (len(trial.checkpoints), sum(len(c.names) + len(c.on_host) for c in trial.checkpoints))
        if self.limit is not None:
            excess = max(0, trial.bytes - self.limit)
            return (excess, trial.seconds > self.most_seconds, trial.seconds, trial.bytes, least)
        # A hundredth of the bytes is no reason for another line.
        coarse = round(trial.bytes / max(1, self.before.bytes), 2)
        return (trial.seconds > self.most_seconds * (1 + 1e-9), coarse, least, trial.bytes, trial.seconds)


#: The run that a trace belongs to.
_ACTIVE: contextvars.ContextVar[_Run | None] = contextvars.ContextVar("memplan_policy", default=None)


@functools.cache
def _install() -> None:
    """Lets JAX tell the active run of functions that it differentiates."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def vjp(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
            run = _ACTIVE.get()
            return original(fun if run is None else run.around(fun), *primals, **options)

        return vjp

    _xla.replace_vjp(around)


class _Run:
    """Traces of one program with checkpoints, and what was seen of the functions that are differentiated."""

    def __init__(self, made: tuple[Checkpoint, ...]) -> None:
        self.checkpoints = made
        #: Of each function that is differentiated, its equations.
        self.losses: list[Any] = []
        #: Types of what methods belong to, by their files and names.
        self.owners: dict[tuple[str, str], type] = {}
        #: Checkpoints of the program itself that are left out, by their position.
        self.without_own: int | None = None
        self._own = 0
        self._calls: dict[str, Checkpoint] = {}
        #: The equations in each site.
        self._members: dict[Site, set[int]] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """While it lasts, functions that are differentiated have the checkpoints."""
        _install()
        self._own = 0
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def around(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does what ``fun`` does, with the checkpoints."""
        import jax

        def loss_with_checkpoints(*primals: Any) -> Any:
            leaves, tree = jax.tree.flatten(primals)
            made: list[Any] = []

            def traced(*leaves: Any) -> list[Any]:
                results, shape = jax.tree.flatten(fun(*jax.tree.unflatten(tree, leaves)))
                is_array = [hasattr(r, "dtype") or isinstance(r, (bool, int, float, complex)) for r in results]
                made[:] = [shape, [None if is_one else r for r, is_one in zip(results, is_array, strict=True)]]
                made.append(is_array)
                return [r for r, is_one in zip(results, is_array, strict=True) if is_one]

            # What is differentiated within it is a part of it.
            token = _ACTIVE.set(None)
            try:
                with self._marked_calls():
                    closed = jax.make_jaxpr(traced)(*leaves)
                self.losses.append(closed)
                found = iter(self._evaluate(closed.jaxpr, closed.consts, leaves))
            finally:
                _ACTIVE.reset(token)
            shape, static, is_array = made
            results = [next(found) if is_one else r for r, is_one in zip(static, is_array, strict=True)]
            return jax.tree.unflatten(shape, results)

        return loss_with_checkpoints

    # Calls of functions.

    @contextmanager
    def _marked_calls(self) -> Iterator[None]:
        """While it lasts, operations of each call of a function with a checkpoint have a scope of their own."""
        import jax

        wanted = {(c.site.file, c.site.line): c for c in self.checkpoints if c.site.kind == "function"}
        open_: dict[Any, Any] = {}

        def hook(frame: Any, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call":
                checkpoint = wanted.get((code.co_filename, code.co_firstlineno))
                if checkpoint is not None:
                    scope = f"{code.co_name}#{len(self._calls)}"
                    self._calls[scope] = checkpoint
                    open_[frame] = jax.named_scope(scope)
                    open_[frame].__enter__()
                elif not self.checkpoints and (owner := frame.f_locals.get("self")) is not None:
                    self.owners.setdefault((code.co_filename, _name_of_code(code)), type(owner))
            elif event == "return" and frame in open_:
                open_.pop(frame).__exit__(None, None, None)

        if self.checkpoints and not wanted:
            yield
            return
        before = sys.getprofile()
        sys.setprofile(hook)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _call_of(self, equation: Any) -> tuple[str, Checkpoint] | None:
        """The outermost call with a checkpoint that an equation belongs to."""
        for scope in str(equation.source_info.name_stack).split("/"):
            if scope in self._calls:
                return scope, self._calls[scope]
        return None

    # Equations.

    def _evaluate(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results of a program, with checkpoints around its loops and calls."""
        from jax.extend.core import Literal

        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
        read_later = _reads_after(jaxpr.eqns, jaxpr.outvars)
        begin = 0
        while begin < len(jaxpr.eqns):
            call = self._call_of(jaxpr.eqns[begin])
            end = begin + 1
            while call and end < len(jaxpr.eqns) and self._call_of(jaxpr.eqns[end]) == call:
                end += 1
            part = _Part(jaxpr.eqns[begin:end], read_later[end])
            inputs = [values[variable] for variable in part.inputs]
            if call:
                results = self._checkpointed(call[1], part, prevent_cse=True)(*inputs)
            else:
                results = self._run_equation(part, inputs)
            values.update(zip(part.outputs, results, strict=True))
            begin = end
        return [out.val if isinstance(out, Literal) else values[out] for out in jaxpr.outvars]

    def _checkpointed(self, checkpoint: Checkpoint, part: _Part, prevent_cse: bool) -> Callable[..., Any]:
        import jax

        def run(*inputs: Any) -> list[Any]:
            return part.with_names(_statements(part.equations, checkpoint))(*inputs)

        wrapped: Callable[..., Any] = jax.checkpoint(run, policy=checkpoint.policy, prevent_cse=prevent_cse)
        return wrapped

    def _run_equation(self, part: _Part, inputs: Sequence[Any]) -> Sequence[Any]:
        """The results of one equation; those of loops and of jitted functions with the checkpoints within."""
        (equation,) = part.equations
        name = equation.primitive.name
        if name in ("checkpoint", "remat", "remat2"):
            self._own += 1
            if self.without_own == self._own - 1:
                return self._evaluate_named(equation.params["jaxpr"], part, inputs)
        if not self.checkpoints or name not in ("scan", "jit", "pjit"):
            return part.run(*inputs)
        body = equation.params["jaxpr"]
        loop = next((c for c in self.checkpoints if c.site == _site_of_loop(equation)), None)
        changed = self._body(body, loop, _places_of_state(equation))
        if changed is body:
            return part.run(*inputs)
        new = equation.replace(params={**equation.params, "jaxpr": changed})
        return _Part([new], set(part.outputs), part.inputs, part.outputs).run(*inputs)

    def _evaluate_named(self, jaxpr: Any, part: _Part, inputs: Sequence[Any]) -> Sequence[Any]:
        """The results of a checkpoint of the program without the checkpoint."""
        from jax.extend.core import Literal

        (equation,) = part.equations
        known = dict(zip(part.inputs, inputs, strict=True))
        args = [v.val if isinstance(v, Literal) else known[v] for v in equation.invars]
        found = dict(zip(equation.outvars, self._evaluate(jaxpr, (), args), strict=True))
        return [found[variable] for variable in part.outputs]

    def _body(self, body: Any, loop: Checkpoint | None, state_of: range) -> Any:
        """The body of a loop or of a jitted function with its checkpoints; itself if there are none. Some of the
        parameters of a loop are its state."""
        import jax
        from jax.ad_checkpoint import checkpoint_name

        if loop is None and not self._has_any(body.jaxpr):
            return body

        def run(*args: Any) -> list[Any]:
            if loop is None:
                return self._evaluate(body.jaxpr, body.consts, args)
            part = _Part(body.jaxpr.eqns, set(body.jaxpr.outvars))
            jaxpr = body.jaxpr

            def whole(*args: Any) -> list[Any]:
                values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*body.consts, *args], strict=True))
                state = [v for v in loop.on_host if isinstance(v, State)]
                for i in state_of if state else ():
                    values[jaxpr.invars[i]] = checkpoint_name(args[i], state[0].name)
                made = part.with_names(_statements(part.equations, loop))(*(values[v] for v in part.inputs))
                values.update(zip(part.outputs, made, strict=True))
                return [values[v] if not hasattr(v, "val") else v.val for v in jaxpr.outvars]

            checkpointed: Callable[..., list[Any]] = jax.checkpoint(whole, policy=loop.policy, prevent_cse=False)
            return checkpointed(*args)

        return jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in body.in_avals))

    def _has_any(self, jaxpr: Any) -> bool:
        """Whether a loop or call with a checkpoint is in a program, or in those within it."""
        loops = {c.site for c in self.checkpoints if c.site.kind == "loop"}
        for equation, _ in _equations(jaxpr):
            if self._call_of(equation) or (equation.primitive.name == "scan" and _site_of_loop(equation) in loops):
                return True
        return False

    # What was seen.

    def sites(self) -> list[Site]:
        """Loops and functions that make most of the bytes, those of most first, of equal ones only the outermost."""
        bytes_of_site: dict[Site, int] = {}
        members: dict[Site, set[int]] = {}
        total = 0
        for closed in self.losses:
            for equation, runs, sites in _equations_with_sites(closed.jaxpr):
                size = sum(_size(out.aval) for out in equation.outvars) * runs
                total += size
                for site in sites:
                    bytes_of_site[site] = bytes_of_site.get(site, 0) + size
                    members.setdefault(site, set()).add(id(equation))
        large = [s for s, size in bytes_of_site.items() if size >= _LEAST_SHARE * total]
        large.sort(key=lambda s: (-bytes_of_site[s], s.kind != "loop", s.file, s.line))
        kept: list[Site] = []
        for site in large:
            if all(members[site] != members[other] for other in kept):
                kept.append(site)
        self._members = members
        return kept[:_MOST_SITES]

    def are_apart(self, one: Site, other: Site) -> bool:
        """Whether no equation is in both sites."""
        return self._members[one].isdisjoint(self._members[other])

    def values(self, site: Site) -> list[Value]:
        """Values that statements within a site name, those first that save most time for their bytes."""
        scores: dict[Value, list[float]] = {}
        for closed in self.losses:
            for equations in _parts_of(closed.jaxpr, site):
                for value, outputs, made_by in _named_values(equations, site):
                    size = sum(_size(out.aval) for out in outputs)
                    work = sum(_work(equation) for equation in made_by)
                    score = scores.setdefault(value, [0.0, 0.0])
                    score[0] += work
                    score[1] += size
        useful = [value for value, (work, size) in scores.items() if work > 0 and size > 0]
        return sorted(useful, key=lambda v: (-scores[v][0] / scores[v][1], v.line))

    def state(self, site: Site) -> tuple[State, ...]:
        """The state that the loop at a site begins each step with, by the name that its body gives to it."""
        for closed in self.losses:
            for equation, _ in _equations(closed.jaxpr):
                if equation.primitive.name == "scan" and _site_of_loop(equation) == site:
                    return _state_of_loop(equation)
        return ()


class _Part:
    """Some equations of a program as a function."""

    def __init__(self, equations: Sequence[Any], read_later: set[Any], inputs: Any = None, outputs: Any = None) -> None:
        from jax.extend.core import Literal

        self.equations = list(equations)
        made = {out: None for equation in equations for out in equation.outvars}
        read = {v: None for e in equations for v in e.invars if not isinstance(v, Literal)}
        self.inputs = inputs or [variable for variable in read if variable not in made]
        self.outputs = outputs or [variable for variable in made if variable in read_later]

    def run(self, *inputs: Any) -> list[Any]:
        """The results of the equations."""
        return _run(self.equations, self.inputs, self.outputs, inputs)

    def with_names(self, names: dict[Any, str]) -> Callable[..., list[Any]]:
        """The function, in which values have names for policies."""

        def run(*inputs: Any) -> list[Any]:
            from jax.ad_checkpoint import checkpoint_name

            if not names:
                return self.run(*inputs)
            values = dict(zip(self.inputs, inputs, strict=True))
            read_later = _reads_after(self.equations, self.outputs)
            for i, equation in enumerate(self.equations):
                part = _Part([equation], read_later[i + 1])
                made = part.run(*(values[v] for v in part.inputs))
                for variable, value in zip(part.outputs, made, strict=True):
                    values[variable] = checkpoint_name(value, names[variable]) if variable in names else value
            return [values[variable] for variable in self.outputs]

        return run


def _run(equations: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

    effects = set().union(*(equation.effects for equation in equations))
    names = _xla.debug_info("checkpoints", len(inputs), len(outputs))
    jaxpr = Jaxpr((), tuple(inputs), tuple(outputs), list(equations), effects, **names)
    results: list[Any] = jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))(*args)
    return results


def _reads_after(equations: Sequence[Any], outputs: Iterable[Any]) -> list[set[Any]]:
    """Of each position in a list of equations, the variables that are read from there on, or are results."""
    from jax.extend.core import Literal

    found = [{v for v in outputs if not isinstance(v, Literal)}]
    for equation in reversed(equations):
        found.append(found[-1] | {v for v in equation.invars if not isinstance(v, Literal)})
    return found[::-1]


def _equations(jaxpr: Any, runs: int = 1) -> Iterator[tuple[Any, int]]:
    """All equations, those of loops and jitted functions included, and how often each runs."""
    for equation in jaxpr.eqns:
        yield equation, runs
        if equation.primitive.name in ("scan", "jit", "pjit"):
            yield from _equations(equation.params["jaxpr"].jaxpr, runs * equation.params.get("length", 1))


def _equations_with_sites(
    jaxpr: Any, runs: int = 1, around: frozenset[Site] = frozenset()
) -> Iterator[tuple[Any, int, frozenset[Site]]]:
    """Equations that compute, how often each runs, and the loops and functions that it is in."""
    for equation in jaxpr.eqns:
        sites = around | {Site("function", f.function, f.file, f.first_line) for f in _frames(equation)}
        if equation.primitive.name in ("scan", "jit", "pjit"):
            loop = _site_of_loop(equation) if equation.primitive.name == "scan" else None
            within = sites | {loop} if loop else sites
            inner = equation.params["jaxpr"].jaxpr
            yield from _equations_with_sites(inner, runs * equation.params.get("length", 1), frozenset(within))
        else:
            yield equation, runs, frozenset(sites)


class _Frame(NamedTuple):
    function: str
    file: str
    first_line: int
    line: int


def _frames(equation: Any) -> list[_Frame]:
    """The user's functions that made an equation within what is differentiated, the innermost first."""
    return list(_frames_of_traceback(equation.source_info.traceback))


@functools.lru_cache(maxsize=1 << 16)
def _frames_of_traceback(traceback: Any) -> tuple[_Frame, ...]:
    if traceback is None:
        return ()
    found = []
    codes, instructions = traceback.raw_frames()
    for code, instruction in zip(codes, instructions, strict=True):
        if code.co_filename == __file__:
            # The function around what is differentiated; all further frames are outside of that.
            break
        if _is_users(code.co_filename):
            line = _xla.line_of(traceback, code, instruction)
            found.append(_Frame(_name_of_code(code), code.co_filename, code.co_firstlineno, line))
    return tuple(found)


def _name_of_code(code: Any) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


@functools.cache
def _is_users(file: str) -> bool:
    parts = file.replace("\\", "/").split("/")
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1] not in _LIBRARIES
    return not file.startswith("<") and f"/python{sys.version_info[0]}." not in file


def _site_of_loop(equation: Any) -> Site | None:
    """The site of a loop: the user's line that calls ``jax.lax.scan``, and the function that the loop runs."""
    around = _frames(equation)
    if equation.primitive.name != "scan" or not around:
        return None
    for inner in equation.params["jaxpr"].jaxpr.eqns:
        inside = [frame.function for frame in _frames(inner) if frame not in around]
        if inside:
            named = [function for function in inside if not function.endswith("<lambda>")]
            return Site("loop", (named or inside)[-1], around[0].file, around[0].line)
    return Site("loop", around[0].function, around[0].file, around[0].line)


def _places_of_state(equation: Any) -> range:
    """Which parameters of its body are the state of a loop: behind those that are equal in each step, and before those
    that are rows of arrays. Versions of JAX have other names for how many there are."""
    body = equation.params["jaxpr"].jaxpr
    is_whole = [outer.aval.shape == own.aval.shape for outer, own in zip(equation.invars, body.invars, strict=True)]
    of_state = [outer.aval.shape == own.aval.shape for outer, own in zip(equation.outvars, body.outvars, strict=True)]
    return range(sum(is_whole) - sum(of_state), sum(is_whole))


def _state_of_loop(equation: Any) -> tuple[State, ...]:
    """The first parameter of the function that a loop runs, where there is enough state to send away."""
    around = _frames(equation)
    state = [equation.params["jaxpr"].jaxpr.invars[i].aval for i in _places_of_state(equation)]
    if sum(map(_size, state)) < _LEAST_ON_HOST:
        return ()
    for inner in equation.params["jaxpr"].jaxpr.eqns:
        inside = [frame for frame in _frames(inner) if frame not in around]
        if inside:
            body = inside[-1]
            line, parameters = _parameters(body.file).get(body.first_line, (0, ()))
            own = [name for name in parameters if name != "self"]
            return (State(own[0], body.file, line),) if own else ()
    return ()


def _parts_of(jaxpr: Any, site: Site) -> Iterator[list[Any]]:
    """The equations of each loop or function at a site; calls of one function after another are one list."""
    own = [e for e in jaxpr.eqns if site in {Site("function", f.function, f.file, f.first_line) for f in _frames(e)}]
    if own:
        yield own
        return
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("scan", "jit", "pjit"):
            inner = equation.params["jaxpr"].jaxpr
            if _site_of_loop(equation) == site:
                yield list(inner.eqns)
            else:
                yield from _parts_of(inner, site)


def _named_values(equations: Sequence[Any], site: Site) -> Iterator[tuple[Value, list[Any], list[Any]]]:
    """The values that statements give names to: what of each is read by other statements, and what makes it."""
    by_statement: dict[Value, list[Any]] = {}
    readers: dict[Any, set[Value | None]] = {}
    for equation in equations:
        value = _value_of(equation, site)
        for variable in equation.invars:
            if not hasattr(variable, "val"):
                readers.setdefault(variable, set()).add(value)
        if value is not None:
            by_statement.setdefault(value, []).append(equation)
    for value, made_by in by_statement.items():
        outputs = [o for e in made_by for o in e.outvars if readers.get(o, set()) - {value}]
        if outputs:
            yield value, outputs, made_by


def _statements(equations: Sequence[Any], checkpoint: Checkpoint) -> dict[Any, str]:
    """The variables that have the names of a checkpoint."""
    if not checkpoint.names and not checkpoint.on_host:
        return {}
    wanted = {*checkpoint.names, *checkpoint.on_host}
    named = _named_values(equations, checkpoint.site)
    return {out: value.name for value, outputs, _ in named if value in wanted for out in outputs}


def _value_of(equation: Any, site: Site) -> Value | None:
    """The value that the innermost assignment within a site computes with an equation."""
    for frame in _frames(equation):
        name = _assignments(frame.file).get(frame.line)
        if name is not None:
            return Value(name[0], frame.file, name[1])
        if site.kind == "function" and (frame.file, frame.first_line) == (site.file, site.line):
            break
    return None


@functools.cache
def _parameters(file: str) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Of each line of a file where one function begins, with its decorators, the line of the function and the names of
    its parameters."""
    found: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
    for node in ast.walk(_parsed(file)):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            names = tuple(one.arg for one in node.args.posonlyargs + node.args.args)
            found.setdefault(first, []).append((node.lineno, names))
    return {line: functions[0] for line, functions in found.items() if len(functions) == 1}


def _parsed(file: str) -> ast.Module:
    """The source of a file; of one that is no Python, nothing."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


@functools.cache
def _assignments(file: str) -> dict[int, tuple[str, int]]:
    """Of each line of a file that is in an assignment to one name, that name and the first line."""
    found = {}
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = (node.targets[0].id, node.lineno)
    return found


def _size(aval: Any) -> int:
    size = getattr(aval, "size", 0)
    return int(size) * int(getattr(getattr(aval, "dtype", None), "itemsize", 0)) if isinstance(size, int) else 0


def _work(equation: Any) -> float:
    """Operations of the products in an equation."""
    name = equation.primitive.name
    if name in ("jit", "pjit", "scan"):
        inner: float = sum(_work(e) for e in equation.params["jaxpr"].jaxpr.eqns)
        return inner * float(equation.params.get("length", 1))
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        depth = 1.0
        for dimension in contracted:
            depth *= equation.invars[0].aval.shape[dimension]
        return 2 * depth * float(equation.outvars[0].aval.size)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2 * float(equation.outvars[0].aval.size) * float(kernel.size) / max(1, int(features))
    return 0.0


def _notes(seen: _Run, price: Callable[[_Run], tuple[int, float, int]], before: Price) -> Iterator[str]:
    """What the checkpoints do that the program has already."""
    own = [e for closed in seen.losses for e, _ in _equations(closed.jaxpr) if _is_checkpoint(e)]
    direct = [e for closed in seen.losses for e in closed.jaxpr.eqns if _is_checkpoint(e)]
    for i, equation in enumerate(direct[:_MOST_SITES]):
        run = _Run(())
        run.without_own = i
        without = price(run)[0]
        if abs(without - before.bytes) <= before.bytes // 1000:
            yield f"{_place(equation)}: this policy has no effect: without it the program needs as much"
    for equation in own:
        saveable = equation.params.get("policy")
        names = [e for e, _ in _equations(equation.params["jaxpr"]) if e.primitive.name == "name"]
        wanted = _names_of(saveable)
        if wanted and not wanted & {e.params["name"] for e in names}:
            listed = ", ".join(sorted(wanted))
            yield f"{_place(equation)}: this policy has no effect: nothing in it has one of its names ({listed})"


def _is_checkpoint(equation: Any) -> bool:
    return equation.primitive.name in ("checkpoint", "remat", "remat2")


def _place(equation: Any) -> str:
    frames = _frames(equation)
    where = f" at {os.path.basename(frames[0].file)}:{frames[0].line}" if frames else ""
    return f"the checkpoint{where}"


def _names_of(policy: Any) -> set[str]:
    """The names that a policy of JAX saves only, as far as it shows: in a field of it, or in what it closes over."""
    cells = (cell.cell_contents for cell in getattr(policy, "__closure__", None) or ())
    fields = (value for field, value in getattr(policy, "__dict__", {}).items() if field != "names")
    found: set[str] = set()
    for content in [*cells, *fields]:
        if isinstance(content, (set, frozenset, tuple, list)):
            found |= {one for one in content if isinstance(one, str)}
    return found


def _how(checkpoint: Checkpoint, seen: _Run) -> str:
    """How a site is wrapped, in the words of its framework."""
    site, policy = checkpoint.site, checkpoint.expression
    owner = seen.owners.get((site.file, site.function))
    packages = [base.__module__ for base in owner.__mro__] if owner else []
    name, method = owner.__name__ if owner else "", site.function.rsplit(".", 1)[-1]
    is_loop = site.kind == "loop"
    options = f"prevent_cse=False, policy={policy}" if is_loop else f"policy={policy}"
    if any(package.startswith("flax.linen") for package in packages):
        wrapped = f"nn.remat({name}, {options})"
        return f"nn.scan({wrapped}, ...)" if is_loop else f"{name} = {wrapped}"
    if any(package.startswith("flax.nnx") for package in packages):
        return f"{name}.{method} = nnx.remat({name}.{method}, {options})"
    if any(package.startswith("equinox") for package in packages):
        return f"{name}.{method} = eqx.filter_checkpoint({name}.{method}, {options})"
    if any(package.startswith("haiku") for package in packages):
        return f"hk.remat({name}(...), {options})"
    function = _plain_name(site.function)
    wrapped = f"jax.checkpoint({function}, {options})"
    return f"jax.lax.scan({wrapped}, ...)" if is_loop else f"{function} = {wrapped}"


def _plain_name(qualified: str) -> str:
    name = qualified.rsplit(".", 1)[-1]
    return "body" if name.startswith("<") else name
