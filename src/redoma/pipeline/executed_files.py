"""Find and hash the files that a request would execute: an approval is bound to their content.

`policy.executed` derives these files from the request's text. Here they are located as a run would locate them, and
hashed. Scripts are also read for the files that they run. Only executed files count: data that a program reads may
change every day. Files in system directories that only root can change are not hashed, so that an upgrade of the
system doesn't invalidate approvals.

What can't be bound is listed as `unbound`, and such a request can't be pinned. So a system program must be known to run
nothing else (`policy/self_contained.py`), and a script must be in a language that is read here.

Only regular files are opened, so nothing here blocks on a pipe or device. A missing file is bound as missing, so that
its creation is a change.
"""

from __future__ import annotations

import glob
import hashlib
import os
import posixpath
import pwd
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Any, NamedTuple

from ..models import ExecutedFiles, Request
from ..policy import Reading
from ..policy.executed import Executes, candidates, executed_by, executed_by_words, executes, modules, placed
from ..policy.facts import UNKNOWN, Executed, only_known_later
from ..policy.self_contained import SELF_CONTAINED_MODULES, SELF_CONTAINED_TOOLS
from ..policy.shell.interpreters import interpreter

MISSING, UNREADABLE, NO_FILE, TOO_LARGE = "missing", "unreadable", "no regular file", "too large"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives")
_OWN = "/usr/local"
"""Distributions install nothing here, so files in it are bound, except programs found by a search: see `is_systems`."""
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where shells search without PATH
_MAX_SIZE = 256 << 20  # bytes of one file
_MAX_TOTAL = 1 << 30
_MAX_SCRIPT = 256 << 10  # bytes of a script that is read for what it runs
_MAX_FILES, _MAX_DEPTH = 500, 8  # files; scripts that are run by scripts
_MAX_SCRIPTS = 50  # that policy reads for one request
_OTHERS = {
    **dict.fromkeys(("js", "mjs", "cjs", "node", "nodejs"), "javascript"),
    **{"pl": "perl", "rb": "ruby"},
    **{name: name for name in ("perl", "ruby", "php", "lua")},
}
"""Languages of other scripts, by the extension of the file or by the interpreter."""
_SHADOWED = frozenset({*sys.stdlib_module_names, *SELF_CONTAINED_MODULES, "sitecustomize", "usercustomize"})
_MAX_LINKS = 40  # the kernel's limit
_MAX_NOTES = 50
_SHA256 = 64  # digits


class View(NamedTuple):
    """The files of the host as a run sees them."""

    roots: tuple[tuple[str, str], ...]
    """Pairs of a path inside the run and its path on the host."""
    cwd: str | None
    """The working directory inside; None if the run begins in a directory of its own, without files of the host."""
    search: str = _SEARCH
    home: str = ""
    modules: tuple[str, ...] = ()
    """Further directories that Python searches."""
    has_home: bool = True
    """Whether HOME is set. If not, only shells know what `~` is."""

    def on_host(self, path: str) -> str | None:
        """Return where a path inside the run is on the host; None if it isn't a file of the host."""
        for inside, host in self.roots:
            if inside == "/" or path == inside or path.startswith(f"{inside}/"):
                return path if inside == host else host + path[len(inside) :]
        return None

    @property
    def moved(self) -> bool:
        """Whether some path inside differs from its path on the host, so that links may lead elsewhere inside."""
        return any(inside != host for inside, host in self.roots)


class Script(NamedTuple):
    """A script that a request runs."""

    name: str
    """As the request names it."""
    language: str
    text: str
    args: tuple[str, ...]

    @property
    def judged_as(self) -> dict[str, Any]:
        """The fields of an equivalent request. A script in a language that isn't parsed becomes `perl -e TEXT`."""
        if self.language in ("bash", "python", "javascript"):
            return {"language": self.language, "code": self.text, "argv": self.args}
        option = "-r" if self.language == "php" else "-e"
        return {"language": "command", "code": "", "argv": (self.language, option, self.text.replace("\0", ""))}


