"""Naming what went wrong: error patterns in what a run printed.

It reads text that has been sanitised and redacted, and only ever says what it recognised: the status of a run is
decided elsewhere, by those who know. Of each stream the end is read, since that is where failures are, and no more
than so much: hostile output costs no more than other.

Traces of exceptions are told whatever the exit status was; programs catch and print them, and end well. Everything else
only of a run that failed: a program may speak of errors without having any.
"""

from __future__ import annotations

import signal

import msgspec

from ...models import Diagnosis, KiB, Status
from .lines import GENERAL, LINES, SUMMARY, automata
from .traces import traces

MOST = 10
"""Findings that are told."""
_READ = 64 * KiB  # characters, of the end of each stream
_MOST_LINES = 2000
_LONGEST_LINE = 400
_LONGEST_MESSAGE = 300
_CRASHES = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS)
_MARKS = ("at ", 'File "', "panic", "rror", " --> ")
"""One of these is in every trace: most output has none and needs no second look."""


def diagnose(stdout: str, stderr: str, exit_code: int | None, status: Status) -> tuple[Diagnosis, ...]:
    """The failures in an output, the one that matters most first."""
    if status.ending != "ran":
        return ()
    failed = status is not Status.OK
    found: list[tuple[int, int, Diagnosis]] = []
    if failed:
        found += [(GENERAL, 0, diagnosis) for diagnosis in _by_status(exit_code, status)]
    for text in (stderr, stdout):
        if not text or not (failed or any(mark in text for mark in _MARKS)):
            continue
        lines = [line[:_LONGEST_LINE] for line in text[-_READ:].split("\n")[-_MOST_LINES:]]
        told = traces(lines)
        # The last exception is the one that ended it, so traces are told from the end.
        found += [(_weight(diagnosis), -end, diagnosis) for end, diagnosis in told]
        if failed:
            found += _in_lines(lines, {end for end, _ in told})
    found.sort(key=lambda item: item[:2])
    unique = dict.fromkeys(_bounded(diagnosis) for _, _, diagnosis in found)
    return tuple(unique)[:MOST]


def _weight(diagnosis: Diagnosis) -> int:
    """What ended it before what that came from; both before everything that single lines tell."""
    if diagnosis.kind == "tool.compiler":
        return 0
    return -1 if diagnosis.kind.endswith(".cause") else -2


def _by_status(exit_code: int | None, status: Status) -> list[Diagnosis]:
    """What the end itself says."""
    if status is Status.MEMORY:
        return [Diagnosis(kind="resource.memory", message="it used more memory than it may")]
    number = (exit_code or 0) - 128
    if number not in _CRASHES:
        return []
    name = signal.Signals(number).name
    return [Diagnosis(kind="crash.signal", message=f"it was ended by {name}", exception=name)]


def _in_lines(lines: list[str], taken: set[int]) -> list[tuple[int, int, Diagnosis]]:
    which, each = automata()
    found: list[tuple[int, int, Diagnosis]] = []
    summaries: set[str] = set()
    for number, line in enumerate(lines):
        if number in taken or len(line) < 4:
            continue
        fits = which.Match(line)
        if not fits:
            continue
        index = min(fits)
        kind, _, rank, _ = LINES[index]
        if rank == SUMMARY and kind in summaries:
            continue
        summaries.add(kind)
        groups = {name: value or "" for name, value in each[index].fullmatch(line).groupdict().items()}
        found.append(
            (
                rank,
                number,
                Diagnosis(
                    kind=kind,
                    message=groups.get("message") or line,
                    file=groups.get("file", ""),
                    line=int(groups.get("line") or 0),
                    column=int(groups.get("column") or 0),
                    function=groups.get("function", ""),
                    exception=groups.get("exception", ""),
                ),
            )
        )
    return found


def _bounded(diagnosis: Diagnosis) -> Diagnosis:
    message = diagnosis.message.strip() or diagnosis.exception
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 1] + "…"
    return msgspec.structs.replace(diagnosis, message=message)
