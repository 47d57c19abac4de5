"""One run on Monty, from a worker of its pool to how it ended. This module is loaded in a cell, or in our own process
where no cell can be made.

It is the only importer of `pydantic_monty`, which decodes and bounds what a worker sends back.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from redoma.backends.jail import value as outward
from redoma.backends.jail.configuration import PROGRAMS
from redoma.backends.monty.worker import PROGRAM

if TYPE_CHECKING:
    import pydantic_monty

HOME = "/workspace"
"""Where the request's files are in the interpreter's virtual file system; in a cell, in the real one too."""
MAX_REPORT = 2 << 20
"""Maximum bytes of the report on a run in a cell, not counting its output."""

_HOST_CALLS = 100_000  # input(), environment, sleep and file operations of one run; each is a round trip to the host
_MAX_ERROR = 64 << 10  # far more than is shown, because it is cut before redaction
_MAX_DEPTH = 90  # a little less than a cell may return, because the value is nested in the report
_MAX_ITEMS = 99_000
_MAX_INT_BITS = 14_000  # CPython refuses to print an int of more than about 4300 digits, so callers could not either


class MontyJob(TypedDict):
    """The code to run, and its limits. It is passed into the cell as the text of a dictionary, so it is plain data."""

    code: str
    env: dict[str, str]
    files: bool
    time: float
    cpu: float
    memory: int
    recursion: int
    writes: int
    """Bytes that it may write to all files together."""
    value: int
    """Bytes of its value that are returned."""
    seed: int
    """The seed of its random numbers."""


class Ended(TypedDict):
    """How the run ended, in Monty's terms. It comes out of a cell as the value of an expression, so it is plain
    data.
    """

    status: Literal["ok", "error", "timeout", "cpu", "memory", "unsupported", "crashed"]
    value: Any
    exception: str | None
    error: str | None
    line: int


def ended(status: Any, **more: Any) -> Ended:
    return {"status": status, "value": None, "exception": None, "error": None, "line": 0, **more}  # type: ignore[typeddict-item]


def start(workers: int, *, binary: str | None = None, checkouts: int = 1) -> pydantic_monty.Monty:
    """Start a pool of workers. A worker serves one run, so what the run did to the interpreter dies with it."""
    import pydantic_monty

    pool = pydantic_monty.Monty(binary_path=binary, max_processes=workers, max_checkouts_per_worker=checkouts)
    return pool.__enter__()


def checkout(pool: pydantic_monty.Monty, job: MontyJob) -> pydantic_monty.MontySession:
    """Return a session, which gets its own worker when it is entered."""
    return pool.checkout(
        script_name="main.py",
        limits={
            # Its clock stops in our callbacks, and there is one thread: so this bounds both.
            "max_feed_duration_secs": min(job["time"], job["cpu"]),
            "max_memory": job["memory"],
            "max_recursion_depth": job["recursion"],
            "max_suspensions": _HOST_CALLS,
        },
        # Sleeps are ours, so that they can be interrupted and count as time. Random numbers can be reproduced from a
        # seed, which has a fixed length since it counts as memory.
        os_policy={"sleep": "call_host", "random_start": {"seed": f"{job['seed']:016x}"}},
    )


class Feed:
    """Runs code in a session and answers its calls: output goes to `say`, sleeps to `wait`, input comes from `read`."""

    def __init__(
        self,
        job: MontyJob,
        *,
        say: Callable[[Literal["stdout", "stderr"], str], None],
        wait: Callable[[float], None],
        read: Callable[[], bytes],
    ) -> None:
        self._job, self._say, self._wait, self._read = job, say, wait, read
        self._lines: list[str] | None = None
        start = time.monotonic()
        self.deadline, self._cpu_deadline = start + job["time"], start + job["cpu"]

    def run(self, session: pydantic_monty.MontySession, files: str | None) -> Ended:
        """Run the code to its end. `files` is the directory with the request's files, if there are any."""
        import pydantic_monty as monty

        mount = None
        if files is not None:
            # Writes stay in the pool's memory, bounded: the virtual file system must not fill a real one.
            mount = monty.MountDir(
                host_path=files,
                virtual_path=HOME,
                mode="overlay",
                write_bytes_limit=self._job["writes"],
                memory_usage_limit=self._job["memory"],
            )
        try:
            found = session.feed_run(
                self._job["code"],
                external_lookup={"input": self._input},
                print_callback=self._say,
                mount=mount,
                cwd=HOME if mount else None,
                os=self._answer,
            )
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as failure:
            return self._failed(failure)
        except monty.MontyError as failure:
            return ended("crashed", error=str(failure)[:_MAX_ERROR])
        finally:
            if mount is not None:
                mount.close()
        return ended("ok", value=plain(found, self._job["value"]))

    def _failed(self, failure: Any) -> Ended:
        exception = type(failure.exception()).__name__
        # Monty reports its own gaps as internal errors, such as an exception with a number as its argument.
        error: str = failure.display("type-msg").replace(
            "RuntimeError: Internal error in monty:", "Not done by monty:", 1
        )
        frames = failure.traceback()
        # Monty's parser finds syntax that Monty lacks: nothing has run, so another backend may be tried. Such an error
        # has a single frame without a function name. Running code can't imitate that: whatever it raises has at least
        # the frame of its module.
        if exception == "NotImplementedError" and len(frames) == 1 and frames[0].function_name is None:
            return ended("unsupported", error=error.partition(": ")[2][:_MAX_ERROR], line=frames[0].line)
        status = self._status_of(exception, error)
        if status in ("error", "memory"):
            self._say("stderr", failure.display("traceback") + "\n")
        return ended(status, exception=exception, error=error[:_MAX_ERROR])

    def _status_of(self, exception: str, error: str) -> str:
        """Return the status for a failure. Decided by the clock and by Monty's own messages, since code may raise
        errors of the same types itself.
        """
        now = time.monotonic()
        if exception == "TimeoutError" and now >= self.deadline:
            return "timeout"
        if error.startswith("TimeoutError: feed time limit exceeded: ") and now >= self._cpu_deadline:
            return "cpu"
        if error.startswith(("MemoryError: memory limit exceeded: ", "MemoryError: mount memory usage limit of ")):
            return "memory"
        return "error"

    def _input(self, prompt: object = "") -> str:
        if self._lines is None:
            text = self._read().decode("utf-8", "replace")
            self._lines = text.removesuffix("\n").split("\n")[::-1] if text else []
        if not self._lines:
            raise EOFError("EOF when reading a line")
        return self._lines.pop()

    def _answer(self, *, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], **_: Any) -> Any:
        """Answer a system call of the code: only environment variables and sleep."""
        from pydantic_monty import NOT_HANDLED

        if name == "os.environ":
            return self._job["env"]
        if name == "os.getenv":
            return self._job["env"].get(*args, **kwargs)
        if name in ("time.sleep", "asyncio.sleep", "system.sleep", "system.async_sleep"):
            self._wait(float(args[0]))
            return None
        return NOT_HANDLED


