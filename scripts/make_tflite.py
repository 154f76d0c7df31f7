#!/usr/bin/env python3
"""Makes the TFLite models of the tests, and reads back what memplan wrote into one.

    pip install tflite flatbuffers
    make_tflite.py make crates/tflite/tests/residual.tflite
    make_tflite.py check MODEL          offsets of the metadata, read by PyPI's `tflite`: none overlaps what is needed with it
"""
import struct
import sys

import flatbuffers
import numpy as np
import tflite


def make(path):
    builder = flatbuffers.Builder(1024)
    integers = lambda values: builder.CreateNumpyVector(np.array(values, np.int32))
    # name, shape, type, buffer, whether it is a variable
    tensors = [
        ("input", [1, 256], tflite.TensorType.INT8, 0, False),
        ("weights", [64, 64], tflite.TensorType.INT8, 1, False),
        ("a", [1, 128], tflite.TensorType.FLOAT32, 0, False),
        ("b", [1, 64], tflite.TensorType.FLOAT32, 0, False),
        ("state", [64], tflite.TensorType.INT8, 0, True),
        ("c", [1, 256], tflite.TensorType.INT8, 0, False),
        ("output", [1, 256], tflite.TensorType.INT8, 0, False),
    ]
    operators = [([0, 1], [2]), ([0, -1], [3]), ([2, 4], [5]), ([3, 5], [6])]

    def vector(items):
        builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            builder.PrependUOffsetTRelative(item)
        return builder.EndVector()

    made = []
    for name, shape, kind, buffer, variable in tensors:
        name, shape = builder.CreateString(name), integers(shape)
        tflite.TensorStart(builder)
        tflite.TensorAddName(builder, name)
        tflite.TensorAddShape(builder, shape)
        tflite.TensorAddType(builder, kind)
        tflite.TensorAddBuffer(builder, buffer)
        tflite.TensorAddIsVariable(builder, variable)
        made.append(tflite.TensorEnd(builder))
    tensors = vector(made)
    made = []
    for inputs, outputs in operators:
        inputs, outputs = integers(inputs), integers(outputs)
        tflite.OperatorStart(builder)
        tflite.OperatorAddOpcodeIndex(builder, 0)
        tflite.OperatorAddInputs(builder, inputs)
        tflite.OperatorAddOutputs(builder, outputs)
        made.append(tflite.OperatorEnd(builder))
    operators, inputs, outputs, name = vector(made), integers([0]), integers([6]), builder.CreateString("main")
    tflite.SubGraphStart(builder)
    tflite.SubGraphAddName(builder, name)
    tflite.SubGraphAddTensors(builder, tensors)
    tflite.SubGraphAddInputs(builder, inputs)
    tflite.SubGraphAddOutputs(builder, outputs)
    tflite.SubGraphAddOperators(builder, operators)
    subgraphs = vector([tflite.SubGraphEnd(builder)])
    tflite.OperatorCodeStart(builder)
    tflite.OperatorCodeAddBuiltinCode(builder, tflite.BuiltinOperator.ADD)
    codes = vector([tflite.OperatorCodeEnd(builder)])
    tflite.BufferStart(builder)
    empty = tflite.BufferEnd(builder)
    data = builder.CreateNumpyVector(np.arange(64, dtype=np.uint8))
    tflite.BufferStart(builder)
    tflite.BufferAddData(builder, data)
    buffers = vector([empty, tflite.BufferEnd(builder)])
    description = builder.CreateString("a residual block")
    tflite.ModelStart(builder)
    tflite.ModelAddVersion(builder, 3)
    tflite.ModelAddOperatorCodes(builder, codes)
    tflite.ModelAddSubgraphs(builder, subgraphs)
    tflite.ModelAddDescription(builder, description)
    tflite.ModelAddBuffers(builder, buffers)
    builder.Finish(tflite.ModelEnd(builder), file_identifier=b"TFL3")
    open(path, "wb").write(builder.Output())


def check(path):
    model = tflite.Model.GetRootAs(open(path, "rb").read(), 0)
    entries = [model.Metadata(i) for i in range(model.MetadataLength())]
    (entry,) = [m for m in entries if m.Name() == b"OfflineMemoryAllocation"]
    data = model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
    words = struct.unpack(f"<{len(data) // 4}i", data)
    graph = model.Subgraphs(0)
    assert words[:3] == (1, 0, sum(model.Subgraphs(i).TensorsLength() for i in range(model.SubgraphsLength()))), words
    first, last = {t: 0 for t in graph.InputsAsNumpy()}, {}
    for time in range(graph.OperatorsLength()):
        operator = graph.Operators(time)
        for t in operator.OutputsAsNumpy():
            first.setdefault(t, time + 1)
            last[t] = time + 1
        for t in operator.InputsAsNumpy():
            last[t] = time + 1
    last.update({t: graph.OperatorsLength() + 1 for t in graph.OutputsAsNumpy()})
    sizes = {tflite.TensorType.FLOAT32: 4, tflite.TensorType.INT8: 1, tflite.TensorType.UINT8: 1, tflite.TensorType.INT32: 4}
    placed = []
    for t, offset in enumerate(words[3 : 3 + graph.TensorsLength()]):
        if offset >= 0:
            tensor = graph.Tensors(t)
            size = int(np.prod(tensor.ShapeAsNumpy())) * sizes[tensor.Type()]
            placed.append((t, offset, offset + size, first[t], last[t]))
    for i, a in enumerate(placed):
        for b in placed[i + 1 :]:
            together = a[3] <= b[4] and b[3] <= a[4]
            assert not together or a[2] <= b[1] or b[2] <= a[1], (a, b)
    print(f"{path}: {len(placed)} of {graph.TensorsLength()} tensors placed, {max(p[2] for p in placed)} bytes, no overlap")


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2])
