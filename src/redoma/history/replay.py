"""Runs a recorded run again, with its input, limits and seed but without effects, and compares the two.

The replay has its own executor, whose state directory is removed afterwards: no change is kept that could be applied,
and no approval or pin can be used. That executor has no log; the replay is recorded in the real one, beside the
original run. If the run worked in a project directly, the replay works in an overlay of it; if it ran on the host, the
replay runs in an empty cell. What a person denied, or policy forbids or forbade, is not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import msgspec

from ..audit import AuditLog
from ..audit.inputs import Inputs
from ..audit.records import Outcome, Printed
from ..backends.base import Backend
from ..config import ApprovalConfig, Config, PolicyConfig, home
from ..lib.errors import BackendUnavailable, InvalidRequest, PolicyError, RedomaError
from ..models import Decision, Evaluation, KiB, Request, Result, Seed, Status, Submission
from ..output.artifacts import Store as Artifacts
from ..output.expectations import Expectation, expectation
from ..pipeline.executor import AsyncExecutor
from ..pipeline.intents import UNWANTED
from ..pipeline.projects import staged
from ..pipeline.results import outcome_record
from ..policy import Policy, evaluate
from ..redaction import Redactor
from ..workspace.protected import must_be_a_project
from .compare import Field, compare_outcomes
from .recorded import RecordedRun
from .sources import sources

_SANDBOXES = ("jail", "docker", "monty", "lean")
_ENDED_AT_A_LIMIT = ("timeout", "memory", "output")
_MAX_DIFFED = 32 * KiB  # of the output, if all of it was kept
_MAX_TWICE = 10.0  # seconds; a replay that differs and took no longer is run again, to see if it differs from itself
_IRRELEVANT = ("policy", "requester", "reason", "label", "secrets")
"""Parts that may be missing without changing what the run does. (Secrets are replaced by placeholders.)"""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a replay."""

    id: str
    """The id of the original run."""
    replay: str = ""
    """The id of the replay itself, if anything ran."""
    verdict: Literal["identical", "different", "impossible"]
    backend: str = ""
    why: str = ""
    """Why it is impossible."""
    fields: tuple[Field, ...] = ()
    notes: tuple[str, ...] = ()
    """What was done differently from the original run."""
    reasons: tuple[str, ...] = ()
    """What may explain a difference."""

    @property
    def differing(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields if field.state == "different")


class _Evaluations(NamedTuple):
    """The request by the policy at the time of the run, if that is still known, and by the current policy."""

    then: Evaluation | None
    now: Evaluation
    known: bool
    """Whether everything that was judged is on record."""

    @property
    def forbidding(self) -> Evaluation | None:
        """The evaluation that forbids it, if one does."""
        forbidding = (each for each in (self.now, self.then) if each and each.decision is Decision.FORBID)
        return next(forbidding, None)


