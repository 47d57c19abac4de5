"""Sessions of the service: which key opened them, how many there may be, and when they end.

They are kept in memory only, since a session is a process and ends with the server. Runs in them appear in the list of
runs and in the audit log like any others.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from ...lib.errors import BackendError, InvalidRequest, RedomaError
from ...sessions.runs import ProcessOptions, RunOptions
from ...sessions.session import AsyncSession, SessionOptions
from ...telemetry import ERROR, tell
from .bodies import ProcessBody, SessionBody, SessionRunBody, SessionView, content, moment
from .boundary import MAX_FACTOR, must_have_code
from .keys import Key
from .problems import Answered, not_allowed, not_found, stopping, too_many, without_paths

if TYPE_CHECKING:
    from ...sessions.runs import AsyncSessionProcess, AsyncSessionRun
    from .service import Service

_SWEEP = 2.0
"""Seconds between checks for sessions whose key was revoked or that ended long ago."""
_REMEMBERED = 600.0
"""Seconds for which a session that ended by itself stays listed, with the reason, and can be restarted."""
_MAX_ENDED = 100
"""Maximum number of ended sessions of one key that stay listed."""


class OwnedSession:
    """A session, with the key that opened it."""

    def __init__(self, session: AsyncSession, key: Key, label: str) -> None:
        self.session, self.key, self.label = session, key.id, label
        self.created = self.used = time.time()
        self.runs = 0
        self.ended_at: float | None = None
        """When the service first noticed that the session had ended."""

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    def view(self, names: dict[str, str]) -> SessionView:
        """Return the session as callers see it. `names` maps the ids of keys to their names."""
        session = self.session
        return SessionView(
            id=self.id,
            state="ended" if not session.alive else "busy" if session.busy else "open",
            ended=without_paths(session.ended),
            key=names.get(self.key, self.key),
            backend=session.name,
            label=self.label,
            created=moment(self.created),
            used=moment(self.used),
            runs=self.runs,
            isolation={name: without_paths(said) for name, said in session.isolation.layers.items()},
        )

    def turn(self, service: Service, key: Key, body: SessionRunBody) -> AsyncSessionRun:
        """Prepare a run in the session; it starts when it is followed. Raises `InvalidRequest` or `Answered`."""
        options: RunOptions = {
            "context": body.context,
            "limits": service.boundary.limits_of(body.limits),
            "stdin": content(body.stdin),
            "env": body.env,
            "cwd": body.cwd,
            "charts": body.charts,
            "expect": body.expect,
            "reason": body.reason,
            "requester": key.requester,
            "label": body.label,
        }
        if body.policy is not None:
            options["policy"] = service.boundary.policy_for(key, body.policy)
        with self.using():
            must_have_code(body)
            if body.language == "command":
                run = self.session.stream_command(body.argv, **options)
            else:
                options["args"] = body.argv
                run = self.session.stream(body.code, body.language, **options)
        self.runs += 1
        return run

    def process(self, service: Service, key: Key, body: ProcessBody) -> AsyncSessionProcess:
        """Prepare a background process, without starting it. Raises `InvalidRequest` or `Answered`."""
        size = (body.terminal.rows, body.terminal.columns) if body.terminal else None
        options: ProcessOptions = {
            "env": body.env,
            "cwd": body.cwd,
            "pty": size is not None,
            "size": size,
            "reason": body.reason,
            "requester": key.requester,
            "label": body.label,
        }
        if body.timeout is not None:
            service.boundary.must_be_within({"time": body.timeout})
            options["timeout"] = body.timeout
        if body.policy is not None:
            options["policy"] = service.boundary.policy_for(key, body.policy)
        with self.using():
            process = self.session.process(body.command, **options)
        self.runs += 1
        return process

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Do as `using`, and turn the error that the session holds something that can't be copied into a 409."""
        with self.using():
            try:
                yield
            except BackendError as error:
                if self.session.ended:
                    raise
                why, step = without_paths(error.why), without_paths(error.next)
                raise Answered(409, without_paths(error.what), why=why, next=step) from error

    @contextmanager
    def using(self) -> Iterator[None]:
        """Note the time of use, and turn errors into answers: an ended session (409), a file (404, 409)."""
        self.used = time.time()
        try:
            yield
        except BackendError as error:
            if not self.session.ended:
                raise
            why = without_paths(self.session.ended)
            raise Answered(409, "the session has ended", why=why, next="restart it, or open another") from error
        except OSError as error:
            number = error.errno or errno.EIO
            raise Answered(
                404 if number == errno.ENOENT else 409,
                "the file can't be used",
                why=os.strerror(number),  # not the error's own text: code in the session may have written it
                next="check the path; relative ones begin in the session's first directory",
                code=errno.errorcode.get(number, "EIO"),
            ) from error


