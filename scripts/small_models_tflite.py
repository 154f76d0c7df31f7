"""TFLite models of the networks of make_small_models.py, made without TensorFlow, and what TFLite Micro needs for them.

    pip install "jax[cpu]" tflite tflite-micro flatbuffers
    python scripts/small_models_tflite.py NAME...

The functions that describe the networks are run with layers that write operators instead of computing. Quantization is
such that TFLite Micro accepts it; its numbers are not those of the JAX programs.
"""

import os
import re
import sys
import tempfile

import flatbuffers
import make_small_models
import numpy as np
import tflite

SCALE, WEIGHTS_SCALE = 0.05, 0.005


class Tensor:
    def __init__(self, number, shape):
        self.number, self.shape = number, tuple(shape)


class Recorder:
    """A model under construction: tensors, buffers and operators, and the layers that add them."""

    def __init__(self):
        self.tensors, self.buffers, self.operators, self.codes = [], [None], [], []

    def tensor(self, shape, kind=tflite.TensorType.INT8, data=None, scale=SCALE):
        if data is not None:
            self.buffers.append(np.ascontiguousarray(data).view(np.uint8).reshape(-1))
        self.tensors.append((tuple(shape), kind, len(self.buffers) - 1 if data is not None else 0, scale))
        return Tensor(len(self.tensors) - 1, shape)

    def weights(self, data):
        return self.tensor(data.shape, data=data, scale=WEIGHTS_SCALE)

    def bias(self, layer):
        return self.tensor(layer["b"].shape, tflite.TensorType.INT32, layer["b"], SCALE * WEIGHTS_SCALE)

    def operator(self, code, inputs, shape, options):
        if code not in self.codes:
            self.codes.append(code)
        result = self.tensor(shape)
        self.operators.append((self.codes.index(code), [it.number for it in inputs], result.number, options))
        return result

    def convolve(self, x, layer, stride=1, low=0):
        height, width, inputs, outputs = layer["w"].shape
        shape = (1, -(-x.shape[1] // stride), -(-x.shape[2] // stride), outputs)
        options = {"Padding": tflite.Padding.SAME, "StrideW": stride, "StrideH": stride}
        options["FusedActivationFunction"] = activation(low)
        options |= {"DilationWFactor": 1, "DilationHFactor": 1}
        if inputs == 1 and x.shape[3] > 1:
            code, kind = tflite.BuiltinOperator.DEPTHWISE_CONV_2D, "DepthwiseConv2DOptions"
            weights = layer["w"].reshape(1, height, width, outputs)
            options["DepthMultiplier"] = 1
        else:
            code, kind = tflite.BuiltinOperator.CONV_2D, "Conv2DOptions"
            weights = layer["w"].transpose(3, 0, 1, 2)
        return self.operator(code, [x, self.weights(weights), self.bias(layer)], shape, (kind, options))

    def dense(self, x, layer, low=0):
        weights = self.weights(layer["w"].T)
        options = ("FullyConnectedOptions", {"FusedActivationFunction": activation(low)})
        shape = (x.shape[0], layer["w"].shape[1])
        return self.operator(tflite.BuiltinOperator.FULLY_CONNECTED, [x, weights, self.bias(layer)], shape, options)

    def add(self, x, y, low=-128):
        options = ("AddOptions", {"FusedActivationFunction": activation(low)})
        return self.operator(tflite.BuiltinOperator.ADD, [x, y], x.shape, options)

    def classify(self, x, layer):
        axes = self.tensor((2,), tflite.TensorType.INT32, np.array([1, 2], np.int32))
        options = ("ReducerOptions", {"KeepDims": False})
        mean = self.operator(tflite.BuiltinOperator.MEAN, [x, axes], (x.shape[0], x.shape[3]), options)
        return self.dense(mean, layer, low=-128)

    def model(self, argument, result):
        builder = flatbuffers.Builder(1 << 20)

        def vector(items):
            builder.StartVector(4, len(items), 4)
            for item in reversed(items):
                builder.PrependUOffsetTRelative(item)
            return builder.EndVector()

        def integers(values):
            return builder.CreateNumpyVector(np.array(values, np.int32))

        tensors = []
        for shape, kind, buffer, scale in self.tensors:
            shape = integers(shape)
            scales = builder.CreateNumpyVector(np.array([scale], np.float32))
            zeros = builder.CreateNumpyVector(np.array([0], np.int64))
            tflite.QuantizationParametersStart(builder)
            tflite.QuantizationParametersAddScale(builder, scales)
            tflite.QuantizationParametersAddZeroPoint(builder, zeros)
            quantization = tflite.QuantizationParametersEnd(builder)
            tflite.TensorStart(builder)
            tflite.TensorAddShape(builder, shape)
            tflite.TensorAddType(builder, kind)
            tflite.TensorAddBuffer(builder, buffer)
            tflite.TensorAddQuantization(builder, quantization)
            tensors.append(tflite.TensorEnd(builder))
        operators = []
        for code, inputs, output, (kind, fields) in self.operators:
            inputs, outputs = integers(inputs), integers([output])
            getattr(tflite, f"{kind}Start")(builder)
            for field, value in fields.items():
                getattr(tflite, f"{kind}Add{field}")(builder, value)
            options = getattr(tflite, f"{kind}End")(builder)
            tflite.OperatorStart(builder)
            tflite.OperatorAddOpcodeIndex(builder, code)
            tflite.OperatorAddInputs(builder, inputs)
            tflite.OperatorAddOutputs(builder, outputs)
            tflite.OperatorAddBuiltinOptionsType(builder, getattr(tflite.BuiltinOptions, kind))
            tflite.OperatorAddBuiltinOptions(builder, options)
            operators.append(tflite.OperatorEnd(builder))
        tensors, operators = vector(tensors), vector(operators)
        inputs, outputs = integers([argument.number]), integers([result.number])
        tflite.SubGraphStart(builder)
        tflite.SubGraphAddTensors(builder, tensors)
        tflite.SubGraphAddInputs(builder, inputs)
        tflite.SubGraphAddOutputs(builder, outputs)
        tflite.SubGraphAddOperators(builder, operators)
        subgraphs = vector([tflite.SubGraphEnd(builder)])
        codes = []
        for code in self.codes:
            tflite.OperatorCodeStart(builder)
            tflite.OperatorCodeAddDeprecatedBuiltinCode(builder, code)
            tflite.OperatorCodeAddBuiltinCode(builder, code)
            tflite.OperatorCodeAddVersion(builder, 1)
            codes.append(tflite.OperatorCodeEnd(builder))
        codes = vector(codes)
        buffers = []
        for data in self.buffers:
            data = None if data is None else builder.CreateNumpyVector(data)
            tflite.BufferStart(builder)
            if data is not None:
                tflite.BufferAddData(builder, data)
            buffers.append(tflite.BufferEnd(builder))
        buffers = vector(buffers)
        tflite.ModelStart(builder)
        tflite.ModelAddVersion(builder, 3)
        tflite.ModelAddOperatorCodes(builder, codes)
        tflite.ModelAddSubgraphs(builder, subgraphs)
        tflite.ModelAddBuffers(builder, buffers)
        builder.Finish(tflite.ModelEnd(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


def activation(low):
    kinds = tflite.ActivationFunctionType
    return kinds.RELU if low == 0 else kinds.NONE


def model_of(name):
    """The model of a network that is made of the four kinds of layers."""
    recorder = Recorder()
    with make_small_models.layers_of(recorder):
        network, (argument, weights) = make_small_models.model(name)
        argument = recorder.tensor(argument.shape)
        return recorder.model(argument, network(argument, weights))


def arena_of(model):
    """Bytes that TFLite Micro's planner takes for tensors and working memory ("head"), and those of its own structures."""
    from tflite_micro.python.tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(model, arena_size=8 << 20)
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2), os.dup(1)
        os.dup2(file.fileno(), 2), os.dup2(file.fileno(), 1)
        try:
            interpreter.print_allocations()
        finally:
            os.dup2(kept[0], 2), os.dup2(kept[1], 1)
        file.seek(0)
        text = file.read().decode()
    return [int(re.search(rf"Arena allocation {part} (\d+) bytes", text).group(1)) for part in ("head", "tail")]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        model = model_of(name)
        print(name, len(model), *arena_of(model))
