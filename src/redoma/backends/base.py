"""The backend protocol: a backend runs a request and reports what happened.

Backends know nothing of policy, approval, audit or redaction. They get a request that may run and a sink for its
output. They return an `Outcome`, or raise `BackendError` if the backend (not the code) failed. However `run` ends (by
returning, raising or being cancelled), no process of the run is left alive.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from ..lib.errors import InvalidRequest, Unsupported
from ..models import (
    Display,
    Isolation,
    Language,
    Limits,
    NetworkRequest,
    Request,
    Seed,
    Status,
    Stream,
    Usage,
    WorkspaceKind,
)
from ..models.reach import Reach

Sink = Callable[[Stream, bytes], bool]
"""Takes output as it arrives. Returns False once the run has printed all it may: then end it with `Status.OUTPUT`."""

T = TypeVar("T")
_SMALL = 4 << 10  # bytes that are decoded faster than they are handed to a thread
MAX_LIMIT = 2**62
"""The largest value for a limit of the kernel that doesn't mean "unlimited"."""

COMMON_LIMITS = frozenset(
    {
        *("time", "cpu", "memory", "processes", "output_lines", "output_bytes", "output_total", "file_size"),
        *("open_files", "recursion", "network_bytes", "connections"),
    }
)
"""The limits that nearly all our backends enforce (gVisor: not `processes`), or that limit what they don't have. They
are named, so that a limit added to `Limits` counts as enforced only where somebody has written that.
"""

MAX_RUNS = max(16, 4 * (os.cpu_count() or 1))
"""Runs at a time on this machine, where the configuration sets no other number."""

LAYER_ALIASES = {"process": "pid", "network": "net", "kernel": "seccomp"}
"""Names of isolation layers that every backend understands, for callers that don't choose the backend."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do. The executor refuses a request that needs more, before anything runs."""

    languages: frozenset[Language]
    """By `Request.kind`."""
    isolation: Isolation
    """The layers that it always puts between a run and the host."""
    limits: frozenset[str]
    """The fields of `Limits` that it enforces. The defaults of the others are not enforced, and requesting another
    value fails.
    """
    arguments: bool = False
    """Whether code can be given arguments: `sys.argv`, `$1`. A command has its own."""
    stdin: bool = False
    env: bool = False
    files: bool = False
    outputs: bool = False
    """Whether output files are returned."""
    cwd: bool = False
    value: bool = False
    """Whether the value of a last expression is returned."""
    control: bool = False
    """Whether input and signals can be sent to a run while it goes on, with a `Control`."""
    descriptors: bool = False
    """Whether descriptors of this process can be passed to a run along with its input."""
    image: Callable[[int], Image] | None = None
    """Makes an image of so many bytes at most, if sessions can be copied: then the driver is loaded in all cells, and
    all have one layout of memory.
    """
    network: bool = False
    """Whether a run can reach the hosts that its request names, and no others."""
    environments: bool = False
    """Whether a run can have the packages of an environment."""
    workspaces: frozenset[WorkspaceKind] = frozenset({"scratch"})
    run_over: RunOver | None = None
    """How it runs something above a project, if `overlay` is among its workspaces."""
    prepare: Callable[[Request], Prepared | None] | None = None
    """Begins, if it can at once, what comes before the first line of a request's code. An executor calls this on its
    event loop, while the run is not on record yet. Nothing of the request runs until `Prepared.run`; if this raises,
    the executor calls `Backend.run` instead. Not for runs with a `Control`.
    """


_DEFAULTS = Limits()


