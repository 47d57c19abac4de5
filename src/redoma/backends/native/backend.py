"""The native backend: runs trusted commands on the host itself, with a clean environment and limits, but no boundary.

Every run has a supervisor (see c/supervisor.c): a small program that starts the command, measures it, and kills all its
processes at the end.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from ...lib.errors import BackendError, BackendUnavailable
from ...models import OTHER, Isolation, Limits, Request, Status, Stream, Usage
from ...models.reach import HOST
from ..base import COMMON_LIMITS, MAX_LIMIT, Capabilities, Control, Outcome, Sink, uncancellable
from ..collect import collect
from ..endings import Ending, not_started
from ..scratch import scratch

SUPERVISOR = str(Path(__file__).parent / "built" / "supervisor")
_PACKAGES = str(Path(__file__).parents[3])
_REMOVE = (
    "import sys; sys.path.append(sys.argv[1]); from pathlib import Path; "
    "from redoma.lib.files import remove_tree; remove_tree(Path(sys.argv[2]))"
)
_PYTHON = (
    # The extra frames are this line's own and, before Python 3.12, calls into C.
    "import sys; sys.setrecursionlimit(int(sys.argv[1]) + (8 if sys.version_info < (3, 12) else 2)); "
    "sys.argv[:2] = ['main.py']; sys.path.insert(0, ''); __file__ = __import__('os').path.abspath('main.py'); "
    # compile() of text ignores a `coding:` cookie: what runs is what the policy read.
    "exec(compile(open(3, 'rb').read().decode(), 'main.py', 'exec'))"
)
_ISOLATION = Isolation(
    layers={"environment": "only the variables of the request"},
    missing=("process", "filesystem", "network", "kernel", "limit on disk", "limit on files"),
)
_MAX_DEPTH = 1_000_000  # CPython's recursion limit must fit in a C int
_GRACE = 5.0  # seconds that a supervisor has to kill and reap, before it is killed itself


class NativeBackend:
    """Runs on the host itself, without a boundary."""

    name = "native"
    reach = HOST

    def capabilities(self) -> Capabilities:
        if not _lists_children():
            raise BackendUnavailable(
                "native can't clean up after a run here",
                why="this kernel does not list children in /proc (CONFIG_PROC_CHILDREN)",
                next="use another backend",
            )
        return Capabilities(
            languages=frozenset({"python", "bash", "javascript", "command", OTHER}),
            isolation=_ISOLATION,
            limits=COMMON_LIMITS,
            arguments=True,
            stdin=True,
            env=True,
            files=True,
            outputs=True,
            cwd=True,
            control=True,
            workspaces=frozenset({"scratch", "direct"}),
        )

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        if request.cwd is not None and not request.files and not request.outputs:
            return await _Run(request, sink, control, None).execute()
        with scratch(request.files) as directory:
            # Opened before the run begins: afterwards that path may lead anywhere.
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                outcome = await _Run(request, sink, control, str(directory)).execute()
                return await _with_files(outcome, request, descriptor) if request.outputs else outcome
            finally:
                os.close(descriptor)

    async def aclose(self) -> None:
        """Do nothing: nothing is kept between runs."""


_ORDER = struct.Struct("=QQQ10Q6I")
"""`struct order` of c/supervisor.h."""
_REPORT = struct.Struct("=IIIIQQ")
"""`struct report` of c/supervisor.h."""
_STARTED, _ENDED, _BROKEN = range(3)
_CAUSES = ("", "leash", "memory", "processes", "cpu")
_ENTER, _START = 1, 3


class _Report(msgspec.Struct, frozen=True):
    """The supervisor's final report: the status, and why it ended the run; or why the run could not begin."""

    status: int = 0
    cause: str = ""
    cpu: float = 0.0
    memory: int = 0
    broken: str = ""
    is_ours: bool = False
    """Whether the run could not begin for a reason that has nothing to do with the request."""


