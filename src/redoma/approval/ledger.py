"""The ledger of questions, answers and their use, in SQLite.

Each change is one transaction, and its audit record is written before the commit: no change without a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from ..lib.errors import ApprovalError, UnknownApproval
from ..lib.patterns import lazy_pattern
from ..lib.sqlite import Store
from ..lib.text import valid_utf8
from ..models import Approval
from ..redaction import Redactor
from .ask import Ask, decode, encode, is_same_person

if TYPE_CHECKING:
    import sqlite3

Audit = Callable[[str, str, Mapping[str, Any]], Any]
"""Takes a kind, the id of the run, and data, as `AuditLog.append` does."""
AskState = Literal["open", "approved", "denied", "expired", "used", "unpinned"]
STATES: tuple[AskState, ...] = get_args(AskState)

MAX_OPEN = 1000
_MAX_ASK = 16 << 20  # characters, including the files of the request
MAX_TOTAL = 256 << 20  # characters of all questions together
_KEEP_CLOSED = timedelta(days=30)
_ID = lazy_pattern(r"[0-9a-f]{6,32}")
_MAX_REASON = 2000
_FIRST_YEAR, LAST_YEAR = 1971, 9998  # one day less or more in another time zone is still a valid date
_LAST_TIME = datetime(LAST_YEAR, 12, 31, tzinfo=UTC).timestamp()


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One question with its state and answer."""

    ask: Ask
    state: AskState
    """The state now: `expired` if its time is over, even if that is not stored yet."""
    approval: Approval | None = None
    uses: int = 0


def utc_now() -> datetime:
    return datetime.now(UTC)


