"""A policy against history: the counts are those of evaluating each request itself, and what can't be is left out."""

from __future__ import annotations

import functools
import json
import os
import pty
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from history_stage import Stage, variety

from redoma.config import proposed
from redoma.history.policies import Comparison, Judge, compare
from redoma.history.recorded import recorded
from redoma.models import Decision, Limits, PolicyView, Request, Submission
from redoma.policy import Permit, Policy, Rule, evaluate, fingerprint, load

Called = Callable[..., tuple[int, str, str]]

RULES = (
    Rule(id="own.remove", decision=Decision.FORBID, reason="it removes", command=("rm",), flags=("-r|-R",)),
    Rule(id="own.cat", decision=Decision.FORBID, reason="it reads", command=("cat",)),
    Rule(id="own.sleep", decision=Decision.PROMPT, reason="it sleeps", command=("sleep",)),
    Rule(id="own.long", decision=Decision.FORBID, reason="it is long", time_over=60),
    Rule(id="own.three", decision=Decision.PROMPT, reason="it says three", pattern="3"),
)
PERMITS = (
    Permit(rule="own.sleep", language="bash", text="sleep 3"),
    Permit(rule="own.three", language="bash", text="sleep 3", time=90.0),
    Permit(rule="own.remove", language="command", text="rm -rf build2", entry="app:shell"),
    Permit(rule="own.three", language="python", sha256=fingerprint(Request(code="abs(3)", files={"a": b"2"}))),
)


@functools.cache
def new(pack: str | None) -> Policy:
    if pack == "none":
        return load("none")
    return load(pack or "standard", RULES, {"network.download": Decision.ALLOW}, permits=PERMITS)


def result_of(stage: Stage, policy: Callable[[str | None], Policy] = new, **options: Any) -> Comparison:
    return compare(stage.log.records(kinds=("intent",)), Judge(policy), inputs=stage.inputs, **options)


def test_the_counts_of_2000_varied_requests_are_those_of_evaluating_each_one(tmp_path: Path) -> None:
    stage, expected = Stage(tmp_path), Counter[tuple[str, str]]()
    left_out = 0
    for asked in variety(7, 2000):
        stage.ask(asked)
        if {"LD_PRELOAD", "EDITOR"} & asked.request.secrets.keys():
            left_out += 1  # what such a variable does depends on its value, and that is kept nowhere
            continue
        shown = asked.judged
        said = evaluate(new(asked.policy), shown, live_input=asked.live_input, entry=asked.entry)
        after = max([said.decision, *(each.decision for each in asked.objections)])
        expected[str(stage.judge(asked).decision), str(after)] += 1
    result = result_of(stage)
    moved = Counter({f"{before} → {after}": n for (before, after), n in expected.items() if before != after})
    assert len(moved) >= 4
    assert result.changes == moved
    assert result.requests == expected.total()
    assert result.unchanged == sum(n for (before, after), n in expected.items() if before == after)
    assert result.forbidden == sum(n for (before, after), n in expected.items() if before != after == "forbid")
    assert result.prompt == sum(n for (before, after), n in expected.items() if before != after == "prompt")
    assert result.passing == sum(n for (before, after), n in expected.items() if before != after == "allow")
    assert result.left_out == left_out > 0
    assert result.evaluated < 0.8 * result.requests  # so identical ones were evaluated once


