"""Pid 1 of a cell. Inner. It makes the cell, forks the guest, and is the only one whose word on the outcome counts.

It never reads what the guest wrote while the guest could still change it: first everything is killed and reaped, then
it looks. When it ends, the kernel kills whatever is left in its namespace.
"""

from __future__ import annotations

import io
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from redoma.backends.collect import collect
from redoma.backends.jail import changes_sent, guest, protocol, setup
from redoma.backends.jail.root import tell

_TICK = os.sysconf("SC_CLK_TCK")
_LATE, _VERY_LATE = 0.5, 30.0  # seconds that our order may come after the guest's, on a machine that is very busy
_LOOK_OFTEN, _LOOK = 0.01, 0.1  # seconds between two looks at the cell: where we alone guard its memory, and else


def main(spec: dict[str, Any], control: socket.socket) -> NoReturn:
    try:
        make(spec, control)
    except BaseException as error:
        tell(control, error)
    os._exit(1)


def make(spec: dict[str, Any], control: socket.socket) -> NoReturn:
    # What the cell's own /proc doesn't have, or not on every kernel.
    with open("/proc/self/net/dev") as file:
        spec["interfaces"] = {line.split(":")[0].strip() for line in file if ":" in line}
    further = os.open(setup.USER_NAMESPACES, os.O_RDONLY)
    setup.take(setup.INIT, spec)
    spec["user_namespaces"] = int(os.read(further, 32))
    os.close(further)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # without a handler the kernel keeps them away from a pid 1
    pid = os.fork()
    if pid == 0:
        guest.start(spec, control)
    for name in ("order", "stdin", "stdout", "stderr"):
        os.close(spec[name])
    os.closerange(0, 3)
    died = os.pidfd_open(pid)  # not SIGCHLD: a handler would cost more than all the rest
    setup.take(setup.INIT_AFTER_FORK, spec)
    watch = Watch(pid, control, died, spec)
    watch.warm()
    watch.until_the_end()
    os._exit(0)


class Watch:
    def __init__(self, pid: int, control: socket.socket, died: int, spec: Mapping[str, Any]) -> None:
        self._pid, self._control, self._died = pid, control, died
        self._watched: bool = spec["watched"]
        self._above: int | None = spec.get("above")
        self._disk: int = spec["disk"]
        self._files: int = spec["files"]
        self._on_disk = spec["changes"] == "disk"
        self._layer: changes_sent.Size | None = None
        self._status: int | None = None
        self._cause = ""
        self._peak = 0
        self._cpu = self._before = 0.0  # what the guest had used while it was being armed doesn't count
        self._seen: dict[str, float] = {}

    def warm(self) -> None:
        """What the end of a run does, done once without effect: the pages it writes to are copied now, not then."""
        self._reap()
        protocol.read_order(io.BytesIO(protocol.order({"outputs": [], "given": {}})).read)
        _report_of_the_guest(1000)
        self._verdict()

    def until_the_end(self) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._died, select.POLLIN)
        poll.poll()
        # A guest may have ended before we hear of it; but one that is killed while nobody has used it gets no order.
        self._reap()
        exited = self._status is not None and os.WIFEXITED(self._status)  # by itself: so it had its order
        told = protocol.read_order(self._control.recv) if self._heard(_VERY_LATE if exited else _LATE) else None
        if told is None:
            return  # never used, or broken before it was: the parent knows why
        self._before = float((_look(str(self._pid), "schedstat").split() or [b"0"])[0]) / 1e9
        if self._above is not None and self._on_disk:  # not before: it may have waited for its order for hours
            self._layer = changes_sent.Size(self._above, max_bytes=self._disk, max_files=self._files)
        pause = _LOOK_OFTEN if self._watched or self._layer else _LOOK
        look = time.monotonic() + pause
        while True:
            ready = [number for number, _ in poll.poll(_LOOK_OFTEN * 1000)]
            self._reap()
            if self._status is not None:
                break
            if self._control.fileno() in ready:  # a word to end, a signal, or the parent is gone
                word = self._control.recv(1)
                if not word:
                    return
                if word == protocol.END:
                    self._cause = "end"
                    break
                os.kill(self._pid, word[0])  # not reaped, as we have just seen: the number is still the guest's
            if time.monotonic() >= look:
                if cause := self._excess(told):
                    self._cause = cause
                    break
                look = time.monotonic() + pause
        self._kill_all()
        if self._layer is not None and not self._cause and self._layer.counted():
            self._cause = "disk"
        self._report(told)

    def _heard(self, seconds: float) -> bool:
        return bool(select.select([self._control], [], [], seconds)[0])

    def _reap(self) -> None:
        """Every orphan of the cell is ours; some at a time, lest a flood keep us. The guest's own status is kept."""
        with suppress(ChildProcessError):
            for _ in range(1000):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._status = status

    def _kill_all(self) -> None:
        """All but us. A process that forks faster than it is killed is met again in the next round."""
        while True:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            if pid == self._pid and self._status is None:
                self._status = status

    def _excess(self, told: Mapping[str, Any]) -> str:
        """What the cell as a whole has too much of."""
        processes = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        if self._cpu_used(processes) > told["cpu"]:
            return "cpu"
        if told["processes"] and sum(_threads_of(pid) for pid in processes) > told["processes"]:
            return "processes"
        if self._watched:
            used = _files() + _memory_of(processes, told["memory"])
            self._peak = max(self._peak, used)
            if used > told["memory"]:
                return "memory"
        return self._layer.excess() if self._layer is not None else ""

    def _cpu_used(self, processes: list[str]) -> float:
        """By two counts, of which the larger is true. What waited-for children used is added to their parent; but one
        who ignores SIGCHLD never waits, and then only what was seen of each process tells."""
        waited_for = _waited_for()
        for pid in processes:
            own, children = _cpu_of(pid)
            waited_for += own + children
            self._seen[pid] = max(self._seen.get(pid, 0.0), own)
        self._cpu = max(self._cpu, waited_for - self._before, sum(self._seen.values()) - self._before)
        return self._cpu

    def _report(self, told: Mapping[str, Any]) -> None:
        if told["outputs"]:
            self._send_files(told)
        if self._above is not None:
            changes_sent.send(self._above, self._control.sendall, self._disk)
        report = _report_of_the_guest(told["report"])
        claimed = protocol.frame(protocol.REPORT, report) if report else b""
        self._control.sendall(claimed + self._verdict())

    def _verdict(self) -> bytes:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        verdict = {
            "status": self._status or 0,
            "cause": self._cause,
            "cpu": max(self._cpu, usage.ru_utime + usage.ru_stime - self._before),
            "memory": max(self._peak, usage.ru_maxrss * 1024),
        }
        return protocol.frame(protocol.VERDICT, json.dumps(verdict).encode())

    def _send_files(self, told: Mapping[str, Any]) -> None:
        os.chmod("/workspace", 0o700)  # whatever the guest has made of it
        workspace = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY)
        files, left_out = collect(workspace, told["outputs"], told["given"])
        for name, content in files.items():
            self._control.sendall(protocol.frame(protocol.FILE, protocol.named(name, content)))
        for name, why in left_out.items():
            self._control.sendall(protocol.frame(protocol.LEFT_OUT, protocol.named(name[:4000], why.encode()[:1000])))


