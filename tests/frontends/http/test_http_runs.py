"""Runs over HTTP are the library's runs: one result, streamed, cancelled, listed."""

from __future__ import annotations

import base64
import http.client
import json
import time

import pytest

from serving import Serving


def test_a_run_answers_with_its_result(server: Serving) -> None:
    answer = server.ask("POST", "/v1/runs", {"code": "print(6 * 7); 'v'"})
    assert answer.status == 200
    result = answer.json
    assert (result["status"], result["stdout"], result["value"], result["backend"]) == ("ok", "42\n", "v", "jail")
    assert result["evaluation"]["decision"] == "allow"
    assert "seccomp" in result["isolation"]["layers"]
    assert b"/sys/fs" not in answer.body  # no path of the host


def test_files_go_in_and_come_back(server: Serving) -> None:
    data = base64.b64encode(b"\x00\xff").decode()
    code = "open('out.bin', 'wb').write(open('in.bin', 'rb').read() * 2); print(open('a.txt').read(), input())"
    files = {"in.bin": {"base64": data}, "a.txt": "olá"}
    result = server.run(code, files=files, outputs=["*.bin"], stdin="said")
    assert result["stdout"] == "olá said\n"
    assert base64.b64decode(result["files"]["out.bin"]) == b"\x00\xff\x00\xff"


def test_a_command_and_bash_run_too(server: Serving) -> None:
    body = {"argv": ["echo", "$HOME"], "language": "command"}
    assert server.ask("POST", "/v1/runs", body).json["stdout"] == "$HOME\n"
    assert server.run("echo $1", language="bash", argv=["x"])["stdout"] == "x\n"
    assert server.run("console.log(6 * 7)", language="javascript")["stdout"] == "42\n"


def test_what_the_code_does_wrong_is_no_error_of_http(server: Serving) -> None:
    result = server.run("1 / 0")
    assert (result["status"], result["exception"]) == ("error", "ZeroDivisionError")
    assert server.run("while True: pass", limits={"time": 0.3})["status"] == "timeout"


def test_a_stream_tells_output_as_it_comes(server: Serving) -> None:
    for seconds in (0.1, 1, 5):  # until two pieces are not read at once
        code = f"import time\nfor n in range(3): print(n, flush=True); time.sleep({seconds})"
        events = list(server.events("/v1/runs/stream", {"code": code}))
        if [name for name, _ in events].count("output") > 1:
            break
    assert "".join(data["text"] for name, data in events if name == "output") == "0\n1\n2\n"
    assert len([name for name, _ in events if name == "output"]) > 1
    assert events[-1][0] == "result"
    assert events[-1][1]["status"] == "ok"


def test_who_follows_a_run_after_its_end_is_told_the_same(server: Serving) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); display('shown'); 6 * 7"
    live = list(server.events("/v1/runs/stream", {"code": code}))
    late = list(server.events(f"/v1/runs/{live[0][1]['id']}/events"))
    for events in (live, late):
        said = [(data["stream"], data["text"]) for name, data in events if name == "output"]
        assert sorted(said) == [("stderr", "err\n"), ("stdout", "out\n")]
        assert [data["data"] for name, data in events if name == "display"] == [{"text/plain": "'shown'"}]
    assert late[-1] == live[-1]


def test_an_asynchronous_run_has_an_id_at_once_and_a_result_later(server: Serving) -> None:
    answer = server.ask("POST", "/v1/runs/async", {"code": "print('late')", "label": "nightly"})
    assert answer.status == 202
    accepted = answer.json
    assert answer.headers["Location"] == f"/v1/runs/{accepted['id']}"
    found = server.until(accepted["id"], "done")
    assert found["result"]["stdout"] == "late\n"
    assert found["result"]["id"] == accepted["id"]
    assert (found["title"], found["key"], found["mode"]) == ("nightly", "agent", "async")
    assert list(server.events(f"/v1/runs/{accepted['id']}/events"))[-1][1]["stdout"] == "late\n"


def test_a_run_is_cancelled_and_nothing_of_it_goes_on(server: Serving) -> None:
    long = {"code": "import time; time.sleep(55)", "limits": {"time": 60}}
    accepted = server.ask("POST", "/v1/runs/async", long).json
    server.until(accepted["id"], "running")
    began = time.monotonic()
    cancelled = server.ask("POST", f"/v1/runs/{accepted['id']}/cancel").json
    assert (cancelled["state"], cancelled["note"]) == ("cancelled", "it was cancelled by agent")
    assert time.monotonic() - began < 40
    again = server.ask("POST", f"/v1/runs/{accepted['id']}/cancel")
    assert (again.status, again.json["state"]) == (200, "cancelled")


