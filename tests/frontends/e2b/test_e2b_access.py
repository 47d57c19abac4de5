"""What no request gets away with: the tokens of a sandbox are its own, and everything has a bound."""

from __future__ import annotations

import gzip
import json
import struct
import threading
import time
from typing import Any

import httpx
import pytest
from e2b import SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

from pace import SLOW
from serving import Serving

pytestmark = pytest.mark.usefixtures("pointed")

CALLS = [
    ("POST", "/execute", {"code": "1"}),
    ("GET", "/contexts", None),
    ("POST", "/contexts", {}),
    ("DELETE", "/contexts/x", None),
    ("POST", "/contexts/x/restart", None),
    ("GET", "/files?path=x", None),
    ("POST", "/files?path=x", {}),
    ("POST", "/process.Process/List", {}),
    ("POST", "/process.Process/SendInput", {}),
    ("POST", "/process.Process/SendSignal", {}),
    ("POST", "/filesystem.Filesystem/Stat", {"path": "x"}),
    ("POST", "/filesystem.Filesystem/Remove", {"path": "x"}),
]
STREAMS = ["/process.Process/Start", "/process.Process/Connect", "/filesystem.Filesystem/WatchDir"]


def ask(service: Serving, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    return httpx.request(method, f"{service.url}/e2b{path}", content=content, headers=named, timeout=60 * SLOW)


def tokens(sandbox: Sandbox) -> dict[str, str]:
    assert sandbox._envd_access_token
    return {"e2b_sandbox_id": sandbox.sandbox_id, "x_access_token": sandbox._envd_access_token}


def envelope(message: Any, flag: int = 0, size: int | None = None) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", flag, len(data) if size is None else size) + data


def last_word(response: httpx.Response) -> Any:
    """The error at the end of a stream."""
    content, found = response.content, {}
    while content:
        _, size = struct.unpack_from(">BI", content)
        found, content = json.loads(content[5 : 5 + size]), content[5 + size :]
    return found.get("error")


@pytest.fixture(scope="module")
def foreign(service: Serving) -> Any:
    where = f"{service.url}/e2b"
    sandbox = Sandbox.create(api_key=service.key("other"), api_url=where, sandbox_url=where, timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_each_call_needs_the_token_of_that_sandbox(
    service: Serving, shared: Sandbox, foreign: Sandbox, method: str, path: str, body: Any
) -> None:
    mine, theirs = tokens(shared), tokens(foreign)
    for wrong in (
        {"e2b_sandbox_id": shared.sandbox_id},
        {"e2b_sandbox_id": shared.sandbox_id, "x_access_token": theirs["x_access_token"]},
        {"e2b_sandbox_id": shared.sandbox_id, "x_access_token": mine["x_access_token"][:-1]},
        {"e2b_sandbox_id": shared.sandbox_id, "x_api_key": service.key("agent")},
        {"e2b_sandbox_id": shared.sandbox_id, "e2b_traffic_access_token": foreign.traffic_access_token or ""},
    ):
        assert ask(service, method, path, body, **wrong).status_code == 401, wrong
    assert ask(service, method, path, body).status_code in (400, 401)
    gone = {**mine, "e2b_sandbox_id": "0" * 20}
    assert ask(service, method, path, body, **gone).status_code == 502


@pytest.mark.parametrize("path", STREAMS)
def test_streams_need_it_as_well(service: Serving, shared: Sandbox, foreign: Sandbox, path: str) -> None:
    wrong = {"e2b_sandbox_id": shared.sandbox_id, "x_access_token": tokens(foreign)["x_access_token"]}
    answer = ask(service, "POST", path, envelope({}), **wrong)
    assert last_word(answer)["code"] == "unauthenticated"


def test_the_traffic_token_is_good_for_code_only(service: Serving, shared: Sandbox) -> None:
    given = {"e2b_sandbox_id": shared.sandbox_id, "e2b_traffic_access_token": shared.traffic_access_token or ""}
    assert ask(service, "GET", "/contexts", **given).status_code == 200
    assert ask(service, "POST", "/process.Process/List", {}, **given).status_code == 401
    assert ask(service, "GET", "/files?path=x", **given).status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"nonsense", b"\xff", b'{"code": 5}', b"[" * 100_000, b'{"code": "x", "env_vars": {"a": 1}}']
)
def test_what_makes_no_sense_is_answered_as_that(service: Serving, shared: Sandbox, body: bytes) -> None:
    mine = tokens(shared)
    assert ask(service, "POST", "/execute", body, **mine).status_code == 400
    if body not in (b"", b'{"code": 5}', b'{"code": "x", "env_vars": {"a": 1}}'):
        assert ask(service, "POST", "/filesystem.Filesystem/Stat", body, **mine).status_code == 400
        key = {"x_api_key": service.key("agent")}
        assert ask(service, "POST", "/v2/sandboxes", body, **key).status_code == 400


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0",
        envelope({"process": {"cmd": "true"}}, flag=1),
        envelope({"process": {"cmd": "true"}}, size=2**32 - 1),
        envelope({"process": {"cmd": "true"}}, size=500),
        envelope({"process": {"cmd": ""}}),
        envelope({"process": {"cmd": "true", "args": ["x"] * 20_000}}),
        envelope({"process": {"cmd": "true"}, "pty": {"size": {"rows": 70000, "cols": 1}}}),
        envelope({"process": {"cmd": "true", "envs": {"A=B": "1"}}}),
        envelope({"process": {"cmd": "tr\0ue"}}),
    ],
)
def test_frames_that_are_none_end_their_stream_and_nothing_else(
    service: Serving, shared: Sandbox, frame: bytes
) -> None:
    answer = ask(service, "POST", "/process.Process/Start", frame, **tokens(shared))
    assert last_word(answer)["code"] == "invalid_argument"
    assert shared.commands.run("echo on").stdout == "on\n"


