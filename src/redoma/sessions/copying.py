"""Copies of a session's Python: what a copy needs besides memory, and the steps at both ends. Loaded in cells and
containers, so it uses only the standard library of Python 3.9.

The parent's worker forks, and the child writes itself to a file that was passed in: its memory (c/image.c), then its
open files, its directory, and the files of the cell. The driver of a new cell unpacks the files, and forks a child that
opens the same files and becomes that memory. The code of the session can put anything into the file, so it is read only
in the new cell, with the rights of the code there.
"""

from __future__ import annotations

import fcntl
import io
import json
import mmap
import os
import shutil
import stat
import struct
import sys
import tarfile
from functools import partial

from redoma.sessions.frames import frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, BinaryIO, NoReturn, Protocol

    class Imager(Protocol):
        def save(self, file: int, most: int) -> int: ...

        def load(self, file: int) -> None: ...


PLACES = ("workspace", "tmp", "dev/shm")
"""The directories of a cell that its code can write to."""
_HOLDER = 3  # a process that every cell has beside its init, its driver and the worker
_LENGTH = PATCH_LENGTH = struct.Struct("!Q")
"""The length of the JSON at the start of a patch, or of the rest of an image."""
_REOPENED = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_PATH


class Refused(Exception):
    """The session can't be copied; the text says why."""


# --- in the parent ---


def check(known: Iterable[int]) -> list[dict[str, Any]]:
    """Describe the open files besides the `known` descriptors. Raises `Refused` for what can't be copied: threads,
    processes, sockets and pipes."""
    if len(sys._current_frames()) > 1:
        raise Refused("it has a thread that has not ended: join it, or stop it")
    if others := _other_processes():
        raise Refused(f"it has processes that have not ended: {', '.join(others[:5])}")
    return [found for number in _open_numbers() - {0, 1, 2, *known} if (found := _described(number))]


def _other_processes() -> list[str]:
    ours = {1, _HOLDER, os.getpid(), os.getppid()}
    found: list[str] = []
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        raise Refused("its cell has no /proc on this host") from None
    for number in numbers:
        if number in ours:
            continue
        try:
            with open(f"/proc/{number}/stat", "rb") as file:
                before, _, behind = file.read().rpartition(b")")
        except OSError:
            continue  # it has ended
        if behind[1:2] not in b"ZX":
            found.append(before.partition(b"(")[2].decode("utf-8", "replace"))
    return found


def _open_numbers() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def _described(number: int) -> dict[str, Any] | None:
    """Describe how to open it again. Raises `Refused` if that is impossible."""
    try:
        about, link = os.fstat(number), os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return None  # it was the descriptor of the listing itself
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    found = {"number": number, "flags": flags & _REOPENED, "inherited": os.get_inheritable(number)}
    for printed in (1, 2):
        if os.path.samestat(about, os.fstat(printed)):
            return {**found, "same": printed}
    if stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode):
        try:
            if os.path.samestat(about, os.stat(link)):
                at = os.lseek(number, 0, os.SEEK_CUR) if stat.S_ISREG(about.st_mode) else 0
                return {**found, "path": link, "at": at}
        except OSError:
            pass
        raise Refused(f"it has a deleted file open (descriptor {number}): close it")
    if stat.S_ISCHR(about.st_mode) and link.startswith("/dev/") and not os.isatty(number):
        return {**found, "path": link, "at": 0}
    raise Refused(f"it has a socket, a pipe or the like open (descriptor {number}, {link}): close it")


