"""Writes events: formatters for any handler, and the log of the command line.

    handler.setFormatter(logs.JsonLines())      # {"time": …, "severity": "INFO", "event": "run.ended", "run": …}
    handler.setFormatter(logs.KeyValues())      # 2026-11-16T14:38:35.123Z INFO run.ended run=… status=ok

Every record becomes one line of ASCII or printable characters. Of an exception only the type is written.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..lib.errors import ConfigError
from ..lib.files import reason
from .events import ROOT, Fields, plain


class JsonLines(logging.Formatter):
    """One JSON object for each event."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "severity": record.levelname, "logger": record.name}
        return json.dumps({**head, **_said(record)}, default=repr)  # ASCII: nothing in it can end a line


class KeyValues(logging.Formatter):
    """For people: time, severity, event, `key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        said = _said(record)
        event = said.pop("event")
        return f"{_time(record)} {record.levelname} {event} {Fields(said)}".rstrip()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record. Other records below "redoma", such as those of an extension, become an event,
    too.
    """
    if isinstance(said := getattr(record, "redoma", None), dict):
        return dict(said)
    other: dict[str, Any] = {"event": "log", "message": plain(record.getMessage())}
    if record.exc_info and record.exc_info[0]:
        other["error"] = record.exc_info[0].__qualname__
    return other


class Lines(logging.Handler):
    """A file, or standard error. Each line is one appending write, so any number of processes may share a file."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self._descriptor = None if file is None else _opened(file)
        self._complained = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            if self._descriptor is not None:
                os.write(self._descriptor, line.encode("utf-8", "backslashreplace"))
            else:
                sys.stderr.write(line)
                sys.stderr.flush()
        except Exception as error:  # also for a record whose arguments don't match its format
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Report the error on standard error, once: a log that can't be written must not end the run."""
        if self._descriptor is not None and not self._complained:
            self._complained = True
            why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            sys.stderr.write(f"redoma: the log can't be written: {why}\n")

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        super().close()


def write(level: str, form: str = "text", file: Path | None = None) -> Lines | None:
    """Write events of this level and above to `file` or standard error, and to no earlier destination.

    Levels are `off`, `debug`, `info`, `warning` and `error`. This is for programs such as the command line: a library
    leaves it to its application.
    """
    logger = logging.getLogger(ROOT)
    handler = None if level == "off" else Lines(file)
    for old in [old for old in logger.handlers if isinstance(old, Lines)]:
        logger.removeHandler(old)
        old.close()
    if handler is None:
        logger.setLevel(logging.NOTSET)
        return None
    handler.setFormatter(JsonLines() if form == "json" else KeyValues())
    logger.setLevel(level.upper())
    logger.addHandler(handler)
    return handler


def _opened(file: Path) -> int:
    """Open a log, private if it is new. Raises `ConfigError` for anything but a regular file: a pipe without a reader
    would block us.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    try:
        descriptor = os.open(file, flags, 0o600)
    except OSError as error:
        raise _unusable(file, reason(error)) from error
    except ValueError as error:  # a NUL in its name
        raise _unusable(file, str(error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unusable(file, "it is not a regular file")
    return descriptor


def _unusable(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the log {plain(str(file))} can't be written", why=why, next="name another file with --log-file or `log.file`"
    )
