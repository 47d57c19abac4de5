"""File contents: GET and POST /files, with the access token of the sandbox or a signed URL."""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from .code import inside, outside
from .sandboxes import Sandbox
from .wire import E2bRequest, Problem

_MAX_FILES = 200


async def download(request: E2bRequest, sandbox: Sandbox) -> None:
    """Answer the content of a file."""
    path = _path(request)
    pieces = sandbox.session.files.chunks(inside(path))
    first = await anext(pieces, b"")  # errors must come before the answer begins
    name = quote(posixpath.basename(outside(path)))
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
    }
    await request.begin(200, headers)
    await request.piece(first)
    async for piece in pieces:
        await request.piece(piece)
    await request.end()


async def upload(request: E2bRequest, sandbox: Sandbox, max_body: int) -> None:
    """Write the body to a file, or the files of a form to theirs. `max_body`: maximum bytes of a form."""
    if request.has_headers("x-metadata-"):
        raise Problem("invalid_argument", "files can't have metadata here: their file system has no place for it")
    kind, options = parse_options_header(request.header("content-type"))
    if kind == "multipart/form-data":
        files = await _parts(request, options.get("boundary", ""), max_body)
        if not files:
            raise Problem("invalid_argument", "there is no file in the request")
        written = [await _write(sandbox, path, content) for path, content in files]
    else:
        written = [await _write(sandbox, _path(request), _content(request))]
    await request.answer(written)


async def _write(sandbox: Sandbox, path: str, content: bytes | AsyncIterator[bytes]) -> dict[str, Any]:
    await sandbox.session.files.write(inside(path), content)
    whole = outside(path)
    return {"name": posixpath.basename(whole), "type": "file", "path": whole}


def _path(request: E2bRequest) -> str:
    path = request.query.get("path", "")
    if not path:
        raise Problem("invalid_argument", "there is no path")
    return path


async def _content(request: E2bRequest) -> AsyncIterator[bytes]:
    """Yield the body, decompressed in bounded pieces: a zip bomb only fills the disk of its own sandbox."""
    encoding = request.header("content-encoding")
    if encoding not in ("", "identity", "gzip"):
        raise Problem("invalid_argument", f"the encoding {encoding[:40]!r} can't be read")
    unpacker = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    try:
        async for chunk in request.chunks():
            if unpacker is None:
                yield chunk
                continue
            while chunk:
                yield unpacker.decompress(chunk, 1 << 18)
                chunk = unpacker.unconsumed_tail
            if unpacker.unused_data:  # all that follows would be kept there, and copied with each chunk
                raise Problem("invalid_argument", "the content goes on behind its end")
        if unpacker is not None and not unpacker.eof:
            raise Problem("invalid_argument", "the content ends early")
    except zlib.error:
        raise Problem("invalid_argument", "the content is not packed as gzip") from None


async def _parts(request: E2bRequest, boundary: str, max_body: int) -> list[tuple[str, bytes]]:
    """Return path and content of each file of a form. The path is the file name, unless the query has one."""
    files: list[tuple[str, bytearray]] = []
    given = request.query.get("path", "")
    total, takes = 0, False
    try:
        parser = PushMultipartParser(boundary, max_segment_count=_MAX_FILES + 10)
        async for chunk in request.chunks():
            total += len(chunk)
            if total > max_body:
                why = f"a form has at most {max_body:,} bytes; use_octet_stream=True sends files of any size"
                raise Problem("resource_exhausted", why, status=413)
            for event in parser.parse(chunk):
                if isinstance(event, MultipartSegment):
                    takes = event.name == "file"
                    if takes:
                        files.append((event.filename or "", bytearray()))
                elif event and takes:
                    files[-1][1].extend(event)
        parser.close()
    except MultipartError as error:
        raise Problem("invalid_argument", f"the form can't be read: {str(error)[:200]}") from None
    if len(files) > 1 and given:
        raise Problem("invalid_argument", "a path was given for several files")
    if any(not (given or name) for name, _ in files):
        raise Problem("invalid_argument", "a file has no path")
    return [(given or name, bytes(content)) for name, content in files]
