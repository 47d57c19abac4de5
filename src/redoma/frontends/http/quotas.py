"""How much a key may do at one time and in a second, and who gets the next slot."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from .bodies import Mode
from .keys import Key
from .problems import too_many

if TYPE_CHECKING:
    from ...config import ServerConfig

_MAX_HELD = 8
"""The runs of one key that wait may together be this many times as large as `server.max_body`."""


class Quota:
    """How much of its rate and concurrency a key has used."""

    def __init__(self, key: Key, places: int) -> None:
        self.concurrency = key.concurrency
        self.slots = asyncio.Semaphore(key.concurrency)
        self.places = asyncio.Semaphore(places)
        """The part of the slots shared by all keys that this key may take."""
        self.active = 0
        self._tokens, self._at = _burst(key.rate), time.monotonic()

    def take(self, rate: float) -> float:
        """Count one request against the rate. Return 0, or the seconds until the next request is allowed."""
        now = time.monotonic()
        self._tokens = min(_burst(rate), self._tokens + (now - self._at) * rate)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class Ticket:
    """A run that waits for a slot."""

    def __init__(self, tickets: set[Ticket]) -> None:
        self._tickets = tickets
        tickets.add(self)

    def leave(self) -> None:
        """Stop waiting. Calling it twice is safe."""
        self._tickets.discard(self)


class Quotas:
    """The quotas of all keys, and the slots that they share."""

    def __init__(self, settings: ServerConfig) -> None:
        self._settings = settings
        self.running = settings.running or 4 * (os.cpu_count() or 1)
        """Number of slots: runs that may be under way at one time."""
        self._tickets: set[Ticket] = set()
        self._slots = asyncio.Semaphore(self.running)
        self._quotas: dict[str, Quota] = {}

    @property
    def waiting(self) -> int:
        """Number of runs that wait for a slot."""
        return len(self._tickets)

    def enqueue(self) -> Ticket:
        """Count a run as waiting from now on: until `slot` has one for it, or it calls `leave`."""
        return Ticket(self._tickets)

    def of(self, key: Key) -> Quota:
        """Return the quota of a key; a new one if its concurrency has changed."""
        found = self._quotas.get(key.id)
        if found is None or found.concurrency != key.concurrency:
            found = self._quotas[key.id] = Quota(key, _all_but_some(self.running))
        return found

    def take_rate(self, key: Key) -> None:
        """Count a request. Raises `Answered` (429) if the key has sent too many."""
        if seconds := self.of(key).take(key.rate):
            raise too_many(f"this key may send {key.rate:g} requests a second", retry=int(seconds) + 1)

    def admit(self, key: Key, mode: Mode, held: Collection[int]) -> None:
        """Raise `Answered` (429) if the key has too many runs or the queue is full.

        `held` has the sizes of the key's runs that wait, for a slot or for an approval.
        """
        if mode != "async" and self.of(key).active >= key.concurrency:
            raise too_many(f"this key may have {key.concurrency} runs at one time")
        if self.waiting >= self._settings.queue:
            raise too_many(f"{self.waiting} runs wait already", retry=2)
        if len(held) >= _all_but_some(self._settings.queue):
            raise too_many(f"{len(held)} runs of this key wait already, for their turn or for a person", retry=2)
        if sum(held) > _MAX_HELD * self._settings.max_body:
            raise too_many("the runs of this key that wait are too large together", retry=2)

    @asynccontextmanager
    async def slot(self, key: Key, ticket: Ticket, *, shared: bool = True) -> AsyncIterator[None]:
        """Wait for a slot and hold it. With `shared=False`, it counts only against the key's own concurrency."""
        quota = self.of(key)
        places = (quota.places, self._slots) if shared else (nullcontext(), nullcontext())
        quota.active += 1
        try:
            async with quota.slots, places[0], places[1]:
                ticket.leave()
                yield
        finally:
            ticket.leave()
            quota.active -= 1


def _burst(rate: float) -> float:
    """Return how many requests a key may send at once."""
    return max(2 * rate, 1.0)


def _all_but_some(places: int) -> int:
    """Return how many of the shared slots one key may take: a tenth (one, if there are 4 to 9) stays for other keys."""
    return places - max(places // 10, int(places > 3))
