"""Which commands of Git's and Mercurial's a request runs, and whether they only look. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..models import Request
from .evaluate import facts_of
from .facts import UNKNOWN, Command

PROGRAMS = frozenset({"git", "hg"})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOOKING = _names("""
    annotate blame cat cat-file count-objects describe diff diff-files diff-index diff-tree files for-each-ref grep id
    identify log ls-files ls-tree manifest merge-base name-rev reflog rev-list rev-parse root shortlog show show-branch
    show-ref status summary var version whatchanged
""")
_VALUED = _names("-C -c --git-dir --work-tree --namespace --exec-path --config-env -R --cwd")
"""Options before the command's own name that take the next word."""


class Unreadable(Exception):
    """What the request runs can't be told."""


def version_control(request: Request) -> list[Command]:
    """Every command of these that it runs. Raises `Unreadable`."""
    if request.language not in ("command", "bash", "python"):
        return []
    try:
        facts = facts_of(request)
    except Exception as error:
        raise Unreadable from error
    return [fact for fact in facts if isinstance(fact, Command) and fact.name in PROGRAMS]


def only_looks(command: Command) -> bool:
    """Whether it leaves the repository as it is, but for what Git remembers of the files."""
    return next(iter(command.args[len(leading(command.args)) :]), "") in _LOOKING


def leading(args: Sequence[str]) -> Sequence[str]:
    """The options before the command's own name, with their values: those that choose the repository are here."""
    at = 0
    while at < len(args) and args[at].startswith("-"):
        at += 2 if args[at] in _VALUED else 1
    return [] if UNKNOWN in "".join(args[:at]) else args[:at]
