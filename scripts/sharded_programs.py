#!/usr/bin/env python3
"""Programs for several devices, as JAX hands them to a compiler: the table of docs/devices.md and the tests of crates/spmd.

    python3 scripts/sharded_programs.py FOLDER [--small] [NAME...]        (a python with jax)

Writes FOLDER/NAME.hlo.txt: training steps, inference and decoding, over 2, 4 and 8 devices, fully sharded, by data, tensors,
experts, sequences and stages; layers in a loop and written out; shardings of JAX and `shard_map`. `--small` makes them small
enough to be evaluated.
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SMALL = "--small" in sys.argv
f32, bf16 = jnp.float32, jnp.float32 if SMALL else jnp.bfloat16


def size(n, small):
    return small if SMALL else n


def mesh(**axes):
    shape = tuple(axes.values())
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), tuple(axes))


def arrays(of, shapes, specs):
    return jax.tree.map(
        lambda s, spec: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(of, spec)), shapes, specs
    )


def S(*shape, dtype=None):
    return jax.ShapeDtypeStruct(shape, dtype or bf16)


def keep(of, x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(of, P(*spec)))


def step(loss):
    def run(params, *rest):
        value, grads = jax.value_and_grad(loss)(params, *rest)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    return run


def lower(of, f, shapes, specs, out=None, donate=(0,)):
    given = [arrays(of, s, spec) for s, spec in zip(shapes, specs)]
    options = {} if out is None else {"out_shardings": jax.tree.map(lambda spec: NamedSharding(of, spec), out)}
    return jax.jit(f, donate_argnums=donate, **options).lower(*given)


def layers(scanned, n, params, specs):
    """Parameters of n layers, stacked or in a list."""
    if scanned:
        stack = lambda s: S(n, *s.shape, dtype=s.dtype)
        return jax.tree.map(stack, params), jax.tree.map(lambda spec: P(None, *spec), specs)
    return [params] * n, [specs] * n


def through(scanned, layer, x, params, remat=False):
    body = lambda x, p: (layer(x, p), None)
    if remat:
        body = jax.checkpoint(body)
    if scanned:
        return lax.scan(body, x, params)[0]
    for p in params:
        x, _ = body(x, p)
    return x


# -- Perceptrons.


def perceptron(devices, scanned, how, remat=False):
    """Blocks of two products: parameters fully sharded, on every device, or by columns and rows."""
    of = mesh(d=devices)
    D, F, B, L = size(1024, 16), size(4096, 32), size(4096, 32), size(8, 2)
    cut = dict(fully=(P("d", None), P(None, "d")), data=(P(), P()), tensor=(P(None, "d"), P("d", None)))[how]
    batch = P() if how == "tensor" else P("d")
    params, specs = layers(scanned, L, dict(a=S(D, F), b=S(F, D)), dict(a=cut[0], b=cut[1]))
    layer = lambda x, p: x + jax.nn.relu(x @ p["a"]) @ p["b"]
    loss = lambda params, x: (through(scanned, layer, x, params, remat).astype(f32) ** 2).mean()
    return lower(of, step(loss), (params, S(B, D)), (specs, batch), (specs, P()))


# -- Transformers.


def norm(x):
    x32 = x.astype(f32)
    return (x32 * lax.rsqrt((x32 * x32).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def attention(q, k, v):
    scores = jnp.einsum("bthc,bshc->bhts", q, k).astype(f32) / q.shape[-1] ** 0.5
    t, s = scores.shape[-2:]
    scores = jnp.where(jnp.tril(jnp.ones((t, s), bool)), scores, -1e9)
    return jnp.einsum("bhts,bshc->bthc", jax.nn.softmax(scores).astype(v.dtype), v)


def block(x, p):
    h = norm(x)
    q, k, v = (jnp.einsum("btd,dhc->bthc", h, p[n]) for n in "qkv")
    x = x + jnp.einsum("bthc,hcd->btd", attention(q, k, v), p["o"])
    h = norm(x)
    return x + jax.nn.gelu(h @ p["up"]) @ p["down"]


def of_block(D, H, F):
    heads = dict(q=S(D, H, D // H), k=S(D, H, D // H), v=S(D, H, D // H), o=S(H, D // H, D))
    return heads | dict(up=S(D, F), down=S(F, D))


def cut_of_block(f, t):
    """f: the axis over which parameters are fully sharded, t: that of heads and columns."""
    heads = {n: P(f, t, None) for n in "qkv"} | dict(o=P(t, None, f))
    return heads | dict(up=P(f, t), down=P(t, f))


def transformer(axes, scanned, f=None, t=None, b=None, remat=False, sequence=False, train=True):
    of = mesh(**axes)
    D, H, F, V = size(1024, 16), size(16, 4), size(4096, 32), size(16384, 64)
    B, T, L = size(16, 8), size(1024, 8), size(6, 2)
    params, specs = layers(scanned, L, of_block(D, H, F), cut_of_block(f, t))
    params, specs = dict(layers=params, embed=S(V, D)), dict(layers=specs, embed=P(None, f or t))

    def layer(x, p):
        x = block(x, p)
        return keep(of, x, b, t, None) if sequence else keep(of, x, b, None, None)

    def loss(params, tokens):
        x = params["embed"][tokens]
        x = norm(through(scanned, layer, x, params["layers"], remat))
        logits = jnp.einsum("btd,vd->btv", x, params["embed"]).astype(f32)
        if not train:
            return logits[:, -1]
        one = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(one[:, :-1], tokens[:, 1:, None], -1).mean()

    if not train:
        return lower(of, loss, (params, S(B, T, dtype=jnp.int32)), (specs, P(b)), donate=())
    return lower(of, step(loss), (params, S(B, T, dtype=jnp.int32)), (specs, P(b)), (specs, P()))


# -- Experts.


def experts(devices, scanned, mapped):
    """A layer of experts, one or several on each device; tokens travel by all-to-all."""
    of = mesh(e=devices)
    D, F, E, N, L = size(512, 8), size(2048, 16), 8, size(8192, 64), size(4, 2)
    C = 2 * N // devices // E
    cut = dict(gate=P(), up=P("e", None, None), down=P("e", None, None))
    params, specs = layers(scanned, L, dict(gate=S(D, E), up=S(E, D, F), down=S(E, F, D)), cut)

    def route(x, gate):
        """Weights of tokens at places of experts: of the tokens of one group."""
        n = x.shape[0]
        choice = jax.nn.softmax((x @ gate).astype(f32))
        best = jnp.argmax(choice, -1)
        hot = jax.nn.one_hot(best, E, dtype=f32)
        place = (jnp.cumsum(hot, 0) * hot - 1.0).max(-1).astype(jnp.int32)
        at = jax.nn.one_hot(place, C, dtype=f32)
        return jnp.einsum("ne,nc,n->nec", hot, at, (choice * hot).sum(-1)).astype(x.dtype)

    def mix(x, p):
        g = x.reshape(devices, -1, D)
        w = jax.vmap(route, (0, None))(g, p["gate"])
        sent = keep(of, jnp.einsum("gnec,gnd->gecd", (w > 0).astype(x.dtype), g), "e", None, None, None)
        sent = keep(of, sent, None, "e", None, None)
        h = jnp.einsum("gecf,efd->gecd", jax.nn.relu(jnp.einsum("gecd,edf->gecf", sent, p["up"])), p["down"])
        back = keep(of, keep(of, h, None, "e", None, None), "e", None, None, None)
        return x + jnp.einsum("gnec,gecd->gnd", w, back).reshape(x.shape)

    def local(x, p):
        w = route(x, p["gate"])
        sent = jnp.einsum("nec,nd->ecd", (w > 0).astype(x.dtype), x)
        sent = lax.all_to_all(sent, "e", 0, 1, tiled=True)
        h = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", sent, p["up"])), p["down"])
        back = lax.all_to_all(h, "e", 1, 0, tiled=True)
        return x + jnp.einsum("nec,ecd->nd", w, back)

    if mapped:
        layer = jax.shard_map(local, mesh=of, in_specs=(P("e"), cut), out_specs=P("e"))
    else:
        layer = mix
    loss = lambda params, x: (through(scanned, layer, x, params).astype(f32) ** 2).mean()
    return lower(of, step(loss), (params, S(N, D)), (specs, P("e")), (specs, P()))


# -- Stages, and rings.


def pipeline(devices):
    """Stages on devices; parts of the batch travel from one to the next."""
    of = mesh(s=devices)
    D, M, B, L = size(1024, 8), 2 * devices, size(512, 4), 2
    weights, cut = S(devices * L, D, D), P("s", None, None)

    def local(w, x):
        stage = lax.axis_index("s")

        def tick(state, i):
            held, out = state
            first = x[jnp.clip(i, 0, M - 1)]
            h = jnp.where(stage == 0, first, held)
            h, _ = lax.scan(lambda h, w: (jax.nn.relu(h @ w), None), h, w)
            out = jnp.where(i - stage >= 0, out + (h.astype(f32) ** 2).mean() * (stage == devices - 1), out)
            held = lax.ppermute(h, "s", [(d, (d + 1) % devices) for d in range(devices)])
            return (held, out), None

        zero = lax.pcast(jnp.zeros(x.shape[1:], x.dtype), ("s",), to="varying")
        out = lax.pcast(jnp.zeros((), f32), ("s",), to="varying")
        (_, out), _ = lax.scan(tick, (zero, out), jnp.arange(M + devices - 1))
        return lax.psum(out, "s") / M

    mapped = jax.shard_map(local, mesh=of, in_specs=(cut, P()), out_specs=P())
    return lower(of, step(mapped), (weights, S(M, B, D)), (cut, P()), (cut, P()))


def ring(devices):
    """Attention over a long sequence: keys and values travel around a ring."""
    of = mesh(r=devices)
    B, H, T, C = 2, size(8, 2), size(8192, 32), size(64, 4)
    spec = P(None, None, "r", None)

    def local(q, k, v):
        def turn(state, _):
            k, v, top, below, sums = state
            s = jnp.einsum("bhtc,bhsc->bhts", q, k).astype(f32)
            new = jnp.maximum(top, s.max(-1))
            w = jnp.exp(s - new[..., None])
            scale = jnp.exp(top - new)
            sums = sums * scale[..., None] + jnp.einsum("bhts,bhsc->bhtc", w, v.astype(f32))
            around = [(d, (d + 1) % devices) for d in range(devices)]
            k, v = lax.ppermute(k, "r", around), lax.ppermute(v, "r", around)
            return (k, v, new, below * scale + w.sum(-1), sums), None

        top = q[..., 0].astype(f32) * 0 - 1e9
        state = (k, v, top, top * 0, q.astype(f32) * 0)
        (_, _, _, below, sums), _ = lax.scan(turn, state, None, length=devices)
        return (sums / below[..., None]).astype(q.dtype)

    mapped = jax.shard_map(local, mesh=of, in_specs=(spec, spec, spec), out_specs=spec)
    return lower(of, mapped, (S(B, H, T, C),) * 3, (spec,) * 3, donate=())


# -- Decoding, convolutions, embeddings.


def decode(axes, scanned, b=None, h=None):
    """One step of decoding: the cache by batch or by heads."""
    of = mesh(**axes)
    D, H, F, B, T, L = size(1024, 16), size(16, 4), size(4096, 32), size(32, 8), size(2048, 8), size(6, 2)
    params, specs = layers(scanned, L, of_block(D, H, F), cut_of_block(None, h))
    cache, of_cache = layers(scanned, L, S(2, B, T, H, D // H), P(None, b, None, h, None))

    def layer(x, p, c, at):
        y = norm(x)
        q, k, v = (jnp.einsum("bd,dhc->bhc", y, p[n]) for n in "qkv")
        new = jnp.stack([k, v])[:, :, None]
        c = lax.dynamic_update_slice_in_dim(c, new, at, 2)
        scores = jnp.einsum("bhc,bthc->bht", q, c[0]).astype(f32)
        scores = jnp.where(jnp.arange(T) <= at, scores, -1e9)
        out = jnp.einsum("bht,bthc->bhc", jax.nn.softmax(scores).astype(x.dtype), c[1])
        x = x + jnp.einsum("bhc,hcd->bd", out, p["o"])
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"], c

    def run(cache, params, x, at):
        if scanned:
            x, cache = lax.scan(lambda x, pc: layer(x, *pc, at), x, (params, cache))
            return cache, x
        new = []
        for p, c in zip(params, cache):
            x, c = layer(x, p, c, at)
            new.append(c)
        return new, x

    shapes = (cache, params, S(B, D), S(dtype=jnp.int32))
    return lower(of, run, shapes, (of_cache, specs, P(b), P()), (of_cache, P(b)))


def convolutions(devices, train=True):
    """A network of convolutions over a batch."""
    of = mesh(d=devices)
    B, N, C, L = size(64, 8), size(64, 8), size(64, 4), 4
    kernels = [S(3, 3, C, C, dtype=f32)] * L

    def net(kernels, x):
        for k in kernels:
            x = jax.nn.relu(lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
            x = x - x.mean((1, 2), keepdims=True)
        return x

    specs = [P()] * L
    if not train:
        return lower(of, net, (kernels, S(B, N, N, C, dtype=f32)), (specs, P("d")), donate=())
    loss = lambda kernels, x: (net(kernels, x) ** 2).mean()
    return lower(of, step(loss), (kernels, S(B, N, N, C, dtype=f32)), (specs, P("d")), (specs, P()))


def classifier(devices):
    """A large vocabulary by columns: its softmax is over devices."""
    of = mesh(t=devices)
    D, V, N = size(512, 8), size(65536, 64), size(2048, 16)

    def loss(w, x, labels):
        logits = keep(of, (x @ w).astype(f32), None, "t")
        top = lax.stop_gradient(logits.max(-1, keepdims=True))
        total = jnp.log(jnp.exp(logits - top).sum(-1)) + top[:, 0]
        hit = (logits * jax.nn.one_hot(labels, V, dtype=f32)).sum(-1)
        return (total - hit).mean()

    cut = P(None, "t")
    shapes = (S(D, V), S(N, D), S(N, dtype=jnp.int32))
    return lower(of, step(loss), shapes, (cut, P(), P()), (cut, P()))


def gathered(devices, scanned):
    """Blocks in a `shard_map` that gathers each layer's weights itself."""
    of = mesh(d=devices)
    D, F, B, L = size(1024, 16), size(4096, 32), size(4096, 32), size(8, 2)
    params, specs = layers(scanned, L, dict(a=S(D, F), b=S(F, D)), dict(a=P("d", None), b=P(None, "d")))

    def local(params, x):
        def layer(x, p):
            a = lax.all_gather(p["a"], "d", axis=0, tiled=True)
            b = lax.all_gather(p["b"], "d", axis=1, tiled=True)
            return x + jax.nn.relu(x @ a) @ b

        return lax.pmean((through(scanned, layer, x, params, True).astype(f32) ** 2).mean(), "d")

    mapped = jax.shard_map(local, mesh=of, in_specs=(specs, P("d")), out_specs=P())
    return lower(of, step(mapped), (params, S(B, D)), (specs, P("d")), (specs, P()))


