"""A run in an open session, and opening one, beside a Jupyter kernel: all in one run, taking turns.

    .venv/bin/python -m pip install jupyter_client ipykernel
    .venv/bin/python benchmarks/sessions.py

Each side does what its users do: a kernel through `jupyter_client` (its blocking client), a session through
`redoma.Session`, with policy, audit and redaction on. The numbers are those of a machine that does other things, too:
what they say is how the two compare.
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
PRINTS = "print('hello')\nx"


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


def runs(rounds: int) -> None:
    manager, client = kernel()
    with redoma.Session() as session:
        for code, what in ((CODE, "an assignment"), (PRINTS, "a line of output and a value")):
            execute(client, code)
            must(session.run(code))
            theirs, ours = [], []
            for _ in range(rounds):
                theirs.append(timed(partial(execute, client, code)))
                ours.append(timed(partial(session.run, code)))
            print(row(f"kernel, {what}", theirs))
            print(row(f"session, {what}", ours))
            ratio = statistics.median(theirs) / statistics.median(ours)
            print(f"    the session takes 1/{ratio:.1f} of the kernel's time (medians)")
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def openings(rounds: int) -> None:
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


def private(pid: int) -> int:
    """Bytes that only this process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
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


async def many(count: int) -> None:
    from redoma.config import AuditConfig, SessionsConfig

    config = redoma.Config(
        audit=AuditConfig(directory=Path("/nonexistent"), enabled=False),
        sessions=SessionsConfig(maximum=count + 1),
    )
    async with redoma.AsyncExecutor(config) as executor:
        async with executor.session() as first:
            must(await first.run("1"))
            before = below(os.getpid())
            sessions = [executor.session() for _ in range(count)]
            start = time.perf_counter()
            for result in await asyncio.gather(*(session.run("mine = 1") for session in sessions)):
                must(result)
            took = time.perf_counter() - start
            memory = sum(private(pid) for pid in below(os.getpid()) - before)
            print(f"{count} sessions at once: open after {took:.2f} s, {memory / count / 1e6:.2f} MB private each")
            await asyncio.gather(*(session.aclose() for session in sessions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--openings", type=int, default=5)
    parser.add_argument("--many", type=int, default=100)
    chosen = parser.parse_args()
    print(f"{'milliseconds':<44} {'p10':>9} {'p50':>9} {'p90':>9}   times")
    runs(chosen.rounds)
    openings(chosen.openings)
    asyncio.run(many(chosen.many))


if __name__ == "__main__":
    main()
