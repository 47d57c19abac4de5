"""How a submission ends: the `Result` of each ending, built once, and the `Outcome` that the audit log has of it."""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import Any, Protocol

import msgspec

from ..approval import NOBODY, Verdict
from ..audit import records
from ..backends.base import Outcome, Repr, exceeded
from ..lib.errors import AuditError, RedomaError
from ..models import Change, Denial, Effect, Finding, Judged, Limits, Result, Status, Submission, Version
from ..output.capture import Captured
from ..output.diagnoses import diagnose
from ..output.expectations import check_result
from ..redaction import PERSONAL_KINDS, Redactor, clean
from ..redaction.redactor import replace
from ..redaction.scanner import Found
from ..workspace.effects import unexpected as undeclared

_MAX_MESSAGE = 8192  # characters; code can raise an error with a text of many megabytes
_MAX_PATHS = 200  # of an effect, in the audit log
_MAX_STREAM = 2048  # characters likewise, of what is no result
_MAX_RESULT = 8192  # characters in the audit log: enough to know a run by; the caller has the whole


class Ended(Protocol):
    """`ended` for a run that has got to a backend: it knows the submission, the verdict and the backend."""

    def __call__(self, *, status: Status, **fields: Any) -> Result: ...


def ended(judged: Judged, verdict: Verdict, *, status: Status, **fields: Any) -> Result:
    """The result of a submission that ended so; `fields` are further fields of the `Result`."""
    return Result(
        id=judged.request.id,
        status=status,
        evaluation=judged.evaluation,
        level=judged.level,
        level_why=judged.level_why,
        approval=verdict.approval,
        approval_id=verdict.id,
        **fields,
    )


def refusal(finding: Finding, status: Status, answer: str = "") -> str:
    """Why policy refused it, in words; or why no person has approved it: `answer` is what they said, if anybody."""
    where = f" (line {finding.line}, column {finding.column})" if finding.line else ""
    asked = "" if status is Status.FORBIDDEN else f"{answer or NOBODY}: "
    hint = f". {finding.suggestion}" if finding.suggestion else ""
    return f"{asked}{finding.reason} [{finding.rule}]{where}{hint}"


def failed(judged: Judged, verdict: Verdict, error: Exception, redactor: Redactor) -> Result:
    """Redoma, not the code, could not do its part, and nothing ran."""
    return ended(judged, verdict, status=Status.FAILED, error=failure(error, redactor))


def unrecorded(result: Result, error: AuditError, redactor: Redactor) -> Result:
    """It ended, and that can't be recorded."""
    message = failure(error, redactor, before=f"it ran and ended {result.status.value!r}, but ")
    return msgspec.structs.replace(result, status=Status.FAILED, error=message)


def failure(error: Exception, redactor: Redactor, *, before: str = "") -> str:
    """What went wrong in Redoma, in words."""
    what = str(error) if isinstance(error, RedomaError) else f"a bug in Redoma, please report it: {error!r}"
    return _message(before + what, redactor)[0]


_LARGE = 100  # parts of a value, or thousands of characters


def is_large(value: object) -> bool:
    """Whether a value takes more than about 10 ms to search for secrets."""
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
    ended: Ended,
    outcome: Outcome,
    captured: Captured,
    redactor: Redactor,
    submission: Submission,
    *,
    denial: Denial | None,
    project: dict[str, Any],
) -> Result:
    """The code ran. Whatever it left, value and message too, passes the redactor before anybody sees it.

    `project` has the fields of the result that are about its workspace, such as `effect`.
    """
    value, in_value = redactor.redact_data(outcome.value)
    error, in_error = _message(outcome.error or _explanation(outcome.status, submission.request.limits), redactor)
    fields = printed(captured)
    for kind, count in (*in_value.items(), *in_error.items()):
        fields["redacted"][kind] = fields["redacted"].get(kind, 0) + count
    effect: Effect | None = project.get("effect")
    unexpected: tuple[str, ...] = ()
    if effect is not None and submission.writes is not None:
        unexpected = tuple(change.path for change in undeclared(effect.changes, submission.writes))
    result = ended(
        status=outcome.status,
        exit_code=outcome.exit_code,
        value=value,
        value_repr=_repr(outcome.value, value),
        exception=outcome.exception,
        error=error or None,
        isolation=outcome.isolation,
        usage=outcome.usage,
        seed=outcome.seed,
        files=outcome.files,
        left_out=outcome.left_out,
        diagnoses=diagnose(captured.stdout, captured.stderr, outcome.exit_code, outcome.status),
        denial=denial,
        unexpected=unexpected,
        **fields,
        **project,
    )
    return result if submission.expectation is None else check_result(submission.expectation, result, redactor)


def printed(captured: Captured) -> dict[str, Any]:
    """The fields of a result that are about what was printed."""
    return {
        "stdout": captured.stdout,
        "stderr": captured.stderr,
        "redacted": dict(captured.redacted),
        "omitted": captured.omitted,
        "artifacts": captured.artifacts,
    }


