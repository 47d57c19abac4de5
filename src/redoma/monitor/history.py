"""What the monitor stores, in `monitor.db` of the state directory: the present and past state of each check, the
numbers for plots, notices and remedies, and the last notice that each notifier was sent.

A state is stored as a spell with a beginning and an end, not once per round: a month of rounds without changes is one
row for each check. Every number is kept for a day, and the highest of each ten minutes for longer. Everything is
deleted after `retention` seconds. A round is added in one transaction, so after a kill it is stored completely or not
at all; readers are not blocked.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..audit.files import open_private
from ..lib.files import closing, locked
from ..lib.sqlite import Schema, Store
from ..lib.text import valid_utf8
from .model import Action, Check, Facts, Plan, Round, State, StoredState

NAME = "monitor.db"
_APART = "monitor-{}.db"
DAY = 86400.0
_FINE = DAY
"""Seconds for which every number is kept."""
UNSEEN = 7200.0
"""Seconds without a round after which the same state begins a new spell, because it was not observed in between."""
MAX_SPELLS, MAX_ACTIONS = 100_000, 10_000

_SCHEMA = Schema(
    0x7265646D,  # "redm"
    (
        (
            "CREATE TABLE states ([check] TEXT PRIMARY KEY, state INTEGER NOT NULL, since REAL NOT NULL,"
            " bad_since REAL NOT NULL, seen REAL NOT NULL)",
            "CREATE TABLE spells (id INTEGER PRIMARY KEY, [check] TEXT NOT NULL, state INTEGER NOT NULL,"
            " since REAL NOT NULL, until REAL NOT NULL, message TEXT NOT NULL)",
            "CREATE INDEX spells_of ON spells ([check], id)",
            "CREATE TABLE samples (series TEXT NOT NULL, time REAL NOT NULL, value REAL NOT NULL,"
            " PRIMARY KEY (series, time)) WITHOUT ROWID",
            "CREATE TABLE peaks (series TEXT NOT NULL, bucket INTEGER NOT NULL, value REAL NOT NULL,"
            " PRIMARY KEY (series, bucket)) WITHOUT ROWID",
            "CREATE TABLE last (one INTEGER PRIMARY KEY CHECK (one = 1), time REAL NOT NULL)",
            "CREATE TABLE actions (id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL,"
            " [check] TEXT NOT NULL, name TEXT NOT NULL, state INTEGER NOT NULL, ok INTEGER NOT NULL,"
            " text TEXT NOT NULL, run TEXT NOT NULL)",
            "CREATE TABLE notices (notifier TEXT NOT NULL, [check] TEXT NOT NULL, state INTEGER NOT NULL,"
            " time REAL NOT NULL, PRIMARY KEY (notifier, [check]))",
            "CREATE TABLE attempts ([check] TEXT PRIMARY KEY, time REAL NOT NULL, wait REAL NOT NULL)",
        ),
    ),
    "what the monitor remembers",
    "the history begins anew",
)


def place(state: Path, plan: Plan) -> Path:
    """Return the path of the database for a plan. A plan that was only found in a directory gets a database of its own:
    it chooses names and retention, and must neither end an alarm of another plan nor delete its history.
    """
    return state / (NAME if plan.trusted else _APART.format(hashlib.sha256(os.fsencode(plan.source)).hexdigest()[:16]))


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """A period in which a check had one state."""

    check: str
    state: State
    since: float
    until: float
    """When it was last seen in this state."""
    message: str
    """Its last message."""


class History:
    """The database of one plan. Everything is kept for `retention` seconds."""

    def __init__(self, path: Path, retention: float = 30 * DAY) -> None:
        self.store, self._retention = Store(path, _SCHEMA), retention

    # --- rounds ---

    def add(self, latest: Round, checks: Iterable[Check]) -> Round:
        """Store a round. Returns it with the states that count, given the earlier rounds. Raises `StoreError`."""
        now = latest.time
        with self.store.writing() as db:
            settled, stored = settle(latest, _stored_states(db.execute(_STORED)), checks)
            before = db.execute("SELECT time FROM last").fetchone()
            for verdict in settled.verdicts:
                name, after = valid_utf8(verdict.check), stored[verdict.check]
                db.execute(
                    "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?)",
                    (name, after.state, after.since, after.bad_since, now),
                )
                self._spell(db, name, after.state, now, valid_utf8(verdict.message))
            values = [(valid_utf8(name), now, value) for name, value in numbers(settled.facts).items()]
            db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", values)
            db.executemany(
                "INSERT INTO peaks VALUES (?, CAST(? / 600 AS INTEGER), ?)"
                " ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                values,
            )
            db.execute("INSERT OR REPLACE INTO last VALUES (1, ?)", (now,))
            if before is None:
                self._prune(db, now)
            elif int(before["time"] / 3600) != int(now / 3600):
                # At most a day after the last round: if the clock is years ahead for one round, not everything must be
                # deleted.
                self._prune(db, min(now, before["time"] + DAY))
        return settled

    def _spell(self, db: Any, check: str, state: State, now: float, message: str) -> None:
        row = db.execute("SELECT * FROM spells WHERE [check] = ? ORDER BY id DESC LIMIT 1", (check,)).fetchone()
        # `now` may be before `until`: of two concurrent rounds this took longer, or the clock was corrected.
        if row and row["state"] == state and abs(now - row["until"]) <= UNSEEN:
            until = max(now, row["until"])
            db.execute("UPDATE spells SET until = ?, message = ? WHERE id = ?", (until, message, row["id"]))
            return
        db.execute(
            "INSERT INTO spells ([check], state, since, until, message) VALUES (?, ?, ?, ?, ?)",
            (check, state, now, now, message),
        )

    def _prune(self, db: Any, now: float) -> None:
        oldest = now - self._retention
        db.execute("DELETE FROM spells WHERE until < ?", (oldest,))
        db.execute("DELETE FROM samples WHERE time < ?", (now - min(_FINE, self._retention),))
        db.execute("DELETE FROM peaks WHERE bucket < CAST(? / 600 AS INTEGER)", (oldest,))
        db.execute("DELETE FROM actions WHERE time < ?", (oldest,))
        db.execute("DELETE FROM states WHERE seen < ?", (oldest,))
        for table in ("notices", "attempts"):  # these are kept as long as the check exists
            db.execute(f"DELETE FROM {table} WHERE [check] NOT IN (SELECT [check] FROM states)")  # noqa: S608 - of these two
        for table, most in (("spells", MAX_SPELLS), ("actions", MAX_ACTIONS)):
            db.execute(f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?", (most,))  # noqa: S608 - as above

    def stored_states(self) -> dict[str, StoredState]:
        """Return the stored state of each check."""
        return _stored_states(self._rows(_STORED))

    def spells(self, since: float, check: str | None = None) -> list[Spell]:
        """Return the spells of all checks, or of one, since a time; oldest first."""
        which = "SELECT * FROM spells WHERE until >= ?1 AND (?2 IS NULL OR [check] = ?2) ORDER BY since, id"
        return [msgspec.convert(dict(row), Spell) for row in self._rows(which, since, check and valid_utf8(check))]

    def names(self, since: float) -> list[str]:
        """Return the names of all series since a time."""
        every = "SELECT DISTINCT series FROM peaks WHERE bucket >= CAST(? / 600 AS INTEGER) ORDER BY series"
        return [row["series"] for row in self._rows(every, since)]

    def series(self, name: str, since: float) -> list[tuple[float, float]]:
        """Return times and values, oldest first: the highest of each ten minutes, then every value of the last day."""
        of = """WITH fine AS (SELECT time, value FROM samples WHERE series = ?1)
            SELECT 600 * bucket + 300 AS time, value FROM peaks WHERE series = ?1 AND 600 * bucket >= ?2 - 600
                AND 600 * (bucket + 1) <= (SELECT coalesce(min(time), 1e18) FROM fine)
            UNION ALL SELECT time, value FROM fine WHERE time >= ?2 ORDER BY time"""
        return [(row["time"], row["value"]) for row in self._rows(of, valid_utf8(name), since)]

    # --- what was done ---

    def add_action(self, action: Action, replacing: int | None = None) -> int:
        """Store an action, in place of the one with the number `replacing` if given. Returns its number."""
        words = map(valid_utf8, (action.kind, action.check, action.name))
        values = (action.time, *words, action.state, action.ok, valid_utf8(action.text), action.run)
        with self.store.writing() as db:
            cursor = db.execute(
                "INSERT OR REPLACE INTO actions (id, time, kind, [check], name, state, ok, text, run)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (replacing, *values),
            )
            return int(cursor.lastrowid or 0)

    def actions(self, since: float, check: str | None = None) -> list[Action]:
        """Return the actions since a time, oldest first."""
        which = "SELECT * FROM actions WHERE time >= ?1 AND (?2 IS NULL OR [check] = ?2) ORDER BY id"
        rows = self._rows(which, since, check and valid_utf8(check))
        return [msgspec.convert({**dict(row), "ok": bool(row["ok"])}, Action) for row in rows]

    def last_notices(self) -> dict[tuple[str, str], tuple[State, float]]:
        """Return the state in the last notice, and when that was sent, by notifier and check."""
        rows = self._rows("SELECT * FROM notices")
        return {(row["notifier"], row["check"]): (State(row["state"]), row["time"]) for row in rows}

    def record_notice(self, notifier: str, check: str, state: State, time: float) -> None:
        """Record the last notice that a notifier was sent about a check."""
        with self.store.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO notices VALUES (?, ?, ?, ?)",
                (valid_utf8(notifier), valid_utf8(check), state, time),
            )

    def may_try_remedy(self, check: str, now: float) -> bool:
        """Return whether the remedy of a check may be tried again. A clock that was set back doesn't delay that."""
        rows = self._rows("SELECT * FROM attempts WHERE [check] = ?", valid_utf8(check))
        return all(abs(now - row["time"]) >= row["wait"] for row in rows)

    def record_attempt(self, check: str, time: float, wait: float) -> None:
        """Record that a remedy is tried now, and not again for `wait` seconds."""
        with self.store.writing() as db:
            db.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)", (valid_utf8(check), time, wait))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Take the lock for notices and remedies, and yield whether we have it: if a `watch` and a `check` run at the
        same time, only one acts. The kernel releases the lock of a process that was killed.
        """
        with self.store.reading():  # creates the directory, and checks that it is ours
            pass
        with closing(open_private(self.store.path.with_name("monitor.lock"), os.O_CREAT)) as fd, locked(fd) as held:
            yield held

    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query; none if there is no database, because reading must not create one."""
        if not self.store.exists:
            return []
        with self.store.reading() as db:
            return db.execute(query, values).fetchall()


