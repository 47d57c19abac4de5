"""One event: a record for the loggers below "redoma", and a count.

A record's message is the whole event as `name key=value …`, so that any handler shows something useful. The same as
data is in its attribute `redoma`, for formatters (`logs`, and yours). In both forms it is one line of printable text,
whatever its values contain: an event can't be used to forge a second one, or to control a terminal.
"""

from __future__ import annotations

import functools
import logging
from logging import ERROR, INFO, WARNING

from . import metrics, spans

__all__ = ["ERROR", "INFO", "WARNING", "Fields", "Value", "heard", "plain", "tell"]

Value = str | int | float | bool | None

ROOT = "redoma"
_MAX_VALUE = 300
"""Characters of a value."""

# A library logs nothing by default. Without this handler, warnings would go to standard error.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


class Fields(dict[str, Value]):
    """The fields of an event; as text `key=value key="two words"`."""

    def __str__(self) -> str:
        return " ".join(f"{key}={_shown(value)}" for key, value in self.items())


def tell(severity: int, event: str, /, **fields: Value) -> None:
    """Log and count an event. Fields that are None or empty are left out."""
    metrics.EVENTS.add(event)
    if not heard(severity, event):
        return
    try:
        known = {**fields, **spans.current()}
        said = Fields({key: plain(value) for key, value in known.items() if value is not None and value != ""})
        # The file and line of our caller, as usual.
        told = {"event": event, **said}
        _logger(event).log(severity, "%s %s", event, said, extra={"redoma": told}, stacklevel=2)
    except Exception:  # handlers and filters are the application's: their failure must not lose a result
        metrics.EVENTS.add("log.failed")


def heard(severity: int, event: str) -> bool:
    """Return whether any logger would accept such an event: computing its fields can be more expensive than this."""
    return _logger(event).isEnabledFor(severity)


def plain(value: Value) -> Value:
    """Return a value for a log: bounded, and without line ends, terminal controls and invisible characters."""
    if not isinstance(value, str):
        return value
    text = value if len(value) <= _MAX_VALUE else value[:_MAX_VALUE] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _shown(value: Value) -> str:
    import json

    if not isinstance(value, str):
        return json.dumps(value)
    # Quoted wherever it could be read as more than one value.
    return json.dumps(value, ensure_ascii=False) if not value or set(value) & set(" \"'=\\") else value


@functools.cache
def _logger(event: str) -> logging.Logger:
    return logging.getLogger(f"{ROOT}.{event.partition('.')[0]}")
