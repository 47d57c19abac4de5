"""A ledger in its own directory, a clock that stands still, and cases to decide on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from redoma.approval import Approver, Ask, Callback, Gate, Ledger
from redoma.approval.store import open_store
from redoma.models import Approval, Change, Effect, Judged, Request, Submission, Version
from redoma.policy import evaluate, load

RISKY = "pip install requests"
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Stage:
    """The state of one installation. A second one at the same path is the same installation after a restart."""

    def __init__(self, directory: Path, *, separate: bool = False) -> None:
        self.path = directory / "state" / "redoma.db"
        self.now = START
        self.audit: list[tuple[str, str, dict[str, Any]]] = []
        self.ledger = Ledger(
            open_store(self.path.parent), self._record, separate=separate, expires=3600, now=lambda: self.now
        )

    def _record(self, kind: str, run: str, data: Mapping[str, Any]) -> None:
        self.audit.append((kind, run, dict(data)))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.audit]

    def gate(self, approver: Approver | None = None, **options: Any) -> Gate:
        return Gate(self.ledger, approver, **{"timeout": 300, "expires": 3600, **options})

    def later(self, **time: float) -> None:
        self.now += timedelta(**time)

    def yes(self, ask: Ask, approver: str = "bob", **said: Any) -> Approval:
        said = {"reason": "looked at it", "at": self.now, "expires": self.now + timedelta(hours=1), **said}
        return ask.answer("approved", approver=approver, **said)

    def no(self, ask: Ask, approver: str = "bob", reason: str = "not today") -> Approval:
        return ask.answer("denied", approver=approver, reason=reason, at=self.now)

    @property
    def approving(self) -> Callback:
        return Callback(self.yes)

    async def pending(self, case: Judged) -> str:
        """Ask without waiting. Returns the id."""
        verdict = await self.gate(self.approving).ask(case, wait=False)
        assert verdict.status == "pending"
        return verdict.id

    async def approved(self, case: Judged, **said: Any) -> str:
        """Ask without waiting, and approve it. Returns the id."""
        id = await self.pending(case)  # noqa: A001 - what it is called everywhere
        self.ledger.answer(self.yes(self.ledger.load(id).ask, **said))
        return id


def case_of(code: str = RISKY, *, policy: str = "standard", effect: Effect | None = None, **fields: Any) -> Judged:
    """Return a case as the executor would make it, with the verdict of the real policy."""
    request = Request(**{"code": code, "language": "bash", "requester": "ana", "reason": "to test", **fields})
    return Judged(submission=Submission(request), evaluation=evaluate(load(policy), request), effect=effect)


def effect_of(content: str = "1" * 64, **fields: Any) -> Effect:
    after = Version(kind="file", mode=0o644, size=3, sha256=content)
    return Effect(**{"project": "/srv/app", "changes": (Change(path="a.txt", after=after, diff="+new\n"),), **fields})


def altered_case(case: Judged, **fields: Any) -> Judged:
    """Return the case with other values in some fields, including those of its submission."""
    of_submission = {name: fields.pop(name) for name in [*fields] if name in Submission.__struct_fields__}
    submission = msgspec.structs.replace(case.submission, **of_submission)
    return msgspec.structs.replace(case, submission=submission, **fields)
