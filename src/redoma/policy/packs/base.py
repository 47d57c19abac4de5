"""Helpers to write rules down as data."""

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
"""A rule that asks, under every pack, where the request can really do it; in a sandbox it is an ordinary thing to
do."""

EVERYTHING: tuple[Resource, ...] = get_args(Resource)


def touching(*rules: Rule, touches: tuple[Resource, ...]) -> tuple[Rule, ...]:
    """Return the rules with `touches` set to these resources, except where a rule names its own."""
    return tuple(rule if rule.touches else replace(rule, touches=touches) for rule in rules)


def listed(text: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated list, which may run over several lines."""
    return tuple(entry.strip() for entry in text.split(","))


def tree(text: str) -> tuple[str, ...]:
    """Return globs for the listed directories and everything in them."""
    return tuple(glob for directory in listed(text) for glob in (directory, f"{directory}/*"))
