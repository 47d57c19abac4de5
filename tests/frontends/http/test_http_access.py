"""Who may do what: keys, scopes, what each key sees, and what no request gets away with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import stat
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn
from uvicorn.server import ServerState

from redoma.config import AuditConfig, Config
from redoma.frontends.http.bodies import RunBody
from redoma.frontends.http.keys import Keys
from redoma.frontends.http.problems import problem_of
from redoma.frontends.http.server import Connection
from redoma.frontends.http.service import Service
from redoma.frontends.http.store import open_store
from redoma.lib.errors import InvalidRequest, StoreError
from serving import Serving

ALL = [
    ("POST", "/v1/runs", {"run", "admin"}),
    ("POST", "/v1/runs/async", {"run", "admin"}),
    ("POST", "/v1/runs/stream", {"run", "admin"}),
    ("POST", f"/v1/approvals/{'a' * 32}/approve", {"approve", "admin"}),
    ("POST", f"/v1/approvals/{'a' * 32}/deny", {"approve", "admin"}),
    ("POST", f"/v1/changes/{'a' * 32}/apply", {"approve", "admin"}),
    ("POST", f"/v1/changes/{'a' * 32}/undo", {"approve", "admin"}),
    ("POST", "/v1/policy/check", {"run", "admin"}),
    ("POST", f"/v1/sessions/{'a' * 32}/fork", {"run", "admin"}),
    ("POST", f"/v1/sessions/{'a' * 32}/processes", {"run", "admin"}),
    ("POST", f"/v1/sessions/{'a' * 32}/changes/keep", {"run", "admin"}),
    ("POST", "/v1/environments", {"admin"}),
    ("POST", "/v1/environments/data/update", {"admin"}),
    ("DELETE", "/v1/environments/data", {"admin"}),
    ("GET", "/v1/audit/runs", {"audit", "admin"}),
    ("GET", "/v1/audit/verify", {"audit", "admin"}),
    ("GET", "/v1/keys", {"admin"}),
    ("POST", "/v1/keys", {"admin"}),
    ("DELETE", "/v1/keys/nobody", {"admin"}),
    ("GET", "/metrics", {"audit", "admin"}),
]
LONG = {"code": "import time; time.sleep(55)", "limits": {"time": 60}}
"""As long as a run may take without asking."""
NAMES = {"run": "agent", "approve": "maria", "audit": "auditor", "admin": "boss"}


@pytest.mark.parametrize(("method", "path", "scopes"), ALL)
def test_each_address_needs_its_scope(server: Serving, method: str, path: str, scopes: set[str]) -> None:
    body: dict[str, str] | None = {} if method == "POST" else None
    for scope, name in NAMES.items():
        refused = server.ask(method, path, body, key=name).status == 403
        assert refused == (scope not in scopes), scope
    for wrong in (None, "nonsense", "rdm_000000000000_" + "A" * 43, server.made["agent"][:-1] + "!"):
        answer = server.ask(method, path, body, key=wrong)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_every_route_of_the_document_is_guarded(server: Serving) -> None:
    document = server.ask("GET", "/v1/openapi.json", key=None).json
    for path, item in document["paths"].items():
        for method, operation in item.items():
            answer = server.ask(method.upper(), path.replace("{", "").replace("}", ""), {}, key=None)
            assert (answer.status == 401) == bool(operation["security"]), (method, path)
            assert path in ("/health", "/ready") or operation["security"]


def test_a_key_is_kept_as_a_hash_and_can_be_revoked_and_expires(tmp_path: Path) -> None:
    now = [1_000_000_000.0]
    keys = Keys(open_store(tmp_path), now=lambda: now[0])
    key, text = keys.create("agent", ["run"], seconds=60)
    assert text.split("_", 2)[2].encode() not in (tmp_path / "service.db").read_bytes()
    assert keys.authenticate(text) == key
    now[0] += 61
    assert keys.authenticate(text) is None
    _, other = keys.create("second", ["approve", "run"])
    assert keys.authenticate(other) is not None
    keys.revoke("second")
    assert keys.authenticate(other) is None
    for name, scopes in (("second", ["run"]), ("Second", ["run"]), ("a/b", ["run"]), ("x", []), ("x", ["root"])):
        with pytest.raises(InvalidRequest):
            keys.create(name, scopes)
    assert stat.S_IMODE((tmp_path / "service.db").stat().st_mode) == 0o600


def test_keys_are_made_listed_and_revoked_on_the_command_line(redoma: Callable[..., tuple[int, str, str]]) -> None:
    status, text, _ = redoma("keys", "create", "ci", "--scope", "run", "--scope", "audit", "--days", "1")
    assert status == 0
    assert re.fullmatch(r"rdm_[0-9a-f]{12}_[\w-]{43}\n", text)
    assert "ci" in redoma("keys", "list")[1]
    assert text.strip() not in redoma("keys", "list", "--json")[1]
    assert redoma("keys", "revoke", "ci")[0] == 0
    assert "revoked" in redoma("keys", "list")[1]
    assert redoma("keys", "revoke", "nobody")[0] == 2


def test_a_revoked_or_expired_key_is_refused_by_a_server_that_runs(server: Serving) -> None:
    server.key("short-lived", "run")
    server.key("expiring", "run", seconds=20)
    for name in ("short-lived", "expiring"):
        assert server.ask("POST", "/v1/policy/check", {"code": "1"}, key=name).status == 200
    server.keys.revoke("short-lived")
    with server.keys._store.writing() as db:  # as if the time had passed
        db.execute("UPDATE keys SET expires = ? WHERE name = 'expiring'", (time.time() - 1,))
    time.sleep(1.1)
    for name in ("short-lived", "expiring"):
        assert server.ask("POST", "/v1/runs", {"code": "1"}, key=name).status == 401


def test_keys_are_made_over_http_by_an_admin(server: Serving) -> None:
    answer = server.ask("POST", "/v1/keys", {"name": "made-here", "scopes": ["run"]}, key="boss")
    assert answer.status == 201
    text = answer.json["text"]
    assert server.ask("POST", "/v1/runs", {"code": "1"}, key=text).status == 200
    listed = server.ask("GET", "/v1/keys", key="boss")
    assert "made-here" in [key["name"] for key in listed.json["keys"]]
    assert text.rpartition("_")[2] not in listed.body.decode()
    assert server.ask("DELETE", "/v1/keys/made-here", key="boss").json["revoked"]
    assert server.ask("POST", "/v1/runs", {"code": "1"}, key=text).status == 401
    assert server.ask("POST", "/v1/keys", {"name": "made-here", "scopes": ["run"]}, key="boss").status == 422


def test_a_key_sees_its_own_runs_only(server: Serving) -> None:
    run = server.run("print('mine')", key="agent")["id"]
    for path in (f"/v1/runs/{run}", f"/v1/runs/{run}/events"):
        assert server.ask("GET", path, key="other").status == 404
    assert server.ask("POST", f"/v1/runs/{run}/cancel", key="other").status == 404
    assert run not in server.ask("GET", "/v1/runs?limit=200", key="other").body.decode()
    assert server.ask("GET", f"/v1/runs/{run}", key="auditor").status == 200


@pytest.mark.parametrize("run", ["..", "%2e%2e%2fkeys", "x" * 64, "a/../../b", "%00", "0" * 32, "' OR 1=1 --", "é"])
@pytest.mark.parametrize("path", ["/v1/runs/{}", "/v1/runs/{}/events", "/v1/changes/{}", "/v1/approvals/{}"])
def test_an_id_that_is_none_finds_nothing(server: Serving, path: str, run: str) -> None:
    from urllib.parse import quote

    answer = server.ask("GET", path.format(quote(run, safe="%/.")), key="boss")
    assert answer.status in (400, 404, 405)
    assert "Traceback" not in answer.body.decode()


def test_a_key_has_its_own_rate_and_concurrency(server: Serving) -> None:
    server.key("slow", "run", rate=0.5, concurrency=1)
    answers = [server.ask("GET", "/v1/runs", key="slow")]
    assert answers[0].status == 200
    while answers[-1].status == 200 and len(answers) < 50:  # until one comes too soon after another
        answers.append(server.ask("GET", "/v1/runs", key="slow"))
    assert answers[-1].status == 429
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert server.ask("GET", "/v1/runs", key="agent").status == 200  # nobody else is held up


def test_one_key_runs_no_more_at_a_time_than_it_may(server: Serving) -> None:
    server.key("single", "run", concurrency=1)
    slow = server.ask("POST", "/v1/runs/async", LONG, key="single").json["id"]
    server.until(slow, "running", key="single")
    second = server.ask("POST", "/v1/runs/async", {"code": "1"}, key="single").json["id"]
    assert server.ask("POST", "/v1/runs", {"code": "1"}, key="single").status == 429
    assert server.run("'others go on'", key="agent")["status"] == "ok"
    assert server.ask("GET", f"/v1/runs/{second}", key="single").json["state"] == "queued"
    server.ask("POST", f"/v1/runs/{slow}/cancel", key="single")
    server.until(second, "done", key="single")


def test_only_an_admin_chooses_the_policy(server: Serving) -> None:
    assert server.ask("POST", "/v1/runs", {"code": "1", "policy": "none"}).status == 403
    assert server.ask("POST", "/v1/runs", {"code": "1", "policy": "none"}, key="boss").status == 200
    assert server.ask("POST", "/v1/runs", {"code": "1", "policy": "lax"}, key="boss").status == 422


def raw(server: Serving, data: bytes, seconds: float = 60.0) -> bytes:
    """Send bytes as they are; returns the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError):
            return answer
        return answer


