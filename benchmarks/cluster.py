"""What Ray adds to a run: the same run in cells of this process and on a node of a cluster on this machine.

    python benchmarks/cluster.py [--rounds 200] [--batch 500] [--nodes 1]

One run at a time first, taking turns, each after a pause of 10 ms. Then many at once, 16 at a time, each way by itself.
Starts and ends a cluster of its own. "Overhead" is the difference; in batch it is the difference of the time of the
whole, for each run; "cpu" is the processor time of all processes together, for each run of a batch. Needs root and
cgroups v1, to count that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from processor_time import counted

import redoma
from ray_nodes import Nodes
from redoma.pipeline.batch import as_they_end

CODE = "print(6 * 7)"


async def one(executor: redoma.AsyncExecutor, backend: str) -> float:
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    if not (await executor.run(CODE, backend=backend)).ok:
        raise RuntimeError("a run did not end well")
    return 1000 * (time.perf_counter() - began)


async def many(
    executor: redoma.AsyncExecutor, backend: str, count: int, used: Callable[[], float]
) -> tuple[float, float]:
    """Milliseconds for each of many runs, and milliseconds of processor time."""

    async def work(number: int) -> redoma.Result:
        return await executor.run(CODE, backend=backend)

    began, cpu = time.perf_counter(), used()
    async for result in as_they_end(work, range(count), 16):
        if not result.ok:
            raise RuntimeError(f"a run did not end well: {result.error}")
    return 1000 * (time.perf_counter() - began) / count, 1000 * (used() - cpu) / count


async def measure(config: redoma.Config, rounds: int, batch: int, used: Callable[[], float]) -> dict[str, float]:
    async with redoma.AsyncExecutor(config) as executor:
        for backend in ("jail", "ray"):
            for _ in range(20):
                await one(executor, backend)
        times: dict[str, list[float]] = {"jail": [], "ray": []}
        for _ in range(rounds):
            for backend, taken in times.items():
                taken.append(await one(executor, backend))
        found: dict[str, float] = {}
        for backend, taken in times.items():
            cuts = statistics.quantiles(taken, n=20)
            found |= {
                f"{backend} p50": statistics.median(taken),
                f"{backend} p95": cuts[18],
                f"{backend} min": min(taken),
            }
        batches: dict[str, list[tuple[float, float]]] = {"jail": [], "ray": []}
        for _ in range(4):
            for backend, each in batches.items():
                each.append(await many(executor, backend, batch, used))
        for backend, each in batches.items():
            found[f"{backend} batch"] = min(wall for wall, _ in each)
            found[f"{backend} cpu"] = statistics.median(cpu for _, cpu in each)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    with counted() as used:
        nodes = Nodes([""] * options.nodes)
        try:
            found = asyncio.run(measure(nodes.head.config, options.rounds, options.batch, used))
        finally:
            nodes.close()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {options.nodes} nodes; ms")
    for name in ("min", "p50", "p95", "batch", "cpu"):
        jail, ray = found[f"jail {name}"], found[f"ray {name}"]
        print(f"{name:6} jail {jail:7.2f}   ray {ray:7.2f}   overhead {ray - jail:6.2f}")
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
