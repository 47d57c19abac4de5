"""Programs on our PATH: those that a cell sees run there; for others, we explain why not."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from redoma.models import Result

from .emit import echo

_IN_EVERY_CELL = ("/usr/", "/bin/", "/sbin/")
_NOT_FOUND = 127
_MAX_FIRST_LINE = 256


def as_found(command: tuple[str, ...], project: Path | None) -> tuple[str, ...]:
    """Return the command with the program's path, if our PATH finds it in the project, as in a virtual environment, or
    finds a system program where a cell would use Redoma's own. A cell sees both, but searches only its own PATH.
    """
    import shutil

    found = shutil.which(command[0]) if "/" not in command[0] else None
    if found is None or project is None:
        return command
    path, top = os.path.join(os.path.realpath(os.path.dirname(found)), command[0]), os.path.realpath(project)
    if _unseen(path, top) or not (_is_below(path, top) or _is_hidden(path)):
        return command
    return (path, *command[1:])


def explain_program(result: Result, command: tuple[str, ...], project: Path | None) -> None:
    """Explain why a program on our PATH was not the one that ran, or was not found, and what to do; also for a line
    for a shell in place of a program.
    """
    not_found = result.exit_code == _NOT_FOUND and (result.error or "").startswith("could not start")
    if result.backend == "native" and not not_found:
        return
    if not_found and len(command) == 1 and any(character in command[0] for character in " \t\n|&;<>"):
        echo("  why: it was taken for the name of a program, as no shell reads it", err=True)
        echo(f"  next: write it after sh -c: {shlex.join(['sh', '-c', command[0]])}", err=True)
        return
    import shutil

    found = shutil.which(command[0])
    if found is None:
        return
    elsewhere = f"redoma exec --backend native -- {shlex.join([os.path.abspath(found), *command[1:]])}"
    if result.backend == "native" and not_found and "/" not in command[0]:
        echo(f"  why: {found} is on your PATH, but commands on the host get a PATH of Redoma's own", err=True)
        echo(f"  next: name it by its path: {elsewhere}", err=True)
    hidden = result.status.ending == "ran" and _is_hidden(found) and as_found(command, project) == command
    hidden = hidden and "/" not in command[0]
    if result.backend != "jail" or not (not_found or hidden):
        return
    unseen = _unseen(found, os.path.realpath(project) if project is not None else "")
    if not unseen:
        echo(f"note: {command[0]} was Redoma's own; to run the one on your PATH, write {found}", err=True)
        return
    because = f"{found} needs {unseen}, which" if unseen != found else found
    because += " is not in the cell: it sees /usr and, of files, the project alone"
    echo(f"note: {command[0]} was Redoma's own. {because}" if hidden else f"  why: {because}", err=True)
    echo(f"  next: install it below /usr/local, or run it on the host itself: {elsewhere}", err=True)


def _is_hidden(path: str) -> bool:
    """Return whether a cell would use Redoma's own program of this name, and that is a different one."""
    base, name = os.path.realpath(sys.base_prefix), os.path.basename(path)
    own = [sys.prefix] if sys.prefix != sys.base_prefix and re.fullmatch(r"python[0-9.]*", name) else []
    if not base.startswith("/usr"):
        own.append(base)
    there = [os.path.realpath(f"{prefix}/bin") for prefix in own if os.path.exists(f"{prefix}/bin/{name}")]
    return bool(there) and os.path.realpath(os.path.dirname(path)) not in there


def _unseen(path: str, top: str) -> str:
    """Return the part of a program that a cell doesn't see: itself, the target of its link, or the interpreter in its
    first line. Empty if a cell sees them all.
    """
    for needed in (path, os.path.realpath(path), *_interpreter(path)):
        if not needed.startswith(_IN_EVERY_CELL) and not (top and _is_below(needed, top)):
            return needed
    return ""


def _interpreter(path: str) -> list[str]:
    """Return the interpreter that a script names, and the target of its link."""
    try:
        with open(path, "rb") as file:
            first = file.readline(_MAX_FIRST_LINE)
    except OSError:
        return []
    words = first.removeprefix(b"#!").split() if first.startswith(b"#!") else []
    return [os.fsdecode(words[0]), os.path.realpath(os.fsdecode(words[0]))] if words else []


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
