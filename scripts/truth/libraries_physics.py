"""Programs for unseen.py, second batch: fields, particles, circuits, molecules and rendering."""

import math

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from layers import BF16, F32, S32, S8, shape, tokens
from libraries import KEY, initial, is_shape, program, training, updated

C64 = jnp.complex64

# Fields.


@program
def boltzmann_3d():
    """Thirty steps of a lattice Boltzmann method with nineteen velocities, past an obstacle."""
    side = 96
    velocities = [(x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1) if abs(x) + abs(y) + abs(z) <= 2]
    weights = [(1 / 3, 1 / 18, 1 / 36)[sum(map(abs, v))] for v in velocities]
    opposite = jnp.array([velocities.index((-x, -y, -z)) for x, y, z in velocities])
    c, w = jnp.array(velocities, F32), jnp.array(weights, F32)

    def step(f, _, solid):
        density = f.sum(0)
        flow = jnp.einsum('qxyz,qd->dxyz', f, c) / density
        along = jnp.einsum('qd,dxyz->qxyz', c, flow)
        still = density * w[:, None, None, None] * (1 + 3 * along + 4.5 * along**2 - 1.5 * jnp.sum(flow**2, 0))
        f = jnp.where(solid, f[opposite], f - 1.7 * (f - still))
        f = jnp.stack([jnp.roll(f[i], v, (0, 1, 2)) for i, v in enumerate(velocities)])
        f = f.at[:, 0].set(w[:, None, None] * (1 + 0.3 * c[:, 0, None, None]))
        return f, jnp.sqrt(jnp.mean(flow**2))

    def run(f, solid):
        return lax.scan(lambda f, x: step(f, x, solid), f, None, length=30)

    return run, (shape(19, side, side, side), shape(side, side, side, dtype=bool)), (0,)


@program
def fdtd_inverse_design():
    """Optax: gradients through checkpointed steps of Maxwell's equations to a material, with Adam."""
    n, steps, parts = 512, 20, 15

    def loss(p, mask, source, target):
        smooth = jax.scipy.signal.convolve(p, jnp.ones((5, 5)) / 25, 'same')
        density = 0.5 + 0.5 * jnp.tanh(8 * (smooth - 0.5))
        epsilon = 1 + 11 * jnp.where(mask, density, 0)

        def step(of, t):
            e, hx, hy, total = of
            hx = hx.at[:, :-1].add(-0.5 * (e[:, 1:] - e[:, :-1]))
            hy = hy.at[:-1].add(0.5 * (e[1:] - e[:-1]))
            curl = jnp.zeros_like(e).at[1:, 1:].set(hy[1:, 1:] - hy[:-1, 1:] - hx[1:, 1:] + hx[1:, :-1])
            e = (e + 0.5 * curl / epsilon) * fade
            e = e.at[40].add(source * jnp.sin(0.2 * t) * jnp.exp(-(((t - 60) / 30) ** 2)))
            return (e, hx, hy, total + jnp.sum(target * e[-40] ** 2)), None

        edge = jnp.minimum(jnp.arange(n), jnp.arange(n)[::-1])
        line = 1 - 0.05 * jnp.maximum(1 - edge / 20, 0) ** 2
        fade = line[:, None] * line[None]

        @jax.checkpoint
        def part(of, ts):
            return lax.scan(step, of, ts)

        z = jnp.zeros((n, n))
        (_, _, _, total), _ = lax.scan(part, (z, z, z, 0.0), jnp.arange(steps * parts, dtype=F32).reshape(parts, steps))
        return -total

    return training(loss, optax.adam(1e-2), shape(n, n), shape(n, n, dtype=bool), shape(n), shape(n))


