"""Taking sensitive data out: by its looks, and by value for what we were told is secret."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from .scanner import KNOWN, PLACEHOLDER, Found, find, merge, options

SHORTEST_VALUE = 4
"""Shorter values are left alone: taking out every `1` would destroy the output and give the value away as well."""
_SHORTEST_LINE = 16
_SHORTEST_BASE64 = 5
_LONGEST_NUMBER = 4096
_PATTERN_ROOM = 8 * 1024
"""Bytes of values that go into one automaton, the shortest first. RE2 gives up on a pattern of some hundred thousand
parts; what has no room is searched for letter by letter, in the usual encodings but not in mixtures of them."""
_ROUNDS, _NEAR = 3, 1024

DEEPEST, MOST = 64, 100_000
"""Bounds on nested data: what lies deeper, or comes after so many items, is replaced by a note."""

# Never changed by URL-encoding or by JSON.
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


class Redactor:
    """Replaces sensitive data by `[redacted:KIND]`.

    `values` are secrets by value. Each is found as it is, URL-encoded, JSON-escaped, in hexadecimal and in base64
    (either alphabet, also inside a longer base64 text). Values under four characters are ignored.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {form for value in values for form in _with_lines(value) if len(form) >= SHORTEST_VALUE}
        self.longest = max((6 * len(form.encode("utf-8", "surrogatepass")) for form in known), default=0)
        """Bytes that the longest form of a value can take: whoever cuts a text must look that far beyond the cut."""
        flexible: list[str] = []
        self._literals: set[bytes] = set()
        room = _PATTERN_ROOM
        for value in sorted(known, key=len):
            room -= len(value.encode("utf-8", "surrogatepass"))
            if room >= 0:
                flexible.append(value)
            else:
                self._literals.update(_encodings(value))
        self._values = _compile(flexible) if flexible else None

    def find(self, data: bytes) -> list[Found]:
        """Where there is something to take out of UTF-8 text: sorted, none overlapping another."""
        fresh = found = merge([*self._known(data), *find(data)])
        for _ in range(_ROUNDS):
            if not fresh:
                break
            fresh = list(_uncovered(data, found, fresh))
            found = merge([*found, *fresh])
        return found

    def _known(self, data: bytes) -> Iterator[Found]:
        for match in self._values.finditer(data) if self._values else ():
            if not data.startswith(b"[redacted:", match.start()):
                yield Found(match.start(), match.end(), KNOWN)
        for literal in self._literals:
            start = data.find(literal)
            while start >= 0:
                yield Found(start, start + len(literal), KNOWN)
                start = data.find(literal, start + len(literal))

    def redact(self, text: str) -> tuple[str, dict[str, int]]:
        """The text without what is sensitive, and how many of each kind were taken out."""
        data, counts = self.redact_bytes(text.encode("utf-8", "surrogatepass"))
        return data.decode("utf-8", "surrogatepass"), counts

    def redact_bytes(self, data: bytes) -> tuple[bytes, dict[str, int]]:
        found = self.find(data)
        return replace(data, found)[0], dict(Counter(item.kind for item in found))

    def redact_data(self, value: Any) -> tuple[Any, dict[str, int]]:
        """The same for nested plain data: keys and values, numbers that spell a secret, bytes."""
        walk = _Walk(self)
        return walk.clean(value, DEEPEST), dict(walk.counts)


def replace(data: bytes, found: list[Found]) -> tuple[bytes, list[Found]]:
    """The data with a label for each thing found, and where in it the labels are."""
    pieces: list[bytes] = []
    labels: list[Found] = []
    end = size = 0
    for item in found:
        label = b"[redacted:%s]" % item.kind.encode()
        start = size + item.start - end
        size = start + len(label)
        labels.append(Found(start, size, item.kind))
        pieces += data[end : item.start], label
        end = item.end
    return b"".join([*pieces, data[end:]]), labels


def _uncovered(data: bytes, found: list[Found], fresh: list[Found]) -> Iterator[Found]:
    """What was glued to something that goes (`AKIA…password=…`), and stands alone once that is gone."""
    masked = bytearray(data)
    for item in found:
        masked[item.start : item.end] = b"*" * (item.end - item.start)
    masked_data = bytes(masked)
    around: list[tuple[int, int]] = []
    for item in sorted(fresh):
        start, stop = max(0, item.start - _NEAR), min(len(data), item.end + _NEAR)
        around.append((around.pop()[0] if around and around[-1][1] >= start else start, stop))
    for start, stop in around:
        yield from find(masked_data, start, stop)


