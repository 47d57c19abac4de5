"""Artifacts: the whole output of a run whose result has only the beginning and the end.

An ordinary run pays nothing: `capture.Capture` requests a `Spool` only when it has to drop something. What is written
is cleaned like the result (`cleaning`), so that neither secrets nor raw bytes reach the disk. A full disk truncates the
artifact, never the result: `Artifact.missing` then says why.

    store = Store(state_directory / "artifacts")
    store.find("3f2a").lines(5000, 20)
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ..lib.errors import InvalidRequest, RedomaError, UnknownId
from ..lib.files import reason, write_all
from ..lib.text import compile_re2
from ..models import Artifact, MiB, Stream
from ..redaction import Redactor
from . import artifact_files as files
from .cleaning import Lost, StreamCleaner

MAX_DAYS = 7
MAX_BYTES = 1024 * MiB
_BLOCK = 4096
_MAX_REASON = 200


class Store:
    """The artifacts in one directory. Old or excess ones are removed whenever one is added or looked up."""

    def __init__(self, directory: Path, *, days: float = MAX_DAYS, total: int = MAX_BYTES) -> None:
        """`days` is how long an artifact is kept at most; `total` is the maximum size of all of them in bytes."""
        self.directory, self.days, self.total = directory, days, total

    def spool(self, run: str, stream: Stream, redactor: Redactor, max_bytes: int) -> Spool:
        """Return a writer for one stream. It opens no file before something is written."""
        return Spool(self, run, stream, redactor, min(max_bytes, self.total))

    def list(self) -> list[files.ArtifactFile]:
        """Return the kept artifacts, oldest first. Raises `RedomaError` if the directory can't be used."""
        try:
            with files.opened(self.directory) as directory:
                self.prune(directory)
                return files.list_artifacts(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(str(self.directory), error) from error

    def find(self, run: str, stream: Stream = "stdout") -> StoredArtifact:
        """Return an artifact by its run's id, or a prefix of it. Raises `InvalidRequest` if none or several match."""
        matching = [one for one in self.list() if one.run.startswith(run) and one.stream == stream and run]
        artifacts = [one for one in matching if one.run == run] or matching
        if len(artifacts) == 1:
            return self.describe(artifacts[0].run, stream)
        if artifacts:
            raise UnknownId(
                f"several runs begin with {run!r}",
                why=", ".join(one.run[:32] for one in artifacts[:5]),
                next="write more of the id",
            )
        raise UnknownId(
            f"there is no {stream} kept of run {run!r}",
            why=f"output is kept when it is too long for a result, for {self.days:g} days at most",
            next="`redoma output` lists what is kept",
        )

    def describe(self, run: str, stream: Stream, **more: Any) -> StoredArtifact:
        """Measure a run's artifact and return it. `more` are further fields of `Artifact`. Raises `RedomaError`."""
        try:
            with files.opened(self.directory) as directory:
                file = files.open_file(directory, files.name_of(run, stream))
                try:
                    size, lines, sha256 = _measure(file)
                finally:
                    os.close(file)
        except OSError as error:
            raise _unreadable(f"{stream} of run {run}", error) from error
        artifact = StoredArtifact(id=run, stream=stream, size=size, line_count=lines, sha256=sha256, **more)
        msgspec.structs.force_setattr(artifact, "_directory", self.directory)
        return artifact

    def prune(self, directory: int) -> None:
        """Remove old or excess artifacts from the open directory."""
        files.prune(directory, before=time.time() - self.days * 86400, total=self.total)


class StoredArtifact(Artifact, frozen=True, kw_only=True, dict=True):
    """An artifact that can be read. Its path is not a field, so that receivers of the result don't see it."""

    def read(self, start: int = 0, size: int = 65536) -> bytes:
        """Return some of its bytes. Raises `InvalidRequest` for negative numbers, `RedomaError` if it can't be read."""
        if start < 0 or size < 0:
            raise InvalidRequest("the range makes no sense", why=f"{start}, {size}", next="use numbers from 0 on")
        with self._open() as file:
            file.seek(start)
            data: bytes = file.read(min(size, max(0, self.size - start)))
            return data

    def lines(self, first: int = 1, count: int = 100) -> list[str]:
        """Return some of its lines, counted from 1. Raises `InvalidRequest` for smaller numbers, or `RedomaError`."""
        if first < 1 or count < 0:
            raise InvalidRequest("the range makes no sense", why=f"{first}, {count}", next="the first line is 1")
        lines: list[str] = []
        with self._open() as file:
            for number, line in enumerate(file, 1):
                if number >= first + count:
                    break
                if number >= first:
                    lines.append(line.removesuffix(b"\n").decode(errors="replace"))
        return lines

    def matching(self, pattern: str) -> Iterator[tuple[int, str]]:
        """Yield the numbers and texts of the lines that an RE2 pattern matches. Raises `InvalidRequest` if it is
        invalid.
        """
        try:
            automaton = compile_re2(pattern)
        except ValueError as error:
            what = f"the pattern {pattern[:80]!r} can't be used"
            raise InvalidRequest(what, why=str(error), next="fix the pattern; the syntax is RE2's") from None
        with self._open() as file:
            for number, raw in enumerate(file, 1):
                line = raw.removesuffix(b"\n").decode(errors="replace")
                if automaton.search(line):
                    yield number, line

    def _open(self) -> Any:
        what = f"{self.stream} of run {self.id}"
        place: Path | None = self.__dict__.get("_directory")
        if place is None:
            raise self._only_described()
        if not self.size:
            why = self.missing or "nothing was kept"
            raise RedomaError(f"there is no {what} to read", why=why, next="run it again")
        try:
            with files.opened(place) as directory:
                file = os.fdopen(files.open_file(directory, files.name_of(self.id, self.stream)), "rb")
        except OSError as error:
            raise _unreadable(what, error) from error
        if os.fstat(file.fileno()).st_size != self.size:
            file.close()
            raise RedomaError(f"{what} can't be relied on", why="its file was changed", next="run it again")
        return file


class Spool:
    """Writes one artifact. Always call `close`: an unfinished artifact leaves nothing behind. No method raises: the
    artifact's `missing` says what could not be kept.
    """

    def __init__(self, store: Store, run: str, stream: Stream, redactor: Redactor, max_bytes: int) -> None:
        self._store, self._run, self._stream = store, run, stream
        self._cleaner, self._left, self._redacted = StreamCleaner(redactor), max_bytes, Counter[str]()
        self._file, self._part = -1, ""
        self._missing = ""  # why nothing more is kept

    def add(self, raw: bytes) -> None:
        """Write a piece of output."""
        with self._stopping_on_errors():
            if not self._missing:
                self._write(self._cleaner.add(raw))

    def put(self, text: bytes, redacted: dict[str, int]) -> None:
        """Write the whole stream, which is already cleaned."""
        self._redacted.update(redacted)
        with self._stopping_on_errors():
            self._write(text)

    def finish(self) -> Artifact:
        """Publish what was kept, and return it."""
        with self._stopping_on_errors():
            if not self._missing:
                self._write(self._cleaner.end())
        redacted = dict(self._redacted + self._cleaner.redacted)
        try:
            if self._file >= 0:
                self._publish()
                return self._store.describe(self._run, self._stream, redacted=redacted, missing=self._missing)
        except (OSError, RedomaError, ValueError) as error:
            self._stop(error)
        finally:
            self.close()
        return Artifact(id=self._run, stream=self._stream, missing=self._missing or "nothing was left of it to be kept")

    def close(self) -> None:
        """Remove the part file. Safe to call twice."""
        if self._file < 0:
            return
        # On an error the directory is gone or not ours any more; its next user removes unlocked files.
        with suppress(OSError, RedomaError), files.opened(self._store.directory) as directory:
            os.unlink(self._part, dir_fd=directory)
        os.close(self._file)
        self._file = -1

    def _write(self, text: bytes) -> None:
        if not text:
            return
        if self._file < 0:
            files.name_of(self._run, self._stream)
            with files.opened(self._store.directory, create=True) as directory:
                self._file, self._part = files.new_part(directory)
        fits, self._left = text[: self._left], self._left - len(text)
        write_all(self._file, fits)
        if self._left < 0:
            raise Lost("it is more than may be kept of one run")

    @contextmanager
    def _stopping_on_errors(self) -> Iterator[None]:
        try:
            yield
        except (Lost, OSError, RedomaError, ValueError) as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        """Write nothing more. What is there stays, with a last line that says so."""
        self._missing = (reason(error) if isinstance(error, OSError) else str(error))[:_MAX_REASON]
        if self._file >= 0:
            with suppress(OSError):  # then there is no last line, but `missing` has the reason
                self._end_with(f"\n[… the rest was not kept: {self._missing} …]\n".encode())

    def _end_with(self, note: bytes) -> None:
        """Write a note over the last bytes, in blocks that the file already has: a full disk has no free ones."""
        at = max(0, os.fstat(self._file).st_size - len(note))
        start = max(0, at - _BLOCK)
        line_end = os.pread(self._file, at - start, start).rfind(b"\n")
        at = start + line_end if line_end >= 0 else at
        while at and os.pread(self._file, 1, at)[0] & 0xC0 == 0x80:  # not in the middle of a character
            at -= 1
        os.ftruncate(self._file, at)
        os.pwrite(self._file, note, at)

    def _publish(self) -> None:
        name = files.name_of(self._run, self._stream)
        with files.opened(self._store.directory) as directory:
            # Never replace another artifact: a reused id must not destroy what was kept for the first.
            os.link(self._part, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            self._store.prune(directory)


def _measure(file: int) -> tuple[int, int, str]:
    """Return size, lines and SHA-256 of an open file."""
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    while block := os.pread(file, MiB, size):
        digest.update(block)
        size += len(block)
        lines += block.count(b"\n")
        last = block[-1:]
    return size, lines + (last != b"\n"), digest.hexdigest()


def _unreadable(what: str, error: OSError) -> RedomaError:
    return RedomaError(
        f"{what} can't be read",
        why=reason(error),
        next="it may have been removed meanwhile: `redoma output` lists what is kept",
    )
