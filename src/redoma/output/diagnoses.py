"""Recognises failures in the output of a run: a help for the reader, which never decides a run's status.

The text has been sanitised and redacted. Only a bounded part at the end of each stream is read, since failures are
there. Traces of exceptions are reported whatever the exit status, because programs catch and print them and then
succeed. Everything else is reported for failed runs only: a program may mention errors without having any.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..lib.text import shorten
from ..models import Diagnosis, KiB, Status
from . import MARKS
from .failure_lines import GENERAL, LINES, SUMMARY, automata

MAX_DIAGNOSES = 10
_MAX_READ = 64 * KiB  # characters at the end of each stream
_MAX_LINES = 2000
_MAX_LINE = 400
_MAX_MESSAGE = 300
_CRASHES = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS)

# `re` is safe here: each pattern is anchored, and reads a line (of bounded length) once.
_HEADER = re.compile(r"( *)(\+ Exception Group )?Traceback \(most recent call last\):\Z")
_FRAME = re.compile(r'\s*File "([^"]+)", line ([0-9]{1,9})(?:, in (.+))?\Z')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?\Z")
_LIKELY = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)\Z")
_SYNTAX = frozenset({"SyntaxError", "IndentationError", "TabError"})
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_LIBRARY = re.compile(r"<frozen |.*/(?:site-packages|dist-packages|lib/python3[.0-9]*)/")

# Groups are named after the fields of `Diagnosis`.
_AT = r"(?P<line>[0-9]{1,9}):(?P<column>[0-9]{1,9})"
_JS_NAME = re.compile(
    r"(?:Uncaught )?(?P<exception>(?:[A-Za-z_$][\w$]*\.)*[A-Za-z_$]*(?:Error|Exception))(?: \[[\w ]+\])?"
    r"(?:: (?P<message>.*))?\Z"
)
_JS_FRAME = re.compile(rf"\s+at (?:async )?(?:(?P<function>[^()]+) \()?(?:file://)?(?P<file>[^()\s][^()]*):{_AT}\)?\Z")
_JS_WHERE = re.compile(r"(?:file://)?(?P<file>/[^:]+|\[[a-z]+\][^:]*):(?P<line>[0-9]{1,9})\Z")
_JAVA_NAME = re.compile(
    r'(?:Exception in thread "[^"]*" |(Caused by: ))?(?P<exception>(?:[A-Za-z_$][\w$]*\.)+[A-Za-z_$][\w$]*)'
    r"(?:: (?P<message>.*))?\Z"
)
_JAVA_FRAME = re.compile(
    r"\s+(?:at (?P<function>[\w$.<>/@-]+)\((?:(?P<file>[^():]+)(?::(?P<line>[0-9]{1,9}))?|[^()]*)\)"
    r"|\.\.\. [0-9]+ more)\Z"
)
_JAVA_OWN = ("java.", "javax.", "jdk.", "sun.")
_GO_FRAME = re.compile(r"\s+(?P<file>/?[^\s:]+\.go):(?P<line>[0-9]{1,9})(?: \+0x[0-9a-f]+)?\Z")
_RUST = re.compile(
    rf"thread '[^']*'(?: \([0-9]+\))? panicked at (?:'(?P<message>.*)', )?(?P<file>[^'\s][^']*?):{_AT}(?P<colon>:?)\Z"
)
_RUSTC = re.compile(r"error(\[E[0-9]+\])?: (.+)\Z")
_RUSTC_WHERE = re.compile(rf"\s*--> (?P<file>.+):{_AT}\Z")
_NEAR = 12
"""Lines within which the parts of a trace follow each other."""


def diagnose(stdout: str, stderr: str, exit_code: int | None, status: Status) -> tuple[Diagnosis, ...]:
    """Return the failures in a run's output, the most important first; none if it didn't run."""
    if status.ending != "ran":
        return ()
    failed = status is not Status.OK
    ranked: list[tuple[int, int, Diagnosis]] = []
    if failed:
        ranked += [(GENERAL, 0, diagnosis) for diagnosis in _by_status(exit_code, status)]
    for text in (stderr, stdout):
        if not text or not (failed or any(mark in text for mark in MARKS)):
            continue
        lines = [line[:_MAX_LINE] for line in text[-_MAX_READ:].split("\n")[-_MAX_LINES:]]
        traces = _traces(lines)
        # The last exception ended the program, so traces are reported from the end.
        ranked += [(_weight(diagnosis), -end, diagnosis) for end, diagnosis in traces]
        if failed:
            ranked += _in_lines(lines, {end for end, _ in traces})
    ranked.sort(key=lambda item: item[:2])
    unique = dict.fromkeys(_bounded(diagnosis) for _, _, diagnosis in ranked)
    return tuple(unique)[:MAX_DIAGNOSES]


def _weight(diagnosis: Diagnosis) -> int:
    """Return the sort key of a trace: what ended the program before what led to it; both before single lines."""
    if diagnosis.kind == "tool.compiler":
        return 0
    return -1 if diagnosis.kind.endswith(".cause") else -2


def _by_status(exit_code: int | None, status: Status) -> list[Diagnosis]:
    """Return what follows from the status and exit code alone."""
    if status is Status.MEMORY:
        return [Diagnosis(kind="resource.memory", message="it used more memory than it may")]
    number = (exit_code or 0) - 128
    if number == signal.SIGXFSZ and status is Status.ERROR:  # of a process that a script started
        return [Diagnosis(kind="resource.file_size", message="a part of it was ended by SIGXFSZ: a file was too large")]
    if number not in _CRASHES:
        return []
    name = signal.Signals(number).name
    return [Diagnosis(kind="crash.signal", message=f"it was ended by {name}", exception=name)]


def _in_lines(lines: list[str], taken: set[int]) -> list[tuple[int, int, Diagnosis]]:
    """Return the failures in single lines, each with its rank and line number; `taken` lines are left out."""
    which, each = automata()
    ranked: list[tuple[int, int, Diagnosis]] = []
    summaries: set[str] = set()
    for number, line in enumerate(lines):
        if number in taken or len(line) < 4:
            continue
        fits = which.Match(line)
        if not fits:
            continue
        index = min(fits)
        kind, rank, _, _ = LINES[index]
        if rank == SUMMARY and kind in summaries:
            continue
        summaries.add(kind)
        diagnosis = _read(kind, each[index].fullmatch(line))
        if not diagnosis.message:
            diagnosis = msgspec.structs.replace(diagnosis, message=line)
        ranked.append((rank, number, diagnosis))
    return ranked


def _read(kind: str, *matches: Any, **fields: str) -> Diagnosis:
    """Return a diagnosis from `fields` and the groups of some matches, which are named after its fields."""
    values = {name: value for match in matches if match for name, value in match.groupdict().items() if value}
    values.update(fields)
    return Diagnosis(
        kind=kind,
        message=values.get("message", ""),
        file=values.get("file", ""),
        line=int(values.get("line", 0)),
        column=int(values.get("column", 0)),
        function=values.get("function", ""),
        exception=values.get("exception", ""),
    )


def _bounded(diagnosis: Diagnosis) -> Diagnosis:
    message = shorten(diagnosis.message.strip() or diagnosis.exception, _MAX_MESSAGE)
    return msgspec.structs.replace(diagnosis, message=message)


# --- traces: failures that span several lines ---

NumberedDiagnoses = Iterator[tuple[int, Diagnosis]]
"""Each with the number of the line that it was recognised on."""


def _traces(lines: list[str]) -> list[tuple[int, Diagnosis]]:
    """Return failures that span several lines. They are recognised by their whole shape, so that a log message about a
    traceback is not mistaken for one.
    """
    readers: tuple[Callable[[list[str]], NumberedDiagnoses], ...] = (_python, _javascript, _java, _go, _rust)
    return [found for reader in readers for found in reader(lines)]


def _python(lines: list[str]) -> NumberedDiagnoses:
    """Yield the exception that ended the program as `python.exception`, those that led to it as `python.cause` (the
    root cause first), and code that could not be parsed as `python.syntax`.
    """
    last: tuple[int, Diagnosis] | None = None
    for number, found, follows in _python_blocks(lines):
        if last is not None:
            yield last if not follows else (last[0], msgspec.structs.replace(last[1], kind="python.cause"))
        last = number, found
    if last is not None:
        yield last


def _python_blocks(lines: list[str]) -> Iterator[tuple[int, Diagnosis, bool]]:
    """Yield each exception with its line number, and whether the trace says that the previous one led to it."""
    frames: list[tuple[str, int, str]] = []
    headed = follows = False
    margin = ""
    for number, raw in enumerate(lines):
        line = raw.removeprefix(margin)
        if header := _HEADER.match(raw):
            margin, frames, headed = header[1] + ("| " if header[2] else ""), [], True
        elif frame := _FRAME.match(line):
            frames.append((frame[1], int(frame[2]), frame[3] or ""))
        elif line.strip() in _CHAINED:
            follows = True
        elif line.strip() and line[0] not in " \t":
            name = _EXCEPTION.match(line)
            if name and frames and (headed or _LIKELY.match(name[1])):
                yield number, _python_found(name[1], name[2] or "", frames), follows
                follows = False
            frames, headed, margin = [], False, margin if margin.strip() else ""


def _python_found(exception: str, message: str, frames: list[tuple[str, int, str]]) -> Diagnosis:
    syntax = exception in _SYNTAX and not frames[-1][2]
    own = [frame for frame in frames if not _LIBRARY.match(frame[0])]
    file, line, function = frames[-1] if syntax or not own else own[-1]
    kind = "python.syntax" if syntax else "python.exception"
    return Diagnosis(kind=kind, message=message, file=file, line=line, function=function, exception=exception)


def _javascript(lines: list[str]) -> NumberedDiagnoses:
    where = None
    for number, line in enumerate(lines):
        where = _JS_WHERE.match(line) or where
        name = _JS_NAME.match(line)
        frames = _following(lines, number, _JS_FRAME) if name else []
        if name and frames:
            own = (f for f in frames if not f["file"].startswith("node:") and "/node_modules/" not in f["file"])
            at = None if name["exception"] == "SyntaxError" else next(own, None)
            yield number, _read("node.exception", name, at or where)


def _java(lines: list[str]) -> NumberedDiagnoses:
    for number, line in enumerate(lines):
        name = _JAVA_NAME.match(line)
        frames = _following(lines, number, _JAVA_FRAME) if name else []
        if name and frames:
            own = (f for f in frames if f["line"] and not f["function"].split("/")[-1].startswith(_JAVA_OWN))
            yield number, _read("java.cause" if name[1] else "java.exception", name, next(own, frames[0]))


def _following(lines: list[str], number: int, frame: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the frames after a line; the rest of a long message may be between."""
    frames: list[re.Match[str]] = []
    for line in lines[number + 1 : number + 1 + _NEAR]:
        if match := frame.match(line):
            frames.append(match)
        elif frames or not line.strip():
            break
    return frames


def _go(lines: list[str]) -> NumberedDiagnoses:
    for number, line in enumerate(lines):
        if not line.startswith(("panic: ", "fatal error: ")):
            continue
        after = lines[number + 1 : number + 4 * _NEAR]
        if not any(one.startswith("goroutine ") and one.endswith(":") for one in after):
            continue
        frames = (frame for one in after if (frame := _GO_FRAME.match(one)))
        own = next((frame for frame in frames if "/src/runtime/" not in frame["file"]), None)
        yield number, _read("go.panic", own, message=line.partition(": ")[2])


def _rust(lines: list[str]) -> NumberedDiagnoses:
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        if panic := _RUST.match(line.lstrip()):
            yield number, _read("rust.panic", panic, message=panic["message"] or (below if panic["colon"] else ""))
        elif (error := _RUSTC.match(line)) and (at := _RUSTC_WHERE.match(below)):
            yield number, _read("tool.compiler", at, message=f"{error[2]} {error[1]}" if error[1] else error[2])
