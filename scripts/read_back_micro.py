"""Plans for runtimes of small devices, read back with the other side's own schemas.

    cargo build --release
    python scripts/read_back_micro.py [--only tflite] [target/release/memplan]

`--emit tflite-micro=` becomes the metadata of a TFLite model, made and read with PyPI's `tflite`; `--emit executorch=` goes
into a program as ExecuTorch serialises it, with the schema and the `flatc` of PyPI's `executorch`. What is read back must
be the layout that memplan writes: the same offsets, aligned, none overlapping another that is live with it.
Packages are installed into target/micro-venv; with `--installed` they are there already, as in CI, which leaves ExecuTorch
out, since its package has 100 MB. Status 0 and a line for each where they agree.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
VENV = os.path.join(ROOT, "target", "micro-venv")
EXECUTORCH = os.path.join(ROOT, "target", "micro-executorch")
EXAMPLES = [
    ("examples/small/image_classifier.hlo.txt", ["--pin", "p[*=flash"]),
    ("examples/small/keyword_spotting.hlo.txt", []),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memplan", nargs="?", default=os.path.join(ROOT, "target", "release", "memplan"))
    parser.add_argument("--only", choices=["tflite", "executorch"])
    parser.add_argument("--installed", action="store_true", help="this Python has the packages")
    args = parser.parse_args()
    kinds = [args.only] if args.only else ["tflite", "executorch"]
    if not args.installed:
        install(kinds)
        python = os.path.join(VENV, "bin", "python")
        sys.exit(subprocess.run([python, __file__, "--installed", *sys.argv[1:]]).returncode)
    for program, pins in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            at = lambda name: os.path.join(folder, name)
            command = [os.path.abspath(args.memplan), "compile", os.path.join(ROOT, program), "--target", "mcu-cortex-m7", *pins]
            for kind in ["layout", "tflite-micro", "executorch"]:
                command += ["--emit", f"{kind}={at(kind + ('.bin' if kind == 'tflite-micro' else '.json'))}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            layout = json.load(open(at("layout.json")))
            if "tflite" in kinds:
                check_offsets(layout, through_tflite(open(at("tflite-micro.bin"), "rb").read(), layout))
                print(f"{program}: a TFLite model has the offsets of all {len(layout['buffers'])} tensors")
            if "executorch" in kinds:
                check_offsets(layout, through_executorch(json.load(open(at("executorch.json"))), layout, folder))
                print(f"{program}: an ExecuTorch program has the offsets of all {len(layout['buffers'])} tensors")


def install(kinds):
    if not os.path.exists(VENV):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip = [os.path.join(VENV, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "tflite", "flatbuffers", "numpy"], check=True)
    if "executorch" in kinds and not os.path.exists(EXECUTORCH):
        # The schema and its compiler alone: not PyTorch, which the package asks for.
        subprocess.run([*pip, "--no-deps", "--target", EXECUTORCH, "executorch"], check=True)


def is_temp(layout, buffer):
    return layout["allocations"][buffer["allocation"]]["kind"] == "temp"


def check_offsets(layout, read):
    """`read` has an (arena, offset) for each buffer, or None for what the runtime places itself."""
    assert len(read) == len(layout["buffers"])
    placed = []
    for buffer, place in zip(layout["buffers"], read):
        expected = (0, buffer["offset"]) if is_temp(layout, buffer) else None
        assert place == expected, (buffer["name"], place, expected)
        if place:
            assert place[1] % 16 == 0, buffer["name"]
            placed.append((buffer["offset"], buffer["offset"] + buffer["size"], buffer["live"], buffer["name"]))
    for i, (start, end, live, name) in enumerate(placed):
        for other_start, other_end, other, other_name in placed[:i]:
            apart = end <= other_start or other_end <= start
            in_turn = live["to"] <= other["from"] or other["to"] <= live["from"]
            # A result takes the place of an operand that is read last when it is written.
            replaces = start == other_start and (live["to"] == other["from"] + 1 or other["to"] == live["from"] + 1)
            assert apart or in_turn or replaces, (name, other_name)


def through_tflite(metadata, layout):
    """The offsets that a reader of a model with this metadata finds."""
    import flatbuffers
    import numpy as np
    import tflite

    builder = flatbuffers.Builder(0)

    def vector(start, of, items):
        start(builder, len(items))
        for item in reversed(items):
            builder.PrependUOffsetTRelative(item)
        return builder.EndVector()

    def buffer(data):
        contents = builder.CreateByteVector(data) if data else None
        tflite.BufferStart(builder)
        if contents is not None:
            tflite.BufferAddData(builder, contents)
        return tflite.BufferEnd(builder)

    def tensor(of):
        name = builder.CreateString(of["name"])
        extents = builder.CreateNumpyVector(np.array(of["dimensions"], np.int32))
        tflite.TensorStart(builder)
        tflite.TensorAddName(builder, name)
        tflite.TensorAddShape(builder, extents)
        tflite.TensorAddBuffer(builder, 0)
        return tflite.TensorEnd(builder)

    buffers = [buffer(b""), buffer(metadata)]
    tensors = vector(tflite.SubGraphStartTensorsVector, "tensors", [tensor(of) for of in layout["buffers"]])
    tflite.SubGraphStart(builder)
    tflite.SubGraphAddTensors(builder, tensors)
    graph = tflite.SubGraphEnd(builder)
    name = builder.CreateString("OfflineMemoryAllocation")
    tflite.MetadataStart(builder)
    tflite.MetadataAddName(builder, name)
    tflite.MetadataAddBuffer(builder, 1)
    entry = tflite.MetadataEnd(builder)
    graphs = vector(tflite.ModelStartSubgraphsVector, "graphs", [graph])
    entries = vector(tflite.ModelStartMetadataVector, "metadata", [entry])
    contents = vector(tflite.ModelStartBuffersVector, "buffers", buffers)
    tflite.ModelStart(builder)
    tflite.ModelAddVersion(builder, 3)
    tflite.ModelAddSubgraphs(builder, graphs)
    tflite.ModelAddMetadata(builder, entries)
    tflite.ModelAddBuffers(builder, contents)
    builder.Finish(tflite.ModelEnd(builder), file_identifier=b"TFL3")

    model = tflite.Model.GetRootAsModel(bytes(builder.Output()), 0)
    entry = model.Metadata(0)
    assert entry.Name() == b"OfflineMemoryAllocation"
    version, subgraph, count, *offsets = model.Buffers(entry.Buffer()).DataAsNumpy().view(np.int32).tolist()
    assert (version, subgraph, count) == (1, 0, model.Subgraphs(0).TensorsLength()), (version, subgraph, count)
    assert len(offsets) == count
    return [None if offset == -1 else (0, offset) for offset in offsets]


def through_executorch(plan, layout, folder):
    """The places that a reader of a serialised program with these values finds."""
    schema = os.path.join(EXECUTORCH, "executorch", "schema", "program.fbs")
    flatc = os.path.join(EXECUTORCH, "executorch", "data", "bin", "flatc")
    os.chmod(flatc, 0o755)

    def value(of, buffer):
        tensor = {"sizes": buffer["dimensions"], "dim_order": list(range(len(buffer["dimensions"])))}
        if of["allocation_info"]:
            tensor["allocation_info"] = of["allocation_info"]
        return {"val_type": "Tensor", "val": tensor}

    values = [value(of, buffer) for of, buffer in zip(plan["values"], layout["buffers"], strict=True)]
    method = {"name": "forward", "values": values, "non_const_buffer_sizes": plan["non_const_buffer_sizes"]}
    path = os.path.join(folder, "program.json")
    with open(path, "w") as file:
        json.dump({"execution_plan": [method]}, file)
    subprocess.run([flatc, "--binary", "-o", folder, schema, path], check=True)
    program, out = os.path.join(folder, "program.pte"), os.path.join(folder, "back")
    os.replace(os.path.join(folder, "program.bin"), program) if not os.path.exists(program) else None
    read = ["--json", "--strict-json", "--defaults-json", "--raw-binary", "-o", out, schema, "--", program]
    subprocess.run([flatc, *read], check=True)
    method = json.load(open(os.path.join(out, "program.json")))["execution_plan"][0]
    sizes = method["non_const_buffer_sizes"]
    arenas = [space["temp"] for space in layout["spaces"]]
    assert sizes == [0, *arenas], (sizes, arenas)
    places = []
    for of in method["values"]:
        info = of["val"].get("allocation_info")
        offset = info and (info["memory_offset_low"] | info["memory_offset_high"] << 32)
        places.append(info and (info["memory_id"] - 1, offset))
    return places


if __name__ == "__main__":
    main()
