"""Ordinary programs, written by people who never heard of a jail, run in it unchanged.

Each is data (`ordinary_*.py`): the code, and everything that must come of it to the letter. Nothing is printed that
a program didn't print outside, no warning more, and the default limits are enough.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redoma import Config, Executor, Result, Status
from redoma.backends.jail import JailBackend
from redoma.config import AuditConfig

from . import (
    ordinary_endings,
    ordinary_files,
    ordinary_language,
    ordinary_parallel,
    ordinary_science,
    ordinary_shell,
    ordinary_sockets,
)
from .ordinary_program import Program, Text

HEAVY = (
    *ordinary_science.PROGRAMS,
    *ordinary_parallel.PROGRAMS,
    *ordinary_sockets.PROGRAMS,
    *ordinary_files.PROGRAMS,
)
"""Those that fork, share and map."""
PROGRAMS = (
    *HEAVY,
    *ordinary_language.PROGRAMS,
    *ordinary_endings.PROGRAMS,
    *ordinary_shell.PROGRAMS,
)
ANY_KERNEL = {program.name for group in (ordinary_science, ordinary_language) for program in group.PROGRAMS}
"""Those that compute: they ask the kernel for nothing that the others don't."""
WARM = ("numpy", "pandas", "matplotlib.pyplot")


def _executor(state: Path, **options: Any) -> Executor:
    return Executor(Config(audit=AuditConfig(directory=state / "audit")), backends=[JailBackend(**options)])


@pytest.fixture(scope="module")
def jail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with _executor(tmp_path_factory.mktemp("jail")) as executor:
        yield executor


@pytest.fixture(scope="module")
def watched_jail(jail: Executor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """As on a host that gives us no cgroup: the cell's init sums up its memory, and the filter is stricter."""
    if "watched" in jail.run("1", policy="none", backend="jail").isolation.layers["memory"]:
        pytest.skip("this is such a host: the other tests are the same")
    with _executor(tmp_path_factory.mktemp("watched"), without=["memory"]) as executor:
        yield executor


@pytest.fixture(scope="module")
def warm_jail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """One whose cells have the scientific packages imported before a program is known."""
    with _executor(tmp_path_factory.mktemp("warm"), preload=WARM) as executor:
        yield executor


def _run(executor: Executor, program: Program) -> Result:
    options: dict[str, Any] = {
        "policy": "none",
        "backend": "jail",
        "stdin": program.stdin,
        "env": program.env,
        "files": program.files,
        "outputs": program.outputs,
        "limits": {"time": 300.0},  # a deadline for a program that hangs, not for a machine that is busy
    }
    if program.language == "command":
        return executor.command(program.argv, **options)
    return executor.run(program.code, program.language, **options)


def _fits(wanted: Text, text: str) -> bool:
    match wanted:
        case None:
            return True
        case re.Pattern():
            return wanted.fullmatch(text) is not None
    return wanted == text


def _check(program: Program, result: Result) -> None:
    expect = program.expect
    told = f"{result.status}, {result.exit_code}, {result.error}\n{result.stdout}\n--- stderr\n{result.stderr}"
    assert (result.status, result.exit_code) == (expect.status, expect.exit_code), told
    assert _fits(expect.stdout, result.stdout), told
    assert _fits(expect.stderr, result.stderr), told
    assert expect.error in (result.error or ""), told
    assert sorted(result.files) == sorted(expect.files), result.left_out
    for path, content in expect.files.items():
        assert content(result.files[path]) if callable(content) else content == result.files[path], path
    match expect.value:
        case msgspec.UnsetType():
            return
        case re.Pattern():
            assert expect.value.fullmatch(result.value), result.value
        case _:
            # By its text: 1, 1.0 and True are equal to each other, and nan is not even equal to itself.
            assert repr(result.value) == repr(expect.value)


def _check_on_this_host(executor: Executor, program: Program) -> None:
    if missing := [name for name in program.needs if shutil.which(name) is None]:
        pytest.skip(f"this host has no {', '.join(missing)}")
    result = _run(executor, program)
    if program.shares_memory and "watched" in result.isolation.layers["memory"]:
        assert (result.status, result.exception) == (Status.ERROR, "PermissionError")
    else:
        _check(program, result)


def _each(programs: Iterable[Program]) -> pytest.MarkDecorator:
    marks = {True: [pytest.mark.any_kernel], False: []}
    cases = [pytest.param(each, id=each.name, marks=marks[each.name in ANY_KERNEL]) for each in programs]
    return pytest.mark.parametrize("program", cases)


@_each(PROGRAMS)
def test_it_runs_unchanged(jail: Executor, program: Program) -> None:
    _check_on_this_host(jail, program)


@_each(HEAVY)
def test_it_runs_unchanged_where_no_cgroup_counts_its_memory(watched_jail: Executor, program: Program) -> None:
    _check_on_this_host(watched_jail, program)


@pytest.mark.any_kernel
@_each(program for program in PROGRAMS if program.preload)
def test_it_does_not_notice_that_its_packages_were_warm(warm_jail: Executor, program: Program) -> None:
    assert set(program.preload) <= set(WARM)
    _check(program, _run(warm_jail, program))


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 60


_DRAWS = """
import os, random, secrets, tempfile, uuid
import numpy
{
    "numpy": float(numpy.random.rand()),
    "random": random.random(),
    "secrets": secrets.token_hex(),
    "tempfile": tempfile.mktemp(),
    "urandom": os.urandom(8),
    "uuid": uuid.uuid4().hex,
}
"""


@pytest.mark.any_kernel
@pytest.mark.parametrize("packages", ["cold", "warm"])
def test_no_two_runs_draw_the_same_random_numbers(packages: str, jail: Executor, warm_jail: Executor) -> None:
    """Every cell is a copy of one warm interpreter, whose generators were seeded long ago."""
    executor = warm_jail if packages == "warm" else jail
    runs = [executor.run(_DRAWS, policy="none", backend="jail", limits={"time": 300.0}) for _ in range(4)]
    assert [run.status for run in runs] == [Status.OK] * 4, runs[0].error
    for source in runs[0].value:
        drawn = [run.value[source] for run in runs]
        assert len(set(drawn)) == 4, f"{source} repeats itself: {drawn}"


def test_the_host_name_is_not_the_hosts(jail: Executor) -> None:
    for result in (
        jail.command(["hostname"], policy="none", backend="jail"),
        jail.command(["uname", "-n"], policy="none", backend="jail"),
        jail.run("import socket; print(socket.gethostname())", policy="none", backend="jail"),
    ):
        assert result.status is Status.OK, result.error
        assert result.stdout.strip() not in ("", socket.gethostname())
