"""Interactive programs on configured executors.

    shell = redoma.exec.get("app:shell")
    process = shell.exec("git status", {"work_dir": "/srv/app"})
    output = process.stdout_stream()
    process.start()
    for text in output:
        print(text, end="")
    process.wait()      # the exit status as in a shell: 0 for success
    shell.release()

A process takes the whole path of a request: policy, record, limits and redaction apply to it and its output. Policy
can't read what is written to it while it runs, so a program that would execute its input (`psql`) needs approval, or a
place on the executor's whitelist.

`exec` raises `Refused` for a command that the executor doesn't allow, `start` for one that policy doesn't; `start` and
`wait` raise `BackendError` if Redoma failed. A program that can't be found ends with status 127, as in a shell.

Its output is kept until it is read, bounded as in a result; that of a closed stream is dropped. A process that was not
closed is ended when it is garbage-collected.

`get` is for synchronous code, `aget` for code on an event loop. Everything is implemented once, asynchronously.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Unpack, cast

from ..backends.base import Control
from ..config import MontyEntry
from ..lib.errors import BackendError, InvalidRequest, RedomaError, Refused
from ..models import Decision, Result, Stream, Submission
from ..pipeline.executor import AsyncExecutor
from ..pipeline.intake import More, Options, must_be_configured, must_be_known
from ..pipeline.streaming import AsyncLiveRun, end
from ..pipeline.sync import Driven, Executor, LiveRun, default, driven, driven_end, on_loop, wrapped


def get(address: str, executor: Executor | None = None) -> ProcessExecutor:
    """Return the configured executor with this address, such as `app:shell`, for synchronous code."""
    executor = executor or default()
    return ProcessExecutor(AsyncProcessExecutor(address, executor.core), executor)


def aget(address: str, executor: AsyncExecutor | None = None) -> AsyncProcessExecutor:
    """Do the same as `get` for code on an event loop. Without an `executor` it makes its own, until it is released."""
    if executor is not None:
        return AsyncProcessExecutor(address, executor)
    own = AsyncExecutor()
    return AsyncProcessExecutor(address, own, own)


def talk(
    executor: Executor, address: str, command: str | Iterable[str], options: Options, *, live_input: bool
) -> tuple[LiveRun, ProcessControl | None]:
    """Return a command to follow as one stream of pieces, and its control; None if it can't get input or signals.

    Without `live_input` it gets the input in its options and no more, so that policy has read all of it.
    """
    submission, control = _prepare(executor.core, address, command, options, live_input=live_input)
    return LiveRun(executor.core.follow(submission, whole=options.get("whole_output", False)), executor), control


def _prepare(
    executor: AsyncExecutor, address: str, command: str | Iterable[str], options: Options, *, live_input: bool = True
) -> tuple[Submission, ProcessControl | None]:
    # Monty code can't get input or signals.
    control = None if isinstance(executor.config.entries.get(address), MontyEntry) else ProcessControl()
    if control is not None and not live_input:
        control.end_input()
    return executor.prepare(command, address, options, control), control


class AsyncProcessExecutor:
    """Makes processes. Call `release` when done, or use it as an asynchronous context manager."""

    def __init__(self, address: str, executor: AsyncExecutor, owned: AsyncExecutor | None = None) -> None:
        must_be_configured(address, executor.config)
        self.address = address
        self._executor, self._owned = executor, owned
        self._processes: weakref.WeakSet[AsyncProcess] = weakref.WeakSet()
        self._released = False
        # `ProcessExecutor.exec` may be called from any thread, `release` runs on the loop's
        self._gate = threading.Lock()

    def exec(
        self,
        command: str | Iterable[str],
        options: Mapping[str, Any] | None = None,
        *,
        work_dir: str | None = None,
        env: Mapping[str, str] | None = None,
        **more: Unpack[More],
    ) -> AsyncProcess:
        """Return a process that runs a command: one text, or a list of words. `options` has `work_dir` and `env`."""
        if self._released:
            raise self._gone()
        if options is not None and not isinstance(options, Mapping):
            raise InvalidRequest(f"{options!r} are not options", why="they have names", next='write {"work_dir": ...}')
        given = {"work_dir": work_dir, "env": env, **(options or {})}
        must_be_known("option", given, ("work_dir", "env"))
        must_be_known("option", more, More.__annotations__)
        chosen = cast("Options", {**more, "cwd": given["work_dir"], "env": given["env"] or {}})
        submission, control = _prepare(self._executor, self.address, command, chosen)
        if control is not None:
            control.lasts = True
        if submission.objections:
            raise self._refused(submission)
        process = AsyncProcess(self.address, self._executor, submission, control)
        with self._gate:
            if self._released:  # released meanwhile: this process would never be closed
                raise self._gone()
            self._processes.add(process)
        return process

    def _gone(self) -> InvalidRequest:
        return InvalidRequest(f"{self.address} was released", why="it makes no more processes", next="get it again")

    def _refused(self, submission: Submission) -> Refused:
        return Refused(f"{self.address} did not run the command", self._executor.refuse(submission))

    async def release(self) -> None:
        """End and close all its processes. Safe to call twice."""
        with self._gate:
            self._released, processes = True, list(self._processes)
        for process in processes:
            await process.close()
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.aclose()

    async def __aenter__(self) -> AsyncProcessExecutor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.release()


class ProcessControl(Control):
    """A `Control` whose event `settled` is set once the program has been started, or will not be."""

    def __init__(self) -> None:
        super().__init__()
        self.settled = asyncio.Event()

    def deliver_signals(self, deliver: Callable[[int], None]) -> None:
        super().deliver_signals(deliver)
        self.settled.set()


class _Printed:
    """Unread output of one stream. Bounded, since `output.live` bounds what is shown of a run."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.ended = self.closed = False
        self.changed = asyncio.Event()

    def add(self, text: str) -> None:
        if not self.closed:
            self.pieces.append(text)
            self.changed.set()

    def end(self) -> None:
        self.ended = True
        self.changed.set()

    def close(self) -> None:
        self.closed = True
        self.pieces.clear()
        self.changed.set()

    def take(self, size: int | None) -> str:
        """Take the next characters, at most `size`."""
        text = "".join(self.pieces)
        self.pieces[:] = [rest] if size is not None and (rest := text[size:]) else []
        return text[:size]


