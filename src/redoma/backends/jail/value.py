"""Encodes the value of a last expression, in the guest. The parent decodes it with `value_reading`.

It is JSON, in which each container begins with a tag, so that tuples, sets, bytes and dictionaries with any keys keep
their types. Anything that is not plain data is sent as its `repr`. Decoding builds only plain data, and is bounded by
the size of the frame, the depth, and the number of parts and of comparisons in the whole value.
"""

from __future__ import annotations

import binascii
import sys

TYPE_CHECKING = False  # import only what every cell needs
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 100
MAX_ITEMS = 100_000
MAX_INT_BITS = 14_000
"""CPython refuses to print an int of more than about 4300 digits, so callers could not print it either."""
EXACT = {"datetime": ("datetime", "date", "time", "timedelta"), "decimal": ("Decimal",)}
"""Types that are sent as text, by their module."""
_SAFE_INT = 1 << 53


class _Odd(Exception):
    """Not plain data."""


class _TooLarge(Exception):
    pass


def encode(value: object, max_bytes: int) -> object:
    """Return data for `json.dumps`. Raises only if the `repr` of the value does."""
    try:
        return _Encoder(max_bytes).encode(value, 0)
    except _Odd:
        pass
    except (_TooLarge, RecursionError):
        return ["repr", f"<{type(value).__name__}, too large to return>"]
    return ["repr", repr(value)[:max_bytes]]  # here, so that a traceback of it shows only this line of ours


class _Encoder:
    def __init__(self, max_bytes: int) -> None:
        self._bytes, self._items, self._keys = max_bytes, MAX_ITEMS, 0

    def encode(self, value: Any, depth: int) -> object:
        # By exact type: a subclass may behave in any way, and its type would be lost.
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
        """Encode a key of a dictionary or a member of a set."""
        self._keys += 1
        try:
            return self.encode(value, depth)
        finally:
            self._keys -= 1

    def _other(self, kind: type, value: Any, depth: int) -> object:
        """Encode dates, decimals, and NumPy scalars as their plain values. Imports nothing: if there is such a value,
        its module is loaded.
        """
        for module, names in EXACT.items():
            for name in names:
                if kind is getattr(sys.modules.get(module), name, None):
                    if name == "Decimal" and self._keys:  # the parent accepts none as a key: see `_unhashable`
                        raise _Odd
                    return [name, self._text(_spelt(value, name))]
        generic = getattr(sys.modules.get("numpy"), "generic", None)
        if isinstance(generic, type) and issubclass(kind, generic):
            item = value.item()
            if type(item) is not kind:  # a `longdouble` has no plain equivalent
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
