"""A client of a service: the same calls as the library's, executed by `redoma serve` elsewhere.

    client = redoma.connect("http://127.0.0.1:8800", key="rdm_…")
    result = client.run("print(6 * 7)")               # the same Result
    for ask in client.approvals.list(): …
    client.changes.apply(result.id)
    with client.session() as session: …               # as redoma.Session

`client_transport` has the connections, `client_shapes` what is sent and comes back, `client_sessions` the sessions.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from ...lib.errors import InvalidRequest, ServiceError
from ...models import Chunk, Result, Status
from .client_shapes import body_of, decoded_result, result_of
from .client_transport import Events, Transport

if TYPE_CHECKING:
    from .client_sessions import AsyncRemoteSession, RemoteSession

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")
_OPTIONS = (
    *("args", "backend", "env", "environment", "expect", "files", "label", "limits", "memory", "network", "outputs"),
    *("packages", "policy", "project", "reason", "require", "secrets", "stdin", "timeout", "wait", "workspace"),
)
_FIRST_LOOK, _MAX_PAUSE = 0.05, 1.0  # seconds between polls of a run, doubled each time


def connect(url: str, key: str | None = None, *, timeout: float = 600.0) -> Client:
    """Return a client of a service. It connects at its first call.

    Args:
        url: The service's address: `http://HOST:PORT`, `https://HOST`, or `unix:/path/to/socket`.
        key: An API key: see `redoma keys`; by default the one in the variable REDOMA_KEY.
        timeout: Seconds to wait for an answer.

    Returns:
        A `Client`; its `asynchronous` has these calls for asyncio code, but `stream` and `request`.

    Raises:
        InvalidRequest: The URL or the key is malformed, or there is no key.
    """
    if key is None:
        from ...config import service_key

        key = service_key()
        if not key:
            raise InvalidRequest(
                "there is no key for the service",
                why="none was given, and REDOMA_KEY is not set",
                next="pass key='rdm_…'; `redoma keys create`, where the service runs, makes one",
            )
    return Client(url, key, timeout=timeout)


class Client:
    """A client of a service. Any number of threads may share it; each gets its own connection."""

    def __init__(self, url: str, key: str, *, timeout: float = 600.0) -> None:
        self.transport = Transport(url, key, timeout)
        self.approvals = Approvals(self.transport)
        self.changes = Changes(self.transport)
        self.environments = Environments(self.transport)

    @property
    def asynchronous(self) -> AsyncClient:
        """These calls for asyncio code, but `stream` and `request`."""
        return AsyncClient(self)

    def run(self, /, code: str, language: str = "python", **options: Any) -> Result:
        """Run source text on the service and return its `Result`.

        Options are those of `redoma.run` that make sense remotely: there is no `cwd`, and `project` is the name of a
        project that the server offers. If a person has to approve the run, wait for that; with `wait=False`, return a
        result with the status `pending` instead. Raises `InvalidRequest` if the request is invalid, `ServiceError` if
        the service refuses it.
        """
        return self._run(body_of(options, _OPTIONS, code=code, language=language), wait=options.get("wait", True))

    def command(self, /, argv: Iterable[str], **options: Any) -> Result:
        """Run a program with its arguments on the service, without a shell. Options are those of `run`."""
        if isinstance(argv, str):
            raise InvalidRequest("argv is one text", why="it takes a list of words", next="split it")
        body = body_of(options, _OPTIONS, argv=list(argv), language="command")
        return self._run(body, wait=options.get("wait", True))

    def _run(self, body: dict[str, Any], *, wait: bool) -> Result:
        result = decoded_result(self.transport.fetch("POST", "/v1/runs", body)[0])
        return self._after_approval(result) if wait else result

    def _after_approval(self, result: Result) -> Result:
        """If the run waits for an approval, wait for that and for its end."""
        return self.wait(result.id) if result.status is Status.PENDING else result

    def submit(self, /, code: str, language: str = "python", *, idempotency_key: str = "", **options: Any) -> str:
        """Queue source text to run, durably. Return the id of the run, for `show`, `wait` and `cancel`."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        body = body_of(options, _OPTIONS, code=code, language=language)
        return str(self.request("POST", "/v1/runs/async", body, headers=headers)["id"])

    def wait(self, id: str) -> Result:
        """Wait for a run's end and return its result. Raises `ServiceError` if it was cancelled or interrupted."""
        pause = _FIRST_LOOK
        while True:
            found = self.show(id)
            if found["state"] == "done":
                return result_of(found["result"])
            if found["state"] in ("cancelled", "interrupted"):
                raise ServiceError(f"the run was {found['state']}", why=found["note"], next="run it again")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def stream(self, code: str, language: str = "python", **options: Any) -> RemoteRun:
        """Return a run of source text on the service: iterate over it for its output, then read its `result`."""
        body = body_of(options, _OPTIONS, code=code, language=language)
        return RemoteRun(self, body, wait=options.get("wait", True))

    def session(self, **options: Any) -> RemoteSession:
        """Return a session on the service: a Python that keeps its variables, in its own cell.

        `with` or its first use opens it. Options are those of `redoma.Session`, but `project` is the name of a project
        that the server offers. Raises `InvalidRequest` for an unknown option.
        """
        from .client_sessions import AsyncRemoteSession, RemoteSession

        return RemoteSession(AsyncRemoteSession(self, options))

    Session = session

    def sessions(self) -> Any:
        """Return the sessions that this key may see, newest first."""
        return self.request("GET", "/v1/sessions")["sessions"]

    def runs(self, limit: int = 50, before: str = "") -> Any:
        """Return the newest runs that this key may list: `{"runs": […], "next": …}`. For older ones, pass `next` as
        `before`."""
        return self.request("GET", f"/v1/runs?{urlencode({'limit': limit, 'before': before})}")

    def show(self, id: str) -> Any:
        """Return a run with its state, its request and its result."""
        return self.request("GET", f"/v1/runs/{_part(id)}")

    def cancel(self, id: str) -> Any:
        """Cancel a run. Return it as `show` does."""
        return self.request("POST", f"/v1/runs/{_part(id)}/cancel")

    def check(self, code: str, language: str = "python", policy: str | None = None) -> Any:
        """Return what the service's policy says about source text, without running it."""
        return self.request("POST", "/v1/policy/check", {"code": code, "language": language, "policy": policy})

    def request(self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Any:
        """Send a request to any address and return the decoded JSON. Raises `InvalidRequest` or `ServiceError`."""
        return self.transport.request(method, path, body, headers=headers)

    def close(self) -> None:
        """Close the connections of all threads. The client can be used again."""
        self.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RemoteRun:
    """The output of a run of a service, piece by piece, and then its `result`.

    Calling `close` or leaving the `with` block before the end cancels the run, unless it waits for an approval.
    """

    def __init__(self, client: Client, body: dict[str, Any], *, wait: bool) -> None:
        self._client, self._body, self._wait = client, body, wait
        self._result: Result | None = None
        self._events: Events | None = None

    @property
    def result(self) -> Result:
        """The result, once all output was read. Raises `ServiceError` before."""
        if self._result is None:
            raise ServiceError("there is no result", why="the run goes on, or was left early", next="read all of it")
        return self._result

    def __iter__(self) -> Iterator[Chunk]:
        self._events = events = self._client.transport.follow("/v1/runs/stream", self._body)
        try:
            for event in events:
                if isinstance(event, Chunk):
                    yield event
        finally:
            events.close()
        self._result = events.result()
        if self._wait:
            self._result = self._client._after_approval(self._result)

    def close(self) -> None:
        """Stop following the run; the service cancels it if it still runs."""
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> RemoteRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Approvals:
    """Runs of the service that wait for a person's approval."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, everything: bool = False) -> Any:
        """Return the open approvals, oldest first; with `everything` the answered ones as well."""
        return self._transport.request("GET", f"/v1/approvals?all={str(everything).lower()}")["approvals"]

    def show(self, id: str) -> Any:
        """Return an approval in full: command, reasoning, risks and effect."""
        return self._transport.request("GET", f"/v1/approvals/{_part(id)}")

    def approve(self, id: str, *, reason: str, digest: str = "") -> Any:
        """Approve exactly this run, once. If `digest` is given, anything with another digest is not approved."""
        return self._answer(id, "approve", reason, digest)

    def deny(self, id: str, *, reason: str) -> Any:
        """Deny an approval."""
        return self._answer(id, "deny", reason, "")

    def _answer(self, id: str, action: str, reason: str, digest: str) -> Any:
        path = f"/v1/approvals/{_part(id)}/{action}"
        return self._transport.request("POST", path, {"reason": reason, "digest": digest})


class Changes:
    """Changes to projects that runs in overlays on the service have made."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Any:
        """Return all kept changes, newest first."""
        return self._transport.request("GET", "/v1/changes")["changes"]

    def show(self, id: str) -> Any:
        """Return the changes of a run with their diffs."""
        return self._transport.request("GET", f"/v1/changes/{_part(id)}")

    def apply(self, id: str, *, paths: Iterable[str] | None = None, named: Iterable[str] = ()) -> Any:
        """Write a run's changes to the project, all or nothing.

        `paths` selects some of them; `named` lists the protected paths to write too.
        """
        body = {"paths": None if paths is None else [*paths], "named": [*named]}
        return self._transport.request("POST", f"/v1/changes/{_part(id)}/apply", body)

    def discard(self, id: str) -> Any:
        """Discard the changes of a run; the project was never touched."""
        return self._transport.request("POST", f"/v1/changes/{_part(id)}/discard")

    def undo(self, id: str) -> Any:
        """Restore exactly the paths that were applied to their earlier state."""
        return self._transport.request("POST", f"/v1/changes/{_part(id)}/undo")


class Environments:
    """Named sets of packages for runs and sessions on the service. Changing them needs the scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Any:
        """Return all environments, ordered by name."""
        return self._transport.request("GET", "/v1/environments")["environments"]

    def show(self, name: str) -> Any:
        """Return an environment: its packages, their versions, and the hashes of the files they were installed from."""
        return self._transport.request("GET", f"/v1/environments/{_part(name)}")

    def create(self, name: str, packages: Iterable[str]) -> Any:
        """Install packages on the service, in a cell that can reach only the package index, under this name."""
        return self._transport.request("POST", "/v1/environments", {"name": name, "packages": [*packages]})

    def update(self, name: str) -> Any:
        """Install an environment's packages again, in the newest versions that fit its requirements."""
        return self._transport.request("POST", f"/v1/environments/{_part(name)}/update")

    def remove(self, name: str) -> Any:
        """Remove an environment. Runs that use it keep its files until they end."""
        return self._transport.request("DELETE", f"/v1/environments/{_part(name)}")


class InThreads(Generic[C]):
    """The calls of `core` for asyncio code: each one is made in a thread."""

    def __init__(self, core: C) -> None:
        self.core = core


def in_thread(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[InThreads[C], P], Coroutine[Any, Any, T]]:
    """Return an asynchronous version of a method, which calls it in a thread."""

    @functools.wraps(method)
    async def call(self: InThreads[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.core, *args, **kwargs)

    return call


class AsyncApprovals(InThreads[Approvals]):
    """`Approvals` for asyncio code."""

    list = in_thread(Approvals.list)
    show = in_thread(Approvals.show)
    approve = in_thread(Approvals.approve)
    deny = in_thread(Approvals.deny)


class AsyncChanges(InThreads[Changes]):
    """`Changes` for asyncio code."""

    list = in_thread(Changes.list)
    show = in_thread(Changes.show)
    apply = in_thread(Changes.apply)
    discard = in_thread(Changes.discard)
    undo = in_thread(Changes.undo)


class AsyncEnvironments(InThreads[Environments]):
    """`Environments` for asyncio code."""

    list = in_thread(Environments.list)
    show = in_thread(Environments.show)
    create = in_thread(Environments.create)
    update = in_thread(Environments.update)
    remove = in_thread(Environments.remove)


class AsyncClient(InThreads[Client]):
    """A `Client` for asyncio code."""

    def __init__(self, core: Client) -> None:
        super().__init__(core)
        self.approvals = AsyncApprovals(core.approvals)
        self.changes = AsyncChanges(core.changes)
        self.environments = AsyncEnvironments(core.environments)

    run = in_thread(Client.run)
    command = in_thread(Client.command)
    submit = in_thread(Client.submit)
    wait = in_thread(Client.wait)
    runs = in_thread(Client.runs)
    show = in_thread(Client.show)
    cancel = in_thread(Client.cancel)
    check = in_thread(Client.check)
    sessions = in_thread(Client.sessions)

    def session(self, **options: Any) -> AsyncRemoteSession:
        """Return a session on the service: see `Client.session`."""
        from .client_sessions import AsyncRemoteSession

        return AsyncRemoteSession(self.core, options)

    Session = session

    async def aclose(self) -> None:
        """Close the connections. The client can be used again."""
        self.core.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _part(text: str) -> str:
    """Return a text as one part of a path."""
    return quote(text, safe="")
