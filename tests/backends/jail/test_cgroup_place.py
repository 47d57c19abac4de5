"""Where groups may be made.

Two kinds of tests, each under its own heading. *Written trees* are directories of ordinary files that look like
/proc/self and a cgroup file system: they show what is decided on hosts that we don't have here. *Real groups of v2*
are the kernel's own; where v1 has the memory controller they use one that v2 has, as the rules are the same for it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cgroup_helpers import NOBODY, as_nobody, in_a_fork, put_in, remove_groups, run_fix

from pace import SLOW
from redoma.backends.jail import cgroup_place
from redoma.backends.jail.cgroup import V2, Cgroups, Group
from redoma.backends.jail.cgroup_place import MAIN, Place, Unavailable, enable, locate
from redoma.lib.errors import BackendError
from redoma.lib.mounts import read_mounts

ME = os.getpid()
SOMEBODY = 1  # init, or whatever the first process of a container is: never started by us


class Tree:
    """A written /proc/self and cgroup tree."""

    def __init__(self, path: Path) -> None:
        self.proc, self.top = path / "proc", path / "cgroup"
        self.proc.mkdir()
        self.mounts: list[str] = []

    def group(self, path: str, *processes: int, controllers: str = "cpu memory pids", passed: str = "") -> str:
        directory = self.top / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
        (directory / "cgroup.controllers").write_text(controllers)
        (directory / "cgroup.subtree_control").write_text(passed)
        (directory / "cgroup.type").write_text("domain\n")
        return str(directory)

    def mount(self, controllers: str = "", *, root: str = "/", under: str = "", flags: str = "rw") -> None:
        """Of v1 with the named controllers, of v2 without."""
        point = str(self.top / under).replace(" ", r"\040")
        kind = f"cgroup cgroup rw,{controllers}" if controllers else "cgroup2 cgroup2 rw,nsdelegate"
        self.mounts.append(f"31 23 0:28 {root} {point} {flags},nosuid shared:9 - {kind}\n")

    def locate(self, *groups: str) -> Place | Unavailable:
        (self.proc / "cgroup").write_text("".join(f"{line}\n" for line in groups))
        (self.proc / "mountinfo").write_text("22 1 0:5 / /proc rw - proc proc rw\n" + "".join(self.mounts))
        before = self.everything()
        answer = locate(str(self.proc))
        assert self.everything() == before, "looking changed something"
        return answer

    def everything(self) -> dict[str, str]:
        return {str(path): path.read_text() if path.is_file() else "" for path in self.top.rglob("*")}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def mark(directory: str) -> None:
    os.setxattr(directory, "user.delegate", b"1")


def refusal(answer: Place | Unavailable) -> Unavailable:
    assert isinstance(answer, Unavailable)
    assert answer.fix
    return answer


# --- written trees: v2 with systemd ---

USER = "/user.slice/user@1000.service"
SCOPE = f"{USER}/app.slice/run-1.scope"


def test_alone_in_a_delegated_scope_we_move_down(tree: Tree) -> None:
    tree.mount()
    own = tree.group(SCOPE, ME)
    mark(own)
    assert tree.locate(f"0::{SCOPE}") == Place("v2", own, move=True)


def test_what_we_started_comes_along(tree: Tree) -> None:
    tree.mount()
    with subprocess.Popen(["sleep", "60"]) as child:
        mark(own := tree.group(SCOPE, ME, child.pid))
        answer = tree.locate(f"0::{SCOPE}")
        child.kill()
    assert answer == Place("v2", own, move=True)


@pytest.mark.parametrize("other", [SOMEBODY, 0], ids=["seen", "of another pid namespace"])
def test_processes_of_others_are_in_the_way(tree: Tree, other: int) -> None:
    tree.mount()
    mark(own := tree.group(SCOPE, ME, other))
    answer = refusal(tree.locate(f"0::{SCOPE}"))
    name = Path("/proc/1/comm").read_text().strip() if other else "one that can't be seen"
    assert f"{own} also holds processes that are not Redoma's ({name})" in answer.reason
    assert f"mkdir -p {own}/redoma-main" in answer.fix


@pytest.mark.parametrize("unit", ["run-1.scope", "web.service", "run-1.scope/made-by-hand"])
def test_a_unit_that_systemd_keeps_is_not_used(tree: Tree, unit: str) -> None:
    """The system's manager marks what it delegates, so an unmarked unit is not ours, writable or not."""
    tree.mount()
    tree.group(f"/box.service/system.slice/{unit}", ME)
    mark(tree.group("/box.service"))  # as in a container of systemd's: marks are seen here
    answer = refusal(tree.locate(f"0::/box.service/system.slice/{unit}"))
    assert answer.reason == f"systemd keeps {unit.split('/')[0]} for itself: not delegated"
    assert "systemd-run" in answer.fix
    assert "--scope -p Delegate=yes" in answer.fix
    assert ("[Service]" in answer.fix) == unit.endswith(".service")


