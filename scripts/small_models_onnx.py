"""ONNX models of the networks of make_small_models.py, and what the C of emx-onnx-cgen needs for them.

    pip install "jax[cpu]" onnx emx-onnx-cgen
    python scripts/small_models_onnx.py NAME...

The functions that describe the networks are run with layers that write nodes instead of computing: QLinearConv,
QLinearMatMul and QLinearAdd on int8, channels first, as ONNX has them. Their numbers are not those of the JAX programs.
emx-onnx-cgen takes memory for each array as a function begins, and gives it back as it ends: those of more than 1 KiB from
`malloc`, the others on the stack. So its figures are measured: the most that is allocated at a time, and a painted stack.
"""

import os
import subprocess
import sys
import tempfile

import make_small_models
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SCALE, WEIGHTS_SCALE = 0.05, 0.005
# Counts what `malloc` gives, and how much of a painted stack is touched.
HARNESS = """
#include "painted_stack.h"
#include <stdio.h>

static signed char input[INPUT], output[OUTPUT];
static size_t live, most;
void model(const void *input, void *output);
void *__real_malloc(size_t n);
void __real_free(void *p);

void *__wrap_malloc(size_t n)
{
    size_t *p = __real_malloc(n + 16);
    *p = n;
    live += n;
    most = live > most ? live : most;
    return (char *)p + 16;
}

void __wrap_free(void *p)
{
    if (p != NULL) {
        live -= *(size_t *)((char *)p - 16);
        __real_free((char *)p - 16);
    }
}

static void *run(void *unused)
{
    model(input, output);
    return unused;
}

int main(void)
{
    size_t on_stack = stack_bytes(run);
    printf("%zu %zu\\n", most, on_stack);
    return 0;
}
"""


class Tensor:
    def __init__(self, name, shape):
        # The shape that the networks see: the image's rows and columns before its channels.
        self.name, self.shape = name, tuple(shape)


class Recorder:
    """A model under construction: nodes and constants, and the layers that add them."""

    def __init__(self):
        self.nodes, self.constants, self.results = [], [], []

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def node(self, op, inputs, shape, domain="", **attributes):
        result = Tensor(f"t{len(self.nodes)}", shape)
        self.nodes.append(helper.make_node(op, inputs, [result.name], domain=domain, **attributes))
        self.results.append(result)
        return result

    def quantization(self, low=-128):
        # What is below the zero point cannot be said: a rectifier has the lowest number there.
        return [
            self.constant(np.float32(SCALE)),
            self.constant(np.int8(-128 if low == 0 else 0)),
        ]

    def weights(self, w):
        return [
            self.constant(w),
            self.constant(np.float32(WEIGHTS_SCALE)),
            self.constant(np.int8(0)),
        ]

    def convolve(self, x, layer, stride=1, low=0):
        height, width, inputs, outputs = layer["w"].shape
        shape = (1, -(-x.shape[1] // stride), -(-x.shape[2] // stride), outputs)
        groups = x.shape[3] if inputs == 1 and x.shape[3] > 1 else 1
        given = [
            x.name,
            *self.quantization(),
            *self.weights(layer["w"].transpose(3, 2, 0, 1)),
        ]
        given += [*self.quantization(low), self.constant(layer["b"])]
        pads = {
            "auto_pad": "SAME_UPPER",
            "strides": [stride, stride],
            "kernel_shape": [height, width],
        }
        return self.node("QLinearConv", given, shape, group=groups, **pads)

    def dense(self, x, layer, low=0):
        given = [
            x.name,
            *self.quantization(),
            *self.weights(layer["w"]),
            *self.quantization(low),
        ]
        return self.node("QLinearMatMul", given, (x.shape[0], layer["w"].shape[1]))

    def add(self, x, y, low=-128):
        given = [
            x.name,
            *self.quantization(),
            y.name,
            *self.quantization(),
            *self.quantization(low),
        ]
        return self.node("QLinearAdd", given, x.shape, domain="com.microsoft")

    def classify(self, x, layer):
        given = [x.name, *self.quantization(), *self.quantization()]
        pooled = (1, 1, 1, x.shape[3])
        mean = self.node("QLinearGlobalAveragePool", given, pooled, "com.microsoft", channels_last=0)
        shape = (1, x.shape[3])
        mean = self.node("Reshape", [mean.name, self.constant(np.array(shape, np.int64))], shape)
        return self.dense(mean, layer, low=-128)

    def model(self, argument, result):
        def info(tensor):
            shape = tensor.shape
            shape = (shape[0], shape[3], shape[1], shape[2]) if len(shape) == 4 else shape
            return helper.make_tensor_value_info(tensor.name, TensorProto.INT8, shape)

        # Nobody infers the shapes of operations that are not ONNX's own.
        values = [info(it) for it in self.results if it is not result]
        ends = [info(argument)], [info(result)]
        graph = helper.make_graph(self.nodes, "model", *ends, self.constants, value_info=values)
        versions = [
            helper.make_opsetid("", 21),
            helper.make_opsetid("com.microsoft", 1),
        ]
        return helper.make_model(graph, opset_imports=versions, ir_version=10)


def model_of(name):
    """The model of a network that is made of the four kinds of layers, with its argument and result."""
    recorder = Recorder()
    with make_small_models.layers_of(recorder):
        network, (argument, weights) = make_small_models.model(name)
        argument = Tensor("image", argument.shape)
        result = network(argument, weights)
    return recorder.model(argument, result), argument, result


def bytes_of(name):
    """Bytes that emx-onnx-cgen's C allocates at most, and those of its stack; image and result are not among them."""
    model, argument, result = model_of(name)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, os.path.join(folder, "model.onnx"))
        compile_ = [
            sys.executable,
            "-m",
            "emx_onnx_cgen",
            "compile",
            "model.onnx",
            "model.c",
            "--model-name",
            "model",
        ]
        compile_ += ["--large-weight-threshold", "0"]
        done = subprocess.run(compile_, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
        open(os.path.join(folder, "main.c"), "w").write(HARNESS)
        gcc = [
            "gcc",
            "-O2",
            "-I",
            os.path.dirname(os.path.abspath(__file__)),
            f"-DINPUT={np.prod(argument.shape)}",
            f"-DOUTPUT={np.prod(result.shape)}",
        ]
        wrap = ["-Wl,--wrap=malloc", "-Wl,--wrap=free"]
        subprocess.run(
            [*gcc, *wrap, "main.c", "model.c", "-o", "main", "-lm", "-lpthread"],
            cwd=folder,
            check=True,
        )
        done = subprocess.run(["./main"], cwd=folder, check=True, capture_output=True, text=True)
    heap, stack = map(int, done.stdout.split())
    return heap, stack


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, *bytes_of(name))
