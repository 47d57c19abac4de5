"""At a real terminal: only a `yes` typed after all was shown is one, and nothing shown can pretend to be ours."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from approval_stage import START, Stage, case_of, effect_of

from redoma.approval import Console, describe
from redoma.approval.ask import ask_of
from redoma.models import Change, Version
from redoma.workspace.diffs import too_long

CHILD = Path(__file__).with_name("approval_child.py")
QUESTION, WHY = b"anything else is no: ", b"Why, for the record: "


class Terminal:
    """Somebody who sits at a terminal where a program runs."""

    def __init__(self, directory: Path, *more: str) -> None:
        """Its standard input and output are pipes: all that it has of the terminal is that it is its own."""
        (inside, self._go), (self._answer, outside) = os.pipe(), os.pipe()
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.dup2(inside, 0)
                os.dup2(outside, 1)
                os.closerange(3, 256)
                command = [sys.executable, str(CHILD), "console", str(directory), *more]
                os.execv(sys.executable, command)  # noqa: S606 - ours
            finally:
                os._exit(1)
        os.close(inside)
        os.close(outside)
        self.shown = b""

    def begin(self) -> None:
        os.write(self._go, b"\n")

    def until(self, text: bytes) -> None:
        while text not in self.shown:
            self.shown += os.read(self._master, 65536)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def hang_up(self) -> None:
        os.close(self._master)
        self._master = -1

    def answer(self) -> str:
        with os.fdopen(self._answer, "rb", closefd=False) as pipe:
            return pipe.read().decode().strip()

    def close(self) -> None:
        os.close(self._go)
        os.close(self._answer)
        if self._master >= 0:
            os.close(self._master)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.close()


def test_a_yes_that_is_typed_in_full_is_one_and_its_reason_is_kept(terminal: Terminal) -> None:
    terminal.begin()
    terminal.until(QUESTION)
    terminal.type(b"yes\n")
    terminal.until(WHY)
    terminal.type(b"I know it\n")
    assert terminal.answer() == "None|I know it"


@pytest.mark.parametrize(
    "keys", [b"\n", b"y\n", b"YES\n", b"yes please\n", b" yes\n", b"no\n", b"\x04", b"yes\x04\x04"]
)
def test_anything_else_is_no(terminal: Terminal, keys: bytes) -> None:
    terminal.begin()
    terminal.until(QUESTION)
    terminal.type(keys)
    assert terminal.answer().startswith("denied|typed ")


def test_what_was_typed_before_the_question_answers_nothing(terminal: Terminal) -> None:
    terminal.type(b"yes\nyes\n")
    terminal.until(b"yes\r\nyes\r\n")  # it has echoed: the keys wait for whoever reads
    terminal.begin()
    terminal.until(QUESTION)
    terminal.type(b"no\n")
    assert terminal.answer() == "denied|typed 'no'"


def test_a_terminal_that_is_hung_up_is_no(terminal: Terminal) -> None:
    terminal.begin()
    terminal.until(QUESTION)
    terminal.hang_up()
    assert not terminal.answer().startswith("None")


def test_nothing_that_is_shown_moves_the_cursor_hides_or_looks_like_ours(terminal: Terminal) -> None:
    terminal.begin()
    terminal.until(QUESTION)
    terminal.type(b"no\n")
    terminal.answer()
    text = terminal.shown.decode()
    odd = [char for char in text if not char.isprintable() and char not in "\r\n\t"]
    assert odd == []
    assert not re.search("\r(?!\n)", text)  # the terminal's own line ends, and no others
    assert not any(char in text for char in "\u202e\u200b\x9b")
    for escape in (r"\x1b[2J", r"\u202e", r"\r--- redoma", r"\x9b", r"\u200b"):
        assert escape in text
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("---")] == ["--- redoma: a person has to approve this ---"]
    assert "  | pip install requests" in lines
    assert "risks, by policy standard:" in lines
    assert any("prompt" in line and "install" in line for line in lines)


def test_where_there_is_no_terminal_nobody_is_asked(tmp_path: Path) -> None:
    command = [sys.executable, str(CHILD), "console", str(tmp_path)]
    done = subprocess.run(
        command, input="yes\nyes\n", capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout.startswith(
        "denied|a person has to approve this, and nobody can be asked here: there is no terminal"
    )


def test_in_the_background_of_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    """To read there would stop us; and whoever sits there is talking to another program."""
    script = (
        "import subprocess, sys; print(subprocess.run(sys.argv[1:], input='yes\\n', capture_output=True, text=True,"
        " process_group=0).stdout, file=open(4, 'w'))"
    )
    told, tell = os.pipe()
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.dup2(tell, 4)
            command = [sys.executable, "-c", script, sys.executable, str(CHILD), "console", str(tmp_path)]
            os.execv(sys.executable, command)  # noqa: S606 - ours
        finally:
            os._exit(1)
    os.close(tell)
    with os.fdopen(told) as pipe:
        said = pipe.read()
    os.close(master)
    os.waitpid(pid, 0)
    assert "Redoma runs in the background of this terminal" in said


def shown_of(**fields: object) -> tuple[str, bool]:
    case = case_of(**fields)  # type: ignore[arg-type]
    return describe(ask_of(case, b"key", id="1" * 32, created=START, expires=START))


def test_what_is_too_long_to_be_read_is_not_whole() -> None:
    assert shown_of(code="pip install a\n" + "#\n" * 200_000)[1] is False
    assert shown_of(files={"a": b"x" * 200_000})[1] is False
    text, whole = shown_of()
    assert whole
    assert "  | pip install requests" in text


def test_an_effect_is_shown_with_every_change_and_its_diff() -> None:
    effect = effect_of(refused={"dev": "a device"})
    text, _ = shown_of(effect=effect)
    assert "effect on /srv/app: 1 changes" in text
    assert "added     a.txt  nothing -> 3 bytes, mode 644" in text
    assert "  | +new" in text
    assert "left out  dev: a device" in text


def test_what_is_too_long_to_be_read_is_denied_without_a_question(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "long")
    terminal.begin()
    terminal.until(b"too long to be shown here")
    assert terminal.answer() == "denied|not all of it can be shown at a prompt"
    assert QUESTION not in terminal.shown
    terminal.close()


def _file(content: str, size: int = 3) -> Version:
    return Version(kind="file", mode=0o644, size=size, sha256=content * 64)


SEEN = {
    "text": Change(path="a", after=_file("1"), diff="+new\n+\\ Too long to show: this\n"),
    "an empty file": Change(path="a", after=_file("1", 0)),
    "a mode": Change(path="a", before=_file("1"), after=msgspec.structs.replace(_file("1"), mode=0o755)),
    "a move": Change(path="a", old_path="b", before=_file("1"), after=_file("1")),
    "a directory": Change(path="a", after=Version(kind="directory", mode=0o755)),
    "a link": Change(path="a", after=Version(kind="symlink", target="b")),
}
UNSEEN = {
    "no text": Change(path="a", before=_file("1"), after=_file("2")),
    "a new file that is not text": Change(path="a", after=_file("2")),
    "one that is gone": Change(path="a", before=_file("2")),
    "too long": Change(path="a", after=_file("2"), diff=too_long("a", "9 bytes", is_new=True, is_gone=False)),
}


@pytest.mark.parametrize("name", [*SEEN, *UNSEEN])
def test_an_effect_is_whole_where_every_content_is_shown(name: str) -> None:
    """What is not shown has its digest, by which it can be looked for."""
    change = {**SEEN, **UNSEEN}[name]
    case = case_of(effect=effect_of(changes=(change,)))
    shown = describe(ask_of(case, b"", id="1" * 32, created=START, expires=START))
    assert shown.whole is (name in SEEN)
    assert ("sha256 " + "2" * 64 in shown.text) is (name in UNSEEN)


def test_an_effect_with_too_much_to_read_is_not_whole() -> None:
    changes = tuple(Change(path=f"a{n}", after=_file("1"), diff="+x\n" * 20_000) for n in range(2))
    shown = describe(ask_of(case_of(effect=effect_of(changes=changes)), b"", id="1" * 32, created=START, expires=START))
    assert not shown.whole


async def test_a_question_that_waits_behind_another_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is asked first may take their time: the lock stands for them."""
    turn = threading.Lock()
    monkeypatch.setattr("redoma.approval.console.one_at_a_time", turn)
    ask = ask_of(case_of(), b"", id="1" * 32, created=START, expires=START)
    with turn:
        second = asyncio.ensure_future(Console("bob", Stage(tmp_path).ledger).decide(ask))
        await asyncio.sleep(0.2)
        second.cancel()
        done, _ = await asyncio.wait([second], timeout=60)
    assert done
    assert second.cancelled()
