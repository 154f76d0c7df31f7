#!/usr/bin/env python3
"""Writes what JAX lowers programs to, in every form that memplan reads, and what XLA makes of each.

    stablehlo_of_jax.py FOLDER [--small | --functions]

For each program NAME of this file: NAME.mlir (text with locations), NAME.bc (portable bytecode), NAME.jaxexport (an
artifact of `jax.export`, where flatbuffers is installed) and NAME.hlo.pb (the module that jaxlib makes of the text).
--small writes the programs that the repository's tests read (`crates/stablehlo/tests/programs`), --functions one for each
elementwise function of `jax.lax` and each type that it takes.
"""
import argparse
import os
import pathlib
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
PROGRAMS = {}
SMALL = ["mlp_step", "scan_rows", "branches", "sorts", "scatters", "convolution", "sharded", "manual", "special", "nested_loops"]
SMALL += ["real_functions", "gamma_functions", "complex_functions"]


def shape(*dims, dtype=F32):
    return jax.ShapeDtypeStruct(dims, dtype)


def program(*args, **options):
    """Registers a function with the shapes of its arguments, and options of `jax.jit`."""

    def add(function):
        PROGRAMS[function.__name__] = (function, args, options)
        return function

    return add


def mesh():
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


@program([shape(8, 16), shape(16, 4)], shape(32, 8), shape(32, 4), donate_argnums=(0,))
def mlp_step(weights, x, y):
    def loss(weights):
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients)], value


@program(shape(5, 8, 8), shape(4, 8), donate_argnums=(1,))
def scan_rows(weights, x):
    def step(h, w):
        return jnp.tanh(h @ w), h.sum()

    return lax.scan(step, x, weights)


@program(shape(4, 8), shape(dtype=I32))
def branches(x, k):
    y = lax.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, x)
    return lax.switch(k, [jnp.sin, jnp.cos, lambda a: -a], y)


@program(shape(4, 8), shape(4, 8, dtype=I32))
def sorts(x, keys):
    values, indices = lax.top_k(x, 3)
    a, b = lax.sort((keys, x), num_keys=1)
    return values, indices, a, b, jnp.argsort(x, axis=0), jnp.argmax(x, axis=1), jnp.median(x)


@program(shape(16, 8), shape(3, dtype=I32), shape(3, 8))
def scatters(x, i, u):
    return x.at[i].add(u), x.at[i].set(u), x.at[i].max(u), x[i], jnp.take(x, i, axis=1, mode="clip")


@program(shape(2, 16, 16, 3), shape(3, 3, 3, 8))
def convolution(x, k):
    y = lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@program(shape(2, 16, 16, 3), shape(3, 3, 3, 8))
def convolution_step(x, k):
    def loss(k):
        y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME").sum()

    return jax.grad(loss)(k)


@program(shape(8, 8), shape(8, 8))
def sharded(a, b):
    c = lax.with_sharding_constraint(a @ b, NamedSharding(mesh(), P("x", None)))
    return c * 2, b


PROGRAMS["sharded"][2].update(
    in_shardings=lambda: (NamedSharding(mesh(), P("x", "y")), None),
    out_shardings=lambda: (NamedSharding(mesh(), P("x", "y")), None),
)


@program(shape(8, 8))
def manual(a):
    def part(a):
        shifted = lax.ppermute(a, "x", [(i, (i + 1) % 4) for i in range(4)])
        return lax.psum(a, "x") + lax.all_gather(shifted, "y").sum(0)

    return jax.shard_map(part, mesh=mesh(), in_specs=P("x", "y"), out_specs=P(None, "y"), check_vma=False)(a)


@program(shape(4, 8))
def special(x):
    k = jax.random.normal(jax.random.key(0), x.shape)
    return jax.nn.gelu(x + k, approximate=False), lax.erf(x), jnp.sinh(x), jnp.arccosh(1 + x**2), jnp.square(x)


