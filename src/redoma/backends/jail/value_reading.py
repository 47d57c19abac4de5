"""Decodes the value of a last expression that came out of a cell. It is untrusted; `value` describes the format."""

from __future__ import annotations

import base64
import functools
import re
from collections import Counter
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from ...lib.patterns import lazy_pattern
from ..base import Repr
from .value import EXACT, MAX_DEPTH, MAX_INT_BITS, MAX_ITEMS

_MAX_COMPARISONS = 200_000  # some 10 ms
_EXACT_NAMES = frozenset(name for names in EXACT.values() for name in names)
_MAX_EXACT = 5000


def decode(data: bytes) -> Any:
    """Return the plain value that `encode` encoded. Raises ValueError or RecursionError for anything else."""
    return _Decoder(data.decode()).whole()


def read(data: bytes) -> Any:
    """Return the value that a guest reported; None if it is not a value."""
    try:
        return decode(data)
    except (ValueError, RecursionError):
        return None


_END = "\0"
_BLANKS = lazy_pattern(r"[ \t\r\n]+")
_NUMBER = lazy_pattern(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"null": None, "true": True, "false": False}


class _Decoder:
    """Parses JSON and builds the value in one pass, with one budget for the whole value.

    A general decoder would first build all lists of a hostile report, and hold up every thread for seconds.
    """

    def __init__(self, text: str) -> None:
        self._text, self._at = text + _END, 0
        self._items, self._comparisons = MAX_ITEMS, _MAX_COMPARISONS

    def whole(self) -> Any:
        found = self._value(0)
        if self._next() != _END:
            raise ValueError("more than a value")
        return found

    def _next(self) -> str:
        """Skip blanks, and return the character after them."""
        if self._text[self._at] in " \t\r\n" and (blanks := _BLANKS.match(self._text, self._at)):
            self._at = blanks.end()
        return self._text[self._at]

    def _expect(self, sign: str) -> None:
        if self._next() != sign:
            raise ValueError("not a value")
        self._at += 1

    def _value(self, depth: int) -> Any:
        self._items -= 1
        if self._items < 0 or depth > MAX_DEPTH:
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
            text.encode()  # raises for a lone surrogate, which can't be printed
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
        """Count the comparisons that a hash table of these keys needs. Raises ValueError if the budget is used up.

        Keys with equal hashes are all compared with each other, and numbers can be chosen to collide: thousands of them
        take minutes. `parts` is the number of parts of all keys together, because comparing keys compares their parts.
        """
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
        if len(text) > MAX_INT_BITS // 4 + 8:
            raise ValueError("not an int")
        return int(text, 16)
    if tag == "float":
        return float(text) if text in ("nan", "inf", "-inf") else 0.0
    return Repr(text)


# --- dates and decimals --------------------------------------------------------------------------------------


@functools.cache
def _unhashable() -> type:
    """Return a `Decimal` type that can't be a key: comparing one with an integer of 4000 digits takes a millisecond,
    and both can be made to have the same hash. Redaction turns it into a `Decimal`.
    """
    from decimal import Decimal

    return type("Decimal", (Decimal,), {"__hash__": None, "__slots__": ()})


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
            raise ValueError("not a Decimal that anybody uses")  # computing with it could take for ever
        return _unhashable()(number)
    if name == "timedelta":
        days, seconds, microseconds = map(int, text.split(" "))
        return datetime.timedelta(days, seconds, microseconds)
    return getattr(datetime, name).fromisoformat(text)
