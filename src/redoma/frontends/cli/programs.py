"""Programs that are on our PATH but not in a cell: those of the project are found there, of others we say why not."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import click

from redoma.models import Result

_IN_EVERY_CELL = ("/usr/", "/bin/", "/sbin/")
_NOT_FOUND = 127
_MAX_FIRST_LINE = 256


def with_project_path(command: tuple[str, ...], project: Path | None) -> tuple[str, ...]:
    """The command with the path of its program, if our PATH finds it in the project, as in a virtual environment.

    A cell sees the project, but searches only its own PATH.
    """
    found = shutil.which(command[0]) if "/" not in command[0] else None
    if found is None or project is None:
        return command
    path, top = os.path.join(os.path.realpath(os.path.dirname(found)), command[0]), os.path.realpath(project)
    return (path, *command[1:]) if _is_below(path, top) and not _unseen(path, top) else command


def explain_not_found(result: Result, command: tuple[str, ...], project: Path | None) -> None:
    """Say why a program that is on our PATH was not found where the command ran, and what to do."""
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
    """The part of a program that no cell sees: itself, the target of its link, or the interpreter in its first line.
    Empty if a cell sees them all."""
    for needed in (path, os.path.realpath(path), *_interpreter(path)):
        if not needed.startswith(_IN_EVERY_CELL) and not (top and _is_below(needed, top)):
            return needed
    return ""


def _interpreter(path: str) -> list[str]:
    """The interpreter that a script names, and what that is a link to."""
    try:
        with open(path, "rb") as file:
            first = file.readline(_MAX_FIRST_LINE)
    except OSError:
        return []
    words = first.removeprefix(b"#!").split() if first.startswith(b"#!") else []
    return [os.fsdecode(words[0]), os.path.realpath(os.fsdecode(words[0]))] if words else []


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
