"""An environment on its way to another machine: packed into a stream of bytes here, unpacked and verified there.

The stream is a tar archive of regular files. The digest of an environment covers their paths, contents and whether they
can be executed, so whoever unpacks one knows that it is whole and the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from ..lib import files
from ..lib.errors import EnvironmentProblem
from .install import LIMITS
from .store import Environment, Store, this_python

_CHUNK = 4 << 20
_BLOCK = 512
_NAME = "cluster-"
"""The beginning of names of environments that were sent here."""


def packed(store: Store, digest: str) -> Iterator[bytes]:
    """Yield the files of an environment as an archive, in pieces of a few megabytes. Raises `OSError` if one can't be
    read. Nobody removes them meanwhile."""
    root = store.path(digest)
    with files.closing(os.open(root, files.OPEN_DIRECTORY)) as held:
        files.lock(held, shared=True, seconds=60.0)
        buffer = bytearray()
        for directory, names, leaves in os.walk(root):
            names.sort()
            for name in sorted(leaves):
                path = Path(directory, name)
                about = path.stat(follow_symlinks=False)
                info = tarfile.TarInfo(str(path.relative_to(root)))
                info.size, info.mode = about.st_size, about.st_mode & 0o777
                buffer += info.tobuf(tarfile.PAX_FORMAT)
                with open(path, "rb") as file:
                    left = info.size
                    while piece := file.read(min(left, _CHUNK)):
                        left -= len(piece)
                        buffer += piece
                        if len(buffer) >= _CHUNK:
                            yield bytes(buffer)
                            buffer.clear()
                if left:
                    raise OSError(f"{path} has changed while it was read")
                buffer += bytes(-info.size % _BLOCK)
        yield bytes(buffer) + bytes(2 * _BLOCK)


class Arrival:
    """An environment that is being received: `write` its pieces, `finish` it, and `close` it in any case."""

    def __init__(self, store: Store, digest: str) -> None:
        """Raises `EnvironmentProblem` if another process is receiving the same, or nothing can be written here."""
        self._store, self._digest = store, digest
        self._name = _NAME + digest[:16]
        with contextlib.ExitStack() as stack:
            stack.enter_context(store.changing(self._name, wait=False))
            self._new = stack.enter_context(store.new())
            self._file = stack.enter_context(open(self._new.stage / "packed", "w+b"))
            self._held = stack.pop_all()

    def write(self, data: bytes) -> None:
        """Take the next piece. Raises `EnvironmentProblem`."""
        if self._file.tell() + len(data) > LIMITS.disk:
            raise self._unusable(f"it is larger than {LIMITS.disk >> 30} GiB")
        try:
            self._file.write(data)
        except OSError as error:
            raise self._unusable(files.reason(error)) from error

    def finish(self) -> None:
        """Unpack and verify it, and keep it under a name. Slow. Raises `EnvironmentProblem`."""
        try:
            self._file.seek(0)
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                for number, member in enumerate(archive):
                    self._take(archive, member, f"f{number}")
            kept = self._new.keep()
        except (tarfile.TarError, OSError) as error:  # a full disk, too
            raise self._unusable(str(error)) from error
        if kept != self._digest:
            self._new.let_go()
            self._store.tidy()  # no record names them
            raise self._unusable("its files are not those of its digest")
        self._store.put(
            Environment(
                name=self._name,
                requirements=(),
                python=this_python(),
                digest=self._digest,
                files=self._new.count,
                size=self._new.size,
                created=datetime.now(UTC),
            )
        )

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo, blob: str) -> None:
        path = PurePosixPath(member.name)
        source = archive.extractfile(member) if member.isreg() else None
        if source is None or path.is_absolute() or ".." in path.parts or not path.parts:
            raise self._unusable(f"{ascii(member.name)[:200]} is not a file below it")
        hashed = hashlib.sha256()
        with open(self._new.stage / blob, "wb") as target:
            while piece := source.read(1 << 20):
                hashed.update(piece)
                target.write(piece)
        self._new.file(str(path), blob, hashed.hexdigest(), member.size, executable=bool(member.mode & 0o100))

    def close(self) -> None:
        """Remove whatever was not kept."""
        self._held.close()

    def _unusable(self, why: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            "an environment that was sent can't be kept", why=why, next="make it there: redoma env create"
        )
