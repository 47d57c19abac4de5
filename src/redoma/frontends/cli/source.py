"""Reads the input of a command: source text and its language, files and standard input; and writes a new file."""

from __future__ import annotations

import builtins
import contextlib
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from redoma.lib.errors import InvalidRequest
from redoma.lib.files import reason
from redoma.models import Language

from .emit import echo

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast

    from .state import State

_MAX_SOURCE = 16 * 1024 * 1024
_SUFFIXES: dict[str, Language] = {
    **{".py": "python", ".pyw": "python", ".sh": "bash", ".bash": "bash"},
    **{".js": "javascript", ".cjs": "javascript", ".mjs": "javascript"},
}
_OTHERS = {
    "a Korn shell script": "ksh",
    "a Windows batch file": "bat cmd",
    "a Z shell script": "zsh",
    "a fish script": "fish",
    "a notebook": "ipynb",
    **{"C": "c h", "C#": "cs", "C++": "cc cpp", "Dart": "dart", "Elixir": "ex exs", "Go": "go", "Haskell": "hs"},
    **{"Java": "java", "JSX": "jsx", "Julia": "jl", "Kotlin": "kt", "Lua": "lua", "PHP": "php"},
    **{"Perl": "pl pm", "PowerShell": "ps1", "R": "r", "Ruby": "rb", "Rust": "rs", "SQL": "sql", "Scala": "scala"},
    **{"Swift": "swift", "Tcl": "tcl", "TypeScript": "ts tsx", "Zig": "zig"},
}
_OTHER_SUFFIXES = {f".{suffix}": name for name, suffixes in _OTHERS.items() for suffix in suffixes.split()}
"""The language for a suffix, if we can't run it."""
BASH_MEANT = "did you mean --lang bash?"


class Source(NamedTuple):
    """Source text, its language, and how these were determined."""

    code: str
    language: Language
    inline: bool
    """Whether it is the argument itself, not a file or `-`."""
    guessed: bool
    """Whether the language is unknown: neither an option, nor the name, nor the first line says it."""


def read_source(source: str, language: Language | None, state: State) -> Source:
    """Read source text from `-`, a file, or the argument itself. If nothing indicates its language, it is read as
    Python. `state` has the configuration, which is looked at only for a suffix that isn't known here.

    Raises `InvalidRequest` if there is none, it can't be read, or it is in another language.
    """
    guessed, path = language is None, Path(source)
    if source == "-":
        data = standard_input(_MAX_SOURCE + 1)
        if not data.strip():
            raise InvalidRequest("there is no code", why="standard input is empty", next="pipe the code into it")
        guessed = guessed and not data.startswith(b"#!")
        code = _decode(data, "standard input")
        return Source(code, language or _language_of(path, data, state), inline=False, guessed=guessed)
    if not source.strip():
        raise InvalidRequest("there is no code", why="the text is empty", next="name a file, or write the code itself")
    if _exists(source):
        data = read_file(path, _MAX_SOURCE, pipes=True)
        known = language or _language_of(path, data, state)
        guessed = guessed and not path.suffix and not data.startswith(b"#!")
        return Source(_decode(data, source), known, inline=False, guessed=guessed)
    if _is_path(source, language):
        raise InvalidRequest(f"there is no file {source}", why="it looks like a file's name", next="check the path")
    return Source(source, language or "python", inline=True, guessed=guessed)


def _exists(source: str) -> bool:
    """Return whether there is a file of this name. Raises `InvalidRequest` if we may not know."""
    if len(source) >= 4096 or "\n" in source or "\0" in source:
        return False
    try:
        os.stat(source)
    except PermissionError as error:
        raise InvalidRequest(
            f"{source} can't be read", why=error.strerror or "", next="check the rights of the directories on its path"
        ) from None
    except (OSError, ValueError):
        return False
    return True


def _is_path(source: str, language: Language | None) -> bool:
    """Return whether the text looks like the name of a file, rather than code: by its suffix, or by a slash in what
    means nothing as Python. In other languages a path can be code, as a regular expression or a command.
    """
    if any(character in source for character in " \t\n(;=$"):
        return False
    suffix = os.path.splitext(source)[1]
    if suffix in _SUFFIXES or suffix.lower() in _OTHER_SUFFIXES:
        return True
    return "/" in source and language in (None, "python") and not is_meant_as_python(source)