class Ledger:
    """Questions, answers and pins. With `separate`, requesters may not approve their own requests. `expires`: for how
    many seconds an approval can be used.
    """

    def __init__(
        self,
        store: Store,
        audit: Audit,
        *,
        separate: bool = False,
        expires: float = 86400.0,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.store, self.audit, self.separate, self.now = store, audit, separate, now
        self._expires = timedelta(seconds=expires)

    def key(self) -> bytes:
        """Return the key for hashing secrets. Each ledger has its own, so hashes from another ledger don't match."""
        with self.store.reading() as db:
            value: bytes = db.execute("SELECT value FROM keys WHERE name = 'secrets'").fetchone()[0]
            return value

    # --- asking ---

    def post(self, ask: Ask, *, deferred: bool = False) -> tuple[Ask, bool]:
        """Store a question, or if `deferred` reuse an open one with the same digest. Returns the question, and whether
        it is new.

        Raises `ApprovalError` if there is no room for it.
        """
        text, now = encode(ask), self.now().timestamp()
        with self.store.writing() as db:
            if deferred:
                same = "SELECT ask FROM asks WHERE digest = ? AND deferred AND state = 'open' AND expires > ?"
                if (row := db.execute(same, (ask.digest, now)).fetchone()) is not None:
                    return decode(row["ask"]), False
            self._make_room(db, len(text), now)
            db.execute(
                "INSERT INTO asks (id, digest, content, requester, label, deferred, ask, created, expires)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    ask.id,
                    ask.digest,
                    ask.content,
                    valid_utf8(ask.requester),
                    valid_utf8(ask.label),
                    deferred,
                    text,
                    ask.created.timestamp(),
                    ask.expires.timestamp(),
                ),
            )
            self._record("approval.asked", ask, expires=ask.expires, deferred=deferred, **_ask_data(ask))
        return ask, True

    def _make_room(self, db: sqlite3.Connection, size: int, now: float) -> None:
        """Remove old closed questions or, if there is no room, all closed ones. Open questions and approvals that can
        still be used stay. Raises `ApprovalError` if there is no room after that.
        """
        if size > _MAX_ASK:
            raise ApprovalError(
                "this request is too large to ask anybody about it",
                why=f"it has {size:,} characters with its files, and {_MAX_ASK:,} are kept",
                next="leave large files out of it",
            )
        remove_closed = """DELETE FROM asks WHERE NOT (state = 'open' AND expires > :now)
            AND NOT (state = 'approved' AND good_until > :now) AND max(expires, good_until) < :before"""
        count = """SELECT count(CASE WHEN state = 'open' AND expires > :now THEN 1 END) AS open,
            total(length(ask)) AS size FROM asks"""
        for before in (now - _KEEP_CLOSED.total_seconds(), float("inf")):
            db.execute(remove_closed, {"now": now, "before": before})
            rows = db.execute(count, {"now": now}).fetchone()
            if rows["size"] + size <= MAX_TOTAL:
                break
        if rows["open"] >= MAX_OPEN or rows["size"] + size > MAX_TOTAL:
            raise ApprovalError(
                "nobody can be asked now",
                why=f"{rows['open']} requests wait for an answer already",
                next="answer them: redoma approvals list",
            )

    def expire(self, id: str) -> LedgerEntry:  # noqa: A002 - the column's name
        """Close a question that was not answered in time. Changes nothing if an answer has just arrived."""
        with self.store.writing() as db:
            entry = _entry(self._row(db, id), self.now())
            if db.execute("UPDATE asks SET state = 'expired' WHERE id = ? AND state = 'open'", (id,)).rowcount:
                self._record("approval.expired", entry.ask)
                return msgspec.structs.replace(entry, state="expired")
            return entry

    # --- answering ---

    def reply(
        self,
        ask: Ask,
        decision: Literal["approved", "denied"],
        *,
        approver: str,
        reason: str,
        pinned_until: datetime | None = None,
    ) -> Approval:
        """Return an answer that is given now, for `answer`. An approval can be used once, for as long as is configured;
        with `pinned_until` any number of times, until then.
        """
        at = self.now()
        return ask.answer(
            decision,
            approver=approver,
            reason=reason,
            at=at,
            expires=pinned_until or at + self._expires,
            pinned=pinned_until is not None,
        )

    def answer(self, answer: Approval) -> Approval:
        """Store an answer. The first one counts.

        Raises `ApprovalError` for an answer that can't count; that is recorded, too.
        """
        with self.store.writing() as db:
            entry = _entry(self._row(db, answer.id), self.now())
            ask = entry.ask
            if error := self._objection(entry, answer):
                why = f"{error.what}: {error.why}"
                self._record("approval.refused", ask, approver=str(answer.approver), why=why)
                raise error
            if answer.pinned:
                for old in db.execute(_PINNED, (valid_utf8(ask.requester), valid_utf8(ask.label))).fetchall():
                    self._unpin(db, old, by=answer.approver, reason="another version was pinned")
            db.execute(
                "UPDATE asks SET state = ?, approver = ?, reason = ?, decided = ?, good_until = ?, pinned = ?"
                " WHERE id = ?",
                (
                    answer.decision,
                    valid_utf8(answer.approver),
                    valid_utf8(answer.reason),
                    answer.at.timestamp(),
                    answer.expires.timestamp(),
                    answer.pinned,
                    ask.id,
                ),
            )
            kind = {"approved": "approval.given", "denied": "approval.denied", "expired": "approval.expired"}
            self._record(kind[answer.decision], ask, **_answer_data(answer))
            if answer.pinned:
                self._record("approval.pinned", ask, **_answer_data(answer))
        return answer

    def _objection(self, entry: LedgerEntry, answer: Approval) -> ApprovalError | None:
        """Return why an answer can't count, as an error to raise; None if it can."""
        ask = entry.ask
        if (wrong := unusable(answer)) is not None:
            hint = "answer as `ask.answer(…)` is documented"
            return ApprovalError("this answer can't be used", why=wrong, next=hint)
        if entry.state != "open":
            why = f"it is {entry.state}" + (f", by {entry.approval.approver}" if entry.approval else "")
            return ApprovalError("this can't be answered any more", why=why, next="have it asked again, by running it")
        if answer.digest != ask.digest:
            what = "the answer is not to what was asked"
            return ApprovalError(what, why="it is to another digest", next="answer what was asked")
        if not answer.approver.strip() or not answer.reason.strip() or len(answer.reason) > _MAX_REASON:
            hint = f"give a reason of 1 to {_MAX_REASON} characters"
            return ApprovalError("an answer needs a name and a reason", why="they go on record", next=hint)
        if answer.decision != "approved":
            return None
        what = "this approval can't be given"
        if self.separate and (not ask.requester.strip() or is_same_person(answer.approver, ask.requester)):
            why = f"{ask.requester or 'nobody who is known'} has asked for it"
            return ApprovalError(what, why=why, next="have another person decide (approval.separate)")
        if answer.expires <= self.now():
            return ApprovalError(what, why="it would be void at once", next="let it end in the future")
        what = "this can't be pinned"
        if answer.pinned and not ask.label:
            why = "it has no label, by which a changed version would be known"
            return ApprovalError(what, why=why, next="have it asked with a label: redoma run --label NAME")
        if answer.pinned and ask.unbound:
            why = f"that a file it runs has changed would not be seen: {ask.unbound[0]}"
            hint = "approve it for this run only; or have it asked as Bash or Python that names every file it runs"
            return ApprovalError(what, why=why, next=hint)
        return None

    # --- using ---

    def take(self, id: str, digest: str) -> LedgerEntry:  # noqa: A002 - the column's name
        """Use the approval of one question. If the state of the returned entry is `approved`, this call has taken it,
        and no other can, unless it is a pin. Any other state says why it was not taken.

        Raises `ApprovalError` if `digest` is not what was asked about.
        """
        with self.store.writing() as db:
            row = self._row(db, id)
            entry = _entry(row, self.now())
            if entry.ask.digest != digest or row["digest"] != digest:
                self._record("approval.refused", entry.ask, why="what would run is not what was asked about")
                raise _altered(entry.ask)
            if entry.state == "approved":
                return self._use(db, entry)
            if entry.state != "open":
                self._record("approval.refused", entry.ask, why=f"it is {entry.state}")
            return entry

    def use_matching(self, digest: str) -> LedgerEntry | None:
        """Use a pin or an unused approval of exactly this digest, and return its entry; None if there is none."""
        if not self.store.exists:
            return None
        with self.store.writing() as db:
            known = """SELECT * FROM asks WHERE digest = ? AND state = 'approved' AND good_until > ?
                ORDER BY pinned DESC, decided"""
            row = db.execute(known, (digest, self.now().timestamp())).fetchone()
            return None if row is None else self._use(db, _entry(row, self.now()))

    def _use(self, db: sqlite3.Connection, entry: LedgerEntry) -> LedgerEntry:
        ask, approval = entry.ask, entry.approval
        if approval is None or (self.separate and is_same_person(approval.approver, ask.requester)):
            # It was given before `separate` was set.
            self._record("approval.refused", ask, why="the requester has approved it")
            return msgspec.structs.replace(entry, state="denied")
        db.execute(
            "UPDATE asks SET state = CASE WHEN pinned THEN state ELSE 'used' END, uses = uses + 1, used = ?"
            " WHERE id = ?",
            (self.now().timestamp(), ask.id),
        )
        self._record("approval.used", ask, **_answer_data(approval))
        return msgspec.structs.replace(entry, uses=entry.uses + 1)

    # --- pins ---

    def pin_of(self, requester: str, label: str) -> LedgerEntry | None:
        """Return the pin in force for a requester's label, if any."""
        if not label or not self.store.exists:
            return None
        with self.store.reading() as db:
            row = db.execute(_PINNED, (valid_utf8(requester), valid_utf8(label))).fetchone()
        entry = None if row is None else _entry(row, self.now())
        return entry if entry and entry.state == "approved" else None

    def alarm(self, ask: Ask, pin: LedgerEntry, secrets: Iterable[str] = ()) -> None:
        """Record that something else was submitted under the label of a pin. Its `secrets` are removed from the
        record.
        """
        contents = {"pinned_content": pin.ask.content, "content": ask.content, "changed": changed_files(pin.ask, ask)}
        self._record("alarm", ask, Redactor(secrets), pin=pin.ask.id, **contents, **_ask_data(ask))

    def refuse(self, ask: Ask, why: str) -> None:
        """Record that an approval was not accepted, and why."""
        self._record("approval.refused", ask, why=why)

    def unpin(self, id: str, *, by: str, reason: str) -> Ask:  # noqa: A002 - the column's name
        """Take back a pin; return its question. Raises `ApprovalError` if it is not a pin in force."""
        with self.store.writing() as db:
            row = self._row(db, id)
            if not row["pinned"] or row["state"] != "approved":
                raise ApprovalError("this is not a pin", why=f"it is {row['state']}", next="see: redoma approvals pins")
            return self._unpin(db, row, by=by, reason=reason)

    def _unpin(self, db: sqlite3.Connection, row: sqlite3.Row, *, by: str, reason: str) -> Ask:
        ask = decode(row["ask"])
        db.execute("UPDATE asks SET state = 'unpinned' WHERE id = ?", (row["id"],))
        self._record("approval.unpinned", ask, approver=by, reason=reason)
        return ask

    # --- reading ---

    def load(self, id: str) -> LedgerEntry:  # noqa: A002 - the column's name
        """Return the entry with this id. If there is none, that is recorded, and `ApprovalError` is raised."""
        if not self.store.exists:
            raise self._unknown(id)
        with self.store.reading() as db:
            return _entry(self._row(db, id), self.now())

    def is_open(self, id: str) -> bool:  # noqa: A002 - the column's name
        """Return whether a question still waits for an answer. Cheap enough to poll."""
        with self.store.reading() as db:
            row = db.execute("SELECT state, expires FROM asks WHERE id = ?", (id,)).fetchone()
        return row is not None and row["state"] == "open" and row["expires"] > self.now().timestamp()

    def entries(self, *states: AskState) -> list[LedgerEntry]:
        """Return the entries in these states, oldest first."""
        if not self.store.exists:
            return []
        with self.store.reading() as db:
            rows = db.execute("SELECT * FROM asks ORDER BY created, id").fetchall()
        return [entry for row in rows if (entry := _entry(row, self.now())).state in states]

    def whole_id(self, prefix: str) -> str:
        """Return the only id that begins with `prefix`. Raises `ApprovalError` if there is none, or several."""
        if not self.store.exists or not _ID.fullmatch(prefix):
            raise self._unknown(prefix)
        with self.store.reading() as db:
            matching = "SELECT id FROM asks WHERE substr(id, 1, ?) = ? LIMIT 2"
            ids = [row["id"] for row in db.execute(matching, (len(prefix), prefix))]
        if len(ids) != 1:
            raise self._unknown(prefix)
        return str(ids[0])

    def _row(self, db: sqlite3.Connection, id: str) -> sqlite3.Row:  # noqa: A002 - the column's name
        known = isinstance(id, str) and _ID.fullmatch(id)
        row: sqlite3.Row | None = db.execute("SELECT * FROM asks WHERE id = ?", (id,)).fetchone() if known else None
        if row is None:
            raise self._unknown(id)
        return row

    def _unknown(self, id: object) -> ApprovalError:  # noqa: A002 - the column's name
        shown = ascii(id)[:80]
        self.audit("approval.refused", "", {"approval": shown, "why": "nothing was asked under this id"})
        return UnknownApproval(
            f"nothing was asked under the id {shown}", why="it is not in the ledger", next="see: redoma approvals list"
        )

    def _record(self, kind: str, ask: Ask, redactor: Redactor | None = None, /, **data: Any) -> None:
        plain = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in data.items()}
        texts = {name: valid_utf8(value) if isinstance(value, str) else value for name, value in plain.items()}
        redacted, _ = (redactor or Redactor()).redact_data(texts)
        self.audit(kind, ask.request.id, {"approval": ask.id, "digest": ask.digest, **redacted})


