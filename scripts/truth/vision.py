"""Models of pictures."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import (
    BF16,
    F16,
    F32,
    batch_norm,
    block,
    causal,
    conv,
    cross_entropy,
    dense,
    group_norm,
    inference,
    layer_norm,
    layers,
    max_pool,
    perceptron,
    self_attention,
    shape,
    square_error,
    through,
    tokens,
    training,
    transformer,
    twice_as_large,
)
from program import family


def patches(x, size):
    b, h, w, c = x.shape
    return x.reshape(b, h // size, size, w // size, size, c).swapaxes(2, 3).reshape(b, h // size * (w // size), size * size * c)


def vit_parameters(width, depth, size, patch, is_scanned, out):
    return dict(
        into=shape(patch * patch * 3, width),
        token=shape(width),
        positions=shape((size // patch) ** 2 + 1, width),
        layers=layers(block(width), depth, is_scanned),
        norm=shape(width),
        head=shape(width, out),
    )


def vit_features(p, pictures, patch, heads, policy=None):
    x = patches(pictures, patch) @ p['into']
    first = jnp.broadcast_to(p['token'], (x.shape[0], 1, x.shape[-1]))
    x = jnp.concatenate([first, x], 1) + p['positions']
    return through(lambda q, x: transformer(q, x, heads), p['layers'], x, policy)


@family
def vit():
    """Vision transformers: a token in front, positions learned."""

    def of(batch, size=224, patch=16, width=768, depth=4, heads=12, is_scanned=False, policy=None, trains=True, dtype=F32, **options):
        def forward(p, x):
            return layer_norm(vit_features(p, x, patch, heads, policy)[:, 0], p['norm']) @ p['head']

        parameters = vit_parameters(width, depth, size, patch, is_scanned, 1000)
        pictures = shape(batch, size, size, 3, dtype=dtype)
        if not trains:
            return inference(forward, parameters, pictures)
        return training(lambda p, x, labels: cross_entropy(forward(p, x), labels), parameters, pictures, tokens(batch), **options)

    yield 'unrolled_f32', *of(32, depth=2)
    yield 'scanned_bf16', *of(64, is_scanned=True, compute=BF16)
    yield 'forward_scanned', *of(128, is_scanned=True, trains=False)
    yield 'unrolled_bf16_everything', *of(64, policy='everything', compute=BF16)
    yield 'scanned_dots', *of(64, is_scanned=True, policy='dots', compute=BF16)
    yield 'unrolled_small_patches', *of(8, patch=8, depth=2, width=512, heads=8, compute=BF16)
    yield 'scanned_parts_adamw', *of(128, is_scanned=True, parts=4, optimizer='adamw', compute=BF16)
    yield 'unrolled_momentum_f16', *of(32, depth=3, optimizer='momentum', compute=F16)


@family
def clip():
    """Pictures and texts side by side: two towers and a product of all with all."""

    def of(
        batch,
        length=77,
        size=224,
        patch=32,
        width=512,
        depth=3,
        heads=8,
        words=16384,
        is_scanned=True,
        policy=None,
        sigmoid=False,
        **options,
    ):
        parameters = dict(
            pictures=vit_parameters(width, depth, size, patch, is_scanned, 512),
            temperature=shape(),
            words=shape(words, width),
            positions=shape(length, width),
            layers=layers(block(width), depth, is_scanned),
            head=shape(width, 512),
        )

        def loss(p, pictures, words):
            x = vit_features(p['pictures'], pictures, patch, heads, policy)[:, 0] @ p['pictures']['head']
            y = through(lambda q, y: transformer(q, y, heads, mask=causal(length)), p['layers'], p['words'][words] + p['positions'], policy)
            y = jnp.take_along_axis(y, words.argmax(-1)[:, None, None], 1)[:, 0] @ p['head']
            unit = lambda x: x / jnp.linalg.norm(x.astype(F32), axis=-1, keepdims=True).astype(x.dtype)
            alike = (unit(x) @ unit(y).T).astype(F32) * jnp.exp(p['temperature'])
            if sigmoid:
                return -jax.nn.log_sigmoid(alike * (2 * jnp.eye(batch) - 1)).sum() / batch
            return (cross_entropy(alike, jnp.arange(batch)) + cross_entropy(alike.T, jnp.arange(batch))) / 2

        return training(loss, parameters, shape(batch, size, size, 3), tokens(batch, length), **options)

    yield 'scanned_bf16', *of(128, compute=BF16)
    yield 'unrolled_f32', *of(64, depth=2, is_scanned=False)
    yield 'scanned_everything', *of(256, policy='everything', compute=BF16)
    yield 'scanned_sigmoid_large_batch', *of(1024, size=96, length=32, width=256, heads=4, sigmoid=True, compute=BF16)
    yield 'unrolled_dots_no_batch', *of(128, depth=2, is_scanned=False, policy='dots_no_batch', compute=BF16)
    yield 'scanned_f32_adamw', *of(64, optimizer='adamw')


def classifier(forward, parameters, batch, size, trains=True, **options):
    """Training or inference of a network of convolutions on pictures."""
    pictures = shape(batch, size, size, 3)
    if not trains:
        return inference(forward, parameters, pictures)
    return training(lambda p, x, labels: cross_entropy(forward(p, x), labels), parameters, pictures, tokens(batch), **options)


@family
def resnet():
    """Residual networks: bottlenecks or pairs of convolutions, with norms over the batch."""

    def of(batch, size=224, width=64, depths=(1, 1, 1, 1), bottleneck=True, policy=None, norm=batch_norm, classes=1000, **options):
        def conv_norm(p, x, stride=1):
            return norm(conv(x, p['w'], stride), p['gain'])

        weights = lambda size, a, b: dict(w=shape(size, size, a, b), gain=shape(b))
        stages, last = [], width
        for i, depth in enumerate(depths):
            inner = width << i
            out = 4 * inner if bottleneck else inner
            for j in range(depth):
                one = (
                    [weights(1, last, inner), weights(3, inner, inner), weights(1, inner, out)]
                    if bottleneck
                    else [weights(3, last, inner), weights(3, inner, out)]
                )
                stages.append(dict(convs=one, past=weights(1, last, out)) if j == 0 else dict(convs=one))
                last = out

        def forward(p, x):
            x = max_pool(jax.nn.relu(conv_norm(p['stem'], x, 2)))
            i = 0
            for q in p['blocks']:
                stride = 2 if 'past' in q and i else 1

                def one(q, x, stride=stride):
                    y = x
                    for j, c in enumerate(q['convs']):
                        y = conv_norm(c, y, stride if j == len(q['convs']) - 2 else 1)
                        y = jax.nn.relu(y) if j + 1 < len(q['convs']) else y
                    return jax.nn.relu(y + (conv_norm(q['past'], x, stride) if 'past' in q else x))

                x, i = (jax.checkpoint(one) if policy else one)(q, x), i + 1
            return x.mean((1, 2)) @ p['head']

        return classifier(forward, dict(stem=weights(7, 3, width), blocks=stages, head=shape(last, classes)), batch, size, **options)

    yield 'bottlenecks_f32', *of(32)
    yield 'pairs_bf16', *of(128, bottleneck=False, depths=(2, 2), compute=BF16)
    yield 'forward', *of(64, trains=False)
    yield 'bottlenecks_bf16_checkpointed', *of(64, depths=(2, 1, 1), policy='everything', compute=BF16)
    yield 'pairs_parts', *of(128, bottleneck=False, depths=(1, 1, 1), parts=4)
    yield 'bottlenecks_group_norm', *of(32, depths=(1, 1, 1), norm=group_norm, optimizer='momentum')
    yield 'pairs_small_pictures', *of(512, size=32, bottleneck=False, depths=(2, 2, 2), optimizer='momentum')
    yield 'bottlenecks_wide_f16', *of(16, width=128, depths=(1, 1, 1), compute=F16)


@family
def vgg():
    """Plain stacks of convolutions, with dense layers that hold most weights."""

    def of(batch, size=224, widths=(64, 128, 256, 512), each=1, hidden=2048, with_norm=False, policy=None, **options):
        sizes = [c for width in widths for c in (width,) * each]
        convs = [dict(w=shape(3, 3, a, b), b=shape(b)) for a, b in zip((3, *sizes), sizes)]
        flat = (size >> len(widths)) ** 2 * widths[-1]

        def forward(p, x):
            for i in range(0, len(convs), each):

                def stage(qs, x):
                    for q in qs:
                        x = conv(x, q['w'])
                        x = jax.nn.relu(batch_norm(x, q['b']) if with_norm else x + q['b'])
                    return max_pool(x)

                x = (jax.checkpoint(stage) if policy else stage)(p['convs'][i : i + each], x)
            return perceptron(p['dense'], x.reshape(x.shape[0], -1))

        return classifier(forward, dict(convs=convs, dense=dense(flat, hidden, 1000)), batch, size, **options)

    yield 'f32', *of(16)
    yield 'bf16_pairs', *of(32, widths=(64, 128, 256), each=2, hidden=256, compute=BF16)
    yield 'forward_pairs', *of(32, widths=(64, 128, 256), each=2, hidden=512, trains=False)
    yield 'checkpointed', *of(32, each=2, policy='everything', hidden=1024)
    yield 'norms_momentum_small', *of(512, size=32, each=2, widths=(64, 128, 256), hidden=512, with_norm=True, optimizer='momentum')
    yield 'parts_bf16', *of(64, parts=4, hidden=1024, compute=BF16)


@family
def efficientnet():
    """Inverted bottlenecks with squeeze and excitation, swish, depthwise convolutions of 3 and 5."""

    def of(batch, size=224, plan=((16, 3, 1), (24, 3, 2), (40, 5, 2), (80, 3, 2)), wider=6, policy=None, **options):
        stages, last = [], 32
        for width, window, _ in plan:
            inner = last * wider
            stages.append(
                dict(
                    up=shape(1, 1, last, inner),
                    up_g=shape(inner),
                    each=shape(window, window, 1, inner),
                    each_g=shape(inner),
                    squeeze=dense(inner, last // 4, inner),
                    down=shape(1, 1, inner, width),
                    down_g=shape(width),
                )
            )
            last = width

        def forward(p, x):
            x = jax.nn.silu(batch_norm(conv(x, p['stem'], 2), p['stem_g']))
            for q, (_, _, stride) in zip(p['blocks'], plan):

                def one(q, x, stride=stride):
                    y = jax.nn.silu(batch_norm(conv(x, q['up']), q['up_g']))
                    y = jax.nn.silu(batch_norm(conv(y, q['each'], stride, groups=y.shape[-1]), q['each_g']))
                    y = y * jax.nn.sigmoid(perceptron(q['squeeze'], y.mean((1, 2)), jax.nn.silu))[:, None, None]
                    y = batch_norm(conv(y, q['down']), q['down_g'])
                    return x + y if x.shape == y.shape else y

                x = (jax.checkpoint(one) if policy else one)(q, x)
            return x.mean((1, 2)) @ p['head']

        parameters = dict(stem=shape(3, 3, 3, 32), stem_g=shape(32), blocks=stages, head=shape(last, 1000))
        return classifier(forward, parameters, batch, size, **options)

    yield 'f32', *of(16)
    yield 'bf16', *of(64, compute=BF16)
    yield 'forward', *of(32, trains=False)
    yield 'checkpointed', *of(32, policy='everything')
    yield 'less_wide_momentum', *of(32, wider=3, optimizer='momentum')
    yield 'small_pictures_parts', *of(256, size=64, parts=4)


@family
def mobilenet():
    """Depthwise separable convolutions without shortcuts (V1), or hard swishes."""

    def of(
        batch,
        size=224,
        plan=((64, 1), (128, 2), (128, 1), (256, 2), (512, 2)),
        activation=lambda x: jnp.clip(x, 0, 6),
        policy=None,
        **options,
    ):
        stages, last = [], 32
        for width, _ in plan:
            stages.append(dict(each=shape(3, 3, 1, last), each_g=shape(last), across=shape(1, 1, last, width), across_g=shape(width)))
            last = width

        def forward(p, x):
            x = activation(batch_norm(conv(x, p['stem'], 2), p['stem_g']))
            for q, (_, stride) in zip(p['blocks'], plan):

                def one(q, x, stride=stride):
                    x = activation(batch_norm(conv(x, q['each'], stride, groups=x.shape[-1]), q['each_g']))
                    return activation(batch_norm(conv(x, q['across']), q['across_g']))

                x = (jax.checkpoint(one) if policy else one)(q, x)
            return x.mean((1, 2)) @ p['head']

        parameters = dict(stem=shape(3, 3, 3, 32), stem_g=shape(32), blocks=stages, head=shape(last, 1000))
        return classifier(forward, parameters, batch, size, **options)

    yield 'f32', *of(32)
    yield 'hard_swish_bf16', *of(64, activation=jax.nn.hard_swish, compute=BF16)
    yield 'forward_large', *of(16, size=512, trains=False)
    yield 'checkpointed', *of(64, policy='everything')
    yield 'short_sgd', *of(64, plan=((64, 1), (128, 2)), optimizer='sgd')
    yield 'f16_momentum', *of(64, optimizer='momentum', compute=F16)


def double_conv(a, b):
    return [dict(w=shape(3, 3, a, b), gain=shape(b)), dict(w=shape(3, 3, b, b), gain=shape(b))]


def convs(p, x):
    for q in p:
        x = jax.nn.relu(batch_norm(conv(x, q['w']), q['gain']))
    return x


def segmentation(forward, parameters, batch, size, classes, trains=True, **options):
    pictures = shape(batch, size, size, 3)
    if not trains:
        return inference(forward, parameters, pictures)

    def loss(p, x, labels):
        logits = forward(p, x)
        if labels.dtype == jnp.int32:
            return cross_entropy(logits, labels)
        odds = jax.nn.sigmoid(logits.astype(F32))  # Dice
        return 1 - (2 * (odds * labels).sum((1, 2)) / (odds + labels).sum((1, 2))).mean()

    labels = shape(batch, size, size, classes) if classes == 1 else tokens(batch, size, size)
    return training(loss, parameters, pictures, labels, **options)


@family
def unet():
    """Segmentation: down by pooling, up by interpolation or transposed convolutions, with what was there before beside it."""

    def of(batch, size=256, widths=(32, 64, 128, 256), classes=21, transposed=False, policy=None, **options):
        ups = [dict(convs=double_conv(a + b, a), up=shape(2, 2, b, b)) for a, b in zip(widths, widths[1:])]
        parameters = dict(down=[double_conv(a, b) for a, b in zip((3, *widths), widths)], up=ups, head=shape(1, 1, widths[0], classes))
        stage = jax.checkpoint(convs) if policy else convs

        def forward(p, x):
            kept = []
            for i, q in enumerate(p['down']):
                x = stage(q, max_pool(x) if i else x)
                kept.append(x)
            kept.pop()
            for q in reversed(p['up']):
                if transposed:
                    x = lax.conv_transpose(x, q['up'], (2, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
                else:
                    x = twice_as_large(x, 'linear')
                x = stage(q['convs'], jnp.concatenate([kept.pop(), x], -1))
            return conv(x, p['head'])

        return segmentation(forward, parameters, batch, size, classes, **options)

    yield 'f32', *of(8)
    yield 'transposed_bf16', *of(16, transposed=True, compute=BF16)
    yield 'forward', *of(16, trains=False)
    yield 'checkpointed', *of(16, policy='everything')
    yield 'dice_wide', *of(4, widths=(64, 128, 256), classes=1)
    yield 'parts', *of(16, widths=(32, 64, 128), parts=4, transposed=True)
    yield 'large_pictures_bf16', *of(2, size=1024, widths=(32, 64, 128), compute=BF16)


@family
def unet_plus_plus():
    """Nested U-Nets: each level keeps all that was made on it before."""

    def of(batch, size=256, widths=(32, 64, 128), classes=1, deep=True, policy=None, **options):
        n = len(widths)
        nodes = {}
        for j in range(n):
            for i in range(n - j):
                came = (3 if i == 0 else widths[i - 1]) if j == 0 else j * widths[i] + widths[i + 1]
                nodes[f'{i}_{j}'] = double_conv(came, widths[i])
        parameters = dict(nodes=nodes, heads=[shape(1, 1, widths[0], classes)] * (n - 1 if deep else 1))
        stage = jax.checkpoint(convs) if policy else convs

        def forward(p, x):
            made = {}
            for j in range(n):
                for i in range(n - j):
                    if j == 0:
                        y = x if i == 0 else max_pool(made[i - 1, 0])
                    else:
                        y = jnp.concatenate([*(made[i, k] for k in range(j)), twice_as_large(made[i + 1, j - 1])], -1)
                    made[i, j] = stage(p['nodes'][f'{i}_{j}'], y)
            ends = [made[0, j] for j in range(1, n)] if deep else [made[0, n - 1]]
            return sum(conv(x, head) for x, head in zip(ends, p['heads'])) / len(ends)

        return segmentation(forward, parameters, batch, size, classes, **options)

    yield 'f32', *of(8)
    yield 'four_levels_bf16', *of(8, widths=(32, 64, 128, 256), compute=BF16)
    yield 'forward', *of(16, trains=False)
    yield 'checkpointed', *of(16, policy='everything')
    yield 'shallow_head_classes', *of(8, size=128, classes=21, deep=False)
    yield 'parts_momentum', *of(16, parts=4, optimizer='momentum')


@family
def convnext():
    """ConvNeXt: depthwise windows of 7, norms over features, wide perceptrons; stages scanned or not."""

    def of(batch, size=224, widths=(96, 192), depth=2, is_scanned=False, policy=None, **options):
        one = lambda width: dict(
            each=shape(7, 7, 1, width), norm=shape(width), up=shape(width, 4 * width), down=shape(4 * width, width), scale=shape(width)
        )
        parameters = dict(
            stem=shape(4, 4, 3, widths[0]),
            stages=[layers(one(width), depth, is_scanned) for width in widths],
            between=[shape(2, 2, a, b) for a, b in zip(widths, widths[1:])],
            head=shape(widths[-1], 1000),
        )

        def layer(p, x):
            y = layer_norm(conv(x, p['each'], groups=x.shape[-1]), p['norm'])
            return x + p['scale'] * (jax.nn.gelu(y @ p['up']) @ p['down'])

        def forward(p, x):
            x = layer_norm(conv(x, p['stem'], 4, padding='VALID'))
            for i, stage in enumerate(p['stages']):
                x = through(layer, stage, x, policy)
                if i + 1 < len(widths):
                    x = conv(layer_norm(x), p['between'][i], 2, padding='VALID')
            return layer_norm(x.mean((1, 2))) @ p['head']

        return classifier(forward, parameters, batch, size, **options)

    yield 'unrolled_f32', *of(16)
    yield 'scanned_bf16', *of(64, is_scanned=True, depth=3, compute=BF16)
    yield 'scanned_everything', *of(32, is_scanned=True, depth=3, policy='everything')
    yield 'forward_unrolled', *of(64, trains=False)
    yield 'unrolled_one_stage_adamw', *of(32, widths=(128,), optimizer='adamw', compute=BF16)


@family
def mixer():
    """Perceptrons across places and across features by turns."""

    def of(batch, size=224, patch=16, width=512, depth=4, is_scanned=True, policy=None, **options):
        places = (size // patch) ** 2
        one = dict(norm1=shape(width), norm2=shape(width), places=dense(places, 256, places), features=dense(width, 4 * width, width))
        parameters = dict(into=shape(patch * patch * 3, width), layers=layers(one, depth, is_scanned), head=shape(width, 1000))

        def layer(p, x):
            x = x + perceptron(p['places'], layer_norm(x, p['norm1']).swapaxes(1, 2), jax.nn.gelu).swapaxes(1, 2)
            return x + perceptron(p['features'], layer_norm(x, p['norm2']), jax.nn.gelu)

        def forward(p, x):
            return layer_norm(through(layer, p['layers'], patches(x, patch) @ p['into'], policy)).mean(1) @ p['head']

        return classifier(forward, parameters, batch, size, **options)

    yield 'scanned_f32', *of(64)
    yield 'unrolled_bf16', *of(128, is_scanned=False, depth=3, compute=BF16)
    yield 'scanned_dots', *of(128, policy='dots', compute=BF16)
    yield 'forward_unrolled', *of(256, is_scanned=False, trains=False)
    yield 'scanned_everything_parts', *of(256, policy='everything', parts=4)


@family
def swin():
    """Attention within shifted windows of pictures: rolls, reshapes and masks around small products."""

    def of(batch, size=224, width=96, depth=2, heads=3, window=7, patch=4, is_checkpointed=False, **options):
        side = size // patch
        parameters = dict(
            into=shape(patch * patch * 3, width),
            layers=[block(width) | dict(bias=shape(heads, window**2, window**2))] * depth,
            head=shape(width, 1000),
        )

        def layer(p, x, shift):
            y = layer_norm(x, p['norm1'])
            y = jnp.roll(y, (-shift, -shift), (1, 2)) if shift else y
            n = side // window
            cut = y.reshape(-1, n, window, n, window, width).swapaxes(2, 3).reshape(-1, window**2, width)
            cut = self_attention(p['attention'], cut, heads, bias=p['bias'][None, :, None])
            y = cut.reshape(-1, n, n, window, window, width).swapaxes(2, 3).reshape(x.shape)
            x = x + (jnp.roll(y, (shift, shift), (1, 2)) if shift else y)
            return x + jax.nn.gelu(layer_norm(x, p['norm2']) @ p['up'] + p['up_b']) @ p['down'] + p['down_b']

        def forward(p, x):
            x = (patches(x, patch) @ p['into']).reshape(-1, side, side, width)
            for i, q in enumerate(p['layers']):
                one = lambda q, x, shift=i % 2 * (window // 2): layer(q, x, shift)
                x = (jax.checkpoint(one) if is_checkpointed else one)(q, x)
            return layer_norm(x).mean((1, 2)) @ p['head']

        return classifier(forward, parameters, batch, size, **options)

    yield 'f32', *of(16)
    yield 'bf16_wide', *of(32, width=192, heads=6, compute=BF16)
    yield 'checkpointed', *of(32, depth=3, is_checkpointed=True)
    yield 'forward', *of(64, trains=False)


@family
def detection():
    """Boxes on a pyramid of features: focal loss over all anchors, or the best boxes without overlaps."""

    def of(batch, size=512, width=128, classes=80, anchors=9, trains=True, best=200, **options):
        back = [(3, 32), (32, 64), (64, 128), (128, 256)]
        tower = [shape(3, 3, width, width)] * 2
        parameters = dict(
            back=[shape(3, 3, a, b) for a, b in back],
            across=[shape(1, 1, b, width) for _, b in back[1:]],
            classes=tower,
            boxes=tower,
            class_head=shape(3, 3, width, anchors * classes),
            box_head=shape(3, 3, width, anchors * 4),
        )

        def forward(p, x):
            levels = []
            for w in p['back']:
                x = jax.nn.relu(conv(x, w, 2))
                levels.append(x)
            levels = [conv(x, w) for x, w in zip(levels[1:], p['across'])]
            for i in reversed(range(len(levels) - 1)):
                levels[i] = levels[i] + twice_as_large(levels[i + 1])
            odds, boxes = [], []
            for x in levels:
                y = z = x
                for v, w in zip(p['classes'], p['boxes']):
                    y, z = jax.nn.relu(conv(y, v)), jax.nn.relu(conv(z, w))
                odds.append(conv(y, p['class_head']).reshape(batch, -1, classes))
                boxes.append(conv(z, p['box_head']).reshape(batch, -1, 4))
            return jnp.concatenate(odds, 1), jnp.concatenate(boxes, 1)

        def loss(p, x, labels, wanted):
            odds, boxes = forward(p, x)
            target = jax.nn.one_hot(labels, classes)
            chance = jax.nn.sigmoid(odds.astype(F32))
            right = jnp.where(target > 0, chance, 1 - chance)
            return -((1 - right) ** 2 * jnp.log(right + 1e-6)).sum() / batch + square_error(boxes, wanted)

        def detect(p, x):
            odds, boxes = forward(p, x)
            scores, which = lax.top_k(odds.max(-1), best)
            boxes = jnp.take_along_axis(boxes, which[..., None], 1)
            low, high = boxes[..., :2], boxes[..., :2] + jnp.exp(boxes[..., 2:])
            shared = jnp.clip(jnp.minimum(high[:, :, None], high[:, None]) - jnp.maximum(low[:, :, None], low[:, None]), 0).prod(-1)
            area = (high - low).prod(-1)
            overlaps = shared / (area[:, :, None] + area[:, None] - shared) > 0.5
            drop = lambda i, keep: keep & ~(overlaps[:, i] & (jnp.arange(best) > i) & keep[:, i, None])
            return lax.fori_loop(0, best, drop, scores > 0.05), boxes, scores

        places = anchors * sum((size >> i) ** 2 for i in (2, 3, 4))
        if not trains:
            return inference(detect, parameters, shape(batch, size, size, 3))
        return training(loss, parameters, shape(batch, size, size, 3), tokens(batch, places), shape(batch, places, 4), **options)

    yield 'focal_f32', *of(2, size=256)
    yield 'best_boxes', *of(4, trains=False)
    yield 'focal_bf16', *of(4, size=384, classes=20, compute=BF16)
    yield 'best_boxes_large_batch', *of(16, size=256, trains=False)
    yield 'focal_few_anchors_momentum', *of(8, size=256, classes=20, anchors=3, optimizer='momentum')


@family
def contrastive():
    """SimCLR: two views of each picture, augmented on the way, and a product of all with all."""

    def of(batch, size=96, width=64, policy=None, **options):
        weights = lambda a, b: dict(w=shape(3, 3, a, b), gain=shape(b))
        parameters = dict(
            convs=[weights(3, width), weights(width, width), weights(width, 2 * width), weights(2 * width, 4 * width)],
            head=dense(4 * width, 512, 128),
        )

        def augment(key, x):
            cut, flip, tone = jax.random.split(key, 3)
            x = jnp.where(jax.random.bernoulli(flip, 0.5, (batch, 1, 1, 1)), x[:, :, ::-1], x)
            x = x * jax.random.uniform(tone, (batch, 1, 1, 3), x.dtype, 0.6, 1.4)
            starts = jax.random.randint(cut, (batch, 2), 0, 8)
            return jax.vmap(lambda x, at: lax.dynamic_slice(jnp.pad(x, ((4, 4), (4, 4), (0, 0))), (*at, 0), x.shape))(x, starts)

        def loss(p, x, key):
            one, other = jax.random.split(key)
            x = jnp.concatenate([augment(one, x), augment(other, x)])
            for i, q in enumerate(p['convs']):
                stage = lambda q, x, stride=1 + i % 2: jax.nn.relu(batch_norm(conv(x, q['w'], stride), q['gain']))
                x = (jax.checkpoint(stage) if policy else stage)(q, x)
            z = perceptron(p['head'], x.mean((1, 2))).astype(F32)
            z = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
            alike = z @ z.T / 0.5 - 1e9 * jnp.eye(2 * batch)
            return cross_entropy(alike, (jnp.arange(2 * batch) + batch) % (2 * batch))

        return training(loss, parameters, shape(batch, size, size, 3), jax.eval_shape(lambda: jax.random.key(0)), **options)

    yield 'f32', *of(64)
    yield 'bf16_large_batch', *of(512, compute=BF16)
    yield 'checkpointed', *of(256, policy='everything')
    yield 'wide_momentum', *of(64, width=128, optimizer='momentum')
