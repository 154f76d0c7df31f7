"""What memplan asks of jaxlib: programs from one form to another."""

from __future__ import annotations

from typing import Any

from memplan._memplan import Module

#: First bytes of MLIR bytecode.
MLIR_MAGIC = b"ML\xefR"


def from_stablehlo(program: bytes | str, name: str) -> Module:
    """A program from StableHLO, text or bytecode."""
    from jaxlib import _jax

    computation = _jax.mlir.mlir_module_to_xla_computation(program, use_tuple_args=False, return_tuple=False)
    return Module.parse(computation.as_serialized_hlo_module_proto(), name)


def to_stablehlo(module: Module) -> bytes:
    """A program as StableHLO bytecode."""
    from jaxlib import _jax

    bytecode: bytes = _jax.mlir.hlo_to_stablehlo(module.to_proto())
    return bytecode


def from_lowered(lowered: Any) -> Module:
    """The program of a ``jax.stages.Lowered``, as XLA gets it."""
    computation = lowered.compiler_ir("hlo")
    return Module.parse(computation.as_serialized_hlo_module_proto(), "<jax.stages.Lowered>")


def from_compiled(compiled: Any) -> Module:
    """The program of a ``jax.stages.Compiled``, as XLA made it: fused and scheduled."""
    module = compiled.runtime_executable().hlo_modules()[0]
    return Module.parse(module.as_serialized_hlo_module_proto(), "<jax.stages.Compiled>")
