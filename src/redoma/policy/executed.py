"""Which files a request would execute, as far as that can be told from its words. Pure: nothing is looked at."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

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
    names,
)
from .reading import Reading

_ELSEWHERE = names("ssh docker podman nerdctl kubectl oc")
"""Programs that run a command on another machine, or among other files than these."""
_OTHER_ROOT = names("chroot proot unshare nsenter")
_BUILTINS = names("""
    : . [ alias bg bind break builtin caller cd command compgen complete continue declare dirs disown echo enable eval
    exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read
    readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias
    unset wait
""")
_LOADERS = names("""
    runpy.run_path runpy.run_module importlib.util.spec_from_file_location importlib.machinery.SourceFileLoader
    ctypes.CDLL ctypes.cdll.LoadLibrary ctypes.PyDLL sys.path.insert sys.path.append sys.path.extend site.addsitedir
    exec eval compile pickle.load pickle.loads pickle.Unpickler marshal.load marshal.loads shelve.open joblib.load
    dill.load dill.loads cloudpickle.load cloudpickle.loads torch.load yaml.load yaml.unsafe_load code.interact
    code.InteractiveInterpreter code.InteractiveConsole pdb.run pdb.runeval bdb.Bdb timeit.timeit timeit.repeat
    timeit.Timer cProfile.run cProfile.runctx profile.run trace.Trace doctest.testfile zipimport.zipimporter
    logging.config.fileConfig logging.config.dictConfig webbrowser.get webbrowser.register
    multiprocessing.set_executable os.putenv os.environ.update os.environ.setdefault imp.load_source pkgutil.get_loader
""")
"""Calls that run files which no import names, or have imports find others."""
_UNBOUND = {
    "shell.dynamic-command": "which program it runs is only known when it runs",
    "python.dynamic-command": "which program it runs is only known when it runs",
    "python.dynamic-import": "which module it imports is only known when it runs",
    "shell.dynamic-code": "it runs text that is only known when it runs",
    "shell.pipe-to-interpreter": "it runs text that is only known when it runs",
    "shell.hidden-option": "an option makes a program run something else",
    "shell.inline-code": "it runs code in a language that is not read here",
    "shell.parse-error": "a part of it can't be read",
    "source.too-large": "it is too long to be read",
    "source.too-deep": "it is nested too deeply to be read",
}
_SETS_HOOK = "a variable makes programs run something else"
_START_UP = ("BASH_ENV", "ENV")
"""Variables that name a script which shells run first."""
_MOVES = names("HOME XDG_CONFIG_HOME SHELL PYTHONWARNINGS")
"""Too ordinary to be asked about, but what programs run may depend on them."""
_TAME_SHELL = re.compile(r"/(?:usr/)?bin/(?:ba|da|z|k)?sh\Z")
_OF_REQUEST = ("PATH", "HOME", "PYTHONPATH")
"""Variables of a request that the search for its files takes into account anyway."""
_KEEPS_CONTENT = names("chmod chown chgrp chattr setfacl touch mkdir rm rmdir unlink")
_MAX_SHOWN = 120

# Programs that run nothing but themselves, or the command that stands after them. Whatever else a program may run
# (tests, hooks, statements, what its directory configures), an approval can't be bound to it. So this lists what is
# known to run nothing, and what is missing costs a question, never an alarm. Options that make one of these run
# something are traits of the reader's ("shell.hidden-option").
_PLAIN = names("""
    ls dir vdir cat tac head tail wc nl cut tr rev fold fmt paste join comm cmp diff stat du df pwd echo printf true
    false test [ : whoami id groups logname users who w uptime uname arch nproc free ps pgrep pidof lscpu lsblk lsmod
    lsof ss netstat ip ifconfig ping dig nslookup host hostname dmesg basename dirname realpath readlink seq expr factor
    md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum od xxd hexdump strings column expand unexpand
    pr which whereis printenv locale tty cal date grep egrep fgrep zgrep rg zcat bzcat xzcat zstdcat jq base64 base32
    uniq sort shuf sleep numfmt tsort iconv tree file getconf getent yes sync csplit split envsubst mktemp logger

    mkdir rmdir touch rm unlink shred tee sponge truncate fallocate cp mv ln install dd chmod chown chgrp chattr setfacl
    mkfifo mknod gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lz4 pigz zip unzip tar gtar bsdtar cpio 7z kill killall
    pkill curl wget rsync scp openssl ssh-keygen pg_dump pg_dumpall mysqldump mongodump

    sed gsed find gfind fd fdfind xargs gxargs
    time timeout gtimeout nice ionice chrt taskset nohup setsid stdbuf env sudo doas su flock watch busybox toybox
    setpriv prlimit
""")
_SUBSCRIBED = re.compile(r"[\w.+:=~@-]+\Z")  # a package of an index, or an option: neither a path nor a file


def _installs_by_name(args: Sequence[str]) -> bool:
    """`apt-get install ./x.deb` runs what that file holds."""
    files, settings = (".deb", ".rpm", ".apk"), ("-o", "-c", "--option", "--config", "--setopt")
    return all(_SUBSCRIBED.match(arg) and not arg.endswith(files) and not arg.startswith(settings) for arg in args)


def _without(pattern: str) -> Callable[[Sequence[str]], bool]:
    found = re.compile(pattern)
    return lambda args: not any(map(found.search, args))


_PLAIN_WITH: dict[str, Callable[[Sequence[str]], bool]] = {
    **dict.fromkeys(names("apt apt-get apk dnf yum"), _installs_by_name),
    **dict.fromkeys(names("awk gawk mawk nawk"), _without(r"\A-[ilED]|\A--(?:inc|loa|exe|lib|deb)|@include|@load")),
    "gpg": _without(r"--(?:exec-path|photo-viewer|agent-program|dirmngr-program|options|homedir|keyserver)"),
    "command": lambda args: True,
}

PLAIN_MODULES = names("json.tool base64 calendar gzip http.server platform sysconfig tarfile this uuid zipfile")
"""Of the modules that `python -m` runs."""


def is_plain(name: str, args: Sequence[str]) -> bool:
    """Whether this program, found where the system's programs are, runs nothing that isn't reported beside it."""
    return name in _PLAIN or (name in _PLAIN_WITH and UNKNOWN not in "".join(args) and _PLAIN_WITH[name](args))


class Executes(msgspec.Struct, frozen=True, kw_only=True):
    """The files that would be run."""

    files: tuple[Executed, ...] = ()
    programs: tuple[Executed, ...] = ()
    """Programs that are looked for: the path is a name."""
    opaque: frozenset[str] = frozenset()
    """Names of programs that may run others: nothing is known of them."""
    functions: frozenset[str] = frozenset()
    """Names that may be a function's instead."""
    mentioned: tuple[Executed, ...] = ()
    """Values of variables: if that is a file, something may run it."""
    searched: tuple[str, ...] = ()
    """Where else than usual programs are looked for: values of PATH."""
    imported: tuple[str, ...] = ()
    """Modules of Python, by their dotted names."""
    libraries: tuple[str, ...] = ()
    """Where else these are looked for: values of PYTHONPATH."""
    unbound: tuple[str, ...] = ()
    """What else it runs, or may run, that no approval can be bound to."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the programs that are looked for."""
        return tuple(dict.fromkeys(program.path for program in self.programs))


def executes(request: Request, *, live_input: bool = False, reading: Reading | None = None) -> Executes:
    """The files that a request would run. `live_input`: it can be given input while it runs. `reading`: that of the
    same request, if there is one already. Never raises: what can't be read can't be known."""
    try:
        facts = (reading or Reading(request)).with_input(live_input=live_input)
    except Exception as error:  # as in `evaluate`
        return Executes(unbound=(f"it could not be read ({type(error).__name__})",))
    own = (Assigned(name=name, value=value) for name, value in request.env.items() if name not in _OF_REQUEST)
    return _of([*facts, *own], bare=request.language == "bash")


def executed_by(source: str, language: str) -> Executes:
    """The files that a script would run, given as the text that one of these files holds."""
    return executes(Request(code=source[: MAX_SOURCE + 1], language="python" if language == "python" else "bash"))


def executed_by_words(words: Sequence[str]) -> Executes:
    """The files that a command would run, such as that of a script's first line."""
    return executes(Request(argv=tuple(words), language="command"))


def _of(facts: Sequence[Fact], *, bare: bool) -> Executes:
    files: dict[Executed, None] = {}
    programs: dict[Executed, None] = {}
    opaque: set[str] = set()
    mentioned: dict[Executed, None] = {}
    unbound: dict[str, None] = {}
    searched: dict[str, None] = {}
    imported: dict[str, None] = {}
    libraries: dict[str, None] = {}
    # A script that sources another is read twice, the second time without trusting `cd`: once known is known.
    known = {_written(fact) for fact in facts if isinstance(fact, Executed) and fact.directory is not None}
    assigned = {
        fact.name if fact.text == "" else fact.text
        for fact in facts
        if isinstance(fact, Assigned) and fact.name != "IFS"
    }
    assigned |= {*_OF_REQUEST, *(fact.text for fact in facts if isinstance(fact, Searched))}
    made = _made(facts)
    moved = any(isinstance(fact, Call) and fact.name in ("os.chdir", "os.fchdir", "contextlib.chdir") for fact in facts)
    for fact in facts:
        match fact:
            case Executed(via=via) if not _is_elsewhere(via):
                if fact.directory is None and _written(fact) in known:
                    continue
                if moved and fact.how != "module":
                    fact = msgspec.structs.replace(fact, directory=None)
                if why := _unknowable(fact) or _is_made(fact, made):
                    unbound[f"{why}: {_shown(fact)}"] = None
                    continue
                files[_bare(fact)] = None
                if fact.language == "other":
                    unbound[f"{fact.path} is in a language that is not read here: what it loads is not bound"] = None
            case Command(via=via) if _is_elsewhere(via):
                unbound[f"{via[0]} runs it elsewhere, and of the files there none is bound"] = None
            case Command():
                unbound.update(dict.fromkeys(_of_command(fact, files, programs, opaque, bare=bare)))
            case Assigned():
                unbound.update(dict.fromkeys(_of_variable(fact, files, mentioned)))
            case Searched(path=path, modules=True):
                if UNKNOWN in path:
                    unbound[f"where modules are looked for is only known when it runs: {_shown(fact)}"] = None
                libraries.update(dict.fromkeys(part for part in path.split(":") if part and UNKNOWN not in part))
            case Searched(path=path):
                if UNKNOWN in path:
                    unbound[f"where programs are looked for is only known when it runs: {_shown(fact)}"] = None
                else:
                    searched[path] = None
            case Import(name=name) if UNKNOWN not in name and name.strip("."):
                imported[name.strip(".")] = None
            case Call(name=name, literal=literal) if name in _LOADERS and not (
                literal and name in ("exec", "eval", "compile")
            ):
                unbound[f"it runs or imports what is not bound: {_shown(fact)}"] = None
            case Call(name=name) if name.endswith(".executescript"):
                unbound[f"it runs statements that are only known when it runs: {_shown(fact)}"] = None
            case Attribute(name="sys.path"):
                unbound[f"it changes, or hands on, where modules are looked for: {_shown(fact)}"] = None
            case Trait(name="shell.environment-hook") if fact.text not in assigned:
                unbound[f"{_SETS_HOOK}: {_shown(fact)}"] = None
            case Trait(name=name) if name in _UNBOUND:
                unbound[f"{_UNBOUND[name]}: {_shown(fact)}"] = None
    return Executes(
        files=tuple(files),
        programs=tuple(programs),
        opaque=frozenset(opaque),
        functions=frozenset(fact.name for fact in facts if isinstance(fact, Function)),
        mentioned=tuple(mentioned),
        searched=tuple(searched),
        imported=tuple(imported),
        libraries=tuple(libraries),
        unbound=tuple(unbound),
    )


def _of_command(
    fact: Command, files: dict[Executed, None], programs: dict[Executed, None], opaque: set[str], *, bare: bool
) -> Iterator[str]:
    """Add what a command runs to `files`, `programs` and `opaque`; yield why something can't be bound."""
    from .shell.interpreters import interpreter, start_ups
    from .shell.programs import RUNNERS

    name, args, via = fact.name, fact.args, fact.via
    if via and via[-1].endswith(" -m"):
        return  # a module: that is a file of its own
    for file in start_ups(name, args) if not fact.path or fact.path.startswith("/") else ():
        files[Executed(path=f"~/{file}", how="script", language="shell")] = None
    if name in RUNNERS:
        yield f"{name} runs what its files say, and what those include or run is not bound"
    if UNKNOWN in name:
        return
    if name not in _BUILTINS and interpreter(name) not in ("shell", "python") and not is_plain(name, args):
        opaque.add(name)
    if not fact.path and not (name in _BUILTINS and (via[-1].endswith(" -c") if via else bare)):
        programs[Executed(path=name, directory=fact.directory, args=(*args, *fact.given))] = None


def _of_variable(fact: Assigned, files: dict[Executed, None], mentioned: dict[Executed, None]) -> Iterator[str]:
    from .shell.variables import SEARCHES, is_hook

    name, value = fact.name, fact.value
    file = Executed(path=value, directory=fact.directory, how="script")
    if name == UNKNOWN or (name in SEARCHES and value == UNKNOWN):
        yield f"which variables it sets is only known when it runs: {_shown(fact)}"
        return
    if name in SEARCHES or name == "IFS" or not value:
        return
    if name in _START_UP and not re.search(r"[$`\0]", value) and _unknowable(file) == "":
        if name == "BASH_ENV" or "/" in value:
            files[msgspec.structs.replace(file, language="shell")] = None
        else:
            mentioned[file] = None  # ENV=production
    elif is_hook(name, value, value) or name in _START_UP or _moves(name, value):
        yield f"{_SETS_HOOK}: {name}"
    elif UNKNOWN not in value:
        mentioned[file] = None


def _moves(name: str, value: str) -> bool:
    if name == "PYTHONWARNINGS":
        return "." in value  # the category is imported
    return name in _MOVES and not (name == "SHELL" and _TAME_SHELL.match(value))


def _made(facts: Sequence[Fact]) -> frozenset[str]:
    """Paths that the request writes: these may hold anything by the time that they are run."""
    commands = (fact for fact in facts if isinstance(fact, Command) and fact.name not in _KEEPS_CONTENT)
    return frozenset(posixpath.normpath(path) for command in commands for path in command.writes if path)


def _is_made(fact: Executed, made: frozenset[str]) -> str:
    path = posixpath.normpath(placed(fact, fact.path))
    while made and path not in ("", "/"):
        if path in made:
            return "it writes a file, and then runs it"
        path = posixpath.dirname(path) or ("." if path != "." else "")
    return ""


def _bare(fact: Executed) -> Executed:
    return msgspec.structs.replace(fact, line=0, column=0, text="", via=())


def _written(fact: Executed) -> tuple[object, ...]:
    return fact.path, fact.how, fact.via, fact.line, fact.column


def _is_elsewhere(via: Sequence[str]) -> bool:
    return any(each.split(" ")[0] in _ELSEWHERE for each in via)


def _unknowable(fact: Executed) -> str:
    """Why it can't be told which file that is; empty if it can."""
    from .shell.wrappers import LOGIN

    path = fact.path
    if UNKNOWN in path or re.search(r"[*?]|\A/dev/fd/|\A/proc/(?:self|thread-self|\d+)/", path):
        return "which file it runs is only known when it runs"
    if (fact.directory is None or LOGIN in fact.via) and path[:1] not in ("/", "~"):
        return "in which directory it runs a file is only known when it runs"
    if any(each in _OTHER_ROOT for each in fact.via):
        return "among which files it runs one is only known when it runs"
    return ""


def _shown(fact: Fact) -> str:
    text = " ".join(fact.text.replace(UNKNOWN, "…").split())
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def candidates(fact: Executed) -> list[str]:
    """The paths that may be run, relative to the fact's directory."""
    if fact.how != "module":
        return [fact.path]
    return [*modules(fact.path), f"{fact.path.replace('.', '/')}/__main__.py"]


def modules(name: str) -> list[str]:
    """The files that a module and the packages around it may be in."""
    parts = name.split(".")
    paths = ["/".join(parts[: at + 1]) for at in range(len(parts))]
    return [f"{path}{end}" for path in paths for end in (".py", "/__init__.py")]


def placed(fact: Executed, path: str) -> str:
    """A path of this fact, seen from the directory where the request begins."""
    if path[:1] in ("/", "~") or fact.directory in (None, "."):
        return path
    return posixpath.join(fact.directory or ".", path)
