"""Models of nature: graphs, fields, particles, weather."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import (
    BF16,
    F32,
    conv,
    cross_entropy,
    dense,
    inference,
    layer_norm,
    layers,
    perceptron,
    shape,
    square_error,
    through,
    tokens,
    training,
)
from program import family


@family
def gnn():
    """Messages along edges: sums (GCN), pairs of perceptrons (MPNN), attention by segments (GAT), molecules in batches."""

    def of(nodes, edges, width=128, depth=3, kind='gcn', is_scanned=False, policy=None, classes=40, trains=True, **options):
        one = dict(
            gcn=dict(w=shape(width, width), own=shape(width, width)),
            mpnn=dict(message=dense(3 * width, width, width), update=dense(2 * width, width, width), edge=dense(3 * width, width)),
            gat=dict(w=shape(width, width), source=shape(8, width // 8), target=shape(8, width // 8)),
            sage=dict(w=shape(3 * width, width)),
        )[kind]
        parameters = dict(into=shape(100, width), edges=shape(16, width), layers=layers(one, depth, is_scanned), head=shape(width, classes))

        def layer(q, of, sources, targets):
            x, e = of
            add = lambda y: jax.ops.segment_sum(y, targets, nodes)
            if kind == 'gcn':
                x = jax.nn.relu(add((x @ q['w'])[sources]) + x @ q['own'])
            elif kind == 'sage':
                top = jax.ops.segment_max(x[sources], targets, nodes)
                mean = add(x[sources]) / jnp.maximum(add(jnp.ones((edges, 1), x.dtype)), 1)
                x = jax.nn.relu(jnp.concatenate([x, mean, jnp.where(jnp.isfinite(top), top, 0)], -1) @ q['w'])
            elif kind == 'gat':
                h = (x @ q['w']).reshape(nodes, 8, -1)
                score = jax.nn.leaky_relu((h * q['source']).sum(-1)[sources] + (h * q['target']).sum(-1)[targets])
                score = jnp.exp(score - jax.ops.segment_max(score, targets, nodes)[targets])
                share = score / (add(score)[targets] + 1e-9)
                x = jax.nn.elu(add(share[..., None] * h[sources])).reshape(nodes, -1)
            else:
                both = jnp.concatenate([x[sources], x[targets], e], -1)
                e = e + perceptron(q['edge'], both)
                x = layer_norm(x + perceptron(q['update'], jnp.concatenate([x, add(perceptron(q['message'], both))], -1)))
            return x, e

        def forward(p, x, e, sources, targets):
            of_edges = e @ p['edges'] if kind == 'mpnn' else jnp.zeros((), x.dtype)
            return through(lambda q, of: layer(q, of, sources, targets), p['layers'], (x @ p['into'], of_edges), policy)[0] @ p['head']

        graph = shape(nodes, 100), shape(edges, 16), tokens(edges), tokens(edges)
        if not trains:
            return inference(forward, parameters, *graph)
        return training(lambda p, *rest: cross_entropy(forward(p, *rest[:-1]), rest[-1]), parameters, *graph, tokens(nodes), **options)

    yield 'gcn_f32', *of(50_000, 500_000)
    yield 'mpnn_f32', *of(20_000, 200_000, kind='mpnn', depth=2)
    yield 'gat_f32', *of(20_000, 200_000, kind='gat')
    yield 'mpnn_scanned_everything', *of(30_000, 300_000, kind='mpnn', is_scanned=True, policy='everything')
    yield 'sage_forward', *of(100_000, 1_000_000, kind='sage', trains=False)
    yield 'gcn_bf16_wide', *of(50_000, 500_000, width=256, compute=BF16)
    yield 'sage_sgd', *of(20_000, 200_000, kind='sage', depth=2, optimizer='sgd')
    yield 'gat_scanned_dots', *of(50_000, 300_000, kind='gat', is_scanned=True, policy='dots')


@family
def molecules():
    """Forces as gradients of an energy: distances of all pairs, radial functions, filters for each pair (SchNet); trained on forces."""

    def of(batch, atoms, width=64, radial=32, depth=2, forces=True, trains=True, **options):
        one = dict(filter=dense(radial, width, width), into=shape(width, width), out=dense(width, width, width))
        parameters = dict(kinds=shape(100, width), layers=[one] * depth, head=dense(width, width // 2, 1))

        def energy(p, places, kinds):
            apart = jnp.sqrt(((places[:, None] - places[None]) ** 2).sum(-1) + 1e-6)
            basis = jnp.exp(-10 * (apart[..., None] - jnp.linspace(0, 5, radial).astype(apart.dtype)) ** 2)
            near = 0.5 * (jnp.cos(jnp.pi * jnp.minimum(apart / 5, 1)) + 1)
            x = p['kinds'][kinds]
            soft = lambda x: jax.nn.softplus(x) - 0.7
            for q in p['layers']:
                weights = perceptron(q['filter'], basis, soft) * near[..., None]
                x = x + perceptron(q['out'], jnp.einsum('ijd,jd->id', weights, x @ q['into']), soft)
            return perceptron(p['head'], x, soft).sum()

        def both(p, places, kinds):
            if not forces:
                return jax.vmap(energy, (None, 0, 0))(p, places, kinds), None
            value, slope = jax.vmap(jax.value_and_grad(energy, 1), (None, 0, 0))(p, places, kinds)
            return value, -slope

        def loss(p, places, kinds, wanted, wanted_forces):
            value, force = both(p, places, kinds)
            return square_error(value, wanted) + (square_error(force, wanted_forces) if forces else 0.0)

        inputs = shape(batch, atoms, 3), tokens(batch, atoms)
        if not trains:
            return inference(both, parameters, *inputs)
        return training(loss, parameters, *inputs, shape(batch), shape(batch, atoms, 3), **options)

    yield 'forces_f32', *of(16, 64)
    yield 'energies', *of(64, 64, forces=False, depth=3)
    yield 'predicted_forces', *of(64, 64, trains=False)
    yield 'large_molecules', *of(2, 256)
    yield 'energies_parts', *of(128, 64, forces=False, parts=8)


@family
def pinn():
    """Networks as solutions of equations: derivatives of derivatives at many points."""

    def of(points, width=256, depth=4, equation='heat', how='reverse', **options):
        outputs = 3 if equation == 'flow' else 1
        parameters = dense(2, *[width] * depth, outputs)

        def network(p, x):
            return perceptron(p, x, jnp.tanh)

        def second(f, x, i):
            along = jnp.zeros(2).at[i].set(1.0)
            if how == 'forward':
                first = lambda x: jax.jvp(f, (x,), (along,))[1]
                return jax.jvp(first, (x,), (along,))[1]
            return jax.grad(lambda x: jax.grad(f)(x)[i])(x)[i]

        def residual(p, x):
            if equation == 'flow':
                (u, v, _), slopes, bend = network(p, x), jax.jacrev(lambda x: network(p, x))(x), jax.hessian(lambda x: network(p, x)[:2])(x)
                lap = jnp.trace(bend, axis1=1, axis2=2)
                move = u * slopes[:2, 0] + v * slopes[:2, 1] + slopes[2] - 0.01 * lap
                return (move**2).sum() + (slopes[0, 0] + slopes[1, 1]) ** 2
            f = lambda x: network(p, x)[0]
            if equation == 'wave':
                return (second(f, x, 0) - second(f, x, 1)) ** 2
            return (jax.grad(f)(x)[0] - 0.1 * second(f, x, 1) + (f(x) * jax.grad(f)(x)[1] if equation == 'burgers' else 0.0)) ** 2

        def loss(p, inside, border, values):
            return jax.vmap(residual, (None, 0))(p, inside).mean() + square_error(network(p, border)[:, 0], values)

        return training(loss, parameters, shape(points, 2), shape(points // 8, 2), shape(points // 8), **options)

    yield 'heat_reverse', *of(32768)
    yield 'burgers_forward', *of(65536, equation='burgers', how='forward')
    yield 'flow_hessian', *of(16384, width=128, equation='flow')
    yield 'wave_parts', *of(131072, equation='wave', how='forward', parts=4)
    yield 'heat_wide_shallow', *of(16384, width=1024, depth=2)
    yield 'flow_large_sgd', *of(32768, equation='flow', width=64, depth=6, optimizer='sgd')


@family
def neural_ode():
    """A network as the slope of a state: fixed steps of Runge and Kutta kept or recomputed, the adjoint solved backwards, or steps that adapt."""

    def of(batch, width=256, state=64, steps=50, how='kept', trains=True, **options):
        parameters = dense(state + 1, width, width, state)

        def slope(p, x, t):
            return perceptron(p, jnp.concatenate([x, jnp.broadcast_to(t, (*x.shape[:-1], 1)).astype(x.dtype)], -1), jnp.tanh)

        def rk4(f, x, t, h):
            a = f(x, t)
            b = f(x + h / 2 * a, t + h / 2)
            c = f(x + h / 2 * b, t + h / 2)
            return x + h / 6 * (a + 2 * b + 2 * c + f(x + h * c, t + h))

        def solve(p, x):
            step = lambda x, t: (rk4(lambda x, t: slope(p, x, t), x, t, 1 / steps).astype(x.dtype), None)
            step = jax.checkpoint(step) if how == 'recomputed' else step
            return lax.scan(step, x, jnp.arange(steps) / steps)[0]

        @jax.custom_vjp
        def solve_adjoint(p, x):
            return solve(p, x)

        def backward(of, g):
            p, x = of

            def together(all_of, t):
                x, a, _ = all_of
                f, pull = jax.vjp(lambda p, x: slope(p, x, t), p, x)
                dp, dx = pull(a)
                return f, jax.tree.map(jnp.negative, dx), jax.tree.map(jnp.negative, dp)

            def step(all_of, t):
                d = together(all_of, t)
                middle = jax.tree.map(lambda y, d: y - d / 2 / steps, all_of, d)
                return jax.tree.map(lambda y, d: y - d / steps, all_of, together(middle, t)), None

            begin = x, g, jax.tree.map(jnp.zeros_like, p)
            (_, a, total), _ = lax.scan(step, begin, 1 - jnp.arange(steps) / steps)
            return total, a

        def forward(p, x):
            x = solve(p, x)
            return x, (p, x)

        solve_adjoint.defvjp(forward, backward)

        def adaptive(p, x):
            def step(of):
                x, t, h, count = of
                a = slope(p, x, t)
                b = slope(p, x + h / 2 * a, t + h / 2)
                error = h * jnp.abs(b - a).max()
                good = error < 1e-2
                return (
                    jnp.where(good, x + h * b, x),
                    jnp.where(good, t + h, t),
                    h * jnp.clip(0.1 / jnp.sqrt(error + 1e-9), 0.3, 3.0),
                    count + 1,
                )

            return lax.while_loop(lambda of: (of[1] < 1) & (of[3] < 1000), step, (x, 0.0, 0.05, 0))[0]

        if not trains:
            return inference(adaptive, parameters, shape(batch, state))
        use = solve_adjoint if how == 'adjoint' else solve
        return training(lambda p, x, y: square_error(use(p, x), y), parameters, shape(batch, state), shape(batch, state), **options)

    yield 'kept', *of(1024)
    yield 'adjoint', *of(16384, how='adjoint')
    yield 'recomputed', *of(4096, how='recomputed')
    yield 'adaptive', *of(32768, width=512, trains=False)
    yield 'kept_bf16', *of(4096, compute=BF16)
    yield 'recomputed_wide_parts', *of(8192, width=1024, how='recomputed', parts=4)


@family
def weather():
    """Weather on a grid: shallow water by finite differences, or networks on meshes and patches, rolled out for several steps."""

    def shallow(height, width, steps, keeps=0, tendency=False, trains=False, **options):
        def step(of, _):
            u, v, h = of
            dx = lambda a: (jnp.roll(a, -1, 1) - jnp.roll(a, 1, 1)) / 2
            dy = lambda a: (jnp.roll(a, -1, 0) - jnp.roll(a, 1, 0)) / 2
            spin = 1e-2 * jnp.linspace(-1, 1, height)[:, None]
            flux = dx((h + 1) * u) + dy((h + 1) * v)
            u, v = u + 0.1 * (spin * v - dx(h) - u * dx(u) - v * dy(u)), v - 0.1 * (spin * u + dy(h) + u * dx(v) + v * dy(v))
            return (u, v, h - 0.1 * flux), h[::keeps, ::keeps] if keeps else None

        grid = shape(height, width)
        run = lambda u, v, h: lax.scan(step, (u, v, h), None, length=steps)
        if trains:  # Data assimilation: gradients of the end with respect to the beginning.
            once = jax.checkpoint(step)
            misfit = lambda of, wanted: square_error(lax.scan(once, of, None, length=steps)[0][2], wanted)
            return jax.jit(jax.grad(misfit)), ((grid, grid, grid), grid)
        return jax.jit(run, donate_argnums=(0, 1, 2)), (grid, grid, grid)

    def network(batch, height, width, features=69, hidden=256, depth=3, patch=4, steps=1, policy=None, **options):
        places = height // patch * (width // patch)
        one = dict(modes=shape(2, 16, 9, hidden), mix=shape(hidden, hidden), up=shape(hidden, 2 * hidden), down=shape(2 * hidden, hidden))
        parameters = dict(
            into=shape(patch, patch, features, hidden),
            layers=[one] * depth,
            positions=shape(places, hidden),
            out=shape(hidden, patch * patch * features),
        )

        def layer(p, x):
            y = layer_norm(x).reshape(-1, height // patch, width // patch, hidden)
            f = jnp.fft.rfft2(y.astype(F32), axes=(1, 2))
            weights = lax.complex(p['modes'][0].astype(F32), p['modes'][1].astype(F32))
            f = jnp.zeros_like(f).at[:, :16, :9].set(f[:, :16, :9] * weights)
            y = jnp.fft.irfft2(f, s=y.shape[1:3], axes=(1, 2)).astype(x.dtype).reshape(x.shape) @ p['mix']
            return x + y + jax.nn.gelu(layer_norm(x + y) @ p['up']) @ p['down']

        def forward(p, x):
            y = conv(x, p['into'], patch, padding='VALID').reshape(-1, places, hidden) + p['positions']
            y = through(layer, p['layers'], y, policy) @ p['out']
            y = y.reshape(-1, height // patch, width // patch, patch, patch, features).swapaxes(2, 3).reshape(x.shape)
            return x + y

        def loss(p, x, wanted):
            latitudes = jnp.cos(jnp.linspace(-1.5, 1.5, height))[:, None, None]

            def step(x, wanted):
                x = jax.checkpoint(forward)(p, x)
                return x, (latitudes * (x - wanted).astype(F32) ** 2).mean()

            return lax.scan(step, x, wanted)[1].mean()

        return training(loss, parameters, shape(batch, height, width, features), shape(steps, batch, height, width, features), **options)

    yield 'shallow_water', *shallow(2048, 4096, 100)
    yield 'fourier_f32', *network(2, 128, 256)
    yield 'shallow_water_kept', *shallow(1024, 2048, 200, keeps=4)
    yield 'fourier_rollout_bf16', *network(1, 128, 256, steps=4, compute=BF16)
    yield 'assimilation', *shallow(512, 1024, 100, trains=True)
    yield 'fourier_large_checkpointed', *network(1, 256, 512, features=32, policy='everything')


@family
def graph_weather():
    """A mesh between encoder and decoder (GraphCast): nodes of grid and mesh, edges with features, messages by segments."""

    def of(grid, mesh, edges_in, edges_mesh, features=78, width=128, depth=2, policy=None, is_scanned=True, **options):
        mlp = lambda inputs: dense(inputs, width, width)
        one = dict(edge=mlp(3 * width), node=mlp(2 * width))
        parameters = dict(
            grid=mlp(features),
            mesh=mlp(3),
            edge=mlp(4),
            into=one,
            layers=layers(one, depth, is_scanned),
            out=one,
            head=dense(width, width, features),
        )

        def pass_on(p, sources, targets, edges, of_sources, of_targets):
            count = targets.shape[0]
            edges = edges + layer_norm(
                perceptron(p['edge'], jnp.concatenate([edges, sources[of_sources], targets[of_targets]], -1), jax.nn.silu)
            )
            seen = jax.ops.segment_sum(edges, of_targets, count)
            return targets + layer_norm(perceptron(p['node'], jnp.concatenate([targets, seen], -1), jax.nn.silu)), edges

        def loss(p, x, at, edges, in_mesh, ends, mesh_ends, wanted):
            g, m = perceptron(p['grid'], x, jax.nn.silu), perceptron(p['mesh'], at, jax.nn.silu)
            e, f = perceptron(p['edge'], edges, jax.nn.silu), perceptron(p['edge'], in_mesh, jax.nn.silu)
            m, _ = pass_on(p['into'], g, m, e, ends[0], ends[1])
            m, _ = through(lambda q, of: pass_on(q, of[0], *of, *mesh_ends), p['layers'], (m, f), policy)
            g, _ = pass_on(p['out'], m, g, e, ends[1], ends[0])
            return square_error(x + perceptron(p['head'], g, jax.nn.silu), wanted)

        inputs = (
            shape(grid, features),
            shape(mesh, 3),
            shape(edges_in, 4),
            shape(edges_mesh, 4),
            tokens(2, edges_in),
            tokens(2, edges_mesh),
            shape(grid, features),
        )
        return training(loss, parameters, *inputs, **options)

    yield 'scanned_f32', *of(65_536, 10_242, 200_000, 80_000)
    yield 'scanned_everything_bf16', *of(65_536, 10_242, 200_000, 80_000, width=256, policy='everything', compute=BF16)
    yield 'unrolled', *of(32_768, 2_562, 100_000, 20_000, is_scanned=False)
    yield 'scanned_deep_dots', *of(32_768, 10_242, 100_000, 80_000, depth=8, policy='dots')


@family
def particles():
    """Particles that attract: all pairs at once, rows of pairs, or neighbours in lists; rolled out, or with gradients."""

    def of(count, steps, how='all', near=64, keeps=False, slopes=False):
        def forces(x, neighbours):
            pull = lambda a, b: (b - a) / (((b - a) ** 2).sum(-1, keepdims=True) + 0.01) ** 1.5
            if how == 'all':
                return pull(x[:, None], x[None]).sum(1)
            if how == 'rows':
                return lax.map(lambda a: pull(a[:, None], x[None]).sum(1), x.reshape(-1, 128, 3)).reshape(-1, 3)
            return pull(x[:, None], x[neighbours]).sum(1)

        def run(x, v, neighbours):
            def step(of, _):
                x, v = of
                v = v + 1e-3 * forces(x, neighbours)
                x = x + 1e-3 * v
                return (x, v), x if keeps else None

            step = jax.checkpoint(step) if slopes else step
            (x, v), all_of_them = lax.scan(step, (x, v), None, length=steps)
            return ((v**2).sum() - (x**2).sum()) if slopes else (x, v, all_of_them)

        arguments = shape(count, 3), shape(count, 3), tokens(count, near)
        return jax.jit(jax.grad(run) if slopes else run, donate_argnums=() if slopes else (0, 1)), arguments

    yield 'all_pairs_kept', *of(16384, 500, keeps=True)
    yield 'neighbours_gradient', *of(65536, 20, 'lists', slopes=True)
    yield 'rows_of_pairs_kept', *of(131072, 50, 'rows', keeps=True)
    yield 'neighbours_kept', *of(131072, 100, 'lists', keeps=True)
    yield 'all_pairs_gradient', *of(4096, 50, slopes=True)


@family
def lattice():
    """Stencils in loops: flows by lattice Boltzmann, waves in three dimensions, reactions that diffuse, spins."""

    def boltzmann(height, width, steps):
        ways = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
        shares = [4 / 9, *[1 / 9] * 4, *[1 / 36] * 4]

        def step(f, solid):
            f = jnp.stack([jnp.roll(f[i], way, (0, 1)) for i, way in enumerate(ways)])
            density = f.sum(0)
            u = sum(f[i] * way[0] for i, way in enumerate(ways)) / density
            v = sum(f[i] * way[1] for i, way in enumerate(ways)) / density
            along = jnp.stack([3 * (a * u + b * v) for a, b in ways])
            still = density * jnp.array(shares)[:, None, None] * (1 + along + along**2 / 2 - 1.5 * (u * u + v * v))
            back = f[jnp.array([0, 3, 4, 1, 2, 7, 8, 5, 6])]
            return jnp.where(solid, back, f + (still - f) / 0.6)

        run = lambda f, solid: lax.fori_loop(0, steps, lambda _, f: step(f, solid), f)
        return jax.jit(run, donate_argnums=0), (shape(9, height, width), shape(height, width, dtype=jnp.bool_))

    def waves(side, steps, slopes=False):
        def step(of, _):
            now, before, speed = of
            lap = sum(jnp.roll(now, 1, i) + jnp.roll(now, -1, i) for i in range(3)) - 6 * now
            return (2 * now - before + speed * lap, now, speed), None

        one = jax.checkpoint(step) if slopes else step
        run = lambda speed, now, before: lax.scan(one, (now, before, speed), None, length=steps)[0][0]
        loss = lambda *of: (run(*of) ** 2).mean()
        cube = shape(side, side, side)
        return jax.jit(jax.grad(loss) if slopes else run, donate_argnums=() if slopes else (1, 2)), (cube, cube, cube)

    def reactions(side, steps, batch):
        kernel = [[0.05, 0.2, 0.05], [0.2, -1.0, 0.2], [0.05, 0.2, 0.05]]

        def step(of, _):
            a, b = of
            spread = lambda x: conv(x[..., None], jnp.array(kernel)[..., None, None])[..., 0]
            rate = a * b * b
            return (a + spread(a) - rate + 0.055 * (1 - a), b + 0.5 * spread(b) + rate - 0.117 * b), b.mean((1, 2))

        run = lambda a, b: lax.scan(step, (a, b), None, length=steps)
        return jax.jit(run, donate_argnums=(0, 1)), (shape(batch, side, side),) * 2

    def spins(side, steps, batch):
        def run(spins, key):
            board = (jnp.arange(side)[:, None] + jnp.arange(side)) % 2

            def step(of, i):
                spins, key = of
                key, now = jax.random.split(key)
                field = sum(jnp.roll(spins, by, axis) for by in (1, -1) for axis in (1, 2))
                flips = (jax.random.uniform(now, spins.shape) < jnp.exp(-0.88 * spins * field)) & (board == i % 2)
                spins = jnp.where(flips, -spins, spins)
                return (spins, key), spins.astype(F32).mean((1, 2))

            return lax.scan(step, (spins, key), jnp.arange(steps))

        return jax.jit(run, donate_argnums=0), (shape(batch, side, side, dtype=jnp.int8), jax.eval_shape(lambda: jax.random.key(0)))

    yield 'boltzmann', *boltzmann(1024, 2048, 500)
    yield 'waves_gradient', *waves(128, 30, slopes=True)
    yield 'reactions', *reactions(1024, 1000, 16)
    yield 'spins', *spins(1024, 1000, 16)
    yield 'waves', *waves(384, 100)


@family
def fourier():
    """Fields in wave numbers: turbulence, pictures from frequencies, neural operators, filters of signals."""

    def turbulence(side, steps, real=True, keeps=False):
        fft, inverse = (jnp.fft.rfft2, jnp.fft.irfft2) if real else (jnp.fft.fft2, jnp.fft.ifft2)
        columns = side // 2 + 1 if real else side

        def run(w):
            ky = jnp.fft.fftfreq(side, 1 / side)[:, None]
            kx = (jnp.fft.rfftfreq if real else jnp.fft.fftfreq)(side, 1 / side)[None]
            square = jnp.where(kx**2 + ky**2 == 0, 1.0, kx**2 + ky**2)

            def step(w, _):
                stream = w / square
                u, v, wx, wy = (inverse(x) for x in (1j * ky * stream, -1j * kx * stream, 1j * kx * w, 1j * ky * w))
                w = (w - 1e-3 * fft((u * wx + v * wy).real if not real else u * wx + v * wy)) / (1 + 1e-6 * square)
                return w, inverse(w).real if keeps else None

            return lax.scan(step, w, None, length=steps)

        return jax.jit(run, donate_argnums=0), (shape(side, columns, dtype=jnp.complex64),)

    def operator(batch, side, width=32, modes=16, depth=4, one_dimension=False, **options):
        axes = (1,) if one_dimension else (1, 2)
        kept = (slice(None), *(slice(modes) for _ in axes))
        weights = shape(2, *(modes for _ in axes), width, width)
        parameters = dict(into=dense(3, width), layers=[dict(modes=weights, w=shape(width, width))] * depth, out=dense(width, 128, 1))

        def loss(p, x, wanted):
            y = perceptron(p['into'], x)
            for q in p['layers']:
                f = jnp.fft.rfftn(y, axes=axes)
                part = jnp.einsum('b...i,...io->b...o', f[kept], lax.complex(*q['modes']))
                y = jax.nn.gelu(jnp.fft.irfftn(jnp.zeros_like(f).at[kept].set(part), s=y.shape[1:-1], axes=axes) + y @ q['w'])
            return square_error(perceptron(p['out'], y)[..., 0], wanted)

        space = (side,) if one_dimension else (side, side)
        return training(loss, parameters, shape(batch, *space, 3), shape(batch, *space), **options)

    def resonance(coils, side, steps):
        """Pictures from fewer frequencies than they have, by proximal gradients."""

        def run(seen, mask, coil):
            to = lambda x: mask * jnp.fft.fft2(coil * x)
            back = lambda y: (coil.conj() * jnp.fft.ifft2(y)).sum(0)

            def step(x, _):
                x = x - back(to(x) - seen)
                size = jnp.abs(x)
                return jnp.where(size > 0.01, x * (1 - 0.01 / (size + 1e-9)), 0), None

            return lax.scan(step, back(seen), None, length=steps)[0]

        c64 = dict(dtype=jnp.complex64)
        return jax.jit(run), (shape(coils, side, side, **c64), shape(side, side), shape(coils, side, side, **c64))

    def spectrogram(batch, length, window=1024, hop=256):
        def run(x, mel):
            starts = jnp.arange(0, length - window + 1, hop)
            frames = x[:, starts[:, None] + jnp.arange(window)] * jnp.hanning(window)
            return jnp.log(jnp.abs(jnp.fft.rfft(frames)) ** 2 @ mel + 1e-6)

        return jax.jit(run), (shape(batch, length), shape(window // 2 + 1, 80))

    yield 'turbulence_real', *turbulence(2048, 100)
    yield 'operator_2d', *operator(16, 128)
    yield 'spectrogram', *spectrogram(32, 480_000)
    yield 'resonance', *resonance(16, 512, 50)
    yield 'operator_1d_deep', *operator(64, 8192, width=64, one_dimension=True)
    yield 'turbulence_complex_kept', *turbulence(512, 100, real=False, keeps=True)
    yield 'operator_2d_large_sgd', *operator(4, 256, width=64, depth=3, optimizer='sgd')


@family
def equivariant():
    """Networks whose features turn with space: products of spherical harmonics, paths by einsum, over neighbours (MACE, NequIP)."""

    def of(atoms, edges, channels=64, depth=2, forces=True, **options):
        one = dict(
            radial=dense(8, 64, 3 * channels),
            mix0=shape(channels, channels),
            mix1=shape(channels, channels),
            mix2=shape(channels, channels),
        )
        parameters = dict(kinds=shape(100, channels), layers=[one] * depth, head=dense(channels, 32, 1))

        def energy(p, places, kinds, sources, targets):
            arrow = places[sources] - places[targets]
            far = jnp.sqrt((arrow**2).sum(-1) + 1e-6)
            basis = jnp.sin(far[:, None] * jnp.arange(1, 9)) / far[:, None]
            unit = arrow / far[:, None]
            pairs = unit[:, :, None] * unit[:, None, :] - jnp.eye(3) / 3
            s = p['kinds'][kinds]
            v, t = jnp.zeros((atoms, channels, 3)), jnp.zeros((atoms, channels, 3, 3))
            add = lambda x: jax.ops.segment_sum(x, targets, atoms)
            for q in p['layers']:
                a, b, c = jnp.split(perceptron(q['radial'], basis, jax.nn.silu), 3, -1)
                h = s[sources]
                s1 = add(a * h + b * (v[sources] * unit[:, None]).sum(-1))
                v1 = add((b * h)[..., None] * unit[:, None] + jnp.einsum('ecij,ej->eci', t[sources], unit) * a[..., None])
                t1 = add((c * h)[..., None, None] * pairs[:, None])
                s = jax.nn.silu(s1 @ q['mix0'] + (v1**2).sum(-1) + jnp.einsum('ncij,ncij->nc', t1, t1))
                v = jnp.einsum('nci,cd->ndi', v1 + jnp.einsum('ncij,ncj->nci', t1, v1), q['mix1'])
                t = jnp.einsum('ncij,cd->ndij', t1 + v1[..., :, None] * v1[..., None, :], q['mix2'])
            return perceptron(p['head'], s, jax.nn.silu).sum()

        def loss(p, places, kinds, sources, targets, wanted):
            if not forces:
                return energy(p, places, kinds, sources, targets) ** 2
            return square_error(-jax.grad(energy, 1)(p, places, kinds, sources, targets), wanted)

        return training(loss, parameters, shape(atoms, 3), tokens(atoms), tokens(edges), tokens(edges), shape(atoms, 3), **options)

    yield 'forces', *of(1024, 16384)
    yield 'energies_large', *of(8192, 131072, channels=32, forces=False)
    yield 'forces_wide_sgd', *of(512, 8192, channels=128, optimizer='sgd')
    yield 'forces_one_layer', *of(2048, 65536, channels=32, depth=1)
