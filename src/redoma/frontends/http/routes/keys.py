"""Keys: made, listed and revoked over HTTP, by whoever has the scope admin."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter

from ....lib.errors import InvalidRequest
from ..access import needs, service_of
from ..bodies import KeyBody, KeyList, NewKey
from ..keys import Key
from ..problems import not_found
from ..service import encode

_Wanted = Annotated[
    KeyBody, Body(examples=[Example(summary="For an agent", value={"name": "agent", "scopes": ["run"]})])
]
_Name = Annotated[str, PathParameter(description="The key's name or id.", max_length=64)]


@get(
    "/v1/keys",
    guards=[needs("admin")],
    tags=["keys"],
    summary="List all keys, also those that were revoked",
    responses={200: ResponseSpec(KeyList, generate_examples=False, description="Keys, without their secrets.")},
)
async def keys(request: Request[Key, Any, Any]) -> Response[bytes]:
    return _json(KeyList(keys=tuple(await asyncio.to_thread(service_of(request).keys.list))))


@post(
    "/v1/keys",
    guards=[needs("admin")],
    status_code=201,
    tags=["keys"],
    summary="Make a key; it is shown this once",
    responses={201: ResponseSpec(NewKey, generate_examples=False, description="The key.")},
)
async def key_create(request: Request[Key, Any, Any], data: _Wanted) -> Response[bytes]:
    known = service_of(request).keys
    made, text = await asyncio.to_thread(
        lambda: known.create(data.name, data.scopes, seconds=data.seconds, concurrency=data.concurrency, rate=data.rate)
    )
    return _json(NewKey(key=made, text=text), 201)


@delete(
    "/v1/keys/{name:str}",
    guards=[needs("admin")],
    status_code=200,
    tags=["keys"],
    summary="Revoke a key, at once",
    responses={200: ResponseSpec(Key, generate_examples=False, description="The key.")},
)
async def key_revoke(request: Request[Key, Any, Any], name: _Name) -> Response[bytes]:
    try:
        return _json(await asyncio.to_thread(service_of(request).keys.revoke, name))
    except InvalidRequest:
        raise not_found("key") from None


def _json(content: msgspec.Struct, status: int = 200) -> Response[bytes]:
    return Response(encode(content), media_type="application/json", status_code=status)


HANDLERS = (keys, key_create, key_revoke)
