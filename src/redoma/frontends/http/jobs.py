"""A run in this process: its state, its events, and following them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ...models import Chunk, Display, Result, Stream
from .bodies import RunBody
from .run_table import Row

if TYPE_CHECKING:
    from ...lib.errors import RedomaError
    from ...sessions.runs import AsyncSessionProcess, AsyncSessionRun


class RunJob:
    """A run that this process executes, or that waits for an approval."""

    def __init__(self, row: Row, *, durable: bool, secrets: dict[str, str]) -> None:
        self.row, self.durable, self.secrets = row, durable, secrets
        self.size = _size(row.body)
        self.turn: AsyncSessionRun | None = None
        """The run's handle, if it is a run in a session."""
        self.process: AsyncSessionProcess | None = None
        """The run's handle, if it is a background process of a session."""
        self.has_begun = False
        """Whether `process` was started."""
        self.events: list[Chunk | Display] = []
        self.task: asyncio.Task[None] | None = None
        self.error: RedomaError | None = None
        self.why = ""
        """Why the service cancelled the run; empty if it did not."""
        self.interrupted = False
        """Whether it was cancelled because the server stops, and not because somebody wanted that."""
        self.signal = asyncio.Event()
        """Set at the next change and then replaced by a new event."""

    def cancel(self, why: str, *, interrupted: bool = False) -> None:
        """Cancel the run, if it has not ended. `interrupted`: the server stops."""
        if self.task is not None:
            self.why, self.interrupted = why, interrupted
            self.task.cancel()

    def touch(self) -> None:
        """Wake every task that waits for a change of this run."""
        changed, self.signal = self.signal, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        """Wait for the next change. To miss none, await nothing between reading the run's state and calling this."""
        await self.signal.wait()


def row_of(found: RunJob | Row) -> Row:
    """Return the row of a run, whether this process holds it as a job or it was read from the database."""
    return found.row if isinstance(found, RunJob) else found


async def follow(
    found: RunJob | Row, stopping: asyncio.Event, *, until_over: bool = True
) -> AsyncIterator[tuple[str, Any]]:
    """Yield the events of a run as pairs of a name (`state`, `output`, `display`, `result`) and data.

    With `until_over=False`, also stop when the run begins to wait for an approval. Stop when `stopping` is set.
    """
    row = row_of(found)
    state, sent = "", 0
    while True:
        # Take the signal before reading the state: the reader may be slow, and must not miss a change.
        signal = found.signal if isinstance(found, RunJob) else None
        if row.state != state:
            state = row.state
            yield "state", {"id": row.id, "state": row.state, "note": row.note, "approval_id": row.approval}
        if isinstance(found, RunJob):
            for event in found.events[sent:]:
                sent += 1
                if isinstance(event, Display):
                    yield "display", event
                else:
                    yield "output", {"stream": event.stream, "text": event.text}
        over = row.is_over or (row.state == "waiting" and not until_over)
        if (over and row.state == state) or signal is None or stopping.is_set():
            break
        await signal.wait()
    if row.result is None or row.state not in ("done", "waiting"):
        return
    if isinstance(found, Row):  # it had ended before it was followed: send the same from its result
        for name, data in _as_events(row.result):
            yield name, data
    yield "result", msgspec.Raw(row.result)


def complete(events: list[Chunk | Display], result: Result) -> None:
    """Add what was not streamed, such as displays of a run outside of a session. A follower gets the same events
    while the run is in memory and after that (`_as_events`).
    """
    if not events:
        texts: tuple[tuple[Stream, str], ...] = (("stdout", result.stdout), ("stderr", result.stderr))
        events += [Chunk(stream, text) for stream, text in texts if text]
    if not any(isinstance(event, Display) for event in events):
        events += result.displays


def _as_events(result: bytes) -> Iterator[tuple[str, Any]]:
    """Yield `output` and `display` events from a stored result."""
    shape = msgspec.json.decode(result)
    for stream in ("stdout", "stderr"):
        if text := shape.get(stream):
            yield "output", {"stream": stream, "text": text}
    for display in shape.get("displays", ()):
        yield "display", display


def _size(body: RunBody) -> int:
    """Return roughly how many bytes a request takes."""
    contents = [body.stdin, *body.files.values()]
    sizes = [len(given) if isinstance(given, str) else len(given.base64) for given in contents]
    return len(body.code) + sum(map(len, body.argv)) + sum(sizes)
