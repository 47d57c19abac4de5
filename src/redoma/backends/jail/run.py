"""Runs one request in one cell, on the caller's event loop: sends the order, receives output and a verdict."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ...lib.errors import BackendError
from ...lib.types import resolved
from ...models import Display, Isolation, Limits, Request, Status, Stream, Usage
from ..base import MAX_LIMIT, Control, Outcome, OverlayEntry, Sink, decoded, uncancellable
from ..collect import collect
from ..endings import Ending, not_started
from . import protocol
from .cell import Ahead, Cell
from .changes import LayerSize, read_changes, read_live
from .configuration import RLIMITS
from .readiness import Readiness, Readinesses

_CHUNK = 1 << 16
_BROKEN = (125, 126, 127)  # exit codes of a program that could not be started
_SCRIPT = "/run/script"  # where the guest writes a script for another program
_ROOM_FOR_A_HELPER = 16  # processes, and open files
_GRACE = 1.0  # seconds that init has to end the cell and report, before the cell is killed
_LOOK = 0.25  # seconds between checks of a cell's processor time, at least
_PROCESSORS = os.sysconf("SC_NPROCESSORS_CONF")  # also those that are switched off now
_LOOK_AT_OUTPUT = 0.005  # seconds after which output is read as it comes; that of a shorter run is read at its end
_LOOK_AT_LAYER = 0.01  # seconds between checks of how much it has written to disk
_NO_SPACE = "free space on the disk fell too far while it ran, so it was ended"


class InitReport(NamedTuple):
    """The report of init, which the guest can't influence: wait status, why init ended the run, resources used."""

    status: int
    cause: str
    cpu: float
    memory: int