@program
def multigrid_poisson():
    """Ten V-cycles on a grid in three dimensions, with red and black points."""
    n = 128

    def laplacian(u):
        p = jnp.pad(u, 1)
        c = slice(1, -1)
        return p[2:, c, c] + p[:-2, c, c] + p[c, 2:, c] + p[c, :-2, c] + p[c, c, 2:] + p[c, c, :-2] - 6 * u

    def smooth(u, f, h, times):
        i = jnp.indices(u.shape, sparse=True)
        is_red = (sum(i) % 2) == 0

        def once(_, u):
            for colour in (is_red, ~is_red):
                u = jnp.where(colour, u + (laplacian(u) - h * h * f) / 6, u)
            return u

        return lax.fori_loop(0, times, once, u)

    def cycle(u, f, h):
        if u.shape[0] <= 8:
            return smooth(u, f, h, 20)
        u = smooth(u, f, h, 2)
        rest = f - laplacian(u) / h**2
        coarse = rest.reshape(u.shape[0] // 2, 2, u.shape[1] // 2, 2, u.shape[2] // 2, 2).mean((1, 3, 5))
        e = cycle(jnp.zeros_like(coarse), coarse, 2 * h)
        u = u + jax.image.resize(e, u.shape, 'trilinear')
        return smooth(u, f, h, 2)

    def run(u, f):
        def body(u, _):
            u = cycle(u, f, 1 / n)
            return u, jnp.linalg.norm((f - laplacian(u) * n**2).reshape(-1))

        return lax.scan(body, u, None, length=10)

    return run, (shape(n, n, n), shape(n, n, n)), (0,)


@program
def cahn_hilliard_fft():
    """Batches of alloys that separate: a step that is implicit in wave numbers, until they hardly change."""
    n, batch = 512, 8

    def run(c):
        k = 2 * jnp.pi * jnp.fft.fftfreq(n)
        k2 = k[:, None] ** 2 + k[None, : n // 2 + 1] ** 2

        def step(of):
            c, _, i = of
            chemical = jnp.fft.rfft2(c**3 - c)
            hat = (jnp.fft.rfft2(c) - 0.5 * k2 * chemical) / (1 + 0.5 * 0.5 * k2**2)
            after = jnp.fft.irfft2(hat, (n, n))
            return after, jnp.max(jnp.abs(after - c)), i + 1

        c, change, i = lax.while_loop(lambda of: (of[1] > 1e-5) & (of[2] < 500), step, (c, jnp.inf, 0))
        power = jnp.mean(jnp.abs(jnp.fft.rfft2(c)) ** 2, 0)
        bins = jnp.clip((jnp.sqrt(k2) * 40).astype(S32), 0, 127)
        return c, change, i, jnp.zeros(128).at[bins].add(power)

    return run, (shape(batch, n, n),), (0,)


@program
def ising_checkerboard():
    """Spins of eight bits on many lattices at many temperatures, with samples of their sums."""
    n, many = 512, 32

    def run(spins, inverse, key):
        i, j = jnp.indices((n, n), sparse=True)
        is_even = (i + j) % 2 == 0

        def half(spins, key, colour, b):
            near = sum(jnp.roll(spins, d, a) for d in (1, -1) for a in (0, 1))
            odds = jnp.exp(-2 * b * (spins * near).astype(F32))
            return jnp.where(colour & (jax.random.uniform(key, spins.shape) < odds), -spins, spins)

        def sweep(spins, key):
            def one(s, b, key):
                a, c = jax.random.split(key)
                return half(half(s, a, is_even, b), c, ~is_even, b)

            spins = jax.vmap(one)(spins, inverse, jax.random.split(key, many))
            m = jnp.mean(spins.astype(F32), (1, 2))
            energy = -jnp.mean((spins * (jnp.roll(spins, 1, 1) + jnp.roll(spins, 1, 2))).astype(F32), (1, 2))
            return spins, (m, m**2, energy)

        spins, (m, m2, energy) = lax.scan(sweep, spins, jax.random.split(key, 100))
        return spins, jnp.abs(m).mean(0), m2.mean(0), energy.mean(0), energy.var(0)

    return run, (shape(many, n, n, dtype=S8), shape(many), KEY), (0,)


# Quanta.


@program
def variational_circuit():
    """Gradients of an energy over the gates of a circuit of twenty qubits."""
    qubits, depth = 20, 4

    def rotate(state, angle, qubit, axis):
        c, s = jnp.cos(angle / 2), jnp.sin(angle / 2)
        if axis == 'y':
            gate = jnp.array([[c, -s], [s, c]], C64)
        else:
            gate = jnp.array([[jnp.exp(-0.5j * angle), 0], [0, jnp.exp(0.5j * angle)]], C64)
        state = state.reshape(2**qubit, 2, -1)
        return jnp.einsum('ab,xby->xay', gate, state).reshape(-1)

    def flip(state, control, target):
        state = state.reshape((2,) * qubits)
        low = lax.index_in_dim(state, 0, control, keepdims=False)
        high = lax.index_in_dim(state, 1, control, keepdims=False)
        at = target if target < control else target - 1
        return jnp.stack([low, jnp.flip(high, at)], control).reshape(-1)

    def energy(angles, couplings):
        state = jnp.zeros(2**qubits, C64).at[0].set(1)

        def layer(state, angles):
            for i in range(0, qubits, 2):
                state = rotate(rotate(state, angles[i, 0], i, 'y'), angles[i, 1], i, 'z')
            for i in range(0, qubits - 1, 3):
                state = flip(state, i, i + 1)
            return state, None

        state, _ = lax.scan(layer, state, angles)
        odds = jnp.abs(state) ** 2
        total = 0.0
        for i in range(0, qubits - 1, 4):
            p = odds.reshape(2**i, 2, 2, -1).sum((0, 3))
            total = total + couplings[i] * (p[0, 0] + p[1, 1] - p[0, 1] - p[1, 0])
        turned = jnp.flip(state.reshape(-1, 2), 1).reshape(-1)
        return total - 0.5 * jnp.real(jnp.vdot(state, turned))

    return jax.value_and_grad(energy), (shape(depth, qubits, 2), shape(qubits)), ()


@program
def kohn_sham_loop():
    """A density found by repetition: orbitals refined by a block method, potentials by Fourier transforms, and mixing."""
    n, bands = 48, 16

    def run(orbitals, external):
        k = 2 * jnp.pi * jnp.fft.fftfreq(n) * n / 10
        k2 = k[:, None, None] ** 2 + k[None, :, None] ** 2 + k[None, None] ** 2
        axes = (-3, -2, -1)

        def potential(density):
            hat = jnp.fft.fftn(density) * jnp.where(k2 > 0, 4 * jnp.pi / jnp.where(k2 > 0, k2, 1), 0)
            return external + jnp.fft.ifftn(hat).real - 0.985 * jnp.cbrt(jnp.maximum(density, 1e-12))

        def hamiltonian(psi, v):
            return jnp.fft.ifftn(0.5 * k2 * jnp.fft.fftn(psi, axes=axes), axes=axes) + v * psi

        def refined(psi, v):
            def once(psi, _):
                h = hamiltonian(psi, v)
                energies = jnp.real(jnp.sum(jnp.conj(psi) * h, axes, keepdims=True))
                rest = h - energies * psi
                better = jnp.fft.ifftn(jnp.fft.fftn(rest, axes=axes) / (1 + k2), axes=axes)
                flat = (psi - 0.5 * better).reshape(bands, -1)
                q = jnp.linalg.qr(flat.T)[0].T
                hq = hamiltonian(q.reshape(psi.shape), v).reshape(bands, -1)
                values, vectors = jnp.linalg.eigh(jnp.conj(q) @ hq.T)
                return (vectors.T @ q).reshape(psi.shape), values

            return lax.scan(once, psi, None, length=4)

        def step(of):
            psi, density, _, i, _ = of
            psi, values = refined(psi, potential(density))
            new = 2 * jnp.sum(jnp.abs(psi) ** 2, 0)
            return psi, 0.7 * density + 0.3 * new, jnp.sum(jnp.abs(new - density)), i + 1, values[-1]

        start = orbitals, 2 * jnp.sum(jnp.abs(orbitals) ** 2, 0), jnp.inf, 0, jnp.zeros(bands)
        return lax.while_loop(lambda of: (of[2] > 1e-4) & (of[3] < 30), step, start)

    return run, (shape(bands, n, n, n, dtype=C64), shape(n, n, n)), (0,)


@program
def matrix_product_evolution():
    """Gates on a chain of tensors for many chains at once, each cut back by singular values."""
    sites, bond, many = 16, 16, 256

    def run(tensors, gate):
        def pair(a, b):
            both = jnp.einsum('ipj,jqk,pqrs->irsk', a, b, gate)
            u, s, v = jnp.linalg.svd(both.reshape(2 * bond, 2 * bond), full_matrices=False)
            root = jnp.sqrt(s[:bond] / jnp.linalg.norm(s[:bond]))
            return (u[:, :bond] * root).reshape(bond, 2, bond), (root[:, None] * v[:bond]).reshape(bond, 2, bond)

        def chain(tensors):
            for first in (0, 1):
                pairs = (sites - first) // 2
                some = tensors[first : first + 2 * pairs].reshape(pairs, 2, bond, 2, bond)
                a, b = jax.vmap(pair)(some[:, 0], some[:, 1])
                tensors = tensors.at[first : first + 2 * pairs].set(jnp.stack([a, b], 1).reshape(2 * pairs, bond, 2, bond))
            return tensors

        def step(tensors, _):
            tensors = jax.vmap(chain)(tensors)
            spin = jnp.einsum('nsipj,nsipj,p->ns', tensors, tensors, jnp.array([1.0, -1.0]))
            return tensors, spin

        return lax.scan(step, tensors, None, length=20)

    return run, (shape(many, sites, bond, 2, bond), shape(2, 2, 2, 2)), (0,)


# Particles and molecules.


@program
def sph_sorted_cells():
    """Smoothed particles that flow: sorted into cells in every step, with sums over cells nearby."""
    n, cells, room = 131072, 48, 16
    h = 1 / cells

    def run(x, v):
        def step(of, _):
            x, v = of
            at = jnp.clip((x * cells).astype(S32), 0, cells - 1)
            cell = (at[:, 0] * cells + at[:, 1]) * cells + at[:, 2]
            order = jnp.argsort(cell)
            x, v, cell, at = x[order], v[order], cell[order], at[order]
            first = jnp.searchsorted(cell, jnp.arange(cells**3))
            place = jnp.arange(n) - first[cell]
            table = jnp.full((cells**3, room), n).at[cell, place].set(jnp.arange(n), mode='drop')
            offsets = jnp.stack(jnp.meshgrid(*[jnp.arange(-1, 2)] * 3, indexing='ij'), -1).reshape(-1, 3)
            xp = jnp.concatenate([x, jnp.full((1, 3), 1e3)])
            vp = jnp.concatenate([v, jnp.zeros((1, 3))])

            def near(offset):
                other = jnp.clip(at + offset, 0, cells - 1)
                is_inside = jnp.all(other == at + offset, -1, keepdims=True)
                return jnp.where(is_inside, table[(other[:, 0] * cells + other[:, 1]) * cells + other[:, 2]], n)

            def sum_density(total, offset):
                d = x[:, None] - xp[near(offset)]
                return total + jnp.sum(jnp.maximum(h * h - jnp.sum(d**2, -1), 0) ** 3, 1), None

            density, _ = lax.scan(sum_density, jnp.zeros(n), offsets)
            density = density * 315 / (64 * math.pi * h**9) / n
            pressure = jnp.concatenate([3.0 * (density - 1), jnp.zeros(1)])
            dense = jnp.concatenate([density, jnp.ones(1)])

            def sum_force(total, offset):
                j = near(offset)
                d = x[:, None] - xp[j]
                r = jnp.sqrt(jnp.sum(d**2, -1) + 1e-9)
                slope = jnp.maximum(h - r, 0) ** 2 / r
                push = (pressure[:n, None] + pressure[j]) / (2 * dense[j]) * slope
                drag = jnp.maximum(h - r, 0) / dense[j]
                return total + jnp.sum(push[..., None] * d + 0.1 * drag[..., None] * (vp[j] - v[:, None]), 1), None

            force, _ = lax.scan(sum_force, jnp.zeros((n, 3)), offsets)
            v = v + 1e-3 * (force / density[:, None] + jnp.array([0, 0, -9.8]))
            x = x + 1e-3 * v
            v = jnp.where((x < 0) | (x > 1), -0.5 * v, v)
            return (jnp.clip(x, 0, 1), v), jnp.mean(density)

        return lax.scan(step, (x, v), None, length=20)

    return run, (shape(n, 3), shape(n, 3)), (0, 1)


@program
def mpm_elastic():
    """Gradients of where elastic bodies are after checkpointed steps between particles and a grid."""
    n, grid, steps = 8192, 64, 64
    dx, dt = 1 / grid, 1e-4

    def step(of, stiffness):
        x, v, c, f = of
        base = (x / dx - 0.5).astype(S32)
        fx = x / dx - base
        w = jnp.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2], 1)
        f = f + dt * c @ f
        j = jnp.linalg.det(f)
        stress = stiffness * (f @ jnp.swapaxes(f, 1, 2) - jnp.eye(3)) + stiffness * jnp.log(jnp.maximum(j, 0.1))[:, None, None] * jnp.eye(3)
        affine = c - dt * 4 / dx**2 * stress
        mass, momentum = jnp.zeros((grid, grid, grid)), jnp.zeros((grid, grid, grid, 3))
        corners = [(i, j, k) for i in range(3) for j in range(3) for k in range(3)]
        for i, j, k in corners:
            at = base + jnp.array([i, j, k])
            weight = w[:, i, 0] * w[:, j, 1] * w[:, k, 2]
            d = (jnp.array([i, j, k]) - fx) * dx
            mass = mass.at[tuple(at.T)].add(weight)
            momentum = momentum.at[tuple(at.T)].add(weight[:, None] * (v + jnp.einsum('nij,nj->ni', affine, d)))
        flow = momentum / jnp.maximum(mass, 1e-8)[..., None] + dt * jnp.array([0, -9.8, 0])
        edge = (jnp.arange(grid) < 3) | (jnp.arange(grid) > grid - 4)
        is_wall = edge[:, None, None] | edge[None, :, None] | edge[None, None]
        flow = jnp.where(is_wall[..., None], 0, flow)
        v, c = jnp.zeros_like(v), jnp.zeros_like(c)
        for i, j, k in corners:
            at = base + jnp.array([i, j, k])
            weight = (w[:, i, 0] * w[:, j, 1] * w[:, k, 2])[:, None]
            found = flow[tuple(at.T)]
            d = jnp.array([i, j, k]) - fx
            v = v + weight * found
            c = c + 4 / dx * weight[:, :, None] * found[:, :, None] * d[:, None]
        return (x + dt * v, v, c, f)

    def loss(stiffness, v, x, wanted):
        start = x, v, jnp.zeros((n, 3, 3)), jnp.broadcast_to(jnp.eye(3), (n, 3, 3))
        body = jax.checkpoint(lambda of, _: (step(of, stiffness), None))
        (x, *_), _ = lax.scan(body, start, None, length=steps)
        return jnp.mean((x.mean(0) - wanted) ** 2)

    return jax.value_and_grad(loss, (0, 1)), (shape(n, 1, 1), shape(n, 3), shape(n, 3), shape(3)), ()


