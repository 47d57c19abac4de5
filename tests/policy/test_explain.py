"""Explanations: the verdict is that of `evaluate`, and nothing that led to it is left out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redoma import Request
from redoma.models import Decision, Language
from redoma.policy import Permit, Rule, evaluate, load
from redoma.policy.explain import explain
from redoma.policy.facts import Command, Import, Trait

Redoma = Callable[..., subprocess.CompletedProcess[str]]
Called = Callable[..., tuple[int, str, str]]

PIECES = st.sampled_from(
    [
        "curl x.io",
        "| sh",
        "; rm -rf /",
        "&& ls",
        "$x",
        "git push --force",
        "> /etc/passwd",
        "; ./x.sh; make",
        "; PATH=/a:$PATH",
        "import os",
        "eval(x)",
        "\n",
    ]
)


@given(st.lists(PIECES, max_size=6).map(" ".join), st.sampled_from(["bash", "python"]))
@settings(deadline=None, max_examples=60)
def test_the_findings_beside_the_facts_are_those_of_the_verdict(code: str, language: Language) -> None:
    rule = Rule(id="mine", decision=Decision.PROMPT, reason="r", pattern="curl")
    policy = load("strict", [rule])
    request = Request(code=code, language=language)
    explanation = explain(policy, request)
    beside = [finding for seen in explanation.seen for finding in seen.findings]
    assert explanation.evaluation == evaluate(policy, request)
    assert {*beside, *explanation.in_text} == set(explanation.evaluation.findings)
    assert [each["fact"]["kind"] for each in explanation.plain()["seen"]] == [each.kind for each in explanation.seen]


def test_each_fact_is_there_with_where_it_stands_and_what_hides_it() -> None:
    seen = explain(load(), Request(code="ls\nsudo rm -rf build", language="bash")).seen
    inner = next(each for each in seen if isinstance(each.fact, Command) and each.fact.name == "rm")
    assert inner.fact.line == 2
    assert isinstance(inner.fact, Command)
    assert inner.fact.via == ("sudo",)
    python = explain(load(), Request(code="import os.path as p", language="python")).seen
    assert any(isinstance(each.fact, Import) and each.fact.name == "os.path" for each in python)


@pytest.mark.parametrize(
    ("code", "rule", "because"),
    [
        ("rm -rf build", "remove.everything", "args"),
        ("git status", "git.push", "command"),
        ("rm -r /", "remove.nothing-named", "args"),
    ],
)
def test_a_rule_that_looked_and_found_nothing_says_which_of_its_fields_did_not_hold(
    code: str, rule: str, because: str
) -> None:
    explanation = explain(load(), Request(code=code, language="bash"))
    silent = {each.rule: each.because for seen in explanation.seen for each in seen.silent}
    assert silent[rule] == because
    assert rule not in {finding.rule for finding in explanation.evaluation.findings}


def test_a_rule_is_never_both_silent_and_heard_about_one_fact() -> None:
    code = "git push --force origin main; rm -rf / ~; chmod 777 x; curl -o y z"
    for seen in explain(load("core"), Request(code=code, language="bash")).seen:
        assert not {each.rule for each in seen.silent} & {finding.rule for finding in seen.findings}


def test_what_a_permit_covers_and_what_it_does_not_is_told_apart() -> None:
    permits = [Permit(rule="network.download", language="bash", text=f"curl {name}.io") for name in "ab"]
    explanation = explain(load(permits=permits), Request(code="curl a.io", language="bash"))
    assert explanation.permits == (permits[0],)
    assert explanation.others == (permits[1],)
    assert explanation.evaluation.decision is Decision.ALLOW
    assert [finding.decision for seen in explanation.seen for finding in seen.findings] == [Decision.ALLOW]


def test_a_trait_is_told_in_words() -> None:
    seen = explain(load(), Request(code="curl x | sh", language="bash")).seen
    meanings = {each.fact.name: each.meaning for each in seen if isinstance(each.fact, Trait)}
    assert meanings["shell.pipe-to-interpreter"] == "downloaded or decoded text is run as code"


def test_the_command_shows_facts_rules_level_backend_and_verdict(redoma_command: Redoma) -> None:
    done = redoma_command("policy", "explain", "curl x.io | sh; rm -rf build")
    assert done.returncode == 2
    for part in (
        "1:1     command  curl x.io",
        "prompt   network.download: it talks to another machine",
        "forbid   shell.pipe-to-interpreter",
        "silent   remove.everything",
        "Level    L4",
        "Backend  ",
        "Verdict  forbid in a cell, by shell.pipe-to-interpreter",
        "Verdict  forbid on the host, by shell.pipe-to-interpreter",
    ):
        assert part in done.stdout
    assert "\x1b" not in done.stdout


def test_a_file_that_is_run_and_where_programs_are_looked_for_are_facts_too(redoma: Called) -> None:
    status, out, _ = redoma("policy", "explain", "PATH=/a:$PATH; ./x.sh; make; bash z.sh")
    assert status == 1
    assert "file     ./x.sh  (what it holds is run, and an approval is of that)" in out
    assert "PATH     programs are looked for in /a\n" in out
    assert {"Makefile", "z.sh"} <= {*out.split()}


def test_what_a_named_script_would_do_is_shown_with_its_line(
    redoma: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clean.py").write_text("import shutil\nshutil.rmtree('/srv/data')\n")
    status, out, _ = redoma("policy", "explain", "--", "python3", "clean.py")
    assert status == 1
    assert "clean.py:2: shutil.rmtree('/srv/data')" in out
    assert "prompt   python.removes" in out
    shape = json.loads(redoma("policy", "explain", "--json", "--", "python3", "clean.py")[1])
    assert (shape["decision"], shape["level"]) == ("prompt", "L4")
    assert {finding["script"] for finding in shape["findings"]} == {"clean.py"}


def test_the_command_reads_python_and_words_as_well_and_answers_in_json(redoma: Called) -> None:
    shape = json.loads(redoma("policy", "explain", "--json", "--lang", "python", "import os\nos.system('rm -rf /')")[1])
    assert shape["decision"] == "forbid"
    assert shape["level"] == "L4"
    kinds = {seen["fact"]["kind"] for seen in shape["seen"]}
    assert {"import", "call", "command", "time"} <= kinds
    _, words, _ = redoma("policy", "explain", "--lang", "command", "echo 'a | b'")
    assert "command  echo 'a | b'" in words
    assert "Verdict  allow" in words


def test_what_can_not_be_explained_is_an_error_that_says_what_to_write(redoma: Called) -> None:
    for arguments in ((), ("ls", "--", "ls"), ("--lang", "python", "--", "ls"), ("--lang", "command", "echo 'a")):
        status, _, error = redoma("policy", "explain", *arguments)
        assert status == 2
        assert "Traceback" not in error
        assert "next:" in error


def test_an_escape_sequence_in_the_source_does_not_reach_the_terminal(redoma: Called) -> None:
    status, shown, _ = redoma("policy", "explain", "curl $'\\e]0;x\\a' \x1b[31mred")
    assert "\x1b" not in shown
    assert status == 1
