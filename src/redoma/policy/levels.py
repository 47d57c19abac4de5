"""Determine how much isolation a request needs: L1 to L4.

A level is derived from the evaluation, so the two can't disagree: every request that is refused or needs a person's
approval is L4. Of the rest, commands known to only read are L1, known tools that write in their workspace are L2, and
code or programs that nobody has reviewed are L3. A level names the isolation that is sufficient. It never weakens the
isolation of a run: the backends that `auto` chooses are sufficient for every level.

Only what is known to be harmless is L1: the tables below list it. Any doubt (an unknown option, a glob that may expand
to one, a program that isn't the system's) leads to L3.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..lib.patterns import lazy_pattern
from ..models import Decision, Evaluation, Level, Request
from ..models.reach import LATER
from .facts import UNKNOWN, Assigned, Command, Executed, Fact, Function, Searched, Span, Trait, Unbound, names
from .reading import Reading

MAX_REASONS = 5


class Leveled(msgspec.Struct, frozen=True, kw_only=True):
    """A level, and the reasons why it isn't a lower one."""

    level: Level
    why: tuple[str, ...]


def level_of(request: Request, evaluation: Evaluation, *, reading: Reading | None = None) -> Leveled:
    """Return the level of a request, given its evaluation and optionally an existing reading of it. Never raises."""
    # Also findings that are allowed now, but prompt when the changes are applied.
    against = [
        each for each in evaluation.findings if each.decision is not Decision.ALLOW or each.out_of_reach == LATER
    ]
    if against:
        return _leveled(Level.L4, (f"{finding.reason} [{finding.rule}]" for finding in against))
    if request.language not in ("bash", "command"):
        return _leveled(
            Level.L3, [f"it is {_NAMES.get(request.language, request.language)} code that nobody has reviewed"]
        )
    try:
        found = [each for fact in (reading or Reading(request)).facts() for each in _of_fact(fact, request)]
    except Exception as error:  # a bug in the reader must not make a request count as harmless
        return _leveled(Level.L3, [f"it could not be read ({type(error).__name__})"])
    highest = max((level for level, _ in found), default=Level.L1)
    why = [reason for level, reason in found if level is highest]
    if request.language == "bash" and highest is not Level.L1:
        return _leveled(Level.L3, [f"it is a script that nobody has reviewed: {reason}" for reason in why])
    return _leveled(highest, why or ["it does nothing"])


_NAMES = {"python": "Python", "lua": "Lua", "javascript": "JavaScript"}


def _leveled(level: Level, why: Iterable[str]) -> Leveled:
    return Leveled(level=level, why=tuple(dict.fromkeys(why))[:MAX_REASONS])


READ_ONLY = names("""
    ls dir vdir cat tac head tail wc nl cut tr rev fold fmt paste join comm cmp diff stat du df pwd echo printf true
    false test [ : whoami id groups logname users who w uptime uname arch nproc free ps pgrep pidof lscpu lsblk
    lsmod basename dirname realpath readlink seq expr factor md5sum sha1sum sha224sum sha256sum sha384sum sha512sum
    b2sum cksum sum od hexdump strings column expand unexpand pr which whereis type printenv locale tty cal
    grep egrep fgrep zcat bzcat xzcat jq base64 base32 uniq sleep numfmt tsort cd pushd popd dirs export
    declare typeset local readonly unset set shift exit return break continue read getopts let wait times umask
    shopt
""")
"""Programs and builtins that change no files, and that no option makes run another program: those of L1. Builtins that
set variables may do so here. (`uniq` can write a file, but that is reported in `writes`.)

Some programs that mostly read are left out: `rg`, `diff3`, `mapfile`, `jobs`, `ldd`, `less` and `man` can run other
programs, `xxd` and `yq` can write, `getent` uses the network, and `awk` and `xargs` can do anything.
"""

_READ_ONLY_WITHOUT: dict[str, frozenset[str]] = {
    "sort": names("-o --output --compress-program"),
    "shuf": names("-o --output"),
    "tree": names("-o -R"),
    "iconv": names("-o --output"),
    "file": names("-C --compile -m --magic-file -z --uncompress -Z --uncompress-noreport"),
    "getconf": names("-v"),
    "zstdcat": names("-o --output-dir-flat --output-dir-mirror --rm --trace --train"),
    "find": names("-delete -exec -execdir -ok -okdir -fprint -fprint0 -fprintf -fls"),
    "date": names("-s --set"),
}
"""Programs that only read, unless they have one of these options."""

