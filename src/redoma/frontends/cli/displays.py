"""Draw what a run shows beside what it prints: tables as text; pictures are saved, and their path is printed."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from redoma.lib.errors import InvalidRequest
from redoma.lib.files import reason
from redoma.lib.sanitise import sanitise

from .emit import echo

if TYPE_CHECKING:
    from redoma.models import Display

_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}


class Screen:
    """Where displays are drawn. Pictures go to `directory`; without one, to a new one for temporary files."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory, self._saved = directory, 0

    def draw(self, display: Display) -> None:
        for kind, suffix in _SUFFIXES.items():
            if kind in display.data:
                echo(f"[{kind.partition('/')[2]}: {self._save(display.data[kind], suffix)}]")
                return
        echo(sanitise(display.text))

    def _save(self, content: str | bytes, suffix: str) -> str:
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix="pictures-")
        try:
            os.makedirs(self._directory, exist_ok=True)
            while True:
                self._saved += 1
                path = os.path.join(self._directory, f"picture-{self._saved}.{suffix}")
                with suppress(FileExistsError), open(path, "xb") as file:
                    file.write(content if isinstance(content, bytes) else content.encode())
                    return path
        except OSError as error:
            why = reason(error)
            raise InvalidRequest(f"{self._directory} can't be written to", why=why, next="choose another") from None
