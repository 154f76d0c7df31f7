"""Programs of libraries, for unseen.py: equations, sampling and solvers with Diffrax, NumPyro, BlackJAX, Optimistix and Optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax

from layers import shape, tokens
from libraries import KEY, cross_entropy, is_shape, program, training

# Differential equations.


@program
def diffrax_ode_adjoint():
    """Diffrax: a neural equation, solved with steps of adapted length, and its gradients."""
    import diffrax

    mlp = eqx.filter_eval_shape(lambda key: eqx.nn.MLP(64, 64, 512, 2, jax.nn.softplus, key=key), KEY)
    arrays, static = eqx.partition(mlp, is_shape)

    def loss(p, times, paths):
        f = eqx.combine(p, static)

        def solve(start):
            return diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, _: f(y)),
                diffrax.Tsit5(),
                times[0],
                times[-1],
                times[1] - times[0],
                start,
                stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
                saveat=diffrax.SaveAt(ts=times),
                max_steps=256,
            ).ys

        return jnp.mean((jax.vmap(solve)(paths[:, 0]) - paths) ** 2)

    return training(loss, optax.adam(1e-3), arrays, shape(20), shape(512, 20, 64))


@program
def diffrax_latent_sde():
    """Diffrax and Lineax: gradients of a stochastic equation with checkpoints."""
    import diffrax
    import lineax

    def solve(w, key, start):
        noise = diffrax.VirtualBrownianTree(0.0, 1.0, 1e-3, (16,), key)
        drift = diffrax.ODETerm(lambda t, y, _: jnp.tanh(y @ w['a']) @ w['b'])
        diffusion = diffrax.ControlTerm(lambda t, y, _: lineax.DiagonalLinearOperator(jax.nn.sigmoid(y @ w['c'])), noise)
        return diffrax.diffeqsolve(
            diffrax.MultiTerm(drift, diffusion),
            diffrax.Heun(),
            0.0,
            1.0,
            0.01,
            start,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0, 1, 64)),
            adjoint=diffrax.RecursiveCheckpointAdjoint(),
            max_steps=128,
        ).ys

    def gradient(w, keys, starts, target):
        def loss(w):
            paths = jax.vmap(lambda key, start: solve(w, key, start))(keys, starts)
            return jnp.mean((paths[..., 0] - target) ** 2)

        return jax.value_and_grad(loss)(w)

    weights = dict(a=shape(16, 128), b=shape(128, 16), c=shape(16, 16))
    return gradient, (weights, shape(4096, 2, dtype=jnp.uint32), shape(4096, 16), shape(4096, 64)), ()


# Sampling and estimation.


@program
def numpyro_nuts():
    """NumPyro: four chains of NUTS for a sparse logistic regression."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(x, y):
        tau = numpyro.sample('tau', dist.HalfCauchy(1.0))
        scales = numpyro.sample('lam', dist.HalfCauchy(jnp.ones(x.shape[1])))
        b = numpyro.sample('b', dist.Normal(0, tau * scales))
        a = numpyro.sample('a', dist.Normal(0, 5))
        numpyro.sample('y', dist.Bernoulli(logits=x @ b + a), obs=y)

    def run(key, x, y):
        chains = dict(num_chains=4, chain_method='vectorized', progress_bar=False)
        sampler = MCMC(NUTS(model, max_tree_depth=6), num_warmup=50, num_samples=200, **chains)
        sampler.run(key, x, y)
        return sampler.get_samples()

    return run, (KEY, shape(20000, 200), tokens(20000)), ()