def _report_of_the_guest(most: int) -> bytes:
    """Whatever lies at its place, if it is a file of a sane size. The guest is dead: nothing changes meanwhile."""
    try:
        file = os.open(guest.REPORT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        content = os.read(file, most + 1)
        while len(content) <= most and (more := os.read(file, most + 1 - len(content))):
            content += more
        os.close(file)
    except OSError:  # not there, or a directory, or a pipe
        return b""
    return content if len(content) <= most else b""


def _waited_for() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _look(pid: str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""  # it has ended since


def _cpu_of(pid: str) -> tuple[float, float]:
    """Of the process, and of the children it has waited for."""
    fields = _look(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 15:
        return 0.0, 0.0
    return sum(map(int, fields[11:13])) / _TICK, sum(map(int, fields[13:15])) / _TICK


def _threads_of(pid: str) -> int:
    fields = _look(pid, "stat").rpartition(b")")[2].split()
    return int(fields[17]) if len(fields) > 17 else 0


def _files() -> int:
    """Bytes in the cell's own file systems: they are memory too."""
    total = 0
    for path in ("/workspace", "/run"):
        facts = os.statvfs(path)
        total += (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return total


def _memory_of(processes: list[str], limit: int) -> int:
    """Cheap sums first; pages that are shared, with the zygote above all, are told apart only when it matters."""
    resident = sum(_resident(pid) for pid in processes)
    return resident if resident <= limit else sum(_proportional(pid) for pid in processes)


def _resident(pid: str) -> int:
    """With what the kernel keeps for it: the page tables of a large mapping are more than its pages."""
    total = 0
    for line in _look(pid, "status").splitlines():
        if line.startswith((b"VmRSS:", b"VmPTE:", b"VmSwap:")):
            total += int(line.split()[1]) * 1024
    return total


def _proportional(pid: str) -> int:
    """A page shared by n processes counts 1/n for each."""
    resident = _resident(pid)
    for line in _look(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Rss:"):
            resident -= int(line.split()[1]) * 1024
        elif line.startswith(b"Pss:"):
            return resident + int(line.split()[1]) * 1024
    return resident  # it has hidden itself from us: then all of it counts
