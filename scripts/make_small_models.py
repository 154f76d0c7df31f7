"""Write the networks of the table of models in docs/small_devices.md, as JAX hands them to XLA.

    pip install "jax[cpu]"
    python scripts/make_small_models.py OUTDIR [NAME...]

Weights are parameters of the programs, int8 as everything that layers hand on; sums are int32. No number of bytes
depends on their values. The programs are not in the repository: they are made again in seconds.
"""

import contextlib
import itertools
import os
import re
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
import jaxlib
from jax import lax
from make_small_devices import Weights, classify, convolve, requantize


def dense(x, layer, low=0):
    return requantize(jnp.dot(x, layer["w"], preferred_element_type=jnp.int32), layer, low)


def add(x, y, low=-128):
    """The sum of two arrays, as int8 again."""
    return jnp.clip(x.astype(jnp.int32) + y.astype(jnp.int32), low, 127).astype(jnp.int8)


def int8(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int8)


def resnet8():
    """MLPerf Tiny's image classification: residual blocks on images of 32 x 32."""
    weights = Weights()
    weights.convolution("stem", 3, 3, 3, 16)
    for stage, inputs, outputs in [("a", 16, 16), ("b", 16, 32), ("c", 32, 64)]:
        weights.convolution(f"{stage}1", 3, 3, inputs, outputs)
        weights.convolution(f"{stage}2", 3, 3, outputs, outputs)
        if inputs != outputs:
            weights.convolution(f"{stage}3", 1, 1, inputs, outputs)
    weights.dense("head", 64, 10)

    def network(image, p):
        x = convolve(image, p["stem"])
        for stage, stride in [("a", 1), ("b", 2), ("c", 2)]:
            y = convolve(x, p[f"{stage}1"], stride)
            y = convolve(y, p[f"{stage}2"], low=-128)
            x = convolve(x, p[f"{stage}3"], stride, low=-128) if stride > 1 else x
            x = add(x, y, low=0)
        return classify(x, p["head"])

    return network, (int8(1, 32, 32, 3), weights.layers)


def mobilenet_v1():
    """MLPerf Tiny's visual wake words: MobileNetV1 of width 0.25 on images of 96 x 96."""
    layers = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), *[(128, 128, 1)] * 5]
    layers += [(128, 256, 2), (256, 256, 1)]
    weights = Weights()
    weights.convolution("stem", 3, 3, 3, 8)
    for i, (inputs, outputs, _) in enumerate(layers):
        weights.depthwise(f"depth{i}", 3, 3, inputs)
        weights.convolution(f"point{i}", 1, 1, inputs, outputs)
    weights.dense("head", 256, 2)

    def network(image, p):
        x = convolve(image, p["stem"], 2)
        for i, (_, _, stride) in enumerate(layers):
            x = convolve(convolve(x, p[f"depth{i}"], stride), p[f"point{i}"])
        return classify(x, p["head"])

    return network, (int8(1, 96, 96, 3), weights.layers)


def ds_cnn():
    """MLPerf Tiny's keyword spotting: four depthwise separable layers of 64 channels on 49 x 10 features."""
    weights = Weights()
    weights.convolution("stem", 10, 4, 1, 64)
    for i in range(4):
        weights.depthwise(f"depth{i}", 3, 3, 64)
        weights.convolution(f"point{i}", 1, 1, 64, 64)
    weights.dense("head", 64, 12)

    def network(features, p):
        x = convolve(features, p["stem"], 2)
        for i in range(4):
            x = convolve(convolve(x, p[f"depth{i}"]), p[f"point{i}"])
        return classify(x, p["head"])

    return network, (int8(1, 49, 10, 1), weights.layers)


def autoencoder():
    """MLPerf Tiny's anomaly detection: dense layers that narrow 640 features to 8 and widen them again."""
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640]
    weights = Weights()
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        weights.dense(f"dense{i}", inputs, outputs)

    def network(x, p):
        for i in range(len(widths) - 1):
            x = dense(x, p[f"dense{i}"], low=-128 if i == len(widths) - 2 else 0)
        return x

    return network, (int8(1, 640), weights.layers)


