"""Environments that clients send to a node that doesn't have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ...lib.errors import BackendError, RedomaError
from ...telemetry import WARNING, tell


class Arrival(Protocol):
    """An environment that is being received: see `environments.transfer.Arrival`."""

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """Unpack, verify and keep it. Slow. Raises `RedomaError`."""

    def close(self) -> None: ...


class ClientGone(BackendError):
    """The client that sent an environment is gone. Another one that needs it can send it."""


class _Arriving:
    """An environment that a client sends. Runs that need it wait for `kept`, which raises `RedomaError` if it fails."""

    def __init__(self, sender: object, arrival: Arrival) -> None:
        self.sender, self._arrival = sender, arrival
        self.kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finishing: asyncio.Task[None] | None = None

    @property
    def _complete(self) -> bool:
        """Whether it has arrived or failed, so that further pieces are ignored. A client sends an environment twice if
        the node said that it doesn't have it just before the first one arrived."""
        return self._finishing is not None or self.kept.done()

    @property
    def failed(self) -> bool:
        return self.kept.done() and self.kept.exception() is not None

    def take(self, data: bytes) -> bool:
        """Take the next piece. Returns whether more is wanted."""
        if not self._complete:
            try:
                self._arrival.write(data)
            except RedomaError as error:
                self.fail(error)
        return not self._complete

    def end(self, *, whole: bool) -> None:
        """No more follows; `whole` if everything was sent."""
        if self._complete:
            return
        if whole:
            self._finishing = asyncio.create_task(self._finish())
        else:
            self.fail(BackendError("an environment was not sent to its end", why="it can't be read"))

    async def _finish(self) -> None:
        try:
            await asyncio.to_thread(self._arrival.finish)
        except RedomaError as error:
            self.fail(error)
        except Exception as error:  # a bug: its runs must hear of it, and not wait for ever
            self.fail(BackendError("an environment can't be kept", why=f"{type(error).__name__}: {error}"))
        else:
            self._arrival.close()
            self.kept.set_result(None)

    def fail(self, error: RedomaError) -> None:
        self._arrival.close()
        self.kept.set_exception(error)
        self.kept.exception()  # else asyncio would log it as never retrieved if no run waits

    async def drop(self) -> None:
        """Fail it because its client is gone, unless all of it has arrived."""
        if self._finishing is not None:
            await self._finishing
        if not self.kept.done():
            self.fail(ClientGone("an environment was not sent to its end", why="its client is gone"))


class Arrivals:
    """All environments that are being sent to a node, by digest.

    `here` returns the digests of those that it has; `receive` begins to receive another one, and is None if the node
    takes none. A sender is whatever stands for a client.
    """

    def __init__(self, here: Callable[[], frozenset[str]], receive: Callable[[str], Arrival] | None) -> None:
        self._here, self._receive = here, receive
        self._arriving: dict[str, _Arriving] = {}
        self._ignored: set[tuple[object, str]] = set()
        """Senders, and environments of which the rest is ignored, until their end."""

    def expects(self, digest: str) -> bool:
        """Whether the environment is here, is on its way, or could not be kept: then `wait_for` says why."""
        return self._find(digest) is not None or digest in self._here()

    def _find(self, digest: str) -> _Arriving | None:
        """Return the environment if it is on its way, or could not be kept; None if it is here, or nobody sends it."""
        arriving = self._arriving.get(digest)
        if arriving is not None and arriving.kept.done() and not arriving.failed:
            del self._arriving[digest]
            return None
        return arriving

    def take(self, sender: object, digest: str, data: bytes) -> None:
        """Take the next piece of an environment."""
        if (sender, digest) in self._ignored:
            return
        arriving = self._find(digest)
        if (arriving is None or arriving.failed) and self._receive is not None and digest not in self._here():
            try:
                arriving = self._arriving[digest] = _Arriving(sender, self._receive(digest))
            except RedomaError as error:
                tell(WARNING, "cluster.environment", digest=digest, why=str(error))  # its run is told so
        # Another client may send the same, or it failed: what follows must not be taken for its beginning.
        if arriving is None or arriving.sender is not sender or not arriving.take(data):
            self._ignored.add((sender, digest))

    def end(self, sender: object, digest: str, *, whole: bool) -> None:
        """No more pieces follow; `whole` if all were sent."""
        arriving = self._arriving.get(digest)
        if (sender, digest) in self._ignored:
            self._ignored.discard((sender, digest))
        elif arriving is not None and arriving.sender is sender:
            arriving.end(whole=whole)
            if not whole and arriving.failed:
                del self._arriving[digest]

    async def wait_for(self, digest: str) -> None:
        """If the environment is on its way, wait until it is kept. Raises `RedomaError` if it fails, `ClientGone` if
        another client can send it."""
        arriving = self._find(digest)
        if arriving is None:
            return
        try:
            await asyncio.shield(arriving.kept)
        finally:
            if arriving.kept.done():
                self._forget(digest, arriving)

    async def drop(self, sender: object) -> None:
        """Give up what a client has not sent to its end: it is gone."""
        for digest, arriving in list(self._arriving.items()):
            if arriving.sender is sender:
                await arriving.drop()
                self._forget(digest, arriving)
        self._ignored = {each for each in self._ignored if each[0] is not sender}

    def _forget(self, digest: str, arriving: _Arriving) -> None:
        if self._arriving.get(digest) is arriving:  # else another client has begun to send it again
            del self._arriving[digest]
