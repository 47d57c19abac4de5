"""Converts a parsed file to typed values, and reports every error with line, column and key.

The types themselves are the schema: the tree and `msgspec.inspect`'s description of a type are walked in parallel. So a
field added to a struct is accepted, checked and suggested in messages without a change here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, inspect

from ..lib.text import suggest
from ..lib.units import parse_duration, parse_size
from . import document
from .document import Node, Scalar
from .model import Problem

_BYTES = frozenset({"memory", "memory_limit", "output_bytes", "output_total", "file_size", "disk", "max_body", "tail"})
"""Keys that count bytes, and so may be written with a unit."""
_NUMBERS: dict[str, tuple[str, Callable[[str], int | float | None]]] = {
    "": ("a number", lambda text: None),
    "bytes": ('a number of bytes, or a size such as "256MiB"', parse_size),
    "seconds": ("a number of seconds, or a time such as 5m", parse_duration),
}
"""Unit → what to expect, and how to parse it as text."""


class Reader:
    """Reads the values of one file. Errors are added to `problems`; an invalid value is UNSET in a list and left out of
    a mapping. `~` stands for `home`.
    """

    def __init__(self, file: Path, home: Path | None) -> None:
        self.file, self.home = file, home
        self.problems: list[Problem] = []
        self.marks: dict[str, tuple[int, int]] = {}
        """Dotted key → where it is written."""

    def report(self, node: Node, path: str, message: str, hint: str) -> None:
        """Add a problem at a node; `path` is its dotted key."""
        place = {"line": node.line, "column": node.column}
        self.problems.append(Problem(file=self.file, key=path, message=message, hint=hint, **place))

    def report_at(self, path: str, message: str, hint: str) -> None:
        """Add a problem at the position of a dotted key."""
        line, column = self.marks[path]
        self.report(Node(line=line, column=column), path, message, hint)

    def wrong(self, node: Node, path: str, expected: str, hint: str = "") -> Any:
        """Report that something else was expected, and return UNSET."""
        self.report(node, path, f"expected {expected}, found {_found(node)}", hint or f"write {expected}")
        return UNSET

    def value(self, node: Node, kind: inspect.Type, path: str, *, complete: bool = False) -> Any:
        """Return a node's value as that type. A section may leave out any key; an item must be `complete`."""
        self.marks.setdefault(path, (node.line, node.column))
        match kind:
            case inspect.StructType(tag=str()):
                return self.tagged(node, [kind], path)
            case inspect.StructType():
                return self.struct(node, kind, path, complete=complete)
            case inspect.Metadata(extra={"any_of": struct}):  # some of its fields, as given
                return self.struct(node, inspect.type_info(struct), path, complete=False)  # type: ignore[arg-type]
            case inspect.Metadata(type=inspect.FloatType() as seconds, extra={"unit": "seconds"}):
                return self.number(node, seconds, path, "seconds")
            case inspect.Metadata(type=inspect.StrType() as name, extra={"expected": str(expected)}):
                return self.text(node, name, path, expected)
            case inspect.DictType():
                return self.mapping(node, None, path, kind.value_type)
            case inspect.VarTupleType():
                return self.sequence(node, kind, path)
            case inspect.UnionType():
                options = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
                structs = [each for each in options if isinstance(each, inspect.StructType) and each.tag]
                # `X | None` is read as X: None is expressed by leaving the key out.
                return (
                    self.tagged(node, structs, path) if structs else self.value(node, options[0], path, complete=True)
                )
            case inspect.AnyType():
                return node
            case _:
                return self.scalar(node, kind, path)

    def tagged(self, node: Node, kinds: Sequence[inspect.StructType], path: str) -> Any:
        """Return one struct of several, chosen by its tag; UNSET if it is invalid."""
        if not isinstance(node, document.Mapping):
            return self.wrong(node, path, "a mapping of keys to values")
        before = len(self.problems)
        field = str(kinds[0].tag_field)
        by_tag = {str(kind.tag): kind for kind in kinds}
        tags = [self.choice(value, f"{path}.{field}", list(by_tag)) for key, value in node.pairs if key.text == field]
        if not tags:
            self.report(node, path, f"the key {field!r} is missing", f"add `{field}: {next(iter(by_tag))}`")
        if len(self.problems) > before:
            return UNSET
        kind = by_tag[tags[0]]
        values = self.struct(node, kind, path, complete=True)
        if len(self.problems) > before:
            return UNSET
        del values[field]
        return kind.cls(**values)

    def struct(self, node: Node, kind: inspect.StructType, path: str, *, complete: bool) -> Any:
        """Return the given fields of a struct; if `complete`, report required fields that are missing."""
        fields: dict[str, inspect.Type] = {field.encode_name: field.type for field in kind.fields}
        if kind.tag_field:
            fields[kind.tag_field] = inspect.LiteralType((kind.tag,))
        if complete:
            if not isinstance(node, document.Mapping):  # a section may be empty, but an item may not
                return self.wrong(node, path, "a mapping of keys to values")
            present = {key.text for key, _ in node.pairs}
            for field in kind.fields:
                if field.required and field.encode_name not in present:
                    name = field.encode_name
                    self.report(node, path, f"the key {name!r} is missing", f"add `{name}: ...`")
        return self.mapping(node, fields, path)

    def mapping(
        self, node: Node, fields: dict[str, inspect.Type] | None, path: str, other: inspect.Type | None = None
    ) -> Any:
        """Return keys and values: each field with its own type, or any key with the type `other`."""
        if isinstance(node, Scalar) and node.value is None:
            return {}  # a section whose lines are all commented out
        if not isinstance(node, document.Mapping):
            return self.wrong(node, path, "a mapping of keys to values")
        values = {}
        for key, child in node.pairs:
            below = f"{path}.{key.text}" if path else key.text
            kind = other if fields is None else fields.get(key.text)
            if kind is None:
                self.report(key, below, f"unknown key {key.text!r}", suggest(key.text, fields or ()))
                continue
            self.marks[below] = (key.line, key.column)
            value = self.value(child, kind, below)
            if value is not UNSET:
                values[key.text] = value
        return values

    def sequence(self, node: Node, kind: inspect.VarTupleType, path: str) -> Any:
        """Return a list as a tuple of one type."""
        if isinstance(node, Scalar) and node.value is None:
            return ()
        if not isinstance(node, document.Sequence):
            return self.wrong(node, path, "a list")
        return tuple(
            self.value(item, kind.item_type, f"{path}[{i}]", complete=True) for i, item in enumerate(node.items)
        )

    def items(self, nodes: Sequence[Node], kind: inspect.Type, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the dotted key and the fields of each valid item of a list."""
        for number, node in enumerate(nodes):
            place, before = f"{path}[{number}]", len(self.problems)
            values = self.value(node, kind, place, complete=True)
            if len(self.problems) == before:
                yield place, values

    def scalar(self, node: Node, kind: inspect.Type, path: str) -> Any:
        """Return a single value of a plain type. Raises `TypeError` for a type that no configuration has."""
        match kind:
            case inspect.BoolType():
                if isinstance(node, Scalar) and isinstance(node.value, bool):
                    return node.value
                return self.wrong(node, path, "true or false")
            case inspect.IntType():
                return self.number(node, kind, path, "bytes" if path.rpartition(".")[2] in _BYTES else "")
            case inspect.FloatType():
                return self.number(node, kind, path)
            case inspect.EnumType(cls=cls):
                chosen = self.choice(node, path, [str(member.value) for member in cls])
                return chosen if chosen is UNSET else cls(chosen)
            case inspect.LiteralType(values=values):
                return self.choice(node, path, [str(value) for value in values])
            case inspect.CustomType():  # the only one in use is Path
                return self.path(node, path)
            case inspect.StrType():
                return self.text(node, kind, path)
        raise TypeError(f"{path} is of a type that configuration can't be read as: {kind}")

    def choice(self, node: Node, path: str, valid: Sequence[str]) -> Any:
        """Return one of the valid words."""
        # As written: `version: 1.0` is the version "1.0" with or without quotes.
        if isinstance(node, Scalar) and node.text in valid:
            return node.text
        if len(valid) == 1:
            return self.wrong(node, path, repr(valid[0]))
        hint = suggest(node.text, valid) if isinstance(node, Scalar) else ""
        return self.wrong(node, path, f"one of {', '.join(valid)}", hint)

    def number(self, node: Node, kind: inspect.IntType | inspect.FloatType, path: str, unit: str = "") -> Any:
        """Return a number within its bounds; it may be written with its `unit`, "bytes" or "seconds"."""
        expected, parse = _NUMBERS[unit]
        whole = isinstance(kind, inspect.IntType)
        number = _number(node)
        if number is None and isinstance(node, Scalar):
            number = parse(node.text)
        if number is None or (whole and not isinstance(number, int)):
            return self.wrong(node, path, "a whole number" if whole and not unit else expected)
        if (kind.ge is not None and number < kind.ge) or (kind.le is not None and number > kind.le):
            form = "d" if whole else "g"
            low = format(kind.ge or 0, form)
            bounds = f"from {low} to {format(kind.le, form)}" if kind.le is not None else f"of at least {low}"
            return self.wrong(node, path, f"a number {bounds}")
        return number if whole else float(number)

    def text(
        self,
        node: Node,
        kind: inspect.StrType,
        path: str,
        name: str = "a name of letters, digits, `_`, `.` and `-`",
    ) -> Any:
        """Return text; `name` says what to expect if it doesn't match the pattern."""
        if not isinstance(node, Scalar):
            return self.wrong(node, path, "text")
        if not isinstance(node.value, str):
            return self.wrong(node, path, "text", f'put it in quotes: "{node.text}"' if node.text else "")
        if "\0" in node.text:
            return self.wrong(node, path, "text without a NUL character")
        if kind.pattern and not re.search(kind.pattern, node.text):
            return self.wrong(node, path, name)
        if len(node.text) < (kind.min_length or 0):
            return self.wrong(node, path, "text that is not empty")
        return node.text

    def path(self, node: Node, path: str) -> Any:
        """Return an absolute path of the host."""
        written = self.text(node, inspect.StrType(min_length=1), path)
        if written is UNSET:
            return UNSET
        resolved = self.resolved(written)
        return self.wrong(node, path, "an absolute path, or one below your own `~`") if resolved is None else resolved

    def resolved(self, written: str) -> Path | None:
        """Return a written path as an absolute one of the host; None for one below another user's `~`."""
        first, _, rest = written.partition("/")
        if first == "~" and self.home:
            return self.home / os.path.normpath(rest)
        if first.startswith("~"):
            return None
        # Relative to the file, not to where Redoma is started: a file means the same everywhere.
        return Path(os.path.normpath(self.file.parent / written))


def _number(node: Node) -> int | float | None:
    value = node.value if isinstance(node, Scalar) else None
    # A boolean is an int to Python, but `time: true` is a mistake.
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _found(node: Node) -> str:
    if not isinstance(node, Scalar):
        return "a list" if isinstance(node, document.Sequence) else "a mapping"
    match node.value:
        case None:
            return "nothing"
        case str():
            return f"the text {node.text[:60]!r}"
        case bool():
            return node.text
        case _:
            return f"the number {node.text}"
