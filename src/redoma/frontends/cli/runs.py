"""run, eval, check: what leads to a verdict or a result; and what `exec` shares with them."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redoma.lib.errors import InvalidRequest
from redoma.models import Decision, Denial, Language, Request, Result, Status

from .common import (
    FAILED,
    Size,
    State,
    TakesCommand,
    given_command,
    json_option,
    print_json,
    project_directory,
    read_file,
    read_source,
    standard_input,
)
from .complete import backends, files, packs
from .languages import is_bash, undefined_name
from .verdicts import EXIT, Verdict, columns, heads, side_by_side, verdicts

if TYPE_CHECKING:
    from collections.abc import Callable

    from redoma.pipeline.sync import LiveRun

F = TypeVar("F", bound="Callable[..., Any]")

_MAX_FILE = 256 * 1024 * 1024
_MAX_SCHEMA = 256 * 1024
_SHOWN = 20
"""Paths that are named of what was rolled back."""

_policy = click.option(
    "--policy",
    metavar="PACK",
    shell_complete=packs,
    help="none, standard, strict, script or core.  [default: configured]",
)
_backend = click.option(
    "--backend",
    default="auto",
    show_default=True,
    shell_complete=backends,
    help="auto, jail, docker, monty, or native: the host itself, without a sandbox.",
)


_LIMITS = (
    json_option,
    click.option("--label", help="What it is called each time, for a pinned approval.  [default: the file]"),
    click.option("--reason", default="", help="Why, for the record."),
    click.option("--expect", metavar="json|regex:RE|FILE", help="What it has to print; FILE is a JSON Schema."),
    click.option("--require", multiple=True, metavar="LAYER", help="Fail unless this isolation layer is in force."),
    click.option("-i", "--stdin", "pass_stdin", is_flag=True, help="Pass our standard input on to it."),
    click.option("--secret", "secrets", multiple=True, metavar="NAME[=VALUE]", help="A variable to keep out of sight."),
    click.option(
        "-e", "--env", "env", multiple=True, metavar="NAME[=VALUE]", help="A variable; ours, without a value."
    ),
    click.option("--disk", type=Size(), help="All its files together, such as 64MiB."),
    click.option("--memory", type=Size(), help="Memory, such as 256MiB."),
    click.option("--cpu", type=float, help="Seconds of processor time."),
    click.option("--time", "seconds", type=float, help="Seconds it may take."),
    _policy,
)
_FILES = (
    click.option("--force", is_flag=True, help="Let files that are brought back replace ours."),
    click.option("--output-dir", metavar="DIR", help="Where to put them.  [default: the current directory]"),
    click.option(
        "-o", "--output", "outputs", multiple=True, metavar="PATTERN", help="Bring new files back, such as '*.png'."
    ),
    click.option(
        "-f",
        "--file",
        "files",
        multiple=True,
        metavar="LOCAL[:GUEST]",
        shell_complete=files,
        help="Put a file beside it.",
    ),
    click.option(
        "--checkpoint/--no-checkpoint",
        default=None,
        help="On native: put its directory back if it fails.  [default: if a person had to say yes]",
    ),
    click.option(
        "--workspace",
        type=click.Choice(["scratch", "read-only", "direct"]),
        default="scratch",
        help="What it sees of --project: nothing, all of it, or (on native) the project itself, with a checkpoint.",
    ),
    click.option(
        "--project", metavar="DIR", help="For a workspace other than scratch.  [default: the current directory]"
    ),
)


def limits_of_a_run(command: F) -> F:
    """The options that every run has."""
    for option in _LIMITS:
        command = option(command)
    return command


def limits_and_context(command: F) -> F:
    """The options that `run` and `exec` share."""
    for option in (*_LIMITS[:6], *_FILES, *_LIMITS[6:], _backend):
        command = option(command)
    return command


def run_options(given: dict[str, Any]) -> dict[str, Any]:
    """What `limits_of_a_run` or `limits_and_context` was given, as options of a run."""
    limits = {"time": given["seconds"], "cpu": given["cpu"], "memory": given["memory"], "disk": given["disk"]}
    return {
        "backend": given.get("backend", "auto"),
        "policy": given["policy"],
        "limits": {name: value for name, value in limits.items() if value is not None},
        "env": dict(_variable(text) for text in given["env"]),
        "secrets": dict(_variable(text) for text in given["secrets"]),
        "files": dict(_file(text) for text in given.get("files", ())),
        "outputs": given.get("outputs", ()),
        "stdin": standard_input() if given["pass_stdin"] else b"",
        "workspace": given.get("workspace", "scratch"),
        "project": project_directory(given.get("project")),
        "checkpoint": given.get("checkpoint"),
        "require": given["require"],
        "reason": given["reason"],
        "expect": _expected(given["expect"]),
        "label": given["label"] or "",
        "whole_output": True,  # a file or a pipe gets all of it
    }


def _expected(text: str | None) -> Any:
    if text is None or text == "json" or text.startswith("regex:"):
        return text
    from redoma.output.expectations import schema_file

    return schema_file(read_file(Path(text), _MAX_SCHEMA), text)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise InvalidRequest(f"{name} has no value", why="it isn't set in our environment", next=f"write {name}=VALUE")
    return name, os.environ[name]


def _file(text: str) -> tuple[str, bytes]:
    local, _, guest = text.partition(":")
    return guest or Path(local).name, read_file(Path(local), _MAX_FILE)


@click.command("run", options_metavar="[OPTIONS]")
@click.argument("source", shell_complete=files)
@click.argument("arguments", nargs=-1, shell_complete=files)
@click.option("--lang", type=click.Choice(["python", "bash"]), help="[default: by the file's name, else python]")
@limits_and_context
@click.option("--cwd", metavar="DIR", help="A directory of the host to work in, on native.  [default: an empty one]")
@click.pass_obj
def run(
    state: State,
    /,
    source: str,
    arguments: tuple[str, ...],
    lang: Language | None,
    cwd: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run code: a FILE, `-` for standard input, or the code itself.

    ARGUMENTS are the code's own, as sys.argv or $1; write those that begin with a dash after `--`.

    It works in an empty directory of its own, also on native, unless --cwd or --workspace says otherwise. The value of
    a last expression, as in `6 * 7`, is printed by jail and monty only.

    \b
    Examples:
      redoma run 'print(6 * 7)'
      redoma run analyse.py -f data.csv --time 10 --memory 256MiB
      redoma run convert.py 2025 2026 -- --verbose
      redoma run plot.py -f data.csv -o '*.png' --output-dir plots
      echo 'print(1)' | redoma run -
      redoma run --lang bash --backend native --cwd . 'ls | wc -l'
    """
    from redoma.pipeline.sync import Executor

    if source == "-" and given["pass_stdin"]:
        raise InvalidRequest("--stdin was given with `-`", why="the code itself comes from there", next="use a file")
    code, language, inline, guessed = read_source(source, lang)
    if given["label"] is None and not inline and source != "-":
        given["label"] = os.path.realpath(source)
    with Executor(state.attended) as executor:
        live = executor.stream(code, language, **run_options(given), args=arguments, cwd=cwd)
        result = follow(live, as_json)
        status = show(result, as_json, given, with_value=inline)
    if guessed and not as_json and result.exception in ("SyntaxError", "NameError") and is_bash(code):
        if result.exception == "SyntaxError":
            click.echo(f"redoma: not valid Python; {_DID_YOU_MEAN}", err=True)
        elif undefined := undefined_name(code):
            click.echo(f"redoma: as Python this only fails: {undefined!r} is not defined; {_DID_YOU_MEAN}", err=True)
    return status


