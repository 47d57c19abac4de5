"""Removes sensitive data from text and data: what looks sensitive, and values that were given as secrets."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from ..lib import encodings
from ..lib.encodings import base64_cores
from ..lib.patterns import lazy_pattern
from ..lib.sanitise import is_clean, without_invisible, without_sequences
from ..models import MIN_SECRET, KiB
from .scanner import KNOWN, PLACEHOLDER, Match, find, has_candidate, merge, options

_MIN_LINE = 16
MIN_BASE64 = 5
"""Characters in base64 from which on a value is recognised by them."""
_PATTERN_ROOM = 4 * 1024
"""Bytes of values that go into one automaton, the shortest first. RE2 fails on a pattern of some hundred thousand
parts. Values beyond that are searched for literally, in the usual encodings but not in mixtures of them.
"""
_ROUNDS, _NEAR = 3, 1024

MAX_DEPTH, MAX_ITEMS = 64, 100_000
"""Bounds on nested data: deeper levels and further items are replaced by a note."""
_MAX_SECRET = 16 * KiB
"""Bytes of a secret that is recognised by its form."""

_EMPTY = (type(None), str, bytes, list, tuple, dict)
"""Types whose empty values hold nothing to redact."""
# Control characters and terminal sequences: short ones, complete or unfinished, and strings to the terminal.
# Non-greedy: a greedy match could take the last letter of a secret for a part of the sequence.
_NOISE = (
    rb"(?:[\x00-\x08\x0b-\x1f\x7f]|\x1b[\[\]PX^_]??[0-?]*?[ -/]*?[0-~]??"
    rb"|\x1b[\]PX^_][^\x00-\x1f\x7f]*?(?:\x07|\x1b\\))*?"
)
# An unfinished sequence, which would swallow the next character; and the parameters of a sequence, up to its last
# letter.
_CUT_SHORT = lazy_pattern(rb"\x1b(?:\[[0-?]*)?[ -/]*")
_PARAMETERS = lazy_pattern(rb"\x1b\[[0-?]*[0-9;](?=[@-~])")


class Redactor:
    """Replaces sensitive data by `[redacted:KIND]`.

    `values` are secrets by value. Each is found literally, URL-encoded, JSON-escaped, HTML-escaped, in hexadecimal and
    in base64 (either alphabet, also inside a longer base64 text). Values with fewer than `MIN_SECRET` visible
    characters are ignored: replacing every `1` would destroy the output and reveal the value as well.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {form for value in values for form in _with_lines(value) if len(_visible(form)) >= MIN_SECRET}
        self.margin = max([_MAX_SECRET, *(8 * len(form.encode("utf-8", "surrogatepass")) for form in known)])
        """The maximum bytes of a secret in its longest encoding: code that cuts text must look that far beyond the
        cut.
        """
        self.flexible: list[str] = []
        self.literals: set[bytes] = set()
        room = _PATTERN_ROOM
        for value in sorted(known, key=len):
            room -= len(value.encode("utf-8", "surrogatepass"))
            if room >= 0:
                self.flexible.append(value)
            else:
                self.literals.update(encodings.encodings(value.encode("utf-8", "surrogatepass"), min_base64=MIN_BASE64))
        self._values = _compile(self.flexible) if self.flexible else None

    def find(self, data: bytes) -> list[Match]:
        """Return what to remove from UTF-8 text, sorted and without overlaps."""
        matches = [*self._known(data), *find(data)] if data else []
        if not matches:
            return matches
        fresh = matches = merge(matches)
        for _ in range(_ROUNDS):
            if not fresh:
                break
            fresh = list(_uncovered(data, matches, fresh))
            matches = merge([*matches, *fresh])
        return matches

    def finds_nothing_in(self, texts: Iterable[str]) -> bool:
        """Return whether nothing would be removed from any of the texts: one search for all. False also if it is not
        known.

        The texts are searched as lines of one text. A pattern that finds something in a text finds it there, too: to
        patterns, the end of a line is like the end of the text (a test looks at each of them).
        """
        data = "\n".join(texts).encode("utf-8", "surrogatepass")
        return not data or (next(self._known(data), None) is None and not has_candidate(data))

    def _known(self, data: bytes) -> Iterator[Match]:
        for match in self._values.finditer(data) if self._values else ():
            if not data.startswith(b"[redacted:", match.start()):
                yield Match(match.start(), match.end(), KNOWN)
        for literal in self.literals:
            start = data.find(literal)
            while start >= 0:
                yield Match(start, start + len(literal), KNOWN)
                start = data.find(literal, start + len(literal))

    def rejoin_secrets(self, data: bytes) -> bytes:
        """Return the text with each secret in one piece. Use it before removing control sequences.

        A sequence ends with a letter, so an unfinished one swallows the first letter of what follows: of `ESC [ 3 1`
        and `Tr0ub4dor` there would remain `r0ub4dor`, which is no longer the secret and would be shown.
        """
        if self.flexible:
            where, which = self._broken
            whole = [_visible(value).encode("utf-8", "surrogatepass") for value in self.flexible]
            matches = ((*match.span(), whole[max(which.Match(match[0]), default=-1)]) for match in where.finditer(data))
            data = _set_apart(data, matches)
        # An unfinished colour sequence before a token (`ESC [ 3 1 ghp_…`) must not look like the beginning of a longer
        # word.
        spaced = bytearray(data)
        for match in _PARAMETERS.finditer(data):
            spaced[match.end() - 1] = 0x20
        starts = sorted({item.start for item in (*self._known(data), *find(bytes(spaced), named=True))})
        return _set_apart(data, ((start, start, b"") for start in starts))

    @functools.cached_property
    def _broken(self) -> tuple[Any, Any]:
        """Return an automaton that finds values with any sequences between their characters, and one that tells which
        value it is.
        """
        import re2

        # Also match a following backspace, which would erase an underscore at the end.
        forms = [_NOISE.join(map(_as_it_is, value)) + rb"\x08*" for value in self.flexible]
        which = re2.Set.FullMatchSet(options())
        for form in forms:
            which.Add(form)
        which.Compile()
        # The longest first: if one value is a prefix of another, the rest of the longer one must not remain.
        return re2.compile(b"|".join(reversed(forms)), options()), which

    def sanitise(self, raw: bytes | bytearray) -> bytes:
        """Return output as plain lines of UTF-8 text, with its secrets still in it and in one piece.

        The result for a line depends on that line alone. Invalid bytes become U+FFFD, which no program prints by
        accident; \\xNN could be the program's own text.
        """
        text = raw.decode("utf-8", "replace")
        data = text.encode()
        if is_clean(data):
            return data
        return without_sequences(self.rejoin_secrets(without_invisible(text).encode()).decode()).encode()

    def redact(self, text: str) -> tuple[str, dict[str, int]]:
        """Return the text without sensitive data, and how many items of each kind were removed."""
        data, counts = self.redact_bytes(text.encode("utf-8", "surrogatepass"))
        return (data.decode("utf-8", "surrogatepass"), counts) if counts else (text, counts)

    def redact_bytes(self, data: bytes) -> tuple[bytes, dict[str, int]]:
        """Do the same as `redact` for UTF-8 bytes."""
        matches = self.find(data)
        if not matches:
            return data, {}
        return replace(data, matches)[0], dict(Counter(item.kind for item in matches))

    def redact_data(self, value: Any) -> tuple[Any, dict[str, int]]:
        """Do the same as `redact` for nested plain data: keys and values, numbers that spell a secret, bytes."""
        if not value and value.__class__ in _EMPTY:
            return value, {}
        walk = _Walk(self)
        return walk.clean(value, MAX_DEPTH), dict(walk.counts)


