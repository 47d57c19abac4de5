"""The value of a last expression on its way out of a cell. Inner: `encode` runs in the guest, `decode` in the parent.

JSON, with a tag at the head of each container, so that tuples, sets, bytes and dictionaries with any key come back as
what they were. Whatever is not plain data travels as its `repr`. Decoding builds nothing but plain data, and is bounded
by the size of the frame, a depth, and a number of parts and of comparisons in the whole value.
"""

from __future__ import annotations

import base64
import functools
import re
import sys
from collections import Counter
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_MAX_DEPTH = 100
_MAX_ITEMS = 100_000
_MAX_COMPARISONS = 200_000  # some 10 ms
_SAFE_INT = 1 << 53
_MAX_INT_BITS = 14_000  # beyond about 4300 digits CPython refuses to print an int, and so would every caller


class _Odd(Exception):
    """Not plain data."""


class _TooLarge(Exception):
    pass


def encode(value: object, max_bytes: int) -> object:
    """Something that `json.dumps` takes. Never raises for what the value is, if its `repr` doesn't."""
    try:
        return _Encoder(max_bytes).encode(value, 0)
    except _Odd:
        pass
    except (_TooLarge, RecursionError):
        return ["repr", f"<{type(value).__name__}, too large to return>"]
    return ["repr", repr(value)[:max_bytes]]  # here, so that what it raises shows nothing of ours but this line


class _Encoder:
    def __init__(self, max_bytes: int) -> None:
        self._bytes, self._items, self._keys = max_bytes, _MAX_ITEMS, 0

    def encode(self, value: Any, depth: int) -> object:
        # By exact type: a subclass may behave in any way, and would not come back as what it was.
        kind = type(value)
        self._items -= 1
        if depth > _MAX_DEPTH or self._items < 0:
            raise _TooLarge
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._text(value)
        if kind is int:
            return value if -_SAFE_INT < value < _SAFE_INT else self._large(value)
        if kind is float:
            return value if value - value == 0 else ["float", repr(value)]
        if kind is bytes:
            return ["bytes", self._text(base64.b64encode(value).decode())]
        if kind in (list, tuple):
            return [kind.__name__, *(self.encode(item, depth + 1) for item in value)]
        if kind in (set, frozenset):
            return [kind.__name__, *(self._key(item, depth + 1) for item in value)]
        if kind is dict:
            pairs = ((self._key(key, depth + 1), self.encode(item, depth + 1)) for key, item in value.items())
            return ["dict", *(part for pair in pairs for part in pair)]
        return self._other(kind, value, depth)

    def _key(self, value: Any, depth: int) -> object:
        """A key of a dictionary or a member of a set."""
        self._keys += 1
        try:
            return self.encode(value, depth)
        finally:
            self._keys -= 1

    def _other(self, kind: type, value: Any, depth: int) -> object:
        """Dates, decimals, and NumPy's scalars as what they hold. Nothing is imported: whoever made one has."""
        for module, names in _EXACT.items():
            for name in names:
                if kind is getattr(sys.modules.get(module), name, None):
                    if name == "Decimal" and self._keys:  # the parent takes none there: see `_unhashable`
                        raise _Odd
                    return [name, self._text(_spelt(value, name))]
        generic = getattr(sys.modules.get("numpy"), "generic", None)
        if isinstance(generic, type) and issubclass(kind, generic):
            item = value.item()
            if type(item) is not kind:  # a `longdouble` has nothing plainer to offer
                return self.encode(item, depth + 1)
        raise _Odd

    def _text(self, text: str) -> str:
        self._bytes -= len(text)
        if self._bytes < 0:
            raise _TooLarge
        return text

    def _large(self, number: int) -> list[str]:
        if number.bit_length() > _MAX_INT_BITS:
            raise _TooLarge
        return ["int", hex(number)]


def decode(data: bytes) -> Any:
    """The plain value of the JSON of what `encode` made. Raises ValueError for anything else, or RecursionError."""
    return _Decoder(data.decode()).whole()