def test_a_run_whose_caller_goes_away_ends(server: Serving) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"Authorization": f"Bearer {server.made['agent']}"}
    body = {"code": "import time; time.sleep(55)", "limits": {"time": 60}, "label": "left alone"}
    connection.request("POST", "/v1/runs", json.dumps(body), headers)
    deadline = time.monotonic() + 45
    while not (found := _labelled(server, "left alone")) or found["state"] != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    connection.close()
    ended = server.until(found["id"], "cancelled", "done")
    assert (ended["state"], ended["note"]) == ("cancelled", "its caller went away")


def _labelled(server: Serving, label: str) -> dict[str, str] | None:
    runs = server.ask("GET", "/v1/runs?limit=20").json["runs"]
    return next((run for run in runs if run["title"] == label), None)


def test_runs_are_listed_newest_first_in_pages(server: Serving) -> None:
    for number in range(3):
        server.run(f"{number}", label=f"page-{number}")
    first = server.ask("GET", "/v1/runs?limit=2").json
    second = server.ask("GET", f"/v1/runs?limit=2&before={first['next']}").json
    titles = [run["title"] for run in first["runs"] + second["runs"]]
    assert titles[:3] == ["page-2", "page-1", "page-0"]


def test_policy_is_asked_without_running(server: Serving) -> None:
    body = {"code": "rm -rf /", "language": "bash", "policy": "strict"}
    verdict = server.ask("POST", "/v1/policy/check", body).json
    assert verdict["decision"] == "forbid"
    assert verdict["findings"][0]["reason"]
    assert server.ask("POST", "/v1/policy/check", {"code": "1 + 1"}).json["decision"] == "allow"


def test_whoever_runs_may_check_by_another_policy_and_not_run_by_it(server: Serving) -> None:
    """Packs are published with Redoma; a name that is no pack is not looked for on this host."""
    lax = {"code": "rm -rf build", "language": "bash", "policy": "none"}
    assert server.ask("POST", "/v1/policy/check", lax).status == 200
    refused = server.ask("POST", "/v1/runs", lax)
    assert refused.status == 403
    assert "choosing a policy" in refused.json["why"]
    own = str(server.home / "redoma.yaml")
    for name in (own, "../standard", "/etc/passwd", ""):
        said = server.ask("POST", "/v1/policy/check", {"code": "1", "policy": name})
        assert said.status == 422, name
        assert "/etc" not in said.body.decode()
        assert str(server.home) not in said.body.decode()


def test_the_record_is_searched_and_verified(server: Serving) -> None:
    server.run("print('needle-in-the-record')")
    found = server.ask("GET", "/v1/audit/runs?text=needle-in-the-record", key="auditor").json["runs"]
    assert [(run["requester"], run["status"]) for run in found] == [("key:agent", "ok")]
    status = server.ask("GET", "/v1/audit/verify", key="auditor").json
    assert status["ok"]
    assert status["records"] > 1
    wrong = server.ask("GET", f"/v1/audit/verify?head={'f' * 64}", key="auditor").json
    assert (wrong["ok"], wrong["problem"][:9]) == (False, "rewritten")


def test_the_server_says_how_it_is(server: Serving) -> None:
    assert server.ask("GET", "/health", key=None).json["status"] == "ok"
    assert server.ask("GET", "/ready", key=None).status == 200
    server.run("1")
    metrics = server.ask("GET", "/metrics", key="auditor").body.decode()
    assert 'redoma_runs_total{backend="jail"' in metrics
    assert "redoma_service_slots" in metrics


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "can't be read"),
        (b"", 400, "can't be read"),
        ({"code": 1}, 400, "code"),
        ({"cde": "1"}, 400, "cde"),
        ({"code": "1", "backend": "native"}, 400, "backend"),
        ({"code": "1", "workspace": "direct"}, 400, "workspace"),
        ({"code": "1", "cwd": "/"}, 400, "cwd"),
        ({"code": ""}, 422, "nothing to run"),
        ({"argv": [], "language": "command"}, 422, "argument vector"),
        ({"code": "1", "limits": {"time": 10**9}}, 422, "allows 200 at most"),
        ({"code": "1", "limits": {"memory": "1TiB"}}, 422, "at most"),
        ({"code": "1", "limits": {"memory": "much"}}, 422, "not a size"),
        ({"code": "1", "files": {"../x": ""}}, 422, "plain relative path"),
        ({"code": "1", "files": {"x": {"base64": "!"}}}, 400, "base64"),
        ({"code": "1", "outputs": ["/etc/*"]}, 422, "bring back"),
        ({"code": "1", "workspace": "overlay", "project": "/etc"}, 422, "offers app"),
        ({"code": "1", "env": {"A=B": "c"}}, 422, "variable"),
        ({"code": "1", "expect": "xml"}, 422, "expect"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_why(server: Serving, body: object, status: int, says: str) -> None:
    answer = server.ask("POST", "/v1/runs", body)
    assert answer.status == status
    assert says in answer.body.decode()
    assert str(server.home) not in answer.body.decode()
