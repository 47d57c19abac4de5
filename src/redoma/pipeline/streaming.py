"""A run to follow: its output piece by piece while it runs, then its result.

    async with executor.stream(code) as run:
        async for stream, text in run:
            print(text, end="")
    print(run.result.status)

Nothing starts before the first piece is requested. Leaving early cancels the run: with `async with` (or `aclose`)
nothing of it is left when the block has ended; without, it is cancelled when the object is garbage-collected. `live`
describes what a piece may contain, and when it is shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from ..backends.base import uncancellable
from ..lib.errors import CallbackError, RedomaError
from ..models import Chunk, Result, Stream
from ..output.live import Live

OnOutput = Callable[[Stream, str], Any]
"""Called with each piece of output. An awaitable return value is awaited."""


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended, even if we are cancelled meanwhile."""
    if not task.done():
        task.cancel()
        await uncancellable(asyncio.wait([task]))


class AsyncLiveRun:
    """The pieces of output of one run, and after the last its `result`."""

    def __init__(self, live: Live, submit: Callable[[Live], Coroutine[Any, Any, Result]]) -> None:
        self._live, self._submit = live, submit
        self._task: asyncio.Task[Result] | None = None
        self._changed = asyncio.Event()
        self._ready: deque[Chunk] = deque()
        self._ended = False
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        if self._result is None:
            raise RedomaError(
                "there is no result",
                why="the run goes on, or was left early",
                next="go through all of its output first",
            )
        return self._result

    @property
    def altered(self) -> frozenset[Stream]:
        """The streams of which something was replaced or left out so far because it was not plain text."""
        return self._live.altered

    async def next_chunk(self) -> Chunk | None:
        """Return the next piece; None when the run has ended and everything was returned."""
        try:
            while not self._ready and not self._ended:
                await self._wait()
        except BaseException:  # an interrupted caller won't come back
            await self.aclose()
            raise
        return self._ready.popleft() if self._ready else None

    async def _wait(self) -> None:
        task = self._task or self._start()
        self._changed.clear()  # before we look: later output sets it again
        if task.done():
            self._ended = True
            if task.cancelled():
                raise RedomaError("the run was ended", why="its executor was closed", next="make a new one")
            self._result = task.result()
            self._ready.extend(self._live.finish())
            return
        chunks, seconds = self._live.take()
        self._ready.extend(chunks)
        if not chunks:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    def _start(self) -> asyncio.Task[Result]:
        loop, changed = asyncio.get_running_loop(), self._changed

        def wake() -> None:
            if not changed.is_set():
                loop.call_soon_threadsafe(changed.set)  # output may come from a thread of the backend

        self._live.wake = wake
        self._task = loop.create_task(self._submit(self._live))
        self._task.add_done_callback(lambda _: changed.set())
        return self._task

    async def deliver(self, on_output: OnOutput) -> Result:
        """Call `on_output` with each piece, and return the result. If it raises, the run continues to its end, and then
        `CallbackError` is raised.
        """
        import inspect

        failure: Exception | None = None
        while chunk := await self.next_chunk():
            if failure is None:
                try:
                    answer = on_output(*chunk)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception as error:  # a bug of the caller's: raised below
                    failure = error
        if failure is not None:
            raise CallbackError(failure, self.result) from failure
        return self.result

    async def aclose(self) -> None:
        """End the run if it is still running. Nothing of it is left when this returns."""
        self._ended = True
        self._ready.clear()
        if self._task is not None:
            await end(self._task)

    def __aiter__(self) -> AsyncLiveRun:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self.next_chunk()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def __aenter__(self) -> AsyncLiveRun:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done():
            with suppress(RuntimeError):  # the loop is closed, and its runs have ended with it
                task.get_loop().call_soon_threadsafe(task.cancel)