_END = "\0"
_BLANKS = re.compile(r"[ \t\r\n]+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"null": None, "true": True, "false": False}


class _Decoder:
    """Reads JSON and builds the value in one go, under one budget for the whole of it: many small parts cost as much as
    a large one. A decoder that built all lists of a hostile report first would hold up every thread for seconds."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text + _END, 0
        self._items, self._comparisons = _MAX_ITEMS, _MAX_COMPARISONS

    def whole(self) -> Any:
        found = self._value(0)
        if self._next() != _END:
            raise ValueError("more than a value")
        return found

    def _next(self) -> str:
        """Skip blanks, and look at the character after them."""
        if self._text[self._at] in " \t\r\n" and (blanks := _BLANKS.match(self._text, self._at)):
            self._at = blanks.end()
        return self._text[self._at]

    def _expect(self, sign: str) -> None:
        if self._next() != sign:
            raise ValueError("not a value")
        self._at += 1

    def _value(self, depth: int) -> Any:
        self._items -= 1
        if self._items < 0 or depth > _MAX_DEPTH:
            raise ValueError("a value that is too large")
        start = self._next()
        if start == '"':
            return self._string()
        if start == "[":
            return self._tagged(depth)
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            return float(number[0]) if number.lastindex else int(number[0])
        for word, meaning in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return meaning
        raise ValueError("not a value")

    def _string(self) -> str:
        if self._next() != '"':
            raise ValueError("not a text")
        text: str
        text, self._at = scanstring(self._text, self._at + 1)
        if not text.isascii():
            text.encode()  # raises for half a character, which nobody could print
        return text

    def _tagged(self, depth: int) -> Any:
        self._at += 1
        tag = self._string()
        if tag in ("repr", "bytes", "int", "float") or tag in _EXACT_NAMES:
            self._expect(",")
            text = self._string()
            self._expect("]")
            return _exact(tag, text) if tag in _EXACT_NAMES else _scalar(tag, text)
        before, items = self._items, []
        while self._next() == ",":
            self._at += 1
            items.append(self._value(depth + 1))
        self._expect("]")
        try:
            if tag in ("dict", "set", "frozenset"):
                self._compare(items[::2] if tag == "dict" else items, before - self._items)
            if tag == "dict":
                return dict(zip(items[::2], items[1::2], strict=True))
            if tag in _CONTAINERS:
                return _CONTAINERS[tag](items)
        except TypeError as error:  # an unhashable key or member
            raise ValueError(str(error)) from None
        raise ValueError("not a value")

    def _compare(self, keys: list[Any], parts: int) -> None:
        """Count the comparisons that it takes to put these keys into a table. Those with the same hash are all compared
        with each other, and numbers can be chosen to have the same: thousands of them take minutes. `parts` is how many
        there are in all keys together, since to compare two of them is to compare their parts."""
        alike = Counter(map(hash, keys))
        if len(alike) == len(keys):
            return
        pairs = sum(count * (count - 1) // 2 for count in alike.values())
        self._comparisons -= pairs * (1 + parts // len(keys))
        if self._comparisons < 0:
            raise ValueError("keys that were made to collide")


_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def _scalar(tag: str, text: str) -> Any:
    if tag == "bytes":
        return base64.b64decode(text, validate=True)
    if tag == "int":
        if len(text) > _MAX_INT_BITS // 4 + 8:
            raise ValueError("not an int")
        return int(text, 16)
    if tag == "float":
        return float(text) if text in ("nan", "inf", "-inf") else 0.0
    from ..base import Repr  # in the parent: there is no such module in a cell

    return Repr(text)


# --- dates and decimals --------------------------------------------------------------------------------------

_EXACT = {"datetime": ("datetime", "date", "time", "timedelta"), "decimal": ("Decimal",)}
_EXACT_NAMES = frozenset(name for names in _EXACT.values() for name in names)
_MAX_EXACT = 5000


@functools.cache
def _unhashable() -> type:
    """A `Decimal` that is no key: to compare one with an integer of 4000 digits takes a millisecond, and both can be
    made to have the same hash. Redaction makes it a `Decimal`."""
    from decimal import Decimal

    return type("Decimal", (Decimal,), {"__hash__": None, "__slots__": ()})


def _spelt(value: Any, name: str) -> str:
    if name == "timedelta":
        return f"{value.days} {value.seconds} {value.microseconds}"
    return str(value) if name == "Decimal" else str(value.isoformat())


def _exact(name: str, text: str) -> Any:
    if len(text) > _MAX_EXACT:
        raise ValueError(f"not a {name}")
    try:
        return _read_exact(name, text)
    except (ArithmeticError, OverflowError) as error:
        raise ValueError(f"not a {name}") from error


def _read_exact(name: str, text: str) -> Any:
    import datetime
    from decimal import Decimal

    if name == "Decimal":
        number = Decimal(text)
        if number.is_finite() and abs(number.adjusted()) > _MAX_EXACT:
            raise ValueError("not a Decimal that anybody uses")  # to compute with it could take for ever
        return _unhashable()(number)
    if name == "timedelta":
        days, seconds, microseconds = map(int, text.split(" "))
        return datetime.timedelta(days, seconds, microseconds)
    return getattr(datetime, name).fromisoformat(text)
