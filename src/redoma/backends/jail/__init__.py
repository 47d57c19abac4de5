"""The jail: runs Python, Bash or a command in a cell that is isolated by the kernel and used once. No root, no daemon.

Theory of operation
-------------------

    parent ──socket──▶ zygote (its own root, clean environment, warm interpreter, one thread, a user namespace U)
      │                  └─clone─▶ maker: new pid, mount, net, ipc and uts namespaces of U. Mounts, forks the guest,
      │                     │      then executes init: pid 1 of the cell, without Python. Watches, kills, reports
      ├──control socket─────┘         └─fork─▶ guest: in a user namespace below U; runs the untrusted code
      └──order socket (closed before any of that code runs), stdin, stdout, stderr ──┘

In the order in which a run meets them:

1. `root` runs once for each zygote, in a bare interpreter. It builds a root directory from nothing, moves into it,
   gives up root if it had it, and executes the zygote there with an environment that contains nothing of the host. So
   no process forked from the zygote has ever shared memory with one that knew a secret.
2. `zygote` imports what guests will need, then waits for orders in c/cell.c, which makes one cell for each order.
3. c/cell.c is the list of steps that make a cell. Each step sets up one isolation layer and has its name. Afterwards
   the guest probes (c/probes.h), from inside and with its own rights, which layers are really in force; `found`
   describes the answer. A cell in which a step failed, or a required layer is missing, runs nothing. c/views.h gives
   each cell its own overlays over the files that it may only read, so that cells don't share locks.
4. `pool` makes cells ahead of time, so a run finds one armed. A cell is used once.
5. `run` takes one request through one cell. `guest`, inside, receives the order and prepares; at the word to start,
   which comes when the run is on record, it closes the socket and becomes the program.
6. c/init.c decides how a run ended: the status is what `wait` returned to it. The guest can neither trace nor signal
   it. When it ends, for whatever reason, the kernel kills everything else in the cell.
7. `protocol` is the trust boundary. What comes back is bounded and checked there and never unpickled; values go through
   `value`. Output files and `changes` to a project are read through a directory descriptor once everything in the cell
   is dead.

`configuration` shows all settings of a cell as data: who the guest is, what it sees, where it may write, and which
layers it is promised. `seccomp` lists the system calls that it may make.

A cell dies with any of these: its init, the zygote, the parent, or the control socket.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .backend import JailBackend

__all__ = ["JailBackend"]


def __getattr__(name: str) -> Any:
    # Imported lazily: the zygote imports this package in a bare interpreter, which can't import the backend.
    if name == "JailBackend":
        from .backend import JailBackend

        return JailBackend
    raise AttributeError(name)
