"""Files that a run leaves are brought back, or it is said why not; no work is lost for want of a free name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

InProcess = Callable[..., tuple[int, str, str]]
WRITE = "open('o.txt', 'w').write('new'); None"
IN_A_DIRECTORY = "import os; os.mkdir('out'); open('out/a', 'w').write('A'); open('out/b', 'w').write('B'); None"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("REDOMA_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "here"


@pytest.mark.parametrize("backend", ["jail", "native"])
def test_nothing_runs_if_a_named_file_is_there_already(redoma: InProcess, place: Path, backend: str) -> None:
    (place / "o.txt").write_text("ours")
    asked = ("run", "--backend", backend, "--policy", "none", "-o", "o.txt")
    status, output, errors = redoma(*asked, f"print('ran'); {WRITE}")
    assert (status, output) == (2, "")
    assert errors == (
        "redoma: nothing ran, because o.txt is there already: -o would replace it\n"
        "  next: add --force to replace it, or --output-dir DIR to write elsewhere\n"
    )
    assert redoma("audit", "tail")[1] == ""
    assert redoma(*asked, WRITE, "--output-dir", "new")[0] == 0
    assert ((place / "o.txt").read_text(), (place / "new" / "o.txt").read_text()) == ("ours", "new")
    assert redoma(*asked, WRITE, "--force")[0] == 0
    assert (place / "o.txt").read_text() == "new"


def test_a_command_with_a_named_file_that_is_there_does_not_run_either(redoma: InProcess, place: Path) -> None:
    (place / "o.txt").symlink_to("nowhere")
    status, _, errors = redoma("exec", "-o", "./o.txt", "--", "touch", "o.txt")
    assert (status, "nothing ran, because o.txt is there already" in errors) == (2, True)


def test_json_without_a_directory_writes_nothing_and_needs_no_free_name(redoma: InProcess, place: Path) -> None:
    (place / "o.txt").write_text("ours")
    status, output, _ = redoma("run", "--json", "-o", "o.txt", WRITE)
    assert (status, list(json.loads(output)["files"])) == (0, ["o.txt"])


def test_what_a_pattern_brings_over_existing_files_is_saved_elsewhere(redoma: InProcess, place: Path) -> None:
    (place / "out").mkdir()
    (place / "out" / "b").write_text("ours")
    status, _, errors = redoma("run", "-o", "**", IN_A_DIRECTORY)
    assert status == 125
    assert "redoma: wrote out/a\n" in errors
    assert "redoma: not written: out/b: there is such a file already; --force replaces it\n" in errors
    saved = errors.split("redoma: saved: 1 file in ")[1].splitlines()[0]
    assert (place / saved / "out" / "b").read_text() == "B"
    assert (place / "out" / "b").read_text() == "ours"


def test_what_finds_a_file_where_its_directory_should_be_is_saved_elsewhere(redoma: InProcess, place: Path) -> None:
    (place / "out").write_text("a file")
    status, _, errors = redoma("run", "-o", "out/*", IN_A_DIRECTORY)
    saved = errors.split("redoma: saved: 2 files in ")[1].splitlines()[0]
    assert (status, sorted(path.name for path in (place / saved / "out").iterdir())) == (125, ["a", "b"])


def test_nothing_runs_if_its_files_could_be_written_nowhere(redoma: InProcess, place: Path) -> None:
    (place / "taken").write_text("")
    status, output, errors = redoma("run", "-o", "*.txt", "--output-dir", "taken/below", f"print('ran'); {WRITE}")
    assert (status, output) == (2, "")
    assert f"nothing ran, because its files could not be written: {place}/taken: it is not a directory" in errors


@pytest.mark.parametrize("pattern", ["out", "out/", "./out/", "out/**"])
def test_a_directory_that_is_named_brings_back_what_is_below(redoma: InProcess, place: Path, pattern: str) -> None:
    status, _, errors = redoma("run", "-o", pattern, IN_A_DIRECTORY)
    assert (status, errors) == (0, "redoma: wrote out/a\nredoma: wrote out/b\n")
    assert (place / "out" / "b").read_text() == "B"


def test_a_directory_that_is_there_gets_what_is_new(redoma: InProcess, place: Path) -> None:
    (place / "out").mkdir()
    assert redoma("run", "-o", "out", IN_A_DIRECTORY)[0] == 0
    assert sorted(path.name for path in (place / "out").iterdir()) == ["a", "b"]


def test_a_file_that_was_asked_for_by_name_and_not_made_is_an_error(redoma: InProcess) -> None:
    assert redoma("run", "-o", "missing.txt", "print(1)") == (
        1,
        "1\n",
        "redoma: missing: missing.txt: the run made no such file\n",
    )
    assert redoma("run", "--json", "-o", "missing.txt", "print(1)")[0] == 1
    assert redoma("run", "-o", "missing.txt", "import sys; sys.exit(7)")[0] == 7
    assert redoma("run", "-o", "*.txt", "print(1)") == (0, "1\n", "")


def test_a_file_that_was_given_and_left_as_it_was_is_no_error(redoma: InProcess, place: Path) -> None:
    (place / "given").write_text("x")
    asked = ("run", "-f", "given", "-o", "given", "--output-dir", "new")
    assert redoma(*asked, "1")[0] == 0
    assert redoma("run", "-o", "link", "import os; os.symlink('/etc/passwd', 'link')")[0] == 1


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("/tmp/z", "it is an absolute path, and only files below the run's own directory are brought back"),
        ("a//b", "it is not a plain relative path"),
        ("../b", "it is not a plain relative path"),
        ("x" * 1025, "it has more than 1024 characters"),
    ],
)
def test_a_pattern_that_can_bring_nothing_back_is_refused_with_the_reason(
    redoma: InProcess, pattern: str, why: str
) -> None:
    status, _, errors = redoma("run", "-o", pattern, "1")
    assert (status, why in errors, "100 patterns" in errors) == (2, True, False)


def test_too_many_patterns_are_counted(redoma: InProcess) -> None:
    status, _, errors = redoma("run", *(word for number in range(101) for word in ("-o", str(number))), "1")
    assert (status, "101 patterns say which files to bring back: there may be 100" in errors) == (2, True)
