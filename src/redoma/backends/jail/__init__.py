"""The jail: a fresh, single-use, fully isolated CPython, Bash or command. No root, no daemon.

Theory of operation
-------------------

    parent ──socket──▶ zygote (its own root, clean environment, warm interpreter, one thread, a user namespace U)
      │                  └─clone─▶ maker: new pid, mount, net, ipc and uts namespaces of U. Mounts, forks the guest,
      │                     │      and executes init: pid 1 of the cell, no Python. Watches, ends, reports
      ├──control socket─────┘         └─fork─▶ guest: a user namespace below U; the code that nobody has reviewed
      └──order socket (closed before any of that code runs), stdin, stdout, stderr ──┘

- `configuration` shows the whole of it as data: who the guest is, what it finds, what it is promised. `seccomp` has the
  system calls.
- `root` runs once: it builds a root directory from nothing, moves into it, gives up root if it had it, and executes
  the zygote there with an environment that says nothing of the host. Whatever is forked from the zygote has never
  shared memory with a process that knew a secret.
- `zygote` loads what guests will need, then waits for orders in c/cell.c, which makes one cell for each.
- c/cell.c is the list of steps that make a cell, each named by the layer that it puts up, and the look from inside,
  with the guest's own rights, at what is really in force; `found` has that in words.
- c/views.h gives each cell overlays of its own over the files that it may only read: no other living cell has these.
- c/init.c is the only judge: the status of a run is what `wait` told it. It can be neither traced nor signalled by the
  guest, and when it ends, by whatever cause, the kernel ends everything else in the cell.
- `guest` waits, armed, for an order; closes the socket it came by; and becomes the program.
- `protocol` is the boundary: what comes back is bounded and checked there, never unpickled; values by `value`. Files
  and `changes` to a project are read through a directory descriptor when everything in the cell is dead.
- `pool` keeps cells armed ahead of time. Each is used once. `run` takes one through a request.

A cell dies with any of: its init, the zygote, the parent, or the control socket.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .backend import JailBackend

__all__ = ["JailBackend"]


def __getattr__(name: str) -> Any:
    # Lazily: the zygote imports this package in a bare interpreter, where the backend's own imports don't exist.
    if name == "JailBackend":
        from .backend import JailBackend

        return JailBackend
    raise AttributeError(name)