def unmet_needs(can: Capabilities, request: Request, *, controlled: bool = False, inside: bool = False) -> list[str]:
    """Return what a request needs and a backend doesn't offer, in words; nothing if it can run it.

    `controlled`: input and signals follow while it runs. `inside`: its working directory is one inside, because the
    backend was chosen with the request.
    """
    # Not a table of all needs: this is asked twice for each run, and nearly always the answer is none.
    unmet: list[str] = []
    if request.kind not in can.languages:
        unmet.append(f"{request.language} code")
    if request.argv and not can.arguments and request.language not in ("command", "lua"):
        unmet.append("arguments")
    if request.stdin and not can.stdin:
        unmet.append("input")
    if controlled and not can.control:
        unmet.append("input and signals while it runs")
    if not can.env and request.environment:
        unmet.append("variables")
    if request.files and not can.files:
        unmet.append("files")
    if request.outputs and not can.outputs:
        unmet.append("files to bring back")
    if request.network and not can.network:
        unmet.append("named hosts of the network")
    if request.uses is not None and not can.environments:
        unmet.append("packages of an environment")
    if request.workspace not in can.workspaces:
        unmet.append(f"the workspace {request.workspace!r}")
    if request.cwd and not (can.cwd or request.project or inside):
        unmet.append("a working directory on the host")
    unmet += [f"the isolation layer {layer!r}" for layer in can.isolation.lacking(request.require)]
    if not can.limits.issuperset(Limits.__struct_fields__):
        unmet += [f"a limit on {field}" for field in _unenforced(can, request.limits)]
    return unmet


def _unenforced(can: Capabilities, limits: Limits) -> list[str]:
    """Return the requested limits that would not be enforced. An unenforced default is listed on the result instead."""
    unenforced = [field for field in Limits.__struct_fields__ if field not in can.limits]
    return [field for field in unenforced if getattr(limits, field) != getattr(_DEFAULTS, field)]


EVERYTHING = "."
"""The path of the entry that refuses all changes of a run, because the entries before it are incomplete."""


class OverlayEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change that a run left in the overlay above a project, read after all processes of the run had ended.

    Entries come in the order of a walk: a directory before its content. Their paths have been checked not to leave the
    project.
    """

    path: str
    """Relative to the project, or `EVERYTHING`. Bytes of names that are not UTF-8 are lone surrogates."""
    kind: Literal["file", "directory", "symlink", "removed", "refused"]
    """`removed`: the run deleted what the project has there. `refused`: the change can't be applied; `why` says why."""
    mode: int = 0
    size: int = 0
    sha256: str = ""
    """Of a file's content, which is in the stage under the name `blob`."""
    blob: str = ""
    target: str = ""
    opaque: bool = False
    """Of a directory: nothing that the project has below it is visible any more."""
    link_of: str = ""
    """The path of another entry that is the same file: a hard link that the run made."""
    why: str = ""