_STORED = "SELECT * FROM states"


def _stored_states(rows: Iterable[Any]) -> dict[str, StoredState]:
    return {
        row["check"]: StoredState(state=State(row["state"]), since=row["since"], bad_since=row["bad_since"])
        for row in rows
    }


# --- from findings of rules to states ---


_BAD = (State.WARNING, State.CRITICAL)


def settle(
    latest: Round, previous: Mapping[str, StoredState], checks: Iterable[Check]
) -> tuple[Round, dict[str, StoredState]]:
    """Turn what rules found in a round into states: a problem must last before it counts, and each state has a
    beginning. `previous` is what was stored by check. Pure.

    Returns the round with the states that count, and what to store.
    """
    lasting = {check.name: check.lasting for check in checks}
    verdicts, stored = [], {}
    for verdict in latest.verdicts:
        name, found = verdict.check, verdict.state
        after = stored[name] = _next(previous.get(name), found, lasting[name], latest.time)
        verdicts.append(msgspec.structs.replace(verdict, state=after.state, found=found, since=after.since))
    return msgspec.structs.replace(latest, verdicts=tuple(verdicts)), stored


def _next(before: StoredState | None, found: State, lasting: float, now: float) -> StoredState:
    bad_since = before.bad_since if before else 0.0
    if found is State.OK:
        bad_since = 0.0
    elif found in _BAD:
        bad_since = min(bad_since or now, now)  # a clock that was set back must not delay it for years
    # Only problems must last. Unknown and ok take effect at once.
    waits = found in _BAD and now - bad_since < lasting
    state = found
    if waits:
        state = before.state if before and before.state in _BAD else State.OK
    since = min(before.since, now) if before and before.state is state else now
    return StoredState(state=state, since=since, bad_since=bad_since)


