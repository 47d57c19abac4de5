"""OpenTelemetry spans, if an application has set up an SDK; otherwise nothing.

An SDK can't be in use unless the application has imported the API. So we never import it: if it is not among the loaded
modules, there is no SDK. Checking that takes less than a microsecond; the import takes tens of milliseconds.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Span as Inner
    from opentelemetry.trace import Tracer

_FINE = ("ok", "pending")
"""Endings that are not errors: it succeeded, or a person has yet to decide."""

_log = logging.getLogger("redoma.spans")
_known: tuple[object, Tracer] | None = None


class Span:
    """A span while its block runs: `with Span("redoma.run", id=…) as span`. Attributes are named `redoma.…`.

    Of an exception only the type is recorded: its text may quote what the code has chosen. The SDK, with its samplers
    and processors, is the application's; if it fails, the span is dropped.
    """

    __slots__ = ("_attributes", "_inner", "_name", "_token")

    def __init__(self, name: str, **attributes: Any) -> None:
        self._name, self._attributes = name, attributes
        self._inner: Inner | None = None
        self._token: Any = None

    def __enter__(self) -> Span:
        if (tracer := _tracer()) is None:
            return self
        try:
            inner = tracer.start_span(self._name, attributes=_named(self._attributes))
            api, contexts = sys.modules["opentelemetry.trace"], sys.modules["opentelemetry.context"]
            self._token = contexts.attach(api.set_span_in_context(inner))
            self._inner = inner
        except Exception as error:
            _failed(error)
        return self

    @property
    def live(self) -> bool:
        """Whether there is a span that takes attributes."""
        return self._inner is not None

    def set(self, **attributes: Any) -> None:
        if self._inner is not None:
            try:
                self._inner.set_attributes(_named(attributes))
            except Exception as error:
                _failed(error)

    def ended(self, status: str) -> None:
        """Set the status; any but a good one is an error."""
        self.set(status=status)
        if self._inner is not None and status not in _FINE:
            try:
                self._inner.set_status(sys.modules["opentelemetry.trace"].StatusCode.ERROR, status)
            except Exception as error:
                _failed(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (inner := self._inner) is None:
            return
        try:
            # first, so that it is done even if something below fails
            sys.modules["opentelemetry.context"].detach(self._token)
            if kind is not None:
                inner.add_event("exception", {"exception.type": kind.__qualname__})
                inner.set_status(sys.modules["opentelemetry.trace"].StatusCode.ERROR, kind.__qualname__)
            inner.end()
        except Exception as failure:
            _failed(failure)


def current() -> dict[str, str]:
    """Return the hexadecimal ids of the current trace and span; empty if there is no span."""
    if _tracer() is None:
        return {}
    context = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}


def _tracer() -> Tracer | None:
    global _known
    api = sys.modules.get("opentelemetry.trace")
    # Another thread may be importing it right now: then nothing has been set up yet.
    if api is None or (get := getattr(api, "get_tracer_provider", None)) is None:
        return None
    try:
        provider = get()
        if isinstance(provider, api.ProxyTracerProvider):
            return None  # the API's placeholder for "no SDK so far"
        if _known is None or _known[0] is not provider:
            from .. import __version__

            _known = provider, provider.get_tracer("redoma", __version__)
    except Exception as error:
        _failed(error)
        return None
    return _known[1]


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {f"redoma.{name}": value for name, value in attributes.items() if value is not None and value != ""}


def _failed(error: Exception) -> None:
    with suppress(Exception):  # a handler may be what has failed
        _log.warning("a span could not be kept: %s", type(error).__qualname__)
