"""Runs in a project, and what becomes of their changes.

- `Projects.run` over a project (`overlay`) leaves the project alone. What the run would change is its effect, which is
  kept, with its contents, until somebody applies or discards it.
- `Projects.run` in the project itself (`direct`), or a risky run in any directory of the host, has a checkpoint
  instead: everything is put back unless the run ends well.
- `apply`, `discard` and `undo` decide about a kept effect. Whether a person has to approve was decided by policy, on
  the request; what they approve is the effect.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from .. import telemetry
from ..approval import Ask, Gate, Verdict, setting_of
from ..approval.ask import ask_of, decode, encode
from ..backends.base import Backend, Control, Outcome, Sink, run_over
from ..lib import files
from ..lib.errors import ApprovalError, BackendError, WorkspaceError
from ..models import Decision, Effect, Evaluation, ExecutedFiles, Judged, Level, Request, Status
from ..models.reach import EFFECT, Reach
from ..redaction import Redactor
from ..workspace.checkpoint import guarded
from ..workspace.effects import effect_of
from ..workspace.kept import Changes, Kept
from ..workspace.protected import must_be_a_project
from ..workspace.restore import Restored
from ..workspace.snapshot import TooLarge
from ..workspace.tree import Tree

Record = Callable[[str, str, Mapping[str, Any]], None]
_MAX_PATHS, _MAX_REASON = 1000, 2000  # paths, and characters of a reason, in one record
_STAGE = "stage-"
_LASTS = "a process runs for as long as whoever started it likes, so it has a checkpoint only if that is asked for"


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
    """The kept changes of a state directory. Raises `WorkspaceError` without one."""
    if state is None:
        raise WorkspaceError(
            "changes can't be kept", why="the configuration names no state directory", next="give it `state`"
        )
    return Changes(state / "changes")


class Projects:
    """Runs requests in projects, and applies, discards and undoes what they would change. Each decision is recorded."""

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
        """Parameters:
        state: where effects and checkpoints are kept; without it there are no runs over projects.
        record: writes one record to the audit log; raises if it can't.
        judge: evaluates a request under the policy as it is now.
        user: who applies, discards or undoes by hand.
        home: a directory that is never a project, nor what holds it.
        separate: whether who applies by hand needs somebody else to approve.
        own: where else we write while something runs, such as the audit log. A checkpoint leaves that out.
        """
        self._state, self._record, self._judge, self._own = state, record, judge, tuple(own)
        self._user, self._home, self._separate = user, home, separate
        self.rolled_back: tuple[str, Restored] | None = None
        """The last project that was rolled back, and what came of it: a cancelled run has no result to say so."""

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
        """Run a request in its workspace. Returns the outcome, and fields for the result: `effect`, `rollback`,
        `no_checkpoint`. Raises `WorkspaceError` if it can't run there."""
        if request.workspace != "scratch":
            self._must_be_a_project(request.project or "")
        match request.workspace:
            case "overlay":
                # Opened before anything runs: afterwards we look at this directory, whatever has its path by then.
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
        """What the run would change. Kept, if anything, together with the case that a person may have to decide on."""
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
        """Run it in a directory of the host itself, which is put back as it was unless the run ends well.

        Where that is no project, or too large, there can be no checkpoint of it. A run that asked for one does not
        begin; one that would only have had one by default does, as a person has approved it, and the result says so.
        Whatever somebody can fix (another run works there, an earlier one was cut short, the disk is full) ends both.
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
        """Apply kept changes, all or those at `paths`, once they are approved; see `Changes.apply`.

        `by_hand`: the user applies them, and needs nobody else's approval unless roles are separate. `wait`: wait for
        an approver. Raises `ApprovalError` and `WorkspaceError`; then nothing was changed.
        """
        kept = await asyncio.to_thread(self.changes.get, id)
        paths = None if paths is None else tuple(paths)
        try:
            self._must_be_a_project(kept.effect.project)
            approver = await self._approved(gate, kept, paths, named, exact, by_hand, wait)
        except (ApprovalError, WorkspaceError) as error:
            self._record("apply.refused", kept.id, {"why": _plain(str(error))[:_MAX_REASON]})
            raise
        told = {"effect": kept.digest, "project": kept.effect.project, "approver": approver, "named": list(named)}
        self._record("apply", kept.id, told)  # what can't be recorded isn't done
        try:
            done = await asyncio.to_thread(partial(self.changes.apply, kept.id, paths, named, exact=exact))
        except WorkspaceError as error:
            self._record("apply.refused", kept.id, {"why": _plain(str(error))[:_MAX_REASON]})
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
        """Who approves that it is applied; empty where policy, as it is now, allows the request by itself. Raises
        `ApprovalError` if nobody does."""
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
        """Drop what is not applied of kept changes; see `Changes.discard`."""
        kept = await asyncio.to_thread(self.changes.get, id)
        self._record("discard", kept.id, {"effect": kept.digest, "by": self._user})
        kept = await asyncio.to_thread(self.changes.discard, kept.id)
        self._record("discarded", kept.id, {"effect": kept.digest})
        return kept

    @telemetry.effect("redoma.undo")
    async def undo(self, id: str) -> Kept:  # noqa: A002
        """Put back the paths that were applied; see `Changes.undo`."""
        kept = await asyncio.to_thread(self.changes.get, id)
        self._record("undo", kept.id, {"effect": kept.digest, "by": self._user})
        done = await asyncio.to_thread(self.changes.undo, kept.id)
        self._record("undone", kept.id, {"paths": _paths(kept.applied)})
        return done


@contextmanager
def staged(place: Path) -> Iterator[Path]:
    """A directory in `place` for what a run leaves, removed in the end. Also removes those of a Redoma that was killed.
    Raises `BackendError` if none can be made."""
    with ExitStack() as stack:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.sweep(place, _STAGE)
            stage = stack.enter_context(files.temporary_directory(place, _STAGE))
        except OSError as error:
            raise BackendError(
                "there is no place for what it writes", why=files.reason(error), next="free space there"
            ) from error
        stack.callback(files.remove_tree, stage)
        yield stage


def to_ask(judged: Judged) -> str:
    """What may have to be asked, or judged again, before it is applied: to be kept beside the effect. Nothing where it
    holds a secret; then only a person can apply it."""
    now = datetime.now(UTC)  # it is asked later, and then anew
    try:
        return encode(ask_of(judged, b"", id="", created=now, expires=now))
    except ApprovalError:
        return ""


def _is_guarded(request: Request, evaluation: Evaluation) -> bool:
    """Whether there is to be a checkpoint: as the request says, and else of what is risky. That is what policy wants a
    person to approve, and everything in a project itself."""
    if request.checkpoint is not None:
        return request.checkpoint
    return request.workspace == "direct" or evaluation.decision is Decision.PROMPT


def _told(restored: Restored, project: str, redactor: Redactor) -> dict[str, Any]:
    """A rollback for the audit log. The run chose the names, so they may hold anything."""
    left = {_plain(path): why for path, why in sorted({**restored.left, **restored.failed}.items())[:_MAX_PATHS]}
    told: dict[str, Any] = redactor.redact_data({"paths": _paths(restored.paths), "left": left})[0]
    return {"project": _plain(project), **told}


def _is_still(tree: Tree) -> bool:
    """Whether the directory that is open is the one at its path."""
    try:
        return os.path.samestat(os.stat(tree.path, follow_symlinks=False), os.fstat(tree.fd))
    except OSError:
        return False


def _redacted(effect: Effect, redactor: Redactor) -> Effect:
    """An effect without secrets in its diffs. Those are only for reading: what is applied are the contents."""
    changes = [msgspec.structs.replace(change, diff=redactor.redact(change.diff)[0]) for change in effect.changes]
    return msgspec.structs.replace(effect, changes=tuple(changes))


def _paths(paths: Iterable[str]) -> list[str]:
    return [_plain(path) for path in sorted(paths)[:_MAX_PATHS]]


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
