"""Runs over a project: a stage before, an effect after; and what is decided of it later.

An effect is what a run would do. It is kept, with its contents, until somebody applies or discards it. Whether a person
has to say yes was decided by policy, on the request; what they say yes to is the effect.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from .approval import Ask, Case, Gate, Verdict, setting_of
from .approval.ask import decode, encode, stored
from .backends.base import Outcome
from .backends.scratch import remove_tree
from .errors import ApprovalError, BackendError, WorkspaceError
from .models import Decision, Effect, Evaluation, Request, Result, Status
from .sensitive import Redactor
from .workspace.effects import effect_of
from .workspace.kept import Changes, Kept
from .workspace.protected import must_be_a_project
from .workspace.tree import Tree

Record = Callable[[str, str, Mapping[str, Any]], None]
Judge = Callable[[Request, str | None], Evaluation]
_MOST_PATHS = 1000  # in one record


class Over:
    """One run over one project, from its stage to its effect."""

    def __init__(self, request: Request, changes: Changes, stage: Path) -> None:
        self.request, self.changes, self.stage = request, changes, stage
        self.began = time.time()

    async def finish(self, result: Result, outcome: Outcome, case: Case, redactor: Redactor) -> Result:
        """With its effect, which is kept if there is any, beside the case that a person may have to decide on."""

        def look() -> Effect:
            with Tree(self.request.project or "") as tree:
                effect = effect_of(tree, outcome.entries, self.stage, self.began)
            effect = _redacted(effect, redactor)
            if effect.changes:
                about = {"command": redactor.redact(self.request.text)[0][:2000], "ask": to_ask(case)}
                self.changes.keep(result.id, effect, self.stage, about)
            return effect

        return msgspec.structs.replace(result, effect=await asyncio.to_thread(look))


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
        self, state: Path | None, record: Record, judge: Judge, *, user: str, home: Path | None, separate: bool
    ) -> None:
        self._state, self._record, self._judge = state, record, judge
        self._user, self._home, self._separate = user, home, separate

    @property
    def changes(self) -> Changes:
        return changes_in(self._state)

    @contextmanager
    def over(self, request: Request) -> Iterator[Over | None]:
        """For a run in an overlay; None for any other. What is not kept in the end is gone."""
        if request.workspace == "scratch":
            yield None
            return
        must_be_a_project(request.project or "", home=self._home, private=[self._state] if self._state else ())
        if request.workspace != "overlay":
            yield None
            return
        changes = self.changes
        try:
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)  # type: ignore[union-attr]  # `changes` has looked
            stage = Path(tempfile.mkdtemp(prefix="stage-", dir=self._state))
        except OSError as error:
            why = error.strerror or str(error)
            raise BackendError("there is no place for what it writes", why=why, next="free space there") from error
        try:
            yield Over(request, changes, stage)
        finally:
            remove_tree(stage)

    async def apply(
        self,
        gate: Gate | None,
        id: str,  # noqa: A002
        paths: Iterable[str] | None,
        named: Sequence[str],
        by_hand: bool,
        wait: bool,
    ) -> Kept:
        kept = await asyncio.to_thread(self.changes.get, id)
        approver = self._user if by_hand else ""
        paths = None if paths is None else tuple(paths)
        if kept.about.get("ask") and (not by_hand or self._separate):
            case = self._case(decode(kept.about["ask"]), kept.effect, paths, named)
            approver = await self._approved(gate, case, wait)
        told = {"effect": kept.digest, "project": kept.effect.project, "approver": approver, "named": list(named)}
        self._record("apply", kept.id, told)  # what can't be recorded isn't done
        try:
            done = await asyncio.to_thread(self.changes.apply, kept.id, paths, named)
        except WorkspaceError as error:
            self._record("apply.refused", kept.id, {"why": _plain(str(error))[:_MOST_PATHS]})
            raise
        self._record("applied", kept.id, {"paths": _paths(done.applied), "left": len(done.left), "state": done.state})
        return done

    def _case(self, ask: Ask, effect: Effect, paths: tuple[str, ...] | None, named: Sequence[str]) -> Case:
        """What is put to somebody: this effect, or so much of it, under the policy as it is now."""
        parts = [f"only {', '.join(paths)}"] if paths is not None else []
        parts += [f"also the protected {', '.join(named)}"] if named else []
        reason = f"{ask.request.reason} (to apply: {'; '.join(parts)})".strip() if parts else ask.request.reason
        setting = setting_of("apply", sorted(named), None if paths is None else sorted(paths))
        request = msgspec.structs.replace(ask.request, reason=reason)
        return Case(request, self._judge(ask.request, ask.policy), ask.level, effect, ask.policy, setting=setting)

    async def _approved(self, gate: Gate | None, case: Case, wait: bool) -> str:
        if case.evaluation.decision is Decision.FORBID:
            finding = case.evaluation.deciding[0]
            raise ApprovalError("the changes were not applied", why=finding.reason, next=finding.suggestion)
        verdict = await gate.ask(case, wait=wait) if gate is not None else Verdict(status=Status.DENIED)
        if verdict.status is not None or verdict.approval is None:
            raise ApprovalError(
                "the changes were not applied",
                why=verdict.error or "nobody has said yes",
                next=f"redoma approvals approve {verdict.id}, then apply them again"
                if verdict.id
                else "configure `approval.approver`, or apply them by hand",
            )
        return verdict.approval.approver

    async def discard(self, id: str) -> Kept:  # noqa: A002
        kept = await asyncio.to_thread(self.changes.discard, id)
        self._record("discarded", kept.id, {"effect": kept.digest, "by": self._user})
        return kept

    async def undo(self, id: str) -> Kept:  # noqa: A002
        kept = await asyncio.to_thread(self.changes.get, id)
        self._record("undo", kept.id, {"effect": kept.digest, "by": self._user})
        done = await asyncio.to_thread(self.changes.undo, kept.id)
        self._record("undone", kept.id, {"paths": _paths(kept.applied)})
        return done


def to_ask(case: Case) -> str:
    """What will have to be asked, to be kept beside the effect; nothing where policy has allowed it."""
    if case.evaluation.decision is not Decision.PROMPT:
        return ""
    now = datetime.now(UTC)  # it is asked later, and then anew
    return encode(stored(case, b"", id="", created=now, expires=now))


def _redacted(effect: Effect, redactor: Redactor) -> Effect:
    """Diffs are for reading. What is applied are the contents, as the run left them."""
    changes = [msgspec.structs.replace(change, diff=redactor.redact(change.diff)[0]) for change in effect.changes]
    return msgspec.structs.replace(effect, changes=tuple(changes))


def _paths(paths: Iterable[str]) -> list[str]:
    return [_plain(path) for path in sorted(paths)[:_MOST_PATHS]]


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
