"""What a jitted function becomes when JAX lowers a call of it: a function of MLIR, rewritten by memplan."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memplan import _memplan, _targets, _xla
from memplan._memplan import Module
from memplan._results import Rewritten, load, readable

#: Packages that stand between the caller of a function and its lowering.
_NOT_OF_USERS = {"memplan", "jax", "jaxlib", "contextlib", "functools"}

#: What is said of parameters that the caller gives up.
_DONATED = {"tf.aliasing_output", "jax.buffer_donor"}

#: What is said of parameters that are spread over devices: by Shardy, and by GSPMD.
_SHARDING = {"sdy.sharding", "mhlo.sharding"}

#: MLIR's passes that read shardings where HLO keeps them.
_SHARDINGS = "xla-sdy-round-trip-import-shardy-attrs,sdy-lift-inlined-meshes"


class FallbackWarning(UserWarning):
    """A program runs as it was written, and why."""


class LimitWarning(UserWarning):
    """A program is expected to need more than its limit, with everything done that helps."""


@dataclasses.dataclass(frozen=True)
class Wish:
    """What ``memplan.jit`` is asked for."""

    memory_limit: int | None = None
    max_slowdown: float | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    must_rewrite: bool = False


class Job:
    """What is asked for of one function, and what was said about it."""

    def __init__(
        self,
        name: str,
        wish: Wish,
        report: Callable[[Rewritten], object] | None,
        saved: Rewritten | None,
        counts_results: bool = True,
    ) -> None:
        self.name = name
        self.wish = wish
        self.report = report
        #: The program to run, where there is no need to search for one.
        self.saved = saved
        #: Whether its program gives as many arrays as it does; those of frameworks give what has changed as well.
        self.counts_results = counts_results
        #: How many arrays it has been seen to give.
        self.results: set[int] = set()
        self._warned: set[str] = set()

    def fall_back(self, why: str) -> None:
        """Says, once, why the program runs as it was written, or refuses to run it."""
        message = f"memplan.jit runs `{self.name}` as it is written: {why}"
        if self.wish.must_rewrite:
            raise FallbackWarning(message)
        self._warn(message, FallbackWarning)

    def fall_back_to_search(self, why: str) -> None:
        """Says, once, why another program is searched for than the one that was given."""
        self._warn(f"memplan.jit searches for a program for `{self.name}`: {why}", FallbackWarning)

    def tell(self, rewritten: Rewritten) -> None:
        """Says what was done, to those who asked, and what was asked for and cannot be done."""
        if self.report is not None:
            self.report(rewritten)
        needed = rewritten.after.bytes
        asked = self.wish.memory_limit
        if asked is not None and needed > asked:
            limit = f"more than its limit of {readable(asked)}"
            self._warn(f"memplan.jit expects `{self.name}` to need {readable(needed)}, {limit}", LimitWarning)

    def _warn(self, message: str, category: type[UserWarning]) -> None:
        """Warns once, of the line that calls the function."""
        if message in self._warned:
            return
        self._warned.add(message)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_OF_USERS:
            level, frame = level + 1, frame.f_back
        warnings.warn(message, category, stacklevel=level)

    def __repr__(self) -> str:
        return f"memplan.jit({self.name})"


class Name(str):
    """The name of a function whose calls are rewritten when JAX lowers them. JAX keeps names as they are."""

    job: Job


def is_off() -> bool:
    """Whether the environment asks for programs as they are written."""
    return os.environ.get("MEMPLAN", "").lower() == "off"


@functools.cache
def install() -> None:
    """Adds to JAX's rule for calls of jitted functions what those do that have a ``Name``."""
    _xla.hide_frames(os.path.dirname(__file__))
    primitive, as_written = _xla.jit_and_its_lowering()
    _xla.register_lowering(primitive, functools.partial(_lower, as_written))


#: Whether a function around this one is to be rewritten with all that it calls.
_IS_WITHIN_ANOTHER = contextvars.ContextVar("memplan_is_within_another", default=False)


