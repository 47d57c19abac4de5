"""Parses the kernel's `mountinfo`. Standard library only: it is also used in a cell."""

from __future__ import annotations

import os


class Mount:
    """One line of `mountinfo`. Bytes of names that are not UTF-8 are lone surrogates."""

    __slots__ = ("device", "file_system_options", "kind", "options", "path", "root", "source")

    def __init__(
        self,
        *,
        device: str,
        root: str,
        path: str,
        options: tuple[str, ...],
        kind: str,
        source: str,
        file_system_options: tuple[str, ...],
    ) -> None:
        self.device = device
        """Major and minor number: the same for all mounts of one file system."""
        self.root = root
        """The directory of the file system that is visible at `path`."""
        self.path = path
        self.options = options
        """Options of this mount: `ro`, `nosuid` …"""
        self.kind = kind
        self.source = source
        self.file_system_options = file_system_options
        """Options of the file system, wherever it is mounted."""


def read_mounts(process: str = "/proc/self") -> list[Mount]:
    """Return the mounts that a process sees, in the order of their creation. Raises OSError if they can't be read."""
    with open(f"{process}/mountinfo", "rb") as file:
        return parse_mounts(os.fsdecode(file.read()))


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts in the text of a `mountinfo`. Lines with too few fields are left out."""
    found = []
    for line in text.split("\n"):  # not `splitlines`: a path may contain other line-ending characters
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
    """Decode the octal escapes of blanks, line ends and backslashes."""
    first, *rest = field.split("\\")
    return first + "".join(map(_unescape_one, rest))


def _unescape_one(piece: str) -> str:
    """Decode the text after a backslash, up to the next."""
    digits = piece[:3]
    is_number = len(digits) == 3 and all(digit in "01234567" for digit in digits)
    return chr(int(digits, 8)) + piece[3:] if is_number else "\\" + piece
