"""How long it takes to run a line of code in the jail, side by side with what one would use instead, in one run.

    python benchmarks/latency.py [--quick] [--json] [--image python:3.11-slim]

Redoma is measured as a user has it: through the public API, with its default policy, limits, redaction and audit log
(only the log's directory is a temporary one). "Backend only" leaves all of that out and shows what the jail itself
costs. The contenders take turns in an order that is shuffled every round, so whatever else the machine does hits them
alike, and between two turns everybody waits until the pool is at rest: no contender pays for the cells of another.

At 1 at a time, a run finds an armed cell, as it does for a user who thinks between two runs. At 2 and 8 at a time each
worker starts its next run when the last has ended, so most of them wait for a cell to be made. What is not here
(bubblewrap, sandlock, a Docker engine) is left out, and the script says what to install. The bars are judged at the
end, each as a ratio with a verdict; missing one is a finding, not a failure, so the exit status is 0 either way.

Processor time of a run is that of the whole machine while 8 workers run (`/proc/stat`), divided by the runs: so it
includes the zygote, the cells and the kernel's own threads. What the machine does in a second of rest is subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import startup
from contenders import (
    ARGV,
    BARE,
    BASH_CODE,
    PYTHON_CODE,
    WRAPPED,
    WRAPPED_BASH,
    Contender,
    NotHere,
    Threads,
    bubblewrap,
    docker,
    interpreters,
    sandlock,
)

from redoma import AsyncExecutor, Executor
from redoma.backends.jail import JailBackend
from redoma.config import AuditConfig, Config
from redoma.models import Request, Result, Stream

WIDTHS = (1, 2, 8)
EACH = 4
"""Runs of each worker in a turn, where there are several workers."""
THINK = 0.005
"""Seconds of peace before every turn, whosever it is."""
QUIET = 1.5
"""Load above which the figures are not worth writing down."""

MONTY, LEAN = "monty", "lean, Python"
NATIVE, PROCESS = "native, echo, backend only", "subprocess, echo"
JAIL, JAIL_BASH, JAIL_ARGV, JAIL_BARE = "jail, Python", "jail, Bash", "jail, argv", "jail, Python, backend only"


@dataclass(frozen=True)
class Times:
    p50: float
    p95: float
    p99: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Times:
        ordered = sorted(values)
        p95, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.95, 0.99))
        return cls(statistics.median(ordered), p95, p99, len(ordered))


@dataclass(frozen=True)
class Bar:
    what: str
    measured: str
    met: bool | None
    """None where it could not be measured."""


@dataclass
class Report:
    machine: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)
    cold: dict[str, Times] = field(default_factory=dict)
    armed: dict[int, dict[str, Times]] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)
    """Runs in a second."""
    processor: dict[str, float] = field(default_factory=dict)
    """Milliseconds of processor time of a run, of all processes, while those run."""
    commands: dict[str, Times] = field(default_factory=dict)
    """Of the command line."""
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    """MB of one armed cell."""
    preload: dict[str, Times] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)


class Bench:
    """What the contenders share: one executor with its pool, threads for those that block, and what is to be closed."""

    def __init__(self, stack: AsyncExitStack, report: Report, *, image: str) -> None:
        self.stack, self.report, self.image = stack, report, image
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="redoma-latency-"))
        self.config = Config(audit=AuditConfig(directory=Path(directory)))
        self.threads = Threads(stack.enter_context(ThreadPoolExecutor(max(WIDTHS))))
        self.jails: list[JailBackend] = []
        self._order = random.Random(3)

    # --- the contenders ---

    async def executor(self, *jail: JailBackend) -> AsyncExecutor:
        """A default one, or one that has this jail alone; either way it has run once and is waited for from now on."""
        executor = await self.stack.enter_async_context(AsyncExecutor(self.config, backends=jail or None))
        await self.asked(lambda: executor.run(PYTHON_CODE))
        self.watch(executor)
        return executor

    def watch(self, executor: AsyncExecutor) -> None:
        jail = executor.backends["jail"]
        assert isinstance(jail, JailBackend)
        self.jails.append(jail)

    async def asked(self, run: Callable[[], Awaitable[Result]], backend: str = "jail") -> float:
        start = time.perf_counter()
        result = await run()
        elapsed = time.perf_counter() - start
        if result.stdout != "hello\n" or result.backend != backend:  # a refusal is quick, and no measurement
            raise RuntimeError(
                f"{result.status} on {result.backend or 'no backend'}: {result.error or result.stdout!r}"
            )
        return elapsed * 1000

    async def contenders(self) -> list[Contender]:
        executor = await self.executor()
        request = Request(code=PYTHON_CODE)
        synchronous = self.stack.enter_context(Executor(self.config))
        self.watch(synchronous.core)
        lean = executor.backends["lean"]
        assert isinstance(lean, JailBackend)
        self.jails.append(lean)
        threads = self.threads

        def alone(backend: str, request: Request) -> Callable[[], Awaitable[float]]:
            """A backend without the stages around it."""

            async def once() -> float:
                said = bytearray()

                def sink(_: Stream, data: bytes) -> bool:
                    said.extend(data)
                    return True

                start = time.perf_counter()
                await executor.backends[backend].run(request, sink)
                elapsed = time.perf_counter() - start
                assert said == b"hello\n"
                return elapsed * 1000

            return once

        echo = Request(argv=tuple(ARGV), language="command", backend="native", env={"PATH": "/usr/bin:/bin"})
        found = [
            Contender(JAIL, lambda: self.asked(lambda: executor.run(PYTHON_CODE))),
            Contender(JAIL_BASH, lambda: self.asked(lambda: executor.run(BASH_CODE, "bash"))),
            Contender(JAIL_ARGV, lambda: self.asked(lambda: executor.command(ARGV))),
            Contender(JAIL_BARE, alone("jail", request)),
            Contender(
                "jail, Python, synchronous Executor", threads.blocking(lambda: synchronous.run(PYTHON_CODE).stdout)
            ),
            Contender(LEAN, lambda: self.asked(lambda: executor.run(PYTHON_CODE, backend="lean"), "lean")),
            Contender(NATIVE, alone("native", echo)),
            Contender(PROCESS, threads.process(*ARGV)),
            Contender(MONTY, lambda: self.asked(lambda: executor.run(PYTHON_CODE, backend="monty"), "monty")),
            *interpreters(threads),
        ]
        others: dict[str, Callable[[], list[Contender]]] = {
            "bubblewrap": lambda: bubblewrap(threads),
            "sandlock": lambda: sandlock(threads),
            "docker": lambda: docker(threads, self.stack, self.image),
        }
        for name, look_for in others.items():
            try:
                found += look_for()
            except NotHere as error:
                self.report.left_out[name] = str(error)
        for contender in list(found):  # once each, so that what doesn't work here is known before the clock runs
            try:
                await contender.once()
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                if contender.name in (JAIL, BARE):
                    raise
                self.report.left_out[contender.name] = f"it does not work here: {error}"
                found.remove(contender)
        return found

    # --- measuring ---

    async def settle(self) -> None:
        """Until no pool has anything left to do, and a moment more."""
        await rest(self.jails)
        await asyncio.sleep(THINK)

    async def turn(self, contender: Contender, width: int, each: int) -> list[float]:
        async def worker() -> list[float]:
            return [await contender.once() for _ in range(each)]

        await self.settle()
        taken = await asyncio.gather(*(worker() for _ in range(width)))
        return [value for values in taken for value in values]

    async def compare(self, contenders: list[Contender], width: int, rounds: int) -> dict[str, Times]:
        taken: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        for number in range(rounds):
            for contender in self._order.sample(contenders, len(contenders)):
                if number % contender.every or contender.name not in taken:
                    continue
                try:
                    taken[contender.name] += await self.turn(contender, width, 1 if width == 1 else EACH)
                except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                    if contender.name == BARE or contender.name.startswith("jail"):
                        raise
                    del taken[contender.name]
                    self.report.left_out[f"{contender.name}, {width} at a time"] = f"it fails: {error}"
        return {name: Times.of(values) for name, values in taken.items()}

    async def cold(self, named: dict[str, Contender], rounds: int) -> dict[str, Times]:
        """A new executor, and its first run: a zygote is started and a cell made. Our own modules are loaded."""

        def first(run: Callable[[AsyncExecutor], Awaitable[Result]], backend: str) -> Callable[[], Awaitable[float]]:
            async def once() -> float:
                start = time.perf_counter()
                async with AsyncExecutor(self.config) as executor:
                    made = (time.perf_counter() - start) * 1000
                    return made + await self.asked(lambda: run(executor), backend)

            return once

        fresh = [
            Contender(JAIL, first(lambda executor: executor.run(PYTHON_CODE), "jail")),
            Contender(JAIL_BASH, first(lambda executor: executor.run(BASH_CODE, "bash"), "jail")),
            Contender(JAIL_ARGV, first(lambda executor: executor.command(ARGV), "jail")),
            Contender(MONTY, first(lambda executor: executor.run(PYTHON_CODE, backend="monty"), "monty")),
        ]
        return await self.compare([*(one for one in fresh if one.name in named), named[BARE]], 1, rounds)

    async def throughput(self, contenders: list[Contender], seconds: float, rounds: int) -> None:
        """Runs in a second, with as many workers as the widest row has, and milliseconds of processor time of each."""
        sums = {contender.name: [0.0, 0.0, 0.0] for contender in contenders}
        for _ in range(rounds):
            await self.settle()
            idle = busy_seconds()
            await asyncio.sleep(1.0)
            others = busy_seconds() - idle
            for contender in self._order.sample(contenders, len(contenders)):
                one = await self._keep_busy(contender, seconds, others)
                sums[contender.name] = [sum(pair) for pair in zip(sums[contender.name], one, strict=True)]
        for name, (done, taken, used) in sums.items():
            self.report.throughput[name] = done / taken
            self.report.processor[name] = 1000 * used / done

    async def _keep_busy(self, contender: Contender, seconds: float, others: float) -> tuple[float, float, float]:
        """Return how many runs were made, their time and processor time. `others`: what all else takes in a second."""
        await self.settle()
        start, before = time.perf_counter(), busy_seconds()
        done = 0

        async def worker() -> None:
            nonlocal done
            while time.perf_counter() < start + seconds:
                await contender.once()
                done += 1

        await asyncio.gather(*(worker() for _ in range(max(WIDTHS))))
        taken = time.perf_counter() - start
        await self.settle()  # the last cells are taken apart, and those that are kept ready are made
        return done, taken, busy_seconds() - before - others * (time.perf_counter() - start)

    async def memory(self, *preload: str) -> dict[str, float]:
        """MB of an armed cell: what its processes have to themselves, and what one cell more adds all told.

        The second is the growth of the zygote and its cells together (Pss) from 2 cells to 10: it counts pages that
        the processes of a cell share with each other only, which are nobody's private ones.
        """
        sums, private = [], []
        for cells in (2, 10):
            jail = JailBackend(minimum=cells, preload=preload)
            async with AsyncExecutor(self.config, backends=[jail]) as executor:
                await self.asked(lambda executor=executor: executor.run(PYTHON_CODE))  # type: ignore[misc]
                await rest([jail])
                await asyncio.sleep(0.2)  # whoever made the last cell has ended by then
                zygote = jail._pools[None, None, None].zygote_pid
                assert zygote is not None
                tree = children()
                found = [megabytes(without_holders(below(cell, tree)), "Private_") for cell in tree.get(zygote, ())]
                assert len(found) == cells
                private += found
                sums.append(megabytes(without_holders(below(zygote, tree)), "Pss:"))
        return {"private": statistics.median(private), "most": max(private), "all told": (sums[1] - sums[0]) / 8}

    async def preloaded(self, rounds: int) -> dict[str, Times]:
        """The same armed run with and without numpy and pandas in the zygote, and what that is good for."""
        runs = {
            name: (await self.executor(JailBackend(preload=preload)))
            for name, preload in (("without", ()), ("preloaded", ("numpy", "pandas")))
        }

        def contender(name: str, what: str, code: str, every: int) -> Contender:
            return Contender(f"{name}, {what}", lambda: self.asked(lambda: runs[name].run(code)), every)

        importing = f"import numpy, pandas; {PYTHON_CODE}"
        both = [contender(name, "hello", PYTHON_CODE, 1) for name in runs]
        both += [contender(name, "import numpy, pandas", importing, 10) for name in runs]
        return await self.compare(both, 1, rounds)


def at_rest(jail: JailBackend) -> bool:
    if not jail._pools:
        return True  # it has not been used yet, and does nothing
    pool = jail._pools[None, None, None]
    counts = pool.counts()
    return pool._lacking() is None and not counts["arming"] and not counts["running"] and not pool._dying


async def rest(jails: list[JailBackend]) -> None:
    deadline = time.monotonic() + 30
    while not all(at_rest(jail) for jail in jails):
        if time.monotonic() > deadline:
            raise RuntimeError("the pool has not come to rest in 30 s")
        await asyncio.sleep(0.001)


def busy_seconds() -> float:
    """Processor time that the whole machine has used since it started."""
    user, nice, system, _idle, _waiting, interrupts, soft, *_ = (
        Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return sum(map(int, (user, nice, system, interrupts, soft))) / os.sysconf("SC_CLK_TCK")


def command_line(rounds: int) -> dict[str, Times]:
    """The calls of `startup.py` that have a bar, each a new process."""
    source = str(Path(__file__).resolve().parent.parent / "src")
    with tempfile.TemporaryDirectory(prefix="redoma-latency-") as state:
        samples = startup.measure({"now": source}, state, rounds)
    return {name: Times.of(sample.wall for sample in samples[name, "now"]) for name in startup.BARS}


def children() -> dict[int, list[int]]:
    """Process → its children, of the whole machine."""
    tree: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        tree.setdefault(parent, []).append(int(entry.parent.name))
    return tree


def below(process: int, tree: dict[int, list[int]]) -> list[int]:
    return [process, *(found for child in tree.get(process, ()) for found in below(child, tree))]


def without_holders(processes: Iterable[int]) -> list[int]:
    """All but the third process of each cell: it shares the memory of the second, which would count twice."""
    return [pid for pid in processes if not re.search(r"^NSpid:.*\b3$", Path(f"/proc/{pid}/status").read_text(), re.M)]


def megabytes(processes: list[int], prefix: str) -> float:
    lines = [line for pid in processes for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith(prefix)) * 1024 / 1e6


async def measure(quick: bool, image: str) -> Report:
    report = Report(
        machine={
            "processors": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "user": "root" if os.geteuid() == 0 else "unprivileged",
            "load before": round(os.getloadavg()[0], 2),
        }
    )
    async with AsyncExitStack() as stack:
        bench = Bench(stack, report, image=image)
        contenders = await bench.contenders()
        named = {contender.name: contender for contender in contenders}
        for width, rounds in zip(WIDTHS, (20, 3, 1) if quick else (200, 25, 8), strict=True):
            say(f"{len(contenders)} contenders, {width} at a time")
            report.armed[width] = await bench.compare(contenders, width, rounds)
        say("cold")
        report.cold = await bench.cold(named, 3 if quick else 20)
        say("throughput")
        busy = [named[name] for name in (JAIL, JAIL_BASH, BARE, WRAPPED, WRAPPED_BASH, MONTY) if name in named]
        await bench.throughput(busy, 1.0 if quick else 2.0, 1 if quick else 5)
        say("preload")
        try:
            report.preload = await bench.preloaded(20 if quick else 200)
        except RuntimeError as error:
            report.left_out["preload"] = f"numpy and pandas are not both here ({error}); pip install numpy pandas"
        say("memory")
        try:
            report.memory["nothing preloaded"] = await bench.memory()
            if report.preload:
                report.memory["numpy and pandas preloaded"] = await bench.memory("numpy", "pandas")
        except PermissionError as error:
            report.left_out["memory"] = f"{error.strerror}: this user can't look into a cell; run this as root"
    say("the command line")
    try:
        report.commands = await asyncio.to_thread(command_line, 3 if quick else 20)
    except SystemExit as error:
        report.left_out["the command line"] = str(error)
    report.machine["load after"] = round(os.getloadavg()[0], 2)
    report.bars = judge(report)
    return report


def judge(report: Report) -> list[Bar]:
    armed, two = report.armed[1], report.armed[2]
    unknown = "not measured: see what was left out"

    def ratio(what: str, own: Times | None, other: Times | None, most: float | None) -> Bar:
        if own is None or other is None:
            return Bar(what, unknown, None)
        share = own.p50 / other.p50
        met = None if most is None else share <= most
        return Bar(what, f"{share:.3f} ({own.p50:.2f} ms beside {other.p50:.2f} ms)", met)

    def at_most(what: str, measured: float | None, most: float, unit: str) -> Bar:
        if measured is None:
            return Bar(what, unknown, None)
        return Bar(what, f"{measured / most:.3f} of that ({measured:.2f} {unit})", measured <= most)

    own, bare = report.throughput[JAIL], report.throughput[BARE]
    goal = "; the goal of 1.5 is met" if own >= 1.5 * bare else "; the goal is 1.5"
    memory = report.memory.get("nothing preloaded")
    preload = report.preload
    first = ratio("armed Python, p50, at most 1/4 of python3 -I -S -c", armed[JAIL], armed[BARE], 1 / 4)
    goal_of_first = " (the goal of 1/10 is met)" if armed[JAIL].p50 <= armed[BARE].p50 / 10 else " (the goal is 1/10)"
    return [
        Bar(first.what, first.measured + goal_of_first, first.met),
        ratio("armed Python without the stages around it", armed.get(JAIL_BARE), armed[BARE], None),
        ratio("Bash, p50, at most 1/2 of bubblewrap running bash", armed.get(JAIL_BASH), armed.get(WRAPPED_BASH), 0.5),
        Bar(
            f"{max(WIDTHS)} at a time, as many runs a second as python3 -I -S -c",
            f"{own / bare:.3f} ({own:.1f} beside {bare:.1f}){goal}",
            own >= bare,
        ),
        at_most("at most 8 ms of processor time a run, over all processes", report.processor[JAIL], 8, "ms"),
        ratio("2 at a time, p50, no slower than python3 -I -S -c", two[JAIL], two[BARE], 1),
        at_most(
            "at most 2 MB of private memory for an armed cell", memory["most"] if memory else None, 2, "MB at most"
        ),
        ratio(
            "numpy and pandas preloaded, p50, at most 1.5 times that without",
            preload.get("preloaded, hello"),
            preload.get("without, hello"),
            1.5,
        ),
        ratio("lean cells, p50, beside the jail", armed.get(LEAN), armed[JAIL], None),
        ratio("native, p50, at most 3 times a bare subprocess", armed.get(NATIVE), armed.get(PROCESS), 3),
        *(
            at_most(f"{name}, p50, at most {most:.0f} ms", times.p50 if times else None, most, "ms")
            for name, most, times in ((name, most, report.commands.get(name)) for name, most in startup.BARS.items())
        ),
    ]


def show(report: Report) -> None:
    machine = report.machine
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    if machine["load before"] > QUIET:
        print("The machine was not quiet: only the ratios are worth reading, and those with care.")
    print("\nmilliseconds" + " " * 26 + "".join(f"{f'{width} at a time':^27}" for width in WIDTHS) + "   beside")
    print(f"{'armed':38}" + f"{'p50':>9}{'p95':>9}{'p99':>9}" * len(WIDTHS) + f"   {BARE}")
    base = report.armed[1][BARE].p50
    for name, first in report.armed[1].items():
        row = [report.armed[width].get(name) for width in WIDTHS]
        cells = "".join(
            f"{times.p50:9.2f}{times.p95:9.2f}{times.p99:9.2f}" if times else " " * 18 + "   failed" for times in row
        )
        print(f"{name:38}{cells}   {first.p50 / base:6.3f}x")
    print("runs of each: " + ", ".join(f"{report.armed[width][JAIL].runs} at {width} at a time" for width in WIDTHS))
    table("cold: a fresh executor and its first run, milliseconds", report.cold)
    print(
        f"\n{max(WIDTHS)} at a time, {machine['processors']} processors: runs in a second, processor time of one in ms"
    )
    for name, rate in report.throughput.items():
        print(f"{name:38}{rate:9.1f}{report.processor[name]:9.2f}")
    if report.commands:
        table("the command line, milliseconds", report.commands)
    if report.memory:
        print(f"\n{'MB of an armed cell':38}{'private':>9}{'at most':>9}{'all told':>9}")
    for name, memory in report.memory.items():
        print(f"{name:38}{memory['private']:9.2f}{memory['most']:9.2f}{memory['all told']:9.2f}")
    if report.preload:
        table("armed, numpy and pandas in the zygote or not, milliseconds", report.preload)
    if report.left_out:
        print("\nleft out")
    for name, why in report.left_out.items():
        print(f"{name:38}{why}")
    print()
    for bar in report.bars:
        print(f"{'not judged' if bar.met is None else 'met' if bar.met else 'MISSED':12}{bar.what}: {bar.measured}")


def table(title: str, rows: dict[str, Times]) -> None:
    print(f"\n{title}\n{'':38}{'p50':>9}{'p95':>9}{'p99':>9}{'runs':>9}")
    for name, times in rows.items():
        print(f"{name:38}{times.p50:9.2f}{times.p95:9.2f}{times.p99:9.2f}{times.runs:9}")


def say(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="How long a run takes, beside what one would use instead.")
    parser.add_argument("--quick", action="store_true", help="few runs, to see that it works: no figures to write down")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--image", default="python:3.11-slim", help="for docker, if an engine is up")
    options = parser.parse_args()
    try:
        report = asyncio.run(measure(options.quick, options.image))
    except RuntimeError as error:
        print(f"it could not be measured: {error}; see `redoma doctor`", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