class _Run:
    def __init__(self, request: Request, sink: Sink, control: Control | None, scratch: str | None) -> None:
        self._request, self._sink, self._control, self._scratch = request, sink, control, scratch
        self._argv, self._directory = _argv(request), request.cwd or scratch or "/"
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        """Done when the supervisor has closed its socket and all output has arrived."""
        self._leash, self._far_end = socket.socketpair()
        self._ending: Status | None = None
        self._answer = bytearray()
        self._group = self._pid = 0
        self._handle = -1
        """A pidfd of the supervisor."""
        self._open: set[int] = set()
        """The descriptors that are still read from."""
        self._last_resort: asyncio.TimerHandle | None = None

    async def execute(self) -> Outcome:
        began = time.monotonic()
        try:
            try:
                order = self._order()
            except UnicodeEncodeError as error:  # the text can't be encoded for the kernel
                broken = f"start {self._argv[0]}: {error!r}"
                return self._outcome(_Report(broken=broken), time.monotonic() - began)
            stdin, outputs = self._start(order, began + self._request.limits.time)
            input_task = self._feed(stdin)
            self._listen(self._leash.fileno(), self._receive)
            for stream, number in outputs.items():
                self._listen(number, functools.partial(self._pump, stream, number))
            left = began + self._request.limits.time - time.monotonic()
            if left <= 0:
                self._end(Status.TIMEOUT)
            limit = self._loop.call_later(left, self._end, Status.TIMEOUT)
            try:
                await asyncio.wait([self._over])
            finally:
                limit.cancel()
                if not self._over.done() or self._over.exception():
                    self._end(Status.KILLED)
                await uncancellable(self._settle(input_task, outputs))
            self._over.result()
            return self._outcome(self._report(), time.monotonic() - began)
        finally:
            if self._last_resort is not None:
                self._last_resort.cancel()
            self._leash.close()
            self._far_end.close()
            if self._handle >= 0:
                os.close(self._handle)

    # --- input ---

    def _order(self) -> bytes:
        """Return the order for the supervisor: see c/supervisor.h."""
        request, limits = self._request, self._request.limits
        program = self._argv[0]
        paths = (
            [program] if "/" in program else [os.path.join(at, program) for at in os.get_exec_path(request.environment)]
        )
        variables = [f"{name}={value}" for name, value in request.environment.items()]
        removal = [sys.executable, "-I", "-S", "-c", _REMOVE, _PACKAGES, self._scratch] if self._scratch else []
        rlimits = [part for pair in _rlimits(limits).items() for part in pair]
        head = _ORDER.pack(
            min(limits.memory, MAX_LIMIT),
            min(int(limits.cpu * 1e6), MAX_LIMIT),
            min(limits.processes, MAX_LIMIT),
            *rlimits,
            request.language != "command",
            len(paths),
            len(self._argv),
            len(variables),
            len(removal),
            0,
        )
        texts = (self._directory, *paths, *self._argv, *variables, *removal)
        return head + b"".join(os.fsencode(text) + b"\0" for text in texts)

    def _start(self, order: bytes, deadline: float) -> tuple[int, dict[Stream, int]]:
        """Start a supervisor, and send it the order unless the deadline has passed. Returns our ends of the command's
        input, and of its output and errors.
        """
        ours: list[int] = []
        theirs: list[int] = []
        try:
            self._leash.setblocking(False)
            for name, content in (("order", order), ("source", self._request.code.encode("utf-8", "surrogatepass"))):
                theirs.append(os.memfd_create(name))
                _write(theirs[-1], content)
            for number in range(3):
                near, far = os.pipe()[:: 1 if number else -1]
                ours.append(near)
                theirs.append(far)
                os.set_blocking(near, False)
            theirs.append(os.pidfd_open(os.getpid()))
            self._pid = os.posix_spawn(
                SUPERVISOR,
                ["redoma-supervisor"],
                {},  # the environment of an exec stays readable in /proc/PID/environ
                file_actions=[(os.POSIX_SPAWN_DUP2, self._far_end.fileno(), 0)],
                setsid=True,  # a Ctrl-C at our terminal is for us to handle
                setsigmask=(),
                # an ignored SIGCHLD is inherited: the supervisor would never learn that a process ended
                setsigdef=(signal.SIGCHLD,),
            )
            self._handle = os.pidfd_open(self._pid)
            if time.monotonic() < deadline:  # otherwise there is no time left to begin
                socket.send_fds(self._leash, [b"!"], theirs)
        except OSError as error:
            for descriptor in ours:
                os.close(descriptor)
            raise BackendError("the run could not be started", why=str(error), next="free some processes") from error
        finally:
            self._far_end.close()
            for descriptor in theirs:
                os.close(descriptor)
        return ours[0], {"stdout": ours[1], "stderr": ours[2]}

    def _feed(self, descriptor: int) -> asyncio.Task[None] | None:
        """Start writing the input, if there is any."""
        if not self._request.stdin and self._control is None:
            os.close(descriptor)
            return None
        return self._loop.create_task(self._write_input(descriptor))

    async def _write_input(self, descriptor: int) -> None:
        pipe = os.fdopen(descriptor, "wb", 0)
        transport, protocol = await self._loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
        writer = asyncio.StreamWriter(transport, protocol, None, self._loop)
        try:
            writer.write(self._request.stdin)
            await writer.drain()
            while self._control is not None and (data := await self._control.read()):
                writer.write(data)
                await writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            # The command ended or closed its input before reading everything, which is not an error. Drain the rest, so
            # that no writer waits for room.
            while self._control is not None and await self._control.read():
                continue
        finally:
            transport.close()

    def _signal(self, number: int) -> None:
        # it has ended meanwhile; or so many signals are pending that one more makes no difference
        with suppress(OSError):
            self._leash.send(bytes([number]))

    # --- output ---

    def _listen(self, descriptor: int, take: Callable[[], bool]) -> None:
        """Call `take` whenever there is something to read, until it returns False or raises."""
        self._open.add(descriptor)
        self._loop.add_reader(descriptor, self._read, descriptor, take)

    def _read(self, descriptor: int, take: Callable[[], bool]) -> None:
        try:
            if take():
                return
        except Exception as error:  # pass it on to `execute`, which waits for the end
            if not self._over.done():
                self._over.set_exception(error)
        self._loop.remove_reader(descriptor)
        self._open.discard(descriptor)
        if not self._open and not self._over.done():
            self._over.set_result(None)

    def _receive(self) -> bool:
        """Receive reports of the supervisor. Returns False at the end."""
        try:
            data = self._leash.recv(1 << 12)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            # It ended with a signal unread. The reset comes after all that was sent, so the report is complete.
            data = b""
        self._answer += data
        if not self._group and len(self._answer) >= _REPORT.size:
            kind, number, *_ = _REPORT.unpack_from(self._answer)
            if kind == _STARTED:
                self._group = number
                if self._control is not None:  # not earlier: there is no command yet
                    self._control.deliver_signals(self._signal)
        if not data and self._control is not None:
            self._control.close()
        return bool(data)

    def _pump(self, stream: Stream, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        if data and self._ending is not Status.OUTPUT and not self._sink(stream, data):
            self._end(Status.OUTPUT)
        return bool(data)

    # --- the end ---

    def _end(self, ending: Status) -> None:
        """Close our side of the leash: the supervisor kills everything and reports. Earlier output still arrives."""
        self._ending = self._ending or ending
        if self._last_resort is None:
            self._last_resort = self._loop.call_later(_GRACE, self._give_up)
        try:
            self._leash.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the supervisor has ended already

    def _give_up(self) -> None:
        """Kill a supervisor that doesn't respond: a command of the same user can stop it."""
        self._kill()
        if not self._over.done():
            self._over.set_result(None)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has just ended by itself
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self._kill_group()

    async def _settle(self, input_task: asyncio.Task[None] | None, outputs: dict[Stream, int]) -> None:
        """Wait until every process of the run has ended. Raises `BackendError` if that takes too long."""
        try:
            if not await self._has_ended(input_task):
                self._kill()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._reap()
                raise BackendError(
                    "the run could not be ended",
                    why=f"it was still there after {_GRACE:g} s",
                    next="look for stuck I/O",
                )
        finally:
            if self._control is not None:
                self._control.close()
            if input_task is not None:
                input_task.cancel()
                await asyncio.wait([input_task])
            for descriptor in self._open:
                self._loop.remove_reader(descriptor)
            for descriptor in outputs.values():
                os.close(descriptor)

    async def _has_ended(self, input_task: asyncio.Task[None] | None) -> bool:
        """Return whether, within some seconds, the supervisor has ended, all output has arrived and all input was
        taken.
        """
        try:
            async with asyncio.timeout(_GRACE):
                await asyncio.wait([self._over])
                if input_task is not None:
                    await asyncio.wait([input_task])
                await self._reap()
        except TimeoutError:
            return False
        return True

    async def _reap(self) -> None:
        """Wait for the supervisor, which has sent its final report or was killed."""
        while not self._is_reaped():
            gone = self._loop.create_future()
            self._loop.add_reader(self._handle, gone.cancel)  # cancelled, not resolved: cancelling twice is harmless
            try:
                await asyncio.wait([gone])
            finally:
                self._loop.remove_reader(self._handle)

    def _is_reaped(self) -> bool:
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] == self._pid
        except ChildProcessError:  # the application reaps or ignores all its children
            return True

    def _kill_group(self) -> None:
        """Kill the command's process group: the last resort if the supervisor is gone. Processes that left the group
        survive.
        """
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    # --- outcome ---

    def _report(self) -> _Report:
        """Return the final report. Raises `BackendError` if there is none."""
        if self._ending is not None and not self._group and not self._answer:  # ended before it began
            return _Report(status=signal.SIGKILL, cause="leash")
        last = bytes(self._answer[_REPORT.size if self._group else 0 :])
        if len(last) != _REPORT.size:
            self._kill_group()
            raise BackendError("the supervisor was killed", why="it left no report", next="run it again")
        kind, number, why, _, cpu, memory = _REPORT.unpack(last)
        if kind == _BROKEN:
            steps = ("prepare the run", f"enter {self._directory}", "set its limits", f"start {self._argv[0]}")
            return _Report(broken=f"{steps[number]}: {os.strerror(why)}", is_ours=number not in (_ENTER, _START))
        return _Report(status=number, cause=_CAUSES[why], cpu=cpu / 1e6, memory=memory)

    def _outcome(self, report: _Report, wall: float) -> Outcome:
        if report.is_ours:
            raise BackendError(f"could not {report.broken}", next="check the limits, or report it")
        limits = self._request.limits
        if report.broken:
            ending = Ending(exit_code=127, broken=not_started(self._request, report.broken))
            return ending.outcome(limits, isolation=_ISOLATION, usage=Usage(wall=wall))
        code, cause = os.waitstatus_to_exitcode(report.status), report.cause
        ending = Ending(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            out_of_memory=cause == "memory",
            flooded=self._ending is Status.OUTPUT,
            stopped=self._ending or Status.KILLED if cause == "leash" else None,
            limit="" if cause == "leash" else cause,
        )
        usage = Usage(wall=wall, cpu=report.cpu, memory=report.memory)
        return ending.outcome(limits, isolation=_ISOLATION, usage=usage)