class _Walk:
    """One pass over nested data, counting what it took out and how much it has seen."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor, self.counts, self.left = redactor, Counter[str](), MOST

    def clean(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if depth < 0 or self.left < 0:
            return "[left out: nested too deep]" if depth < 0 else "[left out: too many items]"
        match value:
            case None | bool():
                return value
            case str():
                return self._text(value)
            case bytes() | bytearray():
                kept, counts = self.redactor.redact_bytes(bytes(value))
                self.counts.update(counts)
                return kept
            case dict():
                return self._mapping(value, depth)
            case list():
                return self._items(value, depth)
            case tuple():
                return tuple(self._items(value, depth))
            case set() | frozenset():  # as plain data, and hashable where it is a key
                return frozenset(self._items(value, depth))
            case int() if value.bit_length() > _LONGEST_NUMBER:
                return "[left out: too long a number]"  # Python itself may refuse to spell it
            case int() | float():
                text = repr(value)
                cleaned = self._text(text)
                return value if cleaned == text else cleaned
            case _:
                return self._text(repr(value))

    def _text(self, text: str) -> str:
        cleaned, counts = self.redactor.redact(text)
        self.counts.update(counts)
        return cleaned

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        cleaned = []
        for value in values:
            cleaned.append(self.clean(value, depth - 1))
            if self.left < 0:  # one note stands for all the rest
                break
        return cleaned

    def _mapping(self, values: dict[Any, Any], depth: int) -> dict[Any, Any]:
        cleaned: dict[Any, Any] = {}
        times = Counter[Any]()
        for key, value in values.items():
            label = name = self.clean(key, depth - 1)
            while name in cleaned:  # two secret keys become the same word; neither entry may vanish
                times[label] += 1
                name = f"{label} ({times[label] + 1})"
            cleaned[name] = self.clean(value, depth - 1)
            if self.left < 0:
                break
        return cleaned


def _with_lines(value: str) -> list[str]:
    """A value as printed: without the newline a file ends with; and each long line of it, since a log shows lines."""
    value = value.replace("\r\n", "\n").strip()
    lines = [line.strip() for line in value.split("\n")]
    return [value] if len(lines) == 1 else [value, *(x for x in lines if len(x) >= _SHORTEST_LINE and "-----" not in x)]


def _compile(values: list[str]) -> Any:
    import re2

    forms = [PLACEHOLDER]
    for value in values:
        data = value.encode("utf-8", "surrogatepass")
        forms += [b"".join(map(_spelt, value)), b"(?i:%s)" % data.hex().encode()]
        for core in _base64(data):  # either alphabet, with the line breaks that `base64` puts in
            chars = [{0x2B: rb"[+-]", 0x2F: rb"[/_]"}.get(byte, bytes([byte])) for byte in core]
            forms.append(rb"\n?".join(chars) + b"={0,2}")
    # Leftmost-longest: a value that begins another must not leave the other's rest behind.
    return re2.compile(b"|".join(forms), options(longest_match=True))


def _encodings(value: str) -> Iterator[bytes]:
    """The usual spellings of a value, letter by letter."""
    data = value.encode("utf-8", "surrogatepass")
    yield from (data, data.hex().encode(), data.hex().upper().encode())
    yield from (quote(data).encode(), quote(data, safe="").encode(), quote_plus(data).encode())
    yield from (
        json.dumps(value)[1:-1].encode(),
        json.dumps(value, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass"),
    )
    for core in _base64(data):
        yield from (core, core.translate(bytes.maketrans(b"+/", b"-_")))


def _spelt(char: str) -> bytes:
    """A character as it is, as %XX, or as JSON or Python would escape it. Encoders differ in what they leave alone."""
    if char in _PLAIN:
        return re.escape(char).encode()
    data, units = char.encode("utf-8", "surrogatepass"), char.encode("utf-16-be", "surrogatepass").hex()
    choices = [
        "".join(f"\\x{byte:02x}" for byte in data),
        "".join(f"%{byte:02x}" for byte in data),
        "".join(rf"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)),
        rf"\\x{ord(char):02x}",
    ]
    if char in _ESCAPES:
        choices.append(re.escape("\\" + _ESCAPES[char]))
    if char == " ":
        choices.append(r"\+")
    if char < " " or char == "\x7f":
        choices.append("")  # sanitising drops control characters before we get to look
    # Only the hexadecimal digits may be of either case.
    return f"(?:{choices[0]}|(?i:{'|'.join(choices[1:])}))".encode()


def _base64(value: bytes) -> Iterator[bytes]:
    """The characters that depend on the value alone, for each of the three places it can have in a group of three."""
    for shift in range(3):
        core = base64.b64encode(bytes(shift) + value)[(8 * shift + 5) // 6 : 8 * (shift + len(value)) // 6]
        if len(core) >= _SHORTEST_BASE64:
            yield core
