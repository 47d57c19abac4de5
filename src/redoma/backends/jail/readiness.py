"""Tells runs that their cells have sent something, by one descriptor that stays registered with the event loop.

To register a descriptor with asyncio for each run, and to remove it afterwards, would take a twentieth of a short run.
"""

from __future__ import annotations

import asyncio
import os
import select
import weakref
from collections.abc import Callable


class Readiness:
    """The descriptors that runs on one event loop wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._owner, self._events = os.getpid(), select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._events.fileno(), self._call)

    def follow(self, number: int, callback: Callable[[], None]) -> None:
        """Call back whenever a descriptor is readable."""
        self._events.register(number, select.EPOLLIN)
        self._callbacks[number] = callback

    def leave(self, number: int) -> None:
        """Call back no longer."""
        del self._callbacks[number]
        if self._owner == os.getpid():  # a forked child has a copy of the parent's epoll: it would remove the parent's
            self._events.unregister(number)

    def _call(self) -> None:
        for number, _ in self._events.poll(0):
            if (callback := self._callbacks.get(number)) is not None:  # one of the others may have ended its run
                callback()

    def close(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Let go of the event loop. Returns False, and does nothing, if something is still followed."""
        if self._callbacks:
            return False
        loop.remove_reader(self._events.fileno())
        self._events.close()
        return True


class Readinesses:
    """One `Readiness` for each event loop, made on first use. Goes away with its loop, if it was not closed before."""

    def __init__(self) -> None:
        # Its loop alone keeps it alive. It knows runs, and those know the loop: if it were kept here, a loop that is
        # dropped while something runs would never be collected, and its cells would never be given back.
        self._all: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Readiness]] = (
            weakref.WeakKeyDictionary()
        )

    def here(self, loop: asyncio.AbstractEventLoop) -> Readiness:
        """Return that of the running event loop."""
        found = self._of(loop)
        if found is None:
            found = Readiness(loop)
            self._all[loop] = weakref.ref(found)
        return found

    def _of(self, loop: asyncio.AbstractEventLoop) -> Readiness | None:
        known = self._all.get(loop)
        return known() if known is not None else None

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close that of the running event loop, unless a run still waits to hear of its end."""
        found = self._of(loop)
        if found is not None and found.close(loop):
            del self._all[loop]