def clean(text: str, redactor: Redactor) -> tuple[str, dict[str, int]]:
    """Sanitise and redact a message. Returns it, and how many secrets of each kind were removed.

    The order matters: sanitising without the redactor could leave half a secret, which redaction doesn't find.
    """
    if not text:
        return text, {}
    data = redactor.sanitise(text.encode("utf-8", "replace"))
    redacted, counts = redactor.redact_bytes(data)
    return redacted.decode(), counts


def replace(data: bytes, matches: list[Match]) -> tuple[bytes, list[Match]]:
    """Return the data with all matches replaced by labels, and the positions of the labels."""
    pieces: list[bytes] = []
    labels: list[Match] = []
    end = size = 0
    for item in matches:
        label = b"[redacted:%s]" % item.kind.encode()
        start = size + item.start - end
        size = start + len(label)
        labels.append(Match(start, size, item.kind))
        pieces += data[end : item.start], label
        end = item.end
    return b"".join([*pieces, data[end:]]), labels


def _set_apart(data: bytes, pieces: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the data with each piece put in its place. An unfinished sequence before it becomes a NUL."""
    parts: list[bytes] = []
    end = 0
    for start, stop, piece in pieces:
        escape = data.rfind(b"\x1b", end, start)
        cut_short = escape >= 0 and _CUT_SHORT.fullmatch(data, escape, start)
        parts += (data[end:escape], b"\0", piece) if cut_short else (data[end:start], piece)
        end = stop
    return b"".join([*parts, data[end:]])


def _uncovered(data: bytes, matches: list[Match], fresh: list[Match]) -> Iterator[Match]:
    """Yield what is found only after its neighbour is removed (`AKIA…password=…`)."""
    masked = bytearray(data)
    for item in matches:
        masked[item.start : item.end] = b"*" * (item.end - item.start)
    masked_data = bytes(masked)
    around: list[tuple[int, int]] = []
    for item in sorted(fresh):
        start, stop = max(0, item.start - _NEAR), min(len(data), item.end + _NEAR)
        around.append((around.pop()[0] if around and around[-1][1] >= start else start, stop))
    for start, stop in around:
        yield from find(masked_data, start, stop)


class _Walk:
    """One pass over nested data, counting removed items and visited items."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor, self.counts, self.left = redactor, Counter[str](), MAX_ITEMS

    def clean(self, value: Any, depth: int, name: str = "") -> Any:
        """Return a redacted copy of a value, at most `depth` levels deep; `name` is its key."""
        self.left -= 1
        if depth < 0 or self.left < 0:
            return "[left out: nested too deep]" if depth < 0 else "[left out: too many items]"
        match value:
            case None | bool():
                return value
            case str():
                return self._named(name, value) if name else self._text(value)
            case bytes() | bytearray():
                data, counts = self.redactor.redact_bytes(bytes(value))
                self._count(counts)
                return data
            case dict():
                return self._mapping(value, depth)
            case list():
                return self._items(value, depth)
            case tuple():
                return tuple(self._items(value, depth))
            case set():
                return set(self._items(value, depth))
            case frozenset():
                return frozenset(self._items(value, depth))
            case int() | float():
                return self._number(value)
            case Decimal():
                cleaned = self._text(str(value))
                return Decimal(value) if cleaned == str(value) else cleaned
            case date() | time() | timedelta():
                cleaned = self._text(str(value))
                return value if cleaned == str(value) else cleaned
            case _:
                return self._text(repr(value))

    def _text(self, text: str) -> str:
        cleaned, counts = self.redactor.redact(text)
        self._count(counts)
        return cleaned

    def _count(self, counts: dict[str, int]) -> None:
        if counts:  # rarely, and `update` takes as long as a search
            self.counts.update(counts)

    def _number(self, value: float) -> Any:
        try:
            text = repr(value)
        except ValueError:  # Python refuses to print integers of more than 4300 digits, because that is slow
            return "[left out: too long a number]"
        cleaned = self._text(text)
        return value if cleaned == text else cleaned

    def _named(self, name: str, text: str) -> str:
        """Redact a text whose name may mark it as a secret (`"password": "x"`). If it does, all of the text is
        removed.
        """
        before, spelt = _as_json(name) + b": ", _as_json(text)
        at = len(before)
        pair = [Match(f.start - at, f.end - at, f.kind) for f in self.redactor.find(before + spelt) if f.end > at]
        alone = self.redactor.find(spelt) if pair else []
        for item in pair:
            if item not in alone:
                self.counts[item.kind] += 1
                return f"[redacted:{item.kind}]"
        return self._text(text)

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        cleaned = []
        for value in values:
            cleaned.append(self.clean(value, depth - 1))
            if self.left < 0:  # one note stands for all the rest
                break
        return cleaned

    def _mapping(self, values: dict[Any, Any], depth: int) -> dict[Any, Any]:
        cleaned: dict[Any, Any] = {}
        times: dict[Any, int] = {}
        for key, value in values.items():
            label = name = self.clean(key, depth - 1)
            while name in cleaned:  # two secret keys get the same label; neither entry may vanish
                times[label] = times.get(label, 1) + 1
                name = f"{label} ({times[label]})"
            cleaned[name] = self.clean(value, depth - 1, key if isinstance(key, str) else "")
            if self.left < 0:
                break
        return cleaned


def _as_json(text: str) -> bytes:
    """Return a text as JSON, with a lone surrogate as it is."""
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError:
        import json  # takes long to load, and few texts need it

        return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _with_lines(value: str) -> list[str]:
    """Return a value without surrounding white space and, since logs show single lines, each long line of it."""
    value = value.replace("\r\n", "\n").strip()
    lines = [line.strip() for line in value.split("\n")]
    return [value] if len(lines) == 1 else [value, *(x for x in lines if len(x) >= _MIN_LINE and "-----" not in x)]


def _is_invisible(char: str) -> bool:
    """Return whether sanitising may remove the character before redaction."""
    return unicodedata.category(char) in ("Cc", "Cf")


def _visible(value: str) -> str:
    return "".join(char for char in value if not _is_invisible(char))


def _compile(values: list[str]) -> Any:
    import re2

    forms = [PLACEHOLDER]
    for value in values:
        data = value.encode("utf-8", "surrogatepass")
        forms += [b"".join(map(_spelt, value)), b"(?i:%s)" % data.hex().encode()]
        for core in base64_cores(data, MIN_BASE64):  # either alphabet, with the line breaks that `base64` inserts
            chars = [{0x2B: rb"[+-]", 0x2F: rb"[/_]"}.get(byte, bytes([byte])) for byte in core]
            forms.append(rb"\n?".join(chars) + b"={0,2}")
    # Leftmost-longest: if one value is a prefix of another, the rest of the longer one must not remain.
    return re2.compile(b"|".join(forms), options(longest_match=True))


def _spelt(char: str) -> bytes:
    """Return a pattern for a character in all its spellings: encoders differ in what they leave unescaped."""
    plain, *others = map(re.escape, spellings(char))
    # Only hexadecimal digits may be of either case.
    return b"(?:%s|(?i:%s))" % (plain, b"|".join(others)) if others else plain


def spellings(char: str) -> list[bytes]:
    """Return a character in all its spellings, literally first: also as nothing, if sanitising may have removed it."""
    return [*encodings.spellings(char), *([b""] if _is_invisible(char) else [])]


def _as_it_is(char: str) -> bytes:
    data = re.escape(char.encode("utf-8", "surrogatepass"))
    return b"(?:%s)?" % data if _is_invisible(char) else data
