"""Pieces of models as they are written lately: routing, quantisation, paged caches, offloading, optimizers, sampling."""

import functools

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import SingleDeviceSharding
from program import integers, normal, program, shape, shapes_of


def blocks(layers, width, dtype=jnp.float32):
    """Parameters of transformer blocks, stacked for a scan."""
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    return {name: (normal(i, layers, *s) / s[0] ** 0.5).astype(dtype) for i, (name, s) in enumerate(shapes.items())}


def block(x, p, heads=4):
    batch, length, width = x.shape
    norm = lambda h: h * lax.rsqrt(jnp.mean(jnp.square(h), -1, keepdims=True) + 1e-6)
    q, k, v = (a.reshape(batch, length, heads, -1) for a in jnp.split(checkpoint_name(norm(x) @ p["qkv"], "qkv"), 3, -1))
    x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ p["out"]
    return checkpoint_name(x, "residual") + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def scanned_loss(params, x, policy):
    body = jax.checkpoint(lambda h, p: (block(h, p), None), policy=policy)
    return jnp.mean(lax.scan(body, x, params)[0] ** 2)


@program("jax")
def remat_policy_dots_saveable():
    """A scan of checkpointed blocks that keeps products without batch dimensions; plain descent, parameters donated."""
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, x):
        value, grads = jax.value_and_grad(scanned_loss)(params, x, policy)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value

    return step, (blocks(3, 32), normal(9, 2, 24, 32))


@program("jax", runs=False)
def remat_policy_offloads_to_host():
    """The same at a size where it is done: named residuals go to the host's memory and come back in the backward pass."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["qkv"], names_which_can_be_offloaded=["residual"], offload_src="device", offload_dst="pinned_host"
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, x):
        value, grads = jax.value_and_grad(scanned_loss)(params, x, policy)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value

    params = shapes_of(lambda: blocks(12, 1024, jnp.bfloat16))
    return step, (params, shape(8, 1024, 1024, dtype=jnp.bfloat16))


@program("jax", runs=False)
def optimizer_state_on_host():
    """Adam whose moments live in the host's memory between steps and are donated there."""
    device, host = (SingleDeviceSharding(jax.devices()[0], memory_kind=kind) for kind in ("device", "pinned_host"))
    optimizer = optax.adam(1e-3)
    on = lambda where, tree: jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where), tree)
    params = shapes_of(lambda: blocks(6, 512))
    state = jax.eval_shape(optimizer.init, params)

    def step(params, state, x):
        value, grads = jax.value_and_grad(scanned_loss)(params, x, None)
        updates, state = optimizer.update(grads, jax.device_put(state, device), params)
        return optax.apply_updates(params, updates), jax.device_put(state, host), value

    out = (on(device, params), on(host, state))
    placed = jax.tree.map(lambda a: a.sharding, out)
    step = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*placed, device))
    return step, (*out, jax.ShapeDtypeStruct((4, 512, 512), jnp.float32, sharding=device))


