"""Which rules refuse a script: the layer of each rule, and the rules as regular expressions to show or use elsewhere.

The verdict itself is the policy's, on the syntax tree (see `validation`). A regular expression can't distinguish code
from a string.
"""

from __future__ import annotations

import re
from typing import Literal

from ..models import Language
from ..policy import Rule, load
from ..redaction.patterns import PATTERNS

Layer = Literal["type", "size", "secrets", "dangerous", "syntax"]

PACK = "script"

LAYERS: dict[str, Layer] = {
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
    "source.too-large": "syntax",  # too complex to be parsed, although short
}
"""The layer that each rule belongs to. Any other rule, including the user's own, belongs to `dangerous`."""


def _secret_patterns() -> tuple[tuple[str, str], ...]:
    """Return the patterns of secrets as expressions for `re`. Many match only the beginning of a secret."""
    shapes = [(_as_text(shape.regex), shape.kind.replace("-", " ")) for shape in PATTERNS if not shape.personal]
    return (*shapes, *((rule.pattern, rule.reason) for rule in rules_of("secrets") if rule.pattern))


def _as_text(expression: bytes) -> str:
    """Return an expression on UTF-8 bytes as one on text: the escaped bytes of a character become that character."""
    escaped = re.compile(r"(?:\\x[89a-f][0-9a-f])+")
    return escaped.sub(lambda found: bytes.fromhex(found[0].replace("\\x", "")).decode(), expression.decode())


def _dangerous_patterns(language: Language) -> tuple[tuple[str, str], ...]:
    return tuple((_expression(rule), rule.reason) for rule in rules_of("dangerous", language))


def rules_of(layer: Layer, language: Language | None = None) -> list[Rule]:
    """Return the rules of a layer; with `language`, those about it."""
    return [
        rule
        for rule in load(PACK).rules
        if not rule.by_reach  # no script is run on the host
        if rule.language != "javascript"  # nor is one in that
        if LAYERS.get(rule.id, "dangerous") == layer and (language is None or language in rule.example_languages)
    ]


def _expression(rule: Rule) -> str:
    """Return what a rule looks for in the tree, as far as a regular expression can express it: the names that are
    enough for it or, if more than a name decides, its own examples, each as a separate line.
    """
    if rule.literal is None and (rule.calls or rule.attributes):
        parts = [rf"{_name(glob)}\s*\(" for glob in rule.calls]
        parts += [rf"{_name(glob)}(?!\w|\s*\()" for glob in rule.attributes]
    elif rule.command and not (rule.flags or rule.args or rule.writes or rule.unless):
        parts = [rf"(?<![\w.-]){_words(entry)}(?![\w-])" for entry in rule.command]
    else:
        parts = [rf"(?<![\w./-]){_line(example)}\s*?(?![^;\n])" for example in rule.match]
    return "|".join(parts)


def _name(glob: str) -> str:
    """Return an expression for a dotted Python name. `*.x` is a member of anything; a name by itself is not a
    member.
    """
    start = r"\." if glob.startswith("*.") else r"(?<![\w.])"
    return (
        start
        + r"[^\n]*".join(map(re.escape, glob.removeprefix("*.").removesuffix("*").split("*")))
        + (r"\w*" if glob.endswith("*") else "")
    )


def _words(entry: str) -> str:
    """Return an expression for a command and the words that follow it, each a glob."""
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
"""The same for Bash; the commands that a Python program starts must obey these rules, too."""