_PINNED = "SELECT * FROM asks WHERE requester = ? AND label = ? AND pinned AND state = 'approved'"


def _entry(row: sqlite3.Row, now: datetime) -> LedgerEntry:
    ask = decode(row["ask"])
    state: AskState = row["state"]
    end = {"open": row["expires"], "approved": row["good_until"]}.get(state)
    approval = None
    if row["approver"]:
        decision = state if state in ("denied", "expired") else "approved"
        approval = ask.answer(
            decision,
            approver=row["approver"],
            reason=row["reason"],
            at=_time(row["decided"]),
            expires=_time(row["good_until"]),
            pinned=bool(row["pinned"]),
        )
    if end is not None and end <= now.timestamp():
        state = "expired"
    return LedgerEntry(ask=ask, state=state, approval=approval, uses=row["uses"])


def unusable(answer: Approval) -> str | None:
    """Return why an answer can't be stored; None if it can. The types must be checked because third-party code may have
    made it.
    """
    if answer.decision not in ("approved", "denied", "expired"):
        return "its decision is neither `approved` nor `denied`"
    for name in ("approver", "reason"):
        if not isinstance(getattr(answer, name), str):
            return f"its {name} is not text"
    for name in ("at", "expires"):
        time = getattr(answer, name)
        if not isinstance(time, datetime) or time.utcoffset() is None:
            return f"`{name}` is not a time with a time zone"
        if not _FIRST_YEAR <= time.year <= LAST_YEAR:
            return f"`{name}` is in the year {time.year}, and {LAST_YEAR} is the last one that can be kept"
    return None if isinstance(answer.pinned, bool) else "`pinned` is neither true nor false"


