"""Simulation and inference in plain JAX: stencils, Fourier transforms, factorisations, sparse matrices, implicit functions, export."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import sparse
from jax.scipy import linalg
from program import integers, normal, program


@program("jax")
def navier_stokes_spectral():
    """Vorticity on a torus: real transforms in two dimensions, dealiased products, Runge-Kutta in a loop, state donated."""

    @functools.partial(jax.jit, donate_argnums=0, static_argnums=1)
    def simulate(vorticity, steps):
        n = vorticity.shape[0]
        kx, ky = jnp.fft.fftfreq(n, 1 / n)[:, None], jnp.fft.rfftfreq(n, 1 / n)[None]
        laplacian = -(kx**2 + ky**2)
        inverse = jnp.where(laplacian == 0, 0.0, 1 / jnp.where(laplacian == 0, 1.0, laplacian))
        kept = (jnp.abs(kx) < n / 3) & (ky < n / 3)

        def slope(w):
            stream = -inverse * w
            u, v, w_x, w_y = (jnp.fft.irfft2(a, (n, n)) for a in (1j * ky * stream, -1j * kx * stream, 1j * kx * w, 1j * ky * w))
            return jnp.where(kept, -jnp.fft.rfft2(u * w_x + v * w_y), 0) + 1e-2 * laplacian * w

        def step(_, w):
            dt = 1e-2
            k1 = slope(w)
            k2 = slope(w + dt / 2 * k1)
            k3 = slope(w + dt / 2 * k2)
            return w + dt / 6 * (k1 + 2 * k2 + 2 * k3 + slope(w + dt * k3))

        return jnp.fft.irfft2(lax.fori_loop(0, steps, step, jnp.fft.rfft2(vorticity)), (n, n))

    return simulate, (normal(0, 24, 24), 4)


@program("jax")
def multigrid_until_converged():
    """Poisson's equation by V-cycles: stencils by rolls and pads, grids of four sizes, a while loop on the residual, donated."""

    def residual(u, f):
        p = jnp.pad(u, 1)
        return f - (4 * u - p[:-2, 1:-1] - p[2:, 1:-1] - p[1:-1, :-2] - p[1:-1, 2:])

    def smooth(u, f, times=2):
        return lax.fori_loop(0, times, lambda _, u: u + 0.2 * residual(u, f), u)

    def cycle(u, f):
        u = smooth(u, f)
        if u.shape[0] > 4:
            coarse = lax.reduce_window(residual(u, f), 0.0, lax.add, (2, 2), (2, 2), "VALID")
            u = u + jax.image.resize(cycle(jnp.zeros_like(coarse), coarse), u.shape, "linear")
        return smooth(u, f)

    @functools.partial(jax.jit, donate_argnums=0)
    def solve(u, f):
        def unfinished(state):
            u, i = state
            return (jnp.linalg.norm(residual(u, f)) > 1e-2) & (i < 10)

        return lax.while_loop(unfinished, lambda s: (cycle(s[0], f), s[1] + 1), (u, 0))

    return solve, (jnp.zeros((32, 32)), normal(0, 32, 32))


@program("jax")
def ising_checkerboard():
    """Metropolis on a lattice: a key folded with the step, both colours, moments gathered as the loop goes; vmap over temperatures."""

    def sweep(spins, key, beta):
        i, j = jnp.indices(spins.shape)
        for colour in range(2):
            near = sum(jnp.roll(spins, s, a) for s in (1, -1) for a in (0, 1))
            flip = jax.random.uniform(jax.random.fold_in(key, colour), spins.shape) < jnp.exp(-2.0 * beta * spins * near)
            spins = jnp.where(flip & ((i + j) % 2 == colour), -spins, spins)
        return spins

    @jax.jit
    def simulate(key, beta):
        start = jax.random.rademacher(key, (16, 16), jnp.int8)

        def one(carry, i):
            spins, total = carry
            spins = sweep(spins, jax.random.fold_in(key, i), beta)
            magnetisation = jnp.abs(jnp.mean(spins.astype(jnp.float32)))
            return (spins, total + magnetisation), magnetisation

        return lax.scan(one, (start, 0.0), jnp.arange(6))

    return jax.jit(jax.vmap(simulate)), (jax.random.split(jax.random.key(3), 4), jnp.linspace(0.2, 0.6, 4))