_WRITING: dict[str, frozenset[str]] = {
    **dict.fromkeys(names("mkdir rmdir touch rm unlink tee truncate chmod dd gzip gunzip bzip2 bunzip2"), frozenset()),
    **dict.fromkeys(("cp", "mv", "ln"), names("-t --target-directory")),
    "git": names("--output --exec -x --extcmd --upload-pack --receive-pack"),
}
"""Tools whose targets are known (they are in `writes`), unless they have one of these options."""

_GIT = names("""
    add apply blame branch cat-file checkout cherry-pick clean commit describe diff for-each-ref format-patch grep
    init log ls-files ls-tree merge merge-base mv name-rev reflog reset restore rev-list rev-parse revert rm shortlog
    show show-ref stash status switch tag
""")
"""Git commands that work on the local repository. Never L1: even `git status` writes the index, and runs what the
repository configures."""

_WRAPPERS = names("command builtin time timeout gtimeout nice env stdbuf")
"""Programs that run the command given as their arguments, which is reported as a separate command."""
_WRAPPER_OPTION = lazy_pattern(r"-[pviknsu0]|-n?\d+|-[ioe][0L]|--(?:preserve-status|foreground|ignore-environment)?\Z")
_WITH_VALUE = names("-n -k -s -u")

_SINKS = names("/dev/null /dev/stdout /dev/stderr /dev/tty")
_SYSTEM_PROGRAMS = names("/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin")
_HARMLESS_TRAITS = names("shell.operator source.secret files.outside")

_SED_ADDRESS = r"(?:\d+|\$|/(?:[^/\\\n]|\\.)*/)"
_SED_SUBSTITUTION = r"[sy]([/|#,:@])(?:(?!\1)[^\\\n]|\\.)*\1(?:(?!\1)[^\\\n]|\\.)*\1[gIip\d]*"
_SED_STEP = lazy_pattern(
    rf"\s*(?:{_SED_ADDRESS}(?:,{_SED_ADDRESS})?)?\s*!?\s*(?:[pdqDPNnhHgGxl=]|{_SED_SUBSTITUTION})\s*\Z"
)
_SED_OPTION = lazy_pattern(r"-[nErsuz]+\Z|--(?:quiet|silent|regexp-extended)\Z")
_GLOB = ("*", "?", "[", "{")


def _of_fact(fact: Fact, request: Request) -> Iterator[tuple[Level, str]]:
    match fact:
        case Command():
            yield _of_command(fact)
            for path in fact.writes:
                if path not in _SINKS:
                    yield _of_write(path, request)
        case Trait(name=name) if name not in _HARMLESS_TRAITS:
            from .shell import TRAITS

            yield Level.L3, TRAITS.get(name, name)
        case Trait() | Span() | Executed() | Searched() | Assigned() | Function() | Unbound():
            return
        case _:  # Python code inside a script
            yield Level.L3, "it runs Python code"


def _of_command(command: Command) -> tuple[Level, str]:
    from .options import DECLARES  # a large module that Python code doesn't need

    name, args = command.name, command.args
    if UNKNOWN in name:
        return Level.L3, "which command it runs can't be known beforehand"
    if command.path and posixpath.dirname(posixpath.normpath(command.path)) not in _SYSTEM_PROGRAMS:
        return Level.L3, f"{command.path} is not a program of the system"
    if name in DECLARES and (command.via or any(map(_is_unclear_declaration, args))):
        return Level.L3, f"which variable {name} sets can't be known beforehand"
    if name in READ_ONLY:
        return Level.L1, f"{name} only looks"
    if name in _WRAPPERS and _only_wraps(args):
        return Level.L1, f"{name} adds nothing to what it runs"
    if name == "date" and not _only_shows_time(args):
        return Level.L3, "it may set the clock"
    if name in _READ_ONLY_WITHOUT and not _may_have(args, _READ_ONLY_WITHOUT[name], exact=name == "find"):
        return Level.L1, f"{name} only looks"
    if name == "sed":
        return _of_sed(args)
    if name in _WRITING and not _may_have(args, _WRITING[name]) and (name != "git" or _is_ordinary_git(args)):
        return Level.L2, f"{name} writes"
    if name in _READ_ONLY_WITHOUT or name in _WRITING or name in _WRAPPERS:
        return Level.L3, f"with these arguments {name} may do more than it usually does"
    return Level.L3, f"what {name} does is not known"