class Repr(str):
    """The `repr` of a value that could not be returned itself."""

    __slots__ = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the code did, as far as the backend knows."""

    status: Status
    exit_code: int | None = None
    value: Any = None
    exception: str | None = None
    error: str | None = None
    limit: str = ""
    """The limit that ended the run, as a field of `Limits`; by default the one that its status implies, if any."""
    isolation: Isolation
    usage: Usage = Usage()
    seed: Seed | None = None
    """The seed of its random numbers, if known."""
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    displays: tuple[Display, ...] = ()
    """What it displayed besides its output. The text is not redacted yet."""
    entries: tuple[OverlayEntry, ...] | None = None
    """The content of the overlay after the run; None if there was no overlay, or it was lost with the run."""
    network: tuple[NetworkRequest, ...] = ()
    """The requests that it made to hosts, including refused ones."""

    def __post_init__(self) -> None:
        if not self.limit:
            msgspec.structs.force_setattr(self, "limit", _LIMIT_OF.get(self.status, ""))


_LIMIT_OF = {Status.TIMEOUT: "time", Status.MEMORY: "memory", Status.OUTPUT: "output_total"}


Passed: TypeAlias = int | str
"""What is passed to a run along with input: a descriptor of this process, or the name of an image that the backend
keeps elsewhere; -1 if nothing.
"""


def keep_requests(error: BaseException, requests: Iterable[NetworkRequest]) -> None:
    """Attach the requests that a run made to the error or cancellation that ended it, for `kept_requests`."""
    error.__dict__["redoma_requests"] = tuple(requests)


def kept_requests(error: BaseException | None) -> tuple[NetworkRequest, ...]:
    """Return the requests that a run made before this error or cancellation ended it."""
    found: tuple[NetworkRequest, ...] = error.__dict__.get("redoma_requests", ()) if error is not None else ()
    return found


class Image(Protocol):
    """A file in memory beside the cells, from which copies of a session are made."""

    @property
    def to_write(self) -> Passed:
        """To be passed to the session, which writes itself."""

    def seal(self) -> None:
        """Let nobody change it any more. Raises `BackendError` if the session still could."""

    def to_read(self) -> AbstractContextManager[Passed]:
        """To be passed to one copy, which must have it before this is closed."""

    def close(self) -> None: ...


class Control:
    """What a caller and the backend tell each other about a run while it goes on: input, signals, and some facts.

    - Before the run the caller sets `lasts`, `session` and `copy_of`. During the run it calls `write`, `post`,
      `end_input` and `signal`, and reads `isolation` and `read_changes`.
    - The backend reads the first three, sets `isolation`, `read_changes` and `write_now`, and calls `deliver_signals`,
      `read` (with `passed`) and, when the run has ended, `close`.

    Both must be on the same event loop.
    """

    _ROOM = 1 << 20  # bytes of unread input from which on a writer must wait

    def __init__(self) -> None:
        self._pieces: deque[tuple[bytes, Passed]] = deque()
        self._waiting = 0
        self._reader_waits = False
        self._changed = asyncio.Event()
        self._ended = self._closed = False
        self._early: list[int] = []
        self._deliver: Callable[[int], None] | None = None
        # Set by the caller.
        self.lasts = False
        """Whether the caller decides how long it runs: then ending it is not a failure."""
        self.session = False
        """Whether the run is the driver of a session that can be copied."""
        self.copy_of = ""
        """The name of the image that it is a copy from, if the backend keeps that elsewhere: it has to run there."""
        # Set by the backend; `passed` by `read`.
        self.passed: Passed = -1
        """What goes along with the piece of input that `read` returned last."""
        self.write_now: Callable[[bytes], int] | None = None
        """Takes input while the backend waits in `read`, and returns how many bytes of it: so a small message need not
        wait for a turn of the event loop. None if it can't."""
        self.read_changes: Callable[[str], Awaitable[tuple[OverlayEntry, ...]]] | None = None
        """Reads what the run has changed in its project so far, into a stage as `RunOver` has it; where it can be had
        while the run goes on."""
        self.isolation: Isolation | None = None
        """The isolation of the run, as soon as the backend knows it; also in the outcome."""

    async def write(self, data: bytes, passed: Passed = -1) -> None:
        """Send input to the run. Waits while much of it is unread. Raises `InvalidRequest` after the end.

        `passed` goes along with it: only where the `Capabilities` say that there can be such a thing. A descriptor must
        stay open until the run has said that it has it.
        """
        while self._waiting > self._ROOM and not self._closed:
            await self._wait()
        if self._ended or self._closed:
            raise InvalidRequest(
                "the input can't be written",
                why="the run has ended" if self._closed else "its end was given before",
                next="write before that",
            )
        self.post(data, passed)

    def post(self, data: bytes, passed: Passed = -1) -> None:
        """Send a few bytes of input without waiting for room. Does nothing after the end."""
        if not self.takes_input:
            return
        if data and passed == -1 and self._reader_waits and not self._pieces and self.write_now is not None:
            data = data[self.write_now(data) :]
        if data:
            self._pieces.append((data, passed))
            self._waiting += len(data)
            self._tell()

    def end_input(self) -> None:
        """Close the input."""
        self._ended = True
        self._tell()

    @property
    def takes_input(self) -> bool:
        """Whether more input can still be sent."""
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
                why="it is not a signal of this system",
                next="send a number such as 15 (SIGTERM) or 2 (SIGINT)",
            )
        if self._closed:
            raise InvalidRequest("the signal can't be sent", why="the run has ended", next="send it before that")
        if self._deliver is None:
            self._early.append(number)
        else:
            self._deliver(number)

    async def read(self) -> bytes:
        """Return the next piece of input; empty at its end."""
        self._reader_waits = True
        while not self._pieces and not self._ended and not self._closed:
            await self._wait()
        self._reader_waits = False
        if not self._pieces:
            return b""
        data, self.passed = self._pieces.popleft()
        self._waiting -= len(data)
        self._tell()
        return data

    def deliver_signals(self, deliver: Callable[[int], None]) -> None:
        """Call `deliver` for each signal from now on, and at once for those that were sent before."""
        self._deliver, early, self._early = deliver, self._early, []
        for number in early:
            deliver(number)

    def close(self) -> None:
        """Accept no more input or signals, because the run has ended."""
        self._closed, self.write_now = True, None
        self._tell()

    def _tell(self) -> None:
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Backend(Protocol):
    """One way of running requests."""

    name: str
    reach: Reach
    """What a run on this backend could touch, whatever kind of workspace it has."""

    def capabilities(self) -> Capabilities:
        """Return what it can do on this host. Raises `BackendUnavailable` if it can't work at all."""

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        """Run a request and return its outcome. A cancellation kills and reaps all processes first. With a `control`,
        its input follows the input of the request; it is passed only if `capabilities` offer it.
        """

    async def aclose(self) -> None:
        """Release whatever is kept warm. Safe to call twice."""


