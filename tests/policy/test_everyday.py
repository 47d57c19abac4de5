"""Everyday Bash lines and Python programs, by people who have not read the rules: in a cell, over a project, and on the
host. The second and third lists came when the rules were done. Of the second, every destructive or outward example was
already asked about, and 8 harmless ones too; of the third, 5 were not asked about, and 13 harmless ones were; of the
fourth, 2 were not asked about, 1 harmless one was, and 2 were refused instead of asked about.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from redoma.models import Decision, Language, Request
from redoma.models.reach import EFFECT, HOST, NOTHING
from redoma.policy import evaluate, load

STANDARD = load("standard")


class Example(NamedTuple):
    language: Language
    text: str
    kind: str
    note: str

    @property
    def request(self) -> Request:
        return Request(code=self.text, language=self.language)


def examples(language: Language, which: str = "") -> list[Example]:
    items = yaml.safe_load((Path(__file__).parent / "everyday" / f"{language}{which}.yaml").read_text())
    return [Example(language, item["text"], item["kind"], item["note"]) for item in items]


LISTS = ("", "_second", "_third", "_fourth")
EXAMPLES = [example for which in LISTS for language in ("bash", "python") for example in examples(language, which)]
OVERLAY = NOTHING.over("overlay")

ASKED_ANYWAY = {
    "starts a local agent and adds a key": "it evaluates a program's output and reads a private key",
    "creates a database file in the project": "it writes to a database, as the program that drops its tables does",
    "renders manifests locally": "the directory it names might also be an address",
    "inspects a lockfile": "it reads a member by a name that isn't written out",
    "flattens local yaml keys": "YAML can make Ruby run code",
    "starts from a sample": "which editor that is can't be known",
    "changes the search path": "commands after it may be other programs",
    "retry helper around a local test": "what a function is handed to run is not followed",
    "benchmark of two functions": "what a timer is handed by a loop is not followed",
}
"""Labelled harmless, and yet what a person has to be asked about on the host; and why."""


def each(kind: str = "") -> pytest.MarkDecorator:
    chosen = [example for example in EXAMPLES if kind in ("", example.kind)]
    return pytest.mark.parametrize("example", chosen, ids=lambda example: f"{example.language}-{example.note}")


def test_the_lists_are_as_long_as_promised() -> None:
    for which in LISTS:
        assert len(examples("bash", which)) >= 60
        assert len(examples("python", which)) >= 40
    assert {example.kind for example in EXAMPLES} == {"harmless", "destructive", "outward"}


def test_at_most_one_in_a_hundred_asks_in_a_cell() -> None:
    asked = [
        each.note for each in EXAMPLES if evaluate(STANDARD, each.request, reach=NOTHING).decision > Decision.ALLOW
    ]
    assert len(asked) <= len(EXAMPLES) / 100, asked


def test_at_most_one_in_a_hundred_asks_before_it_runs_in_an_overlay() -> None:
    asked = [
        each.note for each in EXAMPLES if evaluate(STANDARD, each.request, reach=OVERLAY).decision > Decision.ALLOW
    ]
    assert len(asked) <= len(EXAMPLES) / 100, asked


@each("destructive")
def test_a_destructive_one_asks_on_the_host(example: Example) -> None:
    assert evaluate(STANDARD, example.request, reach=HOST).decision > Decision.ALLOW


@each("outward")
def test_an_outward_one_asks_on_the_host(example: Example) -> None:
    assert evaluate(STANDARD, example.request, reach=HOST).decision > Decision.ALLOW


@each("harmless")
def test_a_harmless_one_passes_on_the_host(example: Example) -> None:
    evaluation = evaluate(STANDARD, example.request, reach=HOST)
    expected = Decision.PROMPT if example.note in ASKED_ANYWAY else Decision.ALLOW
    assert evaluation.decision is expected, [finding.rule for finding in evaluation.deciding]


@each()
def test_what_stands_against_it_is_told_wherever_it_runs(example: Example) -> None:
    def rules(decided: tuple[object, ...]) -> list[str]:
        return [finding.rule for finding in decided]  # type: ignore[attr-defined]

    on_host = evaluate(STANDARD, example.request, reach=HOST)
    for reach in (NOTHING, OVERLAY, EFFECT):
        there = evaluate(STANDARD, example.request, reach=reach)
        assert rules(there.findings) == rules(on_host.findings)
        assert all(finding.out_of_reach for finding in there.findings if finding.decision is Decision.ALLOW)


@each()
def test_what_is_to_be_applied_is_asked_about_and_never_refused(example: Example) -> None:
    """Whoever decides sees the effect; what went to the network did not get there."""
    decision = evaluate(STANDARD, example.request, reach=EFFECT).decision
    assert decision is not Decision.FORBID
    if example.kind == "harmless" and example.note not in ASKED_ANYWAY:
        assert decision is Decision.ALLOW
