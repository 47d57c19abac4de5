"""Directories on disk for what runs change in a project: nobody else's are touched, and none is left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redoma import AsyncExecutor, Config, Limits, Status
from redoma.backends.jail import JailBackend, changes_disk
from redoma.backends.jail.changes_disk import ChangesDirectory
from redoma.backends.jail.configuration import UNPRIVILEGED_ID
from redoma.backends.jail.kernels import BY_KERNEL
from redoma.config import AuditConfig
from redoma.models import MiB

HOUR = 3600
KILLED = """
import os, signal, sys
from redoma.backends.jail import changes_disk
changes_disk.PARENT = sys.argv[1]
layers = changes_disk.ChangesDirectory()
os.makedirs(f"{layers.path}/1/work/work", 0)
print(layers.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /var/tmp."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(changes_disk, "PARENT", str(place))
    return place


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(state=tmp_path / "state", audit=AuditConfig(directory=tmp_path / "state" / "audit"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "a" / "b").mkdir(parents=True)
    return place


def make_old(path: Path) -> None:
    os.utime(path, (path.stat().st_atime - HOUR, path.stat().st_mtime - HOUR))


def test_what_a_killed_process_left_is_removed_by_the_next(own_place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(own_place)], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert left.parent == own_place
    assert (left / "1").is_dir()
    make_old(left)
    ChangesDirectory().close()
    assert list(own_place.iterdir()) == []


def test_what_is_in_use_stays(own_place: Path) -> None:
    first = ChangesDirectory()
    make_old(Path(first.path))
    ChangesDirectory().close()
    assert [str(path) for path in own_place.iterdir()] == [first.path]
    first.close()
    assert list(own_place.iterdir()) == []


def test_a_link_by_that_name_is_not_followed(own_place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "kept").mkdir(parents=True)
    (own_place / "redoma-layers-x").symlink_to(elsewhere)
    os.utime(own_place / "redoma-layers-x", (0, 0), follow_symlinks=False)
    ChangesDirectory().close()
    assert (elsewhere / "kept").is_dir()


def test_the_directory_goes_with_the_last_cell(own_place: Path) -> None:
    layers = ChangesDirectory()
    names = [layers.take(), layers.take()]
    for name in names:
        Path(layers.path, name).mkdir()
    layers.give_back(names[0])
    layers.close()
    assert Path(layers.path, names[1]).is_dir()
    layers.give_back(names[1])
    assert list(own_place.iterdir()) == []


def test_a_directory_of_ours_that_somebody_moved_there_stays(own_place: Path) -> None:
    """Whoever may write to a directory can give it this name. Those that are not 0700 are none of ours."""
    (own_place / "redoma-layers-moved" / "private").mkdir(parents=True)
    (own_place / "redoma-layers-moved").chmod(0o777)
    if os.geteuid() == 0:
        os.chown(own_place / "redoma-layers-moved", UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    make_old(own_place / "redoma-layers-moved")
    ChangesDirectory().close()
    assert (own_place / "redoma-layers-moved" / "private").is_dir()


def test_there_are_none_on_a_disk_without_xattrs(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *arguments: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "setxattr", refuse)
    layers = ChangesDirectory()
    assert (layers.path, layers.why) == ("", f"{own_place}: Operation not supported")
    assert list(own_place.iterdir()) == []


@pytest.mark.parametrize("project", ["/", "here", "above"])
def test_there_are_none_inside_the_project(project: str, own_place: Path) -> None:
    """A cell could read there what another one writes."""
    place = {"/": "/", "here": str(own_place), "above": str(own_place.parent)}[project]
    layers = ChangesDirectory(place)
    assert (layers.path, layers.why) == ("", f"{own_place} is in the project")
    beside = ChangesDirectory(f"{own_place}-and-more")
    assert beside.path
    beside.close()


NO_OVERLAYS = [
    each.what
    for each in BY_KERNEL
    if "no project" in each.without and each.is_missing(os.uname().release, root=os.geteuid() == 0)
]


@pytest.mark.skipif(bool(NO_OVERLAYS), reason=f"this kernel has no {NO_OVERLAYS}")
@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
async def test_no_single_call_takes_the_disk(on_disk: bool, project: Path, config: Config) -> None:
    """In memory the file system's size stops it. On disk nothing would, until the next look."""
    code = "import os\nos.posix_fallocate(os.open('large', os.O_CREAT | os.O_WRONLY), 0, 1 << 30)"
    limits = Limits(disk=16 * MiB, file_size=2 << 30)
    options: dict[str, Any] = {"project": str(project), "workspace": "overlay", "policy": "none"}
    async with AsyncExecutor(config, backends=[JailBackend(minimum=1, changes_on_disk=on_disk)]) as executor:
        result = await executor.run(code, limits=limits, **options)
        assert result.status in (Status.ERROR, Status.KILLED), result.error
        small = await executor.run(code.replace("1 << 30", "1 << 20"), limits=limits, **options)
    assert small.status == Status.OK, "the C library writes where the call is not supported"


@pytest.mark.skipif(bool(NO_OVERLAYS), reason=f"this kernel has no {NO_OVERLAYS}")
async def test_runs_leave_nothing_on_disk(own_place: Path, project: Path, config: Config) -> None:
    options: dict[str, Any] = {"project": str(project), "workspace": "overlay", "policy": "none"}
    async with AsyncExecutor(config, backends=[JailBackend(minimum=1, changes_on_disk=True)]) as executor:
        removed = await executor.run("rm -r a", "bash", **options)
        closed = await executor.run("mkdir -p x/y && chmod 0 x/y x", "bash", **options)
        late = await executor.run("while :; do :; done", "bash", limits=Limits(time=5), **options)
    assert [removed.status, closed.status, late.status] == [Status.OK, Status.OK, Status.TIMEOUT]
    assert [name for name in os.listdir(own_place) if name.startswith("redoma-layers-")] == []


@pytest.mark.skipif(bool(NO_OVERLAYS), reason=f"this kernel has no {NO_OVERLAYS}")
async def test_what_others_wrote_before_a_run_is_not_its_own(own_place: Path, project: Path, config: Config) -> None:
    """A cell may have waited for its run for hours. What is written here must not end the runs of other tests, which
    have a larger limit."""
    limits = Limits(disk=16 * MiB)
    options: dict[str, Any] = {"project": str(project), "workspace": "overlay", "policy": "none", "limits": limits}
    async with AsyncExecutor(config, backends=[JailBackend(minimum=1, changes_on_disk=True)]) as executor:
        await executor.run("true", "bash", **options)
        await asyncio.sleep(1)  # for the next cell, which waits
        others = os.open(own_place / "of others", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(others, 0, (1 << 30) + 64 * MiB)
        os.close(others)
        waited = await executor.run("sleep 0.3", "bash", **options)
    assert (waited.status, waited.error) == (Status.OK, None)
