"""Groups that limit memory: every one here is real, in v1 or v2, whichever has the memory controller on this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cgroup_helpers import NOBODY, as_nobody, in_a_fork, put_in, remove_groups

from pace import SLOW
from redoma.backends.jail import cgroup
from redoma.backends.jail.cgroup import Cgroups, Group, oom_kills_in
from redoma.backends.jail.cgroup_place import Place, Unavailable
from redoma.backends.processes import start_time
from redoma.lib.errors import BackendError

MB = 1 << 20


def ours_in(groups: Cgroups) -> list[str]:
    """Groups of this process. Others may be at work in the same place: theirs are none of our business."""
    mine = f"redoma-{os.getpid()}-"
    return [entry.path for base in groups._bases for entry in os.scandir(base) if entry.name.startswith(mine)]


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    found = cgroup.find()
    if isinstance(found, Unavailable):
        pytest.skip(f"no cgroup can be made here: {found.reason}")
    yield found
    assert ours_in(found) == [], "a cgroup was left behind"


@pytest.fixture
def cell(groups: Cgroups) -> Iterator[Group]:
    made = groups.make("cell")
    yield made
    assert made.remove()


def start(code: str) -> subprocess.Popen[str]:
    """A process that waits for a word before it begins, so that it can be put in a group first."""
    code = f"import os, sys, time\nsys.stdin.readline()\n{code}\nprint('done', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_in(cell: Group, code: str, while_it_lives: Callable[[], Any] = lambda: None) -> int:
    with start(code) as process:
        try:
            put_in(cell, process.pid)
            assert process.stdin
            assert process.stdout
            process.stdin.write("go\n")
            process.stdin.flush()
            process.stdout.readline()
            while_it_lives()
            process.stdin.close()
            return process.wait(timeout=120 * SLOW)
        finally:
            process.kill()


# --- memory ---


def test_more_memory_than_allowed_is_killed_and_counted(cell: Group) -> None:
    cell.limit(64 * MB)
    assert cell.oom_kills() == 0
    assert run_in(cell, "bytearray(b'x') * (300 << 20)") == -signal.SIGKILL
    assert cell.oom_kills() >= 1  # v2 may count one process twice, as it kills a group as a whole


def test_what_stays_within_the_limit_is_left_alone(cell: Group) -> None:
    cell.limit(256 * MB)
    assert run_in(cell, "bytearray(b'x') * (100 << 20)") == 0
    assert cell.oom_kills() == 0


def test_processes_are_counted_together(cell: Group) -> None:
    """None of them uses more than half of what is allowed."""
    family = """
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        held = bytearray(b'x') * (50 << 20)
        time.sleep(60)
        os._exit(0)
    children.append(pid)
pid, status = os.wait()
for child in children:
    if child != pid:
        os.kill(child, 9)
        os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    cell.limit(120 * MB)
    assert run_in(cell, family) != 0
    assert cell.oom_kills() >= 1


@pytest.mark.parametrize("where", ["memfd", "tmpfs"])
def test_files_in_memory_count(cell: Group, where: str) -> None:
    kept = f"/dev/shm/redoma-test-{os.getpid()}"
    opened = "os.memfd_create('m')" if where == "memfd" else f"os.open({kept!r}, os.O_CREAT | os.O_WRONLY)"
    cell.limit(64 * MB)
    try:
        assert run_in(cell, f"fd = {opened}\nfor _ in range(300): os.write(fd, bytes(1 << 20))") == -signal.SIGKILL
        assert cell.oom_kills() >= 1
    finally:
        Path(kept).unlink(missing_ok=True)


def test_the_peak_is_what_was_used_at_most(cell: Group) -> None:
    cell.limit(512 * MB)
    peaks: list[int | None] = []
    run_in(cell, "held = bytearray(b'x') * (100 << 20); del held", lambda: peaks.append(cell.peak()))
    peak = cell.peak()
    assert peak == peaks[0]
    assert peak is not None
    assert 100 * MB <= peak < 150 * MB


