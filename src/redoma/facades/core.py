"""R4: the Python core. Text in, text out, in Portuguese unless asked otherwise.

Its promise is its own profile: 5 seconds, 100 MB, 100 calls deep, 1000 characters, and no imports, files or dynamic
code, decided on the syntax tree (policy pack `core`).
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
from typing import Literal

import msgspec

from ..models import Limits, MiB, Result, Status
from ..policy.python.tree import parse
from ..sensitive import Redactor
from ..sync import Executor, default
from .core_log import CoreLog

Locale = Literal["pt-BR", "en"]

LIMITS = Limits(time=5.0, memory=100 * MiB, recursion=100)

_MESSAGES: dict[str, dict[str, str]] = {
    "pt-BR": {
        "SyntaxError": "Erro de sintaxe no código",
        "NameError": "Variável não definida",
        "TypeError": "Tipo de dado inválido",
        "ValueError": "Valor inválido",
        "IndexError": "Índice fora dos limites",
        "KeyError": "Chave não encontrada",
        "ZeroDivisionError": "Divisão por zero",
        "TimeoutError": "Tempo limite excedido",
        "MemoryError": "Memória insuficiente",
        "else": "Erro na execução",
        "refused": "Código não permitido por questões de segurança",
        "time": "mais de {time:g} segundos",
        "memory": "mais de {memory} MB",
        "no code": "Nenhum código encontrado na mensagem",
    },
    "en": {
        "SyntaxError": "Syntax error in the code",
        "NameError": "Undefined variable",
        "TypeError": "Invalid data type",
        "ValueError": "Invalid value",
        "IndexError": "Index out of bounds",
        "KeyError": "Key not found",
        "ZeroDivisionError": "Division by zero",
        "TimeoutError": "Time limit exceeded",
        "MemoryError": "Out of memory",
        "else": "Execution error",
        "refused": "Code not allowed for security reasons",
        "time": "more than {time:g} seconds",
        "memory": "more than {memory} MB",
        "no code": "No code found in the message",
    },
}
_ALSO = {"UnboundLocalError": "NameError", "IndentationError": "SyntaxError", "TabError": "SyntaxError"}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One message that was processed."""

    timestamp: str
    text: str
    code: str | None
    """What was taken out of the message; None when there was no code in it."""
    answer: str


class Core:
    """The interface with its history. `log` names a file such as `logs/core.log` to write R4.5 records to."""

    def __init__(
        self, *, executor: Executor | None = None, locale: Locale = "pt-BR", log: Path | str | None = None
    ) -> None:
        self._executor = executor
        self._messages = _MESSAGES[locale]
        self._log = CoreLog(Path(log)) if log is not None else None
        self._history: deque[Record] = deque(maxlen=1000)
        self._lock = threading.Lock()

    @property
    def history(self) -> tuple[Record, ...]:
        """The newest thousand messages, oldest first."""
        with self._lock:
            return tuple(self._history)

    def run_python_code(self, code: str) -> str:
        """What the code printed, or a message that is safe to show."""
        result = (self._executor or default()).run(code, policy="core", limits=LIMITS)
        error = self._error(result)
        if self._log is not None:
            self._log.write(
                code=Redactor().redact(code)[0],
                result=_printed(result) or None,
                error=error,
                duration=result.usage.wall,
                memory_used=result.usage.memory,
            )
        return "\n".join(part for part in (_printed(result), error) if part)

    def process_command(self, text: str) -> str:
        """Take the code out of a message, run it, and remember both."""
        code = extract(text)
        answer = self._messages["no code"] if code is None else self.run_python_code(code)
        record = Record(timestamp=datetime.now(UTC).isoformat(), text=text, code=code, answer=answer)
        with self._lock:
            self._history.append(record)
        return answer

    def _error(self, result: Result) -> str | None:
        if result.ok:
            return None
        kind, detail = self._kind_and_detail(result)
        return f"{self._messages.get(kind, self._messages['else'])}: {detail}"

    def _kind_and_detail(self, result: Result) -> tuple[str, str]:
        detail = result.error or ""
        match result.status:
            case Status.TIMEOUT:
                return "TimeoutError", self._messages["time"].format(time=LIMITS.time)
            case Status.MEMORY:
                return "MemoryError", self._messages["memory"].format(memory=LIMITS.memory // MiB)
            case Status.FORBIDDEN | Status.DENIED | Status.EXPIRED | Status.PENDING:
                syntax = [f for f in result.evaluation.findings if f.rule == "python.syntax"]
                if syntax:
                    return "SyntaxError", f"{syntax[0].text} ({syntax[0].line}:{syntax[0].column})"
                return "refused", detail
            case _:
                kind = result.exception or "else"
                return _ALSO.get(kind, kind), detail.removeprefix(f"{result.exception}: ")


def _printed(result: Result) -> str:
    """Output as it was printed, less its last line end; the value of a last expression when nothing was printed."""
    error = "" if result.exception else result.stderr  # a traceback is told in the message instead
    text = "\n".join(part.rstrip("\n") for part in (result.stdout, error) if part)
    return text if text or result.value is None else repr(result.value)


_FENCE = re.compile(r"[ \t]*(```+|~~~+)[ \t]*(?:(?:python3?|py)\b[^`]*)?\Z", re.I)
_INLINE = re.compile(r"`([^`\n]+)`")
_MAX_MESSAGE = 20_000  # characters in which code without a fence is looked for: each place it may begin is tried
_MAX_PLACES = 20


def extract(text: str) -> str | None:
    """The code in a message: a fenced block; the message itself; or what follows an instruction."""
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
    """What stands between the first line that opens a fence and the next that closes it."""
    opened = next(((at, match[1]) for at, line in enumerate(lines) if (match := _FENCE.match(line))), None)
    if opened is None:
        return None
    start, fence = opened
    end = next((at for at in range(start + 1, len(lines)) if lines[at].strip() == fence), None)
    return textwrap.dedent("\n".join(lines[start + 1 : end])).strip("\n") or None if end else None


def _does_something(text: str) -> bool:
    """Whether it reads as Python that does something: `olá`, `a, b` and `15` parse too, as words of a sentence."""
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
    """What the code printed, or a message in Portuguese that is safe to show."""
    return _shared.run_python_code(code)


def process_command(text: str) -> str:
    """Take the code out of a message, run it, and remember both (see `command_history`)."""
    return _shared.process_command(text)


def command_history() -> tuple[Record, ...]:
    """What `process_command` was given and answered in this process."""
    return _shared.history