def inverted_residuals(pixels, stem, blocks, head, classes, skips=True):
    """A stem, blocks of (expanded channels, channels, window, stride), perhaps a last layer, and a classifier."""
    weights = Weights()
    weights.convolution("stem", 3, 3, 3, stem)
    inputs = stem
    for i, (expanded, outputs, window, _) in enumerate(blocks):
        if expanded != inputs:
            weights.convolution(f"expand{i:02}", 1, 1, inputs, expanded)
        weights.depthwise(f"depth{i:02}", window, window, expanded)
        weights.convolution(f"project{i:02}", 1, 1, expanded, outputs)
        inputs = outputs
    if head:
        weights.convolution("last", 1, 1, inputs, head)
    if classes:
        weights.dense("head", head or inputs, classes)

    def network(image, p):
        x = convolve(image, p["stem"], 2)
        for i, (_, _, _, stride) in enumerate(blocks):
            y = convolve(x, p[f"expand{i:02}"]) if f"expand{i:02}" in p else x
            y = convolve(y, p[f"depth{i:02}"], stride)
            y = convolve(y, p[f"project{i:02}"], low=-128)
            x = add(x, y) if skips and stride == 1 and x.shape == y.shape else y
        x = convolve(x, p["last"]) if head else x
        return classify(x, p["head"]) if classes else x

    return network, (int8(1, pixels, pixels, 3), weights.layers)


def mobilenet_v2(pixels):
    """MobileNetV2 of width 0.35: channels are multiples of 8."""
    blocks, inputs = [(16, 8, 3, 1)], 8
    for outputs, n, stride in [(8, 2, 2), (16, 3, 2), (24, 4, 2), (32, 3, 1), (56, 3, 2), (112, 1, 1)]:
        for i in range(n):
            blocks.append((6 * inputs, outputs, 3, 1 if i else stride))
            inputs = outputs
    return inverted_residuals(pixels, 16, blocks, 1280, 1000)


def mobilenet_v2_wide():
    """MobileNetV2 at full width on 224 x 224 pixels, whose peak MCUNetV2 reports."""
    blocks, inputs = [(32, 16, 3, 1)], 16
    stages = [(24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)]
    for outputs, n, stride in stages:
        for i in range(n):
            blocks.append((6 * inputs, outputs, 3, 1 if i else stride))
            inputs = outputs
    return inverted_residuals(224, 32, blocks, 1280, 1000)


def mobilenet_v2_as_msf_cnn():
    """The same at 144 pixels as msf-CNN (Huang and Baccelli 2025) counts it: channels are rounded down, no sums of
    blocks, no classifier."""
    w, blocks = 0.35, []
    stages = [(32, 16, 1, 1, 1), (16, 24, 6, 2, 2), (24, 32, 6, 2, 3), (32, 64, 6, 2, 4), (64, 96, 6, 1, 3)]
    for inputs, outputs, expansion, stride, n in [*stages, (96, 160, 6, 2, 3), (160, 320, 6, 1, 1)]:
        for i in range(n):
            before = outputs if i else inputs
            blocks.append((int(before * w) * expansion, int(outputs * w), 3, 1 if i else stride))
    return inverted_residuals(144, int(32 * w), blocks, int(1280 * w), 0, skips=False)


def mcunet(pixels):
    """The network that MCUNet found for 320 KiB of SRAM: windows of 3 to 7."""
    stages = [(16, [3, 5, 5, 4], [7, 3, 7, 5], 2), (24, [5, 5, 5], [5, 5, 5], 2), (40, [5, 6, 4], [3, 7, 5], 2)]
    stages += [(48, [5, 5, 5], [5, 7, 3], 1), (96, [6, 5, 4], [3, 7, 3], 2), (160, [5], [7], 1)]
    blocks, inputs = [(16, 8, 3, 1)], 8
    for outputs, expansions, windows, stride in stages:
        for i, (expansion, window) in enumerate(zip(expansions, windows, strict=True)):
            blocks.append((expansion * inputs, outputs, window, 1 if i else stride))
            inputs = outputs
    return inverted_residuals(pixels, 16, blocks, 0, 1000)