@program(shape(4, 8), shape(dtype=I32))
def nested_loops(x, n):
    def outer(i, s):
        return lax.fori_loop(0, n, lambda j, t: t + x * j, s) * i

    return lax.while_loop(lambda s: s[1].sum() < 100, lambda s: (s[0] + 1, outer(s[0], s[1])), (jnp.int32(0), x))


@program(shape(2, 16, 4, 8, dtype=BF16), shape(2, 16, 4, 8, dtype=BF16), shape(2, 16, 4, 8, dtype=BF16))
def attention(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32) / np.sqrt(8)
    s = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), s, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1).astype(BF16), v)


@program([shape(3, 16, 64), shape(3, 64, 16), shape(100, 16)], shape(4, 12, dtype=I32), donate_argnums=(0,))
def language_model_step(parameters, tokens):
    def loss(parameters):
        up, down, table = parameters
        h = table[tokens]

        @jax.checkpoint
        def layer(h, w):
            n = h * lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)
            return h + jax.nn.silu(n @ w[0]) @ w[1], None

        h, _ = lax.scan(layer, h, (up, down))
        logits = h @ table.T
        return -jnp.mean(jax.nn.log_softmax(logits)[:, :-1, 0])

    value, gradients = jax.value_and_grad(loss)(parameters)
    return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients), value


@program(shape(8, 8))
def linear_algebra(a):
    s = a @ a.T + 8 * jnp.eye(8)
    l = jnp.linalg.cholesky(s)
    return l, lax.linalg.triangular_solve(l, a, left_side=True, lower=True), jnp.linalg.inv(s)


@program(shape(4, 16), shape(4, 16, dtype=jnp.complex64))
def transforms(x, c):
    return jnp.fft.rfft(x), jnp.fft.ifft(c), c.real + c.imag, jnp.abs(c), jnp.conj(c)


@program(shape(8, dtype=jnp.uint32), shape(8, dtype=jnp.int8))
def integers(u, i):
    return u << 3, u >> 2, ~u & 0xFF, lax.population_count(u), lax.clz(u), i // 3, i % 3, u.astype(F32), i.astype(jnp.int4)


@program(shape(6, 4), shape(3, dtype=I32))
def slices(x, i):
    y = lax.dynamic_slice(x, (i[0], 0), (2, 4))
    z = lax.dynamic_update_slice(x, y * 2, (i[1], 0))
    return jnp.pad(z, ((1, 2), (0, 1))), x[::2, 1:3], jnp.flip(x, 1), jnp.concatenate([x, z], 0), jnp.roll(x, 2, 0)


@program(shape(16))
def random_numbers(x):
    key = jax.random.key(3)
    a, b = jax.random.split(key)
    return (
        x + jax.random.uniform(a, (16,)),
        jax.random.bernoulli(b, 0.5, (16,)),
        jax.random.permutation(a, 16),
        jax.random.categorical(b, x),
        jax.random.randint(a, (4,), 0, 10),
    )


@program(shape(16))
def random_bits(x):
    key = jax.random.key(3, impl="rbg")
    return x + jax.random.normal(key, (16,))


@program(shape(32, 10), shape(32, dtype=I32))
def losses(logits, labels):
    one_hot = jax.nn.one_hot(labels, 10)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * one_hot, -1)), jax.nn.logsumexp(logits, 1)


@program(shape(4, 8), shape(4, 8))
def elementwise(x, y):
    return (
        jnp.exp(x), jnp.expm1(x), jnp.log(x), jnp.log1p(x), jnp.sqrt(x), lax.rsqrt(x), jnp.cbrt(x), jnp.floor(x), jnp.ceil(x),
        jnp.round(x), jnp.sign(x), jnp.tan(x), jnp.arctan2(x, y), x**y, x**3, jnp.clip(x, 0, 1), jnp.isfinite(x), jnp.maximum(x, y),
        jnp.where(x > y, x, y), lax.reduce_precision(x, 5, 10), jax.nn.sigmoid(x), lax.rem(x, y),
    )  # fmt: skip


@program(shape(4, 8))
def cumulative(x):
    return jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.associative_scan(jnp.add, x)


