"""Denials: what said no, about what, why, what is allowed instead, what would permit it, and whether to try again.

Policy and people say no before a run, backends instead of it, limits at its end, and the workspace when changes are
applied. A denial holds only what is known for certain: nothing here reads what a run has printed.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..backends.base import Outcome, exceeded
from ..lib.errors import BackendError, BackendUnavailable, Unsupported
from ..lib.units import format_size
from ..models import Decision, Denial, Evaluation, Finding, Judged, Limits, Request, Status
from ..policy import Policy, permit_lines, permit_of
from ..redaction import Redactor, clean

_SHOWN = 200


def _sized(size: int) -> str:
    """A size as the command line takes it: always with a unit."""
    text = format_size(size)
    return f"{text}B" if text.isdigit() else text


_OPTIONS = {"time": "{:g}".format, "cpu": "{:g}".format, "memory": _sized, "disk": _sized}
"""Limits that the command line has options for, and how their values are written there."""


def of_policy(judged: Judged, policy: Policy, redactor: Redactor, status: Status, answer: str = "") -> Denial:
    """Policy refused it, or a person was to be asked: `answer` is what they said, if anybody was there.

    `policy` is what it was judged by. No rule can be permitted where it can be given input while it runs: see
    `evaluate`.
    """
    evaluation, submission, request = judged.evaluation, judged.submission, judged.submission.judged
    finding = evaluation.deciding[0]
    allowed, permits = finding.suggestion, not submission.live_input
    if lacking := _lacking(finding, policy, evaluation):  # to permit it, or to say yes, would help nobody
        allowed, permits = f"this sandbox has {lacking}: {finding.suggestion}", False
    if status is Status.FORBIDDEN:
        retry = "the same request meets the same rule"
    elif status is Status.EXPIRED:
        retry = "nobody answered in time; somebody may if it is asked again"
    else:
        retry = f"a person has said no: {answer}" if answer else "a person has to say yes, and nobody is there to ask"
    return _shown(
        Denial(
            rule=finding.rule,
            resource=finding.text or request.text[:_SHOWN],
            why=finding.reason,
            allowed=allowed,
            narrowest=_permitting(evaluation, request, policy, redactor, submission.entry) if permits else "",
            retry=status is Status.EXPIRED,
            retry_why=retry,
        ),
        redactor,
    )


def _lacking(finding: Finding, policy: Policy, evaluation: Evaluation) -> str:
    """What the run would need for this and doesn't have in its sandbox; empty if it has it."""
    rule = policy.by_id.get(finding.rule)
    return evaluation.reach.lacks(rule.touches) if rule is not None and "files" not in rule.touches else ""


def of_limit(outcome: Outcome, request: Request, configured: Limits, redactor: Redactor) -> Denial | None:
    """A limit ended the run. None if something else did, or that can't be known."""
    limit = _limit(outcome, request.limits)
    if limit is None:
        return None
    reached = getattr(request.limits, limit)
    more = min(reached * 2, 2**62)
    option = f" (`--{limit} {_OPTIONS[limit](more)}`)" if limit in _OPTIONS else ""
    beyond = "; over 60 s a person is asked" if limit == "time" and more > 60 else ""
    return _shown(
        Denial(
            rule=f"limits.{limit}",
            resource=f"{limit} {reached:g}" if isinstance(reached, float) else f"{limit} {reached}",
            why=exceeded(limit, request.limits),
            allowed=f"do less, or ask for more: limits={{{limit!r}: {more}}}{option}{beyond}",
            # What a request asks for itself, or its executor says, is not changed by what is configured for all.
            narrowest=f"limits:\n  {limit}: {more}\n" if reached == getattr(configured, limit) else "",
            retry_why="it would reach the same limit, unless it waited for something that is faster now",
        ),
        redactor,
    )


