"""Write quantised networks for microcontrollers to examples/small/, as JAX hands them to XLA.

    pip install "jax[cpu]"
    python scripts/make_small_devices.py [OUTDIR]

Weights are int8, sums int32, and what layers hand on is int8 again. Those of the image classifier are parameters, those
of keyword spotting constants of the program: the two ways in which people write such networks. They are random numbers.
The files are in the repository, so that nothing here needs JAX. They change with JAX's version only.
"""

import os
import re
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax

# No path of this machine in what is written.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")


class Weights:
    """Random weights of layers: int8 kernels, int32 biases, and the float scale of each output channel."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.layers = {}

    def layer(self, name, *shape, inputs):
        """A layer's weights; `inputs` is how many products are added up, by which the scale keeps results in range."""
        self.layers[name] = {
            "w": self.random.integers(-64, 64, shape, dtype=np.int8),
            "b": self.random.integers(-512, 512, shape[-1:], dtype=np.int32),
            "s": np.full(shape[-1:], 1 / (37 * np.sqrt(inputs)), np.float32),
        }

    def convolution(self, name, height, width, inputs, outputs):
        self.layer(name, height, width, inputs, outputs, inputs=height * width * inputs)

    def depthwise(self, name, height, width, channels):
        self.layer(name, height, width, 1, channels, inputs=height * width)

    def dense(self, name, inputs, outputs):
        self.layer(name, inputs, outputs, inputs=inputs)


def requantize(sums, layer, low):
    """Sums of products as int8, nothing below `low`: 0 is a rectifier."""
    scaled = jnp.round((sums + layer["b"]).astype(jnp.float32) * layer["s"])
    return jnp.clip(scaled, low, 127).astype(jnp.int8)


def convolve(x, layer, stride=1, low=0):
    depthwise = layer["w"].shape[2] == 1 and x.shape[3] > 1
    sums = lax.conv_general_dilated(
        x,
        layer["w"],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[3] if depthwise else 1,
        preferred_element_type=jnp.int32,
    )
    return requantize(sums, layer, low)


def classify(x, layer):
    """The mean over the image, and a dense layer of it."""
    mean = jnp.mean(x.astype(jnp.float32), axis=(1, 2)).astype(jnp.int8)
    return jnp.dot(mean, layer["w"], preferred_element_type=jnp.int32) + layer["b"]


def image_classifier():
    """Inverted residual blocks on an image of 96 x 96; the weights are parameters."""
    weights = Weights()
    weights.convolution("stem", 3, 3, 3, 16)
    for block, inputs, outputs in [("a", 16, 24), ("b", 24, 24), ("c", 24, 40), ("d", 40, 40)]:
        weights.convolution(f"{block}1", 1, 1, inputs, 4 * inputs)
        weights.depthwise(f"{block}2", 3, 3, 4 * inputs)
        weights.convolution(f"{block}3", 1, 1, 4 * inputs, outputs)
    weights.dense("head", 40, 10)

    def block(x, p, name, stride):
        y = convolve(x, p[name + "1"])
        y = convolve(y, p[name + "2"], stride)
        y = convolve(y, p[name + "3"], low=-128)
        if stride == 1:
            total = x.astype(jnp.int32) + y.astype(jnp.int32)
            y = jnp.clip(total, -128, 127).astype(jnp.int8)
        return y

    def network(image, p):
        x = convolve(image, p["stem"], stride=2)
        for name, stride in [("a", 2), ("b", 1), ("c", 2), ("d", 1)]:
            x = block(x, p, name, stride)
        return classify(x, p["head"])

    image = jax.ShapeDtypeStruct((1, 96, 96, 3), jnp.int8)
    return network, (image, weights.layers)


def keyword_spotting():
    """A depthwise separable network on 49 x 10 features of one second of sound; the weights are constants."""
    weights = Weights()
    weights.convolution("stem", 10, 4, 1, 32)
    for i in range(4):
        weights.depthwise(f"depth{i}", 3, 3, 32)
        weights.convolution(f"point{i}", 1, 1, 32, 32)
    weights.dense("head", 32, 12)

    def network(features):
        p = jax.tree.map(jnp.asarray, weights.layers)
        x = convolve(features, p["stem"], stride=2)
        for i in range(4):
            x = convolve(x, p[f"depth{i}"])
            x = convolve(x, p[f"point{i}"])
        return classify(x, p["head"])

    return network, (jax.ShapeDtypeStruct((1, 49, 10, 1), jnp.int8),)


PROGRAMS = [image_classifier, keyword_spotting]


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "small")
    out = sys.argv[1] if len(sys.argv) > 1 else default
    for program in PROGRAMS:
        function, arguments = program()
        lowered = jax.jit(function).lower(*arguments)
        printing = jaxlib._hlo.HloPrintOptions()
        printing.print_large_constants = True
        text = lowered.compiler_ir(dialect="hlo").as_hlo_module().to_string(printing)
        # The module is named after the function, which is called the same in both programs.
        text = re.sub(r"^HloModule \S+?, ", f"HloModule {program.__name__}, ", text, count=1)
        assert os.path.expanduser("~") not in text and "{...}" not in text and len(text) < 80_000, len(text)
        with open(os.path.join(out, f"{program.__name__}.hlo.txt"), "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
