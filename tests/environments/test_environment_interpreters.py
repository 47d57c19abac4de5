"""Environments for another interpreter of this machine than the one that Redoma runs on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from package_index import PackageIndex

from redoma import AsyncSession, Executor, InvalidRequest
from redoma.environments import Environment, Store
from redoma.environments.interpreters import describe
from redoma.policy import fingerprint


def another() -> str | None:
    """The newest interpreter of this machine that cells can run on, of another version than this."""
    beside = [str(path) for path in Path(os.path.realpath(sys.base_prefix)).parent.glob("3.*/bin/python3")]
    named = [path for minor in range(11, 20) if (path := shutil.which(f"python3.{minor}"))]
    newest_first = sorted([*beside, *named], key=lambda path: [*map(int, re.findall(r"\d+", path))], reverse=True)
    for path in newest_first:
        with contextlib.suppress(InvalidRequest):
            found = describe(path)
            if found is not None and found.interpreter.version != f"python3.{sys.version_info[1]}":
                return path
    return None


@pytest.fixture(scope="module")
def other(jail: Executor, index: PackageIndex) -> Environment:
    """One environment for the tests that only use it, on the newest interpreter that is there."""
    if (found := another()) is None:
        pytest.skip("there is no CPython of another version, 3.11 or later, on this machine")
    return jail.create_environment("other", ["greeting"], python=found)


def store(executor: Executor) -> Store:
    assert executor.core.config.state is not None
    return Store(executor.core.config.state / "environments")


def minor(environment: Environment) -> int:
    assert environment.interpreter is not None
    return int(environment.interpreter.version.partition(".")[2])


async def test_code_commands_and_sessions_run_on_it_with_all_layers(jail: Executor, other: Environment) -> None:
    code = "import greeting, sys; {'version': sys.version_info[:2], 'word': greeting.word}"
    result = await jail.core.run(code, environment="other")
    assert result.value == {"version": (3, minor(other)), "word": "hello"}, result.stderr
    plain = await jail.core.run("import sys; sys.version_info[:2]")
    assert plain.value == sys.version_info[:2], "the control: without the environment"
    assert result.isolation.layers == plain.isolation.layers
    assert result.isolation.missing == plain.isolation.missing
    inner = ["python", "-c", "import sys, greeting; print(sys.version_info[1])"]
    done = await jail.core.command(inner, environment="other")
    assert done.stdout == f"{minor(other)}\n", done.stderr
    async with AsyncSession(jail.core, environment="other") as session:
        await session.run("import sys; kept = [sys.version_info[1]]")
        (copy,) = await session.fork(1)
        async with copy:
            assert (await copy.run("kept")).value == [minor(other)]


def test_its_directory_is_seen_read_only_and_nothing_beside_it(jail: Executor, other: Environment) -> None:
    assert other.interpreter is not None
    code = f"""
import os, sys
try:
    open(os.path.join(os.path.dirname(os.__file__), "os.py"), "a")
    print("written")
except OSError:
    print("refused")
print(os.path.exists({str(Path(other.interpreter.prefix).parent)!r}))
"""
    expected = "refused\nFalse\n" if not other.interpreter.prefix.startswith("/usr") else "refused\nTrue\n"
    assert jail.run(code, environment="other").stdout == expected


def test_an_approval_is_bound_to_the_interpreter(jail: Executor, other: Environment) -> None:
    request = jail.core.prepare_code("1", "python", {"environment": "other"}).request
    assert request.uses is not None
    assert other.interpreter is not None
    moved = msgspec.structs.replace(other.interpreter, path="/elsewhere/python3")
    changed = msgspec.structs.replace(request, uses=msgspec.structs.replace(request.uses, interpreter=moved))
    assert fingerprint(changed) != fingerprint(request)
    assert other.interpreter.path in request.uses.words, "a person sees which one"


def test_code_that_only_it_can_read_is_unread_and_no_syntax_error(jail: Executor, other: Environment) -> None:
    if minor(other) < 12 or sys.version_info >= (3, 12):
        pytest.skip("needs an interpreter of 3.12 or later beside one before it")
    code = "type Number = int\nprint(f'{'new'}')"
    result = jail.run(code, environment="other")
    assert result.stdout == "new\n", result.stderr
    assert [finding.rule for finding in result.evaluation.findings] == ["source.unread"]
    refused = jail.run(code, environment="other", policy="script")
    assert "python.syntax" not in {finding.rule for finding in refused.evaluation.findings}
    plain = jail.run(code, policy="script")
    assert "python.syntax" in {finding.rule for finding in plain.evaluation.findings}, "the control"


def test_another_program_in_its_place_is_not_taken_for_it(jail: Executor, other: Environment) -> None:
    assert other.interpreter is not None
    changed = msgspec.structs.replace(other.interpreter, identity=(0, 0, 0, 0))
    store(jail).put(msgspec.structs.replace(other, name="replaced", interpreter=changed))
    with pytest.raises(InvalidRequest, match="has changed or is gone"):
        jail.run("1", environment="replaced")
    assert jail.update_environment("replaced").interpreter == other.interpreter
    assert jail.run("import greeting; greeting.word", environment="replaced").value == "hello"


def test_a_name_is_for_one_interpreter(jail: Executor, other: Environment) -> None:
    assert other.interpreter is not None
    assert jail.create_environment("other", ["greeting"], python=other.interpreter.path) == other
    with pytest.raises(InvalidRequest, match="there is an environment other already"):
        jail.create_environment("other", ["greeting"])


def test_the_one_that_redoma_runs_on_is_no_other() -> None:
    assert describe(sys.executable) is None


ANSWER = {
    "name": "cpython", "version": [3, 12], "gil": True, "tag": "cpython-312-linux-x86_64", "prefix": "/usr",
    "executable": "/usr/bin/python3", "library": "", "pip": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"version": [3, 10]}, "it is Python 3.10"),
        ({"name": "pypy"}, "it is pypy"),
        ({"gil": False}, "free-threaded"),
        ({"prefix": "/"}, "all of which runs would see"),
        ({"prefix": "HOME", "executable": "HOME/bin/python3"}, "all of which runs would see"),
        ({"prefix": "/opt/other"}, "all of which runs would see"),
        ({"version": "3.12"}, "doesn't answer"),
        (None, "doesn't answer"),
    ],
)
def test_one_that_can_not_run_in_cells_is_refused(
    redoma: Callable[..., tuple[int, str, str]], tmp_path: Path, said: dict[str, object] | None, why: str
) -> None:
    answer = json.dumps({**ANSWER, **said}).replace("HOME", os.path.realpath(os.environ["HOME"])) if said else "hello"
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    status, _, err = redoma("env", "create", "x", "greeting", "--python", str(program))
    assert status == 2
    assert f"the interpreter {program} can't be used" in err
    assert why in err


def test_one_that_there_is_not_is_told(redoma: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = redoma("env", "create", "x", "greeting", "--python", "python3.99")
    assert status == 2
    assert "there is no such program" in err
