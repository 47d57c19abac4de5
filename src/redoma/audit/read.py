"""Reads the log: the newest records, the records of one run, and statistics."""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..lib.errors import AuditError
from .files import open_regular, reporting
from .record import MAX_LINE, Record, is_log_name, read_frame, read_lines

_CANDIDATES = 10


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a period, counted."""

    runs: int
    by_status: dict[str, int]
    by_backend: dict[str, int]
    """What ran them, which the intent doesn't know yet. A refused run has no backend, and is in none."""
    by_requester: dict[str, int]
    interrupted: int
    """Runs with an intent and no outcome: still running, or cut short."""
    duration_p50: float | None
    """Seconds, over the runs that have an outcome."""
    duration_p95: float | None
    first: str | None
    """The time of the first record; None for an empty log."""
    last: str | None


def records(path: Path, since: datetime | None = None, kinds: Container[str] | None = None) -> Iterator[Record]:
    # A record is never in a file older than its own date, so older files need not be opened.
    start = since.astimezone(UTC).isoformat(timespec="microseconds") if since else ""
    for name in _names(path):
        if name >= f"audit-{start[:10]}":
            for number, raw in _lines(path, name):
                record = _decode(name, number, raw, kinds)
                if record is not None and record.time >= start:
                    yield record


def tail(path: Path, count: int) -> list[Record]:
    found: list[Record] = []
    for name in reversed(_names(path)):
        if len(found) >= count:
            break
        newest = deque(_lines(path, name), maxlen=count - len(found))
        found[:0] = filter(None, [_decode(name, number, raw) for number, raw in newest])
    return found


def show(path: Path, id_prefix: str) -> list[Record]:
    ids = dict.fromkeys(record.id for record in records(path) if record.id and record.id.startswith(id_prefix))
    if not ids or not id_prefix:
        raise AuditError(
            f"no run on record has an id that starts with {id_prefix!r}",
            why="it never ran here, or its record is past the retention",
            next="see `redoma audit tail` for ids",
        )
    if len(ids) > 1 and id_prefix not in ids:
        shown = ", ".join(list(ids)[:_CANDIDATES]) + (", ..." if len(ids) > _CANDIDATES else "")
        raise AuditError(
            f"{len(ids)} runs have an id that starts with {id_prefix!r}", why=shown, next="give more of the id"
        )
    wanted = id_prefix if id_prefix in ids else next(iter(ids))
    return [record for record in records(path) if record.id == wanted]


def stats(log: Iterable[Record]) -> Stats:
    runs, first, last = 0, None, None
    statuses, backends, requesters = Counter[str](), Counter[str](), Counter[str]()
    durations = array("d")
    unfinished: set[str] = set()
    for record in log:
        first, last = first or record.time, record.time
        if record.kind == "intent":
            runs += 1
            unfinished.add(record.id)
            requesters[str(record.data.get("requester") or "unknown")] += 1
        elif record.kind == "outcome":
            unfinished.discard(record.id)
            statuses[str(record.data.get("status") or "unknown")] += 1
            if backend := record.data.get("backend"):
                backends[str(backend)] += 1
            if isinstance(duration := record.data.get("duration"), int | float):
                durations.append(duration)
    ordered = sorted(durations)
    return Stats(
        runs=runs,
        by_status=dict(statuses.most_common()),
        by_backend=dict(backends.most_common()),
        by_requester=dict(requesters.most_common()),
        interrupted=len(unfinished),
        duration_p50=_percentile(ordered, 0.50),
        duration_p95=_percentile(ordered, 0.95),
        first=first,
        last=last,
    )


def _percentile(ordered: list[float], share: float) -> float | None:
    """The smallest value that at least this share of all values does not exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _names(path: Path) -> list[str]:
    with reporting(f"the audit log in {path} can't be read"):
        try:
            return sorted(filter(is_log_name, os.listdir(path)))
        except FileNotFoundError:
            return []


def _lines(path: Path, name: str) -> Iterator[tuple[int, bytes]]:
    """The numbered lines of a file. No lock: a last line without its end is being written now, or torn."""
    with reporting(f"{name} in {path} can't be read"):
        with open(open_regular(path / name, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for number, (start, raw) in enumerate(read_lines(file, 0, size), 1):
                if raw.endswith(b"\n") or start + len(raw) < size or len(raw) > MAX_LINE:
                    yield number, raw


def _decode(name: str, number: int, raw: bytes, kinds: Container[str] | None = None) -> Record | None:
    """None for one of another kind, of which only the hash is looked at: to decode it is most of what it costs."""
    try:
        frame = read_frame(raw)
        return frame.record() if kinds is None or frame.kind in kinds else None
    except (ValueError, RecursionError) as error:
        raise AuditError(
            f"line {number} of {name} can't be read", why=str(error), next="see `redoma audit verify`"
        ) from error
