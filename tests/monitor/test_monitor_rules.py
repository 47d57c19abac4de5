"""Rules are code: what they answer is data, and what they do harms only themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from monitor_stage import executor as executor
from monitor_stage import patient as patient

from redoma.config import PolicyConfig
from redoma.models import Decision
from redoma.monitor import rules
from redoma.monitor.file import ready_made_checks
from redoma.monitor.model import Check, CheckResult, Facts, FileProbe, Plan, State
from redoma.monitor.service import Monitor
from redoma.pipeline.executor import AsyncExecutor
from redoma.pipeline.sync import Executor

FACTS: Facts = {"disk": [{"mount": "/", "percent": 91.5}], "web": None, "now": 1.8e9, "host": "here"}


def judge(executor: Executor, rule: str, **more: Any) -> CheckResult:
    check = Check(name="it", rule=rule, **more)
    return executor.wait(rules.evaluate(check, FACTS, executor.core)).verdict


@pytest.mark.parametrize(
    ("rule", "more", "state", "message"),
    [
        ("any(d['percent'] > 90 for d in disk)", {"message": "at {disk[0]['percent']} %"}, State.WARNING, "at 91.5 %"),
        ("True", {"severity": "critical", "message": "'''\"it's {host}\""}, State.CRITICAL, "'''\"it's here\""),
        ("False", {"message": "{nonsense}"}, State.OK, ""),
        ("x = 3; x > 2  # and so on", {"message": "{x}"}, State.WARNING, "3"),
        ("(now > 0\n and True)", {}, State.WARNING, ""),
        ("'; '.join(d['mount'] for d in disk)", {"severity": "critical"}, State.CRITICAL, "/"),
        ("''", {}, State.OK, ""),
        ("{'state': 'unknown', 'message': 'é\\n two'}", {}, State.UNKNOWN, "é two"),
        ("{'state': 'critical'}", {"message": "by {host}"}, State.CRITICAL, "by here"),
        ("{'state': 'ok'}", {"message": "{nonsense}"}, State.OK, ""),
    ],
)
def test_an_answer_is_a_state(executor: Executor, rule: str, more: dict[str, Any], state: State, message: str) -> None:
    verdict = judge(executor, rule, **more)
    assert (verdict.state, verdict.message, verdict.sandbox) == (state, message, "monty")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("while True:\n    pass", "did not come to an end within 2 s"),
        ("open('/etc/passwd').read()", "Permission denied: '/etc/passwd'"),
        ("import os\nos.listdir('/')", "Permission denied: '/'"),
        ("'x' * 2 * 2**30", "more than 64 MiB of memory"),
        ("1 +", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = 1", "has no answer"),
        ("web and web['status'] != 200", "has no answer"),
        ("'x' * 5_000_000", "too large"),
        ("'x\\n' * 5_000", None),
        ("x = 1\nfor i in range(80): x = [x]\nx", "a list, not true"),
        ("float('nan')", "a float, not true"),
        ("'\\x1b]0;owned\\x07'", "that a terminal would obey"),
        ("'safe\\u202eetad'", "that a terminal would obey"),
        ("for i in range(100_000): print('y' * 100)\nTrue", "prints more than 64 KiB"),
        ("{'state': 'green'}", "a dict, not true"),
        ("{'state': 'ok', 'message': [1]}", "a dict, not true"),
        ("{'state': 'ok', 'more': 1}", "a dict, not true"),
    ],
)
def test_a_bad_rule_is_unknown_and_says_why(executor: Executor, rule: str, says: str | None) -> None:
    verdict = judge(executor, rule)
    if says is None:  # no nonsense, only long
        assert verdict.state is State.WARNING
        assert len(verdict.message) == 300
    else:
        assert verdict.state is State.UNKNOWN
        assert says in verdict.message
    assert verdict.sandbox == "monty"
    assert verdict.run


def test_a_message_that_cannot_be_read_is_unknown(executor: Executor) -> None:
    assert "SyntaxError" in judge(executor, "True", message="{1 +}").message


def test_a_rule_that_ends_its_interpreter_has_not_answered(executor: Executor) -> None:
    verdict = judge(executor, "_answer = _said = True\nraise SystemExit(0)")
    assert verdict.state is State.UNKNOWN
    assert verdict.sandbox == "jail"


def test_what_monty_lacks_is_judged_in_a_cell(executor: Executor) -> None:
    verdict = judge(executor, "import statistics\nx = [1]\ndel x[0]\nstatistics.mean([1, 2]) > 1", message="{len(x)}")
    assert (verdict.state, verdict.message, verdict.sandbox) == (State.WARNING, "0", "jail")


def test_in_a_cell_a_rule_that_eats_memory_harms_only_itself(executor: Executor) -> None:
    verdict = judge(executor, "import statistics\nlen(bytearray(2 * 2**30)) > 1")
    assert verdict.state is State.UNKNOWN
    assert verdict.sandbox == "jail"
    assert verdict.message == "the rule wants more than 256 MiB of memory"


@pytest.mark.parametrize("rule", ["import statistics\nopen('/etc/passwd').read()", "import os\nos.getpid() > 0"])
def test_no_rule_gets_files_or_the_system_by_asking_for_what_monty_lacks(executor: Executor, rule: str) -> None:
    verdict = judge(executor, rule)
    assert verdict.state is State.UNKNOWN
    assert verdict.sandbox == "monty"
    assert "in the jail: " in verdict.message
    assert "[strict." in verdict.message


def test_nobody_is_asked_for_a_rule(executor: Executor) -> None:
    asks = PolicyConfig(decisions={"python.dynamic-code": Decision.PROMPT})
    config = msgspec.structs.replace(executor.core.config, policy=asks)
    asking = AsyncExecutor(config, backends=executor.core.backends.values())
    verdict = executor.wait(rules.evaluate(Check(name="it", rule="eval(host)"), FACTS, asking)).verdict
    assert verdict.state is State.UNKNOWN
    assert verdict.sandbox == ""
    assert "it runs text as code" in verdict.message
    assert "[monitor.unattended]" in verdict.message


def test_the_users_own_policy_holds_for_rules(executor: Executor) -> None:
    config = msgspec.structs.replace(executor.core.config, policy=PolicyConfig(pack="core"))
    core = AsyncExecutor(config, backends=executor.core.backends.values())
    found = executor.wait(rules.evaluate(Check(name="it", rule="import json\nTrue"), FACTS, core))
    assert found.verdict.state is State.UNKNOWN
    assert "was refused" in found.verdict.message


def test_a_rule_gets_only_the_facts_that_it_uses(executor: Executor) -> None:
    made = rules.program(Check(name="it", rule="disk and _facts", message="{host}"), frozenset(FACTS))
    assert made.facts == {"disk", "host"}
    verdict = judge(executor, "disk\nlen(_facts) > 1")
    assert verdict.state is State.OK


def test_every_rule_is_on_record_and_its_facts_are_not(executor: Executor) -> None:
    verdict = judge(executor, "host == 'nowhere'")
    log = executor.core.config.audit.directory
    records = [json.loads(line) for file in log.glob("*.jsonl") for line in file.read_text().splitlines()]
    intent, outcome = (record["data"] for record in records if record["id"] == verdict.run)
    assert outcome["backend"] == "monty"
    assert "host == 'nowhere'" in intent["code"]
    assert "here" not in intent["code"].replace("nowhere", "")


def test_one_round_judges_all_whatever_one_of_them_does(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    bad = [Check(name="loops", rule="while True:\n    pass"), Check(name="reads", rule="open('/etc/passwd')")]
    good = [Check(name=f"good_{n}", rule="memory['percent'] > 100") for n in range(5)]
    caplog.set_level("INFO", logger="redoma.monitor")
    found = executor.wait(Monitor(Plan(checks=(*bad, *good)), executor.core).round())
    assert {v.check: v.state.word for v in found.verdicts} == {
        **{"loops": "unknown", "reads": "unknown"},
        **{check.name: "ok" for check in good},
    }
    assert found.state is State.UNKNOWN
    assert found.to_dict()["verdicts"][0]["state"] == "unknown"
    lines = {vars(record)["check"]: record for record in caplog.records if vars(record).get("event") == "rule"}
    assert lines.keys() == {v.check for v in found.verdicts}
    assert "rule loops: unknown, by monty in " in lines["loops"].getMessage()
    told = [vars(record) for record in lines.values()]
    assert all(line["sandbox"] == "monty" and line["run"] and line["seconds"] > 0 for line in told)


def test_a_rule_whose_fact_is_missing_says_which(executor: Executor, tmp_path: Path) -> None:
    checks = (Check(name="needs", rule="log['size'] > 0"), Check(name="copes", rule="log is not None"))
    plan = Plan(checks=checks, collect={"log": FileProbe(path=tmp_path)})
    needs, copes = executor.wait(Monitor(plan, executor.core).round()).verdicts
    assert needs.state is State.UNKNOWN
    assert needs.message.startswith(f"log is missing ({tmp_path} can't be read: it is not a regular file); the rule")
    assert copes.state is State.OK


def test_the_ready_made_checks_can_all_be_judged_here(executor: Executor) -> None:
    found = executor.wait(Monitor(Plan(checks=ready_made_checks()), executor.core).round())
    assert [(v.check, v.message) for v in found.verdicts if v.state is State.UNKNOWN] == []
    assert found.problems == {}
    assert {v.sandbox for v in found.verdicts} == {"monty"}


SICK: Facts = {
    "disk": [{"mount": "/", "percent": 96.0, "free": 2**30, "inodes_percent": 97.0}],
    "memory": {"percent": 98.0, "available": 2**20},
    "swap": {"total": 1, "percent": 99.0},
    "load": {"five": 20.0, "per_cpu": 10.0},
    "processes": {"zombie": 30, "zombies": [{"parent": 7}], "blocked": 90, "total": 99, "most": 100},
    "cpu": {"count": 2},
    "mounts": [{"mount": "/srv", "broke": True, "answers": False}],
    "temperatures": [{"sensor": "core", "current": 99.0, "high": None, "critical": 98.0}],
    "now": 100.0,
}
EXPECTED = {
    "disk_space": (State.CRITICAL, "/ is at 96.0 %, 1.0 GiB are left"),
    "inodes": (State.CRITICAL, "/ has used 97.0 % of its inodes"),
    "memory": (State.CRITICAL, "98.0 % of the memory is used, 1 MiB are available"),
    "swap": (State.WARNING, "99.0 % of the swap and 98.0 % of the memory are used"),
    "load": (State.CRITICAL, "the load is 20.0 over five minutes, 10.0 for each processor"),
    "zombies": (State.WARNING, "30 processes have ended and are not collected, the first by process 7"),
    "blocked": (State.WARNING, "90 processes wait for a disk or a server"),
    "process_numbers": (State.CRITICAL, "99 of 100 process numbers are used"),
    "read_only": (State.CRITICAL, "read-only since an error: /srv"),
    "mounts": (State.CRITICAL, "no answer from /srv"),
    "temperature": (State.CRITICAL, "core is at 99 °C"),
    "clock": (State.CRITICAL, "the clock says 100, which is in the past"),
}


def test_each_ready_made_check_finds_what_it_is_for(executor: Executor) -> None:
    found = {c.name: executor.wait(rules.evaluate(c, SICK, executor.core)).verdict for c in ready_made_checks()}
    assert {name: (v.state, v.message) for name, v in found.items()} == EXPECTED


def test_only_some_checks_can_be_asked_for_and_a_wrong_name_is_told(executor: Executor, tmp_path: Path) -> None:
    from redoma.lib.errors import InvalidRequest

    found = executor.wait(Monitor(Plan(checks=ready_made_checks()), executor.core, only=["clock"]).round())
    assert [v.check for v in found.verdicts] == ["clock"]
    with pytest.raises(InvalidRequest, match="did you mean 'clock'"):
        Monitor(Plan(checks=ready_made_checks()), executor.core, only=["clok"])
