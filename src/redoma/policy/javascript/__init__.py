"""Read a JavaScript program into facts: what it imports, calls and reads, which commands it starts, what it writes.

    source ─▶ tree-sitter ─▶ names.py (what each name stands for) ─▶ here (facts) ─▶ the rules

It is read as Node runs it, as a module or as a script. Commands that a program starts with constant words are read by
the shell's own reader, so one set of rules judges both. `calls.py` lists the functions of Node's library that matter.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...lib.patterns import lazy_pattern
from ..facts import (
    MAX_DEPTH,
    MAX_SOURCE,
    SOURCE_TRAITS,
    SURROGATE,
    UNKNOWN,
    Attribute,
    Call,
    Command,
    Fact,
    Import,
    Place,
    Trait,
    Unbound,
    normal,
    position,
)
from ..inner_code import UNKNOWN_WORD, InnerCode, deceptive_characters, quoted
from . import calls
from .names import Names, arguments_of, module_name, named, text_of

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

TRAITS = {
    "javascript.syntax-error": "it doesn't parse as JavaScript, or Node may read it differently",
    "javascript.dynamic-command": "it starts a command that can't be known beforehand",
    "javascript.dynamic-import": "it imports a module by a name that can't be known",
    "javascript.dynamic-member": "it hands a sensitive module around, or picks a member by a name that can't be known",
    "javascript.shell": "it hands a text to a shell",
    "javascript.removes-unknown": "it removes files that can't be known beforehand, or whole directories",
    **SOURCE_TRAITS,
}

_LINE_END = lazy_pattern(r"(?<!\\)(?:\\\\)*[\n\r]")
"""A line end in a string without a backslash before it, which is an error."""
_COMMENT_MARK = lazy_pattern(r"<!--|-->")
_TEXTS = frozenset(
    {"string", "string_fragment", "escape_sequence", "comment", "regex", "regex_pattern", "template_string"}
)
_NOT_RUN = frozenset({"jsx_element", "jsx_self_closing_element", "html_comment"})
_CALLS = frozenset({"call_expression", "new_expression"})
_BINDERS = frozenset(
    {"formal_parameters", "import_specifier", "import_clause", "namespace_import", "function_declaration"}
    | {"class_declaration", "catch_clause", "rest_pattern", "array_pattern", "pair_pattern", "labeled_statement"}
    | {"break_statement", "continue_statement", "function_expression"}
)
"""Nodes in which a name is bound or is a label, and not read."""
_INSPECTING_OPERATORS = frozenset({"typeof", "instanceof", "===", "!==", "==", "!=", "in"})
_PASSING_NODES = frozenset(
    {"parenthesized_expression", "await_expression", "expression_statement", "binary_expression", "ternary_expression"}
)
"""Nodes that only pass the value inside them to the node around them."""


def facts(source: str, depth: int = 0) -> list[Fact]:
    """Return the facts of a program. Never raises, whatever the text is.

    `depth`: how deep this code is inside other code.
    """
    if depth > MAX_DEPTH:
        return [Trait(name="source.too-deep")]
    if len(source) > MAX_SOURCE:
        return [Trait(name="source.too-large")]
    found: list[Fact] = list(deceptive_characters(source))
    reader = _Reader(SURROGATE.sub("\ufffd", source.replace("\0", " ")), depth)
    found.extend(reader.read())
    if reader.names.exhausted:
        found.append(Trait(name="source.too-large"))
    return found


@functools.cache
def _parser() -> Parser:
    import tree_sitter_javascript
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_javascript.language()))


class _Reader:
    """Reads the facts of one program."""

    def __init__(self, source: str, depth: int) -> None:
        self.data = source.encode()
        self.tree = _parser().parse(self.data)
        self.nodes, self.parents = _all_nodes(self.tree.root_node)
        self.names = Names(self.nodes, self.parents)
        self.inner = InnerCode(source, depth)

    def read(self) -> Iterator[Fact]:
        """Yield the facts of every node, in the order of the source."""
        yield Unbound(why="what JavaScript loads when it runs is not followed")
        if self.tree.root_node.has_error:
            broken = next((node for node in self.nodes if node.is_error or node.is_missing), self.tree.root_node)
            yield Trait(name="javascript.syntax-error", **self.place(broken))
        yield from self.comment_facts()
        for node in self.nodes:
            if self.names.exhausted:
                return
            match node.type:
                case "identifier" | "shorthand_property_identifier" | "member_expression" | "subscript_expression":
                    yield from self.name_facts(node)
                case "call_expression" | "new_expression":
                    yield from self.call_facts(node)
                case "import_statement" | "export_statement":
                    if (module := node.child_by_field_name("source")) is not None:
                        yield from self.import_facts(self.names.text(module), self.place(node))
                case "with_statement":
                    yield Trait(name="javascript.dynamic-member", **self.place(node))
                case "string" if _LINE_END.search(text_of(node)):
                    yield Trait(name="javascript.syntax-error", **self.place(node))
                case kind if kind in _NOT_RUN:
                    yield Trait(name="javascript.syntax-error", **self.place(node))

    def comment_facts(self) -> Iterator[Fact]:
        """Yield a fact if Node may read as a comment what the parser reads as code: in a script, but not in a module,
        `<!--` begins a comment, and so does `-->` at the beginning of a line. Only the first one is reported: after it,
        the two readings may disagree on what is inside a string."""
        for found in _COMMENT_MARK.finditer(self.data.decode()):
            at = len(found.string[: found.start()].encode())
            node = self.tree.root_node.descendant_for_byte_range(at, at + 1)
            if node is not None and node.type in _TEXTS:
                continue
            line = found.string[: found.start()].rpartition("\n")[2]
            if found[0] == "<!--" or not line.strip() or "*/" in line:
                number, column = position(found.string, found.start())
                yield Trait(name="javascript.syntax-error", line=number, column=column, text=found[0])
                return

    def place(self, node: Node) -> Place:
        """Return where a node is, in characters (the tree counts bytes), and the beginning of its text."""
        row, _ = node.start_point
        start = self.data.rfind(b"\n", 0, node.start_byte) + 1
        before = self.data[start : node.start_byte].decode("utf-8", "replace")
        text = self.data[node.start_byte : min(node.end_byte, node.start_byte + 200)].decode("utf-8", "replace")
        return {"line": row + 1, "column": len(before) + 1, "text": text}

    # --- names ---

    def name_facts(self, node: Node) -> Iterator[Fact]:
        """Yield facts of a name or member that is read; for a chain `a.b.c`, only for the whole chain."""
        around = self.parents.get(node.id)
        if around is None or _is_target(node, around):
            return
        inner = around.type in ("member_expression", "subscript_expression") and _is(around, "object", node)
        called = around.type in _CALLS and (_is(around, "function", node) or _is(around, "constructor", node))
        place, full_names = self.place(node), self.names.full_names(node)
        if self.picks_a_member(node, full_names):
            yield Trait(name="javascript.dynamic-member", **place)
        if not (inner or called or self.is_only_inspected(around)):
            yield from (Attribute(name=name, javascript=True, **place) for name in full_names if name != UNKNOWN)
            if not calls.SENSITIVE.isdisjoint(full_names) and not self.is_own(node) and self.is_passed_on(node):
                yield Trait(name="javascript.dynamic-member", **place)
        name = text_of(node) if inner and node.type == "identifier" else ""
        if name in calls.BUILT_IN - {"process", "console"} and not self.names.is_bound(name):
            yield from self.import_facts(name, place)

    def picks_a_member(self, node: Node, full_names: tuple[str, ...]) -> bool:
        """Return whether a node picks a member of a sensitive module by a name that isn't known."""
        if node.type != "subscript_expression" or self.is_own(named(node)[0]):
            return False
        return any(name.endswith(f".{UNKNOWN}") and name[:-2] in calls.SENSITIVE for name in full_names)

    def is_own(self, node: Node) -> bool:
        """Return whether an expression is `this` or an alias of it: that may be an object of the program, not the
        global object."""
        return "this" in self.names.full_names(node)

    def is_only_inspected(self, around: Node) -> bool:
        """Return whether the parts of a node are only compared, tested for their type, or passed to a followed call."""
        if around.type == "arguments":
            return self.is_followed(around)
        if around.type not in ("unary_expression", "binary_expression"):
            return False
        operator = around.child_by_field_name("operator")
        return operator is not None and operator.type in _INSPECTING_OPERATORS

    def is_passed_on(self, node: Node) -> bool:
        """Return whether a module is passed on to where it can't be followed: to a call, into an object or a list, or
        out of a function. Aliases are followed, and so is `x = x || require("fs")`."""
        around = self.parents.get(node.id)
        while around is not None and around.type in _PASSING_NODES:
            if around.type == "expression_statement":
                return False
            node, around = around, self.parents.get(around.id)
        if around is None:
            return True
        if around.type == "variable_declarator":
            return False
        if around.type in ("member_expression", "subscript_expression"):
            return not _is(around, "object", node)
        if around.type == "assignment_expression":
            left = around.child_by_field_name("left")
            return left is None or left.type not in ("identifier", "object_pattern")
        return around.type != "arguments" or not self.is_followed(around)

    def is_followed(self, arguments: Node) -> bool:
        """Return whether the call of these arguments returns its first argument, so that it can be followed."""
        call = self.parents.get(arguments.id)
        function = call.child_by_field_name("function") if call is not None else None
        return function is not None and calls.PASSING.issuperset(self.names.full_names(function))

    # --- calls ---

    def call_facts(self, node: Node) -> Iterator[Fact]:
        """Yield facts of a call, for everything that the called name can stand for."""
        function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
        if function is None:
            return
        place, given = self.place(node), arguments_of(node)
        literal = all(_is_constant(argument) for argument in given)
        for full_name in self.names.full_names(function):
            name = _function_of(full_name)
            last = name.rpartition(".")[2]
            yield Call(name=name, literal=literal, javascript=True, **place)
            if name.rpartition(".")[0] in calls.SENSITIVE and last in ("then", "finally"):
                yield Trait(name="javascript.dynamic-member", **place)  # the callback receives the module
            if last in calls.IMPORTERS or name == "import":
                yield from self.import_facts(self.names.text(given[0]) if given else "", place)
            elif name in calls.CODE_CALLS and literal:
                for argument in given:
                    yield from self.inner.facts(facts, self.names.text(argument) or "", place)
            yield from self.command_facts(name, given, place)
            yield from self.file_facts(name.replace("Sync", ""), given, place)
        if any(name in calls.SENSITIVE for name in self.names.full_names(node)) and self.is_passed_on(node):
            yield Trait(name="javascript.dynamic-member", **place)

    def import_facts(self, name: str | None, place: Place) -> Iterator[Fact]:
        """Yield the import of a module; a trait if its name isn't known, nothing if it is empty."""
        if name is None or UNKNOWN in name:
            yield Trait(name="javascript.dynamic-import", **place)
        elif name:
            yield Import(name=module_name(name), javascript=True, **place)

    # --- commands ---

    def command_facts(self, name: str, given: list[Node], place: Place) -> Iterator[Fact]:
        """Yield the commands that a call starts."""
        if name not in calls.STARTS:
            return
        first = self.names.text(given[0]) if given else None
        shell = name in calls.SHELL_CALLS or (name in calls.ARGV_CALLS and self.wants_shell(given))
        if shell:
            yield Trait(name="javascript.shell", **place)
        words = [first or UNKNOWN]
        if name not in calls.SHELL_CALLS and len(given) > 1:
            words += self.names.words(given[1]) or ([] if given[1].type == "object" else [UNKNOWN])
        if name == "child_process.fork":
            words.insert(0, "node")
        if first is None or (shell and UNKNOWN in " ".join(words)) or first.startswith(UNKNOWN):
            yield Trait(name="javascript.dynamic-command", **place)
        if first is not None:
            text = " ".join(words).replace(UNKNOWN, UNKNOWN_WORD) if shell else quoted(words)
            yield from self.inner.facts(_script_facts, text, place)

    def wants_shell(self, given: list[Node]) -> bool:
        """Return whether the options may ask for a shell."""
        options = [each for each in given[1:] if each.type not in ("array", "arrow_function", "function_expression")]
        for option in options:
            if option.type != "object":
                if option.type == "identifier" and self.names.words(option) is not None:
                    continue
                return True
            for pair in named(option):
                key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
                if pair.type != "pair" or (key is not None and self.names.key(key) in ("shell", UNKNOWN)):
                    return value is None or value.type != "false"
        return False

    # --- files ---

    def file_facts(self, name: str, given: list[Node], place: Place) -> Iterator[Fact]:
        """Yield each file operation on a known path as a command: as `rm` or `ln` if one of these does the same,
        otherwise under the name of the function."""
        texts = [self.names.text(each) for each in given[:2]]
        if name in calls.REMOVERS:
            whole = len(given) > 1 and given[1].type == "object" and "recursive" in text_of(given[1])
            path = texts[0] if texts else None
            if path is not None and not path.startswith(UNKNOWN):
                yield _command("rm", (*(("-r", "-f") if whole else ()), path), (path,), place)
            if path is None or path.startswith(UNKNOWN) or whole:
                yield Trait(name="javascript.removes-unknown", **place)
        elif name == "fs.symlink" and len(texts) == 2 and texts[1]:
            yield _command("ln", ("-s", texts[0] or UNKNOWN, texts[1]), (texts[1],), place)
        elif name in calls.WRITERS:
            paths = [texts[at] for at in calls.WRITERS[name] if at < len(texts)]
            yield from (_command(name, (), (path,), place) for path in paths if path and not path.startswith(UNKNOWN))
        elif name in calls.OPENERS and texts and texts[0] and len(texts) > 1 and texts[1] not in ("r", "rs"):
            yield _command(name, (), (texts[0],), place)


