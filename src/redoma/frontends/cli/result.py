"""Follows a run while it prints, then prints the rest of its result, and writes the files it left.

The code chose the names and contents of these files. Nothing is written outside the directory, through a link, over an
existing file (unless requested), as an executable, or under a hidden name that wasn't requested:
`.git/hooks/pre-commit` or `.envrc` would be run automatically one day.
"""

from __future__ import annotations

import errno
import os
import select
import shlex
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from redoma.lib.errors import InvalidRequest
from redoma.lib.files import reason
from redoma.models import Denial, Result, Status
from redoma.models.reach import NAME_THE_HOST, NO_NETWORK

from .emit import counted, echo, note, print_json, wants_json
from .state import FAILED

if TYPE_CHECKING:
    from redoma.pipeline.sync import LiveRun

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MISSING_FILE = 1
"""Our exit status if the run ended well and a file that was requested by its name did not come back."""
_MAX_SHOWN = 20
"""How many rolled-back paths are listed."""


def follow(live: LiveRun) -> Result:
    """Print the output of a run as it arrives, unless everything goes into one JSON document. Leaving early ends the
    run.

    Returns its result. Raises `BrokenPipeError` as soon as the reader of our output is gone, as in `| head -n 3`, even
    if the run prints nothing.
    """
    try:
        with live as run, _ended_with_its_reader(live) as reader_is_gone:
            for stream, text in run:
                if not wants_json():
                    echo(text, nl=False, err=stream == "stderr")
            if reader_is_gone.is_set():
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    except BaseException:  # Ctrl-C, or a signal: there is no result, and the project was rolled back
        if live.rolled_back is not None:
            project, restored = live.rolled_back
            _print_put_back(project, restored.paths, {**restored.left, **restored.failed})
        raise
    if "stdout" in live.altered and not wants_json() and not sys.stdout.isatty():
        note(
            "parts that are not plain text were replaced or left out; "
            "-o FILE brings files back whole, from a run without --workspace"
        )
    return run.result


@contextmanager
def _ended_with_its_reader(live: LiveRun) -> Iterator[threading.Event]:
    """End the run when the pipe that we print to has no reader any more, and set the yielded event."""
    gone = threading.Event()
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (OSError, ValueError):  # closed, or not a file
        yield gone
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield gone
        return
    wake, woken = os.pipe2(os.O_CLOEXEC)

    def watch() -> None:
        poll = select.poll()
        poll.register(output, 0)  # reports only errors and hang-ups
        poll.register(wake, 0)
        if any(number == output for number, _ in poll.poll()):
            gone.set()
            live.close()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield gone
    finally:
        os.close(woken)  # causes a hang-up, which wakes the watcher
        watcher.join()
        os.close(wake)


def show(
    result: Result,
    *,
    outputs: Iterable[str] = (),
    output_dir: str | None = None,
    force: bool = False,
    with_value: bool = False,
) -> int:
    """Print what remains after the run's output, write its files, and return our exit status.

    `outputs` are the requested patterns; `with_value` prints the value of a last expression.
    """
    outputs = [*outputs]
    if wants_json():
        from redoma.frontends.shapes import result_json

        print_json(result_json(result))
        if output_dir is None:
            return _MISSING_FILE if result.ok and _missing(result, outputs) else result.shell_exit
        return _write_files(result, outputs, output_dir, force)
    shown = _draw(result, output_dir, with_value=with_value) if result.displays else False
    if with_value and result.value is not None and not shown:
        echo(repr(result.value))
    sys.stdout.flush()
    told = result.status is Status.ERROR and result.stderr and not result.mismatch
    if result.error and not told:
        if result.stderr and not result.stderr.endswith("\n"):
            echo(err=True)
        colour = "yellow" if result.status.ending in ("refused", "pending") else "red"
        note(result.error, str(result.status), colour)
    if result.denial is not None:
        _print_denial(result.denial, result.error or "")
    if result.status is Status.ERROR:
        said = _print_lacking(result)
        for hint in result.hints:
            if hint not in said:
                note(_name(hint), "hint")
    _print_refused_hosts(result)
    _print_rollback(result)
    if result.passed_over and result.status.ending == "ran":
        for preferred, why in result.passed_over.items():
            note(f"it ran on {result.backend}, because {preferred} could not run it: {_name(why)}", "backend")
        if result.backend == "monty" and result.status is Status.ERROR:
            _print_other_backends()
    if result.redacted:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.redacted.items()))
        note(kinds, "redacted")
    return _write_files(result, outputs, output_dir, force)


