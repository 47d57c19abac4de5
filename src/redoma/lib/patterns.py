"""Patterns that are compiled on first use: a run needs few of them, and compiling one takes up to a millisecond."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("match", "search", "fullmatch", "finditer", "findall", "sub", "subn", "split")


class _Pattern:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._pattern, self._flags)
        # so that later calls find them directly
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Do the same as `re.compile`, but compile on first use. A mistake raises only then, so tests use each pattern."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
