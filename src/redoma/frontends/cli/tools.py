"""The user's own programs in a cell: those of the project are used as they are; of others we say why they can't be."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import click

from redoma.models import Result

_IN_EVERY_CELL = ("/usr/", "/bin/", "/sbin/")
_NOT_FOUND = 127
_LONGEST_FIRST_LINE = 256


def as_found(command: tuple[str, ...], project: Path | None) -> tuple[str, ...]:
    """The command with the path of its program, if our PATH leads to one of the project's that can run in a cell, such
    as one of a virtual environment: a cell sees the project, but searches only its own PATH."""
    found = shutil.which(command[0]) if "/" not in command[0] else None
    if found is None or project is None:
        return command
    path, top = os.path.join(os.path.realpath(os.path.dirname(found)), command[0]), os.path.realpath(project)
    return (path, *command[1:]) if _is_below(path, top) and not _unseen(path, top) else command


def say_why_it_is_not_there(result: Result, command: tuple[str, ...], project: Path | None) -> None:
    """Say what to do about a program that is on our PATH, but not where the command ran: in no cell, or not on the PATH
    that commands on the host have."""
    found = shutil.which(command[0])
    not_found = result.exit_code == _NOT_FOUND and (result.error or "").startswith("could not start")
    if not not_found or found is None:
        return
    if result.backend == "native" and "/" not in command[0]:
        elsewhere = f"redoma exec --backend native -- {shlex.join([os.path.abspath(found), *command[1:]])}"
        click.echo(f"  why: {found} is on your PATH, but commands on the host get a PATH of Redoma's own", err=True)
        click.echo(f"  next: name it by its path: {elsewhere}", err=True)
    if result.backend != "jail":
        return
    unseen = _unseen(found, os.path.realpath(project) if project is not None else "")
    because = f"{found} needs {unseen}, which" if unseen and unseen != found else f"{found}"
    click.echo(f"  why: {because} is not in the cell: it sees /usr and, of files, the project alone", err=True)
    elsewhere = f"redoma exec --backend native -- {shlex.join([os.path.abspath(found), *command[1:]])}"
    click.echo(f"  next: install it below /usr/local, or run it on the host itself: {elsewhere}", err=True)


def _unseen(path: str, top: str) -> str:
    """What of a program no cell sees: the program itself, what it is a link to, or the interpreter in its first line.
    Empty if it sees them all."""
    for needed in (path, os.path.realpath(path), *_interpreter(path)):
        if not needed.startswith(_IN_EVERY_CELL) and not (top and _is_below(needed, top)):
            return needed
    return ""


def _interpreter(path: str) -> list[str]:
    """The interpreter that a script names, and what that is a link to."""
    try:
        with open(path, "rb") as file:
            first = file.readline(_LONGEST_FIRST_LINE)
    except OSError:
        return []
    words = first.removeprefix(b"#!").split() if first.startswith(b"#!") else []
    return [os.fsdecode(words[0]), os.path.realpath(os.fsdecode(words[0]))] if words else []


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
