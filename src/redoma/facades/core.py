"""The Python core: takes text and returns text, in Portuguese by default. See `docs/core.md`.

Its limits are 5 seconds, 100 MB, 100 calls deep, 1000 characters, and no imports, files or dynamic code, decided on the
syntax tree by the policy pack `core`.
"""

from __future__ import annotations

import ast
import re
import textwrap
import threading
from collections import deque
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Literal, TypedDict

import msgspec

from ..audit import DailyLog
from ..lib.errors import InvalidRequest
from ..models import Decision, Limits, MiB, PolicyView, Result, Status, Submission
from ..pipeline import intake
from ..pipeline.sync import Executor, default
from ..policy.python.tree import parse
from ..redaction import Redactor, clean
from .core_messages import MESSAGES, Locale, kind_of, refusal

LIMITS = Limits(time=5.0, memory=100 * MiB, recursion=100)

_REDUCE = "from functools import reduce\n"
"""Prepended to code that uses it: `reduce` is a builtin here, as in Python 2."""


class Entry(TypedDict):
    """One message that was processed."""

    type: Literal["core"]
    code: str | None
    """The code in the message; None if there was none."""
    result: str
    """The answer."""
    text: str
    """The message."""
    timestamp: str


class CoreLog(DailyLog):
    """`logs/core.log`: one JSON line a run, a file a day, kept for 30 days."""

    def write(
        self, *, code: str, result: str | None, error: str | None, duration: float, memory_used: int | None
    ) -> None:
        """Add one record. Raises AuditError if it can't be written."""
        self.add({"code": code, "result": result, "error": error, "duration": duration, "memory_used": memory_used})