@program
def numpyro_svi_vae():
    """NumPyro: eight steps of variational inference in a loop."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO

    def model(x, _):
        with numpyro.plate('n', x.shape[0]):
            z = numpyro.sample('z', dist.Normal(0, 1).expand([64]).to_event(1))
            w = numpyro.param('W', jnp.zeros((64, 512)))
            v = numpyro.param('V', jnp.zeros((512, 3072)))
            numpyro.sample('x', dist.Bernoulli(logits=jnp.tanh(z @ w) @ v).to_event(1), obs=x)

    def guide(x, _):
        a = numpyro.param('A', jnp.zeros((3072, 512)))
        b = numpyro.param('B', jnp.zeros((512, 128)))
        with numpyro.plate('n', x.shape[0]):
            h = jnp.tanh(x @ a) @ b
            numpyro.sample('z', dist.Normal(h[:, :64], jnp.exp(h[:, 64:])).to_event(1))

    svi = SVI(model, guide, optax.adam(1e-3), Trace_ELBO(num_particles=4))
    state = jax.eval_shape(lambda key, x: svi.init(key, x, 0), KEY, shape(2048, 3072))
    svi.init(jax.random.PRNGKey(0), jnp.zeros((4, 3072)), 0)  # leaves functions in `svi` that are not traced

    def epoch(state, batches):
        return lax.scan(lambda state, x: svi.update(state, x, 0), state, batches)

    return epoch, (state, shape(8, 2048, 3072)), (0,)


@program
def blackjax_hmc():
    """BlackJAX: sixteen chains of Hamiltonian Monte Carlo."""
    import blackjax

    def run(key, start, x, y):
        def log_density(b):
            return jnp.sum(-jax.nn.softplus(-y * (x @ b['w']))) - 0.5 * jnp.sum(b['w'] ** 2)

        kernel = blackjax.hmc(log_density, 1e-3, jnp.ones(500), 20)
        state = jax.vmap(kernel.init)(start)

        def step(state, key):
            state, info = jax.vmap(kernel.step)(jax.random.split(key, 16), state)
            return state, (state.position, info.acceptance_rate)

        return lax.scan(step, state, jax.random.split(key, 100))

    return run, (KEY, dict(w=shape(16, 500)), shape(50000, 500), shape(50000)), ()


@program
def gp_cholesky():
    """Gradients of a Gaussian process's likelihood, with a Matern kernel."""

    def loss(p, x, y):
        scaled = (x[:, None] - x[None]) / jnp.exp(p['ls'])
        r2 = jnp.sum(scaled**2, -1)
        shrunk = jnp.exp(p['v']) * (1 + jnp.sqrt(5 * r2 + 1e-9) + 5 / 3 * r2)
        kernel = shrunk * jnp.exp(-jnp.sqrt(5 * r2 + 1e-9)) + jnp.exp(p['n']) * jnp.eye(len(x))
        lower = jnp.linalg.cholesky(kernel)
        a = jax.scipy.linalg.cho_solve((lower, True), y)
        return 0.5 * y @ a + jnp.log(jnp.diag(lower)).sum()

    return jax.value_and_grad(loss), (dict(ls=shape(8), v=shape(), n=shape()), shape(3000, 8), shape(3000)), ()


@program
def kalman_associative():
    """A Kalman filter as an associative scan."""
    n, k = 16, 4

    def run(F, Q, H, R, mean, covariance, observed):
        eye = jnp.eye(F.shape[0])

        def element(y):
            S = H @ Q @ H.T + R
            K = jnp.linalg.solve(S, H @ Q).T
            A = F - K @ H @ F
            b = K @ y
            C = Q - K @ H @ Q
            eta = F.T @ H.T @ jnp.linalg.solve(S, y)
            J = F.T @ H.T @ jnp.linalg.solve(S, H @ F)
            return A, b, C, J, eta

        elements = jax.vmap(element)(observed)

        @jax.vmap
        def combined(first, second):
            A1, b1, C1, J1, e1 = first
            A2, b2, C2, J2, e2 = second
            t = jnp.linalg.solve((eye + C1 @ J2).T, A2.T).T
            u = jnp.linalg.solve((eye + J2 @ C1).T, A1).T
            return t @ A1, t @ (b1 + C1 @ e2) + b2, t @ C1 @ A2.T + C2, u @ J2 @ A1 + J1, u @ (e2 - J2 @ b1) + e1

        _, means, covariances, _, _ = lax.associative_scan(combined, elements)
        return means, covariances

    square = shape(n, n)
    return run, (square, square, shape(k, n), shape(k, k), shape(n), square, shape(8192, k)), ()


@program
def hmm_forward_backward():
    """What a step of learning a hidden Markov model counts."""
    states = 64

    def run(moves, emits, start, observed):
        def forward(a, o):
            after = jax.nn.logsumexp(a[:, :, None] + moves, 1) + emits[:, o].T
            return after, after

        def backward(b, o):
            before = jax.nn.logsumexp(moves[None] + (emits[:, o].T + b)[:, None], -1)
            return before, before

        first = start + emits[:, observed[0]].T
        _, alpha = lax.scan(forward, first, observed[1:])
        _, beta = lax.scan(backward, jnp.zeros_like(first), observed[1:], reverse=True)
        alpha = jnp.concatenate([first[None], alpha])
        beta = jnp.concatenate([beta, jnp.zeros_like(first)[None]])
        gamma = jax.nn.softmax(alpha + beta, -1)
        after = emits[:, observed[1:]].transpose(1, 2, 0) + beta[1:]
        xi = jax.nn.logsumexp(alpha[:-1, :, :, None] + moves + after[:, :, None], (0, 1))
        emitted = jax.ops.segment_sum(gamma.reshape(-1, gamma.shape[-1]), observed.reshape(-1), emits.shape[1])
        return gamma, xi, emitted

    return run, (shape(states, states), shape(states, 1000), shape(states), tokens(256, 128)), ()