# A user's manager marks nothing, although its own service is marked. It has to be asked.

OUR_MANAGER = f"/user.slice/user@{os.geteuid()}.service"


@pytest.fixture
def users_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have `systemctl --user` say which unit is delegated, as systemd prints it."""

    def delegates(unit: str) -> None:
        program = tmp_path / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\n"
            '[ "$*" = "--user show --property=Delegate --value -- $6" ] || exit 1\n'
            f'[ "$6" = "{unit}" ] && echo yes || echo no\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr(cgroup_place, "_SYSTEM_PATH", str(program.parent))

    return delegates


def test_a_scope_that_the_users_manager_delegated_is_used(tree: Tree, users_manager: Callable[[str], None]) -> None:
    users_manager("run-1.scope")
    tree.mount()
    mark(tree.group(OUR_MANAGER))
    own = tree.group(f"{OUR_MANAGER}/app.slice/run-1.scope", ME)
    assert tree.locate(f"0::{OUR_MANAGER}/app.slice/run-1.scope") == Place("v2", own, move=True)


def test_a_subgroup_of_a_service_that_the_users_manager_delegated(
    tree: Tree, users_manager: Callable[[str], None]
) -> None:
    users_manager("redoma.service")
    tree.mount()
    mark(tree.group(OUR_MANAGER))
    service = tree.group(f"{OUR_MANAGER}/app.slice/redoma.service")
    tree.group(f"{OUR_MANAGER}/app.slice/redoma.service/main", ME, SOMEBODY)
    assert tree.locate(f"0::{OUR_MANAGER}/app.slice/redoma.service/main") == Place("v2", service)


@pytest.mark.parametrize("unit", ["run-1.scope", "web.service", "run-1.scope/made-by-hand"])
@pytest.mark.parametrize("asked", ["answers no", "does not answer"])
def test_a_unit_that_the_users_manager_keeps_is_not_used(
    tree: Tree, unit: str, asked: str, users_manager: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    users_manager("another.scope")
    if asked == "does not answer":
        monkeypatch.setattr(cgroup_place, "_SYSTEM_PATH", "/nonexistent")
    tree.mount()
    mark(tree.group(OUR_MANAGER))
    tree.group(f"{OUR_MANAGER}/app.slice/{unit}", ME)
    answer = refusal(tree.locate(f"0::{OUR_MANAGER}/app.slice/{unit}"))
    assert answer.reason == f"systemd keeps {unit.split('/')[0]} for itself: not delegated"


def test_a_unit_of_another_users_manager_is_not_used(tree: Tree, users_manager: Callable[[str], None]) -> None:
    users_manager("run-1.scope")
    tree.mount()
    scope = f"/user.slice/user@{os.geteuid() + 1}.service/app.slice/run-1.scope"
    tree.group(scope, ME)
    assert "not delegated" in refusal(tree.locate(f"0::{scope}")).reason


def test_a_subgroup_that_systemd_made_for_us_has_its_siblings_as_cells(tree: Tree) -> None:
    tree.mount()
    service = tree.group("/system.slice/redoma.service")
    mark(service)
    tree.group("/system.slice/redoma.service/main", ME, SOMEBODY)
    assert tree.locate("0::/system.slice/redoma.service/main") == Place("v2", service)


def test_a_second_redoma_uses_the_place_of_the_first(tree: Tree) -> None:
    """Started by the first, it finds itself in the leaf, with its parent."""
    tree.mount()
    mark(scope := tree.group(SCOPE, passed="memory"))
    tree.group(f"{SCOPE}/{MAIN}", SOMEBODY, ME)
    assert tree.locate(f"0::{SCOPE}/{MAIN}") == Place("v2", scope)


def test_a_controller_that_is_not_given(tree: Tree) -> None:
    tree.mount()
    mark(own := tree.group(SCOPE, ME, controllers="cpu pids"))
    assert refusal(tree.locate(f"0::{SCOPE}")).reason == f"{own} is not given the memory controller"


# --- written trees: v2 without systemd, and containers ---


def test_the_root_of_all_may_hold_processes(tree: Tree) -> None:
    tree.mount()
    top = Path(tree.group("/", ME, SOMEBODY))
    (top / "cgroup.type").unlink()
    assert tree.locate("0::/") == Place("v2", str(top))


def test_the_root_of_all_is_not_used_from_below(tree: Tree) -> None:
    """Cells would escape a limit that somebody put on our group."""
    tree.mount()
    (Path(tree.group("/")) / "cgroup.type").unlink()
    own = tree.group("/service", ME)
    assert tree.locate("0::/service") == Place("v2", own, move=True)
    tree.group("/service", ME, SOMEBODY)
    refusal(tree.locate("0::/service"))


def test_a_kernel_without_the_controller(tree: Tree) -> None:
    tree.mount()
    (Path(tree.group("/", ME, controllers="cpu pids")) / "cgroup.type").unlink()
    answer = refusal(tree.locate("0::/"))
    assert answer.reason == "this kernel offers no memory controller in cgroup v2"
    assert "cgroup_enable=memory" in answer.fix


def test_the_first_process_of_a_container_moves_down(tree: Tree) -> None:
    tree.mount()
    own = tree.group("/", ME)
    assert tree.locate("0::/") == Place("v2", own, move=True)


def test_a_container_whose_processes_were_moved_down_already(tree: Tree) -> None:
    tree.mount()
    top = tree.group("/", passed="cpu memory")
    tree.group("/init", SOMEBODY, ME)
    assert tree.locate("0::/init") == Place("v2", top)


def test_a_container_that_sees_the_names_of_its_host(tree: Tree) -> None:
    tree.mount(root="/docker/abc")
    top = tree.group("/", ME)
    assert tree.locate("0::/docker/abc") == Place("v2", top, move=True)
    tree.group("/")
    tree.group("/x", ME)
    assert tree.locate("0::/docker/abc/x") == Place("v2", top)


@pytest.mark.parametrize(
    ("root", "group"),
    [("/docker/abc", "/docker/abcdef"), ("/docker/abc", "/"), ("/", "/../elsewhere"), ("/../..", "/"), ("/a", "/b")],
)
def test_a_group_outside_what_is_mounted_is_not_guessed_at(tree: Tree, root: str, group: str) -> None:
    tree.mount(root=root)
    tree.group("/", ME)
    answer = refusal(tree.locate(f"0::{group}"))
    assert answer.reason == f"our group, {group}, can't be seen in any mounted cgroup2 file system"


def test_a_mount_that_shows_another_group_under_our_name_is_not_believed(tree: Tree) -> None:
    tree.mount()
    tree.group("/", SOMEBODY)
    assert "can't be seen" in refusal(tree.locate("0::/")).reason


def test_a_read_only_tree_names_the_option_of_the_container(tree: Tree) -> None:
    tree.mount(flags="ro")
    tree.group("/", ME)
    answer = refusal(tree.locate("0::/"))
    assert answer.reason == f"{tree.top} is mounted read-only, as containers have it"
    assert "--security-opt writable-cgroups=true" in answer.fix


def test_of_two_mounts_the_writable_one_is_taken(tree: Tree) -> None:
    tree.mount(flags="ro", under="shown")
    tree.mount(under="with space")
    tree.group("/shown", ME)
    own = tree.group("/with space", ME)
    assert tree.locate("0::/") == Place("v2", own, move=True)


def test_nothing_is_mounted_or_told(tree: Tree) -> None:
    assert refusal(tree.locate("0::/")).reason == "no cgroup file system is mounted"
    assert refusal(locate(str(tree.proc / "nothing"))).reason.startswith("/proc doesn't tell our cgroup")


# --- written trees: v1, and both ---


def test_memory_in_v1_is_taken_from_there(tree: Tree) -> None:
    tree.mount(under="unified")
    tree.mount("memory", under="memory")
    tree.mount("cpu,cpuacct", under="cpu,cpuacct")
    memory = tree.group("/memory/user.slice", ME, SOMEBODY)
    cpu = tree.group("/cpu,cpuacct/", ME, SOMEBODY)
    answer = tree.locate("4:memory:/user.slice", "3:cpu,cpuacct:/", "1:name=systemd:/user.slice", "0::/user.slice")
    assert answer == Place("v1", memory, cpu=cpu)


def test_memory_in_v2_is_taken_from_there_when_v1_has_the_rest(tree: Tree) -> None:
    tree.mount("cpu", under="cpu")
    tree.mount(under="unified")
    own = tree.group("/unified", ME)
    assert tree.locate("2:cpu:/", "0::/") == Place("v2", own, move=True)


def test_v1_in_a_container(tree: Tree) -> None:
    tree.mount("memory", root="/docker/abc", under="memory")
    tree.mount("cpuacct", root="/docker/abc", under="cpuacct", flags="ro")
    memory = tree.group("/memory", ME)
    tree.group("/cpuacct", ME)
    assert tree.locate("4:memory:/docker/abc", "3:cpuacct:/docker/abc") == Place("v1", memory)
    assert "can't be seen" in refusal(tree.locate("4:memory:/docker/other")).reason


def test_v1_mounted_read_only(tree: Tree) -> None:
    tree.mount("memory", under="memory", flags="ro")
    tree.group("/memory", ME)
    assert "read-only" in refusal(tree.locate("4:memory:/")).reason


# --- written trees: the files of v2 ---


def test_a_cell_of_v2_writes_and_reads_its_files(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.swap.max", "memory.oom.group", "memory.current"):
        (tmp_path / name).write_text("7340032\n" if name == "memory.current" else "")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 5\noom_kill 2\noom_group_kill 1\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    cell = Group((str(tmp_path),), V2)
    cell.limit(64 << 20)
    written = [(tmp_path / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group")]
    assert written == ["67108864", "0", "1"]
    assert (cell.oom_kills(), cell.peak(), cell.cpu()) == (2, 7340032, 1.5)
    cell._close()
    (tmp_path / "memory.peak").write_text("9437184\n")
    (tmp_path / "memory.swap.max").unlink()  # a kernel without swap
    cell = Group((str(tmp_path),), V2)
    assert cell.peak() == 9437184
    cell._close()


def test_v1_with_everything_in_one_mount_makes_one_group(tmp_path: Path) -> None:
    groups = Cgroups(Place("v1", str(tmp_path), cpu=str(tmp_path)))
    assert groups._bases == (str(tmp_path),)
    assert "counts its CPU time" in groups.describe()
    assert "counts" not in Cgroups(Place("v1", str(tmp_path))).describe()
    with pytest.raises(BackendError, match=r"can't be made.*memory\.limit_in_bytes"):
        groups.make("cell")  # no kernel here to fill it with files
    assert list(tmp_path.iterdir()) == []


# --- real groups of v2 ---


class Ground:
    """A real group below the root of v2, with a controller to hand on."""

    def __init__(self, top: str, path: str, controller: str) -> None:
        self.top, self.path, self.controller = top, path, controller

    def locate(self) -> Place | Unavailable:
        return locate(controller=self.controller)

    def enable(self, place: Place | Unavailable) -> Unavailable | None:
        assert isinstance(place, Place)
        return enable(place, self.controller)


def own_group() -> str:
    return next(line[3:].strip() for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::")


@pytest.fixture
def ground() -> Iterator[Ground]:
    mounts = [mount for mount in read_mounts() if mount.kind == "cgroup2"]
    top = mounts[0].path if mounts else ""
    offered = (Path(top, "cgroup.controllers").read_text() if top else "").split()
    controller = next((name for name in ("memory", "hugetlb") if name in offered), "")
    if os.geteuid() != 0 or not controller or own_group() != "/" or not cgroup_place._is_root(top):
        pytest.skip("needs root, in the root group of a cgroup2 mount that has a controller for memory or hugetlb")
    control, path = Path(top, "cgroup.subtree_control"), f"{top}/redoma-test-{os.getpid()}"
    was_on = controller in control.read_text().split()
    control.write_text(f"+{controller}")
    os.mkdir(path)
    try:
        yield Ground(top, path, controller)
    finally:
        remove_groups(path)
        if not was_on:
            control.write_text(f"-{controller}")


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_real_we_leave_our_group_for_its_leaf_and_hand_the_controller_on(ground: Ground) -> None:
    def work() -> list[Any]:
        first = ground.locate()
        refused = ground.enable(first)
        again = ground.locate()
        return [repr(first), repr(refused), own_group(), repr(again), repr(ground.enable(again))]

    first, refused, group, again, repeated = in_a_fork(work, join=ground.path)
    assert first == repr(Place("v2", ground.path, move=True))
    assert (refused, repeated) == ("None", "None")
    assert group == f"/{os.path.basename(ground.path)}/{MAIN}"
    assert again == repr(Place("v2", ground.path))
    assert ground.controller in Path(ground.path, "cgroup.subtree_control").read_text()


def test_real_our_children_move_along(ground: Ground) -> None:
    def work() -> list[Any]:
        with subprocess.Popen(["sleep", "60"]) as child:
            ground.enable(ground.locate())
            moved = Path(f"/proc/{child.pid}/cgroup").read_text()
            child.kill()
        return [f"/{MAIN}\n" in moved]

    assert in_a_fork(work, join=ground.path) == [True]


def test_real_the_kernel_refuses_while_we_stay_in_it(ground: Ground) -> None:
    """The rule that all this is about, and that it is told."""
    refused = in_a_fork(lambda: repr(ground.enable(Place("v2", ground.path))), join=ground.path)
    assert "Device or resource busy" in refused


def test_real_others_are_not_moved_and_the_fix_works(ground: Ground, sleeper: int) -> None:
    def work() -> list[Any]:
        answer = refusal(ground.locate())
        return [answer.reason, answer.fix, own_group()]

    Path(ground.path, "cgroup.procs").write_text(str(sleeper))
    reason, fix, group = in_a_fork(work, join=ground.path)
    assert "not Redoma's (sleep)" in reason
    assert group == f"/{os.path.basename(ground.path)}"
    assert Path(ground.path, "cgroup.procs").read_text().split() == [str(sleeper)]

    def again() -> list[Any]:
        place = ground.locate()
        return [repr(place), repr(ground.enable(place))]

    run_fix(fix)
    assert in_a_fork(again, join=f"{ground.path}/{MAIN}") == [repr(Place("v2", ground.path)), "None"]


def test_real_a_stranger_who_arrives_meanwhile_undoes_the_move(ground: Ground, sleeper: int) -> None:
    def work() -> list[Any]:
        place = ground.locate()
        Path(ground.path, "cgroup.procs").write_text(str(sleeper))
        return [repr(place), repr(ground.enable(place)), own_group()]

    place, refused, group = in_a_fork(work, join=ground.path)
    assert place == repr(Place("v2", ground.path, move=True))
    assert "Device or resource busy" in refused
    assert group == f"/{os.path.basename(ground.path)}"
    assert [entry.name for entry in os.scandir(ground.path) if entry.is_dir()] == []


def test_real_a_mark_of_systemd_decides(ground: Ground) -> None:
    unit = f"{ground.path}/web.service"
    os.mkdir(unit)
    Path(ground.path, "cgroup.subtree_control").write_text(f"+{ground.controller}")
    assert "systemd keeps web.service" in in_a_fork(lambda: repr(ground.locate()), join=unit)
    mark(unit)
    assert in_a_fork(lambda: repr(ground.locate()), join=unit) == repr(Place("v2", unit, move=True))


def test_real_an_ordinary_user_is_told_why_and_the_fix_works(ground: Ground) -> None:
    if os.path.isdir("/run/systemd/system"):
        pytest.skip("systemd runs here: the fix asks it")

    def work(have_it_fixed: Callable[[str], None]) -> list[Any]:
        first = refusal(ground.locate())
        have_it_fixed(first.fix)
        second = ground.locate()
        refused = ground.enable(second)
        os.mkdir(f"{given}/cell")
        Path(f"{given}/cell/cgroup.procs").write_text(str(os.getpid()))
        return [first.reason, repr(second), repr(refused), own_group()]

    given = f"{ground.top}/redoma-of-{NOBODY}"
    try:
        answer = as_nobody(work)
    finally:
        remove_groups(given)
    reason = f"this user may not make groups in {ground.top}"
    assert answer == [reason, repr(Place("v2", given)), "None", f"/redoma-of-{NOBODY}/cell"]


def test_real_a_cell_of_v2_counts_cpu_time_and_stays_while_a_process_is_in_it(ground: Ground) -> None:
    """The controller for memory aside: its files are replaced by others that every group has."""
    os.mkdir(path := f"{ground.path}/cell")
    files = V2._replace(limit="cgroup.max.depth", events="cgroup.events", peaks=("cgroup.max.depth",), settings={})
    cell = Group((path,), files)
    with subprocess.Popen(["sh", "-c", "sleep 60 & while :; do :; done"]) as process:
        try:
            put_in(cell, process.pid)
            while (used := cell.cpu()) is None or used < 0.05:
                assert process.poll() is None
            assert not cell.remove()
        finally:
            Path(path, "cgroup.kill").write_text("1")
            assert process.wait(timeout=60 * SLOW) == -9
    deadline = time.monotonic() + 60
    while Path(path, "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)  # its child was killed with it, and takes its own time to go
    assert Path(path, "cgroup.procs").read_text() == ""
    assert cell.remove()


def test_real_a_controller_that_is_taken_back_is_noticed(ground: Ground) -> None:
    control = Path(ground.path, "cgroup.subtree_control")
    control.write_text(f"+{ground.controller}")
    os.mkdir(path := f"{ground.path}/cell")
    hugetlb = V2._replace(limit="hugetlb.2MB.max", events="hugetlb.2MB.events", peaks=(), settings={})
    cell = Group((path,), V2 if ground.controller == "memory" else hugetlb)
    cell.limit(64 << 20)
    control.write_text(f"-{ground.controller}")
    for action in (cell.oom_kills, lambda: cell.limit(64 << 20)):
        with pytest.raises(BackendError, match="controller taken away"):
            action()
    assert cell.remove()
