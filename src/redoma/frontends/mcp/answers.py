"""Builds what a model gets back: a text, the same as data, and pictures. All of it is bounded and valid as JSON.

Much of it was written by the code of a run. So every text goes through `clean`: a lone surrogate would end the
connection of a client over stdio. And pictures are recognised by their content: a client would hand anything else to
its decoder.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Literal

from mcp_types import CallToolResult, ImageContent, TextContent
from pydantic import BaseModel, Field

from ...lib.text import cut_middle, valid_utf8
from ...models import Change, Display, Effect, Evaluation, Result
from ...workspace.kept import Kept

MAX_TEXT = 8000
"""Characters of a text for a model, and of each stream in the data."""
MAX_PICTURES = 5
MAX_PICTURE_BYTES = 4 << 20
"""Maximum size of all pictures of one answer together."""
_MAX_LINE = 1000
_MAX_LISTED = 100
_SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}


class DenialOutput(BaseModel):
    """What said no, and what would be allowed."""

    rule: str
    why: str
    allowed: str = Field(description="What to do instead.")
    retry: bool = Field(description="Whether the same call may succeed later.")


class PendingOutput(BaseModel):
    """What a person has to approve first."""

    id: str
    how: str = Field(description="What the person types to approve it.")


class RunOutput(BaseModel):
    """How a run ended."""

    status: Literal[
        "ok", "error", "timeout", "memory", "output", "killed", "forbidden", "denied", "expired", "failed", "pending"
    ]
    ending: Literal["ran", "refused", "failed", "pending"]
    run_id: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    value: str | None = Field(default=None, description="The last expression, as Python prints it.")
    error: str | None = None
    denial: DenialOutput | None = None
    approval: PendingOutput | None = None
    session_id: str | None = None
    files: dict[str, int] = Field(default={}, description="Files that were brought back, and their sizes.")
    pictures: int = Field(default=0, description="How many pictures follow.")
    backend: str = ""
    missing: list[str] = Field(default=[], description="Layers of isolation that were not in force.")
    seconds: float = 0.0
    truncated: bool = Field(default=False, description="Whether some of the output was left out.")


class ChangeOutput(BaseModel):
    path: str
    kind: str
    protected: str = ""


class ChangesOutput(BaseModel):
    """What a command did in an overlay of a project, and what has become of it."""

    id: str = Field(description="For apply_changes, discard_changes and undo_changes; empty if nothing changed.")
    state: str = Field(description="kept (not applied), partly, applied, undone, discarded, broken or none.")
    project: str
    changes: list[ChangeOutput] = []
    more: int = Field(default=0, description="How many changes are not listed.")
    diff: str = ""
    left: dict[str, str] = Field(default={}, description="Path → why it was not, or can't be, applied.")
    run: RunOutput | None = None
    approval: PendingOutput | None = None


class FindingOutput(BaseModel):
    rule: str
    decision: str
    reason: str
    line: int = 0
    text: str = ""
    suggestion: str = ""


class CheckOutput(BaseModel):
    """What policy says of code, without running it."""

    decision: Literal["allow", "prompt", "forbid"]
    level: str
    policy: str
    findings: list[FindingOutput] = []


class SessionOutput(BaseModel):
    session_id: str
    alive: bool
    ended: str = Field(default="", description="Why it has ended.")
    backend: str = ""


class SessionsOutput(BaseModel):
    sessions: list[SessionOutput] = []


class FileOutput(BaseModel):
    """A file of a session, or a part of one."""

    path: str
    offset: int = 0
    text: str | None = None
    base64: str | None = Field(default=None, description="The content, if it is not text.")
    next_offset: int | None = Field(default=None, description="Where to read on; none at the end.")


class EntryOutput(BaseModel):
    name: str
    kind: str
    size: int


class FilesOutput(BaseModel):
    path: str
    entries: list[EntryOutput] = []
    more: int = 0


class DoneOutput(BaseModel):
    done: str


def clean(text: str, limit: int = _MAX_LINE) -> str:
    """Return the text as valid Unicode of at most `limit` characters; the middle of a longer one is left out."""
    return cut_middle(valid_utf8(text), limit)


def answer(
    text: str,
    data: BaseModel,
    *,
    pictures: Iterable[ImageContent] = (),
    is_error: bool = False,
    limit: int = 2 * MAX_TEXT,
) -> CallToolResult:
    """Return the answer of a tool. Its text has at most `limit` characters."""
    return CallToolResult(
        content=[TextContent(text=clean(text, limit)), *pictures],
        structured_content=data.model_dump(mode="json"),
        is_error=is_error,
    )


def run_answer(result: Result, *, session_id: str | None = None) -> CallToolResult:
    """Return the answer of a tool that ran something."""
    data, text = run_output(result, session_id=session_id), result.to_text(MAX_TEXT)
    shown = list(_pictures(result))
    data.pictures = len(shown)
    for display in result.displays[:MAX_PICTURES]:
        if display.text and display.text != result.value_repr:
            text += f"\nshown: {clean(display.text)}"
    if data.approval is not None:
        text += f"\nnext: {how_to_go_on(data.approval)}"
    return answer(text, data, pictures=shown, is_error=not result.ok and result.status.ending != "pending")


def run_output(result: Result, *, session_id: str | None = None) -> RunOutput:
    no = result.denial
    return RunOutput(
        status=result.status.value,
        ending=result.status.ending,
        run_id=result.id,
        exit_code=result.exit_code,
        stdout=clean(result.stdout, MAX_TEXT),
        stderr=clean(result.stderr, MAX_TEXT),
        value=None if result.value_repr is None else clean(result.value_repr, MAX_TEXT),
        error=None if result.error is None else clean(result.error, MAX_TEXT),
        denial=None
        if no is None
        else DenialOutput(rule=clean(no.rule), why=clean(no.why), allowed=clean(no.allowed), retry=no.retry),
        approval=pending(result.approval_id) if result.status.ending == "pending" else None,
        session_id=session_id,
        files={clean(name): len(content) for name, content in sorted(result.files.items())[:_MAX_LISTED]},
        backend=result.backend,
        missing=sorted(map(clean, result.isolation.missing)),
        seconds=round(result.usage.wall, 3),
        truncated=bool(result.omitted) or max(len(result.stdout), len(result.stderr)) > MAX_TEXT,
    )


def pending(id: str) -> PendingOutput:
    return PendingOutput(id=id, how=f"redoma approvals show {id[:12]}; redoma approvals approve {id} --reason WHY")


def how_to_go_on(waits: PendingOutput) -> str:
    return f"a person has to approve it: {waits.how}. Then call this tool again, with the same arguments"


def _pictures(result: Result) -> Iterable[ImageContent]:
    """Yield the pictures that a run displayed or returned as files."""
    room, count = MAX_PICTURE_BYTES, 0
    for kind, content in (*_of_displays(result.displays), *_of_files(result.files)):
        if count < MAX_PICTURES and len(content) <= room and content.startswith(_SIGNATURES[kind]):
            room, count = room - len(content), count + 1
            yield picture(kind, content)


def picture(kind: str, content: bytes) -> ImageContent:
    return ImageContent(data=base64.b64encode(content).decode(), mime_type=kind)


def picture_kind(content: bytes) -> str | None:
    """Return the type of a picture, by its first bytes; None if clients can't show it."""
    return next((kind for kind, start in _SIGNATURES.items() if content.startswith(start)), None)


