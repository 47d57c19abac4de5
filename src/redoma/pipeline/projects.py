"""Runs in a project, and decisions about their changes.

- `Projects.run` over a project (`overlay`) leaves the project alone. What the run would change is its effect, which is
  kept, with its contents, until it is applied or discarded.
- `Projects.run` in the project itself (`direct`), or a risky run in any directory of the host, has a checkpoint
  instead: everything is rolled back unless the run succeeds.
- `apply`, `discard` and `undo` decide about a kept effect. Policy decided, on the request, whether a person must
  approve; what they approve is the effect.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from .. import telemetry
from ..approval import Ask, Gate, Verdict, configuration_digest
from ..approval.ask import ask_of, decode, encode
from ..backends.base import Backend, Control, Outcome, OverlayEntry, Sink, run_over
from ..lib import files
from ..lib.errors import ApprovalError, BackendError, Pending, WorkspaceError
from ..lib.text import valid_utf8
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
from .intake import Treatment
from .results import WorkspaceOutcome, requests_shown

Record = Callable[[str, str, Mapping[str, Any]], None]
_MAX_PATHS, _MAX_REASON = 1000, 2000  # paths, and characters of a reason, in one record
_STAGE = "stage-"
_LASTS = "a process runs for as long as whoever started it likes, so it has a checkpoint only if that is asked for"


class Judge(Protocol):
    """Evaluates a request with the policy: `AsyncExecutor.check`."""

    def __call__(
        self,
        request: Request,
        policy: str | None = None,
        *,
        reach: Reach | None = None,
        live_input: bool = False,
        entry: str = "",
    ) -> Evaluation: ...


class Reader(Protocol):
    """Reads what a session has changed so far: see `Control.read_changes`."""

    def __call__(self, stage: str, /) -> Awaitable[tuple[OverlayEntry, ...]]: ...


class Keeping(msgspec.Struct, frozen=True):
    """Under which name an effect of a session is kept, and what it was made by."""

    id: str
    session: str
    requester: str
    command: str
    judged: tuple[Judged, ...]
    """Its runs, judged. Empty if they can't be judged again: then only a person can apply the effect."""


def changes_in(state: Path | None) -> Changes:
    """Return the kept changes of a state directory. Raises `WorkspaceError` without one."""
    if state is None:
        raise WorkspaceError(
            "changes can't be kept", why="the configuration names no state directory", next="give it `state`"
        )
    return Changes(state / "changes")


