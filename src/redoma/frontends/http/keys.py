"""API keys: shown once when they are created, stored as a hash, and found by the text that a caller sends.

A key reads `rdm_ID_SECRET`. The ID finds its row; only the SHA-256 of the secret is stored. A slow hash is not needed,
because 256 random bits can't be guessed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from ...lib.errors import InvalidRequest
from ...lib.sqlite import Store

if TYPE_CHECKING:
    import sqlite3

Scope = Literal["run", "approve", "audit", "admin"]
"""`run`: run code and see one's own runs; `approve`: answer approvals that other keys asked for; `audit`: read the
audit log and all runs; `admin`: all of that, and manage keys."""
SCOPES: tuple[Scope, ...] = get_args(Scope)

_FORM = re.compile(r"rdm_([0-9a-f]{12})_([A-Za-z0-9_-]{43})\Z")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}\Z")
_PREFIX = re.compile(r"[0-9a-f]{6,12}\Z")
_REMEMBERED = 1.0
"""Seconds for which a key that was found is cached. If another process revokes it, it is refused after this time."""
_MAX_REMEMBERED = 10_000


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    concurrency: int = 16
    """Maximum number of runs of this key at one time."""
    rate: float = 50.0
    """Requests per second on average; up to twice as many in a burst."""

    def may(self, scope: Scope) -> bool:
        """Return whether the key has a scope; `admin` includes all others."""
        return scope in self.scopes or "admin" in self.scopes

    @property
    def requester(self) -> str:
        """The key's name in requests, approvals and the audit log. No user of the host has such a name."""
        return f"key:{self.name}"

    def owns(self, requester: str) -> bool:
        """Return whether a request was made with this key, through any interface: some add a suffix after a space."""
        return requester == self.requester or requester.startswith(f"{self.requester} ")  # a key's name has no space

    def is_good(self, now: float) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires.timestamp())


