"""Explain a verdict: the facts, the rules about each of them, and what each rule decided.

This is for people; the pipeline doesn't use it. The verdict is that of `evaluate`, and the same matcher assigns the
findings to the facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..models import Evaluation, Finding, Request
from ..models.reach import HOST, Reach
from .evaluate import apply_permits, apply_reach, evaluate, facts_for, rules_language
from .facts import (
    REQUEST_TRAITS,
    Assigned,
    Attribute,
    Call,
    Command,
    Executed,
    Fact,
    Function,
    Import,
    Searched,
    Span,
    Trait,
    Unbound,
)
from .levels import Leveled, level_of
from .reading import Reading
from .rules import Permit, Policy

_KINDS: dict[type[Fact], str] = {
    Command: "command",
    Executed: "file",
    Searched: "PATH",
    Assigned: "variable",
    Function: "function",
    Unbound: "not bound",
    Trait: "trait",
    Import: "import",
    Call: "call",
    Attribute: "read",
    Span: "time",
}


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that names this fact but doesn't match it."""

    rule: str
    because: str
    """The field of the rule that doesn't match; or "unless", if that matches and so exempts the fact."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One fact, with the rules that match it and those that don't."""

    fact: Fact
    findings: tuple[Finding, ...]
    silent: tuple[Silent, ...]

    @property
    def kind(self) -> str:
        """Return the kind of the fact, as shown to people."""
        return _KINDS[type(self.fact)]

    @property
    def meaning(self) -> str:
        """Return the meaning of a trait in words; empty for other facts."""
        if not isinstance(self.fact, Trait):
            return ""
        from . import javascript, python, shell

        return {**REQUEST_TRAITS, **python.TRAITS, **shell.TRAITS, **javascript.TRAITS}.get(self.fact.name, "")


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with everything that led to it."""

    evaluation: Evaluation
    leveled: Leveled
    rules: int
    """How many rules the policy has."""
    seen: tuple[Seen, ...]
    """Empty if the source could not be read; the evaluation then says so."""
    in_text: tuple[Finding, ...]
    """Findings about the text itself, by a `pattern` or its length."""
    permits: tuple[Permit, ...]
    """The permits that cover this request."""
    others: tuple[Permit, ...]
    """Permits for the same rules that cover other requests."""

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        shape: dict[str, Any] = msgspec.to_builtins(self)
        for seen, plain in zip(self.seen, shape["seen"], strict=True):
            plain["fact"] = {"kind": seen.kind, **({"meaning": seen.meaning} if seen.meaning else {}), **plain["fact"]}
        return shape


def explain(
    policy: Policy, request: Request, *, reach: Reach = HOST, live_input: bool = False, entry: str = ""
) -> Explanation:
    """Evaluate a request as `evaluate` does and return everything that led to the verdict. Never raises; uses nothing
    but its arguments."""
    reading = Reading(request)
    evaluation = evaluate(policy, request, reach=reach, live_input=live_input, entry=entry, reading=reading)
    language, matcher = rules_language(request), policy.matcher

    def decided(found: Iterator[Finding]) -> tuple[Finding, ...]:
        """Return the findings, each once, with the decisions that `evaluate` makes."""
        findings = apply_reach(policy, list(dict.fromkeys(found)), reach)
        return tuple(findings if live_input else apply_permits(policy, request, findings, entry))

    try:
        seen = tuple(
            Seen(
                fact=fact,
                findings=decided(matcher.of_fact(fact, language)),
                silent=tuple(Silent(rule=rule.id, because=field) for rule, field in matcher.silent(fact, language)),
            )
            for fact in facts_for(policy, reading, live_input=live_input)
        )
        in_text = decided(matcher.of_text(request.text, language))
    except Exception:  # `evaluate` met the same error and refused the request
        seen, in_text = (), ()
    covering = () if live_input else tuple(policy.covering(request, entry))
    objecting = {finding.rule for finding in evaluation.findings}
    return Explanation(
        evaluation=evaluation,
        leveled=level_of(request, evaluation, reading=reading),
        rules=len(policy.rules),
        seen=seen,
        in_text=in_text,
        permits=covering,
        others=tuple(each for each in policy.permits if each.rule in objecting and each not in covering),
    )