def _write(descriptor: int, content: bytes) -> None:
    """Write all of it, and seek to the beginning for the reader."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)


@functools.cache
def _lists_children() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


async def _with_files(outcome: Outcome, request: Request, directory: int) -> Outcome:
    """Return the outcome with the output files, read on a thread since they may have 64 MiB. Can't be interrupted,
    because the directory is removed afterwards.
    """
    work = asyncio.ensure_future(asyncio.to_thread(collect, directory, request.outputs, request.files))
    await uncancellable(work)
    files, left_out = work.result()
    return msgspec.structs.replace(outcome, files=files, left_out=left_out)


def _argv(request: Request) -> tuple[str, ...]:
    match request.language:
        case "command":
            return request.argv
        case "bash":
            import shutil

            bash = shutil.which("bash", path=os.defpath)
            if bash is None:
                raise BackendUnavailable(
                    "bash is not on this host", why="no bash in /bin or /usr/bin", next="install it"
                )
            return (bash, "--noprofile", "--norc", "/dev/fd/3", *request.argv)
        case "python":
            depth = str(min(request.limits.recursion, _MAX_DEPTH))
            return (sys.executable, "-I", "-X", "utf8", "-c", _PYTHON, depth, *request.argv)
        case _:
            return request.interpreted("/dev/fd/3")


def _rlimits(limits: Limits) -> dict[int, int]:
    # The supervisor enforces the memory limit on the whole tree; RLIMIT_DATA only stops one sudden huge allocation.
    # RLIMIT_NPROC is not used: it counts all of the user's processes on the host, not those of the run.
    wanted = {
        resource.RLIMIT_DATA: 4 * limits.memory,
        # Per process, in case the supervisor doesn't get to look in time. The kernel counts it in ns.
        resource.RLIMIT_CPU: min(math.ceil(min(limits.cpu, limits.time * (os.cpu_count() or 1))) + 1, 2**31),
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
    }
    return {which: min(value, MAX_LIMIT) for which, value in wanted.items()}
