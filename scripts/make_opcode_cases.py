#!/usr/bin/env python3
"""Makes tests/opcodes/*.hlo: small modules for every opcode, with inputs and the outputs that XLA computes on the CPU.

usage: make_opcode_cases.py OUTDIR [FAMILY...]       needs PyPI's jax (the values are those of 0.10.2)

A file is one family. Each case is a module in HLO text; comment lines after it hold the bytes of its inputs and outputs in
hexadecimal, little-endian and row-major, as `memplan_ir::ArrayLiteral` has them: `// p0: 0000803f`, `// o0: ...`.
"""
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"
import jax
import ml_dtypes
import numpy as np
from jax._src import compiler, xla_bridge
from jax._src.lib import xla_client as xc
from jaxlib import _hlo

DTYPES = {
    "pred": np.bool_, "s4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "s2": ml_dtypes.int2, "u2": ml_dtypes.uint2,
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "f8e5m2": ml_dtypes.float8_e5m2, "f8e4m3": ml_dtypes.float8_e4m3, "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz, "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8e3m4": ml_dtypes.float8_e3m4, "f8e8m0fnu": ml_dtypes.float8_e8m0fnu, "c64": np.complex64, "c128": np.complex128,
}
INTS = ["s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"]
FLOATS = ["f16", "bf16", "f32", "f64"]
SMALL = ["f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "f8e3m4"]
NIBBLES = ["s4", "u4"]
rng = np.random.RandomState(0)


def run(text, inputs, overrides=()):
    """What XLA computes, as a list of arrays. Overrides are flags of XLA with their values."""
    module = _hlo.hlo_module_from_text(text)
    stablehlo = xc._xla.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    backend = xla_bridge.get_backend("cpu")
    # JAX's own options: XLA's defaults let minimum and maximum lose NaN.
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    options.env_option_overrides = list(overrides)
    executable = backend.compile_and_load(stablehlo, xc.DeviceList(tuple(backend.local_devices()[:1])), options)
    results = executable.execute_sharded([jax.device_put(a) for a in inputs])
    return [np.asarray(r[0]) for r in results.disassemble_into_single_device_arrays()]


def literal_bytes(a):
    """An element takes a whole number of bytes; integers of fewer bits are sign-extended."""
    name = np.dtype(a.dtype).name
    if name in ("int4", "int2"):
        a = a.astype(np.int8)
    elif name in ("uint4", "uint2"):
        a = a.astype(np.uint8)
    return np.ascontiguousarray(a).tobytes().hex()


def special(t, n=None):
    """Values at the edges of a type."""
    d = DTYPES[t]
    if t == "pred":
        values = [True, False, True, True]
    elif t in INTS:
        i = np.iinfo(d)
        values = [0, 1, 2, 3, 7, 100, i.max, i.max - 1, i.min, i.min + 1, i.max // 3] + ([-1, -2, -7] if i.min < 0 else [5])
    elif t in NIBBLES + ["s2", "u2"]:
        i = ml_dtypes.iinfo(d)
        values = list(range(int(i.min), int(i.max) + 1))
    elif t in ("c64", "c128"):
        values = [0, 1, -1, 1j, -1j, 0.5 + 0.25j, -2.5 + 1.5j, 3 - 4j, 0.1 - 0.7j, -0.3 - 0.2j]
    else:
        values = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 3.7, -7.3, 20.0, np.inf, -np.inf, np.nan, 1e-3]
        if t in ("f32", "f64", "bf16"):
            values += [1e30, -1e-30, 88.0]
    with np.errstate(all="ignore"):
        return np.array(values[:n]).astype(d)


def some(t, shape, scale=1.0):
    """Ordinary values."""
    d = DTYPES[t]
    if t == "pred":
        return rng.rand(*shape) > 0.5
    if t in INTS + NIBBLES:
        return rng.randint(0, 7, shape).astype(d)
    if t in ("c64", "c128"):
        return (rng.randn(*shape) + 1j * rng.randn(*shape)).astype(d)
    return (rng.randn(*shape) * scale).astype(d)


def type_of(a):
    return next(t for t, d in DTYPES.items() if np.dtype(d) == a.dtype)


def shape_of(a):
    return f"{type_of(a)}[{','.join(map(str, a.shape))}]"


class Family:
    def __init__(self, name):
        self.name, self.cases, self.refused, self.overrides = name, [], [], []

    def add(self, name, body, inputs, callees="", meaning=None):
        """A case: `body` is what follows the parameters p0, p1, ... in the entry. `meaning` is a function of the inputs
        that stands for what XLA's CPU backend cannot run."""
        parameters = "".join(f"  p{i} = {shape_of(a)} parameter({i})\n" for i, a in enumerate(inputs))
        lines = "".join(f"  {line.strip()}\n" for line in body.strip().splitlines())
        text = f"HloModule {name}\n\n{callees}ENTRY main {{\n{parameters}{lines}}}\n"
        try:
            outputs = run(text, inputs, self.overrides) if meaning is None else [np.asarray(a) for a in meaning(*inputs)]
        except Exception as error:  # XLA's CPU backend does not take every operation on every type.
            self.refused.append((name, str(error).splitlines()[0][:160]))
            return
        if meaning is not None:
            _hlo.hlo_module_from_text(text)
        arrays = [("p", i, a) for i, a in enumerate(inputs)] + [("o", i, a) for i, a in enumerate(outputs)]
        self.cases.append(text + "".join(f"// {k}{i}: {literal_bytes(a)}\n" for k, i, a in arrays))


def binary_callee(op, t, name="f"):
    return f"{name} {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n  ROOT r = {t}[] {op}(a, b)\n}}\n\n"


def unary(f):
    floats = """abs ceil cosine cosh sinh floor exponential exponential-minus-one log log-plus-one logistic negate
        round-nearest-afz round-nearest-even rsqrt sign sine sqrt tan tanh cbrt erf acos acosh asin asinh atanh""".split()
    for op in floats:
        for t in FLOATS + (["f8e5m2", "f8e4m3fn"] if op in ("abs", "negate", "tanh", "exponential") else []):
            x = special(t)
            f.add(f"{op}_{t}", f"ROOT r = {shape_of(x)} {op}(p0)", [x])
    for op in ["abs", "negate", "sign", "not", "popcnt", "count-leading-zeros"]:
        for t in INTS + (NIBBLES if op not in ("popcnt", "count-leading-zeros") else []):
            if op != "abs" or t[0] == "s":
                x = special(t)
                f.add(f"{op}_{t}", f"ROOT r = {shape_of(x)} {op}(p0)", [x])
    f.add("not_pred", "ROOT r = pred[4] not(p0)", [special("pred")])
    for t in FLOATS:
        x = special(t)
        f.add(f"is-finite_{t}", f"ROOT r = pred[{x.size}] is-finite(p0)", [x])
    for op in """negate exponential log sqrt rsqrt tanh sine cosine log-plus-one exponential-minus-one logistic sign tan
            cosh sinh""".split():
        for t in ["c64", "c128"]:
            x = special(t)[1:] if op in ("log", "rsqrt") else special(t)
            f.add(f"{op}_{t}", f"ROOT r = {shape_of(x)} {op}(p0)", [x])
    for op in ["abs", "real", "imag"]:
        for t, part in [("c64", "f32"), ("c128", "f64")]:
            x = special(t)
            f.add(f"{op}_{t}", f"ROOT r = {part}[{x.size}] {op}(p0)", [x])
    for bits in [(5, 10), (8, 7), (3, 4), (2, 1), (5, 2), (4, 3), (8, 23), (5, 23), (8, 2)]:
        x = np.concatenate([special("f32"), some("f32", (12,), 10.0), np.float32([65504, 65520, 6e-8, 1e-7, 448, 240])])
        attributes = f"exponent_bits={bits[0]}, mantissa_bits={bits[1]}"
        f.add(f"reduce_precision_{bits[0]}_{bits[1]}", f"ROOT r = {shape_of(x)} reduce-precision(p0), {attributes}", [x])


def binary(f):
    def pairs(t):
        x = special(t)
        a, b = np.meshgrid(x, x)
        return [np.ascontiguousarray(a.ravel()), np.ascontiguousarray(b.ravel())]

    for op in "add subtract multiply divide remainder maximum minimum power".split():
        for t in INTS + FLOATS + ["s4", "u4"]:
            p = pairs(t)
            if op == "power" and t in INTS:
                # XLA looks at six bits of an exponent.
                p[1] = np.minimum(p[1], 63).astype(p[1].dtype)
            f.add(f"{op}_{t}", f"ROOT r = {shape_of(p[0])} {op}(p0, p1)", p)
    for t in SMALL[:3]:
        p = pairs(t)
        f.add(f"add_{t}", f"ROOT r = {shape_of(p[0])} add(p0, p1)", p)
        f.add(f"multiply_{t}", f"ROOT r = {shape_of(p[0])} multiply(p0, p1)", p)
    for t in FLOATS:
        p = pairs(t)
        f.add(f"atan2_{t}", f"ROOT r = {shape_of(p[0])} atan2(p0, p1)", p)
    for op in "and or xor".split():
        for t in INTS + ["pred"]:
            p = pairs(t)
            f.add(f"{op}_{t}", f"ROOT r = {shape_of(p[0])} {op}(p0, p1)", p)
    for op in "add multiply maximum minimum".split():
        p = pairs("pred")
        f.add(f"{op}_pred", f"ROOT r = {shape_of(p[0])} {op}(p0, p1)", p)
    for op in "shift-left shift-right-logical shift-right-arithmetic".split():
        for t in INTS:
            p = pairs(t)
            f.add(f"{op}_{t}", f"ROOT r = {shape_of(p[0])} {op}(p0, p1)", p)
    for op in "add subtract multiply divide".split():
        for t in ["c64", "c128"]:
            x = some(t, (9,))
            y = some(t, (9,))
            f.add(f"{op}_{t}", f"ROOT r = {shape_of(x)} {op}(p0, p1)", [x, y])
    f.add("power_c64", "ROOT r = c64[9] power(p0, p1)", [some("c64", (9,)), some("c64", (9,))])
    f.add("complex_f32", "ROOT r = c64[5] complex(p0, p1)", [some("f32", (5,)), some("f32", (5,))])
    for direction in "EQ NE GE GT LE LT".split():
        for t in INTS + FLOATS + ["pred"]:
            p = pairs(t)
            f.add(f"compare_{direction}_{t}", f"ROOT r = pred[{p[0].size}] compare(p0, p1), direction={direction}", p)
        p = pairs("f32")
        f.add(f"compare_total_{direction}", f"ROOT r = pred[{p[0].size}] compare(p0, p1), direction={direction}, type=TOTALORDER", p)
    for t in ["f32", "bf16", "s32", "u8"]:
        x = special(t)
        f.add(f"select_{t}", f"ROOT r = {shape_of(x)} select(p0, p1, p2)", [some("pred", x.shape), x, x[::-1].copy()])
        low, high = np.array(1, x.dtype), np.array(5, x.dtype)
        f.add(f"clamp_{t}", f"ROOT r = {shape_of(x)} clamp(p0, p1, p2)", [low, x, high])
    f.add("select_scalar", "ROOT r = f32[3] select(p0, p1, p2)", [np.array(True), some("f32", (3,)), some("f32", (3,))])


def convert(f):
    for a in INTS + FLOATS + SMALL + NIBBLES + ["pred", "c64"]:
        x = special(a)
        if a in FLOATS + SMALL:
            with np.errstate(all="ignore"):
                more = np.array([200, 255, 256, 300, -129, 1.25, 1.75, 448, 464, 480, 57344, 65536, 2**31, 2**63, -2.0**63, 1e-7, 0.0625])
                x = np.concatenate([x, more.astype(DTYPES[a])])
        for b in INTS + FLOATS + SMALL + NIBBLES + ["pred", "c64", "c128"]:
            if a != b and not (a == "c64" and b != "c128"):
                f.add(f"convert_{a}_{b}", f"ROOT r = {b}[{x.size}] convert(p0)", [x])
    for a, b in [("f32", "s32"), ("s32", "f32"), ("bf16", "u16"), ("f64", "s64"), ("u64", "f64"), ("f16", "s16"), ("f8e4m3fn", "u8")]:
        x = some(a, (6,))
        f.add(f"bitcast_{a}_{b}", f"ROOT r = {b}[6] bitcast-convert(p0)", [x])
    f.add("bitcast_f32_u8", "ROOT r = u8[3,4] bitcast-convert(p0)", [some("f32", (3,))])
    f.add("bitcast_u8_s32", "ROOT r = s32[3] bitcast-convert(p0)", [some("u8", (3, 4))])
    f.add("bitcast_s64_u16", "ROOT r = u16[2,4] bitcast-convert(p0)", [special("s64", 2)])


def movement(f):
    x = some("f32", (2, 3, 4))
    add = lambda name, body, inputs: f.add(name, body, inputs)
    for t in ["f32", "bf16", "s32", "pred", "s4", "f8e4m3fn", "c64", "u8"]:
        y = some(t, (3, 4))
        add(f"transpose_{t}", f"ROOT r = {t}[4,3] transpose(p0), dimensions={{1,0}}", [y])
        add(f"broadcast_{t}", f"ROOT r = {t}[2,3,4] broadcast(p0), dimensions={{1,2}}", [y])
        add(f"pad_{t}", f"ROOT r = {t}[5,6] pad(p0, p1), padding=1_1x-1_3", [y, np.zeros((), y.dtype)])
        add(f"concatenate_{t}", f"ROOT r = {t}[3,8] concatenate(p0, p0), dimensions={{1}}", [y])
    add("transpose_3d", "ROOT r = f32[4,2,3] transpose(p0), dimensions={2,0,1}", [x])
    add("reshape", "ROOT r = f32[6,4] reshape(p0)", [x])
    add("reshape_of_transpose", "t = f32[4,3,2] transpose(p0), dimensions={2,1,0}\nROOT r = f32[2,12] reshape(t)", [x])
    add("reshape_units", "ROOT r = f32[1,2,1,3,4,1] reshape(p0)", [x])
    add("broadcast_scalar", "ROOT r = f32[2,3] broadcast(p0), dimensions={}", [np.float32(7)])
    add("broadcast_middle", "ROOT r = f32[3,5,3] broadcast(p0), dimensions={0}", [some("f32", (3,))])
    for t in ["f32", "s32", "u8", "bf16", "c64", "s4", "f64"]:
        add(f"iota_{t}", f"ROOT r = {t}[3,5] iota(), iota_dimension=1", [])
    add("iota_0", "ROOT r = s32[3,5] iota(), iota_dimension=0", [])
    add("reverse", "ROOT r = f32[2,3,4] reverse(p0), dimensions={0,2}", [x])
    add("slice", "ROOT r = f32[1,2,2] slice(p0), slice={[1:2], [0:3:2], [1:4:2]}", [x])
    add("slice_empty", "ROOT r = f32[2,0,4] slice(p0), slice={[0:2], [1:1], [0:4]}", [x])
    add("concatenate_empty", "e = f32[2,0,4] slice(p0), slice={[0:2], [1:1], [0:4]}\nROOT r = f32[2,6,4] concatenate(p0, e, p0), dimensions={1}", [x])
    add("concatenate_many", "s = f32[2,1,4] slice(p0), slice={[0:2], [2:3], [0:4]}\nROOT r = f32[2,8,4] concatenate(p0, s, p0, s), dimensions={1}", [x])
    zero = np.float32(-1)
    for name, padding, shape in [
        ("low_high", "1_2x0_0x3_1", "5,3,8"), ("negative", "-1_0x0_-2x1_-1", "1,1,4"), ("interior", "0_0_1x1_1_2x0_0_0", "3,9,4"),
        ("interior_negative", "-1_0_2x0_-3_1x-1_2_1", "3,2,8"), ("nothing_left", "-1_-1x0_0x0_0", "0,3,4"), ("crop_past", "2_-3x0_0x0_0", "1,3,4"),
    ]:
        add(f"pad_{name}", f"ROOT r = f32[{shape}] pad(p0, p1), padding={padding}", [x, zero])
    add("pad_of_empty", "e = f32[0,3] slice(p0), slice={[0:0], [0:3]}\nROOT r = f32[2,3] pad(e, p1), padding=1_1x0_0", [some("f32", (2, 3)), zero])
    for i, start in enumerate([(0, 0), (1, 2), (5, 9), (-3, -1)]):
        s = [np.int32(v) for v in start]
        y = some("f32", (4, 6))
        add(f"dynamic_slice_{i}", "ROOT r = f32[2,3] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={2,3}", [y] + s)
        add(f"dynamic_update_slice_{i}", "ROOT r = f32[4,6] dynamic-update-slice(p0, p1, p2, p3)", [y, some("f32", (2, 3))] + s)
    add("dynamic_slice_u32", "ROOT r = f32[2] dynamic-slice(p0, p1), dynamic_slice_sizes={2}", [some("f32", (5,)), np.uint32(0xFFFFFFFF)])
    add("dynamic_slice_u8", "ROOT r = f32[2] dynamic-slice(p0, p1), dynamic_slice_sizes={2}", [some("f32", (5,)), np.uint8(200)])
    add("dynamic_slice_s64", "ROOT r = f32[2] dynamic-slice(p0, p1), dynamic_slice_sizes={2}", [some("f32", (5,)), np.int64(2**40)])
    add("dynamic_update_slice_whole", "ROOT r = f32[4] dynamic-update-slice(p0, p1, p2)", [some("f32", (4,)), some("f32", (4,)), np.int32(3)])
    add("copy", "ROOT r = f32[2,3,4] copy(p0)", [x])
    add("size_1", "t = f32[1,1] transpose(p0), dimensions={1,0}\nb = f32[1,1,1] broadcast(t), dimensions={0,2}\nROOT r = f32[1] reshape(b)", [some("f32", (1, 1))])
    add("empty_add", "ROOT r = f32[0,3] add(p0, p0)", [np.zeros((0, 3), np.float32)])


def reduce(f):
    x = some("f32", (3, 4, 5))
    for op, t, init in [("add", "f32", 0), ("maximum", "f32", -np.inf), ("minimum", "bf16", np.inf), ("multiply", "f64", 1), ("add", "s32", 3),
                        ("maximum", "s8", -128), ("add", "bf16", 0), ("add", "f16", 0), ("and", "pred", True), ("or", "pred", False), ("add", "c64", 0),
                        ("minimum", "u8", 255), ("maximum", "u64", 0), ("xor", "u32", 0)]:
        y = some(t, (3, 4, 5))
        v = np.array(init).astype(DTYPES[t])
        for name, dims, shape in [("0", "0", "4,5"), ("2", "2", "3,4"), ("01", "0,1", "5"), ("all", "0,1,2", ""), ("02", "0,2", "4")]:
            f.add(f"reduce_{op}_{t}_{name}", f"ROOT r = {t}[{shape}] reduce(p0, p1), dimensions={{{dims}}}, to_apply=f", [y, v], binary_callee(op, t))
    f.add("reduce_init", "ROOT r = f32[3] reduce(p0, p1), dimensions={1,2}, to_apply=f", [x, np.float32(10)], binary_callee("add", "f32"))
    f.add("reduce_long", "ROOT r = f32[] reduce(p0, p1), dimensions={0}, to_apply=f", [some("f32", (3001,)), np.float32(0)], binary_callee("add", "f32"))
    f.add("reduce_long_max", "ROOT r = f32[2] reduce(p0, p1), dimensions={1}, to_apply=f", [some("f32", (2, 700)), np.float32(0)], binary_callee("maximum", "f32"))
    f.add("reduce_nan", "ROOT r = f32[] reduce(p0, p1), dimensions={0}, to_apply=f", [special("f32"), np.float32(0)], binary_callee("maximum", "f32"))
    f.add("reduce_empty", "ROOT r = f32[3] reduce(p0, p1), dimensions={1}, to_apply=f", [np.zeros((3, 0), np.float32), np.float32(2)], binary_callee("add", "f32"))
    f.add("reduce_nothing", "ROOT r = f32[3] reduce(p0, p1), dimensions={}, to_apply=f", [some("f32", (3,)), np.float32(0)], binary_callee("add", "f32"))
    argmax = """f {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT
  eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT
  tie = pred[] and(eq, lt)
  p = pred[] or(gt, tie)
  v = f32[] select(p, a, b)
  k = s32[] select(p, i, j)
  ROOT r = (f32[], s32[]) tuple(v, k)
}

"""
    for name, shape, dims, out in [("rows", (3, 40), "1", "3"), ("one", (600,), "0", "")]:
        y = np.round(some("f32", shape) * 2)
        n = ",".join(map(str, shape))
        body = f"i = s32[{n}] iota(), iota_dimension={dims}\nROOT r = (f32[{out}], s32[{out}]) reduce(p0, i, p1, p2), dimensions={{{dims}}}, to_apply=f"
        f.add(f"argmax_{name}", body, [y, np.float32(-np.inf), np.int32(0)], argmax)
    windows = [("plain", "size=1x2x2", "3,3,4"), ("stride", "size=1x2x3 stride=1x2x2", "3,2,2"), ("same", "size=1x3x3 pad=0_0x1_1x1_1", "3,4,5"),
               ("dilate", "size=1x2x2 rhs_dilate=1x2x3", "3,2,2"), ("base", "size=1x2x2 lhs_dilate=1x2x2", "3,6,8"),
               ("negative", "size=1x2x2 pad=0_0x-1_0x0_-1", "3,2,3"), ("cumulative", "size=1x1x5 pad=0_0x0_0x4_0", "3,4,5")]
    for name, window, shape in windows:
        for op, init in [("add", 0), ("maximum", -np.inf)]:
            f.add(f"window_{op}_{name}", f"ROOT r = f32[{shape}] reduce-window(p0, p1), window={{{window}}}, to_apply=f", [x, np.float32(init)], binary_callee(op, "f32"))
    f.add("window_s32", "ROOT r = s32[4] reduce-window(p0, p1), window={size=3 pad=1_1 stride=2}, to_apply=f", [some("s32", (8,)), np.int32(0)], binary_callee("add", "s32"))
    select = "g {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=GE\n}\n\n"
    for name, window, source in [("plain", "size=2x2 stride=2x2", (3, 2)), ("overlap", "size=3x3 stride=2x1 pad=1_1x1_1", (3, 5)), ("pad", "size=2x2 stride=2x2 pad=0_0x1_0", (3, 3))]:
        y = np.round(some("f32", (6, 5)) * 2)
        f.add(f"select_and_scatter_{name}", f"ROOT r = f32[6,5] select-and-scatter(p0, p1, p2), window={{{window}}}, select=g, scatter=f",
              [y, some("f32", source), np.float32(0)], binary_callee("add", "f32") + select)
    f.add("map", "ROOT r = f32[3,4,5] map(p0, p0), dimensions={0,1,2}, to_apply=f", [x], binary_callee("multiply", "f32"))


def products(f):
    for t in ["f32", "f64", "bf16", "f16", "s32", "s8", "c64", "u8"]:
        a, b = some(t, (3, 5)), some(t, (5, 4))
        f.add(f"dot_{t}", f"ROOT r = {t}[3,4] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}", [a, b])
    f.add("dot_bf16_f32", "ROOT r = f32[3,4] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}", [some("bf16", (3, 5)), some("bf16", (5, 4))])
    f.add("dot_s8_s32", "ROOT r = s32[3,4] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}", [some("s8", (3, 5)), some("s8", (5, 4))])
    for name, a, b, dims, out in [
        ("vector", (5,), (5,), "lhs_contracting_dims={0}, rhs_contracting_dims={0}", ""),
        ("batch", (2, 3, 5), (2, 5, 4), "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}", "2,3,4"),
        ("batch_last", (3, 5, 2), (5, 4, 2), "lhs_batch_dims={2}, rhs_batch_dims={2}, lhs_contracting_dims={1}, rhs_contracting_dims={0}", "2,3,4"),
        ("two", (2, 3, 5), (5, 3, 4), "lhs_contracting_dims={1,2}, rhs_contracting_dims={1,0}", "2,4"),
        ("outer", (3,), (4,), "lhs_contracting_dims={}, rhs_contracting_dims={}", "3,4"),
        ("transposed", (5, 3), (4, 5), "lhs_contracting_dims={0}, rhs_contracting_dims={1}", "3,4"),
        ("free", (2, 3, 5), (6, 5, 2), "lhs_contracting_dims={2}, rhs_contracting_dims={1}", "2,3,6,2"),
        ("empty", (3, 0), (0, 4), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", "3,4"),
        ("large", (130, 300), (300, 270), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", "130,270"),
    ]:
        if name == "large":
            body = f"a = f32[130,300] broadcast(p0), dimensions={{1}}\nb = f32[300,270] broadcast(p1), dimensions={{0}}\nd = f32[130,270] dot(a, b), {dims}\nROOT r = f32[2,9] slice(d), slice={{[128:130], [261:270]}}"
            f.add(f"dot_{name}", body, [np.abs(some("f32", (300,))), some("f32", (300,)) + np.float32(2)])
        else:
            f.add(f"dot_{name}", f"ROOT r = f32[{out}] dot(p0, p1), {dims}", [some("f32", a), some("f32", b)])
    conv = [
        ("plain", (2, 6, 7, 3), (3, 2, 3, 4), "window={size=3x2}, dim_labels=b01f_01io->b01f", "2,4,6,4"),
        ("stride_pad", (2, 6, 7, 3), (3, 3, 3, 4), "window={size=3x3 stride=2x1 pad=1_1x0_2}, dim_labels=b01f_01io->b01f", "2,3,7,4"),
        ("negative_pad", (1, 6, 7, 2), (2, 2, 2, 3), "window={size=2x2 pad=-1_0x1_-2}, dim_labels=b01f_01io->b01f", "1,4,5,3"),
        ("dilate", (1, 6, 7, 2), (2, 2, 2, 3), "window={size=2x2 lhs_dilate=2x1 rhs_dilate=1x3}, dim_labels=b01f_01io->b01f", "1,10,4,3"),
        ("reversed", (1, 6, 7, 2), (3, 2, 2, 3), "window={size=3x2 rhs_reversal=1x1}, dim_labels=b01f_01io->b01f", "1,4,6,3"),
        ("groups", (2, 5, 5, 4), (3, 3, 2, 6), "window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=2", "2,3,3,6"),
        ("depthwise", (1, 5, 5, 4), (3, 3, 1, 4), "window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=4", "1,3,3,4"),
        ("batch_groups", (4, 5, 5, 2), (3, 3, 2, 6), "window={size=3x3}, dim_labels=b01f_01io->b01f, batch_group_count=2", "2,3,3,6"),
        ("labels", (3, 2, 6, 7), (4, 3, 2, 3), "window={size=2x3}, dim_labels=fb01_oi01->01bf", "5,5,2,4"),
        ("one_d", (2, 9, 3), (4, 3, 5), "window={size=4 stride=2 pad=2_1}, dim_labels=b0f_0io->b0f", "2,5,5"),
        ("three_d", (1, 4, 4, 4, 2), (2, 2, 2, 2, 3), "window={size=2x2x2}, dim_labels=b012f_012io->b012f", "1,3,3,3,3"),
        ("backward_filter", (4, 6, 6, 2), (4, 5, 5, 3), "window={size=5x5}, dim_labels=f01b_i01o->01bf", "2,2,2,3"),
        ("zero_d", (3, 4), (4, 5), "dim_labels=bf_io->bf", "3,5"),
    ]
    for name, a, b, attributes, out in conv:
        f.add(f"convolution_{name}", f"ROOT r = f32[{out}] convolution(p0, p1), {attributes}", [some("f32", a), some("f32", b)])
    for t in ["bf16", "f16", "f64", "s32"]:
        f.add(f"convolution_{t}", f"ROOT r = {t}[1,3,3,2] convolution(p0, p1), window={{size=2x2}}, dim_labels=b01f_01io->b01f", [some(t, (1, 4, 4, 2)), some(t, (2, 2, 2, 2))])


def indexing(f):
    x = some("f32", (5, 6))
    i32 = lambda *v: np.array(v, np.int32)
    g = [
        ("rows", x, i32(0, 4, 2, 9, -3), "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,6}", "5,6"),
        ("columns", x, i32(0, 5, 2), "offset_dims={0}, collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=1, slice_sizes={5,1}", "5,3"),
        ("windows", x, np.array([[0, 0], [3, 5], [2, 1]], np.int32), "offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={2,3}", "3,2,3"),
        ("points", x, np.array([[0, 0], [4, 5], [2, 1], [7, 7]], np.int32), "offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}", "4"),
        ("swapped", x, np.array([[0, 4], [5, 1]], np.int32), "offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={1,0}, index_vector_dim=0, slice_sizes={1,1}", "2"),
        ("batch2", x, np.array([[0, 4, 1], [3, 1, 2]], np.int32), "offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,4}", "2,3,4"),
    ]
    for name, a, i, attributes, out in g:
        f.add(f"gather_{name}", f"ROOT r = f32[{out}] gather(p0, p1), {attributes}", [a, i])
    f.add("gather_batching", "ROOT r = f32[3,2] gather(p0, p1), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1}",
          [some("f32", (3, 5)), np.array([[[0], [4]], [[1], [2]], [[3], [3]]], np.int32)])
    f.add("gather_u8", "ROOT r = f32[3] gather(p0, p1), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}", [some("f32", (5,)), np.array([0, 200, 3], np.uint8)])
    f.add("gather_s64", "ROOT r = f32[3] gather(p0, p1), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}", [some("f32", (5,)), np.array([0, 2**40, -5], np.int64)])
    s = [
        ("rows", (5, 6), i32(0, 4, 0, 9, -3), (5, 6), "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"),
        ("points", (5, 6), np.array([[0, 0], [4, 5], [0, 0], [7, 7]], np.int32), (4,), "update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1"),
        ("windows", (5, 6), np.array([[0, 0], [3, 3], [2, 1], [4, 0], [1, 4]], np.int32), (5, 2, 3), "update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1"),
        ("window_first", (5, 6), i32(1, 3), (6, 2), "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"),
    ]
    for name, a, i, u, attributes in s:
        for op in ["add", "multiply", "maximum"]:
            f.add(f"scatter_{op}_{name}", f"ROOT r = f32[{','.join(map(str, a))}] scatter(p0, p1, p2), {attributes}, to_apply=f", [some("f32", a), i, some("f32", u)], binary_callee(op, "f32"))
        if name != "rows" and name != "points" and name != "windows":
            assign = "f {\n  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)\n}\n\n"
            f.add(f"scatter_assign_{name}", f"ROOT r = f32[{','.join(map(str, a))}] scatter(p0, p1, p2), {attributes}, to_apply=f", [some("f32", a), i, some("f32", u)], assign)
    f.add("scatter_s32", "ROOT r = s32[4] scatter(p0, p1, p2), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f",
          [some("s32", (4,)), i32(1, 1, 1, 3), some("s32", (4,))], binary_callee("add", "s32"))
    f.add("scatter_batching", "ROOT r = f32[3,5] scatter(p0, p1, p2), update_window_dims={}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=f",
          [some("f32", (3, 5)), np.array([[[0], [4]], [[1], [2]], [[3], [3]]], np.int32), some("f32", (3, 2))], binary_callee("add", "f32"))
    two = "f {\n  a = f32[] parameter(0)\n  b = s32[] parameter(1)\n  c = f32[] parameter(2)\n  d = s32[] parameter(3)\n  x = f32[] add(a, c)\n  y = s32[] maximum(b, d)\n  ROOT r = (f32[], s32[]) tuple(x, y)\n}\n\n"
    f.add("scatter_variadic", "ROOT r = (f32[4], s32[4]) scatter(p0, p1, p2, p3, p4), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f",
          [some("f32", (4,)), some("s32", (4,)), i32(1, 1, 0), some("f32", (3,)), some("s32", (3,))], two)


def sorting(f):
    less = lambda t, op="LT", kind="": f"f {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction={op}{kind}\n}}\n\n"
    for t in ["f32", "s32", "u8", "bf16", "s64"]:
        x = some(t, (4, 9))
        f.add(f"sort_{t}", f"ROOT r = {shape_of(x)} sort(p0), dimensions={{1}}, is_stable=true, to_apply=f", [x], less(t))
        f.add(f"sort_down_{t}", f"ROOT r = {shape_of(x)} sort(p0), dimensions={{0}}, is_stable=true, to_apply=f", [x], less(t, "GT"))
    x = special("f32")
    f.add("sort_total", f"ROOT r = {shape_of(x)} sort(p0), dimensions={{0}}, is_stable=true, to_apply=f", [x], less("f32", "LT", ", type=TOTALORDER"))
    pair = "f {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  c = s32[] parameter(2)\n  d = s32[] parameter(3)\n  ROOT r = pred[] compare(a, b), direction=LT\n}\n\n"
    x = np.round(some("f32", (3, 50)))
    f.add("sort_pair_ties", "i = s32[3,50] iota(), iota_dimension=1\nROOT r = (f32[3,50], s32[3,50]) sort(p0, i), dimensions={1}, is_stable=true, to_apply=f", [x], pair)
    f.add("sort_long", "ROOT r = f32[1000] sort(p0), dimensions={0}, to_apply=f", [some("f32", (1000,))], less("f32"))
    f.add("sort_empty", "ROOT r = f32[0] sort(p0), dimensions={0}, to_apply=f", [np.zeros((0,), np.float32)], less("f32"))
    f.add("sort_one", "ROOT r = f32[3,1] sort(p0), dimensions={1}, to_apply=f", [some("f32", (3, 1))], less("f32"))
    for k in [1, 3, 9]:
        x = np.round(some("f32", (4, 9)) * 2)
        f.add(f"topk_{k}", f"ROOT r = (f32[4,{k}], s32[4,{k}]) topk(p0), k={k}, largest=true", [x])
    f.add("topk_special", "ROOT r = (f32[6], s32[6]) topk(p0), k=6, largest=true", [special("f32")])


def numeric(f):
    for kind, n in [("FFT", 8), ("FFT", 6), ("IFFT", 8), ("IFFT", 5)]:
        f.add(f"fft_{kind}_{n}", f"ROOT r = c64[3,{n}] fft(p0), fft_type={kind}, fft_length={{{n}}}", [some("c64", (3, n))])
    for n in [8, 7]:
        f.add(f"rfft_{n}", f"ROOT r = c64[3,{n // 2 + 1}] fft(p0), fft_type=RFFT, fft_length={{{n}}}", [some("f32", (3, n))])
        y = np.fft.rfft(some("f32", (3, n))).astype(np.complex64)
        f.add(f"irfft_{n}", f"ROOT r = f32[3,{n}] fft(p0), fft_type=IRFFT, fft_length={{{n}}}", [y])
    f.add("fft_2d", "ROOT r = c64[4,6] fft(p0), fft_type=FFT, fft_length={4,6}", [some("c64", (4, 6))])
    f.add("rfft_2d", "ROOT r = c64[4,4] fft(p0), fft_type=RFFT, fft_length={4,6}", [some("f32", (4, 6))])
    f.add("irfft_2d", "ROOT r = f32[4,6] fft(p0), fft_type=IRFFT, fft_length={4,6}", [np.fft.rfft2(some("f32", (4, 6))).astype(np.complex64)])
    f.add("fft_3d", "ROOT r = c64[2,3,4] fft(p0), fft_type=FFT, fft_length={2,3,4}", [some("c64", (2, 3, 4))])
    f.add("fft_c128", "ROOT r = c128[16] fft(p0), fft_type=FFT, fft_length={16}", [some("c128", (16,))])
    for t in ["f32", "f64"]:
        a = some(t, (2, 4, 4))
        spd = (a @ a.transpose(0, 2, 1) + 4 * np.eye(4)).astype(a.dtype)
        for lower in ["true", "false"]:
            f.add(f"cholesky_{t}_{lower}", f"c = {t}[2,4,4] cholesky(p0), lower={lower}\nROOT r = {t}[2,4,4] copy(c)", [spd])
            for left in ["true", "false"]:
                for transpose in ["NO_TRANSPOSE", "TRANSPOSE"]:
                    shape = (2, 4, 3) if left == "true" else (2, 3, 4)
                    for unit in ["true", "false"]:
                        f.add(f"triangular_solve_{t}_{lower}_{left}_{transpose}_{unit}", f"ROOT r = {t}[{','.join(map(str, shape))}] triangular-solve(p0, p1), left_side={left}, lower={lower}, unit_diagonal={unit}, transpose_a={transpose}",
                              [spd, some(t, shape)])
    for kind in [0, 3, 1]:
        shape = (2, 3, 4, 5)
        n = shape[kind]
        x, s, o = some("f32", shape), some("f32", (n,)), some("f32", (n,))
        sh = ",".join(map(str, shape))
        f.add(f"batch_norm_training_{kind}", f"ROOT r = (f32[{sh}], f32[{n}], f32[{n}]) batch-norm-training(p0, p1, p2), epsilon=0.001, feature_index={kind}", [x, s, o])
        mean, var = some("f32", (n,)), np.abs(some("f32", (n,)))
        f.add(f"batch_norm_inference_{kind}", f"ROOT r = f32[{sh}] batch-norm-inference(p0, p1, p2, p3, p4), epsilon=0.001, feature_index={kind}", [x, s, o, mean, var])
        f.add(f"batch_norm_grad_{kind}", f"ROOT r = (f32[{sh}], f32[{n}], f32[{n}]) batch-norm-grad(p0, p1, p2, p3, p4), epsilon=0.001, feature_index={kind}", [x, s, mean, var, some("f32", shape)])


def random(f):
    for algorithm, states in [("rng_three_fry", [2]), ("rng_philox", [2, 3]), ("rng_default", [3])]:
        for n in states:
            state = np.array([0x0123456789ABCDEF, 0xFFFFFFFFFFFFFFFE, 0x3333][:n], np.uint64)
            for shape in ["u32[4]", "u32[5]", "u32[2,3]", "u32[3,2]", "u32[4,6]", "u32[3,5]", "u32[5,3,3]", "u32[3,4,5]", "u32[]", "u32[0]", "u32[3,3]", "u64[3]", "u64[2,3]", "u16[5]", "u8[6]", "s32[7]"]:
                name = f"{algorithm}_{n}_{shape.translate(str.maketrans('[],', '___'))}"
                f.add(name, f"ROOT r = (u64[{n}], {shape}) rng-bit-generator(p0), algorithm={algorithm}", [state])


def control(f):
    body = """cond {
  s = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT r = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[3] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[3] multiply(x, x)
  z = f32[3] sine(y)
  ROOT r = (s32[], f32[3]) tuple(j, z)
}

"""
    f.add("while", "t = (s32[], f32[3]) tuple(p0, p1)\nw = (s32[], f32[3]) while(t), condition=cond, body=body\nROOT r = f32[3] get-tuple-element(w), index=1", [np.int32(0), some("f32", (3,))], body)
    f.add("while_never", "t = (s32[], f32[3]) tuple(p0, p1)\nw = (s32[], f32[3]) while(t), condition=cond, body=body\nROOT r = f32[3] get-tuple-element(w), index=1", [np.int32(9), some("f32", (3,))], body)
    branches = "".join(f"b{k} {{\n  x = f32[3] parameter(0)\n  ROOT r = f32[3] {op}(x)\n}}\n\n" for k, op in enumerate(["negate", "sine", "exponential"]))
    for i in [-1, 0, 1, 2, 7]:
        f.add(f"conditional_{i}".replace("-", "m"), "ROOT r = f32[3] conditional(p0, p1, p1, p1), branch_computations={b0, b1, b2}", [np.int32(i), some("f32", (3,))], branches)
    for p in [True, False]:
        f.add(f"conditional_{p}", "ROOT r = f32[3] conditional(p0, p1, p1), true_computation=b0, false_computation=b1", [np.array(p), some("f32", (3,))], branches)
    f.add("call", "c = f32[3] call(p0), to_apply=b1\nROOT r = f32[3] call(c), to_apply=b2", [some("f32", (3,))], branches)
    f.add("tuple", "t = (f32[3], (s32[], f32[3])) tuple(p0, n)\nn2 = (s32[], f32[3]) get-tuple-element(t), index=1\nROOT r = (f32[3], s32[]) tuple(p0, i)".replace("t = (f32[3], (s32[], f32[3])) tuple(p0, n)", "n = (s32[], f32[3]) tuple(p1, p0)\nt = (f32[3], (s32[], f32[3])) tuple(p0, n)").replace("ROOT", "i = s32[] get-tuple-element(n2), index=0\nROOT"), [some("f32", (3,)), np.int32(4)])
    f.add("opt_barrier", "t = (f32[3], s32[]) tuple(p0, p1)\nb = (f32[3], s32[]) opt-barrier(t)\nx = f32[3] get-tuple-element(b), index=0\nROOT r = f32[3] negate(x)", [some("f32", (3,)), np.int32(4)])
    f.add("get_dimension_size", "ROOT r = s32[] get-dimension-size(p0), dimensions={1}", [some("f32", (3, 4))])
    f.add("after_all", "t = token[] after-all()\nROOT r = f32[3] add-dependency(p0, t)", [some("f32", (3,))])
    f.add("ids", "r0 = u32[] replica-id()\nr1 = u32[] partition-id()\nROOT r = (u32[], u32[]) tuple(r0, r1)", [])
    add = binary_callee("add", "f32")
    f.add("all_reduce", "ROOT r = f32[3] all-reduce(p0), replica_groups={{0}}, to_apply=f", [some("f32", (3,))], add)
    f.add("all_gather", "ROOT r = f32[3] all-gather(p0), replica_groups={{0}}, dimensions={0}", [some("f32", (3,))])
    f.add("reduce_scatter", "ROOT r = f32[3] reduce-scatter(p0), replica_groups={{0}}, dimensions={0}, to_apply=f", [some("f32", (3,))], add)
    f.add("all_to_all", "ROOT r = f32[3] all-to-all(p0), replica_groups={{0}}, dimensions={0}", [some("f32", (3,))])
    f.add("collective_permute", "ROOT r = f32[3] collective-permute(p0), source_target_pairs={{0,0}}", [some("f32", (3,))])
    f.add("collective_permute_nothing", "ROOT r = f32[3] collective-permute(p0), source_target_pairs={}", [some("f32", (3,))])


def complex_order(f):
    """Complex numbers with infinities and NaNs in either part, as far as XLA orders them."""
    parts = [np.nan, 0.0, -0.0, 1.0, np.inf]
    for t in ["c64", "c128"]:
        d = DTYPES[t]
        x = np.array([complex(a, b) for a in parts for b in parts], d)
        f.add(f"sign_{t}_special", f"ROOT r = {shape_of(x)} sign(p0)", [x])
        few = np.array([complex(a, b) for a in [np.nan, -0.0, 1.0] for b in [np.nan, -0.0, 2.0]], d)
        a, b = np.repeat(few, len(few)), np.tile(few, len(few))
        for op in ["maximum", "minimum"]:
            f.add(f"{op}_{t}", f"ROOT r = {shape_of(a)} {op}(p0, p1)", [a, b])
        for direction in ["EQ", "NE", "LT", "LE", "GT", "GE"]:
            body = f"ROOT r = pred[{a.size}] compare(p0, p1), direction={direction}"
            f.add(f"compare_{direction}_{t}", body, [a, b])
        low, high = np.full_like(x, -1 + 3j), np.full_like(x, 2 - 1j)
        f.add(f"clamp_{t}", f"ROOT r = {shape_of(x)} clamp(p0, p1, p2)", [low, x, high])


FAMILIES = [unary, binary, convert, movement, reduce, products, indexing, sorting, numeric, random, control, complex_order]

def main(families):
    out, wanted = sys.argv[1], sys.argv[2:]
    for make in families:
        if wanted and make.__name__ not in wanted:
            continue
        family = Family(make.__name__)
        make(family)
        with open(f"{out}/{family.name}.hlo", "w") as file:
            file.write("\n".join(family.cases))
        print(f"{family.name}: {len(family.cases)} cases, {len(family.refused)} refused", file=sys.stderr)
        for name, error in family.refused:
            print(f"  {name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(FAMILIES)
