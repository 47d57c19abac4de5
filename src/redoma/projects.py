"""Runs in a project: a stage or a checkpoint before, an effect after; and what is decided of it later.

An effect is what a run would do. It is kept, with its contents, until somebody applies or discards it. Whether a person
has to say yes was decided by policy, on the request; what they say yes to is the effect. A run in the project itself
has a checkpoint instead, which puts everything back unless the run ends well.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from . import telemetry
from .approval import Ask, Case, Gate, Verdict, setting_of
from .approval.ask import decode, encode, stored
from .backends.base import Backend, Control, Outcome, OverlayBackend, Sink
from .backends.scratch import remove_tree
from .errors import ApprovalError, BackendError, WorkspaceError
from .models import Decision, Effect, Evaluation, Request, Status
from .sensitive import Redactor
from .workspace.checkpoint import guarded
from .workspace.effects import effect_of
from .workspace.kept import Changes, Kept
from .workspace.protected import must_be_a_project
from .workspace.tree import Tree

Record = Callable[[str, str, Mapping[str, Any]], None]
Judge = Callable[[Request, str | None], Evaluation]
_MOST_PATHS, _LONGEST = 1000, 2000  # paths, and characters of a reason, in one record
_STAGE = "stage-"


def changes_in(state: Path | None) -> Changes:
    """What is kept under a state directory."""
    if state is None:
        raise WorkspaceError(
            "changes can't be kept", why="the configuration names no state directory", next="give it `state`"
        )
    return Changes(state / "changes")


class Projects:
    """`state` is where effects are kept; without it there are no runs over projects."""

    def __init__(
        self,
        state: Path | None,
        record: Record,
        judge: Judge,
        *,
        user: str,
        home: Path | None,
        separate: bool,
        own: Iterable[Path] = (),
    ) -> None:
        """`own`: where else we write while something runs, such as the audit log."""
        self._state, self._record, self._judge, self._own = state, record, judge, tuple(own)
        self._user, self._home, self._separate = user, home, separate

    @property
    def changes(self) -> Changes:
        return changes_in(self._state)

    @telemetry.backend
    async def run(
        self,
        backend: Backend,
        request: Request,
        sink: Sink,
        control: Control | None,
        case: Case,
        redactor: Redactor,
    ) -> tuple[Outcome, dict[str, Any]]:
        """Run it where its workspace is; and what the result has to say of that, beside the outcome."""
        if request.workspace != "scratch":
            must_be_a_project(request.project or "", home=self._home, private=[self._state] if self._state else ())
        match request.workspace:
            case "overlay":
                # Opened before anything runs, and looked at by what is open: whatever has its path afterwards.
                with self._stage() as stage, Tree(request.project or "") as tree:
                    began = time.time()
                    outcome = await cast("OverlayBackend", backend).run_over(request, sink, control, str(stage))
                    look = partial(self._effect, tree, request, outcome, stage, began, case, redactor)
                    return outcome, {"effect": await asyncio.to_thread(look)}
            case "direct":
                return await self._directly(backend, request, sink, control, redactor)
        return await backend.run(request, sink, control), {}

    @contextmanager
    def _stage(self) -> Iterator[Path]:
        """For the contents of what a run writes. What is not kept in the end is gone; what a killed Redoma has left,
        too, with the next run."""
        place = self.changes.directory.parent
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=_STAGE, dir=place))
            lock = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            _sweep(place)
        except OSError as error:
            why = error.strerror or str(error)
            raise BackendError("there is no place for what it writes", why=why, next="free space there") from error
        try:
            yield stage
        finally:
            remove_tree(stage)
            os.close(lock)

    @telemetry.looked_at
    def _effect(
        self,
        tree: Tree,
        request: Request,
        outcome: Outcome,
        stage: Path,
        began: float,
        case: Case,
        redactor: Redactor,
    ) -> Effect | None:
        """It is kept if there is any, beside the case that a person may have to decide on."""
        if outcome.entries is None:
            return None
        if tree.path != request.project or not _is_still(tree):
            raise WorkspaceError(
                "what it did can't be told",
                why=f"{request.project} is another directory than when it began",
                next="run it again",
            )
        effect = _redacted(effect_of(tree, outcome.entries, stage, began), redactor)
        if effect.changes:
            about = {"command": redactor.redact(request.text)[0][:2000], "ask": to_ask(case)}
            self.changes.keep(request.id, effect, stage, about)
        return effect

    async def _directly(
        self, backend: Backend, request: Request, sink: Sink, control: Control | None, redactor: Redactor
    ) -> tuple[Outcome, dict[str, Any]]:
        """In the project itself, which is put back as it was unless the run ends well."""
        state = self.changes.directory.parent
        with Tree(request.project or "") as tree:
            async with guarded(tree, state / "checkpoints", exclude=[state, *self._own]) as guard:
                outcome = await backend.run(request, sink, control)
                guard.succeeded = outcome.status is Status.OK
        back = guard.restored
        rollback = None if back is None else {**back.left, **back.failed}
        return outcome, {"effect": guard.effect and _redacted(guard.effect, redactor), "rollback": rollback}

    @telemetry.effect("redoma.apply")
    async def apply(
        self,
        gate: Gate | None,
        id: str,  # noqa: A002
        paths: Iterable[str] | None,
        named: Sequence[str],
        *,
        exact: bool,
        by_hand: bool,
        wait: bool,
    ) -> Kept:
        kept = await asyncio.to_thread(self.changes.get, id)
        paths = None if paths is None else tuple(paths)
        try:
            must_be_a_project(kept.effect.project, home=self._home, private=[self._state] if self._state else ())
            approver = await self._approved(gate, kept, paths, named, exact, by_hand, wait)
        except (ApprovalError, WorkspaceError) as error:
            self._record("apply.refused", kept.id, {"why": _plain(str(error))[:_LONGEST]})
            raise
        told = {"effect": kept.digest, "project": kept.effect.project, "approver": approver, "named": list(named)}
        self._record("apply", kept.id, told)  # what can't be recorded isn't done
        try:
            done = await asyncio.to_thread(partial(self.changes.apply, kept.id, paths, named, exact=exact))
        except WorkspaceError as error:
            self._record("apply.refused", kept.id, {"why": _plain(str(error))[:_LONGEST]})
            raise
        self._record("applied", kept.id, {"paths": _paths(done.applied), "left": len(done.left), "state": done.state})
        return done

    async def _approved(
        self,
        gate: Gate | None,
        kept: Kept,
        paths: tuple[str, ...] | None,
        named: Sequence[str],
        exact: bool,
        by_hand: bool,
        wait: bool,
    ) -> str:
        """Who says that it may be applied; nobody need, where policy allows the request, as it is now."""
        if not kept.about.get("ask"):
            if by_hand:
                return self._user
            raise ApprovalError(
                "the changes were not applied",
                why="the request that made them holds a secret, so it was not kept, and can't be judged now",
                next="look at them, and apply them by hand",
            )
        case = self._case(decode(kept.about["ask"]), kept.effect, paths, named, exact)
        decision = case.evaluation.decision
        if decision is Decision.FORBID:
            finding = case.evaluation.deciding[0]
            raise ApprovalError("the changes were not applied", why=finding.reason, next=finding.suggestion)
        if decision is Decision.ALLOW or (by_hand and not self._separate):
            return self._user if by_hand else ""
        verdict = await gate.ask(case, wait=wait) if gate is not None else Verdict(status=Status.DENIED)
        if verdict.status is not None or verdict.approval is None:
            pending = verdict.status is Status.PENDING
            raise ApprovalError(
                "the changes were not applied",
                why=verdict.error or "nobody has said yes",
                next=f"redoma approvals approve {verdict.id}, then apply them again"
                if pending
                else "ask again, configure `approval.approver`, or apply them by hand",
            )
        return verdict.approval.approver

    def _case(self, ask: Ask, effect: Effect, paths: tuple[str, ...] | None, named: Sequence[str], exact: bool) -> Case:
        """What is put to somebody: this effect, or so much of it, under the policy as it is now."""
        below = "" if exact else " and what is below"
        parts = [f"only {', '.join(paths)}{below}"] if paths is not None else []
        parts += [f"also the protected {', '.join(named)}"] if named else []
        reason = f"{ask.request.reason} (to apply: {'; '.join(parts)})".strip() if parts else ask.request.reason
        setting = setting_of("apply", sorted(named), None if paths is None else sorted(paths), exact)
        request = msgspec.structs.replace(ask.request, reason=reason)
        return Case(request, self._judge(ask.request, ask.policy), ask.level, effect, ask.policy, setting=setting)

    @telemetry.effect("redoma.discard")
    async def discard(self, id: str) -> Kept:  # noqa: A002
        kept = await asyncio.to_thread(self.changes.get, id)
        self._record("discard", kept.id, {"effect": kept.digest, "by": self._user})
        kept = await asyncio.to_thread(self.changes.discard, kept.id)
        self._record("discarded", kept.id, {"effect": kept.digest})
        return kept

    @telemetry.effect("redoma.undo")
    async def undo(self, id: str) -> Kept:  # noqa: A002
        kept = await asyncio.to_thread(self.changes.get, id)
        self._record("undo", kept.id, {"effect": kept.digest, "by": self._user})
        done = await asyncio.to_thread(self.changes.undo, kept.id)
        self._record("undone", kept.id, {"paths": _paths(kept.applied)})
        return done


def to_ask(case: Case) -> str:
    """What may have to be asked, or judged again, before it is applied: to be kept beside the effect. Nothing where it
    holds a secret; then only a person can apply it."""
    now = datetime.now(UTC)  # it is asked later, and then anew
    try:
        return encode(stored(case, b"", id="", created=now, expires=now))
    except ApprovalError:
        return ""


def _sweep(place: Path) -> None:
    """Stages that nobody holds any more: their Redoma was killed."""
    for stage in place.glob(f"{_STAGE}*"):
        with suppress(FileNotFoundError, BlockingIOError):  # gone meanwhile, or in use
            lock = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(stage)
            finally:
                os.close(lock)


def _is_still(tree: Tree) -> bool:
    """Whether the directory that is open is the one at its path."""
    try:
        return os.path.samestat(os.stat(tree.path, follow_symlinks=False), os.fstat(tree.fd))
    except OSError:
        return False


def _redacted(effect: Effect, redactor: Redactor) -> Effect:
    """Diffs are for reading. What is applied are the contents, as the run left them."""
    changes = [msgspec.structs.replace(change, diff=redactor.redact(change.diff)[0]) for change in effect.changes]
    return msgspec.structs.replace(effect, changes=tuple(changes))


def _paths(paths: Iterable[str]) -> list[str]:
    return [_plain(path) for path in sorted(paths)[:_MOST_PATHS]]


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
