"""What every backend is: something that runs a request and reports what happened.

Backends know nothing of policy, approval, audit or redaction. They are handed a request that may run
and a sink for its output; they return an `Outcome`, or raise `BackendError` when the backend (not the
code) failed. Whatever way `run` ends, returned, raised or cancelled, nothing of the run is left alive.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from ..lib.errors import InvalidRequest, Unsupported
from ..models import Isolation, Language, Limits, Request, Seed, Status, Stream, Usage, WorkspaceKind
from ..models.reach import Reach

Sink = Callable[[Stream, bytes], bool]
"""Takes output as it comes. Returns False once the run has printed all it may: end it with `Status.OUTPUT`."""

MAX_LIMIT = 2**62
"""What a limit of the kernel can be, short of the number that means "unlimited"."""

LAYER_ALIASES = {"process": "pid", "network": "net", "kernel": "seccomp"}
"""Names of isolation layers that every backend knows, for whoever asks for one without minding which backend runs."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do. The executor refuses a request that needs more, before anything runs."""

    languages: frozenset[Language]
    isolation: Isolation
    """What it always puts between a run and the host."""
    limits: frozenset[str]
    """The fields of `Limits` that it enforces. The defaults of the others are no promise, and asking for less fails."""
    arguments: bool = False
    """Whether code is given arguments: `sys.argv`, `$1`. A command has its own."""
    stdin: bool = False
    env: bool = False
    files: bool = False
    outputs: bool = False
    """Whether files come back."""
    cwd: bool = False
    value: bool = False
    """Whether the value of a last expression comes back."""
    control: bool = False
    """Whether a run can be given input and signals while it goes on: a `Control`."""
    workspaces: frozenset[WorkspaceKind] = frozenset({"scratch"})
    run_over: RunOver | None = None
    """How it runs something above a project, if `overlay` is among its workspaces."""


EVERYTHING = "."
"""The path of the entry that refuses everything a run did, since the entries before it are incomplete."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One change that a run left in the overlay above a project, read after everything of the run had ended.

    Entries come in the order of a walk: a directory before what is in it. Paths have been checked to lead down only.
    """

    path: str
    """Relative to the project, or `EVERYTHING`. Names that are not UTF-8 have their bytes as lone surrogates."""
    kind: Literal["file", "directory", "symlink", "removed", "refused"]
    """`removed`: the run deleted what the project has there. `refused`: it can't be carried over; `why` says why."""
    mode: int = 0
    size: int = 0
    sha256: str = ""
    """Of a file's content, which is in the stage under the name `blob`."""
    blob: str = ""
    target: str = ""
    opaque: bool = False
    """Of a directory: nothing that the project has below it shows through any more."""
    link_of: str = ""
    """Path of another entry that is the same file: a hard link that the run made."""
    why: str = ""


