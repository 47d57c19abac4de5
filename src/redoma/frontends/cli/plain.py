"""The most common command lines, without click: code or a command, and no options.

Click and its dependencies take as long to load as a run. So these few forms are recognised by their words, and call the
same functions as the commands themselves (`run_code`, `evaluate_code`, `run_command`), with click's default options: a
test compares both. Click parses everything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from . import NATIVE
from .emit import echo, wants_json
from .result import follow, show
from .source import BASH_MEANT, is_bash, read_source, undefined_name
from .state import State

if TYPE_CHECKING:
    from pathlib import Path

    from redoma.models import Language, Result
    from redoma.pipeline.intake import Options

OPTIONS: Mapping[str, Any] = {
    "backend": "auto",
    "policy": None,
    "limits": {},
    "env": {},
    "secrets": {},
    "network": None,
    "environment": None,
    "packages": None,
    "files": {},
    "outputs": (),
    "stdin": b"",
    "workspace": "scratch",
    "project": None,
    "checkpoint": None,
    "require": (),
    "reason": "",
    "expect": None,
    "label": "",
    "whole_output": True,
}
"""What `options.run_options` returns for a command line without options."""


def run(arguments: list[str]) -> int:
    """Run the command that these words form: one of those that `is_plain` recognises. Returns our exit status."""
    state = State(None, {})
    if arguments[:4] == NATIVE:
        return run_command(state, tuple(arguments[4:]), {**OPTIONS, "backend": "native"})
    command, text = arguments
    return run_code(state, text, options=OPTIONS) if command == "run" else evaluate_code(state, text)


def run_code(
    state: State,
    source: str,
    arguments: tuple[str, ...] = (),
    language: Language | None = None,
    cwd: str | None = None,
    *,
    options: Mapping[str, Any],
    output_dir: str | None = None,
    force: bool = False,
    with_input: bool = False,
) -> int:
    """Run source text (a file, `-`, or the text itself), print its output, and return our exit status. `with_input`
    says whether our standard input was passed on to it.
    """
    code, known, inline, guessed = read_source(source, language, state)
    if not options["label"] and not inline and source != "-":
        options = {**options, "label": os.path.realpath(source)}
    with state.executor(_plain_cells(options)) as executor:
        live = executor.stream(code, known, **cast("Options", {**options, "args": arguments, "cwd": cwd}))
        result = follow(live)
        status = show(result, outputs=options["outputs"], output_dir=output_dir, force=force, with_value=inline)
    if guessed and not wants_json() and result.exception in ("SyntaxError", "NameError") and is_bash(code):
        if result.exception == "SyntaxError":
            echo(f"redoma: not valid Python; {BASH_MEANT}", err=True)
        elif undefined := undefined_name(code):
            echo(f"redoma: as Python this only fails: {undefined!r} is not defined; {BASH_MEANT}", err=True)
    if not with_input:
        hint_at_input(result, source)
    return status


def hint_at_input(result: Result, source: str) -> None:
    """Say how to pass standard input on, if the code read it in vain."""
    if result.exception != "EOFError" or "EOF when reading a line" not in result.stderr or wants_json():
        return
    how = "put the code into a file, and add -i" if source == "-" else "add -i to pass it on"
    echo(f"redoma: the code read its standard input, which is empty: {how}", err=True)


def evaluate_code(state: State, code: str) -> int:
    """Evaluate Python on Monty, print the answer as a dictionary, and return our exit status."""
    with state.executor("monty", attended=False) as executor:
        result = executor.run(code, backend="monty")
    from redoma.facades.safe import answer
    from redoma.frontends.shapes import json_value

    from .emit import emit

    emit(
        answer(result),
        lambda said: [repr(said)],
        shape=lambda said: {key: json_value(value) for key, value in said.items()},
    )
    return 0 if result.ok else 1


def run_command(
    state: State,
    command: tuple[str, ...],
    options: Mapping[str, Any],
    cwd: str | None = None,
    *,
    output_dir: str | None = None,
    force: bool = False,
) -> int:
    """Run a command on a backend, print its output, and return our exit status."""
    from .programs import as_found, explain_program

    project = None if options["workspace"] == "scratch" else _path(options["project"] or ".")
    with state.executor(_plain_cells(options)) as executor:
        words = command if options["backend"] == "native" else as_found(command, project)
        result = follow(executor.stream_command(words, **cast("Options", {**options, "cwd": cwd})))
        status = show(result, outputs=options["outputs"], output_dir=output_dir, force=force)
        if not wants_json():
            explain_program(result, command, project)
        return status


def _plain_cells(options: Mapping[str, Any]) -> str:
    """The backend to start at once: none for cells that have a project, or packages of their own."""
    own = options["workspace"] != "scratch" or options["environment"] or options["packages"]
    return "" if own else options["backend"]


def _path(text: str) -> Path:
    from pathlib import Path

    return Path(text)
