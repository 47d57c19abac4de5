"""Find writes to paths outside the working directory and the project.

Paths in facts are absolute, relative to the directory where the request starts, or begin with `~`. Links that the same
source makes are followed regardless of order: a link made later can only cause an extra question.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from ..lib.patterns import lazy_pattern
from ..models import Request
from .facts import UNKNOWN, Command, Fact, Trait

_SINKS = frozenset({"/dev/null", "/dev/zero", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty", "/dev/full", "-"})
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - places to name, not to use
_NO_PLACE_TO_WORK = frozenset(
    {"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/proc", "/run", "/sbin", "/srv"}
    | {"/sys", "/usr", "/var", "/Users", "/System", "/Library"}
)
"""Directories that are never a project: writing there changes the system, even if it is the working directory."""
_TAKES_LINK_ITSELF = frozenset({"rm", "unlink", "mv", "ln", "rmdir"})
_COPIES_INTO = frozenset({"cp", "mv", "install"})
"""Programs whose last argument may be a directory that they add files to: `cp x /tmp` means `cp x /tmp/x`."""
_MAX_LINKS = 20
_LINKS = lazy_pattern(r"-[A-Za-z]*[sl]|--(?:symbolic-)?link\Z")
_INTO = lazy_pattern(r"-[A-Za-z]*t|--target-directory")


def written_outside(request: Request, facts: Sequence[Fact]) -> Iterator[Trait]:
    """Yield a trait for each command that writes, moves or removes something outside the working directory, the project
    and the directories for temporary files."""
    commands = [fact for fact in facts if isinstance(fact, Command) and fact.writes]
    if not commands:
        return
    links = dict(
        pair for command in commands if _makes_links(command) for pair in _links(command) if pair[0] != pair[1]
    )
    roots = [posixpath.normpath(root) for root in (request.project, request.cwd) if root]
    for command in commands:
        exact = command.name not in _TAKES_LINK_ITSELF
        into = command.args[-1].rstrip("/") if command.name in _COPIES_INTO and command.args else ""
        paths = [path for path in command.writes if path != into or into not in _TEMPORARY]
        if any(_is_outside(_followed(path, links, exact=exact), roots) for path in paths):
            yield Trait(name="files.outside", line=command.line, column=command.column, text=command.text)


def _makes_links(command: Command) -> bool:
    """Return whether a command makes links: `ln`, and `cp` with an option to link instead of copy."""
    return command.name == "ln" or (command.name == "cp" and any(map(_LINKS.match, command.args)))


def _links(command: Command) -> Iterator[tuple[str, str]]:
    """Yield the paths that may be links once the command has run, each with its target."""
    sources = [arg for arg in command.args if not arg.startswith("-")]
    into = any(map(_INTO.match, command.args))  # -t DIRECTORY: then the last one is a source, too
    for place in command.writes:
        for source in sources if into else sources[:-1] or sources:
            if not into:
                yield place, _joined(posixpath.dirname(place), source)
            yield posixpath.normpath(posixpath.join(place, posixpath.basename(source))), _joined(place, source)


def _joined(directory: str, path: str) -> str:
    if path.startswith(("/", "~", UNKNOWN)):
        return path
    return posixpath.normpath(posixpath.join(directory, path))


def _followed(path: str, links: Mapping[str, str], *, exact: bool) -> str:
    """Return a path with all links resolved. `exact`: also if the path itself is a link, not only a directory in it."""
    for _ in range(_MAX_LINKS if links else 0):
        for link, target in links.items():
            if path.startswith(f"{link}/") or (exact and path == link):
                led = posixpath.normpath(target + path[len(link) :])
                break
        else:
            return path
        if led == path:
            return path
        path = "~" if UNKNOWN in target else led  # a link to an unknown place counts as outside
    return path


def _is_outside(path: str, roots: Sequence[str]) -> bool:
    if not path or path in _SINKS or path.startswith((UNKNOWN, *_DESCRIPTORS)):
        return False
    if path.startswith("~"):
        return True
    working = roots[-1] if roots else ""
    if not path.startswith("/"):
        if working in _NO_PLACE_TO_WORK:
            return True
        if not path.startswith(".."):
            return False
        path = posixpath.normpath(posixpath.join(working, path)) if working else path
    if any(_is_below(path, root) for root in roots if root not in _NO_PLACE_TO_WORK):
        return False
    return not any(_is_below(path, place) and path[len(place) + 1 :][:1] not in ("", "*") for place in _TEMPORARY)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
