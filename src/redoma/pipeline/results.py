"""How a submission ends: the `Result` of each ending, built once, and its `Outcome` for the audit log."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import msgspec

from ..approval import NOBODY, Verdict
from ..audit import records
from ..backends.base import Capabilities, Outcome, Repr, exceeded, kept_requests
from ..lib.errors import AuditError, RedomaError
from ..lib.text import valid_utf8
from ..models import (
    Change,
    Denial,
    Diagnosis,
    Display,
    Effect,
    Finding,
    Judged,
    Limits,
    NetworkRequest,
    Result,
    Status,
    Submission,
    Version,
)
from ..output import MARKS
from ..output.capture import Captured
from ..redaction import PERSONAL_KINDS, Redactor, clean
from ..redaction.redactor import replace
from ..redaction.scanner import Match

_MAX_MESSAGE = 8192  # characters; code can raise an error with a text of many megabytes
_MAX_PATHS = 200  # of an effect, in the audit log
_MAX_REQUESTS = 200  # to hosts, in the audit log
_MAX_STREAM = 2048  # characters of a stream in the audit log, if it is not the result
_MAX_RESULT = 8192  # characters of a result in the audit log: enough to recognise a run; the caller has the whole


class Attempt(msgspec.Struct, frozen=True):
    """What is known of a submission before it has run or was refused."""

    judged: Judged
    verdict: Verdict
    backend: str = ""
    passed_over: dict[str, str] = {}


class WorkspaceOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the workspace of a run: fields of its `Result`."""

    effect: Effect | None = None
    rollback: dict[str, str] | None = None
    no_checkpoint: str = ""


def ended(attempt: Attempt, *, status: Status, **fields: Any) -> Result:
    """Return the result of a submission with this status; `fields` are further fields of the `Result`."""
    judged, verdict = attempt.judged, attempt.verdict
    return Result(
        id=judged.request.id,
        status=status,
        evaluation=judged.evaluation,
        level=judged.level,
        level_why=judged.level_why,
        approval=verdict.approval,
        approval_id=verdict.id,
        backend=attempt.backend,
        passed_over=attempt.passed_over,
        **fields,
    )


def refusal(finding: Finding, status: Status, answer: str = "") -> str:
    """Return why policy refused it; or why no person has approved it: `answer` is the person's answer, or why there was
    none.
    """
    where = f" (line {finding.line}, column {finding.column})" if finding.line else ""
    asked = "" if status is Status.FORBIDDEN else f"{answer or NOBODY}: "
    hint = f". {finding.suggestion}" if finding.suggestion else ""
    return f"{asked}{finding.reason} [{finding.rule}]{where}{hint}"


def failed(attempt: Attempt, error: Exception, redactor: Redactor, captured: Captured | None = None) -> Result:
    """Return the result if Redoma, not the code, failed. It has what the code had printed and requested until then."""
    captured = captured or Captured()
    return ended(
        attempt,
        status=Status.FAILED,
        error=failure(error, redactor),
        network=requests_shown(kept_requests(error), redactor),
        stdout=captured.stdout,
        stderr=captured.stderr,
        redacted=captured.redacted,
        omitted=captured.omitted,
        artifacts=captured.artifacts,
    )


def broken_off(attempt: Attempt, error: BaseException | None, redactor: Redactor) -> Result:
    """Return the result, for the record, of a submission whose path was left by an exception: it has failed, unless
    somebody ended it. (Only an `Exception` is a failure: others are cancellation, Ctrl-C and the end of the loop.)
    """
    if isinstance(error, Exception):
        return failed(attempt, error, redactor)
    requests = requests_shown(kept_requests(error), redactor)
    return ended(attempt, status=Status.KILLED, error="it was cancelled", network=requests)


def unrecorded(result: Result, error: AuditError, redactor: Redactor) -> Result:
    """Return the result of a run whose end can't be recorded."""
    message = failure(error, redactor, before=f"it ran and ended {result.status.value!r}, but ")
    return msgspec.structs.replace(result, status=Status.FAILED, error=message)


