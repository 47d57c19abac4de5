"""Writing the files that a run brought back to a directory of ours.

Their names and contents are the code's choice. Nothing is written outside the directory, through a link, over a file
that is there (unless asked to), as an executable, or under a hidden name that wasn't asked for: `.git/hooks/pre-commit`
or `.envrc` would run by themselves one day.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress

from redoma.lib.errors import InvalidRequest

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def hidden_files(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Those with a name that begins with a dot, unless a pattern has such a name too."""
    asked_for = any(_is_hidden(pattern) for pattern in patterns)
    return [path for path in files if _is_hidden(path) and not asked_for]


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def write_files(directory: str, files: Mapping[str, bytes], *, force: bool) -> tuple[list[str], dict[str, str]]:
    """The paths that were written, and why others were not."""
    written: list[str] = []
    refused: dict[str, str] = {}
    if not files:
        return written, refused
    try:
        os.makedirs(directory, exist_ok=True)
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidRequest(f"{directory} can't be written to", why=why, next="choose another --output-dir") from None
    try:
        for path, content in sorted(files.items()):
            parts = path.split("/")
            if {"", ".", ".."} & set(parts) or "\0" in path:
                refused[path] = "not a plain relative path"
            elif why := _write(top, parts, content, force):
                refused[path] = why
            else:
                written.append(path)
    finally:
        os.close(top)
    return written, refused


def _write(top: int, parts: list[str], content: bytes, force: bool) -> str:
    """Empty, or why it could not be done."""
    *directories, name = parts
    here = os.dup(top)
    try:
        for part in directories:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=here)
            below = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        if force:
            # Put in its place when it is whole; a link that has the name is replaced, not followed.
            fresh = f".redoma-{secrets.token_hex(8)}"
            _write_new(here, fresh, content)
            try:
                os.replace(fresh, name, src_dir_fd=here, dst_dir_fd=here)
            except OSError:
                os.unlink(fresh, dir_fd=here)
                raise
        else:
            _write_new(here, name, content)
    except FileExistsError:
        return "there is such a file already; --force replaces it"
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(here)
    return ""


def _write_new(directory: int, name: str, content: bytes) -> None:
    descriptor = os.open(name, _NEW, 0o666, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        os.unlink(name, dir_fd=directory)  # no half of a file
        raise