def _time(seconds: float) -> datetime:
    """Return a stored time, limited to valid dates: one bad row must not prevent reading the others."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_TIME), UTC)


def _answer_data(approval: Approval) -> dict[str, Any]:
    """Return the parts of an answer that its audit record has."""
    return {
        "approver": approval.approver,
        "reason": approval.reason,
        "expires": approval.expires,
        "pinned": approval.pinned,
    }


def _ask_data(ask: Ask) -> dict[str, Any]:
    """Return the parts of a question that its audit record has. The rest is in the ledger and in the run's intent."""
    return {
        "requester": ask.requester,
        "label": ask.label,
        "reason_given": ask.reason,
        "level": ask.level.value,
        "policy_digest": ask.evaluation.digest,
        "rules": [finding.rule for finding in ask.evaluation.deciding],
        "effect": ask.effect.digest if ask.effect else None,
        "scripts": {valid_utf8(path): held for path, held in ask.scripts.items()},
    }


def changed_files(before: Ask, now: Ask) -> list[str]:
    """Return the paths of executed files whose content differs between two questions."""
    paths = {**before.scripts, **now.scripts}
    return [valid_utf8(path) for path in paths if before.scripts.get(path) != now.scripts.get(path)]


def _altered(ask: Ask) -> ApprovalError:
    return ApprovalError(
        "what would run now is not what was asked about",
        why="the request, a file it executes, a secret, the policy, the configuration or the effect has changed since "
        f"{ask.id} was asked",
        next="run it again: that asks for what it is now",
    )
