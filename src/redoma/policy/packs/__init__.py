"""The built-in packs: which rules each contains, and how strict they are.

Each pack is the one before it with some decisions raised and some rules added, so `none` < `standard` < `script` <
`strict` < `core` holds rule by rule.

* `standard`, the default: ordinary code passes where it can touch nothing, and a person is asked where it can.
* `script`: also the length of 10000, embedded secrets, dangerous patterns and syntax errors, by the text alone.
* `strict`: also an allowlist for Python and JavaScript and one plain command at a time for Bash.
* `core`: also no imports at all and at most 1000 characters.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...models import Decision
from ..rules import Rule
from .table import listed, read

_SCRIPT_FORBIDS = listed("""
    {python,javascript}.dynamic-{code,command}, shell.{dynamic-code,syntax}, privilege.{raise,namespaces},
    javascript.syntax,
    source.{too-large,too-deep,bad-utf8,invisible}""")

_STRICT_FORBIDS = listed("""
    python.dynamic-{attribute,import}, javascript.dynamic-{member,import}, source.unread,
    remove.{unknown,home,repository}, network.redirect, git.force-push,
    shell.{dynamic-command,obscured-command,inline-code,hidden-option,environment-hook,shadowed-command},
    permissions.{others-write,set-id,unknown}, read.credentials, write.startup""")

_CORE_SUGGESTIONS = {
    rule: suggestion
    for rules, suggestion in (
        ("strict.{import,smuggled-module}, python.dynamic-import", "use what the language has built in"),
        ("python.{dynamic-code,eval}, script.text-as-code, strict.call", "write the code out"),
        (
            "python.{dynamic-command,starts,processes}, script.starts-a-shell",
            "leave it out: code here starts no programs",
        ),
        ("script.{secret,assigned-secret,unquoted-secret}", "leave the secret out"),
        ("strict.{file,request}, python.{network,pickle}", "write the data into the code"),
        ("python.dynamic-attribute", "use plain names and attributes"),
        ("source.too-large", "split it into smaller pieces"),
        ("source.too-deep", "write it with less nesting"),
    )
    for rule in listed(rules)
}
"""Suggestions for `core`, by rule id, for rules whose own suggestion names something that `core` refuses."""


def rules_of(pack: str) -> tuple[Rule, ...]:
    """Return the rules of a pack, in a fixed order. Raises `KeyError` for an unknown one."""
    if pack == "none":
        return ()
    tables = [read(name) for name in ("files", "system", "outside", "shell")]
    table = read("python")
    python, reads_the_web = table.sections, table.texts["reads-the-web"]
    javascript = read("javascript").sections
    standard = (
        *(rule for table in tables for rules in table.sections.values() for rule in rules),
        *python["always"],
        *python["on the host"],
        *javascript["always"],
        *javascript["on the host"],
    )
    if pack == "standard":
        return standard
    scripts = (
        *map(_by_text, _forbidding(standard, _SCRIPT_FORBIDS)),
        *python["syntax"],
        *read("script").sections["script"],
    )
    strict = (*_forbidding(scripts, _STRICT_FORBIDS), *python["strict"], *javascript["strict"])
    strict = tuple(_allowing(rule, reads_the_web) for rule in strict)
    # The suggestions of the narrowest pack come first.
    core = (*python["core"], *javascript["core"], *map(_with_core_suggestion, strict))
    return {"script": scripts, "strict": strict, "core": core}[pack]


def _forbidding(rules: tuple[Rule, ...], ids: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules, with the decision `forbid` for those with one of the ids."""
    return tuple(replace(rule, decision=Decision.FORBID) if rule.id in ids else rule for rule in rules)


def _by_text(rule: Rule) -> Rule:
    """Return the rule; that about inline code matches any code in another language, however harmless it looks."""
    if rule.id != "shell.inline-code":
        return rule
    return replace(rule, traits=("shell.inline-code",), not_match=("perl script.pl",))


def _allowing(rule: Rule, names: str) -> Rule:
    """Return the rule; that about the network doesn't match `names`, which the allowlist of `strict` contains."""
    return replace(rule, unless=f"{rule.unless}|{names}") if rule.id == "python.network" else rule


def _with_core_suggestion(rule: Rule) -> Rule:
    """Return the rule with a suggestion that doesn't name anything that `core` refuses."""
    return replace(rule, suggestion=_CORE_SUGGESTIONS.get(rule.id, rule.suggestion))
