"""What tinygrad's memory planner does in a training step, as problems for memplan's packer.

    pip install tinygrad==0.14.0
    DEV=NULL python beside_tinygrad.py FOLDER
    cargo run --release -p memplan-pack --example bench -- --nodes 250000 FOLDER/*.csv

tinygrad runs through the first and last uses of buffers in order, and takes each from a two-level segregated fit allocator, whose
highest end is the size of the arena. Device NULL compiles nothing and computes nothing, so that only planning is left. Of each
arena this prints how large it is, and writes its buffers as CSV.
"""

import os
import sys

from tinygrad import Context, Tensor, TinyJit, nn
from tinygrad.schedule import memory


class Recorder(memory.TLSFAllocator):
    """Their allocator, which also notes when what is taken and given back."""

    all: list["Recorder"] = []

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls, self.rows, self.live, self.height = 0, [], {}, 0
        Recorder.all.append(self)

    def alloc(self, size, *args, **kwargs):
        offset = super().alloc(size, *args, **kwargs)
        self.live[offset] = len(self.rows)
        self.rows.append([self.calls, None, size])
        self.height = max(self.height, offset + size)
        self.calls += 1
        return offset

    def free(self, offset):
        self.rows[self.live.pop(offset)][1] = self.calls
        self.calls += 1
        super().free(offset)


memory.TLSFAllocator = Recorder


class ResidualBlock:
    def __init__(self, channels):
        self.convs = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
        self.norms = [nn.BatchNorm(channels) for _ in range(2)]

    def __call__(self, x):
        y = self.norms[0](self.convs[0](x)).relu()
        return (self.norms[1](self.convs[1](y)) + x).relu()


class Convolutions:
    """A residual network on images of 32 by 32: three stages of three blocks."""

    def __init__(self):
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = [[ResidualBlock(16 << stage) for _ in range(3)] for stage in range(3)]
        self.widen = [nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)]
        self.head = nn.Linear(64, 10)

    def __call__(self, x):
        x = self.stem(x)
        for stage, blocks in enumerate(self.blocks):
            x = x.sequential(blocks)
            if stage < 2:
                x = self.widen[stage](x).relu()
        return self.head(x.mean((2, 3)))


class Attention:
    """A transformer of four layers over 64 tokens of 128 numbers."""

    def __init__(self, width=128, heads=4):
        self.heads = heads
        self.layers = [
            {
                "qkv": nn.Linear(width, 3 * width),
                "out": nn.Linear(width, width),
                "up": nn.Linear(width, 4 * width),
                "down": nn.Linear(4 * width, width),
                "first": nn.LayerNorm(width),
                "second": nn.LayerNorm(width),
            }
            for _ in range(4)
        ]
        self.head = nn.Linear(width, 10)

    def __call__(self, x):
        batch, tokens, width = x.shape
        for layer in self.layers:
            q, k, v = (
                part.reshape(batch, tokens, self.heads, -1).transpose(1, 2)
                for part in layer["qkv"](layer["first"](x)).chunk(3, dim=-1)
            )
            mixed = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(batch, tokens, width)
            x = x + layer["out"](mixed)
            x = x + layer["down"](layer["up"](layer["second"](x)).gelu())
        return self.head(x.mean(1))


def train(model, batch):
    """Two steps: the second is captured, and planned as a whole."""
    optimizer = nn.optim.Adam(nn.state.get_parameters(model))

    @TinyJit
    def step(x, y):
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    with Context(TRAINING=1):
        for _ in range(2):
            step(Tensor.empty(*batch).contiguous().realize(), Tensor.zeros(batch[0], dtype="int32").contiguous().realize())


def main(folder):
    os.makedirs(folder, exist_ok=True)
    for name, model, batch in [
        ("convolutions", Convolutions, (32, 3, 32, 32)),
        ("attention", Attention, (32, 64, 128)),
    ]:
        Recorder.all.clear()
        train(model(), batch)
        # The captured step is by far the largest of what was planned.
        arena = max(Recorder.all, key=lambda arena: len(arena.rows))
        path = os.path.join(folder, name + ".csv")
        with open(path, "w") as file:
            file.write("id,lower,upper,size,alignment\n")
            for id, (lower, upper, size) in enumerate(arena.rows):
                file.write(f"{id},{lower},{arena.calls if upper is None else upper},{size},256\n")
        print(f"{path}: {len(arena.rows)} buffers, tinygrad's arena has {arena.height} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
