"""Random trees and random file operations: the same ones, done directly and done in a cell over the tree.

A run is expensive and an operation is cheap, so one project has many small trees, and one run works on all of them.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("a", "b", "c", "d e", "\udcff", "n\nl")
"""Few, so that operations collide; one is not UTF-8."""

PERFORM = '''
import errno, os, shutil, sys

def rename(source, target):
    """As `mv` does where the kernel can't: over an overlay, a directory of the layer below is copied and removed."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if os.path.lexists(target):
            os.rmdir(target)
        shutil.copytree(source, target, symlinks=True, copy_function=shutil.copyfile)
        for place, directories, files in os.walk(source):
            for name in [*directories, *files]:
                path = os.path.join(place, name)
                if not os.path.islink(path):
                    os.chmod(os.path.join(target, os.path.relpath(path, source)), os.stat(path).st_mode & 0o7777)
        os.chmod(target, os.stat(source).st_mode & 0o7777)
        shutil.rmtree(source)

def write(path, text, mode):
    with open(path, mode) as file:
        file.write(text)

def truncate(path, size):
    if os.path.islink(path):
        raise OSError("a link")
    os.truncate(path, size)

def replace_by_file(path):
    shutil.rmtree(path)
    write(path, "now a file", "x")

def replace_by_directory(path):
    os.unlink(path)
    os.mkdir(path)
    write(os.path.join(path, "inside"), "now a directory", "x")

def recreate(path):
    shutil.rmtree(path)
    os.mkdir(path)

ACTIONS = {
    "create": lambda path, value: write(path, value, "x"),
    "write": lambda path, value: None if os.path.islink(path) else write(path, value, "r+"),
    "append": lambda path, value: None if os.path.islink(path) else write(path, value, "a"),
    "truncate": truncate,
    "rename": rename,
    "unlink": lambda path, value: os.unlink(path),
    "mkdir": lambda path, value: os.mkdir(path),
    "rmdir": lambda path, value: os.rmdir(path),
    "rmtree": lambda path, value: shutil.rmtree(path),
    "symlink": lambda path, value: os.symlink(value, path),
    "link": lambda path, value: os.link(value, path, follow_symlinks=False),
    "chmod": lambda path, value: None if os.path.islink(path) else os.chmod(path, value),
    "file for directory": lambda path, value: replace_by_file(path),
    "directory for file": lambda path, value: replace_by_directory(path),
    "recreate": lambda path, value: recreate(path),
}

def perform(operations):
    for action, path, value in operations:
        try:
            ACTIONS[action](path, value)
        except (OSError, shutil.Error):
            continue  # what can't be done here can't be done there
'''


def plant(place: Path, chance: random.Random) -> None:
    """Create a small tree."""
    directories = [place]
    place.mkdir()
    for _ in range(chance.randrange(2, 9)):
        path = chance.choice(directories) / chance.choice(NAMES)
        if os.path.lexists(path):
            continue
        match chance.randrange(6):
            case 0 | 1:
                path.mkdir()
                directories.append(path)
            case 2:
                path.symlink_to(chance.choice([*NAMES, "nowhere", "/nonexistent/hostname"]))
            case _:
                path.write_text("x" * chance.randrange(0, 40) + "\n")
                # Root may write to a file without write permission. A cell has no such root.
                path.chmod(chance.choice([0o644, 0o600, 0o755, 0o400 if os.geteuid() else 0o640]))
    for path in directories[1:]:
        path.chmod(chance.choice([0o755, 0o700, 0o775]))


def operations(place: str, chance: random.Random) -> list[tuple[str, str, Any]]:
    def path() -> str:
        return "/".join([place, *(chance.choice(NAMES) for _ in range(chance.choice([1, 1, 1, 2, 2, 3])))])

    values: dict[str, Callable[[], Any]] = {
        "truncate": lambda: chance.randrange(0, 60),
        "rename": path,
        "symlink": lambda: chance.choice([*NAMES, "/nowhere"]),
        "link": path,
        "chmod": lambda: chance.choice([0o755, 0o700, 0o710, 0o744]),
    }
    actions = [
        *("create", "create", "write", "append", "truncate", "rename", "rename", "unlink", "unlink", "mkdir", "rmdir"),
        *("rmtree", "symlink", "link", "chmod", "file for directory", "directory for file", "recreate"),
    ]
    chosen = [chance.choice(actions) for _ in range(chance.randrange(1, 9))]
    return [(action, path(), values.get(action, lambda: f"text {chance.random()}\n")()) for action in chosen]


def look(place: Path) -> dict[str, Any]:
    """Return everything that counts: kinds, modes, contents, targets."""
    found: dict[str, Any] = {}
    for directory, directories, files in os.walk(place):
        for name in [*directories, *files]:
            path = Path(directory, name)
            about = path.lstat()
            key = os.fsencode(path.relative_to(place)).hex()
            mode = stat.S_IMODE(about.st_mode)
            if path.is_symlink():
                found[key] = ("link", os.readlink(path))
            elif path.is_dir():
                found[key] = ("directory", mode)
            else:
                found[key] = ("file", mode, path.read_bytes().hex())
    return found