@program(shape(3, 4, 5), shape(3, 5, 6))
def products(a, b):
    high = jnp.matmul(a, b, precision="highest")
    exact = lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), precision=lax.DotAlgorithmPreset.BF16_BF16_F32_X3)
    return high, exact, jnp.einsum("bij,bjk->ik", a, b), jnp.tensordot(a, a, 3), jnp.outer(a[0, 0], b[0, 0])


@program(shape(6, 8), shape(3, 8, 5), shape(3, dtype=I32))
def ragged(a, b, sizes):
    return lax.ragged_dot(a, b, sizes)


@program(shape(4, 8))
def barrier(x):
    y, z = lax.optimization_barrier((x + 1, x * 2))
    return y @ z.T


@program(shape(4, 8), donate_argnums=(0,))
def donated_in_vain(x):
    return x.sum()


@program(shape(8, 16), shape(16), shape(16))
def batch_norm(x, scale, offset):
    mean, variance = x.mean(0), x.var(0)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + offset


@program(shape(4, 16, 8), shape(8, 32), shape(8, 32), shape(32))
def lstm(x, w, u, b):
    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((4, 8))
    return jax.grad(lambda w: lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))[1].sum())(w)


@program(shape(4, 8))
def vmapped_while(x):
    return jax.vmap(lambda row: lax.while_loop(lambda s: s.sum() < 10, lambda s: s * 2 + 1, row))(x)


@program(shape(4, 4, 8), shape(4, dtype=I32))
def batched_gather(x, i):
    return jax.vmap(lambda x, i: x[i])(x, i), jax.vmap(lambda x, i: x.at[i].add(1.0))(x, i)


@program(shape(2, 8, 8, 4))
def resized(x):
    return jax.image.resize(x, (2, 16, 16, 4), "bilinear"), lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")


@program(shape(8, 4))
def segments(x):
    ids = jnp.array([0, 0, 1, 1, 2, 2, 3, 3])
    return jax.ops.segment_sum(x, ids, 4), jnp.unique(ids, size=4), jnp.searchsorted(jnp.arange(8.0), x[:, 0])


@program(shape(16, dtype=jnp.float8_e4m3fn), shape(16, dtype=BF16))
def narrow(a, b):
    return a.astype(F32) * 2, b.astype(jnp.float8_e5m2), lax.bitcast_convert_type(b, jnp.uint16), (b * b).astype(jnp.float16)


@program(shape(3, 8), shape(8))
def custom_gradient(x, w):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.cos(x),))
    return jax.grad(lambda w: f(x * w).sum())(w)


@program(shape(dtype=F32), shape(0, 4), shape(1, 1))
def small_shapes(a, b, c):
    return a + 1, b.sum(0), c.reshape(()), jnp.broadcast_to(c, (3, 5)), jnp.arange(7), jnp.zeros((0,))


@program(shape(4, 8))
def constants(x):
    table = np.arange(32, dtype=np.float32).reshape(4, 8)
    mask = np.tril(np.ones((4, 8), bool))
    return x * table + jnp.pi, jnp.where(mask, x, np.nan), x + np.array([1.5], np.float32)


@program(shape(8, 8), shape(8, 8))
def jvp(x, t):
    return jax.jvp(lambda x: jnp.linalg.norm(x @ x), (x,), (t,))


@program(shape(8))
def hessian(x):
    return jax.hessian(lambda x: jnp.sum(jnp.exp(x) * x[::-1]))(x)


@program(shape(64, 16))
def kmeans(x):
    def step(centers, _):
        distances = jnp.sum((x[:, None] - centers[None]) ** 2, -1)
        which = jnp.argmin(distances, 1)
        sums = jax.ops.segment_sum(x, which, 4)
        counts = jax.ops.segment_sum(jnp.ones(64), which, 4)
        return sums / jnp.maximum(counts, 1)[:, None], None

    return lax.scan(step, x[:4], None, length=3)[0]


