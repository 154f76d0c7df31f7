"""For PyTorch: which activations ``torch.compile`` saves under a memory budget.

::

    import torch, memplan.torch
    torch._functorch.config.activation_memory_budget = 0.1
    torch._functorch.config.activation_memory_budget_solver = memplan.torch.Solver()

PyTorch asks a solver which of the operations that are costly to compute again should be saved, and gives it the sum of
their bytes as the price. That is not what the backward half needs: an operation between two layers is not in the list,
and what is computed again is in memory as well, all at once where nothing between two layers was saved. This solver
simulates the backward half. It saves what is live where the forward half is narrow, such that what is computed again
at one time is one piece of it, and then the operations that save most time for their bytes.

Among what fits the budget it takes the fewest operations to compute again, of those whose peak is lowest but for a
share: the budget, of the way from the lowest peak of all to the one without a budget. So with a larger budget the peak
does not fall. The bytes that are saved are those of the cut that PyTorch then makes, and never above the budget.
"""

from __future__ import annotations

import dataclasses
import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config
from torch._functorch.partitioners import MinCutOptions, solve_min_cut
from torch._inductor.custom_graph_pass import CustomKnapsackSolver
from torch.utils._ordered_set import OrderedSet
from torch.utils.checkpoint import CheckpointPolicy

from memplan._lives import Life, Lives, of_lives

#: Into how many pieces the forward half is cut at most.
_MOST_PIECES = 24

#: How much larger the budgets are that are looked at, lest a smaller one needs more.
_LARGER = (0.05, 0.1, 0.2)

#: Shares of the budget that choices are made for, until a cut is within the whole of it.
_SHARES = (1.0, 0.85, 0.7, 0.5, 0.25, 0.0)

#: How many of PyTorch's cuts are made for one of them: each takes a good part of a second.
_MOST_CUTS = 4

#: A place is narrow if what is live there is at most this multiple of the narrowest.
_NARROW = 1.5


@dataclasses.dataclass(frozen=True)
class Choice:
    """Values to save, and what comes of it."""

    nodes: tuple[Any, ...]
    #: Bytes that PyTorch saves, beyond the arguments.
    saved: int
    #: Most bytes live in the backward half, arguments not counted.
    peak: int
    #: Operations that are computed again.
    work: float


