"""The file in memory from which copies of a session are made. The session writes itself to it; then it is sealed.

Its content is chosen by the session's code, so it is read only inside the cells of the copies. Here it is just a file
whose size is bounded in advance.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..lib.errors import BackendError

_SEALED = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class MemoryImage:
    """An image of `size` bytes at most, for cells on this machine. Raises `BackendError` if there can be none."""

    def __init__(self, size: int) -> None:
        try:
            self._file = os.memfd_create("redoma-session", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise BackendError("the session can't be forked", why=str(error), next="close some files") from error
        os.ftruncate(self._file, size)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        self._sealed = False

    @property
    def to_write(self) -> int:
        """The descriptor that the session gets."""
        return self._file

    def seal(self) -> None:
        """Let nobody change it any more. Raises `BackendError` if the session still could."""
        if self._sealed:
            return
        try:
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALED)
        except OSError as error:  # the session has it mapped, and could change what its copies see
            raise BackendError(
                "the session can't be forked", why="something in it still writes to its image", next="open another"
            ) from error
        self._sealed = True

    @contextmanager
    def to_read(self) -> Iterator[int]:
        """Open it for one copy: a descriptor with its own position and flags."""
        file = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield file
        finally:
            os.close(file)

    def close(self) -> None:
        """Close it here. Copies keep what they use of it."""
        if (file := self._file) >= 0:
            self._file = -1
            os.close(file)
