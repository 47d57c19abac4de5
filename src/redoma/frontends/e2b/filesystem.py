"""The calls of `filesystem.Filesystem`: everything about files except their contents."""

from __future__ import annotations

import asyncio
import posixpath
import re
import stat
import time
import uuid
from collections import deque
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from ...lib.errors import RedomaError
from ...sessions.folder import FileInfo
from .code import inside, outside
from .sandboxes import Sandbox
from .wire import E2bRequest, Problem, deadline_of, keepalive_of, moment

_Path = Annotated[str, msgspec.Meta(max_length=4096)]
MAX_ENTRIES = 10_000
_MAX_DEPTH = 64
_MAX_EVENTS = 10_000
_EVERY = 0.2
"""Seconds between polls of a watched directory."""
_REST = 20
"""The pause after a poll is at least this many times as long as the poll took."""
_PART = re.compile(r"\.[0-9a-f]{8}\.part\Z")  # a file that is still being written
_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}
_LETTERS = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "link": stat.S_IFLNK}


class Named(msgspec.Struct):
    """The body of calls that take a path."""

    path: _Path = ""
    depth: Annotated[int, msgspec.Meta(ge=0)] = 1


class Move(msgspec.Struct):
    """The body of `Move`."""

    source: _Path
    destination: _Path


class WatchBody(msgspec.Struct, rename="camel"):
    """The body of calls that start to watch a directory."""

    path: _Path
    recursive: bool = False
    include_entry: bool = False


class Watcher(msgspec.Struct, rename="camel"):
    """The body of calls about one watcher."""

    watcher_id: str


def entry(info: FileInfo, path: str) -> dict[str, Any]:
    """Describe a file for clients; `path` is its absolute path."""
    described: dict[str, Any] = {
        "name": posixpath.basename(path) or info.name,
        "type": _TYPES.get(info.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": str(info.size),
        "mode": info.mode,
        "permissions": stat.filemode(_LETTERS.get(info.kind, 0) | info.mode),
        "owner": "user",
        "group": "user",
        "modifiedTime": moment(max(info.modified, 0)),
    }
    if info.target is not None:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), info.target))
        described |= {"symlinkTarget": target, "isSymlink": True}
    return described


async def stat_file(request: E2bRequest, sandbox: Sandbox) -> None:
    """Answer the metadata of a file."""
    path = (await request.json(Named)).path
    await request.answer({"entry": await _entry_of(sandbox, path)})


async def _entry_of(sandbox: Sandbox, path: str) -> dict[str, Any]:
    try:
        return entry(await sandbox.session.files.stat(inside(path)), outside(path))
    except NotADirectoryError:
        raise Problem("not_found", f"path not found: {path[:500]}") from None


async def list_dir(request: E2bRequest, sandbox: Sandbox) -> None:
    """Answer the entries below a directory, down to the given depth."""
    body = await request.json(Named)
    found = await _walk(sandbox, body.path or ".", min(body.depth or 1, _MAX_DEPTH))
    await request.answer({"entries": [entry(info, outside(path)) for path, info in found.items()]})


async def _walk(sandbox: Sandbox, top: str, depth: int) -> dict[str, FileInfo]:
    """Return path → info of everything below a directory. Raises `OSError`, or `Problem` for too many entries."""
    found: dict[str, FileInfo] = {}
    todo = deque([(inside(top), 1)])
    while todo:
        directory, level = todo.popleft()
        try:
            infos = await sandbox.session.files.list(directory)
        except OSError:
            if level > 1:
                continue  # it was removed meanwhile, or is not readable
            raise
        for info in infos:
            if _PART.search(info.name):
                continue
            path = posixpath.normpath(posixpath.join(directory, info.name))
            found[path] = info
            if info.kind == "directory" and level < depth:
                todo.append((path, level + 1))
        if len(found) > MAX_ENTRIES:
            raise Problem("resource_exhausted", f"there are more than {MAX_ENTRIES:,} entries")
    return found


async def make_dir(request: E2bRequest, sandbox: Sandbox) -> None:
    """Create a directory and its parents. Raises `Problem` if the path exists."""
    path = (await request.json(Named)).path
    files = sandbox.session.files
    try:
        kind = (await files.stat(inside(path))).kind
    except FileNotFoundError:
        await files.make_dir(inside(path))
        return await request.answer({"entry": await _entry_of(sandbox, path)})
    if kind == "directory":
        raise Problem("already_exists", f"directory already exists: {path[:500]}")
    raise Problem("invalid_argument", f"path already exists but it is not a directory: {path[:500]}")


async def remove(request: E2bRequest, sandbox: Sandbox) -> None:
    """Remove a file or a directory tree. A missing path is not an error."""
    path = (await request.json(Named)).path
    with suppress(FileNotFoundError, NotADirectoryError):
        await sandbox.session.files.remove(inside(path))
    await request.answer({})


async def move(request: E2bRequest, sandbox: Sandbox) -> None:
    """Rename a file or a directory."""
    body = await request.json(Move)
    await sandbox.session.files.rename(inside(body.source), inside(body.destination))
    await request.answer({"entry": await _entry_of(sandbox, body.destination)})


# --- watching ---


