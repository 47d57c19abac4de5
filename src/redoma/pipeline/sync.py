"""The executor for ordinary code: it drives the asynchronous one on an event loop in a thread of its own.

There is one implementation of everything, the asynchronous one; `driven` makes a method of it one for ordinary code.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack

from ..approval import Approver
from ..backends.base import Backend
from ..config import Config
from ..lib.errors import CallbackError, RedomaError
from ..models import Chunk, Evaluation, Language, Request, Result, Stream
from ..workspace.restore import Restored
from .executor import AsyncExecutor
from .intake import Options
from .streaming import AsyncLiveRun, OnOutput

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


class Driven(Generic[C]):
    """An asynchronous object for ordinary code: `core`, driven on the event loop of an executor."""

    def __init__(self, core: C, executor: Executor) -> None:
        self.core = core
        self._drive = executor.wait


def driven(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Driven[C], P], T]:
    """The same method for ordinary code: it returns when the asynchronous one does."""

    @functools.wraps(method)
    def call(self: Driven[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive(method(self.core, *args, **kwargs))

    return call


def driven_end(method: Callable[[C], Coroutine[Any, Any, None]]) -> Callable[[Driven[C]], None]:
    """As `driven`, for a method that ends something. A closed executor has ended everything of its own."""

    @functools.wraps(method)
    def call(self: Driven[C]) -> None:
        with suppress(RedomaError):
            self._drive(method(self.core))

    return call


def on_loop(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Driven[C], P], T]:
    """As `driven`, for a method that waits for nothing but has to be called on the loop."""

    async def called(core: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(core, *args, **kwargs)

    return driven(functools.wraps(method)(called))


class Executor(Driven[AsyncExecutor]):
    """Runs requests. Use it as a context manager, or call `close` when done. Any number of threads may share it."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        backends: Iterable[Backend] | None = None,
        approver: Approver | None = None,
    ) -> None:
        """`approver` is asked where a person has to say yes, instead of the configured one."""
        super().__init__(AsyncExecutor(config, backends=backends, approver=approver), self)
        self._owner = os.getpid()
        self._gate = threading.Lock()
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redoma", daemon=True)
        self._thread.start()

    def run(self, code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
        """Run source text and return its `Result`. Options are those of `redoma.run`; so is what it raises."""
        if (on_output := options.pop("on_output", None)) is None:
            return self.wait(self.core.submit(self.core.prepare_code(code, language, options)))
        with self.stream(code, language, **options) as run:
            return run.deliver(on_output)

    def command(self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]) -> Result:
        """Run a program with its arguments, without a shell: see `redoma.command`."""
        if (on_output := options.pop("on_output", None)) is None:
            return self.wait(self.core.submit(self.core.prepare(argv, entry, options)))
        with self.stream_command(argv, entry=entry, **options) as run:
            return run.deliver(on_output)

    def stream(self, code: str, language: Language = "python", **options: Unpack[Options]) -> LiveRun:
        """Run source text and follow its output: see `redoma.stream`."""
        return LiveRun(self.core.stream(code, language, **options), self)

    def stream_command(self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]) -> LiveRun:
        """Run a program with its arguments and follow its output. Options are those of `redoma.run`."""
        return LiveRun(self.core.stream_command(argv, entry=entry, **options), self)

    resume = driven(AsyncExecutor.resume)
    apply = driven(AsyncExecutor.apply)
    discard = driven(AsyncExecutor.discard)
    undo = driven(AsyncExecutor.undo)

    def check(self, request: Request, policy: str | None = None) -> Evaluation:
        """What policy says of a request, without running it: see `AsyncExecutor.check`."""
        return self.core.check(request, policy)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin something on our loop. Cancelling the future ends the work; it is done when the work is."""
        with self._gate:  # nothing is begun on a loop that is about to stop: nobody would ever finish it
            if not self._closing and self._owner == os.getpid():
                return _Started(self._loop, work)
        work.close()
        raise RedomaError("this executor is closed", why="it was, or its process forked", next="make a new one")

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Begin something on our loop and return what it returns, or raise what it raises."""
        answer = self.start(work)
        try:
            return answer.result()
        except CancelledError:
            raise RedomaError("the run was ended", why="its executor was closed", next="make a new one") from None
        except BaseException:
            if not answer.done():  # Ctrl-C: the run ends before we do
                answer.cancel()
                wait([answer])
            raise

    def close(self) -> None:
        """End what runs, let go of what is kept warm. Safe to call twice, by several threads, and in a forked child."""
        if self._owner != os.getpid():
            return
        with self._gate:
            first, self._closing = not self._closing, True
        if first:
            _Started(self._loop, self._finish()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if first:
            self._loop.close()

    async def _finish(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        await self.core.aclose()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LiveRun(Driven[AsyncLiveRun]):
    """The pieces of output of one run, and its `result` when they have come to an end.

        with executor.stream(code) as run:
            for stream, text in run:
                print(text, end="")
        print(run.result.status)

    Left early, the run is cancelled, and nothing of it is left once the block has been left. See `streaming`.
    """

    def __init__(self, core: AsyncLiveRun, executor: Executor) -> None:
        super().__init__(core, executor)
        self._projects = executor.core.projects

    @property
    def result(self) -> Result:
        return self.core.result

    @property
    def altered(self) -> frozenset[Stream]:
        """The streams of which some was replaced or left out so far because it was not plain text."""
        return self.core.altered

    @property
    def rolled_back(self) -> tuple[str, Restored] | None:
        """The last project that its executor has put back, which a run that was left early does not say."""
        return self._projects.rolled_back

    def deliver(self, on_output: OnOutput) -> Result:
        """Call somebody, in this thread, with all of it; see `AsyncLiveRun.deliver`."""
        failure: Exception | None = None
        for chunk in self:
            if failure is None:
                try:
                    on_output(*chunk)
                except Exception as error:  # the caller's own bug, whatever it is: told below
                    failure = error
        if failure is not None:
            raise CallbackError(failure, self.result) from failure
        return self.result

    next_chunk = driven(AsyncLiveRun.next_chunk)
    close = driven_end(AsyncLiveRun.aclose)

    def __iter__(self) -> LiveRun:
        return self

    def __next__(self) -> Chunk:
        chunk = self.next_chunk()
        if chunk is None:
            raise StopIteration
        return chunk

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Started(Future[T]):
    """Unlike the one of `run_coroutine_threadsafe`, not done the moment it is cancelled but when the task has ended:
    whoever waits for it knows that nothing of the run is left."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._loop = loop
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._deliver)

    def cancel(self) -> bool:
        if self.done():
            return False
        self._loop.call_soon_threadsafe(lambda: self._task.cancel())  # after `_begin`: calls keep their order
        return True

    def _deliver(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.set_exception(CancelledError())
        elif error := task.exception():
            self.set_exception(error)
        else:
            self.set_result(task.result())


_default: tuple[int, Executor] | None = None
_default_lock = threading.Lock()


def default() -> Executor:
    """The executor behind `redoma.run`, made on first use. A forked child makes its own: threads don't survive."""
    global _default
    with _default_lock:
        if _default is None or _default[0] != os.getpid():
            executor = Executor()
            _default = os.getpid(), executor
            atexit.register(executor.close)
        return _default[1]


def run(code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
    """Run source text in a sandbox, on an executor that all callers of this process share.

    Args:
        code: The source text.
        language: `"python"`, `"bash"` or `"lua"`.
        args: Arguments of Python or Bash code: `sys.argv[1:]`, `"$@"`.
        timeout: Seconds that it may take; 30 unless configured otherwise.
        memory: Bytes that it may use, or a text such as `"256MiB"`.
        limits: Other limits, as a `Limits` or a mapping of those that differ: `{"disk": "64MiB", "processes": 10}`.
        files: What is placed in its working directory first: name → content (bytes, text, or a `Path` to read), or a
            list of paths.
        outputs: Which files of that directory to bring back in `result.files`: globs such as `["out/*.csv"]`.
        stdin: Its input, bytes or text.
        env: Its variables; it gets no others of yours.
        secrets: More variables, whose values are taken out of every output and record.
        backend: `"auto"` (the first of jail, docker and monty that can), or one by name; `"native"` is no sandbox.
        policy: The rules that judge it: `"standard"`, `"script"`, `"strict"`, `"core"`, or `"none"`.
        workspace: `"scratch"` (an empty directory), or `"read-only"`, `"overlay"` or `"direct"` of `project`.
        project: The directory that such a workspace is made of; by default the current one.
        cwd: A directory of the host to work in, on backends that see the host; with a project, one inside it.
        writes: Where in its project it is expected to write, by glob; changes elsewhere are told as `unexpected`.
        checkpoint: Whether the directory of the host that it works in is put back unless it ends well.
        require: Isolation layers without which it does not run, such as `["seccomp"]`.
        expect: What it has to print: `"json"`, `"regex:…"`, a JSON Schema or a type; see `result.data`.
        wait: Whether to wait for a person who has to say yes; if not, the result is `pending`.
        on_output: Called with `"stdout"` or `"stderr"` and a piece of text while it runs.
        whole_output: Whether `on_output` gets all that is printed, up to `output_total`, and not only what the result
            keeps.
        reason, requester, label: For whoever is asked, and for the record.

    Returns:
        The `Result`, however it ended: see its `ok`, `stdout`, `value`, `error` and `to_text()`.

    Raises:
        InvalidRequest: The request itself makes no sense: an unknown option, a file that isn't there.
        CallbackError: `on_output` raised; the result is on the error.
    """
    return default().run(code, language, **options)


async def arun(code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
    """Run source text without blocking the event loop. Cancelling the task ends the run.

    Args:
        code: The source text.
        language: `"python"`, `"bash"` or `"lua"`.
        options: As of `run`. `on_output` is called in another thread.

    Returns:
        The `Result`, however it ended.

    Raises:
        InvalidRequest: The request itself makes no sense.
    """
    executor = default()
    return await asyncio.wrap_future(executor.start(executor.core.run(code, language, **options)))


def stream(code: str, language: Language = "python", **options: Unpack[Options]) -> LiveRun:
    """Run source text and follow its output while it runs.

        with redoma.stream(code) as run:
            for stream, text in run:
                print(text, end="")
        print(run.result.status)

    Args:
        code: The source text.
        language: `"python"`, `"bash"` or `"lua"`.
        options: As of `run`.

    Returns:
        A `LiveRun`: iterate over it, then look at its `result`. Leaving the block early ends the run.

    Raises:
        InvalidRequest: The request itself makes no sense.
    """
    return default().stream(code, language, **options)


def command(argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]) -> Result:
    """Run a program with its arguments, without a shell.

    Args:
        argv: The program and its arguments: `["git", "status"]`.
        entry: A configured executor to run it, such as `"app:shell"`.
        options: As of `run`.

    Returns:
        The `Result`, however it ended.

    Raises:
        InvalidRequest: The request itself makes no sense, or the executor does not list the command.
    """
    return default().command(argv, entry=entry, **options)
