"""Write the int8 networks of make_small_models.py with the arithmetic of CMSIS-NN and TFLite Micro.

    pip install "jax[cpu]"
    python scripts/make_cmsis_models.py OUTDIR [NAME...]

The layers and their weights are the same, but sums are scaled by integers, a multiplier and a shift of each channel, and
filters begin with the channels of the result, as the library has them.
"""

import sys

import jax
import jax.numpy as jnp
import make_small_models
import numpy as np
from jax import lax
from make_small_models import NOT_OF_LAYERS, add, layers_of

# Products of a sum and a multiplier have 64 bits.
jax.config.update("jax_enable_x64", True)

# Networks that consist of layers of the library.
MODELS = [name for name in make_small_models.MODELS if name not in NOT_OF_LAYERS]


def requantize(sums, layer, low):
    """Sums as int8: times multiplier * 2^(shift - 31), rounded after the multiplication and after the shift."""
    multiplier, shift = layer["multiplier"], layer["shift"]
    high = (((sums + layer["b"]).astype(jnp.int64) << jnp.maximum(shift, 0)) * multiplier + (1 << 30)) >> 31
    right = jnp.maximum(-shift, 0).astype(jnp.int64)
    rounded = jnp.sign(high) * ((jnp.abs(high) + ((1 << right) >> 1)) >> right)
    return jnp.clip(rounded, low, 127).astype(jnp.int8)


class Layers:
    """The layers of networks."""

    @staticmethod
    def convolve(x, layer, stride=1, low=0):
        is_depthwise = "depthwise" in layer
        sums = lax.conv_general_dilated(
            x,
            layer["depthwise"] if is_depthwise else layer["w"],
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO" if is_depthwise else "OHWI", "NHWC"),
            feature_group_count=x.shape[3] if is_depthwise else 1,
            preferred_element_type=jnp.int32,
        )
        return requantize(sums, layer, low)

    @staticmethod
    def product(x, layer):
        return lax.dot_general(x, layer["w"], (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)

    @staticmethod
    def dense(x, layer, low=0):
        return requantize(Layers.product(x, layer), layer, low)

    @staticmethod
    def classify(x, layer):
        n = x.shape[1] * x.shape[2]
        sums = jnp.sum(x, axis=(1, 2), dtype=jnp.int32)
        mean = lax.div(sums + jnp.sign(sums) * (n // 2), jnp.int32(n)).astype(jnp.int8)
        return Layers.product(mean, layer) + layer["b"]

    add = staticmethod(add)


def as_integers(name, layer):
    """A layer's weights in the order of the library, and its scales as multipliers and shifts."""
    weights = layer["w"]
    if name.startswith("depth"):
        parts = {"depthwise": weights}
    else:
        last = weights.ndim - 1
        parts = {"w": np.ascontiguousarray(weights.transpose(last, *range(last)))}
    if "s" in layer:
        share, shift = np.frexp(layer["s"].astype(np.float64))
        # One of 2^31 does not fit: it is twice one half.
        multiplier = np.round(share * 2**31).astype(np.int64)
        shift = np.where(multiplier == 2**31, shift + 1, shift)
        parts["multiplier"] = np.where(multiplier == 2**31, 2**30, multiplier).astype(np.int32)
        parts["shift"] = shift.astype(np.int32)
    return {**parts, "b": layer["b"]}


def model(name):
    """A network, its argument, and its weights by layer and part."""
    network, (argument, layers) = make_small_models.model(name)
    layers = {layer: as_integers(layer, parts) for layer, parts in layers.items()}

    def with_layers(image, weights):
        with layers_of(Layers):
            return network(image, weights)

    return with_layers, (argument, layers)


if __name__ == "__main__":
    for name in sys.argv[2:] or MODELS:
        make_small_models.write(sys.argv[1], name, model)
