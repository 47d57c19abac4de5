"""Evaluates one rule: its text becomes a program, the program runs in a sandbox, and its answer is read as data.

Monty is tried first: it has no access to anything, and starts at once. If it lacks a module or some syntax, a cell is
tried; that is a full CPython, so the strict pack judges the rule first. A rule only computes, so running it twice does
no harm. No person is ever asked: a rule for which policy prompts is refused.
"""

from __future__ import annotations

import ast
import re
import time
from typing import Any, NamedTuple

import msgspec

from ..lib.sanitise import sanitise
from ..lib.text import shorten
from ..models import Decision, Finding, KiB, Limits, MiB, PolicyView, Result, Status, Submission
from ..pipeline import intake
from ..pipeline.executor import AsyncExecutor
from ..policy import PACKS
from ..policy.python.tree import parse
from .model import Check, CheckResult, Facts, State

_OUTPUT = {"output_bytes": 64 * KiB, "output_total": 64 * KiB, "output_lines": 1000}
MONTY = Limits(time=2.0, memory=64 * MiB, **_OUTPUT)
JAIL = Limits(time=5.0, memory=256 * MiB, processes=16, disk=1 * MiB, **_OUTPUT)
MAX_RULE = 10_000
_MAX_MESSAGE = 300
_LACKING = frozenset({"ModuleNotFoundError", "ImportError", "NotImplementedError", "AttributeError", "NameError"})
"""What Monty raises if it lacks something. If the cause is a mistake in the rule, a cell raises the same, and that is
reported.
"""
_SPACE = re.compile(r"\s+")
_STATES = {state.word: state for state in State}
_CODE = """\
import json as _json
_facts = _json.loads(input())
{names}
{before}_answer = (
{answer}
)
_message = ""
if _answer is True or (type(_answer) is dict and _answer.get("state") != "ok" and "message" not in _answer):
    _message = {message}
[type(_answer).__name__, _answer, _message]
"""


class Program(NamedTuple):
    """A rule as a program."""

    code: str
    judged: str
    """The rule's own part, which policy judges."""
    facts: frozenset[str]
    """The names of the facts that it uses. It gets only these."""


def program(check: Check, known: frozenset[str]) -> Program:
    """Return a program for a rule. One that does not parse is run unchanged, so that the sandbox reports the error."""
    message = _literal(check.message)
    try:
        rule, message_tree = parse(check.rule), parse(message)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        wrong = check.rule if _unreadable(check.rule) else message
        return Program(wrong, wrong, frozenset())
    last = rule.body[-1] if rule.body else None
    used = {node.id for tree in (rule, message_tree) for node in ast.walk(tree) if isinstance(node, ast.Name)} & known
    names = "\n".join(f"{name} = _facts[{name!r}]" for name in sorted(used))
    lines = check.rule.splitlines(keepends=True)
    if not isinstance(last, ast.Expr):
        before, answer = check.rule + "\n", "None"
    else:
        start = lines[last.lineno - 1].encode()[: last.col_offset].decode()
        before = "".join(lines[: last.lineno - 1]) + start
        answer = ast.get_source_segment(check.rule, last) or "None"
    code = _CODE.format(names=names, before=before, answer=answer, message=message)
    return Program(code, f"{check.rule}\n{message}", frozenset(used))


def _unreadable(text: str) -> bool:
    try:
        parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return False


def _literal(message: str) -> str:
    """Return the message as an f-string, in triple quotes that it doesn't contain. If it contains both kinds, the
    sandbox reports the error.
    """
    quote = '"' if '"""' not in message.rstrip('"') else "'"
    text = message.rstrip(quote)
    rest = message[len(text) :]  # quotes at its end, which would be taken for the closing ones
    return f"f{3 * quote}{text}{3 * quote}" + (f" {rest!r}" if rest else "")


class RuleResult(NamedTuple):
    """The result of a rule, and how it was evaluated."""

    verdict: CheckResult
    facts: frozenset[str] = frozenset()
    """The names of the facts that the rule uses."""
    monty_error: str = ""
    """Why Monty could not evaluate it; empty if it could."""


