"""`redoma config`, typed as a person would, also where the project is hostile."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]

REDOMA = str(Path(sys.executable).with_name("redoma"))
LOOSER = "limits: {time: 60}\n"
OFF = "policy: {pack: none}\n"
QUESTION = "Trust exactly this content?"


def read_until(fd: int, wanted: str) -> str:
    """What comes out of a terminal until it says this, or until the program has closed it."""
    seen, deadline = b"", time.monotonic() + 30
    while wanted.encode() not in seen:
        assert select.select([fd], [], [], max(0, deadline - time.monotonic()))[0], f"no {wanted!r} in {seen!r}"
        try:
            chunk = os.read(fd, 4096)
        except OSError:  # Linux says EIO, not end of file, once the other side of a terminal is closed
            break
        if not chunk:
            break
        seen += chunk
    return seen.decode()


def trust_on_a_terminal(
    cwd: Path, *options: str, meanwhile: Callable[[], object] = lambda: None
) -> tuple[int, str, str]:
    """Answer y after something has happened: the exit code, and what was on the screen before and after."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [REDOMA, "config", "trust", *options], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        try:
            before = read_until(ours, QUESTION)
            meanwhile()
            os.write(ours, b"y\n")
            after = read_until(ours, "a text that never comes")
        finally:
            os.close(ours)
        return process.wait(timeout=30), before, after


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def trusted_contents() -> list[str]:
    listed = Path(os.environ["HOME"], ".local/state/redoma/trusted.json")
    return list(json.loads(listed.read_text())["files"].values()) if listed.exists() else []


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_trust_shows_what_it_is_about_to_record(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "redoma.yaml").write_text(LOOSER)
    code, before, _ = trust_on_a_terminal(tmp_path, *options)
    assert code == 0
    assert "raises limits.time from 30.0 to 60.0" in before
    assert digest(LOOSER) in before
    assert trusted_contents() == [digest(LOOSER)]


def test_content_that_came_while_the_question_waited_is_not_trusted(redoma_command: Command, tmp_path: Path) -> None:
    file = tmp_path / "redoma.yaml"
    file.write_text(LOOSER)
    code, before, after = trust_on_a_terminal(tmp_path, meanwhile=lambda: file.write_text(OFF))
    assert code == 125
    assert "limits.time" in before
    assert "changed since it was shown" in after
    assert trusted_contents() == []
    assert redoma_command("check", "--lang", "bash", "rm -rf /", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("n\n", 1, "It is not trusted; nothing was changed.\n"),
        ("\n", 1, "It is not trusted; nothing was changed.\n"),
        (
            "",
            2,
            "\nredoma: nobody answered the question, and nothing was changed: standard input has ended\n"
            "  next: add --yes to trust it without a question\n",
        ),
    ],
)
def test_no_answer_but_yes_trusts_anything(
    redoma_command: Command, tmp_path: Path, answer: str, status: int, said: str
) -> None:
    (tmp_path / "redoma.yaml").write_text(LOOSER)
    done = redoma_command("config", "trust", cwd=tmp_path, input=answer)
    assert (done.returncode, done.stderr) == (status, f"{QUESTION} [y/N]: {said}")
    assert trusted_contents() == []
    assert redoma_command("config", "trust", "--yes", cwd=tmp_path, input="").returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "namespace: app\nentries:\n  - kind: exec.native\n    name: *a\n",
        "policy:\n  rules:\n    - {id: app.x, decision: *a, reason: y, command: [z]}\n",
        "policy:\n  rules:\n    - ~\n",
        'namespace: app\nentries:\n  - {kind: exec.native, name: a, command_whitelist: ["echo \'x"]}\n',
    ],
)
def test_no_project_file_makes_a_command_end_in_a_traceback(redoma_command: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "redoma.yaml").write_text(text)
    run, checked = redoma_command("run", "1", cwd=tmp_path), redoma_command("config", "check", cwd=tmp_path)
    assert (run.returncode, checked.returncode) == (125, 1)
    assert "Traceback" not in run.stderr + checked.stderr
    assert f"redoma.yaml:{len(text.splitlines())}:" in checked.stdout


@pytest.mark.parametrize(
    "command", [("check",), ("trust", "--yes"), ("untrust",), ("show",)], ids=lambda command: command[0]
)
def test_control_characters_in_the_name_of_a_directory_do_not_reach_the_terminal(
    redoma_command: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    hostile = tmp_path / "\x1b]0;title\x07"  # not a colour code, which click itself would take out of a pipe
    hostile.mkdir()
    (hostile / "redoma.yaml").write_text("audit: {directory: log}\n")
    if command != ("trust", "--yes"):
        redoma_command("config", "trust", "--yes", cwd=hostile)
    done = redoma_command("config", *command, cwd=hostile)
    assert (done.returncode, done.stderr) == (0, "")
    assert "title" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()


def test_a_notice_about_a_hostile_project_holds_no_control_characters(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "redoma.yaml").write_text('audit: {directory: "\\e]0;title\\a"}\n')
    done = redoma_command("config", "show", cwd=tmp_path)
    assert "title" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()
