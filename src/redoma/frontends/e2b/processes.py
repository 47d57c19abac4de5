"""The calls of `process.Process`: commands and terminals."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal

import msgspec

from ...lib.errors import InvalidRequest, RedomaError
from ...models import Result, Status
from ...sessions.runs import AsyncSessionProcess
from .code import inside, outside
from .sandboxes import Sandbox
from .wire import E2bRequest, Problem, deadline_of, keepalive_of, problem_of

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1000)]
_SIGNALS: dict[str | int, int] = {
    "SIGNAL_SIGTERM": signal.SIGTERM,
    "SIGNAL_SIGKILL": signal.SIGKILL,
    15: signal.SIGTERM,
    9: signal.SIGKILL,
}
_SHELLS = ("/bin/bash", "bash", "/usr/bin/bash")
_Event = dict[str, Any]


class Size(msgspec.Struct):
    """The size of a terminal."""

    cols: _Size = 80
    rows: _Size = 24


class Pty(msgspec.Struct):
    """A terminal for a process."""

    size: Size = msgspec.field(default_factory=Size)


class ProcessConfig(msgspec.Struct, omit_defaults=True):
    """What to start: a program, its arguments, variables and working directory."""

    cmd: Annotated[str, msgspec.Meta(min_length=1)]
    args: Annotated[list[str], msgspec.Meta(max_length=10_000)] = []
    envs: Annotated[dict[_Text, str], msgspec.Meta(max_length=200)] = {}
    cwd: _Text | None = None


class Start(msgspec.Struct):
    """The body of `Start`."""

    process: ProcessConfig
    pty: Pty | None = None
    tag: _Text | None = None
    stdin: bool = True


class Selector(msgspec.Struct):
    """Names a process by its id or its tag."""

    pid: int | None = None
    tag: str | None = None


class Input(msgspec.Struct):
    """Input for a process, or for its terminal."""

    stdin: bytes | None = None
    pty: bytes | None = None


class Selected(msgspec.Struct):
    """The body of calls about one process."""

    process: Selector
    input: Input | None = None
    pty: Pty | None = None
    signal: str | int = 0


class _Input(msgspec.Struct):
    input: Input | None = None


class _Begins(msgspec.Struct):
    process: Selector


class StreamedInput(msgspec.Struct):
    """A message of `StreamInput`. The first one selects the process."""

    start: _Begins | None = None
    data: _Input | None = None


class Listener:
    """The unread events of one client. All clients of a sandbox share one limit."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._events: deque[tuple[int, _Event]] = deque()
        self._ready = asyncio.Event()
        self.problem: Problem | None = None

    def put(self, event: _Event, size: int) -> None:
        """Add an event of `size` bytes. If too much is unread, end the stream with an error instead."""
        if self.problem is not None:
            return
        if self._sandbox.unread + size > self._sandbox.limits.unread:
            why = "the output was not read fast enough, and some of it is lost; the process goes on"
            self.fail(Problem("resource_exhausted", why))
            return
        self._sandbox.unread += size
        self._events.append((size, event))
        self._ready.set()

    def fail(self, problem: Problem) -> None:
        """End the stream with this problem."""
        self.problem = self.problem or problem
        self._ready.set()

    async def next(self, seconds: float) -> _Event:
        """Return the next event, or a keepalive after `seconds`. Raises `Problem` if the stream has failed."""
        try:
            async with asyncio.timeout(seconds):
                while not self._events:
                    if self.problem is not None:
                        raise self.problem
                    self._ready.clear()
                    await self._ready.wait()
        except TimeoutError:
            return {"keepalive": {}}
        size, event = self._events.popleft()
        self._sandbox.unread -= size
        return event

    def close(self) -> None:
        """Drop the unread events."""
        self._sandbox.unread -= sum(size for size, _ in self._events)
        self._events.clear()