class Repr(str):
    """How `repr` prints a value that could not come back itself."""

    __slots__ = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the code did, as far as the backend knows."""

    status: Status
    exit_code: int | None = None
    value: Any = None
    exception: str | None = None
    error: str | None = None
    isolation: Isolation
    usage: Usage = Usage()
    seed: Seed | None = None
    """The seed of its random numbers, if known."""
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    entries: tuple[Entry, ...] | None = None
    """What the overlay holds at the end of the run; None if there was no overlay, or it was lost with the run."""


class Control:
    """Input and signals for a run while it goes on.

    The caller uses `write`, `end_input` and `signal`; the backend uses `read`, `deliver_signals` and, when the run has
    ended, `close`. Both are on one event loop.
    """

    _ROOM = 1 << 20  # bytes that wait for the run to read them before a writer has to wait, too

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._ended = self._closed = False
        self._early: list[int] = []
        self._deliver: Callable[[int], None] | None = None
        self.lasts = False
        """Whether the caller decides how long it runs: then ending it is not a failure."""

    async def write(self, data: bytes) -> None:
        """Give the run input. Waits while it has plenty that it has not read. Raises `InvalidRequest` after the end."""
        while self._waiting > self._ROOM and not self._closed:
            await self._wait()
        if self._ended or self._closed:
            raise InvalidRequest(
                "the input can't be written",
                why="the run has ended" if self._closed else "its end was given before",
                next="write before that",
            )
        if data:
            self._pieces.append(data)
            self._waiting += len(data)
            self._tell()

    def end_input(self) -> None:
        """Say that no more input follows."""
        self._ended = True
        self._tell()

    @property
    def takes_input(self) -> bool:
        """Whether more input can still be given."""
        return not self._ended and not self._closed

    @property
    def is_started(self) -> bool:
        """Whether there is, or was, a program to send signals to."""
        return self._deliver is not None

    def signal(self, number: int) -> None:
        """Send a signal to the program, as soon as it has been started. Raises `InvalidRequest` if it has ended."""
        if not isinstance(number, int) or isinstance(number, bool) or number not in signal.valid_signals():
            raise InvalidRequest(
                f"{number!r} can't be sent",
                why="it is no signal of this system",
                next="send a number such as 15 (SIGTERM) or 2 (SIGINT)",
            )
        if self._closed:
            raise InvalidRequest("the signal can't be sent", why="the run has ended", next="send it before that")
        if self._deliver is None:
            self._early.append(number)
        else:
            self._deliver(number)

    async def read(self) -> bytes:
        """The next piece of input; empty at its end."""
        while not self._pieces and not self._ended and not self._closed:
            await self._wait()
        if not self._pieces:
            return b""
        data = self._pieces.popleft()
        self._waiting -= len(data)
        self._tell()
        return data

    def deliver_signals(self, deliver: Callable[[int], None]) -> None:
        """Call `deliver` for each signal from now on, and at once for those that were sent before."""
        self._deliver, early, self._early = deliver, self._early, []
        for number in early:
            deliver(number)

    def close(self) -> None:
        """The run has ended: take no more input or signals."""
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Backend(Protocol):
    """One way of running things."""

    name: str
    reach: Reach
    """What a run on it could touch, whatever kind of workspace it has."""

    def capabilities(self) -> Capabilities:
        """What it can do here. Raises `BackendUnavailable` where it can't work at all."""

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        """Run it. Cancelling kills and reaps before it returns. With a `control`, the input of the request comes first
        and what is written there follows; it is only given where `capabilities` offer it."""

    async def aclose(self) -> None:
        """Let go of whatever is kept warm. Safe to call twice."""


class RunOver(Protocol):
    """Runs a request above its project, in a layer of its own: what a backend with `overlay` among its workspaces
    declares as `Capabilities.run_over`."""

    async def __call__(self, request: Request, sink: Sink, control: Control | None, stage: str) -> Outcome:
        """As `Backend.run`. What the run left in the layer is in `Outcome.entries`, and the contents of its files in
        the directory `stage`, which is private and empty."""


def run_over(backend: Backend) -> RunOver:
    """How a backend runs something above a project. Raises `Unsupported` if it can't."""
    run = backend.capabilities().run_over
    if run is None:
        raise Unsupported(f"{backend.name} can't run this request", why="it doesn't offer the workspace 'overlay'")
    return run


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a backend needs or can use, for `redoma doctor`.

    `missing`: the backend doesn't work without it. `degraded`: it works, with less.
    """

    name: str
    state: Literal["ok", "missing", "degraded"] = "ok"
    what: str
    costs: str = ""
    fix: str = ""
    """Lines for a shell, ready to be pasted; those that begin with # say which to choose, or what to do by hand."""


def check_files_fit(request: Request, place: str) -> None:
    """Raise `Unsupported` if the files of a request exceed its own limits. `place` is what they would be put in."""
    limits, total = request.limits, sum(map(len, request.files.values()))
    if total > limits.disk or len(request.files) > limits.files:
        raise Unsupported(
            f"the files don't fit into {place}",
            why=f"{len(request.files)} files of {total} bytes, where {limits.files} of {limits.disk} may be",
            next="raise the limits `disk` and `files`",
        )


def new_seed() -> int:
    """A fresh seed for random numbers, small enough for JSON everywhere (48 bits)."""
    return int.from_bytes(os.urandom(6))


_EXCEEDED = {
    "time": "ran longer than {0.time:g} s",
    "cpu": "used more than {0.cpu:g} s of processor time",
    "memory": "used more than {0.memory} bytes of memory",
    "processes": "had more than {0.processes} processes",
    "output_total": "printed more than {0.output_total} bytes",
    "disk": "wrote more than {0.disk} bytes or {0.files} files",
    "file_size": "wrote a file of more than {0.file_size} bytes",
}


def exceeded(limit: str, limits: Limits) -> str:
    """The error of a run that was ended because of this limit, the same on every backend."""
    what = _EXCEEDED.get(limit) or f"went over its limit on {limit} ({{0.{limit}}})"
    return f"it {what.format(limits)} and was ended"


async def uncancellable(work: Any) -> None:
    """Finish `work` even if we are cancelled (again) meanwhile; the cancellation is delivered afterwards."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()