def _lower(as_written: Callable[..., Any], context: Any, *args: Any, name: str, jaxpr: Any, **params: Any) -> Any:
    """JAX's rule for calls of jitted functions; what it emits calls another function if one needs less."""
    if not isinstance(name, Name) or is_off() or _IS_WITHIN_ANOTHER.get():
        return as_written(context, *args, name=name, jaxpr=jaxpr, **params)
    token = _IS_WITHIN_ANOTHER.set(True)
    try:
        results = as_written(context, *args, name=name, jaxpr=jaxpr, **params)
    finally:
        _IS_WITHIN_ANOTHER.reset(token)
    job = name.job
    try:
        rewritten = _rewrite_call(context, jaxpr, job)
    except FallbackWarning:
        raise
    except Exception as error:
        job.fall_back(f"{type(error).__name__}: {error}")
    else:
        if rewritten is not None:
            job.tell(rewritten)
    return results


def _rewrite_call(context: Any, jaxpr: Any, job: Job) -> Rewritten | None:
    """Rewrites the program of the call that was emitted last, and lets the call be one of that; None where it cannot
    be, or was already."""
    from jax.interpreters import mlir

    module_context = context.module_context
    block = mlir.ir.InsertionPoint.current.block
    call = block.operations[len(block.operations) - 1]
    if call.operation.name != "func.call" or not jaxpr.eqns:
        return None
    why = _why_not(context, jaxpr, call, job)
    if why is not None:
        job.fall_back(why)
        return None
    said = _said_of_operands(call)
    callee = call.attributes["callee"]
    # A function that is called again is rewritten once.
    known = module_context.cached_primitive_lowerings
    key = ("memplan", callee.value, tuple(tuple(sorted((k, str(v)) for k, v in one.items())) for one in said))
    if key in known:
        call.attributes["callee"] = mlir.ir.FlatSymbolRefAttr.get(known[key])
        return None
    program = _xla.from_mlir_module(_program_of(module_context, callee.value, said, job.name), f"<{job.name}>")
    if program.has_parts_by_gspmd():
        job.fall_back("parts of it are written for each of several devices (shard_map), for XLA's older partitioner")
        return None
    contacts = [contact for contact in program.host_contacts() if not contact.startswith(_CALLBACKS)]
    if contacts:
        job.fall_back("it talks to the host while it runs (" + ", ".join(sorted(set(contacts))) + ")")
        return None
    rewritten = _rewritten(context, program, job)
    if rewritten.is_changed:
        if rewritten.module.host_contacts() != program.host_contacts():
            raise AssertionError("the rewritten program calls back more or less often")
        known[key] = _merge(module_context, call, _xla.to_stablehlo(rewritten.module), job.name)
        call.attributes["callee"] = mlir.ir.FlatSymbolRefAttr.get(known[key])
    else:
        known[key] = callee.value
    return rewritten


#: Functions of Python that programs for CPUs and GPUs call: operations as others, which rewriting keeps.
_CALLBACKS = ("xla_ffi_python_cpu_callback", "xla_ffi_python_gpu_callback")


def _why_not(context: Any, jaxpr: Any, call: Any, job: Job) -> str | None:
    """Why a call stays as it is."""
    module_context = context.module_context
    platforms = module_context.platforms
    if len(platforms) != 1 or platforms[0] not in _targets.COMPILERS:
        return f"it is lowered for {', '.join(platforms)}, of which memplan knows no compiler"
    if module_context.shape_poly_state.dim_vars:
        return "its shapes are symbolic"
    if any("token" in str(value.type) for value in call.operands):
        return "its side effects are in an order (" + ", ".join(sorted({str(e) for e in jaxpr.effects})) + ")"
    if getattr(module_context.axis_context, "manual_axes", None):
        return "it is a part of what each of several devices does (shard_map)"
    # In loops, JAX forgets the names around them; derivatives give more than the function does.
    around = {getattr(part, "name", "") for part in context.name_stack.stack}
    gives_more = not around and len(jaxpr.out_avals) > max(job.results, default=1 << 62)
    if gives_more or not around.isdisjoint(_DERIVATIVES):
        return "its derivative is taken around it: put memplan.jit around the derivative, best around the whole step"
    if getattr(module_context.axis_context, "num_devices", 1) > 1 and not all(map(_is_given, call.operands)):
        return "it is a part of a program for several devices: put memplan.jit around the whole program"
    return None


#: What JAX writes into names of operations that derivatives are made of.
_DERIVATIVES = {"jvp", "transpose"}


def _is_given(value: Any) -> bool:
    """Whether a value is a parameter of the program, or a constant."""
    from jaxlib.mlir import ir

    if isinstance(value, ir.BlockArgument):
        function = value.owner.owner
        return "sym_name" in function.attributes and function.attributes["sym_name"].value == "main"
    return bool(value.owner.name == "stablehlo.constant")


