"""Monty: a Rust interpreter of a Python subset, each run in a worker process of its own.

The boundary is the interpreter: it has no system calls to offer, so code can reach nothing that is not handed to it.
What a worker sends back is decoded and bounded by `pydantic_monty`; a worker serves one run and is thrown away.
This is the only importer of `pydantic_monty`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from ..errors import BackendError, BackendUnavailable, Unsupported
from ..models import Isolation, KiB, Limits, Request, Status, Stream, Usage
from .base import Capabilities, Outcome, Sink, exceeded, plain
from .scratch import scratch

if TYPE_CHECKING:
    import pydantic_monty

_HOME = "/workspace"  # where the request's files are, in the interpreter's virtual file system
_HOST_CALLS = 100_000  # input(), environment, sleep and file operations of one run; each is a round trip to us


_first_used_in = 0
"""The process in which monty's runtime was started. A fork shares its epoll instance, and then both hang."""


class MontyBackend:
    """Runs Python on a pool of workers.

    The synchronous pool, on threads of ours: with the asynchronous one a thread of its own calls into the event loop,
    and aborts the whole process when the interpreter happens to be shutting down at that moment (seen with 1.4.0).
    """

    name = "monty"

    def __init__(self, *, workers: int | None = None) -> None:
        self._workers = workers or max(4, os.cpu_count() or 1)
        self._threads: ThreadPoolExecutor | None = None
        self._pool: pydantic_monty.Monty | None = None
        self._starting = Lock()
        self._active: set[_Run] = set()

    def capabilities(self) -> Capabilities:
        try:
            import pydantic_monty
        except ImportError as error:
            raise BackendUnavailable(
                "monty is not here", why=str(error), next="pip install 'pydantic-monty==1.4.0'"
            ) from error
        return Capabilities(
            languages=frozenset({"python"}),
            isolation=Isolation(
                layers={
                    "interpreter": f"monty {pydantic_monty.__version__}: no system calls of its own",
                    "process": "a worker process for this run alone",
                    "environment": "none of the host's variables",
                    "filesystem": "virtual, in memory",
                    "network": "none",
                },
                missing=("kernel", "limit on files"),
            ),
            # It has neither processes nor descriptors to have too many of; files are bounded by their bytes alone.
            limits=frozenset(Limits.__struct_fields__) - {"files"},
            stdin=True,
            env=True,
            files=True,
            value=True,
        )

    async def run(self, request: Request, sink: Sink) -> Outcome:
        run = _Run(request, sink, self.capabilities().isolation)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="redoma-monty")
        work = self._threads.submit(lambda: run.execute(self._ready()))
        waiting = asyncio.wrap_future(work)
        self._active.add(run)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not work.cancel():  # it is past the queue
                run.stop(Status.KILLED)
                await asyncio.wait([waiting])  # not left behind: the worker is dead once its thread is done
            raise
        finally:
            self._active.discard(run)

    def _ready(self) -> pydantic_monty.Monty:
        global _first_used_in
        with self._starting:
            if self._pool is None:
                import pydantic_monty

                _first_used_in = _first_used_in or os.getpid()
                if _first_used_in != os.getpid():
                    raise BackendUnavailable(
                        "monty can't run in this process",
                        why="it was forked from one that had used monty, and both would read the same events",
                        next="make the first run after the fork, or start the process with `spawn`",
                    )
                # A worker serves one run: whatever a run did to its interpreter dies with it.
                pool = pydantic_monty.Monty(max_processes=self._workers, max_checkouts_per_worker=1)
                try:
                    self._pool = pool.__enter__()
                except (OSError, RuntimeError, pydantic_monty.MontyError) as error:
                    raise BackendUnavailable(
                        "the monty workers don't start", why=str(error), next="pip install 'pydantic-monty==1.4.0'"
                    ) from error
            return self._pool

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        threads, self._threads = self._threads, None
        for run in self._active:
            run.stop(Status.KILLED)
        # Waited for here, not on yet another thread: none can be started any more when the interpreter shuts down.
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        if pool is not None:
            pool.__exit__(None, None, None)


