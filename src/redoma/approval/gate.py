"""Decides whether a submission that needs a person may run: by a pin, by an unused approval, or by asking now."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

import msgspec

from .. import telemetry
from ..lib.errors import Absent, ApprovalError, InvalidRequest, RedomaError
from ..lib.sqlite import Store
from ..lib.text import valid_utf8
from ..models import Approval, Judged, Request, Status
from .approvers import NOBODY, Approver, Deny, Queue
from .ask import Ask, ask_of, digest_of
from .ledger import Audit, Ledger, LedgerEntry, changed_files, unusable


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a submission may run, or how it ends instead."""

    status: Status | None = None
    """None if it may run, now and once."""
    approval: Approval | None = None
    id: str = ""
    """The id of the question, if one was asked."""
    error: str = ""
    alarm: bool = False
    """Whether it was refused because something else is pinned under its label."""
    nobody: bool = False
    """Whether it was refused because no person could be asked."""


class Gate:
    """Asks an approver, and keeps questions and answers in a ledger.

    `timeout`: for how many seconds a run waits for an answer. `expires`: for how many seconds a question can be
    answered if no run waits for it. `notify` is called with each new question.
    """

    def __init__(
        self,
        ledger: Ledger,
        approver: Approver | None = None,
        *,
        timeout: float = 300.0,
        expires: float = 86400.0,
        notify: Callable[[Ask], Awaitable[None]] | None = None,
    ) -> None:
        self.ledger, self._approver = ledger, approver or Deny()
        self._timeout, self._expires, self._notify = timeout, expires, notify

    @classmethod
    def configured(
        cls,
        store: Store,
        audit: Audit,
        *,
        user: str,
        approver: str | Approver = "deny",
        timeout: float,
        expires: float,
        separate: bool,
        webhook: str | None,
    ) -> Gate:
        """Return a gate for the section `approval` of a configuration. `user`: the name of the person at the
        console.
        """
        ledger = Ledger(store, audit, separate=separate, expires=expires)
        chosen: Approver
        match approver:
            case "console":
                from .console import Console  # imported only where a question may be shown

                chosen = Console(user, ledger, timeout=timeout)
            case "queue":
                chosen = Queue(ledger, wait=timeout)
            case str():
                chosen = Deny()
            case _:
                chosen = approver
        notify = None
        if webhook:
            from .webhook import webhook as posting  # HTTP takes longer to import than everything else here

            notify = posting(webhook)
        return cls(ledger, chosen, timeout=timeout, expires=expires, notify=notify)

    def has_pin(self, request: Request) -> bool:
        """Return whether something is pinned under the request's label. If so, the request must be exactly that."""
        return bool(request.label) and self.ledger.pin_of(request.requester, request.label) is not None

    def pin_alarm(self, judged: Judged) -> Verdict | None:
        """Return a refusal if something else is pinned under the label; otherwise None. For submissions that policy
        allows or forbids, so that nobody is asked about them. Doesn't wait: writers don't block readers.
        """
        if not self.has_pin(judged.request):
            return None
        now = self.ledger.now()
        ask = ask_of(judged, self.ledger.key(), id=os.urandom(16).hex(), created=now, expires=now, kept=False)
        return self._alarm(ask, judged.request.secrets.values())

    async def ask(self, judged: Judged, *, wait: bool = True) -> Verdict:
        """Use a pin or an approval of exactly this submission, or ask the approver. Without `wait`, only leave the
        question in the ledger.

        Raises `StoreError` or `AuditError` if that can't be read or recorded; then nothing may run.
        """
        with telemetry.approval(judged.request.id) as report:
            try:
                return report(await self._ask(judged, wait))
            except ApprovalError as error:
                nobody = isinstance(error, Absent)
                kind = "approval.denied" if nobody else "approval.refused"
                self.ledger.audit(kind, judged.request.id, {"approval": None, "why": valid_utf8(str(error))})
                return report(Verdict(status=Status.DENIED, error=str(error), nobody=nobody))

    async def _ask(self, judged: Judged, wait: bool) -> Verdict:
        nobody = isinstance(self._approver, Deny)
        if nobody and not self.ledger.store.exists:
            raise Absent(NOBODY)  # nothing was ever approved here, so create no database
        ask = await asyncio.to_thread(self._new_ask, judged, self._timeout if wait else self._expires)
        if (verdict := await asyncio.to_thread(self._earlier_answer, ask)) is not None:
            return verdict
        if nobody:
            raise Absent(NOBODY)
        return await (self._ask_and_wait(ask) if wait else self._ask_later(ask))

    def _new_ask(self, judged: Judged, seconds: float) -> Ask:
        now = self.ledger.now()
        until = now + timedelta(seconds=seconds)
        return ask_of(judged, self.ledger.key(), id=os.urandom(16).hex(), created=now, expires=until)

    def _earlier_answer(self, ask: Ask) -> Verdict | None:
        """Return the verdict from a pin or an approval; None if a person must be asked."""
        if (alarm := self._alarm(ask)) is not None:
            return alarm
        entry = self.ledger.use_matching(ask.digest)
        return _approved(entry) if entry and entry.state == "approved" else None

    def _alarm(self, ask: Ask, secrets: Iterable[str] = ()) -> Verdict | None:
        pin = self.ledger.pin_of(ask.requester, ask.label)
        if pin is None or pin.ask.content == ask.content:
            return None
        self.ledger.alarm(ask, pin, secrets)
        files = changed_files(pin.ask, ask)
        named = f" (changed: {', '.join(map(ascii, files[:5]))})" if files else ""
        return Verdict(
            status=Status.DENIED,
            alarm=True,
            error=f"ALARM: the pinned script {ask.label!a} has changed{named}: this is not what was approved for good. "
            f"Next: find out who changed it; if it is right, `redoma approvals unpin {pin.ask.id}` and ask again",
        )

    def refuse_changed(self, judged: Judged, id: str) -> Verdict:  # noqa: A002 - as everywhere
        """Return the refusal of a submission that was approved or pinned, but whose executed files have changed
        since.
        """
        now = self.ledger.now()
        ask = ask_of(judged, self.ledger.key(), id=id, created=now, expires=now, kept=False)
        if (alarm := self._alarm(ask, judged.request.secrets.values())) is not None:
            return alarm
        why = "a file that it executes has changed since it was approved, and nothing was run"
        self.ledger.refuse(ask, why)
        return Verdict(status=Status.DENIED, id=id, error=f"{why}. Next: run it again: that asks for what it is now")

    async def _ask_later(self, ask: Ask) -> Verdict:
        """Leave the question in the ledger. `redeem` finds it there later, from any process."""
        posted, new = await asyncio.to_thread(self.ledger.post, ask, deferred=True)
        if new and self._notify is not None:
            await self._notify(posted)
        return _pending(posted)

    async def _ask_and_wait(self, ask: Ask) -> Verdict:
        await asyncio.to_thread(self.ledger.post, ask)
        try:
            if self._notify is not None:
                await self._notify(ask)
            try:
                answer, nobody = await self._answer(ask), False
            except Absent as error:
                answer, nobody = self._no(ask, str(error)), True
            verdict = await asyncio.to_thread(self._settle, ask, answer)
            ours = verdict.approval is not None and verdict.approval.approver == _OURSELVES
            return msgspec.structs.replace(verdict, nobody=nobody and ours)  # a person may have answered meanwhile
        except asyncio.CancelledError:
            with suppress(RedomaError):  # the question expires soon anyway; the cancellation has priority
                self.ledger.expire(ask.id)  # the run no longer waits, so no answer may be given
            raise

    async def _answer(self, ask: Ask) -> Approval | None:
        """Return the approver's answer; None if it gives none. If it fails or its answer is invalid, the answer is no.

        Raises `Absent` if no person can be asked.
        """
        try:
            answer: object = await self._approver.decide(ask)
        except Absent:
            raise
        except Exception as error:  # third-party code: its failure must not become a yes, nor look like a bug of ours
            return self._no(ask, f"the approver failed: {error!r}")
        if answer is None:
            return None
        if not isinstance(answer, Approval):
            return self._no(ask, f"the approver answered a {type(answer).__name__}, not an approval")
        if (answer.id, answer.digest) != (ask.id, ask.digest):
            return self._no(ask, "the approver answered something that it was not asked")
        if (wrong := unusable(answer)) is not None:
            return self._no(ask, f"the approver's answer can't be used: {wrong}")
        return answer

    def _no(self, ask: Ask, why: str) -> Approval:
        return ask.answer("denied", approver=_OURSELVES, reason=why[:_MAX_WHY], at=self.ledger.now())

    def _settle(self, ask: Ask, answer: Approval | None) -> Verdict:
        """Write the answer into the ledger, unless there is one already; then act on what the ledger says."""
        if answer is None:
            entry = self.ledger.expire(ask.id)
        elif (entry := self.ledger.load(ask.id)).state == "open":
            try:
                self.ledger.answer(answer)
            except ApprovalError as error:  # already recorded
                self.ledger.expire(ask.id)
                return Verdict(status=Status.DENIED, id=ask.id, error=str(error))
            entry = self.ledger.load(ask.id)
        if entry.state == "approved":
            entry = self.ledger.take(ask.id, ask.digest)
        return _verdict(entry, self._timeout)

    # --- later ---

    def recall(self, id: str, secrets: Mapping[str, str]) -> Ask:  # noqa: A002 - as everywhere
        """Return the question with this id. The caller must give the secrets of its request again, because they were
        not kept.

        Raises `ApprovalError` if there is no such question, or if the secrets have other names.
        """
        ask = self.ledger.load(id).ask
        if set(secrets) != set(ask.secrets):
            names = ", ".join(ask.secrets) or "none"
            self.ledger.refuse(ask, "the secrets are not those of the request")
            raise ApprovalError(
                f"{id} can't be resumed", why=f"its secrets are {names}", next="give exactly these again"
            )
        try:
            request = msgspec.structs.replace(ask.request, secrets=dict(secrets))
        except InvalidRequest:
            self.ledger.refuse(ask, "its secrets can't be used")
            raise
        return msgspec.structs.replace(ask, request=request)

    async def redeem(self, id: str, judged: Judged) -> Verdict:  # noqa: A002 - as everywhere
        """Use the approval of the question with this id, if `judged` is still exactly what was asked about."""
        with telemetry.approval(judged.request.id) as report:
            try:
                return report(_verdict(await asyncio.to_thread(self._redeem, id, judged), self._expires))
            except ApprovalError as error:  # already recorded
                return report(Verdict(status=Status.DENIED, error=str(error)))

    def _redeem(self, id: str, judged: Judged) -> LedgerEntry:  # noqa: A002 - as everywhere
        self.ledger.load(id)  # before looking for a key in a database that may not exist
        return self.ledger.take(id, digest_of(judged, self.ledger.key())[1])


