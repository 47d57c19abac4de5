"""Parses YAML text into a tree that records the position of everything.

Only the part of YAML that configuration needs: mappings, lists and scalars. Tags, anchors and aliases are refused (they
construct objects and grow exponentially). Scalars are read by a few simple rules of our own, because YAML 1.1 reads
`on` as true, `1:30` as 90, `010` as 8 and `1_000` as 1000.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from .model import InvalidFile, Problem
from .places import Source

_MAX_DEPTH = 20
_MAX_NODES = 20_000
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})\Z")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?\Z")
# Control characters can't be seen. Bidirectional ones make a file look different to a person who reviews it before
# trusting it.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the file, with its position. A bare `Node` is only a position."""

    line: int
    column: int


class Scalar(Node, frozen=True, kw_only=True):
    """A single value, or a key."""

    text: str
    """As written, after quote removal."""
    plain: bool
    """Whether it is not quoted: then it may be a number, a boolean or null."""

    @property
    def value(self) -> str | int | float | bool | None:
        """The value by our own rules, see above."""
        if not self.plain:
            return self.text
        if self.text in ("", "~", "null"):
            return None
        if self.text in ("true", "false"):
            return self.text == "true"
        if _INTEGER.match(self.text):
            return int(self.text)
        return float(self.text) if _FLOAT.match(self.text) else self.text


class Sequence(Node, frozen=True, kw_only=True):
    """A list."""

    items: tuple[Node, ...]


class Mapping(Node, frozen=True, kw_only=True):
    """Keys and values, in the order of the file."""

    pairs: tuple[tuple[Scalar, Node], ...]


def parse(source: Source) -> Node:
    """Parse a file. Raises `InvalidFile` with everything in it that is not accepted."""
    composer = _Composer(source)
    root = composer.document()
    if composer.problems:
        # Refused parts are missing from the tree, so the tree must not be used.
        raise InvalidFile(tuple(composer.problems))
    return root


class _Composer:
    def __init__(self, source: Source) -> None:
        self.file = source.path
        self.problems: list[Problem] = []
        self.nodes = 0
        self.events = _events(source)

    def document(self) -> Node:
        next(self.events)  # the start of the stream
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return Mapping(line=1, column=1, pairs=())
        root = self.node(next(self.events), 0)
        next(self.events)  # the end of the document
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise InvalidFile((self.problem(event, "there is a second document", "keep one document in a file"),))
        return root

    def problem(self, event: Any, message: str, hint: str) -> Problem:
        line, column = _position(event.start_mark)
        return Problem(file=self.file, line=line, column=column, message=message, hint=hint)

    def node(self, event: Any, depth: int) -> Node:
        self.nodes += 1
        if depth > _MAX_DEPTH or self.nodes > _MAX_NODES:
            raise InvalidFile((self.problem(event, "it is nested too deeply or too large", "keep it simple"),))
        line, column = _position(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            self.problems.append(self.problem(event, "aliases are not accepted", "write the value out"))
            return Node(line=line, column=column)
        if event.anchor is not None:
            self.problems.append(self.problem(event, "anchors are not accepted", "write each value out"))
        if event.tag is not None:
            self.problems.append(self.problem(event, f"the tag {event.tag!r} is not accepted", "remove it"))
        if isinstance(event, yaml.SequenceStartEvent):
            return Sequence(line=line, column=column, items=tuple(self.items(depth)))
        if isinstance(event, yaml.MappingStartEvent):
            return Mapping(line=line, column=column, pairs=tuple(self.pairs(depth)))
        return Scalar(line=line, column=column, text=event.value, plain=not event.style)

    def items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.node(event, depth + 1)

    def pairs(self, depth: int) -> Iterator[tuple[Scalar, Node]]:
        seen: dict[str, int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, value = self.node(event, depth + 1), self.node(next(self.events), depth + 1)
            if not isinstance(key, Scalar):
                self.problems.append(self.problem(event, "a key is not plain text", "write a name before the colon"))
            elif key.text in seen:
                message = f"the key {key.text!r} is already on line {seen[key.text]}"
                self.problems.append(self.problem(event, message, "keep one of them"))
            else:
                seen[key.text] = key.line
                yield key, value


def _events(source: Source) -> Iterator[Any]:
    """Yield parser events. Raises `InvalidFile`, with the position, for text that is not YAML."""
    try:
        text = source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = source.data.count(b"\n", 0, error.start) + 1
        column = error.start - source.data.rfind(b"\n", 0, error.start)
        raise _invalid(source.path, line, column, "it is not UTF-8 text", "save it as UTF-8") from None
    if invisible := _INVISIBLE.search(text):
        start = invisible.start()
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        what = f"it holds the invisible character {invisible.group()!a}"
        raise _invalid(source.path, line, column, what, "remove it, or write it as an escape in double quotes")
    try:
        yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line, column = _position(error.problem_mark or error.context_mark)
        what = ", ".join(filter(None, (error.context, error.problem)))
        raise _invalid(source.path, line, column, f"it is not valid YAML ({what})", "correct this place") from None
    except yaml.YAMLError as error:
        raise _invalid(source.path, 0, 0, f"it is not valid YAML ({error})", "correct it") from None


def _position(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark else (0, 0)


def _invalid(file: Path, line: int, column: int, message: str, hint: str) -> InvalidFile:
    return InvalidFile((Problem(file=file, line=line, column=column, message=message, hint=hint),))