def failure(error: Exception, redactor: Redactor, *, before: str = "") -> str:
    """Return the message for a failure in Redoma."""
    what = str(error) if isinstance(error, RedomaError) else f"a bug in Redoma, please report it: {error!r}"
    return _message(before + what, redactor)[0]


_LARGE = 100  # parts of a value, or thousands of characters


def is_large(value: object) -> bool:
    """Return whether a value takes more than about 10 ms to search for secrets."""
    left, todo = _LARGE, [value]
    while todo and left > 0:
        item = todo.pop()
        left -= 1
        if isinstance(item, dict):
            todo += [*islice(item.keys(), left), *islice(item.values(), left)]
        elif isinstance(item, list | tuple | set | frozenset):
            todo += islice(item, left)
        elif isinstance(item, str | bytes):
            left -= len(item) // 1000
    return left <= 0


def finished(
    attempt: Attempt,
    outcome: Outcome,
    captured: Captured,
    redactor: Redactor,
    *,
    denial: Denial | None,
    workspace: WorkspaceOutcome,
    capabilities: Callable[[], Capabilities],
) -> Result:
    """Return the result of code that ran. Everything it left, including value and message, is redacted. `capabilities`
    returns what the backend that ran it can do.
    """
    submission = attempt.judged.submission
    value, in_value = redactor.redact_data(outcome.value)
    error, in_error = _message(outcome.error or _explanation(outcome, submission.request.limits), redactor)
    displays, in_displays = safe_displays(outcome.displays, redactor)
    redacted = captured.redacted
    if in_value or in_error or in_displays:
        redacted = dict(Counter(redacted) + Counter(in_value) + Counter(in_error) + Counter(in_displays))
    effect = workspace.effect
    unexpected: tuple[str, ...] = ()
    if effect is not None and submission.writes is not None:
        from ..workspace.effects import unexpected as undeclared

        unexpected = tuple(change.path for change in undeclared(effect.changes, submission.writes))
    result = ended(
        attempt,
        status=outcome.status,
        exit_code=outcome.exit_code,
        stdout=captured.stdout,
        stderr=captured.stderr,
        redacted=redacted,
        omitted=captured.omitted,
        artifacts=captured.artifacts,
        value=value,
        value_repr=_repr(outcome.value, value),
        exception=outcome.exception,
        error=error or None,
        isolation=outcome.isolation,
        usage=outcome.usage,
        seed=outcome.seed,
        files=outcome.files,
        left_out=outcome.left_out,
        displays=displays,
        diagnoses=_diagnoses(outcome, captured, error, submission, capabilities),
        denial=denial,
        effect=effect,
        unexpected=unexpected,
        rollback=workspace.rollback,
        no_checkpoint=workspace.no_checkpoint,
        network=requests_shown(outcome.network, redactor),
    )
    if submission.expectation is None:
        return result
    from ..output.expectations import check_result

    return check_result(submission.expectation, result, redactor)


def requests_shown(requests: tuple[NetworkRequest, ...], redactor: Redactor) -> tuple[NetworkRequest, ...]:
    """Return the requests of a run without secrets and control characters: the code chose hosts and paths."""
    if not requests:
        return ()

    def shown(text: str) -> str:
        return _message(text, redactor)[0] if text else text

    return tuple(
        msgspec.structs.replace(
            one, host=shown(one.host), path=shown(one.path), rule=shown(one.rule), why=shown(one.why)
        )
        for one in requests
    )


def safe_displays(shown: tuple[Display, ...], redactor: Redactor) -> tuple[tuple[Display, ...], dict[str, int]]:
    """Return displays without secrets in their texts; pictures are unchanged."""
    if not shown:
        return (), {}
    counts: dict[str, int] = {}

    def safe(content: str | bytes) -> str | bytes:
        if isinstance(content, bytes):
            return content
        text, found = clean(content, redactor)
        for kind, count in found.items():
            counts[kind] = counts.get(kind, 0) + count
        return text

    def without_secrets(one: Display) -> Display:
        return Display(data={kind: safe(each) for kind, each in one.data.items()}, is_value=one.is_value)

    return tuple([without_secrets(one) for one in shown]), counts


