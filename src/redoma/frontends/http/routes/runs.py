"""Start, follow, look up and cancel runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, HeaderParameter, PathParameter, QueryParameter
from litestar.response import Stream

from ....lib.errors import InvalidRequest
from ....models import Result
from ..access import service_of
from ..bodies import Event, RunBody, Runs, RunSummary, RunView, encode, moment
from ..jobs import RunJob, follow, row_of
from ..problems import Answered
from ..run_table import Row
from ..service import Service
from .answers import KeyedRequest, described, reply

T = TypeVar("T")
_BEAT = 15.0
"""Seconds without an event after which a comment is sent on an event stream, so that no proxy closes it."""
_UNWATCHED = 0.05
"""Seconds of a run before its client's connection is watched: most runs are over by then."""
_TITLE = 80
_GONE = "its caller went away"

_EXAMPLES = [
    Example(summary="Python", value={"code": "print(6 * 7)"}),
    Example(
        summary="A script with a file, and a picture to bring back",
        value={
            "code": "import csv; print(sum(int(row[0]) for row in csv.reader(open('data.csv'))))",
            "files": {"data.csv": "1\n2\n3\n"},
            "outputs": ["*.png"],
            "limits": {"time": 10, "memory": "256MiB"},
            "reason": "adds the numbers up",
        },
    ),
    Example(
        summary="A command in an overlay of a project",
        value={"argv": ["make", "clean"], "language": "command", "workspace": "overlay", "project": "app"},
    ),
]
_Wanted = Annotated[RunBody, Body(examples=_EXAMPLES)]
_Idempotency = Annotated[
    str,
    HeaderParameter(
        name="Idempotency-Key",
        required=False,
        max_length=200,
        description="The same key with the same request is run once, however often it is sent.",
    ),
]
_Id = Annotated[str, PathParameter(description="The run's id.", max_length=64)]


def summary(row: Row, names: dict[str, str]) -> RunSummary:
    """Return a run as a list shows it. `names` maps the ids of keys to their names."""
    return RunSummary(**fields(row, names))


def view(row: Row, names: dict[str, str]) -> bytes:
    """Return a run with its request and its result, as JSON."""
    shape = {
        **fields(row, names),
        "request": row.body,
        "result": None if row.result is None else msgspec.Raw(row.result),
    }
    return encode(shape)


