"""Fake: runs nothing, and answers what it was told to. For the tests of people who build on Redoma.

    fake = FakeBackend(Answer(when="2 + 2", value=4), Answer(stdout="hello\\n"))
    with Executor(backends=[fake]) as executor:
        assert executor.run("2 + 2").value == 4
    assert fake.requests[0].code == "2 + 2"

Limits hold as they do elsewhere: an answer with a `delay` past the time limit is a time-out, one that prints too much
is stopped, and a cancelled run ends at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ..lib.errors import BackendError
from ..models import LANGUAGES, OTHER, Isolation, Limits, Request, Status, Stream, Usage
from ..models.reach import HOST, Reach
from .base import Capabilities, Control, Outcome, Sink
from .collect import wanted, with_directories

_CHUNK = 1 << 16


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the fake. `when` is the exact text of the request, a predicate on it, or None for any request."""

    when: str | Callable[[Request], bool] | None = None
    stdout: str = ""
    stderr: str = ""
    value: Any = None
    status: Status = Status.OK
    exit_code: int | None = None
    exception: str | None = None
    error: str | None = None
    limit: str = ""
    """The limit that ends it, as a field of `Limits`, if the status alone does not imply it."""
    files: dict[str, bytes] = {}
    """The files that the run leaves in its directory; those that the request asks for are returned."""
    delay: float = 0.0
    """Seconds between its output and its end."""

    def fits(self, request: Request) -> bool:
        if callable(self.when):
            return self.when(request)
        return self.when is None or self.when == request.text


class FakeBackend:
    """A backend that runs nothing and returns the given answers. `reach` is what policy assumes its runs can touch."""

    def __init__(
        self, *answers: Answer, name: str = "fake", isolation: Isolation | None = None, reach: Reach = HOST
    ) -> None:
        self.name, self.reach = name, reach
        self.answers = answers or (Answer(),)
        self.requests: list[Request] = []
        self._isolation = isolation or Isolation(missing=("everything",))

    def capabilities(self) -> Capabilities:
        return Capabilities(
            languages=frozenset({*LANGUAGES, OTHER}),
            isolation=self._isolation,
            limits=frozenset(Limits.__struct_fields__),  # all, now and later: it runs nothing that could exceed one
            arguments=True,
            stdin=True,
            env=True,
            files=True,
            outputs=True,
            cwd=True,
            value=True,
        )

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        self.requests.append(request)
        answer = next((answer for answer in self.answers if answer.fits(request)), None)
        if answer is None:
            raise BackendError(
                "the fake backend has no answer", why=f"nothing fits {request.text!r}", next="give it an Answer"
            )
        patterns = with_directories(request.outputs)
        outcome = Outcome(
            status=answer.status,
            exit_code={Status.OK: 0, Status.ERROR: 1}.get(answer.status)
            if answer.exit_code is None
            else answer.exit_code,
            value=answer.value,
            exception=answer.exception,
            error=answer.error,
            limit=answer.limit,
            isolation=self._isolation,
            usage=Usage(wall=min(answer.delay, request.limits.time)),
            files={path: content for path, content in answer.files.items() if wanted(path, patterns)},
        )
        if not _print(answer, sink):
            return msgspec.structs.replace(outcome, status=Status.OUTPUT, exit_code=None, value=None)
        await asyncio.sleep(min(answer.delay, request.limits.time))
        if answer.delay > request.limits.time:
            return msgspec.structs.replace(outcome, status=Status.TIMEOUT, exit_code=None, value=None)
        return outcome

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


def _print(answer: Answer, sink: Sink) -> bool:
    texts: tuple[tuple[Stream, str], ...] = (("stdout", answer.stdout), ("stderr", answer.stderr))
    for stream, text in texts:
        data = text.encode("utf-8", "surrogatepass")
        for start in range(0, len(data), _CHUNK):
            if not sink(stream, data[start : start + _CHUNK]):
                return False
    return True
