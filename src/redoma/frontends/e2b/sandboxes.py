"""Sandboxes: sessions with an owner, access tokens, metadata and an expiry."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...lib.errors import BackendError, RedomaError
from ...sessions import AsyncSession
from ...sessions.session import SessionUsage
from ...sessions.turn import LANGUAGES
from ...sessions.worker import MAIN
from ...telemetry import ERROR, INFO, tell
from ..http.keys import Key
from .wire import Gone, Problem

if TYPE_CHECKING:
    from ..http.service import Service
    from .filesystem import Watch
    from .processes import Running

ENVD_VERSION = "0.6.7"
"""The version of E2B's daemon that this server reports. The SDK enables features by it."""
TEMPLATES = ("base", "code-interpreter-v1")
HOME = "/home/user"
USERS = ("", "user")
"""Names of users that clients may ask for. There is only one user, and an empty name means the default."""
DEFAULT_SECONDS = 300.0
MAX_CONTEXTS = 50
_MAX_SAMPLES = 120
_LOOK = 1.0
"""Seconds between rounds of housekeeping."""
_MAX_REMEMBERED = 1000


class SandboxLimits(msgspec.Struct, frozen=True):
    """Limits of one sandbox."""

    processes: int = 64
    watches: int = 16
    listeners: int = 64
    unread: int = 32 << 20
    """Bytes of output that may wait for slow clients."""


class Context(msgspec.Struct, kw_only=True):
    """A namespace for code."""

    id: str
    language: str
    cwd: str
    name: str = MAIN
    """The name of the context in the session."""
    executions: int = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Resource usage of a sandbox at one time."""

    at: float
    cpu_percent: float
    used: SessionUsage


class Sandbox:
    """One sandbox. It is killed at the time `ends`, which can be changed."""

    limits = SandboxLimits()

    def __init__(self, session: AsyncSession, key: Key, template: str, metadata: dict[str, str]) -> None:
        self.id = secrets.token_hex(10)
        self.session, self.key, self.template, self.metadata = session, key, template, metadata
        self.token, self.traffic_token = secrets.token_hex(20), secrets.token_hex(20)
        self.started = self.ends = time.time()
        main = Context(id=str(uuid.uuid4()), language="python", cwd=HOME)
        self.contexts = {main.id: main}
        self.default = main
        self.processes: dict[int, Running] = {}
        self.watches: dict[str, Watch] = {}
        self.listeners = 0
        self.unread = 0
        self.samples: list[Sample] = []

    @property
    def left(self) -> float:
        """Seconds until it is killed."""
        return max(self.ends - time.time(), 0.1)

    def has_signed(self, signature: str, path: str, operation: Literal["read", "write"], user: str, until: str) -> bool:
        """Return whether a URL was signed with the token of this sandbox."""
        text = f"{path}:{operation}:{user}:{self.token}" + (f":{until}" if until else "")
        digest = base64.b64encode(hashlib.sha256(text.encode("utf-8", "replace")).digest()).rstrip(b"=")
        return hmac.compare_digest(f"v1_{digest.decode()}".encode(), signature.encode("utf-8", "replace"))

    def context(self, wanted: str | None, language: str | None) -> Context:
        """Return the context to run in. Raises `Problem` if it does not exist."""
        if wanted:
            if wanted not in self.contexts:
                raise Problem("not_found", f"there is no context {wanted[:100]}")
            return self.contexts[wanted]
        word = language_of(language)
        if word == "python":
            return self.default
        found = [each for each in self.contexts.values() if each.language == word]
        return found[0] if found else self.add_context(word, HOME)

    def add_context(self, language: str, cwd: str) -> Context:
        """Add a context. Raises `Problem` if there are too many."""
        if len(self.contexts) >= MAX_CONTEXTS:
            raise Problem("resource_exhausted", f"a sandbox has at most {MAX_CONTEXTS} contexts")
        context = Context(id=str(uuid.uuid4()), language=language, cwd=cwd, name=f"c{uuid.uuid4().hex[:12]}")
        self.contexts[context.id] = context
        return context

    async def sample(self) -> Sample:
        """Measure the current resource usage, and remember it."""
        used, now = await self.session.usage(), time.time()
        before = self.samples[-1] if self.samples else None
        since, ms = (before.at, before.used.cpu_ms) if before else (self.started, 0)
        percent = max(used.cpu_ms - ms, 0) / 10 / max(now - since, 0.001)
        self.samples.append(Sample(at=now, cpu_percent=round(percent, 2), used=used))
        del self.samples[:-_MAX_SAMPLES]
        return self.samples[-1]

    async def close(self) -> None:
        """End the sandbox; nothing of it is left when this returns."""
        for watch in list(self.watches.values()):
            watch.close()
        self.watches.clear()
        await self.session.aclose()


def language_of(word: str | None) -> str:
    """Return the session's name of a language. Raises `Problem` if it is not supported."""
    language = {"python3": "python", "sh": "bash", "js": "javascript"}.get((word or "python").lower(), word or "python")
    offered = sorted(each for each in LANGUAGES if each in ("python", "bash", "javascript"))
    if language.lower() not in offered:
        raise Problem("invalid_argument", f"there is no {language[:40]!r} here: the languages are {', '.join(offered)}")
    return language.lower()


