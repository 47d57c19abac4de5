"""Read a Python program into facts: what it imports, calls and reads, which commands it starts, which files it writes.

    source ─▶ tree.py (parsed once) ─▶ names.py (what each name stands for) ─▶ here (facts) ─▶ the rules

Names are followed through imports, assignments and look-ups by constant names. Commands that a program starts with
constant words are read by the shell's own reader, so one set of rules judges both. `calls.py` lists the functions of
Python's library that matter.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ...lib.patterns import lazy_pattern
from ..facts import (
    MAX_DEPTH,
    MAX_SOURCE,
    SOURCE_TRAITS,
    SURROGATE,
    UNKNOWN,
    Assigned,
    Attribute,
    Call,
    Command,
    Executed,
    Fact,
    Import,
    Place,
    Trait,
    Unbound,
    normal,
    only_known_later,
)
from ..inner_code import UNKNOWN_WORD, InnerCode, deceptive_characters, quoted
from . import calls
from .names import Names, module_of
from .tree import MAX_COMPILED, all_nodes, bound_in, must_compile, parse, statements_of

TRAITS = {
    "python.syntax-error": "it doesn't parse as Python",
    "python.encoding": "a coding comment asks for another encoding than UTF-8",
    "python.dynamic-command": "it starts a command that can't be known beforehand",
    "python.dynamic-attribute": "it hands a sensitive module around, or fetches a member by a name that can't be known",
    "python.table-file": "it writes a table to a file, or hands on the method that does",
    "python.shell": "it hands a text to a shell",
    "python.remote-file": "it reads a file by an address on the network",
    "python.database-write": "it gives a database statements that change it, or that can't be known",
    "python.unsafe-load": "it reads objects that run code when they are read",
    "python.removes-unknown": "it removes files that can't be known beforehand",
    "python.ends-processes": "it ends processes that it may not have started",
    "python.dynamic-import": "it imports a module by a name that can't be known",
    **SOURCE_TRAITS,
}

_ENDING = frozenset({"kill", "terminate", "suspend", "send_signal"})
_COOKIE = lazy_pattern(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_HARMLESS_ENCODINGS = frozenset({"utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii", "u8", "utf"})

_SQL = lazy_pattern(
    r"\s*(?:--[^\n]*\n\s*)*(?:insert|update|delete|drop|alter|truncate|create|replace|merge|grant|revoke|vacuum|copy|attach"
    r"|call|do|lock|reindex|set|rename|load|pragma|select|with|explain|show|describe|values|begin|commit|analyze)\b",
    re.IGNORECASE,
)
_READS = lazy_pattern(
    r"\s*(?:select|explain(?!\s+analy)|show|describe|values|begin|commit|rollback"
    r"|with(?!.*\b(?:insert|update|delete|merge)\b)|pragma(?!.*=))\b(?!.*\binto\b)[^;]*;?\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
"""A single statement that only reads. Text after a semicolon would be a second statement."""
_CONNECTS = lazy_pattern(r"(?:\A|\.)(?:connect|create_engine|create_async_engine|create_pool)\Z")
_MEMORY = ("", ":memory:", "sqlite://", "sqlite:///:memory:", "duckdb:///:memory:")
_ADDRESS = lazy_pattern(r"(?!file:)[a-zA-Z][a-zA-Z0-9+.-]*://")

_MAX_ARGUMENTS = 50
"""Maximum number of the program's arguments and variables that are tried in place of an unknown part of a path."""

_NODES_WITH_FACTS = frozenset(
    {ast.Import, ast.ImportFrom, ast.Call, ast.Assign, ast.Compare, ast.Attribute, ast.Subscript, ast.Name}
    | {ast.MatchClass, ast.ClassDef, ast.AugAssign}
)
"""The classes of nodes that facts are read from. Checking the class first is faster than the `match` in `read`."""