def _of_displays(displays: Iterable[Display]) -> Iterable[tuple[str, bytes]]:
    for display in displays:
        for kind in _SIGNATURES:
            content: Any = display.data.get(kind)
            if isinstance(content, bytes):
                yield kind, content
                break


def _of_files(files: dict[str, bytes]) -> Iterable[tuple[str, bytes]]:
    for _, content in sorted(files.items()):
        if (kind := picture_kind(content)) is not None:
            yield kind, content


def changes_output(
    effect: Effect, *, id: str, state: str, project: str, left: dict[str, str] | None = None
) -> ChangesOutput:
    """Return what a command did in an overlay, as data."""
    stays = {**effect.refused, **effect.conflicts, **(left or {})}
    return ChangesOutput(
        id=id,
        state=state,
        project=clean(project),
        changes=[_change(change) for change in effect.changes[:_MAX_LISTED]],
        more=max(0, len(effect.changes) - _MAX_LISTED),
        diff=clean("\n".join(change.diff for change in effect.changes if change.diff), MAX_TEXT),
        left={clean(path): clean(why) for path, why in list(stays.items())[:_MAX_LISTED]},
    )


def kept_output(kept: Kept, project: str) -> ChangesOutput:
    return changes_output(kept.effect, id=kept.id, state=kept.state, project=project, left=kept.left)


def changes_text(data: ChangesOutput) -> str:
    """Return changes as text: each path, then the diff."""
    count = len(data.changes) + data.more
    lines = [f"{count} {'change' if count == 1 else 'changes'} in {data.project}: {data.state}"]
    for each in data.changes:
        note = f"  (protected: {each.protected})" if each.protected else ""
        lines += [f"  {each.kind:9} {each.path}{note}"]
    lines += [f"  … and {data.more} more"] if data.more else []
    lines += [f"  left out  {path}: {why}" for path, why in data.left.items()]
    return "\n".join([*lines, *(["", data.diff] if data.diff else [])])


def _change(change: Change) -> ChangeOutput:
    return ChangeOutput(path=clean(change.path), kind=change.kind, protected=clean(change.protected))


def check_output(evaluation: Evaluation, level: str) -> CheckOutput:
    findings = [
        FindingOutput(
            rule=clean(each.rule),
            decision=each.decision.value,
            reason=clean(each.reason),
            line=each.line,
            text=clean(each.text, 200),
            suggestion=clean(each.suggestion),
        )
        for each in evaluation.findings[:_MAX_LISTED]
    ]
    return CheckOutput(decision=evaluation.decision.value, level=level, policy=evaluation.policy, findings=findings)


def check_text(data: CheckOutput) -> str:
    lines = [f"{data.decision} ({data.level}, policy {data.policy})"]
    for each in data.findings:
        where = f" line {each.line}" if each.line else ""
        lines.append(f"  {each.decision}{where}: {each.reason} [{each.rule}] {each.text}".rstrip())
        lines += [f"    → {each.suggestion}"] if each.suggestion else []
    return "\n".join(lines)
