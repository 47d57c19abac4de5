"""Route requests, authenticate them, and answer errors in the form that each plane uses."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from ...lib.errors import RedomaError
from ...sessions import AsyncSession
from ..http.keys import Key
from . import code, control, filesystem, processes, transfer
from .sandboxes import USERS, Sandbox, Sandboxes
from .wire import E2bRequest, Gone, Problem, problem_of

if TYPE_CHECKING:
    from ..http.service import Service

_HOST = re.compile(r"(\d{1,5})-([0-9a-z]{1,40})\.")
_KEY = re.compile(r"e2b_([0-9a-f]{2,400})\Z")
_PORTS = ("", "49983", "49999")
"""Ports of E2B's own programs in a sandbox, which this server emulates. Any other port would belong to the code."""
_CONTROL = re.compile(r"(?:/v2)?/sandboxes(?:/([0-9A-Za-z-]{1,80})(?:/([a-z]{1,20}))?)?\Z")
_ACTIONS = {
    ("GET", ""): control.info,
    ("DELETE", ""): control.kill,
    ("POST", "connect"): control.connect,
    ("POST", "resume"): control.connect,
    ("POST", "timeout"): control.set_timeout,
    ("POST", "refreshes"): control.set_timeout,
    ("GET", "metrics"): control.metrics,
}
_ABSENT = {
    "pause": "pausing: the memory of a sandbox can't be kept. Read its files before it ends",
    "snapshots": "snapshots",
    "fork": "forks of a sandbox",
    "network": "a network for sandboxes",
    "logs": "logs of sandboxes; `redoma audit` has what ran",
}


