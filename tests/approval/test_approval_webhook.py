"""Whoever is to be told is told, but of no secret, and can neither hold a request up nor lead it elsewhere."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from approval_stage import Stage, case_of, effect_of

from listening import Listener
from redoma.approval import Gate
from redoma.approval import webhook as webhook_module
from redoma.approval.store import open_store
from redoma.approval.webhook import webhook
from redoma.lib.errors import ApprovalError
from redoma.models import Status


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "SECONDS", 60.0)  # our own thread answers, and may get no processor for a while


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize("wait", [True, False])
async def test_a_new_question_is_posted_once(stage: Stage, listener: Listener, wait: bool) -> None:
    gate = stage.gate(stage.approving, notify=webhook(listener.url))
    verdict = await gate.ask(case_of(effect=effect_of(), label="check"), wait=wait)
    if not wait:
        assert (await gate.ask(case_of(effect=effect_of(), label="check"), wait=False)).id == verdict.id
    (told,) = listener.posted
    assert (told["id"], told["requester"], told["reason"], told["label"]) == (verdict.id, "ana", "to test", "check")
    assert told["text"] == "pip install requests"
    assert told["changes"] == [{"kind": "added", "path": "a.txt"}]
    assert told["risks"][0]["rule"]


async def test_no_secret_is_posted(stage: Stage, listener: Listener) -> None:
    key = "AKIA" + "IOSFODNN7EXAMPLQ"
    case = case_of(f"pip install a # {key} \x1b[2J", reason=key, secrets={"TOKEN": "s3cr3t-value"}, env={"B": "in-env"})
    await stage.gate(stage.approving, notify=webhook(listener.url)).ask(case)
    text = json.dumps(listener.posted)
    assert "TOKEN" in text
    for secret in (key, "s3cr3t-value", "in-env", "\\u001b"):
        assert secret not in text


@pytest.mark.parametrize("status", [404, 500])
async def test_one_that_fails_is_logged_and_the_question_stands(
    stage: Stage, listener: Listener, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    listener.status = status
    with caplog.at_level(logging.WARNING):
        verdict = await stage.gate(stage.approving, notify=webhook(listener.url)).ask(case_of(), wait=False)
    assert verdict.status is Status.PENDING
    assert str(status) in caplog.text


async def test_nobody_there_is_logged_and_the_question_stands(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        notify = webhook(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        assert (await stage.gate(stage.approving, notify=notify).ask(case_of())).status is None
    assert "approval.webhook.failed error=ConnectionRefusedError" in caplog.text


async def test_one_who_never_answers_holds_nothing_up(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        notify = webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        assert (await stage.gate(stage.approving, notify=notify).ask(case_of())).status is None
    assert "approval.webhook.failed error=TimeoutError" in caplog.text


async def test_whoever_answers_there_does_not_decide_where_it_is_posted(
    stage: Stage, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    listener.status, listener.location = 302, listener.url + "/elsewhere"
    await stage.gate(stage.approving, notify=webhook(listener.url)).ask(case_of())
    assert listener.paths == ["/hook"]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.com", "", "/etc/passwd"])
def test_only_the_web_is_posted_to(url: str) -> None:
    with pytest.raises(ApprovalError, match="not an http or https URL"):
        webhook(url)


async def test_the_configured_one_is_told(stage: Stage, listener: Listener) -> None:
    settings: dict[str, Any] = {"timeout": 60, "expires": 60, "separate": False, "webhook": listener.url}
    gate = Gate.configured(open_store(stage.path.parent), stage.ledger.audit, user="bob", approver="queue", **settings)
    verdict = await gate.ask(case_of(), wait=False)
    assert [told["id"] for told in listener.posted] == [verdict.id]
