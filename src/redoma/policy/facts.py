"""What the readers of source text report and the rules are matched against.

`python/`, `javascript/` and `shell/` turn a request into facts; they decide nothing. `match.py` matches rules with
facts; it reads no source. So a rule never has to know how a command was quoted, wrapped or hidden.
"""

from __future__ import annotations

import posixpath

import msgspec


def names(text: str) -> frozenset[str]:
    """The words of a text, as a set: how tables of names are written."""
    return frozenset(text.split())


UNKNOWN = "\0"
"""Stands in a word for a part that can't be known before running: `"$dir"/x` reads as UNKNOWN + "/x".

A NUL can't occur in a real word, so nothing that is written in a script can be mistaken for it. `$HOME` and
`${HOME}` read as "~" and `$PWD` as ".": what they mean is known even though their value is not.
"""

MAX_SOURCE = 256 * 1024
"""Characters that are read at all. More than this is reported as "source.too-large" and not parsed."""

MAX_NAME = 256
"""Characters of a command's name; nothing is cached for a longer one."""

MAX_DEPTH = 5
"""Code inside code (`bash -c`, `os.system`) that is followed. Deeper is reported as "source.too-deep"."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something the source does, and where. Lines and columns are 1-based, in characters."""

    line: int = 0
    column: int = 0
    text: str = ""


class Command(Fact, frozen=True, kw_only=True):
    """One simple command, after quote removal and unwrapped from `env`, `xargs`, `find -exec` and their like.

    The wrapper is reported as a command of its own too: `sudo rm x` is `sudo` and, via it, `rm`.
    """

    name: str
    """The base name ("rm" for /bin/rm); UNKNOWN inside it where it can't be known."""
    args: tuple[str, ...] = ()
    """The words after the name, with UNKNOWN for what can't be known."""
    writes: tuple[str, ...] = ()
    """Paths it writes to: redirections, and the targets of commands known to write (tee, cp, mv, dd of=, sed -i …)."""
    via: tuple[str, ...] = ()
    """What it was found inside of, outermost first: ("sudo",), ("bash -c", "xargs")."""
    path: str = ""
    """The name as written, if it is a path: the base name alone can't tell `./ls` from the system's `ls`."""
    given: tuple[str, ...] = ()
    """The file on its standard input; UNKNOWN if what is there can't be known."""
    directory: str | None = "."
    """Where it runs: "." where it all begins, None if that can't be known."""


class Executed(Fact, frozen=True, kw_only=True):
    """A file that is run. No rule looks at these: an approval is bound to the content of the files."""

    path: str
    """As it is written, with UNKNOWN for what can't be known."""
    directory: str | None = "."
    """Where a relative path leads from: "." where it all begins, None if that can't be known."""
    how: str = "program"
    """"program"; "script", read by an interpreter; "library", also looked for where programs are; "module", of Python;
    or "plan", of a program such as make."""
    language: str = ""
    """The language that its interpreter reads it as."""
    via: tuple[str, ...] = ()
    """See `Command.via`."""
    args: tuple[str, ...] = ()
    """The arguments of a program, and the file on its standard input."""


class Assigned(Fact, frozen=True, kw_only=True):
    """A variable that is set for programs. No rule looks at these, either."""

    name: str
    value: str
    directory: str | None = "."
    """See `Executed.directory`."""


class Unbound(Fact, frozen=True, kw_only=True):
    """Something that decides which files are run, in a way that can't be followed. No rule looks at these, either: an
    approval can't be bound to those files."""

    why: str


class Function(Fact, frozen=True, kw_only=True):
    """A function that a script defines: a command of this name may be the function."""

    name: str


class Searched(Fact, frozen=True, kw_only=True):
    """Where programs are looked for from here on: a value of PATH."""

    path: str
    modules: bool = False
    """Where Python looks for modules instead: a value of PYTHONPATH."""


HOST_TRAITS = {
    "hosts.read": "it can read from a host of the network",
    "hosts.write": "it can send to a host of the network",
    "hosts.private": "it can reach an address of this machine, or of a private network",
}
"""What can be said of the hosts that a request names."""
REQUEST_TRAITS = {
    **HOST_TRAITS,
    "packages.install": "packages have to be installed from the index before it runs",
}
"""What can be said of a request beside its source. It happens when it runs, whatever becomes of its changes."""


class Trait(Fact, frozen=True, kw_only=True):
    """A structural property that is not one command: "shell.pipe-to-interpreter", "python.encoding"."""

    name: str


class Span(Fact, frozen=True, kw_only=True):
    """How long a request wants to be allowed to run."""

    seconds: float


class _Named(Fact, frozen=True, kw_only=True):
    """What a program does with something that has a name."""

    name: str
    javascript: bool = False
    """Whether it is a name of JavaScript, and not of Python: only rules about JavaScript look at it."""


class Import(_Named, frozen=True, kw_only=True):
    """An import, by the full name: `from os import path as p` is "os.path", `require("node:fs")` is "fs"."""


class Call(_Named, frozen=True, kw_only=True):
    """A call, by the dotted name after aliases are resolved; UNKNOWN where it can't be."""

    literal: bool = False
    """Whether every argument is a constant."""


class Attribute(_Named, frozen=True, kw_only=True):
    """A name or attribute that is read without being called: `f = os.system`, `x.__globals__`."""


def normal(path: str, cwd: str | None) -> str:
    """A path without `.`, `..` and doubled slashes, from the directory that was changed to."""
    if cwd is not None and cwd != "." and path and path[0] not in "/~" and not path.startswith(UNKNOWN):
        path = f"{cwd}/{path}"
    if path.startswith("~"):  # what is above a home is no path from here
        home, slash, rest = path.partition("/")
        return home + posixpath.normpath(f"/{rest}") if slash and rest else home
    plain = posixpath.normpath(path) if path else ""
    return plain[1:] if plain.startswith("//") else plain


def moved(here: str | None, there: str | None) -> str | None:
    """The directory `there`, seen from `here`; None if either isn't known."""
    if there is None or (here is None and there[:1] not in ("/", "~")):
        return None
    return normal(there, here)
