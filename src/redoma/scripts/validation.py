"""Validates a script before it runs, and formulates its refusal.

What is refused is defined in one place: the policy pack `script`, and the patterns of secrets that it uses. It decides
on the syntax tree, so `print("eval(")` passes and `eval (x)` does not. In addition `bash -n` (see `bash_syntax`) checks
texts without other objections.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..models import Decision, Evaluation, Finding, Language, Request
from ..pipeline import intake
from ..pipeline.executor import AsyncExecutor
from ..policy import load
from .bash_syntax import Bash
from .patterns import LAYERS, PACK, Layer

TYPES: tuple[Language, ...] = ("python", "bash")

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
    """Whether a script may run; if not, why, and the first layer that refused it: `type`, `size`, `secrets`,
    `dangerous` or `syntax`.
    """

    valid: bool
    error: str | None = None
    layer: Layer | None = None


class ScriptValidator:
    """Tells whether a script would be allowed to run. Runs nothing of it, and records nothing.

    Bash reads scripts in a cell. To validate many scripts, keep what cells are made from for the length of a block:
    `with ScriptValidator() as validator`.
    """

    MAX_SIZE = next(rule.longer_than for rule in load(PACK).rules if rule.id == "script.length")

    def __init__(self, *, executor: AsyncExecutor | None = None, bash: Bash | None = None) -> None:
        self._executor = executor or AsyncExecutor(backends=())
        self._bash = bash or Bash()
        self._kept = False

    def validate(self, script_content: str, script_type: str) -> ValidationResult:
        """Return the verdict on a script, including `bash -n`."""
        if (problem := malformed(script_content, script_type)) is not None:
            return problem
        language: Language = "python" if script_type == "python" else "bash"
        request = Request(code=intake.source(self.judged(script_content)), language=language)
        evaluation = self._executor.check(request, PACK)
        if language == "python":
            return verdict(evaluation.findings)
        with ThreadPoolExecutor(1) as thread:  # with its own event loop: the caller may be on one
            objections = thread.submit(asyncio.run, self._ask(request, evaluation)).result()
        return verdict(objections + evaluation.findings)

    async def _ask(self, request: Request, evaluation: Evaluation) -> tuple[Finding, ...]:
        try:
            return await self.objections(request, evaluation)
        finally:
            if not self._kept:
                await self._bash.let_go()

    def judged(self, script_content: str) -> str:
        """Return the part of a script that is checked and recorded: for one that is too long, just enough to see
        that.
        """
        if self._executor.config.policy.decisions.get("script.length") is Decision.ALLOW:
            return script_content  # the configuration allows longer ones
        return script_content[: self.MAX_SIZE + 2]  # the first character may be a byte-order mark, which is removed

    async def objections(self, request: Request, evaluation: Evaluation | None = None) -> tuple[Finding, ...]:
        """Return Bash's objections to a script. Bash is asked only if policy objects to nothing but its syntax."""
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
    """Return the error for arguments of the wrong type; None if they are right."""
    if script_type not in TYPES:
        given = repr(script_type)[:80]
        return ValidationResult(False, f"Invalid script_type {given}. Must be 'python' or 'bash'", "type")
    if not isinstance(script_content, str):
        given = type(script_content).__name__
        return ValidationResult(False, f"Invalid script_content: it must be text (str), and is {given}", "type")
    return None


def verdict(findings: tuple[Finding, ...]) -> ValidationResult:
    """Return the verdict for findings. What would need approval is refused, since scripts are not put to a person."""
    against = sorted((f for f in findings if f.decision is not Decision.ALLOW), key=lambda f: -f.decision.rank)
    for layer in _ORDER:
        for finding in against:
            if LAYERS.get(finding.rule, "dangerous") == layer:
                return ValidationResult(False, _message(layer, finding), layer)
    return ValidationResult(True)


def _message(layer: Layer, finding: Finding) -> str:
    """Return the message of a refusal. It never quotes a secret: findings have only its kind."""
    where = f" at line {finding.line}" if finding.line else ""
    what = finding.text if finding.rule == "python.syntax" and finding.text else finding.reason
    if layer == "secrets" and finding.text:
        what += f" ({finding.text.replace('-', ' ')})"
    advice = f". {finding.suggestion[:1].upper()}{finding.suggestion[1:]}" if finding.suggestion else ""
    head = "The syntax of the script can't be read" if finding.rule in _UNREAD else _HEADS[layer]
    return f"{head}{where}: {what} [{finding.rule}]{advice}"
