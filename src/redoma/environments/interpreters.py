"""Other interpreters of this machine that environments can be for.

The zygote of such an environment runs on that interpreter, with Redoma's own code for cells. So it is trusted as the
one that Redoma runs on, and its directory is seen in cells.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from ..lib.errors import InvalidRequest
from ..models import Interpreter

OLDEST = (3, 11)
"""Redoma's own code runs on it, in cells."""
_TIMEOUT = 30.0
_ASK = """
import importlib.util, json, os, sys, sysconfig
pip = importlib.util.find_spec("pip")
print(json.dumps({
    "name": sys.implementation.name,
    "version": sys.version_info[:2],
    "gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "tag": f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}",
    "prefix": os.path.realpath(sys.base_prefix),
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "library": sysconfig.get_config_var("LIBDIR") if sysconfig.get_config_var("Py_ENABLE_SHARED") else "",
    "pip": os.path.dirname(pip.origin) if pip is not None and pip.origin else "",
}))
"""


class _InterpreterAnswer(msgspec.Struct, frozen=True):
    name: str
    version: tuple[int, int]
    gil: bool
    tag: str
    prefix: str
    executable: str
    library: str
    pip: str


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter says of itself."""

    interpreter: Interpreter
    tag: str
    """As `store.this_python`, of this one."""
    pip: str
    """The directory of its own pip; empty if it has none."""


def describe(named: str) -> Described | None:
    """Ask an interpreter, by its path or by its name as a program, for what cells need to know. Executes it.

    Returns None for the one that Redoma runs on. Raises `InvalidRequest` for one that can't run in cells.
    """
    if (found := shutil.which(named)) is None:
        raise _unusable(named, "there is no such program", "name another: a path, or a program such as python3.12")
    path = os.path.abspath(found)
    answer = _ask(path)
    prefix, version = answer.prefix, ".".join(map(str, answer.version))
    if answer.name != "cpython" or not answer.gil:
        kind = answer.name if answer.gil else "a free-threaded build"
        raise _unusable(named, f"it is {kind}, and cells are made for CPython", "name another")
    if answer.version < OLDEST:
        raise _unusable(named, f"it is Python {version}", f"name one of {'.'.join(map(str, OLDEST))} or later")
    home = os.path.realpath(os.path.expanduser("~"))
    if not Path(answer.executable).is_relative_to(prefix) or Path(home).is_relative_to(prefix):
        why = f"it is installed in {prefix}, all of which runs would see"
        raise _unusable(named, why, "name one with a directory of its own")
    if answer.executable == os.path.realpath(sys._base_executable):  # type: ignore[attr-defined]
        return None
    other = Interpreter(
        path=path,
        executable=answer.executable,
        prefix=prefix,
        version=f"python{version}",
        library=answer.library,
        identity=identity(answer.executable),
    )
    return Described(interpreter=other, tag=answer.tag, pip=answer.pip)


def identity(path: str) -> tuple[int, ...]:
    """What tells this file from another at the same path; empty if there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _ask(path: str) -> _InterpreterAnswer:
    try:
        # With our variables: the program may be a shim, such as pyenv's, which reads some. Python itself doesn't (-I).
        done = subprocess.run([path, "-I", "-c", _ASK], capture_output=True, timeout=_TIMEOUT, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(path, str(error), f"try it: {path} -V") from error
    try:
        return msgspec.json.decode(done.stdout, type=_InterpreterAnswer)
    except msgspec.DecodeError as error:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0][:200]
        raise _unusable(
            path, f"it doesn't answer as a Python 3 does{said and ': '}{said}", f"try it: {path} -V"
        ) from error


def _unusable(named: str, why: str, advice: str) -> InvalidRequest:
    return InvalidRequest(f"the interpreter {named} can't be used", why=why, next=advice)
