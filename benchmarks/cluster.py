"""What Ray adds to a run: the same run in cells of this process and on a node of a cluster on this machine.

    python benchmarks/cluster.py [--rounds 200] [--batch 500] [--nodes 1]

One run at a time first, taking turns, each after a pause of 10 ms. Then many at once, 16 at a time, each way by itself.
Starts and ends a cluster of its own. "Overhead" is the difference; in batch it is the difference of the time of the
whole, for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import redoma
from redoma.config import AuditConfig
from redoma.pipeline.batch import as_they_end

CODE = "print(6 * 7)"
REDOMA = Path(sys.executable).with_name("redoma")


class Machine:
    """A node with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.state = home, home / ".local" / "state" / "redoma"
        home.mkdir()

    def call(self, *arguments: str) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        subprocess.run([str(REDOMA), *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)


async def one(executor: redoma.AsyncExecutor, backend: str) -> float:
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    if not (await executor.run(CODE, backend=backend)).ok:
        raise RuntimeError("a run did not end well")
    return 1000 * (time.perf_counter() - began)


async def many(executor: redoma.AsyncExecutor, backend: str, count: int) -> float:
    """Milliseconds for each of many runs."""

    async def work(number: int) -> redoma.Result:
        return await executor.run(CODE, backend=backend)

    began = time.perf_counter()
    async for result in as_they_end(work, range(count), 16):
        if not result.ok:
            raise RuntimeError(f"a run did not end well: {result.error}")
    return 1000 * (time.perf_counter() - began) / count


async def measure(config: redoma.Config, rounds: int, batch: int) -> dict[str, float]:
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
        batches: dict[str, list[float]] = {"jail": [], "ray": []}
        for _ in range(3):
            for backend, each in batches.items():
                each.append(await many(executor, backend, batch))
        found |= {f"{backend} batch": min(each) for backend, each in batches.items()}
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="redoma-benchmark-"))
    machines = [Machine(place / f"m{number}") for number in range(options.nodes)]
    head = machines[0]
    try:
        head.call("cluster", "start", "--host", "127.0.0.1")
        for machine in machines[1:]:
            machine.call("cluster", "join", str(head.state / "cluster" / "invitation.json"))
        config = redoma.Config(audit=AuditConfig(directory=head.state / "audit"), state=head.state)
        found = asyncio.run(measure(config, options.rounds, options.batch))
    finally:
        for machine in reversed(machines):
            machine.call("cluster", "stop")
        shutil.rmtree(place)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {options.nodes} nodes; ms")
    for name in ("min", "p50", "p95", "batch"):
        jail, ray = found[f"jail {name}"], found[f"ray {name}"]
        print(f"{name:6} jail {jail:7.2f}   ray {ray:7.2f}   overhead {ray - jail:6.2f}")
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
