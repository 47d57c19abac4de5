"""Built-in rules about what a request asks for, whatever it does with it."""

from __future__ import annotations

from .base import ask

RULES = (
    ask(
        id="limits.time",
        reason="it wants to run for longer than a minute",
        suggestion="ask for 60 s or less; how long runs may take without asking is `limits.time` of the configuration",
        time_over=60.0,
    ),
)
