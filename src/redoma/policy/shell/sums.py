"""Arithmetic on data. In arithmetic, Bash evaluates the value of a variable as an expression, and a subscript in it can
run commands: with `n='a[$(rm x)]'`, `echo $((n))` removes x. So a script that computes with values read from a file
runs whatever that file says, and no approval can be bound to it.

Names are tracked through the whole script, regardless of order: a name is *data* if any value assigned to it may be
text from outside the script. A case missing here costs an extra question, but never hides a change.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...lib.patterns import lazy_pattern
from ..facts import Place, Unbound

_WHY = "arithmetic on what is only known when it runs may run anything"

_PRINTS_NUMBER = r"\$\((?:[^()`]*\|)?\s*(?:wc|nproc|date|id|seq|expr|grep\s+-[A-Za-z]*c)\b[^()|;&`]*\)"
_NUMBER = lazy_pattern(
    r"(?s)(?:[-+]?\d++|\$\(\(.*\)\)|\$\{?\#[\w@*]*(?:\[[@*]\])?\}?|\$[?$!]"
    r"|\$\{!\w+\[[@*]\]\}|\$\{?(?:RANDOM|SECONDS|LINENO|BASHPID|UID|EUID|PPID|EPOCHSECONDS)\}?"
    rf"|{_PRINTS_NUMBER})++\Z"
)
"""A value that is a number, or whose evaluation fails: no part of it is text from a file."""
_REFERENCES = lazy_pattern(r"(?:\$\{?[A-Za-z_]\w*+\}?+|[\d\s:+*/-])++\Z")
_NAME = lazy_pattern(r"(?<![\w#])[A-Za-z_]\w*")
_ARGUMENT = lazy_pattern(r"\$\{?[1-9@*]")
_SUBSTITUTION = lazy_pattern(r"\$\((?!\()|`")
_NUMERIC_PART = lazy_pattern(rf"{_PRINTS_NUMBER}|\$\{{\#[^}}]*\}}|\$\#")
_COMPARED = lazy_pattern(r"(?<!\S)(\S++)\s++-(?:eq|ne|lt|le|gt|ge)\s++(\S++)|-v\s++(\S++)")
_INDIRECT = lazy_pattern(r"\$\{!([A-Za-z_]\w*)")
_PART = lazy_pattern(r"(?s)\$\{[\w@*]+(?:\[[^\]]*\])?:(?![-=?+])(.*)\}\Z")

_MAX_TEXT = 1 << 20
"""Maximum number of characters of arithmetic that are examined; a nested part counts once per level. Beyond that,
everything counts as data."""


class _Sum(msgspec.Struct, frozen=True):
    at: Place
    names: frozenset[str]


class Sums:
    """What a script computes with, and where the values of its variables come from."""

    def __init__(self) -> None:
        self._data: set[str] = set()
        self._flows: dict[str, set[str]] = {}
        self._sums: list[_Sum] = []
        self._left = _MAX_TEXT

    def gives(self, name: str, raw: str) -> None:
        """Record that `name` is assigned an unknown value, written as `raw`."""
        raw = raw.strip().strip('"')
        if _NUMBER.match(raw):
            return
        if _REFERENCES.match(raw):
            self._flows.setdefault(name, set()).update(_NAME.findall(raw))
        else:
            self._data.add(name)

    def reads(self, *names: str) -> None:
        """Record that these variables receive text that is read at run time."""
        self._data.update(names)

    def computes(self, text: str, at: Place) -> None:
        """Record that `text` is evaluated as an expression."""
        self._left -= len(text)
        if self._left < 0:
            self._sums.append(_Sum(at, frozenset({""})))
            return
        text = _NUMERIC_PART.sub("0", text)
        foreign = _ARGUMENT.search(text) or _SUBSTITUTION.search(text)
        self._sums.append(_Sum(at, frozenset({"", *_NAME.findall(text)} if foreign else _NAME.findall(text))))

    def compares(self, text: str, at: Place) -> None:
        """Record that the operands of numeric operators in `[[ … ]]` are evaluated."""
        self._left -= len(text)
        for operands in _COMPARED.findall(text) if self._left > 0 else [("$1",)]:
            self.computes(" ".join(operands), at)

    def expands(self, text: str, at: Place) -> None:
        """Record what an expansion evaluates: in `${!name}` the subscript in its value, in `${text:from:length}` both
        numbers."""
        if indirect := _INDIRECT.match(text):
            self.computes(indirect[1], at)
        elif part := _PART.match(text):
            self.computes(part[1], at)

    def on_data(self) -> Iterator[Unbound]:
        """Yield a fact for each place where the script computes with data."""
        if not self._sums:
            return
        data, todo = {"", *self._data}, [*self._data]
        takers: dict[str, list[str]] = {}
        for name, sources in self._flows.items():
            for source in sources:
                takers.setdefault(source, []).append(name)
        while todo:
            more = {name for name in takers.get(todo.pop(), ()) if name not in data}
            data |= more
            todo += more
        yield from dict.fromkeys(Unbound(why=_WHY, **found.at) for found in self._sums if found.names & data)
