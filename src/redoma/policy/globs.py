"""Globs of rules, and globs in the paths of commands.

No expression here takes more than linear time on hostile input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from .facts import names

Fits = Callable[[str], object]
"""Says whether a text matches."""

_MAX_ROOT_GLOB = 100
_ROOT_DIRECTORIES = sorted(
    names("bin boot dev etc home lib lib32 lib64 media mnt opt proc root run sbin srv sys usr var")
)


def glob_expression(glob: str) -> str:
    """Return a regular expression for a shell glob, to be matched against a whole string. `$` matches an unknown part.

    Each `*` but the last is in an atomic group, so that a match that fails isn't retried with other lengths: matching
    `*a*a*a*b` against a long word costs as much as reading the word a few times.
    """
    pieces = [""]
    for part in re.findall(r"\[!?\]?[^\]]*\]|.", glob, re.DOTALL):
        if part == "*":
            pieces.append("")
        elif part == "?":
            pieces[-1] += "."
        elif part == "$":
            pieces[-1] += r"[\0$]"
        elif len(part) > 1:
            inside = part[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("$", r"\0$")
            pieces[-1] += "[" + ("^" + inside[1:] if inside.startswith("!") else inside.replace("^", r"\^", 1)) + "]"
        else:
            pieces[-1] += re.escape(part)
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + ".*" + last


def check_glob(glob: str) -> None:
    """Raise ValueError for an invalid glob, such as `[z-a]`."""
    try:
        re.compile(glob_expression(glob))
    except re.error as error:
        raise ValueError(str(error)) from None


def any_glob(globs: Iterable[str], *, ignore_case: bool = True) -> Fits:
    """Return a function that says whether one of the globs matches a whole text, as defined by `glob_expression`.

    The globs are compiled when they are first needed: a pack has hundreds, one request needs only a few, and compiling
    an expression takes longer than everything else. Most calls need no expression at all: most globs are plain words,
    and most others begin differently from the text.
    """
    wanted = tuple(globs)
    plain: set[str] | None = None
    longest = 0  # of the plain words
    beginnings: tuple[str, ...] = ()  # of the others
    fits: Fits | None = None

    def matches(text: str) -> object:
        nonlocal plain, longest, beginnings, fits
        if plain is None:
            plain = {glob.lower() if ignore_case else glob for glob in wanted if glob.isascii() and not is_glob(glob)}
            longest = max(map(len, plain), default=-1)
            others = [glob for glob in wanted if is_glob(glob) or not glob.isascii()]
            beginnings = tuple({_beginning(glob.lower() if ignore_case else glob) for glob in others})
        if text.isascii():  # beyond ASCII, `re` ignores case differently from `str.lower`
            same = text.lower() if ignore_case else text
            if len(text) <= longest and same in plain:
                return True
            if not same.startswith(beginnings):
                return False
        if fits is None:
            expressions = [glob_expression(glob) for glob in wanted]
            flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
            fits = re.compile(f"(?:{'|'.join(expressions)})" if expressions else r"(?!)", flags).fullmatch
        return fits(text)

    return matches


_SPECIAL = frozenset("*?[$")


def is_glob(text: str) -> bool:
    """Return whether a text has characters that are special in a glob."""
    return not _SPECIAL.isdisjoint(text)


def _beginning(glob: str) -> str:
    """Return the prefix that every ASCII text matching a glob has."""
    if not glob.isascii():
        return ""
    return glob[: next((place for place, character in enumerate(glob) if character in _SPECIAL), len(glob))]


def _fitting_root(glob: str) -> list[str]:
    """Return the root directories that a glob may match; all of them for an overlong or invalid glob."""
    try:
        fits = any_glob([glob]) if len(glob) <= _MAX_ROOT_GLOB else bool
        return [directory for directory in _ROOT_DIRECTORIES if fits(directory)]
    except re.error:
        return list(_ROOT_DIRECTORIES)


def root_paths(path: str) -> list[str]:
    """Return the paths that an absolute path with a glob in its first part may stand for: `/e?c/passwd` may be
    /etc/passwd."""
    root, slash, rest = path[1:].partition("/")
    if not path.startswith("/") or not is_glob(root):
        return []
    return [f"/{directory}{slash}{rest}" for directory in _fitting_root(root)]