class Endpoint:
    """The whole interface, as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.sandboxes = Sandboxes(service)
        self.keeps_ready = False
        """Whether to prepare a cell at start-up, so that the first sandbox opens quickly."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Run with the service: prepare cells, do housekeeping, and end every sandbox at the end."""
        keeping_house = asyncio.create_task(self.sandboxes.keep_house())
        try:
            if self.keeps_ready:
                with suppress(RedomaError):  # the first sandbox reports what is wrong
                    AsyncSession(self._service.executor).warm()
            yield
        finally:
            keeping_house.cancel()
            await self.sandboxes.close()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = "/" + scope["path"].removeprefix("/e2b/").strip("/")
        request = E2bRequest(scope, receive, send, path)
        service, _, method = path[1:].partition("/")
        calls = {"process.Process": processes.CALLS, "filesystem.Filesystem": filesystem.CALLS}.get(service, {})
        if method in calls:
            kind, call = calls[method]
            await self._call(request, call, stream=kind == "stream")
        else:
            await self._route(request)

    async def _call(self, request: E2bRequest, call: Any, *, stream: bool) -> None:
        try:
            if request.method != "POST":
                raise Problem("unimplemented", "calls are POST requests", status=405)
            sandbox = self._sandbox(request)
            _must_be_the_user(_basic_user(request))
            await call(request, sandbox)
        except Exception as error:  # every error gets an answer
            await _answer_call(request, problem_of(self._error_to_answer(request, error)), stream=stream)

    async def _route(self, request: E2bRequest) -> None:
        try:
            await self._dispatch(request)
        except Exception as error:  # every error gets an answer
            problem = problem_of(self._error_to_answer(request, error))
            if request.begun:
                raise  # too late for an answer: the connection is closed
            headers = {"retry-after": str(problem.retry)} if problem.retry else {"should-retry": "false"}
            await request.answer(
                {"code": problem.status, "message": problem.message}, status=problem.status, headers=headers
            )

    def _error_to_answer(self, request: E2bRequest, error: Exception) -> Exception:
        """Return the error to answer: `Gone` if the sandbox ended while the request was handled."""
        named = request.header("e2b-sandbox-id")
        if named and not isinstance(error, Problem):
            try:
                self.sandboxes.running(named)
            except Gone as gone:
                return gone
        return error

    # --- control plane ---

    async def _dispatch(self, request: E2bRequest) -> None:
        _must_be_our_port(_named(request)[1])
        found = _CONTROL.match(request.path)
        if found is not None:
            await self._control(request, found[1] or "", found[2] or "")
        elif request.path == "/health":
            await self._health(request)
        elif request.path == "/files":
            await self._files(request)
        elif request.path in ("/execute", "/contexts") or request.path.startswith("/contexts/"):
            await self._code(request)
        else:
            self._key(request)
            what = request.path.strip("/").partition("/")[0][:40]
            raise Problem("unimplemented" if request.header("x-api-key") else "not_found", f"there is no {what!r} here")

    async def _control(self, request: E2bRequest, sandbox: str, action: str) -> None:
        key = self._key(request)
        if not sandbox and request.method == "POST":
            await control.create(request, self.sandboxes, key)
        elif not sandbox and request.method == "GET":
            await control.list_all(request, self.sandboxes, key)
        else:
            handler = _ACTIONS.get((request.method, action))
            if handler is None:
                raise Problem("unimplemented", f"this server does not have {_ABSENT.get(action, 'that')}")
            await handler(request, self.sandboxes, key, self.sandboxes.owned(key, sandbox))

    def _key(self, request: E2bRequest) -> Key:
        """Return the API key that was sent. Raises `Problem` if it is not valid, `Answered` if it is used too often."""
        text = request.header("x-api-key")
        if (packed := _KEY.match(text)) is not None and len(packed[1]) % 2 == 0:
            text = bytes.fromhex(packed[1]).decode("latin-1")
        key = self._service.keys.authenticate(text)
        if key is None:
            raise Problem(
                "unauthenticated", "the API key is unknown, revoked or expired; `redoma keys create` makes one"
            )
        if not key.may("run"):
            raise Problem("permission_denied", "this key lacks the scope run")
        self._service.quotas.take_rate(key)
        return key

    # --- data plane ---

    async def _health(self, request: E2bRequest) -> None:
        sandbox, _ = _named(request)
        if sandbox:
            self.sandboxes.running(sandbox)
        await request.answer(status=204)

    async def _files(self, request: E2bRequest) -> None:
        operation: Any = {"GET": "read", "POST": "write"}.get(request.method)
        if operation is None:
            raise Problem("unimplemented", "files are read by GET and written by POST", status=405)
        query = request.query
        user = query.get("username", "")
        if query.get("signature"):
            until = query.get("signature_expiration", "")
            if until and (not until.isdigit() or int(until[:15]) < time.time()):
                raise Problem("unauthenticated", "signature is already expired")
            sandbox = self.sandboxes.signed(query["signature"], query.get("path", ""), operation, user, until)
            self._service.quotas.take_rate(sandbox.key)
        else:
            sandbox = self._sandbox(request)
        _must_be_the_user(user)
        if operation == "read":
            await transfer.download(request, sandbox)
        else:
            await transfer.upload(request, sandbox, self._service.settings.max_body)

    async def _code(self, request: E2bRequest) -> None:
        sandbox = self._sandbox(request, by_traffic_token=True)
        _, _, rest = request.path.strip("/").partition("/")
        context, _, action = rest.partition("/")
        match request.method, request.path, action:
            case "POST", "/execute", _:
                await code.execute(request, sandbox)
            case "GET", "/contexts", _:
                await code.contexts(request, sandbox)
            case "POST", "/contexts", _:
                await code.create_context(request, sandbox)
            case "DELETE", _, "" if context:
                await code.remove_context(request, sandbox, context)
            case "POST", _, "restart":
                await code.restart_context(request, sandbox, context)
            case _:
                raise Problem("unimplemented", "there is no such call", status=405)

    def _sandbox(self, request: E2bRequest, *, by_traffic_token: bool = False) -> Sandbox:
        """Return the sandbox of a data-plane request. Raises `Gone`, or `Problem` if the token is wrong."""
        name, port = _named(request)
        if not name:
            raise Problem("invalid_argument", "the request names no sandbox")
        sandbox = self.sandboxes.running(name)
        _must_be_our_port(port)
        good = _is_token(request.header("x-access-token"), sandbox.token)
        if by_traffic_token:
            good = _is_token(request.header("e2b-traffic-access-token"), sandbox.traffic_token) or good
        if not good:
            raise Problem("unauthenticated", "the access token is not that of the sandbox")
        self._service.quotas.take_rate(sandbox.key)
        return sandbox


async def _answer_call(request: E2bRequest, problem: Problem, *, stream: bool) -> None:
    """Answer an error in the form of the Connect protocol. A missing sandbox is a plain HTTP 502."""
    if stream and problem.status != 502:
        if not request.begun:
            await request.begin_stream()
        await request.end_stream(problem)
    elif problem.status == 502:
        await request.answer({"code": 502, "message": problem.message}, status=502)
    else:
        status = 400 if problem.code == "failed_precondition" else problem.status
        await request.answer({"code": problem.code, "message": problem.message}, status=status)


def _must_be_our_port(port: str) -> None:
    if port not in _PORTS:
        why = f"the sandbox's port is not open: {port[:8]} can't be reached from outside"
        raise Problem("unavailable", why, status=502)


def _is_token(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())


def _named(request: E2bRequest) -> tuple[str, str]:
    """Return the sandbox id and port that a request names, in its headers or its host name."""
    host = _HOST.match(request.header("host"))
    name = request.header("e2b-sandbox-id") or (host[2] if host else "")
    return name, request.header("e2b-sandbox-port") or (host[1] if host else "")


def _basic_user(request: E2bRequest) -> str:
    """Return the user that a call should run as, or an empty string."""
    kind, _, text = request.header("authorization").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace").partition(":")[0]
    except binascii.Error:
        raise Problem("unauthenticated", "the authorization can't be read") from None


def _must_be_the_user(name: str) -> None:
    if name not in USERS:
        raise Problem(
            "unauthenticated", f"there is no user {name[:40]!r}: everything runs as 'user', without privileges"
        )
