"""Simulation and optimisation: diffrax, lineax, optimistix, jaxopt, brax, jax-md, e3nn."""

import functools

import jax
import jax.numpy as jnp
import optax
from program import integers, normal, program


@program("diffrax")
def neural_ode_train():
    """A neural differential equation: adaptive Tsit5, a loop with checkpoints, gradients by recomputing."""
    import diffrax
    import equinox as eqx

    model = eqx.nn.MLP(2, 2, 16, 2, jax.nn.softplus, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    times = jnp.linspace(0, 1, 6)

    def solve(params, y0):
        field = lambda t, y, args: eqx.combine(params, static)(y)
        controller = diffrax.PIDController(rtol=1e-3, atol=1e-6)
        solution = diffrax.diffeqsolve(diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, 0.1, y0, stepsize_controller=controller,
                                       saveat=diffrax.SaveAt(ts=times), max_steps=64)
        return solution.ys

    optimizer = optax.adabelief(3e-3)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, y):
        loss = lambda p: jnp.mean((jax.vmap(solve, (None, 0))(p, y[:, 0]) - y) ** 2)
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), normal(1, 4, 6, 2))


@program("diffrax")
def stiff_kinetics_implicit():
    """Robertson's reaction with an implicit solver: Newton iterations, LU factorisations inside the loop."""
    import diffrax

    def field(t, y, k):
        a, b, c = y
        return jnp.stack([-k[0] * a + k[2] * b * c, k[0] * a - k[1] * b**2 - k[2] * b * c, k[1] * b**2])

    @jax.jit
    def solve(y0, k):
        controller = diffrax.PIDController(rtol=1e-4, atol=1e-6)
        solution = diffrax.diffeqsolve(diffrax.ODETerm(field), diffrax.Kvaerno3(), 0.0, 10.0, 1e-3, y0, k, stepsize_controller=controller,
                                       saveat=diffrax.SaveAt(t1=True, steps=False), max_steps=500, throw=False)
        return solution.ys, solution.stats["num_accepted_steps"]

    return solve, (jnp.array([1.0, 0.0, 0.0]), jnp.array([0.04, 30.0, 10.0]))


@program("diffrax")
def stochastic_volatility():
    """A stochastic differential equation by Heun's method, a Brownian tree, many paths by vmap."""
    import diffrax

    @jax.jit
    def simulate(keys, y0):
        def path(key):
            drift = diffrax.ODETerm(lambda t, y, args: jnp.stack([0.05 * y[0], 0.5 * (0.04 - y[1])]))
            noise = diffrax.VirtualBrownianTree(0.0, 1.0, 1e-2, (2,), key)
            diffusion = diffrax.ControlTerm(lambda t, y, args: jnp.diag(jnp.stack([y[0], jnp.float32(0.1)]) * jnp.sqrt(jnp.abs(y[1]))), noise)
            solution = diffrax.diffeqsolve(diffrax.MultiTerm(drift, diffusion), diffrax.Heun(), 0.0, 1.0, 0.05, y0, saveat=diffrax.SaveAt(steps=True), max_steps=20)
            return solution.ys

        return jax.vmap(path)(keys).mean(0)

    return simulate, (jax.random.split(jax.random.key(0), 6), jnp.array([1.0, 0.04]))


@program("lineax")
def linear_solves():
    """GMRES, LU of a tagged operator, and the gradient of a solve, by lineax."""
    import lineax as lx

    @jax.jit
    def solve(matrix, b):
        spd = lx.MatrixLinearOperator(matrix @ matrix.T + 8 * jnp.eye(len(matrix)), lx.positive_semidefinite_tag)
        direct = lambda b: lx.linear_solve(spd, b, lx.Cholesky()).value
        general = lx.linear_solve(lx.MatrixLinearOperator(matrix + 5 * jnp.eye(len(matrix))), b, lx.LU()).value
        krylov = lx.linear_solve(spd, b, lx.CG(rtol=1e-5, atol=1e-5)).value
        return direct(b), general, krylov, jax.grad(lambda b: jnp.sum(direct(b) ** 2))(b)

    return solve, (normal(0, 12, 12), normal(1, 12))


