"""The changes that a session with the workspace `overlay` makes to its project.

The effect is read while the session lives, and is then treated like the effect of a run: shown, kept, judged by policy,
approved by a person if necessary, applied and recorded (`pipeline.projects`). Policy judges every run that the session
has made, and the strictest verdict counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack

from ..backends.base import OverlayEntry
from ..lib.errors import BackendError, WorkspaceError
from ..models import Effect, Request, Submission
from ..pipeline.executor import AsyncExecutor
from ..pipeline.projects import Keeping, staged
from ..redaction import Redactor
from ..workspace.kept import Kept
from .copying import PATCH_LENGTH

_MAX_RUNS = 200  # different runs that are remembered, to be judged when the effect is applied
_PIECE = 1 << 20

Read = Callable[[str], Awaitable[tuple[OverlayEntry, ...]]]


class Overlay:
    """The project of one session. Raises `WorkspaceError` if its directory can't be a project."""

    def __init__(self, executor: AsyncExecutor, request: Request) -> None:
        self._executor, self._request = executor, request
        self._tree = executor.projects.opened(request.project or "")
        self._redactor = Redactor(request.secrets.values())
        self._began = time.time()
        self._applied: dict[str, float] = {}
        self._runs: dict[tuple[object, ...], Submission] = {}
        self._uncounted = False

    def note(self, submission: Submission) -> None:
        """Remember a run that is about to begin."""
        request = submission.request
        given = (request.stdin, submission.live_input, frozenset(request.env.items()))  # policy reads these, too
        key = (request.language, request.code, request.argv, given, submission.policy)
        if key not in self._runs and len(self._runs) >= _MAX_RUNS:
            self._uncounted = True
        else:
            self._runs[key] = submission

    def copy(self) -> Overlay:
        """Return the overlay of a copy of the session, which begins with the same changes."""
        copy = Overlay(self._executor, self._request)
        copy._began, copy._applied = self._began, dict(self._applied)
        copy._runs, copy._uncounted = dict(self._runs), self._uncounted
        return copy

    def forget(self) -> None:
        """Forget all runs and changes: the session has a new, empty layer."""
        self._began, self._applied, self._runs, self._uncounted = time.time(), {}, {}, False

    async def effect(self, read: Read) -> Effect:
        """Return what it has changed so far."""
        return await self._look(read, None)

    async def keep(self, read: Read, session: str) -> Kept:
        """Keep what it has changed so far, to be applied or discarded by its id. Raises `WorkspaceError` if it has
        changed nothing."""
        runs = () if self._uncounted else tuple(map(self._executor.judge, self._runs.values()))
        command = self._redactor.redact(
            f"session {session}: {len(self._runs)} {'run' if len(self._runs) == 1 else 'runs'}"
        )[0]
        keeping = Keeping(uuid.uuid4().hex, session, self._request.requester, command, runs)
        effect = await self._look(read, keeping)
        if not effect.changes:
            raise WorkspaceError(
                "there is nothing to apply",
                why="; ".join(f"{path}: {why}" for path, why in effect.refused.items())[:1000]
                or "the session has changed nothing in its project",
                next="see changes()",
            )
        return await asyncio.to_thread(self._executor.projects.changes.get, keeping.id)

    async def apply(
        self, kept: Kept, *, paths: Iterable[str] | None, named: Iterable[str], by_hand: bool, wait: bool
    ) -> Kept:
        """Apply kept changes to the project, as `AsyncExecutor.apply` does."""
        done = await self._executor.apply(kept.id, paths=paths, named=named, by_hand=by_hand, wait=wait)
        now = time.time()
        self._applied.update(dict.fromkeys(done.applied, now))
        return done

    async def _look(self, read: Read, keep: Keeping | None) -> Effect:
        return await self._executor.projects.of_session(
            read, self._tree, self._began, self._applied, self._redactor, keep
        )

    async def patch(self, read: Read) -> int:
        """Return the changes for a copy of the session, to be made in its own layer: a file in memory, which the caller
        closes."""
        with staged(self._executor.projects.changes.directory.parent) as stage:
            entries = await read(str(stage))
            for entry in entries:
                if entry.kind == "refused":
                    raise BackendError(
                        "the session can't be forked", why=f"{entry.path}: {entry.why}", next="remove it there"
                    )
            return await asyncio.to_thread(_written, entries, str(stage))

    def close(self) -> None:
        self._tree.close()


def _written(entries: tuple[OverlayEntry, ...], stage: str) -> int:
    told = [
        {name: getattr(entry, name) for name in ("path", "kind", "mode", "size", "target", "opaque", "link_of")}
        for entry in entries
    ]
    head = json.dumps(told).encode()
    with ExitStack() as stack:
        file = os.memfd_create("redoma-changes", os.MFD_CLOEXEC)
        stack.callback(os.close, file)
        with open(file, "wb", closefd=False) as to:
            to.write(PATCH_LENGTH.pack(len(head)) + head)
            for entry in entries:
                if entry.kind == "file" and not entry.link_of:
                    with open(os.path.join(stage, entry.blob), "rb") as content:
                        while piece := content.read(_PIECE):
                            to.write(piece)
        stack.pop_all()
        return file
