"""The image that copies of a session are made from, seen from outside: a file in memory that the session's own Python
writes itself to, and that nobody can change once it is whole.

What is in it is the session's code's to say, and is read in the cells of the copies alone. Outside, it is a number of
bytes that is bounded before the first is written.
"""

from __future__ import annotations

import fcntl
import os

from ..lib.errors import BackendError
from .channel import Channel

_PATIENCE = 120.0  # seconds to write a large one on a machine that is very busy
_SEALED = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Image:
    """One of a session that lives: `take` it, open it for each copy, `close` it. The copies keep what they use."""

    def __init__(self, memory: int) -> None:
        # Pages that are written count as the parent's, whose own are as many: more would not fit into its limit.
        self._most = memory // 2 // 4096 * 4096
        try:
            self._file = os.memfd_create("redoma-session", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise BackendError("the session can't be forked", why=str(error), next="close some files") from error
        os.ftruncate(self._file, self._most)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        self.size = 0
        """Where the memory ends, and the rest begins; as the session says."""

    async def take(self, channel: Channel) -> None:
        """Have the session write itself. Raises `BackendError` if it can't be copied as it is."""
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
        """A descriptor of it for one copy, which shares neither its position nor its flags with others."""
        return os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if (file := self._file) >= 0:
            self._file = -1
            os.close(file)
