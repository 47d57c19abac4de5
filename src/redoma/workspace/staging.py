"""Copies of files: contents with their holes, and what else belongs to a file besides its content.

Decisions: a file that is replaced or moved keeps its owner, group, access list and `user.` attributes, and has the time
of the application; one that an undo puts back has its old time, too. A new file gets the owner and group of its
directory if root applies it, else the ones that any new file of ours would get. Capabilities of programs and labels of
security modules belong to a content, so they are never carried over. Default access lists of directories don't count.
"""

from __future__ import annotations

import errno
import hashlib
import os

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


def copy(source: int, target: int) -> str:
    """Copy an open file into an empty one, piece by piece; holes stay holes. Returns the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    size, place = os.fstat(source).st_size, 0
    while place < size:
        start = _seek(source, place, os.SEEK_DATA, size)
        for offset in range(place, start, _CHUNK):
            digest.update(_ZEROS[: start - offset])
        end = _seek(source, start, os.SEEK_HOLE, size) if start < size else size
        place = start
        while place < end:
            piece = os.pread(source, min(_CHUNK, end - place), place)
            if not piece:  # somebody has cut it off: the digest will say so
                return digest.hexdigest()
            digest.update(piece)
            _write(target, piece, place)
            place += len(piece)
    os.ftruncate(target, size)
    return digest.hexdigest()


def _seek(number: int, place: int, what: int, end: int) -> int:
    try:
        return min(os.lseek(number, place, what), end)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole from here on
            return end
        raise


def _write(number: int, data: bytes, place: int) -> None:
    """A full disk shows as a short write first; the error comes with the next one."""
    view = memoryview(data)
    while view:
        written = os.pwrite(number, view, place)
        view, place = view[written:], place + written


def copy_attributes(source: int, target: int) -> None:
    """The access list and the user's own attributes, where both file systems know such things."""
    try:
        for name in os.listxattr(source):
            if name.startswith("user.") or name == "system.posix_acl_access":
                os.setxattr(target, name, os.getxattr(source, name))
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise


def copy_times(source: int, target: int) -> None:
    about = os.fstat(source)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
