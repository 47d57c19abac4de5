"""`python -m redoma` is the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest


def module(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "redoma", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_expression_is_evaluated() -> None:
    assert module("eval", "2 + 2") == (0, "{'status': 'success', 'output': 4}\n", "")


@pytest.mark.parametrize("code", ["import os; os.listdir('.')", "1 / 0"])
def test_an_error_is_an_answer_with_status_1(code: str) -> None:
    status, out, err = module("eval", code)
    assert (status, err) == (1, "")
    assert out.startswith("{'status': 'error', 'message': ")


def test_help_and_usage_errors_are_those_of_the_command() -> None:
    status, out, _ = module("--help")
    assert (status, out.startswith("Usage: redoma ")) == (0, True)
    status, _, err = module("no-such-command")
    assert status != 0
    assert "Traceback" not in err
