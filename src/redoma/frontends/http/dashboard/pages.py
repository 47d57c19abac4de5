"""The routes of the dashboard, and the data for each page."""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import os
import re
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import jinja2
import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.params import PathParameter
from litestar.response import Stream

from ....history.search import Query
from ....lib.errors import RedomaError
from ....lib.sanitise import visible
from ....monitor.history import NAME as MONITOR
from ....monitor.history import History
from ..access import service_of
from ..bodies import ApplyBody, ApprovalAnswer, RunBody, SessionBody, SessionRunBody, SomeLimits
from ..jobs import RunJob, row_of
from ..keys import Key
from ..problems import Answered, not_allowed, not_found, problem_of
from ..routes import approvals, audit, changes, runs
from ..run_table import Row
from ..service import Service
from . import looks
from .forms import COOKIE, LANGUAGE, LOGIN_SECONDS, NoLogin, csrf_of, form, logged_in, read, short
from .texts import LANGUAGES, chosen, translator

_HERE = Path(__file__).parent
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_FRAMED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
_FRAME = (
    '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><style>'
    "body{font:14px/1.5 system-ui,sans-serif;margin:12px}table{border-collapse:collapse;border:0}"
    "td,th{padding:4px 10px;border:0;border-bottom:1px solid #8885;text-align:left}"
    ".dataframe td,.dataframe thead th{text-align:right}</style>CONTENT"
)
_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PAGE = 50
_MONITORED = 7 * 86400.0
"""Maximum age, in seconds, of the monitor's findings on the page."""
_EXAMPLE = """# The last value is shown, and so are figures and tables, as in a notebook.
class Squares:
    def _repr_svg_(self):
        bars = "".join(
            f'<rect x="{22 * n}" y="{200 - n * n}" width="18" height="{n * n}" fill="teal"/>'
            for n in range(15)
        )
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="326" height="200">{bars}</svg>'

print("sum:", sum(n ** 2 for n in range(15)))
Squares()
"""
_PLAYGROUND = "playground"
_Id = Annotated[str, PathParameter(max_length=64)]
_Name = Annotated[str, PathParameter(max_length=1024)]
PageRequest = Request[Key, str, Any]


@functools.cache
def _static() -> dict[str, tuple[bytes, str]]:
    """Return the static files by names with a hash of their content, so that browsers may cache them for ever."""
    found = {}
    for path in sorted((_HERE / "static").iterdir()):
        text = path.read_text()
        found[f"{path.stem}.{short(text)}{path.suffix}"] = text.encode(), _KINDS[path.suffix[1:]]
    return found


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "seconds": looks.seconds,
        "size": looks.size,
        "clock": looks.clock,
        "printed": looks.printed,
        "diff": looks.diff,
        "visible": lambda text: visible(str(text)),
        "quoted": lambda text: quote(text, safe=""),
    }
    names = {name.split(".")[0] + name[name.rindex(".") :]: f"/static/{name}" for name in _static()}
    made.globals |= {"tone": looks.tone, "file": names.__getitem__, "languages": LANGUAGES, "lines": looks.lines}
    return made


def _language(request: Request[Any, Any, Any]) -> str:
    given = request.query_params.get("lang", "")
    return chosen(given, request.cookies.get(LANGUAGE, ""), request.headers.get("accept-language", ""))


def _page(request: Request[Any, Any, Any], name: str, code: int = 200, /, **given: Any) -> Response[bytes]:
    language = _language(request)
    key = request.scope.get("user")
    text = (
        _templates()
        .get_template(name)
        .render(
            **given,
            t=translator(language),
            language=language,
            key=key,
            csrf=csrf_of(request.auth) if key is not None else "",
            here=request.url.path,
            now=time.time(),
        )
    )
    answer = Response(
        text.encode("utf-8", "backslashreplace"),
        media_type="text/html",
        status_code=code,
        headers={"Content-Security-Policy": _POLICY},
    )
    if request.query_params.get("lang") in LANGUAGES:
        answer.cookies.append(
            Cookie(key=LANGUAGE, value=language, path="/", samesite="lax", httponly=True, max_age=31_536_000)
        )
    return answer