class Core:
    """The Python core with its own history."""

    def __init__(
        self, *, executor: Executor | None = None, locale: Locale = "pt-BR", log: Path | str | None = None
    ) -> None:
        """`executor` runs the code, by default the one that `redoma.run` uses. Each run is written to `log`, a file
        such as `logs/core.log`; by default `log.core` of the configuration.
        """
        self._executor = executor
        self._locale = locale
        self._messages = MESSAGES[locale]
        self._log = Path(log) if log is not None else None
        self._history: deque[Entry] = deque(maxlen=1000)
        self._lock = threading.Lock()

    @property
    def history(self) -> tuple[Entry, ...]:
        """The newest thousand messages, oldest first."""
        with self._lock:
            return tuple(entry.copy() for entry in self._history)

    def run_python_code(self, code: str) -> str:
        """Run code. Returns what it printed, the value of its last expression, or a message that is safe to show."""
        executor = self._executor or default()
        result = executor.wait(executor.core.submit(self._submission(code, executor)))
        error = self._error(result)
        printed = _printed(result) or (self._messages["success"] if error is None else "")
        if (log := self._log or executor.core.config.log.core) is not None:
            CoreLog(log).write(
                code=Redactor().redact(code)[0],
                result=printed or None,
                error=error,
                duration=result.usage.wall,
                memory_used=result.usage.memory,
            )
        return "\n".join(part for part in (printed, error) if part)

    def validate_code(self, code: str) -> bool:
        """Return whether code would be allowed to run: it parses, is short enough and uses nothing that is refused."""
        executor = self._executor or default()
        try:
            submission = self._submission(code, executor)
        except InvalidRequest:  # it is not text
            return False
        return executor.core.judge(submission).evaluation.decision is Decision.ALLOW

    def handle_execution_error(self, error: BaseException) -> str:
        """Return the message for an exception, with its text as the detail: redacted, and without control
        characters.
        """
        bases = (base.__name__ for base in type(error).__mro__)
        kind = next((name for name in map(kind_of, bases) if name != "else"), "else")
        try:
            detail, _ = clean(str(error), Redactor())
        except Exception:  # `__str__` of the exception failed
            detail = ""
        return f"{self._messages[kind]}: {detail or type(error).__name__}"

    def process_command(self, text: str) -> str:
        """Extract the code from a message, run it, and store both. Returns the answer."""
        code = extract(text)
        answer = self._messages["no code"] if code is None else self.run_python_code(code)
        now = datetime.now(UTC).isoformat()
        with self._lock:
            self._history.append({"type": "core", "code": code, "result": answer, "text": text, "timestamp": now})
        return answer

    @staticmethod
    def _submission(code: str, executor: Executor) -> Submission:
        core = executor.core
        judged = intake.build(
            core.config, core.backends, {"limits": LIMITS, "network": ()}, code=code, language="python"
        )
        if "reduce" not in judged.code:
            return Submission(judged, "core")
        request = msgspec.structs.replace(judged, code=_REDUCE + judged.code)
        return Submission(request, "core", view=PolicyView.of(request, judged))

    def _error(self, result: Result) -> str | None:
        if result.ok:
            return None
        kind, detail = self._kind_and_detail(result)
        return f"{self._messages[kind]}: {detail}"

    def _kind_and_detail(self, result: Result) -> tuple[str, str]:
        detail, messages = result.error or "", self._messages
        match result.status:
            case Status.TIMEOUT:
                return "TimeoutError", messages["time"].format(time=LIMITS.time)
            case Status.MEMORY:
                return "MemoryError", messages["memory"].format(memory=LIMITS.memory // MiB)
            case Status.OUTPUT:
                return "else", messages["output"].format(output=LIMITS.output_total // MiB)
            case Status.FORBIDDEN | Status.DENIED | Status.EXPIRED | Status.PENDING:
                syntax = [f for f in result.evaluation.findings if f.rule == "python.syntax"]
                if syntax:
                    return "SyntaxError", f"{syntax[0].text} ({syntax[0].line}:{syntax[0].column})"
                deciding = result.evaluation.deciding
                return "refused", refusal(deciding[0], self._locale) if deciding else detail
            case Status.ERROR if not result.exception:
                return "else", messages["exit"].format(code=result.exit_code)
            case _:
                name = result.exception or ""
                return kind_of(name), detail.removeprefix(name).removeprefix(": ") or name


def _printed(result: Result) -> str:
    """Return the output without its last line end; the value of a last expression if nothing was printed."""
    error = "" if result.exception else result.stderr  # a traceback is described in the message instead
    text = "\n".join(part.rstrip("\n") for part in (result.stdout, error) if part)
    return text if text or result.value is None else result.value_repr or repr(result.value)


_FENCE = re.compile(r"[ \t]*(```+|~~~+)[ \t]*(?:(?:python3?|py)\b[^`]*)?\Z", re.I)
_FENCE_AFTER_TEXT = re.compile(r"[^`]+(```+)[ \t]*(?:python3?|py)[ \t]*\Z", re.I)  # as in a chat: text ```python
_INLINE = re.compile(r"`([^`\n]+)`")
_MAX_MESSAGE = 20_000  # characters in which code without a fence is searched for: each possible beginning is tried
_MAX_PLACES = 20


def extract(text: str) -> str | None:
    """Return the code in a message: a fenced block, the message itself, or what follows an instruction; None if there
    is none.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    if fenced := _fenced(lines):
        return fenced
    text = "\n".join(lines).strip()
    if len(text) > _MAX_MESSAGE:
        return None
    if _does_something(text):
        return text
    first, _, rest = text.partition("\n")
    candidates = [match[1] for match in islice(_INLINE.finditer(text), _MAX_PLACES)]
    places = [match.end() for match in islice(re.finditer(r":\s*", first), _MAX_PLACES)]
    words = [match.end() for match in islice(re.finditer(r"\s+", first), _MAX_PLACES)]
    candidates += [f"{first[at:]}\n{rest}" for at in places]
    candidates.append(textwrap.dedent(rest))
    candidates += [f"{first[at:]}\n{rest}" for at in words]
    return next((code.strip("\n") for code in candidates if _does_something(code.strip("\n"))), None)


def _fenced(lines: list[str]) -> str | None:
    """Return the text between the first line that opens a fence and the next that closes it."""
    opened = next(
        (
            (at, match[1])
            for at, line in enumerate(lines)
            if (match := _FENCE.match(line) or _FENCE_AFTER_TEXT.match(line))
        ),
        None,
    )
    if opened is None:
        return None
    start, fence = opened
    end = next((at for at in range(start + 1, len(lines)) if lines[at].strip() == fence), None)
    return textwrap.dedent("\n".join(lines[start + 1 : end])).strip("\n") or None if end else None


def _does_something(text: str) -> bool:
    """Return whether it is Python that does something: `olá`, `a, b` and `15` parse too, as words of a sentence."""
    try:
        body = parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(node, (ast.Expr, ast.AnnAssign)) or _has_work(node) for node in body)


def _has_work(statement: ast.stmt) -> bool:
    work = (
        ast.Call,
        ast.BinOp,
        ast.Subscript,
        ast.JoinedStr,
        ast.ListComp,
        ast.DictComp,
        ast.SetComp,
        ast.GeneratorExp,
    )
    data = (ast.List, ast.Dict, ast.Set)
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None  # `execute: print(5)` parses as a name with its type
    return any(isinstance(part, (*work, *data)) for part in ast.walk(statement))


_shared = Core()


def run_python_code(code: str) -> str:
    """Run a piece of Python under the limits of the core.

    Args:
        code: The code, at most 1000 characters.

    Returns:
        What it printed, or the value of its last expression, or a sentence that it succeeded. If it failed or was
        refused, a message in Portuguese that is safe to show.
    """
    return _shared.run_python_code(code)


def validate_code(code: str) -> bool:
    """Check code without running it.

    Args:
        code: The code to check.

    Returns:
        Whether `run_python_code` would let it run.
    """
    return _shared.validate_code(code)


def handle_execution_error(error: BaseException) -> str:
    """Return a message for an exception.

    Args:
        error: The exception.

    Returns:
        The message in Portuguese, such as "Divisão por zero: division by zero".
    """
    return _shared.handle_execution_error(error)


def process_command(text: str) -> str:
    """Extract the code from a message, run it, and store both (see `command_history`).

    Args:
        text: The message: code in a fenced block, the code itself, or an instruction that code follows.

    Returns:
        The answer of `run_python_code`, or a sentence that there was no code.
    """
    return _shared.process_command(text)


def command_history() -> tuple[Entry, ...]:
    """Return the messages that `process_command` got in this process and its answers, oldest first."""
    return _shared.history