class Sandboxes:
    """All sandboxes of a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._all: dict[str, Sandbox] = {}
        self._opening: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._made: dict[tuple[str, str], tuple[bytes, asyncio.Future[Sandbox]]] = {}

    # --- creating and ending ---

    @property
    def max_seconds(self) -> float:
        """The longest total lifetime of a sandbox, in seconds."""
        return self.service.config.sessions.lifetime

    async def create(
        self, key: Key, *, template: str, metadata: dict[str, str], env: dict[str, str], seconds: float
    ) -> Sandbox:
        """Create a sandbox. Raises `Problem` if a limit is reached or no session can be opened."""
        if self.service.draining:
            raise Problem("unavailable", "the server is stopping", retry=5)
        if seconds > self.max_seconds:
            most = f"a sandbox lives for {self.max_seconds:g} s at most (sessions.lifetime)"
            raise Problem("invalid_argument", f"timeout is {seconds:g} s, and {most}")
        owned = sum(each.key.id == key.id for each in self._all.values()) + self._opening.get(key.id, 0)
        if owned >= key.concurrency:
            raise Problem("resource_exhausted", f"this key may have {key.concurrency} sandboxes at one time")
        self._opening[key.id] = self._opening.get(key.id, 0) + 1
        try:
            session = await self._session(key, env)
        finally:
            self._opening[key.id] -= 1
        sandbox = Sandbox(session, key, template, metadata)
        self._all[sandbox.id] = sandbox
        self.end_in(sandbox, seconds)
        tell(INFO, "e2b.created", sandbox=sandbox.id)
        return sandbox

    async def _session(self, key: Key, env: dict[str, str]) -> AsyncSession:
        session = self._new(key, {"HOME": HOME, "USER": "user", **env})
        if session.name != "jail":  # containers have no /home/user
            session = self._new(key, {"USER": "user", **env})
        try:
            await session.open()
        except BackendError as error:
            await session.aclose()
            raise Problem("resource_exhausted", f"no sandbox can be made: {error.why}", status=503, retry=2) from error
        except BaseException:
            await session.aclose()
            raise
        return session

    def _new(self, key: Key, env: dict[str, str]) -> AsyncSession:
        return AsyncSession(
            self.service.executor,
            env=env,
            requester=f"{key.requester} e2b",
            label="e2b",
            idle=self.max_seconds,
            lifetime=self.max_seconds,
        )

    async def create_once(self, key: Key, word: str, digest: bytes, make: Any) -> Sandbox:
        """Create a sandbox, or return the one that the same request with this idempotency key created.

        Raises `Problem` if the idempotency key was used for a different request.
        """
        known = self._made.get((key.id, word))
        if known is not None and (not known[1].done() or _lives(known[1])):
            if known[0] != digest:
                raise Problem("already_exists", "this idempotency key was used for another request")
            return await asyncio.shield(known[1])
        if len(self._made) >= _MAX_REMEMBERED:
            del self._made[next(iter(self._made))]
        future: asyncio.Future[Sandbox] = asyncio.ensure_future(make())
        self._made[key.id, word] = digest, future
        return await asyncio.shield(future)

    def end_in(self, sandbox: Sandbox, seconds: float) -> None:
        """Let a sandbox expire in `seconds`, or at its maximum lifetime if that comes first."""
        sandbox.ends = min(time.time() + seconds, sandbox.started + self.max_seconds)
        if (timer := self._timers.pop(sandbox.id, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[sandbox.id] = loop.call_later(max(sandbox.ends - time.time(), 0), self._expire, sandbox)

    def _expire(self, sandbox: Sandbox) -> None:
        task = asyncio.get_running_loop().create_task(self.kill(sandbox))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def kill(self, sandbox: Sandbox) -> None:
        """End a sandbox. Safe to call twice."""
        self._all.pop(sandbox.id, None)
        if (timer := self._timers.pop(sandbox.id, None)) is not None:
            timer.cancel()
        await sandbox.close()

    async def keep_house(self) -> None:
        """Kill sandboxes whose key is no longer valid, and idle ones while the server shuts down. Busy ones get the
        time that the server gives to runs."""
        while True:
            await asyncio.sleep(_LOOK)
            try:
                self._sweep()
                for sandbox in list(self._all.values()):
                    is_idle = sandbox.session.current is None and not sandbox.processes
                    if self.service.keys.get(sandbox.key.id) is None or (self.service.draining and is_idle):
                        await self.kill(sandbox)
            except RedomaError as error:  # such as a database that is locked: try again in the next round
                tell(ERROR, "e2b.failed", error=type(error).__name__)

    async def close(self) -> None:
        """End all sandboxes."""
        await asyncio.gather(*(self.kill(sandbox) for sandbox in list(self._all.values())), *self._tasks)

    # --- finding ---

    def of(self, key: Key) -> list[Sandbox]:
        """Return the sandboxes that a key may see."""
        self._sweep()
        return [each for each in self._all.values() if each.key.id == key.id or key.may("admin")]

    def owned(self, key: Key, sandbox: str) -> Sandbox:
        """Return a sandbox that the key may see. Raises `Problem` (404)."""
        self._sweep()
        found = self._all.get(sandbox)
        if found is None or (found.key.id != key.id and not key.may("admin")):
            raise Problem("not_found", f"the sandbox {sandbox[:40]} was not found")
        return found

    def running(self, sandbox: str) -> Sandbox:
        """Return a live sandbox whose key is still valid. Raises `Gone`."""
        self._sweep()
        found = self._all.get(sandbox)
        if found is None or self.service.keys.get(found.key.id) is None:
            raise Gone(sandbox[:40])
        return found

    def signed(self, signature: str, path: str, operation: Literal["read", "write"], user: str, until: str) -> Sandbox:
        """Find the sandbox that a URL was signed for; the URL itself does not name it. Raises `Problem`."""
        self._sweep()
        for sandbox in list(self._all.values()):
            if sandbox.has_signed(signature, path, operation, user, until):
                return self.running(sandbox.id)
        raise Problem("unauthenticated", "the signature is not valid, or its sandbox has ended")

    def _sweep(self) -> None:
        """Drop sandboxes whose session has ended, for example because it ran out of memory."""
        for sandbox in [each for each in self._all.values() if not each.session.alive]:
            self._all.pop(sandbox.id, None)
            self._expire(sandbox)


def _lives(made: asyncio.Future[Sandbox]) -> bool:
    return not made.cancelled() and made.exception() is None and made.result().session.alive


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
