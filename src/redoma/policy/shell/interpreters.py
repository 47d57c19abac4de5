"""Programs that run code: find the code on their command line, and its language."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from ...lib.patterns import lazy_pattern
from ..facts import MAX_NAME, Lookup, names
from ..options import Grammar, grammar_of, read_option
from .words import Word


class Run(msgspec.Struct, frozen=True):
    """A step of unwrapping: another command is run."""

    words: tuple[Word, ...]
    via: str
    directory: str | None = None
    """Where it runs, if the wrapper changes to another directory first."""
    lookup: Lookup = "path"
    """See `facts.Command`."""


class Code(msgspec.Struct, frozen=True):
    """A step of unwrapping: source text on the command line is run. `language`: "shell"; "python"; "plain" for code in
    another language that only computes, reads files and prints; "other" for any other code."""

    language: str
    source: Word
    via: str
    params: tuple[Word, ...] = ()
    """What the code sees as `$0`, `$1` …, or as `sys.argv`."""
    when: str = "elsewhere"
    """"now" or "later" if it runs in this same shell and sees its variables; otherwise "elsewhere"."""
    lookup: Lookup = "path"
    """That of its commands: "shell" if a shell with the builtins of Bash runs it."""


class Script(msgspec.Struct, frozen=True):
    """A step of unwrapping: source read from a file is run. `path` is None for standard input."""

    language: str
    path: Word | None
    via: str
    how: str = "script"
    """See `facts.Executed`."""
    params: tuple[Word, ...] = ()
    """See `Code.params`; for a script on standard input."""


Step = Run | Code | Script

_NUMBER = lazy_pattern(r"-\d+\Z")
ASSIGNMENT = lazy_pattern(r"[A-Za-z_]\w*\+?=")


def strip(grammar: Grammar, rest: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Return the command after a program's own options and operands. If an option isn't in the grammar, also return the
    reading in which the next word is its value."""
    readings: list[tuple[Word, ...]] = []
    skip, at = grammar.operands, 0
    while at < len(rest):
        text = rest[at].text
        if text == "--":
            at += 1 + skip
            break
        if text.startswith("-") and len(text) > 1:
            option = read_option(text, grammar)
            if option.listed or (text.startswith("--") and option.value is not None) or _NUMBER.match(text):
                at += 2 if option.takes_next else 1
            else:
                readings.append(tuple(rest[at + 2 :]))
                at += 1
        elif grammar.assignments and ASSIGNMENT.match(text):
            at += 1
        elif skip:
            skip, at = skip - 1, at + 1
        else:
            break
    return [tuple(rest[at:]), *readings]


# All shells of the `sh` family read options in the same way: with `-c`, the code is the first operand.
_SHELLS = lazy_pattern(r"(?:r?bash|sh|dash|ash|zsh|[mpo]?ksh(?:93)?|fish|yash|posh|lksh)(?:-?\d[\d.]*)?\Z")
_PYTHONS = lazy_pattern(r"(?:python|pypy)(?:\d(?:\.\d+)*)?w?t?\Z")

_CODE: dict[str, str] = {
    **dict.fromkeys(names("ruby lua luajit Rscript R osascript ghc groovy scala pry ghci gnuplot ocaml"), "e"),
    **dict.fromkeys(names("tclsh wish m4 irb jshell deno"), ""),
    **dict.fromkeys(names("node nodejs bun tsx ts-node"), "e p eval print"),
    **dict.fromkeys(names("expect guile csh tcsh ipython"), "c"),
    **dict.fromkeys(names("pwsh powershell"), "c Command EncodedCommand"),
    **dict.fromkeys(names("erl sbcl emacs octave"), "eval"),
    **dict.fromkeys(names("elixir iex"), "e eval"),
    "perl": "e E",
    "php": "r B R E",
    "julia": "e E eval print",
    "swipl": "g t",
}
"""Interpreters whose code isn't read, with the options that have code as their value."""
_LOADS = frozenset({"r", "require", "import", "loader", "preload", "l", "L", "load", "s", "f", "File"})
"""Options of these interpreters whose value is a file: the program itself, or one that is run before it."""
_START_UPS = {
    "bash": ((".bash_profile", ".bash_login", ".profile"), (".bashrc",)),
    "zsh": ((".zprofile", ".zlogin"), (".zshrc",)),
}
"""Files in the user's home that a login shell runs, and those that an interactive shell runs."""


def start_ups(name: str, args: Sequence[str]) -> tuple[str, ...]:
    """Return the files in the user's home that a shell runs first: `.zshenv` for any zsh, more for a login shell or an
    interactive one; empty for other programs."""
    if _remembered_language(name[:MAX_NAME]) != "shell":
        return ()
    options = list(takewhile(lambda arg: arg.startswith(("-", "+")), args))
    letters = "".join(option for option in options if not option.startswith("--") and option[1:] not in _LONG)
    login, talked_to = _START_UPS.get(name, ((".profile",), ()))
    found: tuple[str, ...] = (".zshenv",) if name == "zsh" else ()
    if "l" in letters or not {"--login", "-login"}.isdisjoint(options):
        found += login
    return found + talked_to if "i" in letters else found


def interpreter(name: str) -> str | None:
    """Return the language that a program runs; None if it isn't an interpreter."""
    return _remembered_language(name) if len(name) <= MAX_NAME else _language(name)


