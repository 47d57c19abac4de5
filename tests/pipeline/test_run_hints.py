"""A run that failed says which limit it may have met, and how to get a package that is missing; and following that
helps."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

import redoma
from redoma import Executor, Result, Status

LIMITS = {"disk": 1 << 20, "files": 50, "open_files": 32, "file_size": 1 << 20, "processes": 10}
BYTES = "for i in range(15): open(f'x{i}', 'wb').write(bytes(100_000))"
REACHED = {
    "disk": ("python", BYTES),
    "files": ("python", "for i in range(80): open(f'x{i}', 'wb').close()"),
    "open_files": ("python", "kept = [open('/dev/null') for _ in range(40)]"),
    "file_size": ("bash", "head -c 1500000 /dev/zero > x"),
    "processes": (
        "python",
        "import threading, time\nfor _ in range(15): threading.Thread(target=time.sleep, args=(1,)).start()",
    ),
    "a disk that was full before another error": (
        "python",
        f"try:\n {BYTES}\nexcept OSError as e: raise ValueError from e",
    ),
    "a disk, in Bash": ("bash", "for i in {1..15}; do head -c 100000 /dev/zero > x$i; done; exit 1"),
}


def asked_for(hint: str) -> dict[str, Any]:
    """The limits that a hint says to ask for."""
    return {
        name: value
        for found in re.findall(r"limits=(\{.+?\})", hint)
        for name, value in ast.literal_eval(found).items()
    }


@pytest.mark.parametrize("name", REACHED)
def test_a_limit_is_named_with_its_value_and_asking_for_more_helps(name: str) -> None:
    language, code = REACHED[name]
    result = redoma.run(code, language, limits=LIMITS)
    assert result.status is Status.ERROR
    (hint,) = result.hints
    assert f"hint: {hint}" in result.to_text()
    assert result.denial is None  # what a run prints decides nothing
    more = asked_for(hint)
    assert more
    assert all(value == 2 * LIMITS[limit] for limit, value in more.items())
    assert redoma.run(code.replace("exit 1", ""), language, limits={**LIMITS, **more}).ok


def test_in_a_session_the_session_is_to_ask_for_more(session_executor: Executor) -> None:
    with session_executor.session(limits={"disk": 1 << 20}) as session:
        (hint,) = session.run(BYTES).hints
    assert "redoma.Session(limits={'disk': 2097152})" in hint
    with session_executor.session(limits=asked_for(hint)) as session:
        assert session.run(BYTES).ok


def test_a_command_that_a_full_disk_keeps_from_starting_does_not_end_its_session(session_executor: Executor) -> None:
    with session_executor.session(limits={"disk": 1 << 20}) as session:
        session.run(BYTES)
        session.run("open('y', 'wb').write(bytes(1 << 20))")
        result = session.command("echo " + "x" * 100_000)
        assert (result.status, session.alive) == ("error", True)
        assert result.error == "could not start bash: No space left on device"
        assert "redoma.Session(limits={'disk': 2097152})" in result.hints[0]
        assert session.run("6 * 7").value == 42


def test_on_the_host_a_full_disk_is_no_limit_of_the_run() -> None:
    code = "raise OSError(28, 'No space left on device')"
    assert redoma.run(code).hints
    assert redoma.run(code, backend="native").hints == ()


def test_a_package_that_is_missing_is_named_if_it_is_known() -> None:
    (hint,) = missing("flask").hints
    assert "packages=['flask'] (`--package flask`)" in hint
    assert "`redoma env create NAME flask`" in hint


def test_the_package_of_another_module_is_not_guessed() -> None:
    (hint,) = missing("cv2").hints
    assert "the package that has it" in hint
    assert "packages=['cv2']" not in hint
    assert "files=['cv2.py']" in hint


def missing(module: str) -> Result:
    return redoma.run(f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')")


def test_what_no_package_has_gets_no_hint() -> None:
    assert missing("tkinter").hints == ()
    assert redoma.run("print('ModuleNotFoundError: No module named \\'flask\\'')").hints == ()


def test_a_session_says_how_to_get_packages(session_executor: Executor) -> None:
    with session_executor.session() as session:
        (hint,) = session.run("import flask_is_not_here").hints
    assert "redoma.Session(environment='NAME')" in hint
    assert "packages=[" not in hint  # a session installs nothing


def test_an_install_in_a_cell_says_what_installs() -> None:
    result = redoma.run("pip install six; exit 1", "bash")
    assert any("--package x" in hint and "redoma env create" in hint for hint in result.hints)
