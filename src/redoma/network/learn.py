"""Propose the narrowest rules that permit the requests of a run."""

from __future__ import annotations

from collections.abc import Iterable

from ..models.network import WEB_PORTS, HostRule, NetworkRequest, plain_path

NOTHING = "nothing.invalid"
"""A host that can't exist (RFC 2606). With this rule alone, a proxy records everything and reaches nothing."""
_MAX_PATHS = 8  # of one host; with more, all of them are permitted


def learned(requests: Iterable[NetworkRequest]) -> tuple[HostRule, ...]:
    """Return the rules that permit just these requests. Of a tunnel, only the host is known."""
    found: dict[tuple[str, int], tuple[set[str], set[str]]] = {}
    for one in requests:
        if not one.host or one.host == NOTHING:
            continue
        methods, paths = found.setdefault((one.host, 0 if one.port in WEB_PORTS else one.port), (set(), set()))
        if one.method and one.method != "CONNECT":
            methods.add(one.method)
            paths.add(one.path)
    return tuple(rule for (host, port), seen in found.items() if (rule := _rule(host, port, *seen)) is not None)


def _rule(host: str, port: int, methods: set[str], paths: set[str]) -> HostRule | None:
    try:
        exact = sorted({plain_path(path) for path in paths})
        return HostRule(
            host=host, port=port, methods=tuple(methods), paths=tuple(exact) if len(exact) <= _MAX_PATHS else ()
        )
    except ValueError:  # it named no host, or a path that no rule can have
        return None
