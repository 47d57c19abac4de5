"""Resolve the names and constant strings of a Python program, as far as possible without running it.

`import os as o; f = o.system` makes `f` stand for "os.system"; `"sys" + "tem"` folds to "system". Scopes and the
order of statements are ignored: a name stands for everything it is ever bound to, which errs on the safe side.
"""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN
from .tree import position, redefined_spans

_BUILTINS = frozenset({*dir(builtins), "__builtins__"})
_MAX_LINKS = 50
"""Maximum number of links followed in a chain such as `a.b().c().d()…`. A longer chain has no known base."""
_MAX_NAMES = 16
_MAX_TEXT = 100_000
_MAX_NESTING = 60
"""Maximum nesting of expressions that are followed. Deeper ones are unknown."""
_MAX_WORK = 50_000
"""Maximum number of expressions followed in one program: in `b = a + a; c = b + b; …` each line doubles the work."""
_MAX_STEPS, _MAX_ALL_STEPS = 500, 200_000
"""Maximum number of steps from name to name for one expression, and for the whole program."""

# Most nodes of a tree bind nothing. Checking the class first halves the time needed to read a program.
_BINDING = frozenset(
    {ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.AugAssign, ast.For}
    | {ast.arguments, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom}
    | {ast.MatchAs, ast.MatchStar, ast.MatchMapping, ast.ExceptHandler}
)
# Most modules have the modules that they import as attributes: `shutil.os.execvp` is os.execvp.
_INNER_MODULE = lazy_pattern(
    r"(?:\w+\.)+?_?((?:os|posix|subprocess|builtins|pty|ctypes|sys|importlib|runpy|pickle|marshal)(?:\..*)?)", re.DOTALL
)
_NAMING = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.NamedExpr, ast.Await)
_IMPORTERS = frozenset({"importlib.import_module", "importlib.__import__", "__import__"})
_LIST_GROWERS = frozenset({"append", "extend"})
_LIST_CHANGERS = frozenset({"insert", "pop", "remove", "reverse", "clear", "sort"})
_PATH_JOINERS = frozenset({"pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath", "os.path.join"})
_PATH_KEEPERS = frozenset(
    {"os.path.expanduser", "os.path.abspath", "os.path.realpath", "os.fspath", "shlex.quote"}
)  # functions whose result refers to the same file


