"""policy: why a verdict is what it is, and what another policy would have decided about recorded runs."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redoma.lib.errors import InvalidRequest
from redoma.models import Decision, Finding, Language

from .check import COLOURS, EXIT, PlaceVerdict, command_instead_of, must_parse, of_a_verdict, verdicts
from .emit import counted, emit, json_option, progress, shown
from .options import Lang, TakesCommand, audit_log, since_option
from .source import is_bash, is_meant_as_python, new_file, read_source
from .state import State

if TYPE_CHECKING:
    from redoma.audit import Record
    from redoma.audit.inputs import Inputs
    from redoma.history.learn import Learned
    from redoma.history.policies import Comparison, Example, Group
    from redoma.policy import Permit, Policy
    from redoma.policy.explain import Explanation, Seen

_INDENT = " " * 19


@click.group("policy")
def policy() -> None:
    """Explain a verdict, try another policy, and learn permits.

    \b
    Examples:
      redoma policy explain 'curl example.com/x | sh'
      redoma policy test proposed.yaml --since 30d
      redoma policy learn --since 30d -o learned.yaml
    """


@policy.command("explain", cls=TakesCommand, options_metavar="[OPTIONS] (SOURCE | -- COMMAND...)")
@click.option(
    "--lang",
    type=Lang("command"),
    help="Read it as this; `command` splits it into words, without a shell.  "
    "[default: by the file's name; else python, or bash if it can't be that]",
)
@of_a_verdict
@click.pass_obj
def explain(state: State, /, source: str | None, lang: Language | None, **assumed: Any) -> int:
    """Show every fact and rule behind a verdict, without running anything.

    SOURCE is a file, `-`, or the text itself. Without --backend it shows the verdicts for a cell and for the host
    itself.

    Exit status: 0 allow, 1 prompt, 2 forbid; as on the host, unless --backend says where.

    \b
    Examples:
      redoma policy explain 'find . -name "*.log" | xargs rm -rf'
      redoma policy explain --lang python 'import os; os.system("ls")'
      redoma policy explain script.py
      redoma policy explain -- git push --force origin main
    """
    from redoma.policy.explain import explain as explained

    places = verdicts(state.config, _asked(state, source, lang), **assumed)
    there = places[-1]
    if any(place.decision is Decision.ALLOW for place in places):
        must_parse(there.request)
    explanation = explained(state.config.load_policy(assumed["pack"]), there.request, reach=there.evaluation.reach)
    # With what the scripts that it names would do: the explanation of a request reads no file.
    explanation = msgspec.structs.replace(explanation, evaluation=there.evaluation, leveled=there.level)

    def shape(explanation: Explanation) -> dict[str, Any]:
        plain = explanation.plain()
        evaluation, level = plain.pop("evaluation"), plain.pop("leveled")
        others = {place.where: _plain(place) for place in places} if len(places) > 1 else {}
        return {"decision": there.decision.value, **evaluation, **plain, **level, "backend": there.backend, **others}

    emit(explanation, lambda explanation: _lines(explanation, places), shape=shape)
    return EXIT[there.decision]


def _plain(place: PlaceVerdict) -> dict[str, Any]:
    rules = list(dict.fromkeys(finding.rule for finding in place.evaluation.deciding))
    return {"decision": place.decision.value, "by": rules, "level": place.level.level, "backend": place.backend}


def _asked(state: State, source: str | None, lang: Language | None) -> dict[str, Any]:
    example = "redoma policy explain 'ls | wc -l', or redoma policy explain -- rm -rf build"
    if (command := command_instead_of(source, example)) is not None:
        if lang not in (None, "command"):
            raise InvalidRequest(f"the command is not {lang}", why="it has no shell", next=f"write it like: {example}")
        return command
    if lang == "command":
        try:
            return {"argv": tuple(shlex.split(source or "")), "language": "command"}
        except ValueError as error:
            raise InvalidRequest(
                "the command can't be split into words", why=str(error), next="close every quote"
            ) from None
    code, language, _, guessed = read_source(source or "", lang, state)
    # What `check` accepts as Python is Python here too; what it takes for Bash is explained as Bash.
    return {
        "code": code,
        "language": "bash" if guessed and not is_meant_as_python(code) and is_bash(code) else language,
    }


@policy.command("test")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@since_option
@click.option(
    "--add", is_flag=True, help="Put FILE on top of what is in force, instead of in place of the project's file."
)
@click.option(
    "-n", "examples", type=click.IntRange(0, 100), default=3, show_default=True, help="Show so many examples of each."
)
@click.option(
    "--fail-on",
    type=click.Choice(["forbidden", "prompt", "pass"]),
    multiple=True,
    help="Exit 1 if a request would newly be that.",
)
@json_option
@click.pass_obj
def test(
    state: State,
    file: Path,
    since: datetime | None,
    add: bool,
    examples: int,
    fail_on: tuple[Group, ...],
) -> int:
    """Evaluate a proposed policy over the recorded requests, without any effect.

    FILE is a redoma.yaml, or only the content of its `policy` section. It replaces the project's file, on top of your
    own, as in `redoma config check FILE`.

    \b
    Examples:
      redoma policy test proposed.yaml --since 30d
      redoma policy test --add learned.yaml --fail-on forbidden
    """
    from redoma.config import proposed
    from redoma.history.policies import Judge, compare

    config = proposed(file, state.config if add else None)
    judge = Judge(config.load_policy)
    current = Judge(state.config.load_policy, judge.last)
    judge.policy(None)  # report errors in it before anything is read
    with intents(state, since) as records:
        tested = compare(records, judge, current, inputs=kept_inputs(state), examples=examples)
    emit(
        tested,
        lambda tested: _comparison_lines(tested, fail_on),
        shape=lambda tested: {**msgspec.to_builtins(tested), "policy": judge.policy(None).digest},
    )
    newly = {"forbidden": tested.forbidden, "prompt": tested.prompt, "pass": tested.passing}
    return 1 if any(newly[group] for group in fail_on) else 0


@policy.command("learn")
@since_option
@click.option(
    "--at-least", type=click.IntRange(1), default=1, show_default=True, help="Require so many approvals of a request."
)
@click.option("-o", "--output", default="-", metavar="FILE", help="Write to this file.  [default: standard output]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
@click.pass_obj
def learn(state: State, since: datetime | None, at_least: int, output: str, force: bool) -> None:
    """Propose the narrowest rules that would have allowed what people have approved.

    It writes permits for exactly these requests, with who approved them, when and why. No refusal is ever loosened, and
    requests that were denied, expired, had secrets, or are not fully recorded are left out. The permits are tested on
    the history first: approved requests pass, and nothing else changes.

    \b
    Examples:
      redoma policy learn --since 30d
      redoma policy learn --since 30d --at-least 3 -o learned.yaml
      redoma policy test --add learned.yaml
    """
    from redoma.history.learn import RecordedRuns, yaml
    from redoma.history.learn import learn as learned_from

    config, log = state.config, audit_log(state)

    def load(pack: str | None, permits: tuple[Permit, ...]) -> Policy:
        more = msgspec.structs.replace(config.policy, permits=(*config.policy.permits, *permits))
        return more.load(pack, time=config.limits.time, hosts=config.network.allowed)

    history = RecordedRuns(
        lambda: log.records(since, kinds=("intent", "outcome")),
        lambda: log.records(kinds=("approval.given", "approval.denied", "approval.unpinned")),
        lambda: log.records(kinds=("intent",)),
        kept_inputs(state),
    )

    def write(learned: Learned) -> None:
        period = f"{since:%Y-%m-%d %H:%M} UTC" if since else ""
        text = yaml(learned, when=f"{datetime.now(UTC):%Y-%m-%d}", since=period)
        if output == "-":
            click.echo(text, nl=False)
        else:
            with new_file(Path(output), force=force) as file:
                file.write(text)
        what = f"{counted(len(learned.permits), 'permit')} from {learned.approved:,} approved runs"
        left = sum(map(len, learned.left_out.values()))
        click.echo(f"{what}; {learned.passing:,} runs on record would pass; approved and left out: {left:,}", err=True)

    emit(
        learned_from(history, load, at_least=at_least),
        write,
        shape=lambda learned: {**msgspec.to_builtins(learned), "permits": msgspec.to_builtins(learned.permits)},
    )


# --- history ---


def kept_inputs(state: State) -> Inputs:
    from redoma.audit.inputs import Inputs

    return Inputs(state.config.state / "inputs" if state.config.state else None)


@contextlib.contextmanager
def intents(state: State, since: datetime | None) -> Iterator[Iterable[Record]]:
    """Yield the recorded requests, with a progress bar while they are read."""
    log = audit_log(state)
    first, last = next(log.records(since), None), log.tail(1)
    if first is None or not last:
        yield ()
        return
    with progress("evaluating", last[0].seq - first.seq + 1) as advance:
        yield _advancing(log.records(since, kinds=("intent",)), advance, first.seq)


def _advancing(records: Iterable[Record], advance: Callable[[int], None], at: int) -> Iterator[Record]:
    for record in records:
        yield record
        advance(record.seq - at)
        at = record.seq


def _comparison_lines(tested: Comparison, fail_on: tuple[Group, ...]) -> Iterator[str]:
    if not tested.requests and not tested.unjudged:
        yield "no request is on record in this time"
        return
    yield _head("Requests", f"{tested.requests:,} evaluated, {tested.evaluated:,} of them different")
    yield f"  unchanged        {tested.unchanged:>9,}"
    groups: tuple[tuple[str, Group, int, Decision], ...] = (
        ("newly forbidden", "forbidden", tested.forbidden, Decision.FORBID),
        ("newly asked", "prompt", tested.prompt, Decision.PROMPT),
        ("newly passing", "pass", tested.passing, Decision.ALLOW),
    )
    for title, group, count, decision in groups:
        text = f"{title:16} {count:>9,}"
        rules = ", ".join(f"{rule} {number:,}" for rule, number in [*tested.by_rule[group].items()][:4])
        yield f"  {click.style(text, fg=COLOURS[decision]) if count else text}{f'   {rules}' if rules else ''}"
        for each in tested.examples[group]:
            yield from _example_lines(each)
    if tested.left_out:
        yield _head("Left out", f"{tested.left_out:,} that can't be evaluated, because the record doesn't have")
        for what, count in [*tested.unjudged.items()][:_MAX_REASONS]:
            yield f"  {count:>9,}  {shown(what)}"
    if tested.differs_now:
        yield _head(
            "Note", f"of {tested.differs_now:,} the policy in force says something else already than was said then"
        )
    for group in fail_on:
        if any(name == group and count for _, name, count, _ in groups):
            yield click.style(f"failed: --fail-on {group}", fg="red")


_MAX_REASONS = 10


def _example_lines(each: Example) -> Iterator[str]:
    when = each.time[:16].replace("T", " ")
    yield f"      {when}  {each.id[:12]}  {shown(each.requester, 20)}  {click.style(shown(each.text), bold=True)}"
    before = f"{each.before.value}{_ruled(each.before_rules)}"
    yield click.style(f"        {before} → {each.after.value}{_ruled(each.after_rules)}", dim=True)


def _ruled(rules: tuple[str, ...]) -> str:
    return f" ({', '.join(shown(rule, 60) for rule in rules[:5])})" if rules else ""


# --- an explanation, for people ---


def _lines(explanation: Explanation, places: list[PlaceVerdict]) -> Iterator[str]:
    evaluation, request = explanation.evaluation, places[-1].request
    count = len(explanation.seen)
    kind = _NAMES.get(request.language, f"{request.language} code")
    yield _head("Facts", f"{count} in this {kind}, looked at by {explanation.rules} rules")
    for seen in explanation.seen:
        yield from _of_fact(seen)
    if explanation.in_text:
        yield _head("Text", "as such, by its characters")
        for finding in explanation.in_text:
            yield f"  {_place(finding.line, finding.column)}{'':9}{shown(finding.text)}".rstrip()
            yield from _of_finding(finding)
    if in_scripts := [finding for finding in evaluation.findings if finding.script]:
        yield _head("Scripts", "that it names, judged by their content")
        for line in dict.fromkeys(finding.text for finding in in_scripts):
            yield f"{_INDENT}{shown(line)}"
            for finding in in_scripts:
                if finding.text == line:
                    yield from _of_finding(finding)
    if explanation.permits or explanation.others:
        yield _head("Permits", f"{len(explanation.permits)} of this request")
        for permit in explanation.permits:
            yield f"  {click.style('covers', fg='green')}  {permit.rule}  {shown(permit.text or permit.sha256)}"
        for permit in explanation.others:
            yield click.style(f"  another request  {permit.rule}  {shown(permit.text or permit.sha256)}", dim=True)
    for place in places:
        here = f" ({place.where})" if len(places) > 1 else ""
        yield _head("Level", f"{place.level.level.value}{here}")
        yield from (f"  {shown(reason, 200)}" for reason in place.level.why)
    for place in places:
        here = f" ({place.where}: it could touch {place.evaluation.reach.words})" if len(places) > 1 else ""
        yield _head("Backend", place.backend_words + here)
    for place in places:
        decision = click.style(place.decision.value, fg=COLOURS[place.decision], bold=True)
        rules = ", ".join(dict.fromkeys(finding.rule for finding in place.evaluation.deciding))
        here = f" in a {place.where}" if place.where == "cell" else f" on the {place.where}" if len(places) > 1 else ""
        yield f"{_head('Verdict', decision)}{here}, by {rules or 'no rule'}"
    yield f"  policy {evaluation.policy}, {evaluation.digest[:12]}"


_NAMES = {
    "python": "Python code",
    "bash": "Bash script",
    "command": "command",
    "lua": "Lua script",
    "javascript": "JavaScript",
}
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
    """Return a fact on one line; `?` stands for what is unknown before it runs."""
    from redoma.policy.facts import UNKNOWN, Call, Command, Executed, Searched, Span, Trait

    fact = seen.fact
    match fact:
        case Command():
            words = " ".join([fact.path or fact.name, *(shlex.quote(arg) if " " in arg else arg for arg in fact.args)])
            via = f"  (inside {', '.join(fact.via)})" if fact.via else ""
            text = words + via + (f"  writes {', '.join(fact.writes)}" if fact.writes else "")
        case Executed():
            text = f"{fact.path}  (what it holds is run, and an approval is of that)"
        case Searched():
            text = f"programs are looked for in {fact.path}"
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
    if finding.out_of_reach:
        yield f"{_INDENT}{'':8} out of reach: {finding.out_of_reach}"
    if finding.suggestion:
        yield f"{_INDENT}{'':8} → {shown(finding.suggestion, 200)}"
