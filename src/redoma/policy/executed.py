"""Which files a request would execute, as far as that can be told from its words. Pure: nothing is looked at."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..models import Request
from .evaluate import facts_of
from .facts import MAX_SOURCE, UNKNOWN, Attribute, Call, Command, Executed, Fact, Import, Searched, Trait


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELSEWHERE = _names("ssh docker podman nerdctl kubectl oc")
"""What runs a command on another machine, or among other files than these."""
_OTHER_ROOT = _names("chroot proot unshare nsenter")
_BUILTINS = _names("""
    : . [ alias bg bind break builtin caller cd command compgen complete continue declare dirs disown echo enable eval
    exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read
    readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias
    unset wait
""")
_COMPUTED = {
    "shell.dynamic-command": "which program it runs is only known when it runs",
    "python.dynamic-command": "which program it runs is only known when it runs",
    "source.too-large": "it is too long to be read",
    "source.too-deep": "it is nested too deeply to be read",
}
_LOADERS = _names("""
    runpy.run_path runpy.run_module importlib.util.spec_from_file_location importlib.machinery.SourceFileLoader
    ctypes.CDLL ctypes.cdll.LoadLibrary ctypes.PyDLL sys.path.insert sys.path.append sys.path.extend site.addsitedir
    exec eval
""")
"""Calls that run files which no import names, or have imports find others."""
_UNREAD = {
    "python.dynamic-import": "which module it imports is only known when it runs",
    "shell.dynamic-code": "it runs text that is only known when it runs",
    "shell.pipe-to-interpreter": "it runs text that is only known when it runs",
    "shell.environment-hook": "it sets a variable that makes programs run something else",
    "shell.hidden-option": "an option makes a program run something else",
    "shell.inline-code": "it runs code in a language that is not read here",
    "shell.inline-plain": "it runs code in a language that is not read here",
    "shell.parse-error": "a part of it can't be read",
}
_LONGEST = 120


class Executes(msgspec.Struct, frozen=True, kw_only=True):
    """The files that would be run."""

    files: tuple[Executed, ...] = ()
    names: tuple[str, ...] = ()
    """Programs that are looked for."""
    searched: tuple[str, ...] = ()
    """Where else than usual: values of PATH."""
    imported: tuple[str, ...] = ()
    """Modules of Python, by their dotted names."""
    libraries: tuple[str, ...] = ()
    """Where else these are looked for: values of PYTHONPATH."""
    computed: tuple[str, ...] = ()
    """What makes it run files that nobody can name beforehand."""
    unread: tuple[str, ...] = ()
    """What else may make it run others than these."""


def executes(request: Request) -> Executes:
    """Never raises: what can't be read can't be known."""
    try:
        facts = facts_of(request)
    except Exception as error:  # as in `evaluate`
        return Executes(computed=(f"it could not be read ({type(error).__name__})",))
    return _of([*facts, *_hooked(request)], bare=request.language == "bash")


def executed_by(source: str, language: str) -> Executes:
    """The same of a script that one of these files holds."""
    return executes(Request(code=source[: MAX_SOURCE + 1], language="python" if language == "python" else "bash"))


def executed_by_words(words: Sequence[str]) -> Executes:
    """The same of a command: that of a script's first line."""
    return executes(Request(argv=tuple(words), language="command"))


def _hooked(request: Request) -> Iterator[Fact]:
    """The files that its variables make programs load or run: `BASH_ENV=/x/start.sh`, `LD_PRELOAD=/x/lib.so`."""
    if request.env:
        from .shell.programs import is_hook

        for name, value in request.env.items():
            if name not in ("PATH", "IFS") and is_hook(name, value, value):
                yield from (Executed(path=part, how="script") for part in re.split(r"[:\s]+", value) if "/" in part)


def _of(facts: Iterable[Fact], *, bare: bool) -> Executes:
    from .shell.interpreters import start_ups
    from .shell.runners import RUNNERS

    files: dict[Executed, None] = {}
    names: dict[str, None] = {}
    computed: dict[str, None] = {}
    unread: dict[str, None] = {}
    searched: dict[str, None] = {}
    imported: dict[str, None] = {}
    libraries: dict[str, None] = {}
    facts = list(facts)
    # A script that sources another is read twice, the second time without trusting `cd`: once known is known.
    known = {_written(fact) for fact in facts if isinstance(fact, Executed) and fact.directory is not None}
    for fact in facts:
        match fact:
            case Executed(via=via) if not _is_elsewhere(via):
                if fact.directory is None and _written(fact) in known:
                    continue
                if why := _unknowable(fact):
                    computed[f"{why}: {_shown(fact)}"] = None
                else:
                    files[msgspec.structs.replace(fact, line=0, column=0, text="", via=())] = None
            case Command(via=via) if _is_elsewhere(via):
                unread[f"{via[0]} runs it elsewhere, and of the files there none is bound"] = None
            case Command(name=name, args=args, via=via) if not fact.path or fact.path.startswith("/"):
                for file in start_ups(name, args):
                    files[Executed(path=f"~/{file}", how="script", language="shell")] = None
                if fact.path:
                    continue
                if name in RUNNERS:
                    unread[f"{name} runs what its files say, and what those include or run is not bound"] = None
                builtin = name in _BUILTINS and (via[-1].endswith(" -c") if via else bare)
                if UNKNOWN not in name and not builtin and not (via and via[-1].endswith(" -m")):
                    names[name] = None
            case Searched(path=path, modules=True):
                if UNKNOWN in path:
                    unread[f"where modules are looked for is only known when it runs: {_shown(fact)}"] = None
                libraries.update(dict.fromkeys(part for part in path.split(":") if part and UNKNOWN not in part))
            case Searched(path=path):
                if UNKNOWN in path:
                    computed[f"where programs are looked for is only known when it runs: {_shown(fact)}"] = None
                else:
                    searched[path] = None
            case Import(name=name) if UNKNOWN not in name and name.strip("."):
                imported[name.strip(".")] = None
            case Call(name=name, literal=literal) if name in _LOADERS and not (literal and name in ("exec", "eval")):
                unread[f"it runs or imports what is not bound: {_shown(fact)}"] = None
            case Attribute(name="sys.path"):
                unread[f"it changes, or hands on, where modules are looked for: {_shown(fact)}"] = None
            case Trait(name=name) if name in _COMPUTED:
                computed[f"{_COMPUTED[name]}: {_shown(fact)}"] = None
            case Trait(name=name) if name in _UNREAD:
                unread[f"{_UNREAD[name]}: {_shown(fact)}"] = None
    return Executes(
        files=tuple(files),
        names=tuple(names),
        searched=tuple(searched),
        imported=tuple(imported),
        libraries=tuple(libraries),
        computed=tuple(computed),
        unread=tuple(unread),
    )


def _written(fact: Executed) -> tuple[object, ...]:
    return fact.path, fact.how, fact.via, fact.line, fact.column


def _is_elsewhere(via: Sequence[str]) -> bool:
    return any(each.split(" ")[0] in _ELSEWHERE for each in via)


def _unknowable(fact: Executed) -> str:
    """Why nobody can say which file that is."""
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
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def candidates(fact: Executed) -> list[str]:
    """The paths that may be run, from its directory."""
    if fact.how != "module":
        return [fact.path]
    return [*modules(fact.path), f"{fact.path.replace('.', '/')}/__main__.py"]


def modules(name: str) -> list[str]:
    """The files that a module may be, and the packages around it."""
    parts = name.split(".")
    paths = ["/".join(parts[: at + 1]) for at in range(len(parts))]
    return [f"{path}{end}" for path in paths for end in (".py", "/__init__.py")]


def placed(fact: Executed, path: str) -> str:
    """A path of its, from where the request begins."""
    if path[:1] in ("/", "~") or fact.directory in (None, "."):
        return path
    return posixpath.join(fact.directory or ".", path)
