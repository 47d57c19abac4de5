"""Failures that several lines tell together: the traces of Python, JavaScript, Java, Go and Rust.

They are recognised by their whole shape, so that a log which speaks of a traceback is not taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from ...models import Diagnosis

# By `re`: each is anchored, and goes over a line (of bounded length) once.
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

_JS_NAME = re.compile(
    r"(?:Uncaught )?((?:[A-Za-z_$][\w$]*\.)*[A-Za-z_$]*(?:Error|Exception))(?: \[[\w ]+\])?(?:: (.*))?\Z"
)
_JS_FRAME = re.compile(r"\s+at (?:async )?(?:([^()]+) \()?(?:file://)?([^()\s][^()]*):([0-9]{1,9}):([0-9]{1,9})\)?\Z")
_JS_WHERE = re.compile(r"(?:file://)?(/[^:]+|\[[a-z]+\][^:]*):([0-9]{1,9})\Z")
_JAVA_NAME = re.compile(
    r'(?:Exception in thread "[^"]*" |(Caused by: ))?((?:[A-Za-z_$][\w$]*\.)+[A-Za-z_$][\w$]*)(?:: (.*))?\Z'
)
_JAVA_FRAME = re.compile(r"\s+(?:at ([\w$.<>/@-]+)\((?:([^():]+)(?::([0-9]{1,9}))?|[^()]*)\)|\.\.\. [0-9]+ more)\Z")
_JAVA_OWN = ("java.", "javax.", "jdk.", "sun.")
_GO_FRAME = re.compile(r"\s+(/?[^\s:]+\.go):([0-9]{1,9})(?: \+0x[0-9a-f]+)?\Z")
_RUST = re.compile(
    r"thread '([^']*)'(?: \([0-9]+\))? panicked at (?:'(.*)', )?([^'\s][^']*?):([0-9]{1,9}):([0-9]{1,9})(:?)\Z"
)
_RUSTC = re.compile(r"error(\[E[0-9]+\])?: (.+)\Z")
_RUSTC_WHERE = re.compile(r"\s*--> (.+):([0-9]{1,9}):([0-9]{1,9})\Z")
_NEAR = 12
"""Lines within which the parts of a trace follow each other."""

Found = Iterator[tuple[int, Diagnosis]]
"""With the number of the line it ends on."""


def traces(lines: list[str]) -> list[tuple[int, Diagnosis]]:
    readers: tuple[Callable[[list[str]], Found], ...] = (python, javascript, java, go, rust)
    return [found for reader in readers for found in reader(lines)]


def python(lines: list[str]) -> Found:
    """The exception that ended it as `python.exception`; those it came from, of which the first is the root, as
    `python.cause`; what could not be parsed as `python.syntax`."""
    last: tuple[int, Diagnosis] | None = None
    for number, found, follows in _python_blocks(lines):
        if last is not None:
            yield last if not follows else (last[0], msgspec.structs.replace(last[1], kind="python.cause"))
        last = number, found
    if last is not None:
        yield last


def _python_blocks(lines: list[str]) -> Iterator[tuple[int, Diagnosis, bool]]:
    """Each exception with the line it is on, and whether it is told to follow from the one before."""
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


def javascript(lines: list[str]) -> Found:
    where: tuple[str, int] = ("", 0)
    for number, line in enumerate(lines):
        if at := _JS_WHERE.match(line):
            where = at[1], int(at[2])
        name = _JS_NAME.match(line)
        frames = _following(lines, number, _JS_FRAME) if name else []
        if not name or not frames:
            continue
        own = next((f for f in frames if not f[2].startswith("node:") and "/node_modules/" not in f[2]), None)
        function, file, at_line, column = "", *where, 0
        if own and name[1] != "SyntaxError":
            function, file, at_line, column = own[1] or "", own[2], int(own[3]), int(own[4])
        yield (
            number,
            Diagnosis(
                kind="node.exception",
                message=name[2] or "",
                file=file,
                line=at_line,
                column=column,
                function=function,
                exception=name[1],
            ),
        )


def java(lines: list[str]) -> Found:
    for number, line in enumerate(lines):
        name = _JAVA_NAME.match(line)
        frames = _following(lines, number, _JAVA_FRAME) if name else []
        if not name or not frames:
            continue
        frame = next((f for f in frames if f[3] and not f[1].split("/")[-1].startswith(_JAVA_OWN)), frames[0])
        yield (
            number,
            Diagnosis(
                kind="java.cause" if name[1] else "java.exception",
                message=name[3] or "",
                file=frame[2] or "",
                line=int(frame[3] or 0),
                function=frame[1] or "",
                exception=name[2],
            ),
        )


def _following(lines: list[str], number: int, frame: re.Pattern[str]) -> list[re.Match[str]]:
    """The frames after a line; a message of several lines may stand between."""
    found: list[re.Match[str]] = []
    for line in lines[number + 1 : number + 1 + _NEAR]:
        if match := frame.match(line):
            found.append(match)
        elif found or not line.strip():
            break
    return found


def go(lines: list[str]) -> Found:
    for number, line in enumerate(lines):
        if not line.startswith(("panic: ", "fatal error: ")):
            continue
        after = lines[number + 1 : number + 4 * _NEAR]
        if not any(one.startswith("goroutine ") and one.endswith(":") for one in after):
            continue
        frames = [frame for one in after if (frame := _GO_FRAME.match(one))]
        own = next((frame for frame in frames if "/src/runtime/" not in frame[1]), None)
        yield (
            number,
            Diagnosis(
                kind="go.panic",
                message=line.partition(": ")[2],
                file=own[1] if own else "",
                line=int(own[2]) if own else 0,
            ),
        )


def rust(lines: list[str]) -> Found:
    for number, line in enumerate(lines):
        if panic := _RUST.match(line.lstrip()):
            below = lines[number + 1] if panic[6] and number + 1 < len(lines) else ""
            yield (
                number,
                Diagnosis(
                    kind="rust.panic",
                    message=panic[2] or below,
                    file=panic[3],
                    line=int(panic[4]),
                    column=int(panic[5]),
                ),
            )
        elif (
            (error := _RUSTC.match(line)) and number + 1 < len(lines) and (at := _RUSTC_WHERE.match(lines[number + 1]))
        ):
            message = f"{error[2]} {error[1]}" if error[1] else error[2]
            yield (
                number,
                Diagnosis(kind="tool.compiler", message=message, file=at[1], line=int(at[2]), column=int(at[3])),
            )
