"""One run in an open session, as a backend: the pipeline treats it like any other run.

The time-out, the limit on output and a cancelled caller all end a run in the same way: it is interrupted. If it has not
ended after a while, a command is killed. For Python, which shares its process with the variables of the session, the
session is ended.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from ..backends import display
from ..backends.base import COMMON_LIMITS, Capabilities, Control, Outcome, Sink, decoded, uncancellable
from ..backends.endings import Ending, not_started
from ..backends.jail import protocol, value_reading
from ..lib.errors import BackendError, InvalidRequest
from ..models import OTHER, Display, Isolation, Language, Limits, Request, Status, Stream, Usage
from ..models.reach import Reach
from . import driver, frames
from .alarm import Alarm
from .channel import Channel, Done, framed

_LIMITS = COMMON_LIMITS | {"disk", "files"}
LANGUAGES: frozenset[Language] = frozenset({"python", "bash", "javascript", "command", OTHER})


class Home(Protocol):
    """What a run needs of its session."""

    name: str
    reach: Reach
    grace: float
    """Seconds that an interrupted run has to end."""
    lock: asyncio.Lock
    """Held by the current run."""
    alarm: Alarm
    """Set by the current run."""
    current: Turn | None

    @property
    def isolation(self) -> Isolation: ...

    async def opened(self) -> Channel:
        """Return its channel, which is opened if necessary. Raises `BackendError` if the session has ended or can't be
        opened."""


class Turn:
    """A backend for one request: runs it in the session `home` when no other run is in progress.

    `context` names its set of variables; `directory` is the working directory of a run of Python, by default where the
    last one ended. With `traceback_apart` a traceback is not printed; with `charts` figures are also shown as data.
    """

    def __init__(
        self, home: Home, *, context: str, directory: str = "", traceback_apart: bool = False, charts: bool = False
    ) -> None:
        self.name, self.reach = home.name, home.reach
        self.began: Callable[[], None] | None = None
        """Called when it begins to run; not if it was refused."""
        self._home, self.context = home, context
        self._directory, self._traceback_apart, self._charts = directory, traceback_apart, charts
        self.traceback = ""
        """The traceback of the exception that ended it, with `traceback_apart`. Not redacted."""
        self._on_display: Callable[[Display], None] | None = None
        self._channel: Channel
        self._sink: Sink
        self._done: tuple[Done, bytes] | None = None
        self._changed: asyncio.Future[None]
        """Done when there is something new to wait for."""
        self._number = self._unread = 0
        self._stopped: Status | None = None
        self._flooded = False
        self._displays: list[Display] = []
        self._room = display.MAX_TOTAL

    def capabilities(self) -> Capabilities:
        return Capabilities(
            languages=LANGUAGES,
            isolation=self._home.isolation,
            limits=_LIMITS,  # those of the session hold for all its runs together
            arguments=True,
            stdin=True,
            env=True,
            cwd=True,
            value=True,
        )

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        async with self._home.lock:
            self._channel, self._sink = await self._home.opened(), sink
            await self._channel.settled(self._home.grace)
            self._changed = asyncio.get_running_loop().create_future()
            self._number = next(self._channel.runs)
            message = self._message(request)
            self._channel.listen("run", self._number, self)
            self._home.current = self
            if self.began is not None:
                self.began()
            start = time.monotonic()
            try:
                if request.language == "python":
                    await self._channel.run_python(message)
                else:
                    await self._channel.write(message)
                await self._wait(request.limits.time)
            except BaseException:
                # The caller is gone. The session continues if the run can be ended.
                self._stopped = self._stopped or Status.KILLED
                await uncancellable(self._make_it_end())
                raise
            finally:
                self._home.current = None
                self._channel.forget("run", self._number)
                self.read()  # its output counts as read: nobody else will read it
            return await self._outcome(request, time.monotonic() - start)

    def follow(self, on_display: Callable[[Display], None]) -> None:
        """Pass each display on, not redacted; and count output as read only when `read` is called."""
        self._on_display = on_display

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._channel.interrupt(self._number)

    async def aclose(self) -> None:
        """Does nothing: the session belongs to its caller."""

    def _message(self, request: Request) -> bytes:
        if request.language == "python":
            source = request.code.encode("utf-8", "surrogatepass")
            most = min(request.limits.output_bytes, protocol.MAX_VALUE)
            head: dict[str, Any] = {"do": "run", "context": self.context, "value": most}
            # Only what was given: reading the rest takes longer than many a run.
            if request.env or self._directory:
                head |= {"variables": request.env, "directory": self._directory}
            if self._traceback_apart or self._charts:
                head |= {"traceback_apart": self._traceback_apart, "charts": self._charts}
        else:
            source = _encoded(request.code)
            words = request.interpreted(driver.SCRIPT) if request.interpreter else request.argv
            bash = request.language == "bash"
            head = {"do": "command", "bash": bash, "argv": list(words), "env": request.env}
        head |= {"run": self._number, "source": len(source)}
        return framed(head, source + request.stdin)

    async def _wait(self, seconds: float) -> None:
        """Wait for the end of the run; end it when its time is over, or when it has printed too much."""
        if not await self._ends_within(seconds, also_flooded=True):
            self._stopped = self._stopped or Status.TIMEOUT
            await self._make_it_end()

    async def _ends_within(self, seconds: float, *, also_flooded: bool = False) -> bool:
        """Wait for the end of the run or the session; `also_flooded`, until it has printed too much. Returns whether it
        ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self._is_over and not (also_flooded and self._flooded) and loop.time() < deadline:
            # One future and one timer: `asyncio.wait` takes a quarter of the time that a short run has.
            self._home.alarm.set(deadline, self._wake)
            try:
                await self._changed
            finally:
                self._home.alarm.stop()
                self._changed = loop.create_future()
        return self._is_over

    @property
    def _is_over(self) -> bool:
        return self._done is not None or self._channel.ended.done()

    def _wake(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)

    async def _make_it_end(self) -> None:
        """Interrupt the run, then kill it, then end the session: each if the step before was not enough."""
        self.read()  # otherwise it might be blocked by a slow reader
        self._channel.interrupt(self._number)
        if await self._ends_within(self._home.grace / 2):
            return
        self._channel.post({"do": "kill", "run": self._number})  # kills a command; Python can only be interrupted
        if await self._ends_within(self._home.grace / 2):
            return
        await self._channel.close("a run did not end when it was interrupted")

    # --- messages of the driver: see `channel.Listener` ---

    def out(self, stream: Stream, data: bytes) -> bool:
        if self._flooded:
            return True
        if not self._sink(stream, data):
            self._flooded, self._stopped = True, self._stopped or Status.OUTPUT
            self._wake()
        if self._on_display is not None and self._stopped is None:
            self._unread += len(data)
            return False
        return True

    def read(self) -> None:
        """Count all output so far as read."""
        unread, self._unread = self._unread, 0
        if unread:
            self._channel.run_output_read(unread)

    def shown(self, representations: dict[str, bytes], is_value: bool) -> None:
        size = sum(map(len, representations.values()))
        if len(self._displays) >= display.MAX_DISPLAYS or size > self._room or not representations:
            return
        self._room -= size
        contents = {kind: _content(kind, data) for kind, data in representations.items()}
        shown = Display(data=contents, is_value=is_value)
        self._displays.append(shown)
        if self._on_display is not None:
            self._on_display(shown)

    def done(self, said: Done, value: bytes) -> None:
        self._done = said, value
        self._wake()

    def exited(self, status: int) -> None:
        """Does not happen to a run: only background processes exit."""

    def lost(self) -> None:
        self._wake()

    # --- the outcome ---

    async def _outcome(self, request: Request, wall: float) -> Outcome:
        if self._done is None:
            return self._lost(request.limits, wall)
        said, data = self._done
        self.traceback = said.traceback
        value = await decoded(value_reading.read, data) if data else None
        ending = Ending(
            exit_code=said.exit or 0,
            signal=said.signal,
            names_limit=False,
            flooded=self._flooded,
            stopped=self._stopped,
            memory_error=said.memory,
            broken=not_started(request, said.broken[:1000]),
            error=said.error,
        )
        outcome = ending.outcome(
            request.limits,
            isolation=self._channel.isolation,
            usage=Usage(wall=wall),
            value=value,
            exception=said.exception,
        )
        changes: dict[str, Any] = {"displays": tuple(self._displays)}
        if self._stopped is not None:
            changes["error"] = f"{_WHY[self._stopped].format(request.limits)} and was interrupted; the session goes on"
        elif said.memory and outcome.status is Status.MEMORY:
            most = request.limits.memory
            changes["error"] = f"it ended with a MemoryError; the session may use {most} bytes of memory, and goes on"
        return msgspec.structs.replace(outcome, **changes)

    def _lost(self, limits: Limits, wall: float) -> Outcome:
        """Return the outcome of a run during which the session ended, by itself or because we ended it."""
        end = self._channel.outcome
        if self._stopped is not None:
            why = _WHY[self._stopped].format(limits)
            return Outcome(
                status=self._stopped,
                error=f"{why} and did not end when it was interrupted, so the session was ended",
                isolation=self._channel.isolation,
                usage=Usage(wall=wall),
            )
        if self._channel.malformed or not isinstance(end, Outcome):
            raise self._channel.gone()
        status = Status.ERROR if end.status is Status.OK else end.status
        return msgspec.structs.replace(
            end,
            status=status,
            value=None,
            error=f"{self._channel.gone().why}, and the session with it",
            usage=Usage(wall=wall, cpu=None, memory=end.usage.memory),
            displays=tuple(self._displays),
        )


