"""Programs for unseen.py, third batch: physics, statistics, control and agents."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from jax import lax

from layers import F32, S8, S32, U8, shape, tokens
from libraries import KEY, cross_entropy, initial, is_shape, program, training, updated

# Physics.


@program
def su3_gauge_hmc():
    """A trajectory of a lattice of SU(3) matrices: leapfrog with forces by gradients, exponentials of matrices, and acceptance."""
    sides = (16, 16, 16, 24)

    def action(u):
        total = 0.0
        for a in range(4):
            for b in range(a):
                moved = lambda x, axis: jnp.roll(x, -1, axis)
                plaquette = u[a] @ moved(u[b], a) @ jnp.conj(moved(u[a], b)).swapaxes(-1, -2) @ jnp.conj(u[b]).swapaxes(-1, -2)
                total = total + jnp.sum(1 - jnp.trace(plaquette, axis1=-2, axis2=-1).real / 3)
        return 5.7 * total

    def algebra(x):
        x = (x - jnp.conj(x).swapaxes(-1, -2)) / 2
        return x - jnp.trace(x, axis1=-2, axis2=-1)[..., None, None] / 3 * jnp.eye(3)

    def exponential(x):
        term, total = x, jnp.eye(3) + x
        for i in range(2, 7):
            term = term @ x / i
            total = total + term
        return total

    def force(u):
        g = jax.grad(action)(u)
        return algebra(u @ g.swapaxes(-1, -2))

    def run(u, key):
        a, b, c = jax.random.split(key, 3)
        p = algebra(jax.random.normal(a, u.shape) + 1j * jax.random.normal(b, u.shape))
        energy = lambda u, p: action(u) + jnp.sum(jnp.abs(p) ** 2)
        before = energy(u, p)

        def leap(of, _):
            v, p = of
            v = exponential(0.05 * p) @ v
            return (v, p - 0.1 * force(v)), action(v)

        p_half = p - 0.05 * force(u)
        (v, q), actions = lax.scan(leap, (u, p_half), None, length=10)
        change = energy(v, q) - before
        return jnp.where(jax.random.uniform(c) < jnp.exp(-change), v, u), change, actions

    return run, (shape(4, *sides, 3, 3, dtype=jnp.complex64), KEY), (0,)


@program
def euler_weno_3d():
    """Gas in three dimensions: fluxes by WENO of fifth order with Lax-Friedrichs splitting, and ten Runge-Kutta steps."""
    n, gamma = 112, 1.4

    def reconstructed(f, axis):
        s = [jnp.roll(f, i, axis) for i in (2, 1, 0, -1, -2)]
        p = [
            (2 * s[0] - 7 * s[1] + 11 * s[2]) / 6,
            (-s[1] + 5 * s[2] + 2 * s[3]) / 6,
            (2 * s[2] + 5 * s[3] - s[4]) / 6,
        ]
        b = [
            13 / 12 * (s[0] - 2 * s[1] + s[2]) ** 2 + (s[0] - 4 * s[1] + 3 * s[2]) ** 2 / 4,
            13 / 12 * (s[1] - 2 * s[2] + s[3]) ** 2 + (s[1] - s[3]) ** 2 / 4,
            13 / 12 * (s[2] - 2 * s[3] + s[4]) ** 2 + (3 * s[2] - 4 * s[3] + s[4]) ** 2 / 4,
        ]
        a = [d / (1e-6 + x) ** 2 for d, x in zip((0.1, 0.6, 0.3), b)]
        return sum(x * y for x, y in zip(a, p)) / sum(a)

    def slope(u, dx):
        rho, energy = u[0], u[4]
        v = u[1:4] / rho
        pressure = (gamma - 1) * (energy - 0.5 * rho * jnp.sum(v**2, 0))
        sound = jnp.sqrt(gamma * jnp.maximum(pressure, 1e-6) / rho)
        total = jnp.zeros_like(u)
        for i in range(3):
            flux = u * v[i]
            flux = flux.at[1 + i].add(pressure).at[4].add(pressure * v[i])
            fastest = jnp.max(jnp.abs(v[i]) + sound)
            right = reconstructed(0.5 * (flux + fastest * u), i + 1)
            flipped = jnp.flip(0.5 * (flux - fastest * u), i + 1)
            left = jnp.roll(jnp.flip(reconstructed(flipped, i + 1), i + 1), -1, i + 1)
            edge = right + left
            total = total - (edge - jnp.roll(edge, 1, i + 1)) / dx
        return total

    def run(u, dt, dx):
        def step(_, u):
            a = u + dt * slope(u, dx)
            b = 0.75 * u + 0.25 * (a + dt * slope(a, dx))
            return u / 3 + 2 / 3 * (b + dt * slope(b, dx))

        return lax.fori_loop(0, 10, step, u)

    return run, (shape(5, n, n, n), shape(), shape()), (0,)


@program
def ferminet_vmc():
    """Haiku: the energy of electrons by samples: determinants of orbitals, Laplacians column by column, and Metropolis steps."""
    electrons, atoms, batch, dets = 8, 2, 256, 4

    def net(x, of_atoms):
        r = x[:, None] - of_atoms
        pairs = x[:, None] - x + jnp.eye(electrons)[..., None]
        far = jnp.linalg.norm(r, axis=-1, keepdims=True)
        one = jnp.concatenate([r, far], -1).reshape(electrons, -1)
        two = jnp.concatenate([pairs, jnp.linalg.norm(pairs, axis=-1, keepdims=True)], -1)
        for _ in range(3):
            mean = jnp.broadcast_to(one.mean(0), one.shape)
            h = jnp.concatenate([one, mean, two[:, : electrons // 2].mean(1), two[:, electrons // 2 :].mean(1)], -1)
            h = jnp.tanh(hk.Linear(256)(h))
            one = h + one if h.shape == one.shape else h
            g = jnp.tanh(hk.Linear(32)(two))
            two = g + two if g.shape == two.shape else g
        orbitals = hk.Linear(dets * electrons)(one).reshape(electrons, dets, electrons).transpose(1, 0, 2)
        decay = hk.get_parameter('decay', (atoms, dets, 1, electrons), init=jnp.ones)
        shrunk = jnp.sum(jnp.exp(-jnp.abs(decay) * far[:, :, 0].T[:, None, :, None]), 0)
        sign, log = jnp.linalg.slogdet(orbitals * shrunk)
        top = log.max()
        return jnp.log(jnp.abs(jnp.sum(sign * jnp.exp(log - top)))) + top

    model = hk.without_apply_rng(hk.transform(net))
    where = shape(atoms, 3)
    parameters = initial(model, shape(electrons, 3), where)

    def local(p, x, of_atoms):
        f = lambda flat: model.apply(p, flat.reshape(electrons, 3), of_atoms)
        flat = x.reshape(-1)
        g, pushed = jax.linearize(jax.grad(f), flat)
        laplacian = lax.fori_loop(0, flat.size, lambda i, s: s + pushed(jnp.zeros(flat.size).at[i].set(1.0))[i], 0.0)
        apart = jnp.linalg.norm(x[:, None] - x + jnp.eye(electrons)[..., None] * 1e6, axis=-1)
        pull = -jnp.sum(4 / jnp.linalg.norm(x[:, None] - of_atoms, axis=-1))
        return -0.5 * (laplacian + g @ g) + 0.5 * jnp.sum(1 / apart) + pull

    optimizer = optax.adam(1e-3)

    def step(p, state, x, of_atoms, key):
        of_one = jax.vmap(lambda p, x: model.apply(p, x, of_atoms), (None, 0))

        def move(of, key):
            x, log = of
            a, b = jax.random.split(key)
            y = x + 0.1 * jax.random.normal(a, x.shape)
            new = of_one(p, y)
            accepted = jnp.log(jax.random.uniform(b, log.shape)) < 2 * (new - log)
            return (jnp.where(accepted[:, None, None], y, x), jnp.where(accepted, new, log)), accepted.mean()

        (x, _), rates = lax.scan(move, (x, of_one(p, x)), jax.random.split(key, 10))
        energies = jax.vmap(local, (None, 0, None))(p, x, of_atoms)
        middle = jnp.median(energies)
        spread = jnp.mean(jnp.abs(energies - middle))
        clipped = jnp.clip(energies, middle - 5 * spread, middle + 5 * spread)
        gradients = jax.grad(lambda p: jnp.mean((clipped - clipped.mean()) * of_one(p, x)))(p)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(p, updates), state, x, energies.mean(), rates

    state = jax.eval_shape(optimizer.init, parameters)
    return step, (parameters, state, shape(batch, electrons, 3), where, KEY), (0, 1, 2)


@program
def particle_mesh_cosmology():
    """Gradients of a density through twenty checkpointed steps of particles whose forces a mesh and Fourier transforms give."""
    n = 96

    def spread(x):
        """Of particles to the eight cells about each."""
        base = jnp.floor(x)
        part = x - base
        base = base.astype(S32)
        mesh = jnp.zeros((n, n, n))
        for i in range(8):
            off = jnp.array([i & 1, i >> 1 & 1, i >> 2])
            weight = jnp.prod(jnp.where(off, part, 1 - part), -1)
            at = (base + off) % n
            mesh = mesh.at[at[:, 0], at[:, 1], at[:, 2]].add(weight)
        return mesh

    def gathered(mesh, x):
        base = jnp.floor(x)
        part = x - base
        base = base.astype(S32)
        total = 0.0
        for i in range(8):
            off = jnp.array([i & 1, i >> 1 & 1, i >> 2])
            at = (base + off) % n
            total = total + mesh[at[:, 0], at[:, 1], at[:, 2]] * jnp.prod(jnp.where(off, part, 1 - part), -1)
        return total

    def waves():
        k = jnp.fft.fftfreq(n) * 2 * jnp.pi
        last = jnp.fft.rfftfreq(n) * 2 * jnp.pi
        return k[:, None, None], k[None, :, None], last[None, None]

    def forces(x):
        ks = waves()
        square = sum(k**2 for k in ks)
        potential = -jnp.fft.rfftn(spread(x) - 1) / jnp.where(square == 0, 1, square)
        return jnp.stack([gathered(jnp.fft.irfftn(-1j * k * potential, (n, n, n)), x) for k in ks], -1)

    def loss(start, target):
        ks = waves()
        square = sum(k**2 for k in ks)
        modes = jnp.fft.rfftn(start) / jnp.where(square == 0, 1, square)
        moved = jnp.stack([jnp.fft.irfftn(1j * k * modes, (n, n, n)).reshape(-1) for k in ks], -1)
        grid = jnp.stack(jnp.meshgrid(*[jnp.arange(n) * 1.0] * 3, indexing='ij'), -1).reshape(-1, 3)

        def step(of, a):
            x, v = of
            v = v + 0.05 * forces(x) / a
            return ((x + 0.05 * v / a**1.5) % n, v), None

        (x, _), _ = lax.scan(jax.checkpoint(step), (grid + 0.1 * moved, 0.1 * moved), jnp.linspace(0.1, 1, 20))
        return jnp.mean((spread(x) - target) ** 2)

    return jax.value_and_grad(loss), (shape(n, n, n), shape(n, n, n)), ()


@program
def topology_by_cg():
    """A beam that gets lighter: stiffness of bricks, displacements by preconditioned conjugate gradients, and new densities."""
    nx, ny, nz = 96, 48, 48

    def gathered(u):
        """Displacements of the eight corners of each brick."""
        parts = [u[i : i + nx, j : j + ny, k : k + nz] for i in (0, 1) for j in (0, 1) for k in (0, 1)]
        return jnp.stack(parts, -2).reshape(nx, ny, nz, 24)

    scatter = jax.linear_transpose(gathered, shape(nx + 1, ny + 1, nz + 1, 3))

    def run(density, brick, load, is_free, taps):
        def filtered(x):
            return lax.conv_general_dilated(x[None, None], taps, (1, 1, 1), 'SAME', dimension_numbers=('NCDHW', 'OIDHW', 'NCDHW'))[0, 0]

        share = filtered(jnp.ones_like(density))

        def one(of, _):
            density, u = of
            smooth = filtered(density) / share
            stiff = 1e-3 + smooth**3

            def product(u):
                (f,) = scatter(stiff[..., None] * (gathered(u * is_free) @ brick))
                return f * is_free + u * (1 - is_free)

            (around,) = scatter(jnp.broadcast_to(stiff[..., None] * jnp.diag(brick), (nx, ny, nz, 24)))
            u, _ = jax.scipy.sparse.linalg.cg(product, load * is_free, u, maxiter=60, M=lambda x: x / (around + 1e-9))
            local = gathered(u)
            strain = jnp.einsum('xyzi,ij,xyzj->xyz', local, brick, local)
            slope = filtered(3 * smooth**2 * strain / share)

            def bisect(_, of):
                low, high = of
                middle = (low + high) / 2
                new = changed(middle)
                is_heavy = new.mean() > 0.3
                return jnp.where(is_heavy, middle, low), jnp.where(is_heavy, high, middle)

            def changed(level):
                return jnp.clip(density * jnp.sqrt(slope / level), jnp.maximum(density - 0.2, 0.001), jnp.minimum(density + 0.2, 1))

            low, high = lax.fori_loop(0, 40, bisect, (1e-9, 1e9))
            return (changed((low + high) / 2), u), jnp.sum(stiff * strain)

        return lax.scan(one, (density, jnp.zeros_like(load)), None, length=8)

    nodes = shape(nx + 1, ny + 1, nz + 1, 3)
    return run, (shape(nx, ny, nz), shape(24, 24), nodes, nodes, shape(1, 1, 3, 3, 3)), (0,)


@program
def spiking_network_learns():
    """Equinox: neurons that spike in a scan over time with surrogate slopes, synapses with delays, and Adam."""
    inputs, hidden, classes, steps, batch, delays = 700, 1024, 20, 200, 64, 8

    @jax.custom_jvp
    def spike(v):
        return (v > 0).astype(v.dtype)

    @spike.defjvp
    def _(primals, tangents):
        (v,), (dv,) = primals, tangents
        return spike(v), dv / (1 + 10 * jnp.abs(v)) ** 2

    class Layer(eqx.Module):
        given: eqx.nn.Linear
        own: jax.Array
        tau: jax.Array
        delay: jax.Array

        def __init__(self, a, b, key):
            k, l = jax.random.split(key)
            self.given = eqx.nn.Linear(a, b, key=k)
            self.own = jax.random.normal(l, (b, b)) * 0.02
            self.tau, self.delay = jnp.full(b, 2.0), jnp.zeros((delays, a))

        def __call__(self, state, x):
            v, s, trace, past = state
            past = jnp.concatenate([x[None], past[:-1]])
            x = jnp.sum(jax.nn.softmax(self.delay, 0) * past, 0)
            trace = 0.98 * trace + s
            v = jax.nn.sigmoid(self.tau) * v * (1 - s) + self.given(x) + self.own @ s
            s = spike(v - 1 - 0.1 * trace)
            return (v, s, trace, past), s

    class Net(eqx.Module):
        layers: list
        out: eqx.nn.Linear

        def __init__(self, key):
            a, b, c = jax.random.split(key, 3)
            self.layers = [Layer(inputs, hidden, a), Layer(hidden, hidden, b)]
            self.out = eqx.nn.Linear(hidden, classes, key=c)

        def __call__(self, x):
            start = [(*[jnp.zeros(hidden)] * 3, jnp.zeros((delays, n))) for n in (inputs, hidden)]

            def step(of, x):
                states, y = of
                after, fired = [], []
                for layer, state in zip(self.layers, states):
                    state, x = layer(state, x)
                    after.append(state)
                    fired.append(x.mean())
                y = 0.95 * y + self.out(x)
                return (after, y), (y, jnp.stack(fired))

            _, (ys, fired) = lax.scan(step, (start, jnp.zeros(classes)), x)
            return ys.max(0), fired

    p, static = eqx.partition(eqx.filter_eval_shape(Net, KEY), is_shape)

    def loss(p, x, y):
        logits, fired = jax.vmap(eqx.combine(p, static))(x.astype(F32))
        return cross_entropy(logits, y).mean() + 10 * jnp.mean((fired.mean(1) - 0.05) ** 2)

    return training(loss, optax.adam(1e-3), p, shape(batch, steps, inputs, dtype=S8), tokens(batch))


# Equations and samples.


@program
def diffrax_neural_cde():
    """Diffrax: series with gaps become splines that drive a controlled equation, whose gradients are found backwards."""
    import diffrax

    channels, hidden, length, batch = 16, 64, 256, 128

    class Field(eqx.Module):
        mlp: eqx.nn.MLP

        def __init__(self, key):
            self.mlp = eqx.nn.MLP(hidden, hidden * channels, 128, 2, jax.nn.softplus, jnp.tanh, key=key)

        def __call__(self, t, y, args):
            return self.mlp(y).reshape(hidden, channels)

    class Net(eqx.Module):
        start: eqx.nn.MLP
        field: Field
        out: eqx.nn.Linear

        def __init__(self, key):
            a, b, c = jax.random.split(key, 3)
            self.start, self.field, self.out = eqx.nn.MLP(channels, hidden, 64, 1, key=a), Field(b), eqx.nn.Linear(hidden, 1, key=c)

        def __call__(self, times, values):
            values = diffrax.linear_interpolation(times, values, fill_forward_nans_at_end=True, replace_nans_at_start=0.0)
            path = diffrax.CubicInterpolation(times, diffrax.backward_hermite_coefficients(times, values))
            term = diffrax.ControlTerm(self.field, path).to_ode()
            y = diffrax.diffeqsolve(
                term,
                diffrax.Bosh3(),
                times[0],
                times[-1],
                None,
                self.start(path.evaluate(times[0])),
                stepsize_controller=diffrax.PIDController(rtol=1e-2, atol=1e-4),
                adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=16),
                max_steps=512,
            ).ys[-1]
            return self.out(y)[0]

    p, static = eqx.partition(eqx.filter_eval_shape(Net, KEY), is_shape)

    def loss(p, times, values, labels):
        found = jax.vmap(eqx.combine(p, static))(times, values)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(found, labels))

    return training(loss, optax.adam(1e-3), p, shape(batch, length), shape(batch, length, channels), shape(batch))


@program
def blackjax_tempered_smc():
    """BlackJAX: particles from a prior to a posterior of mixtures by tempering, each moved by Hamiltonian steps."""
    import blackjax
    import blackjax.smc.resampling as resampling

    particles, points, parts, axes = 2048, 2000, 6, 3

    def run(key, x):
        def prior(z):
            return -0.5 * (jnp.sum(z['mean'] ** 2) / 9 + jnp.sum(z['log'] ** 2) + jnp.sum(z['share'] ** 2))

        def likelihood(z):
            far = (x[:, None] - z['mean']) * jnp.exp(-z['log'])
            each = -0.5 * jnp.sum(far**2, -1) - jnp.sum(z['log'], -1) + jax.nn.log_softmax(z['share'])
            return jnp.sum(jax.nn.logsumexp(each, -1))

        masses = jnp.ones((1, parts * (2 * axes + 1)))
        kernel = blackjax.tempered_smc(
            prior,
            likelihood,
            blackjax.hmc.build_kernel(),
            blackjax.hmc.init,
            dict(step_size=jnp.full(1, 1e-2), inverse_mass_matrix=masses, num_integration_steps=jnp.full(1, 5)),
            resampling.systematic,
            num_mcmc_steps=3,
        )
        a, b, c, d = jax.random.split(key, 4)
        of = lambda key, *extents: jax.random.normal(key, (particles, *extents))
        start = dict(mean=3 * of(a, parts, axes), log=of(b, parts, axes), share=of(c, parts))

        def step(state, of):
            key, heat = of
            state, info = kernel.step(key, state, heat)
            return state, info.log_likelihood_increment

        return lax.scan(step, kernel.init(start), (jax.random.split(d, 20), jnp.linspace(0.05, 1, 20) ** 3))

    return run, (KEY, shape(points, axes)), ()


@program
def numpyro_volatility_chains():
    """NumPyro: two hundred chains of Hamiltonian steps for a volatility that walks, with latent states by a scan."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import HMC, MCMC

    days = 1500

    def model(y):
        sigma = numpyro.sample('sigma', dist.HalfNormal(0.2))
        phi = numpyro.sample('phi', dist.Beta(20, 1.5))
        mu = numpyro.sample('mu', dist.Normal(-9, 2))
        steps = numpyro.sample('steps', dist.Normal(0, 1).expand([days]).to_event(1))
        _, h = lax.scan(lambda h, e: (phi * h + sigma * e,) * 2, jnp.zeros(()), steps)
        nu = numpyro.sample('nu', dist.Gamma(2, 0.1))
        numpyro.sample('y', dist.StudentT(nu + 2, 0, jnp.exp((mu + h) / 2)), obs=y)

    def run(key, y):
        chains = dict(num_chains=200, chain_method='vectorized', progress_bar=False)
        sampler = MCMC(HMC(model, trajectory_length=0.3, step_size=0.03, adapt_step_size=True), num_warmup=50, num_samples=100, **chains)
        sampler.run(key, y)
        found = sampler.get_samples(group_by_chain=True)
        return {name: (found[name].mean((0, 1)), found[name].std((0, 1))) for name in ('sigma', 'phi', 'mu', 'nu', 'steps')}

    return run, (KEY, shape(days)), ()


