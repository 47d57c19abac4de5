"""Sessions and their files: opened, used, restarted, closed. A key uses its own only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, Response, delete, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter, QueryParameter
from litestar.response import Stream

from ....lib.errors import InvalidRequest
from ....models import Result
from ....sessions.folder import FileInfo
from ..access import any_key, needs, service_of
from ..bodies import (
    CompleteBody,
    Done,
    Event,
    FileList,
    FileName,
    FileRename,
    Interrupted,
    Names,
    SessionBody,
    SessionList,
    SessionRunBody,
    SessionView,
)
from ..keys import Key
from ..problems import Answered
from ..service import encode
from ..sessions import Held
from . import runs

Asked = Request[Key, Any, Any]
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
_Typed = Annotated[CompleteBody, Body(examples=[Example(summary="A name", value={"text": "pri"})])]
_Renamed = Annotated[FileRename, Body(examples=[Example(summary="A file", value={"path": "a.txt", "to": "b.txt"})])]
_Directory = Annotated[FileName, Body(examples=[Example(summary="A directory", value={"path": "data/raw"})])]
_Id = Annotated[str, PathParameter(description="The session's id.", max_length=64)]
_Path = Annotated[
    str,
    QueryParameter(
        required=True,
        min_length=1,
        max_length=4096,
        description="A file, in the session. Relative paths begin in its first directory.",
    ),
]
_Below = Annotated[str, QueryParameter(min_length=1, max_length=4096, description="A directory, in the session.")]
_Offset = Annotated[
    int,
    QueryParameter(ge=-1, le=2**53, description="Give one piece of the file from here; by default (-1) all of it."),
]
_Part = Annotated[
    str,
    QueryParameter(
        pattern="^([0-9a-f]{8})?$",
        max_length=8,
        description="Write a long file in pieces: the same eight digits for all pieces of it.",
    ),
]
_WHERE, _SIZE = "X-Redoma-File", "X-Redoma-Size"
"""Headers of a piece: which file it is of (between two pieces, another may take its name), and how long that is."""


def _spec(kind: Any, about: str, **more: Any) -> ResponseSpec:
    return ResponseSpec(kind, generate_examples=False, description=about, **more)


def _json(content: Any, status: int = 200) -> Response[bytes]:
    return Response(encode(content), media_type="application/json", status_code=status)


async def view(request: Asked, held: Held) -> SessionView:
    return held.view(await runs.key_names(service_of(request)))


def _own(request: Asked, session_id: str) -> Held:
    return service_of(request).sessions.find(request.user, session_id)


@post(
    "/v1/sessions",
    guards=[needs("run")],
    status_code=201,
    tags=["sessions"],
    summary="Open a session: a Python that keeps its variables, in a cell of its own",
    responses={201: _spec(SessionView, "It is open.")},
)
async def session_open(request: Asked, data: _Wanted) -> Response[bytes]:
    held = await service_of(request).sessions.open(request.user, data)
    answer = _json(await view(request, held), 201)
    answer.headers["Location"] = f"/v1/sessions/{held.id}"
    return answer


@get(
    "/v1/sessions",
    guards=[any_key],
    tags=["sessions"],
    summary="List sessions, newest first: one's own, or with the scope audit all",
    responses={200: _spec(SessionList, "Sessions.")},
)
async def sessions(request: Asked) -> Response[bytes]:
    service = service_of(request)
    names = await runs.key_names(service)
    return _json(SessionList(sessions=tuple(held.view(names) for held in service.sessions.visible(request.user))))


@get(
    "/v1/sessions/{session_id:str}",
    guards=[any_key],
    tags=["sessions"],
    summary="Show a session",
    responses={200: _spec(SessionView, "The session.")},
)
async def session_show(request: Asked, session_id: _Id) -> Response[bytes]:
    held = service_of(request).sessions.find(request.user, session_id, to_use=False)
    return _json(await view(request, held))


@delete(
    "/v1/sessions/{session_id:str}",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Close a session: nothing of it is left",
    responses={200: _spec(SessionView, "The session, as it was.")},
)
async def session_close(request: Asked, session_id: _Id) -> Response[bytes]:
    return _json(await view(request, await service_of(request).sessions.end(request.user, session_id)))


@post(
    "/v1/sessions/{session_id:str}/run",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Run something in a session and wait for its result",
    responses={200: _spec(Result, "How it ended.")},
)
async def session_run(request: Asked, session_id: _Id, data: _Run) -> Response[bytes]:
    service = service_of(request)
    job = service.accept_in(request.user, _own(request, session_id), data, "sync")
    row = await runs.finished(request, service, job)
    if row.result is None:
        raise Answered(503 if row.state == "interrupted" else 409, f"the run is {row.state}", why=row.note)
    return _json_bytes(row.result)


def _json_bytes(content: bytes) -> Response[bytes]:
    return Response(content, media_type="application/json")


@post(
    "/v1/sessions/{session_id:str}/run/stream",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Run something in a session and follow it: events `state`, `output`, `display` and `result`",
    responses={200: _spec(Event, "Its events.", media_type="text/event-stream")},
)
async def session_run_stream(request: Asked, session_id: _Id, data: _Run) -> Stream:
    service = service_of(request)
    return runs.events(
        service, service.accept_in(request.user, _own(request, session_id), data, "stream"), cancels=True
    )


@post(
    "/v1/sessions/{session_id:str}/interrupt",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Interrupt what runs in a session, as Ctrl-C does",
    responses={200: _spec(Interrupted, "Whether something ran.")},
)
async def session_interrupt(request: Asked, session_id: _Id) -> Response[bytes]:
    held = _own(request, session_id)
    with held.using():
        return _json(Interrupted(interrupted=held.session.interrupt()))


@post(
    "/v1/sessions/{session_id:str}/restart",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Have a new Python in a session; files stay, unless it had ended",
    responses={200: _spec(SessionView, "The session.")},
)
async def session_restart(request: Asked, session_id: _Id) -> Response[bytes]:
    held = _own(request, session_id)
    await service_of(request).sessions.restart(request.user, held)
    return _json(await view(request, held))


@post(
    "/v1/sessions/{session_id:str}/complete",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Names in a session that begin with a text, for whoever types",
    responses={200: _spec(Names, "Names; none while something runs.")},
)
async def session_complete(request: Asked, session_id: _Id, data: _Typed) -> Response[bytes]:
    held = _own(request, session_id)
    with held.using():
        return _json(Names(names=tuple(await held.session.complete(data.text, context=data.context))))


# --- files ---


@get(
    "/v1/sessions/{session_id:str}/files",
    guards=[needs("run")],
    tags=["sessions"],
    summary="List a directory of a session",
    responses={200: _spec(FileList, "What is in it.")},
)
async def session_files(request: Asked, session_id: _Id, path: _Below = ".") -> Response[bytes]:
    held = _own(request, session_id)
    with held.using():
        return _json(FileList(files=tuple(await held.session.files.list(path))))


@get(
    "/v1/sessions/{session_id:str}/files/stat",
    guards=[needs("run")],
    tags=["sessions"],
    summary="What is known of a file",
    responses={200: _spec(FileInfo, "The file, or a link itself.")},
)
async def session_file_stat(request: Asked, session_id: _Id, path: _Path) -> Response[bytes]:
    held = _own(request, session_id)
    with held.using():
        return _json(await held.session.files.stat(path))


@get(
    "/v1/sessions/{session_id:str}/files/content",
    guards=[needs("run")],
    tags=["sessions"],
    summary="Read a file, or with `offset` a piece of it",
    responses={200: _spec(bytes, "Its content.", media_type="application/octet-stream")},
)
async def session_file_read(
    request: Asked, session_id: _Id, path: _Path, offset: _Offset = -1
) -> Stream | Response[bytes]:
    held = _own(request, session_id)
    files, headers = held.session.files, {"Content-Disposition": "attachment", "Content-Security-Policy": "sandbox"}
    with held.using():
        if offset >= 0:
            piece = await files.piece(path, offset)
            headers |= {_WHERE: piece.file, _SIZE: str(piece.size)}
            return Response(piece.data, media_type="application/octet-stream", headers=headers)
        pieces = files.chunks(path)
        first = await anext(pieces, b"")  # what is wrong with it shows now, while there can be another answer
    return Stream(_rest(first, pieces), media_type="application/octet-stream", headers=headers)


async def _rest(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


@put(
    "/v1/sessions/{session_id:str}/files/content",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Write a file, whole or not at all; directories on the way are made",
    opt={"raw_body": "application/octet-stream"},
    responses={200: _spec(Done, "It was written.")},
)
async def session_file_write(
    request: Asked,
    session_id: _Id,
    path: _Path,
    part: _Part = "",
    first: Annotated[bool, QueryParameter(description="Of a file in pieces: whether this is the first.")] = True,
    last: Annotated[bool, QueryParameter(description="Of a file in pieces: whether this is the last.")] = True,
) -> Response[bytes]:
    held = _own(request, session_id)
    data = await request.body()
    if not part and not (first and last):
        raise InvalidRequest("a piece has no part", why="pieces of one file are known by it", next="add `part`")
    with held.using():
        if part:
            await held.session.files.write_piece(path, data, part=part, first=first, last=last)
        else:
            await held.session.files.write(path, data)
    return _json(Done())


@delete(
    "/v1/sessions/{session_id:str}/files",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Remove a file, or a directory with everything in it",
    responses={200: _spec(Done, "It was removed.")},
)
async def session_file_remove(request: Asked, session_id: _Id, path: _Path) -> Response[bytes]:
    held = _own(request, session_id)
    with held.using():
        await held.session.files.remove(path)
    return _json(Done())


@post(
    "/v1/sessions/{session_id:str}/files/rename",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Give a file another name; a file that has it is replaced",
    responses={200: _spec(Done, "It was renamed.")},
)
async def session_file_rename(request: Asked, session_id: _Id, data: _Renamed) -> Response[bytes]:
    held = _own(request, session_id)
    with held.using():
        await held.session.files.rename(data.path, data.to)
    return _json(Done())


@post(
    "/v1/sessions/{session_id:str}/files/make_dir",
    guards=[needs("run")],
    status_code=200,
    tags=["sessions"],
    summary="Make a directory, and those on the way to it",
    responses={200: _spec(Done, "It is there.")},
)
async def session_make_dir(request: Asked, session_id: _Id, data: _Directory) -> Response[bytes]:
    held = _own(request, session_id)
    with held.using():
        await held.session.files.make_dir(data.path)
    return _json(Done())


HANDLERS = (
    *(session_open, sessions, session_show, session_close),
    *(session_run, session_run_stream, session_interrupt, session_restart, session_complete),
    *(session_files, session_file_stat, session_file_read, session_file_write),
    *(session_file_remove, session_file_rename, session_make_dir),
)
