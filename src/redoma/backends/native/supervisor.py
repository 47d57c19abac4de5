"""The process between Redoma and a native command: it starts it, watches it, and leaves nothing of it alive.

    Redoma ──socket──▶ supervisor (a bare interpreter, adopts orphans) ──fork──▶ command ──▶ its children …

Why a process of its own: only a parent can adopt descendants that detach themselves (double fork, setsid), learn the
true exit status and resource usage, and set limits without `preexec_fn`, which may deadlock in a threaded program.
The socket is the leash. Redoma closing it, or dying in whatever way, reads as end of file here, and everything is
killed. So is everything when the command itself has ended: a run leaves no process behind. Until then every byte that
comes along the leash is the number of a signal for the command: only we know whether its process id is still its own.

It runs in an isolated interpreter without site-packages: it imports the standard library, `linux` and
`scratch` alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from redoma.backends import linux

_SAMPLE_SECONDS = 0.02  # how often the whole tree of processes is looked at
_SOURCE_FD = 3
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    leash, source = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        sys.exit("this kernel does not list children in /proc (CONFIG_PROC_CHILDREN): nothing could be cleaned up")
    linux.adopt_orphans()
    linux.hide_from_peers()
    order = json.loads(_read_line(leash))
    report = supervise(order, leash, source)
    kill_descendants()
    try:
        leash.sendall(json.dumps(report).encode() + b"\n")
    except OSError:
        # Redoma is gone: there is nobody left to tell, or to clean up after the run.
        from pathlib import Path  # only now: these would cost every run their imports

        from redoma.lib.files import remove_tree

        remove_tree(Path(order["scratch"]))


def supervise(order: dict[str, Any], leash: socket.socket, source: int) -> dict[str, Any]:
    """Run the command to its end, or until the leash is cut or the tree of its processes uses too much."""
    broken, pid = start(order, leash, source)
    if broken:
        os.waitpid(pid, 0)
        return json.loads(broken)  # type: ignore[no-any-return]
    ended, watch, cause, peak, cpu = os.pidfd_open(pid), select.poll(), "", 0, 0.0
    watch.register(ended, select.POLLIN)
    watch.register(leash, select.POLLIN)
    next_look = time.monotonic() + _SAMPLE_SECONDS
    while not cause:
        ready = [number for number, _ in watch.poll(_SAMPLE_SECONDS * 1000)]
        if ended in ready:
            break
        if ready and not pass_on(leash, pid):
            cause = "leash"
            break
        if time.monotonic() < next_look:  # not "when nothing came": signals without end would switch the limits off
            continue
        next_look = time.monotonic() + _SAMPLE_SECONDS
        tree = descendants()
        peak = max(peak, used := memory_of(tree, order["memory"]))
        cpu = max(cpu, sum(_processor_time(pid) for pid in tree))
        over = {
            "memory": used > order["memory"],
            "processes": len(tree) > order["processes"],
            "cpu": cpu > order["cpu"],
        }
        cause = next((limit for limit, broken in over.items() if broken), "")
    if cause:
        os.killpg(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    _, status, usage = os.wait4(pid, 0)
    peak = max(peak, usage.ru_maxrss * 1024)
    if not cause and status != 0 and peak > order["memory"]:
        cause = "memory"  # it failed between two looks, with more in its hands than it may have
    return {"status": status, "cause": cause, "cpu": max(cpu, usage.ru_utime + usage.ru_stime), "memory": peak}


def pass_on(leash: socket.socket, pid: int) -> bool:
    """The next signal, to the command itself, which has not been reaped. False when the leash was cut."""
    try:
        number = leash.recv(1)
        if number:
            os.kill(pid, number[0])
    except PermissionError:
        return True  # it has become another user's since, as sudo does: out of our hands
    except OSError:
        return False
    return bool(number)


def start(order: dict[str, Any], leash: socket.socket, source: int) -> tuple[str, int]:
    """Fork the command. Returns why it could not be started (JSON), or an empty string, and its process id."""
    told, tell = os.pipe()  # both close on exec: end of file means that the command has started
    held, let_go = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(let_go)
        os.read(held, 1)
        become(order, source, tell, parent)
    leash.sendall(b"%d\n" % pid)  # the group to end if somebody ends us first: told before it can do that itself
    os.close(let_go)
    os.close(held)
    for fd in (tell, source, 0, 1, 2):
        os.close(fd)  # the standard ones too, or Redoma would never see the end of the output
    with os.fdopen(told, "rb") as pipe:
        return pipe.read().decode("utf-8", "replace"), pid


def become(order: dict[str, Any], source: int, tell: int, parent: int) -> NoReturn:
    """In the child: session, directory, descriptors, limits, and then the command itself."""
    ours, step = True, "prepare the run"
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked to die with it
            os._exit(127)
        os.setsid()
        # Out of the way first: any of them may already sit where another has to go.
        source = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 10)
        tell = fcntl.fcntl(tell, fcntl.F_DUPFD_CLOEXEC, 10)
        os.closerange(3, min(source, tell))
        os.closerange(max(source, tell) + 1, 1 << 16)
        if order["source"]:
            os.dup2(source, _SOURCE_FD, inheritable=True)
        # Exec passes on what is ignored and what is blocked: some by Python, others by who started Redoma (nohup).
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        ours, step = False, f"enter {order['cwd']}"
        os.chdir(order["cwd"])
        ours, step = True, "set its limits"
        for name, value in order["rlimits"].items():
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (bound, bound))
        ours, step = False, f"start {order['argv'][0]}"
        os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606 - without a shell is the point
    except Exception as error:  # whatever it is has to reach Redoma: there is no stack above us to raise to
        why = error.strerror if isinstance(error, OSError) else repr(error)
        os.write(tell, json.dumps({"broken": f"{step}: {why}", "ours": ours}).encode())
    os._exit(127)


def kill_descendants() -> None:
    """Kill until there is no child left. Orphans become our children, so the loop reaches every generation."""
    while True:
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)  # a child of ours that we have not reaped: the number is still its own
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
        except ChildProcessError:
            return


def children_of(pid: int) -> list[int]:
    """The children of every thread of a process. A process that has ended since has none."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def descendants() -> list[int]:
    tree, todo = [], children_of(os.getpid())
    while todo:
        pid = todo.pop()
        tree.append(pid)
        todo.extend(children_of(pid))
    return tree


def memory_of(tree: list[int], limit: int) -> int:
    """Bytes of memory of all of them. Cheap sums first; shared pages are told apart only when it matters."""
    resident = sum(_resident(pid) for pid in tree)
    return resident if resident <= limit else sum(_proportional(pid) for pid in tree)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0  # it has ended since


def _processor_time(pid: int) -> float:
    """Seconds of a process and of the children it has waited for; one whose parent never waits is still in the tree.

    A parent is looked at before its children, so a child that ends in between is missed once, never counted twice.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) / _TICKS
    except OSError:
        return 0.0  # it has ended since


def _proportional(pid: int) -> int:
    """A page shared by n processes counts 1/n for each: eight forks of one parent are not eight times its size."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return _resident(pid)


def _read_line(leash: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = leash.recv(1 << 16)
        if not chunk:
            sys.exit(1)  # Redoma went away before it said what to run
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    main()
