"""Rebuilds submissions and their outcomes from records.

The records are read once, in order: only runs that have begun and not ended are in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..audit import Record
from ..audit.inputs import Inputs
from ..audit.records import Intent, KeptInputs, Outcome, read_intent, read_outcome
from ..lib.errors import AuditError, InvalidRequest
from ..models import PolicyView, Request, Submission
from ..pipeline.intents import UNWANTED

NOT_KEPT = "redoma: the secret {name} was not kept"
"""Placeholder for the value of a secret. If a replay prints it, it is redacted like the value was."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded run."""

    id: str
    time: str
    """The time of its intent: ISO 8601, UTC."""
    intent: Intent
    outcome: Outcome | None = None
    """None if there is none, because the run has not ended, or was interrupted."""
    submission: Submission
    """As it was submitted, with its own id. `missing` parts are empty in it, or as the record shows them."""
    judged: Request
    """The request as policy saw it, usually unchanged."""
    missing: dict[str, str] = {}
    """What could not be rebuilt → why."""
    unread: frozenset[str] = frozenset()
    """The missing parts that policy did not read either: variables of a configured executor, facts of a monitor."""

    @property
    def request(self) -> Request:
        return self.submission.request

    @property
    def status(self) -> str:
        return self.outcome.status.value if self.outcome else ""

    @property
    def approver(self) -> str:
        """The approver; empty if it was not approved, was denied, or the approval had expired."""
        answer = self.intent.approval
        return answer.approver if answer and answer.decision == "approved" else ""


def is_kept(intent: Record) -> bool:
    """Return whether its inputs were kept. Those of a monitor rule are not, since they differ each time."""
    missing = intent.data.get("missing")
    return not (isinstance(missing, dict) and UNWANTED in missing.values())


def recorded(records: Iterable[Record], inputs: Inputs | None = None) -> Iterator[RecordedRun]:
    """Yield the runs in the order in which they ended, then those without an end. Without `inputs`, the contents of
    standard input and files are missing.
    """
    for intent, outcome in pairs(records):
        yield rebuild(intent, outcome, inputs)


def pairs(records: Iterable[Record]) -> Iterator[tuple[Record, Record | None]]:
    """Yield the intent and the outcome of each run, in the order of the outcomes, then the intents without one."""
    begun: dict[str, Record] = {}
    for record in records:
        if record.kind == "intent":
            if (before := begun.pop(record.id, None)) is not None:  # submitted again, after it was interrupted
                yield before, None
            begun[record.id] = record
        elif record.kind == "outcome" and (intent := begun.pop(record.id, None)) is not None:
            yield intent, record
    for intent in begun.values():
        yield intent, None


def rebuild(begun: Record, ended: Record | None = None, inputs: Inputs | None = None) -> RecordedRun:
    """Return one run from its two records. Raises `AuditError` if one of them can't be decoded."""
    intent = read_intent(begun)
    missing = dict(intent.missing)
    try:
        request = _request(begun.id, intent, inputs, missing)
        judged = intent.view.over(request) if intent.view else request
    except (InvalidRequest, TypeError) as error:
        raise AuditError(
            f"run {begun.id} can't be rebuilt", why=f"its record is not understood ({error})", next="see `audit show`"
        ) from error
    return RecordedRun(
        id=begun.id,
        time=begun.time,
        intent=intent,
        outcome=read_outcome(ended) if ended else None,
        submission=Submission(
            request=request,
            policy=intent.pack,
            objections=intent.findings[: intent.objections],
            view=intent.view,
            wait=not intent.no_wait,
            entry=intent.entry,
            writes=intent.writes,
            live_input=intent.live_input,
            unread_input=intent.unread_input,
            session=intent.session,
        ),
        judged=judged,
        missing=missing,
        unread=frozenset(what for what in missing if _is_unread(what, intent.view)) if intent.view else frozenset(),
    )


def _request(id: str, intent: Intent, inputs: Inputs | None, missing: dict[str, str]) -> Request:  # noqa: A002 - the field's name
    kept = intent.inputs or KeptInputs()

    def content(what: str, name: str) -> bytes:
        found = inputs.get(name) if inputs is not None and name else None
        if found is None:
            missing.setdefault(what, "it was kept, and is gone" if name else "it was not kept")
        return found or b""

    contents = zip(intent.files, kept.files or [""] * len(intent.files), strict=False)
    return Request(
        id=id,
        language=intent.language,
        code="" if intent.language == "command" else intent.code,
        argv=intent.argv,
        interpreter=intent.interpreter,
        backend=intent.backend,
        limits=intent.limits,
        stdin=content("stdin", kept.stdin) if intent.stdin else b"",
        env={name: value for name, value in intent.env.items() if f"variable {name}" not in missing},
        secrets={name: NOT_KEPT.format(name=name) for name in intent.secrets},
        held=intent.held,
        network=intent.network,
        uses=intent.uses,
        files={file: content(f"file {file}", name) for file, name in contents},
        outputs=intent.outputs,
        cwd=intent.cwd,
        workspace=intent.workspace,
        project=intent.project,
        checkpoint=intent.checkpoint,
        require=intent.require,
        reason=intent.reason,
        requester=intent.requester,
        label=intent.label,
    )


def _is_unread(what: str, view: PolicyView) -> bool:
    if what == "stdin":
        return not view.stdin
    name = what.removeprefix("variable ")
    # A name that contained a secret differs between the two places.
    return view.env is not None and name != what and name not in view.env and "[redacted" not in name
