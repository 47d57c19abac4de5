"""The built-in packs: which rules each holds, and how strict.

Each pack is the one before it with some decisions raised and some rules added, so `none` < `standard` < `script` <
`strict` < `core` holds rule by rule.

* `standard`, the default: ordinary code passes where it can touch nothing, and a person is asked where it can.
* `script`: also the length of 10000, embedded secrets, dangerous patterns and syntax errors, by the text alone.
* `strict`: also an allowlist for Python and one plain command at a time for Bash.
* `core`: also no imports at all and at most 1000 characters.
"""

from __future__ import annotations

import msgspec

from ...models import Decision
from ..rules import Rule
from . import files, limits, outside, python, script, shell, system

_SCRIPT_FORBIDS = frozenset(
    {
        "python.dynamic-code",
        "python.dynamic-command",
        "shell.dynamic-code",
        "shell.syntax",
        "privilege.raise",
        "privilege.namespaces",
        "source.too-large",
        "source.too-deep",
        "source.bad-utf8",
        "source.invisible",
    }
)

_STRICT_FORBIDS = frozenset(
    {
        "python.dynamic-attribute",
        "python.dynamic-import",
        "shell.dynamic-command",
        "shell.obscured-command",
        "shell.inline-code",
        "shell.hidden-option",
        "shell.environment-hook",
        "shell.shadowed-command",
        "network.redirect",
        "remove.unknown",
        "remove.home",
        "remove.repository",
        "permissions.others-write",
        "permissions.set-id",
        "permissions.unknown",
        "git.force-push",
        "read.credentials",
        "write.startup",
    }
)


def rules_of(pack: str) -> tuple[Rule, ...]:
    """The rules of a pack, in a fixed order."""
    standard = (
        *files.RULES,
        *system.RULES,
        *outside.RULES,
        *shell.RULES,
        *limits.RULES,
        *python.STANDARD,
    )
    scripts = (*_raised(standard, _SCRIPT_FORBIDS), python.SYNTAX, *script.RULES)
    strict = (*_reading(_raised(scripts, _STRICT_FORBIDS)), *python.STRICT)
    core = (*python.CORE, *_advised(strict, python.CORE_ADVICE))  # the advice of the narrowest pack comes first
    return {"none": (), "standard": standard, "script": scripts, "strict": strict, "core": core}[pack]


def _advised(rules: tuple[Rule, ...], advice: dict[str, str]) -> tuple[Rule, ...]:
    return tuple(
        msgspec.structs.replace(rule, suggestion=advice[rule.id]) if rule.id in advice else rule for rule in rules
    )


def _reading(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """What `strict` has an allowlist for needs no question: it lets `requests` read from the web."""
    return tuple(
        msgspec.structs.replace(rule, unless=f"{rule.unless}|{python.READS_THE_WEB}")
        if rule.id == "python.network"
        else rule
        for rule in rules
    )


def _raised(rules: tuple[Rule, ...], forbidden: frozenset[str]) -> tuple[Rule, ...]:
    return tuple(
        msgspec.structs.replace(rule, decision=Decision.FORBID) if rule.id in forbidden else rule for rule in rules
    )
