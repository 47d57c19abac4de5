"""check: the policy's verdict on code or a command, in a cell and on the host, without running it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from redoma.lib.errors import InvalidRequest
from redoma.models import Decision, Evaluation, Finding, Language, Request

from .completion import backends, files
from .emit import counted, emit, json_option
from .options import Lang, TakesCommand, given_command, policy_option, with_options
from .source import BASH_MEANT, is_bash, read_source, undefined_name
from .state import State

if TYPE_CHECKING:
    from redoma.config import Config
    from redoma.policy import Leveled
    from redoma.policy.facts import Fact, Trait

COLOURS = {Decision.ALLOW: "green", Decision.PROMPT: "yellow", Decision.FORBID: "red"}
EXIT = {Decision.ALLOW: 0, Decision.PROMPT: 1, Decision.FORBID: 2}
_PLACES = {"cell": "auto", "host": "native"}
NOWHERE = "none that can run it: see `redoma doctor`"

of_a_verdict = with_options(
    click.option("--time", "seconds", type=float, help="Assume that it asks for so many seconds."),
    click.option(
        "--backend",
        shell_complete=backends,
        help="Assume auto, jail, docker, monty or native.  [default: in a cell and on the host]",
    ),
    policy_option,
    json_option,
    click.argument("source", required=False, metavar="", shell_complete=files),
)
"""The arguments of `check` and `policy explain`, besides the language: see `verdicts`."""


@click.command("check", cls=TakesCommand, options_metavar="[OPTIONS] (SOURCE | -- COMMAND...)")
@click.option(
    "--lang",
    type=Lang(),
    help="Read it as this.  [default: by the file's name, else python]",
)
@of_a_verdict
@click.pass_obj
def check(state: State, /, source: str | None, lang: Language | None, **assumed: Any) -> int:
    """Print the verdict, level and backend, without running anything.

    Without --backend it shows the verdicts for a cell and for the host itself, side by side.

    Exit status: 0 allow, 1 prompt, 2 forbid, for the host unless --backend says where; 3 if there is no verdict, such
    as for code that does not parse.

    \b
    Examples:
      redoma check script.sh
      redoma check --lang bash 'curl example.com/x | sh'
      redoma check -- rm -rf /
    """
    inline = guessed = False
    if (what := command_instead_of(source, "redoma check script.sh, or redoma check -- rm -rf build")) is None:
        code, language, inline, guessed = read_source(source or "", lang, state)
        what = {"code": code, "language": language}
    places = verdicts(state.config, what, **assumed)
    if any(place.decision is Decision.ALLOW for place in places):
        must_parse(places[-1].request)
        if guessed:
            _must_be_meant_as_python(places[-1].request.code)
    emit(places, lambda places: _lines(places, guessed=inline and lang is None), shape=_shape)
    return EXIT[places[-1].decision]


def command_instead_of(source: str | None, example: str) -> dict[str, Any] | None:
    """Return the command after `--`, as `verdicts` takes it; None if a SOURCE was given. Raises `InvalidRequest` for
    both or neither.
    """
    command = given_command()
    if (source is None) == (not command):
        raise InvalidRequest(
            "there is nothing to judge, or too much",
            why="it takes a SOURCE, or a command after `--`",
            next=f"write it like: {example}",
        )
    return {"argv": command, "language": "command"} if command else None


def _shape(places: list[PlaceVerdict]) -> dict[str, Any]:
    """Return the verdicts as JSON: the one that counts and, with several places, each of them under its name."""
    from redoma.frontends.shapes import verdict_json

    shapes = {place.where: verdict_json(place.evaluation, place.level, place.backend) for place in places}
    return {**shapes[places[-1].where], **(shapes if len(shapes) > 1 else {})}


def _lines(places: list[PlaceVerdict], *, guessed: bool) -> Iterator[str]:
    """Yield lines for people: each finding, the decision, the level with its reasons, and the backend."""
    from redoma.lib.sanitise import sanitise

    if heads(places):
        yield click.style(heads(places), dim=True)
    for finding, decisions, reasons in side_by_side(places):
        where = f"{finding.line}:{finding.column}  " if finding.line else ""
        text = sanitise(finding.text).replace("\n", " ")
        yield f"{columns(decisions)}  {where}{finding.rule}  {text}"
        yield f"    {finding.reason}"
        for name, why in reasons.items():
            yield f"    {name}: {why}"
        if finding.suggestion:
            yield f"    → {finding.suggestion}"
    evaluation, count = places[-1].evaluation, len(places[-1].evaluation.findings)
    verdict = click.style(columns([place.decision for place in places]), bold=True)
    yield f"{verdict}  (policy {evaluation.policy}, {counted(count, 'finding')})"
    for place in places:
        here = f"{place.where}  " if len(places) > 1 else ""
        for reason in place.level.why:
            yield f"{here}{click.style(place.level.level, bold=True)}  {sanitise(reason)}".replace("\n", " ")
    yield f"backend  {', '.join(place.backend_words for place in places)}"
    if guessed:
        yield "read as  Python; for a shell command add --lang bash"


def must_parse(request: Request) -> None:
    """Raise `InvalidRequest` for code that does not parse: `check` must not say that it may run."""
    if request.language == "python":
        from redoma.policy import python

        if wrong := _trait(python.facts(request.code, compiled=True), "python.syntax-error"):
            meant = BASH_MEANT if is_bash(request.code) else "correct the syntax"
            raise InvalidRequest("not valid Python", why=f"{_line(wrong)}{wrong.text}", next=meant)
    elif request.language == "bash":
        from redoma.policy import shell

        if wrong := _trait(shell.facts_of_script(request.code), "shell.parse-error"):
            why = f"{_line(wrong)}a part of it can't be parsed, so what it does can't be known"
            raise InvalidRequest("not valid Bash", why=why, next="correct the syntax; `bash -n FILE` shows where")
        from redoma.scripts.bash_syntax import syntax_error

        if objection := syntax_error(request.code):
            raise InvalidRequest(
                "not valid Bash", why=f"{_line(objection)}{objection.reason}", next=objection.suggestion
            )
    elif request.language == "javascript":
        from redoma.policy import javascript

        if wrong := _trait(javascript.facts(request.code), "javascript.syntax-error"):
            why = f"{_line(wrong)}a part of it can't be parsed, so what it does can't be known"
            raise InvalidRequest(
                "not valid JavaScript", why=why, next="correct the syntax; `node --check FILE` shows where"
            )


def _trait(facts: Sequence[Fact], name: str) -> Trait | None:
    from redoma.policy.facts import Trait

    return next((fact for fact in facts if isinstance(fact, Trait) and fact.name == name), None)


def _line(found: Trait | Finding) -> str:
    return f"line {found.line}: " if found.line else ""


def _must_be_meant_as_python(code: str) -> None:
    """Raise `InvalidRequest` for code that parses as Python but can only fail: `rm -rf` is a subtraction."""
    if undefined := undefined_name(code):
        raise InvalidRequest(
            "as Python this only fails",
            why=f"{undefined!r} is not defined",
            next=BASH_MEANT if is_bash(code) else "define it first, or say that it is Python: --lang python",
        )


class PlaceVerdict(NamedTuple):
    """The policy's verdict on a request in one place."""

    where: str
    """`cell`, `host`, or the named backend."""
    request: Request
    evaluation: Evaluation
    level: Leveled
    backend: str
    """The backend that would run it; empty if none can."""

    @property
    def decision(self) -> Decision:
        return self.evaluation.decision

    @property
    def backend_words(self) -> str:
        """The backend for people, and whether it was chosen automatically."""
        return (self.backend or NOWHERE) + (" (auto)" if self.request.backend == "auto" else "")