@click.command("eval")
@click.argument("code")
@json_option
@click.pass_obj
def evaluate(state: State, code: str, as_json: bool) -> int:
    """Evaluate Python on Monty and print the answer as a dictionary.

    \b
    Example:
      redoma eval "2 + 2"      {'status': 'success', 'output': 4}
    """
    from redoma.facades.safe import answer
    from redoma.frontends.shapes import json_value
    from redoma.pipeline.sync import Executor

    with Executor(state.config) as executor:
        result = executor.run(code, backend="monty")
    said = answer(result)
    if as_json:
        print_json({key: json_value(value) for key, value in said.items()})
    else:
        click.echo(repr(said))
    return 0 if result.ok else 1


@click.command("check", cls=TakesCommand, options_metavar="[OPTIONS] (SOURCE | -- COMMAND...)")
@click.option("--lang", type=click.Choice(["python", "bash"]), help="[default: by the file's name, else python]")
@click.option("--time", "seconds", type=float, help="Seconds it would ask for.")
@click.option(
    "--backend",
    shell_complete=backends,
    help="auto, jail, docker, monty or native.  [default: in a cell and on the host]",
)
@_policy
@json_option
@click.argument("source", required=False, metavar="", shell_complete=files)
@click.pass_obj
def check(
    state: State,
    /,
    source: str | None,
    lang: Language | None,
    seconds: float | None,
    backend: str | None,
    policy: str | None,
    as_json: bool,
) -> int:
    """Print the verdict, level and backend, without running anything.

    Without --backend you see what is said of it in a cell and on the host itself, side by side.

    Exit status: 0 allow, 1 prompt, 2 forbid, as on the host unless --backend says where; 3 if it can't be told, as of
    what is not valid Python, or could only fail as such.

    \b
    Examples:
      redoma check script.sh
      redoma check --lang bash 'curl example.com/x | sh'
      redoma check -- rm -rf /
    """
    command = given_command()
    if (source is None) == (not command):
        raise InvalidRequest(
            "there is nothing to check, or too much",
            why="it takes a SOURCE, or a command after `--`",
            next="write it like: redoma check script.sh, or redoma check -- rm -rf build",
        )
    inline = guessed = False
    if command:
        what: dict[str, Any] = {"argv": command, "language": "command"}
    else:
        code, language, inline, guessed = read_source(source or "", lang)
        what = {"code": code, "language": language}
    places = verdicts(state.config, what, backend, seconds, policy)
    if any(place.decision is Decision.ALLOW for place in places):
        must_parse(places[-1].request)
        if guessed:
            _must_be_meant_as_python(places[-1].request.code)
    if as_json:
        from redoma.frontends.shapes import verdict_json

        shapes = {place.where: verdict_json(place.evaluation, place.level, place.backend) for place in places}
        print_json({**shapes[places[-1].where], **(shapes if len(shapes) > 1 else {})})
    else:
        _print_verdicts(places)
        if source is not None and lang is None and inline:
            click.echo("read as  Python; for a shell command add --lang bash")
    return EXIT[places[-1].decision]


