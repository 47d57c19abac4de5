"""What was accepted is accounted for: after a kill, a restart, a retry, and when there is too much of it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from serving import Serving

ONE = "server: {running: 1}\n"


def test_after_a_kill_each_accepted_run_is_finished_or_reported_interrupted_and_none_ran_twice(
    serve: Callable[..., Serving],
) -> None:
    server = serve(ONE)
    server.key("auditor", "audit")
    slow = server.ask("POST", "/v1/runs/async", {"code": "import time; time.sleep(20)"}).json["id"]
    server.until(slow, "running")
    queued = [server.ask("POST", "/v1/runs/async", {"code": f"print({n})"}).json["id"] for n in range(3)]
    secret = {"code": "import os; print(len(os.environ['T']))", "secrets": {"T": "a-secret-of-mine"}}
    with_secret = server.ask("POST", "/v1/runs/async", secret).json["id"]
    server.kill()
    server.start()
    assert server.until(slow, "interrupted")["note"] == "the server ended while it ran"
    assert server.until(with_secret, "interrupted")["note"].endswith("its secrets were not kept")
    for number, run in enumerate(queued):
        assert server.until(run, "done")["result"]["stdout"] == f"{number}\n"
    records = server.ask("GET", "/v1/audit/runs?limit=500", key="auditor").json["runs"]
    ids = [record["id"] for record in records]
    assert sorted(ids) == sorted(set(ids))
    assert {slow, *queued} == set(ids)  # what was never begun, with the secret, is not there
    assert b"a-secret-of-mine" not in (server.state / "service.db").read_bytes()


def test_a_second_kill_finds_everything_accounted_for(serve: Callable[..., Serving]) -> None:
    server = serve(ONE)
    ids = [server.ask("POST", "/v1/runs/async", {"code": "import time; time.sleep(0.2)"}).json["id"] for _ in range(8)]
    for _ in range(2):
        time.sleep(0.6)
        server.kill()
        server.start()
    states = [server.until(run, "done", "interrupted")["state"] for run in ids]
    assert states.count("interrupted") <= 2
    assert states.count("done") >= 6


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_run_that_ends_while_the_disk_is_full_is_stored_when_there_is_room_again(tmp_path: Path) -> None:
    state = tmp_path / "home" / "state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", str(state)], check=True)
    server = Serving(tmp_path / "home")
    server.key("agent", "run")
    try:
        server.start()
        run = server.ask("POST", "/v1/runs/async", {"code": "import time; time.sleep(1)"}).json["id"]
        server.until(run, "running")
        with suppress(OSError), (state / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        refused = server.ask("POST", "/v1/runs/async", {"code": "1"})
        assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
        assert server.ask("GET", "/ready", key=None).status == 503
        time.sleep(2)  # the run ends meanwhile
        (state / "filler").unlink()
        server.until(run, "done")
        deadline = time.monotonic() + 60
        while server.ask("GET", "/ready", key=None).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        server.kill()
        server.start()
        assert server.until(run, "done", "interrupted")["state"] == "done"
        assert server.run("print(1)")["status"] == "ok"
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()
        subprocess.run(["umount", str(state)], check=True)


def test_an_idempotency_key_runs_once(serve: Callable[..., Serving]) -> None:
    server = serve()
    headers = {"Idempotency-Key": "abc-1"}
    body = {"code": "import time, uuid; time.sleep(0.3); print(uuid.uuid4())"}

    def ask(_: int) -> str:
        answer = server.ask("POST", "/v1/runs", body, headers=headers)
        assert answer.status == 200
        return str(answer.json["stdout"])

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    server.kill()
    server.start()
    assert ask(0) == ask(1)  # after a restart too
    other = server.ask("POST", "/v1/runs", {"code": "2"}, headers=headers)
    assert (other.status, "another request" in other.json["error"]) == (409, True)
    bad = server.ask("POST", "/v1/runs", body, headers={"Idempotency-Key": "a b"})
    assert bad.status == 422


def test_a_full_queue_says_when_to_try_again(serve: Callable[..., Serving]) -> None:
    server = serve("server: {running: 1, queue: 2}\n")
    first = server.ask("POST", "/v1/runs/async", {"code": "import time; time.sleep(20)"}).json["id"]
    server.until(first, "running")
    answers = [server.ask("POST", "/v1/runs/async", {"code": "1"}) for _ in range(4)]
    assert [answer.status for answer in answers] == [202, 202, 429, 429]
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert server.ask("POST", "/v1/runs", {"code": "1"}).status == 429
    server.ask("POST", f"/v1/runs/{first}/cancel")
    assert server.until(answers[1].json["id"], "done")


def test_stopping_lets_runs_end_and_keeps_what_is_queued(serve: Callable[..., Serving]) -> None:
    server = serve("server: {running: 1, drain: 60}\n")
    for seconds in (1, 5, 20):  # until it is stopped while the first one runs
        code = f"import time; time.sleep({seconds}); print('ended')"
        running = server.ask("POST", "/v1/runs/async", {"code": code}).json["id"]
        server.until(running, "running")
        queued = server.ask("POST", "/v1/runs/async", {"code": "print('later')"}).json["id"]
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(server.stop)
            assert stopping.result() == 0
        with sqlite3.connect(server.state / "service.db") as db:
            states = dict(db.execute("SELECT id, state FROM runs").fetchall())
        db.close()
        if states[queued] == "queued":
            break
        server.start()
    assert (states[running], states[queued]) == ("done", "queued")
    server.start()
    assert server.until(queued, "done")["result"]["stdout"] == "later\n"


def test_stopping_cancels_what_does_not_end(serve: Callable[..., Serving]) -> None:
    server = serve("server: {drain: 0}\n")
    running = server.ask("POST", "/v1/runs/async", {"code": "import time; time.sleep(20)"}).json["id"]
    server.until(running, "running")
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 15
    server.start()
    found = server.until(running, "interrupted")
    assert found["note"] == "the server was stopped while it ran"


def test_two_services_do_not_share_a_state_directory(
    serve: Callable[..., Serving], redoma_command: Callable[..., object]
) -> None:
    server = serve()
    second = Serving(server.home)
    try:
        second.start()
    except AssertionError as error:
        assert "another one runs with the same state directory" in str(error)  # noqa: PT017 - what it said
    else:
        second.stop()
        raise AssertionError("two services ran at once")
