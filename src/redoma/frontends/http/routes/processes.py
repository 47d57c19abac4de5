"""Background processes of a session. Each is a run: `/v1/runs/ID` shows it, `…/events` follows it, `…/cancel` ends
it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter, QueryParameter

from ....lib.errors import InvalidRequest
from ....sessions.runs import AsyncSessionProcess
from ..access import service_of
from ..bodies import Done, ProcessBody, ProcessList, ProcessView, Signal, Terminal
from ..jobs import RunJob
from ..problems import Answered, not_found
from . import runs
from .answers import KeyedRequest, reply
from .sessions import Id, in_session, own

_Wanted = Annotated[
    ProcessBody,
    Body(
        examples=[
            Example(summary="A line of Bash", value={"command": "for i in 1 2 3; do echo $i; sleep 1; done"}),
            Example(summary="A program", value={"command": ["python3", "-m", "http.server"], "label": "server"}),
            Example(summary="In a terminal", value={"command": ["bash"], "terminal": {"rows": 24, "columns": 80}}),
        ]
    ),
]
_Signal = Annotated[Signal, Body(examples=[Example(summary="SIGINT", value={"signal": 2})])]
_Terminal = Annotated[Terminal, Body(examples=[Example(summary="Larger", value={"rows": 50, "columns": 132})])]
_Process = Annotated[str, PathParameter(description="The process's id.", max_length=64)]


def _view(job: RunJob, names: dict[str, str]) -> ProcessView:
    pid = job.process.pid if job.process is not None and job.has_begun else 0
    return ProcessView(**runs.fields(job.row, names), pid=pid)


def _running(request: KeyedRequest, session_id: str, process_id: str) -> AsyncSessionProcess:
    """Return a process that was started and has not ended. Raises `Answered` (404)."""
    for job in service_of(request).processes(own(request, session_id)):
        if job.row.id == process_id and job.process is not None and job.has_begun:
            return job.process
    raise not_found("process")


def _ended(error: InvalidRequest) -> Answered:
    return Answered(409, error.what, why=error.why, next="see what became of it: GET /v1/runs/ID")


@post(
    "/v1/sessions/{session_id:str}/processes",
    **in_session(
        "Start a command in the background; it goes on until it ends, is cancelled, or the session ends",
        ProcessView,
        "It was started; or, if its state is `done`, policy or a person has refused it.",
        status=201,
    ),
)
async def process_start(request: KeyedRequest, session_id: Id, data: _Wanted) -> Response[bytes]:
    service, held = service_of(request), own(request, session_id)
    with held.using():
        job = service.accept_process(request.user, held, data)
        begun = asyncio.ensure_future(service.begun(job))
        await runs.cancel_if_gone(request, job, begun)
        await begun
    return reply(_view(job, {request.user.id: request.user.name}), 201, location=f"/v1/runs/{job.row.id}")


@get(
    "/v1/sessions/{session_id:str}/processes",
    **in_session("List processes in the background", ProcessList, "Those that have not ended."),
)
async def processes(request: KeyedRequest, session_id: Id) -> Response[bytes]:
    service = service_of(request)
    jobs = service.processes(own(request, session_id))
    names = await runs.key_names(service)
    return reply(ProcessList(processes=tuple(_view(job, names) for job in jobs)))


@post(
    "/v1/sessions/{session_id:str}/processes/{process_id:str}/input",
    opt={"raw_body": "application/octet-stream"},
    **in_session("Write bytes to the input of a process; waits while much is unread", Done, "Written."),
)
async def process_input(
    request: KeyedRequest,
    session_id: Id,
    process_id: _Process,
    end: Annotated[bool, QueryParameter(description="Close its input after that.")] = False,
) -> Response[bytes]:
    process = _running(request, session_id, process_id)
    data = await request.body()
    try:
        if data:
            await runs.unless_gone(request, process.write_stdin(data))
        if end:
            process.close_stdin()
    except InvalidRequest as error:
        raise _ended(error) from None
    return reply(Done())


@post(
    "/v1/sessions/{session_id:str}/processes/{process_id:str}/signal",
    **in_session("Send a signal to a process", Done, "It was sent."),
)
async def process_signal(request: KeyedRequest, session_id: Id, process_id: _Process, data: _Signal) -> Response[bytes]:
    process = _running(request, session_id, process_id)
    try:
        process.signal(data.signal)
    except InvalidRequest as error:
        raise _ended(error) from None
    return reply(Done())


@post(
    "/v1/sessions/{session_id:str}/processes/{process_id:str}/resize",
    **in_session("Give the terminal of a process another size", Done, "It has it."),
)
async def process_resize(
    request: KeyedRequest, session_id: Id, process_id: _Process, data: _Terminal
) -> Response[bytes]:
    _running(request, session_id, process_id).resize(data.rows, data.columns)
    return reply(Done())


HANDLERS = (process_start, processes, process_input, process_signal, process_resize)