class Running:
    """A process and its listeners."""

    def __init__(self, sandbox: Sandbox, process: AsyncSessionProcess, asked: Start) -> None:
        self._sandbox, self.process, self.asked = sandbox, process, asked
        self.listeners: set[Listener] = set()
        self.takes_input = asked.stdin or asked.pty is not None
        self._timed_out = False
        self.ended: _Event | None = None
        self._task = asyncio.create_task(self._follow())

    def end_in(self, seconds: float) -> None:
        """Kill the process after so many seconds."""
        timer = asyncio.get_running_loop().call_later(seconds, self._time_is_over)
        self._task.add_done_callback(lambda _: timer.cancel())

    def _time_is_over(self) -> None:
        self._timed_out = True
        with suppress(RedomaError):  # it has just ended
            self.process.signal(signal.SIGKILL)

    async def _follow(self) -> None:
        name = "pty" if self.asked.pty is not None else "stdout"
        outputs = ((name, self.process.stdout_stream()), ("stderr", self.process.stderr_stream()))
        await asyncio.gather(*(self._pass_on(stream, output) for stream, output in outputs))
        await asyncio.wait([self.process.started()])
        self._sandbox.processes.pop(self.process.pid, None)
        if not self._sandbox.session.alive:
            for listener in self.listeners:
                listener.fail(Problem("unavailable", "the connection to the sandbox ended before the stream did"))
            return
        try:
            self.ended = {"end": _end(self.process.result)}
            self._tell(self.ended, 0)
        except Exception as error:  # such as a failed audit record
            for listener in self.listeners:
                listener.fail(problem_of(error))

    async def _pass_on(self, name: str, output: Any) -> None:
        async for text in output:
            data = text.encode("utf-8", "replace")
            self._tell({"data": {name: base64.b64encode(data).decode()}}, len(data))

    def _tell(self, event: _Event, size: int) -> None:
        for listener in self.listeners:
            listener.put(event, size)

    async def answer(self, request: E2bRequest) -> None:
        """Stream the events of the process from now on."""
        if self._sandbox.listeners >= self._sandbox.limits.listeners:
            raise Problem(
                "resource_exhausted", f"at most {self._sandbox.limits.listeners} clients can listen at a time"
            )
        listener = Listener(self._sandbox)
        self.listeners.add(listener)
        self._sandbox.listeners += 1
        try:
            await request.begin_stream()
            await request.until_gone(self._stream(request, listener))
        finally:
            self._sandbox.listeners -= 1
            self.listeners.discard(listener)
            listener.close()

    async def _stream(self, request: E2bRequest, listener: Listener) -> None:
        seconds = keepalive_of(request)
        await request.envelope({"event": {"start": {"pid": self.process.pid}}})
        event: _Event = {}
        if self.ended is not None:
            listener.put(self.ended, 0)
        while "end" not in event:
            try:
                event = await listener.next(seconds)
            except Problem as problem:
                return await request.end_stream(problem)
            await request.envelope({"event": event})
        timed_out = Problem("deadline_exceeded", "the command took longer than its timeout")
        return await request.end_stream(timed_out if self._timed_out else None)


def _end(result: Result) -> dict[str, Any]:
    if result.status is Status.OK:
        return {"exitCode": 0, "exited": True, "status": "exit status 0"}
    if result.status is Status.ERROR and result.exit_code is not None:
        status = f"exit status {result.exit_code}"
        return {"exitCode": result.exit_code, "exited": True, "status": status, "error": status}
    said = "signal: killed" if result.status is Status.KILLED else result.error or result.status.value
    return {"exitCode": -1, "exited": False, "status": result.status.value, "error": said}


def _select(sandbox: Sandbox, wanted: Selector) -> Running:
    """Return the selected process. Raises `Problem` if there is none."""
    for pid, running in sandbox.processes.items():
        if pid == wanted.pid or (wanted.tag is not None and running.asked.tag == wanted.tag):
            return running
    which = f"tag {wanted.tag!r}" if wanted.tag is not None else f"pid {wanted.pid}"
    raise Problem("not_found", f"process with {which[:100]} not found")


@contextmanager
def _there(running: Running) -> Iterator[None]:
    """Report a process that has just ended as not found."""
    try:
        yield
    except InvalidRequest:
        raise Problem("not_found", f"process with pid {running.process.pid} not found") from None


async def start(request: E2bRequest, sandbox: Sandbox) -> None:
    """Start a process and stream its events. It survives a disconnect, until its timeout."""
    body = await request.message(Start)
    if len(sandbox.processes) >= sandbox.limits.processes:
        raise Problem("resource_exhausted", f"a sandbox has at most {sandbox.limits.processes} processes at a time")
    config = body.process
    cwd = config.cwd or "."
    await _must_be_a_directory(sandbox, cwd)
    # `commands.run` of the SDK sends a line of Bash. Pass it on as one, so that policy reads it as Bash.
    is_line = config.cmd in _SHELLS and len(config.args) == 3 and config.args[:2] == ["-l", "-c"]
    starting = sandbox.session.start(
        config.args[2] if is_line else [config.cmd, *config.args],
        env=_variables(sandbox, config, cwd),
        cwd=inside(cwd),
        pty=body.pty is not None,
        size=(body.pty.size.rows, body.pty.size.cols) if body.pty is not None else None,
        whole_output=True,
    )
    process = await request.until_gone(starting)  # it may wait for an approval
    if process is None:
        return
    running = Running(sandbox, process, body)
    if (seconds := deadline_of(request)) is not None:
        running.end_in(seconds)
    if not running.takes_input:
        process.close_stdin()
    sandbox.processes[process.pid] = running
    await running.answer(request)


