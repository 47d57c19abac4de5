"""Read requirements as pip does, from names, a requirements file or a pyproject.toml.

Each is checked, because pip also takes options, paths and URLs there, which would lead to files of the host or past the
index.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..lib.errors import InvalidRequest
from ..lib.patterns import lazy_pattern

MAX_REQUIREMENTS = 1000
MAX_FILE = 1 << 20
_MAX_LINE = 4000
_MAX_DEPTH = 10
_VERSIONS = r"(?:\s*(?:~=|===?|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+\s*,?)*"
_REQUIREMENT = lazy_pattern(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._, -]*\])?"
    rf"\s*(?:\({_VERSIONS}\s*\)|{_VERSIONS})\s*(?:;[ -~]*)?\Z"
)
_HASH = lazy_pattern(r"--hash[= ](?:sha256|sha384|sha512):[0-9a-fA-F]{64,128}\Z")
_OPTION = lazy_pattern(r"(?:--pre|--prefer-binary|--require-hashes|--(?:only|no)-binary[= ][A-Za-z0-9._:,-]+)\Z")
_INCLUDE = lazy_pattern(r"(?:-r|--requirement)[= ]*(.+)\Z")


def requirements(given: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements, checked, in order and without duplicates. Raises `InvalidRequest`."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidRequest(f"packages is {given!r}", why="it takes a list of names", next='write ["pandas"]')
    found = tuple(dict.fromkeys(_checked(text) for text in given))
    if len(found) > MAX_REQUIREMENTS:
        raise InvalidRequest(
            f"{len(found)} packages are wanted", why=f"at most {MAX_REQUIREMENTS} can be named", next="name fewer"
        )
    return found


def from_file(path: Path) -> tuple[str, ...]:
    """Return the requirements of a file, or the dependencies of a pyproject.toml. Raises `InvalidRequest`."""
    found = _of_project(path) if path.suffix == ".toml" else tuple(_lines(path, 0))
    if not found:
        raise InvalidRequest(f"{path} names no packages", why="it has no requirements", next="name some")
    return requirements(found)


def _checked(text: Any) -> str:
    if not isinstance(text, str) or len(text) > _MAX_LINE or not text.isprintable():
        raise _wrong(repr(text)[:80], "it is not one line of text")
    first, *hashes = re.split(r"\s+(?=--hash)", text.strip())
    if _OPTION.match(first) and not hashes:
        return first
    if first.startswith("-"):
        raise _wrong(text, "options are not taken: the index is that of pip's own configuration")
    if "://" in first or re.search(r"[@/\\\\]", first.partition(";")[0]):
        raise _wrong(text, "it names a URL or a path, and packages come from the index alone")
    if not _REQUIREMENT.match(first) or not all(_HASH.match(each.strip()) for each in hashes):
        raise _wrong(text, "it can't be read as a requirement")
    return " ".join([" ".join(first.split()), *(each.strip() for each in hashes)])


def _wrong(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the package {text[:200]!r} can't be installed", why=why, next="write it like pandas, or 'pandas>=2,<3'"
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise InvalidRequest(f"{path} is too long", why=f"at most {MAX_FILE:,} bytes are read", next="split it")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidRequest(f"{path} can't be read", why=why or str(error), next="name a file of text") from None


def _lines(path: Path, depth: int) -> Iterator[str]:
    """Yield the lines of a requirements file and of those it includes, without comments."""
    if depth > _MAX_DEPTH:
        raise InvalidRequest(f"{path} can't be read", why="files include each other", next="remove a line with -r")
    for line in re.sub(r"\\\r?\n", " ", _read(path)).splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if included := _INCLUDE.match(text):
            yield from _lines(path.parent / included[1].strip(), depth + 1)
        elif text:
            yield text


def _of_project(path: Path) -> tuple[str, ...]:
    try:
        project = tomllib.loads(_read(path)).get("project", {})
        found = project.get("dependencies", [])
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise InvalidRequest(f"{path} can't be read", why=str(error), next="check its syntax") from None
    if "dependencies" in project.get("dynamic", ()):
        raise InvalidRequest(
            f"{path} doesn't say what its project needs",
            why="its dependencies are dynamic, so only its own build could tell",
            next="name the packages, or a requirements file",
        )
    if not isinstance(found, list):
        raise InvalidRequest(f"{path} can't be read", why="project.dependencies is not a list", next="make it one")
    return tuple(found)