def _diagnoses(
    outcome: Outcome, captured: Captured, error: str, submission: Submission, capabilities: Callable[[], Capabilities]
) -> tuple[Diagnosis, ...]:
    has_mark = any(map(captured.stdout.__contains__, MARKS)) or any(map(captured.stderr.__contains__, MARKS))
    if outcome.status is Status.OK and not has_mark:
        return ()  # `diagnose` would return the same, but loading its patterns takes longer than most runs
    from ..output.diagnoses import diagnose

    found = diagnose(captured.stdout, captured.stderr, outcome.exit_code, outcome.status)
    if outcome.status is not Status.ERROR:
        return found
    from .hints import with_hints

    return with_hints(found, error, submission.request, capabilities(), in_session=bool(submission.session))


def _repr(came: Any, value: Any) -> str | None:
    """Return the value as Python prints it. If the value itself could not be returned, it arrived as its `repr`."""
    if came is None:
        return None
    try:
        return str(value) if isinstance(came, Repr) else repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits
        return f"<{type(value).__name__}, too large to print>"


def with_safe_names(result: Result, redactor: Redactor) -> Result:
    """Return the result without secrets in file names, which the code chose. Names in the kept changes stay.

    Personal data stays: a report that is named after a person must be found by its name.
    """
    effect = result.effect
    names = [*result.files, *result.left_out, *result.unexpected, *(result.rollback or {})]
    for change in effect.changes if effect else ():
        names += [change.path, change.old_path, *(v.target for v in (change.before, change.after) if v)]
    names += [*effect.refused, *effect.conflicts] if effect else []
    if not names:
        return result
    safe = {name: _safe_name(name, redactor) for name in set(names)} if _has_secret("\n".join(names), redactor) else {}
    if all(name == shown for name, shown in safe.items()):
        return result

    return msgspec.structs.replace(
        result,
        files=_renamed(result.files, safe),
        left_out=_renamed(result.left_out, safe),
        unexpected=tuple(safe[path] for path in result.unexpected),
        rollback=None if result.rollback is None else _renamed(result.rollback, safe),
        effect=_with_names(effect, safe) if effect else None,
    )


def _with_names(effect: Effect, safe: Mapping[str, str]) -> Effect:
    def version(one: Version | None) -> Version | None:
        return one and msgspec.structs.replace(one, target=safe[one.target])

    changes = [
        msgspec.structs.replace(
            change,
            path=safe[change.path],
            old_path=safe[change.old_path],
            before=version(change.before),
            after=version(change.after),
        )
        for change in effect.changes
    ]
    refused, conflicts = _renamed(effect.refused, safe), _renamed(effect.conflicts, safe)
    return msgspec.structs.replace(effect, changes=tuple(changes), refused=refused, conflicts=conflicts)