def of_backend(error: BackendError, request: Request, redactor: Redactor) -> Denial | None:
    """No backend could run it as requested. None for a backend that broke: that says nothing of the request."""
    if not isinstance(error, (Unsupported, BackendUnavailable)):
        return None
    kind = "unsupported" if isinstance(error, Unsupported) else "unavailable"
    layers = ", ".join(request.require)
    advice = "ask for what is offered, or run it where all is: see `redoma doctor`"
    return _shown(
        Denial(
            rule=f"backend.{kind}",
            resource=f"{request.language} on {request.backend}" + (f" with {layers}" if layers else ""),
            why=f"{error.what}: {error.why}" if error.why else error.what,
            allowed=(not layers and error.next) or advice,  # whoever requires a layer is not told to do without any
            retry_why="not before the request, or this host, is another",
        ),
        redactor,
    )


def of_pin(request: Request, redactor: Redactor) -> Denial:
    """Something else was submitted under the label of a pin. No configuration permits that."""
    return _shown(
        Denial(
            rule="approval.pin",
            resource=request.label,
            why="what is pinned under this label is something else",
            allowed="exactly what is pinned, until somebody unpins it",
            retry_why="it is an alarm for as long as it is not what is pinned",
        ),
        redactor,
    )


def of_protected(path: str, why: str, redactor: Redactor) -> Denial:
    """A change to a protected path, which is not applied with the others."""
    return _shown(
        Denial(
            rule="workspace.protected",
            resource=path,
            why=why,
            allowed="everything else is applied; this path is, too, when it is named",
            retry_why="it is protected until it is named",
        ),
        redactor,
    )


def _limit(outcome: Outcome, limits: Limits) -> str | None:
    match outcome.status:
        case Status.TIMEOUT:
            return "cpu" if outcome.error == exceeded("cpu", limits) else "time"
        case Status.MEMORY:
            return "memory"
        case Status.OUTPUT:
            return "output_total"
        case Status.KILLED:  # the backend says so in these very words, or it was somebody's signal
            counted = ("processes", "file_size", "disk")
            return next((each for each in counted if outcome.error == exceeded(each, limits)), None)
        case _:
            return None


def _shown(denial: Denial, redactor: Redactor) -> Denial:
    """The denial without secrets and control characters: it quotes the request."""
    fields = {name: clean(getattr(denial, name), redactor)[0] for name in ("resource", "why", "allowed", "retry_why")}
    return msgspec.structs.replace(denial, **fields)


# --- the narrowest rule ---


def _permitting(evaluation: Evaluation, request: Request, policy: Policy, redactor: Redactor, entry: str) -> str:
    """Lines of a redoma.yaml that permit exactly this request; empty if some finding can't be permitted."""
    against = [finding for finding in evaluation.findings if finding.decision is not Decision.ALLOW]
    own = {rule.id for rule in policy.rules}
    rules = list(dict.fromkeys(finding.rule for finding in against if finding.rule in own))
    others = list(dict.fromkeys(finding.permit for finding in against if finding.rule not in own))
    if not all(others) or len(others) > 1 or (rules and request.secrets):
        return ""
    lines = "".join([*others, *(_permits(rules, request, redactor, entry) if rules else ())])
    return lines if clean(lines, redactor)[0] == lines else ""


def _permits(rules: list[str], request: Request, redactor: Redactor, entry: str) -> list[str]:
    by_digest = clean(request.text, redactor)[0] != request.text
    permits = [permit_of(rule, request, entry, by_digest=by_digest) for rule in rules]
    return ["policy:\n", "  permits:\n", *map(permit_lines, permits)]


def of_entry(address: str, kind: str, fields: dict[str, Any]) -> str:
    """Lines that set these fields of a configured executor; its others stay as they are."""
    namespace, _, name = address.partition(":")
    texts = [name, *(text for value in fields.values() for text in ([value] if isinstance(value, str) else value))]
    if not all(text.isprintable() for text in texts):
        return ""
    head = f'version: "1.0"\nnamespace: {_quoted(namespace)}\nentries:  # keep the other lines of this one\n'
    return head + _item({"name": name, "kind": kind, **fields}, "  ")


def _item(fields: dict[str, Any], indent: str) -> str:
    first, *rest = [f"{name}: {_quoted(value)}\n" for name, value in fields.items()]
    return f"{indent}- {first}" + "".join(f"{indent}  {line}" for line in rest)


def _quoted(value: Any) -> str:
    """The value as YAML: JSON without escapes is YAML."""
    return json.dumps(value, ensure_ascii=False)
