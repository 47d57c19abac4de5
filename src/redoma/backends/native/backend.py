"""Native: on the host itself, for trusted commands. A clean environment and limits, and no boundary.

Every run has a supervisor (see `supervisor`) which starts it, measures it and leaves nothing of it alive.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ...lib.errors import BackendError, BackendUnavailable
from ...models import Isolation, Limits, Request, Status, Stream, Usage
from ...models.reach import HOST
from ..base import MAX_LIMIT, Capabilities, Control, Outcome, Sink, uncancellable
from ..collect import collect
from ..endings import Ending
from ..scratch import scratch

_PACKAGES = str(Path(__file__).parents[3])
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from redoma.backends.native.supervisor import main; main()"
_PYTHON = (
    # The frames above the limit are this line's own and, before Python 3.12, calls into C.
    "import sys; sys.setrecursionlimit(int(sys.argv[1]) + (8 if sys.version_info < (3, 12) else 2)); "
    "sys.argv[:2] = ['main.py']; sys.path.insert(0, ''); "
    # compile() of text ignores a `coding:` cookie: what runs is what the policy read.
    "exec(compile(open(3, 'rb').read().decode(), 'main.py', 'exec'))"
)
_ISOLATION = Isolation(
    layers={"environment": "only the variables of the request"},
    missing=("process", "filesystem", "network", "kernel", "limit on disk", "limit on files"),
)
_LIMITS = frozenset(Limits.__struct_fields__) - {"disk", "files"}
_MAX_DEPTH = 1_000_000  # CPython takes no larger recursion limit than an int of C
_GRACE = 5.0  # seconds a supervisor has to kill and reap before it is given up


class NativeBackend:
    """Runs on the host itself, without a boundary."""

    name = "native"
    reach = HOST

    def capabilities(self) -> Capabilities:
        if sys.platform != "linux":
            raise BackendUnavailable("native needs Linux", why="it adopts orphans to end them", next="use monty here")
        return Capabilities(
            languages=frozenset({"python", "bash", "command"}),
            isolation=_ISOLATION,
            limits=_LIMITS,
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
        with scratch(request.files) as directory:
            # Before the run begins: afterwards that path may lead anywhere.
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                outcome = await _Run(request, sink, control, str(directory)).execute()
                return await _with_files(outcome, request, descriptor) if request.outputs else outcome
            finally:
                os.close(descriptor)

    async def aclose(self) -> None:
        """Nothing is kept warm."""


class _Run:
    def __init__(self, request: Request, sink: Sink, control: Control | None, scratch: str) -> None:
        self._request, self._sink, self._control, self._scratch = request, sink, control, scratch
        self._leash, self._far_end = socket.socketpair()
        self._ending: Status | None = None
        self._group = 0

    async def execute(self) -> Outcome:
        start = time.monotonic()
        process = await self._spawn()
        report = asyncio.create_task(self._report())
        tasks = [report, *(asyncio.create_task(work) for work in self._streams(process))]
        try:
            _, unfinished = await asyncio.wait(tasks, timeout=self._request.limits.time)
            if unfinished:
                self._end(Status.TIMEOUT)
        finally:
            self._end(Status.KILLED)  # says nothing new where the run has ended, or was ended, before
            try:
                await uncancellable(self._settle(process, tasks))
            finally:  # cancelled once more, or something could not be ended
                self._leash.close()
        for task in tasks:
            task.result()
        return self._outcome(report.result(), time.monotonic() - start)

    async def _spawn(self) -> asyncio.subprocess.Process:
        # A bare interpreter: nothing of our environment, site-packages or working directory.
        command = [sys.executable, "-I", "-S", "-c", _BOOT, _PACKAGES]
        source = os.memfd_create("source")
        try:
            os.write(source, self._request.code.encode("utf-8", "surrogatepass"))
            os.lseek(source, 0, os.SEEK_SET)
            process = await asyncio.create_subprocess_exec(
                *command,
                str(self._far_end.fileno()),
                str(source),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(self._far_end.fileno(), source),
                env={},
                cwd="/",
                start_new_session=True,  # a Ctrl-C at our terminal is ours to handle
            )
        except BaseException as error:  # a cancellation too
            self._leash.close()
            if not isinstance(error, OSError):
                raise
            raise BackendError("the run could not be started", why=str(error), next="free some processes") from error
        finally:
            os.close(source)
            self._far_end.close()
        self._leash.setblocking(False)
        return process

    def _order(self) -> dict[str, Any]:
        limits = self._request.limits
        return {
            "argv": _argv(self._request),
            "source": self._request.language != "command",
            "env": self._request.environment,
            "cwd": self._request.cwd or self._scratch,
            "scratch": self._scratch,
            "memory": limits.memory,
            "cpu": limits.cpu,
            "processes": limits.processes,
            "rlimits": _rlimits(limits),
        }

    async def _report(self) -> Mapping[str, Any]:
        """Send the order to the supervisor, and wait for its report."""
        try:
            return await self._answer()
        finally:
            if self._control is not None:
                self._control.close()

    async def _answer(self) -> Mapping[str, Any]:
        loop, answer = asyncio.get_running_loop(), bytearray()
        try:
            # ASCII, with escapes: a word that is no UTF-8 arrives as the bytes it was.
            await loop.sock_sendall(self._leash, json.dumps(self._order()).encode() + b"\n")
            # A reset comes after all that was sent: it ended with a signal unread, which takes nothing from its report.
            with suppress(ConnectionResetError):
                while chunk := await loop.sock_recv(self._leash, 1 << 16):
                    answer += chunk
                    if b"\n" in answer and answer[:1].isdigit() and not self._group:
                        self._group = int(answer.split(b"\n", 1)[0])
                        if self._control is not None:  # not before: until then the leash belongs to the order
                            self._control.deliver_signals(self._signal)
        except OSError as error:
            raise BackendError("the supervisor was lost", why=str(error), next="run it again") from error
        last = answer.rstrip(b"\n").rsplit(b"\n", 1)[-1]
        if not last.startswith(b"{"):
            self._kill_group()
            raise BackendError("the supervisor was killed", why="it left no report", next="run it again")
        report: dict[str, Any] = json.loads(last)
        return report

    def _kill_group(self) -> None:
        """Kill the command's process group: the last resort when the supervisor is gone. What left the group stays."""
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def _streams(self, process: asyncio.subprocess.Process) -> Iterator[Coroutine[Any, Any, None]]:
        if process.stdin and process.stdout and process.stderr:  # always: they were asked to be pipes
            yield self._feed(process.stdin)
            yield self._pump("stdout", process.stdout)
            yield self._pump("stderr", process.stderr)

    async def _pump(self, stream: Stream, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            if self._ending is not Status.OUTPUT and not self._sink(stream, data):
                self._end(Status.OUTPUT)

    async def _feed(self, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._request.stdin)
            await writer.drain()
            while self._control is not None and (data := await self._control.read()):
                writer.write(data)
                await writer.drain()
            writer.close()
            await writer.wait_closed()
        except (BrokenPipeError, ConnectionResetError):
            # It ended, or closed its input, without reading everything: its own business. Nobody waits for room there.
            while self._control is not None and await self._control.read():
                continue

    def _signal(self, number: int) -> None:
        with suppress(OSError):  # it has ended meanwhile; or so many wait that one more changes nothing
            self._leash.send(bytes([number]))

    def _end(self, ending: Status) -> None:
        """Cut the leash: the supervisor kills everything and reports. What was printed until then still arrives."""
        self._ending = self._ending or ending
        if self._leash.fileno() >= 0:
            try:
                self._leash.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the supervisor has gone already

    async def _settle(self, process: asyncio.subprocess.Process, tasks: list[asyncio.Task[Any]]) -> None:
        """Wait until every process of the run has ended. Raises `BackendError` if that takes too long."""
        _, unfinished = await asyncio.wait([*tasks, asyncio.create_task(process.wait())], timeout=_GRACE)
        if unfinished:
            with suppress(ProcessLookupError):  # it has just ended by itself
                process.kill()
            self._kill_group()
            for task in unfinished:
                task.cancel()
            await process.wait()
            raise BackendError(
                "the run could not be ended", why=f"it was still there after {_GRACE:g} s", next="look for stuck I/O"
            )

    def _outcome(self, report: Mapping[str, Any], wall: float) -> Outcome:
        if report.get("ours"):
            raise BackendError(f"could not {report['broken']}", next="check the limits, or report it")
        limits = self._request.limits
        if "broken" in report:
            ending = Ending(exit_code=127, broken=report["broken"])
            return ending.outcome(limits, isolation=_ISOLATION, usage=Usage(wall=wall))
        code, cause = os.waitstatus_to_exitcode(report["status"]), report["cause"]
        ending = Ending(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            out_of_memory=cause == "memory",
            flooded=self._ending is Status.OUTPUT,
            stopped=self._ending or Status.KILLED if cause == "leash" else None,
            limit="" if cause == "leash" else cause,
        )
        usage = Usage(wall=wall, cpu=report["cpu"], memory=report["memory"])
        return ending.outcome(limits, isolation=_ISOLATION, usage=usage)


async def _with_files(outcome: Outcome, request: Request, directory: int) -> Outcome:
    """Add the files that it brings back, read on a thread since they may be 64 MiB. Not interrupted: the directory is
    removed afterwards."""
    work = asyncio.ensure_future(asyncio.to_thread(collect, directory, request.outputs, request.files))
    await uncancellable(work)
    files, left_out = work.result()
    return msgspec.structs.replace(outcome, files=files, left_out=left_out)


def _argv(request: Request) -> tuple[str, ...]:
    match request.language:
        case "command":
            return request.argv
        case "bash":
            bash = shutil.which("bash", path=os.defpath)
            if bash is None:
                raise BackendUnavailable(
                    "bash is not on this host", why="no bash in /bin or /usr/bin", next="install it"
                )
            return (bash, "--noprofile", "--norc", "/dev/fd/3", *request.argv)
        case _:  # Python: `capabilities` promise nothing else
            depth = str(min(request.limits.recursion, _MAX_DEPTH))
            return (sys.executable, "-I", "-X", "utf8", "-c", _PYTHON, depth, *request.argv)


def _rlimits(limits: Limits) -> dict[str, int]:
    # The supervisor's look at the whole tree decides about memory; RLIMIT_DATA only stops one sudden huge allocation.
    # RLIMIT_NPROC is left alone: it counts all of the user's processes on the host, not those of the run.
    wanted = {
        "RLIMIT_DATA": 4 * limits.memory,
        # For one process, should the supervisor not get to look in time. The kernel counts it in ns.
        "RLIMIT_CPU": min(math.ceil(min(limits.cpu, limits.time * (os.cpu_count() or 1))) + 1, 2**31),
        "RLIMIT_FSIZE": limits.file_size,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
    }
    return {name: min(value, MAX_LIMIT) for name, value in wanted.items()}
