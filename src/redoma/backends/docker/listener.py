"""A listening socket on a container's own loopback, served from outside: how a container reaches named hosts.

The container keeps its network mode `none`, so nothing depends on what the engine's bridges let through. A thread of
ours enters the container's network namespace, makes the socket, and ends. That needs root on the engine's machine. A
gVisor container has its own network stack, in which no socket of the host can exist.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

from ...lib.errors import BackendUnavailable, Unsupported
from .. import linux
from .container import Container

PORT = 3128
_ELSEWHERE = "use the jail, or run Redoma as root on the machine of the engine"


async def listen(container: Container, *, gvisor: bool) -> socket.socket:
    """Return a socket that listens on the container's loopback. Raises `Unsupported` or `BackendUnavailable` if none
    can be made.
    """
    if gvisor:
        raise Unsupported(
            "named hosts can't be reached from a gVisor container",
            why="its network is gVisor's own, and has no socket that could be served from outside",
            next="use the jail, or another runtime",
        )
    pid = await container.pid()
    try:
        space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreachable(error) from None
    try:
        # A pid can be reused. If the container still runs with this pid now, the namespace opened before was the
        # container's.
        if await container.pid() != pid or os.path.samestat(os.fstat(space), os.stat("/proc/self/ns/net")):
            raise BackendUnavailable(
                "named hosts can't be reached from a container", why="its network can't be found", next=_ELSEWHERE
            )
        return await asyncio.to_thread(_made_in, space)
    finally:
        os.close(space)


def _made_in(space: int) -> socket.socket:
    made: list[socket.socket | OSError] = []
    # A thread of its own, which ends: a pool's thread would stay in the namespace.
    thread = threading.Thread(target=_make, args=(space, made.append), name="redoma-listener")
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise _unreachable(made[0])
    return made[0]


def _make(space: int, found: Callable[[socket.socket | OSError], None]) -> None:
    try:
        linux.enter(space, linux.CLONE_NEWNET)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", PORT))
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
        found(listener)
    except OSError as error:
        found(error)


def _unreachable(error: OSError) -> BackendUnavailable:
    return BackendUnavailable(
        "named hosts can't be reached from a container",
        why=f"its network namespace can't be entered: {error.strerror}",
        next=_ELSEWHERE,
    )