def _rewritten(context: Any, program: Module, job: Job) -> Rewritten:
    """The program that is known for this one, or what a search finds."""
    compiler = _targets.with_version(_targets.COMPILERS[context.module_context.platforms[0]])
    if job.saved is not None:
        if job.saved.original.fingerprint() == program.fingerprint():
            return job.saved
        job.fall_back_to_search("the program that was saved is for another one, or another version of it")
    target, wish = _target(context), job.wish
    asked = (compiler, target, wish.memory_limit, wish.max_slowdown, wish.only, wish.without)
    path = _kept_at(program, asked)
    if path is not None:
        with contextlib.suppress(OSError, _memplan.InputError):
            return load(path)
    found = Rewritten(_memplan.rewrite(program, *asked), program)
    if path is not None:
        # Whoever cannot write it searches again.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            found.save(path)
    return found


def _kept_at(program: Module, asked: tuple[Any, ...]) -> Path | None:
    """The file for a rewritten program beside what JAX has compiled, where it keeps that in a folder."""
    import jax

    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder or "://" in folder:
        return None
    # The text, since every protobuf has another number of its module.
    key = hashlib.sha256((repr((_memplan.VERSION, asked)) + program.to_text()).encode())
    return Path(folder) / "memplan" / key.hexdigest()


def _said_of_operands(call: Any) -> list[dict[str, Any]]:
    """What the program says of the parameters that a call gets; nothing of what it computes."""
    from jaxlib.mlir import ir

    functions = [v.owner.owner for v in call.operands if isinstance(v, ir.BlockArgument) and _is_given(v)]
    if not functions:
        return [{} for _ in call.operands]
    said = dict(zip(functions[0].regions[0].blocks[0].arguments, _said_of_parameters(functions[0]), strict=True))
    return [
        {name: one for name, one in said.get(value, {}).items() if name in _DONATED | _SHARDING}
        for value in call.operands
    ]


def _said_of_parameters(function: Any) -> list[dict[str, Any]]:
    """The attributes of each parameter of a function."""
    from jaxlib.mlir import ir

    # jaxlib's bindings do not find optional properties of operations by name; what is printed has them.
    text = function.operation.get_asm(print_generic_op_form=True, skip_regions=True)
    properties = ir.DictAttr(ir.Attribute.parse(text[text.index("<{") + 1 : text.rindex("}>") + 1], function.context))
    if "arg_attrs" not in properties:
        return [{} for _ in function.type.inputs]
    return [{said.name: said.attr for said in ir.DictAttr(one)} for one in ir.ArrayAttr(properties["arg_attrs"])]


def _program_of(module_context: Any, callee: str, said: Sequence[dict[str, Any]], name: str) -> Any:
    """A module of its own for a function and all that it calls, with what is said of its parameters."""
    from jaxlib.mlir import ir, passmanager

    symbols = module_context.symbol_table
    with module_context.context, ir.Location.unknown():
        alone = ir.Module.create()
        alone.operation.attributes["sym_name"] = ir.StringAttr.get(f"jit_{name}")
        place = ir.InsertionPoint(alone.body)
        for operation in module_context.module.body.operations:
            if operation.operation.name == "sdy.mesh":
                operation.operation.clone(place)
        seen, open_ = {callee}, [callee]
        while open_:
            function = symbols[open_.pop()].operation.clone(place)
            is_main = function.attributes["sym_name"].value == callee
            if is_main:
                function.attributes["sym_name"] = ir.StringAttr.get("main")
                function.attributes["sym_visibility"] = ir.StringAttr.get("public")
                _say_of_parameters(function, said)
            new = _functions_called(function) - seen
            seen |= new
            open_ += sorted(new)
        if any(not _SHARDING.isdisjoint(one) for one in said):
            passmanager.PassManager.parse("builtin.module(sdy-lift-inlined-meshes)").run(alone.operation)
    return alone


def _functions_called(function: Any) -> set[str]:
    """Names of the functions that a function names: in calls, custom calls and composites."""
    from jaxlib.mlir import ir

    names: set[str] = set()

    def look(operation: Any) -> Any:
        said = operation.attributes
        names.update(ir.FlatSymbolRefAttr(said[name]).value for name in ("callee", "decomposition") if name in said)
        if "called_computations" in said:
            names.update(ir.FlatSymbolRefAttr(one).value for one in ir.ArrayAttr(said["called_computations"]))
        return ir.WalkResult.ADVANCE

    function.walk(look)
    return names