class Keys:
    """The keys in a database. Every method raises `StoreError` if the database can't be used."""

    def __init__(self, store: Store, *, now: Callable[[], float] = time.time) -> None:
        self._store, self._now = store, now
        self._found: dict[str, tuple[float, bytes, Key]] = {}

    def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        seconds: float | None = None,
        concurrency: int = 16,
        rate: float = 50.0,
    ) -> tuple[Key, str]:
        """Create a key that expires after `seconds`, if given. Return it and its text, which is not stored.

        Raises `InvalidRequest` for a bad or known name, an unknown scope, or a limit that is not positive.
        """
        if not _NAME.match(name):
            raise InvalidRequest(
                f"a key can't be called {name[:60]!r}",
                why="a name has up to 40 lower-case letters, digits, dots, dashes and underscores",
                next="choose another name",
            )
        chosen = _ordered(scopes)
        if concurrency < 1 or not 0 < rate < 1e6 or (seconds is not None and not 0 < seconds < 1e10):
            raise InvalidRequest(
                "the limits of a key are positive numbers", why="one of them is not", next="use numbers above 0"
            )
        id, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), self._now()  # noqa: A001 - the column's name
        key = Key(
            id=id,
            name=name,
            scopes=chosen,
            created=_time(now),
            expires=None if seconds is None else _time(now + seconds),
            concurrency=concurrency,
            rate=float(rate),
        )
        with self._store.writing() as db:
            if db.execute("SELECT 1 FROM keys WHERE name = ?", (name,)).fetchone():
                raise InvalidRequest(
                    f"there is a key called {name}",
                    why="the audit log knows who did what by the name, also of a key that was revoked",
                    next="choose another name",
                )
            until = None if seconds is None else now + seconds
            row = (id, name, _hash(secret), " ".join(chosen), now, until, None, concurrency, rate)
            db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return key, f"rdm_{id}_{secret}"

    def list(self) -> list[Key]:
        """Return all keys, including revoked and expired ones, oldest first."""
        if not self._store.exists:
            return []
        with self._store.reading() as db:
            return [_key(row) for row in db.execute("SELECT * FROM keys ORDER BY created, id")]

    def any_good(self) -> bool:
        """Return whether there is at least one valid key."""
        return any(key.is_good(self._now()) for key in self.list())

    def revoke(self, which: str) -> Key:
        """Revoke a key, by its name or at least 6 digits of its id, and end its logins. Raises `InvalidRequest`."""
        with self._store.writing() as db:
            rows = [_key(row) for row in db.execute("SELECT * FROM keys")]
            found = [key for key in rows if key.name == which] or [
                key for key in rows if _PREFIX.match(which) and key.id.startswith(which)
            ]
            if len(found) != 1:
                raise InvalidRequest(
                    f"there is no key {which[:60]!r}" if not found else f"several keys begin with {which}",
                    why="a key is named by its name or its id",
                    next="see `redoma keys list`",
                )
            db.execute("UPDATE keys SET revoked = coalesce(revoked, ?) WHERE id = ?", (self._now(), found[0].id))
            db.execute("DELETE FROM logins WHERE key = ?", (found[0].id,))
            self._found.clear()
            return _key(db.execute("SELECT * FROM keys WHERE id = ?", (found[0].id,)).fetchone())

    def authenticate(self, text: str) -> Key | None:
        """Return the key for the text that a caller sent; None if it is unknown, revoked or expired."""
        form = _FORM.match(text)
        if form is None:
            return None
        known = self._load(form[1])
        if known is None or not hmac.compare_digest(known[0], _hash(form[2])):
            return None
        return known[1] if known[1].is_good(self._now()) else None

    async def authenticate_soon(self, text: str) -> Key | None:
        """`authenticate` for the event loop: in a thread if it has to read the database, which is once a second."""
        form = _FORM.match(text)
        if form is None or self._recent(form[1]) is not None:
            return self.authenticate(text)
        return await asyncio.to_thread(self.authenticate, text)

    def get(self, id: str) -> Key | None:
        """Return the key with this id; None if it is unknown, revoked or expired."""
        known = self._load(id)
        return known[1] if known and known[1].is_good(self._now()) else None

    def _recent(self, id: str) -> tuple[float, bytes, Key] | None:
        found = self._found.get(id)
        return None if found is None or found[0] < time.monotonic() - _REMEMBERED else found

    def _load(self, id: str) -> tuple[bytes, Key] | None:
        found = self._recent(id)
        if found is None:
            now = time.monotonic()
            with self._store.reading() as db:
                row = db.execute("SELECT * FROM keys WHERE id = ?", (id,)).fetchone()
            if row is None:
                self._found.pop(id, None)
                return None
            if len(self._found) >= _MAX_REMEMBERED:
                self._found.clear()
            found = self._found[id] = now, row["hash"], _key(row)
        return found[1:]

    # --- logins ---

    def log_in(self, key: Key, seconds: float) -> str:
        """Create a login to the dashboard for this many seconds. Return its token, of which only a hash is stored."""
        token, now = secrets.token_urlsafe(32), self._now()
        with self._store.writing() as db:
            db.execute("DELETE FROM logins WHERE expires < ?", (now,))
            db.execute("INSERT INTO logins VALUES (?, ?, ?)", (_hash(token), key.id, now + seconds))
        return token

    def logged_in(self, token: str) -> Key | None:
        """Return the key of a login; None if the login or the key is no longer valid."""
        with self._store.reading() as db:
            found = db.execute(
                "SELECT key FROM logins WHERE hash = ? AND expires > ?", (_hash(token), self._now())
            ).fetchone()
        return self.get(found["key"]) if found else None

    def log_out(self, token: str) -> None:
        """End a login."""
        with self._store.writing() as db:
            db.execute("DELETE FROM logins WHERE hash = ?", (_hash(token),))


def _ordered(scopes: Iterable[str]) -> tuple[Scope, ...]:
    """Return the scopes in their usual order. Raises `InvalidRequest` if one is unknown, or there is none."""
    given = set(scopes)
    if not given or not given <= set(SCOPES):
        named = ", ".join(sorted(given - set(SCOPES))) or "none"
        raise InvalidRequest(
            f"scopes: {named}", why=f"the scopes are {', '.join(SCOPES)}", next="name at least one of them"
        )
    return tuple(scope for scope in SCOPES if scope in given)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _key(row: sqlite3.Row) -> Key:
    return Key(
        id=row["id"],
        name=row["name"],
        scopes=tuple(row["scopes"].split()),
        created=_time(row["created"]),
        expires=None if row["expires"] is None else _time(row["expires"]),
        revoked=None if row["revoked"] is None else _time(row["revoked"]),
        concurrency=row["concurrency"],
        rate=row["rate"],
    )