@program
def american_options_lsm():
    """Options that may end early: paths of Heston's model, regressions backwards in time, and how the price depends on all."""
    paths, steps, options = 65536, 64, 4

    def price(p, key, strikes):
        def step(of, key):
            s, v = of
            a, b = jax.random.normal(key, (2, paths // 2))
            a, b = jnp.concatenate([a, -a]), jnp.concatenate([b, -b])
            dt = 1 / steps
            vol = jnp.sqrt(jnp.maximum(v, 1e-8) * dt)
            b = p['rho'] * a + jnp.sqrt(1 - p['rho'] ** 2) * b
            s = s * jnp.exp((p['rate'] - 0.5 * jnp.maximum(v, 0)) * dt + vol * a)
            v = v + p['kappa'] * (p['theta'] - jnp.maximum(v, 0)) * dt + p['xi'] * vol * b
            return (s, v), (s, v)

        start = jnp.full(paths, 1.0) * p['spot'], jnp.full(paths, 1.0) * p['variance']
        _, (s, v) = lax.scan(step, start, jax.random.split(key, steps))

        def of_strike(strike):
            def back(worth, of):
                s, v = of
                worth = worth * jnp.exp(-p['rate'] / steps)
                x = s / strike - 1
                basis = jnp.stack([jnp.ones_like(x), x, x**2, x**3, v, v * x, v**2], -1)
                gain = jnp.maximum(strike - s, 0)
                weight = (gain > 0).astype(F32)
                a = (basis * weight[:, None]).T @ basis + 1e-4 * jnp.eye(7)
                c = jnp.linalg.solve(a, basis.T @ (worth * weight))
                ends = lax.stop_gradient((gain > basis @ c) & (gain > 0))
                return jnp.where(ends, gain, worth), ends.mean()

            worth, ended = lax.scan(back, jnp.maximum(strike - s[-1], 0), (s[:-1], v[:-1]), reverse=True)
            return worth.mean(), ended

        return jax.vmap(of_strike)(strikes)

    def run(p, key, strikes):
        worth, pull, ended = jax.vjp(lambda p: price(p, key, strikes), p, has_aux=True)
        return worth, jax.vmap(pull)(jnp.eye(options)), ended

    p = {name: shape() for name in 'rho rate kappa theta xi spot variance'.split()}
    return run, (p, KEY, shape(options)), ()


@program
def bootstrap_quantiles():
    """A thousand samples with replacement of a table, in parts: medians, trimmed means and correlations of ranks."""
    rows, columns, draws = 20000, 8, 1000

    def run(key, table, weights):
        def once(key):
            at = jax.random.choice(key, rows, (rows,), p=weights)
            x = table[at]
            ordered = jnp.sort(x, 0)
            ranks = jnp.argsort(jnp.argsort(x, 0), 0).astype(F32)
            ranks = ranks - ranks.mean(0)
            related = ranks.T @ ranks
            scale = jnp.sqrt(jnp.diag(related))
            middle = ordered[rows // 10 : -rows // 10].mean(0)
            return jnp.quantile(x, jnp.array([0.05, 0.5, 0.95]), axis=0), middle, related / scale / scale[:, None]

        found = lax.map(once, jax.random.split(key, draws), batch_size=50)
        return jax.tree.map(lambda a: (a.mean(0), jnp.quantile(a, jnp.array([0.025, 0.975]), axis=0)), found)

    return run, (KEY, shape(rows, columns), shape(rows)), ()


@program
def tsne_all_pairs():
    """Points of many dimensions in a plane: widths by bisection, then fifty steps of t-SNE with gains and momentum."""
    points, axes = 5000, 64

    def run(x, y):
        square = jnp.sum(x**2, 1)
        far = square[:, None] + square - 2 * x @ x.T
        far = jnp.where(jnp.eye(points, dtype=bool), jnp.inf, far)

        def odds(beta):
            p = jnp.exp(-(far - far.min(1, keepdims=True)) * beta[:, None])
            return p / p.sum(1, keepdims=True)

        def bisect(_, of):
            low, high = of
            middle = jnp.sqrt(low * high)
            p = odds(middle)
            entropy = -jnp.sum(p * jnp.log(jnp.maximum(p, 1e-12)), 1)
            is_wide = entropy > jnp.log(30.0)
            return jnp.where(is_wide, middle, low), jnp.where(is_wide, high, middle)

        low, high = lax.fori_loop(0, 30, bisect, (jnp.full(points, 1e-6), jnp.full(points, 1e6)))
        p = odds(jnp.sqrt(low * high))
        p = jnp.maximum((p + p.T) / (2 * points), 1e-12)

        def step(i, of):
            y, moved, gains = of
            apart = y[:, None] - y
            near = 1 / (1 + jnp.sum(apart**2, -1))
            near = near * (1 - jnp.eye(points))
            q = jnp.maximum(near / near.sum(), 1e-12)
            pull = jnp.where(i < 20, 12.0, 1.0)
            g = 4 * jnp.einsum('ij,ijk->ik', (pull * p - q) * near, apart)
            gains = jnp.maximum(jnp.where(g * moved < 0, gains + 0.2, gains * 0.8), 0.01)
            moved = jnp.where(i < 20, 0.5, 0.8) * moved - 200 * gains * g
            return (y + moved) - (y + moved).mean(0), moved, gains

        return lax.fori_loop(0, 50, step, (y, jnp.zeros_like(y), jnp.ones_like(y)))[0]

    return run, (shape(points, axes), shape(points, 2)), (1,)


@program
def align_proteins():
    """Smith-Waterman with gaps that cost less to extend, for many pairs along diagonals, in 16 bits, and how often letters meet."""
    pairs, length, letters = 2048, 384, 24

    def run(a, b, lengths, table):
        def one(a, b, n):
            diagonals = 2 * length - 1
            rows = jnp.arange(length)

            def step(of, d):
                h1, h2, e, f, best = of
                column = d - rows
                is_in = (column >= 0) & (column < n)
                score = table[a, b[jnp.clip(column, 0, length - 1)]]
                up = lambda x, fill: jnp.concatenate([jnp.full(1, fill, x.dtype), x[:-1]])
                e = jnp.maximum(h1 - 11, e - 1)
                f = jnp.maximum(up(h1, 0) - 11, up(f, -999) - 1)
                h = jnp.maximum(jnp.maximum(up(h2, 0) + score, 0), jnp.maximum(e, f))
                h = jnp.where(is_in, h, 0).astype(jnp.int16)
                return (h, h1, e.astype(jnp.int16), f.astype(jnp.int16), jnp.maximum(best, h)), h

            zero = jnp.zeros(length, jnp.int16)
            (_, _, _, _, best), found = lax.scan(step, (zero, zero, zero - 999, zero - 999, zero), jnp.arange(diagonals))
            end = jnp.argmax(best)
            return best.max(), end, jnp.argmax(found[:, end])

        return jax.vmap(one)(a, b, lengths)

    text = shape(pairs, length, dtype=U8)
    return run, (text, text, tokens(pairs), shape(letters, letters, dtype=jnp.int16)), ()


# Solvers.


@program
def deq_anderson():
    """Flax Linen and JAXopt: a layer that is applied until nothing changes, by Anderson's method, with implicit gradients and Adam."""
    import jaxopt

    class Cell(nn.Module):
        @nn.compact
        def __call__(self, z, x):
            h = nn.GroupNorm(8)(nn.relu(nn.Conv(96, (3, 3), use_bias=False)(z)))
            h = nn.GroupNorm(8)(x + nn.Conv(48, (3, 3), use_bias=False)(h))
            return nn.GroupNorm(8)(nn.relu(z + h))

    class Ends(nn.Module):
        def setup(self):
            self.first, self.norm, self.last = nn.Conv(48, (3, 3)), nn.GroupNorm(8), nn.Dense(10)

        def __call__(self, x):
            return self.norm(self.first(x))

        def out(self, z):
            return self.last(nn.avg_pool(z, (8, 8), (8, 8)).reshape(len(z), -1))

    cell, ends = Cell(), Ends()
    x = shape(64, 32, 32, 3)
    z = shape(64, 32, 32, 48)

    def both(module, x, z):
        return module(x), module.out(z)

    of_ends = jax.eval_shape(lambda key, x, z: ends.init(key, x, z, method=both), KEY, x, z)
    p = dict(cell=initial(cell, z, z), ends=of_ends)

    def loss(p, x, y):
        given = ends.apply(p['ends'], x)
        solver = jaxopt.AndersonAcceleration(
            lambda z, p, x: cell.apply(p, z, x), history_size=5, maxiter=20, tol=1e-3, ridge=1e-4, implicit_diff=True, jit=True
        )
        z = solver.run(jnp.zeros(given.shape), p['cell'], given).params
        return cross_entropy(ends.apply(p['ends'], z, method='out'), y).mean()

    return training(loss, optax.adam(1e-3), p, x, tokens(64))


@program
def lineax_gmres_advection():
    """Lineax: implicit steps of a reaction that moves and spreads; Newton's directions by GMRES on a linearized residual."""
    import lineax

    n, fields = 384, 3

    def run(y, wind, dt):
        def slope(y):
            around = sum(jnp.roll(y, s, a) for s in (1, -1) for a in (1, 2)) - 4 * y
            moved = sum(wind[i] * (jnp.roll(y, -1, i + 1) - jnp.roll(y, 1, i + 1)) / 2 for i in (0, 1))
            a, b, c = y
            meet = a * b**2
            reaction = jnp.stack([-meet + 0.04 * (1 - a), meet - 0.1 * b + 0.01 * c, 0.1 * b - 0.01 * c])
            return jnp.array([0.2, 0.1, 0.05])[:, None, None] * around - moved + reaction

        def step(y, _):
            def newton(_, z):
                residual, jvp = jax.linearize(lambda z: z - y - dt * slope((z + y) / 2), z)
                operator = lineax.FunctionLinearOperator(jvp, jax.eval_shape(lambda: z))
                solver = lineax.GMRES(rtol=1e-4, atol=1e-6, restart=12, max_steps=36)
                return z - lineax.linear_solve(operator, residual, solver, throw=False).value

            z = lax.fori_loop(0, 3, newton, y)
            return z, z.mean((1, 2))

        return lax.scan(step, y, None, length=10)

    return run, (shape(fields, n, n), shape(2, n, n), shape()), (0,)


@program
def bundle_adjustment():
    """Cameras and points that fit what was seen: Levenberg-Marquardt whose points are eliminated (Schur), with sums by segments."""
    cameras, points, seen = 120, 20000, 160000

    def residual(camera, point, at):
        angle = jnp.sqrt(jnp.sum(camera[:3] ** 2) + 1e-9)
        axis = camera[:3] / angle
        turned = point * jnp.cos(angle) + jnp.cross(axis, point) * jnp.sin(angle) + axis * (axis @ point) * (1 - jnp.cos(angle))
        x = turned + camera[3:6]
        xy = -x[:2] / x[2]
        far = xy @ xy
        return camera[6] * (1 + camera[7] * far + camera[8] * far**2) * xy - at

    def run(cameras_at, points_at, of_camera, of_point, at):
        both = jax.vmap(jax.jacfwd(residual, (0, 1)))

        def step(of, _):
            c, p, damping, before = of
            r = jax.vmap(residual)(c[of_camera], p[of_point], at)
            weight = 1 / jnp.sqrt(1 + jnp.sum(r**2, -1))
            jc, jp = both(c[of_camera], p[of_point], at)
            wc, wp = jc * weight[:, None, None], jp * weight[:, None, None]
            sums = lambda a, b, of, n: jax.ops.segment_sum(jnp.einsum('nri,nrj->nij', a, b), of, n)
            hc = sums(wc, jc, of_camera, cameras) + damping * jnp.eye(9)
            hp = sums(wp, jp, of_point, points) + damping * jnp.eye(3)
            gc = jax.ops.segment_sum(jnp.einsum('nri,nr->ni', wc, r), of_camera, cameras)
            gp = jax.ops.segment_sum(jnp.einsum('nri,nr->ni', wp, r), of_point, points)
            cross = jnp.einsum('nri,nrj->nij', wc, jp)
            inverse = jnp.linalg.inv(hp)

            def reduced(x):
                y = jax.ops.segment_sum(jnp.einsum('nij,ni->nj', cross, x[of_camera]), of_point, points)
                y = jnp.einsum('nij,nj->ni', inverse, y)
                z = jax.ops.segment_sum(jnp.einsum('nij,nj->ni', cross, y[of_point]), of_camera, cameras)
                return jnp.einsum('nij,nj->ni', hc, x) - z

            right = jnp.einsum('nij,nj->ni', inverse, gp)
            right = gc - jax.ops.segment_sum(jnp.einsum('nij,nj->ni', cross, right[of_point]), of_camera, cameras)
            dc, _ = jax.scipy.sparse.linalg.cg(reduced, right, maxiter=30, M=lambda x: jnp.linalg.solve(hc, x[..., None])[..., 0])
            back = gp - jax.ops.segment_sum(jnp.einsum('nij,ni->nj', cross, dc[of_camera]), of_point, points)
            new_c, new_p = c - dc, p - jnp.einsum('nij,nj->ni', inverse, back)
            cost = jnp.sum(jnp.log1p(jnp.sum(jax.vmap(residual)(new_c[of_camera], new_p[of_point], at) ** 2, -1)))
            is_better = cost < before
            pick = lambda a, b: jnp.where(is_better, a, b)
            return (pick(new_c, c), pick(new_p, p), pick(damping / 3, damping * 2), pick(cost, before)), cost

        start = cameras_at, points_at, jnp.array(1e-2), jnp.array(jnp.inf)
        return lax.scan(step, start, None, length=10)

    return run, (shape(cameras, 9), shape(points, 3), tokens(seen), tokens(seen), shape(seen, 2)), (0, 1)


@program
def als_recommender():
    """Factors of users and things in turn: normal equations by sums over what was rated, solved in parts by Cholesky."""
    users, things, ratings, rank = 16384, 8192, 1000000, 48

    def run(u, v, of_user, of_thing, stars):
        def solved(other, mine, theirs, count):
            base = other.T @ other

            def part(k, of):
                a, b = of
                at = lax.dynamic_slice_in_dim(mine, k * 50000, 50000)
                x = other[lax.dynamic_slice_in_dim(theirs, k * 50000, 50000)]
                c = lax.dynamic_slice_in_dim(stars, k * 50000, 50000)
                return a.at[at].add(c[:, None, None] * x[:, :, None] * x[:, None]), b.at[at].add((1 + c)[:, None] * x)

            a, b = lax.fori_loop(0, ratings // 50000, part, (jnp.zeros((count, rank, rank)), jnp.zeros((count, rank))))
            a = a + base + 0.1 * jnp.eye(rank)
            factor = jnp.linalg.cholesky(a)
            y = lax.linalg.triangular_solve(factor, b[..., None], left_side=True, lower=True)
            return lax.linalg.triangular_solve(factor, y, left_side=True, lower=True, transpose_a=True)[..., 0]

        def turn(of, _):
            u, v = of
            u = solved(v, of_user, of_thing, users)
            v = solved(u, of_thing, of_user, things)
            lost = jnp.sum(stars * (1 - jnp.sum(u[of_user] * v[of_thing], -1)) ** 2)
            return (u, v), lost

        (u, v), lost = lax.scan(turn, (u, v), None, length=3)
        return u, v, lost, lax.top_k(u[:1024] @ v.T, 50)[1]

    return run, (shape(users, rank), shape(things, rank), tokens(ratings), tokens(ratings), shape(ratings)), (0, 1)


# Control and agents.


@program
def ilqr_many_cars():
    """Paths of many cars by iterated linear-quadratic control: models by derivatives, Riccati backwards, and a search along lines."""
    cars, steps, n, m = 512, 100, 6, 2

    def moved(x, u):
        v, angle, wheel = x[2], x[3], x[4]
        slope = jnp.stack([v * jnp.cos(angle), v * jnp.sin(angle), u[0] - 0.1 * v, v * jnp.tan(wheel) / 2.5, u[1], v])
        return x + 0.05 * slope

    def cost(x, u, goal, blocks):
        far = jnp.sum((x[:2] - blocks) ** 2, -1)
        return jnp.sum((x[:4] - goal) ** 2 * jnp.array([1.0, 1.0, 0.1, 0.1])) + 0.1 * jnp.sum(u**2) + 10 * jnp.sum(jnp.exp(-far))

    def run(start, us, goal, blocks):
        def solve(x0, us, goal):
            f = lambda x, u: cost(x, u, goal, blocks)

            def rolled(us):
                def step(x, u):
                    y = moved(x, u)
                    return y, (x, f(x, u))

                _, (xs, costs) = lax.scan(step, x0, us)
                return xs, costs.sum()

            def iterate(of, _):
                us, best = of
                xs, _ = rolled(us)
                a, b = jax.vmap(jax.jacfwd(moved, (0, 1)))(xs, us)
                gx, gu = jax.vmap(jax.grad(f, (0, 1)))(xs, us)
                (hxx, hxu), (_, huu) = jax.vmap(jax.hessian(f, (0, 1)))(xs, us)

                def back(of, at):
                    s, v = of
                    a, b, gx, gu, hxx, hxu, huu = at
                    qx, qu = gx + a.T @ v, gu + b.T @ v
                    qxx, quu, qux = hxx + a.T @ s @ a, huu + b.T @ s @ b + 1e-2 * jnp.eye(m), hxu.T + b.T @ s @ a
                    gain, open_ = -jnp.linalg.solve(quu, qux), -jnp.linalg.solve(quu, qu)
                    return (qxx + qux.T @ gain, qx + qux.T @ open_), (gain, open_)

                _, (gains, opens) = lax.scan(back, (jnp.eye(n), jnp.zeros(n)), (a, b, gx, gu, hxx, hxu, huu), reverse=True)

                def tried(size):
                    def step(x, of):
                        old, u, gain, open_ = of
                        u = u + size * open_ + gain @ (x - old)
                        return moved(x, u), (u, f(x, u))

                    _, (new, costs) = lax.scan(step, x0, (xs, us, gains, opens))
                    return new, costs.sum()

                news, costs = jax.vmap(tried)(0.5 ** jnp.arange(6))
                at = jnp.nanargmin(costs)
                is_better = costs[at] < best
                return (jnp.where(is_better, news[at], us), jnp.where(is_better, costs[at], best)), best

            return lax.scan(iterate, (us, rolled(us)[1]), None, length=8)

        return jax.vmap(solve)(start, us, goal)

    return run, (shape(cars, n), shape(cars, steps, m), shape(cars, 4), shape(12, 2)), (1,)


@program
def mppi_learnt_model():
    """Flax NNX: plans by many imagined futures in an ensemble of models and a value, weighted by returns, six rounds."""
    seen, acts, futures, horizon, models, batch = 32, 8, 2048, 12, 5, 4

    class Net(nnx.Module):
        def __init__(self, a, b, rngs):
            self.layers = nnx.List([nnx.Linear(a, 512, rngs=rngs), nnx.Linear(512, 512, rngs=rngs)])
            self.norms = nnx.List([nnx.LayerNorm(512, rngs=rngs) for _ in range(2)])
            self.out = nnx.Linear(512, b, rngs=rngs)

        def __call__(self, x):
            for layer, norm in zip(self.layers, self.norms):
                x = jax.nn.mish(norm(layer(x)))
            return self.out(x)

    of = lambda a, b: nnx.split(nnx.eval_shape(lambda: Net(a, b, nnx.Rngs(0))))
    (d, pd), (v, pv), (w, pw) = of(seen + acts, seen + 1), of(seen + acts, 1), of(seen, acts)
    stacked = jax.tree.map(lambda a: shape(models, *a.shape), pd)

    def run(pd, pv, pw, state, mean, key):
        value, policy = nnx.merge(v, pv), nnx.merge(w, pw)

        def imagined(x, actions):
            """Returns of (futures, horizon, acts), the mean of the models' and less where they differ."""

            def step(x, a):
                both = jnp.concatenate([x, jnp.broadcast_to(a, (models, *a.shape))], -1)
                y = jax.vmap(lambda p, x: nnx.merge(d, p)(x))(pd, both)
                return x + y[..., :-1], (y[..., -1].mean(0), y[..., :-1].std(0).mean(-1))

            x = jnp.broadcast_to(x, (models, futures, seen))
            x, (rewards, doubts) = lax.scan(step, x, actions.swapaxes(0, 1))
            x = x.mean(0)
            last = value(jnp.concatenate([x, jnp.tanh(policy(x))], -1))[:, 0]
            weights = 0.99 ** jnp.arange(horizon)[:, None]
            return jnp.sum(weights * (rewards - 0.1 * doubts), 0) + 0.99**horizon * last

        def plan(x, mean, key):
            def round_of(of, key):
                mean, spread = of
                noise = jax.random.normal(key, (futures, horizon, acts))
                actions = jnp.clip(mean + spread * noise, -1, 1)
                worth = imagined(x, actions)
                best, which = lax.top_k(worth, 64)
                chosen = actions[which]
                score = jax.nn.softmax(0.5 * (best - best[0]))[:, None, None]
                mean = jnp.sum(score * chosen, 0)
                return (mean, jnp.clip(jnp.sqrt(jnp.sum(score * (chosen - mean) ** 2, 0)), 0.05, 2)), best[0]

            (mean, spread), found = lax.scan(round_of, (mean, jnp.full((horizon, acts), 2.0)), jax.random.split(key, 6))
            return mean, spread[0], found

        return jax.vmap(plan)(state, mean, jax.random.split(key, batch))

    return run, (stacked, pv, pw, shape(batch, seen), shape(batch, horizon, acts), KEY), (4,)


@program
def rainbow_c51_tree():
    """Haiku: four updates of a distributional network with noisy layers, samples by a tree of sums, and new priorities."""
    room, batch, atoms, actions = 16384, 64, 51, 18

    class Noisy(hk.Module):
        def __init__(self, size):
            super().__init__()
            self.size = size

        def __call__(self, x):
            n = x.shape[-1]
            w, s = [hk.get_parameter(name, (n, self.size), init=hk.initializers.VarianceScaling()) for name in ('w', 's')]
            b, c = [hk.get_parameter(name, (self.size,), init=jnp.zeros) for name in ('b', 'c')]
            f = lambda e: jnp.sign(e) * jnp.sqrt(jnp.abs(e))
            e, g = f(jax.random.normal(hk.next_rng_key(), (n, 1))), f(jax.random.normal(hk.next_rng_key(), (1, self.size)))
            return x @ (w + s * e * g) + b + c * g[0]

    def net(x):
        x = x.astype(F32) / 255
        for size, side, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = jax.nn.relu(hk.Conv2D(size, side, stride, padding='VALID')(x))
        x = hk.Flatten()(x)
        value = Noisy(atoms)(jax.nn.relu(Noisy(512)(x)))[:, None]
        gain = Noisy(actions * atoms)(jax.nn.relu(Noisy(512)(x))).reshape(-1, actions, atoms)
        return jax.nn.log_softmax(value + gain - gain.mean(1, keepdims=True))

    model = hk.transform(net)
    optimizer = optax.chain(optax.clip_by_global_norm(10), optax.adam(6e-5, eps=1.5e-4))
    levels = 14

    def drawn(tree, key):
        places = (jnp.arange(batch) + jax.random.uniform(key, (batch,))) / batch * tree[1]

        def down(_, of):
            at, left = of
            is_right = left > tree[2 * at]
            return 2 * at + is_right, jnp.where(is_right, left - tree[2 * at], left)

        at, _ = lax.fori_loop(0, levels, down, (jnp.ones(batch, S32), places))
        return at - room

    def written(tree, at, values):
        tree = tree.at[at + room].set(values)

        def up(_, of):
            tree, at = of
            at = at // 2
            return tree.at[at].set(tree[2 * at] + tree[2 * at + 1]), at

        return lax.fori_loop(0, levels, up, (tree, at + room))[0]

    def run(p, target, state, buffer, tree, key):
        z = jnp.linspace(-10, 10, atoms)

        def update(of, key):
            p, state, tree = of
            a, b, c, d = jax.random.split(key, 4)
            at = drawn(tree, a)
            x, y, act, reward, ends = [buffer[name][at] for name in ('x', 'y', 'act', 'reward', 'ends')]
            weights = (tree[at + room] / tree[1] * room) ** -0.5
            rows = jnp.arange(batch)
            best = jnp.argmax(jnp.sum(jnp.exp(model.apply(p, b, y)) * z, -1), -1)
            after = jnp.exp(model.apply(target, c, y))[rows, best]
            moved = jnp.clip(reward[:, None] + 0.97 * (1 - ends[:, None]) * z, -10, 10)
            place = (moved + 10) / 0.4
            share = jnp.clip(1 - jnp.abs(place[:, None] - jnp.arange(atoms)[:, None]), 0, 1)
            goal = jnp.sum(share * after[:, None], -1)

            def loss(p):
                each = -jnp.sum(goal * model.apply(p, d, x)[rows, act], -1)
                return jnp.mean(weights * each), each

            (value, each), g = jax.value_and_grad(loss, has_aux=True)(p)
            updates, state = optimizer.update(g, state)
            return (optax.apply_updates(p, updates), state, written(tree, at, each**0.5)), value

        (p, state, tree), values = lax.scan(update, (p, state, tree), jax.random.split(key, 4))
        return p, optax.incremental_update(p, target, 0.005), state, tree, values

    pictures = shape(room, 84, 84, 1, dtype=U8)
    buffer = dict(x=pictures, y=pictures, act=tokens(room), reward=shape(room), ends=shape(room))
    p = initial(model, shape(1, 84, 84, 1, dtype=U8))
    return run, (p, p, jax.eval_shape(optimizer.init, p), buffer, shape(2 * room), KEY), (0, 1, 2, 4)


@program
def decision_transformer():
    """Flax NNX: returns, pictures and actions as words of a causal network, with embeddings by convolutions, and AdamW."""
    context, batch, width, actions = 32, 32, 256, 18

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.n1, self.n2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
            self.att = nnx.MultiHeadAttention(8, width, rngs=rngs, decode=False, dropout_rate=0.1, deterministic=False)
            self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            x = x + self.att(self.n1(x), mask=nnx.make_causal_mask(x[..., 0]))
            return x + self.drop(self.down(jax.nn.gelu(self.up(self.n2(x)))))

    class Net(nnx.Module):
        def __init__(self, rngs):
            conv = lambda a, b, k, s: nnx.Conv(a, b, (k, k), (s, s), padding='VALID', rngs=rngs)
            self.convs = nnx.List([conv(4, 32, 8, 4), conv(32, 64, 4, 2), conv(64, 64, 3, 1)])
            self.seen, self.hoped = nnx.Linear(3136, width, rngs=rngs), nnx.Linear(1, width, rngs=rngs)
            self.done, self.at = nnx.Embed(actions, width, rngs=rngs), nnx.Embed(4096, width, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(4)])
            self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, actions, rngs=rngs)

        def __call__(self, hoped, pictures, done, at):
            x = pictures.reshape(-1, 84, 84, 4).astype(F32) / 255
            for conv in self.convs:
                x = jax.nn.relu(conv(x))
            seen = jnp.tanh(self.seen(x.reshape(*done.shape, -1)))
            words = jnp.stack([jnp.tanh(self.hoped(hoped[..., None])), seen, jnp.tanh(self.done(done))], 2)
            x = (words + self.at(at)[:, :, None]).reshape(len(done), -1, width)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x[:, 1::3]))

    definition, p, rest = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), nnx.Param, ...)
    optimizer = optax.adamw(6e-4, weight_decay=0.1)

    def step(p, rest, state, *data):
        def loss(p):
            model = nnx.merge(definition, p, rest, copy=True)
            found = cross_entropy(model(*data), data[2]).mean()
            return found, nnx.split(model, nnx.Param, ...)[2]

        (value, rest_after), g = jax.value_and_grad(loss, has_aux=True)(p)
        updates, state = optimizer.update(g, state, p)
        return optax.apply_updates(p, updates), rest_after, state, value

    data = shape(batch, context), shape(batch, context, 84, 84, 4, dtype=U8), tokens(batch, context), tokens(batch, context)
    return step, (p, rest, jax.eval_shape(optimizer.init, p), *data), (0, 1, 2)