@program(shape(4, 8), shape(4, 8, dtype=BF16))
def real_functions(x, y):
    inverse = lax.asin(x), lax.acos(x), lax.atan(x), lax.asinh(x), lax.acosh(x), lax.atanh(x), lax.asin(y), lax.atanh(y)
    others = lax.erf_inv(x), lax.erfc(y), lax.cosh(x), lax.sinh(y), lax.tan(x), lax.nextafter(x, x), lax.bessel_i1e(x)
    return inverse, others


@program(shape(4, 8), shape(4, 8))
def gamma_functions(x, y):
    return lax.lgamma(x), lax.digamma(x), lax.polygamma(x, y), lax.zeta(x, y)


@program(shape(4, 8), shape(4, 8))
def incomplete_gamma(x, y):
    return lax.igamma(x, y), lax.igammac(x, y), lax.betainc(x, y, x), jax.random.gamma(jax.random.key(0), x)


@program(shape(4, 8, dtype=jnp.complex64))
def complex_functions(z):
    inverse = lax.asin(z), lax.acos(z), lax.atan(z), lax.asinh(z), lax.acosh(z), lax.atanh(z)
    return lax.exp(z), lax.log(z), lax.log1p(z), lax.sqrt(z), lax.logistic(z), lax.cosh(z), lax.sinh(z), lax.tanh(z), inverse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--functions", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.functions:
        return write_functions(args.folder)
    for name, (function, shapes, options) in PROGRAMS.items():
        if not args.small or name in SMALL:
            write(args.folder, name, function, shapes, options)


UNARY = """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e bitwise_not cbrt ceil clz conj cos cosh digamma erf
    erf_inv erfc exp exp2 expm1 floor imag is_finite lgamma log log1p logistic neg population_count real reciprocal round
    rsqrt sign sin sinh sqrt square tan tanh""".split()
BINARY = """add atan2 complex div eq ge gt igamma igamma_grad_a igammac le lt max min mul mulhi ne nextafter polygamma pow
    random_gamma_grad rem sub zeta""".split()
TYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int32", "uint8"]


def write_functions(folder):
    jax.config.update("jax_enable_x64", True)
    functions = [(name, 1) for name in UNARY] + [(name, 2) for name in BINARY] + [("betainc", 3)]
    for element in TYPES:
        for name, arity in functions:
            try:
                jax.eval_shape(getattr(lax, name), *[shape(4, 8, dtype=element)] * arity)
            except TypeError:  # The function is not for this type.
                continue
            write(folder, f"{name}_{element}", getattr(lax, name), [shape(4, 8, dtype=element)] * arity, {})


def write(folder, name, function, shapes, options):
    from jaxlib import _jax

    options = {key: value() if callable(value) else value for key, value in options.items()}
    jitted = jax.jit(function, **options)
    lowered = jitted.lower(*shapes)
    text = lowered.as_text(debug_info=True)
    (folder / f"{name}.mlir").write_text(text)

    def hlo_of(program):
        return _jax.mlir.mlir_module_to_xla_computation(
            program, use_tuple_args=False, return_tuple=False
        ).as_serialized_hlo_module_proto()

    (folder / f"{name}.hlo.pb").write_bytes(hlo_of(text))
    exported = jax.export.export(jitted)(*shapes)
    (folder / f"{name}.bc").write_bytes(exported.mlir_module_serialized)
    (folder / f"{name}.export.hlo.pb").write_bytes(hlo_of(exported.mlir_module()))
    try:
        (folder / f"{name}.jaxexport").write_bytes(exported.serialize())
    except ImportError:
        pass


if __name__ == "__main__" and "PROGRAMS_FILE" in os.environ:
    main()
elif __name__ == "__main__":
    # Source lines are those of `programs.py`, on any machine.
    os.environ["PROGRAMS_FILE"] = str(pathlib.Path(__file__).resolve())
    run = "import os; exec(compile(open(os.environ['PROGRAMS_FILE']).read(), 'programs.py', 'exec'))"
    os.execv(sys.executable, [sys.executable, "-c", run, *sys.argv[1:]])
