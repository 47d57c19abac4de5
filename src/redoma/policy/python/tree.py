"""Parse a Python program and walk its tree; find where a built-in name is certainly redefined."""

from __future__ import annotations

import ast
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from ...lib.patterns import lazy_pattern

T = TypeVar("T")

Position = tuple[int, int]
Span = tuple[Position, Position]
_END: Position = (1 << 60, 0)

# Fields that hold names, numbers and operators, never code. Skipping them halves the tree.
_PLAIN_FIELDS = frozenset(
    {"ctx", "op", "ops", "id", "attr", "arg", "name", "names", "module", "level", "asname", "kind", "type_comment"}
    | {"conversion", "is_async", "simple", "type_ignores", "kwd_attrs", "rest"}
)
_CODE_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(field for field in kind._fields if field not in _PLAIN_FIELDS and kind is not ast.Constant)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


# Muting the parser's warnings changes a list that all threads share, and two threads can restore it in the wrong order.
_parsing = threading.Lock()
_TRIES = 20
_MAX_CODE = 50_000  # as counted by `_size`; this much takes a third of a second to compile
MAX_COMPILED = 10_000
"""Maximum number of characters that are compiled. Compiling can take quadratic time: a pattern of 1500 names takes half
a second, one of 3000 names two seconds."""


def parse(source: str) -> ast.Module:
    """Parse a program without printing warnings; thread-safe. Raises what `ast.parse` raises."""
    if not _may_warn(source):
        with suppress(SyntaxError), _parsing:  # which may be a warning that this process takes for an error
            return _with_patience(lambda: ast.parse(source))
    return _without_warnings(lambda: ast.parse(source))


def must_compile(tree: ast.Module) -> None:
    """Raise `SyntaxError` for errors that only the compiler finds, such as a `return` outside a function, and
    `RecursionError` for code that would take too long to compile."""
    if _size([tree], 0) > _MAX_CODE:
        raise RecursionError("the code unfolds to too much")
    # No file name: for a syntax error, the compiler would open that file to quote the line.
    _without_warnings(lambda: compile(tree, "", "exec", dont_inherit=True))


_WARNED_OF = lazy_pattern(r"\\|[0-9]\.?[A-Za-z]|\bfinally\b")
"""What the parsers of Python 3.11 to 3.14 warn of: unknown escapes, numbers next to a word, ways out of `finally`."""
_KNOWN = (3, 14)


def _may_warn(source: str) -> bool:
    return _WARNED_OF.search(source) is not None or sys.version_info[:2] > _KNOWN


def _without_warnings(read: Callable[[], T]) -> T:
    with _parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _with_patience(read)


def _with_patience(read: Callable[[], T]) -> T:
    for _ in range(_TRIES):
        try:
            return read()
        except SystemError:  # CPython 3.11 adds up the depth of all threads, and another one is parsing, too
            continue
    raise RecursionError("the interpreter has lost count of the depth of the code")


def _size(nodes: Iterable[ast.AST], leaving: int) -> int:
    """Estimate how much code the compiler generates for the nodes.

    It copies a `finally` block for each way out of its `try`: twenty of them, nested in 784 characters of source, take
    three gigabytes and a minute. `leaving`: the size of the `finally` blocks that a `return` here would pass.
    """
    total, pending = 0, list(nodes)
    while pending:
        node = pending.pop()
        total += 1
        match node:
            case ast.Return() | ast.Break() | ast.Continue():
                total += leaving
                pending.extend(ast.iter_child_nodes(node))
            case ast.Try() | ast.TryStar() if node.finalbody:
                last = _size(node.finalbody, leaving)
                total += 2 * last + _size([*node.body, *node.handlers, *node.orelse], leaving + last)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                total += _size(ast.iter_child_nodes(node), 0)
            case _:
                pending.extend(ast.iter_child_nodes(node))
    return total


def all_nodes(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that can hold code, breadth first and without recursion."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # grows while it is walked
        for field in _CODE_FIELDS[node.__class__]:
            value = getattr(node, field, None)
            if value.__class__ is list:
                nodes.extend([item for item in value if isinstance(item, ast.AST)])
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def redefined_spans(nodes: Sequence[ast.AST], names: Collection[str]) -> dict[str, list[Span]]:
    """Return the spans of source where each of `names` certainly refers to the program's own object, not to Python's.
    The spans of a name are sorted and don't overlap.

    After `if 0: from re import compile as exec`, `exec(x)` must not be taken for a harmless `re.compile(x)`. So a
    binding in the module counts only if it is a top-level statement, from there on. A binding in a function counts
    inside that function. Names that are deleted, or bound by `except`, by a class body or by `global`, are left out:
    they may refer to Python's object anywhere.
    """
    doubtful: set[str] = set()
    places: dict[str, list[Span]] = {name: [] for name in names}
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Del()):
                doubtful.add(name)
            case ast.Global(names=declared):
                doubtful.update(declared)
            case ast.ExceptHandler(name=str(name)):  # unbound at the end of the handler
                doubtful.add(name)
            case ast.ClassDef(body=body):
                doubtful.update(bound_in(body))
            case ast.FunctionDef(args=arguments, body=body) | ast.AsyncFunctionDef(args=arguments, body=body):
                for name in {*_parameters(arguments), *bound_in(body)}:
                    places.get(name, []).append((position(body[0]), _end(body[-1])))
            case ast.Lambda(args=arguments, body=value):
                for name in _parameters(arguments):
                    places.get(name, []).append((position(value), _end(value)))
    for statement in getattr(nodes[0], "body", ()):
        for name, span in _bound_by(statement):
            places.get(name, []).append(span)
    return {name: _join_spans(spans) for name, spans in places.items() if spans and name not in doubtful}


def _join_spans(spans: Sequence[Span]) -> list[Span]:
    """Return these spans, sorted, with overlapping and adjacent ones joined."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _bound_by(statement: ast.stmt) -> Iterator[tuple[str, Span]]:
    """Yield the names that a top-level statement certainly binds, each with the span where that binding holds."""
    match statement:
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            for alias in aliases:
                yield alias.asname or alias.name.partition(".")[0], (_end(statement), _END)
        case ast.FunctionDef(name=name, body=body) | ast.AsyncFunctionDef(name=name, body=body):
            # A decorator can call the function before its name is bound.
            yield name, (_end(statement) if statement.decorator_list else position(body[0]), _END)
        case ast.ClassDef(name=name):
            yield name, (_end(statement), _END)
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, (_end(statement), _END)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            yield name, (_end(statement), _END)
        case ast.For(target=ast.Name(id=name), body=body):  # only inside: the loop may run zero times
            yield name, (position(body[0]), _end(body[-1]))


def _parameters(arguments: ast.arguments) -> list[str]:
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return [argument.arg for argument in every if argument is not None]


_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound_in(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that the statements of one scope bind, without those bound in nested scopes."""
    bound: set[str] = set()
    pending: list[ast.AST] = list(body)
    while pending:
        match pending.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound.update(alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case node if not isinstance(node, _SCOPES):
                pending.extend(ast.iter_child_nodes(node))
    return bound


def statements_of(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of the blocks in it, but not those in functions and classes."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                pending.extend(getattr(node, field, ()))


def position(node: ast.AST) -> Position:
    """Return the line and column where a node begins."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.stmt | ast.expr) -> Position:
    return node.end_lineno or 0, node.end_col_offset or 0