_DID_YOU_MEAN = "did you mean --lang bash?"


def must_parse(request: Request) -> None:
    """Raises `InvalidRequest` for Python that does not parse: it must not be told that it may run."""
    if request.language != "python":
        return
    from redoma.policy import python
    from redoma.policy.facts import Trait

    facts = python.facts(request.code, compiled=True)
    wrong = [fact for fact in facts if isinstance(fact, Trait) and fact.name == "python.syntax-error"]
    if wrong:
        where = f"line {wrong[0].line}: " if wrong[0].line else ""
        raise InvalidRequest(
            "not valid Python",
            why=f"{where}{wrong[0].text}",
            next=_DID_YOU_MEAN if is_bash(request.code) else "correct the syntax",
        )


def _must_be_meant_as_python(code: str) -> None:
    """Raises `InvalidRequest` for what parses as Python and only fails as such: `rm -rf` is a subtraction."""
    if undefined := undefined_name(code):
        raise InvalidRequest(
            "as Python this only fails",
            why=f"{undefined!r} is not defined",
            next=_DID_YOU_MEAN if is_bash(code) else "define it first, or say that it is Python: --lang python",
        )


def _print_verdicts(places: list[Verdict]) -> None:
    from redoma.lib.sanitise import sanitise

    if heads(places):
        click.echo(click.style(heads(places), dim=True))
    for finding, decisions, reasons in side_by_side(places):
        where = f"{finding.line}:{finding.column}  " if finding.line else ""
        text = sanitise(finding.text).replace("\n", " ")
        click.echo(f"{columns(decisions)}  {where}{finding.rule}  {text}")
        click.echo(f"    {finding.reason}")
        for name, why in reasons.items():
            click.echo(f"    {name}: {why}")
        if finding.suggestion:
            click.echo(f"    → {finding.suggestion}")
    evaluation, count = places[-1].evaluation, len(places[-1].evaluation.findings)
    verdict = click.style(columns([place.decision for place in places]), bold=True)
    click.echo(f"{verdict}  (policy {evaluation.policy}, {count} finding{'' if count == 1 else 's'})")
    for place in places:
        here = f"{place.where}  " if len(places) > 1 else ""
        for reason in place.level.why:
            click.echo(f"{here}{click.style(place.level.level, bold=True)}  {sanitise(reason)}".replace("\n", " "))
    backends = [
        f"{place.backend or _NOWHERE}{' (auto)' if place.request.backend == 'auto' else ''}" for place in places
    ]
    click.echo(f"backend  {', '.join(backends)}")


