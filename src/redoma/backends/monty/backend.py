"""The Monty backend: a Rust interpreter of a Python subset. Each run has its own worker process, in a cell.

The first boundary is the interpreter: it offers no system calls, so code can reach only what it is given. A worker
serves one run and is thrown away. The second boundary is the jail, in case the interpreter has a hole: worker and pool
are in a cell, and what comes back from there is plain data, bounded and checked. Where no cell can be made, the worker
is a process of this user, and the result says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import ExitStack, suppress
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import msgspec

from ...lib.errors import BackendError, BackendUnavailable, Unsupported
from ...lib.extras import pip_install
from ...models import Isolation, KiB, Limits, MiB, Request, Seed, Status, Stream, Usage
from ...models.reach import NOTHING
from ..base import COMMON_LIMITS, MAX_LIMIT, Capabilities, Control, Fact, Outcome, Sink, new_seed
from ..jail.launch import is_seen_in_cells
from ..scratch import scratch
from . import session, worker

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import pydantic_monty

    from ..jail import JailBackend

_LAYERS = {
    "interpreter": "monty {}: no system calls of its own",
    "process": "a worker process for this run alone",
    "environment": "none of the host's variables",
    "filesystem": "virtual, in memory",
    "network": "none",
}
_PACKAGE = "pydantic-monty==1.4.0"
_OURS = 64 * MiB  # memory of a cell for the pool's interpreter, and for the worker before it has run anything

_first_used_in = 0
"""The process in which monty's runtime was started. A fork would share its epoll instance, and then both would hang."""