class Report(msgspec.Struct, frozen=True):
    """The report of the guest. Untrusted: it determines only the value and messages of its own run."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    """Decode it only with `value_reading.read`, which is bounded."""
    exception: str | None = None
    error: str | None = None
    errno: int | None = None
    memory: bool = False
    broken: str | None = None
    displays: msgspec.Raw = msgspec.Raw(b"[]")
    """Decode it only with `displays.read`."""


class Run:
    """One request in one cell. With a `stage`, the changes to the project are put into that directory.

    `processes_by_rlimit`: whether the kernel counts processes by user namespace, so that RLIMIT_NPROC limits this cell
    alone. `watched`: whether init watches the memory, because no control group limits it.
    """

    def __init__(
        self,
        request: Request,
        cell: Cell,
        isolation: Isolation,
        readinesses: Readinesses,
        env: Mapping[str, str],
        control: Control | None = None,
        stage: str | None = None,
        files: Mapping[str, bytes] | None = None,
        *,
        processes_by_rlimit: bool,
        watched: bool,
    ) -> None:
        self._by_rlimit, self._is_watched = processes_by_rlimit, watched
        self._own_files = dict(files or {})
        """Further files to place in the cell, by absolute path."""
        self._stage = stage
        self._request, self._cell, self._isolation = request, cell, isolation
        self._sink: Sink
        """What takes its output: see `execute`."""
        self._is_prepared = False
        self._control = control
        if control is not None:
            control.isolation = isolation
            control.read_changes = self._read_changes if request.workspace == "overlay" else None
        self._input: asyncio.Task[None] | None = None
        self._env = {**env, **request.environment}
        self._max_value = min(request.limits.output_bytes, protocol.MAX_VALUE)
        self._loop, self._readinesses = asyncio.get_running_loop(), readinesses
        self._readiness: Readiness
        """That of our event loop, from when we follow something on."""
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._frames = protocol.Frames()
        self._ending: Status | None = None
        self._verdict: InitReport | None = None
        self._report, self._reported = Report(), False
        self._workspace = -1
        """A directory descriptor, if output files were requested and everything in the cell is dead."""
        self._files: dict[str, bytes] = {}
        self._left_out: dict[str, str] = {}
        self._entries: tuple[OverlayEntry, ...] | None = None
        self._layer_excess = ""
        self._watcher: asyncio.Task[None] | None = None
        self._open: dict[Stream, int] = {"stdout": cell.stdout, "stderr": cell.stderr}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._feeding: dict[int, memoryview] = {}
        self._malformed: str | None = None
        self._used_up = self._flooded = False
        self._followed: list[int] = []
        """The descriptors of the cell that we follow."""
        self._cpu_before = 0.0
        """Seconds of processor time that arming the cell took."""
        if cell.events is None:
            raise BackendError("the cell can't be followed", why="it was not opened", next="report it")
        self._events = cell.events

    def prepare(self) -> None:
        """Send the orders. The guest does everything that comes before the first line of code, and then waits for
        `execute`. Call `let_go` if that does not follow.
        """
        self._limit_memory()
        self._feed(self._cell.order.fileno(), self._order_for_guest())
        self._feed(self._cell.control.fileno(), self._order_for_init())
        self._is_prepared = True

    async def execute(self, sink: Sink) -> Outcome:
        """Run to the end; `sink` takes the output. Afterwards nothing of the cell can send or return anything any more.

        Raises `BackendError` if the cell was lost.
        """
        self._sink = sink
        start = time.monotonic()
        limits = self._request.limits
        if not self._is_prepared:
            self._limit_memory()
        self._check_time_later(start + limits.time, limits.cpu)
        size = self._layer_size()
        try:
            self._begin()
            if size is not None:
                self._watcher = self._loop.create_task(self._watch_layer(size))
            await self._done
        finally:
            self.let_go()
            if not self._done.done() or self._done.cancelled():
                self._cell.kill()
                await uncancellable(self._wait_until_dead())
        if self._verdict is None:
            self._cell.kill()
            await uncancellable(self._wait_until_dead())
        self._drain()
        wall = time.monotonic() - start
        if self._verdict is not None:
            if size is not None and not self._layer_excess and await asyncio.to_thread(size.counted):
                self._layer_excess = "disk"
            if self._request.outputs or self._stage is not None:
                await uncancellable(self._collect())  # afterwards the caller may remove the stage
        return self._outcome(wall, await self._value(), await self._displays())

    async def _collect(self) -> None:
        """Read the output files and changes. Nothing of the run is alive: init has waited for that."""
        try:
            if self._request.outputs:
                if self._workspace < 0:  # the kernel drops a descriptor that there is no room for
                    why = "its workspace did not come along, most likely for want of open files"
                    raise BackendError("the files of the run can't be returned", why=why, next="close some files")
                self._files, self._left_out = await asyncio.to_thread(
                    collect, self._workspace, self._request.outputs, self._request.files
                )
            if self._stage is not None:
                disk = self._request.limits.disk
                self._entries = await asyncio.to_thread(read_changes, self._cell.layer, self._stage, disk=disk)
        finally:
            if (workspace := self._workspace) >= 0:
                self._workspace = -1
                os.close(workspace)

    async def _read_changes(self, stage: str) -> tuple[OverlayEntry, ...]:
        """Return what the run has changed so far, while it goes on."""
        return await asyncio.to_thread(read_live, os.dup(self._cell.layer), stage, disk=self._request.limits.disk)

    def _layer_size(self) -> LayerSize | None:
        """Return what measures the layer if it is on disk. In memory, its file system has a fixed size."""
        if not self._cell.place and not self._cell.keeps_changes_on_disk:
            return None
        limits = self._request.limits
        return LayerSize(self._cell.layer, max_bytes=limits.disk, max_files=limits.files)

    async def _watch_layer(self, size: LayerSize) -> None:
        """End the run when it has written too much."""
        while not self._layer_excess:
            await asyncio.sleep(_LOOK_AT_LAYER)
            self._layer_excess = await asyncio.to_thread(size.excess)
        self._end(Status.KILLED)

    # --- in ---

    def _limit_memory(self) -> None:
        if self._cell.group is not None:
            self._cell.group.limit(self._request.limits.memory)
            self._cpu_before = self._cell.group.cpu() or 0.0

    def _begin(self) -> None:
        """Give the word to start, and listen. The orders go to the guest first: on a single processor, init would run
        before it.
        """
        self._readiness = self._readinesses.here(self._loop)
        if self._is_prepared:
            self._feed(self._cell.order.fileno(), protocol.START)
        else:
            self._feed(self._cell.order.fileno(), self._order_for_guest() + protocol.START)
            self._feed(self._cell.control.fileno(), self._order_for_init())
        if self._control is None:
            self._feed(self._cell.stdin, self._request.stdin, last=True)
        else:
            self._input = self._loop.create_task(self._write_input(self._control, self._cell.stdin))
            self._loop.add_reader(self._cell.order.fileno(), self._started, self._control)
        self._follow(self._cell.control.fileno(), self._receive)
        if self._control is None:
            self._timers["output"] = self._loop.call_later(_LOOK_AT_OUTPUT, self._follow_output)
        else:
            self._follow_output()

    def _follow(self, number: int, callback: Callable[[], None]) -> None:
        self._readiness.follow(number, callback)
        self._followed.append(number)

    def _follow_output(self) -> None:
        """Read output as it comes from now on. Not from the start: a short run ends while we would read."""
        self._follow(self._events.fileno(), self._read_output)

    def _order_for_guest(self) -> bytes:
        request = self._request
        argv = _argv(request, self._cell.place + _SCRIPT)
        order = {
            "argv": argv,
            "arguments": list(request.argv) if request.language == "python" else [],
            "source": None if request.language == "command" else request.code,
            # Python has the variables of its zygote already, and looking through them takes it longer than most runs.
            "env": self._env if argv else self._cell.besides_those_of_the_zygote(self._env),
            "files": {**request.files, **self._own_files},
            "cwd": request.cwd,
            "value": self._max_value,
            "recursion": min(request.limits.recursion, 1_000_000),
            "rlimits": _rlimits(request.limits, self._by_rlimit, self._is_watched),
            "site": request.uses is not None and not request.uses.preload,
        }
        return protocol.order(order)

    def _order_for_init(self) -> bytes:
        limits = self._request.limits
        return protocol.RUN_ORDER.pack(
            min(int(limits.cpu * 1e6), MAX_LIMIT),
            min(limits.memory, MAX_LIMIT),
            0 if self._by_rlimit else min(limits.processes, 2**32 - 1),
            # JSON may need six bytes for a character; displays are in base64.
            6 * self._max_value + (1 << 19) + protocol.MAX_SHOWN // 3 * 4 + (1 << 16),
            self._is_watched,
            bool(self._request.outputs),
            self._stage is not None,
            self._cell.spec.ahead is not None,
        )

    def _feed(self, number: int, data: bytes, last: bool = False) -> None:
        """Write what fits now, and the rest when there is room. With `last`, close it afterwards: it is stdin."""
        waiting = self._feeding.pop(number, None)
        rest = memoryview(b"") if waiting is None else waiting
        view = memoryview(bytes(rest) + data) if data else rest
        try:
            while view:
                view = view[os.write(number, view) :]
        except BlockingIOError:
            self._feeding[number] = view
            self._loop.add_writer(number, self._feed, number, b"", last)
            return
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may end, or close its input, without reading everything
        if waiting is not None:
            self._loop.remove_writer(number)
        if last:
            os.close(number)
            self._cell.stdin = -1

    async def _write_input(self, control: Control, number: int) -> None:
        """Write its input: first that of the request, then what the caller writes while it runs."""
        control.write_now = self._write_now
        data = memoryview(self._request.stdin or await control.read())
        while data:
            try:
                data = data[self._put(number, data, control) :] or memoryview(await control.read())
            except BlockingIOError:
                await self._room(number)
            except BrokenPipeError:  # it has closed its input: discard the rest, so that no writer waits for room
                data = memoryview(await control.read())
        self._cell.stdin = -1
        os.close(number)

    def _write_now(self, data: bytes) -> int:
        try:
            return os.write(self._cell.stdin, data)
        except OSError:  # no room, or no reader any more
            return 0  # `_write_input` knows what to do

    def _put(self, number: int, data: memoryview, control: Control) -> int:
        """Write what fits now. A descriptor that belongs to it is sent with its first byte."""
        passed = control.passed
        if not isinstance(passed, int) or passed < 0:  # the names are of images on other machines
            return os.write(number, data)
        with socket.socket(fileno=os.dup(number)) as ours:
            sent = socket.send_fds(ours, [data], [passed])
        control.passed = -1
        return sent

    async def _room(self, number: int) -> None:
        room = self._loop.create_future()
        # Cancelled, not resolved: cancelling it twice is harmless.
        self._loop.add_writer(number, room.cancel)
        await asyncio.wait([room])
        self._loop.remove_writer(number)

    def _started(self, control: Control) -> None:
        """Pass signals on from now: the guest has closed the order socket, so it has become the program."""
        self._loop.remove_reader(self._cell.order.fileno())
        control.deliver_signals(lambda number: self._feed(self._cell.control.fileno(), bytes([number])))

    # --- out ---

    def _receive(self) -> None:
        if self._done.done():
            return None  # whatever follows is not read
        try:
            if self._request.outputs:
                data, descriptors, _, _ = socket.recv_fds(self._cell.control, _CHUNK, 1, socket.MSG_CMSG_CLOEXEC)
            else:
                data, descriptors = self._cell.control.recv(_CHUNK), []
        except BlockingIOError:
            return None
        except OSError:
            data, descriptors = b"", []
        for number in descriptors:
            if self._workspace >= 0:
                os.close(number)
                self._malformed = "more descriptors than were asked for"
                return self._finish()
            self._workspace = number
        if not data:
            return self._finish()
        try:
            for kind, payload in self._frames.feed(data):
                self._take(kind, payload)
                if self._verdict is not None:  # nothing follows it
                    break
        except (protocol.Malformed, struct.error, IndexError) as error:
            self._malformed = str(error)
            self._finish()
        return None

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == protocol.VERDICT:
            status, cause, cpu, memory = protocol.VERDICT_PARTS.unpack(payload)
            self._verdict = InitReport(status, protocol.CAUSES[cause], cpu / 1e6, memory)
            self._finish()
        elif kind == protocol.REPORT and not self._reported:
            self._reported = True
            try:
                self._report = msgspec.json.decode(payload, type=resolved(Report))
            except (msgspec.DecodeError, RecursionError):
                self._report = Report()  # the guest has spoilt it, so there is no value
        elif kind != protocol.FILES:
            raise protocol.Malformed(f"a frame of kind {kind!r} from a running cell")

    def _read_output(self) -> None:
        """Read a piece of what it has printed to each stream, in the order in which they became readable."""
        streams = {number: stream for stream, number in self._open.items()}
        for number, _ in self._events.poll(0):
            self._pump(streams[number], number)
            if streams[number] not in self._open:
                self._events.unregister(number)

    def _pump(self, stream: Stream, number: int) -> bool:
        """Pass a piece of output to the sink. Returns False if there is none now."""
        try:
            data = os.read(number, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            del self._open[stream]
            return False
        if not self._flooded and not self._sink(stream, data):
            self._flooded = True  # even if it has ended by itself meanwhile: it printed too much
            self._end(Status.OUTPUT)
        return True

    def _drain(self) -> None:
        """Read the rest of the output. Nothing in the cell has its pipes any more, so no more will come."""
        self._read_output()
        for stream, number in list(self._open.items()):
            while self._pump(stream, number):
                continue

    def _end(self, ending: Status) -> None:
        """Tell init to end the run and report; kill the cell if it doesn't answer in time."""
        if self._ending is not None or self._done.done():
            return
        self._ending = ending
        try:
            self._cell.control.send(protocol.END)
        except OSError:
            self._cell.kill()
        self._timers["grace"] = self._loop.call_later(_GRACE, self._cell.kill)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def let_go(self) -> None:
        """Remove our timers, readers and writers from the event loop."""
        for timer in self._timers.values():
            timer.cancel()
        while self._followed:
            self._readiness.leave(self._followed.pop())
        for number in self._feeding:
            self._loop.remove_writer(number)
        self._feeding.clear()  # in case this is called again, when the numbers may be those of others
        if self._watcher is not None:
            self._watcher.cancel()
        if self._workspace >= 0 and self._verdict is None:
            os.close(self._workspace)
            self._workspace = -1
        if self._control is not None:
            self._control.close()
            self._loop.remove_reader(self._cell.order.fileno())
        if self._input is not None:
            # It must not touch the loop any more: the number of that pipe may soon be reused.
            self._input.cancel()
            if self._cell.stdin >= 0:
                self._loop.remove_writer(self._cell.stdin)

    async def _wait_until_dead(self) -> None:
        """Wait until the cell is dead. Raises `BackendError` if it is still alive after 10 s."""
        handle, dead = self._cell.handle, self._loop.create_future()
        self._loop.add_reader(handle, dead.cancel)
        try:
            await asyncio.wait([dead], timeout=10)
        finally:
            self._loop.remove_reader(handle)
        if not dead.done():
            raise BackendError("the run could not be ended", why="it was still there after 10 s", next="see `dmesg`")

    # --- the outcome ---

    async def _value(self) -> Any:
        """Return the value of the last expression, as the guest reports it."""
        data = bytes(self._report.value)
        if data == b"null":
            return None
        from . import value_reading  # late: not every run has a value

        return await decoded(value_reading.read, data)

    async def _displays(self) -> tuple[Display, ...]:
        """Return what it displayed."""
        data = bytes(self._report.displays)
        if data == b"[]":
            return ()
        from . import displays

        return await decoded(displays.read, data)

    def _outcome(self, wall: float, found: Any, displays: tuple[Display, ...]) -> Outcome:
        group = self._cell.group
        out_of_memory = group is not None and group.oom_kills() > 0
        verdict = self._verdict
        if verdict is None and self._ending is None and not out_of_memory:
            raise BackendError(
                "the cell was lost",
                why=self._malformed
                or self._cell.broken
                or "the jail was closed, or its init or zygote was killed from outside",
                next="run it again",
            )
        peak = group.peak() if group is not None else None
        memory = peak if peak is not None else verdict.memory if verdict else None
        return self._ended(verdict, out_of_memory).outcome(
            self._request.limits,
            displays=displays,
            value=found,
            exception=self._report.exception,
            isolation=self._isolation,
            usage=Usage(wall=wall, cpu=self._cpu(), memory=memory),
            seed=self._cell.seed if self._request.language == "python" else None,
            files=self._files,
            left_out=self._left_out,
            entries=self._entries,
        )

    def _cpu(self) -> float | None:
        """Return the processor time of the whole cell, from its control group if it has one. Init knows only about
        processes that were waited for.
        """
        counted = self._cell.group.cpu() if self._cell.group is not None else None
        counted = None if counted is None else counted - self._cpu_before
        reported = self._verdict.cpu if self._verdict else None
        return max((used for used in (counted, reported) if used is not None), default=None)

    def _check_time_later(self, deadline: float, cpu_left: float) -> None:
        """Check the time of the run at its deadline, or when it can have used up what is left of its processor time:
        not before all processors have worked for it that long. A session has an hour, so looking more often would be
        costly.
        """
        pause = min(max(_LOOK, cpu_left / _PROCESSORS), deadline - time.monotonic())
        self._timers["time"] = self._loop.call_later(pause, self._check_time, deadline)

    def _check_time(self, deadline: float) -> None:
        """End the run if its time or its processor time is used up; otherwise check again."""
        if time.monotonic() >= deadline:
            self._end(Status.TIMEOUT)
            return
        self._check_time_later(deadline, 0.0)  # first: the deadline holds even if the processor time can't be read
        left = self._request.limits.cpu - (self._cpu() or 0.0)
        self._timers["time"].cancel()
        if left < 0 and self._ending is None:
            self._used_up = True
            self._end(Status.TIMEOUT)
        else:
            self._check_time_later(deadline, left)

    def _ended(self, verdict: InitReport | None, out_of_memory: bool) -> Ending:
        """Return how the run ended, from the reports of init and the kernel. The guest's report is used only for a
        program that failed by itself.
        """
        flooded = self._flooded and self._ending in (None, Status.OUTPUT)
        if self._layer_excess == "space":
            return Ending(out_of_memory=out_of_memory, flooded=flooded, killed=_NO_SPACE)
        if self._layer_excess:
            return Ending(out_of_memory=out_of_memory, flooded=flooded, limit=self._layer_excess)
        if verdict is None or verdict.cause == "end":
            stopped, limit = self._ending or Status.KILLED, "cpu" if self._used_up else ""
            return Ending(out_of_memory=out_of_memory, flooded=flooded, stopped=stopped, limit=limit)
        if verdict.cause:
            return Ending(out_of_memory=out_of_memory, flooded=flooded, limit=verdict.cause)
        limit, code, report = "", _exit_code(verdict.status), self._report
        if code == -signal.SIGXCPU:
            limit = "cpu"
        return Ending(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            out_of_memory=out_of_memory,
            flooded=flooded,
            limit=limit,
            memory_error=code > 0 and report.memory,
            broken=not_started(self._request, f"{report.broken[:1000]}{_hint(report, self._request.limits)}")
            if report.broken and code in _BROKEN
            else "",
            error=report.error if code > 0 else None,
        )


