"""A service used from Python, and from the command line, as if it were here."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import redoma
from serving import PROGRAM, Serving


@pytest.fixture
def client(server: Serving) -> redoma.Client:
    return redoma.connect(server.url, key=server.made["agent"])


def test_a_run_there_is_a_result_here(client: redoma.Client, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"\xff\x00")
    with client:
        result = client.run("print(open('data.bin', 'rb').read()); 6 * 7", files=[tmp_path / "data.bin"], timeout=30)
        assert isinstance(result, redoma.Result)
        assert (result.ok, result.stdout, result.value) == (True, "b'\\xff\\x00'\n", 42)
        assert result.evaluation.decision is redoma.Decision.ALLOW
        out = client.run("open('x.bin', 'wb').write(b'\\xfe')", outputs=["*"])
        assert out.files == {"x.bin": b"\xfe"}
        assert client.command(["echo", "there"]).stdout == "there\n"
        assert client.check("1 + 1")["decision"] == "allow"


def test_what_is_wrong_is_told_as_by_the_library(server: Serving, client: redoma.Client) -> None:
    with client:
        with pytest.raises(redoma.InvalidRequest, match="nothing to run"):
            client.run("")
        with pytest.raises(redoma.InvalidRequest, match="unknown option 'tmeout'"):
            client.run("1", tmeout=3)
        with pytest.raises(redoma.InvalidRequest, match="not the address of a service"):
            redoma.connect("localhost:8800", key="k")
    with redoma.connect(server.url, key="rdm_wrong") as stranger:
        with pytest.raises(redoma.ServiceError, match="this key is not accepted: it is unknown here") as refused:
            stranger.run("1")
        assert refused.value.status == 401
    with pytest.raises(redoma.ServiceError, match="can't be reached"):
        redoma.connect("http://127.0.0.1:1", key="k").run("1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"files": ["sub/data.txt", "data.txt"]}, "data.txt outer sub/data.txt inner"),
        ({"files": [Path("sub/data.txt")]}, "sub/data.txt inner"),
        ({"files": ["sub/../data.txt"]}, "data.txt outer"),
        ({"files": ["HERE/sub/data.txt"]}, "data.txt inner"),
        (
            {"files": {"a/b.txt": "text", Path("c.txt"): b"bytes", "d.txt": Path("data.txt")}},
            "a/b.txt text c.txt bytes",
        ),
        ({"files": ["HERE/sub/data.txt", "HERE/data.txt"]}, "two files are to be called 'data.txt'"),
        ({"files": ["HERE/data.txt", "data.txt"]}, "two files are to be called 'data.txt'"),
        ({"files": "data.txt"}, "files is 'data.txt'"),
        ({"files": ["sub"]}, "the file 'sub' can't be read: is a directory. Next: list the files in it"),
        ({"files": ["missing.txt"]}, "the file 'missing.txt' can't be read"),
        ({"timeout": 5, "limits": {"time": 6}}, "the limit 'time' was given twice"),
        ({"memory": "100MiB", "limits": {"memory": "200MiB"}}, "the limit 'memory' was given twice"),
        ({"timeout": 5, "memory": None, "limits": {"memory": "200MiB"}}, ""),
        ({"timeout": 5, "limits": redoma.Limits(output_lines=1), "args": ["x"]}, "x"),
        ({"outputs": "*.txt"}, "outputs is one text"),
        ({"args": "a b"}, "args is one text"),
        ({"args": ["a", "b"]}, "a b"),
    ],
)
def test_an_option_means_the_same_there_and_here(
    client: redoma.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "data.txt").write_text("outer")
    (tmp_path / "sub" / "data.txt").write_text("inner")
    monkeypatch.chdir(tmp_path)
    if isinstance(paths := options.get("files"), list):
        files = [path.replace("HERE", str(tmp_path)) if isinstance(path, str) else path for path in paths]
        options = options | {"files": files}
    code = """
import sys
from pathlib import Path
found = [f"{path} {path.read_text()}" for path in sorted(Path(".").rglob("*.txt"))]
print(*found, *sys.argv[1:])
"""

    def told(run: Any) -> tuple[str, str]:
        try:
            result = run(code, **options)
        except redoma.InvalidRequest as error:
            return "", str(error)
        return result.status.value, result.stdout + result.stderr

    with client:
        there = told(client.run)
        assert there == told(redoma.run)
    assert said in there[1]


def test_a_run_in_a_session_takes_a_limit_once_there_and_here(client: redoma.Client) -> None:
    with client, client.session() as there, redoma.Session() as here:
        for session in (there, here):
            with pytest.raises(redoma.InvalidRequest, match="the limit 'time' was given twice"):
                session.run("1", timeout=5, limits={"time": 6})
            assert session.run("print(1)", timeout=5, limits={"output_lines": 3}).stdout == "1\n"


def test_a_client_loads_what_reads_options_only_for_them(server: Serving) -> None:
    code = f"""