def _command(name: str, args: tuple[str, ...], writes: tuple[str, ...], place: Place) -> Command:
    return Command(
        name=name, args=args, writes=tuple(normal(path, None) for path in writes), via=("node",), lookup="none", **place
    )


def _script_facts(script: str, depth: int) -> list[Fact]:
    from .. import shell

    return shell.facts_of_script(script, depth)


def _function_of(full_name: str) -> str:
    """Return the name of the called function. `x.constructor` counts as `Function`, which compiles texts, because `x`
    may be a function; the `constructor` of `this` or `super` is a class."""
    if full_name.endswith(".constructor") and full_name not in ("this.constructor", "super.constructor"):
        return "Function"
    return full_name


def _is(around: Node, field: str, node: Node) -> bool:
    child = around.child_by_field_name(field)
    return child is not None and child.id == node.id


def _is_target(node: Node, around: Node) -> bool:
    """Return whether a name is bound or assigned to in the node `around`, and not read."""
    if around.type == "variable_declarator":
        return _is(around, "name", node)
    if around.type in ("assignment_expression", "for_in_statement"):
        return _is(around, "left", node) and node.type == "identifier"
    return around.type in _BINDERS or (around.type == "arrow_function" and _is(around, "parameter", node))


def _is_constant(node: Node) -> bool:
    if node.type == "template_string":
        return not any(child.type == "template_substitution" for child in node.named_children)
    return node.type in ("string", "number", "true", "false", "null")


def _all_nodes(root: Node) -> tuple[list[Node], dict[int, Node]]:
    """Return all nodes except punctuation, in the order of the source, and the parent of each by its id. Uses
    neither recursion nor `node.parent`, which searches from the root."""
    nodes: list[Node] = []
    parents: dict[int, Node] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        nodes.append(node)
        children = node.named_children
        for child in children:
            parents[child.id] = node
        pending.extend(reversed(children))
    return nodes, parents