def _to(place: str) -> Response[bytes]:
    return Response(b"", status_code=303, headers={"Location": place}, media_type="text/plain")


def failed(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the page for an error. The error's text has no paths of the host: see `problem_of`."""
    if isinstance(error, NoLogin):
        if request.method == "GET":  # a browser would log a 401 as an error
            return _to("/login")
        return _page(request, "login.html", 401, wrong=False)
    status, problem, _ = problem_of(error)
    request.scope.setdefault("auth", "")
    return _page(request, "error.html", status, problem=problem, status=status)


_open: dict[str, Any] = {"include_in_schema": False, "exception_handlers": {Exception: failed}}
_inside: dict[str, Any] = {**_open, "guards": [logged_in]}


# --- login and logout ---


@get("/static/{name:str}", include_in_schema=False, sync_to_thread=False)
def static(name: _Name) -> Response[bytes]:
    found = _static().get(name)
    if found is None:
        raise not_found("file")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(found[0], media_type=found[1], headers=headers)


@get("/login", **_open)
async def login_page(request: Request[Any, Any, Any]) -> Response[bytes]:
    return _page(request, "login.html", wrong=False)


@post("/login", status_code=200, **_open)
async def login(request: Request[Any, Any, Any]) -> Response[bytes]:
    service = service_of(request)
    key = service.keys.authenticate((await read(request)).get("key", "").strip())
    if key is None:
        return _page(request, "login.html", wrong=True)
    answer = _to("/")
    secure = service.settings.https
    token = service.keys.log_in(key, LOGIN_SECONDS)
    answer.cookies.append(
        Cookie(
            key=COOKIE, value=token, path="/", httponly=True, samesite="strict", secure=secure, max_age=LOGIN_SECONDS
        )
    )
    return answer


@post("/logout", status_code=200, **_inside)
async def logout(request: PageRequest) -> Response[bytes]:
    await form(request)
    service_of(request).keys.log_out(request.auth)
    answer = _to("/login")
    answer.cookies.append(Cookie(key=COOKIE, value="", path="/", httponly=True, samesite="strict", max_age=0))
    return answer


# --- runs ---


@get("/", **_inside)
async def home(request: PageRequest) -> Response[bytes]:
    service, key, now = service_of(request), request.user, time.time()
    state = request.query_params.get("state", "")
    before = request.query_params.get("before", "")
    before_time = float(before) if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", before) else float("inf")
    rows = await service.newest(key, before=before_time, limit=_PAGE, state=state)
    lately = await service.newest(key, before=float("inf"), limit=5000)
    waiting = [entry for entry in await approvals.visible(service, key) if not key.owns(entry.ask.requester)]
    return _page(
        request,
        "runs.html",
        rows=[_line(row) for row in rows],
        names=await runs.key_names(service),
        hour=looks.hour(lately, now),
        latency=looks.latency(lately, now),
        gauges=looks.gauges(service.numbers.samples, now) if key.may("audit") else None,
        busy=service.busy if key.may("audit") else sum(row.state == "running" for row in lately),
        queued=service.quotas.waiting if key.may("audit") else sum(row.state == "queued" for row in lately),
        waiting=len(waiting),
        older=repr(rows[-1].created) if len(rows) == _PAGE else "",
        state=state,
        first=not before,
    )


def _line(row: Row) -> dict[str, Any]:
    title = row.body.label or row.body.code or " ".join(row.body.argv)
    return {
        "id": row.id,
        "state": row.state,
        "status": row.status,
        "title": visible(" ".join(title.split()))[:120],
        "key": row.key,
        "created": row.created,
        "took": looks.took(row),
        "language": row.body.language,
        "mode": row.mode,
    }


@get("/runs/{run_id:str}", **_inside)
async def run(request: PageRequest, run_id: _Id) -> Response[bytes]:
    service, key = service_of(request), request.user
    row = row_of(await service.find(key, run_id))
    result = looks.result_of(row)
    kept = None
    if looks.changes(result):
        try:
            kept, _ = await changes.load(service, key, row.id)
        except Answered:
            kept = None
    findings = result["evaluation"]["findings"] if result else ()
    code = row.body.code or " ".join(row.body.argv)
    shown, cut = looks.lines(code, findings)
    return _page(
        request,
        "run.html",
        row=row,
        result=result,
        lines=shown,
        cut=cut,
        general=[finding for finding in findings if not finding["line"]],
        who=(await runs.key_names(service)).get(row.key, row.key),
        took=looks.took(row),
        kept=kept,
        changed=looks.changes(result),
        may_decide=key.may("approve") and row.key != key.id,
        may_drop=key.may("approve") or row.key == key.id,
        may_cancel=row.key == key.id or key.may("admin"),
        value=looks.value(result),
        displays=looks.displays(result),
        pictures=[name for name in (result["files"] if result else ()) if Path(name).suffix.lower() in looks.PICTURES],
    )


@get("/runs/{run_id:str}/events", **_inside)
async def run_events(request: PageRequest, run_id: _Id) -> Stream:
    service = service_of(request)
    return runs.events(service, await service.find(request.user, run_id), cancels=False)


@get("/runs/{run_id:str}/files/{name:path}", **_inside)
async def run_file(request: PageRequest, run_id: _Id, name: _Name) -> Response[bytes]:
    """Return a file from a run's result. The browser shows pictures; any other file it can only download."""
    result = looks.result_of(row_of(await service_of(request).find(request.user, run_id)))
    held = (result or {}).get("files", {}).get(str(name).lstrip("/"))
    if held is None:
        raise not_found("file")
    try:
        content = base64.b64decode(held, validate=True)
    except binascii.Error:
        raise not_found("file") from None
    kind = looks.PICTURES.get(Path(name).suffix.lower())
    headers = {"Content-Security-Policy": "default-src 'none'; sandbox", "Cache-Control": "private, max-age=3600"}
    if kind is None:
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(os.path.basename(name), safe='')}"
    return Response(content, media_type=kind or "application/octet-stream", headers=headers)