class AsyncProcess:
    """One run of one program: `start` it, talk to it, `wait` for it, `close` it."""

    def __init__(
        self,
        address: str,
        executor: AsyncExecutor,
        submission: Submission,
        control: ProcessControl | None,
        *,
        whole: bool = False,
    ) -> None:
        """`whole`: its streams give all that it prints, not only as much as the result keeps."""
        self._address, self._executor, self._submission, self._control = address, executor, submission, control
        self._whole = whole
        self._printed: dict[Stream, _Printed] = {"stdout": _Printed(), "stderr": _Printed()}
        self._task: asyncio.Task[Result] | None = None
        self._closed = False

    def stdout_stream(self) -> AsyncOutput:
        """Return its output stream; works before and after the start."""
        return AsyncOutput(self, self._printed["stdout"])

    def stderr_stream(self) -> AsyncOutput:
        return AsyncOutput(self, self._printed["stderr"])

    async def start(self) -> None:
        """Start it, and return when the program runs. Raises `Refused`, or `BackendError` if Redoma failed."""
        if self._task is not None or self._closed:
            raise self._unstartable()
        submission, decision = self._submission, None
        if self._control is None:  # there will be no notice of its start, so find out now whether it may start
            decision = self._executor.judge(submission).evaluation.decision
            if decision is Decision.FORBID:
                raise self._wrong(self._executor.refuse(submission))
        run = self._executor.follow(submission, whole=self._whole)
        # The task must not refer to us: otherwise the process would never be garbage-collected.
        self._task = asyncio.get_running_loop().create_task(_follow(run, self._printed, self._control))
        control = self._control
        if decision is Decision.ALLOW:
            return
        if control is not None:
            # Also for one that is closed before it has begun, and so never settles by itself.
            self._task.add_done_callback(lambda _: control.settled.set())
        try:
            if control is not None:
                await control.settled.wait()
            else:  # a person is asked first, and its end is the first notice we get
                await asyncio.wait([self._task])
        except BaseException:  # an interrupted caller has no process to continue with
            await self.close()
            raise
        if self._closed:
            raise self._unstartable()
        if self._task.done() and self.result.status.ending != "ran":
            raise self._wrong(self.result)

    async def write_stdin(self, data: str | bytes) -> None:
        """Send it input. Waits while much of it is unread."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        elif not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidRequest(f"{data!r} can't be written", why="it is neither text nor bytes", next="write text")
        await self._process_control().write(bytes(data))

    def close_stdin(self) -> None:
        """Close its input."""
        self._process_control().end_input()

    def signal(self, number: int) -> None:
        """Send a signal to the program itself; in a session, to its process group."""
        self._process_control().signal(number)

    async def wait(self) -> int:
        """Wait for its end. Returns its exit status as in a shell: 128 + n after signal n, 124 after a time-out."""
        task = self.started()
        await asyncio.wait([task])
        result = self.result
        if result.status.ending != "ran":
            raise self._wrong(result)
        return result.shell_exit

    @property
    def result(self) -> Result:
        """The result, when it has ended. Raises `RedomaError` before."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            why = "it was ended early" if self._closed else "it has not come to its end"
            raise RedomaError("the process has no result", why=why, next="wait for it first")
        return self._task.result()

    async def close(self) -> None:
        """End it if it still runs: nothing of it is left when this returns. Safe to call twice."""
        self._closed = True
        for printed in self._printed.values():
            printed.close()
        if self._task is not None:
            await end(self._task)

    def started(self) -> asyncio.Task[Result]:
        if self._task is None:
            raise InvalidRequest("the process does not run", why="it was not started", next="call start() first")
        return self._task

    def _process_control(self) -> ProcessControl:
        self.started()
        if self._control is None:
            raise InvalidRequest(
                f"{self._address} takes neither input nor signals while it runs",
                why="it is an executor of kind exec.monty",
                next="give all of its input to `exec`, as stdin",
            )
        return self._control

    def _unstartable(self) -> InvalidRequest:
        why = "it was closed" if self._closed else "it was started before"
        return InvalidRequest("the process can't be started", why=why, next="make another one")

    def _wrong(self, result: Result) -> RedomaError:
        if result.status.ending == "refused":
            return Refused(f"{self._address} did not run the command", result)
        return BackendError(f"{self._address} could not run the command", why=result.error or "it is not known")

    def __del__(self) -> None:
        if self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # the loop is closed, and its runs have ended with it
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncOutput:
    """The output of a process on one of its streams, piece by piece."""

    def __init__(self, process: AsyncProcess, printed: _Printed) -> None:
        self._process, self._printed = process, printed

    async def read(self, size: int | None = None) -> str:
        """Return the next piece as soon as there is one, at most `size` characters of it; empty at the end."""
        if size is not None and (not isinstance(size, int) or size < 0):
            why = "that is less than none" if isinstance(size, int) else "that is not a whole number"
            raise InvalidRequest(f"{size!r} characters can't be read", why=why, next="leave it out")
        self._process.started()
        printed = self._printed
        while not printed.pieces and not printed.ended and not printed.closed:
            printed.changed.clear()
            await printed.changed.wait()
        if printed.closed:
            raise InvalidRequest("the stream can't be read", why="it was closed", next="read before that")
        return printed.take(size)

    async def read_all(self) -> str:
        """Return all the rest, when the stream has ended."""
        return "".join([text async for text in self])

    def close(self) -> None:
        """Drop unread and future output. The result keeps its own copy."""
        self._printed.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        while text := await self.read():
            yield text

    async def __aenter__(self) -> AsyncOutput:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


