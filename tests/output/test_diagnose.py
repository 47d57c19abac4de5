"""Failures are named from what programs really print; what only speaks of them is not; no output costs too much."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from failing_tools import FAILING, ORDINARY, PRINTED, UNKNOWN, Failing
from hypothesis import given, settings
from hypothesis import strategies as st

from redoma.models import Diagnosis, Status
from redoma.output.diagnoses import MAX_DIAGNOSES, diagnose
from redoma.output.failure_lines import LINES, automata


def found(text: str, exit_code: int | None = 1, status: Status = Status.ERROR) -> tuple[Diagnosis, ...]:
    return diagnose("", text, exit_code, status)


def must_be(diagnoses: tuple[Diagnosis, ...], kinds: dict[str, dict[str, Any]]) -> None:
    assert list(dict.fromkeys(one.kind for one in diagnoses)) == list(kinds), diagnoses
    for kind, facts in kinds.items():
        first = next(one for one in diagnoses if one.kind == kind)
        assert {name: getattr(first, name) for name in facts} == facts
        assert first.message


# --- what failed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", FAILING, ids=lambda failing: failing.name)
def test_what_really_failed_is_named(failing: Failing, tmp_path: Path) -> None:
    if shutil.which(failing.tool) is None:
        pytest.skip(f"{failing.tool} is not installed")
    for name, content in failing.files.items():
        (tmp_path / name).write_text(content)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    ran = subprocess.run(
        ["bash", "-c", failing.command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    code = ran.returncode if ran.returncode >= 0 else 128 - ran.returncode
    assert code != 0
    must_be(diagnose(ran.stdout, ran.stderr, code, Status.ERROR), failing.kinds)


@pytest.mark.parametrize("name", PRINTED)
def test_what_other_tools_print_is_named(name: str) -> None:
    text, kinds = PRINTED[name]
    must_be(found(text), kinds)
    must_be(diagnose(text, "", 1, Status.ERROR), kinds)


@pytest.mark.parametrize("index", range(len(LINES)), ids=lambda index: f"{LINES[index].kind}-{index}")
def test_every_pattern_fits_its_examples_and_is_the_first_to(index: int) -> None:
    which, _ = automata()
    assert LINES[index].examples
    for example in LINES[index].examples:
        assert min(which.Match(example), default=None) == index, example


def test_a_traceback_is_told_of_a_program_that_ended_well() -> None:
    script = "import traceback\ntry:\n    1/0\nexcept Exception:\n    traceback.print_exc()\nprint('done')"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (only,) = diagnose(ran.stdout, ran.stderr, 0, Status.OK)
    assert (only.kind, only.exception, only.line) == ("python.exception", "ZeroDivisionError", 3)


def test_the_last_of_several_comes_first() -> None:
    one = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nValueError: first\n'
    text = one + "going on\n" + one.replace("first", "second")
    assert [diagnosis.message for diagnosis in found(text)] == ["second", "first"]
    assert {diagnosis.kind for diagnosis in found(text)} == {"python.exception"}


def test_a_trace_inside_a_cut_output_is_still_found() -> None:
    cut = "[… 900 lines, 40.0 KB left out …]\n  File \"a.py\", line 7, in f\n    x\nKeyError: 'k'\n"
    (only,) = found(cut)
    assert (only.exception, only.line) == ("KeyError", 7)


@pytest.mark.parametrize(
    ("status", "exit_code", "kind"),
    [
        (Status.MEMORY, 137, "resource.memory"),
        (Status.KILLED, 139, "crash.signal"),
        (Status.ERROR, 134, "crash.signal"),
    ],
)
def test_the_end_itself_says_something(status: Status, exit_code: int, kind: str) -> None:
    assert [one.kind for one in diagnose("", "", exit_code, status)] == [kind]


# --- what didn't ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ORDINARY)
def test_a_program_that_ended_well_may_speak_of_errors(text: str) -> None:
    assert diagnose(text, text, 0, Status.OK) == ()


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_not_named(text: str) -> None:
    assert diagnose(text, text, 1, Status.ERROR) == ()


@pytest.mark.parametrize("status", [status for status in Status if status.ending != "ran"])
def test_what_never_ran_has_no_diagnosis(status: Status) -> None:
    assert found(PRINTED["java"][0], None, status) == ()


@pytest.mark.parametrize(
    ("exit_code", "status"), [(0, Status.OK), (1, Status.ERROR), (143, Status.KILLED), (None, Status.TIMEOUT)]
)
def test_silence_is_no_failure_of_its_own(exit_code: int | None, status: Status) -> None:
    assert diagnose("", "", exit_code, status) == ()


# --- hostile -------------------------------------------------------------------------------------------------


def test_there_are_never_more_than_so_many_and_none_is_long() -> None:
    text = "".join(f"x{n}.c:{n}:1: error: {'m' * 5000}\n" for n in range(5000))
    diagnoses = found(text)
    assert len(diagnoses) == MAX_DIAGNOSES
    assert all(len(one.message) <= 300 for one in diagnoses)


def test_the_same_is_told_once() -> None:
    assert len(found("cat: /nope: No such file or directory\n" * 100)) == 1


PIECES = [
    "a: ",
    ":1:",
    "'",
    '"',
    "[",
    "File ",
    '  File "x", line 1, in ',
    "Traceback (most recent call last):\n",
    "    at ",
    "(x:1:1)",
    "Error: ",
    "panic: ",
    "make: *** [",
    "\n",
    " at x line ",
    "[Errno ",
    "error: ",
    "9" * 30,
    "goroutine 1 [",
]


def test_only_the_end_of_a_stream_is_read() -> None:
    """So that the cost of looking has a bound; the shapes below are the dearest that are known."""
    error = "cat: /nope: No such file or directory\n"
    assert found(error + "x" * 20 + "\n") != ()
    assert found(error + ("x" * 99 + "\n") * 700) == ()
    assert found(error + "\n" * 3000) == ()


@pytest.mark.parametrize("unit", [*PIECES, "".join(PIECES), "x: " * 100 + "\n", "Error: x\n", "x.Y: z\n", "panic: x\n"])
def test_no_shape_of_text_keeps_it_busy(unit: str) -> None:
    """It comes to an end: any search that went back over such lines again and again would not."""
    text = unit * (3_000_000 // len(unit))
    diagnose(text, text, 1, Status.ERROR)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(pieces: list[str]) -> None:
    for status in (Status.OK, Status.ERROR):
        for one in diagnose("".join(pieces), "".join(reversed(pieces)), 1, status):
            assert one.line >= 0
            assert len(one.message) <= 300
            assert "\n" not in one.message + one.file + one.function + one.exception