def _of_write(path: str, request: Request) -> tuple[Level, str]:
    """Return the level of a write. The reader normalises paths: a relative one is inside the workspace unless it begins
    with `..`."""
    if UNKNOWN in path or path.startswith("~"):
        return Level.L3, "where it writes can't be known beforehand" if UNKNOWN in path else f"it writes to {path}"
    roots = [root for root in (request.cwd, request.project, "/tmp") if root]  # noqa: S108 - a place to name, not to use
    inside = not path.startswith(("/", "..")) or any(path.startswith(f"{root.rstrip('/')}/") for root in roots)
    return (Level.L2, f"it writes to {path}") if inside else (Level.L3, f"it writes to {path}, outside its workspace")


def _may_have(args: Sequence[str], options: frozenset[str], *, exact: bool = False) -> bool:
    """Return whether one of these options is given, or may be: a variable or a glob may expand to one.

    `exact`: the program has no bundled options, so a glob counts only if it matches a whole option: `'*.py'` in
    `find -name '*.py'` doesn't.
    """
    from .match import has_flag

    if exact:
        fits = [fnmatch.fnmatchcase(option, arg) for arg in args for option in options]
        return any(fits) or any(UNKNOWN in arg for arg in args)
    return bool(options) and (has_flag(args, options) or _hides_options(args))


def _is_unclear_declaration(arg: str) -> bool:
    """Return whether a declaration may set a variable that it doesn't name: through a name reference (-n), by
    arithmetic (-i), or because the name isn't known."""
    return re.match(r"-[A-Za-z]*[in]", arg) is not None or UNKNOWN in arg.partition("=")[0] or arg.startswith(_GLOB)


def _hides_options(args: Sequence[str]) -> bool:
    from .match import options_end

    return any(arg.startswith((UNKNOWN, *_GLOB)) for arg in args[: options_end(args)])


def _only_wraps(args: Sequence[str]) -> bool:
    """Return whether everything before the wrapped command is known to be harmless. In `env --split='rm x'` it isn't:
    that runs rm."""
    before = ""
    for arg in args:
        if arg.startswith("-"):
            if not _WRAPPER_OPTION.fullmatch(arg):
                return False
        elif before not in _WITH_VALUE and "=" not in arg:
            return UNKNOWN not in arg
        before = arg
    return True


def _only_shows_time(args: Sequence[str]) -> bool:
    """Return whether `date` only shows the time: `date 0101` sets the clock; `date +%F` and `date -d now` show it."""
    given = [*args]
    while given:
        word = given.pop(0)
        if word in ("-d", "--date", "-r", "--reference", "-f", "--file"):
            del given[:1]
        elif not word.startswith(("-", "+")):
            return False
    return True


def _of_sed(args: Sequence[str]) -> tuple[Level, str]:
    """Return the level of `sed`, which is L3 unless every step of its script is known: other steps may write files or
    run programs."""
    scripts: list[str] = []
    words, first, in_place = [*args], True, False
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression"):
            scripts += words[:1]
            del words[:1]
            first = False
        elif word in ("-i", "--in-place"):
            in_place = True
        elif word.startswith("-") and not _SED_OPTION.match(word):
            return Level.L3, f"sed does more with {word} than can be seen"
        elif not word.startswith("-"):
            scripts += [word] if first else []
            first = False
    steps = [step for script in scripts for step in re.split(r"[;\n]", script)]
    if not scripts or _hides_options(args) or not all(_SED_STEP.match(step) for step in steps):
        return Level.L3, "what sed does with this script is not known"
    return (Level.L2, "sed writes") if in_place else (Level.L1, "sed only looks")


def _is_ordinary_git(args: Sequence[str]) -> bool:
    """Return whether it is a known Git command, without options before it that choose a directory or settings."""
    rest = [arg for arg in args if arg not in ("--no-pager", "-P")]
    return bool(rest) and rest[0] in _GIT