class Projects:
    """Runs requests in projects, and applies, discards and undoes their changes. Each decision is recorded."""

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
        """Set up the stage.

        Args:
            state: Where effects and checkpoints are kept; without it there are no runs over projects.
            record: Writes one record to the audit log; raises if it can't.
            judge: Evaluates a request under the current policy.
            user: The person who applies, discards or undoes by hand.
            home: A directory that is never a project; nor is any directory above it.
            separate: Whether a person who applies by hand needs another one to approve.
            own: Where else we write during a run, such as the audit log. A checkpoint leaves that out.
        """
        self._state, self._record, self._judge, self._own = state, record, judge, tuple(own)
        self._user, self._home, self._separate = user, home, separate
        self.rolled_back: tuple[str, Restored] | None = None
        """The last project that was rolled back, and the result: a cancelled run has no result to report it in."""

    @property
    def changes(self) -> Changes:
        return changes_in(self._state)

    async def run(
        self,
        backend: Backend,
        request: Request,
        sink: Sink,
        control: Control | None,
        *,
        treatment: Treatment,
        judged: Judged,
        redactor: Redactor,
    ) -> tuple[Outcome, WorkspaceOutcome]:
        """Run a request in its workspace. Returns the outcome, and what became of the workspace. Raises
        `WorkspaceError` if it can't run there.
        """
        if request.workspace != "scratch":
            self._must_be_a_project(request.project or "")
        if treatment == "checkpoint":
            return await self._guarded(backend, request, sink, control, redactor)
        if treatment != "overlay":
            return await backend.run(request, sink, control), WorkspaceOutcome()
        # Opened before anything runs: afterwards we look at this directory, even if its path leads elsewhere by then.
        with staged(self.changes.directory.parent) as stage, Tree(request.project or "") as tree:
            began = time.time()
            outcome = await run_over(backend)(request, sink, control, str(stage))
            look = partial(self._effect, tree, request, outcome, stage, began, judged, redactor)
            return outcome, WorkspaceOutcome(effect=await asyncio.to_thread(look))

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
        """Return what the run would change. It is kept, if there is anything, with the question for a person who may
        have to approve it.
        """
        if outcome.entries is None:
            return None
        _must_be_still_at(request.project or "", tree, otherwise="run it again")
        effect = _redacted(effect_of(tree, outcome.entries, stage, began), redactor)
        if outcome.network:
            effect = msgspec.structs.replace(effect, network=requests_shown(outcome.network, redactor))
        if effect.changes:
            about = {
                "command": redactor.redact(request.text)[0][:2000],
                "requester": request.requester,
                "ask": to_ask(judged),
            }
            self.changes.keep(request.id, effect, stage, about)
        return effect

    async def of_session(
        self,
        read: Reader,
        tree: Tree,
        began: float,
        applied: Mapping[str, float],
        redactor: Redactor,
        keep: Keeping | None,
    ) -> Effect:
        """What a session that is alive has changed in its project so far. It is kept, if anything and if asked for.

        Raises `WorkspaceError` if it can't be told."""
        with staged(self.changes.directory.parent) as stage:
            entries = await read(str(stage))
            look = partial(self._effect_of_session, tree, entries, stage, began, applied, redactor, keep)
            return await asyncio.to_thread(look)

    @telemetry.looked_at
    def _effect_of_session(
        self,
        tree: Tree,
        entries: tuple[OverlayEntry, ...],
        stage: Path,
        began: float,
        applied: Mapping[str, float],
        redactor: Redactor,
        keep: Keeping | None,
    ) -> Effect:
        _must_be_still_at(tree.path, tree, otherwise="open another session")
        effect = _redacted(effect_of(tree, entries, stage, began, applied), redactor)
        if effect.changes and keep is not None:
            asks = [to_ask(judged) for judged in keep.judged]
            about = {
                "command": keep.command,
                "requester": keep.requester,
                "ask": asks[0] if asks and all(asks) else "",
                "others": asks[1:],
            }
            self.changes.keep(keep.id, effect, stage, about)
            self._record(
                "session.effect",
                keep.id,
                {
                    "session": keep.session,
                    "effect": effect.digest,
                    "paths": _paths(each.path for each in effect.changes),
                },
            )
        return effect

    async def _guarded(
        self, backend: Backend, request: Request, sink: Sink, control: Control | None, redactor: Redactor
    ) -> tuple[Outcome, WorkspaceOutcome]:
        """Run it in a directory of the host itself, which is rolled back unless the run succeeds.

        If the directory is not a project, or too large, there can be no checkpoint. A run that requested one does not
        begin. One that would only have had one by default does begin, because a person has approved it, and the result
        says so. Problems that can be fixed (another run works there, an earlier one was interrupted, the disk is full)
        stop both.
        """
        wanted = request.checkpoint or request.workspace == "direct"
        if control is not None and control.lasts and not wanted:
            return await backend.run(request, sink, control), WorkspaceOutcome(no_checkpoint=_LASTS)
        guard, why = None, ""
        try:
            async with AsyncExitStack() as stack:
                try:
                    tree = stack.enter_context(self.opened(request.touches or ""))
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
                    return await backend.run(request, sink, control), WorkspaceOutcome(no_checkpoint=why)
                # the directory that was checked, even if a link on the way has changed
                if request.workspace == "scratch":
                    request = msgspec.structs.replace(request, cwd=tree.path)
                outcome = await backend.run(request, sink, control)
                guard.succeeded = outcome.status is Status.OK
        finally:
            if guard is not None and guard.restored is not None:  # also for a cancelled run, which has no result
                self.rolled_back = guard.checkpoint.project, guard.restored
                self._record(
                    "rollback", request.id, _rollback_record(guard.restored, guard.checkpoint.project, redactor)
                )
        back = guard.restored
        rollback = None if back is None else {**back.left, **back.failed}
        effect = guard.effect and _redacted(guard.effect, redactor)
        return outcome, WorkspaceOutcome(effect=effect, rollback=rollback)

    def opened(self, path: str) -> Tree:
        """Open a project. Raises `WorkspaceError` if `path` can't be one."""
        tree = Tree(path)
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
        *,
        paths: Iterable[str] | None,
        named: Sequence[str],
        exact: bool,
        by_hand: bool,
        wait: bool,
    ) -> Kept:
        """Apply kept changes, all or those at `paths`, once they are approved; see `Changes.apply`.

        `by_hand`: the user applies them, and needs no other person's approval unless roles are separate. `wait`: wait
        for an approver. Raises `ApprovalError` and `WorkspaceError`; then nothing was changed.
        """
        kept = await asyncio.to_thread(self.changes.get, id)
        paths = None if paths is None else tuple(paths)
        try:
            self._must_be_a_project(kept.effect.project)
            approver = await self._approved(
                gate, kept, paths=paths, named=named, exact=exact, by_hand=by_hand, wait=wait
            )
        except (ApprovalError, WorkspaceError) as error:
            self._record("apply.refused", kept.id, {"why": valid_utf8(str(error))[:_MAX_REASON]})
            raise
        fields = {"effect": kept.digest, "project": kept.effect.project, "approver": approver, "named": list(named)}
        self._record("apply", kept.id, fields)  # what can't be recorded isn't done
        try:
            done = await asyncio.to_thread(partial(self.changes.apply, kept.id, paths, named, exact=exact))
        except WorkspaceError as error:
            self._record("apply.refused", kept.id, {"why": valid_utf8(str(error))[:_MAX_REASON]})
            raise
        self._record("applied", kept.id, {"paths": _paths(done.applied), "left": len(done.left), "state": done.state})
        return done

    async def _approved(
        self,
        gate: Gate | None,
        kept: Kept,
        *,
        paths: tuple[str, ...] | None,
        named: Sequence[str],
        exact: bool,
        by_hand: bool,
        wait: bool,
    ) -> str:
        """Return the approver; empty if the current policy allows the request by itself. Raises `ApprovalError` if it
        is not approved.
        """
        if not kept.about.get("ask"):
            if by_hand:
                return self._user
            raise ApprovalError(
                "the changes were not applied",
                why="the request that made them holds a secret, so it was not kept, and can't be judged now",
                next="look at them, and apply them by hand",
            )
        # A session has several that made the effect: the strictest verdict on any of them counts.
        asks = (kept.about["ask"], *kept.about.get("others", ()))
        weighed = [self._judged(decode(ask), kept.effect, paths=paths, named=named, exact=exact) for ask in asks]
        judged = max(weighed, key=lambda each: each.evaluation.decision)
        decision = judged.evaluation.decision
        if decision is Decision.FORBID:
            finding = judged.evaluation.deciding[0]
            raise ApprovalError("the changes were not applied", why=finding.reason, next=finding.suggestion)
        if decision is Decision.ALLOW or (by_hand and not self._separate):
            return self._user if by_hand else ""
        verdict = await gate.ask(judged, wait=wait) if gate is not None else Verdict(status=Status.DENIED)
        if verdict.status is Status.PENDING:
            step = f"redoma approvals approve {verdict.id}, then apply them again"
            raise Pending("the changes were not applied", verdict.id, why=verdict.error, next=step)
        if verdict.status is not None or verdict.approval is None:
            raise ApprovalError(
                "the changes were not applied",
                why=verdict.error or "nobody has said yes",
                next="ask again, configure `approval.approver`, or apply them by hand",
            )
        return verdict.approval.approver

    def _judged(
        self, ask: Ask, effect: Effect, *, paths: tuple[str, ...] | None, named: Sequence[str], exact: bool
    ) -> Judged:
        """Return what a person is asked about: this effect, or a part of it, under the current policy."""
        below = "" if exact else " and what is below"
        parts = [f"only {', '.join(paths)}{below}"] if paths is not None else []
        parts += [f"also the protected {', '.join(named)}"] if named else []
        reason = f"{ask.request.reason} (to apply: {'; '.join(parts)})".strip() if parts else ask.request.reason
        request = msgspec.structs.replace(ask.request, reason=reason)
        submission = msgspec.structs.replace(ask.submission, request=request)
        evaluation = self._judge(
            submission.judged, ask.policy, reach=EFFECT, live_input=ask.unread_input, entry=ask.entry
        )
        return Judged(
            submission=submission,
            evaluation=evaluation,
            level=ask.level if evaluation.decision is Decision.ALLOW else Level.L4,
            configuration_digest=configuration_digest(
                "apply", sorted(named), None if paths is None else sorted(paths), exact
            ),
            # The files as they were when it ran: that run has made the effect.
            executed=ExecutedFiles(files=ask.scripts, unbound=ask.unbound),
            effect=effect,
        )

    @telemetry.effect("redoma.discard")
    async def discard(self, id: str) -> Kept:  # noqa: A002
        """Discard what is not applied of kept changes; see `Changes.discard`."""
        kept = await asyncio.to_thread(self.changes.get, id)
        self._record("discard", kept.id, {"effect": kept.digest, "by": self._user})
        kept = await asyncio.to_thread(self.changes.discard, kept.id)
        self._record("discarded", kept.id, {"effect": kept.digest})
        return kept

    @telemetry.effect("redoma.undo")
    async def undo(self, id: str) -> Kept:  # noqa: A002
        """Restore the paths that were applied; see `Changes.undo`."""
        kept = await asyncio.to_thread(self.changes.get, id)
        self._record("undo", kept.id, {"effect": kept.digest, "by": self._user})
        done = await asyncio.to_thread(self.changes.undo, kept.id)
        self._record("undone", kept.id, {"paths": _paths(kept.applied)})
        return done


