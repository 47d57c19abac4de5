"""Find the commands of Git and Mercurial that a request runs: where they run, and whether they only read. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec

from ..lib.patterns import lazy_pattern
from ..models import Request
from .facts import UNKNOWN, Assigned, Attribute, Call, Command, Fact, Trait, names, only_known_later, runs_elsewhere
from .options import Item, grammar_of, walk
from .reading import UNREAD, VERSION_CONTROL, Reading

_READ_ONLY = names("""
    annotate archive blame branch cat cat-file check-attr check-ignore check-mailmap cherry config count-objects
    describe diff diff-files diff-index diff-tree files for-each-ref format-patch fsck grep help id identify log
    ls-files ls-remote ls-tree manifest merge-base name-rev patch-id range-diff reflog remote rev-list rev-parse root
    shortlog show show-branch show-ref status summary var verify-commit verify-tag version whatchanged
""")
_CHOOSING = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--bare")
"""Options before the name of a Git command that choose the repository or its settings."""
_STAYING = lazy_pattern(
    r"(?:!|\{|then|do|else|time|builtin|command|exec|nohup|nice|ionice|chrt|taskset|setsid|stdbuf|unbuffer|g?timeout|env"
    r"|env -S|flock|chronic|prlimit|watch|xargs|find -(?:exec|ok)|eval|(?:ba|da|z|k|a)?sh(?: -c)?)\Z"
)
"""Wrappers that run a command in their own directory and with their own variables."""
_HARMLESS_VARIABLE = lazy_pattern(
    r"GIT_(?:(?:AUTHOR|COMMITTER)_.*|(?:SEQUENCE_)?EDITOR|PAGER.*|ASKPASS|SSH.*|TERMINAL_PROMPT|TRACE.*|OPTIONAL_LOCKS"
    r"|MERGE_AUTOEDIT|NO_LAZY_FETCH|LFS_SKIP_SMUDGE|REFLOG_ACTION)\Z"
)
_MOVING_VARIABLE = lazy_pattern(r"(?:HOME|XDG_CONFIG_HOME|CDPATH|GIT_.*)\Z|.*\0", re.DOTALL)
_MOVING_CALL = lazy_pattern(
    r"(?:os|posix|contextlib)\.(?:f?chdir|chroot|exec\w*e|spawn\w*e|posix_spawnp?|environ\.clear|unsetenv)\Z"
)
_POSITIONAL_BEFORE_CWD = 9  # of subprocess.Popen
_LOOP = lazy_pattern(r"\b(?:for|while|until|select)\b")
_GLOB = lazy_pattern(r"[*?\[]")


class Unreadable(Exception):
    """The request can't be read, so what it runs isn't known."""


class Found(msgspec.Struct, frozen=True):
    """The commands of Git and Mercurial that a request runs."""

    commands: list[Command]
    """All of them that run on this host."""
    hidden: str
    """Why the repository of one of them isn't known; empty if all are known."""


def version_control(reading: Reading) -> Found:
    """Return the commands of Git and Mercurial that a request runs. Raises `Unreadable` if the request can't be read;
    if only a part of it can't, only if no such command is found in the rest."""
    request = reading.request
    if request.language == "lua":
        return Found([], "")
    try:
        facts = reading.facts()
    except Exception as error:
        raise Unreadable from error
    commands = [
        fact
        for fact in facts
        if isinstance(fact, Command) and fact.name in VERSION_CONTROL and not runs_elsewhere(fact.via)
    ]
    if not commands:
        if any(isinstance(fact, Trait) and fact.name in UNREAD for fact in facts):
            raise Unreadable
        return Found([], "")
    return Found(commands, next(_hidden(request, facts, commands), ""))


def only_looks(command: Command) -> bool:
    """Return whether a command doesn't change the repository, apart from Git's cache of file states. Also True if that
    isn't known: True is the safe answer, because then the programs that the repository configures aren't run."""
    name = next(iter(_after_options(command)), UNKNOWN)
    return name in _READ_ONLY or UNKNOWN in name