def _repr(came: Any, value: Any) -> str | None:
    """The value as Python prints it. One that could not come back itself has come as its `repr`."""
    if came is None:
        return None
    try:
        return str(value) if isinstance(came, Repr) else repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits
        return f"<{type(value).__name__}, too large to print>"


def with_safe_names(result: Result, redactor: Redactor) -> Result:
    """The result without secrets in names of files, which the code chose. What is kept to be applied keeps its names.

    Personal data stays: a report that is named after somebody has to be found by its name.
    """
    effect = result.effect
    changes = effect.changes if effect else ()
    names = [*result.files, *result.left_out, *result.unexpected, *(result.rollback or {})]
    for change in changes:
        names += [change.path, change.old_path, *(v.target for v in (change.before, change.after) if v)]
    names += [*effect.refused, *effect.conflicts] if effect else []
    safe = {name: _safe_name(name, redactor) for name in set(names)} if _has_secret("\n".join(names), redactor) else {}
    if all(name == shown for name, shown in safe.items()):
        return result

    def version(one: Version | None) -> Version | None:
        return one and msgspec.structs.replace(one, target=safe[one.target])

    def mapped(values: dict[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for name, value in values.items():
            label, times = safe[name], 1
            while label in shown:  # two secrets become the same word; neither file may vanish
                times += 1
                label = f"{safe[name]} ({times})"
            shown[label] = value
        return shown

    if effect is not None:
        effect = msgspec.structs.replace(
            effect,
            changes=tuple(
                msgspec.structs.replace(
                    change,
                    path=safe[change.path],
                    old_path=safe[change.old_path],
                    before=version(change.before),
                    after=version(change.after),
                )
                for change in changes
            ),
            refused=mapped(effect.refused),
            conflicts=mapped(effect.conflicts),
        )
    return msgspec.structs.replace(
        result,
        files=mapped(result.files),
        left_out=mapped(result.left_out),
        unexpected=tuple(safe[path] for path in result.unexpected),
        rollback=None if result.rollback is None else mapped(result.rollback),
        effect=effect,
    )


def _secrets(data: bytes, redactor: Redactor) -> list[Found]:
    return [found for found in redactor.find(data) if found.kind not in PERSONAL_KINDS]


def _has_secret(text: str, redactor: Redactor) -> bool:
    return bool(_secrets(text.encode("utf-8", "surrogatepass"), redactor))


def _safe_name(name: str, redactor: Redactor) -> str:
    data = name.encode("utf-8", "surrogatepass")
    return replace(data, _secrets(data, redactor))[0].decode("utf-8", "surrogatepass")


def _message(text: str, redactor: Redactor) -> tuple[str, dict[str, int]]:
    """A message without secrets and control characters, and bounded: it may quote what the code chose."""
    cleaned, counts = clean(text, redactor)
    return cleaned[:_MAX_MESSAGE], counts


def _explanation(status: Status, limits: Limits) -> str:
    match status:
        case Status.TIMEOUT:
            return exceeded("time", limits)
        case Status.MEMORY:
            return exceeded("memory", limits)
        case Status.OUTPUT:
            return exceeded("output_total", limits)
        case Status.KILLED:
            return "it was killed"
        case _:
            return ""


def outcome_record(result: Result, redactor: Redactor) -> dict[str, Any]:
    """The `Outcome` of a run as plain data: of files that were brought back names, sizes and hashes."""
    shown = result.stdout if result.value is None else repr(result.value)
    effect = result.effect
    files = zip(redactor.redact_data(list(result.files))[0], result.files.values(), strict=True)
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
    )
    return encodable(msgspec.to_builtins(outcome))  # type: ignore[no-any-return]


def _stream(text: str, shown: str) -> records.Printed:
    beginning = None if not text or text is shown else text[:_MAX_STREAM]  # `Outcome.result` has that of `shown`
    return records.Printed(size=len(text), sha256=_sha256(text) if text else "", text=beginning)


def _denial(denial: Denial) -> records.DenialSummary:
    return records.DenialSummary(rule=denial.rule, resource=denial.resource)


def _effect(effect: Effect, redactor: Redactor) -> records.EffectSummary:
    paths = [_path(change) for change in effect.changes[:_MAX_PATHS]]
    return records.EffectSummary(
        digest=effect.digest, changes=len(effect.changes), paths=redactor.redact_data(paths)[0]
    )


def spelt(value: Any) -> str:
    """A text that is the same for equal values: the order of a set differs from process to process."""
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
    """The path, what it was, and what it is, in short."""

    def version(one: Version | None) -> str:
        return "" if one is None else f"{one.kind} {one.mode:o} {one.sha256[:16] or one.target}"

    return [change.path, version(change.before), version(change.after)]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def encodable(value: Any) -> Any:
    """Plain data that can be written as UTF-8. Text that can't (a file name may be any bytes) gets escapes."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {encodable(key): encodable(item) for key, item in value.items()}
        case list() | tuple():
            return [encodable(item) for item in value]
        case _:
            return value
