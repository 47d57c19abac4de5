"""Watches the stages of a request: one decorator for each stage, on the function that implements it.

    run ─┬─ policy              effect("redoma.apply") ── approval
         ├─ decided, approval
         └─ backend ── looked_at

They look at arguments and results, change neither, and don't depend on the order.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..lib.patterns import lazy_pattern
from . import metrics
from .events import ERROR, INFO, WARNING, heard, tell
from .spans import Span

if TYPE_CHECKING:
    from ..approval import Verdict
    from ..backends.base import Backend, Outcome
    from ..models import Evaluation, Judged, Level, Request, Result, Submission
    from ..workspace.kept import Kept

F = TypeVar("F", bound=Callable[..., Any])
"""A stage, which keeps its type when it is decorated."""

_NOWHERE = "none"
"""The backend of a request that never reached one."""
_REFUSED = ("forbidden", "denied", "expired")
_ALARMING = ("alarm", "recovered")
"""Kinds of records that deserve attention."""

_ID = lazy_pattern(r"[0-9a-f]{32}")

_places: dict[str, str] = {}
"""The backend of each run by its id, for a cancelled run, which has no result that names it."""


def run(submit: F) -> F:
    """Watch the whole path of a request, to its result."""

    @functools.wraps(submit)
    async def wrapper(self: object, submission: Submission, /, *args: Any, **kwargs: Any) -> Result:
        request, began = submission.request, time.monotonic()
        result: Result | None = None
        # A cancelled run ends like this; the record says the same.
        status = "killed"
        with Span("redoma.run", run=request.id, language=request.language, workspace=request.workspace) as span:
            metrics.running(+1)
            try:
                result = await submit(self, submission, *args, **kwargs)
                return result
            except Exception:  # there is no result: an unusable rule, or a bug of ours
                status = "failed"
                raise
            finally:
                metrics.running(-1)
                place = _places.pop(request.id, _NOWHERE)
                if result is not None:
                    status, place = result.status.value, result.backend or place
                _ended(request, place, status, result, time.monotonic() - began, span)

    return cast("F", wrapper)


def _ended(request: Request, place: str, status: str, result: Result | None, seconds: float, span: Span) -> None:
    metrics.RUNS.add(place, status, request.language)
    for kind, count in result.redacted.items() if result is not None else ():
        metrics.REDACTIONS.add(kind, by=count)
    severity = ERROR if status == "failed" else WARNING if status in _REFUSED else INFO
    if not span.live and not heard(severity, "run.ended"):
        metrics.EVENTS.add("run.ended")
        return
    about: dict[str, Any] = {"backend": place, "seconds": _rounded(seconds)}
    if result is not None:
        usage, redacted = result.usage, sum(result.redacted.values())
        about |= _verdict(result.evaluation, result.level)
        about |= {"exit_code": result.exit_code, "approval": result.approval_id}
        about |= {"wall": _rounded(usage.wall), "cpu": _rounded(usage.cpu), "memory": usage.memory}
        about["redacted"] = redacted or None
    span.set(**about)
    span.ended(status)
    tell(severity, "run.ended", run=request.id, status=status, language=request.language, **about)


def _rounded(seconds: float | None) -> float | None:
    """Return seconds rounded to microseconds; None for 0, which means not measured."""
    return round(seconds, 6) if seconds else None


def _verdict(evaluation: Evaluation, level: Level | None) -> dict[str, Any]:
    rule = evaluation.deciding[0].rule if evaluation.deciding else None
    said = {"decision": evaluation.decision.value, "rule": rule, "policy": evaluation.policy}
    return {**said, "level": level.value if level else None}


def policy(judge: F) -> F:
    """Watch policy evaluating a request."""

    @functools.wraps(judge)
    def wrapper(self: object, submission: Submission) -> Judged:
        began = time.monotonic()
        with Span("redoma.policy", run=submission.request.id) as span:
            judged: Judged = judge(self, submission)
            if span.live:
                span.set(findings=len(judged.evaluation.findings), **_verdict(judged.evaluation, None))
        metrics.POLICY_SECONDS.observe(time.monotonic() - began)
        return judged

    return cast("F", wrapper)


def decided(decide: F) -> F:
    """Watch what follows a verdict: running, asking or refusing."""

    @functools.wraps(decide)
    async def wrapper(self: object, judged: Judged) -> Any:
        metrics.DECISIONS.add(judged.evaluation.decision.value)
        if heard(INFO, "run.decided"):
            request, verdict = judged.request, _verdict(judged.evaluation, judged.level)
            tell(INFO, "run.decided", run=request.id, language=request.language, **verdict)
        else:
            metrics.EVENTS.add("run.decided")
        return await decide(self, judged)

    return cast("F", wrapper)


@contextmanager
def approval(run: str) -> Iterator[Callable[[Verdict], Verdict]]:
    """Watch a person being asked, or an earlier answer being used. The block passes its verdict to the yielded
    function.
    """
    began, outcome, asked_as = time.monotonic(), "failed", ""

    def note(verdict: Verdict) -> Verdict:
        nonlocal outcome, asked_as
        outcome, asked_as = "approved" if verdict.status is None else verdict.status.value, verdict.id
        return verdict

    with Span("redoma.approval", run=run) as span:
        try:
            yield note
        finally:
            seconds = _rounded(time.monotonic() - began)
            metrics.APPROVALS.add(outcome)
            span.set(outcome=outcome, approval=asked_as)
            tell(INFO, "approval.ended", run=run, approval=asked_as, outcome=outcome, seconds=seconds)


def backend(work: F) -> F:
    """Watch a request on a backend, including its workspace."""

    @functools.wraps(work)
    async def wrapper(
        self: object, backend: Backend, request: Request, /, *args: Any, **kwargs: Any
    ) -> tuple[Outcome, Any]:
        _places[request.id] = backend.name
        about = {"run": request.id, "backend": backend.name, "workspace": request.workspace}
        tell(INFO, "run.started", **about, language=request.language)
        began = time.monotonic()
        with Span("redoma.backend", **about) as span:
            outcome, more = await work(self, backend, request, *args, **kwargs)
            span.ended(outcome.status.value)
        metrics.RUN_SECONDS.observe(time.monotonic() - began, backend.name)
        return outcome, more

    return cast("F", wrapper)


def looked_at(look: F) -> F:
    """Watch the search for changes in an overlay."""

    @functools.wraps(look)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with Span("redoma.effect"):
            return look(*args, **kwargs)

    return cast("F", wrapper)


def effect(name: str) -> Callable[[F], F]:
    """Watch later operations on changes, such as applying them, as a span of this name."""

    def decorate(work: F) -> F:
        @functools.wraps(work)
        async def wrapper(*args: Any, **kwargs: Any) -> Kept:
            with Span(name) as span:
                kept: Kept = await work(*args, **kwargs)
                span.set(run=kept.id)
                return kept

        return cast("F", wrapper)

    return decorate


def recorded(kind: str, run: str, data: Mapping[str, Any]) -> None:
    """Count a record of the audit log, and log it unless it is a run's intent or outcome, which are logged already."""
    metrics.RECORDS.add(kind)
    if kind not in ("intent", "outcome"):
        severity = WARNING if kind in _ALARMING or kind.endswith(".refused") else INFO
        # An unknown id may be anything that a user typed.
        approval = data.get("approval")
        ours = isinstance(approval, str) and _ID.fullmatch(approval) is not None
        tell(severity, f"audit.{kind}", run=run, approval=approval if ours else None)
