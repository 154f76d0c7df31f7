"""What memplan answers: plans, estimates, rewrites and packings, for people, for notebooks and for programs."""

from __future__ import annotations

import copyreg
import difflib
import functools
import gzip
import json
import os
import re
import tempfile
import zlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memplan import _html, _memplan
from memplan._memplan import Module

if TYPE_CHECKING:
    from typing_extensions import Self


def readable(count: float) -> str:
    """A number of bytes with a unit, as the command writes it."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            return f"{int(count)} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


@dataclass(frozen=True)
class Totals:
    """Bytes of a program by kind, under the names of the plan file."""

    #: What the caller passes.
    arguments: int
    #: What the caller gets.
    outputs: int
    #: Outputs that live in donated arguments.
    aliased: int
    #: Constants too large to be part of the code.
    constants: int
    #: The arena for everything else.
    temp: int
    #: ``arguments + outputs - aliased + constants + temp``.
    total: int
    #: What every plan for this schedule takes in total, whichever values share bytes: where ``total`` is equal to
    #: it, the total is proved to be minimal.
    total_lower_bound: int
    #: Most bytes live at one moment.
    peak_live: int
    #: Most bytes live at one moment of what this plan leaves to the arena: no packing of the same values uses less.
    temp_lower_bound: int
    #: ``temp - temp_lower_bound``.
    fragmentation: int
    #: Bytes that exist only because of layouts.
    padding: int


@dataclass(frozen=True)
class Holder:
    """An array that is live at the peak."""

    bytes: int
    #: The instruction that makes it, and where in its result it is.
    instruction: str
    index: tuple[int, ...]
    opcode: str
    shape: str
    #: The framework's name of the operation, and the line of the user's program, where the module says so.
    operation: str
    source: str | None
    #: ``argument``, ``output``, ``constant`` or ``temp``, and the offset there.
    kind: str
    offset: int
    #: It is live in the instants ``[start, end)``.
    start: int
    end: int
    #: Who still needs it.
    kept_by: str


class Peak(NamedTuple):
    """When most bytes are live."""

    #: The instant, an index into the curve.
    time: int
    bytes: int
    #: What runs then.
    instruction: str


class Buffers(NamedTuple):
    """Slices of allocations and the times at which they are in use: arrays of one length."""

    allocation: NDArray[np.uint64]
    offset: NDArray[np.uint64]
    size: NDArray[np.uint64]
    #: In use in the instants ``[start, end)``.
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]


class Allocation(NamedTuple):
    """A region of memory that is asked for once."""

    #: ``argument``, ``output``, ``constant`` or ``temp``.
    kind: str
    #: The memory: 0 is the main one.
    space: int
    size: int
    alignment: int
    #: Which parameter of the program it is; arguments only.
    parameter: int | None


class Space(NamedTuple):
    """A memory of the machine, and what the program needs of it."""

    number: int
    name: str
    #: Bytes that a program may use; None where that is not known.
    usable: int | None
    needed: int


def _restore_module(proto: bytes, name: str) -> Module:
    return Module.parse(proto, name)


def _reduce_module(module: Module) -> Any:
    return _restore_module, (module.to_proto(), module.name)


# `pickle` and `copy` look there.
copyreg.pickle(Module, _reduce_module)


class _Planned(Protocol):
    """What answers for a plan: the extension module, or a copy of all that it says."""

    @property
    def module(self) -> Module: ...
    @property
    def target(self) -> str: ...
    @property
    def devices(self) -> int | None: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def totals(self) -> dict[str, int]: ...
    @property
    def spaces(self) -> list[tuple[int, str, int | None, int]]: ...
    @property
    def allocations(self) -> list[tuple[str, int, int, int, int | None]]: ...
    @property
    def curve(self) -> NDArray[np.uint64]: ...
    @property
    def peak(self) -> tuple[int, int, str]: ...
    @property
    def buffers(self) -> list[NDArray[np.uint64]]: ...
    def holders(self) -> list[dict[str, Any]]: ...
    def records(self) -> list[dict[str, Any]]: ...
    def lines(self) -> tuple[str, list[list[str]], str]: ...
    def to_json(self) -> str: ...


class _Said:
    """All that the extension module says of an answer, as plain data: what is pickled."""

    #: Names of what are properties there, and of what are functions.
    _PROPERTIES: tuple[str, ...]
    _FUNCTIONS: tuple[str, ...]

    def __init__(self, native: Any) -> None:
        self._said = {name: getattr(native, name) for name in self._PROPERTIES}
        self._said |= {name: getattr(native, name)() for name in self._FUNCTIONS}
        self._text = str(native)

    def __getattr__(self, name: str) -> Any:
        if name in self._PROPERTIES:
            return self._said[name]
        if name in self._FUNCTIONS:
            return lambda: self._said[name]
        raise AttributeError(name)

    def __str__(self) -> str:
        return self._text


class _SaidOfPlan(_Said):
    _PROPERTIES = (
        *("module", "target", "devices", "seconds", "totals"),
        *("spaces", "allocations", "curve", "peak", "buffers"),
    )
    _FUNCTIONS = ("holders", "lines", "records", "to_json")


class _SaidOfRewritten(_Said):
    _PROPERTIES = ("module", "compiler", "target", "before", "after", "steps")
    _FUNCTIONS = ()

    @classmethod
    def of(cls, said: dict[str, Any], module: Module) -> Self:
        """What was said of a program and read from a file."""
        found = cls.__new__(cls)
        found._said = {"module": module, **{name: said[name] for name in cls._PROPERTIES if name != "module"}}
        found._text = str(said["text"])
        return found


class Plan:
    """A program with an address for every buffer."""

    def __init__(self, native: _Planned) -> None:
        self._native = native

    def __getstate__(self) -> dict[str, Any]:
        native = self._native if isinstance(self._native, _Said) else _SaidOfPlan(self._native)
        return {**self.__dict__, "_native": native}

    def __copy__(self) -> Self:
        """Itself: it does not change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @property
    def target(self) -> str:
        """The machine it is for."""
        return self._native.target

    @property
    def devices(self) -> int | None:
        """How many devices run the program, if it is more than one: all bytes are those of one of them."""
        return self._native.devices

    @functools.cached_property
    def module(self) -> Module:
        """The program that the plan describes, in the order in which it runs."""
        return self._native.module

    @functools.cached_property
    def totals(self) -> Totals:
        """Bytes by kind."""
        return Totals(**self._native.totals)

    @property
    def total(self) -> int:
        """Bytes that the program needs."""
        return self.totals.total

    @functools.cached_property
    def peak(self) -> Peak:
        """When most bytes are live."""
        return Peak(*self._native.peak)

    @functools.cached_property
    def curve(self) -> NDArray[np.uint64]:
        """Bytes live at every instant of the program."""
        return self._native.curve

    @functools.cached_property
    def holders(self) -> list[Holder]:
        """What is live at the peak, the largest first."""
        names = {field.name for field in fields(Holder)}
        rows = ({key: row[key] for key in names} for row in self._native.holders())
        return [Holder(**{**row, "index": tuple(row["index"])}) for row in rows]

    @functools.cached_property
    def buffers(self) -> Buffers:
        """Where everything lives, and when."""
        return Buffers(*self._native.buffers)

    @functools.cached_property
    def allocations(self) -> list[Allocation]:
        """The regions that ``buffers`` are slices of, by index."""
        return [Allocation(*row) for row in self._native.allocations]

    @functools.cached_property
    def spaces(self) -> list[Space]:
        """The memories that are used."""
        return [Space(*row) for row in self._native.spaces]

    def to_records(self) -> list[dict[str, Any]]:
        """A row for every buffer, with names, for ``pandas.DataFrame.from_records``."""
        return self._native.records()

    def to_json(self) -> str:
        """The plan file, which ``memplan.check`` and the command read."""
        return self._native.to_json()

    def __str__(self) -> str:
        return str(self._native)

    def __repr__(self) -> str:
        return f"<memplan.{type(self).__name__} of `{self.module.name}` for {self.target}: {readable(self.total)}>"

    def _repr_html_(self) -> str:
        return _html.plan(self)


