"""The record of a submission before it runs: enough to submit exactly the same again.

Long parts (input and files) are kept by content (see `audit.inputs`), and so is the policy. Parts that contain a secret
are not kept; `missing` then says what can't be rebuilt, and why. `history.recorded` reads it all back.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from ..audit.inputs import MAX_INPUT, MAX_RUN, Inputs, NotKept
from ..audit.records import Intent, KeptInputs, RecordedAnswer
from ..models import Approval, Judged, Request, Submission
from ..policy import Policy
from ..redaction import Redactor
from .results import encodable

UNWANTED = "it was not to be kept"
"""Why something is missing that could have been kept: see `Submission.keep_inputs`."""

_REDACTED = [
    "code",
    "requester",
    "reason",
    "findings",
    "level_why",
    "env",
    "secrets",
    "files",
    "outputs",
    "cwd",
    "require",
    "project",
    "label",
    "writes",
    "expect",
    "approval",
    "view",
]
"""Fields that may contain a secret. Searching them is the most expensive part of a record."""
_EXACT = ("requester", "reason", "outputs", "cwd", "require", "project", "label", "writes")
"""Fields that are `missing` if something was redacted in them."""


class KeptContent(msgspec.Struct, frozen=True):
    """What was kept by content."""

    inputs: KeptInputs | None = None
    missing: dict[str, str] = {}
    """What was not kept → why."""


def keep(
    submission: Submission, policy: Policy, redactor: Redactor, inputs: Inputs, *, wanted: bool = True
) -> KeptContent:
    """Keep the policy, and the input and files if `wanted`."""
    missing: dict[str, str] = {}
    if not inputs.is_there(policy.digest):
        try:
            inputs.put(policy.digest, policy.encoded)
        except NotKept as error:
            missing["policy"] = str(error)
    request, left = submission.request, MAX_RUN
    if not request.stdin and not request.files:
        return KeptContent(None, missing)

    def kept(what: str, content: bytes) -> str:
        nonlocal left
        try:
            if not wanted or not submission.keep_inputs:
                raise NotKept(UNWANTED)
            if len(content) <= MAX_INPUT:  # otherwise it is refused for its size, without being searched
                left -= len(content)
                if left < 0:
                    raise NotKept(f"at most {MAX_RUN:,} bytes of one run are kept")
                utf16 = b"\0" in content and redactor.find(content.replace(b"\0", b""))
                if utf16 or redactor.find(content):
                    raise NotKept("it holds something sensitive")
            return inputs.keep(content)
        except NotKept as error:
            missing[what] = str(error)
            return ""

    stdin = kept("stdin", request.stdin) if request.stdin else ""
    files = tuple([kept(f"file {name}", content) for name, content in request.files.items()])
    return KeptContent(KeptInputs(stdin=stdin, files=files) if stdin or files else None, missing)


def intent_record(judged: Judged, approval: Approval | None, kept: KeptContent, redactor: Redactor) -> dict[str, Any]:
    """Return the `Intent` of a submission as plain data: with the names of its secrets, not their values."""
    submission, request, evaluation = judged.submission, judged.request, judged.evaluation
    # Word by word: quoting a command for reading may split a secret that contains a quote.
    words = tuple([redactor.redact(word)[0] for word in request.argv])
    intent = Intent(
        language=request.language,
        code=shlex.join(words) if request.language == "command" else request.code,
        argv=words,
        interpreter=request.interpreter,
        requester=request.requester,
        reason=request.reason,
        label=request.label,
        backend=request.backend,
        workspace=request.workspace,
        project=request.project,
        cwd=request.cwd,
        checkpoint=request.checkpoint,
        env=request.env,
        secrets=tuple(sorted(request.secrets)),
        held=request.held,
        network=request.network,
        uses=request.uses,
        stdin=len(request.stdin),
        files={name: len(content) for name, content in request.files.items()},
        outputs=request.outputs,
        require=request.require,
        limits=request.limits,
        policy=evaluation.policy,
        policy_digest=evaluation.digest,
        decision=evaluation.decision,
        findings=evaluation.findings,
        reach=evaluation.reach,
        level=judged.level,
        level_why=judged.level_why,
        writes=submission.writes,
        expect=submission.expectation.description if submission.expectation else "",
        pack=submission.policy,
        entry=submission.entry,
        session=submission.session,
        live_input=submission.live_input,
        unread_input=submission.unread_input,
        no_wait=not submission.wait,
        objections=len(submission.objections),
        view=submission.view,
        approval=_answer(approval) if approval else None,
        inputs=kept.inputs,
    )
    given: dict[str, Any] = msgspec.to_builtins(intent)
    # Without their own names: a secret that is spelt like one of them must not move a field to another name.
    redacted = {**given, **{name: redactor.redact_data(given[name])[0] for name in _to_redact(given, redactor)}}
    exact = redacted == given and words == request.argv and encodable(given) is given  # as nearly always
    if missing := {**({} if exact else _inexact(request, given, redacted)), **_missing(submission), **kept.missing}:
        redacted["missing"] = {redactor.redact(what)[0]: why for what, why in missing.items()}
    return redacted if exact and not missing else encodable(redacted)


_MAX_TEXTS = 1000


def _to_redact(given: dict[str, Any], redactor: Redactor) -> list[str]:
    """Return the fields that may contain a secret: those that have no text that is known to contain none."""
    names = [name for name in _REDACTED if given.get(name)]
    texts: list[str] = []
    others: list[str] = []
    for name in names:
        value = given[name]
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list) and len(value) <= _MAX_TEXTS and all(isinstance(item, str) for item in value):
            texts += value
        else:
            others.append(name)
    return others if redactor.finds_nothing_in(texts) else names


def _answer(approval: Approval) -> RecordedAnswer:
    return RecordedAnswer(
        id=approval.id, approver=approval.approver, decision=approval.decision, pinned=approval.pinned
    )


def _missing(submission: Submission) -> dict[str, str]:
    """Return what no record has, with reasons."""
    session = {"session": "what it found there is known to nobody"} if submission.session else {}
    return {**session, "secrets": "their values are never kept"} if submission.request.secrets else session


def _inexact(request: Request, given: dict[str, Any], redacted: dict[str, Any]) -> dict[str, str]:
    """Return the parts of the request that the record does not have literally, with reasons."""
    missing: dict[str, str] = {}
    _note(missing, "argv", list(request.argv), list(redacted.get("argv", ())))
    if request.language != "command":  # a command's code is its words joined for reading
        _note(missing, "code", given["code"], redacted["code"])
    for name in _EXACT:
        _note(missing, name, given.get(name), redacted.get(name))
    for field, what in (("env", "variable"), ("files", "the name of a file")):
        if len(given[field]) != len(redacted[field]):
            missing[field] = "the record has no room for all of them"
        for pair, shown in zip(given[field].items(), redacted[field].items(), strict=False):
            _note(missing, f"{what} {shown[0]}", list(pair), list(shown))
    return missing


def _note(missing: dict[str, str], what: str, given: Any, redacted: Any) -> None:
    given, redacted = ([*each] if isinstance(each, tuple) else each for each in (given, redacted))
    if given != redacted:
        missing[what] = "something sensitive was taken out of it"
    elif encodable(given) != given:
        missing[what] = "it can't be written as UTF-8"