class Replayer:
    """Replays runs. Use it as an asynchronous context manager: it removes everything that it made."""

    def __init__(self, config: Config, inputs: Inputs) -> None:
        self._config, self._inputs = config, inputs
        self._audit = AuditLog.configured(config.audit)
        self._policies: dict[str, Policy | None] = {}
        self._stack = ExitStack()

    async def __aenter__(self) -> Replayer:
        if (state := self._config.state) is not None:
            place = self._stack.enter_context(staged(state))
        else:
            place = Path(self._stack.enter_context(TemporaryDirectory(prefix="redoma-replay-")))
        config = msgspec.structs.replace(
            self._config,
            state=place,
            audit=msgspec.structs.replace(self._config.audit, directory=place / "audit", enabled=False),
            policy=PolicyConfig(pack="none"),  # policy has already decided
            approval=ApprovalConfig(),
            jail=msgspec.structs.replace(self._config.jail, minimum=0),
            docker=msgspec.structs.replace(self._config.docker, minimum=0, pull=False),
            entries={},
        )
        self._executor = AsyncExecutor(config)
        return self

    async def __aexit__(self, *exc: object) -> None:
        with self._stack:
            await self._executor.aclose()

    async def replay(self, run: RecordedRun) -> ReplayResult:
        """Run a recorded run again and compare. Raises `AuditError` if that can't be recorded; then it is not run."""
        if (why := _impossible(run)) or run.outcome is None:
            return ReplayResult(id=run.id, verdict="impossible", why=why)
        try:
            evaluations = self._evaluate(run)
            submission, submission_notes = self._submission(run)
        except RedomaError as error:
            return ReplayResult(id=run.id, verdict="impossible", why=str(error))
        verdict = _verdict(run, evaluations)
        notes = list(_policy_notes(run, evaluations))
        if Status(run.status).ending in ("refused", "pending") or evaluations.forbidding is not None:
            return self._without_running(run, evaluations, verdict, notes)
        notes += submission_notes
        self._record("replay", run.id, {"replay": submission.request.id, "backend": submission.request.backend})
        replay = await self._run(run, run.outcome, submission, verdict, notes)
        outcome = {
            "replay": replay.replay,
            "verdict": replay.verdict,
            "backend": replay.backend,
            "different": list(replay.differing),
            "reasons": Redactor().redact_data(list(replay.reasons))[0],
        }
        self._record("replay.outcome", run.id, outcome)
        return replay

    def _record(self, kind: str, run: str, data: dict[str, Any]) -> None:
        if self._config.audit.enabled:
            self._audit.append(kind, run, data)

    # --- whether it may be run ---

    def _evaluate(self, run: RecordedRun) -> _Evaluations:
        options = {"reach": run.intent.reach, "live_input": run.submission.live_input, "entry": run.submission.entry}

        def by(policy: Policy) -> Evaluation:
            evaluation = evaluate(policy, run.judged, **options)  # type: ignore[arg-type]
            return msgspec.structs.replace(evaluation, findings=run.submission.objections + evaluation.findings)

        then = self._policy_of_then(run.intent.policy_digest)
        known = not {what.partition(" ")[0] for what in run.missing} & {"code", "argv", "stdin", "variable"}
        return _Evaluations(by(then) if then else None, by(self._config.load_policy(run.submission.policy)), known)

    def _policy_of_then(self, digest: str) -> Policy | None:
        if digest not in self._policies:
            data = self._inputs.get(digest)
            try:
                self._policies[digest] = Policy.decode(data) if data is not None else None
            except PolicyError:
                self._policies[digest] = None
        return self._policies[digest]

    def _without_running(
        self, run: RecordedRun, evaluations: _Evaluations, verdict: Field, notes: list[str]
    ) -> ReplayResult:
        """Return the replay of a run that was refused, or is forbidden now: only the verdicts are compared."""
        status = run.status
        fields = [verdict]
        reasons: list[str] = []
        if Status(status).ending not in ("refused", "pending"):
            whose = (
                "the current policy" if evaluations.forbidding is evaluations.now else "its policy, as it is read now,"
            )
            fields.append(Field(name="status", state="different", before=status, after="forbidden"))
            reasons.append(f"{whose} forbids it: {_rules(evaluations.forbidding)}")
        else:
            notes.append(f"it was not run then ({status}), so nothing is run now: only the verdict is compared")
        different = any(field.state == "different" for field in fields)
        return ReplayResult(
            id=run.id,
            verdict="different" if different else "identical",
            fields=tuple(fields),
            notes=tuple(notes),
            reasons=tuple(reasons),
        )

    # --- what runs, and where ---

    def _submission(self, run: RecordedRun) -> tuple[Submission, list[str]]:
        """Return what to submit in place of the original submission, and notes on what is different."""
        notes: list[str] = []
        request = run.request
        ran_on = (run.outcome.backend if run.outcome else "") or request.backend
        where, why = self._backend(ran_on, run)
        if why:
            notes.append(why)
        changes: dict[str, Any] = {"backend": where, "id": Request().id, "seed": _seed(run), "checkpoint": None}
        if request.workspace == "direct":
            changes["workspace"] = "overlay"
            notes.append("it worked in the project itself; this is an overlay of it, and what it does there is dropped")
        elif request.workspace == "scratch" and request.cwd is not None and not _inside(run):
            changes["cwd"] = None
            notes.append(f"it worked in {request.cwd} on the host; this is an empty directory")
        if request.project is not None:
            private = [self._config.state] if self._config.state else []
            must_be_a_project(request.project, home=home(), private=private)
        if request.network:  # a request to a host must not be repeated, least of all with other secrets
            changes |= {"network": (), "held": {}}
            notes.append(f"it could reach {', '.join(map(str, request.network[:5]))}; this run reaches nothing")
        if request.secrets:
            notes.append(f"the values of {', '.join(sorted(request.secrets))} were not kept; others are in their place")
        if run.submission.unread_input:
            notes.append("what it was told while it ran was not kept")
        again = msgspec.structs.replace(request, **changes)
        on: Backend | None = self._executor.backends["jail"] if again.cwd and not again.project else None
        expected, expectation_notes = _expectation(run)
        notes += expectation_notes
        writes = run.submission.writes
        return Submission(again, "none", own_backend=on, expectation=expected, writes=writes), notes

    def _backend(self, ran_on: str, run: RecordedRun) -> tuple[str, str]:
        """Return the backend for the replay, and why it is another one. It is the same if that is a sandbox and
        available, otherwise the jail.
        """
        if ran_on == "auto":
            return "auto", ""
        if ran_on in _SANDBOXES and not (ran_on == "docker" and run.submission.entry):
            try:
                self._executor.backends[ran_on].capabilities()
            except BackendUnavailable as error:
                why = f"it ran on {ran_on}, which is not available here ({error.why}); this is a cell of the jail"
                return "jail", why
            return ran_on, ""
        what = f"the containers of {run.submission.entry}" if run.submission.entry and ran_on == "docker" else ran_on
        return "jail", f"it ran on {what}, where it could have effects; this is a cell of the jail"

    # --- running and comparing ---

    async def _run(
        self, run: RecordedRun, before: Outcome, submission: Submission, verdict: Field, notes: list[str]
    ) -> ReplayResult:
        result, after = await self._once(submission)
        if result.status is Status.FAILED and run.status != "failed":
            why = f"the replay failed: {result.error}"
            return ReplayResult(id=run.id, replay=result.id, verdict="impossible", why=why, notes=tuple(notes))
        fields = (verdict, *compare_outcomes(before, after))
        different = any(field.state == "different" for field in fields)
        reasons: list[str] = []
        if different:
            before = self._with_texts(run.id, before, self._config)
            fields = (verdict, *compare_outcomes(before, self._with_texts(result.id, after, self._executor.config)))
            reasons = [*self._reasons(run, before, after, fields)]
            if result.usage.wall <= _MAX_TWICE and result.status.ending == "ran":
                other = msgspec.structs.replace(submission.request, id=Request().id)
                _, twice = await self._once(msgspec.structs.replace(submission, request=other))
                itself = [field.name for field in compare_outcomes(after, twice) if field.state == "different"]
                if itself:
                    differs = f"it is not deterministic: run twice, it differs from itself in {', '.join(itself)}"
                    reasons.insert(0, differs)
            reasons += [f"not as it was then: {note}" for note in notes]
        return ReplayResult(
            id=run.id,
            replay=result.id,
            verdict="different" if different else "identical",
            backend=result.backend,
            fields=fields,
            notes=tuple(notes),
            reasons=tuple(reasons) or (("nothing on record explains it",) if different else ()),
        )

    async def _once(self, submission: Submission) -> tuple[Result, Outcome]:
        result = await self._executor.submit(submission)
        record = outcome_record(result, Redactor(submission.request.secrets.values()))
        return result, msgspec.convert(record, Outcome)

    def _with_texts(self, run: str, outcome: Outcome, config: Config) -> Outcome:
        """Return the outcome with more of its output than the record has, if the whole output was kept."""
        texts: dict[str, Printed] = {}
        if config.state is None:
            return outcome
        artifacts = Artifacts(config.state / "artifacts")
        for stream in outcome.artifacts:
            with suppress(RedomaError):  # artifacts are kept for a few days only
                whole = artifacts.find(run, stream)
                text = whole.read(0, _MAX_DIFFED).decode(errors="replace")
                texts[stream] = msgspec.structs.replace(getattr(outcome, stream), text=text)
        return msgspec.structs.replace(outcome, **texts)

    def _reasons(self, run: RecordedRun, before: Outcome, after: Outcome, fields: tuple[Field, ...]) -> Iterator[str]:
        """Yield known reasons for a difference, the most certain first."""
        if fields[0].state == "different":
            yield "under the same policy, this version of Redoma decides differently"
        for what, missing in run.missing.items():
            if what not in _IRRELEVANT:
                yield f"missing: {what}: {missing}"
        for path in _changed_since(before, after):
            yield f"the project has changed since: {path}"
        for each, whose in ((before, "it was"), (after, "the replay was")):
            if each.status in _ENDED_AT_A_LIMIT:
                yield f"{whose} ended at a limit: how far it gets depends on the machine ({each.error or ''})"
                break
        yield from sources(run.request, seeded=_seed(run) is not None)
        if run.request.project is not None and any(field.state == "different" for field in fields):
            yield f"it read {run.request.project}, which may have changed since"


