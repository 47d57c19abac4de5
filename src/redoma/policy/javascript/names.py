"""Resolve the names and the constant strings of a JavaScript program.

A name stands for all values that are assigned to it in any scope, so scopes aren't tracked, and no value is missed
because it is in another scope.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN
from . import calls

if TYPE_CHECKING:
    from tree_sitter import Node

_MAX_DEPTH = 120
_MAX_WORK = 400_000
_MAX_NAMES = 8
_MAX_TEXT = 64 << 10
_ESCAPE = lazy_pattern(
    r"\\u\{([0-9a-fA-F]{1,6})\}|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\([0-7]{1,3})|\\(\r\n|.)", re.DOTALL
)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v"}
_WRAPPERS = frozenset({"parenthesized_expression", "await_expression", "spread_element", "non_null_expression"})
_PATTERNS = frozenset(
    {"object_pattern", "array_pattern", "rest_pattern", "assignment_pattern", "object_assignment_pattern"}
)
_JOINERS = frozenset({"path.join", "path.resolve", "path.posix.join", "path.posix.resolve", "path.normalize"})


def text_of(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def unescaped(text: str) -> str:
    """Return the text of a string or name with its escapes decoded."""
    if "\\" not in text:
        return text

    def read(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code:
            number = int(code, 16)
            return chr(number) if number < 0x110000 else UNKNOWN
        if found[4]:
            return chr(int(found[4], 8))
        return "" if found[5] in ("\n", "\r", "\r\n", "\u2028", "\u2029") else _PLAIN_ESCAPES.get(found[5], found[5])

    return _ESCAPE.sub(read, text)


def named(node: Node) -> list[Node]:
    """Return the children of a node, without punctuation and comments."""
    return [child for child in node.named_children if child.type not in ("comment", "html_comment")]


def arguments_of(call: Node) -> list[Node]:
    """Return the arguments of a call; for a tagged template, the template."""
    given = call.child_by_field_name("arguments")
    if given is None:
        return []
    return [given] if given.type == "template_string" else named(given)


class Names:
    """What the names of one program stand for, collected from all its nodes.

    `exhausted`: whether a limit was reached, so that not every name is resolved.
    """

    def __init__(self, nodes: Sequence[Node], parents: Mapping[int, Node]) -> None:
        self.exhausted = False
        self._parents = parents
        self._work = _MAX_WORK
        self._values: dict[str, list[tuple[Node | None, tuple[str, ...]]]] = {}
        """By name: the values assigned to it (None if unknown). With each, the path of the member that is assigned, for
        a pattern: after `const {a: {b}} = c`, `b` has the value c and the path ("a", "b")."""
        self._found: dict[int, tuple[str, ...]] = {}
        """Cached results of `full_names`, by the id of the node."""
        self._named: dict[str, tuple[str, ...]] = {}
        """Cached results of `_of_name`."""
        self._open: set[int] = set()
        """The ids of the nodes that are being resolved."""
        self._cuts = 0
        """How often a name was left unknown because of a cycle or a limit. Results that depend on one aren't cached,
        except at the outermost call."""
        for node in nodes:
            self._note(node)

    # --- what is bound ---

    def _note(self, node: Node) -> None:
        match node.type:
            case "variable_declarator":
                self._bind(node.child_by_field_name("name"), node.child_by_field_name("value"), ())
            case "assignment_expression" | "augmented_assignment_expression":
                left = node.child_by_field_name("left")
                if left is not None and (left.type == "identifier" or left.type in _PATTERNS):
                    self._bind(left, node.child_by_field_name("right"), ())
            case "import_clause":
                self._import(node)
            case "function_declaration" | "generator_function_declaration" | "class_declaration":
                self._bind(node.child_by_field_name("name"), None, ())
            case "formal_parameters":
                for parameter in named(node):
                    self._bind(parameter, None, ())
            case "arrow_function" | "catch_clause":
                self._bind(node.child_by_field_name("parameter"), None, ())
            case "for_in_statement":
                self._bind(node.child_by_field_name("left"), None, ())

    def _bind(self, target: Node | None, value: Node | None, members: tuple[str, ...]) -> None:
        """Bind the names of a pattern to a value, or to members of it."""
        pending = [(target, value, members)]
        while pending:
            target, value, members = pending.pop()
            if target is None:
                continue
            match target.type:
                case "identifier" | "shorthand_property_identifier_pattern":
                    name = unescaped(text_of(target))
                    own = (*members, name) if target.type != "identifier" else members
                    values = self._values.setdefault(name, [])
                    if value is not None or not values or values[-1][0] is not None:
                        values.append((value, own))
                case "assignment_pattern" | "object_assignment_pattern":
                    left, default = target.child_by_field_name("left"), target.child_by_field_name("right")
                    pending += [(left, value, members), (left, default, ())]
                case "pair_pattern":
                    key = target.child_by_field_name("key")
                    member = self.key(key) if key is not None else UNKNOWN
                    pending.append((target.child_by_field_name("value"), value, (*members, member)))
                case "object_pattern" | "rest_pattern":
                    pending += [(child, value, members) for child in named(target)]
                case "array_pattern":
                    pending += [(child, value, (*members, UNKNOWN)) for child in named(target)]

    def _import(self, clause: Node) -> None:
        statement = self._parents.get(clause.id)
        source = statement.child_by_field_name("source") if statement is not None else None
        for child in named(clause):
            if child.type == "identifier":
                self._bind(child, source, ())
            elif child.type == "namespace_import":
                for space in named(child):
                    self._bind(space, source, ())
            elif child.type == "named_imports":
                for one in named(child):
                    name = one.child_by_field_name("name")
                    if name is not None:
                        member = unescaped(text_of(name)).strip("'\"")
                        own = () if member == "default" else (member,)
                        self._bind(one.child_by_field_name("alias") or name, source, own)

    def is_bound(self, name: str) -> bool:
        """Return whether the program binds a name."""
        return name in self._values

    def key(self, node: Node) -> str:
        """Return the name of a member, given the node that names it; UNKNOWN if it isn't known."""
        if node.type in ("property_identifier", "private_property_identifier", "shorthand_property_identifier"):
            return unescaped(text_of(node))
        if node.type == "computed_property_name":
            return next((self.key(child) for child in named(node)), UNKNOWN)
        if node.type == "number":
            return text_of(node)
        text = self.text(node)
        return UNKNOWN if text is None or UNKNOWN in text else text

    # --- what it means ---

    def full_names(self, node: Node) -> tuple[str, ...]:
        """Return what an expression may stand for: dotted names of modules and globals, with aliases resolved. The
        result of a call has the name of the function with `()`; UNKNOWN is what can't be followed."""
        known = self._found.get(node.id)
        if known is not None:
            return known
        self._work -= 1
        if node.id in self._open or len(self._open) > _MAX_DEPTH or self._work < 0:
            self.exhausted = self.exhausted or node.id not in self._open
            self._cuts += 1
            return (UNKNOWN,)
        before = self._cuts
        self._open.add(node.id)
        try:
            found = tuple(dict.fromkeys(self._find_names(node)))
        finally:
            self._open.discard(node.id)
        if len(found) > _MAX_NAMES:
            watched = [name for name in found if name.partition(".")[0] in calls.SENSITIVE | calls.WATCHED_GLOBALS]
            found = tuple([*watched, *found][:_MAX_NAMES])
        found = found or (UNKNOWN,)
        if before == self._cuts or not self._open:
            self._found[node.id] = found
        return found

    def _find_names(self, node: Node) -> Iterator[str]:
        match node.type:
            case "identifier" | "shorthand_property_identifier":
                yield from self._of_name(unescaped(text_of(node)))
            case "import":
                yield "import"
            case "this":
                yield from ("this", "globalThis")
            case "string" if (around := self._parents.get(node.id)) is not None and around.type == "import_statement":
                yield module_name(self.text(node) or UNKNOWN)
            case "member_expression" | "subscript_expression":
                owner = node.child_by_field_name("object")
                key = node.child_by_field_name("property") or node.child_by_field_name("index")
                if owner is not None and key is not None:
                    member = self.key(key)
                    yield from (joined(name, member) for name in self.full_names(owner))
            case "call_expression":
                yield from self._of_call(node)
            case "new_expression":
                maker = node.child_by_field_name("constructor")
                yield from (f"{name}()" for name in (self.full_names(maker) if maker is not None else (UNKNOWN,)))
            case "assignment_expression":
                yield from self._of_fields(node, "right")
            case "ternary_expression":
                yield from self._of_fields(node, "consequence", "alternative")
            case "binary_expression":
                operator = node.child_by_field_name("operator")
                if operator is not None and operator.type in ("||", "&&", "??"):
                    yield from self._of_fields(node, "left", "right")
                else:
                    yield UNKNOWN
            case "sequence_expression":
                yield from self.full_names(named(node)[-1])
            case kind if kind in _WRAPPERS and node.named_child_count:
                yield from self.full_names(named(node)[0])
            case _:
                yield UNKNOWN

    def _of_fields(self, node: Node, *fields: str) -> Iterator[str]:
        for field in fields:
            child = node.child_by_field_name(field)
            if child is not None:
                yield from self.full_names(child)

    def _of_name(self, name: str) -> tuple[str, ...]:
        """Return what a name may stand for. Cached, because a common name may be bound in hundreds of places."""
        known = self._named.get(name)
        if known is None:
            before = self._cuts
            known = tuple(dict.fromkeys(self._bound(name)))
            if before == self._cuts:
                self._named[name] = known
        return known

    def _bound(self, name: str) -> Iterator[str]:
        bound = self._values.get(name)
        if bound is None or name in calls.WATCHED_GLOBALS:
            yield "globalThis" if name in calls.GLOBAL_OBJECTS else name
        for value, members in bound or ():
            if value is None:
                yield name
                continue
            for full_name in self.full_names(value):
                for member in members:
                    full_name = joined(full_name, member)
                yield full_name if full_name != UNKNOWN else name

    def _of_call(self, node: Node) -> Iterator[str]:
        function, given = node.child_by_field_name("function"), arguments_of(node)
        if function is None:
            return
        for name in self.full_names(function):
            last = name.rpartition(".")[2]
            if (last in calls.IMPORTERS or name == "import") and given:
                text = self.text(given[0])
                yield UNKNOWN if text is None or UNKNOWN in text else module_name(text)
            elif name in calls.PASSING and given:
                yield from self.full_names(given[0])
            elif last == "bind":
                yield name.removesuffix(".bind")
            else:
                yield f"{name}()"

    # --- texts ---

    def text(self, node: Node, depth: int = 0) -> str | None:
        """Return the string an expression evaluates to, with UNKNOWN for unknown parts; None if nothing is known."""
        self._work -= 1
        if depth > _MAX_DEPTH or self._work < 0:
            return None
        match node.type:
            case "string":
                return unescaped(text_of(node)[1:-1])
            case "template_string":
                return self._template(node, depth)
            case "number":
                return text_of(node)
            case "binary_expression":
                return self._sum(node, depth)
            case "identifier":
                return self._text_of_name(unescaped(text_of(node)), depth)
            case "member_expression" | "call_expression":
                return self._text_by_name(node, depth)
            case kind if kind in _WRAPPERS and node.named_child_count:
                return self.text(named(node)[0], depth + 1)
        return None

    def _template(self, node: Node, depth: int) -> str:
        parts = [
            unescaped(text_of(child))
            if child.type != "template_substitution"
            else next((self.text(inner, depth + 1) for inner in named(child)), None) or UNKNOWN
            for child in node.named_children
        ]
        return "".join(parts)[:_MAX_TEXT]

    def _sum(self, node: Node, depth: int) -> str | None:
        """Return the string that `"a" + b + "c"` evaluates to. Not recursive: there may be thousands of parts."""
        parts: list[str | None] = []
        while node.type == "binary_expression":
            operator, right = node.child_by_field_name("operator"), node.child_by_field_name("right")
            left = node.child_by_field_name("left")
            if operator is None or operator.type != "+" or left is None or right is None:
                return None
            parts.append(self.text(right, depth + 1))
            node = left
        parts.append(self.text(node, depth + 1))
        if all(part is None for part in parts):
            return None
        return "".join(part if part is not None else UNKNOWN for part in reversed(parts))[:_MAX_TEXT]

    def _text_of_name(self, name: str, depth: int) -> str | None:
        if name == "__dirname":
            return "."
        bound = self._values.get(name, [])
        if len(bound) != 1 or bound[0][0] is None or bound[0][1]:
            return None  # not known, or one of several values
        return self.text(bound[0][0], depth + 10)

    def _text_by_name(self, node: Node, depth: int) -> str | None:
        full_name = self.full_names(node)[0]
        if full_name in ("process.env.HOME", "os.homedir()"):
            return "~"
        if full_name == "process.cwd()":
            return "."
        function = node.child_by_field_name("function")
        if function is None or self.full_names(function)[0] not in _JOINERS:
            return None
        parts = [self.text(each, depth + 1) or UNKNOWN for each in arguments_of(node)]
        return posixpath.join(*parts) if parts else None

    def words(self, node: Node) -> list[str] | None:
        """Return the strings of an array literal, UNKNOWN for each unknown one; None if it isn't an array literal."""
        if node.type == "identifier":
            bound = self._values.get(unescaped(text_of(node)), [])
            if len(bound) == 1 and bound[0][0] is not None and not bound[0][1] and bound[0][0].type == "array":
                node = bound[0][0]
        if node.type != "array":
            return None
        return [UNKNOWN if each.type == "spread_element" else self.text(each) or UNKNOWN for each in named(node)]


def joined(owner: str, member: str) -> str:
    """Return the name of a member of `owner`: `globalThis.x` is x, a default export is its module, `f.call` is f."""
    if owner == "globalThis" and member != UNKNOWN:
        return "globalThis" if member in calls.GLOBAL_OBJECTS else member
    if member == "default" or (member in ("call", "apply") and owner != UNKNOWN):
        return owner
    if owner == "fs" and member == "promises":
        return "fs"
    return f"{owner}.{member}"


def module_name(text: str) -> str:
    """Return the plain name of a module, without `node:`; that of `fs/promises` is `fs`."""
    name = text.removeprefix("node:")
    return "fs" if name == "fs/promises" else name
