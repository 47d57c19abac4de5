"""The standard pack against two lists written without reading it: disguised attacks, and ordinary work."""

from __future__ import annotations

import pytest
from corpus_evasions import EVASIONS
from corpus_ordinary import BASH
from corpus_programs import PYTHON

from redoma.models import Decision, Evaluation, Request
from redoma.models.reach import HOST, NOTHING
from redoma.policy import evaluate, load

STANDARD = load("standard")

# The kernel ends an argument at a NUL byte, so a script that holds one can't be given as an argument.
EVASIONS_AS_ARGUMENTS = [name for name, script in EVASIONS.items() if "\0" not in script]


def explain(evaluation: Evaluation) -> str:
    return "; ".join(f"{f.rule} ({f.decision}) at {f.line}:{f.column}: {f.text}" for f in evaluation.findings)


def test_the_lists_are_as_long_as_promised() -> None:
    assert len(EVASIONS) >= 60
    assert len(BASH) >= 60
    assert len(PYTHON) >= 30
    assert len(set(EVASIONS.values())) == len(EVASIONS), "two evasions are the same script"


def test_no_script_is_both_an_evasion_and_ordinary() -> None:
    assert not set(EVASIONS.values()) & set(BASH.values())


@pytest.mark.parametrize("name", EVASIONS)
def test_an_evasion_is_never_allowed(name: str) -> None:
    evaluation = evaluate(STANDARD, Request(code=EVASIONS[name], language="bash"))
    assert evaluation.decision > Decision.ALLOW, EVASIONS[name]


@pytest.mark.parametrize("name", EVASIONS_AS_ARGUMENTS)
def test_an_evasion_given_as_an_argument_of_bash_is_never_allowed(name: str) -> None:
    evaluation = evaluate(STANDARD, Request(argv=("bash", "-c", EVASIONS[name]), language="command"))
    assert evaluation.decision > Decision.ALLOW, EVASIONS[name]


ASKS_ON_THE_HOST = {
    *("remove_build_directory", "remove_modules", "remove_compiled_python"),
    *("write_under_home", "clean_a_build_directory", "temporary_directory"),
}
"""Ordinary, and yet what they remove is gone, or what they write is outside the project."""


def as_script(name: str) -> Request:
    return Request(code=BASH[name], language="bash")


def as_argument(name: str) -> Request:
    return Request(argv=("bash", "-c", BASH[name]), language="command")


def as_program(name: str) -> Request:
    return Request(code=PYTHON[name], language="python")


ORDINARY = [
    *(
        pytest.param(make(name), name, id=f"{make.__name__}-{name}")
        for name in BASH
        for make in (as_script, as_argument)
    ),
    *(pytest.param(as_program(name), name, id=f"as_program-{name}") for name in PYTHON),
]


@pytest.mark.parametrize(("request_", "name"), ORDINARY)
def test_ordinary_work_is_allowed_in_a_cell(request_: Request, name: str) -> None:
    evaluation = evaluate(STANDARD, request_, reach=NOTHING)
    assert evaluation.decision is Decision.ALLOW, explain(evaluation)


@pytest.mark.parametrize(("request_", "name"), ORDINARY)
def test_ordinary_work_is_allowed_on_the_host_unless_it_removes_or_writes_elsewhere(
    request_: Request, name: str
) -> None:
    evaluation = evaluate(STANDARD, request_, reach=HOST)
    expected = Decision.PROMPT if name in ASKS_ON_THE_HOST else Decision.ALLOW
    assert evaluation.decision is expected, explain(evaluation)
