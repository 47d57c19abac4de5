"""`session.files`, as callers use it.

Every operation is done by the driver inside the cell, with the rights of the session's code (see `files`). So no path,
link or race leads anywhere that the code could not read itself. Answers are bounded, and names in them are checked
before they are used on this side.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from ..backends.base import uncancellable
from ..lib.errors import BackendError, InvalidRequest
from ..pipeline.sync import Driven, driven
from . import frames
from .channel import Answer, Channel

MAX_READ = 64 << 20
"""Bytes of a file that `read` returns unless it is told otherwise."""
MAX_DOWNLOAD = 4 << 30
"""Bytes that `download` brings to this machine unless it is told otherwise."""
_MAX_LISTED = 4 << 20  # bytes of a list as JSON
_MAX_DEPTH = 32
_MAX_FILES = 10_000
_FILE = re.compile(r"[0-9]{1,20}:[0-9]{1,20}\Z")


Content = bytes | str | os.PathLike[str] | AsyncIterator[bytes]


class FileInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file, as the session describes it."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    modified: float
    """Seconds since 1970."""
    target: str | None = None
    """Where a link leads."""


class FileChange(NamedTuple):
    """A change in a watched directory."""

    kind: Literal["added", "modified", "removed"]
    name: str


class Piece(NamedTuple):
    """Some bytes of a file."""

    data: bytes
    file: str
    """The identity of the file: another one may take its name between two pieces."""
    size: int


class _Room:
    """What a download may still bring here. `path` is what is downloaded."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._entries = self._bytes = self.files = 0

    def take_entry(self) -> None:
        self._entries += 1
        if self._entries > _MAX_FILES:
            raise self._too_much(f"it has more than {_MAX_FILES:,} files and directories", "download less")

    def take_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise self._too_much(f"it has more than {self._max_bytes:,} bytes", "download less, or allow max_bytes")

    def _too_much(self, why: str, step: str) -> InvalidRequest:
        return InvalidRequest(f"{self._path!r} can't be downloaded", why=why, next=step)


class HasChannel(Protocol):
    async def opened(self) -> Channel: ...