def plain(value: Any, max_bytes: int) -> Any:
    """Return the value of a last expression as plain data, or its `repr` if it is anything else.

    Bounded in items, depth and bytes, and without recursion, because hostile code may have built it to break the code
    that walks it. A value that is too large is described instead.
    """
    name, odd, items, size = type(value).__name__, False, 0, 0
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        kind = type(item)  # the exact type: a named tuple, for example, would not come out of a cell as one
        items += 1
        if kind in (str, bytes):
            size += len(item)
        elif kind is int and item.bit_length() > _MAX_INT_BITS:
            return f"<{name} with an integer of {item.bit_length()} bits>"
        elif kind in (list, tuple, set, frozenset):
            stack.extend((inner, depth + 1) for inner in item)
        elif kind is dict:
            stack.extend((inner, depth + 1) for pair in item.items() for inner in pair)
        elif item is not None and kind not in (bool, int, float):
            odd = True
        if items + len(stack) > _MAX_ITEMS or depth > _MAX_DEPTH or size > max_bytes:
            return f"<{name}, too large to return>"
    if not odd:
        return value
    try:
        return repr(value)[:max_bytes]
    except (ValueError, RecursionError):  # an attribute of it is too large to print
        return f"<{name}>"


# --- in a cell ---

_RLIMITS = {
    resource.RLIMIT_NPROC: 64,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 64 << 10,
}
"""The rlimits of a worker. It is started before the limits of its run are known, and needs almost nothing of these."""

_kept: list[Any] = []
"""The pool and the session of the run. Kept, so that they are not closed: the cell ends as a whole, which is faster."""


def arm() -> dict[str, Any]:
    """Start a worker ahead of time, in a guest that has no code yet, and let it answer once."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a dead worker must be an error, not end this process
    for which, number in _RLIMITS.items():
        resource.setrlimit(which, (number, number))
    # The first of its two sessions is a warm-up: it loads the pages that the second would otherwise wait for.
    pool = start(1, binary=f"{PROGRAMS}/{PROGRAM}", checkouts=2)
    _kept.append(pool)
    job = MontyJob(
        code="", env={}, files=False, time=9.0, cpu=9.0, memory=1 << 26, recursion=100, writes=0, value=1000, seed=0
    )
    with checkout(pool, job) as session:
        for code in ("print('x', 1.5)\n[str(i) for i in range(3)]", "1 / 0"):
            Feed({**job, "code": code}, say=lambda *_: None, wait=time.sleep, read=bytes).run(session, None)
    return {PROGRAM: run}


def run(job: MontyJob) -> Ended:
    """Run the code: the only thing that a cell is asked to do."""
    import pydantic_monty as monty

    session = checkout(_kept[0], job)
    _kept.append(session)
    try:
        session.__enter__()
    except (OSError, RuntimeError, monty.MontyError) as error:
        return ended("crashed", error=str(error)[:_MAX_ERROR])
    worker = session.worker_pid
    feed = Feed(job, say=_write, wait=time.sleep, read=sys.stdin.buffer.read)
    found = feed.run(session, HOME if job["files"] else None)
    if worker is not None:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)  # it dies while we report, so the end of the cell need not wait for it
    report: Any = outward.encode(found, MAX_REPORT)
    if report[0] != "dict" or len(json.dumps(report)) > 2 * MAX_REPORT:  # too large to be accepted
        found["value"] = f"<{type(found['value']).__name__}, too large to return>"
    return found


def _write(stream: Literal["stdout", "stderr"], text: str) -> None:
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    while data:
        data = data[os.write(1 if stream == "stdout" else 2, data) :]
