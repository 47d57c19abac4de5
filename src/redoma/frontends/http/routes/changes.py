"""Changes: what runs in overlays would do to a project. Whoever ran something can look at it and drop it; to apply or
undo it takes somebody else, with the scope approve."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter

from ....approval.ask import decode
from ....lib.errors import StoreError, WorkspaceError
from ....workspace.kept import Kept
from ..access import any_key, needs, service_of
from ..bodies import ApplyBody, ChangesList, ChangesView
from ..keys import Key
from ..problems import Answered, not_found
from ..service import Job, Service, encode, moment

_ID = re.compile(r"[0-9a-f]{32}\Z")
_Id = Annotated[str, PathParameter(description="The id of the run.", max_length=64)]
_Which = Annotated[
    ApplyBody,
    Body(examples=[Example(summary="All", value={}), Example(summary="Some", value={"paths": ["src"]})]),
]


def view(service: Service, kept: Kept, *, whole: bool = False) -> ChangesView:
    effect = msgspec.structs.replace(kept.effect, project=service.project_name(kept.effect.project))
    return ChangesView(
        id=kept.id,
        state=kept.state,
        project=effect.project,
        command=str(kept.about.get("command", "")),
        time=moment(kept.time) or moment(0.0),  # type: ignore[arg-type] # a time has a moment
        since=moment(kept.since) or moment(0.0),  # type: ignore[arg-type] # the same
        applied=kept.applied,
        left=kept.left,
        effect=effect if whole else None,
        count=len(kept.effect.changes),
    )


async def owner_of(service: Service, id: str) -> str:  # noqa: A002 - the run's own word
    """The id of the key that made a run; empty if it was none of the service."""
    admin = Key(id="", name="", scopes=("admin",), created=moment(0.0))  # type: ignore[arg-type] # to see all
    try:
        found = await service.find(admin, id)
    except Answered:
        return ""
    return found.row.key if isinstance(found, Job) else found.key


async def load(service: Service, key: Key, id: str) -> tuple[Kept, bool]:  # noqa: A002 - the run's own word
    """Kept changes that a key may see, and whether they are of its own run. Raises `Answered` (404)."""
    if not _ID.match(id):
        raise not_found("change")
    try:
        kept = await asyncio.to_thread(service.executor.projects.changes.get, id)
    except WorkspaceError:
        raise not_found("change") from None
    own = await is_own(service, key, kept)
    if not (own or key.may("approve") or key.may("audit")):
        raise not_found("change")
    return kept, own


async def is_own(service: Service, key: Key, kept: Kept) -> bool:
    """Whether a run of this key has made these changes: one of the service's runs, or one by another way in."""
    return await owner_of(service, kept.id) == key.id or key.owns(requester_of(kept))


def requester_of(kept: Kept) -> str:
    """Who asked for the run that made these changes; empty if that was not kept, as it held a secret."""
    try:
        return decode(str(kept.about.get("ask", ""))).requester
    except StoreError:
        return ""


async def visible(service: Service, key: Key) -> list[Kept]:
    """Kept changes that a key may see, newest first."""
    found = await asyncio.to_thread(service.executor.projects.changes.list)
    if not (key.may("approve") or key.may("audit")):
        found = tuple([kept for kept in found if await is_own(service, key, kept)])
    return list(reversed(found))


async def apply_as(service: Service, key: Key, id: str, body: ApplyBody) -> Kept:  # noqa: A002 - as above
    """Apply changes that another key's run has made. Raises `ApprovalError` if policy wants that approved first."""
    kept, own = await load(service, key, id)
    if own:
        raise _two()
    return await service.executor.apply(kept.id, paths=body.paths, named=body.named, wait=False)


async def undo_as(service: Service, key: Key, id: str) -> Kept:  # noqa: A002 - as above
    kept, own = await load(service, key, id)
    if own:
        raise _two()
    return await service.executor.undo(kept.id)


async def discard_as(service: Service, key: Key, id: str) -> Kept:  # noqa: A002 - as above
    kept, own = await load(service, key, id)
    if not own and not key.may("approve"):
        raise not_found("change")
    return await service.executor.discard(kept.id)


def _two() -> Answered:
    return Answered(403, "this key has made these changes", why="two have to agree", next="have another key decide")


@get(
    "/v1/changes",
    guards=[any_key],
    tags=["changes"],
    summary="List what is kept, newest first",
    responses={200: ResponseSpec(ChangesList, generate_examples=False, description="Changes.")},
)
async def changes(request: Request[Key, Any, Any]) -> Response[bytes]:
    service = service_of(request)
    found = await visible(service, request.user)
    return _json(ChangesList(changes=tuple(view(service, kept) for kept in found)))


@get(
    "/v1/changes/{run_id:str}",
    guards=[any_key],
    tags=["changes"],
    summary="Show the changes of a run, with their diffs",
    responses={200: ResponseSpec(ChangesView, generate_examples=False, description="The changes.")},
)
async def changes_show(request: Request[Key, Any, Any], run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    kept, _ = await load(service, request.user, run_id)
    return _json(view(service, kept, whole=True))


@post(
    "/v1/changes/{run_id:str}/apply",
    guards=[needs("approve")],
    status_code=200,
    tags=["changes"],
    summary="Write exactly these changes to the project, all or nothing",
    responses={200: ResponseSpec(ChangesView, generate_examples=False, description="The changes.")},
)
async def changes_apply(request: Request[Key, Any, Any], run_id: _Id, data: _Which) -> Response[bytes]:
    service = service_of(request)
    return _json(view(service, await apply_as(service, request.user, run_id, data), whole=True))


@post(
    "/v1/changes/{run_id:str}/discard",
    guards=[any_key],
    status_code=200,
    tags=["changes"],
    summary="Drop changes; the project was never touched",
    responses={200: ResponseSpec(ChangesView, generate_examples=False, description="The changes.")},
)
async def changes_discard(request: Request[Key, Any, Any], run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    return _json(view(service, await discard_as(service, request.user, run_id), whole=True))


@post(
    "/v1/changes/{run_id:str}/undo",
    guards=[needs("approve")],
    status_code=200,
    tags=["changes"],
    summary="Put exactly the paths that were applied back as they were",
    responses={200: ResponseSpec(ChangesView, generate_examples=False, description="The changes.")},
)
async def changes_undo(request: Request[Key, Any, Any], run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    return _json(view(service, await undo_as(service, request.user, run_id), whole=True))


def _json(content: msgspec.Struct) -> Response[bytes]:
    return Response(encode(content), media_type="application/json")


HANDLERS = (changes, changes_show, changes_apply, changes_discard, changes_undo)
