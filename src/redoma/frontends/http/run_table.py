"""The table of runs in the service's database: each run as a row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from ...lib.types import resolved
from .bodies import Mode, RunBody, RunState
from .problems import Answered

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from ...lib.sqlite import Store

_MAX_KEPT = 1 << 30
"""Maximum bytes of stored requests and results; above it, the oldest ended runs are deleted."""
_MAX_LISTED = 16 << 10
"""Maximum bytes of a request that a list reads whole; of a larger one, it reads only the fields that it shows."""
_ENDED: tuple[RunState, ...] = ("done", "cancelled", "interrupted")
_TEXT = "CAST(body AS TEXT)"
_SHORT = f"""CASE WHEN length(body) <= {_MAX_LISTED} THEN body ELSE json_object(
    'label', coalesce(json_extract({_TEXT}, '$.label'), ''),
    'code', substr(coalesce(json_extract({_TEXT}, '$.code'), ''), 1, 1000),
    'argv', json_array(substr(coalesce(json_extract({_TEXT}, '$.argv[0]'), ''), 1, 1000)),
    'language', coalesce(json_extract({_TEXT}, '$.language'), 'python'),
    'workspace', coalesce(json_extract({_TEXT}, '$.workspace'), 'scratch')) END"""
"""SQL for a run's request, cut to what a list shows, because callers choose how long a request is."""


class Row(msgspec.Struct, kw_only=True):
    """A run as stored in the database: each field is a column."""

    id: str
    key: str
    mode: Mode
    state: RunState = "queued"
    status: str = ""
    created: float
    started: float | None = None
    ended: float | None = None
    body: RunBody
    secrets: tuple[str, ...] = ()
    """Names only; the values are not stored."""
    result: bytes | None = None
    approval: str = ""
    note: str = ""
    session: str = ""
    idempotency: str = ""
    digest: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state in _ENDED

    @property
    def is_followed(self) -> bool:
        """Whether somebody may follow its output: the caller of a synchronous run waits only until an approval."""
        return self.mode != "sync" or bool(self.approval)


