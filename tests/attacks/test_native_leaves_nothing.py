"""Native is no boundary, but it promises that nothing of a run outlives it, and that a scratch directory goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from redoma import Config, Executor, Status
from redoma.lib.files import remove_tree

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture
def executor(config: Config) -> Iterator[Executor]:
    with Executor(config) as executor:
        yield executor


def run(executor: Executor, script: str, **limits: float) -> Status:
    return executor.run(
        script, "bash", backend="native", policy="none", env={"PATH": os.defpath}, limits={"time": 50, **limits}
    ).status


@pytest.mark.parametrize(
    "script",
    [
        "sleep 91 &",
        "setsid sleep 92 &",
        "nohup setsid sleep 93 >/dev/null 2>&1 &",
        "(setsid bash -c 'trap \"\" TERM HUP INT; (setsid sleep 94 &) ; sleep 95' &)",
        "for i in {1..30}; do (setsid sleep 96 &) ; done",
        "env -i setsid sleep 97 & disown",
        "exec -a innocent setsid sleep 98 &",
    ],
)
def test_a_detached_child_ends_with_the_run(executor: Executor, script: str) -> None:
    assert run(executor, script) is Status.OK  # the fixture looks for processes


def test_a_child_that_keeps_forking_away_ends_with_the_time_limit(executor: Executor) -> None:
    # Bounded by itself: each generation starts the next and ends, two hundred times.
    runner = "hop() { [ $1 -gt 0 ] || exit; (sleep 0.01; hop $(($1 - 1))) & exit; }; hop 200; "
    assert run(executor, runner + "sleep 60", time=1.0) in (Status.TIMEOUT, Status.OK)


def test_killing_its_supervisor_is_a_failure_that_ends_the_command(executor: Executor) -> None:
    assert run(executor, "kill -9 $PPID; sleep 61.5; sleep 61.5", time=15) is Status.FAILED
    deadline = time.monotonic() + 60
    while (alive := _running("61.5")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive


def _running(argument: str) -> list[str]:
    """Process ids with this argument, whoever their parent is by now."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if argument.encode() in words:
            found.append(process.name)
    return found


def test_a_hostile_directory_is_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "kept").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "dangling").symlink_to("/nonexistent")
    os.mkfifo(tree / "fifo")
    locked = tree / "locked"
    (locked / "inner").mkdir(parents=True)
    (locked / "inner" / "to-outside").symlink_to(outside)
    (locked / "inner").chmod(0)
    locked.chmod(0)
    (tree / "name\nwith\x1b odd bytes").touch()
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o700


def test_a_directory_deeper_than_the_recursion_limit_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    at = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    remove_tree(tree)
    assert not tree.exists()
