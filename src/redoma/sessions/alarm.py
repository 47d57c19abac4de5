"""The timer that a session uses for the time of its runs, and for its idle time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """A timer that is set again in each run, nearly always long before it is due. So it only notes when it is due: the
    timer of the event loop goes on, and is set again when it fires too early."""

    def __init__(self) -> None:
        self._call: Callable[[], None] | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: float, call: Callable[[], None]) -> None:
        """Call it at this time of the event loop, instead of what was set before."""
        self._due, self._call = due, call
        if self._timer is None or self._timer.when() > due:
            self._start()

    def stop(self) -> None:
        self._call = None

    def close(self) -> None:
        """Stop it, and the timer of the event loop."""
        self._call = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        call = self._call
        if call is None:
            return
        if asyncio.get_running_loop().time() < self._due:
            self._start()
        else:
            self._call = None
            call()
