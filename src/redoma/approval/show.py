"""A question as text, for a person to read before deciding.

The requester wrote its content, so none of it may move the cursor, hide, or look like our own text: invisible
characters are shown as escapes, and each line of it begins with a bar. Nothing that looks like a secret is replaced
here, because a replacement could hide what runs.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from ..lib.sanitise import visible
from ..models import Change, Effect, Finding, Version
from .ask import Ask

_MAX_REQUEST = 100_000  # characters of a request; a person can't be expected to read more
_MAX_DIFFS = 100_000
_MAX_WORDS = 2000  # characters of a reason
_ROW = 76  # columns of a terminal with 80, after the bar
_CHECKPOINT = "that directory is put back if the run fails, where it can be kept; nothing outside of it is"
_UNLESS = " (and not if a program started it by redoma.exec, to end it when it likes)"
_NO_CHECKPOINT = "none: what the run changes stays changed, also if it fails"
_SHA256 = 64  # digits


class Shown(NamedTuple):
    """A question as text."""

    text: str
    whole: bool
    """Whether the request and its effect are shown completely. If not, it must not be approved at a prompt."""


def describe(ask: Ask) -> Shown:
    """Return the question as text: the requester, the reason, the code, the risks, the effect."""
    request = ask.request
    theirs = list(_request(ask))
    whole = sum(map(len, theirs)) <= _MAX_REQUEST
    if not whole:
        theirs = [f"  (it is too long to be shown here: {len(request.text):,} characters of code or command)"]
    limits = request.limits
    where = f" on {_line(ask.entry)}" if ask.entry else f" on {_line(request.backend)}"
    who = _line(ask.requester, _MAX_WORDS) or "somebody"
    lines = [
        f"{ask.level}: {who} wants to run this {request.language} request{where}",
        f"reason:   {_line(ask.reason, _MAX_WORDS) or '(none was given)'}",
        *([f"label:    {_line(ask.label, _MAX_WORDS)}"] if ask.label else []),
        f"limits:   {limits.time:g} s, {limits.memory:,} bytes of memory, {limits.processes} processes",
        f"digest:   {ask.digest}",
        f"asked:    {ask.created:%Y-%m-%d %H:%M:%S} UTC; until {ask.expires:%Y-%m-%d %H:%M:%S} UTC, as {ask.id}",
        "",
        *theirs,
        f"risks, by policy {_line(ask.evaluation.policy)}:",
        *(_risk(finding) for finding in ask.evaluation.findings),
        *(["  (none was found)"] if not ask.evaluation.findings else []),
    ]
    if ask.effect is not None:
        lines += ["", *_effect(ask.effect)]
        diffs = sum(len(change.diff) for change in ask.effect.changes)
        whole = whole and diffs <= _MAX_DIFFS and not any(map(_is_unseen, ask.effect.changes))
    return Shown("\n".join(lines), whole)


def _request(ask: Ask) -> Iterator[str]:
    request = ask.request
    yield "command:" if request.language == "command" else "code:"
    yield from _barred(request.text)
    if request.language != "command" and request.argv:
        yield f"arguments: {_line(' '.join(map(repr, request.argv)))}"
    for name, value in (("directory", request.cwd), ("project", request.project)):
        if value:
            yield f"{name}: {_line(value)}" + (f" ({request.workspace})" if name == "project" else "")
    if request.touches is not None:
        unless = _UNLESS if request.checkpoint is None and ask.unread_input else ""
        yield f"checkpoint: {_NO_CHECKPOINT if request.checkpoint is False else _CHECKPOINT + unless}"
    for name, value in request.env.items():
        yield f"variable: {_line(name)}={_line(value)}"
    for rule in request.network:
        yield f"network:  {_line(str(rule))}" + "".join(f" {_line(path)}" for path in rule.paths[1:])
    if request.uses is not None:
        yield f"packages: {_line(request.uses.words)}"
    for name, use in request.held.items():
        places = " (also in queries)" * use.query + " (also in bodies)" * use.body
        yield f"secret:   {_line(name)} stays outside, and is sent to {_line(', '.join(use.hosts))}{places}"
    if ask.secrets:
        yield f"secrets:  {_line(', '.join(ask.secrets))} (values are not shown)"
    for name, content in (*request.files.items(), *([("standard input", request.stdin)] if request.stdin else [])):
        yield f"file:     {_line(name)}, {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
        if (text := _as_text(content)) is not None:
            yield from _barred(text)
    yield from _scripts(ask)
    if ask.unread_input:
        yield "input:    whatever it is given while it runs"
    if ask.session:
        yield f"session:  {ask.session}; code that ran there before may have changed what this does"
    if request.outputs:
        yield f"brings back: {_line(' '.join(request.outputs))}"
    yield ""


def _scripts(ask: Ask) -> Iterator[str]:
    """Yield the files that the request would execute. An approval is bound to their present content."""
    if ask.scripts:
        yield "executes, bound as they are now:"
    for path, held in ask.scripts.items():
        yield f"  {_line(path)}  {f'sha256 {held}' if len(held) == _SHA256 else _line(held)}"
    if ask.unbound:
        yield "may execute others that are NOT bound, so it can't be pinned:"
        yield from (f"  {_line(why)}" for why in ask.unbound)


def _risk(finding: Finding) -> str:
    where = f" (line {finding.line})" if finding.line else ""
    text = f": {_line(finding.text)}" if finding.text else ""
    return f"  {finding.decision}  {_line(finding.reason)} [{_line(finding.rule)}]{where}{text}"


def _effect(effect: Effect) -> Iterator[str]:
    yield f"effect on {_line(effect.project)}: {len(effect.changes)} changes"
    yield from (f"  {change.kind:9} {_change(change)}" for change in effect.changes)
    yield from (f"  left out  {_line(path)}: {_line(why)}" for path, why in effect.refused.items())
    if effect.network:
        yield f"requests that it made to hosts, which have happened: {len(effect.network)}"
        yield from (f"  {one.decision:9} {_line(one.words)}" for one in effect.network)
    room, unseen = _MAX_DIFFS, 0
    for change in effect.changes:
        room -= len(change.diff)
        if room >= 0 and change.diff:
            yield from ("", *_barred(change.diff))
        unseen += room < 0 and bool(change.diff)
    if unseen:
        yield f"  ({unseen} diffs are not shown: there is too much to read)"


def _is_unseen(change: Change) -> bool:
    """Return whether a change of a file's content isn't shown by a complete diff."""
    before, after = (version.sha256 if version and version.size else "" for version in (change.before, change.after))
    # Lines of the file itself begin with a sign in a diff, so a line that begins like this is ours.
    cut = any(line.startswith("\\ Too long to show") for line in change.diff.split("\n"))
    return cut or (before != after and not change.diff)


def _change(change: Change) -> str:
    moved = f"{_line(change.old_path)} -> " if change.old_path else ""
    size = f"{_version(change.before)} -> {_version(change.after)}"
    if _is_unseen(change):
        versions = (("before", change.before), ("after", change.after))
        size += "".join(f"; {when} sha256 {each.sha256}" for when, each in versions if each and each.sha256)
    return f"{moved}{_line(change.path)}  {size}" + (f"  ({_line(change.protected)})" if change.protected else "")


def _version(version: Version | None) -> str:
    match version:
        case None:
            return "nothing"
        case Version(kind="file"):
            return f"{version.size:,} bytes, mode {version.mode:o}"
        case Version(kind="symlink"):
            return f"link to {_line(version.target)}"
        case _:
            return f"directory, mode {version.mode:o}"


def _barred(text: str) -> Iterator[str]:
    """Yield the text with a bar before each row, also before rows that the terminal would wrap."""
    for line in visible(text).split("\n"):
        rows = list(_rows(line))
        yield f"  | {rows[0]}"
        yield from (f"  |+{row}" for row in rows[1:])


def _rows(line: str) -> Iterator[str]:
    if len(line) <= _ROW // 2 and "\t" not in line:
        yield line
        return
    row, room = "", _ROW
    for char in line:
        width = 8 if char == "\t" else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        width = 0 if unicodedata.combining(char) else width
        if width > room:
            yield row
            row, room = "", _ROW
        row, room = row + char, room - width
    yield row


def _line(text: str, max_chars: int | None = None) -> str:
    """Return the text on one line, at most `max_chars` characters of it if given."""
    line = visible(text).replace("\n", "\\n").replace("\t", "\\t")
    more = len(line) - max_chars if max_chars is not None else 0
    return line if more <= 0 else f"{line[:max_chars]}… ({more:,} more characters)"


def _as_text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
