"""Budgets of activation memory in ``torch.compile``, by PyTorch's own solvers and by ``memplan.torch``: what is saved,
and the most that is live in the backward half (pytorch#197838). No GPU is needed: arrays are fake.

    python torch_budget.py               # in an environment with torch, memplan beside it
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch._functorch import config
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

import memplan.torch as ours

BUDGETS = (0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.50)
LAYERS, WIDTH, LENGTH, BATCH, HEADS, WORDS = 8, 256, 256, 8, 4, 4096


class Layer(torch.nn.Module):
    """One layer as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        linear = lambda a, b: torch.nn.Linear(a, b, bias=False)  # noqa: E731
        self.first, self.second = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = linear(WIDTH, 3 * WIDTH), linear(WIDTH, 3 * WIDTH), linear(3 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        heads = lambda t: t.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)  # noqa: E731
        q, k, v = (heads(f(y)) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril()
        mixed = scores.masked_fill(~mask, -1e9).softmax(-1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        y = self.second(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Any) -> Any:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def halves(budget: float, solver: Any) -> tuple[Any, Any]:
    """The graphs of both halves under a budget."""
    options = {"activation_memory_budget": budget, "activation_memory_budget_solver": solver}
    with FakeTensorMode(), config.patch(options):
        network = Network()
        names, values = zip(*network.named_parameters(), strict=True)

        def loss(words: Any, *values: Any) -> Any:
            return (torch.func.functional_call(network, dict(zip(names, values, strict=True)), (words,)),)

        args = (torch.zeros(BATCH, LENGTH, dtype=torch.int64), *values)
        joint = aot_export_joint_simple(loss, args, trace_joint=True)
        forward, backward = min_cut_rematerialization_partition(joint, args, num_fwd_outputs=1)
    return forward.graph, backward.graph


def measured(forward: Any, backward: Any) -> tuple[float, float, int]:
    """MB saved beyond the arguments, most MB live in the backward half, and how many products run in it."""
    # Of the arguments, and views of them, the backward half has others: they are not counted.
    arguments = {node.name for node in forward.nodes if ours._storage(node).op == "placeholder"}
    placeholders = [node for node in backward.nodes if node.op == "placeholder"]
    given = [node for node in placeholders if node.name not in arguments and not node.name.startswith("tangents")]
    (end,) = (node for node in backward.nodes if node.op == "output")
    results = {ours._storage(node) for node in end.all_input_nodes}
    order = [node for node in backward.nodes if node.op not in ("placeholder", "output")]
    others = {ours._storage(node) for node in placeholders} - {ours._storage(node) for node in given}
    peak = ours.peak_of(order, given, others, results)
    products = sum("mm" in str(node.target) for node in order)
    return sum(map(ours._bytes_of, given)) / 1e6, peak / 1e6, products


def main() -> None:
    whole = measured(*halves(1.0, "dp"))[0]
    print(f"torch {torch.__version__}; without a budget {whole:.1f} MB are saved")
    titles = (f"{name}: saved, MB | of the budget | peak, MB | products | s" for name in SOLVERS)
    print("| budget | " + " | ".join(titles) + " |")
    print("|---:|" + "---:|" * 5 * len(SOLVERS))
    for budget in BUDGETS:
        cells = []
        for solver in SOLVERS.values():
            start = time.perf_counter()
            saved, peak, products = measured(*halves(budget, solver()))
            seconds = time.perf_counter() - start
            cells.append(f"{saved:.1f} | {saved / whole / budget:.2f} | {peak:.1f} | {products} | {seconds:.1f}")
        print(f"| {budget:.2f} | " + " | ".join(cells) + " |", flush=True)


#: By name, what makes each.
SOLVERS = {"dp": lambda: "dp", "ilp": lambda: "ilp", "greedy": lambda: "greedy", "memplan": ours.Solver}

if __name__ == "__main__":
    main()
