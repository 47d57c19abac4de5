"""R2.5: what is looked at before a script runs, and the words in which it is refused.

There is one source of what is refused: the policy pack `script`, and the shapes of secrets that it asks for. It decides
on the syntax tree, so `print("eval(")` passes and `eval (x)` does not. What is added here is the one check that a tree
can't stand in for: `bash -n`, asked only about text to which nothing else was found to object.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from typing import Literal

from .. import intake
from ..executor import AsyncExecutor
from ..models import Decision, Evaluation, Finding, Language, MiB, Request
from ..output import clean
from ..policy import Rule, load
from ..sensitive import Redactor
from ..sensitive.patterns import PATTERNS

Layer = Literal["type", "size", "secrets", "dangerous", "syntax"]

PACK = "script"
TYPES: tuple[Language, ...] = ("python", "bash")

_LAYERS: dict[str, Layer] = {
    "script.length": "size",
    "script.secret": "secrets",
    "script.assigned-secret": "secrets",
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
    """Says whether a script would be let through. Runs nothing of it, and records nothing."""

    MAX_SIZE = next(rule.longer_than for rule in load(PACK).rules if rule.id == "script.length")

    def __init__(self, *, executor: AsyncExecutor | None = None) -> None:
        self._executor = executor or AsyncExecutor(backends=())

    def validate(self, script_content: str, script_type: str) -> ValidationResult:
        """The verdict on a script, `bash -n` included."""
        if (problem := malformed(script_content, script_type)) is not None:
            return problem
        language: Language = "python" if script_type == "python" else "bash"
        request = Request(code=self.judged(intake.source(script_content)), language=language)
        evaluation = self._executor.check(request, PACK)
        return verdict(self.objections(request, evaluation) + evaluation.findings)

    def judged(self, script_content: str) -> str:
        """What of a script is looked at, and put on record: of one that is too long, enough to know that."""
        if self._executor.config.policy.decisions.get("script.length") is Decision.ALLOW:
            return script_content  # somebody lets longer ones pass
        return script_content[: self.MAX_SIZE + 1]

    def objections(self, request: Request, evaluation: Evaluation | None = None) -> tuple[Finding, ...]:
        """What Bash itself has against a script, where nothing but its syntax speaks against it."""
        if request.language != "bash":
            return ()
        evaluation = evaluation or self._executor.check(request, PACK)
        if verdict(evaluation.findings).layer not in (None, "syntax"):
            return ()
        problem = bash_syntax(request.code)
        return () if problem is None else (problem,)


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
    """Never with the text that was found: it may be the secret itself."""
    where = f" at line {finding.line}" if finding.line else ""
    what = finding.text if finding.rule == "python.syntax" and finding.text else finding.reason
    advice = f". {finding.suggestion[:1].upper()}{finding.suggestion[1:]}" if finding.suggestion else ""
    head = "The syntax of the script can't be read" if finding.rule in _UNREAD else _HEADS[layer]
    return f"{head}{where}: {what} [{finding.rule}]{advice}"


# --- bash -n ---------------------------------------------------------------------------------------------------

_SECONDS = 5
_SAID = re.compile(r"[^\n]*?: line (?P<line>[0-9]+): (?P<what>[^\n]*)")


def bash_syntax(script: str) -> Finding | None:
    """What `bash -n` has to say against a text. None where Bash is not installed: then the policy's reader has to do.

    Nobody has reviewed the text, and Bash's parser is a large program in C that some texts do crash (`$(` three
    thousand times). So it gets no environment (no BASH_ENV, no functions), no start-up files, no file to hold on to,
    little time and memory, and a process that can neither start another nor write a file. It waits for its input until
    these limits are in place.
    """
    if (bash := shutil.which("bash")) is None:
        return None
    # `-n` runs no `shopt`, so what needs this one would always be refused.
    options = ["-O", "extglob"] if "extglob" in script else []
    with subprocess.Popen(
        [bash, "--noprofile", "--norc", *options, "-n"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"LC_ALL": "C"},
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            _limit(process.pid)
            _, said = process.communicate(script.encode("utf-8", "replace"), _SECONDS)
        except subprocess.TimeoutExpired:
            return _objection("Bash needs too long to read it")
        finally:
            process.kill()
    # It ends with 0 after some errors, such as `[[ ( [[ (`: what it said counts, too.
    told = [line for line in _SAID.finditer(said.decode("utf-8", "replace")) if not line["what"].startswith("warning")]
    if told:
        what, _ = clean(told[0]["what"][:200], Redactor())
        return _objection(f"Bash says: {what}", int(told[0]["line"]))
    return _objection("Bash can't read it") if process.returncode else None


def _limit(process: int) -> None:
    for limit, most in (
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_AS, 256 * MiB),
    ):
        resource.prlimit(process, limit, (most, most))


def _objection(reason: str, line: int = 0) -> Finding:
    return Finding(
        rule="script.bash-syntax", decision=Decision.FORBID, reason=reason, line=line, suggestion="correct the syntax"
    )


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
