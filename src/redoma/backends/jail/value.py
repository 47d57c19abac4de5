"""The value of a last expression on its way out of a cell. Inner: `encode` runs in the guest. The parent reads what it
made with `value_reading`.

JSON, with a tag at the head of each container, so that tuples, sets, bytes and dictionaries with any key come back as
what they were. Whatever is not plain data travels as its `repr`. Decoding builds nothing but plain data, and is bounded
by the size of the frame, a depth, and a number of parts and of comparisons in the whole value.
"""

from __future__ import annotations

import binascii
import sys

TYPE_CHECKING = False  # nothing is loaded here that a cell can do without
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 100
MAX_ITEMS = 100_000
MAX_INT_BITS = 14_000
"""Beyond about 4300 digits CPython refuses to print an int, and so would every caller."""
EXACT = {"datetime": ("datetime", "date", "time", "timedelta"), "decimal": ("Decimal",)}
"""Kinds that travel as text, by their module."""
_SAFE_INT = 1 << 53


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
        self._bytes, self._items, self._keys = max_bytes, MAX_ITEMS, 0

    def encode(self, value: Any, depth: int) -> object:
        # By exact type: a subclass may behave in any way, and would not come back as what it was.
        kind = type(value)
        self._items -= 1
        if depth > MAX_DEPTH or self._items < 0:
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
            return ["bytes", self._text(binascii.b2a_base64(value, newline=False).decode())]
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
        for module, names in EXACT.items():
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
        if number.bit_length() > MAX_INT_BITS:
            raise _TooLarge
        return ["int", hex(number)]


def _spelt(value: Any, name: str) -> str:
    if name == "timedelta":
        return f"{value.days} {value.seconds} {value.microseconds}"
    return str(value) if name == "Decimal" else str(value.isoformat())
