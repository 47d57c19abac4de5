"""Types for msgspec that threads share."""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")
_resolved: set[object] = set()
_resolving = threading.Lock()


def resolved(kind: T) -> T:
    """Return the type, after msgspec has read its annotations and those of all types in it.

    It does so when a type is first used, and takes note of the type before it is done: another thread that uses the
    type meanwhile crashes the interpreter (seen with 0.22). So the first use of whatever threads may decode is here.
    """
    if kind not in _resolved:
        with _resolving:
            msgspec.json.Decoder(kind)
            _resolved.add(kind)
    return kind
