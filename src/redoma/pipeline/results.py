"""How a request ends: the `Result` of each ending, and what the audit log keeps of it."""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import Any

import msgspec

from ..backends.base import Outcome, Repr, exceeded
from ..lib.errors import RedomaError
from ..models import Change, Denial, Limits, Result, Status, Version
from ..output.capture import Captured
from ..output.diagnoses import diagnose
from ..output.expectations import Expectation, check_result
from ..redaction import PERSONAL_KINDS, Redactor, clean
from ..redaction.redactor import replace
from ..redaction.scanner import Found
from ..workspace.declared import unexpected

_LONGEST_MESSAGE = 8192  # characters; code can raise an error with a text of many megabytes
_MOST_PATHS = 200  # of an effect, in the audit log
_KEPT_OF_A_STREAM = 2048  # characters likewise, of what is no result
_KEPT_OF_A_RESULT = 8192  # characters in the audit log: enough to know a run by; the caller has the whole


def refused(result: Result, denial: Denial, status: Status, said: str = "") -> Result:
    """Policy said no, or that a person has to say yes; then `said` is what came of asking, if there was anybody."""
    finding = result.evaluation.deciding[0]
    where = f" (line {finding.line}, column {finding.column})" if finding.line else ""
    wait = "" if status is Status.FORBIDDEN else "a person has to approve this, and no approver is configured: "
    wait = f"{said}: " if said else wait
    hint = f". {finding.suggestion}" if finding.suggestion else ""
    return msgspec.structs.replace(
        result, status=status, error=f"{wait}{finding.reason} [{finding.rule}]{where}{hint}", denial=denial
    )


def failed(
    result: Result, error: Exception, redactor: Redactor, *, captured: Captured | None = None, ran: bool = False
) -> Result:
    """Redoma, not the code, could not do its part. What was printed until then is kept."""
    prefix = f"it ran and ended {result.status.value!r}, but " if ran else ""
    if captured is not None:
        result = _with_output(result, captured)
    what = str(error) if isinstance(error, RedomaError) else f"a bug in Redoma, please report it: {error!r}"
    message, _ = _message(prefix + what, redactor)
    return msgspec.structs.replace(result, status=Status.FAILED, error=message)


_LARGE = 100  # parts of a value, or thousands of characters


def is_large(value: object) -> bool:
    """Whether it takes long to look through a value: more than about 10 ms."""
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
    result: Result,
    outcome: Outcome,
    captured: Captured,
    redactor: Redactor,
    limits: Limits,
    expectation: Expectation | None,
) -> Result:
    """The code ran. Whatever it left, value and message too, passes the redactor before anybody sees it."""
    return looked_at(_told(result, outcome, captured, redactor, limits), expectation, redactor)


def _told(result: Result, outcome: Outcome, captured: Captured, redactor: Redactor, limits: Limits) -> Result:
    value, in_value = redactor.redact_data(outcome.value)
    error, in_error = _message(outcome.error or _explanation(outcome.status, limits), redactor)
    counts = dict(captured.redacted)
    for kind, count in (*in_value.items(), *in_error.items()):
        counts[kind] = counts.get(kind, 0) + count
    return msgspec.structs.replace(
        _with_output(result, captured),
        status=outcome.status,
        exit_code=outcome.exit_code,
        value=value,
        value_repr=_repr(outcome.value, value),
        exception=outcome.exception,
        error=error or None,
        isolation=outcome.isolation,
        usage=outcome.usage,
        seed=outcome.seed,
        redacted=counts,
        files=outcome.files,
        left_out=outcome.left_out,
    )


def _repr(came: Any, value: Any) -> str | None:
    """The value as Python prints it: what came in place of a value that could not is that already."""
    if came is None:
        return None
    try:
        return str(value) if isinstance(came, Repr) else repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits
        return f"<{type(value).__name__}, too large to print>"


def looked_at(result: Result, expectation: Expectation | None, redactor: Redactor) -> Result:
    """What its output tells of failures, and whether it is what was expected."""
    diagnoses = diagnose(result.stdout, result.stderr, result.exit_code, result.status)
    if diagnoses:
        result = msgspec.structs.replace(result, diagnoses=diagnoses)
    return result if expectation is None else check_result(expectation, result, redactor)


