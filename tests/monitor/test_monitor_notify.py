"""Somebody is told of each change, once, and of one that nobody took until somebody does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from after_stage import CRITICAL, NOON, OK, UNKNOWN, WARNING, Place, found
from monitor_stage import patient as patient
from patience import PROGRAM, GivesUpOn

from listening import Listener
from redoma.lib.errors import StoreError
from redoma.monitor import actions
from redoma.monitor.model import Check, CommandNotifier, Notifier, WebhookNotifier


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def ops(listener: Listener, **options: Any) -> dict[str, Notifier]:
    return {"ops": WebhookNotifier(url=listener.url, **options)}


def events(listener: Listener) -> list[tuple[str, str, str]]:
    return [(told["event"], told["was"], told["state"]) for told in listener.posted]


async def test_each_change_is_told_once_with_its_recovery(place: Place, listener: Listener) -> None:
    responder = place.responder(notify=ops(listener))
    for second, state in enumerate([OK, OK, WARNING, WARNING, CRITICAL, UNKNOWN, OK, OK]):
        await responder.respond(found(state, NOON + second, "89 % full"))
    assert events(listener) == [
        ("problem", "ok", "warning"),
        ("change", "warning", "critical"),
        ("change", "critical", "unknown"),
        ("recovery", "unknown", "ok"),
    ]
    told = listener.posted[0]
    assert (told["host"], told["check"], told["message"]) == ("web-1", "disk", "89 % full")
    assert (told["since"], told["time"]) == ("2026-01-01T12:00:02+00:00", "2026-01-01T12:00:02+00:00")
    assert [action.text for action in place.history.actions(0)][-1] == "sent: ok again"


async def test_who_wants_no_recovery_is_told_of_the_next_problem_even_so(place: Place, listener: Listener) -> None:
    responder = place.responder(notify=ops(listener, recovery=False))
    for second, state in enumerate([CRITICAL, OK, OK, CRITICAL]):
        await responder.respond(found(state, NOON + second))
    assert events(listener) == [("problem", "ok", "critical")] * 2


async def test_what_lasts_is_told_again_after_a_while(place: Place, listener: Listener) -> None:
    responder = place.responder(notify=ops(listener, repeat=3600))
    for minutes in (0, 30, 59, 60, 61, 120):
        await responder.respond(found(CRITICAL, NOON + 60 * minutes))
    assert [told["event"] for told in listener.posted] == ["problem", "repeat", "repeat"]
    assert len({told["id"] for told in listener.posted}) == 3
    assert {told["since"] for told in listener.posted} == {"2026-01-01T12:00:00+00:00"}


async def test_a_restart_neither_repeats_nor_forgets(tmp_path: Path, listener: Listener) -> None:
    for second, state in enumerate([CRITICAL, CRITICAL, OK, OK]):
        await Place(tmp_path).responder(notify=ops(listener, repeat=3600)).respond(found(state, NOON + second))
    assert [told["event"] for told in listener.posted] == ["problem", "recovery"]


async def test_only_those_whom_a_check_names_are_told(place: Place, listener: Listener) -> None:
    both = {**ops(listener), "log": WebhookNotifier(url=listener.url + "/log")}
    checks = [
        Check(name="disk", rule="", notify=("log",)),
        Check(name="web", rule=""),
        Check(name="x", rule="", notify=()),
    ]
    await place.responder(*checks, notify=both).respond(found({"disk": CRITICAL, "web": CRITICAL, "x": CRITICAL}))
    told = sorted((path, told["check"]) for path, told in zip(listener.paths, listener.posted, strict=True))
    assert told == [("/hook", "web"), ("/hook/log", "disk"), ("/hook/log", "web")]


async def test_one_that_fails_is_shown_and_told_again_until_it_is_taken(place: Place, listener: Listener) -> None:
    responder = place.responder(notify=ops(listener))
    listener.status = 500
    seen = await responder.respond(found(CRITICAL))
    assert [(action.ok, "500" in action.text) for action in seen.actions] == [(False, True)]
    listener.status = 204
    seen = await responder.respond(found(CRITICAL, NOON + 1))
    assert [action.ok for action in seen.actions] == [True]
    assert not (await responder.respond(found(CRITICAL, NOON + 2))).actions
    first, second = listener.posted
    assert first["id"] == second["id"]  # by which a receiver knows that it is the same
    assert [action.ok for action in place.history.actions(0)] == [False, True]


async def test_a_history_that_fails_halfway_neither_loses_nor_doubles_a_notice(
    place: Place, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise StoreError("it can't be written", why="the disk is full", next="make room")

    both = {**ops(listener), "log": WebhookNotifier(url=listener.url + "/log")}
    responder = place.responder(notify=both)
    with monkeypatch.context() as broken:
        broken.setattr(place.history, "record_notice", full)
        seen = await responder.respond(found(CRITICAL))
    assert "the disk is full" in seen.problems["history"]
    assert sorted(action.name for action in seen.actions) == ["log", "ops"]
    assert sorted(listener.paths) == ["/hook", "/hook/log"]
    assert not (await responder.respond(found(CRITICAL, NOON + 1))).actions  # the history has older rows, or none
    assert len(listener.posted) == 2


async def test_nobody_is_led_elsewhere(place: Place, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    listener.status, listener.location = 302, listener.url + "/elsewhere"
    seen = await place.responder(notify=ops(listener)).respond(found(CRITICAL))
    assert listener.paths == ["/hook"]
    assert not seen.actions[0].ok


async def test_one_that_hangs_holds_nobody_up_and_is_shown(place: Place, listener: Listener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hung = WebhookNotifier(url=f"http://127.0.0.1:{silent.getsockname()[1]}/")
        responder = place.responder(notify={"hung": hung, **ops(listener)})
        responder._calls = GivesUpOn("hung disk", 0.2)
        seen = await responder.respond(found(CRITICAL))
    assert {action.name: action.ok for action in seen.actions} == {"ops": True, "hung": False}
    assert len(listener.posted) == 1


async def test_one_that_answers_a_byte_at_a_time_is_given_up_too_and_gets_no_second_connection(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "NOTICE_SECONDS", 0.3)
    stop = threading.Event()

    def drip(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            while not stop.wait(0.05):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        slow = WebhookNotifier(url=f"http://127.0.0.1:{server.getsockname()[1]}/")
        responder = place.responder(notify={"slow": slow})
        try:
            seen = [await responder.respond(found(CRITICAL, NOON + second)) for second in range(2)]
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        finally:
            stop.set()
            thread.join()
    assert "has not answered within 0.3 s" in seen[0].actions[0].text
    assert "still hangs" in seen[1].actions[0].text


async def test_no_secret_and_no_escape_sequence_is_told(place: Place, listener: Listener) -> None:
    key = "AKIA" + "IOSFODNN7EXAMPLQ"
    await place.responder(notify=ops(listener)).respond(found(CRITICAL, message=f"\x1b[2J{key} \u202e" + "x" * 10_000))
    text = json.dumps(listener.posted)
    assert key not in text
    assert "\\u001b" not in text
    assert "\\u202e" not in text
    assert len(text) < 6000


# --- by a command ---

NOTE = "tee -a notices.json"


def by_command(command: str = NOTE) -> dict[str, Notifier]:
    return {"log": CommandNotifier(run="ops:shell", command=command)}


async def test_a_listed_command_gets_the_notice_on_its_input(tmp_path: Path) -> None:
    place = Place(tmp_path, whitelist=[NOTE])
    await place.responder(notify=by_command()).respond(found(CRITICAL, message="full"))
    told = json.loads((tmp_path / "notices.json").read_text())
    assert (told["event"], told["check"], told["message"]) == ("problem", "disk", "full")


@pytest.mark.parametrize(
    ("whitelist", "command", "why"),
    [
        ([NOTE], "tee -a other.json", "does not allow this command"),
        (None, NOTE, "no command_whitelist"),
        (["false"], "false", "error"),
        (["sudo tee x"], "sudo tee x", ""),
    ],
)
async def test_what_is_not_listed_or_fails_tells_nobody_and_is_shown(
    tmp_path: Path, whitelist: list[str] | None, command: str, why: str
) -> None:
    seen = await Place(tmp_path, whitelist=whitelist).responder(notify=by_command(command)).respond(found(CRITICAL))
    (action,) = seen.actions
    assert not action.ok
    assert why in action.text
    assert not {"notices.json", "other.json", "x"} & set(os.listdir(tmp_path))


async def test_an_executor_that_is_gone_is_shown(tmp_path: Path) -> None:
    gone = CommandNotifier(run="ops:gone", command="x")
    (action,) = (await Place(tmp_path).responder(notify={"log": gone}).respond(found(CRITICAL))).actions
    assert "unknown executor" in action.text


# --- where nothing can be remembered ---


async def test_a_full_disk_is_told_of_once_though_nothing_can_be_remembered(
    place: Place, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    responder = place.responder(notify=ops(listener))
    await responder.respond(found(OK))
    place.history.store.path.write_bytes(b"nonsense" * 1000)
    for second in (1, 2, 3):
        seen = await responder.respond(found(CRITICAL, NOON + second))
        assert seen.verdicts[0].state is CRITICAL
        assert "can't be used" in seen.problems["history"]
    assert [told["event"] for told in listener.posted] == ["problem"]


# --- the whole program ---

_PLAN = """
version: 1
defaults: false
checks:
  - {{name: always, rule: 'True', message: it is so}}
