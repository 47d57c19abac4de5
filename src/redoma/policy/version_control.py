"""Which commands of Git and Mercurial a request runs, where, and whether they only read. Pure."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from ..lib.patterns import pattern
from ..models import Request
from .facts import UNKNOWN, Assigned, Attribute, Call, Command, Fact, Trait, names
from .options import Item, grammar_of, walk
from .reading import Reading

PROGRAMS = frozenset({"git", "hg"})


_LOOKING = names("""
    annotate archive blame branch cat cat-file check-attr check-ignore check-mailmap cherry config count-objects
    describe diff diff-files diff-index diff-tree files for-each-ref format-patch fsck grep help id identify log
    ls-files ls-remote ls-tree manifest merge-base name-rev patch-id range-diff reflog remote rev-list rev-parse root
    shortlog show show-branch show-ref status summary var verify-commit verify-tag version whatchanged
""")
_CHOOSING = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--bare")
"""The options before the command's own name that say which repository it is, and how it is set."""
_STAYING = pattern(
    r"(?:!|\{|then|do|else|time|builtin|command|exec|nohup|nice|ionice|chrt|taskset|setsid|stdbuf|unbuffer|g?timeout|env"
    r"|env -S|flock|chronic|prlimit|watch|xargs|find -(?:exec|ok)|eval|(?:ba|da|z|k|a)?sh(?: -c)?)\Z"
)
"""What runs a command in the directory, and with the variables, that it has itself."""
_ELSEWHERE = pattern(r"ssh\Z|(?:docker|podman|kubectl) ")
"""What runs a command on another machine, or in a container."""
_HARMLESS_VARIABLE = pattern(
    r"GIT_(?:(?:AUTHOR|COMMITTER)_.*|(?:SEQUENCE_)?EDITOR|PAGER.*|ASKPASS|SSH.*|TERMINAL_PROMPT|TRACE.*|OPTIONAL_LOCKS"
    r"|MERGE_AUTOEDIT|NO_LAZY_FETCH|LFS_SKIP_SMUDGE|REFLOG_ACTION)\Z"
)
_MOVING_VARIABLE = pattern(r"(?:HOME|XDG_CONFIG_HOME|CDPATH|GIT_.*)\Z|.*\0", re.DOTALL)
_MOVING_CALL = pattern(
    r"(?:os|posix|contextlib)\.(?:f?chdir|chroot|exec\w*e|spawn\w*e|posix_spawnp?|environ\.clear|unsetenv)\Z"
)
_UNREAD = frozenset(
    {"source.too-large", "source.too-deep", "source.unread", "javascript.syntax-error", "javascript.dynamic-command"}
)
_POSITIONAL_BEFORE_CWD = 9  # of subprocess.Popen
_LOOP = pattern(r"\b(?:for|while|until|select)\b")
_GLOB = pattern(r"[*?\[]")


class Unreadable(Exception):
    """It can't be told what the request runs."""


class Found(NamedTuple):
    commands: list[Command]
    """Every command of these programs that runs on this host."""
    hidden: str
    """Why it can't be told in which repository each of them runs; empty if it can."""


def version_control(request: Request) -> Found:
    """The commands of Git and Mercurial that a request runs. Raises `Unreadable`."""
    if request.language == "lua":
        return Found([], "")
    try:
        facts = Reading(request).facts()
    except Exception as error:
        raise Unreadable from error
    commands = [
        fact
        for fact in facts
        if isinstance(fact, Command) and fact.name in PROGRAMS and not any(map(_ELSEWHERE.match, fact.via))
    ]
    if not commands:
        if any(isinstance(fact, Trait) and fact.name in _UNREAD for fact in facts):
            raise Unreadable
        return Found([], "")
    return Found(commands, next(_hidden(request, facts, commands), ""))


def only_looks(command: Command) -> bool:
    """Whether it leaves the repository as it is, apart from Git's cache of file states. True if that can't be told: the
    answer decides whether it is run without the repository's configured programs."""
    name = next(iter(_after_options(command)), UNKNOWN)
    return name in _LOOKING or UNKNOWN in name