@program("optimistix")
def levenberg_marquardt_fit():
    """A nonlinear least-squares fit, and its sensitivities by implicit differentiation."""
    import optimistix as optx

    def residuals(theta, data):
        x, y = data
        return theta[0] * jnp.exp(-theta[1] * x) + theta[2] - y

    def fit(x, y):
        solver = optx.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
        return optx.least_squares(residuals, solver, jnp.array([1.0, 1.0, 0.0]), (x, y), max_steps=64, throw=False).value

    x = jnp.linspace(0, 3, 20)
    y = 2.0 * jnp.exp(-0.7 * x) + 0.3 + 0.01 * normal(0, 20)
    return jax.jit(lambda x, y: (fit(x, y), jax.jacrev(fit, 1)(x, y))), (x, y)


@program("optax")
def lbfgs_with_line_search():
    """optax.lbfgs with its zoom line search, a while loop until the gradient is small."""
    solver = optax.lbfgs()
    rosenbrock = lambda x: jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    @jax.jit
    def minimise(x):
        evaluate = optax.value_and_grad_from_state(rosenbrock)

        def step(carry):
            x, state, i = carry
            value, gradient = evaluate(x, state=state)
            updates, state = solver.update(gradient, state, x, value=value, grad=gradient, value_fn=rosenbrock)
            return optax.apply_updates(x, updates), state, i + 1

        x, _, steps = jax.lax.while_loop(lambda c: c[2] < 3, step, (x, solver.init(x), 0))
        return x, rosenbrock(x), steps

    return minimise, (0.3 * normal(0, 6),)


@program("jaxopt")
def lasso_proximal_gradient():
    """jaxopt's accelerated proximal gradient with a line search; hyperparameter gradient through the fixed point."""
    import jaxopt

    def fit(regularisation, x, y):
        least_squares = lambda w, data: 0.5 * jnp.mean((data[0] @ w - data[1]) ** 2)
        solver = jaxopt.ProximalGradient(least_squares, jaxopt.prox.prox_lasso, maxiter=30, implicit_diff=True)
        return solver.run(jnp.zeros(x.shape[1]), regularisation, (x, y)).params

    loss = lambda r, x, y: jnp.mean((x @ fit(r, x, y) - y) ** 2)
    return jax.jit(jax.value_and_grad(loss)), (jnp.float32(0.05), normal(0, 30, 6), normal(1, 30))


@program("ott")
def sinkhorn_distance():
    """Entropic optimal transport between clouds of points, and the gradient by implicit differentiation."""
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    def cost(x, y):
        return sinkhorn.Sinkhorn(max_iterations=50)(linear_problem.LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.5))).reg_ot_cost

    return jax.jit(jax.value_and_grad(cost)), (normal(0, 14, 2), 1 + normal(1, 17, 2))


@program("brax", runs=False)
def brax_ant_rollout():
    """Ant in brax's spring pipeline, a policy network, episodes by scan, many of them by vmap; only compiled."""
    from brax import envs
    from brax.training.agents.ppo import networks

    environment = envs.get_environment("ant", backend="spring")
    policy = networks.make_ppo_networks(environment.observation_size, environment.action_size)

    def episode(params, key):
        def step(state, key):
            logits = policy.policy_network.apply(None, params, state.obs)
            state = environment.step(state, policy.parametric_action_distribution.sample(logits, key))
            return state, (state.reward, state.done)

        return jax.lax.scan(step, environment.reset(key), jax.random.split(key, 20))[1]

    params = jax.eval_shape(policy.policy_network.init, jax.random.key(0))
    return jax.jit(jax.vmap(episode, (None, 0))), (params, jax.eval_shape(lambda: jax.random.split(jax.random.key(1), 64)))


