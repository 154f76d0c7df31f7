"""Probabilistic programs: numpyro, blackjax, distrax, flowjax."""

import functools

import jax
import jax.numpy as jnp
import optax
from program import integers, normal, program


@program("numpyro")
def nuts_logistic_regression():
    """One transition of NUTS, with its doubling trees in while loops, on a model with a hierarchy."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS

    def model(x, y=None):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        w = numpyro.sample("w", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    x, y = normal(0, 30, 3), integers(1, 2, 30)
    kernel = NUTS(model, max_tree_depth=4)
    state = kernel.init(jax.random.key(0), 10, None, model_args=(x,), model_kwargs={"y": y})
    return jax.jit(lambda state, x, y: kernel.sample(state, (x,), {"y": y})), (state, x, y)


@program("numpyro")
def variational_mixture():
    """SVI of a mixture of Gaussians with a discrete latent enumerated by hand, Trace_ELBO, ClippedAdam."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
        centres = numpyro.sample("centres", dist.Normal(0, 3).expand([3, 2]).to_event(2))
        with numpyro.plate("data", len(x)):
            mixture = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(centres, 1.0).to_event(1))
            numpyro.sample("x", mixture, obs=x)

    svi = SVI(model, AutoNormal(model), numpyro.optim.ClippedAdam(1e-2), Trace_ELBO(4))
    x = normal(0, 25, 2)
    state = svi.init(jax.random.key(0), x)
    return jax.jit(svi.update, donate_argnums=0), (state, x)


@program("numpyro")
def hidden_markov_model_likelihood():
    """numpyro's scan over a sequence with discrete states summed out, and its gradient."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.contrib.control_flow import scan
    from numpyro.infer.util import log_density

    def model(x):
        level = numpyro.sample("level", dist.Normal(0, 1))
        drift = numpyro.sample("drift", dist.HalfNormal(1))

        def step(previous, x):
            current = numpyro.sample("z", dist.Normal(0.9 * previous + level, drift))
            numpyro.sample("x", dist.StudentT(4.0, current, 0.5), obs=x)
            return current, current

        scan(step, jnp.float32(0.0), x)

    def density(values, x):
        return log_density(model, (x,), {}, values)[0]

    values = {"level": jnp.float32(0.1), "drift": jnp.float32(0.7), "z": normal(1, 20)}
    return jax.jit(jax.value_and_grad(density)), (values, normal(0, 20))


@program("blackjax")
def hmc_chains():
    """Hamiltonian Monte Carlo, several chains by vmap, steps by scan."""
    import blackjax

    log_density = lambda x: -0.5 * jnp.sum(x["a"] ** 2) - 0.5 * jnp.sum((x["b"] - x["a"][:2]) ** 2) / 0.25
    sampler = blackjax.hmc(log_density, 0.1, jnp.ones(5), 8)
    positions = {"a": normal(0, 4, 3), "b": normal(1, 4, 2)}
    states = jax.vmap(sampler.init)(positions)

    @functools.partial(jax.jit, donate_argnums=1)
    def run(key, states):
        def step(states, key):
            states, info = jax.vmap(sampler.step)(jax.random.split(key, 4), states)
            return states, (states.position, info.is_accepted)

        return jax.lax.scan(step, states, jax.random.split(key, 6))

    return run, (jax.random.key(2), states)


@program("blackjax")
def sequential_monte_carlo():
    """Tempered SMC with systematic resampling inside a while loop."""
    from blackjax.smc import resampling

    prior = lambda x: -0.5 * jnp.sum(x**2)
    likelihood = lambda x: -0.5 * jnp.sum((x - 1.5) ** 2) / 0.1

    @jax.jit
    def run(key, particles):
        def body(state):
            particles, temperature, key, i = state
            key, k1, k2 = jax.random.split(key, 3)
            following = jnp.minimum(temperature + 0.25, 1.0)
            weights = jax.nn.softmax((following - temperature) * jax.vmap(likelihood)(particles))
            particles = particles[resampling.systematic(k1, weights, len(particles))]
            moved = particles + 0.3 * jax.random.normal(k2, particles.shape)
            target = jax.vmap(lambda x: prior(x) + following * likelihood(x))
            accept = jnp.log(jax.random.uniform(key, (len(particles),))) < target(moved) - target(particles)
            return jnp.where(accept[:, None], moved, particles), following, key, i + 1

        return jax.lax.while_loop(lambda s: s[1] < 1.0, body, (particles, jnp.float32(0), key, 0))

    return run, (jax.random.key(0), normal(1, 32, 2))


@program("distrax")
def real_nvp_train():
    """A normalising flow of masked couplings: log densities, samples, gradients, lion."""
    import distrax
    import haiku as hk

    def flow():
        def bijector(params):
            return distrax.ScalarAffine(shift=params[..., 0], log_scale=jnp.tanh(params[..., 1]))

        layers = []
        for i in range(3):
            conditioner = hk.Sequential([hk.Linear(24), jax.nn.relu, hk.Linear(8, w_init=jnp.zeros), hk.Reshape((4, 2))])
            layers.append(distrax.MaskedCoupling(jnp.arange(4) % 2 == i % 2, conditioner, bijector))
        base = distrax.Independent(distrax.Normal(jnp.zeros(4), jnp.ones(4)), 1)
        return distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers)))

    density = hk.without_apply_rng(hk.transform(lambda x: flow().log_prob(x)))
    draw = hk.transform(lambda key: flow().sample(seed=key, sample_shape=5))
    x = normal(0, 16, 4)
    params, optimizer = density.init(jax.random.key(0), x), optax.lion(1e-4)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, key):
        value, grads = jax.value_and_grad(lambda p: -jnp.mean(density.apply(p, x)))(params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return params, state, value, draw.apply(params, None, key)

    return step, (params, optimizer.init(params), x, jax.random.key(1))