def test_bodies_are_bounded(service: Serving, shared: Sandbox) -> None:
    mine, large = tokens(shared), b'{"code": "' + b"x" * (9 << 20) + b'"}'
    assert ask(service, "POST", "/execute", large, **mine).status_code == 413
    assert ask(service, "POST", "/v2/sandboxes", large, x_api_key=service.key("agent")).status_code == 413
    assert ask(service, "GET", f"/files?path={'x' * 20_000}", **mine).status_code == 400
    assert ask(service, "GET", "/v2/sandboxes?" + "a=1&" * 60, x_api_key=service.key("agent")).status_code == 400
    form = {"file": ("x", bytes(40 << 20))}
    named = {"E2b-Sandbox-Id": mine["e2b_sandbox_id"], "X-Access-Token": mine["x_access_token"]}
    answer = httpx.post(f"{service.url}/e2b/files", files=form, headers=named, timeout=60 * SLOW)
    assert answer.status_code == 413


def test_little_that_unpacks_to_much_fills_its_own_sandbox_only(service: Serving, sandbox: Sandbox) -> None:
    bomb = gzip.compress(bytes(80 << 20), 6)
    answer = ask(
        service,
        "POST",
        "/files?path=bomb",
        bomb,
        content_encoding="gzip",
        content_type="application/octet-stream",
        **tokens(sandbox),
    )
    assert answer.status_code == 507
    assert sandbox.files.list(".") == []
    torn = gzip.compress(b"text")[:-4]
    longer = gzip.compress(b"text") + b"what is behind it would fill our memory"
    for data in (torn, longer, b"no gzip at all"):
        answer = ask(service, "POST", "/files?path=x", data, content_encoding="gzip", **tokens(sandbox))
        assert answer.status_code == 400
    assert sandbox.files.list(".") == []


def test_a_header_that_is_sent_twice_counts_for_nothing(service: Serving, shared: Sandbox) -> None:
    mine = tokens(shared)
    headers = [("E2b-Sandbox-Id", shared.sandbox_id)] + [("X-Access-Token", mine["x_access_token"])] * 2
    assert httpx.get(f"{service.url}/e2b/files?path=x", headers=headers, timeout=60 * SLOW).status_code == 401


def test_paths_do_not_lead_out_of_the_sandbox(service: Serving, shared: Sandbox) -> None:
    for path in ("../../../../etc/shadow", "/proc/1/root/etc/shadow", "/root/.ssh/id_rsa", "a\0b"):
        with pytest.raises(SandboxException):
            shared.files.read(path)
    assert "root:x:" in shared.files.read("../../../../etc/passwd")  # that of the cell, which names nobody of the host
    assert "guest:x:1000" in shared.files.read("/etc/passwd")


def test_processes_and_watchers_are_counted(sandbox: Sandbox) -> None:
    for _ in range(16):
        sandbox.files.watch_dir(".")
    with pytest.raises(SandboxException, match="16 watchers"):
        sandbox.files.watch_dir(".")
    for _ in range(49):
        sandbox.create_code_context()
    with pytest.raises(SandboxException, match="50 contexts"):
        sandbox.create_code_context()


def test_a_client_that_does_not_read_holds_up_nobody(service: Serving, sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("seq 1 5500000", background=True, timeout=0)  # 40 MB that nobody reads
    assert sandbox.commands.run("echo free").stdout == "free\n"
    assert sandbox.run_code("print('free')").logs.stdout == ["free\n"]
    deadline = time.monotonic() + 60 * SLOW
    while sandbox.commands.list() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sandbox.commands.list() == []
    with pytest.raises(SandboxException, match="not read fast enough"):
        handle.wait()


def test_killing_a_sandbox_ends_what_waits_on_it(sandbox: Sandbox) -> None:
    ends: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.run_code("open('begun', 'w'); import time; time.sleep(1000)")
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    process = sandbox.commands.run("until [ -e begun ]; do sleep 0.05; done; echo begun; sleep 1000", background=True)
    assert next(iter(process))[0] == "begun\n"
    sandbox.kill()
    thread.join(60 * SLOW)
    assert "sandbox was killed" in str(ends[0])
    assert isinstance(ends[0], TimeoutException)
    with pytest.raises(TimeoutException, match="killed or reached its end of life"):
        process.wait()
