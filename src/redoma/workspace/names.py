"""Other names of a project's files: through links in the project, and through git's configuration or an `.envrc`.

`CLAUDE.md` may be a link to `docs/guide.md`, and git may be configured to take its hooks from `scripts/hooks`. Writing
to `docs/guide.md` then changes what is protected under its other name. The configuration is read directly from disk,
because git itself would run what it finds there.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping

from ..lib.patterns import lazy_pattern
from .envrc import sourced
from .protected import protected
from .tree import with_parents

_MAX_NAMES = 64  # of one path: links that lead to each other can make any number
_MAX_PROTECTED_NAMES = 1024  # the same, if the links beyond `_MAX_NAMES` are protected themselves
_MAX_BYTES = 1 << 20  # of a configuration; larger ones are truncated
_MAX_FILES = 32  # files that include each other
_ENTERED = "it runs when its directory is entered"


class Names:
    """Finds other names for the paths of a project. `project` is its absolute path, without links; `links` are the
    links that a run would make: path → target.
    """

    def __init__(self, project: str, links: Mapping[str, str]) -> None:
        self._project = project
        self._links: dict[str, list[str]] = {}
        self._configured: dict[str, str] = {}
        self._is_protected = functools.cache(protected)
        repositories, envrcs = _nearest_above(project, ".git"), _nearest_above(project, ".envrc")
        for path, kind in _survey(project):
            whole = os.path.join(project, path)
            if kind == "link":
                self._add(path, whole)
            else:
                (repositories if kind == "git" else envrcs).append(whole)
        for path, target in links.items():
            self._add(path, os.path.join(project, os.path.dirname(path), target))
        by_git = itertools.chain.from_iterable(map(_configured_by_git, repositories))
        by_envrc = ((place, f"{_ENTERED}, by {os.path.basename(file)}") for place, file in sourced(envrcs, _read))
        for place, why in itertools.chain(by_git, by_envrc):
            for stop in _stops(place):
                if inside := self._inside(stop):
                    self._configured.setdefault(inside, why)

    def _add(self, path: str, target: str) -> None:
        for stop in _stops(target):
            inside = self._inside(stop)
            if inside is not None and inside != path:
                self._links.setdefault(inside, []).append(path)

    def _inside(self, target: str) -> str | None:
        """Return a path of the host relative to the project; empty for the project itself, None if it is elsewhere."""
        if target == self._project:
            return ""
        return target[len(self._project) + 1 :] if target.startswith(f"{self._project}/") else None

    def of(self, path: str) -> list[str]:
        """Return the path, then every other name that links give it, directly or through a directory."""
        if not self._links:
            return [path]
        names, known = [path], {path}
        for name in names:  # the list grows
            for place in ("", *with_parents(name)):
                rest = name[len(place) :].lstrip("/")
                for link in self._links.get(place, ()):
                    other = f"{link}/{rest}" if rest else link
                    if other not in known and self._has_room(len(names), link):
                        known.add(other)
                        names.append(other)
        return names

    def _has_room(self, count: int, link: str) -> bool:
        """Return whether a path with `count` names may get another one, by this link. If there are too many, only links
        that are protected add some: otherwise a hundred harmless links could hide one of these.
        """
        return count < _MAX_NAMES or (count < _MAX_PROTECTED_NAMES and bool(self._is_protected(link)))

    def configured(self, path: str) -> str:
        """Return why git or a shell runs or reads what is at this path, according to configuration; empty if they
        don't.
        """
        if not self._configured:
            return ""
        return next((self._configured[place] for place in with_parents(path) if place in self._configured), "")


def _stops(path: str) -> list[str]:
    """Return every link that an absolute path goes through, and where it ends: changing any of these changes what is
    found at the path.
    """
    links: list[str] = []
    at, todo = "/", path.split("/")[::-1]
    while todo and len(links) < _MAX_NAMES:
        name = todo.pop()
        if name == "..":
            at = os.path.dirname(at)
        elif name not in ("", "."):
            at = os.path.join(at, name)
            try:
                target = os.readlink(at)
            except OSError:
                continue  # not a link
            links.append(at)
            todo += target.split("/")[::-1]
            at = "/" if target.startswith("/") else os.path.dirname(at)
    return [*links, at]


def _survey(project: str) -> Iterator[tuple[str, str]]:
    """Yield every link, `.git` and `.envrc` in a project: its path, and which of these it is."""
    todo = [""]
    while todo:
        directory = todo.pop()
        try:
            entries = os.scandir(os.path.join(project, directory))
        except OSError:
            continue  # other programs of this user can't find links there either
        with entries:
            for entry in entries:
                path = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_symlink():
                    yield path, "link"
                if entry.name in (".git", ".envrc"):
                    yield path, entry.name[1:]
                if entry.is_dir(follow_symlinks=False) and not path.endswith(".git/objects"):
                    todo.append(path)


def _nearest_above(project: str, name: str) -> list[str]:
    """Return the nearest path with this name above the project, such as the `.git` of a repository around it; empty if
    there is none.
    """
    place = os.path.dirname(project)
    while place != os.path.dirname(place):
        if os.path.lexists(os.path.join(place, name)):
            return [os.path.join(place, name)]
        place = os.path.dirname(place)
    return []


# --- git's configuration ---

_RUN = {
    "fsmonitor",
    *("sshcommand", "pager", "editor", "askpass", "gitproxy", "external", "textconv", "clean", "smudge", "process"),
    *("helper", "program", "command", "driver", "cmd", "uploadpack", "receivepack", "defaultkeycommand"),
}
"""Keys whose value is a command, in whatever section."""
_READ = {"hookspath": "hooks are in", "path": "configuration includes", "attributesfile": "attributes are in"}


def _configured_by_git(git: str) -> Iterator[tuple[str, str]]:
    """Yield paths that the configuration of a repository refers to, each with the reason why it matters. `git` is its
    `.git`: a directory, or a file that names one.
    """
    directories = [git]
    if pointer := _pointer(git, "gitdir: "):
        directories = [pointer]
        if common := _pointer(os.path.join(pointer, "commondir"), ""):
            directories.append(common)
    elif os.path.isdir(f"{git}/modules"):
        directories += [place for place, _, files in os.walk(f"{git}/modules") if "config" in files]
    top = os.path.dirname(git)
    for directory in directories:
        todo = [os.path.join(directory, name) for name in ("config", "config.worktree")]
        for file in todo:  # the list grows
            values = list(_values(_read(file)))
            work = next((value for section, key, value in values if (section, key) == ("core", "worktree")), "")
            base = os.path.realpath(os.path.join(directory, work)) if work else top
            for section, key, value in values:
                if key in _READ:
                    start = os.path.dirname(file) if key == "path" else base
                    place = os.path.join(start, value)
                    yield place, f"git's {_READ[key]} it"
                    if key == "path" and len(todo) < _MAX_FILES:
                        todo.append(place)
                elif key in _RUN or (section == "alias" and value.startswith("!")):
                    for word in _words(value.removeprefix("!")):
                        place = os.path.join(base, word)
                        if "/" in word or os.path.isfile(place):
                            yield place, f"git's configuration runs it ({section}.{key})"


def _pointer(path: str, prefix: str) -> str:
    """Return the path in a one-line file such as `gitdir: PATH`; empty if the file has none."""
    if os.path.isdir(path):
        return ""
    text = _read(path).strip()
    if not text.startswith(prefix) or not text:
        return ""
    return os.path.realpath(os.path.join(os.path.dirname(path), text.removeprefix(prefix)))


def _read(path: str) -> str:
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return ""
        return file.read(_MAX_BYTES).decode("utf-8", "surrogateescape")


_SECTION = lazy_pattern(r"\[\s*([A-Za-z0-9.-]+)[^\]]*\]")
_ENTRY = lazy_pattern(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)", re.DOTALL)


def _values(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each entry of a git configuration. Unparsable entries are left out."""
    section = ""
    for line in text.replace("\\\n", "").splitlines():
        line = line.strip()
        if header := _SECTION.match(line):
            section, line = header[1].lower(), line[header.end() :]
        if entry := _ENTRY.fullmatch(line):
            yield section, entry[1].lower(), _unquoted(entry[2])


def _unquoted(value: str) -> str:
    """Return a value without quotes and comments, its escapes decoded."""
    chars, quoted, escaped = [], False, False
    for char in value:
        if escaped:
            chars.append({"n": "\n", "t": "\t", "b": "\b"}.get(char, char))
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char in "#;" and not quoted:
            break
        else:
            chars.append(char)
    return "".join(chars).strip()


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
