"""Copies of files: contents with their holes, and a file's metadata.

Decisions: a file that is replaced or moved keeps its owner, group, access list and `user.` attributes, and its time is
that of the change; a file that an undo restores also gets its old time back. A new file gets the owner and group of its
directory if root applies it; otherwise the defaults of a new file. File capabilities and labels of security modules are
never copied, because they were given to one particular content.
"""

from __future__ import annotations

import errno
import hashlib
import os

from ..lib.files import write_all

CHUNK = 1 << 20


def digest_of(fd: int) -> str:
    """Return the SHA-256 of an open file, from its beginning."""
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy(source: int, target: int) -> str:
    """Copy an open file into an empty one that is open for reading and writing. Returns the SHA-256 of the copy."""
    size = os.fstat(source).st_size
    copy_range(source, 0, target, 0, size)
    os.ftruncate(target, size)  # the file may end in a hole
    return digest_of(target)


def copy_range(source: int, begin: int, target: int, at: int, size: int) -> None:
    """Copy a part of a file into another; holes stay holes. Stops if the source ends early, because it was
    truncated.
    """
    done = 0
    while done < size:
        try:
            data = os.lseek(source, begin + done, os.SEEK_DATA) - begin
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole from here on
                return
            raise
        end = min(os.lseek(source, begin + data, os.SEEK_HOLE) - begin, size)
        done = data
        while done < end:
            count = _copy_some(source, begin + done, target, at + done, min(end - done, 64 * CHUNK))
            if not count:
                return
            done += count


def _copy_some(source: int, begin: int, target: int, at: int, count: int) -> int:
    try:
        if copied := os.copy_file_range(source, target, count, begin, at):
            return copied
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    piece = os.pread(source, min(count, CHUNK), begin)
    write_all(target, piece, at)
    return len(piece)


def attributes(of: int | str) -> dict[str, bytes]:
    """Return the extended attributes that belong to a file's owner: `user.` ones and access lists. Empty if the file
    system doesn't support them.
    """
    try:
        names = os.listxattr(of)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise
    return {name: os.getxattr(of, name) for name in names if name.startswith(("user.", "system.posix_acl_"))}


def copy_attributes(source: int, target: int) -> None:
    """Copy the attributes of one open file to another, if both file systems support them."""
    try:
        for name, value in attributes(source).items():
            os.setxattr(target, name, value)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise


def copy_times(source: int, target: int) -> None:
    """Copy the times of one open file to another."""
    about = os.fstat(source)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