def may_enter_submodules(command: Command) -> bool:
    """Return whether a command has, or may have, options that make Git read submodules, which aren't in the index."""
    words = _after_options(command)[1:]
    options = words[: words.index("--")] if "--" in words else words
    return any(word.startswith(("--sub", "--recu", UNKNOWN)) or _GLOB.match(word) for word in options)


def _leading(command: Command) -> list[Item]:
    """Return the options before the name of the Git command."""
    items, args = walk(command.args, grammar_of(command.name)), command.args
    return list(takewhile(lambda item: item.option is not None or args[item.at] == "-", items))


def _after_options(command: Command) -> Sequence[str]:
    items = _leading(command)
    return command.args[items[-1].after if items else 0 :]


def choosing(command: Command) -> list[str]:
    """Return the leading options that choose the repository or its settings, with their values."""
    chosen = [item for item in _leading(command) if command.args[item.at].partition("=")[0] in _CHOOSING]
    return [word for item in chosen for word in command.args[item.at : item.after]]


def _hidden(request: Request, facts: Sequence[Fact], commands: Sequence[Command]) -> Iterator[str]:
    """Yield the reasons why it isn't known which repository a command uses, or with which settings."""
    for path in request.files:
        if _may_configure(posixpath.normpath(path), request):
            yield f"the request brings the file {path!a}, which may configure git"
    for command in commands:
        if command.name != "git":  # Mercurial is contained in whatever directory it runs
            continue
        named = _after_options(command)
        places = [command.directory or UNKNOWN, *command.args[: len(command.args) - len(named)]]
        if any(UNKNOWN in place or _GLOB.search(place) for place in places):
            yield only_known_later("in which directory git runs")
        if UNKNOWN in next(iter(named), ""):
            yield only_known_later("which of git's commands it runs")
        if command.directory and command.directory[0] not in "./~" and _LOOP.search(request.text):
            yield "in which directory git runs is not known, because a loop may change it again"
        for wrapper in command.via:
            found = wrapper.startswith("find ") and (wrapper != command.via[-1] or choosing(command))
            if found or not _STAYING.match(wrapper):
                yield f"in which directory {wrapper!a} runs git, or with which variables, is not known"
    if request.language == "python" and _starts_with_other_variables(request.code):
        yield "it starts programs with variables, or in a directory, of their own"
    for fact in facts:
        match fact:
            case Assigned(name=name) if _MOVING_VARIABLE.match(name) and not _HARMLESS_VARIABLE.match(name):
                yield f"it sets {name.replace(UNKNOWN, '?')!a}, which may lead git to another repository"
            case Call(name=name) | Attribute(name=name) if _MOVING_CALL.match(name):
                yield f"in which directory git runs, or with which variables, is not known after {name}"
            case Trait(name=name) if name in UNREAD:
                yield "it can't be read to its end"
            case Command() if _drops_variables(fact):
                yield f"{fact.name!a} may remove the variables that keep git from running what a repository configures"


def _may_configure(path: str, request: Request) -> bool:
    directory, name = posixpath.split(path)
    if name == "config":  # of a repository without files of its own, or in XDG_CONFIG_HOME
        return directory.endswith("git") or posixpath.join(directory, "HEAD") in request.files
    return name == ".gitconfig" or ".git" in path.split("/")


def _starts_with_other_variables(code: str) -> bool:
    """Return whether a call in Python may start a program with other variables than `os.environ`, or in another
    directory by a positional argument."""
    import ast

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
    """Return whether a command removes variables that contain Git: `env -i`, `env -u NAME`, `exec -c`, `unset …`."""
    if command.name == "unset":
        return any(arg.startswith(("GIT_CONFIG", UNKNOWN)) for arg in command.args)
    if command.name not in ("env", "exec"):
        return False
    letters = "iu" if command.name == "env" else "c"
    options = [command.args[item.at] for item in _leading(command)]
    return any(
        arg == "-" or arg.startswith(("--i", "--u")) or (arg[:2] != "--" and set(arg) & set(letters)) for arg in options
    )