import sys, redoma
with redoma.connect({server.url!r}, key={server.made["agent"]!r}) as client:
    assert client.run("print(1)", env={{"A": "b"}}, reason="a test").ok
    assert "redoma.pipeline.intake" not in sys.modules
    assert client.run("print(1)", timeout=5).ok
    assert "redoma.pipeline.intake" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_key_comes_from_the_environment_or_is_asked_for(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDOMA_KEY", raising=False)
    with pytest.raises(redoma.InvalidRequest, match=r"REDOMA_KEY is not set.*pass key="):
        redoma.connect(server.url)
    monkeypatch.setenv("REDOMA_KEY", server.made["agent"])
    with redoma.connect(server.url) as client:
        assert client.run("6 * 7").value == 42


def test_a_wrong_choice_is_answered_with_the_choices(client: redoma.Client) -> None:
    with client:
        with pytest.raises(
            redoma.InvalidRequest, match=r"backend: 'native' is not offered; choose auto, jail, .* or ray"
        ):
            client.run("1", backend="native")
        with pytest.raises(redoma.InvalidRequest, match=r"language: 'js' is not offered; choose python, .* or command"):
            client.run("1", "js")
        with pytest.raises(
            redoma.InvalidRequest, match="backend: 'monty' is not offered; choose auto, jail, docker or"
        ):
            client.session(backend="monty").run("1")


def test_a_client_can_be_used_and_closed_again_after_it_was_closed(client: redoma.Client) -> None:
    with client:
        assert client.run("1 + 1").value == 2
    assert client.run("1 + 2").value == 3
    (used,) = client.transport._open
    assert used.sock is not None
    client.close()
    assert used.sock is None


def test_a_connection_that_the_other_side_closed_is_not_used_again() -> None:
    """As a proxy in front of the service does, or a service that was restarted."""
    answer = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"sessions": []}'
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_and_close() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                closed.release()

        listening.settimeout(30)
        closed = threading.Semaphore(0)
        serving = threading.Thread(target=answer_and_close)
        serving.start()
        try:
            with redoma.connect(f"http://127.0.0.1:{listening.getsockname()[1]}", key="k") as client:
                for _ in range(2):
                    assert client.sessions() == []
                    assert closed.acquire(timeout=30)
        finally:
            serving.join()


_ORDINARY = ("content-type: application/json", "x-a: b c; d='e'", "content-length: 3", "content-length: 4", "x-a: b")
_TELLING = ("connection: close", "connection: keep-alive", "transfer-encoding: chunked", "content-length: +3")
_ODD = (
    "Content-Length: 3",
    "content-length:3",
    "content-length: 3 ",
    "x-a : b",
    "x-a",
    "x-a:",
    ": b",
    "x-a: \xe9",
    " x-a: b",
)
_STATUS = (
    "HTTP/1.1 200 OK",
    "HTTP/1.1 503 Service Unavailable",
    "HTTP/1.1 204 No Content",
    "HTTP/1.1 304 Not Modified",
)
_ODD_STATUS = (
    "HTTP/1.0 200 OK",
    "HTTP/1.1 200",
    "HTTP/1.1 200  so it ",
    "HTTP/1.1 99 x",
    "HTTP/1.1 100 Continue",
    "garbage",
)
_HEADS = st.builds(
    lambda status, length, lines, ends: "".join(
        line + end for line, end in zip([status, *length, *lines, ""], ends, strict=False)
    ).encode("latin-1"),
    st.sampled_from(_STATUS) | st.sampled_from(_STATUS + _ODD_STATUS),
    st.sampled_from(((), ("content-length: 3",), ("content-length: 3",))),
    st.lists(st.sampled_from(_ORDINARY + _TELLING) | st.sampled_from(_ORDINARY + _ODD), max_size=3),
    st.just(["\r\n"] * 6) | st.lists(st.sampled_from(("\r\n", "\r\n", "\n", "\r\n ")), min_size=6, max_size=6),
)


def _as_read_by(kind: Any, sent: bytes) -> Any:
    reading, writing = socket.socketpair()
    with reading:
        with writing:
            writing.sendall(sent)
        response = kind(reading, method="POST")
        try:
            response.begin()
            found = (response.status, response.reason, response.version, response.chunked, response.will_close)
            return found, response.length, response.headers.items(), response.read(), response.isclosed()
        except (http.client.HTTPException, ValueError) as error:
            return type(error)
        finally:
            response.close()


