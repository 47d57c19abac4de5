"""Read a JavaScript program into facts: what it imports, calls and reads, which commands it starts, what it writes.

    source ─▶ tree-sitter ─▶ names.py (what each name stands for) ─▶ here (facts) ─▶ the rules

It is read as Node runs it, as a module or as a script. Commands that a program starts with constant words are read by
the shell's own reader, so one set of rules judges both. `calls.py` lists the functions of Node's library that matter.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypedDict

from msgspec.structs import replace

from ...lib.patterns import pattern
from ..facts import MAX_DEPTH, MAX_SOURCE, UNKNOWN, Attribute, Call, Command, Fact, Import, Trait, Unbound, normal
from . import calls
from .names import Names, arguments_of, module_name, named, text_of

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

TRAITS = {
    "javascript.syntax-error": "it doesn't parse as JavaScript, or Node reads it otherwise than it is read here",
    "javascript.dynamic-command": "it starts a command that can't be known beforehand",
    "javascript.dynamic-import": "it imports a module by a name that can't be known",
    "javascript.dynamic-member": "it hands a sensitive module around, or picks a member by a name that can't be known",
    "javascript.shell": "it hands a text to a shell",
    "javascript.removes-unknown": "it removes files that can't be known beforehand, or whole directories",
    "source.unread": "it is in a language that is not read here",
}
"""Beside those that texts in every language have: see `python.TRAITS`."""

_UNKNOWN_WORD = "${@:1}"
"""How a part that can't be known is given to the shell's reader: as some of its arguments."""
_INNER_SLACK = 5_000
_BIDI = pattern("[\u202a-\u202e\u2066-\u2069]")
_SURROGATE = pattern("[\ud800-\udfff]")
_LINE_END = pattern(r"(?<!\\)(?:\\\\)*[\n\r]")
"""In a text, where it is an error unless a backslash is before it."""
_COMMENT_MARK = pattern(r"<!--|-->")
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
"""What a name is bound by, and not read."""
_LOOKS = frozenset({"typeof", "instanceof", "===", "!==", "==", "!=", "in"})
_SAME = frozenset(
    {"parenthesized_expression", "await_expression", "expression_statement", "binary_expression", "ternary_expression"}
)
"""What hands its value on to what is around it, and no further."""


def facts(source: str, depth: int = 0) -> list[Fact]:
    """Return what a program does, as far as its text tells. Never raises for what the text is.

    `depth`: how deep this code is inside other code.
    """
    if depth > MAX_DEPTH:
        return [Trait(name="source.too-deep")]
    if len(source) > MAX_SOURCE:
        return [Trait(name="source.too-large")]
    found = list(_text_facts(source))
    reader = _Reader(_SURROGATE.sub("\ufffd", source.replace("\0", " ")), depth)
    found.extend(reader.read())
    if reader.names.exhausted:
        found.append(Trait(name="source.too-large"))
    return found


def _text_facts(source: str) -> Iterator[Fact]:
    """Yield what the text itself tells, before it is parsed: deceptive characters."""
    for name, found in (
        ("source.nul", re.search("\0", source)),
        ("source.bad-utf8", _SURROGATE.search(source)),
        ("source.invisible", _BIDI.search(source)),
    ):
        if found is not None:
            start = found.start()
            column = start - source.rfind("\n", 0, start)
            yield Trait(name=name, line=source.count("\n", 0, start) + 1, column=column, text=ascii(found.group()))


@functools.cache
def _parser() -> Parser:
    import tree_sitter_javascript
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_javascript.language()))


class Place(TypedDict, total=False):
    """Where a fact is: the fields that all facts share."""

    line: int
    column: int
    text: str


class _Reader:
    """Reads the facts of one program."""

    def __init__(self, source: str, depth: int) -> None:
        self.data = source.encode()
        self.tree = _parser().parse(self.data)
        self.nodes, self.parents = _all_nodes(self.tree.root_node)
        self.names = Names(self.nodes, self.parents)
        self.depth = depth
        # Code inside code is part of the source, so an honest program never exceeds this.
        self.inner_left = len(source) + _INNER_SLACK // (depth + 1)

    def read(self) -> Iterator[Fact]:
        """Yield the facts of every node, in the order of the source."""
        yield Unbound(why="what JavaScript loads when it runs is not followed")
        if self.tree.root_node.has_error:
            broken = next((node for node in self.nodes if node.is_error or node.is_missing), self.tree.root_node)
            yield Trait(name="javascript.syntax-error", **self.place(broken))
        yield from self.ambiguous()
        for node in self.nodes:
            if self.names.exhausted:
                return
            match node.type:
                case "identifier" | "shorthand_property_identifier" | "member_expression" | "subscript_expression":
                    yield from self.mention(node)
                case "call_expression" | "new_expression":
                    yield from self.call(node)
                case "import_statement" | "export_statement":
                    if (module := node.child_by_field_name("source")) is not None:
                        yield from self.imported(self.names.text(module), self.place(node))
                case "with_statement":
                    yield Trait(name="javascript.dynamic-member", **self.place(node))
                case "string" if _LINE_END.search(text_of(node)):
                    yield Trait(name="javascript.syntax-error", **self.place(node))
                case kind if kind in _NOT_RUN:
                    yield Trait(name="javascript.syntax-error", **self.place(node))

    def ambiguous(self) -> Iterator[Fact]:
        """Yield a fact where Node may take for a comment what is code here. In a script, and not in a module, `<!--`
        begins one, and so does `-->` at the beginning of a line. What is in a text for us up to here is so for Node."""
        for found in _COMMENT_MARK.finditer(self.data.decode()):
            at = len(found.string[: found.start()].encode())
            node = self.tree.root_node.descendant_for_byte_range(at, at + 1)
            if node is not None and node.type in _TEXTS:
                continue
            line = found.string[: found.start()].rpartition("\n")[2]
            if found[0] == "<!--" or not line.strip() or "*/" in line:
                number = found.string.count("\n", 0, found.start()) + 1
                yield Trait(name="javascript.syntax-error", line=number, column=len(line) + 1, text=found[0])
                return

    def place(self, node: Node) -> Place:
        """Return where a node is, in characters (the tree counts bytes), and the beginning of its text."""
        row, _ = node.start_point
        start = self.data.rfind(b"\n", 0, node.start_byte) + 1
        before = self.data[start : node.start_byte].decode("utf-8", "replace")
        text = self.data[node.start_byte : min(node.end_byte, node.start_byte + 200)].decode("utf-8", "replace")
        return {"line": row + 1, "column": len(before) + 1, "text": text}

    # --- names ---

    def mention(self, node: Node) -> Iterator[Fact]:
        """Yield facts of a name or member that is read: of a whole chain `a.b.c` only once."""
        around = self.parents.get(node.id)
        if around is None or _is_target(node, around):
            return
        inner = around.type in ("member_expression", "subscript_expression") and _is(around, "object", node)
        called = around.type in _CALLS and (_is(around, "function", node) or _is(around, "constructor", node))
        place, meanings = self.place(node), self.names.meanings(node)
        if self.picks_a_member(node, meanings):
            yield Trait(name="javascript.dynamic-member", **place)
        if not (inner or called or self.only_looked_at(node, around)):
            yield from (Attribute(name=name, javascript=True, **place) for name in meanings if name != UNKNOWN)
            if not calls.SENSITIVE.isdisjoint(meanings) and not self.is_own(node) and self.is_handed_on(node):
                yield Trait(name="javascript.dynamic-member", **place)
        name = text_of(node) if inner and node.type == "identifier" else ""
        if name in calls.BUILT_IN - {"process", "console"} and not self.names.is_bound(name):
            yield from self.imported(name, place)

    def picks_a_member(self, node: Node, meanings: tuple[str, ...]) -> bool:
        """Whether it is a member of a sensitive module, by a name that can't be known."""
        if node.type != "subscript_expression" or self.is_own(named(node)[0]):
            return False
        return any(name.endswith(f".{UNKNOWN}") and name[:-2] in calls.SENSITIVE for name in meanings)

    def is_own(self, node: Node) -> bool:
        """Whether an object is the program's own, though it may be the global one as well: `this`, or an alias."""
        return "this" in self.names.meanings(node)

    def only_looked_at(self, node: Node, around: Node) -> bool:
        """Whether a name is compared, or asked for its type, and no more; or is wrapped in what is followed."""
        if around.type == "arguments":
            return self.is_followed(around)
        if around.type not in ("unary_expression", "binary_expression"):
            return False
        operator = around.child_by_field_name("operator")
        return operator is not None and operator.type in _LOOKS

    def is_handed_on(self, node: Node) -> bool:
        """Whether a module gets somewhere it can't be followed to: into a call, an object, a list, out of a function.
        An alias is followed, and so is `x = x || require("fs")`."""
        around = self.parents.get(node.id)
        while around is not None and around.type in _SAME:
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
        """Whether what is given to a call is followed to its result."""
        call = self.parents.get(arguments.id)
        function = call.child_by_field_name("function") if call is not None else None
        return function is not None and calls.PASSING.issuperset(self.names.meanings(function))

    # --- calls ---

    def call(self, node: Node) -> Iterator[Fact]:
        """Yield facts of a call, for everything that the called name can stand for."""
        function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
        if function is None:
            return
        place, given = self.place(node), arguments_of(node)
        literal = all(_is_constant(argument) for argument in given)
        for meaning in self.names.meanings(function):
            name = _function_of(meaning)
            last = name.rpartition(".")[2]
            yield Call(name=name, literal=literal, javascript=True, **place)
            if name.rpartition(".")[0] in calls.SENSITIVE and last in ("then", "finally"):
                yield Trait(name="javascript.dynamic-member", **place)  # whoever waits for it is handed it
            if last in calls.IMPORTERS or name == "import":
                yield from self.imported(self.names.text(given[0]) if given else "", place)
            elif name in calls.CODE_CALLS and literal:
                for argument in given:
                    yield from self.inside(facts, self.names.text(argument) or "", place)
            yield from self.started_by(node, name, given, place)
            yield from self.written_by(name.replace("Sync", ""), given, place)
        if any(name in calls.SENSITIVE for name in self.names.meanings(node)) and self.is_handed_on(node):
            yield Trait(name="javascript.dynamic-member", **place)

    def imported(self, name: str | None, place: Place) -> Iterator[Fact]:
        if name is None or UNKNOWN in name:
            yield Trait(name="javascript.dynamic-import", **place)
        elif name:
            yield Import(name=module_name(name), javascript=True, **place)

    # --- commands ---

    def started_by(self, node: Node, name: str, given: list[Node], place: Place) -> Iterator[Fact]:
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
            text = " ".join(words).replace(UNKNOWN, _UNKNOWN_WORD) if shell else _quoted(words)
            yield from self.inside(_script_facts, text, place)

    def wants_shell(self, given: list[Node]) -> bool:
        """Whether the options may ask for a shell."""
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

    def inside(self, read: Callable[[str, int], list[Fact]], code: str, place: Place) -> Iterator[Fact]:
        """Yield the facts of code inside this code, at the place where this code holds it."""
        self.inner_left -= len(code)
        if self.inner_left < 0:
            yield Trait(name="source.too-large", **place)
            return
        for fact in read(code, self.depth + 1):
            text = place.get("text", "") if _UNKNOWN_WORD in fact.text else fact.text
            yield replace(fact, line=place.get("line", 0), column=place.get("column", 0), text=text)

    # --- files ---

    def written_by(self, name: str, given: list[Node], place: Place) -> Iterator[Fact]:
        """Yield file operations on known paths, each as the command that would do the same."""
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
    return Command(name=name, args=args, writes=tuple(normal(path, None) for path in writes), via=("node",), **place)


def _script_facts(script: str, depth: int) -> list[Fact]:
    from .. import shell

    return shell.facts_of_script(script, depth)


def _quoted(words: list[str]) -> str:
    """The words of a command as the shell's reader takes them."""
    unknown = f'"{_UNKNOWN_WORD}"'
    return " ".join(
        unknown.join(shlex.quote(part) if part or word == "" else "" for part in word.split(UNKNOWN)) for word in words
    )


def _function_of(meaning: str) -> str:
    """What is called: the `constructor` of any function makes functions of texts. That of `this` makes objects."""
    if meaning.endswith(".constructor") and meaning not in ("this.constructor", "super.constructor"):
        return "Function"
    return meaning


def _is(around: Node, field: str, node: Node) -> bool:
    child = around.child_by_field_name(field)
    return child is not None and child.id == node.id


def _is_target(node: Node, around: Node) -> bool:
    """Whether a name is bound or set where it stands, and not read."""
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
    """Every node but punctuation, in the order of the source, and the parent of each by its id. Without recursion, and
    without asking a node for its parent: that is looked for from the root."""
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
