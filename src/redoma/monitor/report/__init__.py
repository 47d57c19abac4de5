"""A round as a page, a text or data: for somebody who was not there.

What rules and collectors said is hostile: it reaches a report as text and nothing else. A page is one file, needs no
JavaScript and allows none.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from ...lib.errors import InvalidRequest
from ..history import History
from ..model import Check, Round
from .story import gather

Kind = Literal["html", "md", "json"]


def render(seen: Round, history: History | None, kind: Kind, checks: Iterable[Check] = ()) -> str:
    """The report of a round; what `history` knows goes into plots."""
    story = gather(seen, history, checks)
    if kind == "html":
        from .page import page

        return page(story)
    if kind == "md":
        from .text import markdown

        return markdown(story)
    from .text import data

    return data(story)


def kind_of(path: Path) -> Kind:
    """What the end of a file's name asks for."""
    for kind in get_args(Kind):
        if path.suffix.lower() == f".{kind}":
            return kind  # type: ignore[no-any-return] # get_args says Any
    raise InvalidRequest(
        f"a report can't be written to {str(path)!r}",
        why="the end of its name says the format, and it is none of .html, .md and .json",
        next="name it report.html, for example",
    )
