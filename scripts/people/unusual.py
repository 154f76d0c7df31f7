"""What few programs use and some depend on: variadic reductions, bits, odd scatters, states that are swapped or rolled, eigenvectors in an optimizer."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.ode import odeint
from jax.scipy.optimize import minimize
from jax.scipy.sparse.linalg import gmres
from program import integers, normal, program


@program("jax")
def adjoint_of_an_ode():
    """A pendulum with friction fitted to what it did: `odeint`, whose gradient integrates backwards, and SGD."""

    def slope(state, _, parameters):
        angle, speed = state
        return jnp.stack([speed, -parameters["friction"] * speed - parameters["pull"] * jnp.sin(angle)])

    times = jnp.linspace(0.0, 2.0, 9)

    @jax.jit
    def fit(parameters, seen):
        def loss(parameters):
            states = odeint(slope, seen[0], times, parameters, rtol=1e-4, atol=1e-4)
            return jnp.mean((states - seen) ** 2)

        value, gradients = jax.value_and_grad(loss)(parameters)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)

    return fit, ({"friction": jnp.float32(0.2), "pull": jnp.float32(1.5)}, normal(0, 9, 2))


@program("jax")
def rosenbrock_bfgs():
    """`jax.scipy.optimize.minimize`: BFGS with a line search in nested while loops."""

    @jax.jit
    def search(start):
        def valley(x):
            return jnp.sum(10.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

        found = minimize(valley, start, method="BFGS", options={"maxiter": 6})
        return found.x, found.fun, found.nit

    return search, (0.1 * normal(1, 6),)


@program("jax")
def linear_chain_field():
    """A conditional random field of sentences of unequal length: likelihood by a scan, the best path back by another."""

    @jax.jit
    def train_and_decode(transitions, scores, tags, lengths):
        steps = jnp.arange(scores.shape[1])
        valid = steps[None] < lengths[:, None]

        def likelihood(transitions):
            def forward(alpha, step):
                score, is_valid = step
                following = jax.nn.logsumexp(alpha[:, :, None] + transitions[None], axis=1) + score
                return jnp.where(is_valid[:, None], following, alpha), None

            alpha, _ = lax.scan(forward, scores[:, 0], (scores[:, 1:].swapaxes(0, 1), valid[:, 1:].T))
            emitted = jnp.take_along_axis(scores, tags[..., None], axis=2)[..., 0]
            moved = transitions[tags[:, :-1], tags[:, 1:]]
            path = jnp.sum(emitted * valid, 1) + jnp.sum(moved * valid[:, 1:], 1)
            return jnp.mean(jax.nn.logsumexp(alpha, axis=1) - path)

        def backpointers(best, step):
            score, is_valid = step
            options = best[:, :, None] + transitions[None]
            pointer = jnp.where(is_valid[:, None], jnp.argmax(options, axis=1), jnp.arange(options.shape[1])[None])
            return jnp.where(is_valid[:, None], jnp.max(options, axis=1) + score, best), pointer

        best, pointers = lax.scan(backpointers, scores[:, 0], (scores[:, 1:].swapaxes(0, 1), valid[:, 1:].T))
        last = jnp.argmax(best, axis=1)

        def follow(tag, pointer):
            before = jnp.take_along_axis(pointer, tag[:, None], axis=1)[:, 0]
            return before, tag

        first, path = lax.scan(follow, last, pointers, reverse=True)
        value, gradient = jax.value_and_grad(likelihood)(transitions)
        return value, transitions - 0.1 * gradient, jnp.concatenate([first[None], path]).T

    return train_and_decode, (normal(2, 5, 5), normal(3, 4, 7, 5), integers(4, 5, 4, 7), jnp.array([7, 3, 5, 1]))


@program("jax")
def kronecker_factored_steps():
    """Shampoo: statistics of both sides of each matrix, their inverse roots by eigenvectors every other step, all donated."""

    def root(statistics):
        values, vectors = jnp.linalg.eigh(statistics + 1e-3 * jnp.eye(len(statistics)))
        return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, inputs, targets):
        def loss(weights):
            hidden = jnp.tanh(inputs @ weights[0])
            return jnp.mean((hidden @ weights[1] - targets) ** 2)

        def step(state, number):
            value, gradients = jax.value_and_grad(loss)(state["weights"])
            left = [s + g @ g.T for s, g in zip(state["left"], gradients)]
            right = [s + g.T @ g for s, g in zip(state["right"], gradients)]
            fresh = lambda _: ([root(s) for s in left], [root(s) for s in right])
            kept = lambda roots: roots
            roots = lax.cond(number % 2 == 0, fresh, kept, state["roots"])
            weights = [w - 0.05 * a @ g @ b for w, a, g, b in zip(state["weights"], roots[0], gradients, roots[1])]
            return {"weights": weights, "left": left, "right": right, "roots": roots}, value

        return lax.scan(step, state, jnp.arange(4))

    weights = [0.5 * normal(5, 6, 8), 0.5 * normal(6, 8, 3)]
    sides = lambda axis: [jnp.eye(w.shape[axis]) for w in weights]
    state = {"weights": weights, "left": sides(0), "right": sides(1), "roots": (sides(0), sides(1))}
    return train, (state, normal(7, 16, 6), normal(8, 16, 3))


@program("jax")
def table_queries():
    """What people do with columns: sort by two keys, unique with a bound, group sums, joins by search, quantiles, histograms."""

    @jax.jit
    def query(key, other, amounts):
        order = jnp.lexsort((amounts, other, key))
        groups, where, counts = jnp.unique(key, return_inverse=True, return_counts=True, size=8, fill_value=-1)
        sums = jax.ops.segment_sum(amounts, where.reshape(-1), 8)
        largest = jax.ops.segment_max(amounts, where.reshape(-1), 8)
        found = jnp.searchsorted(groups, other, side="right")
        chosen = jnp.nonzero(amounts > 0, size=20, fill_value=0)[0]
        histogram, edges = jnp.histogram(amounts, bins=7)
        quantiles = jnp.quantile(amounts, jnp.array([0.1, 0.5, 0.9]))
        repeated = jnp.repeat(amounts, counts[where.reshape(-1)] % 3, total_repeat_length=30)
        return order, groups, counts, sums, largest, found, chosen, histogram, edges, quantiles, repeated, jnp.bincount(key, length=9)

    return query, (integers(9, 8, 40), integers(10, 5, 40), normal(11, 40))


@program("jax")
def bits_and_hashes():
    """A Bloom filter and a hash: shifts, counts of bits, bytes packed and unpacked, floats seen as integers."""

    @functools.partial(jax.jit, donate_argnums=0)
    def insert(filter_bits, words, values):
        def mix(h, salt):
            h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B) + salt
            h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
            return h ^ (h >> 16)

        places = jnp.stack([mix(words, jnp.uint32(salt)) for salt in (1, 2, 3)])
        bits = jnp.unpackbits(filter_bits.reshape(-1, 1), axis=1).reshape(-1)
        index = places % jnp.uint32(bits.shape[0])
        seen = jnp.all(bits[index] == 1, axis=0)
        bits = bits.at[index.reshape(-1)].set(jnp.uint8(1))
        raw = lax.bitcast_convert_type(values, jnp.uint32)
        as_bytes = lax.bitcast_convert_type(values, jnp.uint8)
        back = lax.bitcast_convert_type(as_bytes[:, ::-1], jnp.uint32)
        rounded = lax.bitcast_convert_type((raw + jnp.uint32(0x8000)) & jnp.uint32(0xFFFF0000), jnp.float32)
        return jnp.packbits(bits), seen, lax.population_count(raw), lax.clz(raw), back, rounded, lax.reduce_precision(values, 5, 4)

    return insert, (jnp.zeros(32, jnp.uint8), integers(12, 10**6, 20).astype(jnp.uint32), normal(13, 20))


@program("jax")
def complex_valued_network():
    """Training with complex weights: conjugates, moduli and angles, real and imaginary parts, an FFT between layers."""

    @functools.partial(jax.jit, donate_argnums=0)
    def train(weights, signal, target):
        def loss(weights):
            hidden = jnp.fft.fft(signal @ weights[0], axis=1)
            hidden = jax.nn.relu(jnp.abs(hidden) - 0.1) * jnp.exp(1j * jnp.angle(hidden))
            out = jnp.fft.ifft(hidden, axis=1) @ weights[1]
            return jnp.mean(jnp.abs(out - target) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, [w - 0.1 * jnp.conj(g) for w, g in zip(weights, gradients)]

    wave = lambda seed, *extents: lax.complex(normal(seed, *extents), normal(seed + 1, *extents))
    return train, ([wave(14, 6, 8), wave(16, 8, 3)], wave(18, 5, 6), wave(20, 5, 3))


@program("jax")
def convolutions_of_all_kinds():
    """Training through transposed, depthwise, dilated, grouped and three-dimensional convolutions, channels last and first."""

    @jax.jit
    def train(weights, images, volumes):
        def loss(weights):
            x = lax.conv_transpose(images, weights["up"], (2, 2), "SAME")
            groups = functools.partial(lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.gelu(groups(x, weights["depth"], (1, 1), "SAME", feature_group_count=x.shape[-1]))
            x = groups(x, weights["dilated"], (1, 1), [(2, 2), (1, 3)], rhs_dilation=(2, 2), feature_group_count=2)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "VALID")
            y = lax.conv_general_dilated(volumes, weights["volume"], (1, 2, 1), "VALID", dimension_numbers=("NCDHW", "OIDHW", "NCDHW"))
            y = lax.reduce_window(y, 0.0, lax.add, (1, 1, 2, 2, 2), (1, 1, 1, 1, 2), "SAME")
            per_batch = lax.conv_general_dilated(volumes[:, :, 0], weights["batch"], (1, 1), "SAME", batch_group_count=2)
            return jnp.mean(x**2) + jnp.mean(y**2) + jnp.mean(per_batch**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    weights = {
        "up": 0.3 * normal(22, 3, 3, 3, 4),
        "depth": 0.3 * normal(23, 3, 3, 1, 8),
        "dilated": 0.3 * normal(24, 3, 3, 4, 6),
        "volume": 0.3 * normal(25, 4, 2, 2, 3, 1),
        "batch": 0.3 * normal(26, 4, 2, 3, 3),
    }
    return train, (weights, normal(27, 2, 6, 6, 3), normal(28, 2, 2, 4, 5, 4))


@program("jax")
def implicit_layer_with_gmres():
    """A fixed point found by a loop and differentiated by its equation: `custom_vjp`, a Jacobian that is only applied, GMRES."""

    @jax.custom_vjp
    def settle(weights, x):
        return lax.fori_loop(0, 12, lambda _, z: jnp.tanh(weights @ z + x), jnp.zeros_like(x))

    def forward(weights, x):
        z = settle(weights, x)
        return z, (weights, x, z)

    def backward(kept, cotangent):
        weights, x, z = kept
        _, through_z = jax.vjp(lambda z: jnp.tanh(weights @ z + x), z)
        adjoint, _ = gmres(lambda v: v - through_z(v)[0], cotangent, maxiter=3, restart=4)
        _, through_rest = jax.vjp(lambda weights, x: jnp.tanh(weights @ z + x), weights, x)
        return through_rest(adjoint)

    settle.defvjp(forward, backward)

    @jax.jit
    def train(weights, x, target):
        value, gradient = jax.value_and_grad(lambda w: jnp.sum((settle(w, x) - target) ** 2))(weights)
        return value, weights - 0.1 * gradient

    return train, (0.15 * normal(29, 8, 8), normal(30, 8), normal(31, 8))


@program("jax")
def scatters_with_duplicates():
    """Updates at repeated places by every rule: added, multiplied, the least and the most kept, rows, windows, out of bounds."""

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(table, state, index, rows, values):
        table = table.at[index].add(rows)
        table = table.at[index[:4], ::2].multiply(1.5)
        table = table.at[index, index % table.shape[1]].max(values, mode="drop")
        table = table.at[jnp.array([1, 3])].apply(jnp.sin)
        state["low"] = state["low"].at[index + 4].min(values, mode="drop")
        state["grid"] = state["grid"].at[1:4, :, ::3].set(0.0)
        state["grid"] = lax.dynamic_update_slice(state["grid"], state["grid"][:2, :2, :2] * 2, (index[0], index[1], 0))
        picked = table.at[index].get(mode="fill", fill_value=7.0)
        gradient = jax.grad(lambda t: jnp.sum(t[index] ** 3) + jnp.sum(t.at[index].add(t[index]) ** 2))(table)
        return table, state, picked, gradient

    state = {"low": normal(32, 9), "grid": normal(33, 5, 6, 7)}
    return update, (normal(34, 10, 6), state, integers(35, 10, 12), normal(36, 12, 6), normal(37, 12))


@program("jax")
def dropout_by_hardware_bits():
    """Dropout and noise by the `rbg` generator, whose bits the machine makes, in a scan over layers that are recomputed."""

    @jax.jit
    def train(weights, x, seed):
        key = jax.random.wrap_key_data(seed, impl="rbg")

        @jax.checkpoint
        def layer(x, given):
            weight, key = given
            kept = jax.random.bernoulli(key, 0.9, x.shape)
            return jnp.where(kept, jnp.tanh(x @ weight) / 0.9, 0.0)

        def loss(weights):
            keys = jax.random.split(key, len(weights))
            out, _ = lax.scan(lambda x, given: (layer(x, given), None), x, (weights, keys))
            return jnp.mean(out**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        # The bits differ from machine to machine; what is certain of them is not.
        return jnp.isfinite(value), gradients.shape[0] * jnp.isfinite(gradients).all()

    return train, (0.3 * normal(38, 5, 16, 16), normal(39, 8, 16), jnp.arange(4, dtype=jnp.uint32))


@program("jax")
def streaming_windows():
    """A ring buffer, a rolled history and two states that change places each call: all donated, all returned."""

    @functools.partial(jax.jit, donate_argnums=0)
    def push(state, chunk):
        def one(state, row):
            ring = lax.dynamic_update_index_in_dim(state["ring"], row, state["at"] % 8, 0)
            history = jnp.roll(state["history"], 1, axis=0).at[0].set(row)
            front, back = state["back"], state["front"] + row
            state = {"ring": ring, "history": history, "front": front, "back": back, "at": state["at"] + 1}
            return state, jnp.median(jnp.roll(ring, -state["at"], axis=0), axis=0) - history[:4].mean(0)

        return lax.scan(one, state, chunk)

    state = {"ring": normal(40, 8, 4), "history": normal(41, 16, 4), "front": normal(42, 4), "back": normal(43, 4), "at": jnp.int32(5)}
    return push, (state, normal(44, 6, 4))


@program("jax")
def nucleus_sampling_until_done():
    """Decoding in a while loop: top k, cumulative probabilities, Gumbel noise, sentences that end at different times."""

    @functools.partial(jax.jit, static_argnums=3, donate_argnums=1)
    def decode(weights, tokens, seed, most):
        key = jax.random.key(seed)

        def sample(state):
            tokens, at, done, key = state
            key, own = jax.random.split(key)
            last = lax.dynamic_index_in_dim(tokens, at - 1, 1, keepdims=False)
            logits = jnp.tanh(weights["embed"][last]) @ weights["out"]
            top, which = lax.top_k(logits, 6)
            p = jax.nn.softmax(top)
            top = jnp.where(jnp.cumsum(p, -1) - p < 0.8, top, -jnp.inf)
            choice = jnp.argmax(top + jax.random.gumbel(own, top.shape), -1)
            token = jnp.take_along_axis(which, choice[:, None], 1)[:, 0]
            token = jnp.where(done, 0, token)
            return lax.dynamic_update_index_in_dim(tokens, token, at, 1), at + 1, done | (token == 1), key

        tokens, at, done, _ = lax.while_loop(lambda s: (s[1] < most) & ~jnp.all(s[2]), sample, (tokens, 2, jnp.zeros(len(tokens), bool), key))
        return tokens, at, done

    weights = {"embed": normal(45, 20, 8), "out": normal(46, 8, 20)}
    return decode, (weights, integers(47, 20, 3, 12), jnp.uint32(3), 12)


@program("jax")
def reductions_of_several_arrays():
    """Reductions with computations of their own: the best of pairs, means and variances at once, cumulative extremes, where in a window."""

    @jax.jit
    def reduce(x, labels):
        def best(a, b):
            is_first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
            return jnp.where(is_first, a[0], b[0]), jnp.where(is_first, a[1], b[1])

        value, label = lax.reduce((x, labels), (jnp.float32(-jnp.inf), jnp.int32(2**31 - 1)), best, (1,))
        windows = lax.reduce_window((x, labels), (jnp.float32(-jnp.inf), jnp.int32(2**31 - 1)), best, (2, 3), (1, 2), "SAME")

        def merge(a, b):
            n = a[0] + b[0]
            delta = b[1] - a[1]
            return n, a[1] + delta * b[0] / n, a[2] + b[2] + delta**2 * a[0] * b[0] / n

        running = lax.associative_scan(merge, (jnp.ones_like(x), x, jnp.zeros_like(x)), axis=1)
        extremes = lax.cummax(x, axis=0), lax.cummin(x, axis=1, reverse=True), lax.cumlogsumexp(x, axis=1), lax.cumprod(x, axis=0)
        sorted_x, sorted_labels = lax.sort((x, labels), dimension=1, num_keys=2)
        gradient = jax.grad(lambda x: jnp.sum(lax.cumprod(x, axis=1)) + jnp.sum(lax.cummax(x, axis=0) ** 2) + jnp.sum(jnp.sort(x, 0)[1]))(x)
        return value, label, windows, running, extremes, sorted_x, sorted_labels, gradient

    return reduce, (normal(48, 6, 9), integers(49, 100, 6, 9))


@program("jax")
def eight_way_dispatch():
    """Layers chosen by numbers in the data: a switch of eight branches in a scan, each changing another part of a donated state."""

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state, program_counter, x):
        def branch(number):
            def change(state, x):
                name = f"bank{number % 4}"
                changed = dict(state)
                if number < 4:
                    changed[name] = state[name] + jnp.outer(x, x)
                else:
                    other = f"bank{(number + 1) % 4}"
                    changed[name], changed[other] = state[other], state[name]
                return changed, jnp.tanh(changed[name] @ x) if number % 2 else x - number

            return change

        branches = [branch(number) for number in range(8)]

        def step(carry, number):
            state, x = lax.switch(number, branches, *carry)
            return (state, x), x.sum()

        return lax.scan(step, (state, x), program_counter)

    state = {f"bank{i}": 0.3 * normal(50 + i, 5, 5) for i in range(4)}
    return run, (state, integers(55, 8, 10), normal(56, 5))


@program("jax")
def differentiated_three_times():
    """A function of a function: forward over reverse over forward, with vmap inside and a custom rule at the bottom."""

    @jax.custom_jvp
    def smooth(x):
        return jnp.where(x > 0, x - jnp.log1p(x), 0.5 * x**2)

    @smooth.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        return smooth(x), jnp.where(x > 0, x / (1 + jnp.abs(x)), x) * t

    @jax.jit
    def derivatives(w, points):
        energy = lambda x: jnp.sum(smooth(w @ jnp.tanh(w.T @ x)))
        force = jax.vmap(jax.grad(energy))
        stiffness = jax.vmap(jax.hessian(energy))(points)
        _, along = jax.jvp(lambda p: jnp.sum(force(p) ** 2), (points,), (jnp.ones_like(points),))
        of_w = jax.jacrev(lambda w: jax.jvp(lambda x: jnp.sum(smooth(w @ x)), (points[0],), (points[1],))[1])(w)
        values, pullback = jax.vjp(force, points)
        return stiffness, along, of_w, values, pullback(values)[0]

    return derivatives, (0.5 * normal(57, 5, 5), normal(58, 4, 5))