REQUEST = Request(argv=("psql", "db"), language="command")
_BASH = Request(code="sleep 3", language="bash")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Submission(_BASH), Submission(msgspec.structs.replace(_BASH, limits=Limits(time=90)))),
        (
            Submission(Request(code="sleep 4", language="bash")),
            Submission(Request(code="sleep 4", language="bash"), "none"),
        ),
        (Submission(_BASH), Submission(msgspec.structs.replace(_BASH, env={"A": "1"}))),
        (Submission(_BASH), Submission(msgspec.structs.replace(_BASH, cwd="/srv"))),
        (Submission(REQUEST), Submission(REQUEST, live_input=True)),
        (Submission(REQUEST), Submission(msgspec.structs.replace(REQUEST, stdin=b"DROP TABLE x;"))),
        (
            Submission(Request(argv=("rm", "-rf", "build2"), language="command"), entry="app:shell"),
            Submission(Request(argv=("rm", "-rf", "build2"), language="command")),
        ),
        (
            Submission(Request(code="abs(3)", files={"a": b"2"})),
            Submission(Request(code="abs(3)", files={"a": b"3"})),
        ),
    ],
    ids=["time", "pack", "env", "cwd", "live input", "stdin", "entry", "files"],
)
def test_requests_that_differ_in_one_thing_are_not_taken_for_one_another(
    tmp_path: Path, one: Submission, other: Submission
) -> None:
    """Each of these pairs is judged differently, so to mix them up would show."""
    stage, judge = Stage(tmp_path), Judge(new)
    for asked in (one, other, one):
        stage.ask(asked)
    first, second, third = (judge.judge(run).decision for run in recorded(stage.log.records(), stage.inputs))
    assert first is third is not second
    assert judge.evaluated == 2


