"""Create, list and revoke keys over HTTP. Needs the scope admin."""

from __future__ import annotations

import asyncio
from typing import Annotated

from litestar import Response, delete, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter

from ....lib.errors import InvalidRequest
from ..access import service_of
from ..bodies import KeyBody, KeyList, NewKey
from ..keys import Key
from ..problems import not_found
from .answers import KeyedRequest, described, reply

_Wanted = Annotated[
    KeyBody, Body(examples=[Example(summary="For an agent", value={"name": "agent", "scopes": ["run"]})])
]
_Name = Annotated[str, PathParameter(description="The key's name or id.", max_length=64)]


@get(
    "/v1/keys",
    **described(
        "keys", "List all keys, also those that were revoked", KeyList, "Keys, without their secrets.", scope="admin"
    ),
)
async def keys(request: KeyedRequest) -> Response[bytes]:
    return reply(KeyList(keys=tuple(await asyncio.to_thread(service_of(request).keys.list))))


@post(
    "/v1/keys", **described("keys", "Make a key; it is shown this once", NewKey, "The key.", scope="admin", status=201)
)
async def key_create(request: KeyedRequest, data: _Wanted) -> Response[bytes]:
    known = service_of(request).keys
    made, text = await asyncio.to_thread(
        lambda: known.create(data.name, data.scopes, seconds=data.seconds, concurrency=data.concurrency, rate=data.rate)
    )
    return reply(NewKey(key=made, text=text), 201)


@delete("/v1/keys/{name:str}", **described("keys", "Revoke a key, at once", Key, "The key.", scope="admin"))
async def key_revoke(request: KeyedRequest, name: _Name) -> Response[bytes]:
    try:
        return reply(await asyncio.to_thread(service_of(request).keys.revoke, name))
    except InvalidRequest:
        raise not_found("key") from None


HANDLERS = (keys, key_create, key_revoke)
