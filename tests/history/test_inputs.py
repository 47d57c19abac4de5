"""What runs were given is kept by content: once, privately, within bounds, and never with a secret."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from redoma.audit.inputs import MAX_INPUT, Inputs, NotKept


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"lock"}


def test_the_same_content_is_kept_once_and_read_back(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path / "inputs")
    name = inputs.keep(b"a,b\n1,2\n")
    assert inputs.keep(b"a,b\n1,2\n") == name
    assert names(tmp_path / "inputs") == {name}
    assert inputs.get(name) == b"a,b\n1,2\n"


def test_only_its_owner_can_read_it_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        name = Inputs(tmp_path / "inputs").keep(b"mine")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "inputs").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "inputs" / name).stat().st_mode) == 0o600


def test_what_was_altered_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path)
    name = inputs.keep(b"harmless")
    (tmp_path / name).write_bytes(b"harmful!")
    assert inputs.get(name) is None


@pytest.mark.parametrize("name", ["../secret", "0" * 64, "", "x" * 64])
def test_a_name_that_is_none_leads_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("x")
    inputs = Inputs(tmp_path / "inputs")
    inputs.keep(b"so that there is a directory")
    assert inputs.get(name) is None


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path / "inputs")
    name = inputs.keep(b"content")
    (tmp_path / "elsewhere").write_bytes(b"content")
    (tmp_path / "inputs" / name).unlink()
    (tmp_path / "inputs" / name).symlink_to(tmp_path / "elsewhere")
    assert inputs.get(name) is None


def test_a_directory_that_others_may_write_to_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs").chmod(0o777)
    with pytest.raises(NotKept, match="others may write to it"):
        Inputs(tmp_path / "inputs").keep(b"x")
    assert names(tmp_path / "inputs") == set()


def test_what_is_too_large_is_not_kept_and_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="at most"):
        Inputs(tmp_path).keep(bytes(MAX_INPUT + 1))
    assert names(tmp_path) == set()


def test_without_a_state_directory_nothing_is_kept_and_it_says_so() -> None:
    with pytest.raises(NotKept, match="no state directory"):
        Inputs(None).keep(b"x")
    assert Inputs(None).get("0" * 64) is None


def test_the_least_lately_used_go_first_when_there_is_too_much(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, max_total=10_000)
    kept = [inputs.keep(bytes([number]) * 2000) for number in range(5)]
    for age, name in enumerate(kept):
        os.utime(tmp_path / name, (1e9, time.time() - 1000 + age))
    inputs.keep(b"\0" * 2000)  # used again, so the oldest of all is young
    inputs.keep(b"n" * 2000)
    assert inputs.get(kept[0]) is not None
    assert inputs.get(kept[1]) is None
    assert sum(path.stat().st_size for path in tmp_path.iterdir() if path.name != "lock") <= 10_000


def test_what_no_record_can_name_any_more_goes(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, days=30)
    old = inputs.keep(b"old")
    os.utime(tmp_path / old, (1e9, time.time() - 31 * 86400))
    (tmp_path / "lock").write_bytes(b"[3,1,0.0]")  # as if the last sweep were long ago
    young = inputs.keep(b"young")
    assert names(tmp_path) == {young}


def test_what_a_killed_writer_left_does_no_harm(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path)
    inputs.keep(b"one")
    (tmp_path / "part").write_bytes(b"half of someth")
    (tmp_path / "lock").write_bytes(b"[")
    name = inputs.keep(b"two")
    assert inputs.get(name) == b"two"
    assert not (tmp_path / "part").exists()


def test_what_a_full_disk_could_not_take_gives_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, content: bytes) -> None:
        os.write(file, content[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("redoma.audit.inputs.write_all", full)
    with pytest.raises(NotKept, match="No space left"):
        Inputs(tmp_path / "inputs").keep(b"x" * 5000)
    assert sum(file.stat().st_size for file in (tmp_path / "inputs").iterdir() if file.name != "lock") == 0
