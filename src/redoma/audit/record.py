"""One record as data and as a line of bytes. Pure: no files, no clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import msgspec

from ..lib.errors import AuditError
from ..lib.patterns import lazy_pattern
from ..lib.types import resolved

GENESIS = "0" * 64
"""The first record's value for the hash of the previous one."""
MAX_LINE = 16 * 1024 * 1024
"""Bytes of the longest line written, and of the longest that a reader holds in memory."""

_PREFIX = lazy_pattern(
    rb'\{"seq":([1-9][0-9]{0,17}),"time":"([0-9T:.+-]{32})","kind":"([a-z][a-z.]{0,31})","id":"([A-Za-z0-9._:-]{0,128})","data":'
)
_SUFFIX = lazy_pattern(rb',"prev":"([0-9a-f]{64})","hash":"([0-9a-f]{64})"\}\n')
_SUFFIX_LENGTH = len(',"prev":"","hash":""}\n') + 128
_HASH_LENGTH = len(',"hash":""}\n') + 64
_HASH = lazy_pattern("[0-9a-f]{64}")
_LOG_NAME = lazy_pattern(r"audit-[0-9]{4}-[0-9]{2}-[0-9]{2}\.jsonl")
_TORN_NAME = lazy_pattern(r"audit-[0-9]{4}-[0-9]{2}-[0-9]{2}\.[0-9]+\.torn")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log."""

    seq: int
    time: str
    """ISO 8601, UTC, microseconds."""
    kind: str
    """`intent`, `outcome`, `approval.given`, `alarm`, ...; only the log itself writes `recovered` and `retention`."""
    id: str
    """The run it belongs to."""
    data: dict[str, Any]
    prev: str
    hash: str


class Frame(msgspec.Struct, frozen=True):
    """A line whose own hash is right. `data` is still bytes: a verifier need not decode it."""

    seq: int
    time: str
    kind: str
    id: str
    data: bytes
    prev: str
    hash: str

    def record(self) -> Record:
        """Return the decoded record. Raises ValueError or RecursionError if `data` is not JSON that can be decoded
        here.
        """
        data = msgspec.json.decode(self.data, type=dict[str, Any])
        return Record(**(msgspec.structs.asdict(self) | {"data": data}))


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last acknowledged record, and the file and position of the next one."""

    seq: int
    hash: str
    file: str
    offset: int


def read_head(data: bytes) -> Head:
    """Return the head that a file holds. Raises ValueError if it holds none."""
    head = msgspec.json.decode(data, type=resolved(Head))
    fits = head.seq >= 0 and 0 <= head.offset < 2**62 and _HASH.fullmatch(head.hash) and _LOG_NAME.fullmatch(head.file)
    empty = head.seq == 0
    if not fits or empty != (head.hash == GENESIS) or (empty and head.offset):
        raise ValueError("its values make no sense")
    return head


def is_log_name(name: str) -> bool:
    return _LOG_NAME.fullmatch(name) is not None


def is_torn_name(name: str) -> bool:
    return _TORN_NAME.fullmatch(name) is not None


def seal(seq: int, time: str, kind: str, id: str, data: Mapping[str, Any], prev: str) -> tuple[Record, bytes]:  # noqa: A002 - the record's own word
    """Return the next record of a chain and its line. Raises AuditError for what a record can't hold."""
    fields: dict[str, Any] = {"seq": seq, "time": time, "kind": kind, "id": id, "data": dict(data), "prev": prev}
    try:
        body = msgspec.json.encode(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise AuditError(
            f"the {kind} record of run {id!r} can't be written as JSON", why=str(error), next="pass plain data"
        ) from error
    digest = hashlib.sha256(body).hexdigest()
    line = b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode())
    if len(line) > MAX_LINE:
        raise AuditError(
            f"the {kind} record of run {id!r} is {len(line)} bytes long",
            why=f"a record has at most {MAX_LINE}",
            next="shorten the code, or lower limits.output_bytes",
        )
    if not _PREFIX.match(line):
        raise AuditError(
            f"a record of kind {kind!r} with id {id!r} can't be written",
            why="a kind is up to 32 lower-case letters and dots, an id up to 128 letters, digits and . _ : -",
            next="choose another id",
        )
    return Record(**fields, hash=digest), line


def read_frame(line: bytes) -> Frame:
    """Return the record on a line. Raises ValueError that says what is wrong with it."""
    if not line.endswith(b"\n"):
        raise ValueError("it is longer than a record can be" if len(line) > MAX_LINE else "it breaks off")
    prefix, suffix = _PREFIX.match(line), _SUFFIX.fullmatch(line[-_SUFFIX_LENGTH:])
    if not prefix or not suffix:
        raise ValueError("it does not have the form of a record")
    digest = hashlib.sha256(line[:-_HASH_LENGTH])
    digest.update(b"}")
    if digest.hexdigest() != suffix[2].decode():
        raise ValueError("its content does not match its hash")
    time, kind, run = (prefix[group].decode() for group in (2, 3, 4))
    data = line[prefix.end() : -_SUFFIX_LENGTH]
    return Frame(int(prefix[1]), time, kind, run, data, suffix[1].decode(), suffix[2].decode())


def read_lines(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line between two offsets with its start; one too long to be a record comes in pieces."""
    file.seek(start)
    while start < end:
        line = file.readline(min(MAX_LINE + 1, end - start))
        if not line:
            return
        yield start, line
        start += len(line)
