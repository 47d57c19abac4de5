"""The jail: a fresh, single-use, fully isolated CPython, Bash or command. No root, no daemon.

Theory of operation
-------------------

    parent ──socket──▶ zygote (its own root, clean environment, warm interpreter, one thread)
      │                  └─fork─▶ keeper: new user, pid, mount, net, ipc, uts and cgroup namespaces; then it leaves
      │                             └─fork─▶ init: pid 1 of the cell. Mounts, then watches, ends, reports
      ├──control socket───────────────┘        └─fork─▶ guest: the code that nobody has reviewed
      └──order socket (closed before any of that code runs), stdin, stdout, stderr ──┘

- `configuration` shows the whole of it as data: who the guest is, what it finds, what it is promised. `seccomp` has the
  system calls.
- `root` runs once: it builds a root directory from nothing, moves into it, gives up root if it had it, and executes
  the zygote there with an environment that says nothing of the host. Whatever is forked from the zygote has never
  shared memory with a process that knew a secret.
- `zygote` loads what guests will need, then forks one keeper for every cell it is asked for.
- `setup` is the list of steps that make a cell, each named by the layer that it puts up.
- `init` is the only judge: the status of a run is what `wait` told it. It can be neither traced nor signalled by the
  guest, and when it ends, by whatever cause, the kernel ends everything else in the cell.
- `guest` waits, armed, for an order; closes the socket it came by; and becomes the program.
- `probe` looks, from inside and with the guest's own rights, at what is really in force.
- `protocol` is the boundary: what comes back is bounded and checked there, never unpickled; values by `value`, changes
  to a project by `changes_received`.
- `pool` keeps cells armed ahead of time. Each is used once. `run` takes one through a request.

A cell dies with any of: its init, the zygote, the parent, or the control socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import JailBackend

__all__ = ["JailBackend"]


def __getattr__(name: str) -> Any:
    # Lazily: the zygote imports this package in a bare interpreter, where the backend's own imports don't exist.
    if name == "JailBackend":
        from .backend import JailBackend

        return JailBackend
    raise AttributeError(name)