async def evaluate(check: Check, facts: Facts, executor: AsyncExecutor) -> RuleResult:
    """Evaluate the rule of a check over the facts. Never raises because of the rule."""
    start = time.monotonic()
    rule = program(check, frozenset(facts))
    stdin = msgspec.json.encode({name: facts[name] for name in sorted(rule.facts)}) + b"\n"
    result = await _run(rule, stdin, check, executor, "monty", MONTY, None)
    monty_error = ""
    if _is_lacking(result):
        monty_error = tidy(result.error or "")
        # A more powerful sandbox gets a stricter policy.
        pack = max("strict", executor.config.policy.pack, key=PACKS.index)
        second = await _run(rule, stdin, check, executor, "jail", JAIL, pack)
        if second.status.ending == "ran":
            result = second
        else:
            why = f"{monty_error}; in the jail: {tidy(second.error or '')}"
            result = msgspec.structs.replace(result, status=Status.ERROR, error=why)
    state, message = _answer(check, result)
    verdict = CheckResult(
        check=check.name,
        state=state,
        found=state,
        message=message,
        sandbox=result.backend,
        seconds=round(time.monotonic() - start, 4),
        run=result.id,
    )
    return RuleResult(verdict, rule.facts, monty_error)


async def _run(
    rule: Program,
    stdin: bytes,
    check: Check,
    executor: AsyncExecutor,
    backend: str,
    limits: Limits,
    pack: str | None,
) -> Result:
    options: intake.Options = {
        "backend": backend,
        "limits": limits,
        "stdin": stdin,
        "label": f"monitor:rule:{check.name}",
        "reason": f"the rule of the check {check.name!r}",
        "network": (),
    }
    request = intake.build(executor.config, executor.backends, options, code=rule.code, language="python")
    judged_of = msgspec.structs.replace(request, code=rule.judged, stdin=b"")
    # The facts are not kept as inputs: they differ each time, and the history has their numbers.
    submission = Submission(request, pack, view=PolicyView.of(request, judged_of), keep_inputs=False)
    if (judged := executor.judge(submission).evaluation).decision is Decision.PROMPT:
        submission = msgspec.structs.replace(submission, objections=(_unattended(judged.deciding[0]),))
    return await executor.submit(submission)


def _unattended(found: Finding) -> Finding:
    """Turn a finding that a person would be asked about into a refusal: no round waits for a person."""
    return msgspec.structs.replace(
        found, rule="monitor.unattended", decision=Decision.FORBID, reason=f"{found.reason} ({found.rule})"
    )


def _is_lacking(result: Result) -> bool:
    if result.denial is not None and result.denial.rule == "backend.unsupported":
        return True
    return result.status is Status.ERROR and (
        result.exception in _LACKING or (result.error or "").startswith("Not done by monty")
    )


def _answer(check: Check, result: Result) -> tuple[State, str]:
    """Return state and message of a result. A rule may answer anything: what isn't exactly one of the allowed answers
    is unknown.
    """
    if result.status is not Status.OK:
        return State.UNKNOWN, tidy(_failure(result))
    state, message = _read_value(check, result.value)
    if message != sanitise(message):
        return State.UNKNOWN, "the rule's message holds characters that a terminal would obey, or that nobody sees"
    return state, tidy(message)


def _read_value(check: Check, value: Any) -> tuple[State, str]:
    match value:
        case ["bool", bool(found), str(message)]:
            return (State[check.severity.upper()], message) if found else (State.OK, "")
        case ["str", str(message), str()]:
            return (State[check.severity.upper()], message) if message else (State.OK, "")
        case ["dict", {"state": str(word), **more}, str(message)] if word in _STATES and _is_a_message(more):
            return _STATES[word], str(more.get("message", message))
        case ["NoneType", *_]:
            return State.UNKNOWN, "the rule has no answer: its last line must be an expression that is true or false"
        case [str(kind), *_] if kind.isidentifier():
            return State.UNKNOWN, f"the rule's answer can't be used: it is a {kind}, not true, false, a text or a state"
    return State.UNKNOWN, "the rule's answer can't be used: it is too large, or not plain data"


def _is_a_message(more: dict[Any, Any]) -> bool:
    return not more or (more.keys() == {"message"} and isinstance(more["message"], str))


def _failure(result: Result) -> str:
    limits = JAIL if result.backend == "jail" else MONTY
    match result.status:
        case Status.TIMEOUT:
            return f"the rule did not come to an end within {limits.time:g} s"
        case Status.MEMORY:
            return f"the rule wants more than {limits.memory // MiB} MiB of memory"
        case Status.OUTPUT:
            return f"the rule prints more than {limits.output_total // KiB} KiB"
        case Status.FORBIDDEN | Status.DENIED | Status.EXPIRED:
            return f"the rule was refused: {result.error}"
        case Status.FAILED:
            return f"the rule could not be run: {result.error}"
    return f"the rule failed: {result.error}"


def tidy(text: str) -> str:
    """Return the text as one line of bounded length that is harmless to a terminal."""
    return shorten(_SPACE.sub(" ", sanitise(text[: 10 * _MAX_MESSAGE])).strip(), _MAX_MESSAGE)
