"""A service is named with --server or REDOMA_SERVER: `run` uses it, and no other command passes this machine off as
it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

InProcess = Callable[..., tuple[int, str, str]]
NOBODY = "http://127.0.0.1:1"
ABOUT_RUNS = [
    ("approvals", "list"),
    ("audit", "tail"),
    ("batch", "jobs.jsonl", "-o", "results.jsonl"),
    ("changes", "list"),
    ("check", "print(1)"),
    ("checkpoints", "list"),
    ("env", "list"),
    ("eval", "1"),
    ("exec", "--", "true"),
    ("exec", "ls", "--help"),
    ("lua", "script.lua"),
    ("network", "learn", "--", "true"),
    ("output",),
    ("policy", "explain", "print(1)"),
    ("repl",),
    ("try", "ls", "--help"),
    ("try", "true"),
]
LOCAL = [("completion", "bash"), ("config", "show"), ("doctor",), ("keys", "list")]


@pytest.mark.parametrize("words", [*ABOUT_RUNS, *LOCAL], ids=" ".join)
def test_a_command_that_uses_no_service_refuses_one(redoma: InProcess, words: tuple[str, ...]) -> None:
    status, output, errors = redoma("--server", NOBODY, *words)
    assert (status, output) == (3 if words[0] == "check" else 2, "")
    assert errors == (
        f"redoma: --server was given with `redoma {words[0]}`: only `redoma run` uses a service; this command is about "
        "what is on this machine\n  next: leave --server out\n"
    )


@pytest.mark.parametrize("words", ABOUT_RUNS, ids=" ".join)
def test_runs_of_this_machine_are_not_passed_off_as_those_of_the_service(
    redoma: InProcess, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("REDOMA_SERVER", NOBODY)
    status, output, errors = redoma(*words)
    assert (status, output) == (3 if words[0] == "check" else 2, "")
    assert errors.startswith(f"redoma: `redoma {words[0]}` can't use {NOBODY}, which REDOMA_SERVER names: ")
    assert f"env -u REDOMA_SERVER redoma {words[0]} ..." in errors


@pytest.mark.parametrize(
    "words", [*LOCAL, ("help", "try"), ("try", "--help"), ("audit", "tail", "--help")], ids=" ".join
)
def test_what_is_about_this_machine_and_help_work_with_the_variable_set(
    redoma: InProcess, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("REDOMA_SERVER", NOBODY)
    assert redoma(*words)[0] == 0


def test_run_uses_the_service_or_says_why_not(redoma: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOMA_KEY", "rdm_none")
    for words in (("--server", NOBODY, "run", "print(1)"), ("run", "print(1)")):
        status, output, errors = redoma(*words)
        assert (status, output, "the service at 127.0.0.1:1 can't be reached" in errors) == (125, "", True)
        monkeypatch.setenv("REDOMA_SERVER", NOBODY)
