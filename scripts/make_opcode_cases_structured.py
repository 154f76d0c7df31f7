#!/usr/bin/env python3
"""The cases of tests/opcodes that need more than one operation on arrays: functions with control flow, scans, ragged and
scaled dots, dynamic sizes, asynchronous operations, calls to linear algebra.

usage: make_opcode_cases_structured.py OUTDIR [FAMILY...]       needs PyPI's jax (the values are those of 0.10.2)

Files are as `make_opcode_cases.py` makes them. Where XLA's CPU backend has no code for an operation, the values are those
of the JAX or NumPy function that stands beside the case.
"""
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from make_opcode_cases import binary_callee, main, rng, shape_of, some, special

jax.config.update("jax_enable_x64", True)
f32, i32 = np.float32, lambda *v: np.array(v, np.int32)


def functions(f):
    """Reducers, comparators, combiners and maps that are more than a row of elementwise operations."""
    # XLA's emitters for fusions do not survive functions with control flow.
    f.overrides = [("xla_cpu_use_fusion_emitters", False), ("xla_disable_hlo_passes", "fusion")]
    branchy = """b0 {
  ROOT a = f32[] parameter(0)
}

b1 {
  a = f32[] parameter(0)
  h = f32[] constant(0.5)
  ROOT r = f32[] multiply(a, h)
}

f {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  p = pred[] compare(b, a), direction=GT
  c = f32[] conditional(p, b, a), true_computation=b0, false_computation=b1
  m = f32[] maximum(a, b)
  ROOT r = f32[] maximum(m, c)
}

"""
    loop = """cond {
  s = (s32[], s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT r = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  x = s32[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = s32[] add(x, j)
  ROOT r = (s32[], s32[], s32[]) tuple(j, n, y)
}

triangle {
  n = s32[] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], s32[], s32[]) tuple(zero, n, zero)
  w = (s32[], s32[], s32[]) while(t), condition=cond, body=body
  ROOT r = s32[] get-tuple-element(w), index=2
}

"""
    add_triangle = loop + """f {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  c = s32[] call(b), to_apply=triangle
  ROOT r = s32[] add(a, c)
}

"""
    by_triangle = loop + """f {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  x = s32[] call(a), to_apply=triangle
  y = s32[] call(b), to_apply=triangle
  ROOT r = pred[] compare(x, y), direction=GT
}

"""
    table = """f {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  t = s32[4] constant({7, 1, 9, 4})
  x = s32[1] dynamic-slice(t, b), dynamic_slice_sizes={1}
  y = s32[] reshape(x)
  ROOT r = s32[] add(a, y)
}

"""
    # XLA's CPU backend dies of loops and tuples in functions.
    sum_to = lambda n: np.where(n > 0, n * (n + 1) // 2, 0).astype(np.int32)
    x, n = some("f32", (3, 40)), some("s32", (3, 40))
    zero = np.int32(0)
    f.add("reduce_conditional", "ROOT r = f32[3] reduce(p0, p1), dimensions={1}, to_apply=f", [x, f32(-1)], branchy)
    f.add("reduce_conditional_all", "ROOT r = f32[] reduce(p0, p1), dimensions={0,1}, to_apply=f", [x, f32(-1)], branchy)
    f.add("map_conditional", "ROOT r = f32[3,40] map(p0, p1), dimensions={0,1}, to_apply=f", [x, x[::-1].copy()], branchy)
    f.add("map_while", "ROOT r = s32[3,40] map(p0), dimensions={0,1}, to_apply=triangle", [n], loop, meaning=lambda n: [sum_to(n)])
    f.add("map_while_of_sum", "s = s32[3,40] add(p0, p0)\nm = s32[3,40] map(s), dimensions={0,1}, to_apply=triangle\nROOT r = s32[3,40] negate(m)", [n], loop, meaning=lambda n: [-sum_to(2 * n)])
    f.add("map_table", "ROOT r = s32[3,40] map(p0, p1), dimensions={0,1}, to_apply=f", [n, n[::-1].copy()], table)
    f.add("reduce_table", "ROOT r = s32[40] reduce(p0, p1), dimensions={0}, to_apply=f", [n, zero], table,
          meaning=lambda n, z: [np.array([7, 1, 9, 4], np.int32)[np.clip(n, 0, 3)].sum(0).astype(np.int32)])
    window = "window={size=1x3 stride=1x2 pad=0_0x1_0}"
    f.add("reduce_window_conditional", f"ROOT r = f32[3,20] reduce-window(p0, p1), {window}, to_apply=f", [x, f32(-1)], branchy)
    f.add("sort_while", "ROOT r = s32[3,40] sort(p0), dimensions={1}, is_stable=true, to_apply=f", [n], by_triangle, meaning=lambda n: [-np.sort(-n)])
    scatter = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
    f.add("scatter_while", f"ROOT r = s32[5] scatter(p0, p1, p2), {scatter}, to_apply=f",
          [some("s32", (5,)), i32(1, 3, 1, 9), some("s32", (4,))], add_triangle,
          meaning=lambda a, i, u: [a + np.array([0, sum_to(u[0]) + sum_to(u[2]), 0, sum_to(u[1]), 0], np.int32)])
    f.add("scatter_conditional", f"ROOT r = f32[5] scatter(p0, p1, p2), {scatter}, to_apply=f",
          [some("f32", (5,)), i32(1, 3, 1, 9), some("f32", (4,))], branchy)
    greater = """g {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  p = pred[] compare(a, b), direction=GE
  ROOT r = pred[] conditional(p, p, p), true_computation=same, false_computation=same
}

"""
    same = "same {\n  ROOT a = pred[] parameter(0)\n}\n\n"
    f.add("select_and_scatter_conditional", "ROOT r = f32[6,5] select-and-scatter(p0, p1, p2), window={size=2x2 stride=2x2}, select=g, scatter=f",
          [np.round(some("f32", (6, 5)) * 2), some("f32", (3, 2)), f32(0)], binary_callee("add", "f32") + same + greater)
    pair = """f {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  p = pred[] compare(b, a), direction=GT
  t = (f32[], s32[]) tuple(a, i)
  u = (f32[], s32[]) tuple(b, j)
  ROOT r = (f32[], s32[]) conditional(p, u, t), true_computation=keep, false_computation=keep
}

"""
    keep = "keep {\n  ROOT a = (f32[], s32[]) parameter(0)\n}\n\n"
    f.add("argmax_conditional", "i = s32[3,40] iota(), iota_dimension=1\nROOT r = (f32[3], s32[3]) reduce(p0, i, p1, p2), dimensions={1}, to_apply=f",
          [x, f32(-np.inf), zero], keep + pair, meaning=lambda x, *_: [x.max(1), x.argmax(1).astype(np.int32)])
    inner = binary_callee("add", "f32", "plus") + """f {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  v = f32[3] broadcast(b), dimensions={}
  c = f32[3] constant({1, 2, 4})
  w = f32[3] multiply(v, c)
  zero = f32[] constant(0)
  s = f32[] reduce(w, zero), dimensions={0}, to_apply=plus
  ROOT r = f32[] add(a, s)
}

"""
    f.add("reduce_of_reduce", "ROOT r = f32[3] reduce(p0, p1), dimensions={1}, to_apply=f", [x, f32(0)], inner,
          meaning=lambda x, z: [x.astype(np.float64).sum(1).astype(np.float32) * 7])


def scan(f):
    add = """f {
  x = f32[2] parameter(0)
  c = f32[2] parameter(1)
  s = f32[2] add(x, c)
  n = f32[2] negate(s)
  ROOT r = (f32[2], f32[2]) tuple(n, s)
}

"""
    x = some("f32", (5, 2))
    for reverse in ["false", "true"]:
        f.add(f"scan_rows_{reverse}", f"ROOT r = (f32[5,2], f32[2]) scan(p0, p1), dimensions={{0}}, num_carries=1, is_reverse={reverse}, to_apply=f",
              [x, some("f32", (2,))], add)
        f.add(f"scan_columns_{reverse}", f"ROOT r = (f32[2,5], f32[2]) scan(p0, p1), dimensions={{1}}, num_carries=1, is_reverse={reverse}, to_apply=f",
              [x.T.copy(), some("f32", (2,))], add)
    scalar = """f {
  x = s32[] parameter(0)
  c = s32[] parameter(1)
  s = s32[] add(x, c)
  ROOT r = (s32[], s32[]) tuple(s, s)
}

"""
    n = some("s32", (7,))
    f.add("scan_scalars", "ROOT r = (s32[7], s32[]) scan(p0, p1), dimensions={0}, num_carries=1, is_associative=true, to_apply=f", [n, np.int32(3)], scalar)
    f.add("scan_nothing", "ROOT r = (s32[0], s32[]) scan(p0, p1), dimensions={0}, num_carries=1, to_apply=f", [n[:0], np.int32(3)], scalar,
          meaning=lambda x, c: [x, c])
    two = """f {
  x = f32[3] parameter(0)
  k = s32[] parameter(1)
  c = f32[3] parameter(2)
  i = s32[] parameter(3)
  j = s32[] add(i, k)
  g = f32[] convert(j)
  b = f32[3] broadcast(g), dimensions={}
  y = f32[3] multiply(x, b)
  d = f32[3] add(c, y)
  p = pred[3] compare(d, y), direction=GT
  ROOT r = (f32[3], pred[3], f32[3], s32[]) tuple(y, p, d, j)
}

"""
    f.add("scan_many", "ROOT r = (f32[4,3], pred[4,3], f32[3], s32[]) scan(p0, p1, p2, p3), dimensions={0}, num_carries=2, to_apply=f",
          [some("f32", (4, 3)), i32(1, 2, 0, 5), some("f32", (3,)), np.int32(1)], two)
    dot = """f {
  x = f32[2,2] parameter(0)
  c = f32[2,2] parameter(1)
  d = f32[2,2] dot(c, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f32[2,2], f32[2,2]) tuple(d, d)
}

"""
    f.add("scan_products", "ROOT r = (f32[2,4,2], f32[2,2]) scan(p0, p1), dimensions={1}, num_carries=1, to_apply=f",
          [some("f32", (2, 4, 2)), some("f32", (2, 2))], dot)


def ragged(f):
    def add(name, shapes, numbers, ragged_dims, group_dims, sizes, out, t="f32"):
        (lc, rc), (lb, rb) = numbers
        dims = jax.lax.RaggedDotDimensionNumbers(numbers, list(ragged_dims), list(group_dims))
        attributes = f"lhs_contracting_dims={{{','.join(map(str, lc))}}}, rhs_contracting_dims={{{','.join(map(str, rc))}}}, lhs_ragged_dims={{{ragged_dims[0]}}}"
        if lb:
            attributes = f"lhs_batch_dims={{{','.join(map(str, lb))}}}, rhs_batch_dims={{{','.join(map(str, rb))}}}, " + attributes
        if group_dims:
            attributes += f", rhs_group_dims={{{group_dims[0]}}}"
        meaning = lambda a, b, g: [jax.lax.ragged_dot_general(a, b, g, dims)]
        f.add(f"ragged_dot_{name}", f"ROOT r = {t}[{out}] ragged-dot(p0, p1, p2), {attributes}",
              [some(t, shapes[0]), some(t, shapes[1]), np.array(sizes, np.int32)], meaning=meaning)

    rows = (([1], [1]), ([], []))
    add("rows", [(7, 3), (3, 3, 2)], rows, [0], [0], [2, 0, 4], "7,2")
    add("rows_too_many", [(7, 3), (3, 3, 2)], rows, [0], [0], [2, 3, 4], "7,2")
    add("rows_bf16", [(7, 3), (3, 3, 2)], rows, [0], [0], [1, 2, 3], "7,2", "bf16")
    add("rows_group_last", [(7, 3), (3, 2, 3)], (([1], [0]), ([], [])), [0], [2], [2, 1, 4], "7,2")
    add("rows_batch", [(2, 7, 3), (3, 2, 3, 2)], (([2], [2]), ([0], [1])), [1], [0], [2, 1, 4], "2,7,2")
    add("rows_batch_sizes", [(2, 7, 3), (3, 2, 3, 2)], (([2], [2]), ([0], [1])), [1], [0], [[2, 1, 4], [0, 3, 1]], "2,7,2")
    add("rows_prefix", [(2, 7, 3), (3, 3, 2)], (([2], [1]), ([], [])), [1], [0], [[2, 1, 4], [0, 3, 1]], "2,7,2")
    add("inner", [(3, 7), (7, 2)], (([1], [0]), ([], [])), [1], [], [2, 0, 4], "3,3,2")
    add("inner_batch", [(2, 3, 7), (2, 7, 2)], (([2], [1]), ([0], [0])), [2], [], [2, 0, 4], "3,2,3,2")
    add("inner_batch_sizes", [(2, 3, 7), (2, 7, 2)], (([2], [1]), ([0], [0])), [2], [], [[2, 0, 4], [7, 0, 0]], "3,2,3,2")
    add("batch", [(5, 3, 2), (5, 2, 4)], (([2], [1]), ([0], [0])), [0], [], [2, 1], "5,3,4")

    tuples = lambda numbers: tuple(tuple(tuple(d) for d in side) for side in numbers)

    def scaled(name, t, s, shapes, numbers, attributes, out, result="f32"):
        a, b = [some(t, shape) for shape in shapes[:2]]
        c, d = [2.0 ** rng.randint(-3, 4, shape) for shape in shapes[2:]] if s == "f8e8m0fnu" else [np.abs(rng.randn(*shape)) for shape in shapes[2:]]
        kind = {"f8e8m0fnu": ml_dtypes.float8_e8m0fnu, "f32": np.float32, "bf16": ml_dtypes.bfloat16}[s]
        kinds = {"f32": jnp.float32, "bf16": jnp.bfloat16}
        meaning = lambda a, b, c, d: [jax.lax.scaled_dot(a, b, lhs_scale=c, rhs_scale=d, dimension_numbers=tuples(numbers), preferred_element_type=kinds[result])]
        f.add(f"scaled_dot_{name}", f"ROOT r = {result}[{out}] scaled-dot(p0, p1, p2, p3), {attributes}", [a, b, c.astype(kind), d.astype(kind)], meaning=meaning)

    plain = (([1], [0]), ([], []))
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    scaled("mxfp8", "f8e4m3fn", "f8e8m0fnu", [(3, 64), (64, 2), (3, 2), (2, 2)], plain, dims, "3,2")
    scaled("bf16", "bf16", "bf16", [(3, 64), (64, 2), (3, 2), (2, 2)], plain, dims, "3,2", "bf16")
    batch = (([2], [2]), ([0], [0]))
    scaled("batch", "f8e5m2", "f8e8m0fnu", [(2, 3, 64), (2, 4, 64), (2, 3, 2), (2, 4, 2)], batch,
           "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}", "2,3,4")


def passing(f):
    """Operations that pass values on, or that only compiled programs have."""
    x = some("f32", (3, 4))
    f.add("domain", 'd = f32[3,4] domain(p0), domain={kind="sharding", entry={maximal device=0}, exit={maximal device=0}}\nROOT r = f32[3,4] negate(d)', [x], meaning=lambda x: [-x])
    f.add("bitcast_rows", "b = f32[12] bitcast(p0)\nROOT r = f32[12] negate(b)", [x], meaning=lambda x: [-x.ravel()])
    f.add("bitcast_transposed", "t = f32[4,3]{0,1} bitcast(p0)\nROOT r = f32[4,3]{1,0} copy(t)", [x], meaning=lambda x: [x.T.copy()])
    f.add("bitcast_type", "b = s32[3,4] bitcast(p0)\nROOT r = s32[3,4] not(b)", [x], meaning=lambda x: [~x.view(np.int32)])
    body = "fused {\n  a = f32[3,4] parameter(0)\n  b = f32[3,4] negate(a)\n  c = f32[4,3] transpose(b), dimensions={1,0}\n  ROOT r = f32[4,3] exponential(c)\n}\n\n"
    f.add("fusion", "ROOT r = f32[4,3] fusion(p0), kind=kLoop, calls=fused", [x], body, meaning=lambda x: [np.exp(-x.T)])
    plus = binary_callee("add", "f32")
    body = plus + "fused {\n  a = f32[3,4] parameter(0)\n  b = f32[3,4] multiply(a, a)\n  z = f32[] constant(0)\n  s = f32[3] reduce(b, z), dimensions={1}, to_apply=f\n  ROOT r = (f32[3], f32[3,4]) tuple(s, b)\n}\n\n"
    f.add("fusion_multi_output", "ROOT r = (f32[3], f32[3,4]) fusion(p0), kind=kInput, calls=fused", [x], body, meaning=lambda x: [(x * x).sum(1), x * x])
    f.add("copy_start", "s = (f32[3,4], f32[3,4], u32[]) copy-start(p0)\nd = f32[3,4] copy-done(s)\nROOT r = f32[3,4] negate(d)", [x], meaning=lambda x: [-x])
    wrapped = "wrapped {\n  a = f32[3,4] parameter(0)\n  ROOT r = f32[3,4] sine(a)\n}\n\n"
    f.add("async", "s = ((f32[3,4]), f32[3,4], u32[]) async-start(p0), calls=wrapped\nu = ((f32[3,4]), f32[3,4], u32[]) async-update(s)\nROOT r = f32[3,4] async-done(u)", [x], wrapped, meaning=lambda x: [np.sin(x)])
    for op, text in [("all_reduce", "s = f32[3] all-reduce-start(p0), replica_groups={{0}}, to_apply=f\nROOT r = f32[3] all-reduce-done(s)"),
                     ("all_gather", "s = (f32[3], f32[3]) all-gather-start(p0), replica_groups={{0}}, dimensions={0}\nROOT r = f32[3] all-gather-done(s)"),
                     ("collective_permute", "s = (f32[3], f32[3], u32[], u32[]) collective-permute-start(p0), source_target_pairs={{0,0}}\nROOT r = f32[3] collective-permute-done(s)")]:
        f.add(f"{op}_start", text, [some("f32", (3,))], plus, meaning=lambda x: [x])
    f.add("collective_broadcast", "ROOT r = f32[3] collective-broadcast(p0), replica_groups={{0}}", [some("f32", (3,))], meaning=lambda x: [x])
    f.add("all_to_all_tuple", "ROOT r = (f32[3]) all-to-all(p0), replica_groups={{0}}", [some("f32", (3,))], meaning=lambda x: [x])
    f.add("reduce_scatter_tuple", "ROOT r = (f32[3], f32[2]) reduce-scatter(p0, p1), replica_groups={{0}}, dimensions={0}, to_apply=f", [some("f32", (3,)), some("f32", (2,))], plus, meaning=lambda *v: v)
    ragged = "ROOT r = f32[6] ragged-all-to-all(p0, p1, p2, p3, p4, p5), replica_groups={{0}}"
    f.add("ragged_all_to_all", ragged, [some("f32", (4,)), some("f32", (6,)), i32(1), i32(2), i32(3), i32(2)],
          meaning=lambda x, o, *_: [np.concatenate([o[:3], x[1:3], o[5:]])])
    # The numbers are open, save where there is one only.
    f.add("rng_uniform_s32", "ROOT r = s32[50] rng(p0, p1), distribution=rng_uniform", [np.int32(3), np.int32(4)])
    f.add("rng_uniform_f32", "ROOT r = f32[50] rng(p0, p1), distribution=rng_uniform", [f32(1.5), f32(1.5)])
    f.add("rng_normal_f32", "ROOT r = f32[50] rng(p0, p1), distribution=rng_normal", [f32(1.5), f32(0)])
    # The state begins with XLA's constant and grows by delta with every execution.
    f.add("rng_get_and_update_state", "ROOT r = u64[2] rng-get-and-update-state(), delta=7", [])
    for t in ["s32", "u32", "s64", "u64", "s8"]:
        y = special(t)
        a, b = [np.ascontiguousarray(m.ravel()) for m in np.meshgrid(y, y)]
        shift = 8 * y.itemsize
        f.add(f"mulhi_{t}", f"ROOT r = {shape_of(a)} mulhi(p0, p1)", [a, b],
              meaning=lambda a, b: [((a.astype(object) * b.astype(object)) >> shift).astype(a.dtype)])
    y = np.array([0.25, -0.25, 1.5, -1.5, 2.0, 100.75, -100.75, 1e10, -1e10, np.nan, np.inf, 0], np.float32)
    for n, bits in enumerate([0, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF, 0xBFFFFFFF, 0xFFFFFFFF]):
        for t in ["s8", "s32", "s64"]:
            r = np.full(y.shape, bits, np.uint32)
            f.add(f"stochastic_convert_{t}_{n}", f"ROOT r = {t}[{y.size}] stochastic-convert(p0, p1)", [y, r])


def dynamic(f):
    """Extents known at run time. Results are static: sums, extents, and elements that are there."""
    add = binary_callee("add", "f32") + binary_callee("add", "s32", "g")
    greater = "h {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=LT\n}\n\n"

    def case(name, inputs, body, shape, callees=add, t="f32", dims=None):
        """`body` makes `y` of a shape from x, which is p0 with as many rows as p1 says."""
        extents = shape.split(",")
        at = next(k for k, e in enumerate(extents) if "<=" in e)
        n = "x".join("1" for _ in extents)
        first = ", ".join(f"[0:{1 if '<=' in e or e == '1' else e}]" for e in extents)
        out = ",".join("1" if "<=" in e or e == "1" else e for e in extents)
        a = inputs[0]
        rows = f"<={a.shape[0]}" + "".join(f",{e}" for e in a.shape[1:])
        reducer = "f" if t == "f32" else "g"
        f.add(name, f"""x = {'f32' if a.dtype == np.float32 else 's32'}[{rows}] set-dimension-size(p0, p1), dimensions={{0}}
            {body}
            zero = {t}[] constant(0)
            s = {t}[] reduce(y, zero), dimensions={{{','.join(map(str, range(len(extents))))}}}, to_apply={reducer}
            n = s32[] get-dimension-size(y), dimensions={{{at}}}
            e = {t}[{out}] slice(y), slice={{{first}}}
            ROOT r = ({t}[], s32[], {t}[{out}]) tuple(s, n, e)""", inputs, callees)

    x, three = some("f32", (5, 4)), np.int32(3)
    case("dynamic_negate", [x, three], "y = f32[<=5,4] negate(x)", "<=5,4")
    case("dynamic_exp_of_none", [x, np.int32(1)], "y = f32[<=5,4] exponential(x)", "<=5,4")
    case("dynamic_add", [x, three], "c = f32[<=5,4] cosine(x)\ny = f32[<=5,4] add(x, c)", "<=5,4")
    case("dynamic_transpose", [x, three], "y = f32[4,<=5] transpose(x), dimensions={1,0}", "4,<=5")
    case("dynamic_broadcast", [x, three], "y = f32[2,<=5,4] broadcast(x), dimensions={1,2}", "2,<=5,4")
    case("dynamic_reshape_merge", [x, three], "y = f32[<=20] reshape(x)", "<=20")
    case("dynamic_reshape_units", [x, three], "y = f32[<=5,1,4] reshape(x)", "<=5,1,4")
    case("dynamic_reshape_others", [x, three], "y = f32[<=5,2,2] reshape(x)", "<=5,2,2")
    case("dynamic_concatenate", [x, three], "y = f32[<=15,4] concatenate(x, p0, x), dimensions={0}", "<=15,4")
    case("dynamic_pad", [x, three, f32(9)], "y = f32[<=8,4] pad(x, p2), padding=1_2x0_0", "<=8,4")
    case("dynamic_slice_other", [x, three], "y = f32[<=5,2] slice(x), slice={[0:5], [1:3]}", "<=5,2")
    case("dynamic_dynamic_slice", [x, three, np.int32(0), np.int32(1)], "y = f32[<=5,2] dynamic-slice(x, p2, p3), dynamic_slice_sizes={5,2}", "<=5,2")
    case("dynamic_reduce_other", [x, three], "o = f32[] constant(1)\ny = f32[<=5] reduce(x, o), dimensions={1}, to_apply=f", "<=5")
    # Windows are not padded: XLA counts them as if they never were.
    case("dynamic_reduce_window", [x, three], "o = f32[] constant(0)\ny = f32[<=4,4] reduce-window(x, o), window={size=2x1}, to_apply=f", "<=4,4")
    case("dynamic_reduce_window_stride", [x, three], "o = f32[] constant(0)\ny = f32[<=2,4] reduce-window(x, o), window={size=2x1 stride=2x1}, to_apply=f", "<=2,4")
    case("dynamic_sort", [x, three], "y = f32[<=5,4] sort(x), dimensions={0}, is_stable=true, to_apply=h", "<=5,4", add + greater)
    case("dynamic_dot_rows", [x, three, some("f32", (4, 3))], "y = f32[<=5,3] dot(x, p2), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "<=5,3")
    case("dynamic_gather", [x, three, i32(0, 2, 1)], "y = f32[<=5,3] gather(x, p2), offset_dims={0}, collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=1, slice_sizes={5,1}", "<=5,3")
    case("dynamic_gather_indices", [np.int32([3, 1, 0, 2, 2]), three, some("f32", (4, 3))],
         "y = f32[<=5,3] gather(p2, x), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}", "<=5,3")
    case("dynamic_select", [x, three], "p = pred[<=5,4] compare(x, x), direction=EQ\nm = f32[<=5,4] negate(x)\ny = f32[<=5,4] select(p, m, x)", "<=5,4")
    case("dynamic_convolution", [some("f32", (5, 6, 2)), three, some("f32", (3, 2, 4))], "y = f32[<=5,4,4] convolution(x, p2), window={size=3}, dim_labels=b0f_0io->b0f", "<=5,4,4")
    case("dynamic_convert", [x, three], "y = s32[<=5,4] convert(x)", "<=5,4", t="s32")
    case("dynamic_twice", [x, three, np.int32(2)], "z = f32[<=5,<=4] set-dimension-size(x, p2), dimensions={1}\ny = f32[<=5,<=4] sine(z)", "<=5,<=4")
    size = lambda d="x": f"x = f32[<=5,4] set-dimension-size(p0, p1), dimensions={{0}}\n"
    f.add("dynamic_dot_inner", size() + "ROOT y = f32[4,4] dot(x, p0), lhs_contracting_dims={0}, rhs_contracting_dims={0}".replace("p0", "x"), [x, three])
    f.add("dynamic_reduce_max", size() + "l = f32[] constant(-inf)\nROOT y = f32[4] reduce(x, l), dimensions={0}, to_apply=f", [x - 5, three], binary_callee("maximum", "f32"))
    f.add("dynamic_reset", size() + "n = s32[] constant(5)\ny = f32[<=5,4] set-dimension-size(x, n), dimensions={0}\nz = f32[] constant(0)\nROOT r = f32[4] reduce(y, z), dimensions={0}, to_apply=f", [x, three], add)
    f.add("dynamic_scatter", size() + "u = f32[<=5] slice(x), slice={[0:5], [0:1]}".replace("f32[<=5]", "f32[<=5,1]") +
          "\nv = f32[<=5] reshape(u)\ni = s32[<=5] set-dimension-size(p3, p1), dimensions={0}\nROOT y = f32[4] scatter(p2, i, v), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f",
          [x, three, some("f32", (4,)), i32(1, 1, 0, 2, 3)], add)
    f.add("dynamic_conditional", size() + "c = f32[<=5,4] conditional(p2, x, x), true_computation=t, false_computation=e\nz = f32[] constant(0)\nROOT y = f32[] reduce(c, z), dimensions={0,1}, to_apply=f",
          [x, three, np.array(True)], add + "t {\n  a = f32[<=5,4] parameter(0)\n  ROOT r = f32[<=5,4] negate(a)\n}\n\ne {\n  ROOT a = f32[<=5,4] parameter(0)\n}\n\n")
    loop = """cond {
  s = (s32[], f32[<=5,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], f32[<=5,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[<=5,4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[<=5,4] add(x, x)
  ROOT r = (s32[], f32[<=5,4]) tuple(j, y)
}

"""
    f.add("dynamic_while", size() + "i = s32[] constant(0)\nt = (s32[], f32[<=5,4]) tuple(i, x)\nw = (s32[], f32[<=5,4]) while(t), condition=cond, body=body\ny = f32[<=5,4] get-tuple-element(w), index=1\nz = f32[] constant(0)\nROOT r = f32[] reduce(y, z), dimensions={0,1}, to_apply=f", [x, three], add + loop)
    f.add("dynamic_dynamic_reshape", size() + "a = s32[] constant(4)\nd = f32[4,<=5] dynamic-reshape(x, a, p1)\nt = f32[<=5,4] transpose(d), dimensions={1,0}\ne = f32[1,4] slice(t), slice={[0:1], [0:4]}\nROOT r = f32[1,4] copy(e)",
          [x, three], meaning=lambda x, n: [x[:3].reshape(4, 3).T[:1].copy()])
    f.add("dynamic_pad_to_static", size() + 'p = (f32[5,4], s32[], s32[]) custom-call(x), custom_call_target="PadToStatic"\na = s32[] get-tuple-element(p), index=1\nb = s32[] get-tuple-element(p), index=2\ns = f32[5,4] get-tuple-element(p), index=0\nd = f32[<=5,4] custom-call(s, a, b), custom_call_target="SliceToDynamic"\nz = f32[] constant(0)\nq = f32[] reduce(d, z), dimensions={0,1}, to_apply=f\nROOT r = (f32[], s32[], s32[]) tuple(q, a, b)',
          [x, three], add, meaning=lambda x, n: [x[:3].sum(), np.int32(3), np.int32(4)])


def linalg(f):
    """What JAX's linear algebra becomes on CPUs, before and after XLA. Results are those that are unique: factors whose
    signs or phases are free are multiplied out."""
    from make_opcode_cases import literal_bytes
    from jaxlib import _hlo
    import scipy.linalg  # noqa: F401  (JAX's scipy functions want it)

    def add(name, function, *inputs):
        lowered = jax.jit(function).lower(*inputs)
        compiled = lowered.compile()
        outputs = [np.asarray(a) for a in jax.tree.leaves(compiled(*inputs))]
        options = _hlo.HloPrintOptions()
        options.print_metadata = options.print_large_constants = False
        before = _hlo.hlo_module_from_text(lowered.compiler_ir("hlo").as_hlo_text())
        for kind, module in [("before", before), ("after", compiled.runtime_executable().hlo_modules()[0])]:
            # A few compiled programs are enough to see other layouts.
            if kind == "after" and not name.endswith(("_f32", "_c128", "_batch")):
                continue
            text = module.to_string(options).strip()
            text = text.replace(text.split()[1].rstrip(","), f"{name}_{kind}", 1) + "\n"
            text = re.sub(r", frontend_attributes=\{(?:[^{}]|\{[^{}]*\})*\}", "", text)
            arrays = [("p", i, a) for i, a in enumerate(inputs)] + [("o", i, a) for i, a in enumerate(outputs)]
            f.cases.append(text + "".join(f"// {k}{i}: {literal_bytes(a)}\n" for k, i, a in arrays))

    adjoint = lambda x: jnp.conj(jnp.swapaxes(x, -1, -2))

    def positive(a):
        return a @ a.conj().swapaxes(-1, -2) + 4 * np.eye(a.shape[-1], dtype=a.dtype)

    for t in ["f32", "f64", "c64", "c128"]:
        a = some(t, (4, 4))
        add(f"lu_{t}", lambda a: jax.lax.linalg.lu(a), a)
        add(f"qr_{t}", lambda a: (lambda q, r: (q @ r, adjoint(q) @ q))(*jnp.linalg.qr(a)), a)
        add(f"cholesky_call_{t}", lambda a: jnp.linalg.cholesky(a), positive(a).astype(a.dtype))
        add(f"eigh_{t}", lambda a: (lambda w, v: (w, (v * w) @ adjoint(v)))(*jnp.linalg.eigh(a)), positive(a).astype(a.dtype))
        add(f"svd_{t}", lambda a: (lambda u, s, v: (s, (u[:, :3] * s) @ v, adjoint(u) @ u))(*jnp.linalg.svd(a)), some(t, (4, 3)))
    f64 = lambda *shape: some("f64", shape)
    add("lu_wide", lambda a: jax.lax.linalg.lu(a), f64(3, 5))
    add("lu_batch", lambda a: jax.lax.linalg.lu(a), f64(2, 5, 3))
    add("lu_singular", lambda a: jax.lax.linalg.lu(a), np.array([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]]))
    add("qr_high", lambda a: (lambda q, r: (q @ r, adjoint(q) @ q))(*jnp.linalg.qr(a)), f64(5, 3))
    add("qr_complete", lambda a: (lambda q, r: (q @ r, adjoint(q) @ q))(*jnp.linalg.qr(a, "complete")), f64(5, 3))
    add("qr_batch", lambda a: (lambda q, r: (q @ r, adjoint(q) @ q))(*jnp.linalg.qr(a)), f64(2, 3, 5))
    add("cholesky_upper", lambda a: jnp.linalg.cholesky(a, upper=True), positive(f64(2, 3, 3)))
    add("cholesky_indefinite", lambda a: jnp.linalg.cholesky(a), np.array([[1.0, 2], [2, 1]]))
    add("eigh_upper", lambda a: jnp.linalg.eigvalsh(a, "U"), f64(3, 4, 4))
    add("svd_wide", lambda a: (lambda u, s, v: (s, (u * s) @ v))(*jnp.linalg.svd(a, full_matrices=False)), f64(3, 5))
    add("svd_high", lambda a: (lambda u, s, v: (s, (u * s) @ v))(*jnp.linalg.svd(a, full_matrices=False)), f64(5, 3))
    add("svd_deficient", lambda a: (lambda u, s, v: (s, u @ adjoint(u), (u[:, :3] * s) @ v))(*jnp.linalg.svd(a)), np.outer(np.arange(1.0, 6), np.array([1.0, -2, 3])))
    add("svd_values", lambda a: jnp.linalg.svd(a, compute_uv=False), f64(4, 6))
    add("solve", lambda a, b: jnp.linalg.solve(a, b), positive(f64(4, 4)), f64(4, 2))
    add("inverse", lambda a: jnp.linalg.inv(a), positive(some("f32", (3, 3))).astype(f32))
    add("determinant", lambda a: jnp.linalg.det(a), f64(4, 4))
    add("lstsq", lambda a, b: jnp.linalg.lstsq(a, b)[0], f64(5, 3), f64(5))
    import jax.scipy.linalg as sl
    for lower in [True, False]:
        for trans in [0, 1]:
            add(f"solve_triangular_{lower}_{trans}", lambda a, b: sl.solve_triangular(a, b, trans=trans, lower=lower), positive(f64(4, 4)), f64(4, 2))
    add("solve_triangular_unit", lambda a, b: sl.solve_triangular(a, b, unit_diagonal=True), f64(2, 3, 3), f64(2, 3, 2))
    add("solve_right", lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=False, lower=True, transpose_a=True, conjugate_a=True), positive(some("c128", (3, 3))), some("c128", (2, 3)))


FAMILIES = [functions, scan, ragged, passing, dynamic, linalg]

if __name__ == "__main__":
    main(FAMILIES)
