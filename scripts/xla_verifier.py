"""XLA's HLO verifier, reached through the C interface of jaxlib's GPU plugin.

jaxlib's own interface takes StableHLO only, and has no verifier. The plugin (`pip install "jax[cuda12]"`) takes HLO,
needs no device to compile for a described one, and verifies a module before its first pass. With all passes switched
off nothing else is worth waiting for, and what it says later is not looked at.
"""

import ctypes
import os
import pathlib

# Places of functions in the table, which only ever grows at its end.
ERROR_DESTROY, ERROR_MESSAGE, INITIALIZE, EXECUTABLE_DESTROY, CREATE_TOPOLOGY, COMPILE = 0, 1, 3, 40, 82, 89
TABLE = 40  # Bytes before the functions: sizes and versions.

# What the device is like does not matter to the verifier; without a description the plugin looks for a device.
DEVICE = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def struct(name, *fields):
    kind = type(name, (ctypes.Structure,), {"_fields_": [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), *fields]})
    return lambda **values: kind(size=ctypes.sizeof(kind), **values)


POINTER, SIZE, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
Plain = struct("Plain", ("object", POINTER))
Message = struct("Message", ("error", POINTER), ("text", POINTER), ("length", SIZE))
Option = struct(
    "Option", ("name", TEXT), ("name_length", SIZE), ("type", ctypes.c_int), ("value", TEXT), ("length", SIZE)
)
Topology = struct(
    "Topology", ("name", TEXT), ("length", SIZE), ("options", POINTER), ("n_options", SIZE), ("topology", POINTER)
)
Program = struct("Program", ("code", TEXT), ("length", SIZE), ("format", TEXT), ("format_length", SIZE))
Compile = struct(
    "Compile",
    ("topology", POINTER), ("program", POINTER), ("options", TEXT), ("length", SIZE), ("client", POINTER),
    ("executable", POINTER),
)  # fmt: skip


class Verifier:
    """One per process. XLA ends its process on some modules: ask in a process that may end."""

    def __init__(self):
        import jax_plugins.xla_cuda12 as plugin

        os.environ["XLA_FLAGS"] = "--xla_disable_all_hlo_passes=true"
        library = ctypes.CDLL(str(pathlib.Path(plugin.__file__).parent / "xla_cuda_plugin.so"))
        library.GetPjrtApi.restype = POINTER
        self.api = library.GetPjrtApi()
        self.call(INITIALIZE, Plain())
        options = [self.option(b"topology", b"1x1x1"), self.option(b"target_config", DEVICE.encode())]
        array = (type(options[0]) * len(options))(*options)
        args = Topology(name=b"", length=0, options=ctypes.addressof(array), n_options=len(options))
        if error := self.call(CREATE_TOPOLOGY, args):
            raise RuntimeError(error)
        self.topology = args.topology

    def option(self, name, value):
        return Option(name=name, name_length=len(name), type=0, value=value, length=len(value))

    def refusal(self, module, n_replicas=1, n_partitions=1):
        """What compiling a serialised HloModuleProto ends with: an error, or None."""
        counts = b"\x20" + varint(n_replicas) + b"\x28" + varint(n_partitions)
        options = b"\x1a" + bytes([len(counts)]) + counts
        program = Program(code=module, length=len(module), format=b"hlo", format_length=3)
        args = Compile(
            topology=self.topology, program=ctypes.addressof(program), options=options, length=len(options)
        )
        error = self.call(COMPILE, args)
        if args.executable:
            self.call(EXECUTABLE_DESTROY, Plain(object=args.executable))
        return error

    def call(self, function, args):
        address = ctypes.cast(self.api + TABLE + 8 * function, ctypes.POINTER(POINTER))[0]
        error = ctypes.CFUNCTYPE(POINTER, POINTER)(address)(ctypes.addressof(args))
        if not error or function in (ERROR_DESTROY, ERROR_MESSAGE):
            return None
        message = Message(error=error)
        self.call(ERROR_MESSAGE, message)
        text = ctypes.string_at(message.text, message.length).decode(errors="replace")
        self.call(ERROR_DESTROY, Plain(object=error))
        return text


def varint(value):
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def main():
    """Answers on standard output, a line each: of a line `[length, replicas, partitions]` and so many bytes."""
    import json
    import sys

    # XLA talks on both.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    verifier = Verifier()
    while line := sys.stdin.buffer.readline():
        length, *counts = json.loads(line)
        error = verifier.refusal(sys.stdin.buffer.read(length), *counts) or ""
        is_verifiers = error.startswith("during context [hlo verifier]") and error.endswith("pipeline-start")
        print(json.dumps(error if is_verifiers else ""), file=out, flush=True)


if __name__ == "__main__":
    main()
