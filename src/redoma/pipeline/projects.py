"""Runs in a project: a stage or a checkpoint before, an effect after; and what is decided of it later.

An effect is what a run would do. It is kept, with its contents, until somebody applies or discards it. Whether a person
has to say yes was decided by policy, on the request; what they say yes to is the effect. A run in the project itself,
or a risky one in any directory of the host, has a checkpoint instead: everything is put back unless it ends well.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from .. import telemetry
from ..approval import Ask, Gate, Verdict, setting_of
from ..approval.ask import ask_of, decode, encode
from ..backends.base import Backend, Control, Outcome, Sink, run_over
from ..backends.scratch import remove_tree
from ..lib.errors import ApprovalError, BackendError, WorkspaceError
from ..models import Decision, Effect, Evaluation, ExecutedFiles, Judged, Level, Request, Status
from ..models.reach import EFFECT, Reach
from ..redaction import Redactor
from ..workspace.checkpoint import guarded
from ..workspace.effects import effect_of
from ..workspace.kept import Changes, Kept
from ..workspace.protected import must_be_a_project
from ..workspace.restoring import Restored
from ..workspace.snapshot import TooLarge
from ..workspace.tree import Tree

Record = Callable[[str, str, Mapping[str, Any]], None]
_MOST_PATHS, _LONGEST = 1000, 2000  # paths, and characters of a reason, in one record
_STAGE = "stage-"
_LASTS = "a process goes on for as long as whoever started it likes, so it has one only if that is asked for"


class Judge(Protocol):
    """What policy says of a request: `AsyncExecutor.check`."""

    def __call__(
        self,
        request: Request,
        policy: str | None = None,
        *,
        reach: Reach | None = None,
        live_input: bool = False,
        entry: str = "",
    ) -> Evaluation: ...


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
        self.rolled_back: tuple[str, Restored] | None = None
        """The last project that was, and what came of it: of a run that is cancelled no result says so."""

    @property
    def changes(self) -> Changes:
        return changes_in(self._state)

    async def run(
        self,
        backend: Backend,
        request: Request,
        sink: Sink,
        control: Control | None,
        judged: Judged,
        redactor: Redactor,
    ) -> tuple[Outcome, dict[str, Any]]:
        """Run it where its workspace is; and what the result has to say of that, beside the outcome."""
        if request.workspace != "scratch":
            self._must_be_a_project(request.project or "")
        match request.workspace:
            case "overlay":
                # Opened before anything runs, and looked at by what is open: whatever has its path afterwards.
                with staged(self.changes.directory.parent) as stage, Tree(request.project or "") as tree:
                    began = time.time()
                    outcome = await run_over(backend)(request, sink, control, str(stage))
                    look = partial(self._effect, tree, request, outcome, stage, began, judged, redactor)
                    return outcome, {"effect": await asyncio.to_thread(look)}
            case "scratch" | "direct" if request.touches is not None and _is_guarded(request, judged.evaluation):
                return await self._guarded(backend, request, sink, control, redactor)
        return await backend.run(request, sink, control), {}

    @telemetry.looked_at
    def _effect(
        self,
        tree: Tree,
        request: Request,
        outcome: Outcome,
        stage: Path,
        began: float,
        judged: Judged,
        redactor: Redactor,
    ) -> Effect | None:
        """It is kept if there is any, beside what a person may have to decide on."""
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
            about = {"command": redactor.redact(request.text)[0][:2000], "ask": to_ask(judged)}
            self.changes.keep(request.id, effect, stage, about)
        return effect

    async def _guarded(
        self, backend: Backend, request: Request, sink: Sink, control: Control | None, redactor: Redactor
    ) -> tuple[Outcome, dict[str, Any]]:
        """In a directory of the host itself, which is put back as it was unless the run ends well.

        Where that is no project, or too large, there can be no checkpoint of it. A run that was to have one does not
        begin; one that would only have had one by default does, as a person has said yes to it, and the result says so.
        Whatever somebody can mend (another run works there, an earlier one was cut short, the disk is full) ends both.
        """
        wanted = request.checkpoint or request.workspace == "direct"
        if control is not None and control.lasts and not wanted:
            return await backend.run(request, sink, control), {"no_checkpoint": _LASTS}
        guard, why = None, ""
        try:
            async with AsyncExitStack() as stack:
                try:
                    tree = stack.enter_context(self._project(request.touches or ""))
                    state = self.changes.directory.parent
                    guarding = guarded(tree, state / "checkpoints", exclude=[state, *self._own])
                    guard = await stack.enter_async_context(guarding)
                except (WorkspaceError, TooLarge) as error:
                    if request.workspace == "direct":
                        raise
                    why = redactor.redact(f"{error.what}: {error.why}")[0]
                    if wanted:
                        step = "run it in the directory of one project, or leave `checkpoint` out"
                        raise WorkspaceError("there is no checkpoint, so nothing ran", why=why, next=step) from error
                if guard is None:
                    return await backend.run(request, sink, control), {"no_checkpoint": why}
                if request.workspace == "scratch":  # where it was looked at, whatever a link on the way says by now
                    request = msgspec.structs.replace(request, cwd=tree.path)
                outcome = await backend.run(request, sink, control)
                guard.succeeded = outcome.status is Status.OK
        finally:
            if guard is not None and guard.restored is not None:  # also of a run that nobody hears of: it was cancelled
                self.rolled_back = guard.checkpoint.project, guard.restored
                self._record("rollback", request.id, _told(guard.restored, guard.checkpoint.project, redactor))
        back = guard.restored
        rollback = None if back is None else {**back.left, **back.failed}
        return outcome, {"effect": guard.effect and _redacted(guard.effect, redactor), "rollback": rollback}

    def _project(self, place: str) -> Tree:
        tree = Tree(place)
        try:
            self._must_be_a_project(tree.path)
        except BaseException:
            tree.close()
            raise
        return tree

    def _must_be_a_project(self, path: str) -> None:
        must_be_a_project(path, home=self._home, private=[self._state] if self._state else ())

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
            self._must_be_a_project(kept.effect.project)
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
        judged = self._judged(decode(kept.about["ask"]), kept.effect, paths, named, exact)
        decision = judged.evaluation.decision
        if decision is Decision.FORBID:
            finding = judged.evaluation.deciding[0]
            raise ApprovalError("the changes were not applied", why=finding.reason, next=finding.suggestion)
        if decision is Decision.ALLOW or (by_hand and not self._separate):
            return self._user if by_hand else ""
        verdict = await gate.ask(judged, wait=wait) if gate is not None else Verdict(status=Status.DENIED)
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

    def _judged(
        self, ask: Ask, effect: Effect, paths: tuple[str, ...] | None, named: Sequence[str], exact: bool
    ) -> Judged:
        """What is put to somebody: this effect, or so much of it, under the policy as it is now."""
        below = "" if exact else " and what is below"
        parts = [f"only {', '.join(paths)}{below}"] if paths is not None else []
        parts += [f"also the protected {', '.join(named)}"] if named else []
        reason = f"{ask.request.reason} (to apply: {'; '.join(parts)})".strip() if parts else ask.request.reason
        request = msgspec.structs.replace(ask.request, reason=reason)
        submission = msgspec.structs.replace(ask.submission, request=request)
        evaluation = self._judge(
            submission.judged, ask.policy, reach=EFFECT, live_input=ask.live_input, entry=ask.entry
        )
        return Judged(
            submission=submission,
            evaluation=evaluation,
            level=ask.level if evaluation.decision is Decision.ALLOW else Level.L4,
            setting=setting_of("apply", sorted(named), None if paths is None else sorted(paths), exact),
            # The files as they were when it ran: that run has made the effect.
            executed=ExecutedFiles(files=ask.scripts, unbound=ask.unbound),
            effect=effect,
        )

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


@contextmanager
def staged(place: Path) -> Iterator[Path]:
    """A directory for what a run leaves. What is not kept in the end is gone; what a killed Redoma has left, too, with
    the next that is made there."""
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


def to_ask(judged: Judged) -> str:
    """What may have to be asked, or judged again, before it is applied: to be kept beside the effect. Nothing where it
    holds a secret; then only a person can apply it."""
    now = datetime.now(UTC)  # it is asked later, and then anew
    try:
        return encode(ask_of(judged, b"", id="", created=now, expires=now))
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


def _is_guarded(request: Request, evaluation: Evaluation) -> bool:
    """Whether there is to be a checkpoint: as was asked for, and else of what is risky. That is what policy wants a
    person's yes for, and everything in a project itself."""
    if request.checkpoint is not None:
        return request.checkpoint
    return request.workspace == "direct" or evaluation.decision is Decision.PROMPT


def _told(restored: Restored, project: str, redactor: Redactor) -> dict[str, Any]:
    """For the record. The run chose the names, so they may hold anything."""
    left = {_plain(path): why for path, why in sorted({**restored.left, **restored.failed}.items())[:_MOST_PATHS]}
    told: dict[str, Any] = redactor.redact_data({"paths": _paths(restored.paths), "left": left})[0]
    return {"project": _plain(project), **told}


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
