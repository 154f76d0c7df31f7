"""Programs in all the forms in which people have them."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from memplan import _xla
from memplan._memplan import InputError, Module
from memplan._targets import platform_of

if TYPE_CHECKING:
    import jax
    from jaxlib.mlir import ir

#: HLO or StableHLO as text or bytes, a path to such a file, a stage of JAX, an exported function, what ``compiler_ir``
#: gives, or a function (with its arguments).
Program: TypeAlias = (
    "Module | str | bytes | os.PathLike[str] | jax.stages.Traced | jax.stages.Lowered | jax.stages.Compiled"
    " | jax.export.Exported | ir.Module | Callable[..., Any]"
)

#: How text of MLIR begins, behind comments: with a module, a function, or aliases of attributes, types and locations.
_MLIR_TEXT = re.compile(
    rb"""(\s | //[^\n]*(\n|$))*
    (module\s*[@{] | module\s+attributes\b | "?(builtin\.module|func\.func)\b | [\#!] | \{-\#)""",
    re.VERBOSE,
)

#: First bytes of a file compressed by gzip.
_GZIP_MAGIC = b"\x1f\x8b"


def read(program: Program, *args: Any, target: str | None = None, **kwargs: Any) -> Module:
    """The program, read and verified.

    Functions, also those that ``jax.jit``, ``flax.nnx.jit`` or ``equinox.filter_jit`` gave, are lowered with ``args``
    and ``kwargs``, arrays or ``jax.ShapeDtypeStruct``s, for the platform of ``target``, whether or not such a device is
    here.
    """
    if not callable(program) and (args or kwargs):
        raise TypeError("only functions take arguments")
    if isinstance(program, Module):
        return program
    if isinstance(program, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(program), "<bytes>")
    if isinstance(program, str):
        return _from_text(program, "<text>") if "\n" in program or "{" in program else _from_file(program)
    if isinstance(program, os.PathLike):
        return _from_file(program)
    if hasattr(program, "compiler_ir"):
        return _xla.from_lowered(program)
    if hasattr(program, "as_serialized_hlo_module_proto"):
        return _xla.from_hlo(program, f"<{type(program).__name__}>")
    if hasattr(program, "mlir_module_serialized"):  # jax.export.Exported
        return _from_stablehlo(program.mlir_module_serialized, "<jax.export.Exported>")
    if hasattr(program, "operation") and not callable(program):  # jaxlib.mlir.ir.Module
        return _of_stablehlo(_xla.from_mlir_module, program, f"<{type(program).__name__}>")
    if hasattr(program, "runtime_executable"):
        return _xla.from_compiled(program)
    if hasattr(program, "jaxpr"):  # jax.stages.Traced
        return _xla.from_lowered(_lower(program, target))
    if callable(program):
        return _xla.from_lowered(_lower_function(program, args, kwargs, target))
    raise TypeError(f"a program is no {type(program).__name__}")


def _lower_function(fun: Callable[..., Any], args: Any, kwargs: Any, target: str | None) -> Any:
    """A function with its arguments, lowered for the platform of a target by the jit that it has, or ``jax.jit``."""
    if hasattr(fun, "lower") and not hasattr(fun, "trace"):  # equinox.filter_jit
        lowered = fun.lower(*args, **kwargs)
        return getattr(lowered, "lowered", lowered)
    traceable: Any = fun if hasattr(fun, "trace") else _jit(fun)
    traced = traceable.trace(*args, **kwargs)
    return _lower(getattr(traced, "traced", traced), target)  # flax.nnx.jit wraps stages


def _jit(fun: Callable[..., Any]) -> Any:
    import jax

    return jax.jit(fun)


def _lower(traced: Any, target: str | None) -> Any:
    """A program that JAX has traced, for the platform of a target."""
    platform = platform_of(target) if target is not None else None
    return traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()


def _from_file(path: str | os.PathLike[str]) -> Module:
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read `{os.fspath(path)}`: {getattr(error, 'strerror', None) or error}") from error
    return _from_bytes(data, os.fspath(path))


def _from_bytes(data: bytes, name: str) -> Module:
    if data.startswith(_GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"`{name}` is compressed and damaged: {error}") from error
    if data.startswith(_xla.MLIR_MAGIC):
        return _from_stablehlo(data, name)
    if not _MLIR_TEXT.match(data):
        return Module.parse(data, name)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is StableHLO, but no UTF-8 from byte {error.start} on") from error
    return _from_stablehlo(text, name)


def _from_text(text: str, name: str) -> Module:
    try:
        return _from_bytes(text.encode(), name)
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has half of a surrogate pair at character {error.start}") from error


def _from_stablehlo(program: bytes | str, name: str) -> Module:
    return _of_stablehlo(_xla.from_stablehlo, program, name)


def _of_stablehlo(convert: Callable[[Any, str], Module], program: Any, name: str) -> Module:
    try:
        return convert(program, name)
    except ImportError as error:
        raise InputError(f"{name} is StableHLO, which jaxlib reads, and there is none") from error
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
