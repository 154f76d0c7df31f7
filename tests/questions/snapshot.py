"""What held the memory of a CUDA device, by a snapshot of PyTorch (`torch.cuda.memory._dump_snapshot`)."""

import os

import memplan

print(memplan.snapshot(os.path.relpath(os.path.join(os.path.dirname(__file__), "snapshot.pickle"))))
