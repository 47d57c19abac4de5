"""Events in the log: which there are, what they never say, and that nobody can forge one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_stage import ASKING, TALKATIVE, WORD, Broken, answer, full_of, listening, tells

from redoma import Answer, ApprovalError, AsyncExecutor, Config, ConfigError, FakeBackend, Finding, Status
from redoma.approval import Callback
from redoma.audit import AuditLog
from redoma.backends.jail import JailBackend
from redoma.config import PolicyConfig
from redoma.models import Decision, Request, Submission
from redoma.telemetry import INFO, events, logs, metrics, tell

FORGED = 'a\n{"event": "run.ended", "status": "ok"}\r\n\x1b[2K\u2028\u202e run=b status=ok'
"""What would be a second event, or clear one from a terminal, if it got there as it is."""


# --- which events there are ---


async def test_a_run_is_told_when_it_is_decided_started_and_ended(config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend()]) as executor:
        with listening() as heard:
            result = await executor.run("print(1)", backend="fake")
    assert heard.events == ["run.decided", "run.started", "run.ended"]
    assert {said["run"] for said in heard.said} == {result.id}
    assert heard.of("run.decided").items() >= {"decision": "allow", "level": "L3", "policy": "standard"}.items()
    assert heard.of("run.started")["backend"] == "fake"
    assert heard.of("run.ended").items() >= {"status": "ok", "backend": "fake", "exit_code": 0}.items()
    assert heard.of("run.ended")["seconds"] > 0


async def test_a_refusal_names_its_rule_and_is_a_warning_and_a_failure_is_an_error(config: Config) -> None:
    async with AsyncExecutor(config, backends=[Broken()]) as executor:
        with listening() as heard:
            await executor.run("rm -rf /", "bash")
            await executor.run("print(1)", backend="broken")
    refused, failed = (record for record in heard.records if record.__dict__["redoma"]["event"] == "run.ended")
    assert refused.levelno == logging.WARNING
    assert refused.__dict__["redoma"].items() >= {"status": "forbidden", "rule": "remove.everything"}.items()
    assert (failed.levelno, failed.__dict__["redoma"]["status"]) == (logging.ERROR, "failed")


async def test_a_cancelled_run_is_told_as_killed_with_its_backend(config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend(Answer(delay=30))]) as executor:
        with listening() as heard:
            task = asyncio.create_task(executor.run("1", backend="fake"))
            while "run.started" not in heard.events:  # noqa: ASYNC110 - a logger sets no event
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert heard.of("run.ended").items() >= {"status": "killed", "backend": "fake"}.items()


async def test_asking_a_person_is_told_with_what_came_of_it(config: Config, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(config, state=tmp_path / "state", policy=PolicyConfig(rules=(ASKING,)))
    async with AsyncExecutor(settings, backends=[FakeBackend()], approver=Callback(answer)) as executor:
        with listening() as heard:
            result = await executor.run("deploy", "bash", backend="fake")
    assert result.status is Status.OK
    asked = ["audit.approval.asked", "audit.approval.given", "audit.approval.used", "approval.ended"]
    assert heard.events == ["run.decided", *asked, "run.started", "run.ended"]
    assert heard.of("approval.ended").items() >= {"outcome": "approved", "run": result.id}.items()
    assert heard.of("approval.ended")["approval"] == result.approval_id


def test_what_the_audit_log_mends_and_removes_is_told(tmp_path: Path) -> None:
    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in (0, 0, 40)]
    log = AuditLog(tmp_path / "audit", now=lambda: days[0])
    with listening() as heard:
        log.append("intent", "a", {})
        with open(tmp_path / "audit" / "audit-2026-01-01.jsonl", "ab") as file:
            file.write(b'{"seq":2,')  # as a writer leaves it that was killed
        days.pop(0)
        log.append("outcome", "a", {})
        days.pop(0)
        log.append("intent", "b", {})
    assert heard.events == ["audit.recovered", "audit.retention"]


def test_an_audit_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    with listening() as heard, pytest.raises(Exception, match="can't be written"):
        AuditLog(tmp_path / "audit").append("intent", "a", {})
    assert heard.of("audit.failed").items() >= {"run": "a", "kind": "intent"}.items()


async def test_a_zygote_that_was_killed_is_told(config: Config, nothing_left_behind: None) -> None:
    jail = JailBackend(minimum=1)
    async with AsyncExecutor(config, backends=[jail]) as executor:
        with listening() as heard:
            await executor.run("1")
            (pid,) = [pool.zygote_pid for pool in jail._pools.values()]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(60):  # a run that takes a cell at the moment when it dies fails
                while "jail.zygote.lost" not in heard.events:  # noqa: ASYNC110 - a list of what was logged
                    await asyncio.sleep(0.01)
            assert (await executor.run("6 * 7")).value == 42
    assert heard.of("jail.zygote.lost")["pid"] == pid
    assert heard.events.count("jail.zygote.started") == 2


# --- what they never say ---


async def test_no_event_holds_anything_that_a_request_or_its_code_has_chosen(config: Config, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(config, state=tmp_path / "state", policy=PolicyConfig(rules=(ASKING,)))
    failing = Callback(lambda ask: answer(ask, WORD))
    with listening() as heard:
        for approver in (Callback(answer), failing):
            async with AsyncExecutor(settings, backends=[TALKATIVE, Broken()], approver=approver) as executor:
                for backend in ("talkative", "broken", "auto"):
                    await executor.run(f"print({WORD!r})", backend=backend, **full_of(WORD))
                    await executor.command(["deploy", WORD], backend=backend, **full_of(f"{WORD}-{backend}"))
    assert len(heard.records) > 20
    assert [record.__dict__ for record in heard.records if tells(repr(record.__dict__))] == []


@pytest.mark.parametrize("kind", [logging.Handler, logging.Filter])
async def test_a_handler_or_a_filter_that_fails_changes_no_result(
    kind: type, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise RuntimeError("no room")

    failing = type("Failing", (kind,), {"emit": fail, "filter": fail})()
    logger = logging.getLogger("redoma.run")
    monkeypatch.setattr(logger, "handlers" if kind is logging.Handler else "filters", [failing])
    logger.setLevel("INFO")
    failed = metrics.EVENTS.value("log.failed")
    try:
        async with AsyncExecutor(config, backends=[FakeBackend(Answer(value=42))]) as executor:
            assert (await executor.run("6 * 7", backend="fake")).value == 42
    finally:
        logger.setLevel(logging.NOTSET)
    assert metrics.EVENTS.value("log.failed") > failed


async def test_an_id_that_somebody_has_made_up_is_in_no_event(config: Config, tmp_path: Path) -> None:
    with listening() as heard:
        async with AsyncExecutor(
            msgspec.structs.replace(config, state=tmp_path / "state"), backends=[FakeBackend()]
        ) as executor:
            with pytest.raises(ApprovalError):
                await executor.resume(WORD)
    assert "approval" not in heard.of("audit.approval.refused")
    assert WORD not in str(heard.records)


def test_a_record_that_cannot_be_shown_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("redoma"), "propagate", False)  # pytest's own handler raises
    logs.write("info", "text", tmp_path / "log")
    try:
        logging.getLogger("redoma.extension").warning("%d files", "no number")
    finally:
        logs.write("off")
    assert "the log can't be written: TypeError" in capsys.readouterr().err


def test_a_program_that_does_not_ask_hears_nothing(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from redoma import AsyncExecutor, Config, FakeBackend
from redoma.config import AuditConfig
config = Config(audit=AuditConfig(directory=Path(sys.argv[1])))
async def main():
    async with AsyncExecutor(config, backends=[FakeBackend()]) as executor:
        results = [await executor.run("rm -rf /", "bash"), await executor.run("1", backend="fake")]
        print(*(result.status.value for result in results))
asyncio.run(main())
print(*(name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "prometheus_client")))
print("redoma.telemetry.logs" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("forbidden ok\n\nFalse\n", "")


# --- nobody can forge one ---


def lines_of(formatter: logging.Formatter, tmp_path: Path, write: Callable[[], None]) -> list[str]:
    """What gets into a file."""
    handler = logs.write("debug", file=tmp_path / "log")
    assert handler is not None
    handler.setFormatter(formatter)
    try:
        write()
    finally:
        logs.write("off")
    return (tmp_path / "log").read_text().splitlines()


class Naive(logging.Formatter):
    """As one would write it."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={value}" for key, value in record.__dict__["redoma"].items())


