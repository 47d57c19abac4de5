"""The synchronous executor: it drives the asynchronous one, in the caller's thread if possible (see `loop`).

Everything is implemented once, asynchronously; `driven` turns such a method into a synchronous one.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from ..lib.errors import CallbackError, RedomaError
from ..models import Chunk, Evaluation, Language, Request, Result, Stream
from .executor import AsyncExecutor
from .intake import Options
from .loop import SharedLoop
from .streaming import AsyncLiveRun, OnOutput

if TYPE_CHECKING:
    from ..approval import Approver
    from ..backends.base import Backend
    from ..config import Config
    from ..sessions.session import Session, SessionOptions
    from ..workspace.restore import Restored
    from .installed import Installed

C = TypeVar("C", covariant=True)  # methods of a base class can be wrapped, too
D = TypeVar("D")
P = ParamSpec("P")
T = TypeVar("T")


class Driven(Generic[C]):
    """A synchronous wrapper of an asynchronous object: `core`, driven on the event loop of an executor. As a context
    manager it is closed at the end of the block.
    """

    def __init__(self, core: C, executor: Executor) -> None:
        self.core = core
        self._executor = executor

    def close(self) -> None:
        """End it. Safe to call twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def driven(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Driven[C], P], T]:
    """Return the synchronous form of a method: it returns when the asynchronous one does."""

    @functools.wraps(method)
    def call(self: Driven[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._executor.wait(method(self.core, *args, **kwargs))

    return call


def driven_end(method: Callable[[C], Coroutine[Any, Any, None]]) -> Callable[[Driven[C]], None]:
    """Return the synchronous form of a method that ends something. It ignores that the executor is closed: that has
    ended everything already.
    """

    @functools.wraps(method)
    def call(self: Driven[C]) -> None:
        with suppress(RedomaError):
            self._executor.wait(method(self.core))

    return call


def on_loop(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[Driven[D], P], T]:
    """Return a form of a synchronous method that calls it on the event loop."""

    async def called(core: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(core, *args, **kwargs)

    return driven(functools.wraps(method)(called))


def wrapped(
    method: Callable[Concatenate[C, P], T], kind: Callable[[T, Executor], D]
) -> Callable[Concatenate[Driven[C], P], D]:
    """Return the synchronous form of a method that returns an asynchronous object: it returns a `kind` around that."""

    @functools.wraps(method)
    def call(self: Driven[C], /, *args: P.args, **kwargs: P.kwargs) -> D:
        return kind(method(self.core, *args, **kwargs), self._executor)

    return call


class Executor(Driven[AsyncExecutor]):
    """Runs requests. Use it as a context manager, or call `close` when done. Any number of threads may share it."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        backends: Iterable[Backend] | Installed | None = None,
        approver: Approver | None = None,
    ) -> None:
        """`approver` is asked instead of the configured one if a person must approve."""
        super().__init__(AsyncExecutor(config, backends=backends, approver=approver), self)
        self._loop = SharedLoop()

    def run(self, code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
        """Run source text and return its `Result`. Takes the options of `redoma.run`, and raises the same."""
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
        """Run a program with its arguments and follow its output. Takes the options of `redoma.run`."""
        return LiveRun(self.core.stream_command(argv, entry=entry, **options), self)

    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """Open a Python that keeps its variables, in its own cell: see `redoma.Session`."""
        from ..sessions.session import Session

        return Session(self, **options)

    create_environment = driven(AsyncExecutor.create_environment)
    update_environment = driven(AsyncExecutor.update_environment)
    resume = driven(AsyncExecutor.resume)
    apply = driven(AsyncExecutor.apply)
    discard = driven(AsyncExecutor.discard)
    undo = driven(AsyncExecutor.undo)

    def check(self, request: Request, policy: str | None = None) -> Evaluation:
        """Evaluate a request without running it: see `AsyncExecutor.check`."""
        return self.core.check(request, policy)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work on our loop. Cancelling the future ends the work; it is done when the work is."""
        return self._loop.start(work)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work on our loop, and return or raise what it does."""
        return self._loop.wait(work)

    def close(self) -> None:
        """End what runs, and release what is kept warm. Safe to call twice, from several threads, and in a forked
        child.
        """
        self._loop.close(self.core.aclose)


class LiveRun(Driven[AsyncLiveRun]):
    """The pieces of output of one run, and after the last its `result`.

        with executor.stream(code) as run:
            for stream, text in run:
                print(text, end="")
        print(run.result.status)

    Leaving the block early cancels the run; nothing of it is left afterwards. See `streaming`.
    """

    @property
    def result(self) -> Result:
        return self.core.result

    @property
    def altered(self) -> frozenset[Stream]:
        """The streams of which something was replaced or left out so far because it was not plain text."""
        return self.core.altered

    @property
    def rolled_back(self) -> tuple[str, Restored] | None:
        """The last project that its executor rolled back, which a run that was left early does not report."""
        return self._executor.core.projects.rolled_back

    def deliver(self, on_output: OnOutput) -> Result:
        """Call `on_output`, in this thread, with each piece; see `AsyncLiveRun.deliver`."""
        failure: Exception | None = None
        for chunk in self:
            if failure is None:
                try:
                    on_output(*chunk)
                except Exception as error:  # a bug of the caller's: raised below
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


_default: tuple[int, Executor] | None = None
_default_lock = threading.Lock()


def default() -> Executor:
    """Return the executor behind `redoma.run`, made on first use. A forked child makes its own: threads don't survive a
    fork.
    """
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
        language: `"python"`, `"bash"`, `"javascript"`, `"lua"`, or one of the configuration.
        args: Arguments of Python or Bash code: `sys.argv[1:]`, `"$@"`.
        timeout: Seconds that it may take; 30 unless configured otherwise.
        memory: Bytes that it may use, or a text such as `"256MiB"`.
        limits: Other limits, as a `Limits` or a mapping of those that differ: `{"disk": "64MiB", "processes": 10}`.
        files: What is placed in its working directory first: name → content (bytes, text, or a `Path` to read), or a
            list of paths.
        outputs: Which files of that directory to return in `result.files`: globs such as `["out/*.csv"]`.
        stdin: Its input, bytes or text.
        env: Its environment variables; it gets none of yours.
        secrets: More variables, whose values are removed from every output and record. A `Secret` never enters the run:
            the run has a placeholder, and the value is inserted on the way to the secret's hosts.
        network: The hosts that it may reach: `["api.github.com", "GET *.example.org:8443/v1/**"]`; by default none.
        environment: The environment whose packages it finds, in place of those of this interpreter: see `redoma env`.
        packages: Packages that it finds, such as `["pandas"]`: installed when they are first wanted, with approval.
        backend: `"auto"` (the first of jail, docker and monty that can), or one by name: `"lean"` is for containers and
            weaker than the jail, `"native"` is not a sandbox.
        policy: The rules that judge it: `"standard"`, `"script"`, `"strict"`, `"core"`, or `"none"`.
        workspace: `"scratch"` (an empty directory), or `"read-only"`, `"overlay"` or `"direct"` of `project`.
        project: The directory for such a workspace; by default the current one.
        cwd: A directory of the host to work in, on backends that see the host; with a project, one inside it.
        writes: Where in its project it is expected to write, by glob; changes elsewhere are reported as `unexpected`.
        checkpoint: Whether the host directory that it works in is rolled back unless the run succeeds.
        require: Isolation layers without which it does not run, such as `["seccomp"]`.
        expect: What it must print: `"json"`, `"regex:…"`, a JSON Schema or a type; see `result.data`.
        wait: Whether to wait for a person who must approve; if not, the result is `pending`.
        on_output: Called with `"stdout"` or `"stderr"` and a piece of text while it runs.
        whole_output: Whether `on_output` gets everything that is printed, up to `output_total`, and not only what the
            result keeps.
        reason, requester, label: For the person who is asked, and for the record.

    Returns:
        The `Result`, however it ended: see its `ok`, `stdout`, `value`, `error` and `to_text()`.

    Raises:
        InvalidRequest: The request itself is invalid: an unknown option, a missing file.
        CallbackError: `on_output` raised; the result is on the error.
    """
    return default().run(code, language, **options)


async def arun(code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
    """Run source text without blocking the event loop. Cancelling the task ends the run.

    Args:
        code: The source text.
        language: `"python"`, `"bash"`, `"javascript"`, `"lua"`, or one of the configuration.
        options: Those of `run`. `on_output` is called in another thread.

    Returns:
        The `Result`, however it ended.

    Raises:
        InvalidRequest: The request itself is invalid.
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
        language: `"python"`, `"bash"`, `"javascript"`, `"lua"`, or one of the configuration.
        options: Those of `run`.

    Returns:
        A `LiveRun`: iterate over it, then look at its `result`. Leaving the block early ends the run.

    Raises:
        InvalidRequest: The request itself is invalid.
    """
    return default().stream(code, language, **options)


def command(argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]) -> Result:
    """Run a program with its arguments, without a shell.

    Args:
        argv: The program and its arguments: `["git", "status"]`.
        entry: A configured executor to run it, such as `"app:shell"`.
        options: Those of `run`.

    Returns:
        The `Result`, however it ended.

    Raises:
        InvalidRequest: The request itself is invalid, or the executor does not list the command.
    """
    return default().command(argv, entry=entry, **options)
