"""Read the tables of built-in rules, the `*.rules` files in this directory.

    # A comment.
    let homes = /, ~, /home        `%homes%` stands for the text from here on
    [removal: files]               a section, and what its rules touch unless one says otherwise
    remove.x: refuse outright      a rule: its id; `ask`, `refuse` or `on-host`; perhaps `outright`
      command: rm, {git,hg} rm     a field of `Rule`; further lines of a value are indented deeper
      match: rm -r a ¦ rm "\\n"     examples, with the escapes of Python

A list is separated by commas and spaces; `{a,b}c` in it is `ac, bc`. `on-host` rules ask, under every pack, where the
request can really do it; in a sandbox it is an ordinary thing to do.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from ...lib.patterns import lazy_pattern
from ...lib.types import resolved
from ...models import Decision
from ...models.reach import Resource
from ..rules import Rule

_PART, _USE = re.compile(r"\n  (?=\w)"), lazy_pattern(r"%([a-z-]+)%")
_ENTRY = lazy_pattern(r"^[^#\s].*(?:\n[ \t]+\S.*)*", re.MULTILINE)
_LISTS = frozenset({"command", "flags", "args", "writes", "imports", "calls", "attributes", "traits", "touches"})
_BRACES = lazy_pattern(r"\{([^{}]*[,|][^{}]*)\}")
_KINDS: dict[str, dict[str, Any]] = {
    "ask": {"decision": Decision.PROMPT},
    "refuse": {"decision": Decision.FORBID},
    "on-host": {"decision": Decision.PROMPT, "by_reach": True},
    "outright": {"outright": True},
}


class Table(NamedTuple):
    sections: dict[str, tuple[Rule, ...]]
    texts: dict[str, str]
    """Texts defined by `let`, by name."""


def read(name: str) -> Table:
    """Read the rules of one file."""
    sections: dict[str, tuple[Rule, ...]] = {}
    texts: dict[str, str] = {}
    section, touches = "", ""
    source = Path(__file__).with_name(f"{name}.rules").read_text(encoding="utf-8")
    for entry in _ENTRY.findall(source):
        known = _USE.sub(lambda found: texts[found[1]], entry) if "%" in entry else entry
        if known.startswith("let "):
            title, _, text = known[4:].partition(" =")
            texts[title] = text.strip()
        elif known.startswith("["):
            section, _, touches = known.strip("[]").partition(": ")
        else:
            sections[section] = (*sections.get(section, ()), _rule(known, touches))
    return Table(sections, texts)


def _rule(entry: str, touches: str) -> Rule:
    head, *parts = _PART.split(entry)
    rule_id, _, kinds = head.partition(": ")
    fields: dict[str, Any] = {"id": rule_id, "touches": listed(touches)}
    for kind in kinds.split():
        fields |= _KINDS[kind]
    for part in parts:
        name, _, value = part.partition(":")
        fields[name] = _value(name, value.strip())
    return msgspec.convert(fields, resolved(Rule), strict=False)


def _value(field: str, text: str) -> object:
    if field in _LISTS:
        return listed(text)
    if field in ("match", "not_match"):
        examples = re.split(r" ¦\s+", text) if "¦" in text else [text]
        return [_unescaped(example) if "\\" in example else example for example in examples]
    if "\n" not in text:
        return text
    return re.sub(r"\n *", "" if field in ("unless", "pattern") else " ", text)


def _unescaped(example: str) -> str:
    return example.encode("latin-1", "backslashreplace").decode("unicode_escape")


def listed(text: str) -> tuple[str, ...]:
    """Return the entries of a list; `everything` stands for all resources."""
    if text == "everything":
        return get_args(Resource)
    if not text:
        return ()
    text = " ".join(text.split())
    if "{" not in text:
        return tuple([entry.removeprefix('""') for entry in text.split(", ")])
    found: list[str] = []
    for entry in _BRACES.sub(_without_spaces, text).split(", "):
        parts = _BRACES.split(entry) if "{" in entry else ()
        choices = [part.replace("|", ",").split(",") if at % 2 else [part] for at, part in enumerate(parts)]
        found += map("".join, product(*choices)) if len(parts) > 1 else [entry.removeprefix('""')]
    return tuple(found)


def _without_spaces(braces: re.Match[str]) -> str:
    return braces[0].replace(", ", ",").replace(" |", "|").replace("| ", "|")