class Watch:
    """Polls a directory, and keeps events until a client takes them."""

    def __init__(self, sandbox: Sandbox, body: WatchBody) -> None:
        self._sandbox, self._body = sandbox, body
        self._before: dict[str, FileInfo] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.failed: Exception | None = None

    async def open(self) -> None:
        """Take the first snapshot and start polling. Raises `OSError` if the directory can't be read."""
        self._before = await self._look()
        self._task = asyncio.create_task(self._go_on())

    async def _look(self) -> dict[str, FileInfo]:
        return await _walk(self._sandbox, self._body.path, _MAX_DEPTH if self._body.recursive else 1)

    async def _go_on(self) -> None:
        try:
            pause = _EVERY
            while True:
                await asyncio.sleep(pause)
                began = time.monotonic()
                await self.look()
                # poll large directories less often, so that they don't keep the service busy
                pause = max(_EVERY, _REST * (time.monotonic() - began))
        except (OSError, RedomaError, Problem) as error:
            self.failed = error
            self._changed.set()

    async def look(self) -> None:
        """Poll now."""
        async with self._looking:
            now = await self._look()
            before, self._before = self._before, now
        for path, kind in _differences(before, now):
            event: dict[str, Any] = {"name": _name_below(self._body.path, path), "type": f"EVENT_TYPE_{kind}"}
            if self._body.include_entry and path in now:
                event["entry"] = entry(now[path], outside(path))
            self._events.append(event)
            self._changed.set()

    def take(self) -> list[dict[str, Any]]:
        """Return the events so far and forget them."""
        events = list(self._events)
        self._events.clear()
        self._changed.clear()
        return events

    async def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for an event. Raises the error that ended the polling, if there is one."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        if self.failed is not None and not self._events:
            raise self.failed

    def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()


def _name_below(top: str, path: str) -> str:
    return posixpath.relpath(outside(path), outside(top))


def _differences(before: dict[str, FileInfo], now: dict[str, FileInfo]) -> list[tuple[str, str]]:
    """Return the events, as path and kind, that explain the difference between two snapshots. A path that vanished
    while an identical one appeared counts as renamed."""
    events: list[tuple[str, str]] = []
    added = {path: info for path, info in now.items() if path not in before}
    known = {(info.kind, info.size, info.mode, info.modified) for info in added.values()}
    for path in sorted(before.keys() - now.keys()):
        old = before[path]
        moved = (old.kind, old.size, old.mode, old.modified) in known
        events.append((path, "RENAME" if moved else "REMOVE"))
    for path, info in sorted(added.items()):
        events.append((path, "CREATE"))
        if info.kind == "file" and info.size:
            events.append((path, "WRITE"))
    for path in sorted(before.keys() & now.keys()):
        old, new = before[path], now[path]
        if new.kind == "directory":
            if old.mode != new.mode:
                events.append((path, "CHMOD"))
        elif (old.size, old.modified, old.kind) != (new.size, new.modified, new.kind):
            events.append((path, "WRITE"))
        elif old.mode != new.mode:
            events.append((path, "CHMOD"))
    return events


async def _watch(sandbox: Sandbox, body: WatchBody) -> tuple[str, Watch]:
    if len(sandbox.watches) >= sandbox.limits.watches:
        raise Problem("resource_exhausted", f"a sandbox has at most {sandbox.limits.watches} watchers")
    watch, name = Watch(sandbox, body), uuid.uuid4().hex
    sandbox.watches[name] = watch
    try:
        await watch.open()
    except BaseException:
        sandbox.watches.pop(name, None)
        raise
    return name, watch


async def watch_dir(request: E2bRequest, sandbox: Sandbox) -> None:
    """Stream the changes in a directory until the client disconnects or its deadline passes."""
    name, watch = await _watch(sandbox, await request.message(WatchBody))
    try:
        await request.begin_stream()
        await request.until_gone(_stream(request, watch))
    finally:
        watch.close()
        sandbox.watches.pop(name, None)


async def _stream(request: E2bRequest, watch: Watch) -> None:
    every, loop = keepalive_of(request), asyncio.get_running_loop()
    end = loop.time() + (deadline_of(request) or 1e9)
    await request.envelope({"start": {}})
    while loop.time() < end:
        await watch.wait(min(every, max(end - loop.time(), 0.01)))
        events = watch.take()
        for event in events:
            await request.envelope({"filesystem": event})
        if not events:
            await request.envelope({"keepalive": {}})
    await request.end_stream(Problem("deadline_exceeded", "the directory was watched for as long as was asked"))


async def create_watcher(request: E2bRequest, sandbox: Sandbox) -> None:
    """Start to watch a directory, and answer the id with which to ask for events."""
    name, _ = await _watch(sandbox, await request.json(WatchBody))
    await request.answer({"watcherId": name})


def _watcher(sandbox: Sandbox, name: str) -> Watch:
    if name not in sandbox.watches:
        raise Problem("not_found", f"watcher with id {name[:100]} not found")
    return sandbox.watches[name]


async def watcher_events(request: E2bRequest, sandbox: Sandbox) -> None:
    """Answer the events of a watcher since the last call."""
    watch = _watcher(sandbox, (await request.json(Watcher)).watcher_id)
    if watch.failed is None:
        await watch.look()
    await request.answer({"events": watch.take()})


async def remove_watcher(request: E2bRequest, sandbox: Sandbox) -> None:
    """Stop a watcher."""
    name = (await request.json(Watcher)).watcher_id
    _watcher(sandbox, name).close()
    del sandbox.watches[name]
    await request.answer({})


_Kind = Literal["unary", "stream"]
CALLS: dict[str, tuple[_Kind, Any]] = {
    "Stat": ("unary", stat_file),
    "ListDir": ("unary", list_dir),
    "MakeDir": ("unary", make_dir),
    "Remove": ("unary", remove),
    "Move": ("unary", move),
    "WatchDir": ("stream", watch_dir),
    "CreateWatcher": ("unary", create_watcher),
    "GetWatcherEvents": ("unary", watcher_events),
    "RemoveWatcher": ("unary", remove_watcher),
}
