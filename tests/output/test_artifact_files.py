"""What is kept of an output is ours alone, not for ever, and what was never finished leaves nothing."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from artifact_run import LINES, Run, left, whole

from redoma.lib.errors import RedomaError
from redoma.models import Artifact
from redoma.output import artifact_files as files
from redoma.output.artifacts import Store, StoredArtifact


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state" / "artifacts")


# --- nobody else's -------------------------------------------------------------------------------------------


def test_only_we_can_read_it_whatever_the_umask(store: Store) -> None:
    before = os.umask(0)
    try:
        Run(store).prints(LINES).ends()
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.directory / "run.stdout").stat().st_mode) == 0o600


def test_a_directory_that_is_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.directory.parent.mkdir()
    store.directory.symlink_to(elsewhere)
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    assert artifact.missing
    assert list(elsewhere.iterdir()) == []


def test_a_directory_that_others_may_write_to_is_refused(store: Store) -> None:
    store.directory.mkdir(parents=True)
    store.directory.chmod(0o777)
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    assert "others may write" in artifact.missing
    assert left(store) == []


def test_links_and_pipes_in_the_place_of_an_artifact_are_not_read(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    store.directory.mkdir(parents=True, mode=0o700)
    (store.directory / "link.stdout").symlink_to(tmp_path / "secret")
    os.mkfifo(store.directory / "pipe.stdout")
    assert store.list() == []
    for name in ("link", "pipe"):
        with pytest.raises(RedomaError):
            store.describe(name, "stdout")


def test_what_was_changed_afterwards_is_not_passed_off_as_the_output(store: Store) -> None:
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    with (store.directory / "run.stdout").open("a") as file:
        file.write("more")
    with pytest.raises(RedomaError, match="changed"):
        artifact.read()


def test_the_result_does_not_say_where_it_is(store: Store, tmp_path: Path) -> None:
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    assert str(tmp_path) not in repr(artifact)
    described = msgspec.json.decode(msgspec.json.encode(artifact), type=Artifact)
    assert msgspec.structs.asdict(described) == msgspec.structs.asdict(artifact)
    with pytest.raises(RedomaError, match="redoma output run"):
        described.read()


# --- nothing left --------------------------------------------------------------------------------------------


def test_a_run_that_is_cancelled_leaves_nothing(store: Store) -> None:
    run = Run(store).prints(LINES).prints(LINES, "stderr")
    assert len(left(store)) == 2
    run.capture.close()
    run.capture.close()
    assert left(store) == []


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(store: Store) -> None:
    script = """
import sys, pathlib, os, signal
from redoma.output.artifacts import Store
from redoma.redaction import Redactor
spool = Store(pathlib.Path(sys.argv[1])).spool("dead", "stdout", Redactor(), 1 << 26)
spool.add(b"a line\\n" * 100_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(store.directory)], check=False)
    (dead,) = left(store)
    live = Run(store, name="live").prints(LINES)
    Run(store, name="other").prints(LINES).ends()
    assert dead not in left(store)
    assert live.ends().artifacts["stdout"].missing == ""
    assert left(store) == ["live.stdout", "other.stdout"]


def opened_in(directory: Path) -> list[str]:
    """What this process has open there. Elsewhere, other threads open and close files, too."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(directory))]


def test_nothing_stays_open(store: Store) -> None:
    run = Run(store, name="first").prints(LINES)
    assert opened_in(store.directory)
    run.ends()
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    whole(artifact)
    artifact.lines(5, 2)
    assert isinstance(artifact, StoredArtifact)
    next(artifact.matching("line 7"))
    Run(store, name="again").prints(LINES).capture.close()
    store.find("run")
    assert opened_in(store.directory) == []


# --- for how long --------------------------------------------------------------------------------------------


def test_what_is_too_old_goes_when_it_is_looked_for(store: Store) -> None:
    Run(store, name="old").prints(LINES).ends()
    Run(store, name="new").prints(LINES).ends()
    week_ago = time.time() - store.days * 86400 - 10
    os.utime(store.directory / "old.stdout", (week_ago, week_ago))
    assert [one.run for one in store.list()] == ["new"]
    assert left(store) == ["new.stdout"]


def test_the_oldest_go_when_it_is_too_much_together(tmp_path: Path) -> None:
    store = Store(tmp_path / "artifacts", total=100_000)
    for number in range(5):
        Run(store, name=f"r{number}").prints(LINES[:40_000]).ends()
        os.utime(store.directory / f"r{number}.stdout", (1e9 + number, 1e9 + number)) if number < 4 else None
        store.days = 100_000
    assert [one.run for one in store.list()] == ["r3", "r4"]


def test_one_alone_is_never_too_much(tmp_path: Path) -> None:
    store = Store(tmp_path / "artifacts", total=50_000)
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    assert artifact.size <= 50_000
    assert "more than may be kept" in artifact.missing
    assert whole(artifact).startswith("line 0 of many\n")


def test_too_many_are_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 3)
    store = Store(tmp_path / "artifacts")
    for number in range(5):
        Run(store, name=f"r{number}").prints(LINES[:20_000]).ends()
    assert len(store.list()) == 3


def test_files_of_others_in_the_directory_are_left_alone(store: Store) -> None:
    store.directory.mkdir(parents=True, mode=0o700)
    (store.directory / "notes.txt").write_text("mine")
    os.utime(store.directory / "notes.txt", (0, 0))
    Run(store).prints(LINES).ends()
    assert (store.directory / "notes.txt").read_text() == "mine"


def test_a_part_is_locked_while_it_is_written(store: Store) -> None:
    run = Run(store).prints(LINES)
    (part,) = left(store)
    with (store.directory / part).open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    run.ends()