class _Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`session.Ended` as it comes out of a cell, checked."""

    status: str
    value: Any
    exception: str | None
    error: str | None
    line: int


class MontyBackend:
    """Runs Python on Monty's workers, `workers` at a time. `cells=False` runs without the jail, for tests. `once` is
    passed to `JailBackend`.
    """

    name = "monty"
    reach = NOTHING

    def __init__(self, *, workers: int | None = None, cells: bool = True, once: bool = False) -> None:
        self._once = once
        self._workers = workers or max(4, os.cpu_count() or 1)
        self._without_cells = None if cells else _WithoutCells(self._workers)
        self._cells: JailBackend | None = None
        self._had_a_cell = False

    def capabilities(self) -> Capabilities:
        isolation = _alone()
        if (cells := self._jail()) is not None:
            try:
                isolation = _together(isolation, cells.capabilities().isolation)
            except BackendUnavailable:  # not on this system or kernel; elsewhere the first run finds out
                self._do_without_cells()
        return Capabilities(
            languages=frozenset({"python"}),
            isolation=isolation,
            # It has no processes or descriptors to limit; files are bounded by their bytes only.
            limits=COMMON_LIMITS | {"disk"},
            stdin=True,
            env=True,
            files=True,
            value=True,
        )

    def facts(self) -> tuple[Fact, ...]:
        """Return whether Monty works here, for `redoma doctor`, by running a line. Empty if it is not installed:
        `capabilities` says so.
        """
        try:
            _alone()
        except BackendUnavailable:
            return ()
        try:
            asyncio.run(_try())
        except BackendError as error:
            fix = f"{pip_install(_PACKAGE)} --force-reinstall"
            costs = "the backend `monty` doesn't work"
            return (Fact(name="monty", state="missing", what=error.why, costs=costs, fix=fix),)
        return (Fact(name="monty", what="a worker starts and answers"),)

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        self.capabilities()
        seed = request.seed or Seed(random=new_seed(), hashes=0)  # its hash seed never changes
        outcome = await self._run(msgspec.structs.replace(request, seed=seed), sink)
        return msgspec.structs.replace(outcome, seed=seed)

    def warm(self) -> None:
        """Start what the first run will need: see `JailBackend.warm`."""
        if (cells := self._jail()) is not None:
            cells.warm()

    async def _run(self, request: Request, sink: Sink) -> Outcome:
        if (cells := self._jail()) is not None:
            try:
                return await self._run_in_cell(cells, request, sink)
            except BackendUnavailable as error:
                # then this host supports cells, and one failure of the jail must not weaken the isolation
                if self._had_a_cell:
                    raise
                self._do_without_cells()
                if lacking := _alone().lacking(request.require):
                    raise Unsupported(
                        f"monty has no {', '.join(lacking)} here", why=f"{error.what}: {error.why}", next=error.next
                    ) from error
        return await self._do_without_cells().run(request, sink)

    def _do_without_cells(self) -> _WithoutCells:
        """Use no cells from now on."""
        self._without_cells = self._without_cells or _WithoutCells(self._workers)
        return self._without_cells

    def _jail(self) -> JailBackend | None:
        """Return the jail whose cells have a worker each, started ahead; None if cells are not used."""
        if self._without_cells is None and self._cells is None and not is_seen_in_cells(_location()):
            self._do_without_cells()
        if self._without_cells is None and self._cells is None:
            from ..jail import JailBackend

            self._cells = JailBackend(
                minimum=0 if self._once else 1,
                once=self._once,
                maximum=self._workers,
                preload=(worker.PRELOAD,),
                prelude=session.__name__,
                programs=_programs(),
            )
        return self._cells if self._without_cells is None else None

    async def _run_in_cell(self, cells: JailBackend, request: Request, sink: Sink) -> Outcome:
        limits, usual = request.limits, Limits()
        given = sum(len(content) + 8 * KiB for content in request.files.values())
        inside = Request(
            code=f"{worker.PROGRAM}({_job(request)!r})",
            stdin=request.stdin,
            files=request.files,
            require=request.require,
            limits=Limits(
                time=limits.time,
                # The interpreter's own limits apply first. These are for a worker that escaped from it. The
                # interpreter's memory may exist twice while its value or its files are passed to the pool.
                cpu=limits.cpu + 1,
                memory=min(2 * limits.memory + given + _OURS, MAX_LIMIT),
                disk=max(usual.disk, given),
                files=max(usual.files, 2 * sum(path.count("/") + 1 for path in request.files)),
                output_bytes=session.MAX_REPORT,
            ),
        )
        found = await cells.run(inside, sink)
        self._had_a_cell = True
        isolation = _together(_alone(), found.isolation)
        usage = Usage(wall=found.usage.wall, memory=found.usage.memory)  # its processor time is mostly that of arming
        if found.status in (Status.TIMEOUT, Status.MEMORY, Status.OUTPUT):  # ended from outside
            return Outcome(status=found.status, limit=found.limit, isolation=isolation, usage=usage)
        try:
            ended = msgspec.convert(found.value, _Ended)
        except msgspec.ValidationError:
            why = found.error or "the cell did not answer as a worker does"
            raise BackendError("the monty worker died", why=why, next="run it again") from None
        return _outcome(ended, isolation, usage)

    async def aclose(self) -> None:
        if self._without_cells is not None:
            await self._without_cells.aclose()
        if self._cells is not None:
            await self._cells.aclose()


def _alone() -> Isolation:
    """Return the isolation that Monty itself provides. Raises `BackendUnavailable` if it is not installed."""
    _location()
    version = worker.version()
    layers = {name: text.format(version) for name, text in _LAYERS.items()}
    return Isolation(layers=layers, missing=("kernel", "limit on files"))


async def _try() -> None:
    """Run a line on a worker without a cell: the jail has facts of its own. Raises `BackendError`."""
    workers = _WithoutCells(1)
    try:
        outcome = await workers.run(Request(code="6 * 7"), lambda stream, data: True)
    finally:
        await workers.aclose()
    if outcome.value != 42:
        raise BackendError("monty doesn't work", why=f"a worker answered {outcome.status} to a line of arithmetic")


def _together(monty: Isolation, cell: Isolation) -> Isolation:
    both = {
        name: f"{text}; around it: {cell.layers[name]}" for name, text in monty.layers.items() if name in cell.layers
    }
    layers = {**cell.layers, **monty.layers, **both}
    return Isolation(layers=layers, missing=(*(name for name in monty.missing if name not in layers), *cell.missing))


def _location() -> str:
    """Return the file of Monty's package. Raises `BackendUnavailable` if it is not installed."""
    try:
        return worker.location()
    except ImportError as error:
        raise BackendUnavailable("monty is not here", why=str(error), next=pip_install(_PACKAGE)) from error


def _programs() -> dict[str, str]:
    try:
        return worker.programs()
    except FileNotFoundError as error:
        raise BackendUnavailable("the monty workers don't start", why=str(error), next=pip_install(_PACKAGE)) from error


def _job(request: Request) -> session.MontyJob:
    limits = request.limits
    return {
        "code": request.code,
        "env": request.environment,
        "files": bool(request.files),
        "time": limits.time,
        "cpu": limits.cpu,
        "memory": limits.memory,
        "recursion": limits.recursion,
        "writes": min(limits.file_size, limits.disk),
        "value": limits.output_bytes,
        "seed": request.seed.random if request.seed else new_seed(),
    }


def _outcome(ended: _Ended, isolation: Isolation, usage: Usage) -> Outcome:
    if ended.status == "unsupported":
        raise Unsupported(
            f"monty can't run this code (line {ended.line})",
            why=ended.error or "",
            next="run it on a backend with a full CPython, or rewrite that line",
        )
    if ended.status == "crashed":
        raise BackendError("the monty worker died", why=ended.error or "", next="run it again")
    status = Status.TIMEOUT if ended.status == "cpu" else Status(ended.status)
    return Outcome(
        status=status,
        exit_code={Status.OK: 0, Status.ERROR: 1}.get(status),
        value=ended.value,
        exception=ended.exception,
        error=None if ended.status == "cpu" else ended.error,  # not monty's own message for this limit
        limit="cpu" if ended.status == "cpu" else "",
        isolation=isolation,
        usage=usage,
    )


