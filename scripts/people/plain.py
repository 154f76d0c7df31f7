"""Plain JAX: control flow, transformations, linear algebra, sorting, random numbers, gathers and scatters."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg
from program import integers, normal, program, shape


@program("jax")
def regression_conjugate_gradients():
    """Ridge regression by conjugate gradients, the kernel matrix never formed; a while loop that ends by its residual."""

    def solve(x, y, regularisation):
        matvec = lambda w: x.T @ (x @ w) + regularisation * w
        w, _ = jax.scipy.sparse.linalg.cg(matvec, x.T @ y, tol=1e-5, maxiter=50)
        return w, jnp.mean((x @ w - y) ** 2)

    return jax.jit(solve), (normal(0, 96, 24), normal(1, 96), 0.1)


@program("jax")
def gaussian_process():
    """Posterior of a Gaussian process and the gradient of its marginal likelihood, through a Cholesky factorisation."""

    def kernel(log_scale, log_noise, a, b):
        square = jnp.sum((a[:, None] - b[None]) ** 2, -1)
        return jnp.exp(-0.5 * square / jnp.exp(2 * log_scale))

    def negative_likelihood(params, x, y):
        covariance = kernel(*params, x, x) + jnp.exp(params[1]) * jnp.eye(len(x))
        factor = linalg.cho_factor(covariance, lower=True)
        return 0.5 * y @ linalg.cho_solve(factor, y) + jnp.sum(jnp.log(jnp.diag(factor[0])))

    @jax.jit
    def fit_and_predict(params, x, y, test):
        value, grads = jax.value_and_grad(negative_likelihood)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        covariance = kernel(*params, x, x) + jnp.exp(params[1]) * jnp.eye(len(x))
        cross = kernel(*params, x, test)
        solved = linalg.solve_triangular(jnp.linalg.cholesky(covariance), cross, lower=True)
        mean = cross.T @ linalg.cho_solve((jnp.linalg.cholesky(covariance), True), y)
        return value, mean, 1.0 - jnp.sum(solved**2, 0)

    return fit_and_predict, ((jnp.float32(0.0), jnp.float32(-1.0)), normal(0, 40, 3), normal(1, 40), normal(2, 16, 3))


@program("jax")
def principal_components():
    """SVD, symmetric eigenvalues and QR of one batch; signs are fixed as scikit-learn does."""

    @jax.jit
    def components(x):
        centred = x - x.mean(0)
        u, s, vt = jnp.linalg.svd(centred, full_matrices=False)
        signs = jnp.sign(jnp.take_along_axis(vt, jnp.argmax(jnp.abs(vt), 1)[:, None], 1))
        values = jnp.linalg.eigvalsh(centred.T @ centred / len(x))
        q, r = jnp.linalg.qr(centred)
        return s, signs * vt, values, jnp.abs(jnp.diag(r)), jnp.linalg.slogdet(jnp.eye(x.shape[1]) + x.T @ x)

    return components, (normal(0, 40, 8),)


@program("jax")
def physics_informed_network():
    """A network trained on a heat equation: derivatives of derivatives, by vmap of grad of grad."""

    def network(params, t, x):
        h = jnp.stack([t, x])
        for w, b in params[:-1]:
            h = jnp.tanh(w @ h + b)
        w, b = params[-1]
        return (w @ h + b)[0]

    def loss(params, points):
        t, x = points[:, 0], points[:, 1]
        u_t = jax.vmap(jax.grad(network, 1), (None, 0, 0))(params, t, x)
        u_xx = jax.vmap(jax.grad(jax.grad(network, 2), 2), (None, 0, 0))(params, t, x)
        start = jax.vmap(network, (None, None, 0))(params, 0.0, x)
        return jnp.mean((u_t - 0.1 * u_xx) ** 2) + jnp.mean((start - jnp.sin(jnp.pi * x)) ** 2)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, points):
        value, grads = jax.value_and_grad(loss)(params, points)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value

    sizes = [2, 24, 24, 1]
    params = [(normal(i, b, a) / a**0.5, jnp.zeros(b)) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]
    return step, (params, jax.random.uniform(jax.random.key(9), (64, 2)))


@program("jax")
def hessian_newton():
    """Newton's method on a logistic regression with a dense Hessian (forward over reverse)."""

    def loss(w, x, y):
        return jnp.mean(jax.nn.softplus(-y * (x @ w))) + 1e-2 * w @ w

    @jax.jit
    def fit(w, x, y):
        def newton(w, _):
            gradient, hessian = jax.grad(loss)(w, x, y), jax.hessian(loss)(w, x, y)
            return w - jnp.linalg.solve(hessian, gradient), loss(w, x, y)

        return lax.scan(newton, w, None, length=5)

    return fit, (jnp.zeros(12), normal(0, 100, 12), jnp.sign(normal(1, 100)))