def _say_of_parameters(function: Any, said: Sequence[dict[str, Any]]) -> None:
    """Says of the parameters of a program what is said of them around it. Each that is donated is the place of the
    first result of its type, as where JAX lowers programs."""
    from jaxlib.mlir import ir

    kind = ir.TypeAttr(function.attributes["function_type"]).value
    free = list(enumerate(kind.results))
    own = []
    for parameter, one in zip(kind.inputs, said, strict=True):
        attributes = {name: attribute for name, attribute in one.items() if name in _SHARDING}
        if not _DONATED.isdisjoint(one):
            place = next((result for result in free if result[1] == parameter), None)
            if place is None:
                attributes["jax.buffer_donor"] = ir.BoolAttr.get(True)
            else:
                free.remove(place)
                attributes["tf.aliasing_output"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), place[0])
        own.append(ir.DictAttr.get(attributes))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(own)
    function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({}) for _ in kind.results])


def _target(context: Any) -> str | None:
    """The target that describes the device at hand; None for the usual one of the compiler."""
    backend = context.module_context.backend
    if backend is None or backend.platform not in context.module_context.platforms[0]:
        return None
    # Of devices that programs are compiled for without having them, none is local.
    return _targets.of_device((backend.local_devices() or backend.devices())[0])


def _merge(module_context: Any, call: Any, program: bytes, name: str) -> str:
    """Adds a program, given as StableHLO, to a module, and gives the name of its function, which a call can call."""
    from jax.interpreters import mlir
    from jaxlib.mlir import passmanager

    module = mlir.ir.Module.parse(program)
    if "mhlo.frontend_attributes" in module.operation.attributes:
        # HLO keeps meshes and shardings, which arrays of random keys have on one device as well, as text.
        passmanager.PassManager.parse(f"builtin.module({_SHARDINGS})").run(module.operation)
    _as_plugins_take_it(module)
    main = mlir.ir.SymbolTable(module.operation)["main"]
    given, wanted = ([value.type for value in values] for values in (call.operands, call.results))
    if list(main.type.inputs) != given or list(main.type.results) != wanted:
        raise TypeError(f"the rewritten program takes {list(main.type.inputs)}, and {given} are given")
    # What is donated, and where it lies, is said of the parameters of the program that calls it.
    nothing = mlir.ir.DictAttr.get({}, module.context)
    main.arg_attrs = mlir.ir.ArrayAttr.get([nothing] * len(given), module.context)
    main.attributes["res_attrs"] = mlir.ir.ArrayAttr.get([nothing] * len(wanted), module.context)
    merged: str = mlir.merge_mlir_modules(
        module_context.module, name, module, dst_symtab=module_context.symbol_table
    )
    return merged


def _as_plugins_take_it(module: Any) -> None:
    """Changes what jaxlib writes of HLO, and XLA's plugins do not take, to what JAX itself writes."""
    from jaxlib.mlir import ir

    ragged = []

    def look(operation: Any) -> Any:
        if operation.name == "mhlo.ragged_dot":
            ragged.append(operation)
        elif operation.name == "stablehlo.custom_call" and "result_tilings" in operation.attributes:
            # Written where layouts are given. Tiled arrays come from XLA alone: here, all of them are empty.
            del operation.attributes["result_tilings"]
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    for product in ragged:
        _name_ragged_product(product)


def _name_ragged_product(product: Any) -> None:
    """Names a product of ragged arrays as JAX does."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo

    # One attribute has another within; here all dimensions are in one.
    text = str(product.attributes["ragged_dot_dimension_numbers"])
    dimensions = ", ".join(re.findall(r"\w+_dimensions = \[[\d, ]*\]", text))
    precision = str(product.attributes["precision_config"]).replace("#mhlo", "#chlo")
    with ir.InsertionPoint(product), product.location:
        named = chlo.ragged_dot(
            product.results[0].type,
            *product.operands,
            ir.Attribute.parse(f"#chlo.ragged_dot<{dimensions}>"),
            precision_config=ir.Attribute.parse(precision),
        )
    product.results[0].replace_all_uses_with(named)
    product.erase()