# --- without cells ---


class _WithoutCells:
    """Monty without the jail: its pool of workers in our own process.

    Uses the synchronous pool, on threads of ours: the asynchronous one has a thread that calls into the event loop, and
    aborts the whole process if the interpreter is shutting down at that moment (seen with 1.4.0).
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._threads: ThreadPoolExecutor | None = None
        self._pool: pydantic_monty.Monty | None = None
        self._starting = Lock()
        self._active: set[_Run] = set()

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        run = _Run(request, sink, _alone())
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="redoma-monty")
        work = self._threads.submit(lambda: run.execute(self._ready()))
        waiting = asyncio.wrap_future(work)
        self._active.add(run)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not work.cancel():  # it has left the queue
                run.stop(Status.KILLED)
                await asyncio.wait([waiting])  # wait for it: the worker is dead once its thread is done
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
                try:
                    self._pool = session.start(self._workers)
                except (OSError, RuntimeError, pydantic_monty.MontyError) as error:
                    raise BackendUnavailable(
                        "the monty workers don't start", why=str(error), next=pip_install(_PACKAGE)
                    ) from error
            return self._pool

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        threads, self._threads = self._threads, None
        for run in self._active:
            run.stop(Status.KILLED)
        # On this thread, not on another: no thread can be started while the interpreter shuts down.
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        if pool is not None:
            pool.__exit__(None, None, None)


class _Run:
    """One run on one thread. `stop` may be called from any other thread, at any time."""

    def __init__(self, request: Request, sink: Sink, isolation: Isolation) -> None:
        self._request, self._sink, self._isolation = request, sink, isolation
        self._lock = Lock()
        self._stopped = Event()
        self._ending: Status | None = None
        self._worker = -1
        self._deadline = 0.0

    def stop(self, ending: Status) -> None:
        """End the run now. The worker is killed through a pidfd, so never another process that got its pid."""
        with self._lock:
            self._ending = self._ending or ending
            self._stopped.set()
            if self._worker >= 0:
                with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                    signal.pidfd_send_signal(self._worker, signal.SIGKILL)

    def execute(self, pool: pydantic_monty.Monty) -> Outcome:
        import pydantic_monty as monty

        request, job = self._request, _job(self._request)
        with ExitStack() as stack:
            files = str(stack.enter_context(scratch(request.files))) if request.files else None
            stack.callback(self._reap)
            try:
                checked_out = stack.enter_context(session.checkout(pool, job))
                self._pin(checked_out.worker_pid)
            except (OSError, RuntimeError, monty.MontyError) as error:
                raise BackendError("no monty worker could be had", why=str(error), next="run it again") from error
            start, pid = time.monotonic(), checked_out.worker_pid
            feed = session.Feed(job, say=self._print, wait=self._wait, read=lambda: request.stdin)
            self._deadline = feed.deadline
            ended = _Ended(**feed.run(checked_out, files))
            usage = Usage(wall=time.monotonic() - start, memory=_peak_memory(pid))
        if ended.status == "crashed" and (self._ending or time.monotonic() >= self._deadline):
            ended = _Ended(**session.ended("timeout"))
        outcome = _outcome(ended, self._isolation, usage)
        if self._ending is None:
            return outcome
        return msgspec.structs.replace(outcome, status=self._ending, exit_code=None, error=None, limit="")

    def _pin(self, pid: int | None) -> None:
        if pid is None:
            raise BackendError("the monty worker has no process", why="it died at once", next="run it again")
        with self._lock:
            self._worker = os.pidfd_open(pid)
            if self._stopped.is_set():  # cancelled while waiting for a worker
                signal.pidfd_send_signal(self._worker, signal.SIGKILL)

    def _reap(self) -> None:
        """Kill and reap the worker. The pool drops it without waiting, which would leave a zombie."""
        with self._lock:
            worker, self._worker = self._worker, -1
        if worker >= 0:
            with suppress(ProcessLookupError, ChildProcessError):  # the pool may have reaped it first
                signal.pidfd_send_signal(worker, signal.SIGKILL)
                os.waitid(os.P_PIDFD, worker, os.WEXITED)
            os.close(worker)

    def _print(self, stream: Stream, text: str) -> None:
        if self._ending is None and not self._sink(stream, text.encode("utf-8", "surrogatepass")):
            self.stop(Status.OUTPUT)

    def _wait(self, seconds: float) -> None:
        left = self._deadline - time.monotonic()
        self._stopped.wait(min(seconds, left))
        if seconds >= left:
            self.stop(Status.TIMEOUT)


def _peak_memory(pid: int | None) -> int | None:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * KiB
    except OSError:  # the worker is gone, or there is no /proc: unknown
        return None
    return None