def fields(row: Row, names: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a run's `RunSummary`."""
    text = row.body.label or row.body.code or " ".join(row.body.argv)
    return {
        "id": row.id,
        "state": row.state,
        "status": row.status,
        "mode": row.mode,
        "key": names.get(row.key, row.key),
        "language": row.body.language,
        "title": text.strip()[:_TITLE],
        "created": moment(row.created),
        "started": None if row.started is None else moment(row.started),
        "ended": None if row.ended is None else moment(row.ended),
        "approval_id": row.approval,
        "note": row.note,
        "session": row.session,
    }


async def key_names(service: Service) -> dict[str, str]:
    """Return the names of all keys by their ids."""
    return {key.id: key.name for key in await asyncio.to_thread(service.keys.list)}


async def ended(request: KeyedRequest, job: RunJob) -> Row:
    """Wait until a run has ended or waits for an approval, and return it. Raises the error that ended it.

    If the client disconnects, cancel the run, unless it is durable.
    """
    if job.task is not None:
        await cancel_if_gone(request, job, job.task)
    return await service_of(request).ended(job)


async def cancel_if_gone(request: KeyedRequest, job: RunJob, doing: asyncio.Future[Any]) -> None:
    """Wait for `doing`, which is about a run. If the client disconnects first, cancel the run, unless it is durable."""
    await _until_gone(request, doing)
    if not doing.done() and not job.durable:
        job.cancel(_GONE)


async def unless_gone(request: KeyedRequest, work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work`, which may never end, and return its result. Cancel it if the client disconnects."""
    doing = asyncio.ensure_future(work)
    await _until_gone(request, doing)
    if not doing.done():
        doing.cancel()
    return await doing


async def _until_gone(request: KeyedRequest, doing: asyncio.Future[T]) -> None:
    """Wait until `doing` is done or the client has disconnected."""
    if (await asyncio.wait({doing}, timeout=_UNWATCHED))[0]:
        return
    gone = asyncio.ensure_future(_gone(request))
    either: set[asyncio.Future[Any]] = {gone, doing}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()


def result_of(row: Row) -> bytes:
    """Return the result of a run as JSON. Raises `Answered` if it has none."""
    if row.result is None:
        raise Answered(503 if row.state == "interrupted" else 409, f"the run is {row.state}", why=row.note)
    return row.result


async def _gone(request: KeyedRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@post(
    "/v1/runs",
    **described(
        "runs",
        "Run something and wait for its result",
        Result,
        "How it ended.",
        scope="run",
        also={202: (Result, "A person has to approve it: it goes on when they have. Look the run up by its id.")},
    ),
)
async def run(request: KeyedRequest, data: _Wanted, idempotency: _Idempotency = "") -> Response[bytes]:
    service = service_of(request)
    found, _ = await service.accept(request.user, data, "sync", idempotency)
    row = await ended(request, found) if isinstance(found, RunJob) else found
    return reply(result_of(row), 202 if row.state == "waiting" else 200)


@post(
    "/v1/runs/async",
    **described("runs", "Accept something to run, durably", RunView, "It is queued.", scope="run", status=202),
)
async def run_async(request: KeyedRequest, data: _Wanted, idempotency: _Idempotency = "") -> Response[bytes]:
    service = service_of(request)
    found, _ = await service.accept(request.user, data, "async", idempotency)
    row = row_of(found)
    return reply(view(row, {request.user.id: request.user.name}), 202, location=f"/v1/runs/{row.id}")


@post(
    "/v1/runs/stream",
    **described(
        "runs",
        "Run something and follow it: events `state`, `output` and `result`",
        Event,
        "Its events.",
        scope="run",
        media_type="text/event-stream",
    ),
)
async def run_stream(request: KeyedRequest, data: _Wanted) -> Stream:
    service = service_of(request)
    found, _ = await service.accept(request.user, data, "stream")
    return events(service, found, cancels=True)


@get(
    "/v1/runs/{run_id:str}/events",
    **described(
        "runs",
        "Follow a run: events `state`, `output` and `result`",
        Event,
        "Its events.",
        scope="run",
        media_type="text/event-stream",
    ),
)
async def run_events(request: KeyedRequest, run_id: _Id) -> Stream:
    service = service_of(request)
    return events(service, await service.find(request.user, run_id), cancels=False)


@get("/v1/runs", **described("runs", "List runs, newest first: one's own, or with the scope audit all", Runs, "Runs."))
async def runs(
    request: KeyedRequest,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
    before: Annotated[str, QueryParameter(description="`next` of the page before.", max_length=64)] = "",
    run_state: Annotated[
        Literal["", "queued", "running", "waiting", "done", "cancelled", "interrupted"], QueryParameter(name="state")
    ] = "",
) -> Response[bytes]:
    service = service_of(request)
    found = await service.newest(request.user, before=_before(before), limit=limit, state=run_state)
    names = await key_names(service)
    more = repr(found[-1].created) if len(found) == limit else ""
    return reply(msgspec.json.encode(Runs(runs=tuple(summary(row, names) for row in found), next=more)))


def _before(text: str) -> float:
    if not text:
        return float("inf")
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(
            "`before` can't be read", why="it is not a page", next="give `next` of the page before"
        ) from None


@get("/v1/runs/{run_id:str}", **described("runs", "Show a run", RunView, "The run."))
async def run_show(request: KeyedRequest, run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    row = row_of(await service.find(request.user, run_id))
    return reply(view(row, await key_names(service)))


@post(
    "/v1/runs/{run_id:str}/cancel",
    **described("runs", "Cancel a run; one that has ended stays as it is", RunView, "The run.", scope="run"),
)
async def run_cancel(request: KeyedRequest, run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    row = await service.cancel(request.user, run_id)
    return reply(view(row, await key_names(service)))


def events(service: Service, found: RunJob | Row, *, cancels: bool) -> Stream:
    """Stream the events of a run for `EventSource`. With `cancels`, cancel the run if the client disconnects."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(_lines(service, found, cancels=cancels), media_type="text/event-stream", headers=headers)


async def _lines(service: Service, found: RunJob | Row, *, cancels: bool) -> AsyncIterator[bytes]:
    following = follow(found, service.stopping, until_over=not cancels)
    pending: asyncio.Future[tuple[str, Any]] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(following))
            done, _ = await asyncio.wait({pending}, timeout=_BEAT)
            if not done:
                yield b": nothing new\n\n"
                continue
            try:
                name, data = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            # Encoded JSON has no line breaks, so it fits one `data` line.
            yield b"event: " + name.encode() + b"\ndata: " + encode(data) + b"\n\n"
    finally:
        if pending is not None:
            pending.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await pending
        await following.aclose()  # type: ignore[attr-defined] # an asynchronous generator
        if cancels and isinstance(found, RunJob) and not found.durable:
            found.cancel(_GONE)


HANDLERS = (run, run_async, run_stream, run_events, runs, run_show, run_cancel)
