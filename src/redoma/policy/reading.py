"""Read a request into facts. Evaluation, level and executed files share one `Reading`, so it is read only once."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence

import msgspec

from ..models import OTHER, Request
from .facts import MAX_SOURCE, Command, Executed, Fact, Span, Trait, Unbound
from .outside import written_outside

VERSION_CONTROL = frozenset({"git", "hg"})
UNREAD = frozenset(
    {"source.too-large", "source.too-deep", "source.unread", "javascript.syntax-error", "javascript.dynamic-command"}
)
"""Traits of requests of which a part isn't read."""


class Reading:
    """The facts of one request, read on first use and then cached.

    The methods raise whatever the readers raise: each caller has its own safe answer for a request that can't be read.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._known: dict[tuple[bool, bool], Sequence[Fact]] = {}

    def facts(self, *, live_input: bool = False, compiled: bool = False) -> Sequence[Fact]:
        """Return all facts of the request.

        `live_input`: whether it may receive input while it runs, which can't be read beforehand; only a command may.
        `compiled`: also report the errors that only Python's compiler finds.
        """
        key = (live_input and self.request.language == "command", compiled and self.request.language == "python")
        if key not in self._known:
            facts = self._source_facts(live_input, compiled)
            self._known[key] = [*facts, *written_outside(self.request, facts), *_request_facts(self.request)]
        return self._known[key]

    def names_scripts(self) -> bool:
        """Return whether the request may run scripts whose paths are known. Never raises."""
        try:
            return any(isinstance(fact, Executed) and fact.is_script for fact in self.facts())
        except Exception:  # as in `evaluate`, which refuses what can't be read
            return False

    def may_run_version_control(self) -> bool:
        """Return whether the request may run Git or Mercurial: it does, or what it runs isn't all known. Never raises.
        `version_control` says more; it takes longer to load than a short run has."""
        try:
            facts = self.facts()
        except Exception:  # as in `names_scripts`
            return True
        return any(
            (isinstance(fact, Command) and fact.name in VERSION_CONTROL)
            or (isinstance(fact, Trait) and fact.name in UNREAD)
            for fact in facts
        )

    def with_input(self, *, live_input: bool = False) -> Sequence[Fact]:
        """Return the facts with the request's input taken into account, to find the files that it executes. Only a
        command has other facts than those of `facts`. Not cached."""
        request = self.request
        if request.language != "command":
            return self.facts()
        from . import shell

        text = None if live_input else request.stdin.decode("utf-8", "replace")
        if text is not None and ("\0" in text or len(text) > MAX_SOURCE):
            text = None
        return shell.facts_of_argv(request.argv, fed=True, stdin=text, environment=request.env)

    def _source_facts(self, live_input: bool, compiled: bool) -> list[Fact]:
        request = self.request
        if request.language == "python":
            from . import python

            facts = python.facts(request.code, compiled=compiled, args=request.argv, environment=request.env)
            return _of_another_version(request, facts)
        if request.language == "javascript":
            from . import javascript

            return javascript.facts(request.code)
        if request.kind == OTHER:
            why = f"what {request.language} code loads when it runs is not followed"
            return [Trait(name="source.unread", text=request.language), Unbound(why=why)]
        if request.language == "lua":
            return []  # it can only request commands, and each is judged when it is requested
        from . import shell

        if request.language == "bash":
            return shell.facts_of_script(request.code, args=request.argv, environment=request.env, lookup="shell")
        facts = shell.facts_of_argv(request.argv, environment=request.env)
        if live_input:
            fed = shell.facts_of_argv(request.argv, fed=True, environment=request.env)
            if [*map(_without_input, fed)] != [*map(_without_input, facts)]:
                # What it does depends on its input, as for `psql`, but not for `cat`. Interpreters are asked about
                # anyway.
                facts = [Trait(name="shell.live-input", text=request.text), *fed]
        return [*facts, *_stdin_facts(request)]


def _of_another_version(request: Request, facts: list[Fact]) -> list[Fact]:
    """Return the facts of Python code. If it runs on another version of Python, a syntax error is replaced by the trait
    "source.unread": that version may accept the code."""
    other = request.uses.interpreter if request.uses is not None else None
    if other is None or not any(map(_is_syntax_error, facts)):
        return facts
    if other.version == f"python{sys.version_info[0]}.{sys.version_info[1]}":
        return facts
    rest = [fact for fact in facts if not _is_syntax_error(fact)]
    return [*rest, Trait(name="source.unread", text=other.version), Unbound(why=f"it is code of {other.version}")]


def _is_syntax_error(fact: Fact) -> bool:
    return isinstance(fact, Trait) and fact.name == "python.syntax-error"


def _without_input(fact: Fact) -> Fact:
    """Return the fact without the source of its input: if only that differs, the command does the same."""
    match fact:
        case Command():
            return msgspec.structs.replace(fact, given=())
        case Executed():
            return msgspec.structs.replace(fact, args=())
    return fact


def _stdin_facts(request: Request) -> Iterator[Fact]:
    """Yield the commands that the input makes the program run: a script for `bash`, statements for `psql`.

    The input is read as a here-document, so the reader of Bash decides which programs run their input. Input that isn't
    text or is too long is ignored: a person is asked anyway about an interpreter that reads its code from there.
    """
    from . import shell

    try:
        text = request.stdin.decode()
    except UnicodeDecodeError:
        return
    if not text or "\0" in text or len(text) > MAX_SOURCE // 2:
        return
    mark = "INPUT"
    while mark in text:
        mark += "_"
    script = f"{shlex.join(request.argv)} <<'{mark}'\n{text}\n{mark}\n"
    for fact in shell.facts_of_script(script, environment=request.env):
        if isinstance(fact, (Command, Executed)):
            yield msgspec.structs.replace(fact, line=0, column=0)


def _request_facts(request: Request) -> Iterator[Fact]:
    """Yield the facts that don't depend on the language."""
    if request.language != "lua":  # it mostly waits for its commands, and each of them has a time limit of its own
        yield Span(seconds=request.limits.time, text=f"{request.limits.time:g} s")
    if request.environment:
        from .shell.variables import is_hook

        for name, value in request.environment.items():
            if is_hook(name, value, value):
                yield Trait(name="shell.environment-hook", text=name)