class ProcessTurn:
    """A backend for one background command of the session `home`: it runs beside other runs."""

    def __init__(self, home: Home, *, pty: bool, size: tuple[int, int] | None = None, cwd: str = "") -> None:
        self.name, self.reach = home.name, home.reach
        self.began: Callable[[], None] | None = None
        """Called when it begins to run; not if it was refused."""
        self._home, self._pty, self._size, self._cwd = home, pty, size, cwd
        self.pid = 0
        """Its process id inside the session, once it has been started."""
        self._channel: Channel
        self._sink: Sink
        self._exit: asyncio.Future[int]
        self._number = 0
        self._stopped: Status | None = None
        self._flooded = False

    def capabilities(self) -> Capabilities:
        return Capabilities(
            languages=frozenset({"bash", "command"}),
            isolation=self._home.isolation,
            limits=_LIMITS,
            stdin=True,
            env=True,
            cwd=True,
            control=True,
        )

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        self._channel, self._sink = await self._home.opened(), sink
        self._exit = asyncio.get_running_loop().create_future()
        self._number = self._channel.number()
        self._channel.listen("process", self._number, self)
        start, tasks = time.monotonic(), set[asyncio.Task[None]]()
        if self.began is not None:
            self.began()
        try:
            broken = await self._begin(request)
            if control is not None:
                control.isolation = self._channel.isolation
                control.deliver_signals(self._signal)
            if not broken:
                tasks.add(asyncio.create_task(self._write_input(request.stdin, control)))
                await self._wait(request.limits.time)
        except BaseException:
            await uncancellable(self._kill())
            raise
        finally:
            self._channel.forget("process", self._number)
            for task in tasks:
                task.cancel()
            if control is not None:
                control.close()
        if self._channel.ended.done() and not self._exit.done() and not broken:
            raise self._channel.gone()
        code = 127 if broken else self._exit.result()
        return Ending(
            exit_code=max(code, 0),
            signal=-code if code < 0 else None,
            names_limit=False,
            flooded=self._flooded,
            stopped=self._stopped,
            broken=broken,
        ).outcome(request.limits, isolation=self._channel.isolation, usage=Usage(wall=time.monotonic() - start))

    async def aclose(self) -> None:
        """Does nothing: the session belongs to its caller."""

    async def _begin(self, request: Request) -> str:
        """Start it. Returns the error if that fails, else an empty text."""
        bash = request.language == "bash"
        answer, _ = await self._channel.ask(
            {
                "do": "start",
                "process": self._number,
                "bash": bash,
                "script": request.code,
                "argv": list(request.argv),
                "env": request.env,
                "pty": self._pty,
                "size": self._size,
                "cwd": self._cwd,
            }
        )
        self.pid = answer.pid
        name = "bash" if bash else request.argv[0]
        return f"start {name}: {answer.error[:1000]}" if answer.errno is not None else ""

    async def _write_input(self, first: bytes, control: Control | None) -> None:
        data, ends = first, control is None
        while True:
            for start in range(0, len(data) or 1, frames.CHUNK):
                piece = data[start : start + frames.CHUNK]
                last = ends and start + frames.CHUNK >= len(data)
                if piece or last:
                    # Without a time limit: it may never read that.
                    await self._channel.ask(
                        {"do": "input", "process": self._number, "ends": last}, piece, patience=None
                    )
            if ends or control is None:
                return
            data = await control.read()
            ends = not data

    def resize(self, rows: int, columns: int) -> None:
        """Resize its terminal."""
        self._channel.post({"do": "resize", "process": self._number, "rows": rows, "columns": columns})

    def _signal(self, number: int) -> None:
        self._channel.post({"do": "signal", "process": self._number, "number": number})

    async def _wait(self, seconds: float) -> None:
        if not await self._ends_within(seconds):
            self._stopped = self._stopped or Status.TIMEOUT
            await self._kill()

    async def _ends_within(self, seconds: float) -> bool:
        """Wait for the end of the process or the session. Returns whether one of them ended."""
        waits: list[asyncio.Future[Any]] = [self._exit, self._channel.ended]
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    async def _kill(self) -> None:
        """Kill its program, if it was started. If the driver doesn't report its end, the session is ended."""
        told = {"do": "signal", "process": self._number, "number": signal.SIGKILL.value}
        with suppress(BackendError):  # the session has ended
            answer, _ = await self._channel.ask(told, patience=self._home.grace)
            if answer.errno is not None:
                return  # it was not started, or has ended
        if not await self._ends_within(self._home.grace):
            await self._channel.close("a process did not end when it was killed")

    def out(self, stream: Stream, data: bytes) -> bool:
        if not self._flooded and not self._sink(stream, data):
            self._flooded, self._stopped = True, self._stopped or Status.OUTPUT
            self._signal(signal.SIGKILL)
        return True

    def shown(self, representations: dict[str, bytes], is_value: bool) -> None:
        """Does not happen to a process: only runs of Python show something."""

    def done(self, said: Done, value: bytes) -> None:
        """Does not happen to a process: only runs are done."""

    def exited(self, status: int) -> None:
        if not self._exit.done():
            self._exit.set_result(status)

    def lost(self) -> None:
        """Does nothing: `_wait` also waits for the end of the session."""


_WHY = {
    Status.TIMEOUT: "it ran longer than {0.time:g} s",
    Status.OUTPUT: "it printed more than {0.output_total} bytes",
    Status.KILLED: "it was cancelled",
}


def _encoded(code: str) -> bytes:
    """Return code for a file. Raises `InvalidRequest` if it can't be written."""
    try:
        return code.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidRequest("the code can't be written to a file", why=str(error), next="remove it there") from None


def _content(kind: str, data: bytes) -> str | bytes:
    return data if kind in display.BINARY else data.decode("utf-8", "replace")
