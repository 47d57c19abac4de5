"""`redoma monitor`, typed as a person would: the table, the log, and the exit status of each state."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from monitor_stage import redoma_command as redoma_command

Command = Callable[..., subprocess.CompletedProcess[str]]

CHECKS = r"""
version: 1
defaults: false
checks:
  - {name: fine, rule: "memory['percent'] > 1000"}
  - {name: warns, rule: "cpu['count'] > 0", message: "{cpu['count']} processors"}
  - {name: alarms, rule: "'all is lost'", severity: critical}
  - {name: loops, rule: "while True: pass"}
  - {name: reads, rule: "open('/etc/passwd').read()"}
  - {name: eats, rule: "len('x' * 2 * 2**30) > 0"}
  - {name: cell, rule: "import statistics\nstatistics.mean([1, 3]) != 2"}
"""
ALL = {
    **{"fine": ("ok", "monty"), "warns": ("warning", "monty"), "alarms": ("critical", "monty")},
    **{"loops": ("unknown", "monty"), "reads": ("unknown", "monty"), "eats": ("unknown", "monty")},
    "cell": ("ok", "jail"),
}


@pytest.fixture
def home() -> Path:
    file = Path("monitor.yaml")
    file.write_text(CHECKS)
    return Path.home() / ".local/state/redoma"


def test_each_state_has_its_exit_status_and_each_rule_a_line_with_its_sandbox(
    redoma_command: Command, home: Path
) -> None:
    told = redoma_command("monitor", "check", "-v")
    assert told.returncode == 2
    assert "alarms  monty" in told.stdout
    assert "all is lost" in told.stdout
    assert "is critical: 2 ok, 1 warning, 1 critical, 3 unknown" in told.stdout
    assert "rule loops: unknown, by monty in " in told.stderr
    lines = [json.loads(line) for line in (home / "logs/monitor.log").read_text().splitlines()]
    assert {line["check"]: (line["state"], line["sandbox"]) for line in lines} == ALL
    assert all(line["run"] and line["seconds"] > 0 for line in lines)
    for only, status in (("fine cell", 0), ("fine warns", 1), ("warns reads", 3)):
        names = [word for name in only.split() for word in ("--only", name)]
        assert redoma_command("monitor", "check", *names).returncode == status


def test_the_answer_can_be_had_as_json(redoma_command: Command, home: Path) -> None:
    told = redoma_command("monitor", "check", "--json", "--only", "warns")
    found = json.loads(told.stdout)
    assert (told.returncode, found["state"]) == (1, "warning")
    assert found["verdicts"][0]["message"].endswith("processors")
    assert found["facts"]["memory"]["total"] > 0


def test_what_cannot_be_done_is_unknown_and_told_without_a_traceback(redoma_command: Command, home: Path) -> None:
    Path("monitor.yaml").write_text("checks: [{name: x, rulle: y}]")
    for arguments, says in (
        (["check"], "did you mean 'rule'?"),
        (["check", "--file", "none.yaml"], "it can't be read"),
        (["check", "--nonsense"], "No such option"),
    ):
        told = redoma_command("monitor", *arguments)
        assert told.returncode == 3
        assert says in told.stderr
        assert "Traceback" not in told.stderr


def test_without_psutil_only_the_monitor_is_missing(home: Path) -> None:
    code = "import sys; sys.modules['psutil'] = None; from redoma.frontends.cli import main; main()"
    Path("monitor.yaml").unlink()
    told = {}
    for arguments in (["monitor", "check"], ["eval", "1 + 1"]):
        call = [sys.executable, "-c", code, *arguments]
        told[arguments[0]] = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert told["monitor"].returncode == 3
    assert "the monitor needs psutil" in told["monitor"].stderr
    assert "pip install 'redoma[monitor]'" in told["monitor"].stderr
    assert told["eval"].stdout == "{'status': 'success', 'output': 2}\n"


def test_a_found_file_is_trusted_by_hand_and_its_checks_are_listed(redoma_command: Command, home: Path) -> None:
    Path("monitor.yaml").write_text(
        "defaults: false\ncollect: {log: {kind: file, path: a.log}}\nchecks: [{name: x, rule: log}]"
    )
    assert "has no effect, because line 2 reads" in redoma_command("monitor", "list").stderr
    assert "would:\n  - line 2 reads" in redoma_command("monitor", "trust", "--yes").stdout
    listed = redoma_command("monitor", "list")
    assert listed.stdout.endswith("monitor.yaml\n\nx\n    log\n")
    facts = redoma_command("monitor", "facts")
    assert json.loads(facts.stdout)["log"]["exists"] is False


def test_a_file_that_was_only_found_can_neither_end_an_alarm_nor_make_anybody_forget(
    redoma_command: Command, home: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("defaults: false\nchecks: [{name: web, rule: 'True', severity: critical}]")
    assert redoma_command("monitor", "check", "--file", str(own)).returncode == 2
    with closing(sqlite3.connect(home / "monitor.db")) as db, db:  # as if it had been a while ago
        for table, columns in (("spells", "since until"), ("states", "since bad_since seen"), ("last", "time")):
            for column in columns.split():
                db.execute(f"UPDATE {table} SET {column} = {column} - 86400")  # noqa: S608 - of those above
        before = list(db.iterdump())
    Path("monitor.yaml").write_text("defaults: false\nhistory: 1h\nchecks: [{name: web, rule: 'False'}]")
    told = redoma_command("monitor", "check")
    assert (told.returncode, "which was found here" in told.stderr) == (0, True)
    with closing(sqlite3.connect(home / "monitor.db")) as db:
        assert list(db.iterdump()) == before
    assert '"ok"' in redoma_command("monitor", "history", "--json").stdout  # its own it has
    assert "share your history" in redoma_command("monitor", "trust", "--yes").stdout
