"""Read a request into facts, once: evaluation, level, executed files and version control all ask the same `Reading`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from ..models import OTHER, Request
from .facts import MAX_SOURCE, Command, Executed, Fact, Span, Trait, Unbound
from .outside import written_outside


class Reading:
    """The facts of one request. Each way to read it is computed when it is first asked for, and then kept.

    The methods raise whatever the readers raise: each caller has its own safe answer for a request that can't be read.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._known: dict[tuple[bool, bool], Sequence[Fact]] = {}

    def facts(self, *, live_input: bool = False, compiled: bool = False) -> Sequence[Fact]:
        """Everything that can be said of the request.

        `live_input`: it can be given input while it runs, which nobody can read beforehand; only a command can.
        `compiled`: report also what only the compiler finds wrong with Python.
        """
        key = (live_input and self.request.language == "command", compiled and self.request.language == "python")
        if key not in self._known:
            facts = self._source_facts(live_input, compiled)
            self._known[key] = [*facts, *written_outside(self.request, facts), *_request_facts(self.request)]
        return self._known[key]

    def with_input(self, *, live_input: bool = False) -> Sequence[Fact]:
        """What the request runs when its input is taken into account, for the files that it executes."""
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

            return python.facts(request.code, compiled=compiled, args=request.argv, environment=request.env)
        if request.language == "javascript":
            from . import javascript

            return javascript.facts(request.code)
        if request.kind == OTHER:
            why = f"what {request.language} code loads when it runs is not followed"
            return [Trait(name="source.unread", text=request.language), Unbound(why=why)]
        if request.language == "lua":
            return []  # it can only ask for commands, and each of those is judged when it does
        from . import shell

        if request.language == "bash":
            return shell.facts_of_script(request.code, args=request.argv, environment=request.env)
        facts = shell.facts_of_argv(request.argv, environment=request.env)
        if live_input:
            fed = shell.facts_of_argv(request.argv, fed=True, environment=request.env)
            if [*map(_without_input, fed)] != [*map(_without_input, facts)]:
                # What it does depends on its input: `psql` does, `cat` doesn't. Interpreters are asked about anyway.
                facts = [Trait(name="shell.live-input", text=request.text), *fed]
        return [*facts, *_stdin_facts(request)]


def _without_input(fact: Fact) -> Fact:
    """The fact without its source of input, which alone changes nothing of what a command does."""
    match fact:
        case Command():
            return msgspec.structs.replace(fact, given=())
        case Executed():
            return msgspec.structs.replace(fact, args=())
    return fact


def _stdin_facts(request: Request) -> Iterator[Fact]:
    """The commands that the input makes the program run: `bash` fed a script, `psql` fed statements.

    It is read as the here-document it amounts to, so the shell's reader decides who takes input for code. What isn't
    text, or is too long, is data; an interpreter that takes its code from there is asked about anyway.
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
    """What can be said of a request without reading its language."""
    if request.language != "lua":  # its time is that of the commands it waits for, and each has a limit of its own
        yield Span(seconds=request.limits.time, text=f"{request.limits.time:g} s")
    if request.environment:
        from .shell.variables import is_hook

        for name, value in request.environment.items():
            if is_hook(name, value, value):
                yield Trait(name="shell.environment-hook", text=name)