@example(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\n", b"abc")
@example(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\n", b"abcde")
@example(b"HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\n", b"abc")
@settings(max_examples=150, deadline=None)
@given(_HEADS, st.sampled_from((b"", b"abc", b"abcdef", b"3\r\nabc\r\n0\r\n\r\n")))
def test_an_answer_is_read_as_by_the_standard_library(head: bytes, body: bytes) -> None:
    quick = redoma.connect("http://127.0.0.1", key="k").transport.connection().response_class
    assert quick is not http.client.HTTPResponse
    assert _as_read_by(quick, head + body) == _as_read_by(http.client.HTTPResponse, head + body)


def test_a_stream_and_an_asynchronous_run(client: redoma.Client) -> None:
    with client:
        with client.stream("for n in range(3): print(n, flush=True)") as run:
            assert "".join(text for _, text in run) == "0\n1\n2\n"
        assert run.result.ok
        id = client.submit("print('later')", idempotency_key="once")  # noqa: A001 - the run's own word
        assert client.submit("print('later')", idempotency_key="once") == id
        assert client.wait(id).stdout == "later\n"


def test_it_waits_for_a_person_and_a_person_answers(server: Serving, client: redoma.Client) -> None:
    maria = redoma.connect(server.url, key=server.made["maria"])

    def approve() -> None:
        for _ in range(1000):
            for ask in maria.approvals.list():
                if ask["label"] == "from the client":
                    maria.approvals.approve(ask["id"], reason="fine", digest=ask["digest"])
                    maria.close()
                    return
            time.sleep(0.1)

    helper = threading.Thread(target=approve)
    helper.start()
    with client:
        result = client.run("print('approved')", timeout=65, label="from the client")
    helper.join()
    assert result.stdout == "approved\n"
    assert result.approval is not None
    assert result.approval.approver == "key:maria"


async def test_the_same_on_an_event_loop(server: Serving) -> None:
    async with redoma.connect(server.url, key=server.made["boss"]).asynchronous as boss:
        results = await asyncio.gather(*(boss.run(f"{n} * 2") for n in range(4)))
        assert [result.value for result in results] == [0, 2, 4, 6]
        made = await boss.run("touch fresh.txt", "bash", workspace="overlay", project="app")
        assert made.effect is not None
        assert [change["id"] for change in await boss.changes.list()].count(made.id) == 1
        assert (await boss.changes.discard(made.id))["state"] == "discarded"


def test_the_command_line_runs_there(server: Serving, tmp_path: Path) -> None:
    env = {**os.environ, "REDOMA_KEY": server.made["agent"]}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAM), "--server", server.url, "run", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    done = call("print('over there'); import sys; sys.exit(3)")
    assert (done.stdout, done.returncode) == ("over there\n", 3)
    assert call("1 + 1").stdout == "2\n"
    assert "which is empty: add -i to pass it on" in call("input()").stderr
    made = call("import os; os.mkdir('out'); open('out/a', 'w').write('A'); None", "-o", "out", "-o", "b")
    assert (made.returncode, (Path("out") / "a").read_text()) == (1, "A")
    assert "missing: b: the run made no such file" in made.stderr
    assert '"backend": "jail"' in call("--json", "1").stdout.replace('"backend":"jail"', '"backend": "jail"')
    env["REDOMA_KEY"] = "rdm_wrong"
    refused = call("1")
    assert (refused.returncode, "this key is not accepted" in refused.stderr) == (125, True)


def test_args_are_refused_with_a_command_as_by_the_library(client: redoma.Client) -> None:
    with pytest.raises(redoma.InvalidRequest) as here:
        redoma.command(["echo", "a"], args=["b"])
    with client, client.session() as session:
        for command in (client.command, session.command, session.stream_command):
            with pytest.raises(redoma.InvalidRequest) as there:
                command(["echo", "a"], args=["b"])
            assert str(there.value) == str(here.value)
        assert client.run("import sys; print(sys.argv[1:])", args=["b"]).stdout == "['b']\n"


def test_a_display_there_is_still_marked_as_the_value_here(client: redoma.Client) -> None:
    code = "class Shown:\n    def _repr_html_(self): return '<b>x</b>'\nShown()"
    with client, client.session() as session:
        assert [display.is_value for display in session.run(code).displays] == [True]
        with session.stream(code) as run:
            assert [event.is_value for event in run if isinstance(event, redoma.Display)] == [True]


async def test_a_session_that_is_closed_while_it_opens_is_ended_there(
    server: Serving, client: redoma.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, request = threading.Event(), client.request

    def slow(method: str, path: str, *rest: Any, **options: Any) -> Any:
        asked.set()
        time.sleep(0.3 if method == "POST" else 0)
        return request(method, path, *rest, **options)

    monkeypatch.setattr(client, "request", slow)
    session = client.asynchronous.session(label="closed while it opens")
    opening = asyncio.create_task(session.open())
    assert await asyncio.to_thread(asked.wait, 10)
    await session.aclose()
    await opening
    with client:
        assert not [each for each in client.sessions() if each["label"] == "closed while it opens"]
