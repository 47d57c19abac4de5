"""The system calls that Python's standard library doesn't offer. The only file with ctypes.

It imports nothing of ours: the supervisor loads it in a bare interpreter.
"""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(
        ctypes.c_int(option), ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent(signal: int) -> None:
    """Have the kernel send us `signal` when the thread that forked us ends."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: none can slip away by daemonising."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_from_peers() -> None:
    """Keep processes of the same user from tracing us or reading our memory."""
    _prctl(_PR_SET_DUMPABLE, 0)
