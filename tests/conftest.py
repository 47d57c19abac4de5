"""What every test gets: a home and a state directory of its own, so that none touches the user's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redoma import Config, sync
from redoma.backends.jail import cgroup
from redoma.config import AuditConfig


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("XDG_", "REDOMA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(audit=AuditConfig(directory=tmp_path / "state" / "audit"))


@pytest.fixture
def redoma_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real program, as a person types it."""

    def call(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("redoma")
        settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": 60, "check": False}
        return subprocess.run([str(program), *arguments], **{**settings, **options})  # type: ignore[call-overload, no-any-return]

    return call


def descendants() -> set[int]:
    """Every live process below this one."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
                new = {int(child) for child in children} - found
                found |= new
                todo.extend(new)
        except FileNotFoundError:
            continue
    return found


def scratch_directories() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("redoma-")}


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """No process and no scratch directory outlives the test."""
    before = descendants(), scratch_directories()
    yield
    deadline = time.monotonic() + 3  # monty's pool reaps the worker it kept warm a moment after it is closed
    while not descendants() <= before[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert descendants() <= before[0], "a process was left behind"
    assert scratch_directories() <= before[1], "a scratch directory was left behind"


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind_by_all_tests_together() -> Iterator[None]:
    """The whole run leaves neither a scratch directory nor a process, whichever test forgot to look."""
    before = scratch_directories()
    yield
    if sync._default is not None:  # the shared executor keeps cells armed until the process ends
        sync._default[1].close()
    if isinstance(groups := cgroup.find(), cgroup.Cgroups):
        groups.sweep()  # of parents that a test has killed outright: as the next Redoma would
    assert scratch_directories() <= before
    deadline = time.monotonic() + 3
    while descendants() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert descendants() == set()