async def _follow(run: AsyncLiveRun, printed: Mapping[Stream, _Printed], control: ProcessControl | None) -> Result:
    """Follow a run to its end. The program never waits for a reader of its streams."""
    try:
        async with run:
            async for stream, text in run:
                printed[stream].add(text)
        return run.result
    finally:
        for each in printed.values():
            each.end()
        if control is not None:
            control.close()


# --- for synchronous code ---


class Output(Driven[AsyncOutput]):
    """The output of a process on one of its streams, piece by piece."""

    read = driven(AsyncOutput.read)
    read_all = driven(AsyncOutput.read_all)
    close = on_loop(AsyncOutput.close)

    def __iter__(self) -> Iterator[str]:
        while text := self.read():
            yield text


class Process(Driven[AsyncProcess]):
    """One run of one program: `start` it, talk to it, `wait` for it, `close` it. Several threads may share it."""

    stdout_stream = wrapped(AsyncProcess.stdout_stream, Output)
    stderr_stream = wrapped(AsyncProcess.stderr_stream, Output)
    start = driven(AsyncProcess.start)
    write_stdin = driven(AsyncProcess.write_stdin)
    close_stdin = on_loop(AsyncProcess.close_stdin)
    signal = on_loop(AsyncProcess.signal)
    wait = driven(AsyncProcess.wait)
    close = driven_end(AsyncProcess.close)

    @property
    def result(self) -> Result:
        """The result, when it has ended. Raises `RedomaError` before."""
        return self.core.result


class ProcessExecutor(Driven[AsyncProcessExecutor]):
    """Makes processes. Call `release` when done, or use it as a context manager."""

    exec = wrapped(AsyncProcessExecutor.exec, Process)
    release = close = driven_end(AsyncProcessExecutor.release)

    @property
    def address(self) -> str:
        return self.core.address