@program("jax")
def factorisations_and_functions():
    """What the libraries of the machine are asked for: LU, least squares, pseudo-inverse, eigenvectors, exponential, polar, Sylvester's kin."""

    @jax.jit
    def everything(a, b):
        symmetric = a @ a.T + jnp.eye(len(a))
        values, vectors = jnp.linalg.eigh(symmetric)
        root = (vectors * jnp.sqrt(values)) @ vectors.T
        lu, pivots = linalg.lu_factor(a)
        tall = jnp.concatenate([a, b], 1).T
        return {
            "root": root,
            "lu": linalg.lu_solve((lu, pivots), b),
            "least": jnp.linalg.lstsq(tall, jnp.ones(len(tall)))[0],
            "inverse": jnp.linalg.pinv(tall) @ tall,
            "exponential": linalg.expm(a / 10),
            "power": jnp.linalg.matrix_power(a / 3, 5),
            "log": jnp.linalg.slogdet(symmetric)[1],
            "update": jnp.linalg.cholesky(symmetric + jnp.outer(b[:, 0], b[:, 0])),
            "toeplitz": linalg.toeplitz(a[0]) @ b,
            "blocks": linalg.block_diag(a, b),
        }

    return everything, (normal(0, 10, 10), normal(1, 10, 6))


@program("jax")
def kalman_smoother_parallel():
    """A Kalman filter and smoother by associative_scan of small matrices (Särkkä), with solves in the combination."""

    def combine(left, right):
        a1, b1, c1, j1, e1 = left
        a2, b2, c2, j2, e2 = right
        eye = jnp.eye(a1.shape[-1])
        inner = jnp.linalg.solve(eye + c1 @ j2, jnp.broadcast_to(eye, c1.shape))
        t = a2 @ inner
        s = jnp.swapaxes(a1, -1, -2) @ jnp.swapaxes(inner, -1, -2)
        vector = lambda m, v: jnp.einsum("...ij,...j->...i", m, v)
        b = vector(t, b1 + vector(c1, e2)) + b2
        e = vector(s, e2 - vector(j2, b1)) + e1
        return t @ a1, b, t @ c1 @ jnp.swapaxes(a2, -1, -2) + c2, s @ j2 @ a1 + j1, e

    @jax.jit
    def smooth(f, h, q, r, observations):
        gain = q @ h.T @ jnp.linalg.inv(h @ q @ h.T + r)

        def element(y):
            inverse = jnp.linalg.inv(h @ q @ h.T + r)
            return (f - gain @ h @ f), gain @ y, q - gain @ h @ q, f.T @ h.T @ inverse @ h @ f, f.T @ h.T @ inverse @ y

        _, means, covariances, _, _ = lax.associative_scan(combine, jax.vmap(element)(observations))

        def back(carry, now):
            mean, covariance = carry
            m, c = now
            predicted = f @ c @ f.T + q
            g = jnp.linalg.solve(predicted, f @ c).T
            mean, covariance = m + g @ (mean - f @ m), c + g @ (covariance - predicted) @ g.T
            return (mean, covariance), mean

        last = means[-1], covariances[-1]
        return last, lax.scan(back, last, (means[:-1], covariances[:-1]), reverse=True)[1]

    f = jnp.eye(3) * 0.9 + 0.05
    return smooth, (f, normal(0, 2, 3), 0.1 * jnp.eye(3), 0.5 * jnp.eye(2), normal(1, 24, 2))