class Estimate(Plan):
    """What a compiler will need for a program."""

    def __init__(self, native: _Planned, compiler: str) -> None:
        super().__init__(native)
        #: Whose estimate it is.
        self.compiler = compiler.split("@")[0]
        #: With the version of jaxlib that it came with: ``"xla-gpu@0.12"``.
        self.compiler_version = compiler

    @property
    def total(self) -> int:
        """Bytes that the program needs: arguments, outputs that are not aliased, and temporaries."""
        return self.totals.total - self.totals.constants

    @property
    def seconds(self) -> float:
        """Seconds of one run, by the cost model of the machine."""
        return self._native.seconds or 0.0

    def __str__(self) -> str:
        return f"expected of {self.compiler_version}\n{super().__str__()}"


@dataclass(frozen=True)
class Fit:
    """Whether a program fits a machine: true or false, with a story."""

    fits: bool
    #: Bytes that it needs, and may use.
    needed: int
    limit: int
    estimate: Estimate

    def __bool__(self) -> bool:
        return self.fits

    def __str__(self) -> str:
        of = f"{readable(self.needed)} of {readable(self.limit)} of {self.estimate.target}"
        if self.fits:
            return f"fits: {of}, {readable(self.limit - self.needed)} to spare"
        lines = [f"does not fit: {of}, {readable(self.needed - self.limit)} too much", "largest at the peak:"]
        for holder in self.estimate.holders[:5]:
            where = " ".join(filter(None, (holder.operation, holder.source)))
            lines.append(f"{readable(holder.bytes):>14}  {holder.shape} {where or holder.instruction}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _html.fit(self)


@dataclass(frozen=True)
class Proof:
    """What the checker looked at to prove a plan right."""

    computations: int
    instructions: int
    #: Reads that found their value whole.
    reads: int
    writes: int
    #: Memory spaces of which the plan says that no arena is smaller, which the checker could not verify.
    on_trust: list[int]

    def _repr_html_(self) -> str:
        return _html.proof(self)


@dataclass(frozen=True)
class Step:
    """A rewrite that was tried."""

    name: str
    description: str
    #: What the program needs with it.
    bytes: int
    seconds: float
    is_kept: bool


class Price(NamedTuple):
    """What a program costs, as memplan estimates it."""

    bytes: int
    seconds: float


class Rewritten:
    """A program rewritten so that a compiler needs less memory for it: same parameters, results and numbers."""

    def __init__(self, native: _memplan.Rewritten | _SaidOfRewritten, original: Module) -> None:
        self._native: _memplan.Rewritten | _SaidOfRewritten = native
        #: The program as it was.
        self.original = original

    def __getstate__(self) -> dict[str, Any]:
        native = self._native if isinstance(self._native, _Said) else _SaidOfRewritten(self._native)
        return {**self.__dict__, "_native": native}

    def __copy__(self) -> Self:
        """Itself: it does not change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @functools.cached_property
    def module(self) -> Module:
        """The program as it is now."""
        module: Module = self._native.module
        return module

    @property
    def compiler(self) -> str:
        """Who compiles it further."""
        return str(self._native.compiler)

    @property
    def target(self) -> str:
        """The machine it is for."""
        return str(self._native.target)

    @property
    def before(self) -> Price:
        """What the program as it was is expected to need."""
        return Price(*self._native.before)

    @property
    def after(self) -> Price:
        """What it is expected to need now."""
        return Price(*self._native.after)

    @functools.cached_property
    def steps(self) -> list[Step]:
        """Every rewrite that would change something, kept or not."""
        return [Step(*row) for row in self._native.steps]

    @property
    def is_changed(self) -> bool:
        """Whether any rewrite was kept."""
        return any(step.is_kept for step in self.steps)

    def diff(self) -> str:
        """What rewriting changed, as a diff of the two programs in HLO, without sources and numbers of names."""
        before, after = _lines_of(self.original), _lines_of(self.module)
        return "\n".join(difflib.unified_diff(before, after, "as written", "rewritten", lineterm=""))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that ``memplan.load`` reads, for ``memplan.jit(fun, rewritten=path)``: completely, or not."""
        modules = [self.original.to_proto(), self.module.to_proto()]
        said = {name: getattr(self._native, name) for name in ("compiler", "target", "before", "after", "steps")}
        said |= {"text": str(self), "names": [self.original.name, self.module.name], "sizes": [len(m) for m in modules]}
        data = _SAVED + gzip.compress(b"\n".join([json.dumps(said).encode(), b"".join(modules)]), 3, mtime=0)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)))
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def __str__(self) -> str:
        return str(self._native)

    def __repr__(self) -> str:
        return f"<memplan.Rewritten: {readable(self.before.bytes)} -> {readable(self.after.bytes)}>"

    def _repr_html_(self) -> str:
        return _html.rewritten(self)