def _draw(result: Result, directory: str | None, *, with_value: bool) -> bool:
    """Draw what the run showed. Returns whether the value of its last expression is among that; it is drawn only
    `with_value`."""
    from .displays import Screen

    last = result.value_repr is not None and result.displays[-1].text == result.value_repr
    screen = Screen(directory)
    for display in result.displays[:-1] if last and not with_value else result.displays:
        screen.draw(display)
    return last


def _print_lacking(result: Result) -> str:
    """Say that there is no network, if the code wanted it: that may be why it failed. Returns what it said."""
    for finding in result.evaluation.findings:
        installs = finding.rule.startswith("install.")
        if finding.out_of_reach == NO_NETWORK or (finding.out_of_reach and installs):
            said = f"this sandbox has no network: {finding.suggestion}{'' if installs else NAME_THE_HOST}"
            note(said)
            return said
    return ""


def _print_other_backends() -> None:
    """Say what would run all of Python here, as the failed run got monty's subset."""
    from redoma.backends.jail.lean import advice

    if text := advice():
        note(f"monty knows a part of Python only\n{text}", "backend")


def _print_refused_hosts(result: Result) -> None:
    """Print which requests to hosts were refused, each once, unless the denial or an effect's list shows them."""
    if result.effect is not None:
        return
    refused = dict.fromkeys((one.words, one.rule) for one in result.network if one.decision == "denied")
    for words, rule in list(refused)[:_MAX_SHOWN]:
        note(_name(words) + (f"; --allow-host {shlex.quote(_name(rule))} permits it" if rule else ""), "network")
    if len(refused) > _MAX_SHOWN:
        note(f"{len(refused) - _MAX_SHOWN} more requests were refused", "network")


def _print_denial(denial: Denial, said: str) -> None:
    """Print the parts of a denial that the message before it doesn't contain."""
    if denial.rule.startswith("backend.") and denial.allowed in said:  # the message says it all
        return
    retry = f"{'may help' if denial.retry else 'no use'}: {denial.retry_why}"
    for name, text in {"about": denial.resource, "allowed": denial.allowed, "again": retry}.items():
        if text and text not in said:
            echo(f"  {name:8} {_name(text)}", err=True)
    if denial.narrowest:
        echo("  permit   by these lines of redoma.yaml:", err=True)
        echo("".join(f"    {line}\n" for line in denial.narrowest.splitlines()), nl=False, err=True)


def _print_rollback(result: Result) -> None:
    """Print what was rolled back after a run in a directory of the host itself."""
    if result.no_checkpoint:
        note(_name(result.no_checkpoint), "no checkpoint")
    if result.rollback is not None and result.effect is not None:
        _print_put_back(result.effect.project, [change.path for change in result.effect.changes], result.rollback)


def _print_put_back(project: str, paths: Iterable[str], left: Mapping[str, str]) -> None:
    for path, why in left.items():
        note(f"{_name(path)}: {why}", "not put back", "red")
    back = [path for path in paths if path not in left]
    some = ", ".join(map(_name, back[:_MAX_SHOWN])) + (", ..." if len(back) > _MAX_SHOWN else "")
    note(f"{counted(len(back), 'change')} in {_name(project)}" + (f": {some}" if some else ""), "rolled back")


