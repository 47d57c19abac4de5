"""Sessions beside a Jupyter kernel and llm-sandbox, and copies beside new sessions: all in one run, taking turns.

    .venv/bin/python -m pip install jupyter_client ipykernel numpy 'llm-sandbox[docker]'
    .venv/bin/python benchmarks/sessions.py

Each side does what its users do: a kernel through `jupyter_client` (its blocking client), llm-sandbox through its open
`SandboxSession`, a session through `redoma.Session`, with policy, audit and redaction on. Without llm-sandbox, or an
engine for it (DOCKER_HOST), that part is left out. The numbers are those of a machine that does other things, too: what
they say is how the sides compare. Processor time is that of both ends together.

At the end stands each goal with what was measured and a verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import redoma

CODE = "x = 1 + 1"
GOAL_RUN = 1 / 5
GOAL_OPENING = 1 / 50
GOAL_GROWTH = 1 << 20
"""Bytes that the last 500 of 1,000 runs may add to the memory of a session, or to ours."""
PRINTS = "print('hello')\nx"
_CONTAINERS = "a run beside llm-sandbox's in an open session"


class Goals:
    """What was measured for each goal, and whether it was met."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def at_most(self, what: str, measured: float, goal: float, *, unit: str = "") -> None:
        verdict = "met" if measured <= goal else "MISSED"
        self._lines.append(f"{what:<58} {measured:>9.4g} {'≤':>3} {goal:<9.4g} {unit:<6} {verdict}")

    def told(self, what: str, measured: str) -> None:
        """Note what has no number as its goal."""
        self._lines.append(f"{what:<58} {measured}")

    def left_out(self, what: str, why: str) -> None:
        self._lines.append(f"{what:<58} NOT MEASURED: {why}")

    def show(self) -> None:
        print("\nGoals:")
        print("\n".join(self._lines))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def row(name: str, found: list[float]) -> str:
    found = sorted(found)
    p10, p50, p90 = (found[int(len(found) * part)] for part in (0.1, 0.5, 0.9))
    return f"{name:<44} {p10:9.2f} {p50:9.2f} {p90:9.2f}   {len(found)}"


def kernel() -> tuple[Any, Any]:
    """A new kernel that is ready, and its client."""
    try:
        manager = importlib.import_module("jupyter_client.manager")
    except ImportError:
        raise SystemExit("there is no kernel to compare with: pip install jupyter_client ipykernel") from None
    started: tuple[Any, Any] = manager.start_new_kernel(startup_timeout=120)
    return started


def execute(client: Any, code: str) -> None:
    reply = client.execute_interactive(code, store_history=False, output_hook=lambda _: None, timeout=60)
    assert reply["content"]["status"] == "ok"


def must(result: redoma.Result) -> None:
    assert result.ok, result.error


def runs(rounds: int, goals: Goals) -> None:
    manager, client = kernel()
    kernels = below(os.getpid())
    with redoma.Session() as session:
        for code, what in ((CODE, "an assignment"), (PRINTS, "a line of output and a value")):
            execute(client, code)
            must(session.run(code))
            cells = below(os.getpid()) - kernels
            theirs, ours = [], []
            for _ in range(rounds):
                theirs.append(timed(partial(execute, client, code)))
                ours.append(timed(partial(session.run, code)))
            print(row(f"kernel, {what}", theirs))
            print(row(f"session, {what}", ours))
            print(f"    the session takes 1/{_times(theirs, ours)} of the kernel's time (medians)")
            their_cpu = processor_time(partial(execute, client, code), kernels, rounds)
            our_cpu = processor_time(partial(session.run, code), cells, rounds)
            print(f"    processor time: kernel {their_cpu:.2f} ms, session {our_cpu:.2f} ms")
            goals.at_most(f"a run beside a kernel's: {what}", _part(ours, theirs), GOAL_RUN)
            goals.at_most(f"  in processor time: {what}", our_cpu / their_cpu, GOAL_RUN)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def _times(theirs: list[float], ours: list[float]) -> str:
    return f"{statistics.median(theirs) / statistics.median(ours):.1f}"


