#!/usr/bin/env python3
"""The cases of tests/opcodes that run on several devices: collectives.

usage: make_opcode_cases_devices.py OUTDIR       needs PyPI's jax (the values are those of 0.10.2)

Files are as `make_opcode_cases.py` makes them, save that the bytes after `// p0:` are those of all devices, one after the
other. Modules with replicas are written by hand; those with partitions are what XLA makes of JAX's `shard_map`.
"""
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler, xla_bridge
from jax._src.lib import xla_client as xc
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxlib import _hlo
from make_opcode_cases import binary_callee, literal_bytes, main, shape_of, some

N = 4


def run_on_replicas(text, inputs):
    """What XLA computes on four replicas. Arrays have a first dimension for the devices."""
    module = _hlo.hlo_module_from_text(text)
    stablehlo = xc._xla.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    backend = xla_bridge.get_backend("cpu")
    devices = backend.local_devices()[:N]
    options = compiler.get_compile_options(num_replicas=N, num_partitions=1, device_assignment=np.arange(N).reshape(N, 1))
    executable = backend.compile_and_load(stablehlo, xc.DeviceList(tuple(devices)), options)
    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
    given = [jax.device_put(a.reshape((-1,) + a.shape[2:]), sharding) for a in inputs]
    results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
    return [np.stack([np.asarray(a) for a in result]) for result in results]


def case_text(text, inputs, outputs):
    arrays = [("p", i, a) for i, a in enumerate(inputs)] + [("o", i, a) for i, a in enumerate(outputs)]
    return text + "".join(f"// {k}{i}: {literal_bytes(a)}\n" for k, i, a in arrays)