def test_a_limit_can_be_lowered_and_raised(groups: Cgroups, cell: Group) -> None:
    files = cgroup.V1 if groups.version == "v1" else cgroup.V2
    names = [name for name in (files.limit, files.with_swap) if name and os.path.exists(f"{cell.path}/{name}")]
    for size in (256 * MB, 64 * MB, 1024 * MB, 128 * MB):
        cell.limit(size)
        assert [int(Path(cell.path, name).read_text()) for name in names] == [size] * len(names)


def test_a_limit_below_what_is_used_already_says_so_or_is_counted(groups: Cgroups, cell: Group) -> None:
    def lower() -> None:
        if groups.version == "v1":
            with pytest.raises(BackendError, match=f"already uses more than {8 * MB} bytes"):
                cell.limit(8 * MB)
        else:
            cell.limit(8 * MB)

    cell.limit(512 * MB)
    ended = run_in(cell, "held = bytearray(b'x') * (100 << 20)", lower)
    assert (ended, cell.oom_kills() > 0) == ((0, False) if groups.version == "v1" else (-signal.SIGKILL, True))


# --- CPU time, processes ---


def test_cpu_time_counts_everything_that_was_in_it(cell: Group) -> None:
    if cell.cpu() is None:
        pytest.skip("CPU time is not counted by cgroups here")
    before = cell.cpu()
    run_in(cell, "if os.fork() == 0:\n  while time.process_time() < 0.3: pass\n  os._exit(0)\nos.wait()")
    after = cell.cpu()
    assert before is not None
    assert after is not None
    assert 0.3 <= after - before < 2


def test_a_process_goes_in_by_a_door_and_its_children_with_it(cell: Group) -> None:
    def work() -> list[int]:
        for door in cell.doors():
            os.write(door, b"0")
        if (child := os.fork()) == 0:
            os.read(held, 1)
            os._exit(0)
        inside = [set(map(int, Path(path, "cgroup.procs").read_text().split())) for path in cell.paths]
        os.write(let_go, b"x")
        os.waitpid(child, 0)
        return [len(each & {os.getpid(), child}) for each in inside]

    held, let_go = os.pipe()
    assert in_a_fork(work) == [2] * len(cell.paths)
    os.close(held)
    os.close(let_go)


def test_a_group_that_is_gone_has_no_doors(groups: Cgroups) -> None:
    gone = groups.make("gone")
    gone.remove()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BackendError, match="the cgroup of a cell can't be entered"):
        gone.doors()
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- making and removing ---


def test_a_group_with_a_process_in_it_is_not_removed_yet(groups: Cgroups) -> None:
    made = groups.make("busy")
    assert run_in(made, "", lambda: (made.remove(), made.remove()) == (False, False) or pytest.fail("removed")) == 0
    assert made.remove()
    assert made.remove()  # nothing happens


def test_a_name_in_use_is_refused_and_stays(groups: Cgroups, cell: Group) -> None:
    with pytest.raises(BackendError, match="File exists"):
        groups.make("cell")
    assert os.path.isdir(cell.path)


def test_a_group_taken_away_is_noticed(groups: Cgroups) -> None:
    made = groups.make("stolen")
    for path in made.paths:
        os.rmdir(path)
    for action in (made.oom_kills, made.peak, lambda: made.limit(MB)):
        with pytest.raises(BackendError, match="removed, or the controller taken away"):
            action()
    assert made.remove()


def test_a_removed_group_does_not_answer(groups: Cgroups) -> None:
    made = groups.make("gone")
    assert made.remove()
    with pytest.raises(BackendError):
        made.oom_kills()
    with pytest.raises(BackendError):
        made.limit(MB)


def test_no_descriptor_is_left_open_nor_inherited(groups: Cgroups) -> None:
    groups.make("warm").remove()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        made = groups.make(f"n{number}")
        with pytest.raises(BackendError):
            groups.make(f"n{number}")
        assert not any(os.get_inheritable(fd) for fd in made._open)
        made.remove()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_fork_makes_groups_of_its_own(groups: Cgroups, cell: Group) -> None:
    def work() -> list[Any]:
        made = groups.make("cell")
        return [made.path, f"redoma-{os.getpid()}-" in made.path, made.remove()]

    path, named, removed = in_a_fork(work)
    assert path != cell.path
    assert named
    assert removed


