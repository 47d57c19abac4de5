"""Finds what an `.envrc` makes a shell run when its directory is entered, from its text alone. Nothing is run.

direnv asks its user again when an `.envrc` changes, but not when a file that it sources changes. So such a file is
protected like the `.envrc` itself. Commands that source or run a file with a constant path are recognised, also in
sourced files; computed paths are not.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator

_MAX_FILES = 32  # files that source each other
_MAX_TEXT = 1 << 16  # characters of all files together
_MAX_LINE = 4096
_MAX_DEPTH = 3  # nested substitutions

_SOURCES = frozenset({"source_env", "source_env_if_exists", "source", ".", "source_up", "source_up_if_exists"})
_LOADS = frozenset({"dotenv", "dotenv_if_exists"})
_INTERPRETERS = re.compile(r"(?:ba|da|z|k)?sh|python[\d.]*|node|ruby|perl")
_WORDS = frozenset({"if", "then", "elif", "else", "do", "while", "until", "!", "{", "time", "exec", "command", "eval"})
_PREFIXES = frozenset({"builtin", "env", "direnv_load", "strict_env", "unstrict_env"})
_HERE = re.compile(r"(?:\$PWD|\$\{PWD\}|\$\(pwd\)|`pwd`|\$\(expand_path ([^()$]*)\))/?")
_INNER = re.compile(r"\$\(([^()]*)\)|`([^`]*)`|[<>]\(([^()]*)\)")
_SCRIPT = re.compile(r"\.(?:sh|bash|zsh|env|envrc)\Z")
_END = re.compile(r"[;&|()<>]+\Z")


def sourced(envrcs: Iterable[str], read: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield the absolute paths that these `.envrc` files source, load or run, each with the file that names it. `read`
    returns the text of a file.
    """
    left, known = _MAX_TEXT, set[str]()
    for envrc in envrcs:
        top = os.path.dirname(envrc)
        todo = [envrc]
        for file in todo:  # the list grows
            text = read(file)[:left]
            left -= len(text)
            for word, is_code in _named(text, _MAX_DEPTH):
                for place in dict.fromkeys(os.path.join(base, word) for base in (os.path.dirname(file), top)):
                    if place in known:
                        continue
                    known.add(place)
                    yield place, file
                    if is_code and len(todo) < _MAX_FILES:
                        todo.append(place)


def _named(text: str, depth: int) -> Iterator[tuple[str, bool]]:
    """Yield the paths that a script sources or runs, and whether a shell reads that file."""
    if depth == 0:
        return
    for command in _commands(text):
        for word in command:
            for inner in _INNER.finditer(word):
                yield from _named(next(filter(None, inner.groups()), ""), depth - 1)
        while command and (command[0] in _WORDS or command[0] in _PREFIXES or re.match(r"\w+=", command[0])):
            command = command[1:]
        if not command:
            continue
        name, args = command[0], command[1:]
        if name == "for" and "in" in args:  # for file in conf/*.sh; do source "$file"; done
            words, is_code = [arg for arg in args[args.index("in") + 1 :] if _SCRIPT.search(arg)], True
        elif name in _SOURCES:
            words, is_code = args[:1], True
        elif name in _LOADS:
            words, is_code = args[:1] or [".env"], False
        elif _INTERPRETERS.fullmatch(os.path.basename(name)):
            words, is_code = [arg for arg in args if not arg.startswith("-")][:1], "sh" in name
        else:
            words, is_code = [name] if "/" in name else [], False
        for word in words:
            if path := _path(word):
                yield path, is_code


def _path(word: str) -> str:
    """Return the path in a word, or the directory of a glob; empty if it is computed, in a home directory or a URL."""
    word = _HERE.sub(lambda found: f"./{found[1] or ''}", word)
    if re.search(r"[$`~\0]", word) or "://" in word:
        return ""
    return re.sub(r"[^/]*[*?\[].*", "", word)


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script, as words without quotes."""
    for line in text.replace("\\\n", " ").splitlines():
        command: list[str] = []
        try:
            for word in _words(line):
                if _END.match(word):
                    yield command
                    command = []
                else:
                    command.append(word)
        except ValueError:  # the quote is closed on another line
            command += line.split()
        yield command


def _words(line: str) -> Iterator[str]:
    """Yield the words of a line. A substitution stays one word."""
    line = line[:_MAX_LINE]
    inner = [found[0] for found in _INNER.finditer(line)]
    numbers = itertools.count()
    reader = shlex.shlex(_INNER.sub(lambda _: f"\0{next(numbers)}\0", line), posix=True, punctuation_chars=True)
    reader.wordchars += "\0$@%+,{}[]!^:"
    for word in reader:
        yield re.sub(r"\0(\d+)\0", lambda found: inner[int(found[1])], word)