def visible_to(request: Request, volumes: Sequence[str] = ()) -> View | None:
    """Return the files of the host that a request sees besides the system's own; None if it sees none."""
    given = request.environment
    search, home = given.get("PATH", _SEARCH), given.get("HOME", "")
    libraries = tuple(place for place in given.get("PYTHONPATH", "").split(":") if place.startswith("/"))
    if request.backend == "native":
        return View((("/", "/"),), request.cwd, search, home or _home_of(), libraries, bool(home))
    mounted = sorted((each.split(":")[:2][::-1] for each in volumes), key=lambda pair: -len(pair[0]))
    roots = [(posixpath.normpath(inside), host) for inside, host in mounted]
    if request.project is not None:
        roots.append((request.project, request.project))
    return View(tuple(roots), request.cwd or request.project, search, home, libraries) if roots else None


def find(
    request: Request, view: View | None, *, live_input: bool = False, reading: Reading | None = None
) -> ExecutedFiles:
    """Return all files that a request would execute, as they are now. `live_input`: whether it can receive input while
    it runs. `reading`: an existing reading of the same request by policy, to avoid reading it twice.
    """
    if view is None or request.language == "lua":  # each command of a Lua script is submitted separately
        return ExecutedFiles()
    binder = _Binder(view)
    binder.all_of(executes(request, live_input=live_input, reading=reading), view.cwd, 0)
    return ExecutedFiles(
        files=dict(sorted(binder.files.items())), unbound=tuple(dict.fromkeys(binder.unbound))[:_MAX_NOTES]
    )


def scripts(request: Request, view: View | None, reading: Reading) -> Iterator[Script]:
    """Yield the scripts that a request names, and those that these name (`bash x.sh`, `./x.py`, `source lib.sh`,
    `python3 -m x`), as they are now. Files of the system, modules that are imported and plans such as a Makefile are
    left out. If there are too many, or they are nested too deeply, the last one is a stand-in that is too long for
    policy, which reports that.
    """
    if view is None or request.language == "lua" or not reading.names_scripts():
        return
    todo = [(fact, view.cwd, "", 0) for fact in executes(request, reading=reading).files if fact.is_script]
    known: set[tuple[str, str]] = set()
    while todo:
        fact, cwd, beside, depth = todo.pop(0)
        for path, text in _texts_of(fact, request, view, cwd, beside):
            language = _script_language(path, text, fact)
            if not language or (path, language) in known:
                continue
            known.add((path, language))
            if len(known) > _MAX_SCRIPTS or depth > _MAX_DEPTH:
                yield Script(fact.path, "bash", "#" * (_MAX_SCRIPT + 1), ())
                return
            yield Script(fact.path, language, text, _arguments(fact, request))
            if language in ("bash", "python"):
                where = cwd if fact.directory is None else _joined(cwd, fact.directory, view.home)
                inside = executed_by(text, language).files
                todo += [(each, where, posixpath.dirname(path), depth + 1) for each in inside if each.is_script]