def check_outputs(outputs: Iterable[str], directory: str | None, *, force: bool) -> None:
    """Check before a run that the files it will leave can be written.

    Raises `InvalidRequest` if a file that is requested by its name is there already, or `directory` can't be written
    to.
    """
    if not outputs or (wants_json() and directory is None):
        return
    from redoma.backends.collect import is_magic

    place = existing = os.path.abspath(directory or ".")
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        why = "Permission denied" if os.path.isdir(existing) else "it is not a directory"
        raise InvalidRequest(
            f"nothing ran, because its files could not be written: {_name(existing)}",
            why=why,
            next="name another directory with --output-dir",
        )
    for pattern in outputs:
        path = os.path.join(place, pattern)
        if pattern.startswith("/") or is_magic(pattern) or _is_directory(path):
            continue
        if not force and os.path.lexists(path):
            raise InvalidRequest(
                f"nothing ran, because {_name(os.path.join(directory or '', pattern))} is there already",
                why="-o would replace it",
                next="add --force to replace it, or --output-dir DIR to write elsewhere",
            )


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _write_files(result: Result, outputs: list[str], directory: str | None, force: bool) -> int:
    """Write the files that the run left, list them, and return our exit status."""
    hidden = dict.fromkeys(hidden_files(result.files, outputs), "hidden; a pattern with its dot brings it back")
    files = {path: content for path, content in result.files.items() if path not in hidden}
    written, refused = write_files(directory or ".", files, force=force)
    for path in written:
        echo(f"redoma: wrote {_name(os.path.join(directory or '', path))}", err=True)
    missing = _missing(result, outputs)
    for path, why in {**hidden, **result.left_out}.items():
        if path not in missing:
            note(f"{_name(path)}: {why}" if path else why, "left out")
    for path, why in missing.items():
        note(f"{_name(path)}: {why}", "missing", "red")
    for path, why in refused.items():
        note(f"{_name(path)}: {why}", "not written", "red")
    if refused:
        _save_elsewhere({path: files[path] for path in refused}, directory or ".")
    if not result.ok:
        return result.shell_exit
    return FAILED if refused else _MISSING_FILE if missing else result.shell_exit


def _missing(result: Result, outputs: list[str]) -> dict[str, str]:
    """Return the files that were requested by their names and did not come back, with the reason."""
    if not result.left_out or result.status.ending != "ran":
        return {}
    from redoma.backends.collect import MISSING, UNCHANGED

    reasons = {path: result.left_out[path] for path in outputs if result.left_out.get(path, UNCHANGED) != UNCHANGED}
    return {path: "the run made no such file" if why == MISSING else why for path, why in reasons.items()}


def _save_elsewhere(files: Mapping[str, bytes], directory: str) -> None:
    """Write files that could not be written where they belong to a new directory: nobody can make them again."""
    import tempfile

    for place in (directory, None):
        try:
            new = tempfile.mkdtemp(prefix="redoma-files-", dir=place)
        except OSError:
            continue
        saved, _ = write_files(new, files, force=False)
        if saved:
            note(f"{counted(len(saved), 'file')} in {_name(os.path.relpath(new) if place else new)}", "saved")
            return
        with suppress(OSError):
            os.rmdir(new)


def _name(path: str) -> str:
    from redoma.lib.sanitise import sanitise

    return sanitise(path).replace("\n", "\ufffd").replace("\t", "\ufffd")


def hidden_files(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the paths with a part that begins with a dot, unless a pattern has such a part too."""
    asked_for = any(_is_hidden(pattern) for pattern in patterns)
    return [path for path in files if _is_hidden(path) and not asked_for]


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def write_files(directory: str, files: Mapping[str, bytes], *, force: bool) -> tuple[list[str], dict[str, str]]:
    """Write files below `directory`. Returns the paths that were written, and why others were not."""
    written: list[str] = []
    refused: dict[str, str] = {}
    if not files:
        return written, refused
    try:
        os.makedirs(directory, exist_ok=True)
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return written, dict.fromkeys(files, f"{directory}: {reason(error)}")
    try:
        for path, content in sorted(files.items()):
            parts = path.split("/")
            if {"", ".", ".."} & set(parts) or "\0" in path:
                refused[path] = "not a plain relative path"
            elif why := _write_one(top, parts, content, force):
                refused[path] = why
            else:
                written.append(path)
    finally:
        os.close(top)
    return written, refused


def _write_one(top: int, parts: list[str], content: bytes, force: bool) -> str:
    """Write one file below the directory `top`. Returns why it could not be done, or an empty text."""
    *directories, name = parts
    here = os.dup(top)
    try:
        for part in directories:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=here)
            below = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        if force:
            # Renamed into place when it is complete; a link with that name is replaced, not followed.
            fresh = f".redoma-{os.urandom(8).hex()}"
            _write_new(here, fresh, content)
            try:
                os.replace(fresh, name, src_dir_fd=here, dst_dir_fd=here)
            except OSError:
                os.unlink(fresh, dir_fd=here)
                raise
        else:
            _write_new(here, name, content)
    except FileExistsError:
        return "there is such a file already; --force replaces it"
    except OSError as error:
        return reason(error)
    finally:
        os.close(here)
    return ""


def _write_new(directory: int, name: str, content: bytes) -> None:
    descriptor = os.open(name, _NEW, 0o666, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        os.unlink(name, dir_fd=directory)  # don't leave a partial file
        raise