def test_without_the_protection_a_name_forges_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "plain", lambda value: value)
    lines = lines_of(Naive(), tmp_path, lambda: tell(INFO, "run.ended", run=FORGED))
    assert '{"event": "run.ended", "status": "ok"}' in lines


@pytest.mark.parametrize("formatter", [logs.JsonLines(), logs.KeyValues(), Naive(), logging.Formatter()])
async def test_no_name_that_anybody_can_choose_forges_an_event(
    formatter: logging.Formatter, config: Config, tmp_path: Path
) -> None:
    """The id of a request, the name of a backend, the id of a rule; also with somebody else's formatter."""
    finding = Finding(rule=FORGED, decision=Decision.FORBID, reason=FORGED)
    handler = logs.write("debug", file=tmp_path / "log")
    assert handler is not None
    handler.setFormatter(formatter)
    try:
        async with AsyncExecutor(config, backends=[FakeBackend(name=FORGED)]) as executor:
            await executor.submit(Submission(Request(code="1", backend=FORGED)))
            await executor.submit(Submission(Request(code="1"), objections=(finding,)))
            await executor.submit(Submission(Request(code="1", id=FORGED)))  # the audit log takes no such id
    finally:
        logs.write("off")
    lines = (tmp_path / "log").read_bytes().decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 8  # decided, started, ended; decided, ended; decided, not on record, ended
    assert all(line.isprintable() for line in lines)
    if isinstance(formatter, logs.JsonLines):
        assert [json.loads(line)["event"] for line in lines].count("run.ended") == 3