def _renamed(values: Mapping[str, Any], safe: Mapping[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in values.items():
        label, times = safe[name], 1
        while label in shown:  # two secrets get the same label; neither file may vanish
            times += 1
            label = f"{safe[name]} ({times})"
        shown[label] = value
    return shown


def _secrets(data: bytes, redactor: Redactor) -> list[Match]:
    return [found for found in redactor.find(data) if found.kind not in PERSONAL_KINDS]


def _has_secret(text: str, redactor: Redactor) -> bool:
    return bool(_secrets(text.encode("utf-8", "surrogatepass"), redactor))


def _safe_name(name: str, redactor: Redactor) -> str:
    data = name.encode("utf-8", "surrogatepass")
    return replace(data, _secrets(data, redactor))[0].decode("utf-8", "surrogatepass")


def _message(text: str, redactor: Redactor) -> tuple[str, dict[str, int]]:
    """Return a message without secrets and control characters, and bounded: it may quote what the code chose."""
    cleaned, counts = clean(text, redactor)
    return cleaned[:_MAX_MESSAGE], counts


def _explanation(outcome: Outcome, limits: Limits) -> str:
    if outcome.limit:
        return exceeded(outcome.limit, limits)
    return "it was killed" if outcome.status is Status.KILLED else ""


def outcome_record(result: Result, redactor: Redactor) -> dict[str, Any]:
    """Return the `Outcome` of a run as plain data: for returned files their names, sizes and hashes."""
    shown = result.stdout if result.value is None else repr(result.value)
    effect = result.effect
    files = zip(redactor.redact_data(list(result.files))[0], result.files.values(), strict=True) if result.files else ()
    outcome = records.Outcome(
        status=result.status,
        exit_code=result.exit_code,
        result=shown[:_MAX_RESULT],
        error=result.error,
        duration=result.usage.wall,
        memory_used=result.usage.memory,
        cpu=result.usage.cpu,
        backend=result.backend,
        isolation=result.isolation,
        redacted=result.redacted,
        stdout=_stream(result.stdout, shown),
        stderr=_stream(result.stderr, shown),
        value="" if result.value is None else _sha256(spelt(result.value)),
        exception=result.exception,
        seed=result.seed,
        denial=_denial(result.denial) if result.denial else None,
        effect=_effect(effect, redactor) if effect else None,
        unexpected=redactor.redact_data(result.unexpected[:100])[0] if effect else None,
        rolled_back=result.rollback is not None if effect else None,
        passed_over=result.passed_over,
        no_checkpoint=result.no_checkpoint,
        mismatch=result.mismatch,
        diagnoses=tuple(diagnosis.kind for diagnosis in result.diagnoses),
        artifacts={**result.artifacts},
        files=tuple(
            records.FileOut(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in files
        ),
        left_out=redactor.redact_data(result.left_out)[0],
        network=result.network[:_MAX_REQUESTS],
        more_network=max(0, len(result.network) - _MAX_REQUESTS),
    )
    return encodable(msgspec.to_builtins(outcome))  # type: ignore[no-any-return]


def _stream(text: str, shown: str) -> records.Printed:
    # `Outcome.result` has the beginning of `shown`
    beginning = None if not text or text is shown else text[:_MAX_STREAM]
    return records.Printed(size=len(text), sha256=_sha256(text) if text else "", text=beginning)


def _denial(denial: Denial) -> records.DenialSummary:
    return records.DenialSummary(rule=denial.rule, resource=denial.resource)


def _effect(effect: Effect, redactor: Redactor) -> records.EffectSummary:
    paths = [_path(change) for change in effect.changes[:_MAX_PATHS]]
    return records.EffectSummary(
        digest=effect.digest,
        changes=len(effect.changes),
        paths=redactor.redact_data(paths)[0],
        requests=len(effect.network),
    )


def spelt(value: Any) -> str:
    """Return a text that is the same for equal values: the order of a set differs between processes."""
    match value:
        case dict():
            return "{" + ", ".join(f"{spelt(key)}: {spelt(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return type(value).__name__ + "[" + ", ".join(map(spelt, value)) + "]"
        case set() | frozenset():
            return type(value).__name__ + "[" + ", ".join(sorted(map(spelt, value))) + "]"
        case _:
            return repr(value)


def _path(change: Change) -> list[str]:
    """Return the path, what it was, and what it is, in short."""

    def version(one: Version | None) -> str:
        return "" if one is None else f"{one.kind} {one.mode:o} {one.sha256[:16] or one.target}"

    return [change.path, version(change.before), version(change.after)]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def encodable(value: Any) -> Any:
    """Return plain data that can be encoded as UTF-8. Other text (a file name may be any bytes) is escaped."""
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):  # something other than text may be the cause
        return escaped(value)
    return value


def escaped(value: Any) -> Any:
    """Do the same as `encodable`, the slow way: look at each text."""
    match value:
        case str():
            return value if value.isascii() else valid_utf8(value)
        case dict():
            return {escaped(key): escaped(item) for key, item in value.items()}
        case list() | tuple():
            return [escaped(item) for item in value]
        case _:
            return value
