"""Programs for unseen.py, mostly in plain JAX: serving, layers of language models, reinforcement and search."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from layers import BF16, F32, S8, S32, U8, shape, tokens
from libraries import KEY, cross_entropy, initial, program, updated

# Serving.


def normal(x):
    """Divided by the root of the mean square."""
    return x * lax.rsqrt(jnp.mean(x.astype(F32) ** 2, -1, keepdims=True) + 1e-6).astype(x.dtype)


@program
def paged_cache_decode():
    """A token for each of many requests, whose caches are in pages; all buffers are donated."""
    depth, width, heads, groups, head = 3, 2048, 16, 4, 128
    page, pages, batch, most = 16, 4096, 64, 64

    def step(w, keys, values, table, lengths, words, key):
        x = w['emb'][words]

        def layer(of, i):
            x, keys, values = of
            p = jax.tree.map(lambda a: a[i], w['l'])
            h = normal(x)
            q = (h @ p['q']).reshape(batch, heads, head)
            k = (h @ p['k']).reshape(batch, groups, head)
            v = (h @ p['v']).reshape(batch, groups, head)
            place = table[jnp.arange(batch), lengths // page]
            keys = keys.at[i, place, lengths % page].set(k)
            values = values.at[i, place, lengths % page].set(v)
            all_keys = keys[i][table].reshape(batch, most * page, groups, head)
            all_values = values[i][table].reshape(batch, most * page, groups, head)
            grouped = q.reshape(batch, groups, heads // groups, head)
            s = jnp.einsum('bgrd,btgd->bgrt', grouped, all_keys).astype(F32) * head**-0.5
            s = jnp.where(jnp.arange(most * page) <= lengths[:, None, None, None], s, -jnp.inf)
            y = jnp.einsum('bgrt,btgd->bgrd', jax.nn.softmax(s).astype(BF16), all_values).reshape(batch, -1)
            x = x + y @ p['o']
            x = x + (jax.nn.silu(x @ p['g']) * (x @ p['u'])) @ p['d']
            return (x, keys, values), None

        (x, keys, values), _ = lax.scan(layer, (x, keys, values), jnp.arange(depth))
        best, words = lax.top_k((x @ w['emb'].T).astype(F32) / 0.7, 50)
        chosen = jnp.take_along_axis(words, jax.random.categorical(key, best)[:, None], 1)[:, 0]
        return keys, values, lengths + 1, chosen

    of = lambda *extents: shape(depth, *extents, dtype=BF16)
    narrow, inner = groups * head, 5632
    layers = dict(
        q=of(width, width),
        k=of(width, narrow),
        v=of(width, narrow),
        o=of(width, width),
        g=of(width, inner),
        u=of(width, inner),
        d=of(inner, width),
    )
    cache = of(pages, page, groups, head)
    weights = dict(emb=shape(32000, width, dtype=BF16), l=layers)
    return step, (weights, cache, cache, tokens(batch, most), tokens(batch), tokens(batch), KEY), (1, 2, 4)


@program
def beam_search_cache():
    """Beam search whose caches follow the beams."""
    depth, width, heads, words, batch, beams, length = 2, 512, 8, 16000, 16, 5, 128

    def decode(w, chosen, keys, values, t):
        x = w['emb'][chosen]
        for i in range(depth):
            q, k, v = [(x @ w[name][i]).reshape(batch, beams, heads, -1) for name in 'qkv']
            keys = keys.at[i, :, :, t].set(k)
            values = values.at[i, :, :, t].set(v)
            s = jnp.einsum('bkhd,bkthd->bkht', q, keys[i]).astype(F32) / 8
            s = jnp.where(jnp.arange(length) <= t, s, -1e9)
            y = jnp.einsum('bkht,bkthd->bkhd', jax.nn.softmax(s).astype(BF16), values[i])
            x = x + y.reshape(batch, beams, width) @ w['o'][i]
            x = x + jax.nn.gelu(x @ w['u'][i]) @ w['dn'][i]
        return jax.nn.log_softmax((x @ w['emb'].T).astype(F32)), keys, values

    def run(w, start):
        def goes_on(of):
            return (of[0] < length - 1) & ~jnp.all(of[4])

        def step(of):
            t, chosen, text, scores, is_done, keys, values = of
            likely, keys, values = decode(w, chosen, keys, values, t)
            only_end = jnp.where(jnp.arange(words) == 0, 0.0, -1e9)
            likely = jnp.where(is_done[..., None], only_end, likely)
            total = (scores[..., None] + likely).reshape(batch, -1)
            scores, best = lax.top_k(total, beams)
            beam, chosen = best // words, best % words

            def followed(x):
                return jnp.take_along_axis(x, beam.reshape(beam.shape + (1,) * (x.ndim - 2)), 1)

            text = followed(text).at[:, :, t + 1].set(chosen)
            is_done = followed(is_done) | (chosen == 0)
            keys, values = jax.vmap(followed)(keys), jax.vmap(followed)(values)
            return t + 1, chosen, text, scores, is_done, keys, values

        cache = jnp.zeros((depth, batch, beams, length, heads, width // heads), BF16)
        first = jnp.broadcast_to(start[:, None], (batch, beams))
        text = jnp.zeros((batch, beams, length), S32)
        scores = jnp.broadcast_to(jnp.where(jnp.arange(beams) == 0, 0.0, -1e9), (batch, beams))
        is_done = jnp.zeros((batch, beams), bool)
        found = lax.while_loop(goes_on, step, (0, first, text, scores, is_done, cache, cache))
        return found[2], found[3]

    of = lambda *extents: shape(depth, *extents, dtype=BF16)
    square = {name: of(width, width) for name in 'qkvo'}
    weights = dict(emb=shape(words, width, dtype=BF16), **square, u=of(width, 4 * width), dn=of(4 * width, width))
    return run, (weights, tokens(batch)), ()


@program
def fp8_int8_inference():
    """Two layers whose weights have eight bits, and a head of four."""
    f8, s4, width, inner = jnp.float8_e4m3fn, jnp.int4, 4096, 16384
    plain = (((1,), (0,)), ((), ()))

    def as_s8(x):
        scale = jnp.max(jnp.abs(x), -1, keepdims=True).astype(F32) / 127
        return jnp.round(x / scale).astype(S8), scale

    def by_s8(x, w, scale):
        rounded, of_x = as_s8(x)
        return (lax.dot_general(rounded, w, plain, preferred_element_type=S32) * of_x * scale).astype(BF16)

    def by_f8(x, w, scale):
        of_x = jnp.max(jnp.abs(x)).astype(F32) / 448
        y = lax.dot_general((x / of_x).astype(f8), w, plain, preferred_element_type=F32)
        return (y * of_x * scale).astype(BF16)

    def run(p, x):
        for q in p['l']:
            h = by_f8(x, q['q'], q['qs'])
            x = x + by_s8(jax.nn.gelu(by_s8(h, q['u'], q['us'])), q['d'], q['ds'])
        return x @ (p['w4'].astype(BF16).reshape(-1, 128, 8192) * p['w4s'][:, None]).reshape(-1, 8192)

    layer = dict(
        q=shape(width, width, dtype=f8),
        qs=shape(width),
        u=shape(width, inner, dtype=S8),
        us=shape(inner),
        d=shape(inner, width, dtype=S8),
        ds=shape(width),
    )
    head = dict(w4=shape(width, 8192, dtype=s4), w4s=shape(width // 128, 8192, dtype=BF16))
    return run, (dict(l=[layer, layer], **head), shape(4096, width, dtype=BF16)), ()


# Layers of language models.


@program
def moe_ragged_top2():
    """Experts by ragged products, two for each token, in a checkpointed loop."""
    width, inner, experts, each, count = 512, 1024, 16, 2, 16384

    def layer(p, x):
        likely = jax.nn.softmax((x @ p['r']).astype(F32))
        gates, chosen = lax.top_k(likely, each)
        gates = gates / gates.sum(-1, keepdims=True)
        chosen = chosen.reshape(-1)
        order = jnp.argsort(chosen, stable=True)
        sent = x[order // each]
        sizes = jnp.bincount(chosen, length=experts).astype(S32)
        h = jax.nn.silu(lax.ragged_dot(sent, p['g'], sizes)) * lax.ragged_dot(sent, p['u'], sizes)
        y = lax.ragged_dot(h, p['d'], sizes) * gates.reshape(-1)[order][:, None].astype(x.dtype)
        balance = experts * jnp.sum(likely.mean(0) * sizes / (count * each))
        return x + jnp.zeros_like(x).at[order // each].add(y), balance

    def step(p, x, y):
        def loss(p):
            h, balance = lax.scan(lambda x, q: jax.checkpoint(layer)(q, x), x, p)
            return jnp.mean((h - y).astype(F32) ** 2) + 0.01 * balance.sum()

        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda a, b: (a - 1e-3 * b.astype(F32)).astype(a.dtype), p, gradients), value

    of = lambda *extents: shape(2, *extents, dtype=BF16)
    parameters = dict(
        r=of(width, experts),
        g=of(experts, width, inner),
        u=of(experts, width, inner),
        d=of(experts, inner, width),
    )
    x = shape(count, width, dtype=BF16)
    return step, (parameters, x, x), (0,)


@program
def mamba2_chunks():
    """Gradients of two checkpointed Mamba-2 layers, whose sequence is in chunks."""
    batch, length, heads, head, n, chunk, width = 4, 4096, 16, 64, 64, 256, 512
    inner = heads * head

    def in_chunks(x, *extents):
        return x.reshape(batch, length // chunk, chunk, *extents)

    def mixed(x, dt, a, b, c):
        """The state space model: within chunks by products, between them by a loop."""
        x = in_chunks(x * dt[..., None], heads, head)
        a = in_chunks(a * dt, heads).transpose(0, 3, 1, 2)
        b, c = in_chunks(b, n), in_chunks(c, n)
        decay = jnp.cumsum(a, -1)
        between = decay[..., :, None] - decay[..., None, :]
        is_before = jnp.tril(jnp.ones((chunk, chunk), bool))
        within = jnp.exp(jnp.where(is_before, between, -jnp.inf))
        y = jnp.einsum('bcln,bcsn,bhcls,bcshp->bclhp', c, b, within, x)
        to_end = jnp.exp(decay[..., -1:] - decay)
        states = jnp.einsum('bcln,bhcl,bclhp->bchpn', b, to_end, x)

        def step(state, of):
            decay, new = of
            return state * decay[..., None, None] + new, state

        decays = jnp.exp(decay[..., -1]).transpose(2, 0, 1)
        start = jnp.zeros((batch, heads, head, n))
        _, before = lax.scan(step, start, (decays, states.transpose(1, 0, 2, 3, 4)))
        before = before.transpose(1, 0, 2, 3, 4)
        y = y + jnp.einsum('bcln,bchpn,bhcl->bclhp', c, before, jnp.exp(decay))
        return y.reshape(batch, length, inner)

    def block(x, p):
        z = (normal(x) * p['n']) @ p['in']
        gate, xbc, dt = jnp.split(z, [inner, 2 * inner + 2 * n], -1)
        shifted = [jnp.pad(xbc, ((0, 0), (3 - i, 0), (0, 0)))[:, :length] * p['c'][3 - i] for i in range(4)]
        x_, b, c = jnp.split(jax.nn.silu(sum(shifted)).astype(F32), [inner, inner + n], -1)
        x_ = x_.reshape(batch, length, heads, head)
        y = mixed(x_, jax.nn.softplus(dt.astype(F32) + p['db']), -jnp.exp(p['A']), b, c)
        y = y.astype(x.dtype) * jax.nn.silu(gate)
        return x + y @ p['out'], None

    def step(p, text):
        def loss(p):
            policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            x, _ = lax.scan(jax.checkpoint(block, policy=policy), p['emb'][text[:, :-1]], p['l'])
            return cross_entropy((x @ p['emb'].T).astype(F32), text[:, 1:]).mean()

        return jax.value_and_grad(loss)(p)

    depth = 2
    layers = {
        'n': shape(depth, width, dtype=BF16),
        'in': shape(depth, width, 2 * inner + 2 * n + heads, dtype=BF16),
        'c': shape(depth, 4, inner + 2 * n, dtype=BF16),
        'db': shape(depth, heads),
        'A': shape(depth, heads),
        'out': shape(depth, inner, width, dtype=BF16),
    }
    return step, (dict(emb=shape(16000, width, dtype=BF16), l=layers), tokens(batch, length + 1)), ()


@program
def flash_by_scan():
    """Gradients of attention in blocks, by a checkpointed loop over keys."""

    def attention(q, k, v, block=512):
        b, h, t, d = q.shape
        in_blocks = lambda x: x.reshape(b, h, t // block, block, d).transpose(2, 0, 1, 3, 4)
        k, v = in_blocks(k), in_blocks(v)
        at = jnp.arange(t)

        def step(of, some):
            y, highest, total, j = of
            k, v = some
            s = jnp.einsum('bhqd,bhkd->bhqk', q, k, preferred_element_type=F32) * d**-0.5
            s = jnp.where(at[:, None] >= j * block + jnp.arange(block), s, -1e30)
            higher = jnp.maximum(highest, s.max(-1))
            p = jnp.exp(s - higher[..., None])
            r = jnp.exp(highest - higher)
            new = jnp.einsum('bhqk,bhkd->bhqd', p.astype(BF16), v, preferred_element_type=F32)
            return (y * r[..., None] + new, higher, total * r + p.sum(-1), j + 1), None

        start = jnp.zeros(q.shape, F32), jnp.full(q.shape[:3], -1e30), jnp.zeros(q.shape[:3]), 0
        (y, _, total, _), _ = lax.scan(jax.checkpoint(step), start, (k, v))
        return (y / total[..., None]).astype(BF16)

    def loss(q, k, v, weights):
        return jnp.vdot(attention(q, k, v).astype(F32), weights.astype(F32))

    x = shape(4, 16, 4096, 64, dtype=BF16)
    return jax.grad(loss, (0, 1, 2)), (x, x, x, x), ()


# Reinforcement and search.


@program
def ppo_vmapped_envs():
    """Flax Linen and Optax: environments and PPO's epochs in one program."""

    class AC(nn.Module):
        @nn.compact
        def __call__(self, seen):
            h = nn.tanh(nn.Dense(256)(nn.tanh(nn.Dense(256)(seen))))
            v = nn.tanh(nn.Dense(256)(nn.tanh(nn.Dense(256)(seen))))
            return nn.Dense(8)(h), nn.Dense(1)(v)[..., 0]

    model, environments, steps, width = AC(), 4096, 64, 64
    parameters = initial(model, shape(1, width))
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))
    count = environments * steps

    def environment(s, action, w):
        after = jnp.tanh(s @ w + jax.nn.one_hot(action, width) * 0.5)
        reward = -jnp.sum(after**2)
        is_over = reward < -40.0
        return jnp.where(is_over, jnp.zeros_like(after), after), reward, is_over

    def act(p, s, w, key):
        logits, value = model.apply(p, s)
        action = jax.random.categorical(key, logits)
        likely = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        after, reward, is_over = jax.vmap(environment, (0, 0, None))(s, action, w)
        return after, dict(o=s, a=action, lp=likely, v=value, r=reward, d=is_over)

    def advantages(of, t):
        g, value = of
        goes_on = 1.0 - t['d']
        delta = t['r'] + 0.99 * value * goes_on - t['v']
        g = delta + 0.99 * 0.95 * goes_on * g
        return (g, t['v']), g

    def loss(p, b):
        logits, v = model.apply(p, b['o'])
        every = jax.nn.log_softmax(logits)
        likely = jnp.take_along_axis(every, b['a'][:, None], 1)[:, 0]
        r = jnp.exp(likely - b['lp'])
        a = (b['adv'] - b['adv'].mean()) / (b['adv'].std() + 1e-8)
        of_policy = -jnp.minimum(r * a, jnp.clip(r, 0.8, 1.2) * a).mean()
        return of_policy + 0.5 * jnp.mean((v - b['ret']) ** 2) + 0.01 * jnp.sum(jnp.exp(every) * every, -1).mean()

    def train(p, state, s, w, key):
        of_steps, of_epochs = jax.random.split(key)
        s, seen = lax.scan(lambda s, key: act(p, s, w, key), s, jax.random.split(of_steps, steps))
        _, last = model.apply(p, s)
        _, seen['adv'] = lax.scan(advantages, (jnp.zeros_like(last), last), seen, reverse=True, unroll=8)
        seen['ret'] = seen['adv'] + seen['v']

        def epoch(of, key):
            order = jax.random.permutation(key, count)

            def in_batches(x):
                return x.reshape(count, *x.shape[2:])[order].reshape(8, count // 8, *x.shape[2:])

            def step(of, batch):
                p, state, value = updated(optimizer, lambda p: loss(p, batch), *of)
                return (p, state), value

            return lax.scan(step, of, jax.tree.map(in_batches, seen))

        (p, state), values = lax.scan(epoch, (p, state), jax.random.split(of_epochs, 4))
        return p, state, s, values.mean()

    state = jax.eval_shape(optimizer.init, parameters)
    return train, (parameters, state, shape(environments, width), shape(width, width), KEY), (0, 1, 2)


@program
def replay_inplace():
    """A donated buffer of experience: new ones in, a sample by priorities out."""
    room, batch = 100000, 256

    def step(buffer, at, size, priorities, seen, actions, rewards, key, w):
        i = (at + jnp.arange(64)) % room
        new = dict(o=seen, a=actions, r=rewards)
        buffer = {name: buffer[name].at[i].set(new[name]) for name in 'oar'}
        priorities = priorities.at[i].set(priorities.max())
        weights = jnp.where(jnp.arange(room) < size, priorities, 0) ** 0.6
        sums = jnp.cumsum(weights)
        u = jax.random.uniform(key, (batch,)) * sums[-1]
        j = jnp.clip(jnp.searchsorted(sums, u), 0, room - 1)
        images = buffer['o'][j].astype(F32) / 255
        q = jnp.tanh(images.reshape(batch, -1) @ w)
        error = jnp.abs(buffer['r'][j] - q.max(-1))
        priorities = priorities.at[j].set(error + 1e-3)
        correction = (weights[j] / sums[-1] * room) ** -0.4
        return buffer, (at + 64) % room, jnp.minimum(size + 64, room), priorities, q, correction

    buffer = dict(o=shape(room, 42, 42, 4, dtype=U8), a=tokens(room), r=shape(room))
    new = shape(64, 42, 42, 4, dtype=U8), tokens(64), shape(64)
    return step, (buffer, tokens(), tokens(), shape(room), *new, KEY, shape(7056, 18)), (0, 1, 2, 3)


@program
def mcts_alphazero():
    """Tree search for many positions at once, in loops within a loop."""
    batch, nodes, actions, width = 256, 65, 64, 256

    def run(w, root):
        def net(h):
            z = jax.nn.relu(h @ w['a'])
            return z @ w['p'], jnp.tanh(z @ w['v'])[..., 0]

        b = jnp.arange(batch)
        logits, _ = net(root)
        tree = dict(
            n=jnp.zeros((batch, nodes)),
            q=jnp.zeros((batch, nodes)),
            ch=jnp.full((batch, nodes, actions), -1),
            cn=jnp.zeros((batch, nodes, actions)),
            cq=jnp.zeros((batch, nodes, actions)),
            pr=jnp.zeros((batch, nodes, actions)).at[:, 0].set(jax.nn.softmax(logits)),
            par=jnp.full((batch, nodes), -1),
            act=jnp.zeros((batch, nodes), S32),
            emb=jnp.zeros((batch, nodes, width)).at[:, 0].set(root),
        )

        def root_of_visits(t, n):
            return jnp.sqrt(t['cn'][b, n].sum(-1, keepdims=True) + 1)

        def selected(t):
            """Down from the root to a node and an action that was not tried there."""

            def step(of):
                n, a, is_inside = of
                scores = t['cq'][b, n] + 1.25 * t['pr'][b, n] * root_of_visits(t, n) / (1 + t['cn'][b, n])
                best = scores.argmax(-1)
                child = t['ch'][b, n, best]
                deeper = jnp.where(is_inside & (child >= 0), child, n)
                return deeper, jnp.where(is_inside, best, a), is_inside & (child >= 0)

            start = jnp.zeros(batch, S32), jnp.zeros(batch, S32), jnp.ones(batch, bool)
            n, a, _ = lax.while_loop(lambda of: jnp.any(of[2]), step, start)
            return n, a

        def back(of):
            """Up by a node, with the value of a new one."""
            n, a, v, t = of
            is_node = n >= 0
            at = jnp.maximum(n, 0)
            visits, value = t['cn'][b, at, a], t['cq'][b, at, a]
            m = is_node.astype(F32)
            t = dict(
                t,
                cq=t['cq'].at[b, at, a].add(m * (v - value) / (visits + 1)),
                cn=t['cn'].at[b, at, a].add(m),
            )
            return jnp.where(is_node, t['par'][b, at], -1), t['act'][b, at], -v * 0.99, t

        def simulate(i, t):
            n, a = selected(t)
            h = jnp.tanh(t['emb'][b, n] @ w['d'] + w['e'][a])
            logits, v = net(h)
            t = dict(
                t,
                emb=t['emb'].at[:, i].set(h),
                pr=t['pr'].at[:, i].set(jax.nn.softmax(logits)),
                par=t['par'].at[:, i].set(n),
                act=t['act'].at[:, i].set(a),
                ch=t['ch'].at[b, n, a].set(i),
            )
            return lax.while_loop(lambda of: jnp.any(of[0] >= 0), back, (n, a, v, t))[3]

        tree = lax.fori_loop(1, nodes, simulate, tree)
        return tree['cn'][:, 0] / tree['cn'][:, 0].sum(-1, keepdims=True), tree['cq'][:, 0]

    weights = dict(
        a=shape(width, 512),
        p=shape(512, actions),
        v=shape(512, 1),
        d=shape(width, width),
        e=shape(actions, width),
    )
    return run, (weights, shape(batch, width)), ()
