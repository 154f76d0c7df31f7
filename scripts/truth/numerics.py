"""Sampling, regression, and linear algebra."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg

from layers import dense, inference, perceptron, shape, square_error, tokens, training
from program import family


def key():
    return jax.eval_shape(lambda: jax.random.key(0))


@family
def hmc():
    """Hamiltonian Monte Carlo: chains side by side, leapfrog steps, models from logistic to hierarchical; or a tree that doubles."""

    def of(chains, rows, width, samples=50, leaps=10, model='logistic', keeps=True, turns=False):
        def log_odds(q, x, y):
            if model == 'logistic':
                return (y * (x @ q) - jax.nn.softplus(x @ q)).sum() - 0.5 * (q**2).sum()
            if model == 'network':
                w, v = q[: width * 32].reshape(width, 32), q[width * 32 :]
                return -0.5 * ((jnp.tanh(x @ w) @ v - y) ** 2).sum() - 0.05 * (q**2).sum()
            centre, log_scale, each = q[0], q[1], q[2:]
            return -0.5 * ((x @ each - y) ** 2).sum() - 0.5 * (((each - centre) / jnp.exp(log_scale)) ** 2).sum() - width * log_scale

        def run(q, x, y, key):
            size = q.shape[-1]
            slope = jax.grad(log_odds)

            def leap(of, _):
                q, p = of
                p = p + 0.005 * slope(q, x, y)
                q = q + 0.01 * p
                return (q, p + 0.005 * slope(q, x, y)), None

            def move(q, key):
                first, second = jax.random.split(key)
                p = jax.random.normal(first, (size,))
                energy = lambda q, p: -log_odds(q, x, y) + 0.5 * (p**2).sum()
                if turns:  # As far as it does not turn back.

                    def on(of):
                        new, speed, steps = of
                        (new, speed), _ = leap((new, speed), None)
                        return new, speed, steps + 1

                    go = lambda of: (((of[0] - q) * of[1]).sum() >= 0) & (of[2] < 8 * leaps)
                    new, speed, _ = lax.while_loop(go, on, (q, p, 0))
                else:
                    (new, speed), _ = lax.scan(leap, (q, p), None, length=leaps)
                accepted = jnp.log(jax.random.uniform(second)) < energy(q, p) - energy(new, speed)
                return jnp.where(accepted, new, q)

            def sample(q, key):
                q = jax.vmap(move)(q, jax.random.split(key, chains))
                return q, q if keeps else None

            return lax.scan(sample, q, jax.random.split(key, samples))

        size = dict(logistic=width, network=width * 32 + 32, hierarchy=width + 2)[model]
        return jax.jit(run), (shape(chains, size), shape(rows, width), shape(rows), key())

    yield 'logistic', *of(256, 100_000, 128)
    yield 'network', *of(32, 4096, 64, samples=200, model='network')
    yield 'turns_back', *of(512, 65_536, 64, turns=True)
    yield 'hierarchy_many_samples', *of(256, 2048, 256, samples=500, model='hierarchy')
    yield 'logistic_ends_only', *of(1024, 50_000, 64, keeps=False)


@family
def svgd():
    """Particles that follow a posterior and push each other away by kernels."""

    def of(count, rows, width, steps=20, hidden=0, median=False):
        def log_odds(q, x, y):
            if hidden:
                w, v = q[: width * hidden].reshape(width, hidden), q[width * hidden :]
                return -0.5 * ((jnp.tanh(x @ w) @ v - y) ** 2).sum() - 0.5 * (q**2).sum()
            return (y * (x @ q) - jax.nn.softplus(x @ q)).sum() - 0.5 * (q**2).sum()

        def run(q, x, y):
            def step(q, _):
                slopes = jax.vmap(jax.grad(log_odds), (0, None, None))(q, x, y)
                if hidden:  # All differences between particles would be too many.
                    square = (q**2).sum(-1)
                    apart = square[:, None] + square - 2 * q @ q.T
                else:
                    apart = ((q[:, None] - q[None]) ** 2).sum(-1)
                width_of = jnp.median(apart) / jnp.log(count) if median else float(width)
                kernel = jnp.exp(-apart / width_of)
                away = 2 / width_of * (kernel.sum(1, keepdims=True) * q - kernel @ q)
                return q + 1e-3 * (kernel @ slopes + away) / count, None

            return lax.scan(step, q, None, length=steps)[0]

        size = width * hidden + hidden if hidden else width
        return jax.jit(run, donate_argnums=0), (shape(count, size), shape(rows, width), shape(rows))

    yield 'all_differences', *of(2048, 65_536, 64)
    yield 'networks', *of(256, 2048, 64, hidden=64)
    yield 'median', *of(2048, 2048, 32, median=True)
    yield 'many_particles', *of(8192, 1024, 16)
    yield 'large_networks', *of(512, 4096, 256, hidden=128)


@family
def gaussian_process():
    """Regression by kernels: likelihood by Cholesky and its gradient, predictions, inducing points, batches, iterative solutions."""

    def kernel(p, a, b, smooth=False):
        square = (
            ((a / jnp.exp(p['scale'])) ** 2).sum(-1)[:, None]
            + ((b / jnp.exp(p['scale'])) ** 2).sum(-1)
            - 2 * (a / jnp.exp(p['scale'])) @ (b / jnp.exp(p['scale'])).T
        )
        if smooth:
            far = jnp.sqrt(5 * jnp.maximum(square, 1e-9))
            return jnp.exp(p['size']) * (1 + far + far**2 / 3) * jnp.exp(-far)
        return jnp.exp(p['size'] - 0.5 * square)

    parameters = lambda width: dict(scale=shape(width), size=shape(), noise=shape())

    def likelihood(rows, width=8, smooth=False, batch=0):
        def loss(p, x, y):
            factor = jnp.linalg.cholesky(kernel(p, x, x, smooth) + jnp.exp(p['noise']) * jnp.eye(rows))
            solved = linalg.solve_triangular(factor, y, lower=True)
            return 0.5 * (solved**2).sum() + jnp.log(jnp.diagonal(factor)).sum()

        if batch:
            return training(
                lambda p, x, y: jax.vmap(loss, (None, 0, 0))(p, x, y).sum(),
                parameters(width),
                shape(batch, rows, width),
                shape(batch, rows),
                optimizer='sgd',
            )
        return training(loss, parameters(width), shape(rows, width), shape(rows))

    def predict(rows, at, width=8, full=False):
        def run(p, x, y, new):
            factor = jnp.linalg.cholesky(kernel(p, x, x) + jnp.exp(p['noise']) * jnp.eye(rows))
            across = kernel(p, x, new)
            solved = linalg.solve_triangular(factor, across, lower=True)
            mean = across.T @ linalg.cho_solve((factor, True), y)
            return mean, kernel(p, new, new) - solved.T @ solved if full else jnp.exp(p['size']) - (solved**2).sum(0)

        return inference(run, parameters(width), shape(rows, width), shape(rows), shape(at, width))

    def inducing(rows, points, width=8, **options):
        def loss(p, x, y):
            u = p['points']
            factor = jnp.linalg.cholesky(kernel(p, u, u) + 1e-4 * jnp.eye(points))
            a = linalg.solve_triangular(factor, kernel(p, u, x), lower=True) / jnp.exp(0.5 * p['noise'])
            b = jnp.linalg.cholesky(jnp.eye(points) + a @ a.T)
            c = linalg.solve_triangular(b, a @ y, lower=True) / jnp.exp(0.5 * p['noise'])
            return jnp.log(jnp.diagonal(b)).sum() + 0.5 * rows * p['noise'] + 0.5 * ((y**2).sum() / jnp.exp(p['noise']) - (c**2).sum())

        return training(loss, parameters(width) | dict(points=shape(points, width)), shape(rows, width), shape(rows), **options)

    def iterative(rows, width=8, steps=50, blocks=16):
        def run(p, x, y):
            def times(v):
                part = lambda a: kernel(p, a, x) @ v
                return lax.map(part, x.reshape(blocks, -1, width)).reshape(v.shape) + jnp.exp(p['noise']) * v

            return jax.scipy.sparse.linalg.cg(times, y, maxiter=steps)[0]

        return inference(run, parameters(width), shape(rows, width), shape(rows, 8))

    yield 'likelihood', *likelihood(4096)
    yield 'inducing_points', *inducing(100_000, 512)
    yield 'predictions', *predict(8192, 2048)
    yield 'iterative', *iterative(32768)
    yield 'likelihood_batch', *likelihood(512, batch=64)
    yield 'predictions_full', *predict(4096, 8192, full=True)
    yield 'likelihood_matern', *likelihood(6144, smooth=True)


@family
def linear_algebra():
    """Factorisations of large and of many small matrices, and what is made of them."""

    def components(rows, columns, count):
        def run(x):
            x = x - x.mean(0)
            values, ways = jnp.linalg.eigh(x.T @ x / rows)
            return x @ ways[:, -count:], values

        return jax.jit(run), (shape(rows, columns),)

    def random_svd(rows, columns, rank):
        def run(x, key):
            y = x @ jax.random.normal(key, (columns, rank))
            for _ in range(2):
                y = jnp.linalg.qr(x @ (x.T @ jnp.linalg.qr(y)[0]))[0]
            u, s, v = jnp.linalg.svd(y.T @ x, full_matrices=False)
            return y @ u, s, v

        return jax.jit(run), (shape(rows, columns), key())

    def solves(batch, side, gradient=False):
        loss = lambda a, b: (jnp.linalg.solve(a, b) ** 2).sum() + jnp.linalg.slogdet(a)[1].sum()
        run = jax.grad(loss, (0, 1)) if gradient else jnp.linalg.solve
        return jax.jit(run), (shape(batch, side, side), shape(batch, side, 8))

    def exponentials(batch, side):
        return jax.jit(jax.vmap(linalg.expm)), (shape(batch, side, side),)

    def factor_gradient(batch, side):
        run = jax.grad(
            lambda a: jnp.log(jnp.diagonal(jnp.linalg.cholesky(a @ a.swapaxes(-1, -2) + jnp.eye(side)), axis1=-2, axis2=-1)).sum()
        )
        return jax.jit(run), (shape(batch, side, side),)

    def powers(side, steps):
        def run(a):
            begin = jnp.eye(side)
            return lax.fori_loop(
                0, steps, lambda _, of: (0.5 * of[0] @ (3 * begin - of[1] @ of[0]), 0.5 * (3 * begin - of[1] @ of[0]) @ of[1]), (a, begin)
            )

        return jax.jit(run, donate_argnums=0), (shape(side, side),)

    yield 'components', *components(200_000, 512, 64)
    yield 'solves_gradient', *solves(256, 256, gradient=True)
    yield 'newton_schulz_root', *powers(4096, 20)
    yield 'cholesky_gradient', *factor_gradient(64, 512)
    yield 'random_svd', *random_svd(100_000, 1024, 64)
    yield 'exponentials', *exponentials(512, 128)
    yield 'solves_large', *solves(4, 4096)


@family
def filtering():
    """States estimated over time: Kalman filters one after the other or by associative scan, particles that are drawn again, hidden Markov chains."""

    def kalman(batch, length, state, seen, gradient=False):
        def run(model, y):
            def one(y):
                def step(of, y):
                    mean, cov = of
                    mean, cov = model['a'] @ mean, model['a'] @ cov @ model['a'].T + model['q']
                    s = model['c'] @ cov @ model['c'].T + model['r']
                    gain = jnp.linalg.solve(s, model['c'] @ cov).T
                    mean = mean + gain @ (y - model['c'] @ mean)
                    cov = cov - gain @ model['c'] @ cov
                    return (mean, cov), (mean, cov)

                return lax.scan(step, (jnp.zeros(state), jnp.eye(state)), y)[1]

            return jax.vmap(one)(y)

        loss = jax.grad(lambda model, y: (run(model, y)[0] ** 2).mean())
        model = dict(a=shape(state, state), q=shape(state, state), c=shape(seen, state), r=shape(seen, seen))
        return jax.jit(loss if gradient else run), (model, shape(batch, length, seen))

    def smoother(batch, length, state):
        def run(a, b):
            join = lambda x, y: (jnp.einsum('...ij,...jk->...ik', y[0], x[0]), jnp.einsum('...ij,...j->...i', y[0], x[1]) + y[1])
            return lax.associative_scan(join, (a, b), axis=1)

        return jax.jit(run), (shape(batch, length, state, state), shape(batch, length, state))

    def particles(count, length, width=8):
        def run(y, key):
            def step(x, of):
                y, key = of
                one, other = jax.random.split(key)
                x = jnp.sin(x) + 0.1 * jax.random.normal(one, x.shape)
                weights = jax.nn.softmax(-((x - y) ** 2).sum(-1))
                total = jnp.cumsum(weights)
                places = (jnp.arange(count) + jax.random.uniform(other)) / count
                return x[jnp.searchsorted(total, places).clip(0, count - 1)], (weights @ x, x[:1024])

            return lax.scan(step, jnp.zeros((count, width)), (y, jax.random.split(key, length)))[1]

        return jax.jit(run), (shape(length, width), key())

    def markov(batch, length, states):
        def run(moves, odds):
            step = lambda a, o: (jax.nn.logsumexp(a[:, :, None] + moves, 1) + o,) * 2
            forward = lambda moves, odds: lax.scan(step, odds[0], odds[1:])
            back = jax.grad(lambda odds: jax.nn.logsumexp(forward(moves, odds)[0], -1).sum())
            return back(odds)

        return jax.jit(run), (shape(states, states), shape(length, batch, states))

    yield 'kalman', *kalman(256, 500, 16, 8)
    yield 'markov_posteriors', *markov(64, 200, 128)
    yield 'particles', *particles(1_000_000, 100)
    yield 'kalman_gradient', *kalman(256, 500, 32, 8, gradient=True)
    yield 'smoother_associative', *smoother(64, 1024, 16)


@family
def clustering():
    """Distances of many points: k-means, nearest neighbours in blocks, mixtures, shift of means, t-SNE."""

    def means(rows, width, count, steps=20, sums='product'):
        def run(x, centres):
            def step(centres, _):
                apart = (centres**2).sum(-1) - 2 * x @ centres.T
                which = apart.argmin(-1)
                if sums == 'product':
                    one_hot = jax.nn.one_hot(which, count)
                    return one_hot.T @ x / jnp.maximum(one_hot.sum(0)[:, None], 1), apart.min(-1).mean()
                total = jax.ops.segment_sum(x, which, count)
                return total / jnp.maximum(jnp.bincount(which, length=count)[:, None], 1), apart.min(-1).mean()

            return lax.scan(step, centres, None, length=steps)

        return jax.jit(run), (shape(rows, width), shape(count, width))

    def neighbours(queries, rows, width, count, blocks=1):
        def part(of):
            q, x = of
            return lax.top_k(2 * q @ x.T - (x**2).sum(-1), count)

        def run(q, x):
            if blocks == 1:
                return part((q, x))
            return lax.map(lambda q: part((q, x)), q.reshape(blocks, -1, width))

        return jax.jit(run), (shape(queries, width), shape(rows, width))

    def mixture(rows, width, count, steps=10):
        def run(x, mean, factor, log_share):
            def step(of, _):
                mean, factor, log_share = of
                apart = x[:, None] - mean
                solved = jnp.einsum('kij,nkj->nki', factor, apart)
                odds = jax.nn.log_softmax(log_share - 0.5 * (solved**2).sum(-1))
                share = jnp.exp(odds)
                total = share.sum(0)
                mean = share.T @ x / total[:, None]
                cov = jnp.einsum('nk,nki,nkj->kij', share, x[:, None] - mean, x[:, None] - mean) / total[:, None, None]
                factor = jnp.linalg.inv(jnp.linalg.cholesky(cov + 1e-3 * jnp.eye(width)))
                return (mean, factor, jnp.log(total / rows)), None

            return lax.scan(step, (mean, factor, log_share), None, length=steps)[0]

        return jax.jit(run), (shape(rows, width), shape(count, width), shape(count, width, width), shape(count))

    def embedding(rows, steps=20):
        def run(y, p):
            def loss(y):
                apart = ((y[:, None] - y[None]) ** 2).sum(-1)
                near = (1 - jnp.eye(rows)) / (1 + apart)
                return (p * (jnp.log(p + 1e-9) - jnp.log(near / near.sum() + 1e-9))).sum()

            def step(of, _):
                y, v = of
                v = 0.8 * v - 100 * jax.grad(loss)(y)
                return (y + v, v), None

            return lax.scan(step, (y, jnp.zeros_like(y)), None, length=steps)[0][0]

        return jax.jit(run, donate_argnums=0), (shape(rows, 2), shape(rows, rows))

    yield 'means_by_product', *means(200_000, 64, 256)
    yield 'neighbours', *neighbours(4096, 100_000, 128, 10)
    yield 'mixture', *mixture(20_000, 16, 32)
    yield 'neighbours_in_blocks', *neighbours(16384, 200_000, 96, 32, blocks=64)
    yield 'means_by_segments', *means(1_000_000, 32, 1024, sums='segments')
    yield 'embedding', *embedding(4096)


@family
def transport():
    """Optimal transport by Sinkhorn: potentials in logarithms, unrolled or implicit gradients, batches."""

    def of(rows, columns, width=32, steps=50, batch=0, gradient=True, implicit=False, logs=True):
        def cost(x, y):
            return (x**2).sum(-1)[:, None] + (y**2).sum(-1) - 2 * x @ y.T

        def potentials(c):
            if not logs:
                k = jnp.exp(-c / 0.1)
                step = lambda of, _: ((1 / (rows * (k @ of[1] + 1e-9)), 1 / (columns * (k.T @ of[0] + 1e-9))), None)
                (u, v), _ = lax.scan(step, (jnp.ones(rows), jnp.ones(columns)), None, length=steps)
                return 0.1 * jnp.log(u + 1e-9), 0.1 * jnp.log(v + 1e-9)

            def step(of, _):
                f, g = of
                f = -0.1 * jax.nn.logsumexp((g - c) / 0.1, 1) - 0.1 * jnp.log(rows)
                return (f, -0.1 * jax.nn.logsumexp((f[:, None] - c) / 0.1, 0) - 0.1 * jnp.log(columns)), None

            return lax.scan(step, (jnp.zeros(rows), jnp.zeros(columns)), None, length=steps)[0]

        def loss(x, y):
            c = cost(x, y)
            f, g = potentials(lax.stop_gradient(c) if implicit else c)
            plan = jnp.exp((f[:, None] + g - c) / 0.1)
            return (lax.stop_gradient(plan) * c).sum() if implicit else (plan * c).sum()

        run = jax.value_and_grad(loss) if gradient else loss
        run = jax.vmap(run) if batch else run
        lead = (batch,) if batch else ()
        return jax.jit(run), (shape(*lead, rows, width), shape(*lead, columns, width))

    yield 'unrolled', *of(1024, 1024, steps=20)
    yield 'implicit', *of(8192, 8192, implicit=True)
    yield 'batch', *of(256, 256, batch=64, steps=20)
    yield 'scaling_forward', *of(8192, 4096, gradient=False, logs=False)
    yield 'batch_forward', *of(512, 512, batch=128, gradient=False)


@family
def least_squares():
    """Models fitted by second-order methods: Gauss and Newton, Levenberg and Marquardt, L-BFGS, natural gradients by conjugate gradients."""

    def newton(rows, width, steps=5):
        def run(w, x, y):
            def step(w, _):
                odds = jax.nn.sigmoid(x @ w)
                hessian = (x * (odds * (1 - odds))[:, None]).T @ x + jnp.eye(width)
                return w - jnp.linalg.solve(hessian, x.T @ (odds - y) + w), None

            return lax.scan(step, w, None, length=steps)[0]

        return jax.jit(run), (shape(width), shape(rows, width), shape(rows))

    def marquardt(rows, hidden=16, steps=5):
        sizes = (4, hidden, hidden, 1)
        size = sum((a + 1) * b for a, b in zip(sizes, sizes[1:]))

        def model(w, x):
            at = 0
            for a, b in zip(sizes, sizes[1:]):
                x = jnp.tanh(x @ w[at : at + a * b].reshape(a, b) + w[at + a * b : at + (a + 1) * b])
                at += (a + 1) * b
            return x[:, 0]

        def run(w, x, y):
            def step(w, _):
                j = jax.jacfwd(model)(w, x)
                return w - jnp.linalg.solve(j.T @ j + 0.1 * jnp.eye(size), j.T @ (model(w, x) - y)), None

            return lax.scan(step, w, None, length=steps)[0]

        return jax.jit(run), (shape(size), shape(rows, 4), shape(rows))

    def natural(batch, widths=(512, 1024, 1024, 10), steps=10):
        def run(p, x, labels):
            logits = lambda p: perceptron(p, x, jnp.tanh)
            loss = lambda p: -(jax.nn.log_softmax(logits(p)) * jax.nn.one_hot(labels, widths[-1])).sum(-1).mean()

            def fisher(v):
                z, along = jax.jvp(logits, (p,), (v,))
                odds = jax.nn.softmax(z)
                bent = odds * along - odds * (odds * along).sum(-1, keepdims=True)
                back = jax.vjp(logits, p)[1](bent / batch)[0]
                return jax.tree.map(lambda b, v: b + 1e-3 * v, back, v)

            way, _ = jax.scipy.sparse.linalg.cg(fisher, jax.grad(loss)(p), maxiter=steps)
            return jax.tree.map(lambda p, d: p - d, p, way)

        return jax.jit(run, donate_argnums=0), (dense(*widths), shape(batch, widths[0]), tokens(batch))

    def quasi(size, rows, kept=10, steps=20):
        def run(w, x, y):
            slope = jax.grad(lambda w: square_error(jnp.tanh(x @ w.reshape(x.shape[1], -1)).sum(-1), y))

            def step(of, _):
                w, g, s, t = of
                q, shares = g, []
                for i in range(kept):
                    a = (s[i] * q).sum() / ((s[i] * t[i]).sum() + 1e-9)
                    q, shares = q - a * t[i], [*shares, a]
                for i in reversed(range(kept)):
                    q = q + s[i] * (shares[i] - (t[i] * q).sum() / ((s[i] * t[i]).sum() + 1e-9))
                new = w - 0.1 * q
                slope_there = slope(new)
                push = lambda old, x: jnp.concatenate([x[None], old[:-1]])
                return (new, slope_there, push(s, new - w), push(t, slope_there - g)), None

            begin = w, slope(w), jnp.zeros((kept, size)), jnp.zeros((kept, size))
            return lax.scan(step, begin, None, length=steps)[0][0]

        return jax.jit(run, donate_argnums=0), (shape(size), shape(rows, 1024), shape(rows))

    yield 'newton', *newton(200_000, 512)
    yield 'natural_gradient', *natural(8192)
    yield 'quasi_newton', *quasi(2 << 20, 2048)
    yield 'marquardt', *marquardt(100_000)