class AsyncFiles:
    """The files of a session. Relative paths start at its first working directory. Raises `OSError`s as `open` does."""

    def __init__(self, session: HasChannel) -> None:
        self._session = session

    async def read(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_READ) -> bytes:
        """Return the content of a file. Raises `InvalidRequest` if it is longer than `max_bytes`; use `chunks` then."""
        found = bytearray()
        async for piece in self.chunks(path):
            found += piece
            if len(found) > max_bytes:
                raise InvalidRequest(
                    f"{os.fspath(path)!r} is too long to be read at once",
                    why=f"it has more than {max_bytes:,} bytes",
                    next="allow more with max_bytes, or go through its chunks()",
                )
        return bytes(found)

    async def read_text(self, path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
        """Return the content of a file as text."""
        return (await self.read(path)).decode(encoding)

    async def chunks(self, path: str | os.PathLike[str], *, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file from the byte `offset` on, piece by piece, however long it is. Raises
        `BackendError` if another file takes its name meanwhile."""
        name, which = os.fspath(path), ""
        while True:
            piece = await self.piece(name, offset)
            if which and piece.file != which:
                raise BackendError(f"{name!r} can't be read on", why="it has become another file", next="read it again")
            which = piece.file
            if not piece.data:
                return
            yield piece.data
            offset += len(piece.data)

    async def piece(self, path: str | os.PathLike[str], offset: int) -> Piece:
        """Return some bytes of a file from `offset` on; none at its end."""
        answer, data = await self._do("read", os.fspath(path), offset=offset)
        if not _FILE.match(answer.file):
            why = "what the session says of it is not a file name"
            raise BackendError(f"{os.fspath(path)!r} can't be read", why=why, next="open another session")
        return Piece(data, answer.file, answer.size)

    async def write(self, path: str | os.PathLike[str], content: Content) -> None:
        """Write a file, whole or not at all, and create its parent directories. The content may be text, bytes, the
        `Path` of a file on this machine, or an asynchronous iterator of bytes."""
        name, part, first = os.fspath(path), uuid.uuid4().hex[:8], True
        piece = b""
        try:
            async for following in _in_pieces(content):
                if piece:
                    await self.write_piece(name, piece, part=part, first=first, last=False)
                    first = False
                piece = following
            await self.write_piece(name, piece, part=part, first=first, last=True)
        except BaseException:
            if not first:  # leave no unfinished file
                await self._forget_part(f"{name}.{part}.part")
            raise

    async def _forget_part(self, name: str) -> None:
        with suppress(OSError, BackendError):
            await uncancellable(self._do("remove", name))

    async def write_piece(
        self, path: str | os.PathLike[str], data: bytes, *, part: str, first: bool, last: bool
    ) -> None:
        """Append some bytes to a new file, which gets its name with the last piece. `part`, eight hexadecimal digits,
        identifies the file that is being written."""
        await self._do("write", os.fspath(path), data, part=part, first=first, last=last)

    async def list(self, path: str | os.PathLike[str] = ".") -> list[FileInfo]:
        """Return the entries of a directory, sorted by name; at most 10,000."""
        _, body = await self._do("list", os.fspath(path))
        return _infos(body)

    async def stat(self, path: str | os.PathLike[str]) -> FileInfo:
        """Describe a file; for a link, the link itself. Raises `FileNotFoundError` if there is none."""
        _, body = await self._do("stat", os.fspath(path))
        return _infos(body, exactly_one=True)[0]

    async def exists(self, path: str | os.PathLike[str]) -> bool:
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def remove(self, path: str | os.PathLike[str]) -> None:
        """Remove a file, or a directory with everything in it."""
        await self._do("remove", os.fspath(path))

    async def rename(self, path: str | os.PathLike[str], to: str | os.PathLike[str]) -> None:
        """Rename a file, replacing one that has the new name."""
        await self._do("rename", os.fspath(path), to=os.fspath(to))

    async def make_dir(self, path: str | os.PathLike[str]) -> None:
        """Create a directory and its parents, unless it exists."""
        await self._do("make_dir", os.fspath(path))

    async def upload(self, local: str | os.PathLike[str], path: str | os.PathLike[str] = ".") -> int:
        """Copy a directory of this machine into one of the session, without its links. Returns how many files were
        copied."""
        files = await asyncio.to_thread(_files_below, Path(local))
        for name, file in files.items():
            await self.write(f"{os.fspath(path)}/{name}", file)
        return len(files)

    async def download(
        self, path: str | os.PathLike[str], local: str | os.PathLike[str], *, max_bytes: int = MAX_DOWNLOAD
    ) -> int:
        """Copy a directory of the session to a new one of this machine. Only regular files; with their directories,
        10,000 at most. Returns how many files were copied. Raises `InvalidRequest` if there are more, or more than
        `max_bytes` in them: the session's code says what is there, and this machine's disk would be filled."""
        os.makedirs(local)  # a new one, so that nothing in it leads elsewhere
        room = _Room(os.fspath(path), max_bytes)
        await self._download(os.fspath(path), os.fspath(local), _MAX_DEPTH, room)
        return room.files

    async def _download(self, path: str, local: str, depth: int, room: _Room) -> None:
        for info in await self.list(path):
            if info.kind not in ("file", "directory") or not _is_plain(info.name):
                continue
            inside, outside = f"{path}/{info.name}", os.path.join(local, info.name)
            if info.kind == "directory" and depth:
                room.take_entry()
                os.mkdir(outside)
                await self._download(inside, outside, depth - 1, room)
            elif info.kind == "file":
                room.take_entry()
                await self._fetch(inside, outside, room)
                room.files += 1

    async def _fetch(self, path: str, local: str, room: _Room) -> None:
        file = os.open(local, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            async for piece in self.chunks(path):
                room.take_bytes(len(piece))
                left = memoryview(piece)
                while left:
                    left = left[os.write(file, left) :]
        finally:
            os.close(file)

    async def watch(self, path: str | os.PathLike[str] = ".", *, every: float = 0.5) -> AsyncIterator[FileChange]:
        """Yield the changes in a directory from now on. It is listed every `every` seconds."""
        before = {info.name: info for info in await self.list(path)}
        while True:
            await asyncio.sleep(every)
            now = {info.name: info for info in await self.list(path)}
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) != now.get(name):
                    yield FileChange("removed" if name not in now else "modified" if name in before else "added", name)
            before = now

    async def _do(self, operation: str, path: str, body: bytes = b"", **more: Any) -> tuple[Answer, bytes]:
        channel = await self._session.opened()
        answer, content = await channel.ask({"do": "file", "op": operation, "path": path, **more}, body)
        if answer.errno is not None:
            raise OSError(answer.errno, answer.error[:200] or os.strerror(answer.errno), path)
        return answer, content


async def _in_pieces(content: Content) -> AsyncIterator[bytes]:
    """Yield content in pieces that fit into a frame."""
    if not isinstance(content, AsyncIterator):
        for piece in _pieces(content):
            yield piece
        return
    async for given in content:
        for piece in _pieces(given):
            yield piece


def _pieces(content: bytes | str | os.PathLike[str]) -> Iterator[bytes]:
    if isinstance(content, os.PathLike):
        with open(content, "rb") as file:
            while piece := file.read(frames.PIECE):
                yield piece
        return
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidRequest(f"{content!r} can't be written", why="it is neither text nor bytes", next="write text")
    for start in range(0, len(data), frames.PIECE):
        yield bytes(data[start : start + frames.PIECE])


def _files_below(top: Path) -> dict[str, Path]:
    """Return relative path → file for the regular files below a directory."""
    if not top.is_dir():
        raise InvalidRequest(f"{str(top)!r} can't be uploaded", why="it is not a directory", next="use write()")
    files = [file for file in sorted(top.rglob("*")) if file.is_file() and not file.is_symlink()]
    return {file.relative_to(top).as_posix(): file for file in files}


def _infos(body: bytes, *, exactly_one: bool = False) -> list[FileInfo]:
    try:
        if len(body) > _MAX_LISTED:
            raise ValueError("too long")
        found = msgspec.json.decode(body, type=list[FileInfo])
        if exactly_one and len(found) != 1:
            raise ValueError("not one file")
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BackendError("the files can't be listed", why="what the session says is not a list of files") from None
    return found


async def _next(changes: AsyncIterator[FileChange]) -> FileChange:
    return await anext(changes)


def _is_plain(name: str) -> bool:
    return bool(name) and name not in (".", "..") and not set("/\0\\") & set(name)


class FilesOfSession(Driven[AsyncFiles]):
    """The files of a session. Relative paths start at its first working directory. Raises `OSError`s as `open` does."""

    read = driven(AsyncFiles.read)
    read_text = driven(AsyncFiles.read_text)
    write = driven(AsyncFiles.write)
    stat = driven(AsyncFiles.stat)
    exists = driven(AsyncFiles.exists)
    remove = driven(AsyncFiles.remove)
    rename = driven(AsyncFiles.rename)
    make_dir = driven(AsyncFiles.make_dir)
    upload = driven(AsyncFiles.upload)
    download = driven(AsyncFiles.download)
    list = driven(AsyncFiles.list)

    def watch(self, path: str | os.PathLike[str] = ".", *, every: float = 0.5) -> Iterator[FileChange]:
        """Yield the changes in a directory from now on. It is listed every `every` seconds."""
        changes = self.core.watch(path, every=every)
        while True:
            yield self._executor.wait(_next(changes))

    def close(self) -> None:
        """Does nothing: the files belong to the session."""
