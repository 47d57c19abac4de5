"""What runs in a session, as its caller sees it: runs that are followed, background processes, and their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from ..exec import AsyncProcess, ProcessControl
from ..lib.errors import CallbackError, InvalidRequest
from ..models import Chunk, Display, Result, Submission
from ..output.live import Live
from ..pipeline import results
from ..pipeline.executor import AsyncExecutor
from ..pipeline.streaming import AsyncLiveRun
from ..redaction import clean
from .turn import ProcessTurn, Turn

if TYPE_CHECKING:
    from .session import AsyncSession

OnText = Callable[[str], Any]
OnDisplay = Callable[[Display], Any]
Event = Chunk | Display
CALLBACKS = ("on_stdout", "on_stderr", "on_result")


class RunOptions(TypedDict, total=False):
    """Options of one run in a session. Those that `redoma.run` also has mean the same."""

    context: str
    """The name of a set of variables: runs in different contexts don't see each other's variables."""
    timeout: float | None
    limits: Mapping[str, Any] | None
    """Only `time`, `output_lines`, `output_bytes` and `output_total`; set the others on the session."""
    args: Iterable[str]
    stdin: bytes | str
    env: Mapping[str, str]
    """Further environment variables, for this run only."""
    cwd: str
    """The working directory of this run of Python, a path inside the session. Later runs are not affected."""
    traceback_apart: bool
    """Don't print the traceback of an exception; keep it for `AsyncSessionRun.traceback`."""
    charts: bool
    """Also show matplotlib figures and pandas tables as data (`display.CHART`, `TABLE`)."""
    policy: str | None
    expect: Any
    reason: str
    requester: str
    label: str
    on_stdout: OnText | None
    """Called with each piece of stdout as it arrives."""
    on_stderr: OnText | None
    on_result: OnDisplay | None
    """Called with each `Display` as it arrives."""
    untimed: bool
    """Let it run as long as the session lives. Policy judges it by the ordinary time limit of a run."""
    whole_output: bool
    """Let a stream yield all output up to `output_total`, not only as much as the result keeps."""
    wait: bool
    """Whether to wait for a person who must approve. Otherwise the result is `pending`: make the same run again in the
    same session once it is approved."""


class ProcessOptions(TypedDict, total=False):
    """Options of a background command. Those that a run also has mean the same."""

    env: Mapping[str, str] | None
    cwd: str
    """Another working directory, a path inside the session."""
    pty: bool
    """Whether it gets a terminal; then all its output is stdout."""
    size: tuple[int, int] | None
    """The rows and columns of its terminal; by default 24 and 80."""
    whole_output: bool
    """Let its streams yield all output up to `output_total`, not only as much as the result keeps."""
    timeout: float | None
    policy: str | None
    reason: str
    requester: str
    label: str


class AsyncSessionRun(AsyncLiveRun):
    """A run that is being followed: its output and displays in order, then its `result`."""

    def __init__(self, live: Live, executor: AsyncExecutor, submission: Submission, turn: Turn) -> None:
        super().__init__(live, self._submit_followed)
        self._executor, self.submission, self._turn = executor, submission, turn
        self._redactor = live.redactor

    async def _submit_followed(self, live: Live) -> Result:
        self._turn.follow(self._shown)
        return await self._executor.submit(self.submission, live=live)

    def _shown(self, display: Display) -> None:
        (safe,), _ = results.safe_displays((display,), self._redactor)
        chunks, _ = self._live.take()  # what was printed before it
        self._ready.extend(chunks)
        self._ready.append(safe)  # type: ignore[arg-type]
        self._changed.set()

    @property
    def traceback(self) -> str:
        """The traceback of the exception that ended it, redacted; empty if there is none, or if it was printed."""
        return clean(self._turn.traceback, self._redactor)[0]

    async def _wait(self) -> None:
        self._turn.read()
        await super()._wait()

    async def next_event(self) -> Event | None:
        """Return the next chunk of output or display; None after the last one."""
        return await self.next_chunk()


class Followed(Protocol):
    """A run that is being followed, here or on a service."""

    @property
    def result(self) -> Result: ...

    async def next_event(self) -> Event | None: ...

    async def aclose(self) -> None: ...


async def deliver(run: Followed, options: RunOptions) -> Result:
    """Call the callbacks in the options with each event, and return the result. If a callback raises, the run still
    continues to its end; then `CallbackError` is raised."""
    failure: Exception | None = None
    while (event := await run.next_event()) is not None:
        call = _callback(event, options)
        if failure is not None or call is None:
            continue
        try:
            answer = call(event.text if isinstance(event, Chunk) else event)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # the caller's bug: raised below
            failure = error
    if failure is not None:
        raise CallbackError(failure, run.result) from failure
    return run.result


def must_have_no_callbacks(options: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` if options of a stream have a callback: the caller gets the events itself."""
    for name in CALLBACKS:
        if options.get(name) is not None:
            raise InvalidRequest(f"{name} was given to a stream", why="it would get nothing", next="leave it out")


def _callback(event: Event, options: RunOptions) -> Callable[[Any], Any] | None:
    if isinstance(event, Chunk):
        return options.get("on_stdout") if event.stream == "stdout" else options.get("on_stderr")
    return options.get("on_result")


class AsyncSessionProcess(AsyncProcess):
    """A background process of a session."""

    def __init__(
        self,
        session: AsyncSession,
        executor: AsyncExecutor,
        submission: Submission,
        control: ProcessControl,
        turn: ProcessTurn,
        *,
        whole: bool,
    ) -> None:
        super().__init__("the session", executor, submission, control, whole=whole)
        self._session, self.turn = session, turn
        self.id = submission.request.id
        """The id of its run."""

    async def start(self) -> None:
        """Start it: see `AsyncProcess.start`. It is one of the session's processes from then on."""
        await super().start()
        self._session.entered(self)

    @property
    def pid(self) -> int:
        """Its process id inside the session, as the session reports it."""
        return self.turn.pid

    def resize(self, rows: int, columns: int) -> None:
        """Resize its terminal, if it has one."""
        self.turn.resize(*terminal_size(rows, columns))


def terminal_size(rows: int, columns: int) -> tuple[int, int]:
    """Return the size of a terminal. Raises `InvalidRequest` if no terminal has it."""
    if not 0 < rows <= 1000 or not 0 < columns <= 1000:
        why = "a terminal has 1 to 1000 rows and columns"
        raise InvalidRequest(f"a terminal can't have {rows} rows of {columns}", why=why, next="use 24 and 80")
    return rows, columns