@program
def qmix_agents():
    """Flax Linen: agents with recurrent values, a mixer whose weights the state gives, double learning over whole episodes."""
    episodes, time, agents, seen, state, actions = 32, 100, 10, 128, 256, 16

    class Agent(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(128)(x))
            return nn.Dense(actions)(nn.RNN(nn.GRUCell(128), time_major=True)(x))

    class Mixer(nn.Module):
        @nn.compact
        def __call__(self, q, s):
            w = jnp.abs(nn.Dense(agents * 64)(nn.relu(nn.Dense(128)(s)))).reshape(*s.shape[:-1], agents, 64)
            h = nn.elu(jnp.einsum('...a,...ah->...h', q, w) + nn.Dense(64)(s))
            v = jnp.abs(nn.Dense(64)(nn.relu(nn.Dense(128)(s))))
            return jnp.sum(h * v, -1) + nn.Dense(1)(nn.relu(nn.Dense(64)(s)))[..., 0]

    agent, mixer = Agent(), Mixer()
    x, s = shape(time + 1, episodes * agents, seen), shape(time + 1, episodes, state)
    p = dict(agent=initial(agent, x), mixer=initial(mixer, shape(time, episodes, agents), shape(time, episodes, state)))
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.rmsprop(5e-4))

    def step(p, target, opt, x, s, acts, may, rewards, mask):
        of = lambda p: agent.apply(p['agent'], x).reshape(time + 1, episodes, agents, actions)
        later = of(target)

        def loss(p):
            q = of(p)
            best = jnp.argmax(jnp.where(may, lax.stop_gradient(q), -1e9), -1)
            after = jnp.take_along_axis(later, best[..., None], -1)[1:, ..., 0]
            goal = mixer.apply(target['mixer'], after, s[1:])

            def traced(g, of):
                reward, mixed = of
                g = reward + 0.99 * (0.6 * g + 0.4 * mixed)
                return g, g

            _, goal = lax.scan(traced, goal[-1], (rewards, goal), reverse=True)
            taken = jnp.take_along_axis(q[:-1], acts[..., None], -1)[..., 0]
            off = (mixer.apply(p['mixer'], taken, s[:-1]) - lax.stop_gradient(goal)) * mask
            return jnp.sum(off**2) / mask.sum()

        p, opt, value = updated(optimizer, loss, p, opt)
        return p, opt, optax.incremental_update(p, target, 0.01), value

    of_step = shape(time, episodes)
    data = x, s, tokens(time, episodes, agents), shape(time + 1, episodes, agents, actions, dtype=jnp.bool_), of_step, of_step
    return step, (p, p, jax.eval_shape(optimizer.init, p), *data), (0, 1, 2)
