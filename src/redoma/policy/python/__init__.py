"""Facts from Python's syntax tree.

Names are followed through imports, assignments and constant look-ups (`names.py`); commands that a program
starts with constant words are read by the shell's own reader, so one set of rules judges both.
"""

from __future__ import annotations

import ast
import re
import shlex
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TypedDict

import msgspec

from ..facts import MAX_DEPTH, MAX_SOURCE, UNKNOWN, Attribute, Call, Command, Fact, Import, Trait
from .names import Names, all_nodes, module_of

TRAITS = {
    "python.syntax-error": "it doesn't parse as Python",
    "python.encoding": "a coding comment asks for another encoding than UTF-8",
    "python.dynamic-command": "it starts a command that can't be known beforehand",
    "python.dynamic-attribute": "it fetches a member of a sensitive module by a name that can't be known",
    "python.dynamic-import": "it imports a module by a name that can't be known",
    "source.nul": "it holds a NUL character",
    "source.bad-utf8": "it is not valid UTF-8",
    "source.invisible": "it holds characters that change the order text is shown in",
    "source.too-large": "it is larger than what is read",
    "source.too-deep": "it is nested deeper than what is read",
    "source.secret": "it holds a credential",
}

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_HARMLESS_ENCODINGS = frozenset({"utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii", "u8", "utf"})
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")

_SHELL_CALLS = frozenset(
    {
        "os.system",
        "os.popen",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
        "asyncio.create_subprocess_shell",
        "asyncio.subprocess.create_subprocess_shell",
        "commands.getoutput",
        "popen2.popen2",
    }
)
_ARGV_CALLS = frozenset(
    {
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.Popen",
        "pty.spawn",
    }
)
_SPREAD_CALLS = frozenset({"asyncio.create_subprocess_exec", "asyncio.subprocess.create_subprocess_exec"})
# Where the program stands among the arguments; what follows it is one list, or the words themselves.
_EXEC_LISTS = {f"os.exec{kind}": 0 for kind in ("v", "ve", "vp", "vpe")} | {
    f"os.spawn{kind}": 1 for kind in ("v", "ve", "vp", "vpe")
}
_EXEC_LISTS |= {"os.posix_spawn": 0, "os.posix_spawnp": 0}
_EXEC_SPREAD = {name.replace("v", "l", 1): at for name, at in _EXEC_LISTS.items() if "posix" not in name}
STARTS_COMMANDS = frozenset({*_SHELL_CALLS, *_ARGV_CALLS, *_SPREAD_CALLS, *_EXEC_LISTS, *_EXEC_SPREAD})

# What is called like this on an object of unknown origin (a module out of a list, a C library) and is handed a
# constant string is read as a command too.
_TELLING_METHODS = (".system", ".popen", ".getoutput", ".check_output", ".check_call", ".Popen")

_CODE_CALLS = frozenset(
    {"eval", "exec", "compile", "timeit.timeit", "timeit.repeat", "cProfile.run", "profile.run", "pdb.run"}
)
_SENSITIVE_MODULES = frozenset({"os", "posix", "subprocess", "builtins", "__builtins__", "importlib", "pty", "ctypes"})

_SENSITIVE_TABLES = ("sys.modules[", "__builtins__[", *(f"{module}.__dict__[" for module in _SENSITIVE_MODULES))
_FOLLOWED = STARTS_COMMANDS | _SENSITIVE_MODULES

_REMOVERS = {"os.remove": (), "os.unlink": (), "os.rmdir": (), "os.removedirs": (), "shutil.rmtree": ("-r", "-f")}
_TARGETS = {"os.rename": 1, "os.replace": 1, "os.link": 1, "os.symlink": 1, "shutil.copy": 1, "shutil.copy2": 1,
            "shutil.copyfile": 1, "shutil.copytree": 1, "shutil.move": 1, "os.mkdir": 0, "os.makedirs": 0,
            "os.truncate": 0, "os.mknod": 0}  # fmt: skip
_PATH_WRITERS = (".write_text", ".write_bytes", ".touch", ".mkdir", ".symlink_to", ".hardlink_to")
_INNER_SLACK = 5_000
_UNKNOWN_WORD = "$unknown"
"""How a part that can't be known is spelt to the shell's reader: as a variable that nothing sets."""
_OPENERS = frozenset({"open", "io.open", "codecs.open"})

