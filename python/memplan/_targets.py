"""Which machine and which compiler: by name, or the device at hand."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
import sys
from typing import Any

from memplan import _memplan
from memplan._memplan import InputError

#: What XLA calls the platforms that memplan's compilers are for.
COMPILERS = {"cpu": "xla-cpu", "cuda": "xla-gpu", "rocm": "xla-gpu", "gpu": "xla-gpu", "tpu": "xla-tpu"}

#: Part of the name that a device gives itself, and the target; the first that fits counts.
_DEVICES = (
    ("H200", "gpu-h200"),
    ("H100", "gpu-h100"),
    ("B200", "gpu-b200"),
    ("A100", "gpu-a100"),
    ("MI300X", "gpu-mi300x"),
    ("TPU v2", "tpu-v2"),
    ("TPU v3", "tpu-v3"),
    ("TPU v4", "tpu-v4"),
    ("TPU v5 lite", "tpu-v5e"),
    ("TPU v5", "tpu-v5p"),
    ("TPU v6", "tpu-v6e"),
    ("TPU7", "tpu-v7x"),
)


def of_device(device: Any) -> str | None:
    """The target that describes a device; None where there is none."""
    kind = str(device.device_kind)
    if device.platform == "cpu":
        return "cpu"
    return next((target for part, target in _DEVICES if part in kind), None)


def at_hand() -> str:
    """The target of JAX's default device, or the CPU where there is no JAX."""
    if "jax" not in sys.modules:
        return "cpu"
    import jax

    device = jax.devices()[0]
    target = of_device(device)
    if target is None:
        raise InputError(f"no target describes `{device.device_kind}`: say target=..., a name or a TOML file")
    return target


def compiler_for(target: str) -> str:
    """The compiler that people have for a target, with its version."""
    name, compiler, _ = _memplan.target(target)
    if compiler is None:
        raise InputError(f"no compiler of which memplan knows anything compiles for `{name}`")
    return with_version(compiler)


@functools.cache
def with_version(compiler: str) -> str:
    """A compiler of the jaxlib that is installed, or of the nearest version that memplan knows; else the newest."""
    try:
        jaxlib = importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        jaxlib = None
    return _memplan.version_of_compiler(compiler, jaxlib)


def platform_of(target: str) -> str | None:
    """What JAX calls the platform of a target, for which it can lower programs without a device."""
    _, compiler, _ = _memplan.target(target)
    if compiler == "xla-gpu":
        return "rocm" if "mi3" in target else "cuda"
    return {"xla-cpu": "cpu", "xla-tpu": "tpu"}.get(compiler or "")


def bytes_of(limit: int | str | None) -> int | None:
    """A number of bytes, with a unit where it is a text, as in ``"16GiB"``; numbers are whole, and not below zero."""
    if limit is None:
        return None
    if isinstance(limit, str):
        return _memplan.parse_bytes(limit)
    if isinstance(limit, bool) or not hasattr(limit, "__index__"):
        raise InputError(f'{limit!r} is no number of bytes: say a whole number, or a text as "16GiB"')
    count = operator.index(limit)
    if not 0 <= count < 1 << 64:
        raise InputError(f"{count} bytes is no amount of memory")
    return count