# --- the numbers among the facts ---


_MAX_NUMBERS, _MAX_DEPTH = 200, 4
"""Limits on the numbers that are kept of one round, and on how deep they are searched for in the facts."""
_NAMES = ("mount", "name", "sensor")
"""Keys that identify an item of a list."""
_LEFT_OUT = frozenset({"now", "mounts", "zombies", "largest", "booted", "most"})
"""Facts that make no useful curve."""


def numbers(facts: Facts) -> dict[str, float]:
    """Return every number in the facts, with names such as `disk./home.percent`."""
    found: dict[str, float] = {}
    for name, value in _walk("", facts, 0):
        if len(found) == _MAX_NUMBERS:
            break
        found[valid_utf8(name)] = value  # as the history stores it
    return found


def _walk(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    match value:
        case bool():
            yield name, float(value)
        case int() | float():
            try:
                number = float(value)
            except OverflowError:
                return
            if math.isfinite(number):
                yield name, number
        case dict() if depth < _MAX_DEPTH:
            for key, item in value.items():
                if key not in _LEFT_OUT:
                    yield from _walk(f"{name}.{key}"[-120:] if name else str(key)[:120], item, depth + 1)
        case list() | tuple() if depth < _MAX_DEPTH:
            for number, item in enumerate(value):
                keys = (item[key] for key in _NAMES if isinstance(item, dict) and isinstance(item.get(key), str))
                yield from _walk(f"{name}.{next(keys, number)}"[-120:], item, depth + 1)