class RunTable:
    """Reads and writes the rows of runs. Each method is one transaction and blocks; all raise `StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def recover(self) -> list[Row]:
        """Mark lost runs as interrupted and return those to continue with.

        Lost are runs that were running when the last process ended, and those with secrets, which are not stored.
        """
        stopped, lost = "the server ended while it ran", "the server was restarted, and its secrets were not kept"
        now = time.time()
        with self._store.writing() as db:
            db.execute(
                "UPDATE runs SET state = 'interrupted', ended = ?, note = ? WHERE state = 'running'", (now, stopped)
            )
            db.execute(
                "UPDATE runs SET state = 'interrupted', ended = ?, note = ?"
                " WHERE state IN ('queued', 'waiting') AND secrets <> ''",
                (now, lost),
            )
            rows = db.execute("SELECT * FROM runs WHERE state IN ('queued', 'waiting') ORDER BY created, id").fetchall()
        return [_row(row) for row in rows]

    def known(self, key: str, idempotency: str, digest: str) -> Row | None:
        """Return the run that a key has requested with this idempotency key.

        Raises `Answered` (409) if the digest shows that it was another request.
        """
        with self._store.reading() as db:
            return _known(db, key, idempotency, digest)

    def insert(self, row: Row) -> Row | None:
        """Add a run. If one with the same idempotency key is there, return that and add nothing. Raises as `known`."""
        with self._store.writing() as db:
            if row.idempotency and (known := _known(db, row.key, row.idempotency, row.digest)) is not None:
                return known
            _put(db, row)
        return None

    def claim(self, row: Row) -> bool:
        """Commit the step from `queued` to `running`. Return False if the run is no longer queued."""
        with self._store.writing() as db:
            now = time.time()
            done = "UPDATE runs SET state = 'running', started = coalesce(started, ?) WHERE id = ? AND state = 'queued'"
            return db.execute(done, (now, row.id)).rowcount == 1

    def requeue(self, row: Row) -> bool:
        """Commit the step from `waiting` to `queued`. Return False if the run is no longer waiting."""
        done = "UPDATE runs SET state = 'queued' WHERE id = ? AND state = 'waiting'"
        with self._store.writing() as db:
            return db.execute(done, (row.id,)).rowcount == 1

    def save(self, rows: list[Row]) -> None:
        """Write rows, in place of what was there."""
        with self._store.writing() as db:
            for row in rows:
                _put(db, row)

    def load(self, id: str) -> Row | None:
        """Return a run; None if there is none with this id."""
        with self._store.reading() as db:
            found = db.execute("SELECT * FROM runs WHERE id = ?", (id,)).fetchone()
        return None if found is None else _row(found)

    def waiting_for(self, approval: str) -> Sequence[str]:
        """Return the ids of runs that wait, or have waited, for an approval, newest first."""
        query = "SELECT id FROM runs WHERE approval = ? AND approval <> '' ORDER BY created DESC LIMIT 10"
        with self._store.reading() as db:
            return [found["id"] for found in db.execute(query, (approval,))]

    def list(self, owner: str | None, *, before: float, limit: int, state: str) -> list[Row]:
        """Return runs of a key (None: of all keys), in a state if it is not empty, newest first, without results."""
        instead = {"body": f"{_SHORT} AS body", "result": "NULL AS result"}
        columns = ", ".join(instead.get(name, name) for name in Row.__struct_fields__)
        query = (
            f"SELECT {columns} FROM runs WHERE created < :before AND (:owner IS NULL OR key = :owner)"  # noqa: S608 - our own SQL
            " AND (:state = '' OR state = :state) ORDER BY created DESC, id DESC LIMIT :limit"
        )
        with self._store.reading() as db:
            found = db.execute(query, {"before": before, "owner": owner, "state": state, "limit": limit}).fetchall()
        return [_row(row) for row in found]

    def forget(self, retention_days: float) -> None:
        """Delete ended runs created before the retention period, and the oldest while all are too large together."""
        ended = "state IN ('done', 'cancelled', 'interrupted')"
        with self._store.writing() as db:
            old = time.time() - 86400 * retention_days
            db.execute(f"DELETE FROM runs WHERE {ended} AND created < ?", (old,))  # noqa: S608 - our own SQL
            size = "SELECT total(length(result) + length(body)) AS size FROM runs"
            for _ in range(100):
                if db.execute(size).fetchone()["size"] <= _MAX_KEPT:
                    break
                oldest = f"SELECT id FROM runs WHERE {ended} ORDER BY created LIMIT 500"  # noqa: S608 - the same
                if not db.execute(f"DELETE FROM runs WHERE id IN ({oldest})").rowcount:  # noqa: S608 - the same
                    break


def _known(db: sqlite3.Connection, key: str, idempotency: str, digest: str) -> Row | None:
    found = db.execute("SELECT * FROM runs WHERE key = ? AND idempotency = ?", (key, idempotency)).fetchone()
    if found is None:
        return None
    if found["digest"] != digest:
        raise Answered(
            409,
            "this idempotency key was used for another request",
            why="a key stands for one request",
            next="use a new key, or send the same request again",
        )
    return _row(found)


def _put(db: sqlite3.Connection, row: Row) -> None:
    names = Row.__struct_fields__
    values = {name: getattr(row, name) for name in names}
    values |= {"body": msgspec.json.encode(row.body), "secrets": " ".join(row.secrets)}
    places = ", ".join(f":{name}" for name in names)
    db.execute(f"INSERT OR REPLACE INTO runs ({', '.join(names)}) VALUES ({places})", values)  # noqa: S608 - our own SQL


def _row(found: sqlite3.Row) -> Row:
    values: dict[str, Any] = {name: found[name] for name in Row.__struct_fields__}
    values |= {"body": msgspec.json.decode(found["body"], type=resolved(RunBody))}
    return Row(**values | {"secrets": tuple(found["secrets"].split())})
