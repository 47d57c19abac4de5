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

__all__ = ["ERROR", "INFO", "WARNING", "Fields", "Value", "plain", "tell"]

Value = str | int | float | bool | None

ROOT = "redoma"
LONGEST = 300
"""Characters of a value."""

# A library says nothing unless it is asked to. Without this, warnings would go to standard error.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


class Fields(dict[str, Value]):
    """What is known of an event, shown as `key=value key="two words"`."""

    def __str__(self) -> str:
        return " ".join(f"{key}={_shown(value)}" for key, value in self.items())


def tell(severity: int, event: str, /, **fields: Value) -> None:
    """Say that something happened. Fields that are None or empty are left out."""
    metrics.EVENTS.add(event)
    logger = _logger(event.partition(".")[0])
    if not logger.isEnabledFor(severity):
        return
    known = {**fields, **spans.current()}
    said = Fields({key: plain(value) for key, value in known.items() if value is not None and value != ""})
    logger.log(severity, "%s %s", event, said, extra={"redoma": {"event": event, **said}})


def plain(value: Value) -> Value:
    """As it may stand in a log: short, and without line ends, terminal controls and invisible characters."""
    if not isinstance(value, str):
        return value
    text = value if len(value) <= LONGEST else value[:LONGEST] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _shown(value: Value) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    # Quoted wherever it could be taken for more than one value.
    return json.dumps(value, ensure_ascii=False) if not value or set(value) & set(" \"'=\\") else value


@functools.cache
def _logger(area: str) -> logging.Logger:
    return logging.getLogger(f"{ROOT}.{area}")