#: How a file with a rewritten program begins.
_SAVED = b"memplan rewritten 1\n"


def load(path: str | os.PathLike[str]) -> Rewritten:
    """The rewritten program that ``Rewritten.save`` wrote to a file."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise _memplan.InputError(f"cannot read `{name}`: {error.strerror}") from error
    if not data.startswith(_SAVED):
        raise _memplan.InputError(f"`{name}` is no rewritten program that memplan saved")
    try:
        text, modules = gzip.decompress(data[len(_SAVED) :]).split(b"\n", 1)
        said = json.loads(text)
        cut = said["sizes"][0]
        protos = zip((modules[:cut], modules[cut:]), said["names"], strict=True)
        original, module = (Module.parse(proto, str(one)) for proto, one in protos)
        return Rewritten(_SaidOfRewritten.of(said, module), original)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise _memplan.InputError(f"`{name}` is damaged: {error}") from error


#: What says nothing to a reader who compares programs: numbers of names, layouts, sources.
_NOISE = re.compile(r"""(?<=[A-Za-z_-])(\.\d+)+\b | (?<=\])\{[\d,]+\} | ,\ metadata=\{[^}]*\}""", re.VERBOSE)


def _lines_of(module: Module) -> list[str]:
    """The text of a program without noise, and without the tables of its sources."""
    lines = (_NOISE.sub("", line) for line in module.to_text().splitlines())
    return [line for line in lines if line.startswith(("HloModule", "%", "ENTRY", " ", "}"))]


@dataclass(frozen=True)
class Packing:
    """Where every interval goes, and what is known about that."""

    offsets: NDArray[np.uint64]
    #: ``infeasible`` is proved; ``unknown`` means that the limit was reached.
    status: Literal["packed", "infeasible", "unknown"]
    #: One past the highest byte used.
    height: int
    #: No packing is lower.
    lower_bound: int
    #: Whether the height is proved to be the least.
    optimal: bool
    seconds: float
    #: Decisions that the search tried.
    nodes: int
    #: The intervals as they were given.
    lower: NDArray[np.uint64] = field(repr=False)
    upper: NDArray[np.uint64] = field(repr=False)
    size: NDArray[np.uint64] = field(repr=False)

    def to_json(self) -> str:
        """The figures, as the command writes them."""
        names = ("status", "height", "lower_bound", "optimal", "seconds", "nodes")
        return json.dumps({name: getattr(self, name) for name in names})

    def _repr_html_(self) -> str:
        return _html.packing(self)
