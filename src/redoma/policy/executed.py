"""Find the files that a request would execute, from its text alone. Pure: no file is read.

An approval is *bound* to these files: if one of them changes, the approval is no longer valid. What the text doesn't
show is reported as unbound.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ..lib.patterns import lazy_pattern
from ..lib.text import shorten
from ..models import Request
from .facts import (
    MAX_SOURCE,
    UNKNOWN,
    Assigned,
    Attribute,
    Call,
    Command,
    Executed,
    Fact,
    Function,
    Import,
    Searched,
    Trait,
    Unbound,
    names,
    normal,
    only_known_later,
    runs_elsewhere,
)
from .options import AWKS, SEDS, TARS, tar_letters, values_of
from .reading import Reading
from .self_contained import is_self_contained

_OTHER_ROOT = names("chroot proot unshare nsenter")
# All builtins of Bash: in a shell, no program is looked for by these names.
_BUILTINS = names("""
    : . [ alias bg break builtin caller cd command compgen complete continue declare dirs disown echo enable eval
    exec exit export false fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read
    readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias
    unset wait
""")
_LOADERS = names("""
    ctypes.CDLL ctypes.PyDLL ctypes.cdll ctypes.pydll ctypes.pythonapi ctypes.LibraryLoader exec eval compile
    pickle.load pickle.loads pickle.Unpickler pickle._load pickle._loads pickle._Unpickler marshal.load marshal.loads
    yaml.load_all yaml.unsafe_load yaml.unsafe_load_all yaml.full_load yaml.full_load_all yaml.Loader
    yaml.UnsafeLoader yaml.FullLoader yaml.CLoader yaml.CUnsafeLoader yaml.CFullLoader
    pandas.read_pickle pandas.read_hdf pandas.eval pandas.io.pickle.read_pickle numpy.lib.npyio.load
    numpy.ctypeslib.load_library logging.config imaplib.IMAP4_stream http.server.CGIHTTPRequestHandler
    multiprocessing.set_executable multiprocessing.spawn.set_executable multiprocessing.connection
    multiprocessing.managers os.putenv os.unsetenv os.chroot posix.putenv posix.unsetenv sys.path sys.meta_path
    sys.path_hooks sys.setprofile sys.settrace

    runpy zipimport imp pkgutil pydoc code codeop pdb bdb timeit cProfile profile trace doctest unittest webbrowser
    readline site venv tkinter distutils setuptools shelve pipes _pickle _ctypes _posixsubprocess joblib.load dill
    cloudpickle torch.load sh pexpect plumbum invoke fabric cffi jinja2.Template
""")
"""Python names that run files other than imported ones, or that change which files imports find. A name also covers its
attributes."""
_LOADING_METHODS = tuple(
    f".{name}"
    for name in names("""
        load_extension enable_load_extension subprocess_exec subprocess_shell set_executable load_module exec_module
    """)
)
_STATEMENT_METHODS = (".eval", ".query")
_REACHES_ANYTHING = lazy_pattern(
    r"(?:\A|\.)(?:__(?:subclasses|globals|builtins|loader|spec|path|self|code|closure|build_class)__"
    r"|f_(?:globals|builtins|back)|[gc][ir]_frame|tb_frame)(?:\W|\Z)"
    r"|\Aimportlib\.(?!(?:(?:import_module|__import__|reload|invalidate_caches|metadata|resources)(?:\.|\Z)))"
    r"|\A(?:(?:os|posix)\.environb?|sys\.modules)\.(?!(?:get|keys|values|items|copy|__(?:getitem|contains|len|iter)__)\Z)"
)
"""Attributes through which any function or module can be reached, the import machinery, and calls that change
`os.environ` or `sys.modules`, on which later commands and imports depend."""
# Traits of requests that execute something unknown, each with the description of it.
_UNBOUND = {
    "shell.dynamic-command": only_known_later("which program it runs"),
    "python.dynamic-command": only_known_later("which program it runs"),
    "python.dynamic-import": only_known_later("which module it imports"),
    "shell.dynamic-code": only_known_later("which code it runs"),
    "shell.pipe-to-interpreter": only_known_later("which code it runs"),
    "shell.hidden-option": "an option makes a program run something else",
    "shell.inline-code": "it runs code in a language that is not read here",
    "python.dynamic-attribute": only_known_later("which attribute it uses"),
    "python.syntax-error": "a part of it can't be read",
    "python.encoding": "it is in an encoding that is not read here",
    "python.unsafe-load": "it reads objects that run code when they are read",
    "shell.parse-error": "a part of it can't be read",
    "source.too-large": "it is too long to be read",
    "source.too-deep": "it is nested too deeply to be read",
}
_CHANGES_DIRECTORY = names("os.chdir os.fchdir contextlib.chdir")
_RUNS_WHAT_IT_WRITES = "it writes a file, and then runs it"
_SETS_HOOK = "a variable makes programs run something else"
_START_UP = ("BASH_ENV", "ENV")
"""Variables that name a script which a shell runs when it starts."""
_MAY_DECIDE_FILES = names("""
    HOME XDG_CONFIG_HOME SHELL PYTHONWARNINGS CURL_HOME GNUPGHOME ZIPOPT MYSQL_HOME LIBMYSQL_PLUGIN_DIR RSH
    SYSTEM_WGETRC
""")
"""Variables that may determine which files programs run, in addition to those that `is_hook` knows. They are too common
for a rule to ask about them."""
_USUAL_SHELL = lazy_pattern(r"/(?:usr/)?bin/(?:ba|da|z|k)?sh\Z")
_USED_ANYWAY = ("PATH", "HOME", "PYTHONPATH")
"""Variables of a request whose values are used anyway when its files are searched for."""
_SETTINGS = {
    "scp": (".ssh/config",),
    "rsync": (".ssh/config",),
    "curl": (".curlrc", ".config/curlrc"),
    "wget": (".wgetrc",),
    "gpg": (".gnupg/gpg.conf", ".gnupg/gpg-agent.conf", ".gnupg/dirmngr.conf"),
    "mysqldump": (".my.cnf", ".mylogin.cnf"),
}
"""Configuration files in the user's home that may make plain programs run or load other files."""
_KEEPS_CONTENT = names("chmod chown chgrp chattr setfacl touch mkdir rm rmdir unlink")
_MAX_SHOWN = 120


class Executes(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a request would run."""

    files: tuple[Executed, ...] = ()
    settings: tuple[Executed, ...] = ()
    """Configuration files in the user's home that may name other files to run."""
    programs: tuple[Executed, ...] = ()
    """Programs to be searched for: `path` is a bare name."""
    opaque: frozenset[str] = frozenset()
    """Names of programs that may run other files, because nothing is known about them."""
    functions: frozenset[str] = frozenset()
    """Names of functions that the script defines: a command with such a name may be the function."""
    mentioned: tuple[Executed, ...] = ()
    """Values of variables: if one is the path of a file, something may run it."""
    searched: tuple[str, ...] = ()
    """Values of PATH: additional places to search for programs."""
    imported: tuple[str, ...] = ()
    """Python modules, by their dotted names."""
    libraries: tuple[str, ...] = ()
    """Entries of PYTHONPATH: additional places to search for modules."""
    unbound: tuple[str, ...] = ()
    """Descriptions of everything else it runs, or may run, to which no approval can be bound."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the programs to be searched for, each once."""
        return tuple(dict.fromkeys(program.path for program in self.programs))


def executes(request: Request, *, live_input: bool = False, reading: Reading | None = None) -> Executes:
    """Return the files that a request would run. Never raises: a request that can't be read is reported as unbound.

    `live_input`: whether the request can receive input while it runs. `reading`: an existing reading of the same
    request, to avoid reading it twice.
    """
    try:
        facts = (reading or Reading(request)).with_input(live_input=live_input)
    except Exception as error:  # as in `evaluate`
        return Executes(unbound=(f"it could not be read ({type(error).__name__})",))
    own = (Assigned(name=name, value=value) for name, value in request.env.items() if name not in _USED_ANYWAY)
    return _executed([*facts, *own])


def executed_by(source: str, language: str) -> Executes:
    """Return the files that a script would run. `source`: the script's text."""
    return executes(Request(code=source[: MAX_SOURCE + 1], language="python" if language == "python" else "bash"))


def executed_by_words(words: Sequence[str]) -> Executes:
    """Return the files that a command would run, for example the command in a script's first line (`#!`)."""
    return executes(Request(argv=tuple(words), language="command"))


def _may_run_files(name: str) -> bool:
    """Return whether this name, or one that it is an attribute of, may run files that can't be determined."""
    if name.endswith(_LOADING_METHODS) or _REACHES_ANYTHING.search(name):
        return True
    parts = name.partition("(")[0].partition("[")[0].split(".")
    return any(".".join(parts[: at + 1]) in _LOADERS for at in range(len(parts)))


def _runs_its_argument(name: str) -> bool:
    """Return whether this function runs code, commands or modules. What it runs is known if it is called directly, but
    not if it is passed on as a value."""
    from .python.calls import CODE_CALLS, IMPORTERS, STARTS_COMMANDS

    return name in STARTS_COMMANDS or name in CODE_CALLS or name in IMPORTERS


class _Collected:
    """Collects the fields of an `Executes`, in the order in which their values are found."""

    def __init__(self) -> None:
        self.fields: dict[str, dict[Any, None]] = {field: {} for field in Executes.__struct_fields__}

    def add(self, field: str, *found: object) -> None:
        self.fields[field].update(dict.fromkeys(found))

    def unbound(self, why: str, fact: Fact) -> None:
        self.add("unbound", f"{why}: {_shown(fact)}")

    def result(self) -> Executes:
        sets = {field: frozenset(self.fields.pop(field)) for field in ("opaque", "functions")}
        return Executes(**sets, **{field: tuple(found) for field, found in self.fields.items()})  # type: ignore[arg-type]


def _executed(facts: Sequence[Fact]) -> Executes:
    """Return what these facts execute."""
    found = _Collected()
    # A script that sources another one is read twice, the second time without trusting `cd`. A file whose directory is
    # known from the first reading needs no second entry.
    known = {_reading_key(fact) for fact in facts if isinstance(fact, Executed) and fact.directory is not None}
    assigned = {
        fact.name if fact.text == "" else fact.text
        for fact in facts
        if isinstance(fact, Assigned) and fact.name != "IFS"
    }
    assigned |= {*_USED_ANYWAY, *(fact.text for fact in facts if isinstance(fact, Searched))}
    written = _written_paths(facts)
    unpacker = next((fact.name for fact in facts if isinstance(fact, Command) and _writes_anything(fact)), "")
    moved = any(isinstance(fact, (Call, Attribute)) and fact.name in _CHANGES_DIRECTORY for fact in facts)
    for fact in facts:
        match fact:
            case Executed(via=via) if not runs_elsewhere(via):
                if fact.directory is None and _reading_key(fact) in known:
                    continue
                if moved and fact.how != "module":
                    fact = msgspec.structs.replace(fact, directory=None)
                _add_file(fact, found, written, unpacker)
            case Command(via=via) if runs_elsewhere(via):
                found.add("unbound", f"{via[0]} runs it elsewhere, and the files there are not bound")
            case Command():
                _add_command(fact, found)
            case Assigned():
                _add_variable(fact, found)
            case Searched():
                _add_search_path(fact, found)
            case Import() | Call() | Attribute():
                _add_name(fact, found, written)
            case Unbound(why=why):
                found.unbound(why, fact)
            case Trait(name="shell.environment-hook") if fact.text not in assigned:
                found.unbound(_SETS_HOOK, fact)
            case Trait(name=name) if name in _UNBOUND:
                found.unbound(_UNBOUND[name], fact)
            case Function(name=name):
                found.add("functions", name)
    return found.result()


def _add_file(fact: Executed, found: _Collected, written: frozenset[str], unpacker: str) -> None:
    """Add a file. `written`: the paths that the request writes. `unpacker`: a program that may write any, or ""."""
    why = _why_unknown(fact) or _why_written(fact, written)
    if unpacker and not why and not fact.path.startswith(_SYSTEM_DIRECTORIES):
        why = f"{unpacker} may write it first"
    if why:
        found.unbound(why, fact)
        return
    found.add("files", msgspec.structs.replace(fact, line=0, column=0, text="", via=()))
    if fact.language == "other":
        found.add("unbound", f"{fact.path} is in a language that is not read here: what it loads is not bound")


def _add_search_path(fact: Searched, found: _Collected) -> None:
    if UNKNOWN in fact.path:
        what = "modules" if fact.modules else "programs"
        found.unbound(only_known_later(f"where {what} are searched for"), fact)
    elif not fact.modules:
        found.add("searched", fact.path)
    if fact.modules:
        found.add("libraries", *(part for part in fact.path.split(":") if part and UNKNOWN not in part))


def _add_name(fact: Import | Call | Attribute, found: _Collected, written: frozenset[str]) -> None:
    """Add what a name of a Python program imports, or why that can't be known."""
    name = fact.name
    if isinstance(fact, Import):
        if UNKNOWN not in name and name.strip("."):
            found.add("imported", name)
            if not written.isdisjoint(modules(name.strip("."))):
                found.unbound(_RUNS_WHAT_IT_WRITES, fact)
    elif isinstance(fact, Attribute):
        if _may_run_files(name) or _runs_its_argument(name):
            found.unbound("it may run or import files that are not bound, or pass on a function that does", fact)
    elif _may_run_files(name) and not (fact.literal and name in ("exec", "eval", "compile")):
        found.unbound("it may run or import files that are not bound", fact)
    elif name.endswith(".executescript") or (name.endswith(_STATEMENT_METHODS) and not fact.literal):
        found.unbound(only_known_later("which statements it runs"), fact)


def _add_command(fact: Command, found: _Collected) -> None:
    """Add what a command runs: its program, and the files that the program reads first."""
    from .shell.interpreters import interpreter, start_ups
    from .shell.programs import RUNNERS

    name, args = fact.name, fact.args
    if fact.lookup == "none":
        return  # a module is also reported as a file
    for file in start_ups(name, args) if not fact.path or fact.path.startswith("/") else ():
        found.add("files", Executed(path=f"~/{file}", how="script", language="shell"))
    for file in _SETTINGS.get(name, ()):
        found.add("settings", Executed(path=f"~/{file}", how="data"))
    if interpreter(name) == "python" and _imports_by_option(args):
        found.unbound("an option has Python import or load something else", fact)
    if name in ("test", "[", "unset") and _names_unknown_variable(args):
        found.unbound(only_known_later("which variable it names") + ", and such a name may run anything", fact)
    if name in RUNNERS:
        found.add("unbound", f"{name} runs what its files say, and what those include or run is not bound")
    if UNKNOWN in name:
        return
    if name not in _BUILTINS and interpreter(name) not in ("shell", "python") and not is_self_contained(name, args):
        found.add("opaque", name)
    if not fact.path and not (name in _BUILTINS and fact.lookup == "shell"):
        found.add("programs", Executed(path=name, directory=fact.directory, args=(*args, *fact.given)))


def _imports_by_option(args: Sequence[str]) -> bool:
    """Return whether an option of Python imports or loads something: `-W error::module.Category` imports that module,
    and `-X pycache_prefix=x` loads compiled files from x."""
    categories = [value for value in values_of(args, "-W") if "." in "".join(value.split(":")[2:3])]
    return bool(categories) or any(value.startswith(("presite", "pycache_prefix")) for value in values_of(args, "-X"))


def _add_variable(fact: Assigned, found: _Collected) -> None:
    from .shell.variables import SEARCHES, is_hook

    name, value = fact.name, fact.value
    file = Executed(path=value, directory=fact.directory, how="script")
    if name == UNKNOWN or (name in SEARCHES and value == UNKNOWN):
        found.unbound(only_known_later("which variables it sets"), fact)
        return
    if name in SEARCHES or name == "IFS" or not value:
        return
    if name in _START_UP and not re.search(r"[$`\0]", value) and _why_unknown(file) == "":
        if name == "BASH_ENV" or "/" in value:
            found.add("files", msgspec.structs.replace(file, language="shell"))
        else:
            found.add("mentioned", file)  # ENV=production
    elif is_hook(name, value, value) or name in _START_UP or _may_decide_files(name, value):
        found.add("unbound", f"{_SETS_HOOK}: {name}")
    elif UNKNOWN not in value:
        found.add("mentioned", file)


def _may_decide_files(name: str, value: str) -> bool:
    """Return whether this variable with this value may determine which files programs run."""
    if name == "PYTHONWARNINGS":
        return "." in value  # Python imports the module of the category
    return name in _MAY_DECIDE_FILES and not (name == "SHELL" and _USUAL_SHELL.match(value))


def _written_paths(facts: Sequence[Fact]) -> frozenset[str]:
    """Return the paths that the request writes: by the time they are run, they may have any content."""
    commands = (fact for fact in facts if isinstance(fact, Command) and fact.name not in _KEEPS_CONTENT)
    return frozenset(normal(path, None) for command in commands for path in command.writes if path)


_WRITE_ANYTHING = names("unzip gunzip bunzip2 unxz unlzma unzstd unlz4 cpio 7z split csplit patch rsync scp wget")
_WRITE_ANYTHING_WITH = {
    **dict.fromkeys(
        names("gzip bzip2 xz lzma zstd lz4 pigz"), lazy_pattern(r"\A(?:-[A-Za-z0-9]*d|--(?:un)?(?:de)?compress)")
    ),
    **dict.fromkeys(AWKS, lazy_pattern(r">|\bclose\b")),
    **dict.fromkeys(SEDS, lazy_pattern(r"(?:\A|[0-9/;{}$\s|,#!])[wW]\s*[\w./~-]|/[gpiIme0-9]*w\s")),
    "curl": lazy_pattern(r"\A(?:-[A-Za-z]*[OJ]|--remote-)"),
}
"""Programs that write files which their arguments don't name, always or if an argument contains this pattern."""
_SYSTEM_DIRECTORIES = ("/usr/", "/bin/", "/sbin/", "/lib", "/etc/")


def _writes_anything(fact: Command) -> bool:
    """Return whether a command writes files that its arguments don't name, such as the members of an archive or files
    from another machine."""
    name, args = fact.name, fact.args
    if name in TARS:
        return "x" in tar_letters(args)
    if name in _WRITE_ANYTHING_WITH:
        return any(map(_WRITE_ANYTHING_WITH[name].search, args))
    return name in _WRITE_ANYTHING


def _names_unknown_variable(args: Sequence[str]) -> bool:
    """Return whether `test -v` or `unset` is given a variable whose name or subscript isn't known."""
    named = [arg for before, arg in itertools.pairwise(args) if before == "-v"]
    return any(UNKNOWN in arg for arg in named) or any(
        "[" in arg.partition(UNKNOWN)[0] for arg in args if UNKNOWN in arg
    )


def _why_written(fact: Executed, written: frozenset[str]) -> str:
    """Return an objection if the request itself writes the file or a directory above it; empty otherwise."""
    path = normal(placed(fact, fact.path), None) or "."  # unlike `normpath`, without a double slash at its beginning
    while written and path not in ("", "/"):
        if path in written:
            return _RUNS_WHAT_IT_WRITES
        path = posixpath.dirname(path) or ("." if path != "." else "")
    return ""


def _reading_key(fact: Executed) -> tuple[object, ...]:
    """Return a key that is the same for both readings of the same file (see `_executed`)."""
    return fact.path, fact.how, fact.via, fact.line, fact.column


def _why_unknown(fact: Executed) -> str:
    """Return why the file can't be determined; empty if it can."""
    from .shell.wrappers import LOGIN

    path = fact.path
    if UNKNOWN in path or re.search(r"[*?]|\A/dev/fd/|\A/proc/(?:self|thread-self|\d+)/", path):
        return only_known_later("which file it runs")
    if (fact.directory is None or LOGIN in fact.via) and path[:1] not in ("/", "~"):
        return only_known_later("in which directory it runs a file")
    if any(each in _OTHER_ROOT for each in fact.via):
        return only_known_later("in which root directory it runs a file")
    return ""


def _shown(fact: Fact) -> str:
    return shorten(" ".join(fact.text.replace(UNKNOWN, "…").split()), _MAX_SHOWN)


def candidates(fact: Executed) -> list[str]:
    """Return the paths at which the file may be found, relative to the fact's directory: several for a module."""
    if fact.how != "module":
        return [fact.path]
    return [*modules(fact.path), f"{fact.path.replace('.', '/')}/__main__.py"]


def modules(name: str) -> list[str]:
    """Return the paths at which a module and its parent packages may be found."""
    parts = name.split(".")
    paths = ["/".join(parts[: at + 1]) for at in range(len(parts))]
    return [f"{path}{end}" for path in paths for end in (".py", "/__init__.py")]


def placed(fact: Executed, path: str) -> str:
    """Return a path of this fact relative to the directory where the request starts."""
    if path[:1] in ("/", "~") or fact.directory in (None, "."):
        return path
    return posixpath.join(fact.directory or ".", path)