@program("jax")
def state_space_associative_scan():
    """A diagonal linear recurrence (S5, LRU) by associative_scan, complex numbers, and its gradient."""

    def layer(params, u):
        decay = jnp.exp(-jnp.exp(params["log_decay"]) + 1j * params["phase"])
        inputs = (u @ params["b"]).astype(jnp.complex64)

        def combine(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, states = lax.associative_scan(combine, (jnp.broadcast_to(decay, inputs.shape), inputs))
        return jax.nn.gelu((states @ params["c"]).real + u)

    @jax.jit
    def step(params, u, target):
        loss = lambda p: jnp.mean((jax.vmap(layer, (None, 0))(p, u) - target) ** 2)
        return jax.value_and_grad(loss)(params)

    params = {
        "log_decay": jnp.log(jnp.linspace(0.01, 0.5, 16)),
        "phase": jnp.linspace(0, 3, 16),
        "b": normal(0, 8, 16),
        "c": lax.complex(normal(1, 16, 8), normal(2, 16, 8)) / 16,
    }
    return step, (params, normal(3, 4, 50, 8), normal(4, 4, 50, 8))


@program("jax")
def mamba_selective_scan():
    """The selective state-space block of Mamba: depthwise convolution, gates that depend on the input, a checkpointed scan."""

    def block(p, x):
        length, width = x.shape
        h, gate = jnp.split(x @ p["in"], 2, -1)
        h = lax.conv_general_dilated(h[None], p["conv"], (1,), [(3, 0)], feature_group_count=h.shape[-1], dimension_numbers=("NWC", "WIO", "NWC"))[0]
        h = jax.nn.silu(h)
        delta = jax.nn.softplus(h @ p["delta"])
        b, c = h @ p["b"], h @ p["c"]
        a = jnp.exp(delta[..., None] * -jnp.exp(p["log_a"]))

        @jax.checkpoint
        def advance(state, row):
            a, delta_h, b, c = row
            state = a * state + delta_h[:, None] * b[None]
            return state, state @ c

        _, y = lax.scan(advance, jnp.zeros(p["log_a"].shape), (a, delta * h, b, c))
        return x + (y * jax.nn.silu(gate)) @ p["out"]

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, x, y):
        def loss(params):
            for p in params:
                out = jax.vmap(functools.partial(block, p))(x)
            return jnp.mean((out - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value

    width, inner, states = 16, 32, 8
    layer = lambda i: {
        "in": normal(i, width, 2 * inner) / 4,
        "conv": normal(i + 1, 4, 1, inner) / 2,
        "delta": normal(i + 2, inner, inner) / 6,
        "b": normal(i + 3, inner, states) / 6,
        "c": normal(i + 4, inner, states) / 6,
        "log_a": jnp.log(jnp.broadcast_to(jnp.arange(1.0, states + 1), (inner, states))),
        "out": normal(i + 5, inner, width) / 6,
    }
    return step, ([layer(10 * i) for i in range(2)], normal(0, 2, 32, width), normal(1, 2, 32, width))


@program("jax")
def spectral_filter():
    """Fourier transforms: a filter in two dimensions, autocorrelation, and the gradient through both."""

    def energy(image, gain):
        spectrum = jnp.fft.rfft2(image)
        filtered = jnp.fft.irfft2(spectrum * gain, image.shape[-2:])
        autocorrelation = jnp.fft.ifft(jnp.abs(jnp.fft.fft(filtered, axis=-1)) ** 2, axis=-1).real
        return jnp.mean(autocorrelation[..., 1] ** 2), jnp.fft.fftshift(filtered, axes=(-2, -1))

    run = jax.jit(jax.value_and_grad(energy, argnums=(0, 1), has_aux=True))
    return run, (normal(0, 3, 24, 32), jnp.ones((24, 17)))


@program("jax")
def sort_and_rank():
    """argsort, top_k, median, quantiles, unique with a size, searchsorted, segment_sum: what evaluation metrics are made of."""

    @jax.jit
    def metrics(scores, labels, groups):
        order = jnp.argsort(-scores)
        hits = jnp.cumsum(labels[order])
        precision = hits / jnp.arange(1, len(scores) + 1)
        top, where = lax.top_k(scores, 10)
        values, counts = jnp.unique(groups, size=8, fill_value=-1, return_counts=True)
        per_group = jax.ops.segment_sum(scores, groups, num_segments=8)
        largest = jax.ops.segment_max(scores, groups, num_segments=8)
        bins = jnp.searchsorted(jnp.linspace(-2, 2, 9), scores)
        histogram = jnp.zeros(10, jnp.int32).at[bins].add(1)
        return {
            "average precision": jnp.sum(precision * labels[order]) / jnp.maximum(labels.sum(), 1),
            "top": (top, where, labels[where]),
            "quantiles": jnp.quantile(scores, jnp.array([0.1, 0.5, 0.9])),
            "median": jnp.median(scores),
            "groups": (values, counts, per_group, largest, histogram),
            "rank": jnp.argsort(order),
        }

    return metrics, (normal(0, 200), integers(1, 2, 200), integers(2, 8, 200))


@program("jax")
def k_means_until_converged():
    """K-means with k-means++ seeding; a while loop over state that is a named tuple, with an empty-cluster branch."""

    @functools.partial(jax.jit, static_argnums=2)
    def cluster(key, points, k):
        def seed(centres, i):
            distance = jnp.min(jnp.where(jnp.arange(k)[None] < i, jnp.sum((points[:, None] - centres[None]) ** 2, -1), jnp.inf), 1)
            pick = jax.random.categorical(jax.random.fold_in(key, i), jnp.log(distance + 1e-9))
            return centres.at[i].set(points[pick]), None

        centres, _ = lax.scan(seed, jnp.zeros((k, points.shape[1])).at[0].set(points[0]), jnp.arange(1, k))

        def assign(centres):
            return jnp.argmin(jnp.sum((points[:, None] - centres[None]) ** 2, -1), 1)

        def step(state):
            centres, _, i = state
            members = jax.nn.one_hot(assign(centres), k)
            count = members.sum(0)
            moved = jnp.where(count[:, None] > 0, members.T @ points / jnp.maximum(count, 1)[:, None], centres)
            return moved, jnp.max(jnp.abs(moved - centres)), i + 1

        centres, shift, steps = lax.while_loop(lambda s: (s[1] > 1e-4) & (s[2] < 30), step, (centres, jnp.inf, 0))
        return centres, assign(centres), steps

    return cluster, (jax.random.key(0), normal(1, 120, 2), 4)


@program("jax")
def beam_search():
    """Beam search with a recurrent model: top_k over beams and words, states gathered by beam, sequences scattered."""

    @functools.partial(jax.jit, static_argnums=2)
    def search(params, start, beams):
        vocabulary, length = params["embed"].shape[0], 12
        batch = start.shape[0]

        def advance(i, state):
            scores, hidden, tokens = state
            x = params["embed"][tokens[:, :, i]]
            hidden = jnp.tanh(x @ params["w"] + hidden @ params["u"])
            logp = jax.nn.log_softmax(hidden @ params["out"])
            ended = tokens[:, :, i] == 0
            logp = jnp.where(ended[..., None], jnp.where(jnp.arange(vocabulary) == 0, 0.0, -jnp.inf), logp)
            total = (scores[..., None] + logp).reshape(batch, -1)
            scores, flat = lax.top_k(total, beams)
            beam, word = flat // vocabulary, flat % vocabulary
            hidden = jnp.take_along_axis(hidden, beam[..., None], 1)
            tokens = jnp.take_along_axis(tokens, beam[..., None], 1)
            return scores, hidden, tokens.at[:, :, i + 1].set(word)

        scores = jnp.full((batch, beams), -jnp.inf).at[:, 0].set(0.0)
        hidden = jnp.zeros((batch, beams, params["u"].shape[0]))
        tokens = jnp.zeros((batch, beams, length + 1), jnp.int32).at[:, :, 0].set(start[:, None])
        return lax.fori_loop(0, length, advance, (scores, hidden, tokens))

    params = {"embed": normal(0, 40, 16), "w": normal(1, 16, 24), "u": normal(2, 24, 24) / 5, "out": normal(3, 24, 40)}
    return search, (params, 1 + integers(4, 39, 3), 4)


@program("jax")
def decode_with_cache():
    """A transformer that writes text with a cache of keys and values, donated; sampling by temperature and nucleus."""

    def norm(x, scale):
        x32 = x.astype(jnp.float32)
        return (x32 * lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale

    def rope(x, position):
        half = x.shape[-1] // 2
        angle = position * 10000.0 ** (-jnp.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1).astype(x.dtype)

    @functools.partial(jax.jit, donate_argnums=1)
    def step(params, cache, token, position, key):
        x = params["embed"][token]

        def layer(x, inputs):
            p, keys, values = inputs
            h = norm(x, p["norm1"])
            q, k, v = (rope(jnp.einsum("bd,dhk->bhk", h, p[n]), position) if n != "v" else jnp.einsum("bd,dhk->bhk", h, p[n]) for n in "qkv")
            keys = lax.dynamic_update_slice_in_dim(keys, k[:, None], position, 1)
            values = lax.dynamic_update_slice_in_dim(values, v[:, None], position, 1)
            scores = jnp.einsum("bhk,bshk->bhs", q, keys, preferred_element_type=jnp.float32) / q.shape[-1] ** 0.5
            scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -1e30)
            x = x + jnp.einsum("bhs,bshk,hkd->bd", jax.nn.softmax(scores).astype(x.dtype), values, p["o"])
            h = norm(x, p["norm2"])
            return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], (keys, values)

        x, cache = lax.scan(layer, x, (params["layers"], *cache))
        logits = (norm(x, params["norm"]) @ params["embed"].T).astype(jnp.float32) / 0.8
        ordered = -jnp.sort(-logits)
        cutoff = jnp.sum(jnp.cumsum(jax.nn.softmax(ordered), -1) < 0.9, -1, keepdims=True)
        logits = jnp.where(logits < jnp.take_along_axis(ordered, cutoff, -1), -jnp.inf, logits)
        return jax.random.categorical(key, logits), cache, logits

    layers, width, heads, size, hidden = 2, 32, 4, 8, 64
    n = lambda i, *s: normal(i, layers, *s, dtype=jnp.bfloat16) / s[0] ** 0.5
    params = {
        "embed": normal(0, 64, width, dtype=jnp.bfloat16),
        "norm": jnp.ones(width, jnp.bfloat16),
        "layers": {
            "norm1": jnp.ones((layers, width), jnp.bfloat16), "norm2": jnp.ones((layers, width), jnp.bfloat16),
            "q": n(1, width, heads, size), "k": n(2, width, heads, size), "v": n(3, width, heads, size), "o": n(4, heads, size, width),
            "gate": n(5, width, hidden), "up": n(6, width, hidden), "down": n(7, hidden, width),
        },
    }
    cache = tuple(jnp.zeros((layers, 2, 24, heads, size), jnp.bfloat16) for _ in range(2))
    return step, (params, cache, jnp.array([3, 7]), jnp.int32(5), jax.random.key(1))


def quantise(x, axis):
    scale = jnp.max(jnp.abs(x), axis, keepdims=True) / 127.0
    return jnp.round(x / scale).astype(jnp.int8), scale


@program("jax")
def int8_inference():
    """A network with int8 weights (scales per channel), activations quantised as it runs, sums in int32."""

    @jax.jit
    def infer(layers, x):
        for (w, scale), bias in layers:
            q, s = quantise(x, -1)
            total = lax.dot_general(q, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
            x = jax.nn.relu(total.astype(jnp.float32) * s * scale + bias)
        return jax.nn.softmax(x)

    sizes = [64, 128, 128, 10]
    layers = [(quantise(normal(i, a, b), 0), jnp.zeros(b)) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]
    return infer, (layers, normal(9, 16, 64))


@program("jax")
def fp8_matmul_with_delayed_scaling():
    """Training with e4m3 forward and e5m2 backward, scales from a history of maxima, by custom_vjp."""

    @jax.custom_vjp
    def dot(x, w, scales):
        return forward(x, w, scales)[0]

    def cast(x, scale, dtype):
        limit = jnp.finfo(dtype).max.astype(jnp.float32)
        return jnp.clip(x / scale, -limit, limit).astype(dtype)

    def forward(x, w, scales):
        qx, qw = cast(x, scales[0], jnp.float8_e4m3fn), cast(w, scales[1], jnp.float8_e4m3fn)
        return jnp.dot(qx, qw, preferred_element_type=jnp.float32) * scales[0] * scales[1], (qx, qw, scales)

    def backward(saved, g):
        qx, qw, scales = saved
        qg = cast(g, scales[2], jnp.float8_e5m2)
        dx = lax.dot_general(qg, qw, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32) * scales[2] * scales[1]
        dw = lax.dot_general(qx, qg, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32) * scales[0] * scales[2]
        return dx, dw, jnp.zeros_like(scales)

    dot.defvjp(forward, backward)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(w, history, x, y):
        scales = jnp.max(history, 0) / 448.0
        value, grads = jax.value_and_grad(lambda w: jnp.mean((jax.nn.gelu(dot(x, w[0], scales)) @ w[1] - y) ** 2))(w)
        seen = jnp.stack([jnp.max(jnp.abs(x)), jnp.max(jnp.abs(w[0])), jnp.max(jnp.abs(grads[0]))])
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), jnp.roll(history, 1, 0).at[0].set(seen), value

    return step, ((normal(0, 32, 64) / 6, normal(1, 64, 8) / 8), jnp.ones((4, 3)), normal(2, 16, 32), normal(3, 16, 8))


@program("jax")
def mixed_precision_loss_scaling():
    """f16 compute, f32 masters, a loss scale that halves when a gradient is not finite (a cond on the whole update)."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        params, scale, good = state

        def loss(params):
            half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
            h = jax.nn.relu(x.astype(jnp.float16) @ half["w1"] + half["b1"])
            out = (h @ half["w2"]).astype(jnp.float32)
            return jnp.mean((out - y) ** 2) * scale

        value, grads = jax.value_and_grad(loss)(params)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        new = lambda: jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        params = lax.cond(finite, new, lambda: params)
        good = jnp.where(finite, good + 1, 0)
        scale = jnp.where(finite, jnp.where(good == 200, scale * 2, scale), scale / 2)
        return (params, scale, good), value / scale, finite

    params = {"w1": normal(0, 24, 48) / 5, "b1": jnp.zeros(48), "w2": normal(1, 48, 4) / 7}
    return step, ((params, jnp.float32(2.0**15), jnp.int32(0)), normal(2, 20, 24), normal(3, 20, 4))


@program("jax")
def flash_attention_custom_vjp():
    """Attention in blocks with a running maximum; its backward pass written by hand and computed again by block."""

    def blocks(q, k, v, size):
        def body(carry, kv):
            out, total, top = carry
            k, v = kv
            s = q @ k.T
            new = jnp.maximum(top, s.max(-1))
            p, correction = jnp.exp(s - new[:, None]), jnp.exp(top - new)
            return (out * correction[:, None] + p @ v, total * correction + p.sum(-1), new), None

        split = lambda a: a.reshape(-1, size, a.shape[-1])
        start = (jnp.zeros_like(q), jnp.zeros(len(q)), jnp.full(len(q), -jnp.inf))
        (out, total, top), _ = lax.scan(body, start, (split(k), split(v)))
        return out / total[:, None], top + jnp.log(total)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
    def attention(q, k, v, size):
        return blocks(q, k, v, size)[0]

    def forward(q, k, v, size):
        out, lse = blocks(q, k, v, size)
        return out, (q, k, v, out, lse)

    def backward(size, saved, g):
        q, k, v, out, lse = saved
        delta = jnp.sum(g * out, -1)

        def body(dq, kv):
            k, v = kv
            p = jnp.exp(q @ k.T - lse[:, None])
            ds = p * (g @ v.T - delta[:, None])
            return dq + ds @ k, (ds.T @ q, p.T @ g)

        split = lambda a: a.reshape(-1, size, a.shape[-1])
        dq, (dk, dv) = lax.scan(body, jnp.zeros_like(q), (split(k), split(v)))
        return dq, dk.reshape(k.shape), dv.reshape(v.shape)

    attention.defvjp(forward, backward)
    many = jax.vmap(jax.vmap(lambda q, k, v: attention(q, k, v, 16)))
    run = jax.jit(jax.grad(lambda q, k, v: jnp.sum(many(q, k, v) ** 2), argnums=(0, 1, 2)))
    return run, tuple(normal(i, 2, 3, 64, 8) / 2 for i in range(3))


@program("jax")
def low_rank_adapters():
    """LoRA: frozen bf16 weights, adapters and their Adam state in f32, donated; gradients of the adapters only."""

    def forward(frozen, adapters, x):
        for w, (a, b) in zip(frozen, adapters):
            x = jax.nn.gelu(x @ w + ((x @ a.astype(x.dtype)) @ b.astype(x.dtype)) * 2.0)
        return x

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def step(frozen, adapters, state, x, y):
        loss = lambda a: jnp.mean((forward(frozen, a, x).astype(jnp.float32) - y) ** 2)
        value, grads = jax.value_and_grad(loss)(adapters)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state[1], grads)
        adapters = jax.tree.map(lambda a, m, v: a - 1e-3 * m / (jnp.sqrt(v) + 1e-8), adapters, m, v)
        return adapters, (m, v), value

    frozen = [normal(i, 32, 32, dtype=jnp.bfloat16) / 5 for i in range(4)]
    adapters = [(normal(9 + i, 32, 4) / 5, jnp.zeros((4, 32))) for i in range(4)]
    zeros = jax.tree.map(jnp.zeros_like, adapters)
    return step, (frozen, adapters, (zeros, jax.tree.map(jnp.zeros_like, adapters)), normal(20, 8, 32, dtype=jnp.bfloat16), normal(21, 8, 32))


@program("jax")
def mixture_of_experts():
    """Top-2 routing with a capacity: positions by cumsum, dispatch by scatter, combine by gather; ragged_dot beside it."""

    @jax.jit
    def layer(params, x):
        tokens, width = x.shape
        experts, capacity = params["up"].shape[0], 12
        gates = jax.nn.softmax(x @ params["router"])
        weight, expert = lax.top_k(gates, 2)
        chosen = jax.nn.one_hot(expert.reshape(-1), experts, dtype=jnp.int32)
        position = jnp.sum((jnp.cumsum(chosen, 0) - 1) * chosen, -1)
        keep = position < capacity
        flat = jnp.where(keep, expert.reshape(-1) * capacity + position, experts * capacity)
        buffer = jnp.zeros((experts * capacity, width)).at[flat].set(jnp.repeat(x, 2, 0), mode="drop")
        hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", buffer.reshape(experts, capacity, width), params["up"]))
        out = jnp.einsum("ecf,efd->ecd", hidden, params["down"]).reshape(-1, width)
        back = jnp.where(keep[:, None], out[jnp.minimum(flat, experts * capacity - 1)], 0.0).reshape(tokens, 2, width)
        order = jnp.argsort(expert[:, 0])
        ragged = lax.ragged_dot(x[order], params["up"], jnp.bincount(expert[:, 0], length=experts).astype(jnp.int32))
        balance = experts * jnp.sum(gates.mean(0) * chosen.reshape(tokens, 2, experts).sum(1).mean(0))
        return jnp.sum(back * weight[..., None], 1), ragged, balance

    params = {"router": normal(0, 16, 8), "up": normal(1, 8, 16, 24) / 4, "down": normal(2, 8, 24, 16) / 5}
    return layer, (params, normal(3, 40, 16))


@program("jax")
def game_of_life_and_cellular():
    """Integers and booleans: convolution by rolls, bits packed into words, a fori_loop inside a vmap."""

    @jax.jit
    def run(grids):
        def step(_, grid):
            around = sum(jnp.roll(grid, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
            return ((around == 3) | ((grid == 1) & (around == 2))).astype(jnp.uint8)

        grids = jax.vmap(lambda g: lax.fori_loop(0, 10, step, g))(grids)
        packed = jnp.packbits(grids, axis=-1)
        return packed, lax.population_count(packed).sum((1, 2)), jnp.unpackbits(packed, axis=-1)

    return run, (integers(0, 2, 3, 16, 32).astype(jnp.uint8),)


@program("jax")
def random_numbers():
    """One of each distribution, split keys, permutation, choice without replacement, dropout masks."""

    @jax.jit
    def sample(key):
        keys = iter(jax.random.split(key, 12))
        return (
            jax.random.normal(next(keys), (40,)),
            jax.random.truncated_normal(next(keys), -2.0, 2.0, (40,)),
            jax.random.gamma(next(keys), 2.5, (12,)),
            jax.random.beta(next(keys), 2.0, 3.0, (12,)),
            jax.random.dirichlet(next(keys), jnp.ones(5), (4,)),
            jax.random.poisson(next(keys), 3.0, (12,)),
            jax.random.permutation(next(keys), 30),
            jax.random.choice(next(keys), 30, (8,), replace=False),
            jax.random.categorical(next(keys), jnp.zeros((6, 9))),
            jax.random.bernoulli(next(keys), 0.3, (40,)),
            jax.random.gumbel(next(keys), (40,), jnp.bfloat16),
            jax.random.orthogonal(next(keys), 4),
        )

    return sample, (jax.random.key(0),)


@program("jax")
def image_augmentation():
    """A batch of images resized, rotated by map_coordinates, flipped, cropped at random places; per-example keys by vmap."""

    def augment(key, image):
        k1, k2, k3 = jax.random.split(key, 3)
        image = jnp.where(jax.random.bernoulli(k1), image[:, ::-1], image)
        angle = jax.random.uniform(k2, minval=-0.3, maxval=0.3)
        y, x = jnp.mgrid[:24, :24] - 11.5
        coordinates = [jnp.cos(angle) * y - jnp.sin(angle) * x + 11.5, jnp.sin(angle) * y + jnp.cos(angle) * x + 11.5]
        image = jnp.stack([jax.scipy.ndimage.map_coordinates(image[..., c], coordinates, order=1) for c in range(3)], -1)
        corner = jax.random.randint(k3, (2,), 0, 5)
        image = lax.dynamic_slice(image, (corner[0], corner[1], 0), (20, 20, 3))
        return jax.image.resize(image, (16, 16, 3), "bilinear")

    run = jax.jit(lambda key, images: jax.vmap(augment)(jax.random.split(key, len(images)), images))
    return run, (jax.random.key(0), jax.random.uniform(jax.random.key(1), (4, 24, 24, 3)))


@program("jax")
def policy_gradient_environment():
    """Reinforcement learning wholly on the device: cart-pole by scan, returns by a reversed scan, PPO epochs by scan of shuffled batches."""

    def physics(state, action):
        x, v, angle, spin = state
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        temp = (force + 0.05 * spin**2 * sin) / 1.1
        acceleration = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        push = temp - 0.05 * acceleration * cos / 1.1
        state = jnp.stack([x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * acceleration])
        return state, (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.21)

    def network(params, s):
        h = jnp.tanh(s @ params["w1"] + params["b1"])
        return h @ params["pi"], (h @ params["v"])[..., 0]

    @functools.partial(jax.jit, donate_argnums=0)
    def train(params, states, key):
        def act(carry, key):
            states = carry
            logits, value = network(params, states)
            action = jax.random.categorical(key, logits)
            logp = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
            new, done = jax.vmap(physics)(states, action)
            return jnp.where(done[:, None], 0.01, new), (states, action, logp, value, 1.0 - done)

        k1, k2 = jax.random.split(key)
        states, (s, a, old, value, alive) = lax.scan(act, states, jax.random.split(k1, 16))

        def accumulate(following, row):
            reward, value, alive = row
            return (reward + 0.99 * alive * following,) * 2

        _, returns = lax.scan(accumulate, network(params, states)[1], (alive, value, alive), reverse=True)
        batch = jax.tree.map(lambda t: t.reshape(-1, *t.shape[2:]), (s, a, old, returns, returns - value))

        def loss(params, batch):
            s, a, old, returns, advantage = batch
            logits, value = network(params, s)
            ratio = jnp.exp(jnp.take_along_axis(jax.nn.log_softmax(logits), a[:, None], 1)[:, 0] - old)
            clipped = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
            return -clipped.mean() + 0.5 * jnp.mean((value - returns) ** 2)

        def epoch(params, key):
            order = jax.random.permutation(key, len(batch[0])).reshape(4, -1)

            def update(params, rows):
                value, grads = jax.value_and_grad(loss)(params, jax.tree.map(lambda t: t[rows], batch))
                return jax.tree.map(lambda p, g: p - 3e-3 * g, params, grads), value

            return lax.scan(update, params, order)

        params, losses = lax.scan(epoch, params, jax.random.split(k2, 2))
        return params, states, losses

    params = {"w1": normal(0, 4, 16), "b1": jnp.zeros(16), "pi": normal(1, 16, 2) / 8, "v": normal(2, 16, 1) / 8}
    return train, (params, 0.05 * normal(3, 8, 4), jax.random.key(4))


@program("jax")
def interpreter_with_switch():
    """A small stack machine: lax.switch inside a while loop, state updated in place."""

    @jax.jit
    def run(codes, arguments):
        def step(state):
            counter, pointer, stack = state
            top, below = stack[pointer], stack[pointer - 1]
            branches = [
                lambda: (pointer + 1, stack.at[pointer + 1].set(arguments[counter])),
                lambda: (pointer - 1, stack.at[pointer - 1].set(below + top)),
                lambda: (pointer - 1, stack.at[pointer - 1].set(below * top)),
                lambda: (pointer, stack.at[pointer].set(jnp.sin(top))),
            ]
            pointer, stack = lax.switch(codes[counter], branches)
            return counter + 1, pointer, stack

        _, pointer, stack = lax.while_loop(lambda s: s[0] < len(codes), step, (0, 0, jnp.zeros(32)))
        return stack[pointer], stack

    return run, (jnp.array([0, 0, 1, 0, 2, 3, 0, 1]), jnp.arange(8.0) / 3)


@program("jax")
def dynamic_time_warping():
    """Soft-DTW and an edit distance by scans over rows, with their gradients."""

    def soft_dtw(a, b):
        distance = (a[:, None] - b[None]) ** 2

        def row(previous, d):
            def cell(left, inputs):
                cost, up, diagonal = inputs
                value = cost - 0.1 * jax.nn.logsumexp(-jnp.stack([left, up, diagonal]) / 0.1)
                return value, value

            _, values = lax.scan(cell, 1e6, (d, previous[1:], previous[:-1]))
            values = jnp.concatenate([jnp.array([1e6]), values])
            return values, None

        last, _ = lax.scan(row, jnp.full(len(b) + 1, 1e6).at[0].set(0.0), distance)
        return last[-1]

    run = jax.jit(jax.vmap(jax.value_and_grad(soft_dtw, argnums=(0, 1))))
    return run, (normal(0, 3, 12), normal(1, 3, 14))


@program("jax", runs=False)
def llama_7b_decode():
    """A decoding step of a 7B model in bf16, layers scanned, int8 cache; only compiled."""
    layers, width, heads, size, hidden, vocabulary = 32, 4096, 32, 128, 11008, 32000

    def norm(x, scale):
        x32 = x.astype(jnp.float32)
        return (x32 * lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale

    @functools.partial(jax.jit, donate_argnums=1)
    def step(params, cache, token, position):
        x = params["embed"][token]

        def layer(x, inputs):
            p, keys, values, scales = inputs
            h = norm(x, p["norm1"])
            q, k, v = (jnp.einsum("bd,dhk->bhk", h, p[n]) for n in "qkv")
            scale = jnp.max(jnp.abs(jnp.stack([k, v], -2)), -1).astype(jnp.float32) / 127
            write = lambda c, n, i: lax.dynamic_update_slice_in_dim(c, jnp.round(n / scale[..., i, None]).astype(jnp.int8)[:, None], position, 1)
            keys, values = write(keys, k, 0), write(values, v, 1)
            scales = lax.dynamic_update_slice_in_dim(scales, scale[:, None], position, 1)
            scores = jnp.einsum("bhk,bshk->bhs", q, keys.astype(q.dtype)) * scales[..., 0].transpose(0, 2, 1).astype(q.dtype)
            scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -1e9)
            weights = jax.nn.softmax(scores.astype(jnp.float32)) * scales[..., 1].transpose(0, 2, 1)
            x = x + jnp.einsum("bhs,bshk,hkd->bd", weights.astype(x.dtype), values.astype(x.dtype), p["o"])
            h = norm(x, p["norm2"])
            return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], (keys, values, scales)

        x, cache = lax.scan(layer, x, (params["layers"], *cache))
        return jnp.argmax((norm(x, params["norm"]) @ params["head"]).astype(jnp.float32), -1), cache

    s = lambda *e: shape(layers, *e, dtype=jnp.bfloat16)
    params = {
        "embed": shape(vocabulary, width, dtype=jnp.bfloat16), "norm": shape(width, dtype=jnp.bfloat16), "head": shape(width, vocabulary, dtype=jnp.bfloat16),
        "layers": {"norm1": s(width), "norm2": s(width), "q": s(width, heads, size), "k": s(width, heads, size), "v": s(width, heads, size), "o": s(heads, size, width),
                   "gate": s(width, hidden), "up": s(width, hidden), "down": s(hidden, width)},
    }
    cache = shape(layers, 4, 2048, heads, size, dtype=jnp.int8)
    return step, (params, (cache, cache, shape(layers, 4, 2048, heads, 2)), shape(4, dtype=jnp.int32), shape(dtype=jnp.int32))
