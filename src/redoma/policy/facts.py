"""Facts about source text: the readers report them, and rules are matched against them.

`python/`, `javascript/` and `shell/` turn a request into facts and decide nothing. `match.py` matches rules with facts
and reads no source. So a rule never has to know how a command was quoted, wrapped or hidden.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Literal, TypedDict

import msgspec

from ..lib.patterns import lazy_pattern


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set. Tables of names are written this way."""
    return frozenset(text.split())


UNKNOWN = "\0"
"""Placeholder for a part of a word that can't be known before running: `"$dir"/x` reads as UNKNOWN + "/x".

A real word can't contain a NUL, so no text of a script can be mistaken for it. `$HOME` and `${HOME}` read as "~" and
`$PWD` as ".": their meaning is known even though their value is not.
"""

MAX_SOURCE = 256 * 1024
"""Maximum length of source text in characters. Longer text is reported as "source.too-large" and not parsed."""

MAX_NAME = 256
"""Maximum length of a command's name for which results are cached."""

MAX_DEPTH = 5
"""Levels of code inside code (`bash -c`, `os.system`) that are read. Deeper code is reported as "source.too-deep"."""


SURROGATE = lazy_pattern("[\ud800-\udfff]")
"""Half of a character, as Python decodes a byte that isn't valid UTF-8."""


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the 1-based line and column of an offset in a text."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the source does, and where it does it. Lines and columns are 1-based; columns count characters."""

    line: int = 0
    column: int = 0
    text: str = ""


class Place(TypedDict, total=False):
    """Where a fact is: the fields that all facts share."""

    line: int
    column: int
    text: str


Lookup = Literal["shell", "path", "none"]
"""What the name of a command stands for: in a shell a builtin, if there is one of that name, else a program; "path": a
program in any case, also if it may be either; "none": no program, but what code does itself, such as removing a file,
or a module."""


class Command(Fact, frozen=True, kw_only=True):
    """One simple command, after quote removal and without wrappers such as `env`, `xargs` or `find -exec`.

    A wrapper is also reported as a command: `sudo rm x` gives `sudo` and, with `via=("sudo",)`, `rm`.
    """

    name: str
    """The base name ("rm" for /bin/rm), with UNKNOWN for parts that can't be known."""
    args: tuple[str, ...] = ()
    """The words after the name, with UNKNOWN for parts that can't be known."""
    writes: tuple[str, ...] = ()
    """Paths it writes to: redirections, and the targets of commands known to write (tee, cp, mv, dd of=, sed -i …)."""
    via: tuple[str, ...] = ()
    """The wrappers it was found in, outermost first: ("sudo",), ("bash -c", "xargs")."""
    lookup: Lookup = "path"
    path: str = ""
    """The name as written, if it is a path: the base name alone doesn't distinguish `./ls` from the system's `ls`."""
    given: tuple[str, ...] = ()
    """The file on its standard input; UNKNOWN if the input can't be known."""
    directory: str | None = "."
    """The directory in which it runs: "." for the one where the request starts, None if unknown."""


_ELSEWHERE = names("ssh docker kubectl")


def runs_elsewhere(via: Sequence[str]) -> bool:
    """Return whether one of these wrappers runs its command on another machine or in another file system."""
    return any(each.partition(" ")[0] in _ELSEWHERE for each in via)


class Executed(Fact, frozen=True, kw_only=True):
    """A file that is run. Rules don't use these facts: they are for approvals, which are bound to the content."""

    path: str
    """The path as written, with UNKNOWN for parts that can't be known."""
    directory: str | None = "."
    """The directory that a relative path starts from: "." for the one where the request starts, None if unknown."""
    how: str = "program"
    """"program"; "script", read by an interpreter; "library", a script also searched for in PATH; "module", a Python
    module; "plan", the input of a program such as make; or "data", settings that decide what a program runs."""
    language: str = ""
    """The language in which its interpreter reads it."""
    via: tuple[str, ...] = ()
    """See `Command.via`."""
    args: tuple[str, ...] = ()
    """The arguments of a program, and the file on its standard input."""

    @property
    def is_script(self) -> bool:
        """Whether it may be a script, and its path is known."""
        by_path = self.how in ("script", "library", "module") or (self.how == "program" and "/" in self.path)
        return by_path and UNKNOWN not in self.path


