"""The one reader of options, and the one reading of a request."""

from __future__ import annotations

import pytest

from redoma.models import Request
from redoma.models.reach import NOTHING
from redoma.policy import Reading, evaluate, level_of, load, shell
from redoma.policy.executed import executes
from redoma.policy.options import Grammar, grammar_of, operands, values_of, walk

TAR = Grammar("x v", "f C file", optional="i")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("-f", "a", "b"), ["b"]),
        (("-fa", "b"), ["b"]),
        (("-xvf", "a", "b"), ["b"]),
        (("--file", "a", "b"), ["b"]),
        (("--file=a", "b"), ["b"]),
        (("-i", "b"), ["b"]),
        (("-iC", "b"), ["b"]),
        (("--", "-f", "b"), ["-f", "b"]),
        (("-", "b"), ["-", "b"]),
        (("-f",), []),
    ],
)
def test_an_operand_is_what_is_neither_option_nor_value(args: tuple[str, ...], expected: list[str]) -> None:
    assert operands(args, TAR) == expected


@pytest.mark.parametrize("word", ["-z", "-xz", "-zf", "--other", "--other=1"])
def test_an_option_that_is_not_listed_is_said_to_be_uncertain(word: str) -> None:
    item = next(walk((word, "next"), TAR))
    assert item.option is not None
    assert not item.option.listed


@pytest.mark.parametrize("args", [("-o", "x"), ("-ox",), ("-vo", "x"), ("--out", "x"), ("--out=x",), ("--", "-o", "x")])
def test_the_values_of_an_option_are_found_in_every_form(args: tuple[str, ...]) -> None:
    assert values_of(args, "-o", "--out") == ["x"]


def test_a_version_has_the_options_of_its_program() -> None:
    assert grammar_of("python3.11") is grammar_of("python")
    assert not grammar_of("never-heard-of").values


def test_a_script_is_read_once_for_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    read, scripts = shell.facts_of_script, []

    def counting(source: str, *args: object, **more: object) -> object:
        scripts.append(source)
        return read(source, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(shell, "facts_of_script", counting)
    request = Request(code="ls; ./build.sh", language="bash")
    reading = Reading(request)
    evaluation = evaluate(load(), request, reach=NOTHING, reading=reading)
    leveled = level_of(request, evaluation, reading=reading)
    files = executes(request, reading=reading)
    assert scripts == [request.code]
    monkeypatch.undo()
    assert (evaluation, leveled) == (
        evaluate(load(), request, reach=NOTHING),
        level_of(request, evaluate(load(), request, reach=NOTHING)),
    )
    assert files == executes(request)
