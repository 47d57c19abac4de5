"""Best of n: run several candidates, each on a copy of one session, and keep the best."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, Unpack

from ..backends.base import uncancellable
from ..lib.errors import InvalidRequest, WorkspaceError
from ..models import Result
from ..workspace.kept import Kept
from .runs import RunOptions
from .session import AsyncSession, Session

S = TypeVar("S", Session, AsyncSession)


class Best(Generic[S]):
    """The outcome of `best_of`. Close its `session` when done."""

    def __init__(self, results: Sequence[Result], scores: Sequence[float | None]) -> None:
        self.results, self.scores = tuple(results), tuple(scores)
        """Result and score of each candidate, in their order; the score of one that failed is None."""
        ranked = [(score, -index) for index, score in enumerate(scores) if score is not None]
        self.index = -max(ranked)[1] if ranked else None
        """The index of the winner: the first candidate with the highest score. None if all candidates failed."""
        self.session: S | None = None
        """The copy in which the winner ran."""
        self.kept: Kept | None = None
        """The changes that the winner made to its project, if any: apply or discard them by their id."""

    @property
    def result(self) -> Result | None:
        """The result of the winner."""
        return None if self.index is None else self.results[self.index]


def best_of(
    session: Session,
    candidates: Iterable[str],
    *,
    score: Callable[[Session, Result], float],
    **options: Unpack[RunOptions],
) -> Best[Session]:
    """Run each candidate (Python source) on its own copy of a session, and keep the best.

    Args:
        session: All candidates start with its variables, files and changes to its project. It stays unchanged.
        candidates: Source texts.
        score: Called with the copy and the result of each candidate that succeeded; higher is better. It may run tests
            in the copy.
        options: Those of `Session.run`, for each candidate.

    Returns:
        The `Best`, with the copy in which the winner ran; the others are closed. Where the session works over a
        project, the winner's changes are kept, to be approved and applied.

    Raises:
        InvalidRequest: There are no candidates, or a score is not a number.
        BackendError: The session can't be forked; see `AsyncSession.fork`.
    """
    codes = _listed(candidates)
    copies = session.fork(len(codes))
    winner = None
    try:
        ran = _all_of(copy.core.run(code, **options) for copy, code in zip(copies, codes, strict=True))
        results = session._executor.wait(ran)
        pairs = zip(copies, results, strict=True)
        best: Best[Session] = Best(
            results, [_number(score(copy, result)) if result.ok else None for copy, result in pairs]
        )
        if best.index is not None:
            best.session = copies[best.index]
            best.kept = session._executor.wait(_kept(best.session.core))
        winner = best.index
        return best
    finally:
        for number, copy in enumerate(copies):
            if number != winner:
                copy.close()


async def abest_of(
    session: AsyncSession,
    candidates: Iterable[str],
    *,
    score: Callable[[AsyncSession, Result], float | Awaitable[float]],
    **options: Unpack[RunOptions],
) -> Best[AsyncSession]:
    """Do the same as `best_of` on an event loop; `score` may be a coroutine function."""
    codes = _listed(candidates)
    copies = await session.fork(len(codes))
    winner = None
    try:
        results = await asyncio.gather(*(copy.run(code, **options) for copy, code in zip(copies, codes, strict=True)))
        scores: list[float | None] = []
        for copy, result in zip(copies, results, strict=True):
            found = score(copy, result) if result.ok else None
            scores.append(_number(await found if inspect.isawaitable(found) else found) if result.ok else None)
        best: Best[AsyncSession] = Best(results, scores)
        if best.index is not None:
            best.session = copies[best.index]
            best.kept = await _kept(best.session)
        winner = best.index
        return best
    finally:
        losers = [copy for number, copy in enumerate(copies) if number != winner]
        await uncancellable(asyncio.gather(*(copy.aclose() for copy in losers)))


async def _all_of(work: Iterable[Awaitable[Result]]) -> list[Result]:
    return await asyncio.gather(*work)


async def _kept(session: AsyncSession) -> Kept | None:
    if not session.works_over_a_project:
        return None
    try:
        return await session.keep()
    except WorkspaceError:
        if (await session.changes()).changes:
            raise
        return None  # it has changed nothing


def _listed(candidates: Iterable[str]) -> list[str]:
    if isinstance(candidates, str) or not (codes := list(candidates)):
        raise InvalidRequest(
            "there are no candidates",
            why="it takes several source texts",
            next='give a list, such as ["x = 1", "x = 2"]',
        )
    return codes


def _number(score: Any) -> float:
    if isinstance(score, bool) or not isinstance(score, (int, float)) or math.isnan(score):
        raise InvalidRequest(f"a score is {score!r}", why="it has to be a number", next="return one, more is better")
    return float(score)
