"""`bash -n` on text that nobody has reviewed: in a cell or, where there is none, with next to no rights."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from redoma.backends.jail import JailBackend
from redoma.lib.errors import BackendError, BackendUnavailable
from redoma.scripts import ScriptValidator, bash_syntax
from redoma.scripts.bash_syntax import Bash

ROOT = os.geteuid() == 0


@pytest_asyncio.fixture(params=["in a cell", "on the host"])
async def bash(request: pytest.FixtureRequest) -> AsyncIterator[Bash]:
    asked = Bash()
    asked._without_cells = request.param == "on the host"
    yield asked
    await asked.aclose()


@pytest.fixture
def on_the_host() -> Bash:
    asked = Bash()
    asked._without_cells = True
    return asked


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The first directory of the PATH, which others may enter."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    yield directory
    shutil.rmtree(directory)


def stand_in(place: Path, text: str) -> None:
    """What Bash would be if a text had taken it over. With what is built into a shell, since nothing can be started."""
    (place / "bash").write_text(f"#!/bin/sh\n{text}")
    (place / "bash").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "line"), [("echo 1\n)", 2), ("[[ ( [[ (", 1), ("a=(1 2", 1), ("case x in\n", 2), ("f() {", 2)]
)
async def test_bash_says_where_it_can_not_go_on(bash: Bash, script: str, line: int) -> None:
    problem = await bash.objection(script)  # the second ends with 0 and says so all the same
    assert problem is not None
    assert (problem.rule, problem.line) == ("script.bash-syntax", line)
    assert problem.reason.startswith("Bash says: ")


@pytest.mark.parametrize("script", ["$(" * 3000, "((" * 4000])
async def test_a_text_that_crashes_bash_is_refused(bash: Bash, script: str) -> None:
    problem = await bash.objection(script)
    assert problem is not None
    assert problem.rule == "script.bash-syntax"


async def test_bash_executes_nothing_and_reads_no_startup_file(
    bash: Bash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = [tmp_path / name for name in ("run", "sourced")]
    (tmp_path / ".bashrc").write_text(f"echo > {marks[1]}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BASH_ENV", str(tmp_path / ".bashrc"))
    monkeypatch.setenv("BASH_FUNC_echo%%", "() { )")
    script = f"set +n\necho > {marks[0]}\n: $(echo > {marks[0]})\n[[ -v a[$(echo > {marks[0]})] ]]"
    assert await bash.objection(script) is None
    assert not [mark for mark in marks if mark.exists()]


@pytest.mark.usefixtures("nothing_left_behind")
async def test_where_there_are_cells_no_process_of_the_host_reads_it(place: Path) -> None:
    stand_in(place, f"echo > {place}/run; exit 1")
    asked = Bash()
    try:
        assert await asked.objection("echo 1") is None
        assert await asked.objection("fi") is not None
    finally:
        await asked.aclose()
    assert os.listdir(place) == ["bash"]


async def test_a_jail_that_is_not_there_is_not_tried_again_and_one_that_fails_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[type[BackendError]] = []
    for kind in (BackendError, BackendError, BackendUnavailable, BackendUnavailable):

        async def fail(*_: object, kind: type[BackendError] = kind) -> None:
            tried.append(kind)
            raise kind("no cell")

        monkeypatch.setattr(JailBackend, "run", fail)
        if not tried:
            asked = Bash()
        assert await asked.objection("echo 1") is None
        assert await asked.objection("echo 1\n)") is not None
    assert tried == [BackendError] * 4 + [BackendUnavailable]


# On the host


HOSTILE = """
while read name value _; do
    case $name in Uid:|Gid:|CapEff:|Groups:) seen="$seen $name$value" ;; esac
done < /proc/$$/status
trap '' XFSZ
echo written 2>/dev/null > {open}/written && seen="$seen wrote"
echo "bash: line 1:$seen; $PWD; $SECRET$HOME" >&2
(echo > {open}/forked)  # which ends this shell, if it can't
echo > {open}/after
"""


@pytest.mark.skipif(not ROOT, reason="only root has rights to give up")
async def test_on_the_host_bash_has_no_rights_starts_nothing_and_writes_nothing(
    on_the_host: Bash, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (everybodys := place / "open").mkdir()
    everybodys.chmod(0o1777)
    monkeypatch.setenv("SECRET", "x")
    stand_in(place, HOSTILE.format(open=everybodys))
    problem = await on_the_host.objection("echo 1")
    assert problem is not None
    uid, gid = (f"{name}65534" for name in ("Uid:", "Gid:"))
    assert problem.reason.rstrip() == f"Bash says: {uid} {gid} Groups: CapEff:0000000000000000; /;"
    assert os.listdir(everybodys) == ["written"]  # what everybody may make a file in, it may, too
    assert (everybodys / "written").read_text() == ""


async def test_a_text_that_bash_takes_too_long_for_is_refused(
    on_the_host: Bash, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(place, "exec sleep 60")
    monkeypatch.setattr(bash_syntax, "SECONDS", 1)
    problem = await on_the_host.objection("echo 1")
    assert problem is not None
    assert "too long" in problem.reason


async def test_a_bash_that_can_not_be_started_is_an_objection(on_the_host: Bash, place: Path) -> None:
    (place / "bash").write_bytes(b"\x7fELF nonsense")
    (place / "bash").chmod(0o755)
    problem = await on_the_host.objection("echo 1")
    assert problem is not None
    assert "Bash can't" in problem.reason


def test_limits_that_are_lower_already_are_no_obstacle() -> None:
    code = (
        "import asyncio, resource\n"
        "from redoma.scripts.bash_syntax import Bash\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (3, 3))\n"
        "bash = Bash()\n"
        "bash._without_cells = True\n"
        "print(asyncio.run(bash.objection('echo 1')), asyncio.run(bash.objection('fi')).reason)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("None Bash says: syntax error")
    assert resource.getrlimit(resource.RLIMIT_CPU)[1] != 3


async def test_a_relative_directory_of_the_path_is_not_searched(
    on_the_host: Bash, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    stand_in(place, f"echo > {place}/run; exit 1")
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", f".::{place.name}:/usr/bin:/bin")
    assert await on_the_host.objection("echo 1") is None
    assert os.listdir(place) == ["bash"]


def test_where_there_is_no_bash_the_tree_decides(
    on_the_host: Bash, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    validator = ScriptValidator(bash=on_the_host)
    assert validator.validate("echo one", "bash").valid
    assert validator.validate("echo 'open", "bash").layer == "syntax"


async def test_a_validator_can_be_used_where_a_loop_runs_and_leaves_nothing(nothing_left_behind: None) -> None:
    assert ScriptValidator().validate("echo one", "bash").valid
    assert ScriptValidator().validate("echo 1\n)", "bash").layer == "syntax"