class Sessions:
    """All sessions of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._held: dict[str, OwnedSession] = {}
        self._opening: dict[str, int] = {}

    async def open(self, key: Key, body: SessionBody) -> OwnedSession:
        """Open a session. Raises `InvalidRequest` if the request is invalid, `Answered` if it is refused."""
        options = self._options(key, body)
        with self._admitted(key):
            session = AsyncSession(self._service.executor, **options)
            try:
                await session.open()
            except BaseException:
                await session.aclose()
                raise
        held = self._held[session.id] = OwnedSession(session, key, body.label)
        return held

    def _options(self, key: Key, body: SessionBody) -> SessionOptions:
        service, configured = self._service, self._service.config.sessions
        options: SessionOptions = {
            "backend": body.backend,
            "policy": service.boundary.policy_for(key, body.policy),
            "limits": service.boundary.limits_of(body.limits),
            "env": body.env,
            "secrets": body.secrets,
            "files": {name: content(given) for name, given in body.files.items()},
            "environment": body.environment or None,
            "packages": body.packages or None,
            "require": body.require,
            "reason": body.reason,
            "requester": key.requester,
            "label": body.label,
            "idle": _within("idle", body.idle, configured.idle),
            "lifetime": _within("lifetime", body.lifetime, configured.lifetime),
        }
        if project := service.boundary.project_for(body.workspace, body.project):
            options["workspace"], options["project"] = body.workspace, project
        return options

    async def fork(self, key: Key, held: OwnedSession, n: int) -> list[OwnedSession]:
        """Copy a session `n` times. Raises `Answered` if there are too many, or it holds what can't be copied."""
        with self._admitted(key, n), held.copying():
            copies = [OwnedSession(session, key, held.label) for session in await held.session.fork(n)]
        self._held |= {copy.id: copy for copy in copies}
        return copies

    @contextmanager
    def _admitted(self, key: Key, n: int = 1) -> Iterator[None]:
        """Count `n` sessions while they are being opened. Raises `Answered` if there may not be so many more."""
        if self._service.draining:
            raise stopping()
        alive = [held for held in self._held.values() if held.session.alive]
        own = sum(held.key == key.id for held in alive) + self._opening.get(key.id, 0)
        if own + n > self._service.settings.sessions:
            raise too_many(f"this key may have {self._service.settings.sessions} sessions at one time", retry=5)
        everything = len(alive) + sum(self._opening.values())
        if everything + n > self._service.config.sessions.maximum:
            raise too_many(f"{everything} sessions are open, of {self._service.config.sessions.maximum}", retry=5)
        self._opening[key.id] = self._opening.get(key.id, 0) + n
        try:
            yield
        finally:
            self._opening[key.id] -= n

    def find(self, key: Key, id: str, *, to_use: bool = True) -> OwnedSession:
        """Return a session that this key may use, or with `to_use=False` may see. Raises `Answered` (404)."""
        held = self._held.get(id)
        if held is None or not (held.key == key.id or (key.may("audit") and not to_use)):
            raise not_found("session")
        return held

    def visible(self, key: Key) -> list[OwnedSession]:
        """Return the sessions that this key may see, newest first."""
        found = [held for held in self._held.values() if held.key == key.id or key.may("audit")]
        return sorted(found, key=lambda held: held.created, reverse=True)

    async def restart(self, key: Key, held: OwnedSession) -> None:
        """Start a new Python in a session; if the session has ended, open it again."""
        with nullcontext() if held.session.alive else self._admitted(key), held.using():
            await held.session.restart()
        held.ended_at = None

    async def end(self, key: Key, id: str) -> OwnedSession:
        """End a session, forget it and return it. Raises `Answered`."""
        held = self.find(key, id, to_use=False)
        if held.key != key.id and not key.may("admin"):
            raise not_allowed("admin, as another key has opened this session")
        await self._drop(held)
        return held

    async def _drop(self, held: OwnedSession) -> None:
        self._held.pop(held.id, None)
        await held.session.aclose()

    async def sweep(self) -> None:
        """Until cancelled, end sessions whose key is no longer valid and forget those that ended long ago."""
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                await self._sweep_once()
            except RedomaError as error:
                tell(ERROR, "service.failed", error=type(error).__name__)

    async def _sweep_once(self) -> None:
        now, good, ended = time.time(), dict[str, bool](), dict[str, int]()
        for held in sorted(self._held.values(), key=lambda held: held.created, reverse=True):
            if held.key not in good:
                good[held.key] = await asyncio.to_thread(self._service.keys.get, held.key) is not None
            if not held.session.alive:
                held.ended_at = held.ended_at or now
                ended[held.key] = ended.get(held.key, 0) + 1
            old = held.ended_at is not None and (now - held.ended_at > _REMEMBERED or ended[held.key] > _MAX_ENDED)
            if not good[held.key] or old:
                await self._drop(held)

    async def close(self) -> None:
        """End all sessions."""
        for held in list(self._held.values()):
            await self._drop(held)


def _within(name: str, asked: float | None, configured: float) -> float:
    if asked is not None and asked > MAX_FACTOR * configured:
        why = f"this server allows {MAX_FACTOR * configured:g} s at most"
        step = f"ask for less, or have `sessions.{name}` raised"
        raise InvalidRequest(f"{name} is {asked:g}", why=why, next=step)
    return configured if asked is None else asked