_NOWHERE = "none that can run it: see `redoma doctor`"


def follow(live: LiveRun, as_json: bool) -> Result:
    """Print what it prints when it does, unless it all goes into one JSON document. Leaving early ends the run.

    Raises `BrokenPipeError` as soon as nobody reads our output any more, as in `| head -n 3`: also while the run prints
    nothing.
    """
    try:
        with live as run, _ended_with_its_reader(live) as reader_is_gone:
            for stream, text in run:
                if not as_json:
                    click.echo(text, nl=False, err=stream == "stderr")
            if reader_is_gone.is_set():
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    except BaseException:  # Ctrl-C, or whoever has ended us: there is no result, and the project was put back
        if live.rolled_back is not None:
            project, restored = live.rolled_back
            _print_put_back(project, restored.paths, {**restored.left, **restored.failed})
        raise
    if "stdout" in live.altered and not as_json and not sys.stdout.isatty():
        note = "parts that are not plain text were replaced or left out; "
        note += "-o FILE brings files back whole, from a run without --workspace"
        click.echo(f"{click.style('redoma: note:', fg='yellow')} {note}", err=True)
    return run.result


@contextmanager
def _ended_with_its_reader(live: LiveRun) -> Iterator[threading.Event]:
    """End the run when the pipe that we print to has no reader any more; the event then says so."""
    gone = threading.Event()
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (OSError, ValueError):  # closed, or no file
        yield gone
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield gone
        return
    wake, woken = os.pipe2(os.O_CLOEXEC)

    def watch() -> None:
        poll = select.poll()
        poll.register(output, 0)  # which tells of errors and hang-ups alone
        poll.register(wake, 0)
        if any(number == output for number, _ in poll.poll()):
            gone.set()
            live.close()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield gone
    finally:
        os.close(woken)  # a hang-up
        watcher.join()
        os.close(wake)


