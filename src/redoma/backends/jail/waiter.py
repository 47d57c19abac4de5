"""Somebody who waits for a cell."""

from __future__ import annotations

import asyncio
import time

from ...lib.errors import RedomaError
from .cell import Cell, Spec


class Waiter:
    """Somebody in the queue: where to deliver, from another thread."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.since = time.monotonic()
        self.cell: Cell | None = None
        """Its cell, from the moment that it has left the queue: until its future is awaited, this is all that knows."""
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Cell] = self._loop.create_future()

    def settle(self, outcome: Cell | RedomaError) -> bool:
        def on_its_loop() -> None:
            if self.future.done():
                return  # cancelled meanwhile
            if isinstance(outcome, RedomaError):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

        try:
            self._loop.call_soon_threadsafe(on_its_loop)
        except RuntimeError:  # its loop has been closed
            return False
        return True
