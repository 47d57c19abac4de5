"""R2.5: what is looked at before a script runs, and the words in which it is refused.

There is one source of what is refused: the policy pack `script`, and the shapes of secrets that it asks for. It decides
on the syntax tree, so `print("eval(")` passes and `eval (x)` does not. What is added is `bash -n` (see `script_bash`),
asked only about text to which nothing else was found to object.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from .. import intake
from ..executor import AsyncExecutor
from ..models import Decision, Evaluation, Finding, Language, Request
from ..policy import Rule, load
from ..sensitive.patterns import PATTERNS
from .script_bash import Bash

Layer = Literal["type", "size", "secrets", "dangerous", "syntax"]

PACK = "script"
TYPES: tuple[Language, ...] = ("python", "bash")

_LAYERS: dict[str, Layer] = {
    "script.length": "size",
    "script.secret": "secrets",
    "script.assigned-secret": "secrets",
    "script.unquoted-secret": "secrets",
    "script.bash-syntax": "syntax",
    "python.syntax": "syntax",
    "shell.syntax": "syntax",
    "source.nul": "syntax",
    "source.bad-utf8": "syntax",
    "source.too-deep": "syntax",
    "source.too-large": "syntax",  # so much in a few characters that it is not read
}
"""The layer of each rule; that of any other, one of your own too, is `dangerous`."""

_ORDER: tuple[Layer, ...] = ("size", "secrets", "dangerous", "syntax")
_HEADS = {
    "size": "Script exceeds maximum size",
    "secrets": "Script holds a secret",
    "dangerous": "Script holds a dangerous pattern",
    "syntax": "Script has a syntax error",
}
_UNREAD = ("source.too-deep", "source.too-large")


@dataclass(frozen=True)
class ValidationResult:
    """Whether a script may run and, if not, why and which layer said so: `type`, `size`, `secrets`, `dangerous` or
    `syntax`. The first in this order is told."""

    valid: bool
    error: str | None = None
    layer: Layer | None = None


class ScriptValidator:
    """Says whether a script would be let through. Runs nothing of it, and records nothing.

    Bash reads scripts in a cell; who has many of them to look at keeps what cells are made from for as long as a block
    lasts: `with ScriptValidator() as validator`.
    """

    MAX_SIZE = next(rule.longer_than for rule in load(PACK).rules if rule.id == "script.length")

    def __init__(self, *, executor: AsyncExecutor | None = None, bash: Bash | None = None) -> None:
        self._executor = executor or AsyncExecutor(backends=())
        self._bash = bash or Bash()
        self._kept = False

    def validate(self, script_content: str, script_type: str) -> ValidationResult:
        """The verdict on a script, `bash -n` included."""
        if (problem := malformed(script_content, script_type)) is not None:
            return problem
        language: Language = "python" if script_type == "python" else "bash"
        request = Request(code=intake.source(self.judged(script_content)), language=language)
        evaluation = self._executor.check(request, PACK)
        if language == "python":
            return verdict(evaluation.findings)
        with ThreadPoolExecutor(1) as thread:  # with an event loop of its own: the caller may be on one
            objections = thread.submit(asyncio.run, self._ask(request, evaluation)).result()
        return verdict(objections + evaluation.findings)

    async def _ask(self, request: Request, evaluation: Evaluation) -> tuple[Finding, ...]:
        try:
            return await self.objections(request, evaluation)
        finally:
            if not self._kept:
                await self._bash.let_go()

    def judged(self, script_content: str) -> str:
        """What of a script is looked at, and put on record: of one that is too long, enough to know that."""
        if self._executor.config.policy.decisions.get("script.length") is Decision.ALLOW:
            return script_content  # somebody lets longer ones pass
        return script_content[: self.MAX_SIZE + 2]  # of which the first may be a mark that is taken off

    async def objections(self, request: Request, evaluation: Evaluation | None = None) -> tuple[Finding, ...]:
        """What Bash itself has against a script, where nothing but its syntax speaks against it."""
        if request.language != "bash":
            return ()
        evaluation = evaluation or self._executor.check(request, PACK)
        if verdict(evaluation.findings).layer not in (None, "syntax"):
            return ()
        problem = await self._bash.objection(request.code)
        return () if problem is None else (problem,)

    def __enter__(self) -> ScriptValidator:
        self._kept = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._kept = False
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._bash.aclose()).result()


def malformed(script_content: object, script_type: object) -> ValidationResult | None:
    """What is wrong with a call that no script of ours could be made from."""
    if script_type not in TYPES:
        given = repr(script_type)[:80]
        return ValidationResult(False, f"Invalid script_type {given}: it must be 'python' or 'bash'", "type")
    if not isinstance(script_content, str):
        given = type(script_content).__name__
        return ValidationResult(False, f"Invalid script_content: it must be text (str), and is {given}", "type")
    return None


def verdict(findings: tuple[Finding, ...]) -> ValidationResult:
    """What findings come to: who would have to be asked is refused too, since nobody is asked about a script."""
    against = sorted((f for f in findings if f.decision is not Decision.ALLOW), key=lambda f: -f.decision.rank)
    for layer in _ORDER:
        for finding in against:
            if _LAYERS.get(finding.rule, "dangerous") == layer:
                return ValidationResult(False, _message(layer, finding), layer)
    return ValidationResult(True)


def _message(layer: Layer, finding: Finding) -> str:
    """Never with the text that was found, where it may be the secret itself: of those, findings have the kind only."""
    where = f" at line {finding.line}" if finding.line else ""
    what = finding.text if finding.rule == "python.syntax" and finding.text else finding.reason
    if layer == "secrets" and finding.text:
        what += f" ({finding.text.replace('-', ' ')})"
    advice = f". {finding.suggestion[:1].upper()}{finding.suggestion[1:]}" if finding.suggestion else ""
    head = "The syntax of the script can't be read" if finding.rule in _UNREAD else _HEADS[layer]
    return f"{head}{where}: {what} [{finding.rule}]{advice}"


# --- the lists of R2.7 -----------------------------------------------------------------------------------------


def _secret_patterns() -> tuple[tuple[str, str], ...]:
    """The shapes of secrets as expressions of `re`. Many begin a secret only, and a check reads on from there."""
    shapes = [(_as_text(shape.regex), shape.kind.replace("-", " ")) for shape in PATTERNS if not shape.personal]
    return (*shapes, *((rule.pattern, rule.reason) for rule in rules_of("secrets") if rule.pattern))


def _as_text(expression: bytes) -> str:
    """An expression on UTF-8 as one on text: the escaped bytes of a character become that character."""
    escaped = re.compile(r"(?:\\x[89a-f][0-9a-f])+")
    return escaped.sub(lambda found: bytes.fromhex(found[0].replace("\\x", "")).decode(), expression.decode())


def _dangerous_patterns(language: Language) -> tuple[tuple[str, str], ...]:
    return tuple((_expression(rule), rule.reason) for rule in rules_of("dangerous", language))


def rules_of(layer: Layer, language: Language | None = None) -> list[Rule]:
    """The rules behind a layer: of all that a language may be refused for, those that are about it."""
    return [
        rule
        for rule in load(PACK).rules
        if not rule.by_reach  # no script is run on the host
        if _LAYERS.get(rule.id, "dangerous") == layer and (language is None or language in rule.example_languages)
    ]


def _expression(rule: Rule) -> str:
    """What a rule looks for in the tree, as far as an expression on text can say it: the names that are enough for it
    or, where more than a name decides, its own examples, each as a line of its own."""
    if rule.literal is None and (rule.calls or rule.attributes):
        parts = [rf"{_name(glob)}\s*\(" for glob in rule.calls]
        parts += [rf"{_name(glob)}(?!\w|\s*\()" for glob in rule.attributes]
    elif rule.command and not (rule.flags or rule.args or rule.writes or rule.unless):
        parts = [rf"(?<![\w.-]){_words(entry)}(?![\w-])" for entry in rule.command]
    else:
        parts = [rf"(?<![\w./-]){_line(example)}\s*?(?![^;\n])" for example in rule.match]
    return "|".join(parts)


def _name(glob: str) -> str:
    """A dotted name of Python. `*.x` is a member of anything; a name by itself is no member."""
    start = r"\." if glob.startswith("*.") else r"(?<![\w.])"
    return (
        start
        + r"[^\n]*".join(map(re.escape, glob.removeprefix("*.").removesuffix("*").split("*")))
        + (r"\w*" if glob.endswith("*") else "")
    )


def _words(entry: str) -> str:
    """A command and the words that follow it, each a glob."""
    parts = re.compile(r"(\*)|(\[[^]]*\])|(.)")
    words = [r"\S+" if word == "*" else parts.sub(_part, word) for word in entry.split()]
    return r"\s+".join(words)


def _part(part: re.Match[str]) -> str:
    return r"\S*" if part[1] else part[2] or re.escape(part[3])


def _line(example: str) -> str:
    return r"\s+".join(map(re.escape, example.split()))


SECRET_PATTERNS = _secret_patterns()
"""Pairs of an expression (`re.search(expression, script)`) and a description."""
PYTHON_DANGEROUS_PATTERNS = _dangerous_patterns("python")
"""The same, one pair for each rule of the pack that is about Python."""
BASH_DANGEROUS_PATTERNS = _dangerous_patterns("bash")
"""The same for Bash; the commands that a Python program starts are held to these rules, too."""