# --- sweeping ---

OWNER = """
import sys, time
from redoma.backends.jail import cgroup
print(*cgroup.find().make("left").paths, flush=True)
time.sleep(60)
"""


def test_what_a_killed_owner_left_is_swept_and_not_before(groups: Cgroups) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        left = owner.stdout.readline().split()
        assert left
        groups.sweep()
        assert [path for path in left if not os.path.isdir(path)] == []  # empty, but its owner lives
        owner.kill()
    groups.sweep()
    assert [path for path in left if os.path.isdir(path)] == []


@pytest.fixture
def alone(cell: Group) -> Cgroups:
    """A place that nobody else works in."""
    return Cgroups(Place("v1", cell.path))


def test_sweeping_leaves_what_is_not_certainly_dead_and_ours(alone: Cgroups) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    dead, here, began = process.pid, cgroup._namespace(), start_time(os.getpid())
    kept = [
        f"redoma-{dead}-{here + 1}.1-cell",  # the number may live in its own namespace
        f"redoma-{os.getpid()}-{here}.{began}-other",
        f"redoma-of-{dead}",
        "redoma-main",
        f"redoma-{dead}",
        f"another-redoma-{dead}-{here}.1-cell",
    ]
    swept = [f"redoma-{dead}-{here}.1-cell", f"redoma-{os.getpid()}-{here}.{(began or 0) - 1}-cell"]
    for name in kept + swept:
        os.mkdir(f"{alone.base}/{name}")
    try:
        assert alone.sweep() == len(swept)
        assert [name for name in swept if os.path.isdir(f"{alone.base}/{name}")] == []
        assert [name for name in kept if not os.path.isdir(f"{alone.base}/{name}")] == []
    finally:
        for name in kept:
            os.rmdir(f"{alone.base}/{name}")


def test_sweeping_leaves_a_group_that_is_in_use(alone: Cgroups) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    path = f"{alone.base}/redoma-{process.pid}-{cgroup._namespace()}.1-cell"
    os.mkdir(path)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            Path(path, "cgroup.procs").write_text(str(sleeper.pid))
            assert alone.sweep() == 0
            assert os.path.isdir(path)
        finally:
            sleeper.kill()
    assert alone.sweep() == 1
    assert not os.path.isdir(path)


# --- without rights ---


def test_an_ordinary_user_is_told_why_and_the_fix_works(groups: Cgroups) -> None:
    if os.geteuid() != 0 or groups.version != "v1":
        pytest.skip("needs root, and the memory controller in v1")

    def work(have_it_fixed: Callable[[str], None]) -> list[Any]:
        first = cgroup.find()
        assert isinstance(first, Unavailable)
        have_it_fixed(first.fix)
        second = cgroup.find()
        if isinstance(second, Unavailable):
            return [first.reason, second.reason]
        made = second.make("cell")
        made.limit(64 * MB)
        ready, go = os.pipe()
        if (pid := os.fork()) == 0:  # not a program: this user may be unable to reach the interpreter
            os.read(ready, 1)
            os._exit(len(bytearray(b"x") * (300 * MB)) % 2)
        put_in(made, pid)
        os.write(go, b"x")
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return [first.reason, second.base, ended, made.oom_kills() > 0, made.remove()]

    delegated = f"{groups.base}/redoma-of-{NOBODY}"
    try:
        reason, *rest = as_nobody(work)
    finally:
        remove_groups(delegated)
    assert reason == f"this user may not make groups in {groups.base}"
    assert rest == [delegated, -signal.SIGKILL, True, True]


# --- what the kernel says ---


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),
        (b"low 0\nhigh 0\nmax 12\noom 5\noom_kill 4\noom_group_kill 1\n", 4),
        (b"low 0\nhigh 0\nmax 12\noom 5\noom_kill 17", 17),
    ],
)
def test_kills_are_read_from_both_versions(text: bytes, count: int) -> None:
    assert oom_kills_in(text) == count


def test_a_kernel_that_does_not_count_is_not_taken_for_zero() -> None:
    with pytest.raises(ValueError, match="doesn't count"):
        oom_kills_in(b"oom_kill_disable 0\nunder_oom 0\n")