def facts(
    source: str,
    depth: int = 0,
    *,
    compiled: bool = False,
    args: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Fact]:
    """Return the facts of a program. Never raises, whatever the text is.

    `depth`: how deep this code is inside other code. `compiled`: also report syntax errors that only the compiler
    finds, unless the text is longer than `MAX_COMPILED`. `args`, `environment`: the arguments and variables of the
    program. An unknown path or word may be any of the arguments, or any variable whose name is in the text; the facts
    for these cases are added.
    """
    if depth > MAX_DEPTH:
        return [Trait(name="source.too-deep")]
    if len(source) > MAX_SOURCE:
        return [Trait(name="source.too-large")]
    found = list(_text_facts(source))
    # These characters are reported above. The rest is read as well as possible.
    readable = source.removeprefix("\ufeff").replace("\0", " ")
    if not readable.isascii():
        readable = SURROGATE.sub("�", readable)
    tree = None
    try:
        tree = parse(readable)
        if compiled and len(source) <= MAX_COMPILED:
            must_compile(tree)
    except SyntaxError as error:
        line, column = error.lineno or 0, error.offset or 0
        found.append(Trait(name="python.syntax-error", line=line, column=column, text=error.msg or ""))
    except (RecursionError, MemoryError):
        found.append(Trait(name="source.too-deep"))
    except ValueError as error:
        found.append(Trait(name="python.syntax-error", text=str(error)))
    if tree is not None:
        named = [value for name, value in (environment or {}).items() if name in source]
        reader = _Reader(readable, tree, depth, tuple(dict.fromkeys([*args, *named])), environment)
        found.extend(reader.read())
        found.extend(_ended_processes(found))
        if reader.names.exhausted:
            found.append(Trait(name="source.too-large"))
    return found


def _ended_processes(facts: Sequence[Fact]) -> list[Trait]:
    """If the program imports psutil, return a trait for each call that may end a process, such as `kill` on any object:
    `for p in psutil.process_iter(): p.kill()`."""
    if not any(isinstance(fact, Import) and fact.name.partition(".")[0] == "psutil" for fact in facts):
        return []
    return [
        Trait(name="python.ends-processes", line=fact.line, column=fact.column, text=fact.text)
        for fact in facts
        if isinstance(fact, Call)
        and fact.name.rpartition(".")[2] in _ENDING
        and not fact.name.startswith("subprocess.")
    ]


def _text_facts(source: str) -> Iterator[Fact]:
    """Yield facts of the text itself, before it is parsed: deceptive characters, and an encoding other than UTF-8."""
    yield from deceptive_characters(source)
    if "coding" not in source[:4096]:
        return
    for number, line in enumerate(re.split(r"\r\n|\r|\n", source[:4096], maxsplit=2)[:2], start=1):
        cookie = _COOKIE.match(line.removeprefix("\ufeff"))
        if cookie is not None and cookie[1].lower().replace("_", "-") not in _HARMLESS_ENCODINGS:
            yield Trait(name="python.encoding", line=number, column=1, text=line.strip())


_CHANGES_WHAT_RUNS = "it changes, or hands on, what decides which programs and modules are run"