_TELLING = frozenset(
    {ast.Import, ast.ImportFrom, ast.Call, ast.Assign, ast.Compare, ast.Attribute, ast.Subscript, ast.Name}
)

# Muting the parser's warnings changes a list that all threads share, and two threads can restore it in the wrong order.
_parsing = threading.Lock()


def facts(source: str, depth: int = 0) -> list[Fact]:
    """What the program does, as far as its text tells. Never raises for what the text is."""
    if depth > MAX_DEPTH:
        return [Trait(name="source.too-deep")]
    if len(source) > MAX_SOURCE:
        return [Trait(name="source.too-large")]
    found = list(_text_facts(source))
    # The marks are already reported; what they hide is read as well as it can be.
    readable = _SURROGATE.sub("�", source.removeprefix("\ufeff").replace("\0", " "))
    try:
        with _parsing, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(readable)
    except SyntaxError as error:
        line, column = error.lineno or 0, error.offset or 0
        found.append(Trait(name="python.syntax-error", line=line, column=column, text=error.msg or ""))
    except (RecursionError, MemoryError):
        found.append(Trait(name="source.too-deep"))
    except ValueError as error:
        found.append(Trait(name="python.syntax-error", text=str(error)))
    else:
        found.extend(_Reader(readable, tree, depth).read())
    return found


def _text_facts(source: str) -> Iterator[Fact]:
    for name, found in (
        ("source.nul", re.search("\0", source)),
        ("source.bad-utf8", _SURROGATE.search(source)),
        ("source.invisible", _BIDI.search(source)),
    ):
        if found is not None:
            start = found.start()
            column = start - source.rfind("\n", 0, start)
            yield Trait(name=name, line=source.count("\n", 0, start) + 1, column=column, text=ascii(found.group()))
    for number, line in enumerate(re.split(r"\r\n|\r|\n", source[:4096], maxsplit=2)[:2], start=1):
        cookie = _COOKIE.match(line.removeprefix("\ufeff"))
        if cookie is not None and cookie[1].lower().replace("_", "-") not in _HARMLESS_ENCODINGS:
            yield Trait(name="python.encoding", line=number, column=1, text=line.strip())


class Place(TypedDict, total=False):
    """Where a fact is: the fields all facts share."""

    line: int
    column: int
    text: str


