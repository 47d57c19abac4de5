"""The image that copies of a session are made from: a file in memory to which the session's Python writes itself, and
which is sealed when it is complete.

Its content is chosen by the session's code, so it is read only inside the cells of the copies. Here it is just a file
whose size is bounded in advance.
"""

from __future__ import annotations

import fcntl
import os

from ..lib.errors import BackendError
from .channel import Channel

_PATIENCE = 120.0  # seconds to write a large one on a machine that is very busy
_SEALED = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Image:
    """An image of an open session: `take` it, open it for each copy, `close` it. Copies keep what they use of it."""

    def __init__(self, memory: int) -> None:
        # Written pages are charged to the parent, whose own memory is as large: more would exceed its limit.
        self._most = memory // 2 // 4096 * 4096
        try:
            self._file = os.memfd_create("redoma-session", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise BackendError("the session can't be forked", why=str(error), next="close some files") from error
        os.ftruncate(self._file, self._most)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        self.size = 0
        """The offset at which the memory ends and the rest begins, as the session reports it."""

    async def take(self, channel: Channel) -> None:
        """Let the session write itself. Raises `BackendError` if it can't be copied."""
        answer, _ = await channel.ask({"do": "fork", "most": self._most}, descriptor=self._file, patience=_PATIENCE)
        if answer.errno is not None:
            why = answer.error[:1000] or "it does not say why"
            raise BackendError("the session can't be forked", why=why, next="see docs/sessions.md#copies")
        try:
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALED)
        except OSError as error:  # the session has it mapped, and could change what its copies see
            raise BackendError(
                "the session can't be forked", why="something in it still writes to its image", next="open another"
            ) from error
        self.size = answer.size

    def opened(self) -> int:
        """Return a descriptor for one copy, with its own position and flags."""
        return os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if (file := self._file) >= 0:
            self._file = -1
            os.close(file)