PROGRAMS = {}


def add(name, make):
    PROGRAMS[name] = make


for n in (2, 4, 8):
    for scanned, form in ((True, "scanned"), (False, "written")):
        add(f"fully_sharded_{form}_{n}", lambda n=n, s=scanned: perceptron(n, s, "fully", remat=True))
        add(f"tensor_{form}_{n}", lambda n=n, s=scanned: perceptron(n, s, "tensor"))
    add(f"pipeline_{n}", lambda n=n: pipeline(n))
for n in (2, 8):
    add(f"data_written_{n}", lambda n=n: perceptron(n, False, "data"))
    add(f"ring_attention_{n}", lambda n=n: ring(n))
    add(f"convolutions_train_{n}", lambda n=n: convolutions(n))
    add(f"vocabulary_{n}", lambda n=n: classifier(n))
add("convolutions_infer_4", lambda: convolutions(4, False))
for scanned, form in ((True, "scanned"), (False, "written")):
    add(f"transformer_fully_{form}_8", lambda s=scanned: transformer(dict(f=8), s, f="f", b="f"))
    add(f"transformer_fully_remat_{form}_4", lambda s=scanned: transformer(dict(f=4), s, f="f", b="f", remat=True))
    add(f"transformer_tensor_{form}_4", lambda s=scanned: transformer(dict(t=4), s, t="t"))
    add(f"transformer_both_{form}_2x4", lambda s=scanned: transformer(dict(f=2, t=4), s, f="f", t="t", b="f"))
    add(f"transformer_data_{form}_4", lambda s=scanned: transformer(dict(b=4), s, b="b"))
    add(f"experts_{form}_8", lambda s=scanned: experts(8, s, False))
    add(f"experts_mapped_{form}_4", lambda s=scanned: experts(4, s, True))
    add(f"decode_heads_{form}_4", lambda s=scanned: decode(dict(h=4), s, h="h"))
    add(f"gathered_{form}_8", lambda s=scanned: gathered(8, s))
add("transformer_sequence_2x4", lambda: transformer(dict(f=2, t=4), True, f="f", t="t", b="f", sequence=True))
add("transformer_infer_2x2", lambda: transformer(dict(b=2, t=2), True, t="t", b="b", train=False))
add("decode_batch_8", lambda: decode(dict(b=8), True, b="b"))
add("decode_both_2x2", lambda: decode(dict(b=2, h=2), False, b="b", h="h"))

if __name__ == "__main__":
    folder, *names = [argument for argument in sys.argv[1:] if argument != "--small"]
    os.makedirs(folder, exist_ok=True)
    for name in names or PROGRAMS:
        try:
            text = PROGRAMS[name]().as_text(dialect="hlo", debug_info=True)
        except Exception as error:  # pylint: disable=broad-except
            print(f"{name}: {str(error)[:300]}", file=sys.stderr, flush=True)
            continue
        with open(f"{folder}/{name}.hlo.txt", "w", encoding="utf-8") as file:
            file.write(text)
    print(len(names or PROGRAMS), "programs")
