"""Which files the user has trusted: exactly these bytes at exactly this path.

One JSON file in the state directory. It is replaced as a whole, under a lock, so that two processes never lose each
other's entry and a crash leaves either the old file or the new one.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..lib.errors import ConfigError
from ..lib.files import closing, locked, open_regular, reason, replace
from .model import InvalidFile
from .places import Source, not_ours, read, state_directory

_FILE = "trusted.json"
Trusted = dict[Path, str]
"""Real path → SHA-256 of the content."""


def trusted_files(env: Mapping[str, str] | None = None) -> Trusted:
    """Return every trusted file with the hash of its trusted content. Raises `ConfigError` if the list is unusable."""
    return _load(state_directory(env) / _FILE)


def is_trusted(source: Source, env: Mapping[str, str] | None = None) -> bool:
    """Return whether the user has trusted exactly these bytes at this path."""
    return trusted_files(env).get(source.path) == source.digest


def read_found(path: Path, env: Mapping[str, str] | None = None) -> Source | str:
    """Read a file that was found, not named by the user. Returns a text instead if it has no effect, because another
    user may have written it and this user has not trusted its content: any user can leave a file, even a broken one, in
    a directory such as /tmp, and that must not stop others' work. Raises `InvalidFile` for an unreadable file of this
    user's own.
    """
    why = not_ours(path, env)
    try:
        source = read(path)
    except InvalidFile:
        if why:
            return why
        raise
    return why if why and not is_trusted(source, env) else source


def record(source: Source, env: Mapping[str, str] | None = None) -> None:
    """Trust these bytes at this path, instead of what was trusted there before. Raises `ConfigError`."""
    _change(env, lambda files: {**files, source.path: source.digest})


def untrust(path: Path, env: Mapping[str, str] | None = None) -> bool:
    """Stop trusting a path. Returns False if it wasn't trusted. The file itself need not exist."""
    real = Path(os.path.realpath(path))
    if real not in trusted_files(env):
        return False
    _change(env, lambda files: {known: digest for known, digest in files.items() if known != real})
    return True


def _load(file: Path) -> Trusted:
    if not os.path.lexists(file):
        return {}
    source, directory = read(file), file.parent.stat()
    # A user who can write this file can switch the protection off, so it must be ours, here, and writable only by us.
    writable = (source.mode | directory.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if file.is_symlink() or writable or {source.owner, directory.st_uid} != {os.geteuid()}:
        raise _unusable(file, "it is a link, or other users can write it or its directory")
    import json

    try:
        files = json.loads(source.data)["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _unusable(file, "it is damaged") from None
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise _unusable(file, "it is damaged")
    return {Path(path): digest for path, digest in files.items()}


def _unusable(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the list of trusted files {file} can't be used", why=why, next="delete it and trust your projects again"
    )


def _change(env: Mapping[str, str] | None, change: Callable[[Trusted], Trusted]) -> None:
    import json

    directory = state_directory(env)
    try:
        with _locked(directory):
            files = change(_load(directory / _FILE))
            content = {"version": 1, "files": {str(path): digest for path, digest in files.items()}}
            replace(directory / _FILE, json.dumps(content, indent=1).encode())
    except OSError as error:
        raise ConfigError(
            f"the list of trusted files in {directory} can't be written",
            why=reason(error),
            next="make the directory yours and writable, or set REDOMA_STATE_DIR to one that is",
        ) from None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_regular(directory / "trusted.lock", os.O_RDWR | os.O_CREAT)
    with closing(lock), locked(lock, seconds=math.inf):
        yield
