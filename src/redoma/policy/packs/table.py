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

import functools
import re
from codecs import unicode_escape_decode
from itertools import product
from pathlib import Path
from typing import Any, get_args

import msgspec

from ...lib.patterns import lazy_pattern
from ...lib.types import resolved
from ...models import Decision
from ...models.reach import Resource
from ..rules import Rule

_USE = lazy_pattern(r"%([a-z-]+)%")
_LISTS = frozenset({"command", "flags", "args", "writes", "imports", "calls", "attributes", "traits", "touches"})
_BRACES = lazy_pattern(r"\{([^{}]*[,|][^{}]*)\}")
_KINDS: dict[str, dict[str, Any]] = {
    "ask": {"decision": Decision.PROMPT},
    "refuse": {"decision": Decision.FORBID},
    "on-host": {"decision": Decision.PROMPT, "by_reach": True},
    "outright": {"outright": True},
}


_RULES = resolved(tuple[Rule, ...])


class Table(msgspec.Struct, frozen=True):
    sections: dict[str, tuple[Rule, ...]]
    texts: dict[str, str]
    """Texts defined by `let`, by name."""


def read(name: str) -> Table:
    """Read the rules of one file."""
    sections: dict[str, list[dict[str, Any]]] = {}
    texts: dict[str, str] = {}
    section, touches = "", listed("")
    source = Path(__file__).with_name(f"{name}.rules").read_text(encoding="utf-8")
    for head, *parts in _entries(source):
        if head.startswith("let "):
            title, _, text = head[4:].partition(" =")
            texts[title] = _filled(text.strip(), texts)
        elif head.startswith("["):
            section, _, resources = _filled(head, texts).strip("[]").partition(": ")
            touches = listed(resources)
        else:
            sections.setdefault(section, []).append(_fields(head, [_filled(part, texts) for part in parts], touches))
    rules = {title: msgspec.convert(found, _RULES, strict=False) for title, found in sections.items()}
    return Table(rules, texts)


def _entries(source: str) -> list[list[str]]:
    """Return each entry of a file: its first line, then each field with the lines that go on with it."""
    entries: list[list[str]] = []
    for line in source.split("\n"):
        indent = line[:3]
        if indent == "   ":
            entries[-1][-1] += "\n" + line.lstrip()
        elif indent.startswith("  "):
            entries[-1].append(line[2:])
        elif indent and indent[0] != "#":
            entries.append([line])
    return entries


def _filled(text: str, texts: dict[str, str]) -> str:
    """Return the text with what `let` has defined put in."""
    return _USE.sub(lambda found: texts[found[1]], text) if text.count("%") > 1 else text


def _fields(head: str, parts: list[str], touches: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a rule."""
    rule_id, _, kinds = head.partition(": ")
    fields: dict[str, Any] = {"id": rule_id, "touches": touches}
    for kind in kinds.split():
        fields |= _KINDS[kind]
    for part in parts:
        name, _, value = part.partition(":")
        fields[name] = _value(name, value.strip())
    return fields


def _value(field: str, text: str) -> object:
    if field in _LISTS:
        return listed(text)
    if field in ("match", "not_match"):
        examples = [example.lstrip() for example in text.split(" ¦")]
        return [_unescaped(example) if "\\" in example else example for example in examples]
    return text.replace("\n", "" if field in ("unless", "pattern") else " ")


def _unescaped(example: str) -> str:
    return unicode_escape_decode(example.encode("latin-1", "backslashreplace"))[0]


def listed(text: str) -> tuple[str, ...]:
    """Return the entries of a list; `everything` stands for all resources."""
    if text == "everything":
        return get_args(Resource)
    if not text:
        return ()
    if "\n" in text:
        text = " ".join(text.split())
    if "{" not in text:
        entries = text.split(", ")
        return tuple([entry.removeprefix('""') for entry in entries] if '""' in text else entries)
    found: list[str] = []
    for entry in _BRACES.sub(_without_spaces, text).split(", "):
        found += _choices(entry) if "{" in entry else [entry.removeprefix('""')]
    return tuple(found)


@functools.cache
def _choices(entry: str) -> list[str]:
    """Return the entries that one with braces stands for. Many are in several lists, by way of `let`."""
    parts = _BRACES.split(entry)
    choices = [part.replace("|", ",").split(",") if at % 2 else [part] for at, part in enumerate(parts)]
    return [*map("".join, product(*choices))]


def _without_spaces(braces: re.Match[str]) -> str:
    return braces[0].replace(", ", ",").replace(" |", "|").replace("| ", "|")
