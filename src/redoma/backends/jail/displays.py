"""Decodes the displays in the report of a guest. They are untrusted: count, types and bytes are bounded."""

from __future__ import annotations

import binascii
from typing import Annotated

import msgspec

from ...models import Display
from ..display import BINARY, MAX_BYTES, MAX_DISPLAYS, TYPES
from . import protocol

_Shown = Annotated[dict[str, str], msgspec.Meta(max_length=len(TYPES))]
_decoder = msgspec.json.Decoder(Annotated[list[_Shown], msgspec.Meta(max_length=MAX_DISPLAYS)])


def read(data: bytes) -> tuple[Display, ...]:
    """Return the displays; none if the report is malformed. Parts that are too large or of another type are left
    out.
    """
    try:
        shown = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return ()
    found: list[Display] = []
    room = protocol.MAX_SHOWN
    for each in shown:
        parts: dict[str, str | bytes] = {}
        for kind, text in each.items():
            content = _content(kind, text)
            if content is not None and len(content) <= room:
                room -= len(content)
                parts[kind] = content
        if parts:
            found.append(Display(data=parts))
    return tuple(found)


def _content(kind: str, text: str) -> str | bytes | None:
    if kind not in TYPES or len(text) > MAX_BYTES * 2:
        return None
    if kind not in BINARY:
        return text if len(text) <= MAX_BYTES else None
    try:
        return binascii.a2b_base64(text.encode("ascii", "replace"), strict_mode=True)
    except binascii.Error:
        return None
