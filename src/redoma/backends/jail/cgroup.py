"""Control groups: the kernel counts and limits the memory of a whole cell.

`find` determines where this process may make groups (see `cgroup_place`) and tries it. `Cgroups.make` makes a group for
each cell. Nothing needs more rights than those of the user who started Redoma.

The only slow step is adding a process, which waits for an RCU grace period: 7 ms after a pause, 0.1 ms right after
another one. So it is done when a cell is armed. What happens in each run uses descriptors that are kept open, and takes
one to five microseconds.

Both versions count the content of the cell's tmpfs as memory. If memory runs out, v2 kills the whole cell
(`memory.oom.group`). v1 kills a process of its choice, so a process that must outlive the others needs a low
`oom_score_adj`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

from ...lib.errors import BackendError
from ...lib.patterns import lazy_pattern
from ..processes import exists, start_time
from .cgroup_place import Place, Unavailable, enable, locate, write

_NAME = lazy_pattern(r"redoma-(\d+)-(\d+)\.(\d+)-.")
_WAITS = (0.0005, 0.001, 0.002, 0.005, 0.01)  # between attempts to remove a group: a process may still be exiting


class Files(NamedTuple):
    """The names of the kernel's files in one version of control groups; empty if it doesn't have that file."""

    version: Literal["v1", "v2"]
    join: str
    """A process writes `0` to it to join. In v1 it is the file for threads, which needs no machine-wide lock."""
    limit: str
    with_swap: str
    events: str
    peaks: tuple[str, ...]
    """The first that exists is used."""
    cpu: str
    settings: dict[str, bytes]
    """Written once, if they exist: a kernel without swap accounting lacks some."""


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
    """Find where groups can be made, and try it. In v2 this may move this process to the leaf `redoma-main`."""
    place = locate()
    if isinstance(place, Unavailable):
        return place
    if refused := enable(place):
        return refused
    groups = Cgroups(place)
    try:
        probe = groups.make(f"probe-{time.monotonic_ns()}")  # several threads may do this at once
        try:
            probe.limit(1 << 30)
            probe.oom_kills()
        finally:
            probe.remove()
    except BackendError as error:
        return Unavailable(str(error), "# nothing known helps; this is the place that was tried: " + place.base)
    return groups


class Cgroups:
    """Makes groups in a place that `locate` found."""

    def __init__(self, place: Place) -> None:
        self.version = place.version
        self.base = place.base
        self._files = V1 if place.version == "v1" else V2
        self._counts = place.version == "v2" or place.cpu is not None
        self._bases = tuple(dict.fromkeys((place.base, place.cpu or place.base)))  # one, if v1 joins them

    def describe(self) -> str:
        """Return how the memory of a cell is limited, for its isolation layer."""
        cpu = " and counts its CPU time" if self._counts else ""
        return f"cgroup {self.version} limits the memory of a cell{cpu}; groups are made in {self.base}"

    def make(self, name: str) -> Group:
        """Make a group for one cell. The name must be new in this process. Raises `BackendError`."""
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
        """Remove the empty groups that a killed Redoma left. Returns how many.

        The name of a group contains the process id, its start time, and its pid namespace. So a reused id doesn't hide
        a leftover, and a process of another container is never taken for dead.
        """
        if os.readlink("/proc/self") != str(os.getpid()):
            return 0  # this /proc is that of another pid namespace
        removed = 0
        for base in self._bases:
            for name in os.listdir(base):
                owner = _NAME.match(name)
                if owner and int(owner[2]) == _namespace() and _is_gone(int(owner[1]), began=int(owner[3])):
                    with contextlib.suppress(OSError):  # it is not empty, or another process removed it
                        os.rmdir(f"{base}/{name}")
                        removed += 1
        return removed

    def of(self, pids: Iterable[int]) -> list[str]:
        """Return the paths of the groups that these processes, alive or not, have made."""
        beginnings = tuple(f"redoma-{pid}-{_namespace()}." for pid in pids)
        return [f"{base}/{name}" for base in self._bases for name in os.listdir(base) if name.startswith(beginnings)]


class Group:
    """The group of one cell."""

    __slots__ = ("_cpu", "_events", "_files", "_limit", "_limited", "_open", "_peak", "_with_swap", "paths")

    def __init__(self, paths: tuple[str, ...], files: Files) -> None:
        """`paths` are groups that were just made; in v1, the second one counts CPU time."""
        self.paths, self._files, self._open = paths, files, list[int]()
        self._limited = 0
        """The limit that is set; 0 for none."""
        try:
            for name, value in files.settings.items():
                with contextlib.suppress(FileNotFoundError):
                    write(f"{paths[0]}/{name}", value)
            self._limit = self._descriptor(files.limit, os.O_RDWR)
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
        """The directory of the group; in v1, that of the memory controller."""
        return self.paths[0]

    def doors(self) -> list[int]:
        """Return descriptors with which a process joins, by writing `0`. Its later children are in the group, too; what
        it has used so far stays counted where it was. The caller closes them.
        """
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
        """Limit the memory of all its processes together, including swap and their tmpfs.

        If they use more already, v2 kills them and counts that; v1 refuses, and `BackendError` is raised.
        """
        number = b"%d" % memory_bytes
        try:
            # Since the cell was made, as nearly always: to read it takes much less time, and fails, too, if the
            # controller was taken away.
            if memory_bytes == self._limited and os.pread(self._limit, 32, 0).strip() == number:
                return
            self._limited = 0
            if self._with_swap < 0:
                os.pwrite(self._limit, number, 0)
                self._limited = memory_bytes
                return
            try:  # v1 has two limits, and the one that includes swap must never be the smaller one
                os.pwrite(self._limit, number, 0)
                os.pwrite(self._with_swap, number, 0)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                os.pwrite(self._with_swap, number, 0)
                os.pwrite(self._limit, number, 0)
            self._limited = memory_bytes
        except OSError as error:
            if error.errno == errno.EBUSY:
                why = f"it already uses more than {memory_bytes} bytes"
                raise BackendError("the memory of a cell can't be limited", why=why, next="allow it more") from error
            raise _failed("the memory of a cell can't be limited", error) from error

    def oom_kills(self) -> int:
        """Return how many of its processes the OOM killer has killed, for this limit or one above it."""
        try:
            return oom_kills_in(os.pread(self._events, 512, 0))
        except (OSError, ValueError) as error:
            raise _failed("it is not known whether a cell ran out of memory", error) from error

    def peak(self) -> int | None:
        """Return its peak memory in bytes, if known. In v2 before Linux 5.19, its current memory."""
        try:
            return int(os.pread(self._peak, 32, 0)) if self._peak >= 0 else None
        except OSError as error:
            raise _failed("the memory used by a cell can't be read", error) from error

    def cpu(self) -> float | None:
        """Return the seconds of CPU time of everything that is or was in it; None if not counted."""
        if self._cpu < 0:
            return None
        try:
            answer = os.pread(self._cpu, 64, 0)
        except OSError as error:
            raise _failed("the CPU time of a cell can't be read", error) from error
        return int(answer) / 1e9 if self._files.version == "v1" else int(answer.split(None, 2)[1]) / 1e6

    def remove(self) -> bool:
        """Remove it, waiting up to about 20 ms for exiting processes. Returns False if it can't be removed yet."""
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
    """Return the count in memory.events (v2) or memory.oom_control (v1, since Linux 4.13)."""
    _, found, rest = events.partition(b"\noom_kill ")
    if not found:
        raise ValueError("this kernel doesn't count the processes it kills in a group")
    return int(rest.split(b"\n", 1)[0])


def _failed(what: str, error: OSError | ValueError) -> BackendError:
    if isinstance(error, OSError) and error.errno == errno.ENODEV:
        why = "its group was removed, or the controller taken away, by somebody else"
        return BackendError(what, why=why, next="give Redoma a group of its own; see `redoma doctor`")
    return BackendError(what, why=str(error))


# --- the owner of a group ---

_own: tuple[int, str] = (0, "")


def _identity() -> str:
    """Return our process id, pid namespace and start time, as text. Read again after a fork."""
    global _own
    pid = os.getpid()
    if _own[0] != pid:
        _own = pid, f"{pid}-{_namespace()}.{start_time(pid)}"
    return _own[1]


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _is_gone(pid: int, began: int) -> bool:
    """Return whether the process with this id and start time has ended. False if that is unknown (hidepid)."""
    now = start_time(pid)
    return not exists(pid) if now is None else now != began
