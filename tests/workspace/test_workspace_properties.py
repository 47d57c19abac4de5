"""For random trees and random things done to them: what is applied is what was done, and what is undone is what was."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest
from workspace_stage import Stage, as_an_ordinary_user, fast_directory, snapshot

from pace import MANY
from redoma.lib.files import remove_tree

CASES = 500 * MANY
_WHAT = ["create", "write", "append", "truncate", "rename", "unlink", "rmdir", "symlink", "chmod", "swap", "mkdir"]
_NAMES = ["a", "b", "c", "d.txt", "é", "na\udcffme", " ", "-rf", "x\ny"]
_MODES = [0o644, 0o600, 0o755, 0o444, 0o666]
_DIRECTORY_MODES = [0o755, 0o700, 0o777, 0o1777]


class Operations:
    """What a program does to files, chosen at random."""

    def __init__(self, top: Path, chance: random.Random, *, shut: bool) -> None:
        self.top, self.chance, self.shut = top, chance, shut

    def everything(self) -> tuple[list[str], list[str]]:
        directories, others = [str(self.top)], []
        for place, names, files in os.walk(self.top):
            links = [name for name in names if os.path.islink(f"{place}/{name}")]
            directories += [f"{place}/{name}" for name in names if name not in links]
            others += [f"{place}/{name}" for name in [*files, *links]]
        return directories, others

    def new_path(self, directories: list[str]) -> str:
        return f"{self.chance.choice(directories)}/{self.chance.choice(_NAMES)}"

    def once(self) -> None:
        directories, others = self.everything()
        files = [path for path in others if not os.path.islink(path)]
        below = directories[1:]
        what = self.chance.choice(_WHAT)
        path = self.new_path(directories)
        free = not os.path.lexists(path)
        if what == "mkdir" and free:
            os.mkdir(path)
        elif what == "symlink" and free:
            os.symlink(self.chance.choice(["a", "../b", "/nonexistent/passwd", "nowhere", "\udcff"]), path)
        elif what == "create" and free:
            self.fill(path)
            os.chmod(path, self.chance.choice(_MODES))
        elif what == "write" and files:
            self.fill(self.chance.choice(files))
        elif what == "append" and files:
            with open(self.chance.choice(files), "ab") as file:
                file.write(b"more\n")
        elif what == "truncate" and files:
            os.truncate(self.chance.choice(files), self.chance.choice([0, 1, 5000]))
        elif what == "rename" and (others or below):
            self.rename(self.chance.choice([*others, *below]), path)
        elif what == "unlink" and others:
            os.unlink(self.chance.choice(others))
        elif what == "rmdir" and below:
            shutil.rmtree(self.chance.choice(below))
        elif what == "chmod" and (files or below):
            victim = self.chance.choice([*files, *below])
            os.chmod(victim, self.chance.choice(_MODES if victim in files else _DIRECTORY_MODES))
        elif what == "swap" and (others or below):
            self.swap(self.chance.choice([*others, *below]))

    def fill(self, path: str) -> None:
        with open(path, "wb") as file:
            file.write(self.chance.choice([b"", b"one\n", b"two\nlines", b"\0\xff", self.chance.randbytes(40)]))

    def rename(self, path: str, to: str) -> None:
        if to == path or to.startswith(f"{path}/") or path.startswith(f"{to}/"):
            return
        if os.path.isdir(to) and not os.path.islink(to):
            shutil.rmtree(to)
        elif os.path.lexists(to):
            os.unlink(to)
        os.rename(path, to)

    def swap(self, path: str) -> None:
        """A directory by a file, or a file by a directory."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
            self.fill(path)
        else:
            os.unlink(path)
            os.mkdir(path)
            self.fill(f"{path}/inside")

    def shut_some(self) -> None:
        """In the end, as the owner: what is in a shut directory can't be seen any more, so from the bottom up."""
        if self.shut:
            directories, files = self.everything()
            for path in [*(file for file in files if not os.path.islink(file)), *reversed(directories[1:])]:
                if self.chance.random() < 0.15:
                    os.chmod(path, self.chance.choice([0, 0o100, 0o400, 0o500]))


def one_case(top: Path, seed: int, *, shut: bool = False) -> None:
    chance = random.Random(seed)
    stage = Stage(top)
    at_first = Operations(stage.project, chance, shut=False)
    for _ in range(chance.randrange(1, 14)):
        with contextlib.suppress(PermissionError):
            at_first.once()
    before = snapshot(stage.project)

    def run(ran: Path) -> None:
        program = Operations(ran, chance, shut=shut)
        for _ in range(chance.randrange(1, 9)):
            with contextlib.suppress(PermissionError):  # what it may not do, it doesn't
                program.once()
        program.shut_some()

    effect, contents, ran = stage.effect(run, chance)
    after = snapshot(ran)
    assert not effect.refused
    assert not effect.conflicts
    assert snapshot(stage.project) == before
    kept = stage.changes.keep("it", effect, contents, {})
    if chance.random() < 0.2:
        stage.changes.discard("it")
        assert snapshot(stage.project) == before
        return
    kept = stage.changes.apply("it")
    assert (kept.state, kept.left) == ("applied", {})
    assert snapshot(stage.project) == after
    assert stage.changes.undo("it").state == "undone"
    assert snapshot(stage.project) == before


def many_cases(place: Path, seeds: range, *, shut: bool = False) -> None:
    for seed in seeds:
        top = place / str(seed)
        top.mkdir()
        try:
            one_case(top, seed, shut=shut)
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
        remove_tree(top)


@pytest.mark.parametrize("part", range(2))
def test_applied_is_what_was_done_and_undone_is_what_was(part: int) -> None:
    with fast_directory() as place:
        many_cases(place, range(part, CASES, 2))


def test_the_same_as_an_ordinary_user() -> None:
    as_an_ordinary_user(lambda place: many_cases(place, range(10_000, 10_000 + 100 * MANY), shut=True))
