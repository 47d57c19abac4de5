"""The database of the service: keys, logins and runs."""

from __future__ import annotations

from pathlib import Path

from ...lib.errors import ConfigError
from ...lib.sqlite import Schema, Store

NAME = "service.db"

_SCHEMA = Schema(
    0x72647376,  # "rdsv"
    (
        (
            """CREATE TABLE keys (
                id TEXT PRIMARY KEY,
                name TEXT NOT NULL UNIQUE,
                hash BLOB NOT NULL,
                scopes TEXT NOT NULL,
                created REAL NOT NULL,
                expires REAL,
                revoked REAL,
                concurrency INTEGER NOT NULL,
                rate REAL NOT NULL
            )""",
            """CREATE TABLE logins (
                hash BLOB PRIMARY KEY,
                key TEXT NOT NULL REFERENCES keys (id),
                expires REAL NOT NULL
            )""",
            """CREATE TABLE runs (
                id TEXT PRIMARY KEY,
                key TEXT NOT NULL,
                mode TEXT NOT NULL,
                state TEXT NOT NULL
                    CHECK (state IN ('queued', 'running', 'waiting', 'done', 'cancelled', 'interrupted')),
                status TEXT NOT NULL DEFAULT '',
                created REAL NOT NULL,
                started REAL,
                ended REAL,
                body BLOB NOT NULL,
                secrets TEXT NOT NULL DEFAULT '',
                result BLOB,
                approval TEXT NOT NULL DEFAULT '',
                note TEXT NOT NULL DEFAULT '',
                idempotency TEXT NOT NULL DEFAULT '',
                digest TEXT NOT NULL DEFAULT ''
            )""",
            "CREATE INDEX runs_by_time ON runs (created)",
            "CREATE INDEX runs_by_state ON runs (state)",
            "CREATE UNIQUE INDEX runs_by_idempotency ON runs (key, idempotency) WHERE idempotency <> ''",
        ),
        ("ALTER TABLE runs ADD COLUMN session TEXT NOT NULL DEFAULT ''",),
        ("CREATE INDEX runs_by_approval ON runs (approval) WHERE approval <> ''",),
    ),
    "keys and runs of the service",
    "keys have to be made again, and runs that it held can't be looked up",
)


def open_store(state: Path | None) -> Store:
    """Return the service's database in the state directory. Raises `ConfigError` if there is no such directory."""
    if state is None:
        raise ConfigError("the service can't be used", why="there is no state directory", next="set REDOMA_STATE_DIR")
    return Store(state / NAME, _SCHEMA)