notify:
  ops: {{kind: webhook, url: '{url}'}}
"""


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_kill_while_somebody_is_told_neither_loses_nor_doubles_the_notice(tmp_path: Path, listener: Listener) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text(_PLAN.format(url=listener.url))
    command = [*PROGRAM, "monitor", "watch", "--plain", "--interval", "0.2", "--file", str(file)]
    started: list[subprocess.Popen[str]] = []

    def run(*more: str) -> tuple[int, str]:
        both = subprocess.STDOUT
        with subprocess.Popen([*command, *more], text=True, stdout=subprocess.PIPE, stderr=both) as process:
            started.append(process)
            printed = process.communicate(timeout=300)[0]
        return process.returncode, printed

    killed = threading.Event()

    def kill() -> None:
        if not killed.is_set():
            os.kill(started[0].pid, signal.SIGKILL)  # it has told, and will never know that it was heard
            killed.set()

    listener.on_post = kill
    assert run()[0] == -signal.SIGKILL
    status, printed = run("--rounds", "2")
    assert status == 1
    assert printed.count("sent: warning") == 1
    assert len(listener.posted) == 2
    assert len({told["id"] for told in listener.posted}) == 1  # the same, told again: whoever has it knows
    assert "sent" not in run("--rounds", "1")[1]