def with_effect(result: Result, declared: tuple[str, ...] | None) -> Result:
    """What it did to its project beside what was expected of it."""
    if result.effect is None or declared is None:
        return result
    odd = unexpected(result.effect.changes, declared)
    return msgspec.structs.replace(result, unexpected=tuple(change.path for change in odd))


def with_safe_names(result: Result, redactor: Redactor) -> Result:
    """Without the secrets in names of files, which the code chose. What is kept to be applied keeps its true names.

    Personal data stays: a report that is called after somebody has to be found by its name.
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
    """A message may quote what the code chose: as harmless, as redacted and as bounded as its output."""
    cleaned, counts = clean(text, redactor)
    return cleaned[:_LONGEST_MESSAGE], counts


def _with_output(result: Result, captured: Captured) -> Result:
    return msgspec.structs.replace(
        result,
        stdout=captured.stdout,
        stderr=captured.stderr,
        redacted=captured.redacted,
        omitted=captured.omitted,
        artifacts=captured.artifacts,
    )


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


def outcome(result: Result, redactor: Redactor) -> dict[str, Any]:
    """For the record, after: of files that were brought back the names, sizes and SHA-256, not the contents."""
    shown = result.stdout if result.value is None else repr(result.value)
    record: dict[str, Any] = {
        "status": result.status.value,
        "exit_code": result.exit_code,
        "result": shown[:_KEPT_OF_A_RESULT],
        "error": result.error,
        "duration": result.usage.wall,
        "memory_used": result.usage.memory,
        "cpu": result.usage.cpu,
        "backend": result.backend,
        "isolation": msgspec.to_builtins(result.isolation),
        "redacted": result.redacted,
    }
    if result.value is not None:
        record["value"] = _sha256(spelt(result.value))
    for stream, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        record[stream] = {"size": len(text)}
        if text:
            record[stream]["sha256"] = _sha256(text)
        if text and text is not shown:  # of which `result` has the beginning
            record[stream]["text"] = text[:_KEPT_OF_A_STREAM]
    if result.exception:
        record["exception"] = result.exception
    if result.seed is not None:
        record["seed"] = msgspec.to_builtins(result.seed)
    if result.denial is not None:
        record["denial"] = {"rule": result.denial.rule, "resource": result.denial.resource}
    if result.effect is not None:
        paths = [_path(change) for change in result.effect.changes[:_MOST_PATHS]]
        record["effect"] = {"digest": result.effect.digest, "changes": len(result.effect.changes)}
        record["effect"]["paths"] = redactor.redact_data(paths)[0]
        record |= {
            "unexpected": redactor.redact_data(result.unexpected[:100])[0],
            "rolled_back": result.rollback is not None,
        }
    if result.passed_over:
        record["passed_over"] = result.passed_over
    if result.no_checkpoint:
        record["no_checkpoint"] = result.no_checkpoint
    if result.mismatch:
        record["mismatch"] = result.mismatch
    if result.diagnoses:
        record["diagnoses"] = [diagnosis.kind for diagnosis in result.diagnoses]
    if result.artifacts:
        record["artifacts"] = {stream: msgspec.to_builtins(one) for stream, one in result.artifacts.items()}
    if result.files or result.left_out:
        record |= _files(result, redactor)
    return encodable(record)  # type: ignore[no-any-return]


def spelt(value: Any) -> str:
    """A value as a text that is the same for equal values: a set has no order, and another in each process."""
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
    """A path, and what it was and is, in few letters."""

    def version(one: Version | None) -> str:
        return "" if one is None else f"{one.kind} {one.mode:o} {one.sha256[:16] or one.target}"

    return [change.path, version(change.before), version(change.after)]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _files(result: Result, redactor: Redactor) -> dict[str, Any]:
    """The code chose the names, so they may hold anything."""
    about = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in result.files.items()
    }
    names, _ = redactor.redact_data(list(about))
    left_out, _ = redactor.redact_data(result.left_out)
    return {
        "files": [{"name": name, **one} for name, one in zip(names, about.values(), strict=True)],
        "left_out": left_out,
    }


def encodable(value: Any) -> Any:
    """Plain data whose text can be written as UTF-8: a file name that is none is recorded with escapes, not refused."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {encodable(key): encodable(item) for key, item in value.items()}
        case list() | tuple():
            return [encodable(item) for item in value]
        case _:
            return value
