"""SQLite databases in the state directory: what Redoma stores between runs and processes.

Every use opens the database, does one transaction and closes it. Nothing is kept in memory, so threads, processes and
forks are all the same case, and a kill at any moment leaves the transaction done or not done. WAL lets readers continue
during a write; `synchronous=FULL` makes commits survive a power cut: otherwise a used approval could become unused
again, and be used twice.

Any problem raises `StoreError`. Redoma doesn't continue without the database: its content is not guessed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from . import files
from .errors import StoreError

if TYPE_CHECKING:
    import sqlite3  # loaded with the first transaction: most runs need none

_BUSY_SECONDS = 5.0
"""A transaction takes milliseconds, so if we wait this long, the process that holds the database is stopped."""


class Schema(msgspec.Struct, frozen=True):
    """The tables of one kind of database, and texts for error messages."""

    application: int
    """The number in the file's header that identifies it."""
    migrations: Sequence[Sequence[str]]
    """The statements that turn each version of the schema into the next."""
    holds: str
    """What it contains, for error messages: "approvals"."""
    lost: str
    """What is lost with it, for error messages."""


_ADVICE = {
    "SQLITE_BUSY": (
        f"another process has held it for more than {_BUSY_SECONDS:.0f} s",
        "look for a stopped redoma process (ps, state T) and continue or end it",
    ),
    "SQLITE_FULL": ("there is no space left", "free some space on that disk"),
    "SQLITE_READONLY": ("it can't be written", "give this user write permission there"),
    "SQLITE_CANTOPEN": ("it can't be opened", "give this user write permission to the directory"),
    "SQLITE_IOERR": ("the disk could not be read or written", "check the disk, its space and its limits"),
}


class Store:
    """The database at a path, created with its directory on first use. Any problem with it raises `StoreError`."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self._schema = path, schema

    @property
    def exists(self) -> bool:
        return os.path.lexists(self.path)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for reading: all queries of the block see the same snapshot."""
        with self._transaction("DEFERRED") as db:
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for writing: the block is committed as a whole or, if it raises, not at all. There is no
        other writer meanwhile.
        """
        with self._transaction("IMMEDIATE") as db:
            yield db

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        import sqlite3

        with self._explaining():
            _make_private(self.path, self._schema.holds)
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)) as db:
                self._prepare(db)
                db.execute(f"BEGIN {kind}")
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):  # the first error is the one to raise; closing rolls back, too
                        db.execute("ROLLBACK")
                    raise

    def _prepare(self, db: sqlite3.Connection) -> None:
        import sqlite3

        db.row_factory = sqlite3.Row
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN")  # one snapshot: we see all or nothing of another process's first migration
        version = self._version(db)
        db.execute("COMMIT")
        if version < len(self._schema.migrations):
            self._migrate(db)
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._switch_to_wal(db)

    def _switch_to_wal(self, db: sqlite3.Connection) -> None:
        """Switch to WAL. Several processes may try at a time, and for this statement alone sqlite itself does not
        wait.
        """
        import sqlite3

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
        """Migrate to the newest schema in one transaction: of two processes that start this, the second finds it
        done.
        """
        migrations = self._schema.migrations
        db.execute("BEGIN IMMEDIATE")
        for number in range(self._version(db), len(migrations)):
            for statement in migrations[number]:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {self._schema.application}")
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute("COMMIT")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            # The last part of a name such as SQLITE_IOERR_WRITE is more detail than a user needs.
            name = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
            damaged = f"it is damaged ({error})", f"move it away to keep it as evidence; {self._schema.lost}"
            why, advice = _ADVICE.get(name, damaged)
            raise self._error(why, advice) from error
        except OSError as error:
            raise self._error(files.reason(error), "check the disk and the permissions") from error

    def _error(self, why: str, advice: str) -> StoreError:
        return StoreError(f"the database {self.path} can't be used", why=why, next=advice)


def _make_private(path: Path, holds: str) -> None:
    """Make sure that it is a regular file of ours in a directory of ours. In a directory that others can write, they
    could replace it, or put a journal beside it.
    """
    with files.closing(files.open_own_directory(path.parent, holds=holds, error=StoreError)) as directory:
        # The file itself is never opened here: closing it would release every lock that sqlite has on it in other
        # threads of this process (POSIX locks belong to a process, not to a descriptor).
        with suppress(FileExistsError):
            os.mknod(path.name, stat.S_IFREG | 0o600, dir_fd=directory)
        about = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise StoreError(f"{path} is not a plain file", why="it could be somebody else's", next="move it away")
        files.require_ours(about, path, holds=holds, error=StoreError)
        if stat.S_IMODE(about.st_mode) != 0o600:
            os.chmod(path.name, 0o600, dir_fd=directory)