@program
def painn_forces():
    """Flax Linen: scalars and vectors of atoms by sums over edges, trained on energies and forces."""
    atoms, edges, graphs, width, radial = 2048, 40000, 64, 128, 20

    class Net(nn.Module):
        @nn.compact
        def __call__(self, kinds, x, senders, receivers, graph):
            d = x[receivers] - x[senders]
            r = jnp.sqrt(jnp.sum(d**2, -1, keepdims=True) + 1e-6)
            unit = d / r
            waves = jnp.sin(r * jnp.arange(1, radial + 1) * jnp.pi / 5) / r
            fade = jnp.where(r < 5, 0.5 * (jnp.cos(jnp.pi * r / 5) + 1), 0)
            s, v = nn.Embed(100, width)(kinds), jnp.zeros((atoms, 3, width))
            for _ in range(3):
                phi = nn.Dense(3 * width)(nn.silu(nn.Dense(width)(s)))[senders]
                a, b, c = jnp.split(phi * nn.Dense(3 * width)(waves) * fade, 3, -1)
                s = s + jax.ops.segment_sum(a, receivers, atoms)
                sent = b[:, None] * v[senders] + c[:, None] * unit[..., None]
                v = v + jax.ops.segment_sum(sent, receivers, atoms)
                u, w = jnp.split(nn.Dense(2 * width, use_bias=False)(v), 2, -1)
                size = jnp.sqrt(jnp.sum(w**2, 1) + 1e-8)
                a, b, c = jnp.split(nn.Dense(3 * width)(nn.silu(nn.Dense(width)(jnp.concatenate([s, size], -1)))), 3, -1)
                s = s + a + b * jnp.sum(u * w, 1)
                v = v + c[:, None] * u
            each = nn.Dense(1)(nn.silu(nn.Dense(width // 2)(s)))[:, 0]
            return jax.ops.segment_sum(each, graph, graphs, indices_are_sorted=True)

    model = Net()
    batch = tokens(atoms), shape(atoms, 3), tokens(edges), tokens(edges), tokens(atoms)

    def loss(p, kinds, x, senders, receivers, graph, energies, forces):
        def total(x):
            found = model.apply(p, kinds, x, senders, receivers, graph)
            return found.sum(), found

        slopes, found = jax.grad(total, has_aux=True)(x)
        return jnp.mean(optax.huber_loss(found, energies)) + 100 * jnp.mean((slopes + forces) ** 2)

    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.amsgrad(1e-3))
    return training(loss, optimizer, initial(model, *batch), *batch, shape(graphs), shape(atoms, 3))


@program
def equivariant_transformer():
    """Equinox: attention over edges with features of degrees 0 to 2, in half the bits, and Adam."""
    nodes, edges, channels, heads = 1024, 24576, 32, 4
    degrees = (1, 3, 5)

    class Layer(eqx.Module):
        queries: list
        keys: list
        values: list
        radial: eqx.nn.MLP
        out: list

        def __init__(self, key):
            keys = iter(jax.random.split(key, 16))
            of = lambda: [jax.random.normal(next(keys), (channels, channels)) / channels**0.5 for _ in degrees]
            self.queries, self.keys, self.values, self.out = of(), of(), of(), of()
            self.radial = eqx.nn.MLP(16, 2 * 3 * channels, 64, 2, jax.nn.silu, key=next(keys))

        def __call__(self, features, harmonics, waves, senders, receivers):
            gates = jax.vmap(self.radial)(waves).reshape(edges, 2, 3, channels).astype(BF16)
            q = [f[receivers] @ w for f, w in zip(features, self.queries)]
            k = [(f @ w)[senders] for f, w in zip(features, self.keys)]
            scores = sum(jnp.sum((a * b * gates[:, :1, i]).reshape(edges, -1, heads, channels // heads), (1, 3)) for i, (a, b) in enumerate(zip(q, k)))
            scores = scores.astype(F32) / 8
            highest = jax.ops.segment_max(scores, receivers, nodes)
            odds = jnp.exp(scores - highest[receivers])
            odds = (odds / (jax.ops.segment_sum(odds, receivers, nodes)[receivers] + 1e-9)).astype(BF16)
            odds = jnp.repeat(odds, channels // heads, -1)[:, None]
            scalars = (features[0] @ self.values[0])[senders]
            after = []
            for i, w in enumerate(self.values):
                sent = scalars * harmonics[i][..., None] + (features[i] @ w)[senders]
                total = jax.ops.segment_sum(odds * sent * gates[:, 1:, i], receivers, nodes)
                after.append(features[i] + total.astype(BF16) @ self.out[i])
            size = jax.nn.silu(sum(jnp.sum(f * f, 1, keepdims=True) for f in after) / channels)
            return [a * jax.nn.sigmoid(size) for a in after]

    def make(key):
        a, b, *keys = jax.random.split(key, 5)
        return dict(emb=jax.random.normal(a, (20, channels)), layers=[Layer(k) for k in keys], out=eqx.nn.MLP(channels, 1, 64, 1, key=b))

    arrays, static = eqx.partition(eqx.filter_eval_shape(make, KEY), is_shape)

    def loss(p, kinds, x, senders, receivers, wanted):
        model = eqx.combine(jax.tree.map(lambda a: a.astype(BF16), p), static)
        d = x[receivers] - x[senders]
        r = jnp.linalg.norm(d + 1e-6, axis=-1)
        u, v, w = jnp.unstack((d / r[:, None]).T)
        second = jnp.stack([u * v, v * w, 3 * w * w - 1, u * w, u * u - v * v], -1)
        harmonics = [jnp.ones((edges, 1), BF16), (d / r[:, None]).astype(BF16), second.astype(BF16)]
        waves = jnp.exp(-((r[:, None] - jnp.linspace(0, 6, 16)) ** 2) * 4).astype(BF16)
        features = [jnp.zeros((nodes, n, channels), BF16) for n in degrees]
        features[0] = model['emb'][kinds][:, None]
        for layer in model['layers']:
            features = layer(features, harmonics, waves, senders, receivers)
        found = jax.vmap(model['out'])(features[0][:, 0])[:, 0].astype(F32)
        return jnp.mean((found - wanted) ** 2)

    batch = tokens(nodes), shape(nodes, 3), tokens(edges), tokens(edges), shape(nodes)
    return training(loss, optax.adam(1e-3), arrays, *batch)


# Pictures of scenes.


@program
def sdf_ray_march():
    """A picture of a scene that a small network describes: rays until they hit, slopes there, and shadows."""
    side = 256

    def distance(w, x):
        h = jnp.concatenate([x, jnp.sin(4 * x), jnp.cos(4 * x)], -1)
        for a, b in w[:-1]:
            h = jax.nn.softplus(10 * (h @ a + b)) / 10
        return (h @ w[-1][0] + w[-1][1])[..., 0] + jnp.linalg.norm(x, axis=-1) - 1

    def march(w, origin, direction, limit):
        def step(of):
            t, is_moving, i = of
            d = distance(w, origin + t[:, None] * direction)
            t = jnp.where(is_moving, t + 0.8 * d, t)
            return t, is_moving & (jnp.abs(d) > 1e-3) & (t < 6), i + 1

        start = jnp.full(direction.shape[0], 0.02), jnp.ones(direction.shape[0], bool), 0
        return lax.while_loop(lambda of: jnp.any(of[1]) & (of[2] < limit), step, start)[0]

    def run(w, camera, light):
        y, x = jnp.meshgrid(jnp.linspace(1, -1, side), jnp.linspace(-1, 1, side), indexing='ij')
        rays = jnp.stack([x, y, jnp.full_like(x, 1.5)], -1).reshape(-1, 3) @ camera[:, :3].T
        rays = rays / jnp.linalg.norm(rays, axis=-1, keepdims=True)
        t = march(w, camera[:, 3], rays, 96)
        at = camera[:, 3] + t[:, None] * rays
        normal = jax.vmap(jax.grad(lambda x: distance(w, x)))(at)
        normal = normal / (jnp.linalg.norm(normal, axis=-1, keepdims=True) + 1e-6)
        to_light = light - at
        to_light = to_light / jnp.linalg.norm(to_light, axis=-1, keepdims=True)
        is_lit = march(w, at + 0.01 * normal, to_light, 48) > 5
        diffuse = jnp.maximum(jnp.sum(normal * to_light, -1), 0) * jnp.where(is_lit, 1, 0.2)
        shine = jnp.maximum(jnp.sum(normal * (to_light - rays) / 2, -1), 0) ** 32
        colour = jnp.where((t < 6)[:, None], diffuse[:, None] * jnp.array([0.9, 0.6, 0.3]) + shine[:, None], 0.1)
        return jnp.clip(colour ** (1 / 2.2), 0, 1).reshape(side, side, 3)

    weights = [(shape(a, b), shape(b)) for a, b in ((9, 128), (128, 128), (128, 128), (128, 1))]
    return run, (weights, shape(3, 4), shape(3)), ()


@program
def splat_tiles_adam():
    """Optax: Gaussians in space take a step towards a picture, by tiles with a fixed number of the nearest."""
    n, side, tile, most = 20000, 192, 16, 256
    tiles = side // tile

    def render(p, camera):
        q = p['turn'] / jnp.linalg.norm(p['turn'], axis=-1, keepdims=True)
        w, x, y, z = jnp.unstack(q, axis=-1)
        turn = jnp.stack(
            [
                jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
                jnp.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
                jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
            ],
            -2,
        )
        half = turn * jnp.exp(p['size'])[:, None]
        spread = half @ jnp.swapaxes(half, 1, 2)
        at = p['x'] @ camera[:, :3].T + camera[:, 3]
        depth = jnp.maximum(at[:, 2], 0.1)
        centre = side * (at[:, :2] / depth[:, None] * 0.8 + 0.5)
        zero = jnp.zeros(n)
        slope = 0.8 * side * jnp.stack([jnp.stack([1 / depth, zero, -at[:, 0] / depth**2], -1), jnp.stack([zero, 1 / depth, -at[:, 1] / depth**2], -1)], -2)
        flat = slope @ camera[:, :3] @ spread @ camera[:, :3].T @ jnp.swapaxes(slope, 1, 2) + 0.3 * jnp.eye(2)
        a, b, c = flat[:, 0, 0], flat[:, 0, 1], flat[:, 1, 1]
        det = a * c - b * b
        conic = jnp.stack([c / det, -b / det, a / det], -1)
        radius = 3 * jnp.sqrt(jnp.maximum(a, c))
        colour, dense = jax.nn.sigmoid(p['colour']), jax.nn.sigmoid(p['dense'])

        @jax.checkpoint
        def of_tile(corner):
            low = corner * tile
            is_near = jnp.all((centre + radius[:, None] > low) & (centre - radius[:, None] < low + tile), -1) & (at[:, 2] > 0.1)
            score, chosen = lax.top_k(jnp.where(is_near, -depth, -jnp.inf), most)
            y, x = jnp.meshgrid(jnp.arange(tile), jnp.arange(tile), indexing='ij')
            pixel = low + jnp.stack([x, y], -1).reshape(-1, 2) + 0.5
            d = pixel[:, None] - centre[chosen]
            k = conic[chosen]
            power = -0.5 * (k[:, 0] * d[..., 0] ** 2 + k[:, 2] * d[..., 1] ** 2) - k[:, 1] * d[..., 0] * d[..., 1]
            alpha = jnp.minimum(dense[chosen] * jnp.exp(power), 0.99) * (score > -jnp.inf)
            passed = jnp.cumprod(1 - alpha, 1)
            weight = alpha * jnp.concatenate([jnp.ones((tile**2, 1)), passed[:, :-1]], 1)
            return weight @ colour[chosen] + passed[:, -1:]

        corners = jnp.stack(jnp.meshgrid(jnp.arange(tiles), jnp.arange(tiles)), -1).reshape(-1, 2)
        found = lax.map(of_tile, corners, batch_size=8)
        return found.reshape(tiles, tiles, tile, tile, 3).transpose(0, 2, 1, 3, 4).reshape(side, side, 3)

    def loss(p, camera, picture):
        made = render(p, camera)
        window = jnp.ones((7, 7, 1, 1)) / 49

        def mean(x):
            x = x.transpose(2, 0, 1)[..., None]
            return lax.conv_general_dilated(x, window, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))

        a, b = mean(made), mean(picture)
        va, vb, vab = mean(made**2) - a * a, mean(picture**2) - b * b, mean(made * picture) - a * b
        alike = (2 * a * b + 1e-4) * (2 * vab + 9e-4) / ((a * a + b * b + 1e-4) * (va + vb + 9e-4))
        return 0.8 * jnp.mean(jnp.abs(made - picture)) + 0.2 * (1 - jnp.mean(alike))

    parameters = dict(x=shape(n, 3), size=shape(n, 3), turn=shape(n, 4), colour=shape(n, 3), dense=shape(n))
    rates = {name: optax.adam(rate) for name, rate in dict(x=1e-4, size=5e-3, turn=1e-3, colour=2e-3, dense=5e-2).items()}
    optimizer = optax.multi_transform(rates, {name: name for name in parameters})
    return training(loss, optimizer, parameters, shape(3, 4), shape(side, side, 3))