@get("/runs/{run_id:str}/displays/{number:int}/{kind:str}", **_inside)
async def run_display(
    request: PageRequest, run_id: _Id, number: Annotated[int, PathParameter(ge=0, le=1000)], kind: _Name
) -> Response[bytes]:
    """Return a display of a run. Untrusted code made it, so HTML is always sandboxed, even if opened directly."""
    result = looks.result_of(row_of(await service_of(request).find(request.user, run_id)))
    shown = (result or {}).get("displays", [])
    content = shown[number]["data"].get(looks.DISPLAYED.get(kind, "")) if number < len(shown) else None
    if content is None:
        raise not_found("display")
    headers = {"Cache-Control": "private, max-age=3600"}
    if kind == "html":
        headers |= {"Content-Security-Policy": _FRAMED, "X-Frame-Options": "SAMEORIGIN"}
        text = _FRAME.replace("CONTENT", content)
        return Response(text.encode("utf-8", "backslashreplace"), media_type="text/html", headers=headers)
    headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    try:
        data = content.encode() if kind == "svg" else base64.b64decode(content, validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise not_found("display") from None
    return Response(data, media_type=looks.DISPLAYED[kind], headers=headers)


@post("/runs/{run_id:str}/cancel", status_code=200, **_inside)
async def run_cancel(request: PageRequest, run_id: _Id) -> Response[bytes]:
    await form(request)
    await service_of(request).cancel(request.user, run_id)
    return _to(f"/runs/{run_id}")


@get("/changes/{run_id:str}", **_inside)
async def changes_page(request: PageRequest, run_id: _Id) -> Response[bytes]:
    """Show what a run or a session would change in a project, with buttons to decide on it."""
    service, key = service_of(request), request.user
    kept, own = await changes.load(service, key, run_id)
    return _page(
        request,
        "changes.html",
        kept=kept,
        project=service.boundary.project_name(kept.effect.project),
        own=own,
        may_decide=key.may("approve") and not own,
        may_drop=key.may("approve") or own,
    )


@post("/changes/{run_id:str}/{action:str}", status_code=200, **_inside)
async def decide_changes(request: PageRequest, run_id: _Id, action: _Name) -> Response[bytes]:
    await form(request)
    service, key = service_of(request), request.user
    if action == "discard":
        await changes.discard_as(service, key, run_id)
    elif action not in ("apply", "undo"):
        raise not_found("action")
    elif not key.may("approve"):
        raise not_allowed("approve")
    elif action == "apply":
        await changes.apply_as(service, key, run_id, ApplyBody())
    else:
        await changes.undo_as(service, key, run_id)
    try:
        await service.find(key, run_id)
    except Answered:  # the changes of a session have no run
        return _to(f"/changes/{run_id}")
    return _to(f"/runs/{run_id}#changes")


# --- approvals ---


@get("/approvals", **_inside)
async def inbox(request: PageRequest) -> Response[bytes]:
    service, key = service_of(request), request.user
    everything = await approvals.visible(service, key, everything=True)
    views = [approvals.view(service, key, entry, whole=False) for entry in everything]
    return _page(
        request,
        "approvals.html",
        waiting=[view for view in views if view.state == "open"],
        decided=[view for view in reversed(views) if view.state != "open"][:20],
        kept=[kept for kept in await changes.visible(service, key) if kept.state in ("kept", "partly")][:50],
    )


@get("/approvals/{approval_id:str}", **_inside)
async def approval(request: PageRequest, approval_id: _Id) -> Response[bytes]:
    service, key = service_of(request), request.user
    entry = await approvals.load(service, key, approval_id)
    view = approvals.view(service, key, entry, whole=True)
    findings = msgspec.to_builtins(view.findings)
    shown, cut = looks.lines(view.text, findings)
    return _page(
        request,
        "approval.html",
        ask=view,
        request_=entry.ask.request,
        lines=shown,
        cut=cut,
        findings=findings,
        run=await service.run_of(key, view.id),
        may=key.may("approve"),
        reach=entry.ask.evaluation.reach,
    )


@post("/approvals/{approval_id:str}", status_code=200, **_inside)
async def decide(request: PageRequest, approval_id: _Id) -> Response[bytes]:
    given = await form(request)
    service, key = service_of(request), request.user
    if not key.may("approve"):
        raise not_allowed("approve")
    decision = {"approve": "approved", "deny": "denied"}.get(given.get("decision", ""))
    reason = given.get("reason", "").strip()
    if decision is None or not reason or len(reason) > 2000:
        raise Answered(422, "Why? It goes on record.")
    said = ApprovalAnswer(reason=reason, digest=given.get("digest", "none"))
    await approvals.decide(service, key, approval_id, decision, said)  # type: ignore[arg-type] # one of the two
    return _to("/approvals")


# --- sessions ---


@get("/sessions", **_inside)
async def sessions(request: PageRequest) -> Response[bytes]:
    service, key = service_of(request), request.user
    names = await runs.key_names(service)
    held = service.sessions.visible(key)
    return _page(
        request,
        "sessions.html",
        sessions=[(each.view(names), each.key == key.id or key.may("admin")) for each in held],
        maximum=service.settings.sessions,
    )


@post("/sessions/{session_id:str}/close", status_code=200, **_inside)
async def session_close(request: PageRequest, session_id: _Id) -> Response[bytes]:
    await form(request)
    await service_of(request).sessions.end(request.user, session_id)
    return _to("/sessions")


# --- playground ---


@get("/playground", **_inside)
async def playground(request: PageRequest) -> Response[bytes]:
    again = request.query_params.get("from", "")
    body = RunBody(code=_EXAMPLE, outputs=("*.png",))
    if again:
        body = row_of(await service_of(request).find(request.user, again)).body
    return _playground(request, body, may=request.user.may("run"))


def _playground(
    request: PageRequest, body: RunBody, status: int = 200, *, place: str = "", problem: Any = None, may: bool = True
) -> Response[bytes]:
    network = ", ".join(each for each in body.network if isinstance(each, str))
    return _page(request, "playground.html", status, body=body, network=network, place=place, problem=problem, may=may)


@post("/playground", status_code=200, **_inside)
async def play(request: PageRequest) -> Response[bytes]:
    given = await form(request)
    if not request.user.may("run"):
        raise not_allowed("run")
    service, wanted = service_of(request), RunBody(code=given.get("code", ""))
    wants_json = request.headers.get("accept", "").startswith("application/json")
    try:
        wanted = _wanted(given)
        if given.get("place") == "session":
            found: Any = await _play_in_session(service, request.user, wanted)
        else:
            found, _ = await service.accept(request.user, wanted, "async")
    except (RedomaError, msgspec.ValidationError) as error:
        known = error if isinstance(error, RedomaError) else Answered(422, "the form can't be read", why=str(error))
        status, problem, _ = problem_of(known)
        if wants_json:
            return Response(msgspec.json.encode(problem), media_type="application/json", status_code=status)
        return _playground(request, wanted, status, place=given.get("place", ""), problem=problem)
    row = row_of(found)
    if wants_json:
        return Response(msgspec.json.encode({"id": row.id}), media_type="application/json")
    return _to(f"/runs/{row.id}")


async def _play_in_session(service: Service, key: Key, wanted: RunBody) -> RunJob:
    """Run something in the key's playground session. Open one if there is none. Raises `Answered`."""
    if wanted.backend == "monty" or wanted.network:
        what = "Monty has no sessions" if wanted.backend == "monty" else "a session has no network"
        raise Answered(422, what, next="choose a fresh cell")
    for held in service.sessions.visible(key):
        if held.key == key.id and held.label == _PLAYGROUND and held.session.alive:
            break
    else:
        memory = SomeLimits(memory=wanted.limits.memory)
        body = SessionBody(label=_PLAYGROUND, backend=wanted.backend, limits=memory)
        held = await service.sessions.open(key, body)
    asked = SessionRunBody(
        code=wanted.code, language=wanted.language, limits=SomeLimits(time=wanted.limits.time), reason=wanted.reason
    )
    return service.accept_in(key, held, asked, "stream")


def _wanted(given: dict[str, str]) -> RunBody:
    limits = {name: given[name] for name in ("time", "memory") if given.get(name)}
    return RunBody(
        code=given.get("code", ""),
        language=_word(given.get("language", "python"), ("python", "bash", "javascript")),
        backend=_word(given.get("backend", "auto"), ("auto", "jail", "docker", "monty")),
        limits=msgspec.convert(limits, SomeLimits, strict=False),
        network=tuple(filter(None, (each.strip() for each in given.get("network", "").split(",")))),
        outputs=tuple(given.get("outputs", "").split()),
        reason=given.get("reason", "")[:2000],
    )


def _word(text: str, valid: tuple[str, ...]) -> Any:
    if text not in valid:
        raise Answered(422, f"{text[:40]!r} is none of {', '.join(valid)}")
    return text


# --- audit ---


@get("/audit", **_inside)
async def record(request: PageRequest) -> Response[bytes]:
    service, key = service_of(request), request.user
    if not key.may("audit"):
        raise not_allowed("audit")
    text, status = request.query_params.get("text", "")[:200], request.query_params.get("status", "")[:40]
    query = Query(text=text, statuses=(status,) if status else ())
    found, whole = await asyncio.gather(
        asyncio.to_thread(functools.partial(audit.found, service, query, days=30, limit=100)),
        asyncio.to_thread(audit.verified, service),
    )
    running = {run.id for run in found if service.is_running(run.id)}
    return _page(request, "audit.html", found=found, running=running, chain=whole, text=text, status=status)


# --- checks ---


@get("/checks", **_inside)
async def checks(request: PageRequest) -> Response[bytes]:
    """Show what the monitor of this user has recorded."""
    service, key = service_of(request), request.user
    if not key.may("audit"):
        raise not_allowed("audit")
    history = History(service.store.path.with_name(MONITOR))
    spells = await asyncio.to_thread(history.spells, time.time() - _MONITORED)
    latest = {spell.check: spell for spell in spells}
    worst = sorted(latest.values(), key=lambda spell: (-spell.state.urgency, spell.check))
    return _page(request, "checks.html", checks=worst, changes=list(reversed(spells))[:20])


HANDLERS = (
    *(static, login_page, login, logout),
    *(home, run, run_events, run_file, run_display, run_cancel, changes_page, decide_changes),
    *(inbox, approval, decide, sessions, session_close, playground, play, record, checks),
)