_MAX_WHY = 1000
_OURSELVES = "redoma"
"""The approver's name if Redoma itself answers no, because no person did."""


def _approved(entry: LedgerEntry) -> Verdict:
    return Verdict(approval=entry.approval, id=entry.ask.id)


def _pending(ask: Ask) -> Verdict:
    return Verdict(
        status=Status.PENDING,
        id=ask.id,
        error=f"a person has to approve this: it waits as {ask.id} until {ask.expires:%Y-%m-%d %H:%M:%S} UTC",
    )


def _verdict(entry: LedgerEntry, seconds: float) -> Verdict:
    ask, approval = entry.ask, entry.approval
    match entry.state:
        case "approved":
            return _approved(entry)
        case "open":
            return _pending(ask)
        case "expired" if approval is None:
            error = f"a person has to approve this, and nobody has answered within {seconds:g} s"
            return Verdict(status=Status.EXPIRED, id=ask.id, error=error)
        case "expired":
            error = "a person has approved this, but the approval has expired"
            return Verdict(status=Status.EXPIRED, id=ask.id, approval=approval, error=error)
        case "denied":
            who, why = (approval.approver, approval.reason) if approval else ("somebody", "")
            error = why if who == _OURSELVES else f"{who} has denied it: {why}"
        case "used":
            error = "its approval has been used: one is good for one run"
        case _:
            error = "its approval was taken back"
    return Verdict(status=Status.DENIED, id=ask.id, approval=approval, error=error)
