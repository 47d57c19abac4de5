"""A run that prints more than its result shows."""

from __future__ import annotations

import os

from redoma.models import Artifact, KiB, Limits, Stream
from redoma.output.artifacts import Store
from redoma.output.capture import Capture, Captured
from redoma.redaction import Redactor

SHORT = Limits(output_bytes=4 * KiB, output_lines=20)


class Run:
    """A capture as the executor makes it."""

    def __init__(
        self, store: Store, limits: Limits = SHORT, *, secrets: tuple[str, ...] = (), name: str = "run"
    ) -> None:
        self.redactor = Redactor(secrets)
        self.asked: list[Stream] = []

        def keep(stream: Stream) -> object:
            self.asked.append(stream)
            return store.spool(name, stream, self.redactor, limits.output_total)

        self.capture = Capture(limits, self.redactor, None, keep)  # type: ignore[arg-type]

    def prints(self, data: bytes, stream: Stream = "stdout", *, chunk: int = 8192) -> Run:
        for at in range(0, len(data), chunk):
            self.capture.feed(stream, data[at : at + chunk])
        return self

    def ends(self) -> Captured:
        try:
            return self.capture.finish()
        finally:
            self.capture.close()


def whole(artifact: Artifact) -> str:
    return artifact.read(0, artifact.size).decode()


def left(store: Store) -> list[str]:
    return sorted(os.listdir(store.directory)) if store.directory.exists() else []


LINES = b"".join(b"line %d of many\n" % number for number in range(200_000))
