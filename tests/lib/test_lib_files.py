"""Private directories, locks and replaced files: the one implementation that every room uses."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from redoma.lib import files
from redoma.lib.errors import WorkspaceError

NOBODY = 65433


def open_own(path: Path) -> None:
    os.close(files.open_own_directory(path, holds="secrets", error=WorkspaceError))


def test_a_directory_is_made_with_its_parents_for_us_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_own(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a", "a/b")} == {0o700}


def test_a_directory_that_others_own_or_write_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o720)
    with pytest.raises(WorkspaceError, match="open can't be trusted with secrets: others may write to it"):
        open_own(tmp_path / "open")
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NotADirectoryError):
        open_own(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(tmp_path / "real", NOBODY, NOBODY)
        with pytest.raises(WorkspaceError, match=f"it belongs to user {NOBODY}"):
            open_own(tmp_path / "real")


def test_only_regular_files_are_opened_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "."):
        with pytest.raises(files.NotRegular):
            files.open_regular(tmp_path / name)
    with pytest.raises(OSError, match="Too many levels"):
        files.open_regular(tmp_path / "link")


def test_one_holds_a_lock_or_several_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = (files.open_regular(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    with files.closing(first), files.closing(second):
        with files.locked(first) as held:
            assert held
            assert not files.lock(second)
            assert not files.lock(second, shared=True, seconds=0.02)
        with files.locked(first, shared=True), files.locked(second, shared=True) as held:
            assert held


def test_a_lock_is_gone_with_its_block_although_a_child_has_the_descriptor(tmp_path: Path) -> None:
    lock = files.open_regular(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    with files.closing(lock), files.locked(lock):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        again = files.open_regular(tmp_path / "lock", os.O_RDWR)
        with files.closing(again):
            assert files.lock(again)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_temporary_directories_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from redoma.lib import files
with files.temporary_directory(Path({str(tmp_path)!r}), ".new-") as made:
    (made / "content").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    (tmp_path / "other").mkdir()
    with files.temporary_directory(tmp_path, ".new-") as made:
        files.sweep(tmp_path, ".new-")
        assert made.exists()
        assert not left.exists()
    assert (tmp_path / "other").exists()


def test_one_that_was_swept_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, swept = files.lock, list[Path]()

    def late(fd: int, **options: float) -> bool:
        if not swept:
            (directory,) = tmp_path.iterdir()
            directory.rmdir()
            swept.append(directory)
        return lock(fd)

    monkeypatch.setattr(files, "lock", late)
    with files.temporary_directory(tmp_path, ".new-") as made:
        assert made.is_dir()
        assert made not in swept


def test_a_file_is_replaced_as_a_whole_and_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.replace(path, b"old")
    (tmp_path / "file.new").write_bytes(b"left by a crash, and longer")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            files.replace(path, b"new")
    assert path.read_bytes() == b"old"
    files.replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]
