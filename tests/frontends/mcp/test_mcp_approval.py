"""What needs a person: asked in the client, bound to the digest that was shown; or left for `redoma approvals`."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_places import ERAS, PROGRAM, Local, environment, over_http, text
from mcp_types import ElicitRequestFormParams, ElicitResult, InputRequiredResult, InputResponses

from redoma.approval import Ledger, LedgerEntry
from redoma.approval.store import open_store
from redoma.pipeline.intake import user
from serving import Serving

RISKY = {"code": "print('it ran')", "timeout": 90.0, "reason": "it takes long"}
"""Policy wants a person to approve what may take longer than a minute."""


class Person:
    """Answers what a client shows."""

    def __init__(self, answer: ElicitResult) -> None:
        self.answer, self.read = answer, list[str]()

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.read.append(params.message)
        return self.answer


YES = ElicitResult(action="accept", content={"approve": True, "reason": "looks fine"})
NO = ElicitResult(action="accept", content={"approve": False, "reason": "not today"})


def entries(local: Local) -> list[LedgerEntry]:
    ledger = Ledger(open_store(local.state), lambda kind, run, data: None)
    return ledger.entries("open", "approved", "denied", "expired", "used")


@pytest.mark.parametrize("era", ERAS)
async def test_a_yes_in_the_client_lets_exactly_what_was_shown_run_once(era: str, tmp_path: Path) -> None:
    local, person = Local(tmp_path / "home"), Person(YES)
    async with local.client(era, elicitation_callback=person) as client:
        ran = await client.call_tool("run_python", RISKY)
        assert (ran.structured_content["status"], ran.structured_content["stdout"]) == ("ok", "it ran\n")
        (entry,) = entries(local)
        assert (entry.state, entry.uses) == ("used", 1)
        assert entry.approval is not None
        assert entry.approval.approver == user()
        assert "looks fine" in entry.approval.reason
        assert entry.ask.requester == "mcp:test-client"
        assert entry.ask.digest in person.read[0]
        assert "print('it ran')" in person.read[0]
        await client.call_tool("run_python", RISKY)  # an approval is good for one run
        assert len(person.read) == 2
        opened = (await client.call_tool("session_open", {})).structured_content["session_id"]
        in_session = {**RISKY, "code": "x = 1; x", "session_id": opened}
        assert (await client.call_tool("run_python", in_session)).structured_content["value"] == "1"
        assert opened in person.read[2]
        # What was done to a copy is approved as what it did.
        tried = await client.call_tool("try_command", {"command": "rm -rf ./*"})
        assert len(person.read) == 3
        applied = await client.call_tool("apply_changes", {"id": tried.structured_content["id"]})
    assert applied.structured_content["state"] == "applied", text(applied)
    assert "deleted" in person.read[3]
    assert "notes.txt" in person.read[3]
    assert not (local.project / "notes.txt").exists()


@pytest.mark.parametrize("era", ERAS)
async def test_without_a_yes_nothing_runs(era: str, tmp_path: Path) -> None:
    local, person = Local(tmp_path / "home"), Person(NO)
    async with local.client(era, elicitation_callback=person) as client:
        for answer in (NO, ElicitResult(action="decline"), ElicitResult(action="cancel")):
            person.answer = answer
            ended = await client.call_tool("run_python", RISKY)
            status = "pending" if answer.action == "cancel" else "denied"
            assert ended.structured_content["status"] == status
            assert entries(local)[-1].state == ("open" if status == "pending" else "denied")
            assert "it ran" not in text(ended)
            assert ("not today" in text(ended)) == (answer is NO)
    assert len(person.read) == 3
    assert {outcome["status"] for outcome in local.outcomes()} == {"pending"}


async def test_an_answer_to_one_question_is_none_to_another(tmp_path: Path) -> None:
    """In the stateless era the client holds the state of a question: it is sealed, and for one call only."""
    local = Local(tmp_path / "home")
    async with local.client("2026-07-28", elicitation_callback=Person(YES)) as client:
        asked = await client.session.call_tool("run_python", RISKY, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        assert asked.input_requests is not None
        answers: InputResponses = dict.fromkeys(asked.input_requests, YES)
        other = {**RISKY, "code": "print('something else')"}
        with pytest.raises(MCPError):
            await client.session.call_tool(
                "run_python", other, input_responses=answers, request_state=asked.request_state
            )
        # Without the state an answer is to no question at all, so it is asked again.
        again = await client.session.call_tool("run_python", other, input_responses=answers, allow_input_required=True)
        assert isinstance(again, InputRequiredResult)
        assert not [entry for entry in entries(local) if entry.state != "open"]
        right = await client.session.call_tool(
            "run_python", RISKY, input_responses=answers, request_state=asked.request_state
        )
        assert right.structured_content["stdout"] == "it ran\n"


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_ask_gets_the_id_and_goes_on_once_it_is_approved(era: str, tmp_path: Path) -> None:
    local = Local(tmp_path / "home")
    async with local.client(era) as client:
        waits = await client.call_tool("run_python", RISKY)
        assert not waits.is_error
        approval = waits.structured_content["approval"]
        assert f"redoma approvals approve {approval['id']}" in text(waits)
        assert (await client.call_tool("run_python", RISKY)).structured_content["approval"]["id"] == approval["id"]
        command = [PROGRAM, "approvals", "approve", approval["id"], "--reason", "fine"]
        await asyncio.to_thread(subprocess.run, command, env=environment(local), check=True, capture_output=True)
        assert (await client.call_tool("run_python", RISKY)).structured_content["stdout"] == "it ran\n"
        assert (await client.call_tool("run_python", RISKY)).structured_content["status"] == "pending"


@pytest.mark.parametrize("settings", ["approval: {approver: queue}", "approval: {approver: deny}"])
async def test_the_configuration_can_keep_the_client_from_being_asked(settings: str, tmp_path: Path) -> None:
    local, person = Local(tmp_path / "home", settings), Person(YES)
    async with local.client("legacy", elicitation_callback=person) as client:
        ended = await client.call_tool("run_python", RISKY)
    assert ended.structured_content["status"] == ("pending" if "queue" in settings else "denied")
    assert not person.read


@pytest.mark.parametrize("era", ERAS)
async def test_over_http_nobody_approves_their_own_request(era: str, server: Serving) -> None:
    person, risky = Person(YES), {**RISKY, "reason": f"http {era}"}
    async with over_http(server, era, "boss", elicitation_callback=person) as client:
        waits = await client.call_tool("run_python", risky)
        approval = waits.structured_content["approval"]["id"]
        assert not person.read
        path = f"/v1/approvals/{approval}/approve"
        own = server.ask("POST", path, {"reason": "me"}, key="boss")
        assert (own.status, own.json["error"]) == (403, "this key has asked for it itself")
        asked = server.ask("GET", f"/v1/approvals/{approval}", key="maria").json
        assert asked["requester"] == "key:boss mcp:mcp"
        assert server.ask("POST", path, {"reason": "ok"}, key="maria").status == 200
        ran = await client.call_tool("run_python", risky)
        assert ran.structured_content["stdout"] == "it ran\n"
        tried = await client.call_tool("try_command", {"command": "echo x > own.txt", "project": "app"})
        kept = tried.structured_content["id"]
        refused = await client.call_tool("apply_changes", {"id": kept})
        assert "two have to agree" in text(refused)
    assert server.ask("POST", f"/v1/changes/{kept}/apply", {}, key="boss").status == 403
    assert server.ask("POST", f"/v1/changes/{kept}/discard", key="boss").status == 200
