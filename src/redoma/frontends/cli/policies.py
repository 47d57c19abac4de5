"""policy: why a verdict is what it is, and what another policy would have said of what ran."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from redoma.errors import InvalidRequest
from redoma.models import Decision, Finding, Language, Request

from .common import State, TakesCommand, given_command, json_option, print_json, read_source, shown

if TYPE_CHECKING:
    from redoma.policy.explain import Explanation, Seen

COLOURS = {Decision.ALLOW: "green", Decision.PROMPT: "yellow", Decision.FORBID: "red"}

_INDENT = " " * 19


@click.group("policy")
def policy() -> None:
    """Why a verdict is what it is, and what another policy would say.

    \b
    Examples:
      redoma policy explain 'curl example.com/x | sh'
      redoma policy test proposed.yaml --since 30d
      redoma policy learn --since 30d -o learned.yaml
    """


@policy.command("explain", cls=TakesCommand, options_metavar="[OPTIONS] (SOURCE | -- COMMAND...)")
@click.option(
    "--lang",
    type=click.Choice(["bash", "python", "command"]),
    help="`command` splits it into words, without a shell.  [default: by the file's name, else bash]",
)
@click.option("--time", "seconds", type=float, help="Seconds it would ask for.")
@click.option("--backend", default="auto", show_default=True, help="auto, jail, docker, monty or native.")
@click.option("--policy", "pack", metavar="PACK", help="none, standard, strict, script or core.  [default: configured]")
@json_option
@click.argument("source", required=False, metavar="")
@click.pass_obj
def explain(
    state: State,
    /,
    source: str | None,
    lang: Language | None,
    seconds: float | None,
    backend: str,
    pack: str | None,
    as_json: bool,
) -> None:
    """Show every fact and rule behind a verdict, without running anything.

    SOURCE is a file, `-`, or the text itself. The exit status is 0 whatever the verdict is: see `redoma check` for one
    that is not.

    \b
    Examples:
      redoma policy explain 'find . -name "*.log" | xargs rm -rf'
      redoma policy explain --lang python 'import os; os.system("ls")'
      redoma policy explain script.py
      redoma policy explain -- git push --force origin main
    """
    from redoma.executor import Asked, AsyncExecutor
    from redoma.intake import build
    from redoma.policy.explain import explain as explained

    executor = AsyncExecutor(state.config)  # it starts nothing before something runs
    limits = {} if seconds is None else {"time": seconds}
    what = _asked(source, lang)
    request = build(state.config, executor.backends, {"backend": backend, "limits": limits}, **what)
    explanation = explained(state.config.load_policy(pack), request)
    place = executor.place(Asked(request))
    if as_json:
        shape = explanation.plain()
        evaluation, level = shape.pop("evaluation"), shape.pop("leveled")
        decision = explanation.evaluation.decision.value
        print_json({"decision": decision, **evaluation, **shape, **level, "backend": place})
    else:
        for line in _lines(explanation, request, place):
            click.echo(line)


def _asked(source: str | None, lang: Language | None) -> dict[str, Any]:
    command = given_command()
    if (source is None) == (not command) or (command and lang not in (None, "command")):
        raise InvalidRequest(
            "there is nothing to explain, or too much",
            why="it takes a SOURCE, or a command after `--`",
            next="write it like: redoma policy explain 'ls | wc -l', or redoma policy explain -- rm -rf build",
        )
    if command:
        return {"argv": command, "language": "command"}
    if lang == "command":
        try:
            return {"argv": tuple(shlex.split(source or "")), "language": "command"}
        except ValueError as error:
            raise InvalidRequest(
                "the command can't be split into words", why=str(error), next="close every quote"
            ) from None
    code, language, inline = read_source(source or "", lang)
    return {"code": code, "language": "bash" if inline and lang is None else language}


# --- an explanation, for reading ---


def _lines(explanation: Explanation, request: Request, place: str) -> Iterator[str]:
    evaluation, level = explanation.evaluation, explanation.leveled
    count = len(explanation.seen)
    yield _head("Facts", f"{count} in this {_NAMES[request.language]}, looked at by {explanation.rules} rules")
    for seen in explanation.seen:
        yield from _of_fact(seen)
    if explanation.in_text:
        yield _head("Text", "as such, by its characters")
        for finding in explanation.in_text:
            yield f"  {_place(finding.line, finding.column)}{'':9}{shown(finding.text)}".rstrip()
            yield from _of_finding(finding)
    if explanation.permits or explanation.others:
        yield _head("Permits", f"{len(explanation.permits)} of this request")
        for permit in explanation.permits:
            yield f"  {click.style('covers', fg='green')}  {permit.rule}  {shown(permit.text or permit.sha256)}"
        for permit in explanation.others:
            yield click.style(f"  another request  {permit.rule}  {shown(permit.text or permit.sha256)}", dim=True)
    yield _head("Level", level.level.value)
    yield from (f"  {shown(reason, 200)}" for reason in level.why)
    yield _head("Backend", _backend(place, request.backend))
    decision = click.style(evaluation.decision.value, fg=COLOURS[evaluation.decision], bold=True)
    rules = ", ".join(dict.fromkeys(finding.rule for finding in evaluation.deciding))
    yield f"{_head('Verdict', decision)}, by {rules or 'no rule: nothing speaks against it'}"
    yield f"  policy {evaluation.policy}, {evaluation.digest[:12]}"


_NAMES = {"python": "Python code", "bash": "Bash script", "command": "command", "lua": "Lua script"}
_FIELDS = {
    "command": "its words don't fit",
    "flags": "an option it needs is not there",
    "args": "no argument fits",
    "writes": "it writes to no such place",
    "unless": "its `unless` excuses it",
    "literal": "its arguments are of the other kind",
}


def _head(title: str, rest: str) -> str:
    return f"{click.style(f'{title:8}', bold=True)} {rest}"


def _place(line: int, column: int) -> str:
    return f"{f'{line}:{column}' if line else '':8}"


def _backend(place: str, asked: str) -> str:
    return (place or "none that can run it: see `redoma doctor`") + (" (auto)" if asked == "auto" else "")


def _of_fact(seen: Seen) -> Iterator[str]:
    colour = COLOURS[max((finding.decision for finding in seen.findings), default=Decision.ALLOW)]
    what = click.style(_what(seen), fg=colour) if seen.findings else _what(seen)
    yield f"  {_place(seen.fact.line, seen.fact.column)}{seen.kind:9}{what}"
    for finding in seen.findings:
        yield from _of_finding(finding)
    for field in dict.fromkeys(silent.because for silent in seen.silent):
        rules = ", ".join(silent.rule for silent in seen.silent if silent.because == field)
        yield click.style(f"{_INDENT}silent   {rules}: {_FIELDS[field]}", dim=True)


def _what(seen: Seen) -> str:
    """A fact on one line; `?` stands for what can't be known before it runs."""
    from redoma.policy.facts import UNKNOWN, Call, Command, Span, Trait

    fact = seen.fact
    match fact:
        case Command():
            words = " ".join([fact.path or fact.name, *(shlex.quote(arg) if " " in arg else arg for arg in fact.args)])
            via = f"  (inside {', '.join(fact.via)})" if fact.via else ""
            text = words + via + (f"  writes {', '.join(fact.writes)}" if fact.writes else "")
        case Trait():
            text = f"{fact.name}: {seen.meaning}" + (f"  {fact.text}" if fact.text else "")
        case Span():
            text = f"it may take {fact.text}"
        case Call():
            text = f"{fact.name}({'constants' if fact.literal else '…'})"
        case _:
            text = getattr(fact, "name", fact.text)
    return shown(text.replace(UNKNOWN, "?"), 160)


def _of_finding(finding: Finding) -> Iterator[str]:
    decision = click.style(f"{finding.decision.value:8}", fg=COLOURS[finding.decision])
    yield f"{_INDENT}{decision} {finding.rule}: {shown(finding.reason, 200)}"
    if finding.suggestion:
        yield f"{_INDENT}{'':8} → {shown(finding.suggestion, 200)}"