@program("jax")
def sparse_graph_convolution():
    """A sparse adjacency matrix (BCOO) with weights that learn: products, transposes, reductions, gradients of the stored elements."""

    @jax.jit
    def step(data, indices, x, w):
        def loss(data, w):
            a = sparse.BCOO((data, indices), shape=(30, 30), indices_sorted=True, unique_indices=True)
            degree = jnp.maximum((a @ jnp.ones(30)), 0.1)
            h = jax.nn.relu((a @ (x @ w[0])) / degree[:, None])
            out = (h.T @ a).T @ w[1]
            return jnp.mean(out**2) + 0.01 * sparse.sparsify(jnp.sum)(a)

        return jax.value_and_grad(loss, (0, 1))(data, w)

    flat = jnp.sort(jax.random.permutation(jax.random.key(0), 900)[:120])
    indices = jnp.stack([flat // 30, flat % 30], 1)
    return step, (jnp.abs(normal(1, 120)), indices, normal(2, 30, 8), (normal(3, 8, 12) / 3, normal(4, 12, 4) / 3))


@program("jax")
def branches_under_vmap():
    """cond, switch and while loops that become selects and masks under vmap, and one cond that stays, by its common predicate."""

    def bisect(target):
        def halve(state):
            low, high, i = state
            middle = (low + high) / 2
            return jnp.where(middle**3 < target, middle, low), jnp.where(middle**3 < target, high, middle), i + 1

        low, high, steps = lax.while_loop(lambda s: (s[1] - s[0] > 1e-3) & (s[2] < 30), halve, (0.0, 2.0, 0))
        return low, steps

    def one(x, kind, common):
        y = lax.cond(x.sum() > 0, lambda x: jnp.sort(x), lambda x: x[::-1] * 2, x)
        y = lax.switch(kind, [jnp.sin, lambda y: jnp.cumsum(y), lambda y: y @ jnp.ones((y.size, y.size))], y)
        return lax.cond(common, lambda y: y / jnp.linalg.norm(y), lambda y: y - y.mean(), y)

    @jax.jit
    def run(x, kinds, common, targets):
        out = jax.vmap(one, (0, 0, None))(x, kinds, common)
        slope = jax.vmap(jax.grad(lambda x, k: one(x, k, False).sum()), (0, 0))(x, kinds)
        return out, slope, jax.vmap(bisect)(targets)

    return run, (normal(0, 9, 6), integers(1, 3, 9), jnp.array(True), jnp.linspace(0.1, 6.0, 5))


@program("jax")
def deep_equilibrium():
    """A fixed point by a while loop, differentiated implicitly by another (custom_vjp), as equilibrium models are trained."""

    def fixed_point(f, start, steps=40):
        def again(state):
            before, now, i = state
            return (jnp.max(jnp.abs(now - before)) > 1e-5) & (i < steps)

        return lax.while_loop(again, lambda s: (s[1], f(s[1]), s[2] + 1), (start, f(start), 0))[1]

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def solve(f, params, x):
        return fixed_point(lambda z: f(params, x, z), jnp.zeros_like(x))

    def forward(f, params, x):
        z = solve(f, params, x)
        return z, (params, x, z)

    def backward(f, kept, g):
        params, x, z = kept
        _, by_z = jax.vjp(lambda z: f(params, x, z), z)
        u = fixed_point(lambda u: g + by_z(u)[0], g)
        return jax.vjp(lambda params, x: f(params, x, z), params, x)[1](u)

    solve.defvjp(forward, backward)

    def cell(params, x, z):
        return jnp.tanh(z @ params["w"] + x @ params["u"] + params["b"])

    @jax.jit
    def step(params, x, y):
        value, grads = jax.value_and_grad(lambda p: jnp.mean((solve(cell, p, x) - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {"w": normal(0, 16, 16) / 16, "u": normal(1, 16, 16) / 4, "b": jnp.zeros(16)}
    return step, (params, normal(2, 12, 16), normal(3, 12, 16))


@program("jax")
def exported_with_symbolic_batch():
    """A function exported with symbolic sizes and called at sizes that are known, as serving does."""
    from jax import export

    def features(x, mask):
        pooled = jnp.sum(x * mask[..., None], 1) / jnp.maximum(mask.sum(1, keepdims=True), 1)
        padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
        near = padded[:, :-2] + padded[:, 2:] - 2 * x
        return pooled, jnp.einsum("btd,bsd->bts", near, x).reshape(x.shape[0] * x.shape[1], -1), jnp.arange(x.shape[1]) / x.shape[1]

    b, t = export.symbolic_shape("b, t")
    exported = export.export(jax.jit(features), platforms=("cpu", "tpu", "cuda"))(
        jax.ShapeDtypeStruct((b, t, 8), jnp.float32), jax.ShapeDtypeStruct((b, t), jnp.float32)
    )
    return jax.jit(exported.call), (normal(0, 3, 10, 8), (integers(1, 2, 3, 10)).astype(jnp.float32))


@program("jax")
def warps_and_deformable_convolution():
    """Images: bilinear sampling by gathers, transposed and depthwise convolutions, dilated pooling, patches; and gradients."""

    def sample(image, at):
        return jax.vmap(lambda channel: jax.scipy.ndimage.map_coordinates(channel, at, order=1, mode="nearest"), -1, -1)(image)

    def network(params, image):
        grid = jnp.stack(jnp.meshgrid(jnp.arange(16.0), jnp.arange(16.0), indexing="ij"))
        conv = functools.partial(lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        offset = conv(image[None], params["offset"], (1, 1), "SAME")[0].transpose(2, 0, 1)
        warped = sample(image, grid + 2 * jnp.tanh(offset))
        deep = conv(warped[None], params["depth"], (1, 1), "SAME", rhs_dilation=(2, 2), feature_group_count=4)
        pooled = lax.reduce_window(deep, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        up = lax.conv_transpose(pooled, params["up"], (2, 2), "SAME")
        patches = lax.conv_general_dilated_patches(up, (4, 4), (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.einsum("nhwp,pk->nk", jax.nn.relu(patches), params["head"])

    @jax.jit
    def step(params, image):
        return jax.value_and_grad(lambda p, i: jnp.sum(network(p, i) ** 2), (0, 1))(params, image)

    params = {"offset": normal(0, 3, 3, 4, 2) / 6, "depth": normal(1, 3, 3, 1, 8) / 3, "up": normal(2, 3, 3, 8, 3) / 8, "head": normal(3, 48, 5) / 7}
    return step, (params, normal(4, 16, 16, 4))


@program("jax")
def taylor_and_forward_laplacian():
    """Derivatives that are not gradients: a Laplacian by nested jvp, jacobians both ways, a linearised map applied by lax.map in batches."""

    def wave(params, r):
        distances = jnp.sqrt(jnp.sum((r[:, None] - r[None]) ** 2, -1) + jnp.eye(len(r)))
        h = jnp.tanh(distances @ params["a"])
        return jnp.linalg.slogdet(h @ params["b"] + jnp.eye(len(r)))[1] - jnp.sum(distances) / 8

    def local_energy(params, r):
        flat = r.reshape(-1)
        gradient = jax.grad(lambda x: wave(params, x.reshape(r.shape)))
        value, push = jax.linearize(gradient, flat)
        second = lax.map(lambda v: push(v) @ v, jnp.eye(len(flat)), batch_size=5)
        return -0.5 * (jnp.sum(second) + jnp.sum(value**2))

    @jax.jit
    def step(params, walkers):
        energies = jax.vmap(local_energy, (None, 0))(params, walkers)
        forward = jax.jacfwd(lambda p: jax.vmap(wave, (None, 0))(p, walkers))(params)
        return energies, jax.tree.map(lambda j: jnp.tensordot(energies - energies.mean(), j, 1), forward)

    return step, ({"a": normal(0, 4, 6) / 3, "b": normal(1, 6, 4) / 3}, normal(2, 5, 4, 3))
