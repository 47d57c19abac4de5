"""Control groups: the memory of a whole cell, counted and limited by the kernel.

`find` takes a place where this process may make groups (`cgroup_place` says which) and makes one there to be sure.
`Cgroups.make` makes one for each cell. It is all done with the rights of whoever started Redoma.

Adding a process is the one slow step: it waits for an RCU grace period, 7 ms after a pause, 0.1 ms in the wake of
another. So it belongs to the arming of a cell. What each run does goes through descriptors that are kept open, and
takes one to five microseconds.

Both versions count what is in the cell's tmpfs. Out of memory, v2 kills the cell as a whole (`memory.oom.group`), v1
the process of its choice, so one that has to outlive the others there needs a low `oom_score_adj`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Literal, NamedTuple

from ...lib.errors import BackendError
from ...lib.patterns import pattern
from ..processes import exists, start_time
from .cgroup_place import Place, Unavailable, enable, locate, write

_NAME = pattern(r"redoma-(\d+)-(\d+)\.(\d+)-.")
_WAITS = (0.0005, 0.001, 0.002, 0.005, 0.01)  # between tries to remove: the last process may be on its way out


class Files(NamedTuple):
    """The names of the kernel's files in one version of control groups; empty for one that it doesn't have."""

    version: Literal["v1", "v2"]
    join: str
    """To which a process writes `0` to be in. In v1 the one for threads, which needs no lock of the whole machine."""
    limit: str
    with_swap: str
    events: str
    peaks: tuple[str, ...]
    """The first that is there."""
    cpu: str
    settings: dict[str, bytes]
    """Written once. A kernel without swap, or without accounting for it, lacks some."""


V1 = Files(
    version="v1",
    join="tasks",
    limit="memory.limit_in_bytes",
    with_swap="memory.memsw.limit_in_bytes",
    events="memory.oom_control",
    peaks=("memory.max_usage_in_bytes",),
    cpu="cpuacct.usage",
    settings={"memory.swappiness": b"0"},
)
V2 = Files(
    version="v2",
    join="cgroup.procs",
    limit="memory.max",
    with_swap="",
    events="memory.events",
    peaks=("memory.peak", "memory.current"),  # the first since Linux 5.19
    cpu="cpu.stat",
    settings={"memory.swap.max": b"0", "memory.oom.group": b"1"},
)


def find() -> Cgroups | Unavailable:
    """Find a place for groups, and try it by making one. In v2 this may move us to the leaf `redoma-main`."""
    place = locate()
    if isinstance(place, Unavailable):
        return place
    if refused := enable(place):
        return refused
    groups = Cgroups(place)
    try:
        probe = groups.make(f"probe-{time.monotonic_ns()}")  # several threads may look at once
        try:
            probe.limit(1 << 30)
            probe.oom_kills()
        finally:
            probe.remove()
    except BackendError as error:
        return Unavailable(str(error), "# nothing known helps; this is the place that was tried: " + place.base)
    return groups


class Cgroups:
    """A place where groups can be made."""

    def __init__(self, place: Place) -> None:
        self.version = place.version
        self.base = place.base
        self._files = V1 if place.version == "v1" else V2
        self._counts = place.version == "v2" or place.cpu is not None
        self._bases = tuple(dict.fromkeys((place.base, place.cpu or place.base)))  # once, if v1 mounts both in one

    def describe(self) -> str:
        cpu = " and counts its CPU time" if self._counts else ""
        return f"cgroup {self.version} limits the memory of a cell{cpu}; groups are made in {self.base}"

    def make(self, name: str) -> Group:
        """A group for one cell. The name has to be new in this process."""
        made: list[str] = []
        try:
            for base in self._bases:
                path = f"{base}/redoma-{_identity()}-{name}"
                os.mkdir(path, 0o755)
                made.append(path)
            return Group(tuple(made), self._files)
        except OSError as error:
            for path in made:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            raise _failed("the cgroup of a cell can't be made", error) from error

    def sweep(self) -> int:
        """Remove what a Redoma that was killed outright left behind: empty groups of processes that are no more.

        The name tells the process, when it began, and the namespace its number is from: a number that was given out
        again doesn't hide a leftover, and one from another container is never taken for dead.
        """
        if os.readlink("/proc/self") != str(os.getpid()):
            return 0  # this /proc belongs to another namespace: its numbers are not ours
        removed = 0
        for base in self._bases:
            for name in os.listdir(base):
                owner = _NAME.match(name)
                if owner and int(owner[2]) == _namespace() and _is_gone(int(owner[1]), began=int(owner[3])):
                    with contextlib.suppress(OSError):  # it is not empty, or somebody else sweeps too
                        os.rmdir(f"{base}/{name}")
                        removed += 1
        return removed


class Group:
    """The group of one cell."""

    __slots__ = ("_cpu", "_events", "_files", "_limit", "_open", "_peak", "_with_swap", "paths")

    def __init__(self, paths: tuple[str, ...], files: Files) -> None:
        """`paths` are groups that were just made. In v1, the second counts CPU time."""
        self.paths, self._files, self._open = paths, files, list[int]()
        try:
            for name, value in files.settings.items():
                with contextlib.suppress(FileNotFoundError):
                    write(f"{paths[0]}/{name}", value)
            self._limit = self._descriptor(files.limit, os.O_WRONLY)
            self._events = self._descriptor(files.events, os.O_RDONLY)
            self._with_swap = self._optional(files.with_swap, os.O_WRONLY)
            self._cpu = self._optional(files.cpu, os.O_RDONLY)
            self._peak = self._first_of(files.peaks)
        except OSError:
            self._close()
            raise

    def _descriptor(self, name: str, flags: int) -> int:
        path = self.paths[-1] if name == self._files.cpu else self.paths[0]
        fd = os.open(f"{path}/{name}", flags | os.O_CLOEXEC)
        self._open.append(fd)
        return fd

    def _optional(self, name: str, flags: int) -> int:
        try:
            return self._descriptor(name, flags) if name else -1
        except FileNotFoundError:
            return -1

    def _first_of(self, names: tuple[str, ...]) -> int:
        for name in names:
            with contextlib.suppress(OSError):
                return self._descriptor(name, os.O_RDONLY)
        return -1

    def _close(self) -> None:
        while self._open:
            os.close(self._open.pop())
        self._limit = self._with_swap = self._events = self._peak = self._cpu = -1

    @property
    def path(self) -> str:
        return self.paths[0]

    def doors(self) -> list[int]:
        """Descriptors by which a process puts itself in: it writes `0`. Its children will be in too; what it used until
        now stays counted where it was. The caller closes them."""
        opened: list[int] = []
        try:
            for path in self.paths:
                opened.append(os.open(f"{path}/{self._files.join}", os.O_WRONLY | os.O_CLOEXEC))  # noqa: PERF401 - closed
        except OSError as error:
            for number in opened:
                os.close(number)
            raise _failed("the cgroup of a cell can't be entered", error) from error
        return opened

    def limit(self, memory_bytes: int) -> None:
        """All the memory that the processes in it may have together, swap and their tmpfs included.

        Less than they have already: v2 kills them, and counts that. v1 refuses, which is raised.
        """
        number = b"%d" % memory_bytes
        try:
            if self._with_swap < 0:
                os.pwrite(self._limit, number, 0)
                return
            try:  # v1 has two limits, and the one with swap can't be the smaller at any moment
                os.pwrite(self._limit, number, 0)
                os.pwrite(self._with_swap, number, 0)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                os.pwrite(self._with_swap, number, 0)
                os.pwrite(self._limit, number, 0)
        except OSError as error:
            if error.errno == errno.EBUSY:
                why = f"it already uses more than {memory_bytes} bytes"
                raise BackendError("the memory of a cell can't be limited", why=why, next="allow it more") from error
            raise _failed("the memory of a cell can't be limited", error) from error

    def oom_kills(self) -> int:
        """How many of its processes were killed for want of memory: over this limit, or one further up."""
        try:
            return oom_kills_in(os.pread(self._events, 512, 0))
        except (OSError, ValueError) as error:
            raise _failed("it is not known whether a cell ran out of memory", error) from error

    def peak(self) -> int | None:
        """The most memory it used so far. Linux 5.18 and before, in v2: what it uses now."""
        try:
            return int(os.pread(self._peak, 32, 0)) if self._peak >= 0 else None
        except OSError as error:
            raise _failed("the memory used by a cell can't be read", error) from error

    def cpu(self) -> float | None:
        """Seconds of CPU time used by everything that is or was in it; None where that isn't counted."""
        if self._cpu < 0:
            return None
        try:
            answer = os.pread(self._cpu, 64, 0)
        except OSError as error:
            raise _failed("the CPU time of a cell can't be read", error) from error
        return int(answer) / 1e9 if self._files.version == "v1" else int(answer.split(None, 2)[1]) / 1e6

    def remove(self) -> bool:
        """Remove it, waiting some 20 ms for processes that are on their way out. False: not yet, try again later."""
        self._close()
        for wait in (*_WAITS, None):
            left = [path for path in self.paths if not _removed(path)]
            if not left or wait is None:
                return not left
            time.sleep(wait)
        return False


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise _failed("the cgroup of a cell can't be removed", error) from error
        return False
    return True


def oom_kills_in(events: bytes) -> int:
    """The count in memory.events (v2) or memory.oom_control (v1, since Linux 4.13)."""
    _, found, rest = events.partition(b"\noom_kill ")
    if not found:
        raise ValueError("this kernel doesn't count the processes it kills in a group")
    return int(rest.split(b"\n", 1)[0])


def _failed(what: str, error: OSError | ValueError) -> BackendError:
    if isinstance(error, OSError) and error.errno == errno.ENODEV:
        why = "its group was removed, or the controller taken away, by somebody else"
        return BackendError(what, why=why, next="give Redoma a group of its own; see `redoma doctor`")
    return BackendError(what, why=str(error))


# --- whose group it is ---

_own: tuple[int, str] = (0, "")


def _identity() -> str:
    """Our process id, its namespace, and when we began. Looked up again after a fork."""
    global _own
    pid = os.getpid()
    if _own[0] != pid:
        _own = pid, f"{pid}-{_namespace()}.{start_time(pid)}"
    return _own[1]


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _is_gone(pid: int, began: int) -> bool:
    """Whether the process with this id that began then has ended. False if it can't be known (hidepid)."""
    now = start_time(pid)
    return not exists(pid) if now is None else now != began
