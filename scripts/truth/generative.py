"""Models that make pictures, sounds and scenes."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import (
    BF16,
    F16,
    F32,
    adam,
    as_type,
    attention,
    batch_norm,
    block,
    conv,
    dense,
    group_norm,
    inference,
    layer_norm,
    layers,
    moved,
    perceptron,
    self_attention,
    shape,
    square_error,
    through,
    tokens,
    training,
    twice_as_large,
    up_conv,
)
from program import family
from vision import patches


def key():
    return jax.eval_shape(lambda: jax.random.key(0))


@family
def gan():
    """Generator and discriminator, both updated in one step; with a gradient penalty, gradients of gradients."""

    def of(batch, size=64, width=64, latent=128, penalty=False, donate=True, compute=None, picks='wasserstein'):
        rises = [(8 * width, 4 * width), (4 * width, 2 * width), (2 * width, width), (width, 3)]
        falls = [(3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 8 * width)]
        side = size // 16
        maker = dict(into=shape(latent, side * side * 8 * width), convs=[dict(w=shape(4, 4, a, b), gain=shape(b)) for a, b in rises])
        judge = dict(convs=[shape(4, 4, a, b) for a, b in falls], head=shape(side * side * 8 * width, 1))

        def make(p, z):
            x = (z @ p['into']).reshape(-1, side, side, 8 * width)
            for i, q in enumerate(p['convs']):
                x = up_conv(x, q['w'])
                x = jax.nn.relu(batch_norm(x, q['gain'])) if i < 3 else jnp.tanh(x)
            return x

        def score(p, x):
            for w in p['convs']:
                x = jax.nn.leaky_relu(conv(x, w, 2), 0.2)
            return (x.reshape(x.shape[0], -1) @ p['head'])[:, 0].astype(F32)

        def judge_loss(p, real, made, key):
            if picks == 'logistic':
                return jax.nn.softplus(score(p, made)).mean() + jax.nn.softplus(-score(p, real)).mean()
            loss = score(p, made).mean() - score(p, real).mean()
            if penalty:
                share = jax.random.uniform(key, (batch, 1, 1, 1), real.dtype)
                slopes = jax.grad(lambda x: score(p, x).sum())(share * real + (1 - share) * made)
                loss += 10 * ((jnp.sqrt((slopes.astype(F32) ** 2).sum((1, 2, 3)) + 1e-8) - 1) ** 2).mean()
            return loss

        begin, update = adam()

        def step(maker, judge, maker_state, judge_state, real, key):
            narrow = (lambda tree: as_type(tree, compute)) if compute else (lambda tree: tree)
            first, second, third = jax.random.split(key, 3)
            noise = lambda key: jax.random.normal(key, (batch, latent), compute or F32)
            made = make(narrow(maker), noise(first))
            slopes = jax.grad(lambda p: judge_loss(narrow(p), narrow(real), made, third))(judge)
            judge, judge_state = update(judge, judge_state, slopes)
            slopes = jax.grad(lambda p: -score(narrow(judge), make(narrow(p), noise(second))).mean())(maker)
            maker, maker_state = update(maker, maker_state, slopes)
            return maker, judge, maker_state, judge_state

        arguments = maker, judge, begin(maker), begin(judge), shape(batch, size, size, 3), key()
        return jax.jit(step, donate_argnums=(0, 1, 2, 3) if donate else ()), arguments

    yield 'f32', *of(128)
    yield 'penalty_f32', *of(64, penalty=True)
    yield 'logistic_bf16', *of(256, picks='logistic', compute=BF16)
    yield 'not_donated_wide', *of(64, width=128, donate=False)
    yield 'large_pictures', *of(32, size=128, width=32)
    yield 'penalty_bf16', *of(128, penalty=True, compute=BF16)


@family
def vae():
    """Autoencoders with a code that is drawn: perceptrons, convolutions, or a codebook (VQ) through which gradients pass."""

    def of(batch, kind='conv', size=64, width=64, code=64, entries=1024, **options):
        encoder = [shape(3, 3, 3, width), shape(3, 3, width, 2 * width), shape(3, 3, 2 * width, 2 * width)]
        decoder = [shape(3, 3, code, 2 * width), shape(3, 3, 2 * width, width), shape(3, 3, width, 3)]
        flat = size * size * 3
        parameters = dict(
            dense=dict(encoder=dense(flat, 2048, 512, 2 * code), decoder=dense(code, 512, 2048, flat)),
            conv=dict(encoder=encoder, decoder=decoder, code=shape(1, 1, 2 * width, 2 * code)),
            book=dict(encoder=encoder, decoder=decoder, code=shape(1, 1, 2 * width, code), book=shape(entries, code)),
        )[kind]

        def down(p, x):
            for w in p['encoder']:
                x = jax.nn.relu(conv(x, w, 2))
            return conv(x, p['code'])

        def up(p, z):
            for i, w in enumerate(p['decoder']):
                z = conv(twice_as_large(z), w)
                z = jax.nn.relu(z) if i < 2 else z
            return z

        def loss(p, x, key):
            if kind == 'book':
                z = down(p, x)
                apart = (z**2).sum(-1, keepdims=True) - 2 * z @ p['book'].T + (p['book'] ** 2).sum(-1)
                found = p['book'][apart.argmin(-1)]
                passed = z + lax.stop_gradient(found - z)
                return (
                    square_error(up(p, passed), x)
                    + square_error(found, lax.stop_gradient(z))
                    + 0.25 * square_error(z, lax.stop_gradient(found))
                )
            both = perceptron(p['encoder'], x.reshape(batch, -1)) if kind == 'dense' else down(p, x)
            mean, log = jnp.split(both, 2, -1)
            z = mean + jnp.exp(0.5 * log) * jax.random.normal(key, mean.shape, mean.dtype)
            y = perceptron(p['decoder'], z).reshape(x.shape) if kind == 'dense' else up(p, z)
            return square_error(y, x) - 0.5e-3 * (1 + log - mean**2 - jnp.exp(log)).astype(F32).mean()

        return training(loss, parameters, shape(batch, size, size, 3), key(), **options)

    yield 'conv_f32', *of(128)
    yield 'dense_f32', *of(2048, 'dense')
    yield 'book_f32', *of(64, 'book')
    yield 'conv_bf16_large', *of(64, size=256, width=32, compute=BF16)
    yield 'book_large_momentum', *of(32, 'book', size=128, entries=4096, optimizer='momentum')
    yield 'dense_bf16_lion', *of(4096, 'dense', optimizer='lion', compute=BF16)
    yield 'conv_wide', *of(64, size=128, width=128, code=16)


@family
def dit():
    """Diffusion transformers: each layer is modulated by time and class."""

    def of(batch, size=32, channels=4, patch=2, width=768, depth=3, heads=12, is_scanned=True, policy=None, trains=True, **options):
        one = block(width) | dict(modulate=shape(width, 6 * width))
        places = (size // patch) ** 2
        parameters = dict(
            into=shape(patch * patch * channels, width),
            positions=shape(places, width),
            classes=shape(1000, width),
            time=dense(256, width, width),
            layers=layers(one, depth, is_scanned),
            head=shape(width, patch * patch * channels),
        )

        def forward(p, x, time, labels):
            angles = time[:, None] * jnp.exp(-jnp.arange(128) * 0.07).astype(time.dtype)
            c = jax.nn.silu(
                perceptron(p['time'], jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1), jax.nn.silu) + p['classes'][labels]
            )

            def layer(q, x):
                a, b, g, d, e, h = jnp.split((c @ q['modulate'])[:, None], 6, -1)
                x = x + g * self_attention(q['attention'], layer_norm(x) * (1 + a) + b, heads)
                y = jax.nn.gelu((layer_norm(x) * (1 + d) + e) @ q['up'] + q['up_b'])
                return x + h * (y @ q['down'] + q['down_b'])

            y = through(layer, p['layers'], patches(x, patch) @ p['into'] + p['positions'], policy)
            return (layer_norm(y) @ p['head']).reshape(x.shape)

        def loss(p, x, labels, key):
            one, other = jax.random.split(key)
            time = jax.random.uniform(one, (x.shape[0],), x.dtype)
            noise = jax.random.normal(other, x.shape, x.dtype)
            share = time[:, None, None, None]
            return square_error(forward(p, (1 - share) * x + share * noise, time, labels), noise - x)

        pictures = shape(batch, size, size, channels)
        if not trains:
            return inference(forward, as_type(parameters, BF16), as_type(pictures, BF16), shape(batch, dtype=BF16), tokens(batch))
        return training(loss, parameters, pictures, tokens(batch), key(), **options)

    yield 'scanned_bf16', *of(32, compute=BF16)
    yield 'unrolled_f32', *of(16, depth=2, is_scanned=False)
    yield 'forward_scanned', *of(128, trains=False)
    yield 'scanned_everything', *of(64, policy='everything', compute=BF16)
    yield 'unrolled_large_pictures', *of(4, size=64, depth=2, is_scanned=False, compute=BF16)
    yield 'scanned_dots_no_batch_adamw', *of(32, policy='dots_no_batch', optimizer='adamw', compute=BF16)
    yield 'scanned_names_f16', *of(32, policy='names', compute=F16)


def denoiser_parameters(channels, width, levels, time=256):
    """A U-Net with time and attention in its middle."""
    residual = lambda a, b: dict(
        conv1=shape(3, 3, a, b), conv2=shape(3, 3, b, b), norm1=shape(a), norm2=shape(b), time=shape(time, b), past=shape(1, 1, a, b)
    )
    widths = [width << i for i in range(levels)]
    return dict(
        into=shape(3, 3, channels, width),
        time=dense(time, time, time),
        down=[residual(a, b) for a, b in zip((width, *widths), widths)],
        middle=residual(widths[-1], widths[-1]),
        attention=attention(widths[-1]),
        up=[residual(2 * b, a) for a, b in zip((width, *widths), widths)],
        out=shape(3, 3, width, channels),
    )


def denoise(p, x, time, policy=None):
    angles = time[:, None] * jnp.exp(-jnp.arange(128) * 0.07).astype(time.dtype)
    c = perceptron(p['time'], jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1), jax.nn.silu)

    def residual(q, x):
        y = conv(jax.nn.silu(group_norm(x, q['norm1'])), q['conv1']) + (jax.nn.silu(c) @ q['time'])[:, None, None]
        return conv(x, q['past']) + conv(jax.nn.silu(group_norm(y, q['norm2'])), q['conv2'])

    residual = jax.checkpoint(residual) if policy else residual
    x, kept = conv(x, p['into']), []
    for i, q in enumerate(p['down']):
        x = residual(q, x[:, ::2, ::2] if i else x)
        kept.append(x)
    b, h, w, width = x.shape
    x = residual(p['middle'], x)
    x = x + self_attention(p['attention'], group_norm(x, 1.0).reshape(b, h * w, width), 8).reshape(x.shape)
    for i, q in reversed(list(enumerate(p['up']))):
        x = residual(q, jnp.concatenate([x, kept.pop()], -1))
        x = twice_as_large(x) if i else x
    return conv(jax.nn.silu(x), p['out'])


@family
def diffusion_unet():
    """Denoising diffusion: a U-Net with residual blocks, time, and attention at the lowest level; training."""

    def of(batch, size=64, channels=3, width=64, levels=3, policy=None, **options):
        def loss(p, x, key):
            one, other = jax.random.split(key)
            time = jax.random.uniform(one, (x.shape[0],), x.dtype)
            noise = jax.random.normal(other, x.shape, x.dtype)
            level = time[:, None, None, None]
            return square_error(denoise(p, jnp.cos(level) * x + jnp.sin(level) * noise, time, policy), noise)

        return training(loss, denoiser_parameters(channels, width, levels), shape(batch, size, size, channels), key(), **options)

    yield 'f32', *of(16)
    yield 'bf16_checkpointed', *of(32, policy='everything', compute=BF16)
    yield 'wide_latent', *of(16, size=32, channels=4, width=128)
    yield 'two_levels_bf16', *of(16, size=64, levels=2, compute=BF16)
    yield 'large_pictures_checkpointed', *of(2, size=128, policy='everything')


@family
def diffusion_sampling():
    """Loops of denoising: with guidance by a batch twice as large, two orders, noise at every step, or gradients of a score."""

    def of(batch, size=64, channels=3, width=64, levels=3, steps=50, guided=False, how='plain', keeps=False, dtype=F32):
        def sample(p, x, key):
            def predict(x, time):
                if not guided:
                    return denoise(p, x, jnp.full((batch,), time, dtype))
                both = denoise(p, jnp.concatenate([x, x]), jnp.full((2 * batch,), time, dtype))
                return both[batch:] + 3 * (both[:batch] - both[batch:])

            def step(x, i):
                time = (1 - i / steps).astype(dtype)
                slope = predict(x, time)
                if how == 'heun':
                    slope = (slope + predict(x - slope / steps, time - 1 / steps)) / 2
                if how == 'noise':
                    slope = slope + 0.1 * jax.random.normal(jax.random.fold_in(key, i), x.shape, dtype)
                if how == 'steered':
                    slope = slope + jax.grad(lambda x: square_error(predict(x, time), 0 * x))(x)
                x = x - slope / steps
                return x, x if keeps else None

            x, all_of_them = lax.scan(step, x, jnp.arange(steps))
            return (x, all_of_them) if keeps else x

        return jax.jit(sample, donate_argnums=1), (
            as_type(denoiser_parameters(channels, width, levels), dtype),
            shape(batch, size, size, channels, dtype=dtype),
            key(),
        )

    yield 'plain_f32', *of(32)
    yield 'guided_bf16', *of(32, guided=True, dtype=BF16)
    yield 'steered', *of(8, how='steered')
    yield 'heun_keeps_all', *of(16, how='heun', keeps=True)
    yield 'noise_large_pictures', *of(4, size=128, how='noise', dtype=BF16)
    yield 'guided_latent_wide', *of(16, size=32, channels=4, width=128, levels=2, guided=True)


@family
def flow():
    """Normalizing flows: couplings of halves, invertible products, likelihoods."""

    def of(batch, size=32, channels=12, width=256, depth=3, policy=None, is_scanned=False, trains=True, **options):
        half = channels // 2
        one = dict(mix=shape(channels, channels), convs=[shape(3, 3, half, width), shape(1, 1, width, width), shape(3, 3, width, channels)])

        def layer(p, of):
            x, total = of
            x = x @ p['mix']
            a, b = jnp.split(x, 2, -1)
            y = a
            for i, w in enumerate(p['convs']):
                y = conv(y, w)
                y = jax.nn.relu(y) if i < 2 else y
            shift, log = jnp.split(y, 2, -1)
            log = jax.nn.log_sigmoid(log + 2)
            total = total + log.astype(F32).sum((1, 2, 3)) + size * size * jnp.linalg.slogdet(p['mix'].astype(F32))[1]
            return jnp.concatenate([a, b * jnp.exp(log) + shift], -1), total

        def loss(p, x):
            z, total = through(layer, p, (x, jnp.zeros(x.shape[0])), policy)
            return (0.5 * (z.astype(F32) ** 2).sum((1, 2, 3)) - total).mean()

        if not trains:
            return inference(loss, layers(one, depth, is_scanned), shape(batch, size, size, channels))
        return training(loss, layers(one, depth, is_scanned), shape(batch, size, size, channels), **options)

    yield 'unrolled_f32', *of(64)
    yield 'scanned_bf16', *of(128, is_scanned=True, depth=4, compute=BF16)
    yield 'likelihood', *of(256, trains=False)
    yield 'unrolled_everything', *of(128, policy='everything')
    yield 'scanned_dots_sgd', *of(64, is_scanned=True, depth=4, policy='dots', optimizer='sgd')


@family
def nerf():
    """Rays through a scene: encoded positions, a perceptron at each, and light added up; coarse and fine, or by hashed grids."""

    def of(rays, samples=64, width=256, depth=6, bands=10, fine=0, chunks=1, hashed=False, trains=True, **options):
        encoded = 32 if hashed else 6 * bands + 3
        parameters = dict(mlp=dense(encoded, *[width] * depth, 4)) | (dict(grids=shape(16, 1 << 19, 2)) if hashed else {})

        def encode(p, x):
            if not hashed:
                angles = (x[..., None] * 2.0 ** jnp.arange(bands)).reshape(*x.shape[:-1], -1).astype(x.dtype)
                return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], -1)

            def level(grid, scale):
                at = jnp.floor(x * scale).astype(jnp.uint32)
                corners = jnp.stack([at + jnp.array([i & 1, i >> 1 & 1, i >> 2], jnp.uint32) for i in range(8)], -2)
                place = corners * jnp.array([1, 2654435761, 805459861], jnp.uint32)
                place = (place[..., 0] ^ place[..., 1] ^ place[..., 2]) % (1 << 19)
                near = 1 - jnp.abs((x * scale)[..., None, :] - corners.astype(x.dtype))
                return (grid[place] * near.prod(-1, keepdims=True)).sum(-2)

            of_levels = jax.vmap(level)(p['grids'], 16 * 1.4 ** jnp.arange(16).astype(x.dtype))
            return jnp.moveaxis(of_levels, 0, -2).reshape(*x.shape[:-1], -1)

        def render(p, origin, way, depths):
            y = perceptron(p['mlp'], encode(p, origin[:, None] + way[:, None] * depths[..., None]))
            density, colour = jax.nn.softplus(y[..., 0]), jax.nn.sigmoid(y[..., 1:])
            opaque = 1 - jnp.exp(-density * jnp.diff(depths, append=depths[:, -1:] + 0.1))
            light = jnp.cumprod(1 - opaque + 1e-6, -1)
            weights = opaque * jnp.concatenate([jnp.ones_like(light[:, :1]), light[:, :-1]], -1)
            return (weights[..., None] * colour).sum(1), weights

        def picture(p, origin, way, key):
            depths = jnp.sort(jax.random.uniform(key, (origin.shape[0], samples), origin.dtype, 2, 6), -1)
            colour, weights = render(p, origin, way, depths)
            if fine:
                total = jnp.cumsum(lax.stop_gradient(weights), -1)
                places = jnp.linspace(0, 1, fine) * total[:, -1:]
                at = jax.vmap(jnp.searchsorted)(total, places).clip(0, samples - 1)
                more = jnp.take_along_axis(depths, at, 1)
                colour, _ = render(p, origin, way, jnp.sort(jnp.concatenate([depths, more], -1), -1))
            return colour

        def loss(p, origin, way, wanted, key):
            return square_error(picture(p, origin, way, key), wanted)

        def whole(p, origin, way, key):
            cut = lambda x: x.reshape(chunks, -1, 3)
            return lax.map(lambda of: picture(p, *of, key), (cut(origin), cut(way))).reshape(-1, 3)

        each = shape(rays, 3)
        if not trains:
            return inference(whole, parameters, each, each, key())
        return training(loss, parameters, each, each, each, key(), **options)

    yield 'f32', *of(4096)
    yield 'fine_bf16', *of(4096, fine=128, depth=4, compute=BF16)
    yield 'picture_in_chunks', *of(256 * 256, chunks=64, trains=False)
    yield 'hashed', *of(16384, samples=32, width=64, depth=2, hashed=True)
    yield 'fine_wide', *of(2048, width=512, depth=4, fine=64, optimizer='sgd')
    yield 'picture_hashed', *of(128 * 128, chunks=4, samples=128, width=64, depth=2, hashed=True, trains=False)


@family
def splatting():
    """Gaussians in space, projected, sorted by depth and blended for every pixel; gradients to all of them."""

    def of(count, size=128, blocks=8, **options):
        parameters = dict(mean=shape(count, 3), scale=shape(count, 2), colour=shape(count, 3), opacity=shape(count))

        def draw(p):
            order = jnp.argsort(p['mean'][:, 2])
            p = {name: of[order] for name, of in p.items()}
            centre = p['mean'][:, :2] / (1 + jnp.exp(p['mean'][:, 2:]))
            ys, xs = jnp.meshgrid(jnp.linspace(-1, 1, size), jnp.linspace(-1, 1, size), indexing='ij')

            @jax.checkpoint
            def row(at):
                apart = (at[:, None] - centre) / jnp.exp(p['scale'])
                alpha = jax.nn.sigmoid(p['opacity']) * jnp.exp(-0.5 * (apart**2).sum(-1))
                light = jnp.cumprod(1 - alpha + 1e-7, -1)
                weights = alpha * jnp.concatenate([jnp.ones_like(light[:, :1]), light[:, :-1]], -1)
                return weights @ p['colour']

            points = jnp.stack([xs, ys], -1).reshape(blocks, -1, 2)
            return lax.map(row, points).reshape(size, size, 3)

        return training(lambda p, picture: square_error(draw(p), picture), parameters, shape(size, size, 3), **options)

    yield 'blocks_of_rows', *of(4096)
    yield 'many_small_blocks', *of(32768, blocks=128)
    yield 'one_block', *of(2048, size=64, blocks=1)
    yield 'sgd_large', *of(16384, size=256, blocks=64, optimizer='sgd')


@family
def style():
    """A picture is optimised, not a network: Gram matrices of features at several depths, many steps in one program."""

    def of(size, widths=(64, 128, 256), steps=1, dtype=F32):
        weights = [shape(3, 3, a, b, dtype=dtype) for a, b in zip((3, *widths), widths)]

        def features(ws, x):
            for i, w in enumerate(ws):
                x = jax.nn.relu(conv(x, w, 1 + (i > 0)))
                flat = x.reshape(-1, x.shape[-1])
                yield flat, flat.T @ flat / flat.size

        def loss(x, ws, content, pattern):
            total = 0.0
            for (a, _), (b, _), (_, c), (_, d) in zip(features(ws, x), features(ws, content), features(ws, x), features(ws, pattern)):
                total += square_error(a, b) + 1e3 * square_error(c, d)
            return total

        def step(x, m, ws, content, pattern):
            def one(of, _):
                x, m = of
                m = 0.9 * m + 0.1 * jax.grad(loss)(x, ws, content, pattern)
                return (moved(x, m), m), None

            if steps == 1:
                return one((x, m), None)[0]
            return lax.scan(one, (x, m), None, length=steps)[0]

        picture = shape(1, size, size, 3, dtype=dtype)
        return jax.jit(step, donate_argnums=(0, 1)), (picture, picture, weights, picture, picture)

    yield 'one_step', *of(512)
    yield 'ten_steps_bf16', *of(768, steps=10, dtype=BF16)
    yield 'ten_steps', *of(384, steps=10)
    yield 'wide', *of(256, widths=(128, 256, 512))
