"""Whether a submission may run: by a pin, by an approval, or by asking now."""

from __future__ import annotations

import asyncio
import secrets as random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

import msgspec

from .. import telemetry
from ..lib.errors import Absent, ApprovalError, InvalidRequest, RedomaError
from ..lib.sqlite import Store
from ..models import Approval, Judged, Request, Status
from .approvers import NOBODY, Approver, Deny, Queue
from .ask import Ask, ask_of, digest_of
from .book import Audit, Book, Entry, changed_files, unusable
from .console import Console


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it may go on, or how it ends."""

    status: Status | None = None
    """None: it may go on, now and once."""
    approval: Approval | None = None
    id: str = ""
    """Under which somebody was asked."""
    error: str = ""
    alarm: bool = False
    """Whether something else wants to run under the label of a pin."""


class Gate:
    """`timeout`: seconds that a run waits for an answer. `expires`: seconds that an approval can be used, and that a
    question nobody waits for can be answered."""

    def __init__(
        self,
        book: Book,
        approver: Approver | None = None,
        *,
        timeout: float = 300.0,
        expires: float = 86400.0,
        notify: Callable[[Ask], Awaitable[None]] | None = None,
    ) -> None:
        self.book, self._approver = book, approver or Deny()
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
        """With the section `approval` of a configuration; `user` is who sits at the console."""
        book = Book(store, audit, separate=separate)
        chosen: Approver
        match approver:
            case "console":
                chosen = Console(user, timeout=timeout, good_for=expires)
            case "queue":
                chosen = Queue(book, wait=timeout)
            case str():
                chosen = Deny()
            case _:
                chosen = approver
        notify = None
        if webhook:
            from .webhook import webhook as posting  # what speaks HTTP takes longer to load than all else here

            notify = posting(webhook)
        return cls(book, chosen, timeout=timeout, expires=expires, notify=notify)

    def watches(self, request: Request) -> bool:
        """Whether something is pinned under its label: then it is looked at whether this is that."""
        return bool(request.label) and self.book.pin_of(request.requester, request.label) is not None

    async def watch(self, judged: Judged) -> Verdict | None:
        """For what needs nobody's yes: the refusal of a script that is pinned and was changed, if it is one."""
        # Not in a thread: nobody who writes holds up a reader, and a request that is refused needs no event loop.
        if not self.watches(judged.request):
            return None
        now = self.book.now()
        ask = ask_of(judged, self.book.key(), id=random.token_hex(16), created=now, expires=now, kept=False)
        return self._alarm(ask, judged.request.secrets.values())

    async def ask(self, judged: Judged, *, wait: bool = True) -> Verdict:
        """Raises `StoreError` and `AuditError` where it can't be known or recorded; nothing may run then."""
        with telemetry.approval(judged.request.id) as told:
            try:
                return told(await self._ask(judged, wait))
            except ApprovalError as error:
                kind = "approval.denied" if isinstance(error, Absent) else "approval.refused"
                self.book.audit(kind, judged.request.id, {"approval": None, "why": _harmless(error)})
                return told(Verdict(status=Status.DENIED, error=str(error)))

    async def _ask(self, judged: Judged, wait: bool) -> Verdict:
        nobody = isinstance(self._approver, Deny)
        if nobody and not self.book.store.exists:
            raise Absent(NOBODY)  # and nothing was ever approved here: no reason to make a database
        ask = await asyncio.to_thread(self._put, judged, self._timeout if wait else self._expires)
        if (known := await asyncio.to_thread(self._known, ask)) is not None:
            return known
        if nobody:
            raise Absent(NOBODY)
        return await (self._asked(ask) if wait else self._deferred(ask))

    def _put(self, judged: Judged, seconds: float) -> Ask:
        now = self.book.now()
        until = now + timedelta(seconds=seconds)
        return ask_of(judged, self.book.key(), id=random.token_hex(16), created=now, expires=until)

    def _known(self, ask: Ask) -> Verdict | None:
        """What can be said without asking anybody."""
        if (alarm := self._alarm(ask)) is not None:
            return alarm
        entry = self.book.find(ask.digest)
        return _passed(entry) if entry and entry.state == "approved" else None

    def _alarm(self, ask: Ask, secrets: Iterable[str] = ()) -> Verdict | None:
        pin = self.book.pin_of(ask.requester, ask.label)
        if pin is None or pin.ask.content == ask.content:
            return None
        self.book.alarm(ask, pin, secrets)
        files = changed_files(pin.ask, ask)
        named = f" (changed: {', '.join(map(ascii, files[:5]))})" if files else ""
        return Verdict(
            status=Status.DENIED,
            alarm=True,
            error=f"ALARM: the pinned script {ask.label!a} has changed{named}: this is not what was approved for good. "
            f"Next: find out who changed it; if it is right, `redoma approvals unpin {pin.ask.id}` and ask again",
        )

    def refuse_changed(self, judged: Judged, id: str) -> Verdict:  # noqa: A002 - as everywhere
        """For what may go on by somebody's yes, or as what is pinned, and has other files to execute by now."""
        now = self.book.now()
        ask = ask_of(judged, self.book.key(), id=id, created=now, expires=now, kept=False)
        if (alarm := self._alarm(ask, judged.request.secrets.values())) is not None:
            return alarm
        why = "a file that it executes has changed since it was approved, and nothing was run"
        self.book.refuse(ask, why)
        return Verdict(status=Status.DENIED, id=id, error=f"{why}. Next: run it again: that asks for what it is now")

    async def _deferred(self, ask: Ask) -> Verdict:
        """Nobody waits: it is in the book, and `redeem` finds it there, whenever and in whatever process."""
        posted, new = await asyncio.to_thread(self.book.post, ask, deferred=True)
        if new and self._notify is not None:
            await self._notify(posted)
        return _pending(posted)

    async def _asked(self, ask: Ask) -> Verdict:
        await asyncio.to_thread(self.book.post, ask)
        try:
            if self._notify is not None:
                await self._notify(ask)
            answer = await self._answer(ask)
            return await asyncio.to_thread(self._settle, ask, answer)
        except asyncio.CancelledError:
            with suppress(RedomaError):  # it can't be answered for long in any case; that we are cancelled comes first
                self.book.expire(ask.id)  # nobody waits for an answer any more, so none may be given
            raise

    async def _answer(self, ask: Ask) -> Approval | None:
        """What the approver says; whatever it does but answer is a no that says what it did."""
        try:
            answer: object = await self._approver.decide(ask)
        except Absent as error:
            return self._no(ask, str(error))
        except Exception as error:  # somebody else's code: it must not become a yes, nor end the run as our bug
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
        return ask.answer("denied", approver="redoma", reason=why[:_LONGEST_WHY], at=self.book.now())

    def _settle(self, ask: Ask, answer: Approval | None) -> Verdict:
        """Write the answer into the book, unless it is there; then use what the book says."""
        if answer is None:
            entry = self.book.expire(ask.id)
        elif (entry := self.book.load(ask.id)).state == "open":
            try:
                self.book.answer(answer)
            except ApprovalError as error:  # on record already
                self.book.expire(ask.id)
                return Verdict(status=Status.DENIED, id=ask.id, error=str(error))
            entry = self.book.load(ask.id)
        if entry.state == "approved":
            entry = self.book.take(ask.id, ask.digest)
        return _verdict(entry, self._timeout)

    # --- later ---

    def recall(self, id: str, secrets: Mapping[str, str]) -> Ask:  # noqa: A002 - as everywhere
        """What was asked under an id, to be judged and run now. Secrets were not kept, so they are given again."""
        ask = self.book.load(id).ask
        if set(secrets) != set(ask.secrets):
            names = ", ".join(ask.secrets) or "none"
            self.book.refuse(ask, "the secrets are not those of the request")
            raise ApprovalError(
                f"{id} can't be resumed", why=f"its secrets are {names}", next="give exactly these again"
            )
        try:
            request = msgspec.structs.replace(ask.request, secrets=dict(secrets))
        except InvalidRequest:
            self.book.refuse(ask, "its secrets can't be used")
            raise
        return msgspec.structs.replace(ask, request=request)

    async def redeem(self, id: str, judged: Judged) -> Verdict:  # noqa: A002 - as everywhere
        """Use the approval of what was asked under an id, if `judged` is still exactly that."""
        with telemetry.approval(judged.request.id) as told:
            try:
                return told(_verdict(await asyncio.to_thread(self._redeem, id, judged), self._expires))
            except ApprovalError as error:  # on record already
                return told(Verdict(status=Status.DENIED, error=str(error)))

    def _redeem(self, id: str, judged: Judged) -> Entry:  # noqa: A002 - as everywhere
        self.book.load(id)  # before a key is looked for in a database that may not be there
        return self.book.take(id, digest_of(judged, self.book.key())[1])


_LONGEST_WHY = 1000


def _passed(entry: Entry) -> Verdict:
    return Verdict(approval=entry.approval, id=entry.ask.id)


def _pending(ask: Ask) -> Verdict:
    return Verdict(
        status=Status.PENDING,
        id=ask.id,
        error=f"a person has to approve this: it waits as {ask.id} until {ask.expires:%Y-%m-%d %H:%M:%S} UTC",
    )


def _verdict(entry: Entry, seconds: float) -> Verdict:
    ask, approval = entry.ask, entry.approval
    match entry.state:
        case "approved":
            return _passed(entry)
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
            error = why if who == "redoma" else f"{who} has denied it: {why}"
        case "used":
            error = "its approval has been used: one is good for one run"
        case _:
            error = "its approval was taken back"
    return Verdict(status=Status.DENIED, id=ask.id, approval=approval, error=error)


def _harmless(error: ApprovalError) -> str:
    return str(error).encode("utf-8", "backslashreplace").decode()
