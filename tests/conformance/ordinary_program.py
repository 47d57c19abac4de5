"""An ordinary program: code that knows nothing of a jail, and everything that running it must produce."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from redoma import Status
from redoma.models import Language

Text = str | re.Pattern[str] | None
"""Literal text, a pattern that matches all of it, or None if it doesn't matter."""


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    stdout: Text = ""
    stderr: Text = ""
    """Empty by default: a warning that only the jail causes is a failure too."""
    status: Status = Status.OK
    exit_code: int | None = 0
    value: Any = msgspec.UNSET
    """The value of the last expression, or a pattern of its text; not checked if unset."""
    error: str = ""
    """A part of the error message."""
    files: Mapping[str, bytes | Callable[[bytes], bool]] = {}
    """The returned files: path → the content, or a check of it. Nothing else may be returned."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    language: Language = "python"
    code: str = ""
    argv: tuple[str, ...] = ()
    expect: Expect = Expect()
    stdin: str = ""
    env: Mapping[str, str] = {}
    files: Mapping[str, bytes | str] = {}
    outputs: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    """Run it once more in a cell where these are already imported: it must not notice."""
    needs: tuple[str, ...] = ()
    """Programs that the host must have."""
    shares_memory: bool = False
    """Needs shared memory without a file. If no cgroup counts a cell's memory, that is refused: once unmapped, it
    belongs to no process that could be measured.
    """


def _source(text: str) -> str:
    return textwrap.dedent(text).strip("\n") + "\n"


def expected(text: str) -> str:
    """Return lines of output, written indented for reading."""
    return _source(text)


def python(name: str, code: str, stdout: Text = "", *, stderr: Text = "", **more: Any) -> Program:
    """Return a Python program that succeeds and prints this."""
    return _program(name, "python", code, stdout, stderr, more)


def bash(name: str, code: str, stdout: Text = "", *, stderr: Text = "", **more: Any) -> Program:
    """Return a Bash script that succeeds and prints this."""
    return _program(name, "bash", code, stdout, stderr, more)


def command(name: str, argv: tuple[str, ...], stdout: Text = "", *, stderr: Text = "", **more: Any) -> Program:
    """Return an argument vector that succeeds and prints this."""
    program = _program(name, "command", "", stdout, stderr, more)
    return msgspec.structs.replace(program, code="", argv=argv)


def _program(name: str, language: Language, code: str, stdout: Text, stderr: Text, more: dict[str, Any]) -> Program:
    ending = {field: more.pop(field) for field in ("status", "exit_code", "value", "error") if field in more}
    if ending.get("exit_code"):
        ending.setdefault("status", Status.ERROR)
    brought = more.pop("brings", {})
    return Program(
        name=name,
        language=language,
        code=_source(code),
        expect=Expect(
            stdout=expected(stdout) if isinstance(stdout, str) and stdout else stdout,
            stderr=stderr,
            files=brought,
            **ending,
        ),
        outputs=more.pop("outputs", tuple(brought)),
        **more,
    )
