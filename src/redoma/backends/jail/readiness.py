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
        self._all: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Readiness] = weakref.WeakKeyDictionary()

    def here(self, loop: asyncio.AbstractEventLoop) -> Readiness:
        """Return that of the running event loop."""
        found = self._all.get(loop)
        if found is None:
            found = self._all[loop] = Readiness(loop)
        return found

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close that of the running event loop, unless a run still waits to hear of its end."""
        found = self._all.get(loop)
        if found is not None and found.close(loop):
            del self._all[loop]