def test_what_the_record_does_not_have_is_counted_apart_and_named(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    stage.ask(Submission(Request(code=f"echo {token[:40]}", language="bash")))
    stage.ask(Submission(Request(argv=("bash",), language="command", stdin=f"TOKEN={token[:40]}".encode())))
    stage.ask(Submission(Request(code="rm -r x", language="bash")))
    stage.log.append("intent", "foreign", {"language": "cobol"})
    result = result_of(stage)
    assert result.requests == result.forbidden == 1
    assert result.unjudged == {"code": 1, "stdin": 1, "its record is not understood": 1}


def test_what_policy_never_looked_at_is_not_missed(tmp_path: Path) -> None:
    """A token among the variables of a configured executor, and the facts that a rule of the monitor is given."""
    stage = Stage(tmp_path)
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0"[:18] * 2
    theirs = Request(argv=("rm", "-rf", "build2"), language="command", env={"GITHUB": token, "A": "1"})
    judged = msgspec.structs.replace(theirs, env={})
    stage.ask(Submission(theirs, view=PolicyView.of(theirs, judged), entry="app:shell"))
    rule = Request(code="import json\nabs(3)", stdin=b"{}")
    about = msgspec.structs.replace(rule, code="abs(3)", stdin=b"")
    stage.ask(Submission(rule, view=PolicyView.of(rule, about), keep_inputs=False))
    result = result_of(stage)
    assert result.unjudged == {}
    assert [evaluate(new(None), judged, entry="app:shell").decision, evaluate(new(None), about).decision] == [
        judge.decision for judge in map(Judge(new).judge, recorded(stage.log.records(), stage.inputs))
    ]
    seen = msgspec.structs.replace(theirs, env={"GITHUB": token})
    view = PolicyView.of(theirs, seen)
    stage.ask(Submission(msgspec.structs.replace(theirs, id="looked-at"), view=view, entry="app:shell"))
    assert result_of(stage).unjudged == {"variable GITHUB": 1}


def test_a_request_of_which_a_part_is_missing_is_not_guessed_to_be_permitted(tmp_path: Path) -> None:
    """Its files are gone: nobody can say whether it is what the permit, by digest, is about."""
    stage = Stage(tmp_path)
    stage.ask(Submission(Request(code="abs(3)", files={"a": b"2"})))
    assert result_of(stage).requests == 1
    for kept in (tmp_path / "inputs").iterdir():
        kept.unlink()
    assert result_of(stage).unjudged == {"a part of what a permit is about: file a": 1}
    without = result_of(stage, lambda pack: load("standard", RULES))
    assert without.requests == without.prompt == 1


def test_examples_are_the_newest_each_once_with_the_rules_before_and_after(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for number in (1, 2, 4, 5, 5, 5):
        last = stage.ask(Submission(Request(code=f"curl {number}.io", language="bash", requester="ann")))
    (first, second) = result_of(stage, examples=2).examples["pass"]
    assert (first.text, second.text) == ("curl 4.io", "curl 5.io")
    assert (second.id, second.requester) == (last, "ann")
    assert (second.before, second.before_rules) == (Decision.PROMPT, ("network.download",))
    assert (second.after, second.after_rules) == (Decision.ALLOW, ())


def test_what_the_policy_in_force_says_differently_already_is_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.ask(Submission(Request(code="sleep 1", language="bash")))
    stage.ask(Submission(Request(code="ls", language="bash")))
    now = Judge(lambda pack: load("standard", RULES))
    result = compare(stage.log.records(kinds=("intent",)), Judge(new), now, inputs=stage.inputs)
    assert result.differs_now == 1


# --- the command ---


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("REDOMA_STATE_DIR", str(tmp_path / "state"))
    stage = Stage(tmp_path / "state")
    for code in ("curl a.io", "rm x", "ls"):
        stage.ask(Submission(Request(code=code, language="bash", requester="ann")))
    return stage


SECTION = """\
decisions: {network.download: allow}
rules:
  - {id: own.remove, decision: forbid, reason: it removes, command: [rm]}
"""


def test_the_command_tells_what_would_change_and_fails_where_it_is_told_to(
    place: Stage, tmp_path: Path, redoma: Called
) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(SECTION)
    status, shown, _ = redoma("policy", "test", str(file), "--since", "30d")
    assert status == 0
    for part in ("3 evaluated", "newly forbidden          1   own.remove 1", "newly passing            1", "rm x"):
        assert part in shown
    assert "allow → forbid (own.remove)" in shown
    assert redoma("policy", "test", str(file), "--fail-on", "forbidden")[0] == 1
    assert redoma("policy", "test", str(file), "--fail-on", "prompt")[0] == 0
    whole = tmp_path / "whole.yaml"
    whole.write_text('version: "1.0"\npolicy:\n' + "".join(f"  {line}\n" for line in SECTION.splitlines()))
    one, other = (json.loads(redoma("policy", "test", str(path), "--json")[1]) for path in (file, whole))
    assert one == other
    assert (one["forbidden"], one["passing"], one["unchanged"]) == (1, 1, 1)
    assert json.loads(redoma("policy", "test", str(file), "--since", "2999-01-01", "--json")[1])["requests"] == 0


def test_a_file_stands_in_place_of_the_projects_or_with_add_on_top_of_it(
    place: Stage, tmp_path: Path, redoma: Called
) -> None:
    Path("redoma.yaml").write_text(
        "policy:\n  rules:\n    - {id: own.ls, decision: forbid, reason: no, command: [ls]}\n"
    )
    file = tmp_path / "new.yaml"
    file.write_text(SECTION)
    assert json.loads(redoma("policy", "test", str(file), "--json")[1])["forbidden"] == 1
    assert json.loads(redoma("policy", "test", str(file), "--json", "--add")[1])["forbidden"] == 2


@pytest.mark.parametrize(
    "text", ["rules: [{id: x}]", "polcy: {}", "pack: nonsense", "[1", "decisions: {no.rule: allow}"]
)
def test_a_file_that_is_wrong_is_told_by_line_and_nothing_is_evaluated(
    place: Stage, tmp_path: Path, redoma: Called, text: str
) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(text)
    status, shown, error = redoma("policy", "test", str(file))
    assert (status, shown) == (125, "")
    assert f"{file}:" in error
    assert "Traceback" not in error


def test_a_proposal_is_read_as_a_section_or_as_a_whole_file_and_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("pack: strict\n")
    assert proposed(file).policy.pack == "strict"
    file.write_text("limits: {time: 90}\n")
    assert proposed(file).limits.time == 90


def test_a_terminal_is_shown_how_far_it_is_and_nobody_else(place: Stage, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(SECTION)
    program = Path(sys.executable).with_name("redoma")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [program, "policy", "test", str(file)], stdout=subprocess.PIPE, stderr=theirs, stdin=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while select.select([ours], [], [], 60)[0] and (part := os.read(ours, 4096)):
                shown += part
        except OSError:
            pass  # its other end is closed
        assert process.stdout
        assert b"newly forbidden" in process.stdout.read()
    os.close(ours)
    assert b"evaluating" in shown
    assert b"100%" in shown
    done = subprocess.run([program, "policy", "test", str(file)], capture_output=True, check=True)
    assert done.stderr == b""
