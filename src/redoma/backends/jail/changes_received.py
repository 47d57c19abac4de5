"""Receives the changes that a cell says its run has made to a project: checks them, and puts contents into a stage.

The stage is a directory that only we know, and its files are numbered: no name that the run chose is used on the host.
"""

from __future__ import annotations

import hashlib
import os
from typing import Literal

import msgspec

from ...models import Limits
from ..base import EVERYTHING, Entry
from . import protocol
from .changes_sent import HOLES, MAX_ENTRIES, MAX_PATH

_SLACK = 1 << 20  # beyond the limit on the disk: the last page of every file counts there, and a copy may begin earlier


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["file", "directory", "symlink", "removed", "refused"]
    mode: int = 0
    size: int = 0
    target: str = ""
    opaque: bool = False
    link_of: str = ""
    why: str = ""


class ReceivedChanges:
    """Takes the entries and contents that a cell sends, and puts the contents into the directory `stage`.

    Every method raises `protocol.Malformed` for what no cell of ours sends.
    """

    def __init__(self, stage: str, limits: Limits) -> None:
        self._stage, self._room = stage, limits.disk + _SLACK
        self._sizes = limits.disk + HOLES  # with their holes, which have to be read, too
        self._entries: dict[str, Entry] = {}
        self._open: _File | None = None

    def entry(self, payload: bytes) -> None:
        self._close()
        path, text = protocol.split_named(payload)
        about = msgspec.json.decode(text, type=_About)
        if (path, about.kind) != (EVERYTHING, "refused"):
            _must_lead_down(path)
        if path in self._entries or len(self._entries) > MAX_ENTRIES:
            raise protocol.Malformed("an entry that was there before, or one too many")
        entry = Entry(
            path=path,
            kind=about.kind,
            mode=about.mode & 0o7777,
            target=os.fsdecode(about.target.encode("latin-1")),
            opaque=about.opaque,
            why=about.why[:200],
        )
        if about.kind == "file":
            entry = self._file(entry, about)
        self._entries[path] = entry

    def _file(self, entry: Entry, about: _About) -> Entry:
        if about.link_of:
            first = self._entries.get(os.fsdecode(about.link_of.encode("latin-1")))
            if first is None or first.kind != "file":
                raise protocol.Malformed("a link to a file that did not come")
            return msgspec.structs.replace(entry, size=first.size, blob=first.blob, link_of=first.path)
        if not 0 <= about.size <= self._sizes:
            raise protocol.Malformed("a file of no size, or larger than what a cell may send")
        self._sizes -= about.size
        blob = str(len(self._entries))
        self._open = _File(os.path.join(self._stage, blob), about.size)
        return msgspec.structs.replace(entry, size=about.size, blob=blob)

    def data(self, payload: bytes) -> None:
        if self._open is None:
            raise protocol.Malformed("content of no file")
        self._room -= len(payload)
        if self._room < 0:
            raise protocol.Malformed("more than the cell may have written")
        self._open.add(int.from_bytes(payload[:8], "big"), payload[8:])

    def _close(self) -> None:
        if self._open is not None:
            file, self._open = self._open, None
            file.finish()

    def digest(self) -> None:
        """Hash all contents, once everything has come. Slow, so not for an event loop."""
        self._close()
        digests: dict[str, str] = {}
        for path, entry in self._entries.items():
            if not entry.blob:
                continue
            if entry.blob not in digests:
                with open(os.path.join(self._stage, entry.blob), "rb") as file:
                    digests[entry.blob] = hashlib.file_digest(file, "sha256").hexdigest()
            self._entries[path] = msgspec.structs.replace(entry, sha256=digests[entry.blob])

    def finish(self) -> tuple[Entry, ...]:
        """All entries. Call `digest` first."""
        return tuple(self._entries.values())

    def drop(self) -> None:
        """Close the open file of a run that did not come to its end."""
        if self._open is not None:
            self._open.close()
            self._open = None


class _File:
    """A file in the stage. Its pieces come in order; what is between them stays a hole."""

    def __init__(self, path: str, size: int) -> None:
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._size, self._at = size, 0

    def add(self, place: int, piece: bytes) -> None:
        if not self._at <= place <= place + len(piece) <= self._size:
            raise protocol.Malformed("content beyond its file")
        self._at = place + len(piece)
        while piece:
            written = os.pwrite(self._number, piece, place)
            place, piece = place + written, piece[written:]

    def finish(self) -> None:
        os.ftruncate(self._number, self._size)
        self.close()

    def close(self) -> None:
        os.close(self._number)


def _must_lead_down(path: str) -> None:
    if len(os.fsencode(path)) > MAX_PATH or "\0" in path or {"", ".", ".."} & set(path.split("/")):
        raise protocol.Malformed("a path that leads elsewhere")