def save(imager: Imager, file: int, most: int, facts: dict[str, Any], skipped: str) -> int:
    """Write this process, its `facts` and the files of the cell, except the directory `skipped`, to `file`. Returns the
    offset of the facts; in a copy, 0."""
    size = imager.save(file, most)
    if size == 0:
        return 0
    encoded = json.dumps(facts).encode()
    room = mmap.mmap(file, most - size // mmap.PAGESIZE * mmap.PAGESIZE, offset=size // mmap.PAGESIZE * mmap.PAGESIZE)
    try:
        room.seek(size % mmap.PAGESIZE)
        room.write(_LENGTH.pack(len(encoded)))
        room.write(encoded)
        with tarfile.open(fileobj=_Writer(room), mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for place in PLACES:
                device = os.stat(f"/{place}").st_dev
                archive.add(f"/{place}", place, filter=partial(_wanted, device, skipped))
    except ValueError:  # of mmap: there is no room
        raise Refused("its memory and files are too large: they have to fit twice into the limit on memory") from None
    finally:
        room.close()
    return size


def _wanted(device: int, skipped: str, each: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out a project below one of the places: it is a separate file system, and copied as a patch."""
    path = f"/{each.name}"
    return None if path == skipped or (each.isdir() and os.lstat(path).st_dev != device) else each


class _Writer(io.RawIOBase):
    """A file for `tarfile` that writes into a mapping."""

    def __init__(self, room: mmap.mmap) -> None:
        self._room = room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._room.write(data)


# --- in the cell of a copy ---


def unpack(file: int, size: int) -> dict[str, Any]:
    """Unpack the files of the parent. Returns its facts."""
    with open(file, "rb", closefd=False) as stream:
        stream.seek(size)
        (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        facts: dict[str, Any] = json.loads(stream.read(length))
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            trusted: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
            archive.extractall("/", **trusted)  # noqa: S202 - of a cell that is to have just these files
    return facts


def patch(file: int, project: str) -> None:
    """Make the parent's changes to the project. The file has entries as in `backends.base`, then contents."""
    with open(file, "rb", closefd=False) as stream:
        stream.seek(0)
        (length,) = PATCH_LENGTH.unpack(stream.read(PATCH_LENGTH.size))
        modes: list[tuple[str, int]] = []
        for entry in json.loads(stream.read(length)):
            path, kind = os.path.join(project, entry["path"]), entry["kind"]
            if kind != "directory" or entry["opaque"] or not os.path.isdir(path) or os.path.islink(path):
                _remove(path)
            if kind == "directory":
                os.makedirs(path, exist_ok=True)
                modes.append((path, entry["mode"]))
            elif kind == "symlink":
                os.symlink(entry["target"], path)
            elif kind == "file" and entry["link_of"]:
                os.link(os.path.join(project, entry["link_of"]), path)
            elif kind == "file":
                _write(path, stream, entry["size"])
                os.chmod(path, entry["mode"])
        for path, mode in reversed(modes):  # last, since files can't be put into a read-only directory
            os.chmod(path, mode)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _write(path: str, stream: BinaryIO, size: int) -> None:
    with open(path, "wb") as file:
        while size and (piece := stream.read(min(size, 1 << 20))):
            file.write(piece)
            size -= len(piece)


def become(imager: Imager, file: int, own: dict[str, int], facts: dict[str, Any]) -> NoReturn:
    """Open what the parent had open, and become it. `own` are the descriptors of a worker: each gets the number that
    the parent's has. 0, 1 and 2 are open already. Errors are sent to the driver."""
    wanted = {*facts["own"].values(), *(each["number"] for each in facts["open"])}
    high = max([*wanted, *_open_numbers()]) + 1
    high_file = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high)
    moved = {name: fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, high) for name, number in own.items()}
    os.closerange(3, high)
    for name, number in moved.items():
        os.dup2(number, facts["own"][name], False)
        os.close(number)
    try:
        for each in facts["open"]:
            _open_again(each)
        if facts["cwd"]:
            os.chdir(facts["cwd"])
        os.umask(facts["umask"])
        imager.load(high_file)
    except OSError as error:
        os.write(facts["own"]["channel"], frame({"is": "broken", "error": error.strerror or str(error)}))
    os._exit(1)


def _open_again(each: dict[str, Any]) -> None:
    number = each["same"] if "same" in each else os.open(each["path"], each["flags"])
    if each.get("at"):
        os.lseek(number, each["at"], os.SEEK_SET)
    if number == each["number"]:
        os.set_inheritable(number, each["inherited"])
        return
    os.dup2(number, each["number"], each["inherited"])
    if "same" not in each:
        os.close(number)
