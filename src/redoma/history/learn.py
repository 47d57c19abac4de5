"""Proposes permits for requests that people have approved, so that they are not asked again.

Nothing is generalised: a permit is for one exact request. It avoids a question but never overrides a refusal (`up_to:
prompt`). Before permits are proposed, they are tested on the whole history: the approved requests must pass, and no
other decision may change. Approved requests for which no permit is possible are listed with the reason.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import msgspec

from ..audit import Record
from ..audit.inputs import Inputs
from ..lib.errors import AuditError
from ..lib.sanitise import visible
from ..lib.text import shorten
from ..models import Decision, Request
from ..pipeline.executed_files import MISSING, find, visible_to
from ..policy import Permit, Policy, fingerprint, permit_lines, permit_of
from ..policy.executed import executes
from .policies import Judge, PolicyVerdict, Unjudged, unknown
from .recorded import RecordedRun, pairs, rebuild

MAX_PERMITS = 200
"""Maximum number of permits that are proposed at once: nobody would read more."""
_REFUSED = ("", "denied", "expired", "forbidden", "pending")
"""Statuses of runs that did not run although they were approved; empty: the end is not recorded."""
_MAX_NEAR, _MAX_NEAR_TEXT = 500, 200
_SHOWN = 3


class Approved(msgspec.Struct, frozen=True, kw_only=True):
    """One run that a person has approved."""

    id: str
    time: str
    requester: str
    approval: str
    """The id of the question. A pinned approval covers many runs."""
    approver: str
    reason: str
    pinned: bool
    status: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The permits for one request, and the approvals that justify them."""

    permits: tuple[Permit, ...]
    """One for each rule that prompts for it."""
    text: str
    approved: tuple[Approved, ...]
    unanswered: int
    """How often the same request was also submitted without being approved: it would pass, too."""

    @property
    def answers(self) -> dict[str, Approved]:
        """Approval id → its first run."""
        return _answers_of(self.approved)


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What is proposed, and what is not."""

    proposals: tuple[Proposal, ...]
    left_out: dict[str, tuple[str, ...]]
    """Reason → the ids of the approved runs for which no permit is proposed."""
    approved: int
    """The number of approved runs."""
    passing: int
    """The number of recorded runs that these permits would let pass."""

    @property
    def permits(self) -> tuple[Permit, ...]:
        return tuple(permit for proposal in self.proposals for permit in proposal.permits)


def _answers_of(approved: Iterable[Approved]) -> dict[str, Approved]:
    answers: dict[str, Approved] = {}
    for each in approved:
        answers.setdefault(each.approval, each)
    return answers


class _Key(NamedTuple):
    """Identifies a request as permits do, and by its policy pack, which permits don't include."""

    fingerprint: str
    pack: str | None


