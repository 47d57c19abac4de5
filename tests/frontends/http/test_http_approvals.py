"""A person decides: over HTTP, with another key than the one that asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from redoma.approval import Ledger
from redoma.approval.store import open_store
from serving import Serving

RISKY = {"code": "print('approved run')", "limits": {"time": 90}, "reason": "it takes long"}


def asked(server: Serving, **more: Any) -> Any:
    answer = server.ask("POST", "/v1/runs", {**RISKY, **more})
    assert answer.status == 202, answer.body
    assert answer.json["status"] == "pending"
    return answer.json


def test_a_run_that_needs_approval_goes_on_once_another_key_has_approved(server: Serving) -> None:
    pending = asked(server, label="one")
    found = server.ask("GET", "/v1/approvals", key="maria").json["approvals"]
    ask = next(each for each in found if each["id"] == pending["approval_id"])
    assert (ask["requester"], ask["own"], ask["reason"]) == ("key:agent", False, "it takes long")
    shown = server.ask("GET", f"/v1/approvals/{ask['id']}", key="maria").json
    assert "print('approved run')" in shown["shown"]
    assert shown["findings"]
    path = f"/v1/approvals/{ask['id']}/approve"
    assert server.ask("POST", path, {"reason": "fine"}, key="agent").status == 403  # no scope
    assert server.ask("POST", path, {"reason": ""}, key="maria").status == 400
    assert server.ask("POST", path, {"reason": "x", "digest": "0" * 64}, key="maria").status == 409
    approved = server.ask("POST", path, {"reason": "fine", "digest": ask["digest"]}, key="maria")
    assert (approved.status, approved.json["approver"]) == (200, "key:maria")
    done = server.until(pending["id"], "done")
    assert (done["status"], done["result"]["stdout"]) == ("ok", "approved run\n")
    assert done["result"]["approval"]["approver"] == "key:maria"
    assert server.ask("POST", path, {"reason": "again"}, key="maria").status == 409


def test_the_output_of_an_approved_run_is_told_as_it_comes(server: Serving) -> None:
    code = "import time; print('early', flush=True); time.sleep(2)"
    pending = server.ask("POST", "/v1/runs", {"code": code, "limits": {"time": 91}}).json
    server.ask("POST", f"/v1/approvals/{pending['approval_id']}/approve", {"reason": "fine"}, key="maria")
    told = [
        (name, data.get("state") or data.get("text"))
        for name, data in server.events(f"/v1/runs/{pending['id']}/events")
    ]
    assert told.index(("output", "early\n")) < told.index(("state", "done"))


def test_the_key_that_asked_cannot_approve_even_if_it_has_the_scope(server: Serving) -> None:
    answer = server.ask("POST", "/v1/runs", {**RISKY, "label": "two"}, key="boss")
    path = f"/v1/approvals/{answer.json['approval_id']}/approve"
    refused = server.ask("POST", path, {"reason": "me"}, key="boss")
    assert (refused.status, refused.json["error"]) == (403, "this key has asked for it itself")
    assert server.ask("POST", path, {"reason": "ok"}, key="maria").status == 200
    server.until(answer.json["id"], "done", key="boss")


def test_a_denied_run_ends_denied_and_is_told_why(server: Serving) -> None:
    pending = asked(server, label="three")
    server.ask("POST", f"/v1/approvals/{pending['approval_id']}/deny", {"reason": "not today"}, key="maria")
    done = server.until(pending["id"], "done")
    assert done["status"] == "denied"
    assert "not today" in done["result"]["error"]


def test_a_run_that_waits_can_be_cancelled_and_then_not_be_approved(server: Serving) -> None:
    pending = asked(server, label="four")
    assert server.ask("POST", f"/v1/runs/{pending['id']}/cancel").json["state"] == "cancelled"
    path = f"/v1/approvals/{pending['approval_id']}/approve"
    assert server.ask("POST", path, {"reason": "late"}, key="maria").status == 409


def test_others_do_not_see_what_a_key_has_asked(server: Serving) -> None:
    pending = asked(server, label="five")
    assert server.ask("GET", f"/v1/approvals/{pending['approval_id']}", key="other").status == 404
    assert pending["approval_id"] not in server.ask("GET", "/v1/approvals?all=true", key="other").body.decode()
    assert server.ask("GET", f"/v1/approvals/{pending['approval_id']}", key="agent").json["own"]
    server.ask("POST", f"/v1/runs/{pending['id']}/cancel")


def test_one_approval_is_good_for_one_of_two_runs_of_the_same(server: Serving) -> None:
    first, second = asked(server, label="twice"), asked(server, label="twice")
    assert first["approval_id"] == second["approval_id"]
    server.ask("POST", f"/v1/approvals/{first['approval_id']}/approve", {"reason": "one"}, key="maria")
    over: list[Any] = []
    while not over:  # whichever of them comes first
        states = [server.ask("GET", f"/v1/runs/{run['id']}").json for run in (first, second)]
        over = [state for state in states if state["state"] == "done"]
    assert [state["status"] for state in over] == ["ok"]
    second = first if over[0]["id"] == second["id"] else second
    for _ in range(1000):
        again = server.until(second["id"], "waiting", "done", "queued", "running")
        if again["state"] == "waiting" and again["approval_id"] != first["approval_id"]:
            break
        time.sleep(0.05)
    assert again["state"] == "waiting"
    server.ask("POST", f"/v1/approvals/{again['approval_id']}/approve", {"reason": "two"}, key="maria")
    done = server.until(second["id"], "done")
    assert (done["status"], done["result"]["id"]) == ("ok", second["id"])


def test_what_waits_outlives_the_server_and_an_answer_from_elsewhere_counts(serve: Callable[..., Serving]) -> None:
    server = serve()
    pending = asked(server)
    server.kill()
    server.start()
    assert server.until(pending["id"], "waiting")["approval_id"] == pending["approval_id"]
    ledger = Ledger(open_store(server.state), lambda kind, run, data: None)
    ask = ledger.load(pending["approval_id"]).ask
    now = datetime.now(UTC)
    ledger.answer(
        ask.answer("approved", approver="somebody", reason="by hand", at=now, expires=now + timedelta(hours=1))
    )
    assert server.until(pending["id"], "done")["result"]["stdout"] == "approved run\n"


OVERLAY = {"language": "bash", "workspace": "overlay", "project": "app"}


def test_changes_are_looked_at_and_applied_by_another_key(server: Serving) -> None:
    project = server.home / "project"
    run = server.run("echo three >> notes.txt; echo new > new.txt", **OVERLAY)
    assert run["effect"]["project"] == "app"
    assert (project / "notes.txt").read_text() == "one\ntwo\n"
    shown = server.ask("GET", f"/v1/changes/{run['id']}").json
    assert "+three" in shown["effect"]["changes"][1]["diff"]
    assert str(project) not in str(shown)
    assert server.ask("GET", f"/v1/changes/{run['id']}", key="other").status == 404
    assert server.ask("POST", f"/v1/changes/{run['id']}/apply", {}, key="agent").status == 403
    applied = server.ask("POST", f"/v1/changes/{run['id']}/apply", {}, key="maria")
    assert (applied.status, applied.json["state"]) == (200, "applied"), applied.body
    assert (project / "notes.txt").read_text() == "one\ntwo\nthree\n"
    undone = server.ask("POST", f"/v1/changes/{run['id']}/undo", key="maria")
    assert undone.json["state"] == "undone"
    assert (project / "notes.txt").read_text() == "one\ntwo\n"
    assert not (project / "new.txt").exists()


def test_who_made_changes_may_drop_them_and_not_apply_them(server: Serving) -> None:
    made = server.ask("POST", "/v1/runs", {"code": "rm old.txt", **OVERLAY}, key="boss").json
    assert server.ask("POST", f"/v1/changes/{made['id']}/apply", {}, key="boss").status == 403
    assert server.ask("POST", f"/v1/changes/{made['id']}/discard", key="other").status == 404
    assert server.ask("POST", f"/v1/changes/{made['id']}/discard", key="boss").json["state"] == "discarded"
    assert (server.home / "project" / "old.txt").exists()
    listed = server.ask("GET", "/v1/changes", key="auditor").json["changes"]
    assert made["id"] in [each["id"] for each in listed]


def test_a_destructive_change_is_applied_after_its_effect_was_approved(server: Serving) -> None:
    made = server.run("rm -rf ./*", **OVERLAY)
    waits = server.ask("POST", f"/v1/changes/{made['id']}/apply", {}, key="maria")
    if waits.status == 200:  # policy allows it in an overlay
        server.ask("POST", f"/v1/changes/{made['id']}/undo", key="maria")
        return
    assert waits.status == 409
    ask = server.ask("GET", "/v1/approvals", key="maria").json["approvals"][-1]
    effect = server.ask("GET", f"/v1/approvals/{ask['id']}", key="maria").json["effect"]
    assert {change["path"] for change in effect["changes"]} >= {"notes.txt", "old.txt"}
    server.ask("POST", f"/v1/approvals/{ask['id']}/approve", {"reason": "seen"}, key="maria")
    assert server.ask("POST", f"/v1/changes/{made['id']}/apply", {}, key="maria").json["state"] == "applied"
    assert not (Path(server.home) / "project" / "old.txt").exists()
    assert server.ask("POST", f"/v1/changes/{made['id']}/undo", key="maria").json["state"] == "undone"
