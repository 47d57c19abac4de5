"""Environments: named sets of packages for runs and sessions. Every key may see and use them; admin keys make them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from litestar import Response, delete, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter

from ....environments import Environment, Store
from ....environments.requirements import requirements
from ....environments.store import check_name
from ....lib.errors import InvalidRequest
from ....pipeline.packages import store_of
from ..access import service_of
from ..bodies import Done, EnvironmentBody, EnvironmentList
from ..problems import not_found
from .answers import KeyedRequest, described, reply

_Wanted = Annotated[
    EnvironmentBody, Body(examples=[Example(summary="For data", value={"name": "data", "packages": ["pandas>=2"]})])
]
_Name = Annotated[str, PathParameter(description="Its name.", max_length=64)]


def _store(request: KeyedRequest) -> Store:
    return store_of(service_of(request).config)


async def _found(request: KeyedRequest, name: str) -> Environment:
    """Return the environment of that name, even if it is for another interpreter. Raises `Answered` (404)."""
    try:
        check_name(name)
    except InvalidRequest:
        raise not_found("environment") from None
    found = await asyncio.to_thread(_store(request).get, name)
    if found is None:
        raise not_found("environment")
    return found


def _reason(request: KeyedRequest) -> str:
    return f"asked for by {request.user.requester}"


@get("/v1/environments", **described("environments", "List environments", EnvironmentList, "Environments, by name."))
async def environments(request: KeyedRequest) -> Response[bytes]:
    return reply(EnvironmentList(environments=tuple(await asyncio.to_thread(_store(request).all))))


@get(
    "/v1/environments/{name:str}",
    **described("environments", "Show an environment: packages, versions, hashes", Environment, "The environment."),
)
async def environment_show(request: KeyedRequest, name: _Name) -> Response[bytes]:
    return reply(await _found(request, name))


@post(
    "/v1/environments",
    **described(
        "environments",
        "Install packages, in a cell that reaches the package index alone, and name the result",
        Environment,
        "It can be used.",
        scope="admin",
        status=201,
    ),
)
async def environment_create(request: KeyedRequest, data: _Wanted) -> Response[bytes]:
    wanted = requirements(data.packages)
    made = await service_of(request).executor.create_environment(data.name, wanted, reason=_reason(request))
    return reply(made, 201, location=f"/v1/environments/{made.name}")


@post(
    "/v1/environments/{name:str}/update",
    **described(
        "environments",
        "Install its packages again, in the newest versions that fit; runs that have it keep what they have",
        Environment,
        "The environment.",
        scope="admin",
    ),
)
async def environment_update(request: KeyedRequest, name: _Name) -> Response[bytes]:
    await _found(request, name)
    return reply(await service_of(request).executor.update_environment(name, reason=_reason(request)))


@delete(
    "/v1/environments/{name:str}",
    **described(
        "environments", "Remove an environment; runs that have it keep its files", Done, "It is gone.", scope="admin"
    ),
)
async def environment_remove(request: KeyedRequest, name: _Name) -> Response[bytes]:
    await _found(request, name)
    await asyncio.to_thread(_store(request).remove, name)
    return reply(Done())


HANDLERS = (environments, environment_show, environment_create, environment_update, environment_remove)
