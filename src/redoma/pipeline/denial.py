"""Denials: what refused it, for what, why, what is allowed instead, what would permit it, and whether to try again.

Policy and people refuse before a run, backends instead of it, and limits at its end. A denial holds only what is known
for certain: nothing here reads the output of a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import msgspec

from ..backends.base import Outcome, exceeded
from ..lib.errors import BackendError, BackendUnavailable, Unsupported
from ..lib.units import format_size
from ..models import Decision, Denial, Evaluation, Finding, Judged, Limits, Request, Status
from ..models.network import written
from ..models.reach import NAME_THE_HOST, NO_NETWORK
from ..policy import HOST_TRAITS, Policy, permit_lines, permit_of
from ..redaction import Redactor, clean

_SHOWN = 200


def _sized(size: int) -> str:
    """Return a size in the form that the command line takes: always with a unit."""
    text = format_size(size)
    return f"{text}B" if text.isdigit() else text


_OPTIONS = {"time": "{:g}".format, "cpu": "{:g}".format, "memory": _sized, "disk": _sized}
"""Limits that the command line has options for, and how to format their values."""


def of_policy(judged: Judged, policy: Policy, redactor: Redactor, status: Status, answer: str = "") -> Denial:
    """Return the denial of a request that policy refused or prompted for; `answer` is the person's answer, if there was
    one.

    `policy` is what it was judged by. If it can be given input while it runs, no permit is possible: see `evaluate`.
    """
    evaluation, submission, request = judged.evaluation, judged.submission, judged.submission.judged
    finding = evaluation.deciding[0]
    allowed, permits = finding.suggestion, not submission.live_input
    for needed in (finding, *_piped(finding, evaluation)):
        if lacking := _lacking(needed, policy, evaluation):  # a permit or an approval would not help
            or_host = NAME_THE_HOST if lacking == NO_NETWORK and not needed.rule.startswith("install.") else ""
            allowed, permits = f"this sandbox has {lacking}: {needed.suggestion}{or_host}", False
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


def _piped(finding: Finding, evaluation: Evaluation) -> list[Finding]:
    """For `curl … | sh`, the findings about the download: without a network there is nothing to pipe."""
    if finding.rule != "shell.pipe-to-interpreter" or evaluation.reach.hosts:
        return []
    downloads = [each for each in evaluation.findings if each.rule == "network.download"]
    return [each for each in downloads if each.line == finding.line]


def _lacking(finding: Finding, policy: Policy, evaluation: Evaluation) -> str:
    """Return what the run would need for this and doesn't have in its sandbox; empty if it has it."""
    rule = policy.by_id.get(finding.rule)
    return evaluation.reach.lacks(rule.touches) if rule is not None and "files" not in rule.touches else ""


_OF_A_RUN = ("time", "output_lines", "output_bytes", "output_total")
"""Limits that a run in a session has for itself; the others are the session's."""


def raising(limit: str, limits: Limits, *, in_session: bool) -> str:
    """Return how to ask for twice as much of a limit."""
    more = _twice(limit, limits)
    option = f" (`--{limit} {_OPTIONS[limit](more)}`)" if limit in _OPTIONS else ""
    wanted = {limit: more}
    if limit == "file_size" and more > limits.disk:
        wanted["disk"] = more  # else such a file would not fit
    if not in_session or limit in _OF_A_RUN:
        return f"limits={wanted}{option}"
    if limit == "memory":
        return f"redoma.Session(memory={_sized(more)!r}) (`redoma repl --memory {_sized(more)}`)"
    return f"redoma.Session(limits={wanted})"


def _twice(limit: str, limits: Limits) -> Any:
    return min(getattr(limits, limit) * 2, 2**62)


