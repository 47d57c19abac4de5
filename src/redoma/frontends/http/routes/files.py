"""Files of a session. Paths are resolved inside the cell, so none leads to a file of the host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from litestar import Response, delete, get, post, put
from litestar.openapi.spec import Example
from litestar.params import Body, QueryParameter
from litestar.response import Stream

from ....lib.errors import InvalidRequest
from ....sessions.folder import FileInfo
from ..bodies import Done, FileList, FileName, FileRename
from .answers import KeyedRequest, reply
from .sessions import Id, in_session, used

_Renamed = Annotated[FileRename, Body(examples=[Example(summary="A file", value={"path": "a.txt", "to": "b.txt"})])]
_Directory = Annotated[FileName, Body(examples=[Example(summary="A directory", value={"path": "data/raw"})])]
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
    int, QueryParameter(ge=-1, le=2**53, description="Give one piece of the file from here; by default (-1) all of it.")
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
"""Headers of a piece: an id of its file (between two pieces, another file may take its name), and the file's size."""


@get("/v1/sessions/{session_id:str}/files", **in_session("List a directory of a session", FileList, "What is in it."))
async def session_files(request: KeyedRequest, session_id: Id, path: _Below = ".") -> Response[bytes]:
    with used(request, session_id) as session:
        return reply(FileList(files=tuple(await session.files.list(path))))


@get(
    "/v1/sessions/{session_id:str}/files/stat",
    **in_session("What is known of a file", FileInfo, "The file, or a link itself."),
)
async def session_file_stat(request: KeyedRequest, session_id: Id, path: _Path) -> Response[bytes]:
    with used(request, session_id) as session:
        return reply(await session.files.stat(path))


@get(
    "/v1/sessions/{session_id:str}/files/content",
    **in_session(
        "Read a file, or with `offset` a piece of it", bytes, "Its content.", media_type="application/octet-stream"
    ),
)
async def session_file_read(
    request: KeyedRequest, session_id: Id, path: _Path, offset: _Offset = -1
) -> Stream | Response[bytes]:
    headers = {"Content-Disposition": "attachment", "Content-Security-Policy": "sandbox"}
    with used(request, session_id) as session:
        if offset >= 0:
            piece = await session.files.piece(path, offset)
            headers |= {_WHERE: piece.file, _SIZE: str(piece.size)}
            return Response(piece.data, media_type="application/octet-stream", headers=headers)
        pieces = session.files.chunks(path)
        first = await anext(pieces, b"")  # errors must come before the answer begins
    return Stream(_rest(first, pieces), media_type="application/octet-stream", headers=headers)


async def _rest(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


@put(
    "/v1/sessions/{session_id:str}/files/content",
    opt={"raw_body": "application/octet-stream"},
    **in_session("Write a file, whole or not at all; directories on the way are made", Done, "It was written."),
)
async def session_file_write(
    request: KeyedRequest,
    session_id: Id,
    path: _Path,
    part: _Part = "",
    first: Annotated[bool, QueryParameter(description="Of a file in pieces: whether this is the first.")] = True,
    last: Annotated[bool, QueryParameter(description="Of a file in pieces: whether this is the last.")] = True,
) -> Response[bytes]:
    with used(request, session_id) as session:
        data = await request.body()
        if part:
            await session.files.write_piece(path, data, part=part, first=first, last=last)
        elif first and last:
            await session.files.write(path, data)
        else:
            raise InvalidRequest("a piece has no part", why="pieces of one file are known by it", next="add `part`")
    return reply(Done())


@delete(
    "/v1/sessions/{session_id:str}/files",
    **in_session("Remove a file, or a directory with everything in it", Done, "It was removed."),
)
async def session_file_remove(request: KeyedRequest, session_id: Id, path: _Path) -> Response[bytes]:
    with used(request, session_id) as session:
        await session.files.remove(path)
    return reply(Done())


@post(
    "/v1/sessions/{session_id:str}/files/rename",
    **in_session("Give a file another name; a file that has it is replaced", Done, "It was renamed."),
)
async def session_file_rename(request: KeyedRequest, session_id: Id, data: _Renamed) -> Response[bytes]:
    with used(request, session_id) as session:
        await session.files.rename(data.path, data.to)
    return reply(Done())


@post(
    "/v1/sessions/{session_id:str}/files/make_dir",
    **in_session("Make a directory, and those on the way to it", Done, "It is there."),
)
async def session_make_dir(request: KeyedRequest, session_id: Id, data: _Directory) -> Response[bytes]:
    with used(request, session_id) as session:
        await session.files.make_dir(data.path)
    return reply(Done())


HANDLERS = (
    *(session_files, session_file_stat, session_file_read, session_file_write),
    *(session_file_remove, session_file_rename, session_make_dir),
)
