"""Several devices: shardings by NamedSharding, shard_map with collectives, pmap. Eight devices of the host stand for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from program import integers, normal, program, shape


def mesh(*extents, names):
    return Mesh(np.array(jax.devices()[: int(np.prod(extents))]).reshape(extents), names)


@program("devices")
def data_parallel_sharded_batch():
    """Parameters replicated, the batch sharded over eight devices, Adam; the compiler puts in the all-reduces."""
    m = mesh(8, names=("data",))
    optimizer = optax.adam(1e-3)

    def loss(params, x, y):
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        return jnp.mean((x @ params[-1][0] + params[-1][1] - y) ** 2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    sizes = [12, 32, 32, 4]
    params = [(normal(i, a, b) / a**0.5, jnp.zeros(b)) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]
    params, state = jax.device_put((params, optimizer.init(params)), NamedSharding(m, P()))
    x, y = jax.device_put((normal(8, 16, 12), normal(9, 16, 4)), NamedSharding(m, P("data")))
    return step, (params, state, x, y)


@program("devices", runs=False)
def tensor_parallel_transformer():
    """Fully sharded data parallelism by tensor parallelism on a 4 by 2 mesh, with constraints on activations; only compiled."""
    m = mesh(4, 2, names=("data", "model"))
    width, hidden, heads, layers, vocabulary = 1024, 4096, 16, 8, 32000
    put = lambda spec, *e, dtype=jnp.float32: jax.ShapeDtypeStruct(e, dtype, sharding=NamedSharding(m, P(*spec)))

    def layer(x, p):
        hold = lambda a, *spec: lax.with_sharding_constraint(a, NamedSharding(m, P(*spec)))
        half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        h = x * lax.rsqrt(jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True) + 1e-6).astype(x.dtype)
        q, k, v = (hold(jnp.einsum("bsd,dhk->bshk", h, half[n]), "data", None, "model") for n in "qkv")
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = hold(x + jnp.einsum("bshk,hkd->bsd", out, half["o"]), "data")
        return hold(x + hold(jax.nn.gelu(x @ half["up"]), "data", None, "model") @ half["down"], "data"), None

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, first, second, count, tokens):
        def loss(params):
            x = params["embed"].astype(jnp.bfloat16)[tokens[:, :-1]]
            x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
            logits = (x @ params["embed"].T.astype(jnp.bfloat16)).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, grads)
        params = jax.tree.map(lambda p, m, v: p - 3e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), params, first, second)
        return params, first, second, count + 1, value

    make = lambda: {
        "embed": put(("model", "data"), vocabulary, width),
        "layers": {
            **{n: put((None, "data", "model"), layers, width, heads, width // heads) for n in "qkv"},
            "o": put((None, "model", None, "data"), layers, heads, width // heads, width),
            "up": put((None, "data", "model"), layers, width, hidden), "down": put((None, "model", "data"), layers, hidden, width),
        },
    }
    return step, (make(), make(), make(), put((), dtype=jnp.int32), put(("data",), 16, 1025, dtype=jnp.int32))


@program("devices", runs=False)
def shard_map_collectives():
    """shard_map on a 2 by 4 mesh: psum, psum_scatter, all_gather, ppermute in a ring, all_to_all, axis_index."""
    m = mesh(2, 4, names=("data", "model"))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=m, in_specs=(P("data", "model"), P("model", None)), out_specs=(P("data", None), P("data", "model"), P(), P("data", "model")))
    def run(x, w):
        def turn(carry, _):
            x, total = carry
            return (lax.ppermute(x, "model", [(i, (i + 1) % 4) for i in range(4)]), total + jnp.sum(x, -1, keepdims=True)), None

        partial = x @ w
        whole = lax.psum(partial, "model")
        scattered = lax.psum_scatter(partial, "model", scatter_dimension=1, tiled=True)
        gathered = lax.all_gather(scattered, "model", axis=1, tiled=True)
        exchanged = lax.all_to_all(x.reshape(4, -1, x.shape[1]), "model", 0, 1, tiled=False).reshape(x.shape)
        (_, total), _ = lax.scan(turn, (x, lax.pcast(jnp.zeros((len(x), 1)), ("data", "model"), to="varying")), None, length=4)
        norm = lax.pmean(jnp.mean((gathered - whole) ** 2) + lax.pmax(jnp.max(total), "model"), ("data", "model"))
        return lax.pmean(whole, "model"), scattered, norm, exchanged + lax.axis_index("model")

    put = lambda a, *spec: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(m, P(*spec)))
    return run, (put(shape(64, 32), "data", "model"), put(shape(32, 64), "model", None))


@program("devices", runs=False)
def ring_attention_shard_map():
    """Sequences over eight devices: keys and values travel in a ring, gradients through the ring; only compiled."""
    m = mesh(8, names=("sequence",))

    def attention(q, k, v):
        def body(carry, _):
            k, v, out, total, top = carry
            s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
            new = jnp.maximum(top, s.max(-1))
            p, fix = jnp.exp(s - new[..., None]), jnp.exp(top - new)
            out = out * fix.transpose(0, 2, 1)[..., None] + jnp.einsum("bhqk,bkhd->bqhd", p.astype(v.dtype), v)
            ring = [(i, (i + 1) % 8) for i in range(8)]
            k, v = lax.ppermute(k, "sequence", ring), lax.ppermute(v, "sequence", ring)
            return (k, v, out, total * fix + p.sum(-1), new), None

        b, s, h, d = q.shape
        vary = lambda a: lax.pcast(a, ("sequence",), to="varying")
        start = (k, v, vary(jnp.zeros(q.shape, jnp.float32)), vary(jnp.zeros((b, h, s))), vary(jnp.full((b, h, s), -jnp.inf)))
        (_, _, out, total, _), _ = lax.scan(jax.checkpoint(body), start, None, length=8)
        return out / total.transpose(0, 2, 1)[..., None]

    spec = P(None, "sequence")
    mapped = jax.shard_map(attention, mesh=m, in_specs=(spec,) * 3, out_specs=spec)
    run = jax.jit(jax.grad(lambda q, k, v: jnp.sum(mapped(q, k, v) ** 2), argnums=(0, 1, 2)))
    one = jax.ShapeDtypeStruct((2, 8192, 8, 64), jnp.bfloat16, sharding=NamedSharding(m, spec))
    return run, (one, one, one)


@program("devices", runs=False)
def pipeline_of_microbatches():
    """A pipeline of four stages by shard_map: microbatches handed on with ppermute inside a scan, trained end to end."""
    m = mesh(4, names=("stage",))

    def forward(w, x):
        stage = lax.axis_index("stage")
        w = w[0]

        def tick(carry, t):
            held, out = carry
            held = jnp.where(stage == 0, x[jnp.minimum(t, len(x) - 1)], held)
            held = jax.nn.gelu(held @ w)
            out = jnp.where((stage == 3) & (t >= 3), lax.dynamic_update_index_in_dim(out, held, jnp.maximum(t - 3, 0), 0), out)
            return (lax.ppermute(held, "stage", [(i, (i + 1) % 4) for i in range(4)]), out), None

        vary = lambda a: lax.pcast(a, ("stage",), to="varying")
        (_, out), _ = lax.scan(tick, (vary(jnp.zeros_like(x[0])), vary(jnp.zeros_like(x))), jnp.arange(len(x) + 3))
        return lax.psum(jnp.where(stage == 3, out, 0.0), "stage")

    mapped = jax.shard_map(forward, mesh=m, in_specs=(P("stage"), P()), out_specs=P())

    @functools.partial(jax.jit, donate_argnums=0)
    def step(w, x, y):
        value, grads = jax.value_and_grad(lambda w: jnp.mean((mapped(w, x) - y) ** 2))(w)
        return w - 0.1 * grads, value

    put = lambda spec, *e: jax.ShapeDtypeStruct(e, jnp.float32, sharding=NamedSharding(m, P(*spec)))
    return step, (put(("stage",), 4, 256, 256), put((), 16, 32, 256), put((), 16, 32, 256))


@program("devices", runs=False)
def pmap_replicated_training():
    """The old way: pmap over eight devices, gradients by pmean, batch statistics by pmean, keys folded by axis_index."""

    def step(params, x, y, key):
        key = jax.random.fold_in(key, lax.axis_index("batch"))

        def loss(params):
            h = x @ params["w1"]
            mean, square = lax.pmean(h.mean(0), "batch"), lax.pmean((h**2).mean(0), "batch")
            h = jax.nn.relu((h - mean) * lax.rsqrt(square - mean**2 + 1e-5))
            h = jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0.0)
            return jnp.mean((h @ params["w2"] - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        grads = lax.pmean(grads, "batch")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), lax.pmean(value, "batch")

    run = jax.pmap(step, axis_name="batch", donate_argnums=0)
    params = {"w1": shape(8, 32, 64), "w2": shape(8, 64, 8)}
    return run, (params, shape(8, 16, 32), shape(8, 16, 8), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8)))


@program("devices", runs=False)
def expert_parallel_all_to_all():
    """Experts on eight devices: tokens dispatched by all_to_all under shard_map, ragged counts, and back."""
    m = mesh(8, names=("expert",))

    def layer(router, up, down, x):
        tokens, width = x.shape
        gates = jax.nn.softmax(x @ router)
        weight, expert = lax.top_k(gates, 1)
        chosen = jax.nn.one_hot(expert[:, 0], 8, dtype=jnp.int32)
        position = jnp.sum((jnp.cumsum(chosen, 0) - 1) * chosen, -1)
        sent = jnp.zeros((8, 24, width)).at[expert[:, 0], position].set(x, mode="drop")
        got = lax.all_to_all(sent, "expert", 0, 0, tiled=True)
        done = jax.nn.relu(got.reshape(-1, width) @ up[0]) @ down[0]
        back = lax.all_to_all(done.reshape(8, 24, width), "expert", 0, 0, tiled=True)
        return back[expert[:, 0], jnp.minimum(position, 23)] * weight

    mapped = jax.shard_map(layer, mesh=m, in_specs=(P(), P("expert"), P("expert"), P("expert")), out_specs=P("expert"))
    run = jax.jit(jax.grad(lambda *a: jnp.sum(mapped(*a) ** 2), argnums=(0, 1, 2)))
    put = lambda spec, *e: jax.ShapeDtypeStruct(e, jnp.float32, sharding=NamedSharding(m, P(*spec)))
    return run, (put((), 64, 8), put(("expert",), 8, 64, 256), put(("expert",), 8, 256, 64), put(("expert",), 1024, 64))


@program("devices", runs=False)
def fully_sharded_step_with_accumulation():
    """Parameters and moments cut over all devices, gathered layer by layer in a scan; four small batches to a step."""
    m = mesh(4, 2, names=("fsdp", "tensor"))
    width, layers = 1024, 8
    optimizer = optax.adamw(1e-3)

    def layer(x, w):
        up = lax.with_sharding_constraint(jax.nn.silu(x @ w["up"]), NamedSharding(m, P("fsdp", None, "tensor")))
        return x + up @ w["down"], None

    def loss(params, x):
        y, _ = lax.scan(jax.checkpoint(layer), x, params)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, batches):
        def add(total, x):
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(jnp.add, total, grads), value

        grads, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, values.mean()

    def cut(*extents, spec):
        return jax.ShapeDtypeStruct(extents, jnp.bfloat16, sharding=NamedSharding(m, spec))

    up, down = P(None, "fsdp", "tensor"), P(None, "tensor", "fsdp")
    params = {"up": cut(layers, width, 4 * width, spec=up), "down": cut(layers, 4 * width, width, spec=down)}
    state = jax.eval_shape(optimizer.init, params)
    batches = cut(4, 16, 128, width, spec=P(None, "fsdp"))
    return step, (params, state, batches)