@runtime_checkable
class Warmable(Backend, Protocol):
    """A backend that can start ahead of its first run."""

    def warm(self) -> None:
        """Begin to start what the first run will need. Raises `BackendError` if it can't be started."""


class Prepared(Protocol):
    """A request that a backend gets ready to run."""

    async def run(self, sink: Sink) -> Outcome:
        """Run it: see `Backend.run`."""

    def discard(self) -> None:
        """Let go of it, run or not. Safe to call twice."""


class RunOver(Protocol):
    """Runs a request above its project, in an overlay. A backend with `overlay` among its workspaces declares this as
    `Capabilities.run_over`.
    """

    async def __call__(self, request: Request, sink: Sink, control: Control | None, stage: str) -> Outcome:
        """Do the same as `Backend.run`. The changes that the run left in the overlay are in `Outcome.entries`, and the
        contents of its files in the directory `stage`, which is private and empty at the start.
        """


def run_over(backend: Backend) -> RunOver:
    """Return how a backend runs something above a project. Raises `Unsupported` if it can't."""
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
    """Shell commands, ready to be pasted. Lines that begin with # say which to choose, or what to do by hand."""


def check_files_fit(request: Request, place: str) -> None:
    """Raise `Unsupported` if the files of a request exceed its own limits. `place` says where they would be put."""
    limits, total = request.limits, sum(map(len, request.files.values()))
    if total > limits.disk or len(request.files) > limits.files:
        raise Unsupported(
            f"the files don't fit into {place}",
            why=f"{len(request.files)} files of {total} bytes, where {limits.files} of {limits.disk} may be",
            next="raise the limits `disk` and `files`",
        )


def new_seed() -> int:
    """Return a fresh seed for random numbers, small enough for JSON everywhere (48 bits)."""
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
    """Return the error message for a run that this limit ended: the same on every backend."""
    what = _EXCEEDED.get(limit) or f"went over its limit on {limit} ({{0.{limit}}})"
    return f"it {what.format(limits)} and was ended"


async def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode what a guest sent. Much of it is decoded on a thread, because the time limits of other runs depend on the
    event loop.
    """
    return decode(data) if len(data) <= _SMALL else await asyncio.to_thread(decode, data)


async def uncancellable(work: Any) -> None:
    """Finish `work` even if this task is cancelled meanwhile, once or repeatedly. The cancellation is raised
    afterwards.
    """
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()
