"""Compares two recorded outcomes, field by field. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from ..audit.records import Outcome
from ..lib.text import shorten

_MAX_LINES = 200  # lines of a diff
_MAX_SHOWN = 200  # characters


class Field(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field of two outcomes."""

    name: str
    state: Literal["same", "different", "unknown", "measured"]
    """`unknown`: it is not on record. `measured`: it varies from run to run, and doesn't count as a difference."""
    before: str = ""
    after: str = ""
    diff: str = ""
    """A unified diff, if the texts of both are available."""


def compare_outcomes(before: Outcome, after: Outcome) -> tuple[Field, ...]:
    """Return the fields of two outcomes, each with whether it is the same."""
    return (*_ending(before, after), *_printed(before, after), *_files(before, after), *_used(before, after))


def _field(name: str, before: Any, after: Any, *, same: bool | None = None, diff: str = "") -> Field:
    equal = before == after if same is None else same
    return Field(
        name=name, state="same" if equal else "different", before=_shown(before), after=_shown(after), diff=diff
    )


def _shown(value: Any) -> str:
    return shorten("" if value is None else str(value), _MAX_SHOWN)


def _ending(before: Outcome, after: Outcome) -> Iterator[Field]:
    yield _field("status", before.status, after.status)
    for name in ("exit_code", "exception", "error", "mismatch"):
        was, now = getattr(before, name), getattr(after, name)
        if was is not None or now is not None:
            yield _field(name, was, now)


def _printed(before: Outcome, after: Outcome) -> Iterator[Field]:
    if before.value or after.value:
        was, now = (each.result if each.value else "" for each in (before, after))
        same = before.value == after.value
        yield _field("value", was, now, same=same, diff="" if same or "\n" not in was + now else _diff(was, now))
    yield from _stream("stdout", before, after)
    yield from _stream("stderr", before, after)


def _stream(stream: Literal["stdout", "stderr"], before: Outcome, after: Outcome) -> Iterator[Field]:
    """Compare a stream: all of it if it was shown, otherwise as much as the result had."""
    was, now = (each.artifacts.get(stream) or getattr(each, stream) for each in (before, after))
    if not was.size and not now.size:
        return
    same = (was.size, was.sha256) == (now.size, now.sha256)
    diff = "" if same else _diff(_text(stream, before), _text(stream, after))
    if not same and not diff:
        diff = "(what the record has of it is the same; it differs further on)\n"
    yield _field(stream, f"{was.size:,} characters", f"{now.size:,} characters", same=same, diff=diff)


def _text(stream: Literal["stdout", "stderr"], outcome: Outcome) -> str:
    """Return the text of a stream as far as an outcome has it: at most up to a position that is the same for all."""
    text: str | None = getattr(outcome, stream).text
    return (outcome.result if stream == "stdout" and not outcome.value else "") if text is None else text


def _files(before: Outcome, after: Outcome) -> Iterator[Field]:
    """Compare files, and changes to a project."""
    if before.files or after.files:
        names = [", ".join(f"{file.name} ({file.size} bytes)" for file in each.files) for each in (before, after)]
        yield _field("files", names[0], names[1], same=before.files == after.files)
    if before.effect is None and after.effect is None:
        return
    counts = [each.effect.changes if each.effect else 0 for each in (before, after)]
    texts = [f"{each.effect.changes} changed" if each.effect else "" for each in (before, after)]
    paths = [each.effect.paths if each.effect else () for each in (before, after)]
    same = paths[0] == paths[1] and counts[0] == counts[1]
    lines = ["".join(f"{' | '.join(path)}\n" for path in each) for each in paths]
    yield _field("changes", texts[0], texts[1], same=same, diff="" if same else _diff(lines[0], lines[1]))


def _used(before: Outcome, after: Outcome) -> Iterator[Field]:
    for name, field, unit, scale in (
        ("time", "duration", "ms", 1000.0),
        ("cpu", "cpu", "ms", 1000.0),
        ("memory", "memory_used", "MiB", 1 / (1 << 20)),
    ):
        numbers = [getattr(each, field) for each in (before, after)]
        was, now = ("" if each is None else f"{each * scale:.1f} {unit}" for each in numbers)
        if was or now:
            yield Field(name=name, state="measured", before=was, after=now)


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "replayed", lineterm="")
    shown = [line for _, line in zip(range(_MAX_LINES + 1), lines, strict=False)]
    if len(shown) > _MAX_LINES:
        shown[-1] = "[… and more]"
    return "".join(f"{line}\n" for line in shown)