class _Run:
    """One run, on one thread. `stop` may be called from any other, at any time."""

    def __init__(self, request: Request, sink: Sink, isolation: Isolation) -> None:
        self._request, self._sink, self._isolation = request, sink, isolation
        self._lock = Lock()
        self._stopped = Event()
        self._ending: Status | None = None
        self._worker = -1
        self._deadline = self._cpu_deadline = 0.0

    def stop(self, ending: Status) -> None:
        """End it now: the worker is killed through a descriptor, so never another process that got its number."""
        with self._lock:
            self._ending = self._ending or ending
            self._stopped.set()
            if self._worker >= 0:
                with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                    signal.pidfd_send_signal(self._worker, signal.SIGKILL)

    def execute(self, pool: pydantic_monty.Monty) -> Outcome:
        import pydantic_monty as monty

        limits = self._request.limits
        with ExitStack() as stack:
            mount = None
            if self._request.files:
                # Writes stay in the pool's memory, bounded: the virtual file system must not fill ours.
                mount = stack.enter_context(
                    monty.MountDir(
                        host_path=stack.enter_context(scratch(self._request.files)),
                        virtual_path=_HOME,
                        mode="overlay",
                        write_bytes_limit=min(limits.file_size, limits.disk),  # of all files together
                        memory_usage_limit=limits.memory,
                    )
                )
            stack.callback(self._reap)
            try:
                session = stack.enter_context(
                    pool.checkout(
                        script_name="main.py",
                        limits={
                            # It stands still in our callbacks, and there is one thread: so this bounds both.
                            "max_feed_duration_secs": min(limits.time, limits.cpu),
                            "max_memory": limits.memory,
                            "max_recursion_depth": limits.recursion,
                            "max_suspensions": _HOST_CALLS,
                        },
                        os_policy={"sleep": "call_host"},  # a sleep that we can interrupt, and that counts as time
                    )
                )
                self._pin(session.worker_pid)
            except (OSError, RuntimeError, monty.MontyError) as error:
                raise BackendError("no monty worker could be had", why=str(error), next="run it again") from error
            return self._feed(session, mount)

    def _pin(self, pid: int | None) -> None:
        if pid is None:
            raise BackendError("the monty worker has no process", why="it died at once", next="run it again")
        with self._lock:
            self._worker = os.pidfd_open(pid)
            if self._stopped.is_set():  # cancelled while waiting for a worker
                signal.pidfd_send_signal(self._worker, signal.SIGKILL)

    def _reap(self) -> None:
        """The worker is used up. The pool lets go of it without waiting, which would leave a zombie behind."""
        with self._lock:
            worker, self._worker = self._worker, -1
        if worker >= 0:
            with suppress(ProcessLookupError, ChildProcessError):  # unless the pool was faster
                signal.pidfd_send_signal(worker, signal.SIGKILL)
                os.waitid(os.P_PIDFD, worker, os.WEXITED)
            os.close(worker)

    def _feed(self, session: pydantic_monty.MontySession, mount: pydantic_monty.MountDir | None) -> Outcome:
        import pydantic_monty as monty

        limits, pid, start = self._request.limits, session.worker_pid, time.monotonic()
        self._deadline, self._cpu_deadline = start + limits.time, start + limits.cpu
        status, value, exception, error = Status.OK, None, None, None
        try:
            value = plain(
                session.feed_run(
                    self._request.code,
                    external_lookup={"input": _lines(self._request.stdin)},
                    print_callback=self._print,
                    mount=mount,
                    cwd=_HOME if mount else None,
                    os=self._answer,
                ),
                limits.output_bytes,
            )
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as failure:
            exception = type(failure.exception()).__name__
            # It calls its own gaps internal errors, such as an exception with a number for an argument.
            error = failure.display("type-msg").replace(
                "RuntimeError: Internal error in monty:", "Not done by monty:", 1
            )
            _raise_if_unsupported(failure, exception, error)
            status = self._status_of(exception, error)
            if status is Status.TIMEOUT and time.monotonic() < self._deadline:
                error = exceeded("cpu", limits)
            if status is not Status.TIMEOUT:
                self._print("stderr", failure.display("traceback") + "\n")
        except monty.MontyError as failure:
            if self._ending is None and time.monotonic() < self._deadline:
                raise BackendError("the monty worker died", why=str(failure), next="run it again") from failure
            status = Status.TIMEOUT
        status = self._ending or status
        return Outcome(
            status=status,
            exit_code={Status.OK: 0, Status.ERROR: 1}.get(status),
            value=value,
            exception=exception,
            error=error,
            isolation=self._isolation,
            usage=Usage(wall=time.monotonic() - start, memory=_peak_memory(pid)),
        )

    def _status_of(self, exception: str, error: str) -> Status:
        """Told by the clock and by the interpreter's own words: code may raise errors of the same types itself."""
        if exception == "TimeoutError" and time.monotonic() >= self._deadline:
            return Status.TIMEOUT
        if error.startswith("TimeoutError: feed time limit exceeded: ") and time.monotonic() >= self._cpu_deadline:
            return Status.TIMEOUT
        if error.startswith(("MemoryError: memory limit exceeded: ", "MemoryError: mount memory usage limit of ")):
            return Status.MEMORY
        return Status.ERROR

    def _print(self, stream: Stream, text: str) -> None:
        if self._ending is None and not self._sink(stream, text.encode("utf-8", "surrogatepass")):
            self.stop(Status.OUTPUT)

    def _answer(self, *, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], **_: Any) -> Any:
        """The code's questions to an operating system: its own variables and a sleep, and nothing else."""
        from pydantic_monty import NOT_HANDLED

        if name == "os.environ":
            return self._request.environment
        if name == "os.getenv":
            return self._request.environment.get(*args, **kwargs)
        if name in ("time.sleep", "asyncio.sleep", "system.sleep", "system.async_sleep"):
            left = self._deadline - time.monotonic()
            self._stopped.wait(min(float(args[0]), left))
            if float(args[0]) >= left:
                self.stop(Status.TIMEOUT)
            return None
        return NOT_HANDLED


def _peak_memory(pid: int | None) -> int | None:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * KiB
    except OSError:  # the worker is gone, or there is no /proc: unknown, which None says
        return None
    return None


def _lines(stdin: bytes) -> Callable[[object], str]:
    text = stdin.decode("utf-8", "replace")
    lines = iter(text.removesuffix("\n").split("\n") if text else [])

    def read_line(prompt: object = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError("EOF when reading a line") from None

    return read_line


def _raise_if_unsupported(failure: Any, exception: str, error: str) -> None:
    """Syntax that monty lacks is found by its parser: nothing has run, so another backend may safely be tried.

    The parser's error has a single frame that belongs to no function, which code that runs can't imitate: whatever it
    raises carries at least the frame of its module.
    """
    frames = failure.traceback()
    if exception == "NotImplementedError" and len(frames) == 1 and frames[0].function_name is None:
        raise Unsupported(
            f"monty can't run this code (line {frames[0].line})",
            why=error.partition(": ")[2],
            next="run it on a backend with a full CPython, or rewrite that line",
        )
