"""What the readers of Python and JavaScript have in common: positions, deceptive characters, and code inside code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from ..lib.patterns import lazy_pattern
from .facts import SURROGATE, UNKNOWN, Fact, Place, Trait, position

UNKNOWN_WORD = "${@:1}"
"""How an unknown part of a command is written for the reader of Bash: as the arguments of the script."""
_SLACK = 5_000
_BIDI = lazy_pattern("[\u202a-\u202e\u2066-\u2069]")


def deceptive_characters(source: str) -> Iterator[Trait]:
    """Yield a trait for each kind of character that makes a text read differently from how it looks."""
    if source.isascii() and "\0" not in source:
        return
    for name, found in (
        ("source.nul", re.search("\0", source)),
        ("source.bad-utf8", SURROGATE.search(source)),
        ("source.invisible", _BIDI.search(source)),
    ):
        if found is not None:
            line, column = position(source, found.start())
            yield Trait(name=name, line=line, column=column, text=ascii(found.group()))


def quoted(words: Sequence[str]) -> str:
    """Return a command as a line of Bash; words may have unknown parts."""
    unknown = f'"{UNKNOWN_WORD}"'
    return " ".join(
        unknown.join(shlex.quote(part) if part or word == "" else "" for part in word.split(UNKNOWN)) for word in words
    )


class InnerCode:
    """Reads the code that a program contains, within a budget of characters.

    That code is part of the source, so an honest program stays within the budget. Without it, a program that doubles a
    string twenty times and runs the result would make us read megabytes.
    """

    def __init__(self, source: str, depth: int) -> None:
        self.depth = depth
        self.left = len(source) + _SLACK // (depth + 1)

    def facts(self, read: Callable[[str, int], list[Fact]], code: str, place: Place) -> Iterator[Fact]:
        """Yield the facts of `code`, as read by `read`, at the place where the program contains it."""
        self.left -= len(code)
        if self.left < 0:
            yield Trait(name="source.too-large", **place)
            return
        for fact in read(code, self.depth + 1):
            text = place.get("text", "") if UNKNOWN_WORD in fact.text else fact.text
            yield replace(fact, line=place.get("line", 0), column=place.get("column", 0), text=text)
