"""Evaluates another policy against every recorded request.

Each request is rebuilt and evaluated as it would be today. Requests that are identical in everything that an evaluation
reads are evaluated only once. If a request is not recorded completely, nothing is guessed: it is counted separately, by
what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import msgspec

from ..audit import Record
from ..audit.inputs import Inputs
from ..lib.errors import AuditError, PolicyError
from ..lib.text import shorten
from ..models import Decision, Request
from ..policy import Policy, Reading, evaluate, fingerprint
from .recorded import RecordedRun, rebuild

Group = Literal["forbidden", "prompt", "pass"]
"""Newly forbidden, newly prompting, newly passing."""
GROUPS: dict[Decision, Group] = {Decision.FORBID: "forbidden", Decision.PROMPT: "prompt", Decision.ALLOW: "pass"}

_REMEMBERED = 100_000
_UNREAD = frozenset({"requester", "reason", "label", "policy", "writes", "secrets", "session"})
"""Parts that don't matter to an evaluation. (Secrets don't, because no permit covers a request that has some.)"""
_NOTHING: frozenset[str] = frozenset()
_MAX_TEXT = 500


class Unjudged(Exception):
    """Why a recorded request can't be evaluated exactly."""


class PolicyVerdict(NamedTuple):
    """A policy's verdict on a recorded request."""

    decision: Decision
    deciding: tuple[str, ...]
    """The rules that determined the decision."""
    rules: frozenset[str]
    """All rules that matched, permitted or not."""


class LastReading:
    """Remembers the facts of the last request. Parsing is expensive, and two judges evaluate each request in turn."""

    def __init__(self) -> None:
        self._reading = Reading(Request())

    def of(self, request: Request) -> Reading:
        if request is not self._reading.request:
            self._reading = Reading(request)
        return self._reading


class Judge:
    """Evaluates recorded runs with one policy. `load` returns the policy for a pack. Judges that evaluate the same runs
    share `last`.
    """

    def __init__(self, load: Callable[[str | None], Policy], last: LastReading | None = None) -> None:
        self._load = load
        self.last = last or LastReading()
        self._policies: dict[str | None, Policy] = {}
        self._known: dict[tuple[object, ...], PolicyVerdict] = {}
        self.evaluated = 0
        """How many requests were evaluated; the others were identical to one of them."""

    def policy(self, pack: str | None) -> Policy:
        if pack not in self._policies:
            self._policies[pack] = self._load(pack)
        return self._policies[pack]

    def judge(self, run: RecordedRun) -> PolicyVerdict:
        """Return the policy's verdict on a recorded run. Raises `Unjudged` if it can't be determined exactly."""
        try:
            policy = self.policy(run.submission.policy)
        except PolicyError as error:
            raise Unjudged(f"its policy: {error.what}") from None
        missing = unknown(run)
        if run.missing:
            _must_be_readable(run, missing)
        key = (
            run.submission.policy,
            run.intent.reach,
            run.submission.live_input,
            tuple(run.judged.secrets),
            fingerprint(run.judged, run.submission.entry),
        )
        if (verdict := self._known.get(key)) is None:
            verdict = self._known[key] = self._evaluate(policy, run)
            if len(self._known) > _REMEMBERED:
                self._known.clear()
        if missing and not run.judged.secrets:
            _must_not_be_permitted(policy, run, verdict)
        return _with_objections(run, verdict) if run.submission.objections else verdict

    def _evaluate(self, policy: Policy, run: RecordedRun) -> PolicyVerdict:
        self.evaluated += 1
        about = {"reach": run.intent.reach, "live_input": run.submission.live_input, "entry": run.submission.entry}
        evaluation = evaluate(policy, run.judged, **about, reading=self.last.of(run.judged))  # type: ignore[arg-type]
        deciding = tuple(dict.fromkeys(finding.rule for finding in evaluation.deciding))
        return PolicyVerdict(evaluation.decision, deciding, frozenset(finding.rule for finding in evaluation.findings))


def unknown(run: RecordedRun) -> frozenset[str]:
    """Return the missing parts of a request that an evaluation or a permit may read."""
    return frozenset(run.missing) - _UNREAD - run.unread if run.missing else _NOTHING


def _must_be_readable(run: RecordedRun, missing: Iterable[str]) -> None:
    """Raise `Unjudged` if anything that rules read is not recorded."""
    from ..policy.shell.variables import may_be_hook

    command = run.judged.language == "command"
    read = {"env", "argv", "stdin" if command else "code"}
    for what in missing:
        if what in read or what.startswith("variable "):
            raise Unjudged(what)
    if hooks := [name for name in run.judged.secrets if may_be_hook(name)]:
        raise Unjudged(f"the secret {hooks[0]}")


