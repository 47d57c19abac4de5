"""What Redoma remembers between runs, and between processes: SQLite databases in the state directory.

Every use opens it, does one transaction and closes it. Nothing is held in memory, so threads, processes and forks are
all the same case, and a kill at any moment leaves the transaction done or not done. WAL lets readers go on while
somebody writes; `synchronous=FULL` makes what was committed survive a power cut, since an approval that was used and is
unused again could be used twice.

Whatever is wrong with it is a `StoreError`. There is no way on without it: what it would have said is not guessed.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from . import files
from .errors import StoreError

NAME = "redoma.db"
_BUSY_SECONDS = 5.0
"""A transaction takes milliseconds, so a wait this long means that whoever holds the database is stopped."""


class Schema(NamedTuple):
    """The tables of one kind of database, and what to say about it."""

    application: int
    """The number in the header of the file by which it is recognised."""
    migrations: Sequence[Sequence[str]]
    """The statements that make each version of the schema out of the one before it."""
    holds: str
    """What is in it, for error messages: "approvals"."""
    lost: str
    """What follows from losing it, for error messages."""


MIGRATIONS: tuple[Sequence[str], ...] = (
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
            good_until REAL NOT NULL DEFAULT 0,
            pinned INTEGER NOT NULL DEFAULT 0,
            uses INTEGER NOT NULL DEFAULT 0,
            used REAL NOT NULL DEFAULT 0,
            CHECK (state NOT IN ('approved', 'used', 'unpinned') OR (approver <> '' AND reason <> '')),
            CHECK (pinned OR uses = (state = 'used'))
        )""",
        "CREATE INDEX asks_by_digest ON asks (digest, state)",
        # One script has one pin: whoever pins its next version replaces it.
        "CREATE UNIQUE INDEX pins ON asks (requester, label) WHERE pinned AND state = 'approved'",
        "CREATE TABLE keys (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
        "INSERT INTO keys VALUES ('secrets', randomblob(32))",
    ),
)
APPROVALS = Schema(
    0x7265646F,  # "redo"
    MIGRATIONS,
    "approvals",
    "what was asked and approved in it has to be asked again",
)

_ADVICE = {
    sqlite3.SQLITE_BUSY: (
        f"another process has held it for more than {_BUSY_SECONDS:.0f} s",
        "look for a stopped redoma process (ps, state T) and continue or end it",
    ),
    sqlite3.SQLITE_FULL: ("there is no space left", "free some space on that disk"),
    sqlite3.SQLITE_READONLY: ("it can't be written", "give this user write permission there"),
    sqlite3.SQLITE_CANTOPEN: ("it can't be opened", "give this user write permission to the directory"),
    sqlite3.SQLITE_IOERR: ("the disk could not be read or written", "check the disk, its space and its limits"),
}


class Store:
    """The database at a path, made with its directory when it is first used. Whatever is wrong with it is raised as a
    `StoreError`."""

    def __init__(self, path: Path, schema: Schema = APPROVALS) -> None:
        self.path, self._schema = path, schema

    @property
    def exists(self) -> bool:
        return os.path.lexists(self.path)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading: all queries of the block see the same moment."""
        with self._transaction("DEFERRED") as db:
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection for writing: all of the block or, if it raises, nothing. Nobody else writes meanwhile."""
        with self._transaction("IMMEDIATE") as db:
            yield db

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        with self._explaining():
            _make_private(self.path, self._schema.holds)
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)) as db:
                self._prepare(db)
                db.execute(f"BEGIN {kind}")
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):  # what went wrong first is what is told; closing takes it back, too
                        db.execute("ROLLBACK")
                    raise

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN")  # one moment: of another's first migration we see all or nothing
        version = self._version(db)
        db.execute("COMMIT")
        if version < len(self._schema.migrations):
            self._migrate(db)
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._switch_to_wal(db)

    def _switch_to_wal(self, db: sqlite3.Connection) -> None:
        """Several processes may want to at one time, and for this alone sqlite itself does not wait."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        if mode != "wal":
            raise self._error("its file system can't share it between processes", "choose another REDOMA_STATE_DIR")

    def _version(self, db: sqlite3.Connection) -> int:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        if application != self._schema.application and (
            version or db.execute("SELECT 1 FROM sqlite_master").fetchone()
        ):
            raise self._error("it is a database of another program", "move it away")
        if version > len(self._schema.migrations):
            raise self._error("it was written by a newer Redoma", "use that one")
        return version

    def _migrate(self, db: sqlite3.Connection) -> None:
        """To the newest schema, as one transaction: of two processes that begin this the second finds it done."""
        application, migrations, *_ = self._schema
        db.execute("BEGIN IMMEDIATE")
        for number in range(self._version(db), len(migrations)):
            for statement in migrations[number]:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {application}")
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute("COMMIT")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits say more than anybody can act on
            damaged = f"it is damaged ({error})", f"move it away to keep it as evidence; {self._schema.lost}"
            why, advice = _ADVICE.get(code, damaged)
            raise self._error(why, advice) from error
        except OSError as error:
            raise self._error(error.strerror or str(error), "check the disk and the permissions") from error

    def _error(self, why: str, advice: str) -> StoreError:
        return StoreError(f"the database {self.path} can't be used", why=why, next=advice)


def _make_private(path: Path, holds: str) -> None:
    """A regular file of ours in a directory of ours. In one that others can write they could put another in its place,
    or beside it the journal of one."""
    with files.closing(files.open_own_directory(path.parent, holds=holds, error=StoreError)) as directory:
        # The file itself is never opened here: to close it would let go of every lock that sqlite has on it in other
        # threads of this process (POSIX locks belong to a process, not to a descriptor).
        with suppress(FileExistsError):
            os.mknod(path.name, stat.S_IFREG | 0o600, dir_fd=directory)
        about = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise StoreError(f"{path} is not a plain file", why="it could be somebody else's", next="move it away")
        files.require_ours(about, path, holds=holds, error=StoreError)
        if stat.S_IMODE(about.st_mode) != 0o600:
            os.chmod(path.name, 0o600, dir_fd=directory)