def _part(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


def processor_time(work: Callable[[], object], processes: set[int], rounds: int) -> float:
    """Milliseconds of processor time a round, of this process and of those."""

    def used() -> float:
        return sum(scheduled(pid) for pid in (os.getpid(), *processes))

    before = used()
    for _ in range(rounds):
        work()
    return (used() - before) / rounds


def scheduled(pid: int) -> float:
    """Milliseconds that a process has run."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


def containers(rounds: int, goals: Goals) -> None:
    """The same beside llm-sandbox, whose session is a container."""
    try:
        sandbox = importlib.import_module("llm_sandbox")
        theirs_open = sandbox.SandboxSession(lang="python", image="python:3.11-slim", skip_environment_setup=True)
        theirs_open.open()
    except Exception as error:  # it is not here, or has no engine
        goals.left_out(_CONTAINERS, str(error).partition("\n")[0][:200])
        return
    try:
        with redoma.Session() as session:
            must(session.run("print(1)"))
            theirs, ours = [], []
            for _ in range(rounds):
                theirs.append(timed(partial(theirs_open.run, "print(1)")))
                ours.append(timed(partial(session.run, "print(1)")))
    finally:
        theirs_open.close()
    print(row("llm-sandbox, a line of output", theirs))
    print(row("session, a line of output", ours))
    print(f"    the session takes 1/{_times(theirs, ours)} of its time (medians)")
    goals.at_most(_CONTAINERS, _part(ours, theirs), GOAL_RUN)


def forks(rounds: int, goals: Goals) -> None:
    """A copy of a warm session with numpy beside a new one that imports it."""
    with redoma.Session(memory="2GiB") as session:
        must(session.run("import numpy as np"))
        started, copied = [], []
        for _ in range(rounds):
            time.sleep(0.1)  # the next cell is made meanwhile
            with redoma.Session(memory="2GiB") as other:
                started.append(timed(partial(other.run, "import numpy as np; np.ones(3).sum()")))
            time.sleep(0.1)
            start = time.perf_counter()
            (copy,) = session.fork()
            must(copy.run("np.ones(3).sum()"))
            copied.append((time.perf_counter() - start) * 1e3)
            copy.close()
        print(row("session, open and import numpy", started))
        print(row("fork of one that has, and first run", copied))
        print(f"    a fork takes 1/{_times(started, copied)} of that (medians)")
        goals.at_most("fork of a session with numpy beside starting one", _part(copied, started), 1.0)


async def many_forks(count: int, goals: Goals) -> None:
    async with redoma.AsyncExecutor(_quiet(count)) as executor, executor.session(memory="2GiB") as session:
        must(await session.run("import numpy as np; a = np.ones(100_000_000 // 8); a.nbytes"))
        before = below(os.getpid())
        start = time.perf_counter()
        copies = await session.fork(count)
        took = time.perf_counter() - start
        new = below(os.getpid()) - before
        memory, cpu = sum(map(private, new)), sum(map(scheduled, new))
        must(await copies[-1].run("assert a.sum() == a.size"))
        each = (
            f"{took / count * 1e3:.1f} ms, {cpu / count:.1f} of processor time, {memory / count / 1e6:.2f} MB private"
        )
        goals.told(f"each of {count} forks with an array of 100 MB", each)
        await asyncio.gather(*(copy.aclose() for copy in copies))


def openings(rounds: int, goals: Goals) -> None:
    theirs, ours = [], []
    with redoma.Session() as first:
        must(first.run("1"))
        for _ in range(rounds):
            start = time.perf_counter()
            manager, client = kernel()
            execute(client, "1")
            theirs.append((time.perf_counter() - start) * 1e3)
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            for _ in range(5):
                time.sleep(0.1)  # the next cell is made meanwhile, as between two people
                start = time.perf_counter()
                session = redoma.Session()
                must(session.run("1"))
                ours.append((time.perf_counter() - start) * 1e3)
                session.close()
    print(row("kernel, start and first run", theirs))
    print(row("session, open and first run", ours))
    print(f"    opening takes 1/{statistics.median(theirs) / statistics.median(ours):.0f} of the kernel's (medians)")
    goals.at_most("opening beside starting a kernel, each with a first run", _part(ours, theirs), GOAL_OPENING)


def endurance(goals: Goals) -> None:
    """Memory over 1,000 runs in one session: the second half must add nothing, in the session or here."""
    with redoma.Session() as session:
        code = "import random\nkept = [random.random() for _ in range(1000)]\nprint(sum(kept) > 0)\nlen(kept)"
        for _ in range(500):
            must(session.run(code))
        cells = below(os.getpid())
        before = sum(map(private, cells)), private(os.getpid())
        for _ in range(500):
            must(session.run(code))
        after = sum(map(private, cells)), private(os.getpid())
    for where, first, last in zip(("the session", "our process"), before, after, strict=True):
        what = f"1,000 runs: bytes that the last 500 add to {where}"
        goals.at_most(what, last - first, GOAL_GROWTH, unit="bytes")


def private(pid: int) -> int:
    """Bytes that only this process has; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) * 1024


def below(pid: int) -> set[int]:
    found, todo = set[int](), [pid]
    while todo:
        here = todo.pop()
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for thread in Path(f"/proc/{here}/task").iterdir():
                new = set(map(int, (thread / "children").read_text().split())) - found
                found |= new
                todo.extend(new)
    return found


def _quiet(count: int) -> redoma.Config:
    """Without a record, and with room for so many sessions and one more."""
    from redoma.config import AuditConfig, SessionsConfig

    return redoma.Config(
        audit=AuditConfig(directory=Path("/nonexistent"), enabled=False),
        sessions=SessionsConfig(maximum=count + 1),
    )


async def many(count: int, goals: Goals) -> None:
    async with redoma.AsyncExecutor(_quiet(count)) as executor:
        async with executor.session() as first:
            must(await first.run("1"))
            before = below(os.getpid())
            sessions = [executor.session() for _ in range(count)]
            start = time.perf_counter()
            for result in await asyncio.gather(*(session.run("mine = 1") for session in sessions)):
                must(result)
            took = time.perf_counter() - start
            memory = sum(private(pid) for pid in below(os.getpid()) - before)
            each = f"all after {took:.2f} s: {took / count * 1e3:.1f} ms and {memory / count / 1e6:.2f} MB private each"
            goals.told(f"{count} sessions opened at once, with a first run", each)
            await asyncio.gather(*(session.aclose() for session in sessions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--openings", type=int, default=5)
    parser.add_argument("--containers", type=int, default=20)
    parser.add_argument("--forks", type=int, default=20)
    parser.add_argument("--many", type=int, default=100)
    chosen = parser.parse_args()
    print(f"{'milliseconds':<44} {'p10':>9} {'p50':>9} {'p90':>9}   times")
    goals = Goals()
    runs(chosen.rounds, goals)
    containers(chosen.containers, goals)
    openings(chosen.openings, goals)
    endurance(goals)
    forks(chosen.forks, goals)
    asyncio.run(many_forks(chosen.many, goals))
    asyncio.run(many(chosen.many, goals))
    goals.show()


if __name__ == "__main__":
    main()
