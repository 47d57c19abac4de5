"""What every backend is: something that runs a request and reports what happened.

Backends know nothing of policy, approval, audit or redaction. They are handed a request that may run
and a sink for its output; they return an `Outcome`, or raise `BackendError` when the backend (not the
code) failed. Whatever way `run` ends, returned, raised or cancelled, nothing of the run is left alive.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ..models import Isolation, Language, Limits, Request, Status, Stream, Usage

Sink = Callable[[Stream, bytes], bool]
"""Takes output as it comes. Returns False once the run has printed all it may: end it with `Status.OUTPUT`."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do. The executor refuses a request that needs more, before anything runs."""

    languages: frozenset[Language]
    isolation: Isolation
    """What it always puts between a run and the host."""
    limits: frozenset[str]
    """The fields of `Limits` that it enforces. The defaults of the others are no promise, and asking for less fails."""
    stdin: bool = False
    env: bool = False
    files: bool = False
    outputs: bool = False
    """Whether files come back."""
    cwd: bool = False
    value: bool = False
    """Whether the value of a last expression comes back."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the code did, as far as the backend knows."""

    status: Status
    exit_code: int | None = None
    value: Any = None
    exception: str | None = None
    error: str | None = None
    isolation: Isolation
    usage: Usage = Usage()
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}


class Backend(Protocol):
    """One way of running things."""

    name: str

    def capabilities(self) -> Capabilities:
        """What it can do here. Raises `BackendUnavailable` where it can't work at all."""

    async def run(self, request: Request, sink: Sink) -> Outcome:
        """Run it. Cancelling kills and reaps before it returns."""

    async def aclose(self) -> None:
        """Let go of whatever is kept warm. Safe to call twice."""


def exceeded(limit: str, limits: Limits) -> str:
    """What is said of a run that was ended because of this limit, on every backend."""
    match limit:
        case "time":
            what = f"ran longer than {limits.time:g} s"
        case "cpu":
            what = f"used more than {limits.cpu:g} s of processor time"
        case "memory":
            what = f"used more than {limits.memory} bytes of memory"
        case "processes":
            what = f"had more than {limits.processes} processes"
        case "output_total":
            what = f"printed more than {limits.output_total} bytes"
        case "file_size":
            what = f"wrote a file of more than {limits.file_size} bytes"
        case _:
            what = f"went over its limit on {limit} ({getattr(limits, limit)})"
    return f"it {what} and was ended"


def ended_by(number: int, limits: Limits) -> str:
    """What is said of a run that a signal has ended: the limit that it stands for, or its name."""
    if number == signal.SIGXFSZ:
        return exceeded("file_size", limits)
    if number == signal.SIGXCPU:
        return exceeded("cpu", limits)
    try:
        return f"it was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"it was ended by signal {number}"


async def uncancellable(work: Any) -> None:
    """Finish `work` even if we are cancelled (again) meanwhile; the cancellation is delivered afterwards."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()