class _Reader:
    """Reads the facts of one parsed program."""

    def __init__(
        self,
        source: str,
        tree: ast.Module,
        depth: int,
        given: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.nodes = all_nodes(tree)
        self.names = Names(self.nodes)
        self.given = given
        """The program's arguments and variables: an unknown text may be any of them."""
        self.environment = environment
        self.inner = InnerCode(source, depth)
        self.covered: set[ast.AST] = set()
        """Nodes that a fact about their parent covers."""
        self.class_statements: set[ast.AST] = set()
        """Statements in class bodies. A name that they bind becomes an attribute, which isn't followed."""
        self.inspected: set[ast.AST] = set()
        """Arguments of calls that only inspect them."""
        self.passed_to: dict[ast.AST, ast.Call] = {}
        """Names and attributes passed as arguments, each with the call."""
        self.followed_aliases: dict[str, bool] = {}
        """Local names, and whether one is an alias of something in `calls.FOLLOWED`."""
        self.item_values: dict[ast.AST, ast.expr] = {}
        """Subscripts that are assigned to (`x[key] = value`), each with the value."""

    def read(self) -> Iterator[Fact]:
        """Yield the facts of every node, breadth first."""
        for node in self.nodes:
            if node.__class__ not in _NODES_WITH_FACTS:
                continue
            match node:  # the most common first
                case ast.Name(ctx=context):
                    if node not in self.covered and isinstance(context, ast.Load) and self.is_reported(node):
                        yield from self.name_facts(node)
                case ast.Attribute(ctx=context):
                    if isinstance(context, ast.Load):
                        yield from self.attribute_facts(node)
                    else:
                        yield from self.change_facts(node)
                case ast.Call():
                    self.covered.add(node.func)
                    yield from self.call_facts(node)
                case ast.Subscript(ctx=ast.Load()):
                    yield from self.item_facts(node)
                case ast.Subscript(value=table, slice=key, ctx=ast.Store()):
                    if calls.ENVIRONMENTS.isdisjoint(self.names.full_names(table)):
                        yield from self.change_facts(table)
                    else:
                        name, value = self.names.text(key), self.names.text(self.item_values.get(node))
                        yield Assigned(name=name or UNKNOWN, value=value or UNKNOWN, **self.place(node))
                case ast.Subscript(value=table):  # deleted
                    yield from self.change_facts(table)
                case ast.AugAssign(target=target):
                    yield from self.change_facts(target)
                case ast.Assign(targets=[ast.Subscript() as target], value=value):
                    self.item_values[target] = value
                case ast.Assign(targets=[ast.Name()], value=ast.Name() | ast.Attribute() as value):
                    if node not in self.class_statements and self.names.full_names(value)[0] in calls.FOLLOWED:
                        self.covered.add(value)  # a plain alias: judged where it is used
                case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[container]):
                    self.covered.add(container)  # `x in container` takes nothing out of the container
                case ast.Import(names=aliases):
                    for alias in aliases:
                        yield Import(name=alias.name, **self.place(node))
                case ast.ImportFrom(names=aliases):
                    dot = "." if node.module else ""  # `from . import x` is .x, and `from .. import x` is ..x
                    for alias in aliases:
                        yield Import(name=f"{module_of(node)}{dot}{alias.name}", **self.place(node))
                case ast.ClassDef(body=body):
                    self.class_statements.update(statements_of(body))
                case ast.MatchClass(kwd_attrs=read):
                    for attribute in read:
                        yield Attribute(name=f"{UNKNOWN}.{attribute}", **self.place(node))

    def is_reported(self, node: ast.Name) -> bool:
        """Return whether to report that a name is read. Local names aren't reported, except aliases of something in
        `calls.FOLLOWED`."""
        name = node.id
        if not self.names.is_local(name):
            return True
        if not self.names.is_alias(name):
            return False
        if name not in self.followed_aliases:
            self.followed_aliases[name] = not calls.FOLLOWED.isdisjoint(self.names.full_names(node))
        return self.followed_aliases[name]

    def name_facts(self, node: ast.expr) -> Iterator[Fact]:
        """Yield facts of a name or attribute that is read without being called."""
        place = self.place(node)
        for name in self.names.full_names(node):
            yield Attribute(name=name, **place)
            if name in calls.ENVIRONMENTS and not self.only_reads(node):
                yield Unbound(why=_CHANGES_WHAT_RUNS, **place)
            if name in calls.SENSITIVE_MODULES or name.startswith(calls.SENSITIVE_DICTS):
                if node not in self.inspected:
                    yield Trait(name="python.dynamic-attribute", **place)
            elif name.endswith(calls.TABLE_WRITERS):
                yield Trait(name="python.table-file", **place)
            elif node in self.passed_to and name == "subprocess.Popen":
                yield Trait(name="python.dynamic-command", **place)
            elif node in self.passed_to and name in calls.REMOVERS:  # map(shutil.rmtree, ["/"])
                for argument in self.passed_to[node].args:
                    paths = argument.elts if isinstance(argument, (ast.List, ast.Tuple, ast.Set)) else [argument]
                    for path in paths:
                        yield from self.file_command("rm", calls.REMOVERS[name], path, place)

    def change_facts(self, node: ast.expr) -> Iterator[Fact]:
        """Yield a fact if the program changes a value, such as `sys.path`, that determines which files later calls and
        imports run. `node`: what is assigned to or deleted; for an item, its table."""
        if any(map(calls.DECIDES_WHAT_RUNS.match, self.names.full_names(node))):
            yield Unbound(why=_CHANGES_WHAT_RUNS, **self.place(node))

    def only_reads(self, node: ast.expr) -> bool:
        """Return whether this use of `os.environ` only reads or copies it. Also True if it sets an item: that is
        reported as a separate fact."""
        match around := self.parents.get(node):
            case ast.Subscript() | ast.Compare() | ast.BinOp():
                return True
            case ast.For(iter=value) | ast.comprehension(iter=value):
                return value is node
            case ast.Dict(keys=keys, values=values):
                return any(key is None and value is node for key, value in zip(keys, values, strict=True))
            case ast.Call(func=function):
                return not calls.COPIERS.isdisjoint(self.names.full_names(function))
            case ast.keyword(arg="env"):
                call = self.parents.get(around)
                return isinstance(call, ast.Call) and self.names.full_names(call.func)[0] in calls.STARTS_COMMANDS
        return False

    @functools.cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Every node's parent."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def place(self, node: ast.AST) -> Place:
        """Return where a node is, in characters (the tree counts bytes), and its text."""
        number = getattr(node, "lineno", 0)
        if not 0 < number <= len(self.lines):
            return {}
        line = self.lines[number - 1]
        start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        if not line.isascii():
            raw = line.encode("utf-8", "replace")
            start, end = (len(raw[:offset].decode("utf-8", "replace")) for offset in (start, end))
        text = line[start:end] if node.end_lineno == number else line[start:]  # type: ignore[attr-defined]
        return {"line": number, "column": start + 1, "text": text}

    def attribute_facts(self, node: ast.Attribute) -> Iterator[Fact]:
        """Yield facts of an attribute that is read; for a chain `a.b.c`, only for the whole chain."""
        if node.attr in ("format", "format_map"):
            yield from self.template_facts(node.value, node)
        inner = node.value
        self.covered.add(inner)
        while isinstance(inner, ast.Attribute):
            inner = inner.value
            self.covered.add(inner)
        if node not in self.covered:
            yield from self.name_facts(node)

    def template_facts(self, template: ast.expr, node: ast.expr) -> Iterator[Fact]:
        """Yield the attributes that a format template reads: `"{0.__globals__}".format(f)` reads one of f."""
        for name in _attributes_in(self.names.text(template) or ""):
            yield Attribute(name=f"{UNKNOWN}.{name}", **self.place(node))

    def item_facts(self, node: ast.Subscript) -> Iterator[Fact]:
        """Yield facts of an item that is read: `sys.modules["os"]` is os; `sys.modules[x]` can be any module."""
        names = self.names.full_names(node)
        if any(name.startswith(calls.SENSITIVE_TABLES) for name in names):
            self.covered.add(node.value)
            if not (isinstance(node.slice, ast.Name) and node.slice.id == "__name__"):  # the module itself
                yield Trait(name="python.dynamic-attribute", **self.place(node))
        elif node not in self.covered and not any("[" in name or UNKNOWN in name for name in names):
            self.covered.add(node.value)
            yield from self.name_facts(node)

    # --- calls ---

    def call_facts(self, node: ast.Call) -> Iterator[Fact]:
        """Yield facts of a call, for everything that the called name can stand for."""
        if isinstance(node.func, ast.Lambda):
            return  # `read` also visits its body and its arguments
        place = self.place(node)
        literal = all(isinstance(argument, ast.Constant) for argument in arguments_of(node))
        names = self.names.full_names(node.func)
        self.note_arguments(node, names[0])
        for name in names:
            if name in calls.CODE_CALLS:
                codes = self.code_of(node, name)
                alone = all(code is not None and self.stands_alone(code, name) for code in codes)
                yield Call(name=name, literal=alone, **place)
                for code in codes:
                    if code is not None:
                        yield from self.inner.facts(functools.partial(facts, args=self.given), code, place)
            else:
                yield Call(name=name, literal=literal, **place)
            if name.endswith((".format", ".format_map")) and node.args:  # of `str` itself or a subclass
                yield from self.template_facts(node.args[0], node)
            yield from self.import_facts(node, name, place)
            yield from self.lookup_facts(node, name, place)
            yield from self.command_facts(node, name, place)
            yield from self.file_facts(node, name, place)
            yield from self.data_facts(node, name, place)

    def note_arguments(self, node: ast.Call, callee: str) -> None:
        """Record the names and attributes passed to a call: they may be functions that the callee calls. Arguments that
        the callee only inspects, as in `print(os)` and `isinstance(p, Popen)`, go to `inspected` instead."""
        if callee in calls.INSPECTORS and not self.names.binds(callee):
            self.inspected.update(node.args)
            return
        if callee in calls.PATCHERS and not self.names.binds(callee.rpartition(".")[2]):
            self.inspected.update(node.args[:1])
        for argument in node.args:
            if argument.__class__ in (ast.Name, ast.Attribute):
                self.passed_to[argument] = node

    def code_of(self, node: ast.Call, name: str) -> list[str | None]:
        """Return the texts that a call runs as code, with None for each that isn't known. A function passed to a timer
        is no text and is left out."""
        given = [self.argument(node, 0, "source", "stmt", "statement")]
        if name in calls.TIMERS:
            given.append(self.argument(node, 1, "setup"))
        codes: list[str | None] = [None] if _is_spread(node) else []
        for code in given:
            function = isinstance(code, ast.Lambda) or (isinstance(code, ast.Name) and self.names.is_function(code.id))
            if code is not None and not (name in calls.TIMERS and function):
                codes += [None if text is None or UNKNOWN in text else text for text in self.names.texts(code)]
        return codes

    def stands_alone(self, code: str, name: str) -> bool:
        """Return whether inner code can be read separately: it uses no name that the program binds, and binds none that
        the program could use. `name`: the function that runs the code."""
        if len(code) > self.inner.left:
            return False
        try:
            tree = parse(code)
        except (SyntaxError, ValueError):  # it can't run
            return True
        except (RecursionError, MemoryError):
            return False
        inner = list(ast.walk(tree))
        binds = bool(bound_in(tree.body)) or any(isinstance(node, (ast.NamedExpr, ast.Global)) for node in inner)
        uses = any(isinstance(node, ast.Name) and self.names.binds(node.id) for node in inner)
        return not uses and (name in calls.TIMERS or not binds)  # a timer's code has a scope of its own

    def import_facts(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        if name in calls.IMPORTERS and node.args:
            module = self.names.text(node.args[0])
            if module is not None and module.startswith("."):  # relative to the package in the next argument
                above = self.names.text(self.argument(node, 1, "package"))
                module = None if above is None or module.startswith("..") else above + module
            if module is None or UNKNOWN in module:
                yield Trait(name="python.dynamic-import", **place)
            else:
                yield Import(name=module, **place)

    def lookup_facts(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """Yield facts of `getattr` and similar functions. With a known name they read that attribute; with an unknown
        name, possibly any attribute."""
        if (name == "hasattr" and node.args) or (name == "getattr" and len(node.args) > 1):
            owner = node.args[0]
            if self.names.known_text(self.argument(node, 1)) is not None:
                self.covered.add(owner)
                if name == "getattr" and node not in self.covered:
                    yield from self.name_facts(node)
            elif calls.SENSITIVE_MODULES.intersection(self.names.full_names(owner)):
                yield Trait(name="python.dynamic-attribute", **place)
        elif name in ("operator.attrgetter", "operator.methodcaller") and node.args:
            key = self.names.known_text(node.args[0])
            if key is None or f".{key}" in calls.COMMAND_METHODS:
                yield Trait(name="python.dynamic-attribute", **place)

    # --- commands ---

    def command_facts(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """Yield the commands that a call starts, and their variables.

        With `cwd=`, the directory of the commands counts as unknown, and so do files that they execute by a relative
        path. Only the paths that they write are resolved, if the value of `cwd` is known.
        """
        yield from self.variable_facts(node, name)
        if name in calls.STARTS_COMMANDS and any(keyword.arg is None for keyword in node.keywords):
            yield Unbound(why=only_known_later("with which variables it starts a program"), **place)
        directory = next((keyword.value for keyword in node.keywords if keyword.arg == "cwd"), None)
        where = self.names.text(directory)
        for fact in self.commands_of(node, name, place):
            if directory is not None and isinstance(fact, (Command, Executed)):
                fact = replace(fact, directory=None)
            if isinstance(fact, Command) and where and where[:1] in "/~.":
                fact = replace(fact, writes=tuple([normal(path, where) for path in fact.writes]))
            yield fact

    def commands_of(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """Yield the commands that a call starts, as if it had no `cwd=`."""
        shell = self.wants_shell(node) if name in calls.ARGV_CALLS else name in calls.SHELL_CALLS
        if shell is not False:
            yield Trait(name="python.shell", **place)
            script = self.argument(node, 0, "cmd", "command", "args")
            words = self.names.words(script)
            yield from self.script_facts(words[0] if words else self.names.text(script), place)
        if name in calls.ARGV_CALLS and not shell:
            command = self.argument(node, 0, "args", "argv")
            words = self.names.words(command)
            if words is None and (text := self.names.text(command)) is not None:
                words = [text]
            if any(keyword.arg == "executable" for keyword in node.keywords):
                words = None
            yield from self.argv_facts(words, place)
        elif name in calls.SPREAD_CALLS:
            yield from self.argv_facts([self.names.text(word) or UNKNOWN for word in node.args], place)
        elif name in calls.EXEC_LISTS or name in calls.EXEC_SPREAD:
            yield from self.argv_facts(self.exec_words(node, name), place)
        elif name.endswith(calls.COMMAND_METHODS) and name not in calls.STARTS_COMMANDS and node.args:
            text = self.names.text(node.args[0])
            if text is not None:
                yield from self.script_facts(text, place)

    def exec_words(self, node: ast.Call, name: str) -> list[str] | None:
        """Return the words of an `exec` or `spawn`, beginning with the program that really runs, not its argv[0]."""
        at = calls.EXEC_LISTS[name] if name in calls.EXEC_LISTS else calls.EXEC_SPREAD[name]
        if len(node.args) <= at + 1:
            return None
        program = self.names.text(node.args[at]) or UNKNOWN
        if name in calls.EXEC_LISTS:
            rest = self.names.words(node.args[at + 1])
        else:
            rest = [self.names.text(word) or UNKNOWN for word in node.args[at + 1 :]]
        return [program, *(rest[1:] if rest is not None else [UNKNOWN])]

    def variable_facts(self, node: ast.Call, called: str) -> Iterator[Fact]:
        """Yield the variables that a call sets for the command it starts: `env={"BASH_ENV": "x.sh"}`."""
        tables = [keyword.value for keyword in node.keywords if keyword.arg == "env"]
        if called in calls.ENVIRONMENT_AT:
            at = calls.ENVIRONMENT_AT[called]
            tables += node.args[at : at + 1] if at >= 0 else node.args[at:]
        for given in tables:
            entries = zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else [(None, given)]
            for key, value in entries:
                if key is None and not calls.ENVIRONMENTS.isdisjoint(self.names.full_names(value)):
                    continue  # {**os.environ}
                name, text = self.names.text(key), self.names.text(value)
                yield Assigned(name=name or UNKNOWN, value=text or UNKNOWN, **self.place(node))

    def argument(self, node: ast.Call, at: int, *keywords: str) -> ast.expr | None:
        """Return the argument at position `at` or with one of these names; None if there is none or it is `*x`."""
        if len(node.args) > at:
            return node.args[at] if not isinstance(node.args[at], ast.Starred) else None
        return next((keyword.value for keyword in node.keywords if keyword.arg in keywords), None)

    def wants_shell(self, node: ast.Call) -> bool | None:
        """Return the value of `shell=`; False without it, None if it can't be known or there are `**options`."""
        shell = self.argument(node, 8, "shell")
        if shell is not None:
            return bool(shell.value) if isinstance(shell, ast.Constant) else None
        return None if _is_spread(node) else False

    def script_facts(self, script: str | None, place: Place) -> Iterator[Fact]:
        """Yield the facts of a text that a shell runs."""
        if script is None or UNKNOWN in script:
            yield Trait(name="python.dynamic-command", **place)
        if script is not None:
            yield from self.inner.facts(self.script_reader, script.replace(UNKNOWN, UNKNOWN_WORD), place)

    def argv_facts(self, words: list[str] | None, place: Place) -> Iterator[Fact]:
        """Yield the facts of a command given as words, by quoting them for the shell's reader."""
        if not words:
            yield Trait(name="python.dynamic-command", **place)
            return
        yield from self.inner.facts(self.script_reader, quoted(words), place)

    def script_reader(self, script: str, depth: int) -> list[Fact]:
        """Return the facts of a command. If it uses variables, it is read both with the given values and without,
        because the program may have changed them."""
        from .. import shell

        found = shell.facts_of_script(script, depth, args=self.given)
        if self.environment and "$" in script:
            found += shell.facts_of_script(script, depth, args=self.given, environment=self.environment)
        return list(dict.fromkeys(found))

    # --- files ---

    def file_facts(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """Yield each file operation on a known path as a command: as `rm`, `chmod` or `ln` if one of these does the
        same, otherwise under the name of the function."""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in calls.REMOVERS:
            yield from self.file_command("rm", calls.REMOVERS[name], self.argument(node, 0, "path", "name"), place)
        elif name == "os.chmod":
            mode = _octal(self.argument(node, 1, "mode"))
            yield from self.file_command("chmod", (mode,), self.argument(node, 0, "path"), place)
        elif name.endswith(".chmod"):
            yield from self.file_command("chmod", (_octal(self.argument(node, 0, "mode")),), owner, place)
        elif name in ("os.symlink", "os.link"):
            yield from self.link_facts(self.argument(node, 0, "src"), self.argument(node, 1, "dst"), place)
        elif name.endswith((".symlink_to", ".hardlink_to")):
            yield from self.link_facts(self.argument(node, 0, "target"), owner, place)
        elif target := calls.TARGETS.get(name) or calls.METHOD_TARGETS.get(name[name.rfind(".") :]):
            yield from self.file_write(name, self.argument(node, target[0], *target[1]), place)
            if name in calls.MOVERS:
                yield from self.file_write(name, self.argument(node, 0, "src"), place)
        elif name in calls.OPENERS or name == "os.open":
            if self.opens_for_writing(node, at=1) if name in calls.OPENERS else self.flags_write(node):
                yield from self.file_write(name, self.argument(node, 0, "file", "filename", "path"), place)
        elif name.endswith((".rename", ".replace")) and len(node.args) == 1 and not node.keywords:
            yield from self.file_write(name, node.args[0], place)
            yield from self.file_write(name, owner, place)
        elif name in calls.IN_PLACE:
            if any(keyword.arg == "inplace" for keyword in node.keywords) or len(node.args) > 1:
                yield from self.file_write(name, self.argument(node, 0, "files"), place)
        elif name.endswith(calls.SAVERS) and node.args:
            yield from self.file_write(name, node.args[0], place)
        elif name.endswith(calls.PATH_WRITERS) or (name.endswith(".open") and self.opens_for_writing(node, at=0)):
            yield from self.file_write(name, owner, place)
        elif name.endswith((".unlink", ".rmdir")):
            yield from self.file_command("rm", (), owner, place)
        elif name.endswith(calls.TABLE_WRITERS) and (
            node.args or any(keyword.arg in calls.TABLE_PATHS for keyword in node.keywords)
        ):
            yield Trait(name="python.table-file", **place)
            yield from self.file_write(
                name, self.argument(node, 0, "path_or_buf", "path", "buf", "excel_writer"), place
            )

    # --- databases ---

    def data_facts(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """Yield facts of calls that may change a database, read from another machine, or load objects that run code."""
        if name.endswith(calls.STATEMENT_CALLS):
            text = self.names.text(self.argument(node, 0, "sql", "query", "operation", "statement"))
            if text is None and self.connections:
                yield Unbound(why=only_known_later("which statements it runs"), **place)
            if self.is_statement(node, text) and not (text is not None and _READS.match(text)):
                yield Trait(name="python.database-write", **place)
        elif name.endswith(calls.TABLE_READERS) and any(map(_ADDRESS.match, self.paths(next(iter(node.args), None)))):
            yield Trait(name="python.remote-file", **place)
        elif name.endswith((*calls.QUERY_READERS, "create_engine", "create_async_engine")):
            server = self.argument(node, 1 if name.endswith(calls.QUERY_READERS) else 0, "con", "url")
            if any(_ADDRESS.match(each) and not each.startswith(("sqlite", "duckdb")) for each in self.paths(server)):
                yield Trait(name="python.remote-file", **place)
        elif (name == "yaml.load" and not self.is_safe_loader(node)) or (
            name == "numpy.load" and self.may_be_true(node, "allow_pickle", at=2)
        ):
            yield Trait(name="python.unsafe-load", **place)

    def is_safe_loader(self, node: ast.Call) -> bool:
        """Return whether `yaml.load` uses a safe loader. Also True without a loader, because then the call fails."""
        loader = self.argument(node, 1, "Loader")
        return loader is None or any(name.endswith(calls.SAFE_LOADERS) for name in self.names.full_names(loader))

    def may_be_true(self, node: ast.Call, keyword: str, *, at: int) -> bool:
        """Return whether the argument `keyword`, or the one at position `at`, is anything but a false constant."""
        value = self.argument(node, at, keyword)
        return value is not None and not (isinstance(value, ast.Constant) and not value.value)

    def is_statement(self, node: ast.Call, text: str | None) -> bool:
        """Return whether the text is, or may be, SQL for a database that isn't in memory. `pool.execute(task)` isn't
        SQL; `cur.execute(sql)` may be if the program opens a connection."""
        if text is not None and not _SQL.match(text):
            return UNKNOWN in text[:1] and self.has_database
        return not self.in_memory if text is not None else self.has_database

    @functools.cached_property
    def connections(self) -> list[ast.Call]:
        """Calls that may open a database."""
        return [
            node
            for node in self.nodes
            if isinstance(node, ast.Call) and any(map(_CONNECTS.search, self.names.full_names(node.func)))
        ]

    @property
    def has_database(self) -> bool:
        """Whether the program opens a database that is not in memory."""
        return bool(self.connections) and not self.in_memory

    @property
    def in_memory(self) -> bool:
        """Whether the program opens databases, all of them in memory."""
        return bool(self.connections) and all(
            call.args and self.names.text(call.args[0]) in _MEMORY for call in self.connections
        )

    def opens_for_writing(self, node: ast.Call, *, at: int) -> bool:
        """Return whether the mode, argument `at`, may allow writing."""
        mode = self.argument(node, at, "mode")
        if mode is None:
            return len(node.args) > at
        text = self.names.text(mode)
        return text is None or any(letter in text for letter in "wax+" + UNKNOWN)

    def flags_write(self, node: ast.Call) -> bool:
        """Return whether the flags of `os.open` may allow writing."""
        flags = self.argument(node, 1, "flags")
        for part in ast.walk(flags) if flags is not None else ():
            match part:
                case ast.Name(id=word) | ast.Attribute(attr=word) if word not in calls.READING_FLAGS:
                    return True
                case ast.Constant(value=value) if value != 0:
                    return True
        return flags is None

    def paths(self, node: ast.expr | None) -> list[str]:
        """Return the paths that an expression may stand for: as written, and with each of the program's arguments and
        variables in place of unknown parts."""
        text = self.names.text(node)
        found = [text] if text is not None and not text.startswith(UNKNOWN) else []
        if node is not None and (text is None or UNKNOWN in text):
            for given in self.given[:_MAX_ARGUMENTS]:
                filled = given if text is None else text.replace(UNKNOWN, given)
                # Joining an absolute path to a directory gives the absolute path.
                found.append(filled if "://" in filled else re.sub(r"\A.*/(?=/)", "", filled))
        return found

    def file_command(self, name: str, args: tuple[str, ...], path: ast.expr | None, place: Place) -> Iterator[Fact]:
        """Yield the command `name` for each path that an expression may stand for, and a trait if it is `rm` and the
        path is unknown."""
        text = self.names.text(path)
        for each in self.paths(path):
            yield _operation(name, (*args, each), each, place)
        if name == "rm" and (text is None or text.startswith(UNKNOWN)):
            yield Trait(name="python.removes-unknown", **place)

    def file_write(self, name: str, path: ast.expr | None, place: Place) -> Iterator[Fact]:
        """Yield a write by the function `name` for each path that an expression may stand for."""
        for each in self.paths(path):
            yield _operation(name, (), each, place)

    def link_facts(self, source: ast.expr | None, link: ast.expr | None, place: Place) -> Iterator[Fact]:
        """Yield a new link as the command `ln`, so that writes through it count as writes to its target."""
        for link_path in self.paths(link):
            for source_path in self.paths(source) or [UNKNOWN]:
                yield _operation("ln", ("-s", source_path, link_path), link_path, place)


def _operation(name: str, args: tuple[str, ...], path: str, place: Place) -> Command:
    """Return a file operation that writes a path, as a command."""
    return Command(name=name, args=args, writes=(normal(path, None),), via=("python",), lookup="none", **place)


def arguments_of(node: ast.Call) -> list[ast.expr]:
    """Return the positional and keyword arguments of a call."""
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _is_spread(node: ast.Call) -> bool:
    """Return whether a call has `*x` or `**x`, which may stand for any arguments."""
    return any(isinstance(argument, ast.Starred) for argument in node.args) or any(
        keyword.arg is None for keyword in node.keywords
    )


def _attributes_in(template: str) -> set[str]:
    """Return the attributes that the fields of a format template read.

    A key in brackets may contain any character, even a brace, so the template is searched with keys and without them.
    """
    plain = template.replace("{{", "").replace("}}", "")
    fields = [*re.findall(r"\{[^{}]*", plain), *re.findall(r"\{[^{}]*", re.sub(r"\[[^\]]*\]", "", plain))]
    return {name for field in fields for name in re.findall(r"\.([^\W\d]\w*)", field)}


def _octal(node: ast.expr | None) -> str:
    return f"{node.value:o}" if isinstance(node, ast.Constant) and isinstance(node.value, int) else UNKNOWN
