"""Open, use, copy, restart and close sessions. A key can use only its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from litestar import Response, delete, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter
from litestar.response import Stream

from ....models import Effect, Result
from ....sessions import AsyncSession
from ....sessions.session import SessionUsage
from ..access import service_of
from ..bodies import (
    ChangesView,
    CompleteBody,
    Done,
    Event,
    ForkBody,
    Interrupted,
    Names,
    SessionBody,
    SessionList,
    SessionRunBody,
    SessionView,
)
from ..sessions import OwnedSession
from . import changes, runs
from .answers import KeyedRequest, described, reply

_Wanted = Annotated[
    SessionBody,
    Body(
        examples=[
            Example(summary="A session", value={}),
            Example(
                summary="With a file, and limits",
                value={"files": {"data.csv": "1\n2\n"}, "limits": {"memory": "512MiB"}, "idle": 300, "label": "report"},
            ),
        ]
    ),
]
_Run = Annotated[
    SessionRunBody,
    Body(
        examples=[
            Example(summary="Python", value={"code": "x = 41\nx + 1"}),
            Example(summary="Bash", value={"code": "cd /tmp && ls", "language": "bash"}),
            Example(summary="A program", value={"argv": ["ls", "-la"], "language": "command"}),
        ]
    ),
]
_Copies = Annotated[ForkBody, Body(examples=[Example(summary="Two", value={"n": 2})])]
_Context = Annotated[str, PathParameter(description="Its name.", max_length=200)]
_Typed = Annotated[CompleteBody, Body(examples=[Example(summary="A name", value={"text": "pri"})])]
Id = Annotated[str, PathParameter(description="The session's id.", max_length=64)]


async def _view(request: KeyedRequest, held: OwnedSession) -> SessionView:
    return held.view(await runs.key_names(service_of(request)))


def own(request: KeyedRequest, session_id: str) -> OwnedSession:
    """Return the session if this key opened it. Raises `Answered` (404)."""
    return service_of(request).sessions.find(request.user, session_id)


@contextmanager
def used(request: KeyedRequest, session_id: str) -> Iterator[AsyncSession]:
    """Use the session if this key opened it: see `OwnedSession.using`. Raises `Answered`."""
    held = own(request, session_id)
    with held.using():
        yield held.session


in_session = functools.partial(described, "sessions", scope="run")
"""`described` for a route about sessions that needs the scope `run`."""


@post(
    "/v1/sessions",
    **in_session(
        "Open a session: a Python that keeps its variables, in a cell of its own",
        SessionView,
        "It is open.",
        status=201,
    ),
)
async def session_open(request: KeyedRequest, data: _Wanted) -> Response[bytes]:
    held = await service_of(request).sessions.open(request.user, data)
    return reply(await _view(request, held), 201, location=f"/v1/sessions/{held.id}")


@get(
    "/v1/sessions",
    **described(
        "sessions", "List sessions, newest first: one's own, or with the scope audit all", SessionList, "Sessions."
    ),
)
async def sessions(request: KeyedRequest) -> Response[bytes]:
    service = service_of(request)
    names = await runs.key_names(service)
    return reply(SessionList(sessions=tuple(held.view(names) for held in service.sessions.visible(request.user))))


@get("/v1/sessions/{session_id:str}", **described("sessions", "Show a session", SessionView, "The session."))
async def session_show(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    held = service_of(request).sessions.find(request.user, session_id, to_use=False)
    return reply(await _view(request, held))


@delete(
    "/v1/sessions/{session_id:str}",
    **in_session("Close a session: nothing of it is left", SessionView, "The session, as it was."),
)
async def session_close(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    return reply(await _view(request, await service_of(request).sessions.end(request.user, session_id)))


@post(
    "/v1/sessions/{session_id:str}/run",
    **in_session("Run something in a session and wait for its result", Result, "How it ended."),
)
async def session_run(request: KeyedRequest, session_id: Id, data: _Run) -> Response[bytes]:
    service = service_of(request)
    job = service.accept_in(request.user, own(request, session_id), data, "sync")
    return reply(runs.result_of(await runs.ended(request, job)))


@post(
    "/v1/sessions/{session_id:str}/run/stream",
    **in_session(
        "Run something in a session and follow it: events `state`, `output`, `display` and `result`",
        Event,
        "Its events.",
        media_type="text/event-stream",
    ),
)
async def session_run_stream(request: KeyedRequest, session_id: Id, data: _Run) -> Stream:
    service = service_of(request)
    return runs.events(service, service.accept_in(request.user, own(request, session_id), data, "stream"), cancels=True)


@post(
    "/v1/sessions/{session_id:str}/interrupt",
    **in_session("Interrupt what runs in a session, as Ctrl-C does", Interrupted, "Whether something ran."),
)
async def session_interrupt(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    with used(request, session_id) as session:
        return reply(Interrupted(interrupted=session.interrupt()))


@post(
    "/v1/sessions/{session_id:str}/restart",
    **in_session("Have a new Python in a session; files stay, unless it had ended", SessionView, "The session."),
)
async def session_restart(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    held = own(request, session_id)
    await service_of(request).sessions.restart(request.user, held)
    return reply(await _view(request, held))


@post(
    "/v1/sessions/{session_id:str}/complete",
    **in_session(
        "Names in a session that begin with a text, for whoever types", Names, "Names; none while something runs."
    ),
)
async def session_complete(request: KeyedRequest, session_id: Id, data: _Typed) -> Response[bytes]:
    with used(request, session_id) as session:
        return reply(Names(names=tuple(await session.complete(data.text, context=data.context))))


# --- usage, contexts, copies, changes ---


@get(
    "/v1/sessions/{session_id:str}/usage",
    **in_session("What a session uses, as it says itself", SessionUsage, "What it uses."),
)
async def session_usage(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    with used(request, session_id) as session:
        return reply(await session.usage())


@delete(
    "/v1/sessions/{session_id:str}/contexts/{context:str}",
    **in_session("Drop the variables of a context, once no run goes on", Done, "Dropped."),
)
async def session_forget(request: KeyedRequest, session_id: Id, context: _Context) -> Response[bytes]:
    with used(request, session_id) as session:
        await session.forget(context)
    return reply(Done())


@post(
    "/v1/sessions/{session_id:str}/fork",
    **in_session(
        "Copy a session as it is now, with its variables and files; what runs is waited for first",
        SessionList,
        "The copies: each is a session of its own.",
        status=201,
    ),
)
async def session_fork(request: KeyedRequest, session_id: Id, data: _Copies) -> Response[bytes]:
    service = service_of(request)
    copies = await service.sessions.fork(request.user, own(request, session_id), data.n)
    names = await runs.key_names(service)
    return reply(SessionList(sessions=tuple(copy.view(names) for copy in copies)), 201)


@get(
    "/v1/sessions/{session_id:str}/changes",
    **in_session("Show what a session in an overlay has changed so far", Effect, "The changes."),
)
async def session_changes(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    with used(request, session_id) as session:
        effect = await session.changes()
    return reply(msgspec.structs.replace(effect, project=service_of(request).boundary.project_name(effect.project)))


@post(
    "/v1/sessions/{session_id:str}/changes/keep",
    **in_session(
        "Keep what a session has changed so far, for another key to apply: see /v1/changes",
        ChangesView,
        "The changes, with their id.",
        status=201,
    ),
)
async def session_keep(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    with used(request, session_id) as session:
        kept = await session.keep()
    return reply(changes.view(service_of(request), kept, whole=True), 201, location=f"/v1/changes/{kept.id}")


@post(
    "/v1/sessions/{session_id:str}/changes/discard",
    **in_session("Drop what a session has changed in its project; its variables stay", Done, "Gone."),
)
async def session_discard(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    held = own(request, session_id)
    with held.copying():  # the session continues as a copy of itself
        await held.session.discard()
    return reply(Done())


HANDLERS = (
    *(session_open, sessions, session_show, session_close),
    *(session_run, session_run_stream, session_interrupt, session_restart, session_complete),
    *(session_usage, session_forget, session_fork, session_changes, session_keep, session_discard),
)
