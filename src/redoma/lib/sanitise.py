"""Makes text safe to show: nothing in it may move, hide or redraw other text on a terminal or in a log.

`sanitise` removes what is unsafe, for output. `visible` shows it as escapes, for a person who makes a decision based on
the text.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

from .patterns import lazy_pattern

# After the escape: strings to the terminal (OSC: titles, links, the clipboard; DCS, SOS, PM, APC), CSI (colours, the
# cursor), then the short ones. A string ends at any control character, so that an unfinished one hides nothing and
# needs no second pass. Starting with one literal makes the search ten times as fast.
_SEQUENCE = lazy_pattern(r"\x1b(?:[\]PX^_][^\x00-\x1f\x7f]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[\]PX^_]|[ -/]*[0-~])")
# The same introducers as one character each: U+009B is the 8-bit form of `ESC [`.
_C1 = lazy_pattern(r"[\x80-\x9f]")
# Bold and underline as `man` prints them: a character over itself, or over an underscore.
_OVERSTRUCK = lazy_pattern(r"_\x08|(.)\x08(?=\1)")
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n"})
# Beyond ASCII: characters that reverse the order of text, and zero-width ones that can hide in a word.
_INVISIBLE = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_REMOVED = lazy_pattern(f"[{_INVISIBLE}]+")
# Joiners and variation selectors form emoji and Persian or Indic words, but between ASCII letters they only hide.
_JOINERS = "\u200c\u200d\ufe00-\ufe0f"
_STRAY_JOINERS = lazy_pattern(rf"(?<![^\x00-\x7f])[{_JOINERS}]+")
_SHAPELESS = lazy_pattern(f"[{_INVISIBLE}{_JOINERS}\u2800\ufffc\U0001d159\U000e0100-\U000e01ef]")
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_SURROGATE = lazy_pattern(r"[\ud800-\udfff]")


def is_clean(data: bytes) -> bool:
    """Return whether sanitising would change nothing, as for most text. This check decides how fast sanitising is."""
    if data.isascii():
        return len(data.translate(None, _CONTROLS)) == len(data)
    return _unsafe().search(data) is None


@functools.cache
def _unsafe() -> Any:
    import re2  # four times as fast as `re` on text that is not ASCII

    return re2.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}{_JOINERS}\u2028\u2029]")


def sanitise(text: str) -> str:
    """Return the text as plain lines: no control characters but tab and newline, nothing invisible, valid as UTF-8.

    Unsafe characters are removed, not escaped: what remains is what a reader would see, and a key with an invisible
    character inside becomes a whole key again, which redaction then finds. Of a line redrawn with carriage returns (a
    progress bar) the last state is kept, as on a terminal.
    """
    text = _SURROGATE.sub("\ufffd", text)
    return text if is_clean(text.encode()) else without_sequences(without_invisible(text))


def visible(text: str) -> str:
    """Return the text for a person who makes a decision based on it: invisible characters, and those that would move
    other text, become escapes.

    Unlike `sanitise` it removes nothing, since what is shown must be what runs. A right-to-left override in a comment
    can make code look like another program; so can letters of right-to-left scripts, since the punctuation between two
    of them changes places. A combining mark stays on a letter that it belongs to (é, ã, ç), at most one. Line ends and
    tabs stay.
    """
    if text.isascii() and is_clean(text.encode()):
        return text
    shown: list[str] = []
    before = ""
    for char in text:
        shown.append(char if char in "\n\t" or _is_plain(char, before) else ascii(char)[1:-1])
        before = char
    return "".join(shown)


def _is_plain(char: str, before: str) -> bool:
    """Return whether the character, after the one before it, is visible and in its place."""
    if " " <= char <= "~":
        return True
    if not char.isprintable() or _SHAPELESS.match(char) or unicodedata.bidirectional(char) in _RIGHT_TO_LEFT:
        return False
    return not unicodedata.category(char).startswith("M") or len(unicodedata.normalize("NFC", before + char)) == 1


def without_invisible(text: str) -> str:
    """First half of sanitising: remove what is invisible beyond ASCII, and convert escape sequences to their 7-bit
    form.
    """
    if is_clean(text.encode().translate(None, _CONTROLS)):
        return text
    text = _C1.sub(lambda c1: "\x1b" + chr(ord(c1[0]) - 0x40), text)
    text = _STRAY_JOINERS.sub("", _REMOVED.sub("", text))
    return text.replace("\u2028", "\n").replace("\u2029", "\n")


def without_sequences(text: str) -> str:
    """Second half of sanitising: remove escape sequences, overstriking, redrawn lines and control characters."""
    text = _SEQUENCE.sub("", text)
    if "\x08" in text:
        text = _OVERSTRUCK.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return text.encode().translate(None, _CONTROLS).decode()