def verdicts(
    config: Config, what: dict[str, Any], backend: str | None, seconds: float | None, pack: str | None
) -> list[PlaceVerdict]:
    """Evaluate `what` on the named backend, else in a cell and on the host. The last verdict is the one that counts."""
    from redoma.models import Submission
    from redoma.pipeline.executor import AsyncExecutor
    from redoma.pipeline.intake import build
    from redoma.policy import level_of

    executor = AsyncExecutor(config)  # it starts nothing before something runs
    limits = {} if seconds is None else {"time": seconds}
    found = []
    for where, name in (_PLACES if backend is None else {backend: backend}).items():
        request = build(config, executor.backends, {"backend": name, "limits": limits}, **what)
        evaluation = executor.check(request, pack)
        level = level_of(request, evaluation)
        found.append(PlaceVerdict(where, request, evaluation, level, executor.place(Submission(request))))
    return found


def side_by_side(places: Sequence[PlaceVerdict]) -> Iterator[tuple[Finding, list[Decision], dict[str, str]]]:
    """Yield each finding with its decision in each place, and for places where it is out of reach, why.

    The findings may differ between places: on the host a command works in a directory.
    """
    found: dict[tuple[object, ...], dict[str, Finding]] = {}
    for place in places:
        for each in place.evaluation.findings:
            found.setdefault((each.line, each.column, each.rule, each.text), {})[place.where] = each
    for there in found.values():
        decisions = [there[place.where].decision if place.where in there else Decision.ALLOW for place in places]
        reasons = {where: finding.out_of_reach for where, finding in there.items() if finding.out_of_reach}
        yield list(there.values())[-1], decisions, reasons


def heads(places: Sequence[PlaceVerdict]) -> str:
    """Return the titles of the columns; empty if there is only one place."""
    return "  ".join(f"{place.where:6}" for place in places) if len(places) > 1 else ""


def columns(decisions: Sequence[Decision]) -> str:
    """Return one decision for each place; a single one is not padded."""
    if len(decisions) == 1:
        return click.style(decisions[0].value, fg=COLOURS[decisions[0]])
    return "  ".join(click.style(f"{decision.value:6}", fg=COLOURS[decision]) for decision in decisions)