def _variables(sandbox: Sandbox, config: ProcessConfig, cwd: str) -> dict[str, str]:
    """Return the variables of a process. PWD makes shells report /home/user, not the directory it links to."""
    return {"PWD": outside(cwd), **config.envs} if sandbox.session.name == "jail" else config.envs


async def _must_be_a_directory(sandbox: Sandbox, cwd: str) -> None:
    try:
        found = await sandbox.session.files.stat(inside(cwd))
    except (FileNotFoundError, NotADirectoryError):
        raise Problem("invalid_argument", f"cwd '{cwd}' does not exist") from None
    if found.kind not in ("directory", "link"):
        raise Problem("invalid_argument", f"cwd '{cwd}' is not a directory")


async def connect(request: E2bRequest, sandbox: Sandbox) -> None:
    """Stream the events of a running process."""
    await _select(sandbox, (await request.message(_Begins)).process).answer(request)


async def list_all(request: E2bRequest, sandbox: Sandbox) -> None:
    """Answer the running processes."""
    await request.body()
    await request.answer(
        {
            "processes": [
                {
                    "pid": pid,
                    "config": msgspec.to_builtins(running.asked.process),
                    **({"tag": running.asked.tag} if running.asked.tag is not None else {}),
                }
                for pid, running in sandbox.processes.items()
            ]
        }
    )


async def update(request: E2bRequest, sandbox: Sandbox) -> None:
    """Resize the terminal of a process."""
    body = await request.json(Selected)
    running = _select(sandbox, body.process)
    if body.pty is not None:
        if running.asked.pty is None:
            raise Problem("failed_precondition", "the process has no terminal")
        running.process.resize(body.pty.size.rows, body.pty.size.cols)
    await request.answer({})


async def send_input(request: E2bRequest, sandbox: Sandbox) -> None:
    """Write to the input of a process."""
    body = await request.json(Selected)
    await request.until_gone(_give(_select(sandbox, body.process), body.input))  # the process may never read it
    await request.answer({})


async def stream_input(request: E2bRequest, sandbox: Sandbox) -> None:
    """Write a stream of messages to the input of a process."""
    running: Running | None = None
    try:
        async for message in request.messages(StreamedInput):
            if message.start is not None:
                running = _select(sandbox, message.start.process)
            elif message.data is not None:
                if running is None:
                    raise Problem("invalid_argument", "the first message must say which process it is for")
                await _give(running, message.data.input)
        await request.begin_stream()
        await request.envelope({})
        await request.end_stream()
    except Problem as problem:
        if not request.begun:
            await request.begin_stream()
        await request.end_stream(problem)


async def _give(running: Running, given: Input | None) -> None:
    data = None if given is None else given.stdin if given.stdin is not None else given.pty
    if not running.takes_input:
        raise Problem("failed_precondition", "the process takes no input: start it with stdin=True")
    if data:
        with _there(running):
            await running.process.write_stdin(data)


async def close_stdin(request: E2bRequest, sandbox: Sandbox) -> None:
    """Close the input of a process that has no terminal."""
    running = _select(sandbox, (await request.json(Selected)).process)
    if running.asked.pty is not None:
        raise Problem("failed_precondition", "a terminal can't be closed: send Ctrl-D")
    with _there(running):
        running.process.close_stdin()
    running.takes_input = False
    await request.answer({})


async def send_signal(request: E2bRequest, sandbox: Sandbox) -> None:
    """Send SIGTERM or SIGKILL to a process."""
    body = await request.json(Selected)
    running = _select(sandbox, body.process)
    if body.signal not in _SIGNALS:
        raise Problem("invalid_argument", "the signals are SIGTERM and SIGKILL")
    with _there(running):
        running.process.signal(_SIGNALS[body.signal])
    await request.answer({})


_Kind = Literal["unary", "stream"]
CALLS: dict[str, tuple[_Kind, Any]] = {
    "Start": ("stream", start),
    "Connect": ("stream", connect),
    "List": ("unary", list_all),
    "Update": ("unary", update),
    "SendInput": ("unary", send_input),
    "StreamInput": ("stream", stream_input),
    "CloseStdin": ("unary", close_stdin),
    "SendSignal": ("unary", send_signal),
}
