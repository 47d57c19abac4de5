"""Evaluate a request: compute a policy's verdict on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from ..models import Decision, Evaluation, Finding, Request
from ..models.reach import HOST, LATER, Reach
from .facts import MAX_SOURCE, Fact, Trait, position
from .reading import Reading
from .rules import Policy, Rule

MAX_FINDINGS = 200
MAX_SECRETS = 20

UNREADABLE = "policy.unreadable"
"""The rule id of a finding about a failure of the checker itself. No pack contains it, so it can't be switched off."""


def evaluate(
    policy: Policy,
    request: Request,
    *,
    reach: Reach = HOST,
    live_input: bool = False,
    entry: str = "",
    reading: Reading | None = None,
) -> Evaluation:
    """Return the policy's verdict on a request, with its findings. Never raises; uses nothing but its arguments.

    `reach`: what the run could touch. `live_input`: whether the run can receive input while it runs, which nobody can
    check beforehand. `entry`: the address of the configured executor that runs it. `reading`: an existing reading of
    the same request, to avoid reading it twice. Of more than `MAX_FINDINGS` findings, the strictest are kept.
    """
    if not policy.rules:
        return Evaluation(policy=policy.name, digest=policy.digest, reach=reach)
    language = rules_language(request)
    try:
        facts = facts_for(policy, reading or Reading(request), live_input=live_input)
        findings = apply_reach(policy, policy.matcher.findings(facts, request.text, language), reach)
        if not live_input:  # a permit covers a whole request, but not input that arrives later
            findings = apply_permits(policy, request, findings, entry)
    except Exception as error:  # a bug in the checker must not let a request pass: refuse and say so
        findings = [
            Finding(
                rule=UNREADABLE,
                decision=Decision.FORBID,
                reason=f"the checker failed on this source ({type(error).__name__}), so nothing is known of it",
                suggestion="please report it; policy='none' runs it without static checks",
            )
        ]
    if len(findings) > MAX_FINDINGS:
        strictest = sorted(findings, key=lambda finding: -finding.decision.rank)[:MAX_FINDINGS]
        findings = sorted(strictest, key=lambda finding: (finding.line, finding.column))
    return Evaluation(policy=policy.name, digest=policy.digest, findings=tuple(findings), reach=reach)


def rules_language(request: Request) -> str:
    """Return the language whose rules judge a request: those for Bash judge commands, too."""
    return "bash" if request.language == "command" else request.language


def apply_reach(policy: Policy, findings: list[Finding], reach: Reach) -> list[Finding]:
    """Return all findings, each with the decision that applies to a run with this reach."""
    applied: list[Finding] = []
    for finding in findings:
        decision, why = _decision(policy.by_id[finding.rule], reach, by_text=policy.by_text)
        applied.append(msgspec.structs.replace(finding, decision=decision, out_of_reach=why))
    return applied


def _decision(rule: Rule, reach: Reach, *, by_text: bool) -> tuple[Decision, str]:
    """Return a rule's decision on a run with this reach, and why the rule doesn't apply ("" if it does). `by_text`:
    whether the policy judges by text alone."""
    applies = rule.decision, ""
    out_of_reach = Decision.ALLOW, reach.lacks(rule.touches)
    may_relax = bool(rule.touches) and not by_text
    if reach.files == "effect":  # the changes are about to be applied, and a person sees them
        if rule.at_once:
            return Decision.ALLOW, "it has run"
        if _is_about_changes(rule):
            return (Decision.PROMPT, "") if may_relax else applies
        return applies if by_text else out_of_reach
    if any(map(reach.holds, rule.touches)):
        return applies
    if reach.files == "later" and not rule.at_once:
        # Nothing happens until somebody applies the changes, and then that person is asked. But a rule of the owner,
        # which has no `touches`, still refuses.
        if rule.decision is Decision.PROMPT or may_relax:
            return (Decision.ALLOW, LATER) if _is_about_changes(rule) else out_of_reach
        return applies
    if rule.touches and not rule.outright and (rule.by_reach or not by_text):
        return out_of_reach
    return applies


def _is_about_changes(rule: Rule) -> bool:
    """Return whether what the rule is about may happen when changes are applied: it is about files, or anything."""
    return not rule.touches or "files" in rule.touches


def secrets_in(policy: Policy, request: Request) -> list[str]:
    """Return the secrets that only a rule's pattern finds (`password=…`), for redaction. The evaluation doesn't contain
    them, because it is recorded."""
    return policy.matcher.secrets(request.text, rules_language(request))


def apply_permits(policy: Policy, request: Request, findings: list[Finding], entry: str) -> list[Finding]:
    """Return all findings, with the decision `allow` for those that a permit for exactly this request covers."""
    if not policy.permits or not findings:
        return findings
    permits = policy.covering(request, entry)
    return [
        msgspec.structs.replace(each, decision=Decision.ALLOW)
        if any(permit.rule == each.rule and each.decision <= permit.up_to for permit in permits)
        else each
        for each in findings
    ]


def facts_for(policy: Policy, reading: Reading, *, live_input: bool = False) -> list[Fact]:
    """Return the facts of a request. Expensive checks are made only if a rule of the policy needs them."""
    compiled = "python.syntax-error" in policy.matcher.traits
    request = reading.request
    source = reading.facts(live_input=live_input, compiled=compiled)
    return [*source, *_hosts(policy, request), *_packages(request), *_secrets(policy, request)]


def _packages(request: Request) -> Iterator[Fact]:
    """Yield a trait if packages have to be installed first."""
    if request.uses is not None and not request.uses.digest:
        yield Trait(name="packages.install", text=", ".join(request.uses.packages))


def _hosts(policy: Policy, request: Request) -> Iterator[Fact]:
    """Yield traits for the hosts that the request names, except those that the configuration allows."""
    if not request.network:
        return
    from ipaddress import ip_address  # this and our tables of networks take a few milliseconds to load

    from ..lib.hosts import as_address, why_not_public

    for rule in request.network:
        if any(own.covers(rule) for own in policy.hosts):
            continue
        yield Trait(name="hosts.write" if rule.writes else "hosts.read", text=str(rule))
        literal = as_address(rule.host)
        places = [ip_address(text) for text in rule.addresses] or ([literal] if literal is not None else [])
        if any(map(why_not_public, places)):
            yield Trait(name="hosts.private", text=str(rule))


def _secrets(policy: Policy, request: Request) -> Iterator[Fact]:
    """Yield a trait for each secret in the text, if a rule needs them: this is the most expensive check."""
    if "source.secret" in policy.matcher.traits and len(request.text) <= MAX_SOURCE:
        from .. import redaction

        text = request.text
        secrets = (match for match in redaction.scan(text) if match.kind in redaction.SECRET_KINDS)
        for match in islice(secrets, MAX_SECRETS):
            line, column = position(text, match.start)
            yield Trait(name="source.secret", line=line, column=column, text=match.kind)
