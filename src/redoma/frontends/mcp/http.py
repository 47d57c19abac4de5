"""The server at /mcp of the service: streamable HTTP, for keys with the scope `run`.

The key of every request is checked before its body is read, also on a connection that a valid key has opened. The SDK
ties a connection to the key that opened it. As everywhere in the service, requester and approver must have different
keys, so the person at the client is not asked to approve.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Context
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from ...lib.errors import RedomaError
from ...models import Result, Submission
from ...workspace.kept import Kept
from ..http.bodies import ApplyBody, RunBody, SomeLimits
from ..http.keys import Key
from ..http.mounts import Mount
from ..http.problems import no_key, not_allowed, problem_of, without_paths
from ..http.routes import changes
from ..http.service import Service
from .tool_host import Caller, ToolHost, Wanted, client_name
from .tools import build

PATH = "/mcp"
_KEY = "redoma.key"
_MAX_CONNECTIONS = 1000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ServiceToolHost(ToolHost):
    """Runs on the executor of the service, with its quotas, projects and keys."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self.executor = service.executor

    def caller(self, ctx: Context[Any, Any]) -> Caller:
        asked: Any = ctx.request_context.request
        key: Key = asked.scope[_KEY]
        return Caller(f"{key.requester} mcp:{client_name(ctx)}", key.id, key)

    def may_answer(self, caller: Caller) -> bool:
        return False

    def words(self, text: str) -> str:
        return without_paths(self._service.boundary.without_roots(text))

    def result(self, result: Result) -> Result:
        hide = self._service.boundary.without_roots
        no = result.denial
        return msgspec.structs.replace(
            result,
            error=result.error and hide(result.error),
            denial=no and msgspec.structs.replace(no, why=hide(no.why), allowed=hide(no.allowed)),
        )

    def project_name(self, path: str) -> str:
        return self._service.boundary.project_name(path)

    def max_sessions(self, caller: Caller) -> int:
        return int(caller.key.concurrency)

    def must_be_within(self, limits: dict[str, Any]) -> None:
        self._service.boundary.must_be_within(limits)

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        async with self._service.turn(caller.key):
            yield

    def prepare(self, caller: Caller, wanted: Wanted) -> Submission:
        body = RunBody(
            language=wanted.language,  # type: ignore[arg-type] # never Lua
            code=wanted.code,
            argv=wanted.argv,
            limits=SomeLimits(time=wanted.timeout),
            stdin=wanted.stdin,
            network=wanted.network,
            files=dict(wanted.files),
            outputs=wanted.outputs,
            workspace=wanted.workspace,  # type: ignore[arg-type] # never direct
            project=wanted.project,
            reason=wanted.reason,
        )
        submission = self._service.boundary.prepare(caller.key, body)
        request = msgspec.structs.replace(submission.request, requester=caller.requester)
        return msgspec.structs.replace(submission, request=request)

    async def apply(self, caller: Caller, id: str, paths: tuple[str, ...] | None, named: tuple[str, ...]) -> Kept:
        _must_approve(caller)
        return await changes.apply_as(self._service, caller.key, id, ApplyBody(paths=paths, named=named))

    async def discard(self, caller: Caller, id: str) -> Kept:
        return await changes.discard_as(self._service, caller.key, id)

    async def undo(self, caller: Caller, id: str) -> Kept:
        _must_approve(caller)
        return await changes.undo_as(self._service, caller.key, id)


def _must_approve(caller: Caller) -> None:
    if not caller.key.may("approve"):
        raise not_allowed("approve")


def mount(service: Service) -> Mount:
    """Return the MCP server of a service, to be mounted at `PATH`."""
    host = ServiceToolHost(service)
    manager = StreamableHTTPSessionManager(
        build(host)._lowlevel_server, max_request_body_size=service.settings.max_body, max_sessions=_MAX_CONNECTIONS
    )
    inner = AuthContextMiddleware(manager.handle_request)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            key = _key_of(service, scope)
        except RedomaError as error:
            await _refuse(error, send)
            return
        if scope["method"] == "GET":
            receive = _ended_by(service.stopping, receive)
        token = AccessToken(token="", client_id=key.id, scopes=list(key.scopes))
        await inner({**scope, _KEY: key, "user": AuthenticatedUser(token)}, receive, send)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with manager.run():
            try:
                yield
            finally:
                await host.aclose()

    return Mount(PATH, app, running)


def _key_of(service: Service, scope: Scope) -> Key:
    """Return the key of a request. Raises `Answered` if there is none, it lacks the scope, or it is used too often."""
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
    kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    key = service.keys.authenticate(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        raise no_key(sent=bool(given))
    if not key.may("run"):
        raise not_allowed("run")
    service.quotas.take_rate(key)
    return key


def _ended_by(stopping: asyncio.Event, receive: Receive) -> Receive:
    """Return `receive` for a client that only listens: it ends when the service stops, which would wait for it."""

    async def either() -> MutableMapping[str, Any]:
        waits = [asyncio.ensure_future(receive()), asyncio.ensure_future(stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            heard = waits[0]
            return heard.result() if heard.done() else {"type": "http.disconnect"}  # type: ignore[return-value]
        finally:
            for each in waits:
                each.cancel()

    return either


async def _refuse(error: RedomaError, send: Send) -> None:
    status, problem, retry = problem_of(error)
    body = msgspec.json.encode(problem)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if retry:
        headers.append((b"retry-after", str(retry).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