@program("jax")
def dropless_experts_ragged_dot():
    """Experts without a capacity: tokens sorted by expert, ragged products, sorted back; and its gradient."""

    def layer(params, x):
        experts = params["up"].shape[0]
        weight, expert = lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
        order = jnp.argsort(expert.reshape(-1), stable=True)
        sizes = jnp.bincount(expert.reshape(-1), length=experts).astype(jnp.int32)
        sorted_x = x[order // 2]
        hidden = jax.nn.silu(lax.ragged_dot(sorted_x, params["gate"], sizes)) * lax.ragged_dot(sorted_x, params["up"], sizes)
        out = lax.ragged_dot(hidden, params["down"], sizes)
        back = jnp.zeros_like(out).at[order].set(out).reshape(*expert.shape, -1)
        return jnp.sum(back * weight[..., None], 1)

    @jax.jit
    def step(params, x, y):
        return jax.value_and_grad(lambda p: jnp.mean((layer(p, x) - y) ** 2))(params)

    params = {"router": normal(0, 16, 6), "gate": normal(1, 6, 16, 24) / 4, "up": normal(2, 6, 16, 24) / 4, "down": normal(3, 6, 24, 16) / 5}
    return step, (params, normal(4, 40, 16), normal(5, 40, 16))


@program("jax")
def int4_weights_grouped_scales():
    """Weights of 4 bits with a scale for each group of 16 rows, unpacked in the product (as AWQ and GPTQ do); also packed in bytes."""

    @jax.jit
    def forward(layers, packed, x):
        for weights, scales in layers:
            groups = weights.reshape(-1, 16, weights.shape[1]).astype(jnp.bfloat16)
            full = (groups * scales[:, None].astype(jnp.bfloat16)).reshape(weights.shape)
            x = jax.nn.gelu(jnp.dot(x, full, preferred_element_type=jnp.float32)).astype(jnp.bfloat16)
        low, high = (packed << 4) >> 4, packed >> 4
        nibbles = jnp.stack([low, high], 1).reshape(-1, packed.shape[1])
        return x, jnp.dot(x.astype(jnp.float32), nibbles.astype(jnp.float32) / 8)

    def layer(seed, rows, columns):
        return integers(seed, 16, rows, columns).astype(jnp.int4), jnp.abs(normal(seed + 1, rows // 16, columns)) / 16

    packed = integers(7, 256, 24, 20).astype(jnp.int8)
    return forward, ([layer(0, 64, 96), layer(2, 96, 48)], packed, normal(9, 8, 64, dtype=jnp.bfloat16))


@program("jax")
def fp8_training_scan():
    """Products in e4m3 forward and e5m2 backward, scaled by the largest element, in a scan over layers of bfloat16."""

    def quantised(x, dtype):
        scale = jnp.max(jnp.abs(x)).astype(jnp.float32) / float(jnp.finfo(dtype).max) + 1e-12
        return (x / scale.astype(x.dtype)).astype(dtype), scale

    def product(x, w, forward, backward):
        (a, s), (b, t) = quantised(x, forward), quantised(w, backward)
        return (jnp.dot(a, b, preferred_element_type=jnp.float32) * (s * t)).astype(jnp.bfloat16)

    @jax.custom_vjp
    def dense(x, w):
        return product(x, w, jnp.float8_e4m3fn, jnp.float8_e4m3fn)

    def forward(x, w):
        return dense(x, w), (x, w)

    def backward(kept, g):
        x, w = kept
        return product(g, w.T, jnp.float8_e5m2, jnp.float8_e4m3fn), product(x.T, g, jnp.float8_e4m3fn, jnp.float8_e5m2)

    dense.defvjp(forward, backward)

    @jax.jit
    def step(params, x):
        def loss(params):
            h, _ = lax.scan(lambda h, w: (h + jax.nn.relu(dense(h, w)), None), x, params)
            return jnp.mean(h.astype(jnp.float32) ** 2)

        return jax.value_and_grad(loss)(params)

    return step, ((normal(0, 3, 32, 32) / 8).astype(jnp.bfloat16), normal(1, 24, 32, dtype=jnp.bfloat16))


@program("jax")
def paged_attention_decode():
    """One token for each sequence with a cache in pages: tables of blocks, a scatter into donated pages, lengths as masks."""

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def decode(params, keys, values, tables, lengths, x):
        batch, pages = tables.shape
        n_pages, page, heads, width = keys.shape
        q, k, v = ((x @ params[name]).reshape(batch, heads, width) for name in ("q", "k", "v"))
        at = jnp.take_along_axis(tables, (lengths // page)[:, None], 1)[:, 0]
        keys = keys.at[at, lengths % page].set(k)
        values = values.at[at, lengths % page].set(v)
        k_all, v_all = (cache[tables].reshape(batch, pages * page, heads, width) for cache in (keys, values))
        scores = jnp.einsum("bhd,bthd->bht", q, k_all) / width**0.5
        seen = jnp.arange(pages * page) <= lengths[:, None]
        weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), -1)
        out = jnp.einsum("bht,bthd->bhd", weights, v_all).reshape(batch, -1) @ params["o"]
        return out, keys, values, lengths + 1

    params = {name: normal(i, 24, 24) / 5 for i, name in enumerate("qkvo")}
    tables = jax.random.permutation(jax.random.key(9), 16)[:12].reshape(3, 4)
    return decode, (params, normal(5, 16, 4, 3, 8), normal(6, 16, 4, 3, 8), tables, jnp.array([5, 0, 13]), normal(7, 3, 24))


@program("jax")
def grouped_query_rotary_window():
    """Grouped queries, rotary positions, a sliding window and a soft cap, by blocks of queries with dynamic slices of keys."""

    def rotary(x):
        length, _, width = x.shape
        angle = jnp.arange(length)[:, None] * 10_000.0 ** (-jnp.arange(0, width, 2) / width)
        sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]
        even, odd = x[..., ::2], x[..., 1::2]
        return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def attend(q, k, v, window=16, size=8):
        length, heads, width = q.shape
        groups = k.shape[1]
        k, v = (jnp.pad(a, ((window, 0), (0, 0), (0, 0))) for a in (k, v))

        def one(start):
            q_block = lax.dynamic_slice_in_dim(q, start, size).reshape(size, groups, heads // groups, width)
            k_block, v_block = (lax.dynamic_slice_in_dim(a, start, size + window) for a in (k, v))
            scores = jnp.einsum("qghd,kgd->ghqk", q_block, k_block) / width**0.5
            distance = jnp.arange(size)[:, None] + window - jnp.arange(size + window)
            real = jnp.arange(size + window) + start >= window
            scores = 30 * jnp.tanh(scores / 30)
            scores = jnp.where((distance >= 0) & (distance <= window) & real, scores, -1e30)
            return jnp.einsum("ghqk,kgd->qghd", jax.nn.softmax(scores), v_block).reshape(size, heads, width)

        return lax.map(one, jnp.arange(0, length, size)).reshape(q.shape)

    @jax.jit
    def layer(w, x):
        def loss(w, x):
            q, k, v = (jnp.einsum("td,dhk->thk", x, w[name]) for name in ("q", "k", "v"))
            return jnp.sum(jnp.square(jnp.einsum("thk,hkd->td", attend(rotary(q), rotary(k), v), w["o"])))

        return jax.value_and_grad(loss)(w, x)

    w = {"q": normal(0, 24, 6, 8), "k": normal(1, 24, 2, 8), "v": normal(2, 24, 2, 8), "o": normal(3, 6, 8, 24)}
    return layer, (jax.tree.map(lambda a: a / 5, w), normal(4, 48, 24))


@program("jax")
def state_space_duality_chunks():
    """Mamba-2: products within chunks, a scan of states between them, segment sums by cumulative sums; and its gradient."""

    def segment_sums(a):
        total = jnp.cumsum(a, -1)
        lower = jnp.tril(jnp.ones((a.shape[-1],) * 2, bool))
        return jnp.where(lower, total[..., :, None] - total[..., None, :], -jnp.inf)

    def mix(x, a, b, c, size=8):
        x, a, b, c = (t.reshape(t.shape[0] // size, size, *t.shape[1:]) for t in (x, a, b, c))
        a = a.transpose(2, 0, 1)
        total = jnp.cumsum(a, -1)
        within = jnp.einsum("cln,csn,hcls,cshp->clhp", c, b, jnp.exp(segment_sums(a)), x)
        states = jnp.einsum("cln,hcl,clhp->chpn", b, jnp.exp(total[..., -1:] - total), x)

        def carry(state, inputs):
            decay, new = inputs
            return state * jnp.exp(decay)[:, None, None] + new, state

        _, before = lax.scan(carry, jnp.zeros_like(states[0]), (total[..., -1].T, states))
        across = jnp.einsum("cln,chpn,hcl->clhp", c, before, jnp.exp(total))
        return (within + across).reshape(-1, *x.shape[2:])

    @jax.jit
    def step(params, x):
        def loss(params):
            heads = (x @ params["x"]).reshape(len(x), 4, 6)
            return jnp.mean(mix(heads, -jax.nn.softplus(x @ params["a"]), x @ params["b"], x @ params["c"]) ** 2)

        return jax.value_and_grad(loss)(params)

    params = {"x": normal(0, 16, 24), "a": normal(1, 16, 4), "b": normal(2, 16, 5), "c": normal(3, 16, 5)}
    return step, (jax.tree.map(lambda w: w / 4, params), normal(4, 40, 16))


@program("jax")
def muon_orthogonalised_momentum():
    """Muon: momentum orthogonalised by Newton-Schulz in a loop of bfloat16 for matrices, Adam for the rest; all donated."""

    def orthogonal(g, steps=5):
        x = g.astype(jnp.bfloat16)
        x = x.T if g.shape[0] > g.shape[1] else x
        x = x / (jnp.linalg.norm(x) + 1e-7)

        def iterate(_, x):
            a = x @ x.T
            return 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x

        x = lax.fori_loop(0, steps, iterate, x)
        return (x.T if g.shape[0] > g.shape[1] else x).astype(g.dtype)

    adam = optax.adam(1e-2)

    def loss(params, x, y):
        for w, b in zip(params["matrices"], params["biases"]):
            x = jnp.tanh(x @ w + b)
        return jnp.mean((x - y) ** 2)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, momentum, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        momentum = jax.tree.map(lambda m, g: 0.95 * m + g, momentum, grads["matrices"])
        matrices = jax.tree.map(lambda w, m, g: w - 0.02 * orthogonal(g + 0.95 * m), params["matrices"], momentum, grads["matrices"])
        updates, state = adam.update(grads["biases"], state)
        return {"matrices": matrices, "biases": optax.apply_updates(params["biases"], updates)}, momentum, state, value

    sizes = [12, 40, 24, 4]
    matrices = [normal(i, a, b) / a**0.5 for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]
    biases = [jnp.zeros(b) for b in sizes[1:]]
    params = {"matrices": matrices, "biases": biases}
    return step, (params, [jnp.zeros_like(m) for m in matrices], adam.init(biases), normal(7, 16, 12), normal(8, 16, 4))


@program("optax")
def scanned_steps_with_accumulation():
    """Eight steps in one scan: clipping, AdamW on a schedule, gradients of two batches each, an average of the weights."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 8)
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-3, mask=lambda p: jax.tree.map(lambda a: a.ndim > 1, p)))
    optimizer = optax.MultiSteps(inner, every_k_schedule=2)

    def loss(params, x, y):
        hidden = jax.nn.swish(x @ params["w"] + params["b"])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["v"], y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def epoch(params, state, average, x, y):
        def one(carry, batch):
            params, state, average = carry
            value, grads = jax.value_and_grad(loss)(params, *batch)
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            return (params, state, optax.incremental_update(params, average, 0.01)), value

        return lax.scan(one, (params, state, average), (x, y))

    params = {"w": normal(0, 12, 24) / 4, "b": jnp.zeros(24), "v": normal(1, 24, 5) / 5}
    return epoch, (params, optimizer.init(params), jax.tree.map(jnp.copy, params), normal(2, 8, 16, 12), integers(3, 5, 8, 16))


@program("optax")
def ctc_speech_train():
    """Strided convolutions over frames, a bidirectional GRU of scans in both directions, CTC with padding."""

    def gru(params, x, reverse):
        def cell(h, row):
            gates = jax.nn.sigmoid(row @ params["wg"] + h @ params["ug"])
            reset, update = jnp.split(gates, 2, -1)
            new = jnp.tanh(row @ params["wh"] + (reset * h) @ params["uh"])
            h = update * h + (1 - update) * new
            return h, h

        return lax.scan(cell, jnp.zeros((x.shape[1], 12)), x, reverse=reverse, unroll=2)[1]

    def loss(params, frames, labels, padding):
        x = jax.nn.relu(lax.conv_general_dilated(frames, params["conv"], (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))
        x = x.transpose(1, 0, 2)
        x = jnp.concatenate([gru(params["forward"], x, False), gru(params["backward"], x, True)], -1)
        logits = (x @ params["head"]).transpose(1, 0, 2)
        return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, padding).mean()

    def cells(seed):
        return {"wg": normal(seed, 16, 24) / 4, "ug": normal(seed + 1, 12, 24) / 4, "wh": normal(seed + 2, 16, 12) / 4, "uh": normal(seed + 3, 12, 12) / 4}

    params = {"conv": normal(0, 5, 10, 16) / 7, "forward": cells(1), "backward": cells(5), "head": normal(9, 24, 8) / 5}
    padding = jnp.where(jnp.arange(6) < jnp.array([[6], [4], [3]]), 0.0, 1.0)
    return jax.jit(jax.value_and_grad(loss)), (params, normal(10, 3, 32, 10), 1 + integers(11, 7, 3, 6), padding)


@program("jax")
def speculative_decoding():
    """A small model drafts four tokens, the large one judges them at once; a while loop until the text is long enough."""

    def logits(params, tokens):
        x = params["embed"][tokens]
        for w in params["layers"]:
            mixed = jnp.cumsum(x, 0) / jnp.arange(1, len(x) + 1)[:, None]
            x = x + jnp.tanh(mixed @ w)
        return x @ params["embed"].T

    @functools.partial(jax.jit, donate_argnums=2)
    def generate(large, small, tokens, start, key):
        ahead = 4

        def draft(i, tokens, at):
            token = jnp.argmax(logits(small, tokens)[at + i - 1]).astype(tokens.dtype)
            return tokens.at[at + i].set(token)

        def step(state):
            tokens, at, key, accepted = state
            drafted = lax.fori_loop(0, ahead, lambda i, t: draft(i, t, at), tokens)
            judged = lax.dynamic_slice_in_dim(jnp.argmax(logits(large, drafted), -1).astype(tokens.dtype), at - 1, ahead + 1)
            proposed = lax.dynamic_slice_in_dim(drafted, at, ahead)
            good = jnp.sum(jnp.cumprod(proposed == judged[:ahead]))
            tokens = lax.dynamic_update_slice_in_dim(tokens, judged, at, 0)
            return tokens, at + good + 1, jax.random.split(key)[0], accepted + good

        return lax.while_loop(lambda s: s[1] < len(tokens) - 5, step, (tokens, start, key, 0))

    def model(seed, layers):
        return {"embed": normal(seed, 20, 16), "layers": [normal(seed + 1 + i, 16, 16) / 4 for i in range(layers)]}

    tokens = jnp.zeros(40, jnp.int32).at[:4].set(integers(9, 20, 4))
    return generate, (model(0, 3), model(0, 1), tokens, jnp.int32(4), jax.random.key(5))


@program("jax")
def two_tower_recommender():
    """Bags of embeddings by segment sums, sampled softmax with in-batch negatives, sparse gradients by scatter, top items."""

    def bag(table, ids, weights):
        rows = jnp.repeat(jnp.arange(ids.shape[0]), ids.shape[1])
        return jax.ops.segment_sum(table[ids.reshape(-1)] * weights.reshape(-1, 1), rows, ids.shape[0], indices_are_sorted=True)

    def loss(params, users, weights, items):
        u = jnp.tanh(bag(params["users"], users, weights) @ params["w"])
        v = params["items"][items]
        scores = u @ v.T / 0.1
        same = items[:, None] == items[None]
        masked = jnp.where(same & ~jnp.eye(len(items), dtype=bool), -jnp.inf, scores)
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(masked)))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, users, weights, items):
        value, grads = jax.value_and_grad(loss)(params, users, weights, items)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        scores = jnp.tanh(bag(params["users"], users, weights) @ params["w"]) @ params["items"].T
        best, which = lax.approx_max_k(scores, 5)
        return params, value, best, jnp.mean(jnp.any(which == items[:, None], 1))

    params = {"users": normal(0, 100, 16) / 4, "items": normal(1, 60, 12) / 4, "w": normal(2, 16, 12) / 4}
    return step, (params, integers(3, 100, 12, 7), jax.random.uniform(jax.random.key(4), (12, 7)), integers(5, 60, 12))


@program("jax", runs=False)
def callbacks_while_training():
    """What people put in to look at a run: debug.print, debug.callback, an ordered io_callback and a pure_callback in a scan."""
    import numpy as np
    from jax.experimental import io_callback

    def loss(w, x, y):
        prediction = jax.pure_callback(lambda a: np.sort(np.asarray(a), 0), jax.ShapeDtypeStruct((16, 4), jnp.float32), lax.stop_gradient(x @ w))
        return jnp.mean((x @ w - y) ** 2) + 0.1 * jnp.mean(prediction)

    @functools.partial(jax.jit, donate_argnums=0)
    def train(w, x, y):
        def one(carry, i):
            w, count = carry
            value, grad = jax.value_and_grad(loss)(w, x, y)
            jax.debug.print("step {} loss {}", i, value)
            lax.cond(jnp.isnan(value), lambda: jax.debug.callback(print, w), lambda: None)
            count = io_callback(lambda c: np.int32(c + 1), jax.ShapeDtypeStruct((), jnp.int32), count, ordered=True)
            return (w - 0.1 * grad, count), value

        return lax.scan(one, (w, jnp.int32(0)), jnp.arange(5))

    return train, (normal(0, 8, 4), normal(1, 16, 8), normal(2, 16, 4))