def of_limit(
    outcome: Outcome, request: Request, configured: Limits, redactor: Redactor, *, in_session: bool = False
) -> Denial | None:
    """Return the denial of a run that a limit ended; None if something else ended it."""
    limit = outcome.limit
    if not limit:
        return None
    reached, more = getattr(request.limits, limit), _twice(limit, request.limits)
    beyond = "; over 60 s a person is asked" if limit == "time" and more > 60 else ""
    return _shown(
        Denial(
            rule=f"limits.{limit}",
            resource=f"{limit} {reached:g}" if isinstance(reached, float) else f"{limit} {reached}",
            why=outcome.error or exceeded(limit, request.limits),
            allowed=f"do less, or ask for more: {raising(limit, request.limits, in_session=in_session)}{beyond}",
            # The configuration doesn't change limits that the request or its executor sets.
            narrowest=f"limits:\n  {limit}: {more}\n" if reached == getattr(configured, limit) else "",
            retry_why="it would reach the same limit, unless it waited for something that is faster now",
        ),
        redactor,
    )


def of_network(outcome: Outcome, redactor: Redactor) -> Denial | None:
    """Return the denial of a failed run whose request to a host was refused: most likely that is why it failed."""
    refused = next((one for one in outcome.network if one.decision == "denied"), None)
    if refused is None or outcome.status is Status.OK:
        return None
    rule = refused.rule
    return _shown(
        Denial(
            rule="network",
            resource=f"{refused.method} {written(refused.host, refused.port)}{refused.path}".strip()[:_SHOWN],
            why=refused.why,
            allowed=f"name it: network=[{rule!r}], or `--allow-host {shlex.quote(rule)}`" if rule else "leave it out",
            narrowest=allowing_hosts([rule]) if rule and rule.isprintable() else "",
            retry_why="the same request meets the same rules",
        ),
        redactor,
    )


def allowing_hosts(rules: Iterable[str]) -> str:
    """Return configuration lines that let requests name these hosts without a prompt."""
    return "network:\n  allow:\n" + "".join(f"    - {_quoted(rule)}\n" for rule in rules)


def of_backend(error: BackendError, request: Request, redactor: Redactor) -> Denial | None:
    """Return the denial if no backend could run the request. None if a backend failed: that is not about the
    request.
    """
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
            allowed=(not layers and error.next) or advice,  # don't advise dropping a layer that the request requires
            retry_why="not before the request, or this host, is another",
        ),
        redactor,
    )


def of_pin(request: Request, redactor: Redactor) -> Denial:
    """Return the denial if something else was submitted under the label of a pin. No configuration permits that."""
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


def _shown(denial: Denial, redactor: Redactor) -> Denial:
    """Return the denial without secrets and control characters: it quotes the request."""
    fields = {name: clean(getattr(denial, name), redactor)[0] for name in ("resource", "why", "allowed", "retry_why")}
    return msgspec.structs.replace(denial, **fields)


# --- the narrowest rule ---


def _permitting(evaluation: Evaluation, request: Request, policy: Policy, redactor: Redactor, entry: str) -> str:
    """Return lines of a redoma.yaml that permit exactly this request; empty if a finding can't be permitted."""
    every = [finding for finding in evaluation.findings if finding.decision is not Decision.ALLOW]
    if any(finding.script for finding in every):  # a permit would not notice that the script changes
        return ""
    against = [finding for finding in every if finding.rule not in HOST_TRAITS]
    hosts = list(dict.fromkeys(finding.text for finding in every if finding.rule in HOST_TRAITS))
    own = {rule.id for rule in policy.rules}
    rules = list(dict.fromkeys(finding.rule for finding in against if finding.rule in own))
    others = list(dict.fromkeys(finding.permit for finding in against if finding.rule not in own))
    if not all(others) or len(others) > 1 or (rules and request.secrets):
        return ""
    parts = [*others, *(_permits(rules, request, redactor, entry) if rules else ())]
    lines = "".join([*parts, allowing_hosts(hosts) if hosts else ""])
    return lines if clean(lines, redactor)[0] == lines else ""


def _permits(rules: list[str], request: Request, redactor: Redactor, entry: str) -> list[str]:
    by_digest = clean(request.text, redactor)[0] != request.text
    permits = [permit_of(rule, request, entry, by_digest=by_digest) for rule in rules]
    return ["policy:\n", "  permits:\n", *map(permit_lines, permits)]


def of_entry(address: str, kind: str, fields: dict[str, Any]) -> str:
    """Return lines that set these fields of a configured executor; its others stay as they are."""
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
    """Return the value as YAML: JSON without escapes is YAML."""
    import json

    return json.dumps(value, ensure_ascii=False)
