"""The built-in packs: which rules each holds, and how strict.

Each pack is the one before it with some decisions raised and some rules added, so `none` < `standard` < `script` <
`strict` < `core` holds rule by rule.

* `standard`, the default: ordinary code passes where it can touch nothing, and a person is asked where it can.
* `script`: also the length of 10000, embedded secrets, dangerous patterns and syntax errors, by the text alone.
* `strict`: also an allowlist for Python and one plain command at a time for Bash.
* `core`: also no imports at all and at most 1000 characters.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...models import Decision
from ..rules import Rule
from . import files, outside, python, script, shell, system
from .base import listed

_SCRIPT_FORBIDS = frozenset(
    listed("""
        python.dynamic-code, python.dynamic-command, shell.dynamic-code, shell.syntax, privilege.raise,
        privilege.namespaces, source.too-large, source.too-deep, source.bad-utf8, source.invisible
    """)
)

_STRICT_FORBIDS = frozenset(
    listed("""
        python.dynamic-attribute, python.dynamic-import, shell.dynamic-command, shell.obscured-command,
        shell.inline-code, shell.hidden-option, shell.environment-hook, shell.shadowed-command, network.redirect,
        remove.unknown, remove.home, remove.repository, permissions.others-write, permissions.set-id,
        permissions.unknown, git.force-push, read.credentials, write.startup
    """)
)


def rules_of(pack: str) -> tuple[Rule, ...]:
    """Return the rules of a pack, in a fixed order. Raises `KeyError` for an unknown one."""
    standard = (*files.RULES, *system.RULES, *outside.RULES, *shell.RULES, *python.STANDARD)
    scripts = (*_forbidding(standard, _SCRIPT_FORBIDS), python.SYNTAX, *script.RULES)
    strict = (*map(_allowing_web_reads, _forbidding(scripts, _STRICT_FORBIDS)), *python.STRICT)
    core = (*python.CORE, *map(_with_core_suggestion, strict))  # the suggestions of the narrowest pack come first
    return {"none": (), "standard": standard, "script": scripts, "strict": strict, "core": core}[pack]


def _forbidding(rules: tuple[Rule, ...], ids: frozenset[str]) -> tuple[Rule, ...]:
    """The rules, of which those with one of the ids now forbid."""
    return tuple(replace(rule, decision=Decision.FORBID) if rule.id in ids else rule for rule in rules)


def _allowing_web_reads(rule: Rule) -> Rule:
    """`strict` has an allowlist by which `requests` may read from the web, so nobody need be asked about that."""
    if rule.id != "python.network":
        return rule
    return replace(rule, unless=f"{rule.unless}|{python.READS_THE_WEB}")


def _with_core_suggestion(rule: Rule) -> Rule:
    """A rule whose suggestion doesn't name something that `core` refuses."""
    return replace(rule, suggestion=python.CORE_SUGGESTIONS.get(rule.id, rule.suggestion))