def may_enter_submodules(command: Command) -> bool:
    """Whether it has options, or words that may be one, by which Git looks into repositories that the index lacks."""
    words = _after_options(command)[1:]
    options = words[: words.index("--")] if "--" in words else words
    return any(word.startswith(("--sub", "--recu", UNKNOWN)) or _GLOB.match(word) for word in options)


def _leading(command: Command) -> list[Item]:
    """The options before the command's own name."""
    items, args = walk(command.args, grammar_of(command.name)), command.args
    return list(takewhile(lambda item: item.option is not None or args[item.at] == "-", items))


def _after_options(command: Command) -> Sequence[str]:
    items = _leading(command)
    return command.args[items[-1].after if items else 0 :]


def choosing(command: Command) -> list[str]:
    """Those of the leading options that choose the repository and its settings, with their values."""
    chosen = [item for item in _leading(command) if command.args[item.at].partition("=")[0] in _CHOOSING]
    return [word for item in chosen for word in command.args[item.at : item.after]]


def _hidden(request: Request, facts: Sequence[Fact], commands: Sequence[Command]) -> Iterator[str]:
    for path in request.files:
        if _may_configure(posixpath.normpath(path), request):
            yield f"the request brings the file {path!a}, which may configure git"
    for command in commands:
        if command.name != "git":  # what keeps the others to themselves does so anywhere
            continue
        named = _after_options(command)
        places = [command.directory or UNKNOWN, *command.args[: len(command.args) - len(named)]]
        if any(UNKNOWN in place or _GLOB.search(place) for place in places):
            yield "in which directory git runs is only known when it runs"
        if UNKNOWN in next(iter(named), ""):
            yield "which of git's commands it runs is only known when it runs"
        if command.directory and command.directory[0] not in "./~" and _LOOP.search(request.text):
            yield "in which directory git runs is not known where a loop may change it again"
        for wrapper in command.via:
            found = wrapper.startswith("find ") and (wrapper != command.via[-1] or choosing(command))
            if found or not _STAYING.match(wrapper):
                yield f"in which directory {wrapper!a} runs git, or with which variables, can't be told"
    if request.language == "python" and _starts_with_other_variables(request.code):
        yield "it starts programs with variables, or in a directory, of their own"
    for fact in facts:
        match fact:
            case Assigned(name=name) if _MOVING_VARIABLE.match(name) and not _HARMLESS_VARIABLE.match(name):
                yield f"it sets {name.replace(UNKNOWN, '?')!a}, which may lead git to another repository"
            case Call(name=name) | Attribute(name=name) if _MOVING_CALL.match(name):
                yield f"in which directory git runs, or with which variables, can't be told after {name}"
            case Trait(name=name) if name in _UNREAD:
                yield "it can't be read to its end"
            case Command() if _drops_variables(fact):
                yield f"{fact.name!a} takes variables away that keep git to itself"


def _may_configure(path: str, request: Request) -> bool:
    directory, name = posixpath.split(path)
    if name == "config":  # of a repository without files of its own, or in XDG_CONFIG_HOME
        return directory.endswith("git") or posixpath.join(directory, "HEAD") in request.files
    return name == ".gitconfig" or ".git" in path.split("/")


def _starts_with_other_variables(code: str) -> bool:
    """Whether a call in Python takes variables from elsewhere than `os.environ`, or options that can't be seen."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if len(node.args) > _POSITIONAL_BEFORE_CWD:
            return True
        for keyword in node.keywords:
            given = ast.unparse(keyword.value) if keyword.arg in (None, "env") else "None"
            if given != "None" and not re.match(r"os\.environ(?:\.copy\(\))?\Z|\{\*\*os\.environ\b", given):
                return True
    return False


def _drops_variables(command: Command) -> bool:
    """`env -i`, `env -u NAME`, `exec -c`, `unset GIT_CONFIG_COUNT`."""
    if command.name == "unset":
        return any(arg.startswith(("GIT_CONFIG", UNKNOWN)) for arg in command.args)
    if command.name not in ("env", "exec"):
        return False
    letters = "iu" if command.name == "env" else "c"
    options = [command.args[item.at] for item in _leading(command)]
    return any(
        arg == "-" or arg.startswith(("--i", "--u")) or (arg[:2] != "--" and set(arg) & set(letters)) for arg in options
    )
