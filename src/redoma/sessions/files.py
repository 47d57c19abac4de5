"""File operations of a session, done in its cell with the rights of its code. Loaded in cells and containers, so it
uses only the standard library of Python 3.9.

No path leads out of the cell, so paths need no checks: whatever links and races the code has prepared, only what it
could read itself can be reached. But we must never block, so only regular files are read, and opened without blocking.
"""

from __future__ import annotations

import json
import os
import shutil
import stat

from redoma.sessions.frames import PIECE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ENTRIES = 10_000
"""The maximum number of entries in one listing."""
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class Operations:
    """The operations. Relative paths start at `home`."""

    def __init__(self, home: str) -> None:
        self._home = home

    def answer(self, order: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Do one operation. Returns the head of the answer, with the error if there was one, and its body."""
        try:
            path = os.path.join(self._home, order["path"])
            return getattr(self, "_" + order["op"])(path, order, body)  # type: ignore[no-any-return]
        except OSError as error:
            return {"errno": error.errno or 5, "error": error.strerror or "it can't be done"}, b""
        except (ValueError, RecursionError) as error:  # a name with a NUL byte
            return {"errno": 22, "error": str(error)[:200]}, b""

    def _read(self, path: str, order: dict[str, Any], _body: bytes) -> tuple[dict[str, Any], bytes]:
        """Read some bytes of a file, with its identity: another file may take its name between two pieces."""
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            about = os.fstat(number)
            if not stat.S_ISREG(about.st_mode):
                raise (
                    IsADirectoryError(21, "Is a directory")
                    if stat.S_ISDIR(about.st_mode)
                    else OSError(22, "Not a regular file")
                )
            data = os.pread(number, PIECE, order["offset"])
            return {"size": about.st_size, "file": f"{about.st_dev}:{about.st_ino}"}, data
        finally:
            os.close(number)

    def _write(self, path: str, order: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Write a piece of a new file, which gets its name with the last one."""
        part = f"{path}.{order['part']}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_APPEND
        try:
            if order["first"]:
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                flags |= os.O_EXCL
            number = os.open(part, flags, 0o644)
            try:
                left = memoryview(body)
                while left:
                    left = left[os.write(number, left) :]
            finally:
                os.close(number)
            if order["last"]:
                os.rename(part, path)
        except OSError:
            _forget(part)
            raise
        return {}, b""

    def _list(self, path: str, _told: dict[str, Any], _body: bytes) -> tuple[dict[str, Any], bytes]:
        found: list[dict[str, Any]] = []
        with os.scandir(path) as entries:
            for entry in entries:
                if len(found) >= MAX_ENTRIES:
                    break
                try:
                    found.append(_described(entry.path, entry.stat(follow_symlinks=False)))
                except OSError:
                    continue  # it is gone
        return {}, json.dumps(sorted(found, key=lambda each: each["name"])).encode()

    def _stat(self, path: str, _told: dict[str, Any], _body: bytes) -> tuple[dict[str, Any], bytes]:
        return {}, json.dumps([_described(path, os.lstat(path))]).encode()

    def _remove(self, path: str, _told: dict[str, Any], _body: bytes) -> tuple[dict[str, Any], bytes]:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return {}, b""

    def _rename(self, path: str, order: dict[str, Any], _body: bytes) -> tuple[dict[str, Any], bytes]:
        target = os.path.join(self._home, order["to"])
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        os.rename(path, target)
        return {}, b""

    def _make_dir(self, path: str, _told: dict[str, Any], _body: bytes) -> tuple[dict[str, Any], bytes]:
        os.makedirs(path, exist_ok=True)
        return {}, b""


def _described(path: str, about: os.stat_result) -> dict[str, Any]:
    described = {
        "name": _text(os.path.basename(path)),
        "kind": _KINDS.get(stat.S_IFMT(about.st_mode), "other"),
        "size": about.st_size,
        "mode": stat.S_IMODE(about.st_mode),
        "modified": about.st_mtime,
    }
    if stat.S_ISLNK(about.st_mode):
        described["target"] = _text(os.readlink(path))
    return described


def _text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
