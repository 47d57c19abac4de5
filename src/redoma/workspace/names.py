"""Other names of a project's files: through links in the project, and through git's configuration or an `.envrc`.

`CLAUDE.md` may be a link to `docs/guide.md`, and git may be configured to take its hooks from `scripts/hooks`. Writing
to `docs/guide.md` then changes what is protected under its other name. The configuration is read directly from disk,
because git itself would run what it finds there.
"""

from __future__ import annotations

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
_MAX_TELLING = 1024  # of one path, if links beyond `_MAX_NAMES` are protected themselves
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
        self._telling: dict[str, bool] = {}
        repositories, entered = list(_above(project, ".git")), list(_above(project, ".envrc"))
        for path, kind in _survey(project):
            whole = os.path.join(project, path)
            if kind == "link":
                self._add(path, whole)
            else:
                (repositories if kind == "git" else entered).append(whole)
        for path, target in links.items():
            self._add(path, os.path.join(project, os.path.dirname(path), target))
        configured = itertools.chain.from_iterable(map(_configured, repositories))
        run = ((place, f"{_ENTERED}, by {os.path.basename(file)}") for place, file in sourced(entered, _read))
        for place, why in itertools.chain(configured, run):
            for passed in _way(place):
                if inside := self._inside(passed):
                    self._configured.setdefault(inside, why)

    def _add(self, path: str, target: str) -> None:
        for passed in _way(target):
            inside = self._inside(passed)
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
        found = [path]
        known = {path}
        for name in found:  # the list grows
            for place in ("", *with_parents(name)):
                rest = name[len(place) :].lstrip("/")
                for link in self._links.get(place, ()):
                    other = f"{link}/{rest}" if rest else link
                    # If there are too many, add only those by links that are protected: otherwise a hundred harmless
                    # links could hide one of these.
                    if other not in known and (len(found) < _MAX_NAMES or self._tells(link, len(found))):
                        known.add(other)
                        found.append(other)
        return found

    def _tells(self, link: str, count: int) -> bool:
        if link not in self._telling:
            self._telling[link] = bool(protected(link))
        return self._telling[link] and count < _MAX_TELLING

    def configured(self, path: str) -> str:
        """Return why git or a shell runs or reads what is at this path, according to configuration; empty if they
        don't.
        """
        if not self._configured:
            return ""
        return next((self._configured[place] for place in with_parents(path) if place in self._configured), "")


def _way(path: str) -> list[str]:
    """Return every link that an absolute path goes through, and where it ends: changing any of these changes what is
    found at the path.
    """
    passed: list[str] = []
    at, todo = "/", path.split("/")[::-1]
    while todo and len(passed) < _MAX_NAMES:
        name = todo.pop()
        if name == "..":
            at = os.path.dirname(at)
        elif name not in ("", "."):
            at = os.path.join(at, name)
            try:
                target = os.readlink(at)
            except OSError:
                continue  # not a link
            passed.append(at)
            todo += target.split("/")[::-1]
            at = "/" if target.startswith("/") else os.path.dirname(at)
    return [*passed, at]


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


def _above(project: str, name: str) -> Iterator[str]:
    """Yield the nearest path with this name above the project, such as the `.git` of a repository around it."""
    place = os.path.dirname(project)
    while place != os.path.dirname(place):
        if os.path.lexists(os.path.join(place, name)):
            yield os.path.join(place, name)
            return
        place = os.path.dirname(place)


# --- git's configuration ---

_RUN = {
    "fsmonitor",
    *("sshcommand", "pager", "editor", "askpass", "gitproxy", "external", "textconv", "clean", "smudge", "process"),
    *("helper", "program", "command", "driver", "cmd", "uploadpack", "receivepack", "defaultkeycommand"),
}
"""Keys whose value is a command, in whatever section."""
_OBEY = {"hookspath": "hooks are in", "path": "configuration includes", "attributesfile": "attributes are in"}


def _configured(git: str) -> Iterator[tuple[str, str]]:
    """Yield paths that the configuration of a repository refers to, each with the reason why it matters. `git` is its
    `.git`: a directory, or a file that names one.
    """
    directories = [git]
    if pointed := _pointer(git, "gitdir: "):
        directories = [pointed]
        if common := _pointer(os.path.join(pointed, "commondir"), ""):
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
                if key in _OBEY:
                    start = os.path.dirname(file) if key == "path" else base
                    place = os.path.join(start, value)
                    yield place, f"git's {_OBEY[key]} it"
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
        if found := _SECTION.match(line):
            section, line = found[1].lower(), line[found.end() :]
        if entry := _ENTRY.fullmatch(line):
            yield section, entry[1].lower(), _unquoted(entry[2])


def _unquoted(value: str) -> str:
    """Return a value without quotes and comments, its escapes decoded."""
    found, quoted, escaped = [], False, False
    for char in value:
        if escaped:
            found.append({"n": "\n", "t": "\t", "b": "\b"}.get(char, char))
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char in "#;" and not quoted:
            break
        else:
            found.append(char)
    return "".join(found).strip()


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
