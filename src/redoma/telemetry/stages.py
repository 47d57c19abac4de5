"""Watch the stages of a request: one decorator for each stage, on the function that does it.

    run ─┬─ policy              effect("redoma.apply") ── approval
         ├─ decided, approval
         └─ backend ── looked_at

They look at what goes in and what comes out, change neither, and don't depend on the order.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from . import metrics
from .events import ERROR, INFO, WARNING, heard, tell
from .spans import Span

if TYPE_CHECKING:
    from ..models import Evaluation, Level, Request, Result, Status

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

_NOWHERE = "none"
"""The backend of a request that never reached one."""
_REFUSED = ("forbidden", "denied", "expired")
_ALARMING = ("alarm", "recovered")
"""Kinds of records that somebody should look at."""

_ID = re.compile(r"[0-9a-f]{32}")

_places: dict[str, str] = {}
"""The backend of each run by its id, for a run that is cancelled: it has no result to name it."""


class _Submission(Protocol):
    @property
    def request(self) -> Request: ...


class _Judged(Protocol):
    @property
    def request(self) -> Request: ...
    @property
    def evaluation(self) -> Evaluation: ...
    @property
    def level(self) -> Level: ...


class _Named(Protocol):
    name: str


class _Verdict(Protocol):
    @property
    def status(self) -> Status | None: ...
    @property
    def id(self) -> str: ...


class _Outcome(Protocol):
    @property
    def status(self) -> Status: ...


class _Kept(Protocol):
    @property
    def id(self) -> str: ...


A = TypeVar("A", bound=_Submission)
J = TypeVar("J", bound=_Judged)
B = TypeVar("B", bound=_Named)
V = TypeVar("V", bound=_Verdict)
R = TypeVar("R", bound=_Outcome)
K = TypeVar("K", bound=_Kept)


def run(
    submit: Callable[Concatenate[S, A, P], Awaitable[Result]],
) -> Callable[Concatenate[S, A, P], Coroutine[Any, Any, Result]]:
    """Watch the whole path of a request, to its result."""

    @functools.wraps(submit)
    async def told(self: S, submission: A, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        request, began, result = submission.request, time.monotonic(), None
        # What a cancelled run ends as; the record says the same.
        status = "killed"
        metrics.running(+1)
        with Span("redoma.run", run=request.id, language=request.language, workspace=request.workspace) as span:
            try:
                result = await submit(self, submission, *args, **kwargs)
                return result
            except Exception:  # nothing that could be returned: a rule that can't be used, or a bug of ours
                status = "failed"
                raise
            finally:
                metrics.running(-1)
                place = _places.pop(request.id, _NOWHERE)
                if result is not None:
                    status, place = result.status.value, result.backend or place
                _ended(request, place, status, result, time.monotonic() - began, span)

    return told


def _ended(request: Request, place: str, status: str, result: Result | None, seconds: float, span: Span) -> None:
    metrics.RUNS.add(place, status, request.language)
    for kind, count in result.redacted.items() if result is not None else ():
        metrics.REDACTIONS.add(kind, by=count)
    severity = ERROR if status == "failed" else WARNING if status in _REFUSED else INFO
    if not span.live and not heard(severity, "run.ended"):
        tell(severity, "run.ended")
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
    """Seconds rounded to microseconds; None for 0, which means not measured."""
    return round(seconds, 6) if seconds else None


def _verdict(evaluation: Evaluation, level: Level | None) -> dict[str, Any]:
    rule = evaluation.deciding[0].rule if evaluation.deciding else None
    said = {"decision": evaluation.decision.value, "rule": rule, "policy": evaluation.policy}
    return {**said, "level": level.value if level else None}


def policy(judge: Callable[[S, A], J]) -> Callable[[S, A], J]:
    """Watch policy judge a request."""

    @functools.wraps(judge)
    def told(self: S, submission: A) -> J:
        began = time.monotonic()
        with Span("redoma.policy", run=submission.request.id) as span:
            judged = judge(self, submission)
            if span.live:
                span.set(findings=len(judged.evaluation.findings), **_verdict(judged.evaluation, None))
        metrics.POLICY_SECONDS.observe(time.monotonic() - began)
        return judged

    return told


def decided(
    decide: Callable[[S, J], Awaitable[T]],
) -> Callable[[S, J], Coroutine[Any, Any, T]]:
    """Watch a request with its verdict go on to be run, asked about or refused."""

    @functools.wraps(decide)
    async def told(self: S, judged: J) -> T:
        metrics.DECISIONS.add(judged.evaluation.decision.value)
        request = judged.request
        verdict = _verdict(judged.evaluation, judged.level) if heard(INFO, "run.decided") else {}
        tell(INFO, "run.decided", run=request.id, language=request.language, **verdict)
        return await decide(self, judged)

    return told


@contextmanager
def approval(run: str) -> Iterator[Callable[[V], V]]:
    """Watch a person being asked, or an earlier answer being used. The block passes its verdict to what is yielded."""
    began, outcome, asked_as = time.monotonic(), "failed", ""

    def told(verdict: V) -> V:
        nonlocal outcome, asked_as
        outcome, asked_as = "approved" if verdict.status is None else verdict.status.value, verdict.id
        return verdict

    with Span("redoma.approval", run=run) as span:
        try:
            yield told
        finally:
            seconds = _rounded(time.monotonic() - began)
            metrics.APPROVALS.add(outcome)
            span.set(outcome=outcome, approval=asked_as)
            tell(INFO, "approval.ended", run=run, approval=asked_as, outcome=outcome, seconds=seconds)


def backend(
    work: Callable[Concatenate[S, B, Request, P], Awaitable[tuple[R, T]]],
) -> Callable[Concatenate[S, B, Request, P], Coroutine[Any, Any, tuple[R, T]]]:
    """Watch a request on a backend, its workspace included."""

    @functools.wraps(work)
    async def told(self: S, backend: B, request: Request, /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, T]:
        _places[request.id] = backend.name
        about = {"run": request.id, "backend": backend.name, "workspace": request.workspace}
        tell(INFO, "run.started", **about, language=request.language)
        began = time.monotonic()
        with Span("redoma.backend", **about) as span:
            outcome, more = await work(self, backend, request, *args, **kwargs)
            span.ended(outcome.status.value)
        metrics.RUN_SECONDS.observe(time.monotonic() - began, backend.name)
        return outcome, more

    return told


def looked_at(look: Callable[P, T]) -> Callable[P, T]:
    """Watch the changes of a run in an overlay being found."""

    @functools.wraps(look)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        with Span("redoma.effect"):
            return look(*args, **kwargs)

    return told


def effect(name: str) -> Callable[[Callable[P, Awaitable[K]]], Callable[P, Coroutine[Any, Any, K]]]:
    """Watch what is done with changes later, such as applying them, as a span of this name."""

    def decorate(work: Callable[P, Awaitable[K]]) -> Callable[P, Coroutine[Any, Any, K]]:
        @functools.wraps(work)
        async def told(*args: P.args, **kwargs: P.kwargs) -> K:
            with Span(name) as span:
                kept = await work(*args, **kwargs)
                span.set(run=kept.id)
                return kept

        return told

    return decorate


def recorded(kind: str, run: str, data: Mapping[str, Any]) -> None:
    """Count a record of the audit log, and log it unless it is a run's own intent or outcome, which were logged."""
    metrics.RECORDS.add(kind)
    if kind not in ("intent", "outcome"):
        severity = WARNING if kind in _ALARMING or kind.endswith(".refused") else INFO
        # Under an id that nobody was asked by, somebody may have typed anything.
        approval = data.get("approval")
        ours = isinstance(approval, str) and _ID.fullmatch(approval) is not None
        tell(severity, f"audit.{kind}", run=run, approval=approval if ours else None)
