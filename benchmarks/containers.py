"""How long it takes to run a line of Python in a container, side by side with what one would use instead, in one run.

    python benchmarks/containers.py [--quick] [--json] [--image python:3.11-slim]

Redoma is measured as a user has it: through the public API, with its default policy, limits, hardening, redaction and
audit log (only the log's directory is a temporary one). "Fresh" makes a container for the run, "pooled" finds one that
waits; both remove it before they answer, and neither uses one twice. `docker run` is measured as one types it, and with
the same hardening; `docker exec` and an open session of llm-sandbox use one container for all runs, so they share what
a run leaves behind. llm-sandbox (`pip install 'llm-sandbox[docker]'`, in this environment) is spared what would take it
longest: a virtual environment in each container, and the ten seconds that it waits for a container to stop.

The contenders take turns in an order that is shuffled every round, and between two turns everybody waits until the pool
is at rest: no contender pays for the containers of another. What is not here is left out, and the script says what to
install. The bars are judged at the end; missing one is a finding, not a failure, so the exit status is 0 either way.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from contenders import BARE_PROGRAM, PYTHON_CODE, Contender, NotHere, Threads, docker
from latency import QUIET, Bar, Times, say, table

from redoma import AsyncExecutor
from redoma.backends.docker import Box, DockerBackend
from redoma.config import AuditConfig, Config

FRESH, POOLED, RUN = "redoma, fresh", "redoma, pooled", "docker run"
HARDENED = "docker run, hardened alike"
LLM, LLM_OPEN = "llm-sandbox, fresh", "llm-sandbox, open session"
READY = 2
"""Containers that the pool keeps."""


@dataclasses.dataclass
class Report:
    machine: dict[str, Any]
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    times: dict[str, Times] = dataclasses.field(default_factory=dict)
    bars: list[Bar] = dataclasses.field(default_factory=list)


class Bench:
    """The contenders, and what they share."""

    def __init__(self, stack: AsyncExitStack, report: Report, image: str) -> None:
        self._stack, self._report, self._image = stack, report, image
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="redoma-containers-"))
        self._config = Config(audit=AuditConfig(directory=Path(directory)))
        self._threads = Threads(stack.enter_context(ThreadPoolExecutor(1)))

    async def contenders(self) -> list[Contender]:
        found = [
            Contender(FRESH, await self._redoma(DockerBackend(Box(python=self._image)))),
            Contender(POOLED, await self._redoma(DockerBackend(Box(python=self._image), minimum=READY))),
        ]
        for look_for in (self._docker, self._llm_sandbox):
            try:
                found += look_for()
            except NotHere as error:
                self._report.left_out[look_for.__name__.strip("_")] = str(error)
        for contender in list(found):  # once each, so that what doesn't work here is known before the clock runs
            try:
                await contender.once()
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                if contender.name in (FRESH, POOLED):
                    raise
                self._report.left_out[contender.name] = f"it does not work here: {error}"
                found.remove(contender)
        return found

    async def _redoma(self, backend: DockerBackend) -> Callable[[], Awaitable[float]]:
        executor = await self._stack.enter_async_context(AsyncExecutor(self._config, backends=[backend]))

        async def once() -> float:
            start = time.perf_counter()
            result = await executor.run(PYTHON_CODE, backend="docker")
            elapsed = time.perf_counter() - start
            if result.stdout != "hello\n":  # a refusal is quick, and no measurement
                raise RuntimeError(f"{result.status}: {result.error or result.stdout!r}")
            return elapsed * 1000

        return once

    def _docker(self) -> list[Contender]:
        found = [dataclasses.replace(one, every=1) for one in docker(self._threads, self._stack, self._image)]
        alike = ["--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        alike += ["--user", "65534:65534", "--memory", "512m", "--memory-swap", "512m", "--pids-limit", "101"]
        alike += ["--tmpfs", "/tmp:size=256m", "--log-driver", "none"]
        words = ("docker", "run", "--rm", *alike, self._image, "python3", *BARE_PROGRAM[1:])
        return [*found, Contender(HARDENED, self._threads.process(*words))]

    def _llm_sandbox(self) -> list[Contender]:
        """Version 0.3. It takes an image that is there and pulls only what is not; without `skip_environment_setup` it
        makes a virtual environment in each container and asks PyPI for a newer pip."""
        try:
            module: Any = importlib.import_module("llm_sandbox")
            importlib.import_module("docker")
        except ImportError as error:
            raise NotHere(f"{error}; pip install 'llm-sandbox[docker]'") from error
        settings = {
            "lang": "python",
            "image": self._image,
            "skip_environment_setup": True,
            "runtime_configs": {"network_mode": "none", "stop_signal": "SIGKILL"},
        }

        def fresh() -> str:
            with module.SandboxSession(**settings) as session:
                return str(session.run(PYTHON_CODE).stdout)

        kept = self._stack.enter_context(module.SandboxSession(**settings))
        return [
            Contender(LLM, self._threads.blocking(fresh)),
            Contender(LLM_OPEN, self._threads.blocking(lambda: str(kept.run(PYTHON_CODE).stdout))),
        ]

    async def compare(self, contenders: list[Contender], rounds: int) -> dict[str, Times]:
        order, taken = random.Random(4), {contender.name: list[float]() for contender in contenders}
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for contender in order.sample(contenders, len(contenders)):
                await self._settle()
                taken[contender.name].append(await contender.once())
        return {name: Times.of(values) for name, values in taken.items()}

    async def _settle(self) -> None:
        """Until the pool has what it keeps, seen from outside, and long enough for those that wait to be ready."""
        deadline = time.monotonic() + 60
        kept = ("docker", "ps", "--quiet", "--filter", f"label=redoma.pid={os.getpid()}")
        while len((await asyncio.to_thread(subprocess.check_output, kept)).split()) < READY:
            if time.monotonic() > deadline:
                raise RuntimeError("the pool does not come to rest")
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)


async def measure(rounds: int, image: str) -> Report:
    report = Report(
        machine={
            "processors": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load before": round(os.getloadavg()[0], 2),
        }
    )
    async with AsyncExitStack() as stack:
        bench = Bench(stack, report, image)
        report.times = await bench.compare(await bench.contenders(), rounds)
    report.machine["load after"] = round(os.getloadavg()[0], 2)
    report.bars = [judge(report, POOLED, 1 / 2, "1/2"), judge(report, FRESH, 0.9, "0.9")]
    return report


def judge(report: Report, name: str, most: float, spoken: str) -> Bar:
    what = f"{name}, p50, at most {spoken} of docker run"
    if RUN not in report.times:
        return Bar(what, "not measured: see what was left out", None)
    own, other = report.times[name].p50, report.times[RUN].p50
    return Bar(what, f"{own / other:.3f} ({own:.0f} ms beside {other:.0f} ms)", own / other <= most)


def show(report: Report) -> None:
    print(", ".join(f"{name} {value}" for name, value in report.machine.items()))
    if report.machine["load before"] > QUIET:
        print("The machine was not quiet: only the ratios are worth reading, and those with care.")
    table("one line of Python in a container, milliseconds", report.times)
    if RUN in report.times:
        print(f"\nbeside {RUN}, p50")
        for name, times in report.times.items():
            print(f"{name:38}{times.p50 / report.times[RUN].p50:9.3f}x")
    if report.left_out:
        print("\nleft out")
    for name, why in report.left_out.items():
        print(f"{name:38}{why}")
    print()
    for bar in report.bars:
        print(f"{'not judged' if bar.met is None else 'met' if bar.met else 'MISSED':12}{bar.what}: {bar.measured}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="How long a run in a container takes, beside what one would use instead."
    )
    parser.add_argument("--quick", action="store_true", help="few runs, to see that it works: no figures to write down")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--image", default="python:3.11-slim", help="of all contenders")
    options = parser.parse_args()
    try:
        report = asyncio.run(measure(3 if options.quick else 20, options.image))
    except RuntimeError as error:
        print(f"it could not be measured: {error}; see `redoma doctor`", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
