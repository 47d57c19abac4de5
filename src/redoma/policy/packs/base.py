"""Short words for writing rules down."""

from __future__ import annotations

from functools import partial
from typing import get_args

from msgspec.structs import replace

from ...models import Decision
from ...models.reach import Resource
from ..rules import Rule

ask = partial(Rule, decision=Decision.PROMPT)
refuse = partial(Rule, decision=Decision.FORBID)
on_host = partial(Rule, decision=Decision.PROMPT, by_reach=True)
"""Asks where it could really do that, under every pack; in a sandbox it is an ordinary thing to do."""


EVERYTHING: tuple[Resource, ...] = get_args(Resource)


def touching(*rules: Rule, touches: tuple[Resource, ...]) -> tuple[Rule, ...]:
    """Rules that are about these, unless they say what else they are about."""
    return tuple(rule if rule.touches else replace(rule, touches=touches) for rule in rules)


def listed(text: str) -> tuple[str, ...]:
    """The entries of a comma-separated list, which may run over several lines."""
    return tuple(entry.strip() for entry in text.split(","))


def tree(text: str) -> tuple[str, ...]:
    """Globs for the directories of a list and everything in them."""
    return tuple(glob for directory in listed(text) for glob in (directory, f"{directory}/*"))
