"""The audit log: what was requested and how it ended, in an order that can't be changed unnoticed.

Theory of operation. A log is a directory (0700) of these files (0600):

    audit-YYYY-MM-DD.jsonl   one record a line, one file a day (UTC). Every record carries the hash of the one
                             before it, across files, and its own: the SHA-256 of its line with the last member,
                             `,"hash":"..."`, taken out. The bytes themselves are hashed, so there is no second
                             encoding that a verifier could get wrong.
    head                     the last record that was acknowledged: seq, hash, file, and where it ends.
    lock                     held (flock) for the length of one append.
    audit-*.SEQ.torn         what a crash left of a line that was never acknowledged.

An append takes the lock, reads the head, appends one line, then writes the head. Files are kept open between appends,
but each append checks that they are still those of the directory, so that other threads, processes and forks may write
in between. If the writer is killed between the two
writes, the log is ahead of its head; the next append accepts the complete records and sets a fragment aside with a
`recovered` record. A log *behind* its head lost something that was acknowledged: no append touches it, and `verify`
reports it.

On the first append of a day, files past the retention are removed after a `retention` record has named each with its
last hash. Because of that record `verify` accepts a chain that does not start at record 1.

Not promised: a process with the user's own rights can rewrite the log and the head together, or delete both. To detect
that, keep a hash elsewhere (`verify` returns the newest) and pass it to `verify(expected_head=...)`. Without
`fsync=True`, a power cut (not a crash or a kill) can lose the newest records; `verify` can't distinguish that from
deliberate truncation.
"""

from __future__ import annotations

from .daily import DailyLog
from .log import AuditLog
from .record import Record

__all__ = ["AuditLog", "DailyLog", "Record"]
