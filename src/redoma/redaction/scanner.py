"""Finds sensitive data by its form.

One RE2 automaton contains every pattern and passes over the text once, on bytes and without capture groups. That is why
it runs at hundreds of MB/s instead of the 2 MB/s of `re`. Only a candidate is identified by a second automaton, on the
few bytes found, and examined by its check.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .hints import HINTS, possible_kinds
from .patterns import PATTERNS, Pattern

UNCHECKED = "unchecked"
"""The kind of text after too many near-misses: it is made to exhaust us, so it is removed unread."""
SECRET_KINDS = frozenset({UNCHECKED, *(pattern.kind for pattern in PATTERNS if not pattern.personal)})
"""Kinds of credentials, which must not be embedded in a script."""
PERSONAL_KINDS = frozenset(pattern.kind for pattern in PATTERNS if pattern.personal)
"""Kinds of personal data: removed from what is shown, but no reason to refuse a script."""
KNOWN = "known-secret"
"""The kind of a value that was given as a secret."""
_WITHOUT_HINTS = (SECRET_KINDS | PERSONAL_KINDS) - HINTS.keys()  # in case one is forgotten

PLACEHOLDER = (
    rb"\[redacted:(?:" + b"|".join(sorted(k.encode() for k in SECRET_KINDS | PERSONAL_KINDS | {KNOWN})) + rb")\]"
)

# A rejected candidate may hide a real one that begins inside it (two card numbers in one row of digits). But only short
# ones are searched again: otherwise a long run of near-misses would be read again from each of its positions.
_RETRY_WITHIN = 64
_MAX_REJECTED = 20_000  # a near-miss costs a hundred times as much as other text: this many take about 0.4 s
_SHORT, _FEW = 4096, 64
"""Bytes of a text that is searched for hints first, and how many such texts."""


class Match(NamedTuple):
    """One piece of sensitive data: `text[start:end]`."""

    start: int
    end: int
    kind: str


def matches_after(matches: Iterable[Match], position: int) -> list[Match]:
    """Return the items that end after a position, relative to it. Items that begin before it begin at 0."""
    return [
        Match(max(0, item.start - position), item.end - position, item.kind) for item in matches if item.end > position
    ]


def cut_outside(matches: Iterable[Match], stop: int) -> int:
    """Return the last position up to `stop` where a cut splits nothing that was found."""
    return min([stop, *(item.start for item in matches if item.start < stop < item.end)])


def options(**changes: Any) -> Any:
    """Return RE2 options: raw bytes, no captures, and enough memory that the automaton's states are never rebuilt."""
    import re2

    chosen = re2.Options()
    chosen.encoding = re2.Options.Encoding.LATIN1
    chosen.never_capture = True
    chosen.log_errors = False
    chosen.max_mem = 64 << 20
    for name, value in changes.items():
        setattr(chosen, name, value)
    return chosen


def load_redaction() -> None:
    """Load what redaction needs, which otherwise happens with the first text that may contain something."""
    import re2

    _ = re2


class _Automata:
    """What searches for some of the patterns."""

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        import re2

        self.patterns = patterns
        self.where = re2.compile(b"|".join([PLACEHOLDER, *(b"(?:" + p.regex + b")" for p in patterns)]), options())
        """Finds candidates."""

    @functools.cached_property
    def _which(self) -> Any:
        """Built only when needed: most texts have no candidate."""
        import re2

        which = re2.Set.FullMatchSet(options())
        for pattern in self.patterns:
            which.Add(pattern.regex)
        which.Compile()
        return which

    def matching(self, text: bytes) -> list[Pattern]:
        """Return the patterns that match all of the text, the most specific first."""
        return [self.patterns[number] for number in sorted(self._which.Match(text) or ())]


_building = threading.Lock()
_all: _Automata | None = None
_scans = 0  # of short texts; if two threads miss each other's count, nothing is lost


def _automata_for(text: bytes) -> _Automata | None:
    """Return what finds everything in a text; None if nothing can be in it.

    To build an automaton of all patterns takes 40 ms, longer than anything else in a short run. So a process that has
    read little builds those that the text has hints of; a pattern that can't match changes nothing about the others.
    """
    global _scans
    if _all is None and len(text) <= _SHORT and _scans < _FEW:
        _scans += 1
        return _some(possible_kinds(text) | _WITHOUT_HINTS)
    return _everything()


def _everything() -> _Automata:
    global _all
    if _all is None:
        with _building:  # if two threads are first, one waits for the other
            if _all is None:
                _all = _Automata(PATTERNS)
    return _all


@functools.lru_cache(maxsize=8)
def _some(kinds: frozenset[str]) -> _Automata | None:
    patterns = tuple(pattern for pattern in PATTERNS if pattern.kind in kinds)
    return _Automata(patterns) if patterns else None


def has_candidate(text: bytes) -> bool:
    """Return whether there is anything in UTF-8 text that `find` would examine."""
    automata = _automata_for(text)
    return automata is not None and automata.where.search(text) is not None


def find(text: bytes, position: int = 0, stop: int | None = None, *, named: bool = False) -> Iterator[Match]:
    """Yield sensitive data in UTF-8 text, found by its form, in the order of its candidates; items may overlap.

    With `named`, include the name that marks a value as a secret.
    """
    automata = _automata_for(text)
    if automata is None:
        return
    rejected = 0
    while candidate := automata.where.search(text, position, stop):
        start, end = candidate.span()
        position = end
        if text.startswith(b"[redacted:", start):  # our own replacement: redacting twice changes nothing
            continue
        pattern = automata.matching(text[start:end])[0]
        span = pattern.check(text, start, end) if pattern.check else (start, end)
        if span:
            position = max(end, span[1])
            if span[0] >= end and (others := automata.matching(text[span[0] : span[1]])):
                pattern = others[0]  # `token: glpat-…`: found by its name, but its form is more specific
            yield Match(min(start, span[0]) if named else span[0], span[1], pattern.kind)
            continue
        rejected += 1
        if rejected > _MAX_REJECTED:
            yield Match(start, len(text) if stop is None else stop, UNCHECKED)
            return
        if end - start <= _RETRY_WITHIN:
            position = start + 1


def merge(matches: Iterator[Match] | list[Match]) -> list[Match]:
    """Return the items sorted and without overlaps: overlapping items become one, of the first one's kind. If both
    begin at one position, a given value takes precedence over a pattern.
    """
    merged: list[Match] = []
    for item in sorted(matches, key=lambda item: (item.start, item.kind != KNOWN)):
        if merged and item.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Match(last.start, max(last.end, item.end), last.kind)
        else:
            merged.append(item)
    return merged


def scan(text: str) -> list[Match]:
    """Return every secret and all personal data in the text, sorted and without overlaps."""
    data = text.encode("utf-8", "surrogatepass")
    matches = merge(find(data))
    if len(data) == len(text):
        return matches
    in_text, byte, char = [], 0, 0
    for start, end, kind in matches:
        first = char + len(data[byte:start].decode("utf-8", "surrogatepass"))
        char, byte = first + len(data[start:end].decode("utf-8", "surrogatepass")), end
        in_text.append(Match(first, char, kind))
    return in_text