class Assigned(Fact, frozen=True, kw_only=True):
    """A variable that is set for programs. Used like `Executed`, not by rules."""

    name: str
    value: str
    directory: str | None = "."
    """See `Executed.directory`."""


class Unbound(Fact, frozen=True, kw_only=True):
    """Something that makes it impossible to determine which files are run, so that an approval can't be bound to them.
    Used like `Executed`, not by rules."""

    why: str


def only_known_later(what: str) -> str:
    """Return the sentence that says why something can't be determined from the text: "which file it runs"."""
    return f"{what} is only known when it runs"


class Function(Fact, frozen=True, kw_only=True):
    """A function that a script defines: a command of the same name may be a call of it."""

    name: str


class Searched(Fact, frozen=True, kw_only=True):
    """A new value of PATH: where programs are searched for from here on."""

    path: str
    modules: bool = False
    """Whether it is a value of PYTHONPATH instead: where Python searches for modules."""


HOST_TRAITS = {
    "hosts.read": "it can read from a host of the network",
    "hosts.write": "it can send to a host of the network",
    "hosts.private": "it can reach an address of this machine, or of a private network",
}
"""Traits of the hosts that a request names, with their meaning."""
REQUEST_TRAITS = {**HOST_TRAITS, "packages.install": "packages have to be installed from the index before it runs"}
"""Traits of a request apart from its source, with their meaning. They take effect while the request runs, whether or
not its changes are applied."""


SOURCE_TRAITS = {
    "files.outside": "it writes outside the working directory and the project",
    "source.nul": "the text holds a NUL byte",
    "source.too-large": "the text is too long to be read",
    "source.too-deep": "code is nested in code too deeply to be followed",
    "source.bad-utf8": "the text is not valid UTF-8",
    "source.invisible": "the text holds invisible or direction-changing characters",
    "source.secret": "it holds a credential",
    "source.unread": "it is in a language, or a version of one, that is not read here",
}
"""Traits of source in any language, with their meaning."""


class Trait(Fact, frozen=True, kw_only=True):
    """A structural property that isn't a single command: "shell.pipe-to-interpreter", "python.encoding"."""

    name: str


class Span(Fact, frozen=True, kw_only=True):
    """The time limit that a request asks for."""

    seconds: float


class _Named(Fact, frozen=True, kw_only=True):
    """A use of a named function, module or attribute."""

    name: str
    javascript: bool = False
    """Whether it is a name in JavaScript, not in Python: then only rules about JavaScript match it."""


class Import(_Named, frozen=True, kw_only=True):
    """An import, by the full name: `from os import path as p` is "os.path", `require("node:fs")` is "fs"."""


class Call(_Named, frozen=True, kw_only=True):
    """A call, by its dotted name with aliases resolved; UNKNOWN for parts that can't be known."""

    literal: bool = False
    """Whether every argument is a constant."""


class Attribute(_Named, frozen=True, kw_only=True):
    """A name or attribute that is read without being called: `f = os.system`, `x.__globals__`."""


def normal(path: str, cwd: str | None) -> str:
    """Return a path without `.`, `..` and doubled slashes. A relative path is joined with the directory `cwd`."""
    if cwd is not None and cwd != "." and path and path[0] not in "/~" and not path.startswith(UNKNOWN):
        path = f"{cwd}/{path}"
    if path.startswith("~"):  # `~/..` can't be expressed as a path, so it stays `~`
        home, slash, rest = path.partition("/")
        return home + posixpath.normpath(f"/{rest}") if slash and rest else home
    plain = posixpath.normpath(path) if path else ""
    return plain[1:] if plain.startswith("//") else plain


def moved(here: str | None, there: str | None) -> str | None:
    """Return the directory `there`, resolved from `here`; None if the result isn't known."""
    if there is None or (here is None and there[:1] not in ("/", "~")):
        return None
    return normal(there, here)
