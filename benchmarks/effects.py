"""What a run over a project costs beside one in an empty directory, and what applying its changes costs: in one run.

    python benchmarks/effects.py [--quick] [--json]

The same line of Bash, through the public API with default policy, limits, redaction and audit log: in a directory of
its own; over a project of 10 files; over one of 10,000. Cells are armed in all three. Each writes one file, so that
there is an effect to find and to keep. Then changes are applied, 1 and 100 of them, to the small and to the large
project. Contenders take turns in an order that is shuffled every round. Another shows what one would do instead: copy
the project and run there.

Missing a bar is a finding, not a failure: the exit status is 0 either way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from redoma import AsyncExecutor
from redoma.backends.jail import JailBackend
from redoma.config import AuditConfig, Config

CODE = "echo hello > written"
SIZES = {"small": 10, "large": 10_000}

Once = Callable[[], Awaitable[float]]


def plant(place: Path, files: int) -> Path:
    for number in range(files):
        directory = place / f"d{number // 100}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}.txt").write_text(f"file {number}\n" * 20)
    return place


async def timed(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return (time.perf_counter() - start) * 1000


class Bench:
    def __init__(self, place: Path) -> None:
        self.place = place
        state = place / "state"
        self.config = Config(audit=AuditConfig(directory=state / "audit"), state=state)
        self.projects = {name: plant(place / name, files) for name, files in SIZES.items()}
        self.executor = AsyncExecutor(self.config, backends=[JailBackend(minimum=2)])

    async def rest(self) -> None:
        """Until a cell of each kind is armed: nobody pays for another's."""
        jail = self.executor.backends["jail"]
        assert isinstance(jail, JailBackend)
        pools = jail._pools.values()
        while any(not pool.counts()["armed"] or pool.counts()["arming"] for pool in pools):  # noqa: ASYNC110 - a thread's
            await asyncio.sleep(0.002)

    def runs(self) -> dict[str, Once]:
        async def scratch() -> float:
            return await timed(self.executor.run(CODE, "bash"))

        def over(name: str) -> Once:
            async def once() -> float:
                project = self.projects[name]
                return await timed(self.executor.run(CODE, "bash", workspace="overlay", project=project))

            return once

        async def copied() -> float:
            return await timed(asyncio.to_thread(self._copy))

        found: dict[str, Once] = {"scratch": scratch}
        found |= {f"overlay, {files:,} files": over(name) for name, files in SIZES.items()}
        return found | {"copy of 10,000 files, and bash": copied}

    def _copy(self) -> None:
        target = self.place / "copy"
        shutil.copytree(self.projects["large"], target)
        subprocess.run(["bash", "-c", CODE], cwd=target, check=True)
        shutil.rmtree(target)

    async def apply(self, name: str, changes: int) -> float:
        code = f"for n in $(seq {changes}); do echo $n > new-$n; done"
        result = await self.executor.run(code, "bash", workspace="overlay", project=self.projects[name])
        took = await timed(self.executor.apply(result.id))
        await self.executor.undo(result.id)
        return took


async def measure(rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="redoma-effects-") as directory:
        bench = Bench(Path(directory))
        async with bench.executor:
            runs = bench.runs()
            times: dict[str, list[float]] = {name: [] for name in runs}
            for name in runs:
                await runs[name]()
            for number in range(rounds):
                for name in random.sample(list(runs), len(runs)):
                    if name.startswith("copy") and number % 5:
                        continue
                    await bench.rest()
                    times[name].append(await runs[name]())
            for project, files in SIZES.items():
                for changes in (1, 100):
                    name = f"apply {changes} to {files:,} files"
                    times[name] = [await bench.apply(project, changes) for _ in range(max(3, rounds // 10))]
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    found = asyncio.run(measure(10 if given.quick else 100))
    scratch = found["scratch"]
    ratio = found["overlay, 10,000 files"] / scratch
    independent = found["overlay, 10,000 files"] / found["overlay, 10 files"]
    if given.json:
        print(json.dumps({"load": load, "milliseconds": found, "ratio": ratio}))
        return
    print(f"load before: {load:.1f}; milliseconds, p50")
    for name, took in found.items():
        beside = f"{took / scratch:6.2f} x scratch" if not name.startswith("apply") else ""
        print(f"  {name:32} {took:9.2f}  {beside}")
    print(f"bar: overlay over 10,000 files at most 3 x scratch: {ratio:.2f}, {'met' if ratio <= 3 else 'MISSED'}")
    print(f"large beside small: {independent:.2f}")


if __name__ == "__main__":
    main()
