"""Other names of a project's files: through links in the project, and by what git's configuration says of them.

`CLAUDE.md` may be a link to `docs/guide.md`, and git may be told to take its hooks from `scripts/hooks`. Whoever
writes to such a file has written to what is protected under its other name. Links and configuration are read as they
are on disk, by us: git itself would run what it finds there.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping

from .tree import with_parents

_MAX_NAMES = 64  # of one path: links that lead to each other make any number
_MAX_BYTES = 1 << 20  # of a configuration; larger ones are no longer read to their end
_MAX_FILES = 32  # that include each other


class Names:
    """Other names for the paths of a project. `project` is absolute and without links; `links` are those that a run
    would make: path → target."""

    def __init__(self, project: str, links: Mapping[str, str]) -> None:
        self._project = project
        self._links: dict[str, list[str]] = {}
        self._configured: dict[str, str] = {}
        repositories = list(_repository_above(project))
        for path, kind in _survey(project):
            whole = os.path.join(project, path)
            if kind == "link":
                self._add(path, os.path.realpath(whole))
            else:
                repositories.append(whole)
        for path, target in links.items():
            self._add(path, os.path.realpath(os.path.join(project, os.path.dirname(path), target)))
        for git in repositories:
            for place, why in _configured(git):
                if (inside := self._inside(place)) is not None:
                    self._configured.setdefault(inside, why)

    def _add(self, path: str, target: str) -> None:
        inside = self._inside(target)
        if inside is not None and inside != path:
            self._links.setdefault(inside, []).append(path)

    def _inside(self, target: str) -> str | None:
        """A path of the host as one of the project; empty for the project itself, None if it is elsewhere."""
        if target == self._project:
            return ""
        return target[len(self._project) + 1 :] if target.startswith(f"{self._project}/") else None

    def of(self, path: str) -> list[str]:
        """The path, then every other name that links give it, directly or by way of a directory."""
        if not self._links:
            return [path]
        found = [path]
        known = {path}
        for name in found:  # which grows
            for place in ("", *with_parents(name)):
                rest = name[len(place) :].lstrip("/")
                for link in self._links.get(place, ()):
                    other = f"{link}/{rest}" if rest else link
                    if other not in known and len(found) < _MAX_NAMES:
                        known.add(other)
                        found.append(other)
        return found

    def configured(self, path: str) -> str:
        """Why git runs or obeys what is at this path, by its configuration; empty if it doesn't."""
        if not self._configured:
            return ""
        return next((self._configured[place] for place in with_parents(path) if place in self._configured), "")


def _survey(project: str) -> Iterator[tuple[str, str]]:
    """Every link in a project, and every `.git`: its path, and which of the two it is."""
    todo = [""]
    while todo:
        directory = todo.pop()
        try:
            entries = os.scandir(os.path.join(project, directory))
        except OSError:
            continue  # nobody else can look for links there either
        with entries:
            for entry in entries:
                path = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_symlink():
                    yield path, "link"
                if entry.name == ".git":
                    yield path, "git"
                if entry.is_dir(follow_symlinks=False) and not path.endswith(".git/objects"):
                    todo.append(path)


def _repository_above(project: str) -> Iterator[str]:
    """The `.git` of the repository that the project lies in, if it is not its own."""
    place = os.path.dirname(project)
    while place != os.path.dirname(place):
        if os.path.lexists(os.path.join(place, ".git")):
            yield os.path.join(place, ".git")
            return
        place = os.path.dirname(place)


# --- git's configuration ---

_RUN = {
    "fsmonitor",
    *("sshcommand", "pager", "editor", "askpass", "gitproxy", "external", "textconv", "clean", "smudge", "process"),
    *("helper", "program", "command", "driver", "cmd", "uploadpack", "receivepack", "defaultkeycommand"),
}
"""Keys whose value is a command, in whichever section."""
_OBEY = {"hookspath": "hooks are in", "path": "configuration includes", "attributesfile": "attributes are in"}


def _configured(git: str) -> Iterator[tuple[str, str]]:
    """Paths of the host that the configuration of a repository leads to, and why that matters. `git` is its `.git`, a
    directory or a file that names one."""
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
        for file in todo:  # which grows
            values = list(_values(_read(file)))
            work = next((value for section, key, value in values if (section, key) == ("core", "worktree")), "")
            base = os.path.realpath(os.path.join(directory, work)) if work else top
            for section, key, value in values:
                if key in _OBEY:
                    start = os.path.dirname(file) if key == "path" else base
                    place = os.path.realpath(os.path.join(start, value))
                    yield place, f"git's {_OBEY[key]} it"
                    if key == "path" and len(todo) < _MAX_FILES:
                        todo.append(place)
                elif key in _RUN or (section == "alias" and value.startswith("!")):
                    for word in _words(value.removeprefix("!")):
                        place = os.path.realpath(os.path.join(base, word))
                        if "/" in word or os.path.isfile(place):
                            yield place, f"git's configuration runs it ({section}.{key})"


def _pointer(path: str, prefix: str) -> str:
    """The path in a file of one line such as `gitdir: PATH`; empty if the file has none."""
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


_SECTION = re.compile(r"\[\s*([A-Za-z0-9.-]+)[^\]]*\]")
_ENTRY = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)", re.DOTALL)


def _values(text: str) -> Iterator[tuple[str, str, str]]:
    """Section, key and value of each entry of a configuration of git's. What can't be read is left out."""
    section = ""
    for line in text.replace("\\\n", "").splitlines():
        line = line.strip()
        if found := _SECTION.match(line):
            section, line = found[1].lower(), line[found.end() :]
        if entry := _ENTRY.fullmatch(line):
            yield section, entry[1].lower(), _unquoted(entry[2])


def _unquoted(value: str) -> str:
    """Without quotes and comments, escapes as they are meant."""
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
