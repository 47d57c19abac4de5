"""The processes of a cell as the host sees them, and everything that a run could leave on the host."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from redoma import AsyncExecutor, Config, Result
from redoma.backends.jail import JailBackend
from redoma.backends.jail.cgroup import Cgroups
from redoma.backends.jail.pool import Pool
from redoma.config import AuditConfig
from redoma.models import Stream

SLOW = int(os.environ.get("REDOMA_SLOW", "1"))  # as in `pace`, which programs started by tests can't import
Part = Literal["zygote", "init", "guest"]

TELL = "import os\nprint(os.fstat(1).st_ino, flush=True)\n"
"""Identifies its cell: the pipe it prints to has the same inode on both sides."""


def jail(directory: Path, **options: Any) -> tuple[AsyncExecutor, JailBackend]:
    backend = JailBackend(**options)
    config = Config(audit=AuditConfig(directory=directory / "audit"))
    return AsyncExecutor(config, backends=[backend]), backend


async def run(executor: AsyncExecutor, code: str = "1 + 1", language: Any = "python", **options: Any) -> Result:
    return await executor.run(code, language, backend="jail", policy="none", **options)


def pool_of(backend: JailBackend) -> Pool:
    """Return the pool of this process, which exists after the first run."""
    return backend._pools[None, None, None]


def zygote_of(backend: JailBackend) -> int:
    pid = pool_of(backend).zygote_pid
    assert pid is not None
    return pid


# --- processes ---


def depth_of(pid: int) -> int:
    """Return in how many pid namespaces it has a pid: a cell's processes are in one more than the zygote."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return len(line.split()) - 1
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended takes no other's children
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def below(pid: int) -> set[int]:
    found: set[int] = set()
    todo = [pid]
    while todo:
        new = set(children_of(todo.pop())) - found
        found |= new
        todo.extend(new)
    return found


def is_alive(pid: int) -> bool:
    """Return whether it is alive, and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def behind(handle: int) -> int:
    """Return the process that a pidfd stands for."""
    for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return -1


def parts(backend: JailBackend, pipe: int) -> dict[Part, int]:
    """Return the processes of the running cell that prints to this pipe."""
    for cell in list(pool_of(backend)._running):
        if cell.stdout >= 0 and os.fstat(cell.stdout).st_ino == pipe:
            init = behind(cell.handle)
            return {"zygote": zygote_of(backend), "init": init, "guest": children_of(init)[0]}
    raise AssertionError("no such cell runs")


async def interrupted(executor: AsyncExecutor, backend: JailBackend, part: Part, **options: Any) -> Result:
    """Return the result of a run of which one process is killed after it has begun."""
    told = asyncio.Event()
    said: list[str] = []

    def hear(_: Stream, text: str) -> None:
        said.append(text)
        if "\n" in text:
            told.set()

    running = asyncio.create_task(
        run(
            executor,
            TELL + "import time; time.sleep(600)",
            on_output=hear,
            **{"limits": {"time": 120 * SLOW}, **options},
        )
    )
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait([running, waiting], timeout=60 * SLOW, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        return running.result()  # something else has ended it: the caller will see
    os.kill(parts(backend, int("".join(said)))[part], signal.SIGKILL)
    return await asyncio.wait_for(running, 40 * SLOW)


# --- what could be left ---


class Host(msgspec.Struct):
    """Everything on this host that a run could leave something in."""

    processes: set[int]
    descriptors: dict[str, str]
    mounts: set[str]
    groups: set[str]
    scratch: set[str]
    shared_memory: set[str]

    def left(self) -> dict[str, Any]:
        """Return what is there now and was not then. For descriptors only the number counts: files are reopened all the
        time.
        """
        now = look()
        found: dict[str, Any] = {
            name: getattr(now, name) - getattr(self, name)
            for name in ("processes", "mounts", "groups", "scratch", "shared_memory")
        }
        if len(now.descriptors) > len(self.descriptors):
            found["descriptors"] = {n: what for n, what in now.descriptors.items() if n not in self.descriptors}
        return {name: what for name, what in found.items() if what}

    def left_in_the_end(self, seconds: float = 60.0) -> dict[str, Any]:
        """Return the same after a while: others use this host too, so what disappears soon was not ours."""
        eventually(lambda: not self.left(), seconds)
        return self.left()


def look() -> Host:
    return Host(
        processes=below(os.getpid()),
        descriptors=descriptors(os.getpid()),
        mounts={line.split(" ", 1)[1] for line in Path("/proc/self/mountinfo").read_text().splitlines()},
        groups=groups(),
        scratch={name for name in os.listdir(tempfile.gettempdir()) if name.startswith("redoma-")},
        shared_memory={
            name for name in os.listdir("/dev/shm") if not name.startswith(("redoma-test-", "jail-attacks-"))
        },
    )


def descriptors(pid: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[number] = os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # the one that the directory was read through
    return found


def groups(owner: int | None = None) -> set[str]:
    """Return the control groups of this process, or of another."""
    from redoma.backends.jail.cgroup_place import Unavailable, locate

    place = locate()
    if isinstance(place, Unavailable):
        return set()
    bases = Cgroups(place)._bases
    prefix = f"redoma-{owner or os.getpid()}-"
    return {f"{base}/{name}" for base in bases for name in os.listdir(base) if name.startswith(prefix)}


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds * SLOW
    while not (answer := true()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


async def soon(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Do the same as `eventually` while the event loop continues."""
    deadline = time.monotonic() + seconds * SLOW
    while not (answer := true()) and time.monotonic() < deadline:  # noqa: ASYNC110 - processes set no asyncio.Event
        await asyncio.sleep(0.01)
    return answer