@program("brax")
def brax_positional_step():
    """A few steps of a small articulated body in brax's spring pipeline: contacts, joints, quaternions."""
    from brax.io import mjcf
    from brax.spring import pipeline

    system = mjcf.loads("""
      <mujoco><option timestep="0.005"/><worldbody>
        <geom name="floor" type="plane" size="5 5 0.1"/>
        <body pos="0 0 0.6"><freejoint/><geom type="sphere" size="0.1" mass="1"/>
          <body pos="0.2 0 0"><joint name="hinge" type="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.05" mass="0.5"/></body>
        </body></worldbody>
        <actuator><motor joint="hinge" gear="5"/></actuator></mujoco>""")
    state = pipeline.init(system, system.init_q, jnp.zeros(system.qd_size()))

    @jax.jit
    def run(state, actions):
        state, _ = jax.lax.scan(lambda s, a: (pipeline.step(system, s, a), None), state, actions)
        return state.q, state.qd

    return run, (state, normal(0, 5, system.act_size()))


@program("jax-md")
def lennard_jones_fluid():
    """Molecular dynamics with a cell list: neighbours in padded arrays, Nosé-Hoover chains."""
    from jax_md import energy, simulate, space

    box = 6.0
    displacement, shift = space.periodic(box)
    neighbour_function, energy_function = energy.lennard_jones_neighbor_list(displacement, box, r_cutoff=2.0, dr_threshold=0.5)
    positions = jnp.stack(jnp.meshgrid(*[jnp.arange(4.0) * 1.5] * 3), -1).reshape(-1, 3) + 0.05 * normal(0, 64, 3)
    neighbours = neighbour_function.allocate(positions)
    init, apply = simulate.nvt_nose_hoover(energy_function, shift, 1e-3, 0.5)
    state = init(jax.random.key(0), positions, neighbor=neighbours)

    @jax.jit
    def run(state, neighbours):
        def step(i, carry):
            state, neighbours = carry
            neighbours = neighbours.update(state.position)
            return apply(state, neighbor=neighbours), neighbours

        state, neighbours = jax.lax.fori_loop(0, 4, step, (state, neighbours))
        return state.position, state.velocity, neighbours.did_buffer_overflow

    return run, (state, neighbours)


@program("e3nn")
def equivariant_message_passing():
    """Spherical harmonics, tensor products and gates of e3nn over the edges of a small molecule, and forces."""
    import e3nn_jax as e3nn

    def total(weights, positions, senders, receivers):
        vectors = positions[receivers] - positions[senders]
        harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", vectors, normalize=True)
        radial = e3nn.bessel(jnp.linalg.norm(vectors, axis=-1), 6, 3.0) @ weights["radial"]
        messages = e3nn.tensor_product(harmonics, harmonics).filter("8x0e + 8x1o").regroup()
        messages = messages.filter("0e").array * radial[:, :1]
        nodes = e3nn.scatter_sum(messages, dst=receivers, output_size=len(positions))
        return jnp.sum(jnp.tanh(nodes) @ weights["out"][: nodes.shape[-1]])

    weights = {"radial": normal(0, 6, 4), "out": normal(1, 64)}
    run = jax.jit(lambda w, p, s, r: (total(w, p, s, r), -jax.grad(total, 1)(w, p, s, r)))
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    return run, (weights, normal(2, 6, 3), jnp.array([i for i, _ in pairs]), jnp.array([j for _, j in pairs]))


@program("mctx")
def monte_carlo_tree_search():
    """mctx.gumbel_muzero_policy with a small learned model: a tree kept in arrays, simulations by a loop."""
    import mctx

    def recurrent(params, key, action, state):
        state = jnp.tanh(state @ params["dynamics"] + params["actions"][action])
        output = mctx.RecurrentFnOutput(reward=state[:, 0], discount=jnp.full(len(state), 0.97), prior_logits=state @ params["policy"], value=state @ params["value"])
        return output, state

    @jax.jit
    def plan(params, key, state):
        root = mctx.RootFnOutput(prior_logits=state @ params["policy"], value=state @ params["value"], embedding=state)
        out = mctx.gumbel_muzero_policy(params, key, root, recurrent, num_simulations=8, max_depth=5)
        return out.action, out.action_weights, out.search_tree.node_values

    params = {"dynamics": normal(0, 8, 8) / 3, "actions": normal(1, 4, 8), "policy": normal(2, 8, 4), "value": normal(3, 8)}
    return plan, (params, jax.random.key(0), normal(4, 3, 8))