class _Candidate:
    """One request that was approved, with all its approvals."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.approved: list[Approved] = []
        self.rules: tuple[str, ...] = ()
        """The rules that prompt for it."""
        self.by_digest = False
        self.unanswered = 0

    @property
    def run_ids(self) -> list[str]:
        return [each.id for each in self.approved]

    def permits(self, not_match: tuple[str, ...] = ()) -> tuple[Permit, ...]:
        request, entry = self.run.judged, self.run.submission.entry
        permits = [
            permit_of(rule, request, entry, by_digest=self.by_digest, up_to=Decision.PROMPT) for rule in self.rules
        ]
        return tuple(
            permit if permit.sha256 else msgspec.structs.replace(permit, match=(permit.text,), not_match=not_match)
            for permit in permits
        )


def _permits(candidates: dict[_Key, _Candidate]) -> tuple[Permit, ...]:
    return tuple(permit for candidate in candidates.values() for permit in candidate.permits())


class RecordedRuns:
    """The recorded runs. They are read again for each pass, because all of them may not fit into memory."""

    def __init__(
        self,
        runs: Callable[[], Iterable[Record]],
        answers: Callable[[], Iterable[Record]],
        intents: Callable[[], Iterable[Record]],
        inputs: Inputs,
    ) -> None:
        """`runs` returns the records of kind `intent` and `outcome` of one period. `answers` returns the records about
        approvals, and `intents` those of kind `intent`, both of all time, because an earlier denial still counts.
        """
        self._runs, self.answers, self._intents, self._inputs = runs, answers, intents, inputs

    def __iter__(self) -> Iterator[RecordedRun]:
        for intent, outcome in pairs(self._runs()):
            try:
                yield rebuild(intent, outcome, self._inputs)
            except AuditError:
                continue  # at worst, something is not proposed

    def denied(self, refused: set[str]) -> dict[str, str]:
        """Return the requests that a person has denied, given the ids of denied runs: fingerprint → the id of a run."""
        denied: dict[str, str] = {}
        for intent in self._intents() if refused else ():
            if intent.id in refused:
                with suppress(AuditError):
                    denied.setdefault(_key(rebuild(intent, None, self._inputs)).fingerprint, intent.id)
        return denied


def learn(
    runs: RecordedRuns,
    load: Callable[[str | None, tuple[Permit, ...]], Policy],
    *,
    at_least: int = 1,
    max_permits: int = MAX_PERMITS,
) -> Learned:
    """Propose at most `max_permits` permits, for requests that were approved at least `at_least` times. `load` returns
    the current policy for a pack, with these permits added.

    Raises `AuditError` if the permits would change more than what was approved.
    """
    answers = _answers(runs.answers())
    left_out: dict[str, list[str]] = defaultdict(list)
    candidates, count = _candidates(runs, answers, left_out)
    denied = runs.denied(answers.refused)
    judge = Judge(lambda pack: load(pack, ()))
    for key, candidate in [*candidates.items()]:
        why, candidate.rules = _weighed(candidate, judge, denied.get(key.fingerprint), at_least)
        if why:
            left_out[why] += candidates.pop(key).run_ids
    if candidates:
        _narrow(runs, candidates, judge, left_out)
    # The most often approved first.
    ordered = sorted(candidates.items(), key=lambda item: (-len(item[1].approved), item[1].run.time, item[0]))
    total = 0
    for key, candidate in ordered:
        total += len(candidate.rules)
        if total > max_permits:
            left_out[f"more than {max_permits} would be proposed"] += candidates.pop(key).run_ids
    passing, near = _verified(runs, candidates, load, judge) if candidates else (0, {})
    return Learned(
        proposals=tuple(
            Proposal(
                permits=candidate.permits(_nearest(candidate, near)),
                text=candidate.run.judged.text,
                approved=tuple(candidate.approved),
                unanswered=candidate.unanswered,
            )
            for key, candidate in ordered
            if key in candidates
        ),
        left_out={why: tuple(runs) for why, runs in left_out.items()},
        approved=count,
        passing=passing,
    )


class _Answers(NamedTuple):
    """What people have answered, from the records about approvals."""

    given: dict[str, tuple[str, str, bool]]
    """Question id → approver, reason, and whether it was pinned."""
    taken_back: set[str]
    """The ids of questions whose approval was revoked."""
    refused: set[str]
    """The ids of denied runs."""


def _answers(records: Iterable[Record]) -> _Answers:
    answers = _Answers({}, set(), set())
    for record in records:
        data, question = record.data, str(record.data.get("approval"))
        if record.kind == "approval.given":
            answers.given[question] = str(data.get("approver")), str(data.get("reason")), bool(data.get("pinned"))
        elif record.kind == "approval.unpinned":
            answers.taken_back.add(question)
        elif record.kind == "approval.denied" and data.get("approver") not in (None, "redoma"):
            answers.refused.add(record.id)  # `redoma` denies if an approver fails; that is not a person's decision
    return answers


def _candidates(
    runs: RecordedRuns, answers: _Answers, left_out: dict[str, list[str]]
) -> tuple[dict[_Key, _Candidate], int]:
    """Return the requests that were approved, and the number of approved runs. Adds to `left_out`."""
    candidates: dict[_Key, _Candidate] = {}
    count = 0
    for run in runs:
        approval = run.intent.approval.id if run.intent.approval else ""
        if not run.approver or run.status in _REFUSED:
            continue
        key = _key(run)
        count += 1
        if approval not in answers.given:  # a pin can outlive the record of its approval
            left_out["the approval itself is no longer on record"].append(run.id)
        elif approval in answers.taken_back:
            left_out["the approval was taken back"].append(run.id)
        elif why := _unfit(run):
            left_out[why].append(run.id)
        else:
            approver, reason, pinned = answers.given[approval]
            candidates.setdefault(key, _Candidate(run)).approved.append(
                Approved(
                    id=run.id,
                    time=run.time,
                    requester=run.judged.requester,
                    approval=approval,
                    approver=approver,
                    reason=reason,
                    pinned=pinned,
                    status=run.status,
                )
            )
    return candidates, count


def _key(run: RecordedRun) -> _Key:
    return _Key(fingerprint(run.judged, run.submission.entry), run.submission.policy)


def _unfit(run: RecordedRun) -> str:
    """Return why no permit can be made for it; empty if one can."""
    if run.request.secrets:
        return "it had secrets: no file may say which request they went with"
    if run.submission.live_input or run.submission.unread_input:
        return "it could be given input while it ran, which no permit is about"
    if run.submission.session:
        return "it ran in a session, where what it does depends on what ran before"
    if unknown(run):
        return "the record doesn't have all of it"
    return ""


def _runs_files(run: RecordedRun) -> bool:
    """Return whether a run executes files of the host. An approval is bound to their content, but a permit is not."""
    request, found = run.request, executes(run.request)
    if run.submission.entry and request.backend == "docker":  # its volumes at that time are not on record
        return bool(found.files or found.imported or found.unbound or found.opaque)
    if (view := visible_to(request)) is None:
        return False
    held = find(request, view)
    absent = tuple(each.path[1:] for each in found.settings)  # while these don't exist, they make nothing run
    files = [path for path, state in held.files.items() if state != MISSING or not path.endswith(absent)]
    return bool(files or held.unbound or found.imported)  # a module may also appear there


def _weighed(candidate: _Candidate, judge: Judge, denied: str | None, at_least: int) -> tuple[str, tuple[str, ...]]:
    """Return why no permit is proposed for a candidate, regardless of other runs, and no rules; or an empty text, and
    the rules that prompt for it.
    """
    if denied is not None:
        return f"a person has also said no to the same (run {denied[:12]})", ()
    if len(_answers_of(candidate.approved)) < at_least:
        return f"it was approved fewer than {at_least} times", ()
    if _runs_files(candidate.run):
        return "it runs files of the host: what they hold was approved as well, and a permit can't say that", ()
    try:
        verdict = judge.judge(candidate.run)
    except Unjudged as error:
        return f"the record doesn't have {error}", ()
    if verdict.decision is Decision.FORBID:
        return f"it is forbidden now ({', '.join(verdict.deciding)}), and a block is never loosened", ()
    if verdict.decision is Decision.ALLOW:
        return "it passes already", ()
    return "", verdict.deciding


def _narrow(
    runs: RecordedRuns, candidates: dict[_Key, _Candidate], judge: Judge, left_out: dict[str, list[str]]
) -> None:
    """Narrow permits that would cover more of the history than was approved.

    A permit by text also covers the same text with a lower time limit, or with other output files. If such a request
    was made and not approved, the permit uses the digest instead. No permit can tell apart the same request under
    another pack, or with input while it runs. If that was asked about and not approved, the candidate is dropped.
    """
    permits = Policy(name="learned", rules=(), permits=_permits(candidates))
    fingerprints = {key.fingerprint for key in candidates}
    ambiguous: set[str] = set()
    for run in runs:
        key, submission = _key(run), run.submission
        approved = key in candidates and not submission.unread_input
        if approved or submission.live_input or not permits.covering(run.judged, submission.entry):
            continue
        if key.fingerprint not in fingerprints:
            for candidate in candidates.values():
                if candidate.run.judged.text == run.judged.text:
                    candidate.by_digest = True
        elif _prompts(judge, run):
            ambiguous.add(key.fingerprint)
    for key in [key for key in candidates if key.fingerprint in ambiguous]:
        why = "the same was asked for under another policy, or with input while it ran, and not approved so"
        left_out[why] += candidates.pop(key).run_ids


def _prompts(judge: Judge, run: RecordedRun) -> bool:
    try:
        return judge.judge(run).decision is Decision.PROMPT
    except Unjudged:
        return True


def _verified(
    runs: RecordedRuns,
    candidates: dict[_Key, _Candidate],
    load: Callable[[str | None, tuple[Permit, ...]], Policy],
    judge: Judge,
) -> tuple[int, dict[str, dict[str, None]]]:
    """Test the permits on the whole history. Returns how many runs would pass, and for each language and rule some
    texts that the rule still objects to.

    Raises `AuditError` if the permits would change more than what was approved.
    """
    permits = _permits(candidates)
    learned = Judge(lambda pack: load(pack, permits), judge.last)
    passing, near = 0, dict[str, dict[str, None]]()
    wanted = {rule for candidate in candidates.values() for rule in candidate.rules}
    for run in runs:
        try:
            before, after = judge.judge(run), learned.judge(run)
        except Unjudged:
            continue  # no permit was made for a run that can't be judged
        candidate = None if _unfit(run) else candidates.get(_key(run))
        if candidate is None and before.decision is after.decision:
            _note_text(near, wanted, run, before)
        elif candidate is not None and after.decision is Decision.ALLOW:
            passing += 1
            candidate.unanswered += not run.approver
        else:
            raise AuditError(
                f"the proposed permits would not do what they promise (run {run.id})",
                why=f"it is {before.decision} now, and would be {after.decision}",
                next="this is a bug in Redoma: please report it",
            )
    return passing, near


def _note_text(near: dict[str, dict[str, None]], wanted: set[str], run: RecordedRun, verdict: PolicyVerdict) -> None:
    text = run.judged.text
    if verdict.decision is Decision.ALLOW or not text.isprintable() or len(text) > _MAX_NEAR_TEXT or unknown(run):
        return
    for rule in wanted.intersection(verdict.deciding):
        texts = near.setdefault(f"{run.judged.language} {rule}", {})
        if len(texts) < _MAX_NEAR:
            texts[text] = None


def _nearest(candidate: _Candidate, near: dict[str, dict[str, None]]) -> tuple[str, ...]:
    """Return examples that must not match: the two most similar texts that a rule still objects to, and the text of the
    request with an extra word.
    """
    request: Request = candidate.run.judged
    others = {text for rule in candidate.rules for text in near.get(f"{request.language} {rule}", ())} - {request.text}
    close = difflib.get_close_matches(request.text[:_MAX_NEAR_TEXT], sorted(others), n=2, cutoff=0.5)
    return (*close, f"{request.text} more")


# --- as a file ---


def yaml(learned: Learned, *, when: str, since: str = "") -> str:
    """Return a redoma.yaml with the permits, and with the approvals that justify them in comments."""
    runs = f"{learned.approved:,} approved run{'' if learned.approved == 1 else 's'}"
    where = "on record since then" if since else "on record"
    lines = [
        f"# Learned on {when} from {runs}{f' since {since}' if since else ''}.",
        f"# {learned.passing:,} runs {where} that ask would pass; nothing else {where} would change.",
        "# Each permit is for one exact request. It avoids a question, but never overrides a refusal.",
        "# Read it, try it with `redoma policy test --add FILE`, then move what you want into your redoma.yaml.",
        'version: "1.0"',
        "policy:",
        "  permits:" if learned.proposals else "  permits: []",
    ]
    for proposal in learned.proposals:
        lines += [f"    # {line}" for line in _evidence_lines(proposal)]
        lines += [permit_lines(permit).rstrip("\n") for permit in proposal.permits]
    if learned.left_out:
        lines.append("# Approved, and not proposed:")
    for why, left in learned.left_out.items():
        some = ", ".join(_comment(run[:12]) for run in left[:_SHOWN]) + (", …" if len(left) > _SHOWN else "")
        lines.append(f"# - {len(left):,}: {_comment(why)} ({some})")
    return "\n".join(lines) + "\n"


def _evidence_lines(proposal: Proposal) -> Iterator[str]:
    approved, answers = proposal.approved, proposal.answers.values()
    who = Counter(each.approver for each in answers).most_common(_SHOWN)
    times = "once" if len(answers) == 1 else f"{len(answers):,} times"
    days = [_comment(each.time[:10]) for each in (approved[0], approved[-1])]
    period = days[0] if len(approved) == 1 else " to ".join(days)
    ran = f", for {len(approved):,} runs" if len(approved) != len(answers) else ""
    yield f"approved {times} by {', '.join(f'{_comment(name, 40)} ({count:,})' for name, count in who)}{ran}, {period}"
    asked = ", ".join(_comment(name, 40) for name in islice(dict.fromkeys(each.requester for each in approved), _SHOWN))
    ids = ", ".join(_comment(each.id[:12]) for each in approved[-_SHOWN:])
    yield f"asked for by {asked}; runs {ids}{' and others' if len(approved) > _SHOWN else ''}"
    for reason in islice(dict.fromkeys(each.reason for each in approved), _SHOWN):
        yield f"reason: {_comment(reason)}"
    if proposal.unanswered:
        yield f"also asked for {proposal.unanswered:,} times without an answer"
    if proposal.permits[0].sha256:
        yield f"text: {_comment(proposal.text)}"


def _comment(text: str, max_chars: int = 100) -> str:
    """Return the text on one line, so that it stays a comment."""
    return shorten(visible(text[: 4 * max_chars]).replace("\n", "\\n").replace("\t", "\\t"), max_chars)
