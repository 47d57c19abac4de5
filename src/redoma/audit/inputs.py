"""Inputs of runs (standard input, files, the policy), kept by content so that a recorded run can be rebuilt.

A directory (0700) of files (0600), each named by the SHA-256 of its content: the same content is kept once, however
many runs had it, and an altered file is not used. It is as private as the audit log, bounded, and expires like it: each
use renews an input, and the oldest are removed first. The file `lock` holds the total size.

If an input can't be kept, the run is not affected: the record then says what is missing, and why. Inputs that contain a
secret are never passed to this module: see `pipeline.intents`.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from ..lib.errors import RedomaError
from ..lib.files import closing, open_directory, reason, write_all
from ..lib.patterns import lazy_pattern
from ..lib.types import resolved
from ..models import MiB
from .files import locked, open_private, open_regular, require_ours

MAX_INPUT = 4 * MiB
"""Bytes of one input."""
MAX_RUN = 4 * MAX_INPUT
MAX_TOTAL, MAX_FILES = 1024 * MiB, 200_000
_NAME = lazy_pattern(r"[0-9a-f]{64}\Z")
_PART = "part"
_SWEEP_EVERY = 3600.0  # seconds
_LEFT_BY_A_SWEEP = 0.9  # of the bounds; otherwise each further input would cause a sweep


class NotKept(Exception):
    """Something was not kept; the message says why, and is recorded."""


class _Tally(msgspec.Struct, array_like=True):
    """How much the directory holds, as of the last write."""

    size: int = 0
    count: int = 0
    swept: float = 0.0


class Inputs:
    """The kept inputs of a directory. Holds nothing open, so any number of threads and processes may share it."""

    def __init__(
        self, directory: Path | None, *, days: float = 30, max_total: int = MAX_TOTAL, fsync: bool = False
    ) -> None:
        """Without a directory nothing is kept."""
        self._directory, self._days, self._max_total, self._fsync = directory, days, max_total, fsync

    @classmethod
    def within(cls, state: Path | None, *, days: float = 30, fsync: bool = False) -> Inputs:
        """Return the inputs of a state directory."""
        return cls(state / "inputs" if state else None, days=days, fsync=fsync)

    def keep(self, content: bytes) -> str:
        """Keep a content. Returns its name. Raises `NotKept`."""
        self._must_fit(len(content))
        name = hashlib.sha256(content).hexdigest()
        if not self.is_there(name):
            self.put(name, content)
        return name

    def is_there(self, name: str) -> bool:
        """Return whether a name is kept, and renew it if so."""
        if self._directory is None:
            return False
        try:
            os.utime(f"{self._directory}/{name}", follow_symlinks=False)
        except OSError:
            return False
        return True

    def put(self, name: str, content: bytes) -> None:
        """Keep a content whose name is known. Raises `NotKept`."""
        self._must_fit(len(content))
        try:
            self._put(name, content)
        except OSError as error:
            raise NotKept(f"it could not be kept ({reason(error)})") from error
        except RedomaError as error:
            raise NotKept(f"it could not be kept ({error.what}: {error.why})") from error

    def get(self, name: str) -> bytes | None:
        """Return the content of a name; None if it is gone, or was altered."""
        if self._directory is None or not _NAME.match(name):
            return None
        try:
            with open(open_regular(self._directory / name, os.O_RDONLY), "rb") as file:
                content = file.read(MAX_INPUT + 1)
        except (OSError, RedomaError):
            return None
        return content if hashlib.sha256(content).hexdigest() == name else None

    def _must_fit(self, size: int) -> None:
        if self._directory is None:
            raise NotKept("no state directory is configured to keep it in")
        if size > MAX_INPUT:
            raise NotKept(f"it has {size:,} bytes, and at most {MAX_INPUT:,} are kept")

    def _put(self, name: str, content: bytes) -> None:
        assert self._directory is not None  # noqa: S101 - see _must_fit
        with ExitStack() as stack:
            directory = stack.enter_context(closing(open_directory(self._directory, create=True)))
            if require_ours(directory, self._directory).st_mode & 0o077:
                os.fchmod(directory, 0o700)
            lock = stack.enter_context(closing(open_private("lock", os.O_CREAT, dir_fd=directory)))
            stack.enter_context(locked(lock))
            tally = self._with_room(directory, _read(lock), len(content))
            # Only one writer at a time, so one name is enough; a file that a killed writer left is overwritten.
            with closing(open_private(_PART, os.O_CREAT | os.O_TRUNC, dir_fd=directory)) as part:
                try:
                    write_all(part, content)
                    if self._fsync:
                        os.fsync(part)
                except OSError:  # on a full disk there must still be room for the run's record
                    os.ftruncate(part, 0)
                    raise
            os.rename(_PART, name, src_dir_fd=directory, dst_dir_fd=directory)
            if self._fsync:
                os.fsync(directory)
            _write(lock, _Tally(tally.size + len(content), tally.count + 1, tally.swept))

    def _with_room(self, directory: int, tally: _Tally, size: int) -> _Tally:
        """Remove expired inputs, then the oldest until there is room. Returns the new tally."""
        now = time.time()
        fits = tally.size + size <= self._max_total and tally.count < MAX_FILES
        if fits and 0 <= now - tally.swept < _SWEEP_EVERY:
            return tally
        files: list[tuple[float, int, str]] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if _NAME.match(entry.name):
                    about = entry.stat(follow_symlinks=False)
                    files.append((about.st_mtime, about.st_size, entry.name))
        total, count = sum(one[1] for one in files), len(files)
        share = 1.0 if total + size <= self._max_total and count < MAX_FILES else _LEFT_BY_A_SWEEP
        for used, length, name in sorted(files):
            young = used >= now - self._days * 86400
            if young and total + size <= share * self._max_total and count < share * MAX_FILES:
                break
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            total, count = total - length, count - 1
        return _Tally(total, count, now)


def _read(lock: int) -> _Tally:
    try:
        return msgspec.json.decode(os.pread(lock, 256, 0), type=resolved(_Tally))
    except ValueError:
        return _Tally()  # the first write, or an edited file: a sweep counts again


def _write(lock: int, tally: _Tally) -> None:
    os.pwrite(lock, msgspec.json.encode(tally).ljust(128), 0)