@program
def sinkhorn():
    """Gradients through thirty iterations of optimal transport."""

    def loss(x, y, f):
        x = jnp.tanh(x @ f)
        cost = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)[None] - 2 * x @ y.T
        epsilon = 0.05
        n, m = cost.shape
        a, b = -jnp.log(n * 1.0), -jnp.log(m * 1.0)

        def step(potentials, _):
            u, v = potentials
            u = epsilon * (a - jax.nn.logsumexp((v[None] - cost) / epsilon, 1))
            v = epsilon * (b - jax.nn.logsumexp((u[:, None] - cost) / epsilon, 0))
            return (u, v), None

        (u, v), _ = lax.scan(step, (jnp.zeros(n), jnp.zeros(m)), None, length=30)
        return jnp.sum(jnp.exp((u[:, None] + v[None] - cost) / epsilon) * cost)

    return jax.grad(loss, 2), (shape(4096, 64), shape(4096, 32), shape(64, 32)), ()


# Solvers.


@program
def gauss_newton_cg():
    """A step of Gauss-Newton whose direction conjugate gradients find without a matrix."""

    def net(p, x):
        for w, b in p[:-1]:
            x = jnp.tanh(x @ w + b)
        return x @ p[-1][0] + p[-1][1]

    def step(p, x, y, damping):
        out, jvp = jax.linearize(lambda p: net(p, x), p)
        vjp = jax.linear_transpose(jvp, p)
        (gradients,) = vjp((out - y) / len(x))

        def product(v):
            return jax.tree.map(lambda a, b: a + damping * b, vjp(jvp(v) / len(x))[0], v)

        direction, _ = jax.scipy.sparse.linalg.cg(product, gradients, maxiter=20)
        curved = jax.jvp(jax.grad(lambda p: jnp.mean((net(p, x) - y) ** 2)), (p,), (direction,))[1]
        return jax.tree.map(lambda a, b: a - b, p, direction), curved

    widths = [784, 2048, 2048, 1024, 10]
    parameters = [(shape(a, b), shape(b)) for a, b in zip(widths, widths[1:])]
    return step, (parameters, shape(8192, 784), shape(8192, 10), shape()), (0,)


@program
def optax_lbfgs():
    """Optax: thirty steps of L-BFGS with a line search in a loop."""

    def run(w, x, y):
        def loss(w):
            return jnp.mean(cross_entropy(x @ w['a'] + w['b'], y)) + 1e-4 * jnp.sum(w['a'] ** 2)

        optimizer = optax.lbfgs(memory_size=10)
        of_state = optax.value_and_grad_from_state(loss)

        def step(of, _):
            w, state = of
            value, gradients = of_state(w, state=state)
            updates, state = optimizer.update(gradients, state, w, value=value, grad=gradients, value_fn=loss)
            return (optax.apply_updates(w, updates), state), value

        (w, _), values = lax.scan(step, (w, optimizer.init(w)), None, length=30)
        return w, values

    return run, (dict(a=shape(2048, 100), b=shape(100)), shape(32768, 2048), tokens(32768)), (0,)


@program
def optimistix_lm():
    """Optimistix: Levenberg-Marquardt fits sums of Gaussians to many curves at once."""
    import optimistix

    def residual(c, of):
        x, y = of
        return jnp.sum(c[:8, None] * jnp.exp(-((x - c[8:16, None]) ** 2) / (1e-2 + c[16:, None] ** 2)), 0) - y

    def run(start, x, y):
        def fit(c, x, y):
            solver = optimistix.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
            found = optimistix.least_squares(lambda c, _: residual(c, (x, y)), solver, c, max_steps=30, throw=False)
            return found.value

        return jax.vmap(fit)(start, x, y)

    return run, (shape(512, 24), shape(512, 1024), shape(512, 1024)), ()