def _impossible(run: RecordedRun) -> str:
    if run.outcome is None:
        return "it has no end on record that it could be compared with: it still runs, or was cut short"
    if run.request.language == "lua":
        return "a Lua script asks executors for commands, and those have effects"
    if run.submission.session:
        return "it ran in a session, and what earlier runs had left there is gone"
    if UNWANTED in run.missing.values():
        return "what it was given was not to be kept: it is a rule of the monitor, or `audit.inputs` was false"
    return ""


def _verdict(run: RecordedRun, evaluations: _Evaluations) -> Field:
    """Compare the recorded verdict with that of the same policy now."""
    again = evaluations.then
    before = f"{run.intent.decision}{_named(run.intent.rules)}"
    if again is None or not evaluations.known:
        why = "its policy is not on record" if again is None else "what was judged is not on record word for word"
        return Field(name="verdict", state="unknown", before=before, after=f"({why})")
    after = f"{again.decision}{_named(tuple(finding.rule for finding in again.findings))}"
    return Field(name="verdict", state="same" if before == after else "different", before=before, after=after)


def _named(rules: tuple[str, ...]) -> str:
    return f" ({', '.join(dict.fromkeys(rules))})" if rules else ""


def _rules(evaluation: Evaluation | None) -> str:
    return "; ".join(f"{finding.reason} [{finding.rule}]" for finding in (evaluation.deciding if evaluation else ()))


