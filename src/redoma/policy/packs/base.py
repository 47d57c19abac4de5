"""Short words for writing rules down."""

from __future__ import annotations

from functools import partial

from ...models import Decision
from ..rules import Rule

ask = partial(Rule, decision=Decision.PROMPT)
refuse = partial(Rule, decision=Decision.FORBID)


def listed(text: str) -> tuple[str, ...]:
    """The entries of a comma-separated list, which may run over several lines."""
    return tuple(entry.strip() for entry in text.split(","))


def tree(text: str) -> tuple[str, ...]:
    """Globs for the directories of a list and everything in them."""
    return tuple(glob for directory in listed(text) for glob in (directory, f"{directory}/*"))
