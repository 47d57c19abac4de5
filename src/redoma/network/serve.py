"""Start the proxy of a request, for a backend that has the listening socket of its cell.

All proxies share an event loop in a thread of its own, so that a run with many connections does not block the event
loop of its caller, which starts and ends other runs. The thread ends with the last proxy.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from ..lib.errors import BackendUnavailable
from ..lib.extras import pip_install
from ..models import Request
from ..models.network import HostRule, placeholder

if TYPE_CHECKING:
    from .authority import Authority
    from .proxy import Proxy

_MAX_SHOWN = 5


@asynccontextmanager
async def opened(
    request: Request, listener: socket.socket, authority: Callable[[], Authority], *, place: str = "/run"
) -> AsyncIterator[Proxy]:
    """Serve `listener` with the proxy of a request, and close every connection at the end. `place` is the directory in
    the cell for its files. Raises `BackendUnavailable` if the packages it needs are not installed."""
    proxy = _made(request, listener, authority, place)
    with _event_loop() as loop:
        await _on(loop, proxy.__aenter__())
        try:
            yield proxy
        finally:
            closing = asyncio.ensure_future(_on(loop, proxy.__aexit__()))
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:  # a run that is cancelled leaves no connection behind either
                await closing
                raise


def _made(request: Request, listener: socket.socket, authority: Callable[[], Authority], place: str) -> Proxy:
    try:
        from .credentials import Credentials, Held
        from .proxy import Proxy
    except ImportError as error:
        listener.close()
        raise BackendUnavailable(
            "named hosts can't be reached", why=str(error), next=pip_install("redoma[network]")
        ) from None
    held = [
        Held(name, request.secrets.get(name, ""), placeholder(request.id, name), use)
        for name, use in request.held.items()
    ]
    return Proxy(
        listener,
        request.network,
        credentials=Credentials(held),
        authority=functools.cache(authority),  # the one that the guest was told to trust, for as long as it runs
        max_bytes=request.limits.network_bytes,
        max_connections=request.limits.connections,
        place=place,
    )


def promise(rules: tuple[HostRule, ...]) -> str:
    """Describe the layer `hosts` for the result."""
    shown = ", ".join(map(str, rules[:_MAX_SHOWN])) + (" and more" if len(rules) > _MAX_SHOWN else "")
    return f"reached only through a proxy outside, which permits {shown}"


# --- the thread of all proxies ---


class _Thread:
    """An event loop in a thread of its own. It ends with its last user."""

    def __init__(self) -> None:
        self.pid, self.users = os.getpid(), 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="redoma-network", daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _run(self) -> None:
        self.loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._end.wait()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._end.set)


_lock = threading.Lock()
_current: _Thread | None = None
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Thread()
        used = _current
        used.users += 1
    try:
        yield used.loop
    finally:
        with _lock:
            used.users -= 1
            if not used.users:
                used.end()
                _current = None if _current is used else _current


async def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine on the event loop of the proxies, and wait for it."""
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