@contextmanager
def staged(place: Path) -> Iterator[Path]:
    """Yield a directory in `place` for what a run leaves, and remove it at the end. Also removes those of killed Redoma
    processes. Raises `BackendError` if none can be made.
    """
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
    """Return the question that may have to be asked, or judged again, before the changes are applied, to be stored with
    the effect. Empty if it contains a secret; then only a person can apply them.
    """
    now = datetime.now(UTC)  # the question is made again with new times when it is asked
    try:
        return encode(ask_of(judged, b"", id="", created=now, expires=now))
    except ApprovalError:
        return ""


def _rollback_record(restored: Restored, project: str, redactor: Redactor) -> dict[str, Any]:
    """Return a rollback for the audit log. The run chose the names, so they may contain anything."""
    left = {valid_utf8(path): why for path, why in sorted({**restored.left, **restored.failed}.items())[:_MAX_PATHS]}
    shown: dict[str, Any] = redactor.redact_data({"paths": _paths(restored.paths), "left": left})[0]
    return {"project": valid_utf8(project), **shown}


def _must_be_still_at(path: str, tree: Tree, *, otherwise: str) -> None:
    """Raise `WorkspaceError` if the open directory is not the one at this path any more; `otherwise` is what to do."""
    try:
        same = tree.path == path and os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(tree.fd))
    except OSError:
        same = False
    if not same:
        why = f"{path} is another directory than when it began"
        raise WorkspaceError("what it did can't be told", why=why, next=otherwise)


def _redacted(effect: Effect, redactor: Redactor) -> Effect:
    """Return an effect without secrets in its diffs. Diffs are only for reading: contents are what is applied."""
    changes = [msgspec.structs.replace(change, diff=redactor.redact(change.diff)[0]) for change in effect.changes]
    return msgspec.structs.replace(effect, changes=tuple(changes))


def _paths(paths: Iterable[str]) -> list[str]:
    return [valid_utf8(path) for path in sorted(paths)[:_MAX_PATHS]]