def transformer():
    """Two encoder layers of width 64, four heads, on 32 tokens; softmax and norms are float32."""
    n_tokens, width, heads, inner = 32, 64, 4, 128
    weights = Weights()
    for i in range(2):
        for name in "qkvo":
            weights.dense(f"{name}{i}", width, width)
        weights.dense(f"up{i}", width, inner)
        weights.dense(f"down{i}", inner, width)
    weights.dense("head", width, 10)

    def norm(x):
        x = x.astype(jnp.float32)
        x = x - x.mean(-1, keepdims=True)
        x = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1) * 32
        return jnp.clip(jnp.round(x), -128, 127).astype(jnp.int8)

    def attend(x, p, i):
        q, k, v = (dense(x, p[f"{name}{i}"], -128).reshape(n_tokens, heads, width // heads) for name in "qkv")
        scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=jnp.int32)
        shares = jax.nn.softmax(scores.astype(jnp.float32) / 4096, axis=-1)
        shares = jnp.round(shares * 127).astype(jnp.int8)
        mixed = jnp.einsum("hqk,khd->qhd", shares, v, preferred_element_type=jnp.int32)
        mixed = jnp.clip(mixed >> 7, -128, 127).astype(jnp.int8)
        return dense(mixed.reshape(n_tokens, width), p[f"o{i}"], -128)

    def network(x, p):
        for i in range(2):
            x = add(x, attend(norm(x), p, i))
            x = add(x, dense(dense(norm(x), p[f"up{i}"]), p[f"down{i}"], -128))
        mean = jnp.mean(x.astype(jnp.float32), axis=0).astype(jnp.int8)
        return jnp.dot(mean, p["head"]["w"], preferred_element_type=jnp.int32) + p["head"]["b"]

    return network, (int8(n_tokens, width), weights.layers)


def gru():
    """A GRU of 64 units over 49 steps of 10 features; gates are float32."""
    weights = Weights()
    for name in "zrn":
        weights.dense(f"{name}x", 10, 64)
        weights.dense(f"{name}h", 64, 64)
    weights.dense("head", 64, 12)

    def gate(x, layer):
        sums = jnp.dot(x, layer["w"], preferred_element_type=jnp.int32) + layer["b"]
        return sums.astype(jnp.float32) * layer["s"] / 32

    def network(features, p):
        def step(h, x):
            z = jax.nn.sigmoid(gate(x, p["zx"]) + gate(h, p["zh"]))
            r = jax.nn.sigmoid(gate(x, p["rx"]) + gate(h, p["rh"]))
            n = jnp.tanh(gate(x, p["nx"]) + r * gate(h, p["nh"]))
            h = (1 - z) * n * 127 + z * h.astype(jnp.float32)
            return jnp.clip(jnp.round(h), -128, 127).astype(jnp.int8), None

        h, _ = lax.scan(step, jnp.zeros(64, jnp.int8), features)
        return jnp.dot(h, p["head"]["w"], preferred_element_type=jnp.int32) + p["head"]["b"]

    return network, (int8(49, 10), weights.layers)


MODELS = {
    "resnet8": resnet8,
    "mobilenet_v1": mobilenet_v1,
    "ds_cnn": ds_cnn,
    "autoencoder": autoencoder,
    "mcunet_160": lambda: mcunet(160),
    "mobilenet_v2_96": lambda: mobilenet_v2(96),
    "mobilenet_v2_144": lambda: mobilenet_v2(144),
    "mobilenet_v2_224": lambda: mobilenet_v2(224),
    "mobilenet_v2_msf": mobilenet_v2_as_msf_cnn,
    "transformer": transformer,
    "gru": gru,
}
# Not made of `convolve`, `dense`, `add` and `classify` alone: models in other formats are made of these.
NOT_OF_LAYERS = {"transformer", "gru"}
# Beyond the flash of the microcontrollers of the table.
LARGE = {"mobilenet_v2_wide": mobilenet_v2_wide}


def model(name):
    """A network, its argument, and its weights by layer and part."""
    network, (argument, weights) = (MODELS | LARGE)[name]()
    # The sums of a classifier are the result: nothing scales them.
    weights.get("head", {}).pop("s", None)
    return network, (argument, weights)


@contextlib.contextmanager
def layers_of(recorder):
    """Networks that are run meanwhile have the layers of a recorder, which notes them instead of computing."""
    layers = ["convolve", "dense", "add", "classify"]
    kept = {layer: globals()[layer] for layer in layers}
    globals().update({layer: getattr(recorder, layer) for layer in layers})
    try:
        yield
    finally:
        globals().update(kept)


def write(out, name, model=model):
    function, arguments = model(name)
    lowered = jax.jit(function).lower(*arguments)
    printing = jaxlib._hlo.HloPrintOptions()
    printing.print_large_constants = True
    text = lowered.compiler_ir(dialect="hlo").as_hlo_module().to_string(printing)
    # The module is named after the function, which is called the same in all programs.
    text = re.sub(r"^HloModule \S+?, ", f"HloModule {name}, ", text, count=1)
    with open(os.path.join(out, f"{name}.hlo.txt"), "w") as file:
        file.write(text)


if __name__ == "__main__":
    for name in sys.argv[2:] or MODELS:
        write(sys.argv[1], name)