def _texts_of(fact: Executed, request: Request, view: View, cwd: str | None, beside: str) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each file that a fact may name. `beside` is the directory of the script that names it,
    which is searched as well: `$(dirname "$0")/lib.sh` is read as ./lib.sh.
    """
    for name in (placed(fact, path) for path in candidates(fact)):
        if (given := request.files.get(posixpath.normpath(name))) is not None:
            yield name, given[: _MAX_SCRIPT + 1].decode("utf-8", "replace")
            continue
        for path in dict.fromkeys((_joined(cwd, name, view.home), _joined(beside or None, name, view.home))):
            host = view.on_host(path) if path is not None else None
            if host is None or is_systems(os.path.realpath(host)):
                continue
            if fact.how == "script" and os.path.isdir(host):
                host = f"{host}/__main__.py"  # Python runs a directory this way
            if (text := _script_text(host)) is not None:
                yield host, text


def _script_language(path: str, text: str, fact: Executed) -> str:
    """Return the language to judge a script in; empty if its interpreter is not known."""
    first = text.partition("\n")[0]
    if language := _language(path, first.encode("utf-8", "replace"), fact):
        return "bash" if language == "shell" else language
    if fact.how == "plan" or fact.language not in ("", "other"):
        return ""
    named = posixpath.splitext(path)[1][1:]
    if first.startswith("#!"):
        named = posixpath.basename(first[2:].split(" -")[0].split()[-1]) if first[2:].split() else ""
    return _OTHERS.get(named, "")


def _arguments(fact: Executed, request: Request) -> tuple[str, ...]:
    """Return the arguments of a script: those after its name in a command, else those of the request."""
    if fact.args or request.language != "command" or fact.path not in request.argv:
        return tuple(arg for arg in fact.args if UNKNOWN not in arg) or request.argv
    return request.argv[request.argv.index(fact.path) + 1 :]


def _script_text(path: str) -> str | None:
    """Return the text of a script; None if it can't be read, isn't a regular file, or is binary. A long text is cut
    off, but what is returned is still too long for policy.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    with open(opened, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return None
        try:
            head = file.read(_MAX_SCRIPT + 1)
        except OSError:
            return None
    return None if b"\0" in head.split(b"\n", 1)[0] else head.decode("utf-8", "replace")


class _Binder:
    def __init__(self, view: View) -> None:
        self._view = view
        self.files: dict[str, str] = {}
        self.unbound: list[str] = []
        self._left = _MAX_TOTAL
        self._contents: dict[str, bytes | None] = {}
        """The contents of files that may be scripts."""
        self._followed: set[tuple[str | None, ...]] = set()
        self._search = {view.search: None}
        self._modules = dict.fromkeys(view.modules)
        """Where programs and modules are searched for: what a script sets applies to everything that it runs."""
        self._extensions: dict[str, list[str]] = {}
        self._opaque: set[str] = set()
        self._shadowed: set[str] = set()

    def all_of(self, found: Executes, cwd: str | None, depth: int, beside: str = "") -> None:
        """Bind what a request, or the script `beside`, runs in the directory `cwd`."""
        self.unbound += [f"{beside}: {each}" if depth else each for each in found.unbound]
        self._opaque |= found.opaque
        self._search = {**dict.fromkeys(found.searched), **self._search}
        self._modules |= {whole: None for each in found.libraries if (whole := _joined(cwd, each, self._view.home))}
        for fact in (*found.files, *found.settings):
            for path in candidates(fact):
                self._file(fact, placed(fact, path), cwd, depth, beside)
            if fact.how == "module":
                self._run_module(fact.path, cwd, depth)
        for fact in found.mentioned:
            where = None if fact.directory is None else _joined(cwd, fact.directory, self._view.home)
            self._mentioned(fact.path, where, depth)
        if found.imported or any(interpreter(name) == "python" for name in found.names):
            self._packages(f"{self._view.home}/.local")
        if found.imported or found.libraries or any(fact.how == "module" for fact in found.files):
            for place in dict.fromkeys((cwd, posixpath.dirname(beside), *self._modules)):
                self._shadows(place, cwd, depth)
        for name in found.imported:
            here = posixpath.dirname(beside)
            for _ in range(len(name) - len(name.lstrip(".")) - 1):  # `from ..x import y`: from the package above
                here = posixpath.dirname(here)
            places = [here] if name.startswith(".") and beside else [cwd, here, *self._modules]
            known = self._module(name.lstrip("."), places, cwd, depth)
            if not known and name.lstrip(".").partition(".")[0] not in SELF_CONTAINED_MODULES:
                self.unbound.append(f"what the module {name} runs is not known")
        for program in found.programs:
            self._name(program, tuple(self._search), cwd, depth, found.functions)

    def _file(self, fact: Executed, path: str, cwd: str | None, depth: int, beside: str) -> None:
        where = None if fact.directory is None else _joined(cwd, fact.directory, self._view.home)
        whole = _joined(cwd, path, self._view.home)
        tries = [whole] if whole is not None else []
        if whole is None and self._view.moved:
            self.unbound.append(f"from where {path} leads inside can't be told")
        # If it is quoted, or not expanded by a shell, `~` is an ordinary character of the name.
        if path.startswith("~") and cwd is not None:
            others = [f"{cwd}/{path}"]
            if path.startswith("~/") and not self._view.has_home:  # then `cd` stays in cwd, and $HOME is empty
                others += [f"{cwd}{path[1:]}", path[1:]]
            tries += filter(self._is_there, map(_tidy, others))
        if beside and path[:1] not in ("/", "~"):  # `$(dirname "$0")/lib.sh` is read as ./lib.sh
            tries.append(_tidy(f"{posixpath.dirname(beside)}/{path}"))
        there = [each for each in tries if self._is_there(each)] or tries
        if fact.how == "library":
            self._name(Executed(path=posixpath.basename(path), how="library"), [self._view.search], cwd, depth)
        for each in there:
            self._bind(each, fact, where, depth)

    def _run_module(self, name: str, cwd: str | None, depth: int) -> None:
        """Bind the module that `python -m name` runs."""
        places = [cwd, *self._modules]
        for each in (name, f"{name}.__main__"):
            self._module(each, places, cwd, depth)
        known = [_tidy(f"{place}/{path}") for place in places if place for path in modules(name)]
        if name not in SELF_CONTAINED_TOOLS and not any(map(self._is_there, known)):
            self.unbound.append(f"what the module {name} runs is not known")

    def _mentioned(self, text: str, where: str | None, depth: int, *, by: str = "") -> None:
        """Bind files that a value may name and something may run. `by` is the program that gets the value, if it isn't
        known what it does with files; in that case a directory or an unknown value makes the request unbound.
        """
        if UNKNOWN in text or (where is None and by and not text.startswith("/")):
            self.unbound += [only_known_later(f"what {by} is given")] if by else []
            return
        for part in dict.fromkeys([text, text[2:], *re.split(r"[=:,;\s'\"]+", text)]):
            whole = _joined(where, part, self._view.home) if part else None
            host = None if whole is None else self._view.on_host(whole)
            if whole is None or host is None:
                continue
            try:
                mode = os.stat(host).st_mode
            except (OSError, ValueError):
                continue
            if stat.S_ISREG(mode):
                self._bind(whole, Executed(path=part, how="data"), where, depth)
            elif by and not stat.S_ISCHR(mode):
                self.unbound.append(f"{by} may run what is in {part}")

    def _packages(self, environment: str) -> None:
        """Bind the files of a Python environment that Python loads at startup, and search its packages from now on."""
        host = self._view.on_host(_tidy(environment))
        for place in sorted(glob.glob(f"{glob.escape(host)}/lib/python3*/site-packages")) if host else []:
            inside = f"{environment}{place[len(host or '') :]}"
            if inside in self._modules:
                continue
            self._modules[inside] = None
            unasked = [name for name in os.listdir(place) if name.endswith(".pth")]
            for name in (*sorted(unasked), "sitecustomize.py", "usercustomize.py"):
                self._bind(_tidy(f"{inside}/{name}"), Executed(path=name, how="script", language="python"), None, 1)

    def _module(self, name: str, places: Sequence[str | None], cwd: str | None, depth: int) -> bool:
        """Bind a Python module if it is in one of `places`, and return whether it is (also True once there are too many
        files). If not, it is a module of the system. If it appears in `places` later, it is bound then, which
        is a change.
        """
        known = False
        for place in filter(None, places):
            for path in (*modules(name), *self._compiled(place, name)):
                whole = _tidy(f"{place}/{path}")
                if len(self.files) >= _MAX_FILES and whole not in self.files:
                    self.unbound.append(f"it imports more than {_MAX_FILES} files: not all are bound")
                    return True
                if self._is_there(whole):
                    known = True
                    self._bind(whole, Executed(path=path, how="module"), cwd, depth)
        return known

    def _shadows(self, place: str | None, cwd: str | None, depth: int) -> None:
        """Bind modules that have the name of a standard module or a known package: anything that is imported may import
        that name, and finds the one in `place` first. If one appears later, it is bound then, which is a change.
        """
        host = self._view.on_host(_tidy(place)) if place else None
        if host is None or host in self._shadowed or is_systems(host) or host.endswith("-packages"):
            return
        self._shadowed.add(host)
        try:
            names = sorted({name.partition(".")[0] for name in os.listdir(host)} & _SHADOWED)
        except OSError:
            return
        for name in names:
            self._module(name, [place], cwd, depth)

    def _compiled(self, place: str, name: str) -> list[str]:
        """Return the files that Python loads in place of a module's source: `x.pyc`, `x.so`, `x.cpython-313-….so`."""
        *above, last = name.split(".")
        directory = "/".join((place, *above))
        if directory not in self._extensions:
            host = self._view.on_host(_tidy(directory))
            try:
                names = os.listdir(host) if host is not None else []
            except OSError:
                names = []
            self._extensions[directory] = [each for each in names if each.endswith((".so", ".pyc"))]
        return ["/".join((*above, each)) for each in self._extensions[directory] if each.split(".")[0] == last]

    def _is_there(self, path: str) -> bool:
        host = self._view.on_host(path)
        return host is not None and os.path.lexists(host)

    def _name(
        self,
        program: Executed,
        search: Sequence[str],
        cwd: str | None,
        depth: int,
        functions: frozenset[str] = frozenset(),
    ) -> None:
        """Bind a program that is searched for. In directories where users other than root can create files, a missing
        program is bound too.
        """
        name = program.path
        where = None if program.directory is None else _joined(cwd, program.directory, self._view.home)
        own = systems = False
        for directories in search:
            for directory in directories.split(":"):
                if not directory.startswith(("/", "~")):
                    place = directory or "the current directory"
                    self.unbound.append(f"programs are looked for in {place}, wherever that is by then")
                    continue
                path = _joined(None, f"{directory}/{name}", self._view.home)
                host = None if path is None else self._view.on_host(path)
                if path is None or host is None:
                    continue
                if _is_systems_directory(posixpath.dirname(host)):
                    if not os.path.lexists(host):
                        continue
                    if is_systems(host, searched=True):
                        systems = True
                        break
                self._bind(path, program, where, depth)
                if self.files.get(path, MISSING) != MISSING:
                    own = True
                    break
        if name in self._opaque and (systems or not (own or name in functions)):
            self._unknown(name)

    def _unknown(self, name: str) -> None:
        self.unbound.append(f"{name} may run other files, for all that is known of it, and those are not bound")

    def _bind(self, path: str, fact: Executed, cwd: str | None, depth: int) -> None:
        host = self._view.on_host(path)
        plain = posixpath.normpath(path)
        if host is None:
            return
        if plain != path and os.path.realpath(self._view.on_host(plain) or "") == os.path.realpath(host):
            path, host = plain, self._view.on_host(plain) or host  # without `..` it is the same file
        if path in self._contents:
            self._follow(path, self._contents[path], fact, cwd, depth + 1)
            return
        if len(self.files) >= _MAX_FILES:
            self.unbound.append(f"it runs more than {_MAX_FILES} files")
            return
        real = os.path.realpath(host)
        if self._view.moved and real != host:
            self.unbound.append(f"{path} is a link, or behind one, and where it leads inside can't be told")
        if is_systems(real) or is_systems(host):
            if real != host and not is_systems(host):
                self.files[path] = f"leads to {real}"  # a system program: bind where the link leads
            if fact.how == "program":
                self._systems_program(path, real)
            return
        if not any(real == root or real.startswith(f"{root.rstrip('/')}/") for _, root in self._view.roots):
            self.files[path] = MISSING  # a link leads out of what the run can see
            return
        state, content = self._content(host)
        self.files[path], self._contents[path] = state, content
        if state == NO_FILE and fact.how == "script" and os.path.isdir(host):  # Python runs a directory this way
            self._bind(f"{path}/__main__.py", fact, cwd, depth)
        if state in (TOO_LARGE, UNREADABLE):
            self.unbound.append(f"what {path} holds can't be told: it is {state}")
        self._follow(path, content, fact, cwd, depth + 1)
        if fact.how == "program" and len(state) == _SHA256:
            if interpreter(posixpath.basename(path)) == "python" and content is None:
                self.unbound.append(f"the modules of {path} are not bound")
            for arg in fact.args if content is None else ():  # not a script, so its use of the arguments can't be read
                self._mentioned(arg, cwd, depth, by=path)

    def _systems_program(self, path: str, real: str) -> None:
        """Record what a system program may run. It is not recognised through a link with another name."""
        name, own = posixpath.basename(path), posixpath.basename(real)
        same = interpreter(name) == interpreter(own) and interpreter(own) in ("shell", "python")
        if name in self._opaque or not (same or name == own or is_systems(path)):
            self._unknown(path)
        environment = posixpath.dirname(posixpath.dirname(path))
        if interpreter(name) == "python" and self._is_there(f"{environment}/pyvenv.cfg"):
            self._packages(environment)

    def _content(self, path: str) -> tuple[str, bytes | None]:
        """Return the SHA-256 of a file, or why there is none; and the beginning of a script, None for other files."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return NO_FILE, None
            # It may have been replaced since: don't block on a pipe, and don't acquire a terminal.
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING, None
        except OSError:
            return UNREADABLE, None
        with open(opened, "rb", buffering=0) as file:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode):
                return NO_FILE, None
            if about.st_size > min(_MAX_SIZE, self._left):
                return TOO_LARGE, None
            self._left -= about.st_size
            try:
                return _hashed(file)
            except OSError:
                return UNREADABLE, None

    def _follow(self, path: str, content: bytes | None, fact: Executed, cwd: str | None, depth: int) -> None:
        """Bind what a script runs itself, in its working directory."""
        taken = path, cwd, fact.how, fact.language  # a file can be a script in two languages
        if content is None or taken in self._followed:
            return
        self._followed.add(taken)
        if depth > _MAX_DEPTH:
            self.unbound.append(f"{path} is run by scripts of scripts: what it runs is not bound")
            return
        if len(content) > _MAX_SCRIPT:
            self.unbound.append(f"{path} is too long: what its end runs is not bound")
        first, text = content.split(b"\n", 1)[0], content.decode("utf-8", "replace")
        if first.startswith(b"#!") and fact.how == "program":
            words = first[2:].decode("utf-8", "replace").strip().split(None, 1)
            self.all_of(executed_by_words([*words, path]), cwd, depth, path)
        if language := _language(path, first, fact):
            if language == "python" and fact.how != "module":
                self._modules[posixpath.dirname(path)] = None  # Python searches there for everything it imports
            self.all_of(executed_by(text, language), cwd, depth, path)


def _hashed(file: FileIO) -> tuple[str, bytes | None]:
    head = file.read(_MAX_SCRIPT + 1)
    digest, size = hashlib.sha256(head), len(head)
    while chunk := file.read(1 << 20):
        digest.update(chunk)
        size += len(chunk)
        if size > _MAX_SIZE:  # it grows while it is read
            return TOO_LARGE, None
    # Like shells: a file with NUL in its first line is binary; further down NUL is ignored.
    is_script = b"\0" not in head.split(b"\n", 1)[0]
    return digest.hexdigest(), head.replace(b"\0", b"") if is_script else None


def _language(path: str, first: bytes, fact: Executed) -> str:
    """Return the language of a script, if it is one that is read here. A program without `#!` is a shell script."""
    if fact.how == "plan" or fact.language:
        return fact.language if fact.language in ("shell", "python") else ""
    if fact.how == "data":
        return ""
    if fact.how == "module" or path.endswith(".py") or b"python" in first:
        return "python"
    if fact.how == "library" or path.endswith((".sh", ".bash")) or re.search(rb"\A#!.*sh\b", first):
        return "shell"
    return "shell" if fact.how == "program" and not first.startswith(b"#!") else ""


def is_systems(path: str, *, searched: bool = False) -> bool:
    """Return whether a program belongs to the distribution, and only root can replace it. One that is `searched` for
    may also be in /usr/local.
    """
    for _ in range(_MAX_LINKS):
        directory = posixpath.dirname(path)
        if ".." in path.split("/") or not _is_systems_directory(directory):
            return False
        if not searched and (f"{os.path.realpath(directory)}/").startswith(f"{_OWN}/"):
            return False
        try:
            about = os.lstat(path)
            if stat.S_ISLNK(about.st_mode) and about.st_uid == 0:
                path = posixpath.normpath(posixpath.join(os.path.realpath(directory), os.readlink(path)))
                continue
        except OSError:
            return False
        return stat.S_ISREG(about.st_mode) and _is_roots(about)
    return False


def _is_systems_directory(path: str) -> bool:
    """Return whether it is a system directory, and only root can change it or anything above it."""
    if not any(path == root or path.startswith(f"{root}/") for root in _SYSTEM):
        return False
    real = os.path.realpath(path)
    try:
        while real != "/":
            if not _is_roots(os.stat(real)):
                return False
            real = posixpath.dirname(real)
    except OSError:
        return False
    return True


def _is_roots(about: os.stat_result) -> bool:
    return about.st_uid == 0 and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _joined(cwd: str | None, path: str, home: str) -> str | None:
    """Return the absolute path; None if unknown. `..` is kept: after a link it doesn't lead where it seems to."""
    if path.startswith("~"):
        user, slash, below = path[1:].partition("/")
        home = _home_of(user) if user else home
        return _tidy(f"{home}{slash}{below}") if home else None
    if path.startswith("/"):
        return _tidy(path)
    return None if cwd is None else _tidy(f"{cwd}/{path}")


def _tidy(path: str) -> str:
    return re.sub(r"(?:/\.(?=/|\Z)|/(?=/))+", "", path) or "/"


def _home_of(user: str = "") -> str:
    """Return the home directory of a user, by default the current user's; empty if unknown."""
    try:
        return (pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())).pw_dir
    except (KeyError, ValueError):
        return ""
