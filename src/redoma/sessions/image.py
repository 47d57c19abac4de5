"""Takes an image of an open session, from which copies are made. Where the image is kept is up to the backend."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..backends.base import Backend, Passed
from ..lib.errors import BackendError, Unsupported
from .channel import Channel

_PATIENCE = 120.0  # seconds to write a large one on a machine that is very busy


class SessionImage:
    """An image of a session on this backend: `take` it, open it for each copy, `close` it. Raises `Unsupported` if the
    backend has none, and `BackendError` if there can be no more of them.
    """

    def __init__(self, backend: Backend, memory: int) -> None:
        make = backend.capabilities().image
        if make is None:
            raise Unsupported(
                "the session can't be forked",
                why=f"{backend.name} has no way to copy one",
                next="open it on the jail, or on a cluster whose nodes offer the jail",
            )
        # Written pages are charged to the parent, whose own memory is as large: more would exceed its limit.
        self._most = memory // 2 // 4096 * 4096
        self._image = make(self._most)
        self.size = 0
        """The offset at which the memory ends and the rest begins, as the session reports it."""

    async def take(self, channel: Channel) -> None:
        """Let the session write itself. Raises `BackendError` if it can't be copied."""
        question = {"do": "fork", "most": self._most}
        answer, _ = await channel.ask(question, passed=self._image.to_write, patience=_PATIENCE)
        if answer.errno is not None:
            why = answer.error[:1000] or "it does not say why"
            raise BackendError("the session can't be forked", why=why, next="see docs/sessions.md#copies")
        self._image.seal()
        self.size = answer.size

    def to_read(self) -> AbstractContextManager[Passed]:
        """Open it for one copy, which must have it before it is closed."""
        return self._image.to_read()

    def close(self) -> None:
        self._image.close()
