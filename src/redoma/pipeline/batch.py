"""Many runs at once, in bounded memory however many there are: `redoma.map`, and the core of `redoma batch`."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar, Unpack

from ..lib.errors import InvalidRequest
from ..models import Result
from .intake import Options
from .sync import Executor, default

T = TypeVar("T")
R = TypeVar("R")


def map(  # noqa: A001 - as the builtin, of code
    codes: Iterable[str], *, jobs: int | None = None, executor: Executor | None = None, **options: Unpack[Options]
) -> Iterator[Result]:
    """Run many pieces of code, several at a time, and yield their results in the order of the code.

    Args:
        codes: Source texts. They are consumed as needed, so there may be any number.
        jobs: How many run at a time; by default twice the number of processors.
        executor: The executor to use; by default the one that all callers of this process share.
        options: Those of `redoma.run`, for each of them; `language` is Python.

    Yields:
        A `Result` for each, in order. If the iteration is left early, the rest is not run.

    Raises:
        InvalidRequest: `codes` is one text, or `jobs` is no number of runs.
    """
    if isinstance(codes, (str, bytes)):
        raise InvalidRequest(
            "codes is one text",
            why="each of its letters would be run as a program",
            next="write [code] for one program, or code.splitlines() for a program on each line",
        )
    return _results(iter(codes), parallel(jobs), executor or default(), options)


def _results(rest: Iterator[str], jobs: int, executor: Executor, options: Options) -> Iterator[Result]:
    core = executor.core
    running: deque[asyncio.Task[Result]] = deque()

    async def next_result() -> Result | None:
        while len(running) < jobs and (code := next(rest, None)) is not None:
            running.append(asyncio.create_task(core.run(code, **options)))
        return await running.popleft() if running else None

    async def leave() -> None:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    try:
        while (result := executor.wait(next_result())) is not None:
            yield result
    finally:
        with suppress(Exception):  # a closed executor has ended them already
            executor.wait(leave())


def parallel(jobs: int | None) -> int:
    """Return how many runs to have at a time. Raises `InvalidRequest` for an invalid number."""
    if jobs is None:
        return 2 * (os.cpu_count() or 1)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 0 < jobs <= 1000:
        raise InvalidRequest(f"{jobs!r} runs at one time", why="it is a number from 1 to 1000", next="leave it out")
    return jobs


async def as_they_end(work: Callable[[T], Awaitable[R]], items: Iterable[T], jobs: int) -> AsyncIterator[R]:
    """Yield the results of `work` for each item, in the order in which they end; `jobs` at a time. If the iteration is
    left early, running work is ended first.
    """
    rest, running = iter(items), set[asyncio.Future[R]]()
    try:
        while True:
            while len(running) < jobs and (item := next(rest, None)) is not None:
                running.add(asyncio.ensure_future(work(item)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                yield each.result()
    finally:
        for each in running:
            each.cancel()
        if running:
            await asyncio.wait(running)
