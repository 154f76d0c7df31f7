"""``memplan.torch``: budgets of activation memory in PyTorch, where that is installed."""

import itertools
import sys
from typing import Any

import pytest
from conftest import REPOSITORY

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing of memplan.torch is tested")
sys.path.insert(0, str(REPOSITORY / "python" / "benches"))

BUDGETS = (0.05, 0.1, 0.2, 0.4)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    import torch_budget

    for name, value in {"LAYERS": 4, "WIDTH": 64, "LENGTH": 64, "BATCH": 4, "HEADS": 2, "WORDS": 256}.items():
        monkeypatch.setattr(torch_budget, name, value)
    return torch_budget


def test_it_is_within_each_budget_and_monotone(bench: Any) -> None:
    import memplan.torch

    whole, unlimited, products = bench.measured(*bench.halves(1.0, "dp"))
    rows = [bench.measured(*bench.halves(budget, memplan.torch.Solver())) for budget in BUDGETS]
    for budget, (saved, peak, again) in zip(BUDGETS, rows, strict=True):
        assert saved <= budget * whole and peak < unlimited and again > products
    # With the smallest, there is no room for a value between every two layers.
    peaks = [peak for _, peak, _ in rows[1:]]
    # A hundredth, since PyTorch's cut may be through other values than those that were chosen.
    assert all(b >= 0.99 * a for a, b in itertools.pairwise(peaks))
    # PyTorch's own choice needs more for as many bytes.
    assert rows[1][1] < 0.9 * bench.measured(*bench.halves(BUDGETS[1], "dp"))[1]


def test_gradients_are_those_without_it() -> None:
    """Compiled and run on the CPU, without a code generator."""
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    import memplan.torch

    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)) for _ in range(4)]
    network, x = torch.nn.Sequential(*layers), torch.randn(32, 16)
    network(x).square().sum().backward()
    wanted = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    solver = memplan.torch.Solver()
    with config.patch(activation_memory_budget=0.3, activation_memory_budget_solver=solver):
        keep = lambda module, _: module  # noqa: E731
        compiled = aot_module(
            network, fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition
        )
        compiled(x).square().sum().backward()
    assert solver.chosen is not None and solver.chosen.work > 0
    for found, parameter in zip((p.grad for p in network.parameters()), wanted, strict=True):
        torch.testing.assert_close(found, parameter)


def test_an_exported_program() -> None:
    import memplan.torch

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 64, bias=False), torch.nn.Linear(64, 8, bias=False)

        def forward(self, x: Any) -> Any:
            wide = torch.relu(self.a(x))
            return self.b(wide.view(-1, 64)).view(4, 2, 8)

    found = memplan.torch.plan(torch.export.export(Network(), (torch.zeros(8, 8),)))
    weights, wide, small = 2 * 4 * 8 * 64, 4 * 8 * 64, 4 * 8 * 8
    assert found.always == weights + small
    # The product and what `relu` makes of it are live together; views take nothing.
    assert found.peak == found.always + 2 * wide
    assert found.planned == found.peak
    assert [life.bytes for life in found.holders] == [wide, wide]
    assert "test_torch.py:" in found.holders[1].source
