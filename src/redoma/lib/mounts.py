"""What is mounted where, as the kernel tells it in `mountinfo`. Standard library only: it is also read in a cell."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of `mountinfo`. Names that are no UTF-8 have their bytes as lone surrogates."""

    device: str
    """Major and minor number: mounts of one file system have the same."""
    root: str
    """The directory of the file system that is seen at `path`."""
    path: str
    options: tuple[str, ...]
    """Of this mount: `ro`, `nosuid` …"""
    kind: str
    source: str
    file_system_options: tuple[str, ...]
    """Of the file system, wherever it is mounted."""


def read_mounts(process: str = "/proc/self") -> list[Mount]:
    """The mounts that a process sees, in the order in which they were made. Raises OSError if they can't be read."""
    with open(f"{process}/mountinfo", "rb") as file:
        return parse_mounts(os.fsdecode(file.read()))


def parse_mounts(text: str) -> list[Mount]:
    """The mounts in the text of a `mountinfo`. Lines that have too few fields are left out."""
    found = []
    for line in text.split("\n"):  # not `splitlines`: a path may hold other characters that end a line
        own, _, file_system = line.partition(" - ")
        fields, more = own.split(" "), file_system.split(" ", 2)
        if len(fields) >= 6 and len(more) == 3:
            device, root, path, options = fields[2:6]
            kind, source, file_system_options = more
            found.append(
                Mount(
                    device=device,
                    root=_unescape(root),
                    path=_unescape(path),
                    options=tuple(options.split(",")),
                    kind=kind,
                    source=_unescape(source),
                    file_system_options=tuple(file_system_options.split(",")),
                )
            )
    return found


def _unescape(field: str) -> str:
    """Blanks, line ends and backslashes are written as octal numbers."""
    return _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), field) if "\\" in field else field
