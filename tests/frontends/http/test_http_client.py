"""A service used from Python, and from the command line, as if it were here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

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
        with pytest.raises(redoma.InvalidRequest, match="no address"):
            redoma.connect("localhost:8800", key="k")
    with redoma.connect(server.url, key="rdm_wrong") as stranger:
        with pytest.raises(redoma.ServiceError, match="needs a key") as refused:
            stranger.run("1")
        assert refused.value.status == 401
    with pytest.raises(redoma.ServiceError, match="can't be reached"):
        redoma.connect("http://127.0.0.1:1", key="k").run("1")


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
    assert '"backend": "jail"' in call("--json", "1").stdout.replace('"backend":"jail"', '"backend": "jail"')
    env["REDOMA_KEY"] = "rdm_wrong"
    refused = call("1")
    assert (refused.returncode, "needs a key" in refused.stderr) == (125, True)
