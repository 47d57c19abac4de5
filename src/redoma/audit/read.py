"""Reads the log: all records, the newest, and those of one run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Container, Iterator
from datetime import UTC, datetime
from pathlib import Path

from ..lib.errors import AuditError, UnknownRun
from .files import open_regular, reporting
from .record import MAX_LINE, Record, is_log_name, read_frame, read_lines

_CANDIDATES = 10


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
    newest_records: list[Record] = []
    for name in reversed(_names(path)):
        if len(newest_records) >= count:
            break
        newest = deque(_lines(path, name), maxlen=count - len(newest_records))
        newest_records[:0] = filter(None, [_decode(name, number, raw) for number, raw in newest])
    return newest_records


def show(path: Path, id_prefix: str) -> list[Record]:
    ids = dict.fromkeys(record.id for record in records(path) if record.id and record.id.startswith(id_prefix))
    if not ids or not id_prefix:
        raise UnknownRun(
            f"no run on record has an id that starts with {id_prefix!r}",
            why="it never ran here, or its record is past the retention",
            next="see `redoma audit tail` for ids",
        )
    if len(ids) > 1 and id_prefix not in ids:
        shown = ", ".join(list(ids)[:_CANDIDATES]) + (", ..." if len(ids) > _CANDIDATES else "")
        raise UnknownRun(
            f"{len(ids)} runs have an id that starts with {id_prefix!r}", why=shown, next="give more of the id"
        )
    wanted = id_prefix if id_prefix in ids else next(iter(ids))
    return [record for record in records(path) if record.id == wanted]


def _names(path: Path) -> list[str]:
    with reporting(f"the audit log in {path} can't be read"):
        try:
            return sorted(filter(is_log_name, os.listdir(path)))
        except FileNotFoundError:
            return []


def _lines(path: Path, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of a file. Without a lock: an incomplete last line is being written now, or torn."""
    with reporting(f"{name} in {path} can't be read"):
        with open(open_regular(path / name, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for number, (start, raw) in enumerate(read_lines(file, 0, size), 1):
                if raw.endswith(b"\n") or start + len(raw) < size or len(raw) > MAX_LINE:
                    yield number, raw


def _decode(name: str, number: int, raw: bytes, kinds: Container[str] | None = None) -> Record | None:
    """Return the record on a line; None if it is of another kind. Then only its hash is checked, because decoding is
    most of the cost.
    """
    try:
        frame = read_frame(raw)
        return frame.record() if kinds is None or frame.kind in kinds else None
    except (ValueError, RecursionError) as error:
        raise AuditError(
            f"line {number} of {name} can't be read", why=str(error), next="see `redoma audit verify`"
        ) from error
