"""Replaces one file as a whole: writes a temporary file, validates it and renames it.

A reader of the path finds either the old or the new content, even if the writer is killed. The temporary file is in the
same directory, since a rename works only within one file system. It isn't an unnamed file (`O_TMPFILE`), because that
can't replace an existing one without getting a name first. Its writer holds a lock on it, so an unlocked one was left
by a crash.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from ..lib import files
from ..lib.errors import NotWritten, RedomaError
from .copying import attributes

_MARK = ".redoma-"
_MAX_NAME = 255
_ADVICE = {
    errno.ENOENT: "make the directory first",
    errno.ENOTDIR: "name a file in a directory",
    errno.EBUSY: "unmount what is mounted there",
}


def atomic_write(
    path: str | os.PathLike[str],
    data: bytes | str,
    *,
    validate: Callable[[Path], object] | None = None,
    mode: int | None = None,
) -> None:
    """Replace the content of a file, or create it: completely, or not at all, raising `NotWritten`.

    `validate` is called with the path of the complete temporary file, which has the suffix of `path`. The file is
    replaced only if `validate` returns a true value; if it raises or returns anything else, nothing changes.

    Mode, owner, access lists and `user.` attributes of an existing file are kept; `mode` sets another mode. A symbolic
    link is refused, neither followed nor replaced. Text is written as UTF-8.

    The call waits for the disk: in asynchronous code use `await asyncio.to_thread(atomic_write, path, data)`. Any
    number of threads and processes may write to one path at a time; each content is complete, and the last one stays.
    """
    content = data.encode() if isinstance(data, str) else data
    place = Path(os.path.abspath(path))
    parent = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    # The directory stays open, so that later renames and links don't change where we write.
    with _reporting(place), files.closing(os.open(place.parent, parent)) as directory:
        _sweep(directory, place.name)
        old = _replaceable(place, directory)
        temporary, number = _create(directory, place.name, 0o600 if old or mode is not None else 0o666)
        try:
            files.write_all(number, content)
            if old:
                _keep(number, place.name, directory, old)
            if mode is not None:
                os.fchmod(number, mode)
            os.fsync(number)
            if validate is not None:
                _validate(validate, place, temporary, number, directory)
            os.rename(temporary, place.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise
        finally:
            files.unlock(number)
            os.close(number)
        try:
            os.fsync(directory)
        except OSError as error:
            raise RedomaError(
                f"{place} was written, but may be the old one again after a power cut",
                why=files.reason(error),
                next="check the disk, and write it again",
            ) from error


@contextmanager
def _reporting(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0) or files.advice(error)
        raise NotWritten(f"{place} can't be written", why=files.reason(error), next=advice) from error


def _replaceable(place: Path, directory: int) -> os.stat_result | None:
    """Return the stat of the existing file; None if there is none. Raises `NotWritten` for anything but a regular
    file.
    """
    if not place.name:
        _refuse(place, "it is a directory", "name a file")
    try:
        old = os.stat(place.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(old.st_mode):
        target = os.readlink(place.name, dir_fd=directory)
        # Following it would write wherever the link's creator wants; replacing it is rarely what the caller wants.
        _refuse(place, f"it is a symbolic link to {target!r}", "write to what it leads to, if you trust the link")
    if stat.S_ISDIR(old.st_mode):
        _refuse(place, "it is a directory", "name a file")
    if not stat.S_ISREG(old.st_mode):
        _refuse(place, "it is a device, a pipe or a socket", "name a regular file")
    return old


def _refuse(place: Path, why: str, advice: str) -> NoReturn:
    raise NotWritten(f"{place} can't be written", why=why, next=advice)


def _affixes(name: str) -> tuple[str, str]:
    """Return prefix and suffix of a file's temporary names. The suffix is that of the file, because some validators
    depend on it.
    """
    suffix = os.path.splitext(name)[1]
    random_part = 16
    room = _MAX_NAME - len(os.fsencode(f".{_MARK}{suffix}")) - random_part
    if room < 0:
        suffix, room = "", _MAX_NAME - len(f".{_MARK}") - random_part
    return f".{os.fsdecode(os.fsencode(name)[:room])}{_MARK}", suffix


def _create(directory: int, name: str, mode: int) -> tuple[str, int]:
    """Create a temporary file and lock it. Returns its name and descriptor."""
    prefix, suffix = _affixes(name)
    while True:
        temporary = f"{prefix}{secrets.token_hex(8)}{suffix}"
        number = os.open(temporary, files.NEW_FILE, mode, dir_fd=directory)
        if files.lock(number) and os.fstat(number).st_nlink:
            return temporary, number
        os.close(number)  # another writer's sweep took the lock between the two calls, and removes the file


def _sweep(directory: int, name: str) -> None:
    """Remove temporary files that killed writers of this file have left."""
    prefix, suffix = _affixes(name)
    for found in os.listdir(directory):
        if not (found.startswith(prefix) and found.endswith(suffix)):
            continue
        with suppress(FileNotFoundError, PermissionError):  # it is gone, or belongs to another user
            about = os.stat(found, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
                # If its writer finished before we got the lock, this name no longer exists: the file was renamed to its
                # target.
                with files.claimed(found, dir_fd=directory) as abandoned:
                    if abandoned:
                        os.unlink(found, dir_fd=directory)


def _keep(number: int, name: str, directory: int, old: os.stat_result) -> None:
    """Give the new file the owner, attributes and mode of the old one. The owner comes first: setting it clears mode
    bits.
    """
    about = os.fstat(number)
    if (about.st_uid, about.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(number, old.st_uid, old.st_gid)
        except PermissionError:
            raise NotWritten(
                f"{name} can't be replaced",
                why=f"it belongs to user {old.st_uid} and group {old.st_gid}, and we can't give a file to them",
                next="write it as that user, or remove it first",
            ) from None
    # Without the access list, the group bits of the mode would apply to the group instead of being the list's mask:
    # that would grant more rights.
    with files.closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as pinned:
        for attribute, value in attributes(f"/proc/self/fd/{pinned}").items():
            os.setxattr(number, attribute, value)
    os.fchmod(number, stat.S_IMODE(old.st_mode))


def _validate(validate: Callable[[Path], object], place: Path, temporary: str, number: int, directory: int) -> None:
    """Raise `NotWritten` unless `validate` accepts the temporary file and leaves it unchanged."""
    before = os.fstat(number)
    try:
        verdict = validate(place.with_name(temporary))
    except Exception as error:
        raise NotWritten(
            f"{place} is unchanged", why=f"its new content was not accepted: {error!r}", next="correct the content"
        ) from error
    if not verdict:
        raise NotWritten(
            f"{place} is unchanged",
            why=f"its new content was not accepted: validate returned {verdict!r}",
            next="correct the content; where it is good, validate has to return True",
        )
    after = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
    if not os.path.samestat(before, after) or (before.st_size, before.st_mtime_ns) != (
        after.st_size,
        after.st_mtime_ns,
    ):
        raise NotWritten(
            f"{place} is unchanged",
            why="its new content was changed while it was validated",
            next="have validate only read the file",
        )