def start_ahead(request: Request, *, processes_by_rlimit: bool, watched: bool) -> Ahead | None:
    """Return the shell that a cell for such requests can start before it knows the script; None if there is none.

    Only where nothing but the script is the request's own. The helper that passes the script on has the limits of the
    run: it must be able to write the files, and counts as a process until it has ended.
    """
    limits = request.limits
    if request.language != "bash" or request.argv or request.environment or request.cwd or request.network:
        return None
    if min(limits.processes, limits.open_files) < _ROOM_FOR_A_HELPER:
        return None
    if max(4 * len(request.code), *map(len, request.files.values()), 0) > limits.file_size:
        return None
    rlimits = _rlimits(request.limits, processes_by_rlimit, watched)
    return Ahead(argv=tuple(_argv(request, _SCRIPT)), rlimits=tuple(rlimits.items()))


def _exit_code(status: int) -> int:
    try:
        return os.waitstatus_to_exitcode(status)
    except (ValueError, OverflowError) as error:
        raise BackendError("the cell was lost", why=f"its init reported {error}", next="run it again") from error


def _argv(request: Request, script: str) -> list[str]:
    match request.language:
        case "command":
            return list(request.argv)
        case "bash":
            return ["bash", "--noprofile", "--norc", script, *request.argv]
        case "python":
            return []
        case _:
            return list(request.interpreted(script))


def _rlimits(limits: Limits, processes: bool, watched: bool) -> dict[str, int]:
    wanted = {
        **RLIMITS,
        "RLIMIT_CPU": min(math.ceil(limits.cpu) + 1, 2**31),  # per process; init adds them up
        "RLIMIT_FSIZE": limits.file_size,
        "RLIMIT_NOFILE": limits.open_files,
    }
    if processes:
        wanted["RLIMIT_NPROC"] = limits.processes  # counted in the guest's user namespace; init is in another
    if watched:
        # Only stops a sudden huge allocation before init's next check.
        wanted["RLIMIT_DATA"] = 2 * limits.memory + (1 << 30)
    return {name: min(number, MAX_LIMIT) for name, number in wanted.items()}


def _hint(report: Report, limits: Limits) -> str:
    """Return which limit kept a program from starting, in parentheses; empty if none did."""
    match report.errno:
        case errno.ENOSPC:
            return f" (its files may have {limits.disk} bytes together, and be {limits.files})"
        case errno.EMFILE:
            return f" (it may have {limits.open_files} open files in each process)"
        case errno.EFBIG:
            return f" (a file may have {limits.file_size} bytes)"
    return ""
