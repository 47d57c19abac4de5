"""Small helpers for text: suggestions for a misspelt word, shortening, and RE2 patterns."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

_MAX_CHOICES = 24
"""Choices that a hint lists: enough for the keys of any section, but not for all rules."""


def closest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid word that was probably meant, or None if none is similar."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(valid), n=1)), None)


def did_you_mean(word: str, valid: Iterable[str], otherwise: str) -> str:
    """Return the hint "did you mean 'x'?" for the valid word that was probably meant; `otherwise` if none is
    similar."""
    close = closest(word, valid)
    return f"did you mean {close!r}?" if close is not None else otherwise


def suggest(word: str, valid: Iterable[str]) -> str:
    """Return a hint: the valid word that was probably meant, or a list of some to choose from."""
    ordered = sorted(valid)
    shown = ", ".join(ordered[:_MAX_CHOICES]) + (", ..." if len(ordered) > _MAX_CHOICES else "")
    return did_you_mean(word, ordered, f"use one of: {shown}")


def valid_utf8(text: str) -> str:
    """Return the text with escapes for lone surrogates, which UTF-8 can't hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, max_chars: int) -> str:
    """Return the text, cut to `max_chars` characters with an ellipsis as the last if it is longer."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def cut_middle(text: str, max_chars: int) -> str:
    """Return the text; if it is longer than `max_chars`, its beginning and end with a note of how much was left out."""
    if len(text) <= max_chars:
        return text
    note = f"\n[… {len(text) - max_chars:,} characters left out …]\n"
    room = max(0, max_chars - len(note))
    return (text[: room - room // 2] + note + text[len(text) - room // 2 :])[:max_chars]


@functools.lru_cache(maxsize=512)
def compile_re2(pattern: str, *, max_memory: int = 8 << 20) -> Any:
    """Compile an RE2 pattern, which matches in time linear in the text and in at most `max_memory` bytes. Raises
    `ValueError` if it is invalid, or needs more.
    """
    import re2

    options = re2.Options()
    options.log_errors = False  # it would print to the user's terminal
    options.max_mem = max_memory
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it can't be compiled"
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