def _policy_notes(run: RecordedRun, evaluations: _Evaluations) -> Iterator[str]:
    now = evaluations.now
    if now.digest != run.intent.policy_digest:
        then = f"{run.intent.decision}{_named(run.intent.rules)}"
        today = f"{now.decision}{_named(tuple(finding.rule for finding in now.findings))}"
        same = "the verdict is the same" if then == today else f"it was {then}, and would now be {today}"
        yield f"the policy has changed since: {same}"
    if now.decision is Decision.PROMPT:
        yield "a person had to say yes to it; nobody is asked for a replay, which has no effects"


def _seed(run: RecordedRun) -> Seed | None:
    return run.outcome.seed if run.outcome else None


def _inside(run: RecordedRun) -> bool:
    """Return whether the run's working directory was in a cell, because it ran on an executor of the kind exec.jail."""
    return bool(run.submission.entry) and run.request.backend == "jail"


def _expectation(run: RecordedRun) -> tuple[Expectation | None, list[str]]:
    if not run.intent.expect:
        return None, []
    if run.intent.expect == "json" or (run.intent.expect.startswith("regex:") and len(run.intent.expect) < 200):
        try:
            return expectation(run.intent.expect), []
        except InvalidRequest:  # the record has only a description of it
            pass
    return None, [f"what it was expected to print ({run.intent.expect}) can't be rebuilt, so it is not looked for"]


def _changed_since(before: Outcome, after: Outcome) -> Iterator[str]:
    """Yield the paths that both runs have changed and that had another content before the second run."""
    effects = [each.effect.paths if each.effect else () for each in (before, after)]
    was, now = ({path: old for path, old, _ in paths} for paths in effects)
    for path, old in was.items():
        if path in now and now[path] != old:
            yield path