def head(server: Serving, *lines: str) -> bytes:
    key = server.made["agent"]
    every = ("POST /v1/runs HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", "Connection: close", *lines)
    return "\r\n".join(every).encode() + b"\r\n\r\n"


def test_a_request_that_two_servers_could_read_differently_is_refused(server: Serving) -> None:
    body = json.dumps({"code": "1"}).encode()
    for lines in (
        ("Content-Length: 13", "Content-Length: 14"),
        ("Content-Length: 13", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Content-Length: +13",),
        ("Content-Length : 13",),
    ):
        answer = raw(server, head(server, *lines) + body, 5.0)  # one of them waits for more
        assert not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 500")), lines
    assert raw(server, head(server, f"Content-Length: {len(body)}") + body).startswith(b"HTTP/1.1 200")
    assert raw(server, b"GARBAGE\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, b"\x16\x03\x01\x02\x00" * 50).startswith(b"HTTP/1.1 400")


def test_headers_and_bodies_that_are_too_large_are_refused(server: Serving) -> None:
    assert raw(server, head(server, "X: " + "a" * 100_000)).startswith(b"HTTP/1.1 400")
    size = 40 << 20
    answer = raw(server, head(server, f"Content-Length: {size}", "Content-Type: application/json") + b"{")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"too large" in answer


async def test_a_request_that_does_not_arrive_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn
    from uvicorn.server import ServerState

    from redoma.frontends.http import server as listening

    monkeypatch.setattr(listening, "_REQUEST_SECONDS", 0.3)

    async def application(scope: object, receive: object, send: object) -> None:
        await asyncio.sleep(60)

    config = uvicorn.Config(application, ws="none", log_config=None)  # never answers
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: listening.Connection(config, state, {}), "127.0.0.1", 0) as made:
        port = made.sockets[0].getsockname()[1]
        for sent in (b"", b"POST / HTTP/1.1\r\nHost:", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        for task in state.tasks:
            task.cancel()


def test_a_server_that_others_can_reach_needs_a_key_first(redoma: Callable[..., tuple[int, str, str]]) -> None:
    status, _, said = redoma("serve", "--host", "0.0.0.0", "--port", "0")
    assert status == 125
    assert "there is no key yet" in said
    assert "redoma keys create" in said


def test_a_first_key_is_made_on_this_machine(tmp_path: Path) -> None:
    server = Serving(tmp_path / "first").start()
    try:
        assert [key.scopes for key in server.keys.list()] == [("admin",)]
    finally:
        assert server.stop() == 0


def test_it_listens_on_a_socket_of_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "redoma.sock"
    server = Serving(tmp_path / "unix", options=("--socket", str(path)))
    server.key("agent", "run")
    server.start()
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    finally:
        server.kill()
    assert path.exists()
    server.start()  # what a killed server left is replaced
    assert server.stop() == 0
    assert not path.exists()


def test_one_key_leaves_others_room_to_run_to_wait_and_to_ask(serve: Callable[..., Serving]) -> None:
    """A greedy key takes all that it gets: places to run, places in the queue, and questions for a person."""
    server = serve("server: {running: 4, queue: 10, drain: 0}\n")
    server.key("greedy", "run", concurrency=50)
    asked = {"code": "1", "limits": {"time": 90}, "reason": "it takes long"}
    asks = [server.ask("POST", "/v1/runs", asked, key="greedy").status for _ in range(10)]
    assert asks == [202] * 9 + [429]
    for run in server.ask("GET", "/v1/runs?state=waiting", key="greedy").json["runs"]:
        server.ask("POST", f"/v1/runs/{run['id']}/cancel", key="greedy")
    sleeps = [server.ask("POST", "/v1/runs/async", LONG, key="greedy")]
    while sleeps[-1].status == 202:
        if len(sleeps) == 3:
            server.until(sleeps[-1].json["id"], "running", key="greedy")
        sleeps.append(server.ask("POST", "/v1/runs/async", LONG, key="greedy"))
    assert len(sleeps) == 3 + 9 + 1
    assert server.run("'others go on'")["status"] == "ok"
    assert server.ask("GET", f"/v1/runs/{sleeps[3].json['id']}", key="greedy").json["state"] == "queued"  # meanwhile


def test_requests_of_one_key_that_wait_are_bounded_together(serve: Callable[..., Serving]) -> None:
    server = serve("server: {running: 1, max_body: 100000, drain: 0}\n")
    slow = server.ask("POST", "/v1/runs/async", LONG).json["id"]
    server.until(slow, "running")
    large = {"code": "1", "files": {"a": "x" * 90_000}}
    statuses = [server.ask("POST", "/v1/runs/async", large).status for _ in range(10)]
    assert statuses == [202] * 9 + [429]


async def test_large_requests_are_not_loaded_for_a_list(tmp_path: Path) -> None:
    service = Service(Config(state=tmp_path, audit=AuditConfig(directory=tmp_path / "audit")))
    key, _ = service.keys.create("agent", ("run",))
    size, count = 1 << 18, 20
    with open_store(tmp_path).writing() as db:
        for number in range(count):
            code = "" if number % 2 else "print('large')"
            argv = ("echo", "x" * size) if number % 2 else ()
            language = "command" if number % 2 else "python"
            body = RunBody(code=code, argv=argv, language=language, files={"a": "\u00e4" * size})  # type: ignore[arg-type]
            values = (f"{number:032x}", key.id, "async", "done", float(number), msgspec.json.encode(body))
            db.execute("INSERT INTO runs (id, key, mode, state, created, body) VALUES (?, ?, ?, ?, ?, ?)", values)
    tracemalloc.start()
    try:
        rows = await service.newest(key, before=float("inf"), limit=200)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await service.executor.aclose()
    assert [row.body.code or row.body.argv[0] for row in rows[:2]] == ["echo", "print('large')"]
    assert [row.body.language for row in rows[:2]] == ["command", "python"]
    assert len(rows) == count
    assert peak < 2 * size


async def test_a_body_in_tiny_chunks_is_read_in_small_turns() -> None:
    """Parsing 256 KiB of them at once would hold up every other connection for most of a second."""
    pieces: list[int] = []

    class Measured(Connection):
        def data_received(self, data: bytes) -> None:
            pieces.append(len(data))
            super().data_received(data)

    async def answer(scope: object, receive: Callable[[], Awaitable[dict[str, Any]]], send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(answer, lifespan="off", log_level="error")
    config.load()
    state = ServerState()
    listening = await asyncio.get_running_loop().create_server(lambda: Measured(config, state, {}), "127.0.0.1", 0)
    async with listening:
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        writer.write(b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert sum(pieces) > 200_000
    assert max(pieces) <= 16 << 10


def test_what_failed_on_this_host_is_in_the_log_and_not_in_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    status, problem, _ = problem_of(StoreError("the database in /srv/state can't be used", why="the disk is\nfull"))
    assert status == 503
    assert "/srv" not in repr(problem)
    assert "/srv/state" in caplog.text
    assert "the disk is full" in caplog.text
