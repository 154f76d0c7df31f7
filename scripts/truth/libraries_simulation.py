"""Programs for unseen.py, mostly in plain JAX: simulation, rendering, and work on images, tables and texts."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from layers import BF16, F32, S32, U8, shape, tokens
from libraries import KEY, program, training

# Simulation and rendering.


@program
def shallow_water():
    """Fifty steps of the shallow water equations, of which samples are kept."""

    def dx(f):
        return (jnp.roll(f, -1, 1) - jnp.roll(f, 1, 1)) / 2e3

    def dy(f):
        return (jnp.roll(f, -1, 0) - jnp.roll(f, 1, 0)) / 2e3

    def laplacian(f):
        return jnp.roll(f, 1, 0) + jnp.roll(f, -1, 0) + jnp.roll(f, 1, 1) + jnp.roll(f, -1, 1) - 4 * f

    def step(fields, _):
        h, u, v = fields
        u_after = u - 10 * (u * dx(u) + v * dy(u) - 1e-4 * v + 9.8 * dx(h)) + 0.01 * laplacian(u)
        v_after = v - 10 * (u * dx(v) + v * dy(v) + 1e-4 * u + 9.8 * dy(h)) + 0.01 * laplacian(v)
        h_after = h - 10 * (dx(u_after * h) + dy(v_after * h))
        return (h_after, u_after, v_after), (h[::8, ::8], jnp.sqrt(jnp.mean(u**2 + v**2)))

    def run(h, u, v):
        return lax.scan(step, (h, u, v), None, length=50)

    field = shape(2048, 2048)
    return run, (field, field, field), (0, 1, 2)


@program
def nbody_leapfrog():
    """A hundred steps of bodies that attract one another."""

    def accelerations(x, mass):
        d = x[None] - x[:, None]
        r = jnp.sum(d**2, -1) + 1e-2
        return jnp.einsum('ijk,ij->ik', d, mass[None] * r**-1.5)

    def run(x, v, mass):
        def step(_, of):
            x, v = of
            v = v + 0.005 * accelerations(x, mass)
            x = x + 0.01 * v
            return x, v + 0.005 * accelerations(x, mass)

        x, v = lax.fori_loop(0, 100, step, (x, v))
        return x, v, 0.5 * jnp.sum(mass * jnp.sum(v**2, -1))

    return run, (shape(8192, 3), shape(8192, 3), shape(8192)), (0, 1)


@program
def md_neighbours():
    """Molecular dynamics with lists of neighbours, made again every twenty steps."""
    n, most, side = 16384, 64, 30.0

    def neighbours(x):
        def of_one(at):
            d = at - x
            d = d - side * jnp.round(d / side)
            r2 = jnp.sum(d**2, -1)
            _, nearest = lax.top_k(-jnp.where(r2 < 9.0, r2, 1e9), most)
            return jnp.where(r2[nearest] < 9.0, nearest, n)

        return lax.map(of_one, x, batch_size=512)

    def energy(x, near):
        padded = jnp.concatenate([x, jnp.zeros((1, 3))])
        d = x[:, None] - padded[near]
        d = d - side * jnp.round(d / side)
        r2 = jnp.where(near < n, jnp.sum(d**2, -1), 100.0) + 1e-6
        s = (1 / r2) ** 3
        return 2 * jnp.sum(jnp.where((near < n) & (r2 < 6.25), s**2 - s, 0))

    def run(x, v, key):
        def outer(of, key):
            x, v = of
            near = neighbours(x)

            def inner(of, key):
                x, v = of
                forces = -jax.grad(energy)(x, near)
                v = 0.99 * (v + 0.002 * forces) + 0.01 * jax.random.normal(key, v.shape)
                x = jnp.mod(x + 0.002 * v, side)
                return (x, v), energy(x, near)

            return lax.scan(inner, (x, v), jax.random.split(key, 20))

        return lax.scan(outer, (x, v), jax.random.split(key, 10))

    return run, (shape(n, 3), shape(n, 3), KEY), (0, 1)


@program
def spectral_ns():
    """Forty Runge-Kutta steps of turbulence in two dimensions, by Fourier transforms."""
    n = 1024

    def run(vorticity):
        k, kr = jnp.fft.fftfreq(n, 1 / n), jnp.fft.rfftfreq(n, 1 / n)
        kx, ky = kr[None], k[:, None]
        k2 = kx**2 + ky**2
        inverse = jnp.where(k2 > 0, 1 / jnp.where(k2 > 0, k2, 1), 0)
        kept = (jnp.abs(kx) < n / 3) & (jnp.abs(ky) < n / 3)

        def rate(w):
            psi = w * inverse
            f = jnp.fft.irfft2
            u, v, wx, wy = f(1j * ky * psi), f(-1j * kx * psi), f(1j * kx * w), f(1j * ky * w)
            return -1.0 * kept * jnp.fft.rfft2(u * wx + v * wy) - 1e-3 * k2 * w

        def step(w, _):
            h = 1e-3
            a = rate(w)
            b = rate(w + h / 2 * a)
            c = rate(w + h / 2 * b)
            d = rate(w + h * c)
            w = w + h / 6 * (a + 2 * b + 2 * c + d)
            return w, jnp.sum(jnp.abs(w) ** 2)

        w, energies = lax.scan(step, vorticity, None, length=40)
        return jnp.fft.irfft2(w), energies

    return run, (shape(8, n, n // 2 + 1, dtype=jnp.complex64),), ()


@program
def soft_rasteriser():
    """Gradients of an image of triangles with soft edges."""

    def cross(u, w):
        return u[..., 0] * w[..., 1] - u[..., 1] * w[..., 0]

    def render(vertices, faces, colours, side=128, sharpness=1e-4):
        corners = vertices[faces]
        y, x = jnp.meshgrid(jnp.linspace(-1, 1, side), jnp.linspace(-1, 1, side), indexing='ij')
        pixels = jnp.stack([x, y], -1).reshape(-1, 2)

        def pixel(p):
            a, b, c = corners[:, 0, :2], corners[:, 1, :2], corners[:, 2, :2]
            area = cross(b - a, c - a) + 1e-6
            parts = [cross(b - p, c - p), cross(c - p, a - p), cross(a - p, b - p)]
            w = jnp.stack(parts, -1) / area[:, None]
            covered = jax.nn.sigmoid(w.min(-1) / sharpness)
            depth = (w * corners[..., 2]).sum(-1)
            q = jax.nn.softmax(jnp.log(covered + 1e-9) - depth / 0.1)
            return (q * covered) @ colours, 1 - jnp.prod(1 - covered)

        return lax.map(pixel, pixels, batch_size=2048)

    def loss(vertices, faces, colours, image, mask):
        c, a = render(vertices, faces, colours)
        return jnp.mean((c - image) ** 2) + jnp.mean((a - mask) ** 2)

    triangles = shape(642, 3), tokens(1280, 3), shape(1280, 3)
    return jax.value_and_grad(loss, (0, 2)), (*triangles, shape(16384, 3), shape(16384)), ()


@program
def instant_ngp():
    """Optax: a radiance field whose features are in hashed grids."""
    levels, entries, features = 12, 1 << 17, 2
    resolutions = [int(16 * 1.45**i) for i in range(levels)]

    def encoded(tables, x):
        found = []
        for level, resolution in enumerate(resolutions):
            at = x * resolution
            low = jnp.floor(at)
            w = at - low
            low, total = low.astype(jnp.uint32), 0
            for corner in range(8):
                o = jnp.array([corner & 1, corner >> 1 & 1, corner >> 2 & 1], jnp.uint32)
                q = (low + o) * jnp.array([1, 2654435761, 805459861], jnp.uint32)
                place = (q[:, 0] ^ q[:, 1] ^ q[:, 2]) % entries
                total = total + tables[level][place] * jnp.prod(jnp.where(o == 1, w, 1 - w), -1, keepdims=True)
            found.append(total)
        return jnp.concatenate(found, -1)

    def of_directions(d):
        products = [d, d**2, d[:, :1] * d[:, 1:2], d, d**3, d**2]
        return jnp.concatenate(products, -1)[:, :15]

    def loss(p, origins, directions, colours, key):
        rays, n = origins.shape[0], 64
        t = jnp.linspace(0.1, 2.0, n) + jax.random.uniform(key, (rays, n)) * 0.03
        x = jnp.clip(origins[:, None] + directions[:, None] * t[..., None], 0, 1).reshape(-1, 3)
        h = jax.nn.relu(encoded(p['t'], x) @ p['a']) @ p['b']
        density = jnp.exp(h[:, 0]).reshape(rays, n)
        harmonics = of_directions(jnp.broadcast_to(directions[:, None], (rays, n, 3)).reshape(-1, 3))
        seen = jax.nn.relu(jnp.concatenate([h, harmonics], -1) @ p['c'])
        c = jax.nn.sigmoid(seen @ p['d']).reshape(rays, n, 3)
        lengths = jnp.diff(t, axis=1, append=t[:, -1:] + 0.03)
        a = 1 - jnp.exp(-density * lengths)
        passed = jnp.cumprod(jnp.concatenate([jnp.ones((rays, 1)), 1 - a[:, :-1] + 1e-10], 1), 1)
        return jnp.mean((jnp.sum((a * passed)[..., None] * c, 1) - colours) ** 2)

    parameters = dict(
        t=shape(levels, entries, features),
        a=shape(levels * features, 64),
        b=shape(64, 16),
        c=shape(31, 64),
        d=shape(64, 3),
    )
    rays = shape(4096, 3)
    return training(loss, optax.adam(1e-2, eps=1e-15), parameters, rays, rays, rays, KEY)


# Images, tables and texts.


@program
def augment_images():
    """Images turned, moved, cut, recoloured, blurred and mixed."""

    def turned(key, x):
        h, w, _ = x.shape
        angle = jax.random.uniform(key, (), minval=-0.5, maxval=0.5)
        yy, xx = jnp.meshgrid(jnp.arange(h) - h / 2, jnp.arange(w) - w / 2, indexing='ij')
        rows = jnp.cos(angle) * yy - jnp.sin(angle) * xx + h / 2
        columns = jnp.sin(angle) * yy + jnp.cos(angle) * xx + w / 2
        at = jnp.stack([rows, columns])
        return jax.vmap(lambda channel: jax.scipy.ndimage.map_coordinates(channel, at, 1), -1, -1)(x)

    def contrasted(key, x):
        m = x.mean((0, 1), keepdims=True)
        return (x - m) * jax.random.uniform(key, (), minval=0.6, maxval=1.4) + m

    def blurred(x):
        b = jnp.exp(-(jnp.arange(-5, 6) ** 2) / 4.0)
        b = b / b.sum()
        return jax.vmap(lambda channel: jax.scipy.signal.convolve2d(channel, jnp.outer(b, b), 'same'), -1, -1)(x)

    def levelled(x):
        ordered = jnp.sort(x.reshape(-1, 3), 0)
        low, high = ordered[500], ordered[-500]
        return (x - low) / (high - low + 1e-6)

    def cut_out(key, x):
        row, column = jax.random.randint(key, (2,), 0, 224)
        r = jnp.arange(224)
        is_cut = (jnp.abs(r - row) < 32)[:, None] & (jnp.abs(r - column) < 32)[None]
        return jnp.where(is_cut[..., None], 0, x)

    def of_image(key, x):
        keys = jax.random.split(key, 8)
        x = turned(keys[0], x.astype(F32) / 255)
        x = jnp.where(jax.random.bernoulli(keys[1]), x[:, ::-1], x)
        moved = jax.random.randint(keys[2], (2,), 0, 32)
        x = contrasted(keys[3], lax.dynamic_slice(x, (moved[0], moved[1], 0), (224, 224, 3)))
        grey = (x @ jnp.array([0.299, 0.587, 0.114]))[..., None]
        x = jnp.where(jax.random.bernoulli(keys[4], 0.2), jnp.broadcast_to(grey, x.shape), x)
        return cut_out(keys[5], levelled(blurred(x))).astype(BF16)

    def run(key, x, y, _):
        of_images, of_mix = jax.random.split(key)
        x = jax.vmap(of_image)(jax.random.split(of_images, x.shape[0]), x)
        part = jax.random.beta(of_mix, 0.2, 0.2)
        order = jax.random.permutation(of_mix, x.shape[0])
        labels = part * jax.nn.one_hot(y, 1000) + (1 - part) * jax.nn.one_hot(y, 1000)[order]
        return part * x + (1 - part) * x[order], labels

    return run, (KEY, shape(64, 256, 256, 3, dtype=U8), tokens(64), shape()), ()


@program
def table_work():
    """A table grouped, joined and summarised."""
    rows, groups = 4_000_000, 1 << 20

    def run(keys, values, asked, edges):
        order = jnp.argsort(keys)
        k, v = keys[order], values[order]
        is_new = jnp.concatenate([jnp.ones(1, S32), (k[1:] != k[:-1]).astype(S32)])
        group = jnp.cumsum(is_new) - 1
        sums = jax.ops.segment_sum(v, group, groups, indices_are_sorted=True)
        highest = jax.ops.segment_max(v, group, groups, indices_are_sorted=True)
        counts = jax.ops.segment_sum(jnp.ones_like(group), group, groups)
        top, of_top = lax.top_k(sums[:, 0], 1000)
        histograms = jax.vmap(lambda column: jnp.histogram(column, edges)[0], 1)(v)
        quantiles = jnp.quantile(v, jnp.array([0.01, 0.5, 0.99]), axis=0)
        found = jnp.searchsorted(k, asked)
        means = sums / jnp.maximum(counts, 1)[:, None]
        joined = v[jnp.clip(found, 0, len(k) - 1)]
        return means, highest, top, of_top, histograms, quantiles, joined, jnp.unique(keys, size=groups, fill_value=-1)

    return run, (tokens(rows), shape(rows, 4), tokens(100000), shape(257)), ()


@program
def bpe_merge():
    """Two hundred merges of byte pairs, one after the other."""

    def run(texts, pairs, new):
        def free(before, hit):
            kept = hit & ~before
            return kept, kept

        def merge(t, of):
            (a, c), word = of
            following = jnp.roll(t, -1, 1).at[:, -1].set(-1)
            hit = (t == a) & (following == c)
            hit = lax.scan(free, jnp.zeros(t.shape[0], bool), hit.T)[1].T
            kept = ~jnp.roll(hit, 1, 1).at[:, 0].set(False)
            t = jnp.where(hit, word, t)
            order = jnp.argsort(~kept, axis=1, stable=True)
            t = jnp.take_along_axis(t, order, 1)
            return jnp.where(jnp.arange(t.shape[1]) < kept.sum(1, keepdims=True), t, -1), None

        t, _ = lax.scan(merge, texts.astype(S32), (pairs, new))
        hashed = (t.astype(jnp.uint32) * jnp.uint32(2654435761)) >> 12
        counts = jnp.zeros(1 << 20, S32).at[hashed.reshape(-1)].add(1)
        return t, counts, jnp.cumsum((t >= 0).astype(S32), 1)

    return run, (shape(2048, 2048, dtype=U8), tokens(200, 2), tokens(200)), ()