def _must_not_be_permitted(policy: Policy, run: RecordedRun, verdict: PolicyVerdict) -> None:
    """Raise `Unjudged` if a permit might cover it: a permit is for a whole request, and part of this one is missing."""
    text = run.judged.text
    if run.submission.live_input:
        return
    for permit in policy.permits:
        same = (
            permit.language == run.judged.language
            and permit.entry == run.submission.entry
            and permit.rule in verdict.rules
        )
        if same and (permit.sha256 or permit.text == text):
            raise Unjudged(f"a part of what a permit is about: {next(iter(run.missing))}")


def _with_objections(run: RecordedRun, verdict: PolicyVerdict) -> PolicyVerdict:
    """Return the verdict combined with the objections of the run's executor, which count whatever the policy says."""
    strictest = max(finding.decision for finding in run.submission.objections)
    decision = max(strictest, verdict.decision)
    theirs = [finding.rule for finding in run.submission.objections if finding.decision is decision]
    deciding = tuple(dict.fromkeys([*theirs, *(verdict.deciding if verdict.decision is decision else ())]))
    return PolicyVerdict(decision, deciding, verdict.rules.union(finding.rule for finding in run.submission.objections))


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose decision would change."""

    id: str
    time: str
    requester: str
    language: str
    text: str
    before: Decision
    before_rules: tuple[str, ...]
    """All rules that matched when it was submitted."""
    after: Decision
    after_rules: tuple[str, ...]
    """The rules that decide."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How a policy's decisions differ from the recorded ones."""

    requests: int
    """How many have a verdict."""
    unchanged: int
    forbidden: int
    """Newly forbidden."""
    prompt: int
    """Newly prompting: they passed, or were forbidden."""
    passing: int
    """Newly passing."""
    changes: dict[str, int]
    """The number of requests for each change, such as `allow → forbid`."""
    by_rule: dict[Group, dict[str, int]]
    """The number of changed requests for each rule that decides now; for those that pass, that had matched before."""
    examples: dict[Group, list[Example]]
    unjudged: dict[str, int]
    """The number of requests that can't be evaluated, by what is missing."""
    differs_now: int
    """The number of requests for which the current policy already decides differently from the record."""
    evaluated: int
    """How many were evaluated; the others were identical to one of them."""

    @property
    def left_out(self) -> int:
        return sum(self.unjudged.values())


def compare(
    intents: Iterable[Record], judge: Judge, current: Judge | None = None, *, inputs: Inputs, examples: int = 3
) -> Comparison:
    """Compare the verdicts of `judge` with the recorded ones. `intents`: the records of that kind. `current`: a judge
    with the current policy. `examples`: how many examples of each kind of change to keep.
    """
    changes, unjudged = Counter[str](), Counter[str]()
    totals = Counter[Group]()
    by_rule: dict[Group, Counter[str]] = {group: Counter() for group in GROUPS.values()}
    shown: dict[Group, dict[tuple[str, str], Example]] = {group: {} for group in GROUPS.values()}
    requests = differs = 0
    for record in intents:
        try:
            run = rebuild(record, None, inputs)
            verdict = judge.judge(run)
        except AuditError:
            unjudged["its record is not understood"] += 1
            continue
        except Unjudged as error:
            unjudged[str(error)] += 1
            continue
        requests += 1
        if current is not None and run.intent.policy_digest != current.policy(run.submission.policy).digest:
            differs += _decision_of(current, run) is not run.intent.decision
        if verdict.decision is run.intent.decision:
            continue
        group = GROUPS[verdict.decision]
        totals[group] += 1
        changes[f"{run.intent.decision} → {verdict.decision}"] += 1
        by_rule[group].update(verdict.deciding or tuple(dict.fromkeys(run.intent.rules)))
        _add_example(shown[group], run, verdict, examples)
    return Comparison(
        requests=requests,
        unchanged=requests - totals.total(),
        forbidden=totals["forbidden"],
        prompt=totals["prompt"],
        passing=totals["pass"],
        changes=dict(changes.most_common()),
        by_rule={group: dict(counts.most_common()) for group, counts in by_rule.items()},
        examples={group: list(newest.values()) for group, newest in shown.items()},
        unjudged=dict(unjudged.most_common()),
        differs_now=differs,
        evaluated=judge.evaluated,
    )


def _decision_of(current: Judge, run: RecordedRun) -> Decision | None:
    try:
        return current.judge(run).decision
    except Unjudged:
        return run.intent.decision  # an unknown verdict is not a difference


def _add_example(
    examples: dict[tuple[str, str], Example], run: RecordedRun, verdict: PolicyVerdict, max_examples: int
) -> None:
    """Keep the newest examples, each text once, oldest first."""
    text = run.judged.text
    example = Example(
        id=run.id,
        time=run.time,
        requester=run.judged.requester,
        language=run.judged.language,
        text=shorten(text, _MAX_TEXT),
        before=run.intent.decision,
        before_rules=tuple(dict.fromkeys(run.intent.rules)),
        after=verdict.decision,
        after_rules=verdict.deciding,
    )
    key = (run.judged.language, text)
    examples.pop(key, None)
    examples[key] = example
    if len(examples) > max_examples:
        del examples[next(iter(examples))]
