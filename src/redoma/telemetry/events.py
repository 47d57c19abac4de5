"""One event: a record for the loggers below "redoma", and a count.

A record's message is the whole event as `name key=value …`, so that any handler shows something useful; the same as
data is in its attribute `redoma`, for formatters (`logs`) and for yours. Either way it is one line of printable text,
whatever its values hold: nobody can forge a second event, or reach a terminal, through the first.
"""

from __future__ import annotations

import functools
import json
import logging
from logging import ERROR, INFO, WARNING

from . import metrics, spans

__all__ = ["ERROR", "INFO", "WARNING", "Fields", "Value", "heard", "plain", "tell"]

Value = str | int | float | bool | None

ROOT = "redoma"
_MAX_VALUE = 300
"""Characters of a value."""

# A library says nothing unless it is asked to. Without this, warnings would go to standard error.
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
        # Of whoever has called us, as usual: the file and the line.
        told = {"event": event, **said}
        _logger(event).log(severity, "%s %s", event, said, extra={"redoma": told}, stacklevel=2)
    except Exception:  # handlers and filters are the application's: that one fails is no reason to lose a result
        metrics.EVENTS.add("log.failed")


def heard(severity: int, event: str) -> bool:
    """Whether any logger would take such an event: finding its fields can take longer than asking this."""
    return _logger(event).isEnabledFor(severity)


def plain(value: Value) -> Value:
    """A value as a log may hold it: bounded, and without line ends, terminal controls and invisible characters."""
    if not isinstance(value, str):
        return value
    text = value if len(value) <= _MAX_VALUE else value[:_MAX_VALUE] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _shown(value: Value) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    # Quoted wherever it could be taken for more than one value.
    return json.dumps(value, ensure_ascii=False) if not value or set(value) & set(" \"'=\\") else value


@functools.cache
def _logger(event: str) -> logging.Logger:
    return logging.getLogger(f"{ROOT}.{event.partition('.')[0]}")
