"""What held the memory of a CUDA device, by a snapshot of PyTorch (`torch.cuda.memory._dump_snapshot`)."""

from pathlib import Path

import memplan

print(memplan.snapshot(Path(__file__).with_name("snapshot.pickle")))
