"""Policies, values and models of worlds."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import BF16, F32, U8, adam, conv, dense, inference, moved, perceptron, shape, square_error, tokens, training
from program import family


def key():
    return jax.eval_shape(lambda: jax.random.key(0))


def atari_parameters(width, actions, frames=4):
    return dict(
        convs=[shape(8, 8, frames, 32), shape(4, 4, 32, 64), shape(3, 3, 64, 64)],
        body=dense(7744, width),
        policy=shape(width, actions),
        value=shape(width, 1),
    )


def atari(p, pictures):
    """The state of play from pictures of 84 x 84."""
    x = pictures.astype(p['policy'].dtype) / 255
    for w, stride in zip(p['convs'], (4, 2, 1)):
        x = jax.nn.relu(conv(x, w, stride))
    x = jax.nn.relu(perceptron(p['body'], x.reshape(x.shape[0], -1)))
    return x @ p['policy'], (x @ p['value'])[:, 0]


def world(state, action):
    """An environment of swinging joints, without parameters."""
    angle, speed = jnp.split(state, 2, -1)
    speed = 0.99 * speed + 0.05 * (jnp.sin(angle) + jnp.roll(action, 1, -1) - 0.1 * jnp.roll(angle, -1, -1))
    angle = angle + 0.05 * speed
    return jnp.concatenate([angle, speed], -1), -(angle**2).sum(-1) - 0.01 * (action**2).sum(-1)


def advantages(rewards, values, discount=0.99, mix=0.95):
    """Generalised advantages, backwards over time."""

    def step(total, of):
        reward, value, after = of
        total = reward + discount * after - value + discount * mix * total
        return total, total

    after = jnp.concatenate([values[1:], values[-1:]])
    return lax.scan(step, jnp.zeros_like(rewards[0]), (rewards, values, after), reverse=True)[1]


@family
def ppo():
    """Proximal policies: rollouts in the program or pictures from outside, epochs over shuffled parts of them."""

    def inside(worlds, length, width=256, joints=16, epochs=4, parts=4, donate=True):
        parameters = dict(policy=dense(2 * joints, width, width, joints), value=dense(2 * joints, width, width, 1))
        begin, update = adam()

        def log_odds(p, states, actions):
            return -0.5 * ((actions - perceptron(p['policy'], states, jnp.tanh)) ** 2 / 0.25).sum(-1)

        def step(p, state, key, worlds_now):
            def act(of, key):
                (now,) = of
                action = perceptron(p['policy'], now, jnp.tanh) + 0.5 * jax.random.normal(key, (worlds, joints))
                after, reward = world(now, action)
                return (after,), (now, action, reward, log_odds(p, now, action), perceptron(p['value'], now, jnp.tanh)[:, 0])

            acting, mixing = jax.random.split(key)
            (worlds_now,), (states, actions, rewards, old, values) = lax.scan(act, (worlds_now,), jax.random.split(acting, length))
            gains = advantages(rewards, values)
            flat = jax.tree.map(lambda x: x.reshape(length * worlds, *x.shape[2:]), (states, actions, old, gains, gains + values))

            def loss(p, states, actions, old, gains, wanted):
                ratio = jnp.exp(log_odds(p, states, actions) - old)
                gain = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains).mean()
                return square_error(perceptron(p['value'], states, jnp.tanh)[:, 0], wanted) - gain

            def epoch(of, key):
                order = jax.random.permutation(key, length * worlds)
                mixed = jax.tree.map(lambda x: x[order].reshape(parts, -1, *x.shape[1:]), flat)
                return lax.scan(lambda of, part: (update(*of, jax.grad(loss)(of[0], *part)), None), of, mixed)

            (p, state), _ = lax.scan(epoch, (p, state), jax.random.split(mixing, epochs))
            return p, state, worlds_now

        arguments = parameters, begin(parameters), key(), shape(worlds, 2 * joints)
        return jax.jit(step, donate_argnums=(0, 1, 3) if donate else ()), arguments

    def pictures(batch, width=512, actions=18, **options):
        def loss(p, x, taken, old, gains, wanted):
            logits, value = atari(p, x)
            odds = jax.nn.log_softmax(logits.astype(F32))
            ratio = jnp.exp(jnp.take_along_axis(odds, taken[:, None], 1)[:, 0] - old)
            gain = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains).mean()
            return square_error(value, wanted) - gain + 0.01 * (jnp.exp(odds) * odds).sum(-1).mean()

        batch_of = shape(batch, 84, 84, 4, dtype=U8), tokens(batch), shape(batch), shape(batch), shape(batch)
        return training(loss, atari_parameters(width, actions), *batch_of, **options)

    yield 'rollouts', *inside(2048, 128)
    yield 'pictures_f32', *pictures(1024)
    yield 'pictures_bf16', *pictures(4096, compute=BF16)
    yield 'rollouts_wide_many_parts', *inside(1024, 256, width=1024, epochs=2, parts=16)
    yield 'rollouts_not_donated', *inside(4096, 64, joints=8, donate=False)
    yield 'pictures_parts_clip', *pictures(4096, parts=8, clip=True)


@family
def policy_gradient():
    """Gradients through the world itself, over many steps; states kept, recomputed, or by blocks of steps."""

    def of(worlds, length, width=256, joints=16, keeps='all', optimizer='adam'):
        def loss(p, state):
            def step(state, _):
                state, reward = world(state, jnp.tanh(perceptron(p, state, jnp.tanh)))
                return state, reward.mean()

            if keeps == 'blocks':
                side = int(length**0.5)
                block = jax.checkpoint(lambda state, _: lax.scan(step, state, None, length=side))
                return -lax.scan(block, state, None, length=length // side)[1].mean()
            step = step if keeps == 'all' else jax.checkpoint(step)
            return -lax.scan(step, state, None, length=length)[1].mean()

        return training(loss, dense(2 * joints, width, width, joints), shape(worlds, 2 * joints), optimizer=optimizer)

    yield 'keeps_all', *of(1024, 256)
    yield 'keeps_states', *of(4096, 256, keeps='states')
    yield 'keeps_blocks', *of(4096, 1024, keeps='blocks')
    yield 'wide_sgd', *of(512, 128, width=1024, optimizer='sgd')
    yield 'many_joints', *of(512, 128, joints=256)


@family
def muzero():
    """A learned model of a game: unrolled for training, or searched as a tree in the program."""

    def parameters(width, actions, side=8, planes=32):
        tower = [shape(3, 3, width, width)] * 2
        flat = side * side * width
        return dict(
            see=[shape(3, 3, planes, width), *tower],
            move=[shape(3, 3, width + actions, width), *tower],
            policy=shape(flat, actions),
            value=shape(flat, 1),
            reward=shape(flat, 1),
        )

    def tower(ws, x):
        x = jax.nn.relu(conv(x, ws[0]))
        for w in ws[1:]:
            x = x + jax.nn.relu(conv(x, w))
        return x

    def predict(p, state):
        flat = state.reshape(state.shape[0], -1)
        return flat @ p['policy'], (flat @ p['value'])[:, 0]

    def move(p, state, action, actions):
        plane = jnp.broadcast_to(jax.nn.one_hot(action, actions, dtype=state.dtype)[:, None, None], (*state.shape[:3], actions))
        state = tower(p['move'], jnp.concatenate([state, plane], -1))
        return state, (state.reshape(state.shape[0], -1) @ p['reward'])[:, 0]

    def trained(batch, steps=5, width=128, actions=16, is_scanned=False, policy=None, **options):
        def loss(p, pictures, taken, policies, values, rewards):
            state = tower(p['see'], pictures)

            def step(state, of):
                action, odds, value, reward = of
                logits, found = predict(p, state)
                now = square_error(found, value) - (odds * jax.nn.log_softmax(logits.astype(F32))).sum(-1).mean()
                state, gained = move(p, state, action, actions)
                return 0.5 * state + 0.5 * lax.stop_gradient(state), now + square_error(gained, reward)

            step = jax.checkpoint(step) if policy else step
            along = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (taken, policies, values, rewards))
            if is_scanned:
                return lax.scan(step, state, along)[1].mean()
            total = 0.0
            for i in range(steps):
                state, now = step(state, jax.tree.map(lambda x: x[i], along))
                total += now
            return total / steps

        batch_of = shape(batch, 8, 8, 32), tokens(batch, steps), shape(batch, steps, actions), shape(batch, steps), shape(batch, steps)
        return training(loss, parameters(width, actions), *batch_of, **options)

    def search(batch, visits=32, width=64, actions=16):
        def run(p, pictures):
            root = tower(p['see'], pictures)
            logits, value = predict(p, root)
            rows, nodes = jnp.arange(batch), visits + 1
            tree = dict(
                state=jnp.zeros((batch, nodes, *root.shape[1:])).at[:, 0].set(root),
                odds=jnp.zeros((batch, nodes, actions)).at[:, 0].set(jax.nn.softmax(logits)),
                count=jnp.zeros((batch, nodes, actions)),
                total=jnp.zeros((batch, nodes, actions)),
                child=jnp.full((batch, nodes, actions), -1),
                parent=jnp.zeros((batch, nodes), jnp.int32),
                came=jnp.zeros((batch, nodes), jnp.int32),
            )

            def visit(i, tree):
                def choose(node):
                    count = tree['count'][rows, node]
                    mean = tree['total'][rows, node] / (count + 1)
                    return (mean + tree['odds'][rows, node] * jnp.sqrt(count.sum(-1, keepdims=True) + 1) / (1 + count)).argmax(-1)

                def down(of):
                    node, action, depth = of
                    below = tree['child'][rows, node, action]
                    node = jnp.where(below >= 0, below, node)
                    return node, choose(node), depth + 1

                begin = jnp.zeros(batch, jnp.int32)
                inside = lambda of: (tree['child'][rows, of[0], of[1]] >= 0).any() & (of[2] < visits)
                node, action, _ = lax.while_loop(inside, down, (begin, choose(begin), 0))
                state, reward = move(p, tree['state'][rows, node], action, actions)
                logits, value = predict(p, state)
                new = dict(
                    tree,
                    state=tree['state'].at[:, i + 1].set(state),
                    odds=tree['odds'].at[:, i + 1].set(jax.nn.softmax(logits)),
                    child=tree['child'].at[rows, node, action].set(i + 1),
                    parent=tree['parent'].at[:, i + 1].set(node),
                    came=tree['came'].at[:, i + 1].set(action),
                )

                def up(_, of):
                    node, action, tree = of
                    tree = dict(
                        tree,
                        count=tree['count'].at[rows, node, action].add(1),
                        total=tree['total'].at[rows, node, action].add(reward + value),
                    )
                    return tree['parent'][rows, node], tree['came'][rows, node], tree

                return lax.fori_loop(0, 8, up, (node, action, new))[2]

            return lax.fori_loop(0, visits, visit, tree)['count'][:, 0]

        return inference(run, parameters(width, actions), shape(batch, 8, 8, 32))

    yield 'trained_unrolled', *trained(512, steps=3)
    yield 'search', *search(128)
    yield 'trained_scanned_bf16', *trained(2048, is_scanned=True, compute=BF16)
    yield 'trained_scanned_checkpointed', *trained(1024, is_scanned=True, policy='everything')
    yield 'search_wide', *search(64, width=128, visits=64)
    yield 'trained_unrolled_parts', *trained(1024, steps=3, parts=4, optimizer='momentum')


@family
def dqn():
    """Values of actions learned from a replay buffer that is on the device: samples, targets, a network that follows."""

    def of(batch, buffer=20000, width=512, actions=18, updates=1, double=True, atoms=1, prioritised=False):
        heads = actions * atoms
        parameters = atari_parameters(width, heads)
        begin, update = adam()

        def values(p, x):
            return atari(p, x)[0].reshape(-1, actions, atoms).astype(F32)

        def loss(p, target, now, action, reward, after):
            following = values(target, after)
            best = (values(p, after) if double else following).mean(-1).argmax(-1)
            wanted = reward[:, None] + 0.99 * jnp.take_along_axis(following, best[:, None, None], 1)[:, 0]
            found = jnp.take_along_axis(values(p, now), action[:, None, None], 1)[:, 0]
            if atoms == 1:
                return square_error(found, lax.stop_gradient(wanted))
            apart = lax.stop_gradient(wanted)[:, None] - found[:, :, None]
            quantile = (jnp.arange(atoms) + 0.5) / atoms
            return (jnp.abs(quantile[:, None] - (apart < 0)) * jnp.minimum(apart**2, jnp.abs(apart))).mean()

        def step(p, target, state, memory, new, at, key):
            memory = jax.tree.map(lambda m, x: lax.dynamic_update_slice_in_dim(m, x, at, 0), memory, new)
            pictures, actions_taken, rewards, weights = memory

            def learn(of, key):
                p, target, state = of
                if prioritised:
                    which = jax.random.categorical(key, weights, shape=(batch,))
                else:
                    which = jax.random.randint(key, (batch,), 0, buffer - 1)
                gradients = jax.grad(loss)(p, target, pictures[which], actions_taken[which], rewards[which], pictures[which + 1])
                p, state = update(p, state, gradients)
                return (p, jax.tree.map(lambda t, p: 0.99 * t + 0.01 * p, target, p), state), None

            (p, target, state), _ = lax.scan(learn, (p, target, state), jax.random.split(key, updates))
            return p, target, state, memory

        memory = lambda n: (shape(n, 84, 84, 4, dtype=U8), tokens(n), shape(n), shape(n))
        return jax.jit(step, donate_argnums=(0, 1, 2, 3)), (
            parameters,
            parameters,
            begin(parameters),
            memory(buffer),
            memory(16),
            tokens(),
            key(),
        )

    yield 'one_update', *of(512)
    yield 'eight_updates', *of(256, updates=8)
    yield 'quantiles', *of(512, atoms=64, double=False)
    yield 'large_buffer_prioritised', *of(256, buffer=100000, updates=4, prioritised=True)
    yield 'large_batch_wide', *of(4096, buffer=8000, width=1024)


@family
def soft_actor_critic():
    """Two critics and an actor for continuous actions, vmapped over several seeds at once."""

    def of(batch, seeds=1, states=376, actions=17, width=1024, donate=True, updates=1):
        critic, actor = dense(states + actions, width, width, 1), dense(states, width, width, 2 * actions)
        networks = dict(critics=[critic, critic], actor=actor)
        everything = dict(networks=networks, targets=[critic, critic], m=networks, v=networks)

        def draw(p, now, key):
            mean, log = jnp.split(perceptron(p, now), 2, -1)
            noise = jax.random.normal(key, mean.shape)
            action = jnp.tanh(mean + jnp.exp(log.clip(-5, 2)) * noise)
            return action, (-0.5 * noise**2 - log - jnp.log(1 - action**2 + 1e-6)).sum(-1)

        def least(ps, now, action):
            both = jnp.concatenate([now, action], -1)
            return jnp.minimum(*(perceptron(p, both)[:, 0] for p in ps))

        def loss(networks, targets, now, action, reward, after, key):
            one, other = jax.random.split(key)
            next_action, odds = draw(networks['actor'], after, one)
            wanted = lax.stop_gradient(reward + 0.99 * (least(targets, after, next_action) - 0.2 * odds))
            both = jnp.concatenate([now, action], -1)
            critics = sum(square_error(perceptron(p, both)[:, 0], wanted) for p in networks['critics'])
            action, odds = draw(networks['actor'], now, other)
            return critics + (0.2 * odds - least(lax.stop_gradient(networks['critics']), now, action)).mean()

        def learn(all_of, batch):
            g = jax.grad(loss)(all_of['networks'], all_of['targets'], *batch)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, all_of['m'], g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, all_of['v'], g)
            p = moved(all_of['networks'], jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-8), m, v))
            return dict(
                networks=p, targets=jax.tree.map(lambda t, p: 0.995 * t + 0.005 * p, all_of['targets'], p['critics']), m=m, v=v
            ), None

        def step(all_of, now, action, reward, after, keys):
            return lax.scan(learn, all_of, (now, action, reward, after, keys))[0]

        lead = (seeds,) if seeds > 1 else ()
        step = jax.vmap(step) if seeds > 1 else step
        wide = lambda *extents: shape(*lead, updates, *extents)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (*lead, updates)))
        batch_of = wide(batch, states), wide(batch, actions), wide(batch), wide(batch, states), keys
        arguments = jax.tree.map(lambda leaf: shape(*lead, *leaf.shape), everything), *batch_of
        return jax.jit(step, donate_argnums=0 if donate else ()), arguments

    yield 'one_seed', *of(4096)
    yield 'eight_seeds', *of(1024, seeds=8)
    yield 'many_updates', *of(1024, updates=16)
    yield 'eight_seeds_not_donated_small', *of(2048, seeds=8, width=256, donate=False)


@family
def dreamer():
    """A recurrent model of the world from pictures, then a policy trained in imagination; two losses in one program."""

    def of(batch, length, width=512, codes=32, classes=32, horizon=15, actions=6, policy=None, compute=None):
        stochastic = codes * classes
        gru = dict(gates=shape(stochastic + actions + width, 3 * width))
        parameters = dict(
            see=[shape(4, 4, 3, 32), shape(4, 4, 32, 64), shape(4, 4, 64, 128), shape(4, 4, 128, 256)],
            cell=gru,
            prior=shape(width, stochastic),
            posterior=shape(width + 4096, stochastic),
            flat=shape(width + stochastic, 4096),
            draw=[shape(4, 4, 256, 128), shape(4, 4, 128, 64), shape(4, 4, 64, 32), shape(4, 4, 32, 3)],
            reward=dense(width + stochastic, width, 1),
            actor=dense(width + stochastic, width, actions),
            critic=dense(width + stochastic, width, 1),
        )

        def pick(logits, key):
            logits = logits.reshape(*logits.shape[:-1], codes, classes)
            hard = jax.nn.one_hot(jax.random.categorical(key, logits), classes, dtype=logits.dtype)
            soft = jax.nn.softmax(logits)
            return (hard + soft - lax.stop_gradient(soft)).reshape(*logits.shape[:-2], stochastic)

        def cell(p, h, z, action):
            r, u, n = jnp.split(jnp.concatenate([z, action, h], -1) @ p['gates'], 3, -1)
            u = jax.nn.sigmoid(u - 1)
            return u * jnp.tanh(jax.nn.sigmoid(r) * n) + (1 - u) * h

        def loss(p, pictures, actions_taken, rewards, key):
            x = pictures.reshape(-1, 64, 64, 3)
            for w in p['see']:
                x = jax.nn.silu(conv(x, w, 2))
            seen = x.reshape(batch, length, -1).swapaxes(0, 1)

            def observe(of, now):
                h, z = of
                seen, action, key = now
                h = cell(p['cell'], h, z, action)
                posterior = jnp.concatenate([h, seen], -1) @ p['posterior']
                z = pick(posterior, key)
                return (h, z), (h, z, h @ p['prior'], posterior)

            observe = jax.checkpoint(observe) if policy else observe
            nothing = jnp.zeros((batch, width), x.dtype), jnp.zeros((batch, stochastic), x.dtype)
            _, (hs, zs, prior, posterior) = lax.scan(observe, nothing, (seen, actions_taken.swapaxes(0, 1), jax.random.split(key, length)))
            both = jnp.concatenate([hs, zs], -1)
            y = (both.reshape(-1, both.shape[-1]) @ p['flat']).reshape(-1, 4, 4, 256)
            for i, w in enumerate(p['draw']):
                y = lax.conv_transpose(y, w, (2, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
                y = jax.nn.silu(y) if i < 3 else y
            apart = jax.nn.log_softmax(posterior.astype(F32)) - jax.nn.log_softmax(prior.astype(F32))
            model = square_error(y, pictures.swapaxes(0, 1).reshape(y.shape)) + square_error(
                perceptron(p['reward'], both, jax.nn.silu)[..., 0], rewards.T
            )
            model += (jax.nn.softmax(posterior.astype(F32)) * apart).sum(-1).mean()

            def imagine(of, key):
                h, z = of
                action = jnp.tanh(perceptron(p['actor'], jnp.concatenate([h, z], -1), jax.nn.silu))
                h = cell(p['cell'], h, z, action)
                return (h, pick(h @ p['prior'], key)), jnp.concatenate([h, z], -1)

            begin = jax.tree.map(lambda x: lax.stop_gradient(x.reshape(-1, x.shape[-1])), (hs, zs))
            _, dreams = lax.scan(imagine, begin, jax.random.split(key, horizon))
            gained, value = perceptron(p['reward'], dreams, jax.nn.silu)[..., 0], perceptron(p['critic'], dreams, jax.nn.silu)[..., 0]
            returns = gained + advantages(gained, value)
            return model - returns.mean() + square_error(value, lax.stop_gradient(returns))

        batch_of = shape(batch, length, 64, 64, 3), shape(batch, length, actions), shape(batch, length), key()
        return training(loss, parameters, *batch_of, compute=compute)

    yield 'f32', *of(16, 32)
    yield 'bf16', *of(16, 64, compute=BF16)
    yield 'checkpointed', *of(32, 64, policy='everything')
    yield 'short_wide', *of(16, 16, width=1024)


@family
def evolution():
    """Evolution strategies: a population of networks, each run in worlds of its own, mirrored noise."""

    def of(population, length=200, joints=16, width=128, worlds=4, chunks=1):
        parameters = dense(2 * joints, width, joints)

        def step(p, key):
            leaves, form = jax.tree.flatten(p)
            noise = jax.tree.unflatten(
                form, [jax.random.normal(jax.random.fold_in(key, i), (population, *leaf.shape)) for i, leaf in enumerate(leaves)]
            )

            def score(q, key):
                def act(state, _):
                    return world(state, jnp.tanh(perceptron(q, state, jnp.tanh)))

                return lax.scan(act, jax.random.normal(key, (worlds, 2 * joints)), None, length=length)[1].mean()

            keys = jax.random.split(key, population)
            of_one = lambda noise, key: (
                score(jax.tree.map(lambda p, n: p + 0.1 * n, p, noise), key) - score(jax.tree.map(lambda p, n: p - 0.1 * n, p, noise), key)
            )
            if chunks > 1:
                cut = lambda x: x.reshape(chunks, -1, *x.shape[1:])
                scores = lax.map(lambda of: jax.vmap(of_one)(*of), jax.tree.map(cut, (noise, keys))).reshape(-1)
            else:
                scores = jax.vmap(of_one)(noise, keys)
            ranks = jnp.argsort(jnp.argsort(scores)) / population - 0.5
            return jax.tree.map(lambda p, n: p + 0.01 * jnp.tensordot(ranks, n, 1), p, noise)

        return jax.jit(step, donate_argnums=0), (parameters, key())

    yield 'at_once', *of(4096)
    yield 'in_chunks', *of(16384, chunks=16)
    yield 'wide', *of(1024, width=1024)
    yield 'many_worlds', *of(512, worlds=256)