def replicas(f):
    def add(name, body, inputs, callees="", meaning=None):
        parameters = "".join(f"  p{i} = {shape_of(a[0])} parameter({i})\n" for i, a in enumerate(inputs))
        lines = "".join(f"  {line.strip()}\n" for line in body.strip().splitlines())
        text = f"HloModule {name}, replica_count={N}\n\n{callees}ENTRY main {{\n{parameters}{lines}}}\n"
        try:
            outputs = run_on_replicas(text, inputs) if meaning is None else meaning(*inputs)
        except Exception as error:
            f.refused.append((name, str(error).splitlines()[0][:160]))
            return
        f.cases.append(case_text(text, inputs, outputs))

    x = some("f32", (N, 8))
    y = some("s32", (N, 4))
    groups = {"all": "{}", "one": "{{0,1,2,3}}", "order": "{{3,1,0,2}}", "two": "{{0,2},{1,3}}", "pairs": "{{0,1},{3,2}}", "iota": "[2,2]<=[4]", "transposed": "[2,2]<=[2,2]T(1,0)"}
    for op, t in [("add", "f32"), ("minimum", "f32"), ("maximum", "s32"), ("multiply", "bf16"), ("and", "pred"), ("or", "pred")]:
        a = some(t, (N, 5))
        add(f"all_reduce_{op}", f"ROOT r = {t}[5] all-reduce(p0), replica_groups={{}}, to_apply=f", [a], binary_callee(op, t))
    for name, g in groups.items():
        sums = binary_callee("add", "f32")
        add(f"all_reduce_{name}", f"ROOT r = f32[8] all-reduce(p0), replica_groups={g}, to_apply=f", [x], sums)
        members = 4 if name in ("all", "one", "order") else 2
        add(f"all_gather_{name}", f"ROOT r = f32[{8 * members}] all-gather(p0), replica_groups={g}, dimensions={{0}}", [x])
        add(f"reduce_scatter_{name}", f"ROOT r = f32[{8 // members}] reduce-scatter(p0), replica_groups={g}, dimensions={{0}}, to_apply=f", [x], sums)
        if name not in ("all", "iota", "transposed"):
            add(f"all_to_all_{name}", f"ROOT r = f32[8] all-to-all(p0), replica_groups={g}, dimensions={{0}}", [x])
    add("all_reduce_two_operands", "ROOT r = (f32[8], f32[8]) all-reduce(p0, p1), replica_groups={}, to_apply=f", [x, some("f32", (N, 8))], binary_callee("add", "f32"))
    z = some("f32", (N, 3, 4))
    add("all_gather_inner", "ROOT r = f32[3,16] all-gather(p0), replica_groups={}, dimensions={1}", [z])
    add("reduce_scatter_inner", "ROOT r = f32[3,2] reduce-scatter(p0), replica_groups={{0,2},{1,3}}, dimensions={1}, to_apply=f", [z], binary_callee("add", "f32"))
    add("all_to_all_inner", "ROOT r = f32[3,4] all-to-all(p0), replica_groups={{0,1,2,3}}, dimensions={1}", [z])
    both = [x, some("f32", (N, 4))]
    halves = lambda a: np.stack([(a[0] + a[2])[: a.shape[1] // 2], (a[1] + a[3])[: a.shape[1] // 2], (a[0] + a[2])[a.shape[1] // 2:], (a[1] + a[3])[a.shape[1] // 2:]])
    add("reduce_scatter_two_operands", "ROOT r = (f32[4], f32[2]) reduce-scatter(p0, p1), replica_groups={{0,2},{1,3}}, dimensions={0}, to_apply=f",
        both, binary_callee("add", "f32"), meaning=lambda *v: [halves(a) for a in v])
    add("all_to_all_operands", "ROOT r = (f32[8], f32[8]) all-to-all(p0, p1), replica_groups={{0,1},{2,3}}", [x, some("f32", (N, 8))])
    for name, pairs in [("ring", "{{0,1},{1,2},{2,3},{3,0}}"), ("some", "{{0,2},{2,1}}"), ("self", "{{0,0},{1,3}}")]:
        add(f"collective_permute_{name}", f"ROOT r = s32[4] collective-permute(p0), source_target_pairs={pairs}", [y])
    add("collective_broadcast", "ROOT r = s32[4] collective-broadcast(p0), replica_groups={{2,0},{1,3}}", [y], meaning=lambda y: [y[[2, 1, 2, 1]]])
    add("replica_ids", "i = u32[] replica-id()\nj = s32[] convert(i)\nb = s32[4] broadcast(j), dimensions={}\nROOT r = s32[4] add(p0, b)", [y])
    body = """cond {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[8] collective-permute(x), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  q = f32[8] add(x, y)
  z = f32[8] all-reduce(q), replica_groups={{0,1},{2,3}}, to_apply=f
  ROOT r = (s32[], f32[8]) tuple(j, z)
}

"""
    add("in_a_loop", "i = s32[] constant(0)\nt = (s32[], f32[8]) tuple(i, p0)\nw = (s32[], f32[8]) while(t), condition=cond, body=body\nROOT r = f32[8] get-tuple-element(w), index=1", [x], binary_callee("add", "f32") + body)

    # Device d sends send[d][k] rows from offset input[d][k] to device k, to rows from output[d][k] on.
    send = np.array([[1, 2, 0, 1], [0, 1, 1, 0], [2, 0, 0, 2], [1, 1, 1, 1]], np.int32)
    begin = (np.cumsum(send, 1) - send).astype(np.int32)
    place = (np.cumsum(send, 0) - send).astype(np.int32)
    rows, out = some("f32", (N, 4, 2)), some("f32", (N, 6, 2))

    def exchange(rows, out, begin, send, place, receive):
        out = out.copy()
        for d in range(N):
            for k in range(N):
                out[k, place[d, k]:place[d, k] + send[d, k]] = rows[d, begin[d, k]:begin[d, k] + send[d, k]]
        return [out]

    add("ragged_all_to_all", "ROOT r = f32[6,2] ragged-all-to-all(p0, p1, p2, p3, p4, p5), replica_groups={{0,1,2,3}}",
        [rows, out, begin, send, place, send.T.copy()], meaning=exchange)


def partitions(f):
    devices = jax.devices()[:N]
    line, grid = Mesh(np.array(devices), ("i",)), Mesh(np.array(devices).reshape(2, 2), ("a", "b"))

    def add(name, function, mesh, *inputs):
        """Inputs are split along their first dimension over all devices."""
        axes = P(mesh.axis_names)
        given = [jax.device_put(a, NamedSharding(mesh, axes)) for a in inputs]
        try:
            mapped = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=tuple(axes for _ in inputs), out_specs=axes, check_vma=False))
            compiled = mapped.lower(*given).compile()
            result = np.asarray(compiled(*given))
        except Exception as error:
            f.refused.append((name, str(error).splitlines()[0][:160]))
            return
        options = _hlo.HloPrintOptions()
        options.print_metadata = options.print_backend_config = options.print_large_constants = False
        text = compiled.runtime_executable().hlo_modules()[0].to_string(options).strip()
        text = text.replace(text.split()[1].rstrip(","), f"partitions_{name}", 1)
        f.cases.append(case_text(text + "\n", inputs, [result]))

    x, y = some("f32", (8, 4)), some("s32", (16, 3))
    add("psum", lambda x: jax.lax.psum(x, "i"), line, x)
    add("pmin_pmax", lambda y: jax.lax.pmax(y, "i") - jax.lax.pmin(y, "i"), line, y)
    add("psum_rows", lambda x: jax.lax.psum(x, "a"), grid, x)
    add("psum_columns", lambda x: jax.lax.psum(x * 2, "b") + jax.lax.psum(x, "a"), grid, x)
    add("mean_of_squares", lambda x: x / jnp.sqrt(jax.lax.pmean(jnp.sum(x * x), "i")), line, x)
    add("all_gather", lambda x: jax.lax.all_gather(x, "i", tiled=True), line, x)
    add("all_gather_columns", lambda x: jax.lax.all_gather(x, "b", axis=1, tiled=True), grid, x)
    add("psum_scatter", lambda y: jax.lax.psum_scatter(y, "i", tiled=True), line, y)
    add("psum_scatter_rows", lambda x: jax.lax.psum_scatter(x, "a", scatter_dimension=1, tiled=True), grid, x)
    add("all_to_all", lambda y: jax.lax.all_to_all(y, "i", 0, 0, tiled=True), line, y)
    add("all_to_all_columns", lambda x: jax.lax.all_to_all(x, "b", 1, 0, tiled=True), grid, x)
    add("ppermute", lambda x: x - jax.lax.ppermute(x, "i", [(k, (k + 1) % N) for k in range(N)]), line, x)
    add("ppermute_some", lambda x: jax.lax.ppermute(x, "i", [(0, 2), (3, 1)]), line, x)
    add("axis_index", lambda y: y + jax.lax.axis_index("i"), line, y)
    add("matmul", lambda x: jax.lax.psum(x @ x.T, "i"), line, x)
    size = np.int32([[1, 2, 0, 1], [0, 1, 1, 0], [2, 0, 0, 2], [1, 1, 1, 1]])
    begin, place = (np.cumsum(size, 1) - size).astype(np.int32), (np.cumsum(size, 0) - size).astype(np.int32)
    add("ragged_all_to_all", lambda x, o, b, s, p, r: jax.lax.ragged_all_to_all(x, o, b, s, p, r, axis_name="i"), line,
        some("f32", (16, 2)), some("f32", (24, 2)), begin.ravel(), size.ravel(), place.ravel(), size.T.ravel().copy())


FAMILIES = [replicas, partitions]

if __name__ == "__main__":
    main(FAMILIES)