def _language(name: str) -> str | None:
    if "sh" in name and _SHELLS.match(name):
        return "shell"
    if "py" in name and _PYTHONS.match(name):
        return "python"
    return "other" if name in _CODE else None


_remembered_language = functools.lru_cache(maxsize=1024)(_language)


def interpret(name: str, language: str, rest: list[Word]) -> Iterator[Step]:
    """Return the code that an interpreter of this language runs, given its arguments."""
    return {"shell": _shell, "python": _python}.get(language, _other)(name, rest)


_LONG = names("""
    debug debugger dump-po-strings dump-strings help init-file login noediting noprofile norc posix pretty-print rcfile
    restricted verbose version wordexp protected
""")
"""Long options of Bash, which also accepts them with one dash."""


def _shell(name: str, rest: list[Word]) -> Iterator[Step]:
    at, inline, stdin = 0, False, False
    while at < len(rest):
        text = rest[at].text
        if text[1:] in _LONG:
            text = f"-{text}"
        if text in ("--", "-"):
            at += 1
            break
        if text in ("--rcfile", "--init-file"):
            yield Script("shell", rest[at + 1] if at + 1 < len(rest) else None, f"{name} {text}")
            at += 2
        elif text in ("--command", "--init-command"):
            inline, at = True, at + 1
        elif text.startswith("--"):
            at += 1
        elif text[:1] in "-+" and len(text) > 1:
            inline |= text[0] == "-" and "c" in text
            stdin |= text[0] == "-" and "s" in text
            at += 2 if text[-1] in "oO" else 1
        else:
            break
    operands = rest[at:]
    if inline and operands:
        yield Code("shell", operands[0], f"{name} -c", tuple(operands[1:]), lookup="shell")
    elif not inline and not {"--version", "--help", "-n"} & {word.text for word in rest[:at]}:
        fed = stdin or not operands
        yield Script("shell", None if fed else operands[0], name, params=(Word(name), *operands) if fed else ())


def _python(name: str, rest: list[Word]) -> Iterator[Step]:
    at = 0
    while at < len(rest):
        text = rest[at].text
        if not text.startswith("-") or text == "-":
            break
        if found := re.match(r"-[A-Za-z]*?([cm])(.*)", text, re.DOTALL) if not text.startswith("--") else None:
            tail = [Word(found[2])] if found[2] else []
            operands = tail + rest[at + 1 :]
            if operands and found[1] == "c":
                yield Code("python", operands[0], f"{name} -c", (Word("-c"), *operands[1:]))
            elif operands:
                yield Run(tuple(operands), f"{name} -m", lookup="none")
                yield Script("python", operands[0], f"{name} -m", "module")  # looked for in the current directory first
                yield from _python_module(operands[0].text, operands[1:])
            return
        if text in ("-V", "-VV", "--version", "-h", "--help"):
            return
        if re.match(r"-[A-Za-z]*i", text):
            yield Script("python", None, f"{name} -i")  # after the program has run
        at += 2 if text in ("-W", "-X", "--check-hash-based-pycs") else 1
    path = rest[at] if at < len(rest) and rest[at].text != "-" else None
    yield Script("python", path, name, params=tuple(rest[at:]) if path is None else ())


def _python_module(module: str, rest: list[Word]) -> Iterator[Step]:
    """Yield the code that a module of the standard library is given to run, for `python -m`."""
    via = f"python -m {module}"
    if module == "timeit":
        for word in rest:
            source = re.sub(r"\A(?:-s|--setup=)", "", word.text)
            if source and not source.startswith("-"):
                yield Code("python", replace(word, text=source), via)
    elif module in ("code", "pdb", "asyncio"):
        yield Script("other", None, via)
    elif module in ("cProfile", "profile", "trace"):
        for command in strip(grammar_of(via), rest):
            if any(word.text == "-m" for word in rest[: len(rest) - len(command)]):
                yield Run(command, via)
            elif command:
                yield Script("python", command[0], via)


def _other(name: str, rest: list[Word]) -> Iterator[Step]:
    code, values = _CODE[name].split(), grammar_of(name).values
    if name == "deno" and rest and rest[0].text in ("run", "serve", "test", "bench"):
        rest = rest[1:]
    at, found = 0, False
    from .oneliners import only_prints  # many patterns that other programs don't need

    language = "plain" if only_prints(name, [word.text for word in rest]) else "other"
    while at < len(rest) and rest[at].text.startswith("-") and rest[at].text != "-":
        text = rest[at].text
        option = text.lstrip("-").partition("=")[0]
        if text.startswith("--"):
            carries = option in code
        else:
            # In a bundle (`perl -pie`), code follows if any letter takes code as its value.
            carries = option in code or any(letter in code for letter in option)
        if carries:
            found = True
            yield Code(language, rest[min(at + 1, len(rest) - 1)], f"{name} {text[:20]}")
        elif option in values and option in _LOADS:
            given = replace(rest[at], text=text.partition("=")[2]) if "=" in text else rest[min(at + 1, len(rest) - 1)]
            if "/" in given.text or option in ("f", "File", "load"):
                yield Script("other", given, f"{name} {text[:20]}")
        if text in ("-v", "-V", "--version", "-h", "--help"):
            return
        at += 2 if carries or option in values else 1
    if not found:
        yield Script("other", rest[at] if at < len(rest) and rest[at].text != "-" else None, name)