class _Reader:
    """Reads one parsed program."""

    def __init__(self, source: str, tree: ast.Module, depth: int) -> None:
        self.lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.nodes = all_nodes(tree)
        self.names = Names(self.nodes)
        self.depth = depth
        # Code inside code is part of the source, so an honest program never runs out. One that doubles a string in
        # twenty assignments and runs it would otherwise have megabytes read.
        self.inner_left = len(source) + _INNER_SLACK // (depth + 1)
        self.settled: set[ast.AST] = set()
        """Nodes that a fact about their parent has already spoken for."""

    def read(self) -> Iterator[Fact]:
        for node in self.nodes:
            if node.__class__ not in _TELLING:
                continue
            match node:
                case ast.Import(names=aliases):
                    for alias in aliases:
                        yield Import(name=alias.name, **self.place(node))
                case ast.ImportFrom(names=aliases):
                    for alias in aliases:
                        yield Import(name=f"{module_of(node)}.{alias.name}", **self.place(node))
                case ast.Call():
                    self.settled.add(node.func)
                    yield from self.call(node)
                case ast.Assign(targets=[ast.Name()], value=ast.Name() | ast.Attribute() as value):
                    if self.names.meanings(value)[0] in _FOLLOWED:
                        self.settled.add(value)  # a plain alias: judged where it is used
                case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[container]):
                    self.settled.add(container)  # asking whether something is in it takes nothing out of it
                case ast.Attribute(ctx=ast.Load()):
                    yield from self.reading(node)
                case ast.Subscript(ctx=ast.Load()):
                    yield from self.item(node)
                case ast.Name(id=name, ctx=ast.Load()) if node not in self.settled and not self.names.is_local(name):
                    for meaning in self.names.meanings(node):
                        yield Attribute(name=meaning, **self.place(node))

    def place(self, node: ast.AST) -> Place:
        """Where a node is, in characters (the tree counts bytes), and its text."""
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

    def reading(self, node: ast.Attribute) -> Iterator[Fact]:
        inner = node.value
        self.settled.add(inner)
        while isinstance(inner, ast.Attribute):
            inner = inner.value
            self.settled.add(inner)
        if node not in self.settled:
            for meaning in self.names.meanings(node):
                yield Attribute(name=meaning, **self.place(node))

    def item(self, node: ast.Subscript) -> Iterator[Fact]:
        """`sys.modules["os"]` is os; `sys.modules[x]` is a member of a sensitive table that can't be known."""
        meanings = self.names.meanings(node)
        if any(meaning.startswith(_SENSITIVE_TABLES) for meaning in meanings):
            self.settled.add(node.value)
            if not (isinstance(node.slice, ast.Name) and node.slice.id == "__name__"):  # the module's way to say "me"
                yield Trait(name="python.dynamic-attribute", **self.place(node))
        elif node not in self.settled and not any("[" in meaning or UNKNOWN in meaning for meaning in meanings):
            self.settled.add(node.value)
            for meaning in meanings:
                yield Attribute(name=meaning, **self.place(node))

    def call(self, node: ast.Call) -> Iterator[Fact]:
        place = self.place(node)
        literal = all(isinstance(argument, ast.Constant) for argument in arguments_of(node))
        for meaning in self.names.meanings(node.func):
            folded = self.names.text(node.args[0]) if meaning in _CODE_CALLS and node.args else None
            known = folded is not None and UNKNOWN not in folded
            yield Call(name=meaning, literal=literal or known, **place)
            if known and folded is not None:
                yield from self.inside(facts, folded, place)
            yield from self.imported_by(node, meaning, place)
            yield from self.looked_up_by(node, meaning, place)
            yield from self.started_by(node, meaning, place)
            yield from self.written_by(node, meaning, place)

    def imported_by(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        if name in ("__import__", "importlib.import_module", "importlib.__import__", "runpy.run_module") and node.args:
            module = self.names.text(node.args[0])
            if module is None or UNKNOWN in module:
                yield Trait(name="python.dynamic-import", **place)
            else:
                yield Import(name=module, **place)

    def looked_up_by(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """A look-up by a constant name is known, and its parts need no word of their own; any other is reported."""
        if name == "hasattr" or (name == "getattr" and len(node.args) > 1):
            owner, key = node.args[0], self.names.text(node.args[1]) if len(node.args) > 1 else None
            if key is not None and UNKNOWN not in key:
                self.settled.add(owner)
                for meaning in self.names.meanings(node) if name == "getattr" and node not in self.settled else ():
                    yield Attribute(name=meaning, **place)
            elif _SENSITIVE_MODULES.intersection(self.names.meanings(owner)):
                yield Trait(name="python.dynamic-attribute", **place)
        elif name in ("operator.attrgetter", "operator.methodcaller") and node.args:
            key = self.names.text(node.args[0])
            if key is None or UNKNOWN in key or f".{key}" in _TELLING_METHODS:
                yield Trait(name="python.dynamic-attribute", **place)

    def started_by(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """The commands a call starts."""
        if name in _SHELL_CALLS or (name in _ARGV_CALLS and self.wants_shell(node)):
            script = self.first(node, "cmd", "args")
            words = self.names.words(script) if script is not None else None
            text = words[0] if words else self.names.text(script) if script is not None else None
            yield from self.script_facts(text, place)
        elif name in _ARGV_CALLS:
            command = self.first(node, "args", "argv")
            words = self.names.words(command) if command is not None else None
            if words is None and command is not None and (text := self.names.text(command)) is not None:
                words = [text]
            if any(keyword.arg == "executable" for keyword in node.keywords):
                words = None
            yield from self.argv_facts(words, place)
        elif name in _SPREAD_CALLS:
            yield from self.argv_facts([self.names.text(word) or UNKNOWN for word in node.args], place)
        elif name in _EXEC_LISTS or name in _EXEC_SPREAD:
            yield from self.argv_facts(self.exec_words(node, name), place)
        elif name.endswith(_TELLING_METHODS) and name not in STARTS_COMMANDS and node.args:
            text = self.names.text(node.args[0])
            if text is not None:
                yield from self.script_facts(text, place)

    def exec_words(self, node: ast.Call, name: str) -> list[str] | None:
        """The program is what runs, whatever its argv[0] claims to be."""
        at = _EXEC_LISTS[name] if name in _EXEC_LISTS else _EXEC_SPREAD[name]
        if len(node.args) <= at + 1:
            return None
        program = self.names.text(node.args[at]) or UNKNOWN
        if name in _EXEC_LISTS:
            rest = self.names.words(node.args[at + 1])
        else:
            rest = [self.names.text(word) or UNKNOWN for word in node.args[at + 1 :]]
        return [program, *(rest[1:] if rest is not None else [UNKNOWN])]

    def first(self, node: ast.Call, *keywords: str) -> ast.expr | None:
        if node.args and not isinstance(node.args[0], ast.Starred):
            return node.args[0]
        return next((keyword.value for keyword in node.keywords if keyword.arg in keywords), None)

    def wants_shell(self, node: ast.Call) -> bool:
        """`shell=False` and no word of it don't; a value that can't be known, or `**options`, might."""
        for keyword in node.keywords:
            if keyword.arg == "shell":
                return not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        return False

    def script_facts(self, script: str | None, place: Place) -> Iterator[Fact]:
        if script is None or UNKNOWN in script:
            yield Trait(name="python.dynamic-command", **place)
        if script is not None:
            from .. import shell

            yield from self.inside(shell.facts_of_script, script.replace(UNKNOWN, _UNKNOWN_WORD), place)

    def argv_facts(self, words: list[str] | None, place: Place) -> Iterator[Fact]:
        if not words:
            yield Trait(name="python.dynamic-command", **place)
            return
        from .. import shell

        quoted = f'"{_UNKNOWN_WORD}"'
        script = " ".join(
            quoted.join(shlex.quote(part) if part or word == "" else "" for part in word.split(UNKNOWN))
            for word in words
        )
        yield from self.inside(shell.facts_of_script, script, place)

    def inside(self, read: Callable[[str, int], list[Fact]], code: str, place: Place) -> Iterator[Fact]:
        """The facts of code inside this code, at the place where this code holds it."""
        self.inner_left -= len(code)
        if self.inner_left < 0:
            yield Trait(name="source.too-large", **place)
            return
        for fact in read(code, self.depth + 1):
            text = place.get("text", "") if _UNKNOWN_WORD in fact.text else fact.text
            yield msgspec.structs.replace(fact, line=place.get("line", 0), column=place.get("column", 0), text=text)

    def written_by(self, node: ast.Call, name: str, place: Place) -> Iterator[Fact]:
        """File operations on a path that is known, told as the command that would do the same."""
        arguments = node.args
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in _REMOVERS and arguments:
            yield from self.file_command("rm", _REMOVERS[name], arguments[0], place)
        elif name == "os.chmod" and len(arguments) > 1:
            yield from self.file_command("chmod", (_octal(arguments[1]),), arguments[0], place)
        elif name.endswith(".chmod") and owner is not None and arguments:
            yield from self.file_command("chmod", (_octal(arguments[0]),), owner, place)
        elif name in _TARGETS and len(arguments) > _TARGETS[name]:
            yield from self.file_write(name, arguments[_TARGETS[name]], place)
        elif name in _OPENERS and arguments and self.opens_for_writing(node, at=1):
            yield from self.file_write(name, arguments[0], place)
        elif owner is not None and (
            name.endswith(_PATH_WRITERS) or (name.endswith(".open") and self.opens_for_writing(node, at=0))
        ):
            yield from self.file_write(name, owner, place)
        elif owner is not None and name.endswith((".unlink", ".rmdir")):
            yield from self.file_command("rm", (), owner, place)

    def opens_for_writing(self, node: ast.Call, *, at: int) -> bool:
        mode = next((keyword.value for keyword in node.keywords if keyword.arg == "mode"), None)
        if mode is None:
            if len(node.args) <= at:
                return False
            mode = node.args[at]
        text = self.names.text(mode)
        return text is None or any(letter in text for letter in "wax+" + UNKNOWN)

    def file_command(self, name: str, args: tuple[str, ...], path: ast.expr, place: Place) -> Iterator[Fact]:
        text = self.names.text(path)
        if text is not None and not text.startswith(UNKNOWN):
            yield Command(name=name, args=(*args, text), writes=(text,), via=("python",), **place)

    def file_write(self, name: str, path: ast.expr, place: Place) -> Iterator[Fact]:
        text = self.names.text(path)
        if text is not None and not text.startswith(UNKNOWN):
            yield Command(name=name, args=(), writes=(text,), via=("python",), **place)


def arguments_of(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _octal(node: ast.expr) -> str:
    return f"{node.value:o}" if isinstance(node, ast.Constant) and isinstance(node.value, int) else UNKNOWN
