"""Start a process of our own: an interpreter with an empty environment, no descriptors of ours, and a private socket.

It imports very little, so that the command line can start the interpreter of a zygote before it imports the rest of
Redoma.
"""

from __future__ import annotations

import _signal
import _socket
import fcntl
import os
import select
import sys

SOCKET, PARENT = 3, 4
"""Its descriptors: the control socket (packets), and a pidfd of this process. The first three are /dev/null."""
_PRELUDE = "import os, sys; os.chdir('/'); os.closerange(5, 1 << 16); "


def spawn(code: str, *arguments: str) -> tuple[int, int]:
    """Start an interpreter that runs `code`, in a session of its own. Returns its process id and our end of the socket.
    Raises OSError.
    """
    near, far = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours = near.detach()
    theirs = [far.detach()]
    try:
        theirs.append(os.pidfd_open(os.getpid()))
        for place, number in enumerate(theirs):  # low numbers may be taken by the other one
            theirs[place] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
            os.close(number)
        nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        moved = [(os.POSIX_SPAWN_DUP2, *pair) for pair in zip(theirs, (SOCKET, PARENT), strict=True)]
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-B", "-c", _PRELUDE + code, *arguments],
            {},  # the environment of an exec stays readable in /proc for ever
            file_actions=[*nowhere, *moved],
            setsid=True,  # a Ctrl-C at our terminal is for us to handle
            setsigdef=(_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        for number in theirs:
            os.close(number)
    return pid, ours


class Child:
    """A process that `spawn` started: waits for its end, and reaps it."""

    def __init__(self, pid: int) -> None:
        self.pid, self._handle = pid, os.pidfd_open(pid)

    def end(self, milliseconds: int, *, reap: bool = True) -> None:
        """Wait for its end, which it was asked for; kill it after this time. Without `reap`, don't wait after that: a
        thread does, in case this process goes on.
        """
        if not self.has_ended(milliseconds):
            try:  # noqa: SIM105 - without contextlib
                _signal.pidfd_send_signal(self._handle, _signal.SIGKILL)
            except ProcessLookupError:
                pass
            if reap:
                self.has_ended(None)
            else:
                import threading

                threading.Thread(target=_reap, args=(self.pid,), daemon=True).start()
        os.close(self._handle)

    def has_ended(self, milliseconds: int | None) -> bool:
        """Wait for its end, at most this long (None: no limit), and reap it. Returns whether it has ended."""
        watch = select.poll()
        watch.register(self._handle, select.POLLIN)
        if not watch.poll(milliseconds):
            return False
        _reap(self.pid)
        return True

    def forget(self) -> None:
        """In a forked process: close our copy of the descriptor."""
        os.close(self._handle)


def _reap(pid: int) -> None:
    try:  # noqa: SIM105 - without contextlib
        os.waitpid(pid, 0)
    except ChildProcessError:  # the application reaps or ignores all its children
        pass
