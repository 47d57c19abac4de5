"""The database of approvals: questions, answers and their use."""

from __future__ import annotations

from pathlib import Path

from ..lib.sqlite import Schema, Store

SCHEMA = Schema(
    0x7265646F,  # "redo"
    (
        (
            """CREATE TABLE asks (
                id TEXT PRIMARY KEY,
                digest TEXT NOT NULL,
                content TEXT NOT NULL,
                requester TEXT NOT NULL,
                label TEXT NOT NULL,
                deferred INTEGER NOT NULL,
                ask TEXT NOT NULL,
                created REAL NOT NULL,
                expires REAL NOT NULL,
                state TEXT NOT NULL DEFAULT 'open'
                    CHECK (state IN ('open', 'approved', 'denied', 'expired', 'used', 'unpinned')),
                approver TEXT NOT NULL DEFAULT '',
                reason TEXT NOT NULL DEFAULT '',
                decided REAL NOT NULL DEFAULT 0,
                good_until REAL NOT NULL DEFAULT 0, -- when the answer expires; `expires` is the question's
                pinned INTEGER NOT NULL DEFAULT 0,
                uses INTEGER NOT NULL DEFAULT 0,
                used REAL NOT NULL DEFAULT 0,
                CHECK (state NOT IN ('approved', 'used', 'unpinned') OR (approver <> '' AND reason <> '')),
                CHECK (pinned OR uses = (state = 'used'))
            )""",
            "CREATE INDEX asks_by_digest ON asks (digest, state)",
            # One script has one pin: pinning its next version replaces it.
            "CREATE UNIQUE INDEX pins ON asks (requester, label) WHERE pinned AND state = 'approved'",
            "CREATE TABLE keys (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
            "INSERT INTO keys VALUES ('secrets', randomblob(32))",
        ),
    ),
    "approvals",
    "what was asked and approved in it has to be asked again",
)


def open_store(state: Path) -> Store:
    """Return the database of a state directory."""
    return Store(state / "redoma.db", SCHEMA)