class Names:
    """What the names of one program stand for, collected from all its nodes."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.stars: list[str] = []
        """Modules imported by `from m import *`: any name may come from one of them."""
        self._imported: dict[str, dict[str, None]] = {}
        self._assigned: dict[str, list[ast.expr]] = {}
        self._stores: dict[str, int] = {}
        self._functions: set[str] = set()
        self._no_plain_value: set[str] = set()
        """Names bound other than by assignment, such as by an import or a definition."""
        self._grown: set[str] = set()
        """Names whose value is extended: `x += …`, `x.append(…)`."""
        self._changed: set[str] = set()
        """Names whose value is changed in another way, or that are deleted."""
        self._nesting = 0
        self._work = 0
        self._steps = 0
        self._ends: dict[str, tuple[str, ast.expr | None]] = {}
        """Cached results of `_end`."""
        self._importers: dict[str, bool] = {}
        """Cached results of `_is_importer`."""
        self._tables = 0
        """How often the program uses its own variables as a dictionary, as in `globals()[x] = y`: that can set any of
        them."""
        self.exhausted = False
        """Whether a limit was reached, so that not every name is resolved."""
        for node in nodes:
            if node.__class__ in _BINDING:
                self._note(node)
        shadowed = _BUILTINS & self._stores.keys()
        self._redefined = redefined_spans(nodes, shadowed) if shadowed else {}
        """Built-in names that the program redefines, each with the spans where that certainly holds."""

    # -- collecting ---------------------------------------------------------------------------------------------

    def _count_store(self, name: str, by: int) -> None:
        self._stores[name] = self._stores.get(name, 0) + by

    def _note(self, node: ast.AST) -> None:
        """Record what a node binds."""
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                self._count_store(name, 1)
            case ast.Name(id=name, ctx=ast.Del()):
                self._changed.add(name)
            case ast.Name(id="globals" | "locals" | "vars") | ast.Attribute(attr="globals"):
                self._tables += 1
            case ast.Call(func=function, args=[first, *_]) if not isinstance(first, ast.Starred):
                self._tables -= isinstance(function, ast.Name) and function.id == "vars"  # `vars(x)` is the table of x
            case ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.MatchMapping(rest=name):
                if name is not None:
                    self._bind_otherwise(name)
            case ast.ExceptHandler(name=str(name)):
                self._bind_otherwise(name)
            case ast.Attribute(value=ast.Name(id=name), attr=method):
                if method in _LIST_GROWERS:
                    self._grown.add(name)
                elif method in _LIST_CHANGERS:
                    self._changed.add(name)
            case ast.Name() | ast.Attribute():
                pass  # most nodes are of these two classes, and no later case applies to them
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                self._changed.add(name)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._bind(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, value)
            case ast.AugAssign(target=ast.Name(id=name)):
                self._grown.add(name)
                self._count_store(name, -1)  # its target is also a Name node, which counts as a binding
            case ast.For(target=target, iter=ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values)):
                for value in values:
                    self._bind(target, value)
            case ast.arguments():
                self._note_arguments(node)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._bind_otherwise(name)
                if not isinstance(node, ast.ClassDef):
                    self._functions.add(name)
            case ast.Import(names=aliases):
                for alias in aliases:
                    top = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._import(alias.asname or top, top)
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    if alias.name == "*":
                        self.stars.append("os" if node.module == "posix" else module_of(node))
                    else:
                        self._import(alias.asname or alias.name, f"{module_of(node)}.{alias.name}")

    def _import(self, name: str, full: str) -> None:
        self._bind_otherwise(name)
        self._imported.setdefault(name, {})[full] = None

    def _bind_otherwise(self, name: str) -> None:
        self._count_store(name, 1)
        self._no_plain_value.add(name)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._assigned.setdefault(target.id, []).append(value)
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for one, its_value in zip(target.elts, value.elts, strict=False):
                if isinstance(one, ast.Name):
                    self._assigned.setdefault(one.id, []).append(its_value)

    def _note_arguments(self, arguments: ast.arguments) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        for arg in (*positional, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if arg is not None:
                self._bind_otherwise(arg.arg)
        defaults = [
            *zip(reversed(positional), reversed(arguments.defaults), strict=False),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=False),
        ]
        for arg, default in defaults:
            if default is not None:
                self._assigned.setdefault(arg.arg, []).append(default)

    # -- what a name stands for ----------------------------------------------------------------------------------

    def is_local(self, name: str) -> bool:
        """Whether the program binds a name that is neither imported nor built in."""
        return name in self._stores and name not in self._imported and name not in _BUILTINS

    def is_alias(self, name: str) -> bool:
        """Whether a name may stand for another one. A cheap first check: most names hold plain data."""
        return any(isinstance(value, _NAMING) for value in self._assigned.get(name, ()))

    def is_function(self, name: str) -> bool:
        """Whether the program defines a function of that name."""
        return name in self._functions

    def binds(self, name: str) -> bool:
        """Whether the program binds a name in any way."""
        return name in self._stores

    def _is_redefined(self, name: str, node: ast.expr) -> bool:
        """Whether a built-in name is certainly redefined by the program at the position of a node."""
        if name not in self._redefined:
            return False
        places, here = self._redefined[name], position(node)
        before = bisect_right(places, here, key=itemgetter(0))
        return before > 0 and here < places[before - 1][1]

    def full_names(self, node: ast.expr) -> list[str]:
        """Return the dotted names an expression can stand for; UNKNOWN takes the place of a base that isn't a name.

        A built-in name that the program redefines gets "@own" after it, so that no rule takes it for Python's.
        """
        found: dict[str, None] = {}
        seen: set[tuple[str, str, ast.expr | None]] = set()
        pending = [(*self._chain(node), node)]
        while pending and len(found) < _MAX_NAMES:
            base, tail, where = pending.pop()
            base, bound = self._end(base)
            where = bound or where
            step = base, tail, where if base in self._redefined else None
            if step in seen:
                continue
            if len(seen) >= _MAX_STEPS or self._steps >= _MAX_ALL_STEPS:
                self.exhausted = True
                break
            seen.add(step)
            values = self._assigned.get(base, ())[:_MAX_NAMES]
            self._steps += 1 + len(values)
            for value in values:
                value_base, value_tail = self._chain(value)
                if value_base != UNKNOWN and value_base != base:
                    pending.append((value_base, value_tail + tail, value))
            found.update(dict.fromkeys(self._final_names(base, tail, where)))
        return list(found) or [_usual_name("".join(self._chain(node)))]

    def _final_names(self, base: str, tail: str, where: ast.expr) -> Iterator[str]:
        """Yield the full names that `base` + `tail` has without following assignments: those of imports and built-ins,
        and its own if nothing binds it. `where`: the node that reads it."""
        if base == UNKNOWN or base.startswith("="):
            yield _usual_name(base.removeprefix("=") + tail)
            return
        imported = self._imported.get(base, ())
        for full in islice(imported, _MAX_NAMES):
            yield _usual_name(full + tail)
            if inner := _INNER_MODULE.fullmatch(full + tail):
                yield _usual_name(inner[1])
        is_bound = bool(imported) or base in self._assigned
        if not is_bound:
            for module in self.stars[:_MAX_NAMES]:
                yield f"{module}.{base}{tail}"
        if base in _BUILTINS:
            if not self._is_redefined(base, where):
                yield _usual_name(base + tail)
            elif not imported:
                yield f"{base}@own{tail}"
        elif not is_bound:
            yield _usual_name(base + tail)

    def _end(self, name: str) -> tuple[str, ast.expr | None]:
        """Return the name at the end of a chain of plain aliases (`b = a; c = b; …`), and the node where that name is
        read (None if `name` is no alias). Each link is followed only once in the whole program."""
        passed: list[str] = []
        where: ast.expr | None = None
        while name not in self._ends:
            values = self._assigned.get(name, ())
            value = values[0] if len(values) == 1 else None
            if not isinstance(value, ast.Name) or name in self._imported or name in _BUILTINS:
                break
            self._ends[name] = name, None  # so that a cycle of aliases ends
            passed.append(name)
            name, where = value.id, value
        known, bound = self._ends.get(name, (name, None))
        end = known, bound or where
        self._ends.update(dict.fromkeys(passed, end))
        return end

    def _chain(self, node: ast.expr) -> tuple[str, str]:
        """Split an expression into a base and the operations on it: `o.path.join()` is ("o", ".path.join()").

        A base that starts with "=" is a full name already: `__import__("os")` is "=os" whatever `os` is bound to.
        """
        if isinstance(node, ast.Name):
            return node.id, ""
        if self._nesting >= _MAX_NESTING or self._work >= _MAX_WORK:
            return UNKNOWN, ""
        self._nesting += 1
        self._work += 1
        chain = self._follow(node)
        self._nesting -= 1
        return chain

    def _follow(self, node: ast.expr) -> tuple[str, str]:
        tail = ""
        for _ in range(_MAX_LINKS):
            match node:
                case ast.Name(id=name):
                    return name, tail
                case ast.Attribute(value=value, attr=attribute):
                    node, tail = value, f".{attribute}{tail}"
                case ast.NamedExpr(value=value) | ast.Await(value=value):
                    node = value
                case ast.Call(func=function):
                    looked_up = self._looked_up(node)
                    if looked_up is not None:
                        return looked_up[0], looked_up[1] + tail
                    node, tail = function, "()" + tail
                case ast.Subscript(value=value, slice=key):
                    looked_up = self._item(value, key)
                    if looked_up is not None:
                        return looked_up[0], looked_up[1] + tail
                    node, tail = value, "[]" + tail
                case _:
                    break
        return UNKNOWN, tail

    def _looked_up(self, call: ast.Call) -> tuple[str, str] | None:
        """Return what a call fetches by a known name (getattr, __import__, `sys.modules.get` …), split as by `_chain`;
        None for other calls."""
        match call:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, key, *_]):
                return self._member(owner, key)
            case ast.Call(func=ast.Attribute(attr="__getattribute__" | "__getattr__", value=owner), args=[key]):
                return self._member(owner, key)
            case ast.Call(func=ast.Attribute(attr="__getattribute__"), args=[owner, key]):
                return self._member(owner, key)
            case ast.Call(func=ast.Attribute(attr="get" | "pop" | "__getitem__", value=owner), args=[key, *_]):
                return self._item(owner, key)
            case ast.Call(func=ast.Name(id="__import__"), args=[key, *_]):
                module = self.known_text(key)
            case ast.Call(func=ast.Name() | ast.Attribute() as function, args=[key, *_]):
                last = function.id if isinstance(function, ast.Name) else function.attr
                imports = last in ("import_module", "__import__") or last in self._imported
                if not (self._imports(function) if imports else self._is_importer(function)):
                    return None
                module = self.known_text(key)
            case _:
                return None
        if module is None:
            return None
        # `__import__("os.path")` gives os; import_module gives os.path.
        top = isinstance(call.func, ast.Name) and call.func.id == "__import__"
        return "=" + (module.partition(".")[0] if top else module), ""

    def _imports(self, function: ast.expr) -> bool:
        return not _IMPORTERS.isdisjoint(self.full_names(function))

    def _is_importer(self, function: ast.expr) -> bool:
        """Whether a name is an alias of a function that imports."""
        if not isinstance(function, ast.Name) or not self.is_alias(function.id):
            return False
        if function.id not in self._importers:
            self._importers[function.id] = False  # the answer for recursive calls until it is resolved
            self._importers[function.id] = self._imports(function)
        return self._importers[function.id]

    def _member(self, owner: ast.expr, key: ast.expr) -> tuple[str, str] | None:
        name = self.known_text(key)
        if name is None:
            return None
        base, tail = self._chain(owner)
        return base, f"{tail}.{name}"

    def _item(self, owner: ast.expr, key: ast.expr) -> tuple[str, str] | None:
        """Return what `sys.modules["os"]`, `globals()["f"]`, `vars(os)["system"]` or `os.__dict__["system"]` stands
        for, split as by `_chain`; None for other items."""
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "vars" and owner.args:
            return self._member(owner.args[0], key)
        if not isinstance(owner, (ast.Attribute, ast.Call, ast.Name)):
            return None
        base, tail = self._chain(owner)
        tables = tail.endswith(("modules", "__dict__", "__builtins__", "f_globals")) or (base, tail) in _NAMESPACES
        if not tables and base not in self._imported and base != "__builtins__":
            return None
        name = self.known_text(key)
        if name is None:
            return None
        if tail.endswith(".__dict__"):
            return base, f"{tail.removesuffix('.__dict__')}.{name}"
        if (base, tail) in _NAMESPACES:
            return name, ""
        if (base, tail) == ("__builtins__", "") or tail.endswith("__builtins__"):
            return f"=builtins.{name}", ""
        whole = {full + tail for full in self._imported.get(base) or [base.removeprefix("=")]}
        return (f"={name}", "") if "sys.modules" in whole else None

    # -- constants -----------------------------------------------------------------------------------------------

    def text(self, node: ast.expr | None) -> str | None:
        """Return the string an expression evaluates to, with UNKNOWN for unknown parts; None if nothing is known, or
        there is no expression."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if node is None or self._nesting >= _MAX_NESTING or self._work >= _MAX_WORK:
            return None
        self._nesting += 1
        self._work += 1
        folded = self._fold(node)
        self._nesting -= 1
        return folded if folded is None or len(folded) <= _MAX_TEXT else None

    def known_text(self, node: ast.expr | None) -> str | None:
        """Return the string an expression evaluates to; None if any part of it is unknown."""
        text = self.text(node)
        return text if text is not None and UNKNOWN not in text else None

    def texts(self, node: ast.expr) -> list[str | None]:
        """Return every string an expression can evaluate to, with None for each unknown one. A loop variable has one
        per iteration."""
        if not isinstance(node, ast.Name) or len(self._assigned.get(node.id, ())) < 2:
            return [self.text(node)]
        if node.id in self._grown or not self._is_bound_once(node.id):
            return [None]
        return [self.text(value) for value in self._assigned[node.id]]

    def _is_bound_once(self, name: str) -> bool:
        """Whether one statement of the program binds a name, and nothing else binds or changes it."""
        once = self._stores.get(name) == 1 and name not in self._changed and name not in self._no_plain_value
        return once and not self._is_open

    @property
    def _is_open(self) -> bool:
        """Whether any name may be bound without being mentioned: `globals()[x] = y`, `from m import *`."""
        foreign = any(module.partition(".")[0] not in sys.stdlib_module_names for module in self.stars)
        return self._tables > 0 or foreign or "__main__" in self._imported

    def _fold(self, node: ast.expr) -> str | None:
        match node:
            case ast.Constant(value=bytes(raw)):
                return raw.decode("utf-8", "replace")
            case ast.JoinedStr(values=parts):
                return self._join(parts, "")
            case ast.FormattedValue(value=value):
                return str(value.value) if isinstance(value, ast.Constant) else self.text(value)
            case ast.BinOp(op=ast.Add()):
                return self._join(_operands(node, ast.Add), "")
            case ast.BinOp(op=ast.Div()):  # pathlib
                return self._joined_path(_operands(node, ast.Div))
            case ast.BinOp(op=ast.Mod(), left=template):
                return _blanked(self.text(template), "%")
            case ast.Subscript(
                value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp(operand=ast.Constant(value=1)))
            ):
                reversed_text = self.text(value)
                return None if reversed_text is None else reversed_text[::-1]
            case ast.Name(id=name):
                only = self._only_value(name)
                return None if only is None or name in self._grown else self.text(only)
            case ast.Attribute(attr="executable") if "sys.executable" in self.full_names(node):
                return "python3"
            case ast.Subscript(value=owner, slice=ast.Constant(value="HOME")) if "os.environ" in self.full_names(owner):
                return "~"
            case ast.Attribute(attr="parent", value=path):
                return self._above(path, 1)
            case ast.Subscript(value=ast.Attribute(attr="parents", value=path), slice=ast.Constant(value=int(steps))):
                return self._above(path, min(steps + 1, _MAX_NESTING))
            case ast.Call():
                return self._fold_call(node)
        return None

    def _above(self, path: ast.expr, steps: int) -> str | None:
        """Return the directory `steps` levels above a path; None if the path is unknown."""
        text = self.text(path)
        return None if text is None else text + "/.." * steps

    def _fold_call(self, call: ast.Call) -> str | None:
        match call:
            case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int(code))]) if 0 < code < 0x110000:
                return chr(code)
            case (
                ast.Call(func=ast.Name(id="str"), args=[value, *_])
                | ast.Call(func=ast.Attribute(attr="decode" | "encode", value=value))
                | ast.Call(
                    func=ast.Attribute(attr="strip" | "expanduser" | "resolve" | "absolute", value=value), args=[]
                )
                # Another file, in the same directory.
                | ast.Call(func=ast.Attribute(attr="with_name" | "with_stem" | "with_suffix", value=value), args=[_])
            ):
                return self.text(value)
            case ast.Call(
                func=ast.Attribute(attr="join", value=ast.Constant(value=str(glue))),
                args=[ast.List() | ast.Tuple() as parts],
            ):
                return self._join(parts.elts, glue)
            case ast.Call(func=ast.Attribute(attr="format", value=template)):
                return _blanked(self.text(template), "{")
            case ast.Call(func=ast.Attribute(attr="replace", value=value), args=[old, new]):
                whole, before, after = (self.text(part) for part in (value, old, new))
                return None if whole is None or before is None or after is None else whole.replace(before, after)
            case ast.Call(func=ast.Attribute(attr="joinpath", value=value), args=parts):
                return self._joined_path([value, *parts])
        return self._fold_path(call)

    def _fold_path(self, call: ast.Call) -> str | None:
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            return None
        names = self.full_names(call.func)
        if "pathlib.Path.home" in names or ("os.getenv" in names and call.args and self.text(call.args[0]) == "HOME"):
            return "~"
        if {"pathlib.Path.cwd", "os.getcwd"} & set(names):
            return "."
        if not _PATH_JOINERS.isdisjoint(names):
            return self._joined_path(call.args)
        if call.args and not _PATH_KEEPERS.isdisjoint(names):
            return self.text(call.args[0])
        return None

    def _join(self, parts: Sequence[ast.expr], glue: str) -> str | None:
        texts = [self.text(part) for part in parts]
        if not texts or all(text is None for text in texts):
            return None
        return glue.join(UNKNOWN if text is None else text for text in texts)

    def _joined_path(self, parts: Sequence[ast.expr]) -> str | None:
        """Join paths like `os.path.join`: an absolute part discards everything before it."""
        texts = [self.text(part) for part in parts]
        absolute = [at for at, text in enumerate(texts) if text is not None and text.startswith("/")]
        return self._join(parts[absolute[-1] if absolute else 0 :], "/")

    def _only_value(self, name: str) -> ast.expr | None:
        """Return the only value that a name is ever bound to; None if there are others, or may be."""
        values = self._assigned.get(name, ())
        return values[0] if len(values) == 1 and self._is_bound_once(name) else None

    def words(self, node: ast.expr | None) -> list[str] | None:
        """Return the strings of a list expression, UNKNOWN for each unknown one; None if it isn't a known list, or
        there is no expression."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.text(item) or UNKNOWN if not _is_empty(item) else "" for item in items]
            case ast.BinOp(op=ast.Add()):
                first, *rest = _operands(node, ast.Add)
                known = self.words(first) if not isinstance(first, ast.BinOp) else None
                if known is None:
                    return None
                return known + [word for part in rest for word in self._words_or_unknown(part)]
            case ast.Name(id=name):
                value = self._only_value(name)
                known = None if value is None or isinstance(value, ast.Name) else self.words(value)
                return known if known is None or name not in self._grown else [*known, UNKNOWN]
            case ast.Call(func=ast.Attribute(attr="split", value=ast.Constant(value=str(line))), args=[]):
                return line.split()
            case ast.Call(args=[argument, *_], func=ast.Name() | ast.Attribute() as function):
                if "shlex.split" in self.full_names(function):
                    text = self.text(argument)
                    return None if text is None else _split(text)
        return None

    def _words_or_unknown(self, node: ast.expr) -> list[str]:
        if isinstance(node, (ast.List, ast.Tuple)):
            return self.words(node) or []
        return [UNKNOWN]


_NAMESPACES = frozenset({("globals", "()"), ("locals", "()"), ("vars", "()")})


def module_of(node: ast.ImportFrom) -> str:
    """Return the module named by a `from … import`, with the leading dots of a relative import."""
    return "." * node.level + (node.module or "")


def _usual_name(name: str) -> str:
    """Return the usual name: `builtins.eval`, `__builtins__.eval` and `eval.__call__` are eval; `posix.system` is
    os.system."""
    for prefix in ("builtins.", "__builtins__."):
        name = name.removeprefix(prefix)
    if name.startswith("posix."):
        name = f"os.{name.removeprefix('posix.')}"
    return name.replace(".__call__", "") if "__call__" in name else name


def _operands(node: ast.BinOp, kind: type[ast.operator]) -> list[ast.expr]:
    """Return the operands of a chain such as a + b + c, which the tree nests as deep as the chain is long."""
    operands: list[ast.expr] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, kind):
        operands.append(left.right)
        left = left.left
    return [left, *reversed(operands)]


def _split(line: str) -> list[str] | None:
    try:
        return shlex.split(line)
    except ValueError:  # an unclosed quote: the program will fail there, too
        return None


def _blanked(template: str | None, mark: str) -> str | None:
    """Return a template with UNKNOWN for each placeholder. `mark`: "%" for `%s`, otherwise `{}`, where `{{` is one
    brace of text."""
    if template is None:
        return None
    if mark == "%":
        return re.sub(r"%[^%\s]", UNKNOWN, template)
    return re.sub(r"\{\{|\}\}|\{[^{}]*\}", lambda hit: {"{{": "{", "}}": "}"}.get(hit[0], UNKNOWN), template)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""