@settings(max_examples=40, deadline=None)
@given(st.text(), st.text())
def test_whatever_it_holds_a_record_is_one_line_that_can_be_read_back(value: str, message: str) -> None:
    with listening() as heard:
        tell(INFO, "run.ended", run=value, seconds=1.5)
        logging.getLogger("redoma.other").warning("%s", message)
    for record in heard.records:
        text, line = logs.KeyValues().format(record), logs.JsonLines().format(record)
        assert text.isprintable()
        assert line.isascii()
        assert "\n" not in line
        assert json.loads(line)["event"] in ("run.ended", "log")
    assert json.loads(logs.JsonLines().format(heard.records[0])).get("run") == (events.plain(value) or None)


def test_of_an_exception_only_the_type_is_written() -> None:
    with listening() as heard:
        try:
            raise ValueError(WORD)
        except ValueError:
            logging.getLogger("redoma.other").exception("it failed")
    for formatter in (logs.JsonLines(), logs.KeyValues()):
        line = formatter.format(heard.records[0])
        assert "ValueError" in line
        assert WORD not in line


# --- the command line ---


def test_the_log_of_the_command_line_has_the_run_and_nothing_that_the_code_printed(
    redoma_command: Callable[..., Any], tmp_path: Path
) -> None:
    line, file = '{"event": "run.ended", "status": "forged"}', tmp_path / "log.jsonl"
    file.write_text('{"event": "before"}\n')
    forging = f"import sys; print({line!r}); print({line!r}, file=sys.stderr)"
    done = redoma_command("--log-format", "json", "--log-file", str(file), "run", forging)
    assert (done.returncode, done.stdout.count("forged"), done.stderr.count("forged")) == (0, 1, 1)
    told = [json.loads(line) for line in file.read_text().splitlines()]
    events_told = [one["event"] for one in told if one["event"] != "jail.zygote.started"]
    assert events_told == ["before", "run.decided", "run.started", "run.ended"]
    assert (told[-1]["status"], told[-1]["backend"]) == ("ok", "jail")


def test_the_command_line_logs_to_standard_error_where_no_file_is_named(redoma_command: Callable[..., Any]) -> None:
    done = redoma_command("run", "--backend", "monty", "1 + 1", env={**os.environ, "REDOMA_LOG": "info"})
    assert done.stdout == "2\n"
    assert "INFO run.ended run=" in done.stderr


def test_a_log_that_cannot_be_written_is_told_before_anything_runs(
    redoma_command: Callable[..., Any], tmp_path: Path
) -> None:
    done = redoma_command("--log-file", "missing/log", "run", "print('ran')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("redoma: the log missing/log can't be written: No such file or directory\n  next: ")


@pytest.mark.parametrize("file", ["pipe", "directory", "nul\0"])
def test_what_is_no_file_is_no_log_and_is_not_waited_for(file: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigError, match="can't be written"):
        logs.write("info", file=tmp_path / file)


def test_a_pipe_that_somebody_reads_is_no_log_either(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ConfigError, match="not a regular file"):
        logs.write("info", file=tmp_path / "pipe")
    os.close(reading)


def test_a_new_log_is_private(tmp_path: Path) -> None:
    logs.write("info", file=tmp_path / "log")
    logs.write("off")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_can_no_longer_be_written_is_told_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("")
    handler = logs.Lines(tmp_path / "log")
    assert handler._descriptor is not None
    reading = os.open(tmp_path / "log", os.O_RDONLY)
    os.dup2(reading, handler._descriptor)  # as a full disk would do
    os.close(reading)
    record = logging.makeLogRecord({"msg": "something"})
    for _ in range(3):
        handler.emit(record)
    handler.close()
    assert capsys.readouterr().err == "redoma: the log can't be written: Bad file descriptor\n"


def test_writing_elsewhere_ends_writing_where_it_was(tmp_path: Path) -> None:
    logs.write("info", file=tmp_path / "first")
    logs.write("info", "json", tmp_path / "second")
    tell(INFO, "run.ended", run="a")
    with pytest.raises(ConfigError, match="can't be written"):
        logs.write("info", file=tmp_path / "not" / "here")
    tell(INFO, "run.ended", run="b")
    logs.write("off")
    tell(INFO, "run.ended", run="c")
    assert not events.heard(INFO, "run.ended")
    assert (tmp_path / "first").read_text() == ""
    assert [json.loads(line)["run"] for line in (tmp_path / "second").read_text().splitlines()] == ["a", "b"]