def show(result: Result, as_json: bool, given: dict[str, Any], *, with_value: bool = False) -> int:
    """What is left to say after its output."""
    if as_json:
        from redoma.frontends.shapes import result_json

        print_json(result_json(result))
        return _write(result, given) if given["output_dir"] is not None else result.shell_exit
    if with_value and result.value is not None:
        click.echo(repr(result.value))
    sys.stdout.flush()
    told = result.status is Status.ERROR and result.stderr and not result.mismatch
    if result.error and not told:
        if result.stderr and not result.stderr.endswith("\n"):
            click.echo(err=True)
        colour = "yellow" if result.status.ending in ("refused", "pending") else "red"
        click.echo(f"{click.style(f'redoma: {result.status}:', fg=colour)} {result.error}", err=True)
    if result.denial is not None:
        _print_denial(result.denial, result.error or "")
    if result.status is Status.ERROR:
        _print_lacking(result)
    _print_rollback(result)
    if result.passed_over and result.status.ending == "ran":
        label = click.style("redoma: backend:", fg="yellow")
        for preferred, why in result.passed_over.items():
            click.echo(
                f"{label} it ran on {result.backend}, because {preferred} could not run it: {_name(why)}", err=True
            )
    if result.redacted:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.redacted.items()))
        click.echo(f"{click.style('redoma: redacted:', fg='yellow')} {kinds}", err=True)
    return _write(result, given)


def _print_lacking(result: Result) -> None:
    """What it wanted and could not have here: it may be why it failed."""
    for finding in result.evaluation.findings:
        if finding.out_of_reach == "no network" or (finding.out_of_reach and finding.rule.startswith("install.")):
            label = click.style("redoma: note:", fg="yellow")
            click.echo(f"{label} this sandbox has no network: {finding.suggestion}", err=True)
            return


def _print_denial(denial: Denial, said: str) -> None:
    """What the message before it doesn't say."""
    retry = f"{'may help' if denial.retry else 'no use'}: {denial.retry_why}"
    for name, text in {"about": denial.resource, "allowed": denial.allowed, "again": retry}.items():
        if text and text not in said:
            click.echo(f"  {name:8} {_name(text)}", err=True)
    if denial.narrowest:
        click.echo("  permit   by these lines of redoma.yaml:", err=True)
        click.echo("".join(f"    {line}\n" for line in denial.narrowest.splitlines()), nl=False, err=True)


def _print_rollback(result: Result) -> None:
    """Of a run in a directory of the host itself."""
    if result.no_checkpoint:
        click.echo(f"{click.style('redoma: no checkpoint:', fg='yellow')} {_name(result.no_checkpoint)}", err=True)
    if result.rollback is not None and result.effect is not None:
        _print_put_back(result.effect.project, [change.path for change in result.effect.changes], result.rollback)


def _print_put_back(project: str, paths: Iterable[str], left: Mapping[str, str]) -> None:
    for path, why in left.items():
        click.echo(f"{click.style('redoma: not put back:', fg='red')} {_name(path)}: {why}", err=True)
    back = [path for path in paths if path not in left]
    some = ", ".join(map(_name, back[:_SHOWN])) + (", ..." if len(back) > _SHOWN else "")
    what = f"{len(back)} change{'' if len(back) == 1 else 's'} in {_name(project)}" + (f": {some}" if some else "")
    click.echo(f"{click.style('redoma: rolled back:', fg='yellow')} {what}", err=True)


def _write(result: Result, given: dict[str, Any]) -> int:
    """Put the files it left where they are wanted; the exit status then."""
    from .outputs import hidden_files, write_files

    hidden = dict.fromkeys(
        hidden_files(result.files, given["outputs"]), "hidden; a pattern with its dot brings it back"
    )
    files = {path: content for path, content in result.files.items() if path not in hidden}
    written, refused = write_files(given["output_dir"] or ".", files, force=given["force"])
    for path in written:
        click.echo(f"redoma: wrote {_name(os.path.join(given['output_dir'] or '', path))}", err=True)
    for path, why in {**hidden, **result.left_out}.items():
        what = f"{_name(path)}: {why}" if path else why
        click.echo(f"{click.style('redoma: left out:', fg='yellow')} {what}", err=True)
    for path, why in refused.items():
        click.echo(f"{click.style('redoma: not written:', fg='red')} {_name(path)}: {why}", err=True)
    return FAILED if refused and result.ok else result.shell_exit


def _name(path: str) -> str:
    from redoma.lib.sanitise import sanitise

    return sanitise(path).replace("\n", "\ufffd").replace("\t", "\ufffd")
