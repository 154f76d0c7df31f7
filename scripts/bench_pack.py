#!/usr/bin/env python3
"""Packs problems with memplan and with SuperMalloc of omnimalloc, one after the other.

    cargo build --release -p memplan-pack --example bench
    python scripts/bench_pack.py --bench target/release/examples/bench --capacity 1048576 ../shared/dsa/?.1048576.csv

The Python that runs this needs the package `omnimalloc`. With a capacity, both are asked whether the problem fits it;
without one, both are asked for the lowest height. memplan has one thread; SuperMalloc has three, as it races three
orders and is lost where one has to end before the next begins, so compare CPU time. Heights are checked here against
the offsets of the peer, and by the bench program against those of memplan.
"""

import argparse
import csv
import math
import os
import resource
import subprocess
import time

from omnimalloc import Allocation
from omnimalloc._cpp import Partition, try_solve_many
from omnimalloc.allocators.supermalloc import DEFAULT_HEURISTICS, SupermallocAllocator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the example program `bench` of memplan-pack")
    parser.add_argument("--capacity", type=int, help="ask for this many bytes instead of for the lowest height")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for each answer")
    parser.add_argument("problems", nargs="+")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':20} | {'memplan':^42} | {'SuperMalloc':^32}")
    print(f"{'instance':20} | {'s':>8} {'CPU s':>8} {'nodes':>10} {'height':>13} | {'s':>8} {'CPU s':>8} {'height':>13}")
    ours, theirs = [], []
    for path in arguments.problems:
        a = memplan(arguments, path)
        b = supermalloc(arguments, path)
        ours.append(max(a["cpu"], 1e-3))
        theirs.append(max(b["cpu"], 1e-3))
        name = os.path.basename(path).removesuffix(".csv")
        print(
            f"{name:20} | {a['seconds']:8.3f} {a['cpu']:8.3f} {a['nodes']:10} {a['height']:13}"
            f" | {b['seconds']:8.3f} {b['cpu']:8.3f} {b['height'] or 'none':>13}",
            flush=True,
        )
    print(f"geometric mean of CPU: memplan {mean(ours):.3f} s, SuperMalloc {mean(theirs):.3f} s (a millisecond at least)")
    print(f"load after: {os.getloadavg()[0]:.1f}")


def memplan(arguments: argparse.Namespace, path: str) -> dict:
    """The line that the bench program prints, and the CPU time of the whole program."""
    case = path if arguments.capacity is None else f"{path}@{arguments.capacity}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [arguments.bench, "--threads", "1", "--limit", str(arguments.limit), case]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, _, _, height, _, seconds, nodes, *_ = output.splitlines()[-1].split()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": float(seconds), "cpu": cpu, "nodes": int(nodes), "height": int(height)}


def supermalloc(arguments: argparse.Namespace, path: str) -> dict:
    """The search itself, without what Python needs to read the problem."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    problem = tuple(
        Allocation(id=row["id"], size=int(row["size"]), start=int(row["lower"]), end=int(row["upper"])) for row in rows
    )
    if arguments.capacity is None:
        return timed(lambda: lowest(problem, arguments.limit))
    # It goes on below the capacity until its time is up, so it is given the least time, by doubling, that is enough.
    limit = min(0.025, arguments.limit)
    while True:
        answer = timed(lambda: within(problem, arguments.capacity, limit))
        if answer["height"] is not None or limit >= arguments.limit:
            return answer
        limit = min(2 * limit, arguments.limit)


def timed(pack) -> dict:
    """What packing takes, and the height of its answer."""
    wall, cpu = time.perf_counter(), time.process_time()
    placed = pack()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"seconds": wall, "cpu": cpu, "height": height(placed)}


def lowest(problem: tuple, limit: float) -> tuple:
    """As low as it gets."""
    return SupermallocAllocator(timeout=limit, num_threads=len(DEFAULT_HEURISTICS)).solve(problem).allocations


def within(problem: tuple, capacity: int, limit: float) -> tuple:
    """Within the capacity, or nothing."""
    base = Partition.from_allocations(problem)
    # Bounds are exclusive.
    bound = capacity + 1
    orders = [base.reorder("".join(heuristic)).with_bound(bound) for heuristic in DEFAULT_HEURISTICS]
    rules = {"canonical": True, "dominance": True, "floor_inference": True, "monotonic_floor": True, "decompose": True}
    solution = try_solve_many(orders, bound, None, **rules, timeout=limit, num_threads=len(orders))
    return solution.allocations if solution else ()


def height(placed) -> int | None:
    """One past the highest byte; fails where two that are live together overlap."""
    live = []
    for a in sorted(placed, key=lambda allocation: allocation.start):
        live = [b for b in live if b.end > a.start]
        for b in live:
            assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset, f"{a.id} overlaps {b.id}"
        live.append(a)
    return max((a.offset + a.size for a in placed), default=None)


def mean(seconds: list[float]) -> float:
    return math.exp(sum(map(math.log, seconds)) / len(seconds))


if __name__ == "__main__":
    main()