def read_file(path: Path, max_bytes: int, *, pipes: bool = False) -> bytes:
    """Read a file. Only a regular one, since anything else could block forever; with `pipes` also a pipe.

    Raises `InvalidRequest` if it can't be read or has more than `max_bytes`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK))
        with open(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not (stat.S_ISREG(mode) or (pipes and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)))):
                raise InvalidRequest(f"{path} can't be read", why="it is not a regular file", next="name a file")
            data = file.read(max_bytes + 1)
    except OSError as error:
        why = reason(error)
        raise InvalidRequest(f"{path} can't be read", why=why, next="check the path and its rights") from None
    if len(data) > max_bytes:
        raise InvalidRequest(f"{path} is too large", why=f"at most {max_bytes} bytes are taken", next="make it smaller")
    return data


def standard_input(max_bytes: int = -1) -> bytes:
    """Return the rest of standard input; empty if it is closed. At a terminal, say that it is waited for."""
    if sys.stdin is None:
        return b""
    if sys.stdin.isatty():
        echo("redoma: reading what you type, until Ctrl-D at the beginning of a line", err=True)
    return sys.stdin.buffer.read(max_bytes)


@contextlib.contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[TextIO]:
    """Write a file that only its owner can read. It appears only when it is complete.

    Raises `InvalidRequest` if it exists already and `force` is false, or if it can't be written.
    """
    import secrets

    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(part, flags, 0o600), "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file
        if force:
            os.replace(part, path)
        else:
            os.link(part, path)  # unlike a rename, this never replaces anything
    except FileExistsError:
        raise InvalidRequest(f"{path} is there already", why="nothing was written", next="add --force") from None
    except OSError as error:
        why = reason(error)
        raise InvalidRequest(f"{path} can't be written", why=why, next="choose another place") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _language_of(path: Path, data: bytes, state: State) -> Language:
    """Return the language by the file's name, or by its first line. Raises `InvalidRequest` for one that neither we nor
    the configuration knows.
    """
    if path.suffix in _SUFFIXES:
        return _SUFFIXES[path.suffix]
    words = data.split(b"\n", 1)[0].removeprefix(b"#!").split() if data.startswith(b"#!") else []
    programs = [Path(word.decode(errors="replace")).name for word in words if not word.startswith(b"-")]
    program = next((name for name in programs if name != "env" and "=" not in name), "")
    if program in ("sh", "bash", "dash"):
        return "bash"
    if program.startswith(("python", "pypy")):
        return "python"
    if program in ("node", "nodejs"):
        return "javascript"
    configured = state.config.languages if program or path.suffix else {}
    for name, one in configured.items():
        if path.suffix in one.suffixes or (program and program == os.path.basename(one.argv[0])):
            return name
    if path.suffix == ".lua" or program.startswith("lua"):
        raise InvalidRequest(
            f"{path} is a Lua script", why="this takes other languages", next=f"redoma lua {shlex.quote(str(path))}"
        )
    if program or path.suffix:
        what = (
            f"a script for {program}" if program else _OTHER_SUFFIXES.get(path.suffix.lower(), f"a {path.suffix} file")
        )
        raise InvalidRequest(
            f"{path} is {what}",
            why=f"this takes {', '.join(('Python', 'Bash', *configured))} and JavaScript",
            next="name the language if it is one of these (--lang bash), or the program that runs it under `languages` "
            "in redoma.yaml",
        )
    return "python"


def _decode(data: bytes, name: str) -> str:
    if len(data) > _MAX_SOURCE:
        raise InvalidRequest(
            f"{name} is too large", why=f"source has at most {_MAX_SOURCE} bytes", next="make it a file"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{name} is not UTF-8 text", why=f"byte {error.start} can't be read", next="save it as UTF-8"
        ) from None


def is_bash(code: str) -> bool:
    """Return whether the text parses as Bash. Python with a call never does: Bash itself does not accept `f(1)`."""
    import ast

    from redoma.policy import shell
    from redoma.policy.facts import Trait

    tree = _parsed(code)
    if tree is not None and any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        return False
    facts = shell.facts_of_script(code)
    return not any(isinstance(fact, Trait) and fact.name == "shell.parse-error" for fact in facts)


def undefined_name(code: str) -> str:
    """Return the first undefined name in Python that has only expressions: `rm` in `rm -rf`. Empty for any other
    code.
    """
    import ast

    tree = _parsed(code)
    if tree is None or not all(isinstance(statement, ast.Expr) for statement in tree.body):
        return ""
    nodes = list(ast.walk(tree))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    defined = {*vars(builtins), "__file__"}
    defined |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    undefined = [name for name in names if name.id not in defined]
    return min(undefined, key=lambda name: (name.lineno, name.col_offset)).id if undefined else ""


def is_meant_as_python(code: str) -> bool:
    """Return whether the text parses as Python and could do more than fail."""
    return _parsed(code) is not None and not undefined_name(code)


def _parsed(code: str) -> ast.Module | None:
    import ast
    import warnings

    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
