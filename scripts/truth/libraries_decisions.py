"""Programs for unseen.py, second batch: agents, beliefs, tables and genomes."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from layers import BF16, F32, S32, U8, shape, tokens
from libraries import KEY, initial, program, training, updated, updated_with

# Agents.


@program
def redq_updates():
    """Flax Linen: ten critics vmapped and an actor, twenty updates in a scan, samples from a buffer on the device."""
    room, batch, seen, actions, critics = 200_000, 256, 64, 12, 10

    class Critic(nn.Module):
        @nn.compact
        def __call__(self, s, a):
            x = jnp.concatenate([s, a], -1)
            for _ in range(2):
                x = nn.relu(nn.LayerNorm()(nn.Dense(512)(x)))
            return nn.Dense(1)(x)[..., 0]

    class Actor(nn.Module):
        @nn.compact
        def __call__(self, s):
            for _ in range(2):
                s = nn.relu(nn.Dense(512)(s))
            return jnp.split(nn.Dense(2 * actions)(s), 2, -1)

    ensemble = nn.vmap(Critic, variable_axes=dict(params=0), split_rngs=dict(params=True), in_axes=None, axis_size=critics)()
    actor, optimizer = Actor(), optax.adam(3e-4)

    def drawn(p, s, key):
        mean, deviation = actor.apply(p, s)
        deviation = jnp.exp(jnp.clip(deviation, -10, 2))
        u = mean + deviation * jax.random.normal(key, mean.shape)
        likely = -0.5 * ((u - mean) / deviation) ** 2 - jnp.log(deviation) - 2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u))
        return jnp.tanh(u), likely.sum(-1)

    def train(of, buffer, size, key):
        def update(of, key):
            keys = jax.random.split(key, 4)
            i = jax.random.randint(keys[0], (batch,), 0, size)
            s, a, r, after, goes_on = [buffer[name][i] for name in ('s', 'a', 'r', 'n', 'g')]
            alpha = jnp.exp(of['alpha'])
            new, likely = drawn(of['actor'], after, keys[1])
            two = jax.random.choice(keys[2], critics, (2,), replace=False)
            value = ensemble.apply(of['target'], after, new)[two].min(0) - alpha * likely
            wanted = r + 0.99 * goes_on * value

            def of_critics(p):
                return jnp.mean((ensemble.apply(p, s, a) - wanted) ** 2)

            critic, critic_state, error = updated(optimizer, of_critics, of['critic'], of['critic_state'])

            def of_actor(p):
                new, likely = drawn(p, s, keys[3])
                return jnp.mean(alpha * likely - ensemble.apply(critic, s, new).mean(0)), likely.mean()

            p, actor_state, _, likely = updated_with(optimizer, of_actor, of['actor'], of['actor_state'])
            target = optax.incremental_update(critic, of['target'], 0.005)
            alpha = of['alpha'] - 3e-4 * -(likely - actions)
            after = dict(actor=p, critic=critic, target=target, actor_state=actor_state, critic_state=critic_state, alpha=alpha)
            return after, error

        return lax.scan(update, of, jax.random.split(key, 20))

    s, a = shape(batch, seen), shape(batch, actions)
    of_critic, of_actor = initial(ensemble, s, a), initial(actor, s)
    states = [jax.eval_shape(optimizer.init, p) for p in (of_actor, of_critic)]
    of = dict(actor=of_actor, critic=of_critic, target=of_critic, actor_state=states[0], critic_state=states[1], alpha=shape())
    buffer = dict(s=shape(room, seen), a=shape(room, actions), r=shape(room), n=shape(room, seen), g=shape(room))
    return train, (of, buffer, tokens(), KEY), (0,)


@program
def haiku_impala():
    """Haiku: a residual network over pictures, an LSTM over time, and V-trace with RMSProp."""
    time, batch, actions = 20, 32, 15

    class Net(hk.Module):
        def __init__(self):
            super().__init__()
            self.core = hk.ResetCore(hk.LSTM(256))

        def initial_state(self, batch_size):
            return self.core.initial_state(batch_size)

        def body(self, x):
            x = x.astype(F32) / 255
            for width in (16, 32, 32):
                x = hk.max_pool(hk.Conv2D(width, 3)(x), (1, 3, 3, 1), (1, 2, 2, 1), 'SAME')
                for _ in range(2):
                    x = x + hk.Conv2D(width, 3)(jax.nn.relu(hk.Conv2D(width, 3)(jax.nn.relu(x))))
            return jax.nn.relu(hk.Linear(256)(hk.Flatten()(jax.nn.relu(x))))

        def unroll(self, images, last, rewards, first, state):
            x = hk.BatchApply(self.body)(images)
            x = jnp.concatenate([x, jax.nn.one_hot(last, actions), jnp.clip(rewards, -1, 1)[..., None]], -1)
            x, _ = hk.dynamic_unroll(self.core, (x, first), state)
            return hk.BatchApply(hk.Linear(actions))(x), hk.BatchApply(hk.Linear(1))(x)[..., 0]

    def net(images, last, rewards, first):
        model = Net()
        return model.unroll(images, last, rewards, first, model.initial_state(batch))

    model = hk.without_apply_rng(hk.transform(net))

    def corrected(ratio, discounts, rewards, values):
        clipped = jnp.minimum(ratio, 1.0)
        delta = clipped * (rewards + discounts * values[1:] - values[:-1])

        def back(total, of):
            delta, discount, c = of
            total = delta + discount * c * total
            return total, total

        _, errors = lax.scan(back, jnp.zeros(batch), (delta, discounts, 0.95 * clipped), reverse=True)
        wanted = errors + values[:-1]
        following = jnp.concatenate([wanted[1:], values[-1:]])
        return errors, clipped * (rewards + discounts * following - values[:-1])

    def loss(p, images, last, rewards, first, taken, old):
        logits, values = model.apply(p, images, last, rewards, first)
        every = jax.nn.log_softmax(logits[:-1])
        likely = jnp.take_along_axis(every, taken[..., None], -1)[..., 0]
        before = jnp.take_along_axis(jax.nn.log_softmax(old), taken[..., None], -1)[..., 0]
        discounts = 0.99 * (1.0 - first[1:])
        ratio = lax.stop_gradient(jnp.exp(likely - before))
        errors, better = jax.tree.map(lax.stop_gradient, corrected(ratio, discounts, rewards[1:], lax.stop_gradient(values)))
        of_values = 0.5 * jnp.sum((values[:-1] - lax.stop_gradient(errors + values[:-1])) ** 2)
        entropy = -jnp.sum(jnp.exp(every) * every)
        return -jnp.sum(likely * better) + 0.5 * of_values - 0.01 * entropy

    images = shape(time + 1, batch, 72, 96, 3, dtype=U8)
    others = tokens(time + 1, batch), shape(time + 1, batch), shape(time + 1, batch, dtype=bool)
    optimizer = optax.chain(optax.clip_by_global_norm(40.0), optax.rmsprop(6e-4, 0.99, 0.01))
    batch_of = images, *others, tokens(time, batch), shape(time, batch, actions)
    return training(loss, optimizer, initial(model, images, *others), *batch_of)


# Beliefs.


@program
def particle_filter_paths():
    """Particle filters of many series at once: particles are drawn again where few count, and their paths are kept."""
    series, particles, steps, width = 32, 4096, 100, 4

    def of_series(key, seen, drift):
        def step(of, now):
            x, logs, evidence = of
            key, y = now
            a, b = jax.random.split(key)
            x = x + 0.1 * jnp.tanh(x @ drift) + 0.2 * jax.random.normal(a, x.shape)
            logs = logs - 0.5 * jnp.sum((y - x[:, :2] ** 2 / 5) ** 2, -1) / 0.3
            total = jax.nn.logsumexp(logs)
            odds = jnp.exp(logs - total)
            few = 1 / jnp.sum(odds**2) < particles / 2

            def again(_):
                u = (jnp.arange(particles) + jax.random.uniform(b)) / particles
                return jnp.clip(jnp.searchsorted(jnp.cumsum(odds), u), 0, particles - 1)

            parents = lax.cond(few, again, lambda _: jnp.arange(particles), None)
            logs = jnp.where(few, -jnp.log(1.0 * particles), logs - total)
            return (x[parents], logs, evidence + total), (x, parents, odds @ x)

        start = jnp.zeros((particles, width)), jnp.full(particles, -jnp.log(1.0 * particles)), 0.0
        (_, logs, evidence), (xs, parents, means) = lax.scan(step, start, (jax.random.split(key, steps), seen))

        def back(i, of):
            x, parents = of
            return parents[i], x[parents[i]]

        chosen = jax.random.categorical(key, logs, shape=(256,))
        _, paths = lax.scan(back, chosen, (xs, parents), reverse=True)
        return evidence, means, paths

    def run(key, seen, drift):
        return jax.vmap(of_series, (0, 0, None))(jax.random.split(key, series), seen, drift)

    return run, (KEY, shape(series, steps, 2), shape(width, width)), ()


@program
def parallel_tempering():
    """Chains at sixteen temperatures for a small Bayesian network, with Langevin proposals and exchanges."""
    chains, rungs, rows, width, hidden = 16, 16, 2048, 16, 32
    size = width * hidden + 2 * hidden + 1

    def energy(w, x, y):
        a = w[: width * hidden].reshape(width, hidden)
        b, c = w[width * hidden : -1 - hidden], w[-1 - hidden : -1]
        return 0.5 * jnp.sum((jnp.tanh(x @ a + b) @ c + w[-1] - y) ** 2) / 0.1, 0.5 * jnp.sum(w**2)

    def run(w, inverse, x, y, key):
        def whole(w, b):
            u, prior = energy(w, x, y)
            return b * u + prior, u

        slope = jax.value_and_grad(whole, has_aux=True)

        def move(w, b, key):
            of_noise, of_choice = jax.random.split(key)
            h = 1e-4 / jnp.maximum(b, 0.01)
            (e, u), g = slope(w, b)
            noise = jax.random.normal(of_noise, w.shape)
            new = w - h * g + jnp.sqrt(2 * h) * noise
            (e2, u2), g2 = slope(new, b)
            back = jnp.sum((w - new + h * g2) ** 2) / (4 * h)
            ratio = e - e2 + 0.5 * jnp.sum(noise**2) - back
            taken = jnp.log(jax.random.uniform(of_choice)) < ratio
            return jnp.where(taken, new, w), jnp.where(taken, u2, u), taken

        def exchange(w, u, key, odd):
            i = jnp.arange(rungs)
            other = jnp.where((i + odd) % 2 == 0, i + 1, i - 1)
            other = jnp.where((other < 0) | (other >= rungs), i, other)
            ratio = (inverse[i] - inverse[other]) * (u[i] - u[other])
            draw = jnp.log(jax.random.uniform(key, (rungs,)))
            taken = draw[jnp.minimum(i, other)] < ratio
            return w[jnp.where(taken, other, i)]

        def step(w, of):
            key, i = of
            a, b = jax.random.split(key)
            keys = jax.random.split(a, (chains, rungs))
            w, u, taken = jax.vmap(jax.vmap(move), (0, None, 0))(w, inverse, keys)
            w = jax.vmap(exchange, (0, 0, 0, None))(w, u, jax.random.split(b, chains), i % 2)
            return w, (w[:, -1], taken.mean(0))

        w, (kept, rates) = lax.scan(step, w, (jax.random.split(key, 200), jnp.arange(200)))
        return w, kept, rates.mean(0)

    return run, (shape(chains, rungs, size), shape(rungs), shape(rows, width), shape(rows), KEY), (0,)


# Tables, search and genomes.


@program
def dlrm_rowwise():
    """Flax Linen: bags of embeddings in bf16, products of all pairs, and Adagrad with a number for each row."""
    tables, rows, width, batch, bag = 12, 200_000, 64, 8192, 4

    class Net(nn.Module):
        @nn.compact
        def __call__(self, dense, found):
            for n in (512, 256, width):
                dense = nn.relu(nn.Dense(n)(dense))
            every = jnp.concatenate([dense[:, None], found.astype(F32)], 1)
            pairs = jnp.einsum('bid,bjd->bij', every, every)
            i, j = jnp.tril_indices(tables + 1, -1)
            x = jnp.concatenate([dense, pairs[:, i, j]], -1)
            for n in (1024, 512, 256):
                x = nn.relu(nn.Dense(n)(x))
            return nn.Dense(1)(x)[:, 0]

    model = Net()
    p = initial(model, shape(batch, 13), shape(batch, tables, width))
    optimizer = optax.adagrad(1e-2)

    def step(p, state, embeddings, sums, dense, sparse, is_word, clicked):
        def bags(t, ids, kept):
            return jnp.sum(t[ids] * kept[..., None], 1)

        found = jax.vmap(bags, (0, 1, 1), 1)(embeddings, sparse, is_word)

        def loss(p, found):
            return optax.sigmoid_binary_cross_entropy(model.apply(p, dense, found), clicked).mean()

        value, (gradients, of_found) = jax.value_and_grad(loss, (0, 1))(p, found)
        updates, state = optimizer.update(gradients, state, p)

        def row_update(t, total, ids, kept, g):
            g = (g[:, None].astype(F32) * kept[..., None].astype(F32)).reshape(-1, width)
            ids = ids.reshape(-1)
            total = total.at[ids].add(jnp.mean(g**2, -1))
            return t.at[ids].add((-0.01 * g / (jnp.sqrt(total[ids]) + 1e-8)[:, None]).astype(BF16)), total

        embeddings, sums = jax.vmap(row_update, (0, 0, 1, 1, 1))(embeddings, sums, sparse, is_word, of_found)
        return optax.apply_updates(p, updates), state, embeddings, sums, value

    batch_of = shape(batch, 13), tokens(batch, tables, bag), shape(batch, tables, bag, dtype=BF16), shape(batch)
    embeddings = shape(tables, rows, width, dtype=BF16), shape(tables, rows)
    return step, (p, jax.eval_shape(optimizer.init, p), *embeddings, *batch_of), (0, 1, 2, 3)


@program
def quantised_search():
    """Nearest neighbours by lists and codes of eight bits: tables of distances, and the best ranked again."""
    lists, room, parts, width, queries, probes = 1024, 512, 16, 128, 256, 16

    def run(centres, books, codes, ids, vectors, q):
        far = jnp.sum(q**2, 1, keepdims=True) - 2 * q @ centres.T + jnp.sum(centres**2, 1)
        _, chosen = lax.top_k(-far, probes)
        rest = (q[:, None] - centres[chosen]).reshape(queries, probes, parts, 1, -1)

        def search(of):
            rest, chosen = of
            table = jnp.sum((rest - books) ** 2, -1)

            def one(table, c):
                return jnp.sum(jnp.take_along_axis(table.T, codes[c].astype(S32), 0), -1)

            near = jax.vmap(one)(table, chosen)
            near = jnp.where(ids[chosen] >= 0, near, jnp.inf).reshape(-1)
            best, at = lax.top_k(-near, 200)
            return -best, ids[chosen].reshape(-1)[at]

        _, found = lax.map(search, (rest, chosen), batch_size=32)
        exact = jnp.sum((vectors[found].astype(F32) - q[:, None]) ** 2, -1)
        best, at = lax.top_k(-exact, 10)
        return -best, jnp.take_along_axis(found, at, 1)

    books = shape(parts, 256, width // parts)
    stored = shape(lists, room, parts, dtype=U8), tokens(lists, room), shape(lists * room, width, dtype=jnp.float16)
    return run, (shape(lists, width), books, *stored, shape(queries, width)), ()


@program
def boosted_trees():
    """Gradient boosting: a tree of depth six in each step of a scan, by histograms of binned columns."""
    rows, columns, bins, depth = 262_144, 28, 64, 6

    def run(x, y, edges):
        binned = jax.vmap(jnp.searchsorted, (0, 1), 1)(edges, x).astype(U8)

        def tree(scores, _):
            odds = jax.nn.sigmoid(scores)
            pair = jnp.stack([odds - y, odds * (1 - odds)], -1)
            node = jnp.zeros(rows, S32)
            splits = []
            for level in range(depth):
                n = 2**level

                def histogram(column):
                    return jax.ops.segment_sum(pair, node * bins + column.astype(S32), n * bins).reshape(n, bins, 2)

                h = lax.map(histogram, binned.T)
                left = jnp.cumsum(h, 2)
                whole = left[:, :, -1:]
                value = lambda s: s[..., 0] ** 2 / (s[..., 1] + 1.0)
                gain = value(left) + value(whole - left) - value(whole)
                best = gain.transpose(1, 0, 2).reshape(n, -1).argmax(-1)
                column, threshold = best // bins, best % bins
                mine = jnp.take_along_axis(binned, column[node][:, None], 1)[:, 0]
                node = 2 * node + (mine > threshold[node])
                splits.append((column, threshold))
            total = jax.ops.segment_sum(pair, node, 2**depth)
            leaves = -0.1 * total[:, 0] / (total[:, 1] + 1.0)
            scores = scores + leaves[node]
            return scores, (splits, leaves, jnp.mean(optax.sigmoid_binary_cross_entropy(scores, y)))

        return lax.scan(tree, jnp.zeros(rows), None, length=10)

    return run, (shape(rows, columns), shape(rows), shape(columns, bins - 1)), ()


@program
def haiku_enformer():
    """Haiku: convolutions over a genome, pooled with weights, then attention, with norms over the batch and Adam."""
    length, batch, width = 16384, 4, 256

    def pooled(x):
        b, t, c = x.shape
        x = x.reshape(b, t // 2, 2, c)
        return jnp.sum(x * jax.nn.softmax(hk.Linear(c, with_bias=False)(x), 2), 2)

    def gelu(x):
        return jax.nn.sigmoid(1.702 * x) * x

    def net(letters, is_training):
        def block(x, width, size):
            return hk.Conv1D(width, size)(gelu(hk.BatchNorm(True, True, 0.9)(x, is_training)))

        x = hk.Conv1D(128, 15)(jax.nn.one_hot(letters, 4))
        x = pooled(x + block(x, 128, 1))
        for channels in (128, 160, 192, 224, 256):
            x = block(x, channels, 5)
            x = pooled(x + block(x, channels, 1))
        for _ in range(2):
            h = hk.LayerNorm(-1, True, True)(x)
            h = hk.MultiHeadAttention(8, 32, w_init=hk.initializers.VarianceScaling(), model_size=width)(h, h, h)
            x = x + hk.dropout(hk.next_rng_key(), 0.1, h)
            h = jax.nn.relu(hk.Linear(2 * width)(hk.LayerNorm(-1, True, True)(x)))
            x = x + hk.Linear(width)(hk.dropout(hk.next_rng_key(), 0.1, h))
        x = gelu(hk.Conv1D(2 * width, 1)(x[:, 32:-32]))
        return jax.nn.softplus(hk.Linear(1000)(x))

    model = hk.transform_with_state(net)
    letters = tokens(batch, length)
    p, averages = jax.eval_shape(lambda k, x: model.init(k, x, True), KEY, letters)
    optimizer = optax.chain(optax.clip_by_global_norm(0.2), optax.adam(5e-4))

    def step(p, averages, state, letters, counts, key):
        def loss(p):
            found, after = model.apply(p, averages, key, letters, True)
            return jnp.mean(found - counts * jnp.log(found + 1e-7)), after

        p, state, value, after = updated_with(optimizer, loss, p, state)
        return p, after, state, value

    state = jax.eval_shape(optimizer.init, p)
    return step, (p, averages, state, letters, shape(batch, length // 64 - 64, 1000), KEY), (0, 1, 2)