class Solver(CustomKnapsackSolver):  # type: ignore[misc]
    """For ``torch._functorch.config.activation_memory_budget_solver``."""

    def __init__(self) -> None:
        #: What was chosen last, for who wants to look.
        self.chosen: Choice | None = None

    def __call__(
        self,
        memory: list[float],
        joint_graph: torch.fx.Graph,
        max_memory: float,
        node_info: Any,
        all_recomputable_banned_nodes: list[torch.fx.Node],
    ) -> tuple[list[int], list[int]]:
        banned = all_recomputable_banned_nodes
        # PyTorch divides bytes by those that it would save without a budget.
        largest = max(range(len(banned)), key=lambda i: memory[i])
        whole = _bytes_of(banned[largest]) / memory[largest]
        graph = _Graph(joint_graph, node_info, banned)
        budget = int(whole * max_memory)
        own = {node: node.meta.get("recompute") for node in joint_graph.nodes}
        unlimited = graph.choice(banned).peak
        # Where more bytes allow a lower peak, that is the most that fewer bytes may need.
        larger = [max_memory + more for more in _LARGER if max_memory + more < 1]
        allowed = min(graph.fast(int(whole * m), m, unlimited)[0].peak for m in (max_memory, *larger))
        self.chosen = None
        for share in _SHARES:
            within = []
            for choice in _first(graph.fast(int(share * budget), max_memory, unlimited), allowed):
                # PyTorch decides by a cut of its own, which may be through other values.
                cut = graph.cut(choice.nodes, own)
                within += [cut] if cut.saved <= budget else []
                if within and within[-1] is cut and cut.peak <= 1.05 * allowed:
                    break
            if within:
                self.chosen = min(within, key=lambda cut: (cut.peak > 1.05 * allowed, cut.work, cut.peak))
                break
        kept = set(self.chosen.nodes) if self.chosen is not None else set()
        _mark(kept, own)
        if self.chosen is not None:
            # Nodes that outlive their graph crash PyTorch.
            self.chosen = dataclasses.replace(self.chosen, nodes=())
        saved = [i for i, node in enumerate(banned) if node in kept]
        return saved, [i for i, node in enumerate(banned) if node not in kept]

    def uuid(self) -> Any:
        """What PyTorch's cache tells versions of it apart by."""
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def plan(program: Any) -> Lives:
    """Who holds the peak of a program, and one arena for all that it computes.

    ``program`` is what ``torch.export.export`` gives, a ``torch.fx.GraphModule`` or a graph whose nodes have fake
    values. Its nodes run in order; views are part of the array that they are of. Arguments and parameters are there all
    the time.
    """
    graph = getattr(program, "graph", program)
    nodes = [node for node in graph.nodes if node.op != "output"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    last = {_storage(node): len(nodes) for node in output.all_input_nodes}
    first: dict[Any, int] = {}
    for i, node in enumerate(nodes):
        first.setdefault(_storage(node), i)
        for read in (node, *node.all_input_nodes):
            last[_storage(read)] = max(last.get(_storage(read), 0), i + 1)
    given = [node for node in first if node.op in ("placeholder", "get_attr")]
    computed = [node for node in first if node.op not in ("placeholder", "get_attr")]
    lives = [Life(_bytes_of(n), first[n], last[n], f"{n.name} = {n.target}", _source_of(n)) for n in computed]
    return of_lives(type(program).__name__, lives, always=sum(map(_bytes_of, given)))


def _source_of(node: Any) -> str:
    """The user's line, of the stack that PyTorch keeps for a node: the innermost outside of PyTorch."""
    for line in reversed(str(node.meta.get("stack_trace") or "").splitlines()):
        parts = line.strip().split('"')
        if len(parts) == 3 and "/torch/" not in parts[1]:
            return f"{Path(parts[1]).name}:{parts[2].split('line ')[1].split(',')[0]}"
    return ""


class _Graph:
    """The joint graph of both halves, and what of it is live when."""

    def __init__(self, joint_graph: Any, node_info: Any, banned: Sequence[Any]) -> None:
        self.joint, self.info, self.banned = joint_graph, node_info, list(banned)
        self.inputs = set(node_info.inputs)
        self.arguments = {_storage(node) for node in joint_graph.nodes if node.op == "placeholder"}
        self.forward = [node for node in node_info.required_fw_nodes if node not in self.inputs]
        self.backward = [n for n in joint_graph.nodes if n in node_info.tangents_closure and n.op != "output"]
        self._work: dict[Any, float] = {}

    def work(self, node: Any) -> float:
        """Operations of a node."""
        if node not in self._work:
            self._work[node] = _operations_of(node)
        return self._work[node]

    def choices(self, budget: int) -> Iterator[Choice]:
        """Values at narrow places, and with those that save most work for their bytes, as far as the budget goes."""
        costly = sorted(self.banned, key=lambda n: -self.work(n) / max(1, _bytes_of(n)))
        seen = set()
        for places in self._narrow_places():
            base = list({node: None for place in places for node in place})
            for share in (0.0, 0.25, 0.5, 0.75, 1.0):
                left = share * (budget - sum(map(_bytes_of, base)))
                nodes = list(base)
                for node in costly:
                    if node not in base and _bytes_of(node) <= left:
                        nodes.append(node)
                        left -= _bytes_of(node)
                if frozenset(nodes) not in seen:
                    seen.add(frozenset(nodes))
                    yield self.choice(nodes)

    def fast(self, budget: int, share: float, unlimited: int) -> list[Choice]:
        """Choices within a budget whose peak is at most a share of the way from the lowest to the one without a budget,
        those first that compute least again."""
        choices = [choice for choice in self.choices(budget) if choice.saved <= budget]
        least = min(choice.peak for choice in choices)
        allowed = least + share * max(0, unlimited - least)
        return sorted((c for c in choices if c.peak <= allowed), key=lambda c: (c.work, c.peak, c.saved))

    def choice(self, nodes: Sequence[Any], saved: Sequence[Any] | None = None) -> Choice:
        """What comes of saving some values, if PyTorch saves these, or others for them."""
        given = [node for node in (nodes if saved is None else saved) if node not in self.inputs]
        order, again = self._order({*given, *self.inputs})
        # Views of arguments take no bytes.
        own = [node for node in given if _storage(node) not in self.arguments]
        peak = peak_of(order, own, self.arguments, self._results())
        return Choice(tuple(nodes), sum(map(_bytes_of, own)), peak, sum(map(self.work, again)))

    def cut(self, nodes: Sequence[Any], own: dict[Any, Any]) -> Choice:
        """What comes of saving some values, by PyTorch's own cut."""
        _mark(nodes, own)
        options = MinCutOptions(False, False, False, False, config.ban_recompute_reductions)
        others = OrderedSet(n for n in self.banned if n not in set(nodes))
        saved, _ = solve_min_cut(self.joint, self.info, options, others)
        _mark((), own)
        return self.choice(nodes, saved)

    def _narrow_places(self) -> list[list[list[Any]]]:
        """For each number of pieces, the values that are live between one piece and the next."""
        last: dict[Any, int] = {}
        position = {node: i for i, node in enumerate(self.forward)}
        for node in self.forward:
            for user in node.users:
                last[node] = max(last.get(node, -1), position.get(user, -1))
        live: list[list[Any]] = []
        open_: list[Any] = []
        for i, node in enumerate(self.forward):
            open_ = [n for n in (*open_, node) if last.get(n, -1) > i and _storage(n) not in self.arguments]
            live.append(list({_storage(n): n for n in open_}.values()))
        sizes = [sum(map(_bytes_of, nodes)) for nodes in live]
        inner = [i for i in range(len(live)) if sizes[i] > 0]
        if not inner:
            return [[]]
        total = sum(self.work(n) for n in self.forward)
        done, before = [], 0.0
        for node in self.forward:
            before += self.work(node)
            done.append(before / max(total, 1.0))
        usual = sorted(sizes[i] for i in inner)[len(inner) // 10]
        narrow = [i for i in inner if sizes[i] <= _NARROW * max(usual, 1)]
        found: list[list[list[Any]]] = [[]]
        for pieces in range(2, _MOST_PIECES + 1):
            targets = (k / pieces for k in range(1, pieces))
            places = sorted({min(narrow, key=lambda i: (abs(done[i] - t), i)) for t in targets})
            found.append([live[i] for i in places])
        return found

    def _order(self, saved: set[Any]) -> tuple[list[Any], list[Any]]:
        """The backward half in order, each value that is computed again just before its first use, and these values."""
        order: list[Any] = []
        again: list[Any] = []
        have = set(saved)
        for node in self.backward:
            stack = [node]
            while stack:
                top = stack[-1]
                if top in have:
                    stack.pop()
                    continue
                missing = [a for a in top.all_input_nodes if a not in have and a.op != "placeholder"]
                if missing:
                    stack += reversed(missing)
                    continue
                stack.pop()
                have.add(top)
                order.append(top)
                if top not in self.info.tangents_closure:
                    again.append(top)
        return order, again

    def _results(self) -> set[Any]:
        (output,) = (node for node in self.joint.nodes if node.op == "output")
        return {_storage(node) for node in output.all_input_nodes if node in self.info.tangents_closure}


def peak_of(order: Sequence[Any], given: Iterable[Any], arguments: set[Any], results: set[Any]) -> int:
    """Most bytes that are live while nodes of a graph run in order: storages of ``given`` until they were read last,
    others from where they are made, ``results`` to the end; ``arguments`` are not counted."""
    last: dict[Any, int] = {}
    for i, node in enumerate(order):
        for read in (node, *node.all_input_nodes):
            last[_storage(read)] = i
    live = {_storage(n): _bytes_of(n) for n in given}
    live = {storage: size for storage, size in live.items() if storage in last or storage in results}
    now = peak = sum(live.values())
    ends: dict[int, list[Any]] = {}
    for storage, i in last.items():
        ends.setdefault(i, []).append(storage)
    for i, node in enumerate(order):
        storage = _storage(node)
        if storage not in live and storage not in arguments:
            live[storage] = _bytes_of(node)
            now += live[storage]
            peak = max(peak, now)
        for ended in ends.get(i, ()):
            if ended in live and ended not in results:
                now -= live.pop(ended)
    return peak


def _first(choices: Sequence[Choice], allowed: int) -> list[Choice]:
    """Those that compute least again and need no more than is allowed, and those that need least."""
    low = sorted(choices, key=lambda choice: choice.peak)
    fitting = [choice for choice in choices if choice.peak <= allowed]
    return [*fitting[:_MOST_CUTS], *low[:_MOST_CUTS]]


def _mark(nodes: Iterable[Any], own: dict[Any, Any]) -> None:
    """Says of nodes, and of no others, that they must be saved; what was said before of others stays."""
    for node, said in own.items():
        if said is None:
            node.meta.pop("recompute", None)
        else:
            node.meta["recompute"] = said
    for node in nodes:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _storage(node: Any) -> Any:
    """The node that made the array of which this one's value is a view, or is part."""
    while node.op == "call_function" and node.args and _is_view(node.target):
        node = node.args[0]
    return node


def _is_view(target: Any) -> bool:
    return target is operator.getitem or bool(getattr(target, "is_view", False)) or "_unsafe_view" in str(target)


def _bytes_of(node: Any) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return sum(int(v.numel()) * v.element_size() for v in values if isinstance(v, torch.Tensor))


def _operations_of(node: Any) -> float:
    """Operations of a node: of products and convolutions, those that multiply or add; of others, one for each byte."""
    name, value = str(node.target), node.meta.get("val")
    operands = [a.meta["val"] for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    value = value[0] if isinstance(value, (list, tuple)) and value else value
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return 0.0
    if "mm" in name.removeprefix("aten.").split(".")[0] and len(operands) >= 2:
        return 2.0 * int(value.numel()) * int(operands[-1].shape[-2])
    if "scaled_dot_product" in name and len(operands) >= 3:
        return 4.0 * int(value.numel()) * int(operands[1].shape[-2])
    if "convolution" in name and len(operands) >= 2:
        return 2.0 * int(value.numel()) * int(operands[1].numel()) / max(1, int(operands[1].shape[0]))
    return float(_bytes_of(node))
