"""What is asked for, and what the record has of it before it runs: enough to ask for exactly that again.

What is long, input and files, is kept by content (see `inputs`), and so is the policy. What holds a secret is kept
nowhere; `missing` then says what can't be rebuilt, and why. `history.recorded` reads it all back.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..audit.inputs import LARGEST, MOST_OF_A_RUN, Inputs, NotKept
from .results import encodable

if TYPE_CHECKING:
    from ..backends.base import Backend, Control
    from ..models import Approval, Evaluation, Finding, Request
    from ..output.expectations import Expectation
    from ..policy import Leveled, Policy, Reading
    from ..redaction import Redactor


UNWANTED = "it was not to be kept"
"""Why something is missing that could have been kept: see `Asked.keeps`."""


class Asked(NamedTuple):
    """A request, and what only its caller could know of it."""

    request: Request
    policy: str | None = None
    objections: tuple[Finding, ...] = ()
    """What speaks against it whatever the policy says."""
    on: Backend | None = None
    """The backend to run it on, where it is none of the executor's own."""
    control: Control | None = None
    """What the caller holds on to while it runs."""
    judged: Request | None = None
    """What policy looks at, where it is less than what runs: the variables of a configured executor are its owner's,
    and what is around a rule of the monitor is ours."""
    expectation: Expectation | None = None
    """What it has to print."""
    wait: bool = True
    """Whether the caller waits for a person who has to say yes; else the result is `pending` until then."""
    entry: str = ""
    """The address of the configured executor that runs it."""
    writes: tuple[str, ...] | None = None
    """Where in its project it is expected to write; None: nothing was said."""
    redeems: str = ""
    """The id under which a person was asked for this before."""
    live_input: bool = False
    """Whether it can be given input that policy has not read, and that no list of commands allows it to be given."""
    unread_input: bool = False
    """Whether it can be given input that nobody has read, also where there is such a list: an approval is of that."""
    keeps: bool = True
    """Whether what it is given beside its text is kept for a replay. It is not worth it where it never is the same."""
    reading: Reading | None = None
    """The facts of what policy looks at, read once for all stages."""

    @property
    def size(self) -> int:
        """Bytes of what it is given beside its text."""
        return len(self.request.stdin) + sum(map(len, self.request.files.values()))


class Kept(NamedTuple):
    """The names of the contents that were kept, and why others were not."""

    stdin: str
    files: tuple[str, ...]
    """In the order of the request's; empty for one that was not kept."""
    missing: dict[str, str]


def keep(asked: Asked, policy: Policy, redactor: Redactor, inputs: Inputs) -> Kept:
    """Keep what a record has no room for."""
    missing: dict[str, str] = {}
    if not inputs.is_there(policy.digest):
        try:
            inputs.put(policy.digest, policy.encoded)
        except NotKept as error:
            missing["policy"] = str(error)
    request, left = asked.request, MOST_OF_A_RUN
    if not request.stdin and not request.files:
        return Kept("", (), missing)

    def kept(what: str, content: bytes) -> str:
        nonlocal left
        try:
            if not asked.keeps:
                raise NotKept(UNWANTED)
            if len(content) <= LARGEST:  # else it is refused for that, without being looked through
                left -= len(content)
                if left < 0:
                    raise NotKept(f"at most {MOST_OF_A_RUN:,} bytes of one run are kept")
                if redactor.find(content) or (
                    b"\0" in content and redactor.find(content.replace(b"\0", b""))
                ):  # UTF-16
                    raise NotKept("it holds something sensitive")
            return inputs.keep(content)
        except NotKept as error:
            missing[what] = str(error)
            return ""

    stdin = kept("stdin", request.stdin) if request.stdin else ""
    return Kept(stdin, tuple(kept(f"file {name}", content) for name, content in request.files.items()), missing)


def intent(
    asked: Asked,
    evaluation: Evaluation,
    level: Leveled,
    redactor: Redactor,
    approval: Approval | None,
    kept: Kept,
) -> dict[str, Any]:
    """For the record: contents of input and files by size and hash alone, secrets by name alone."""
    request = asked.request
    # Word by word: quoting a command for reading may split a secret that holds a quote.
    words = [redactor.redact(word)[0] for word in request.argv]
    theirs = {
        "code": shlex.join(words) if request.language == "command" else request.code,
        "requester": request.requester,
        "reason": request.reason,
        "findings": [msgspec.to_builtins(finding) for finding in evaluation.findings],
        "level_why": list(level.why),
        "env": request.env,
        "secrets": sorted(request.secrets),
        "files": {name: len(content) for name, content in request.files.items()},
        "outputs": list(request.outputs),
        "cwd": request.cwd,
        "require": list(request.require),
        **({"project": request.project} if request.project else {}),
        **({"label": request.label} if request.label else {}),
        **({"writes": list(asked.writes)} if asked.writes is not None else {}),
        **({"expect": asked.expectation.description} if asked.expectation else {}),
        **({"approval": _approval(approval)} if approval else {}),
        **({"judged": _judged(asked.judged, request)} if asked.judged else {}),
    }
    ours = {  # nothing that anybody could have put a secret into: looking for one is the dearest part of a record
        "language": request.language,
        "backend": request.backend,
        "workspace": request.workspace,
        "policy": evaluation.policy,
        "policy_digest": evaluation.digest,
        "decision": evaluation.decision.value,
        "reach": msgspec.to_builtins(evaluation.reach),
        "level": level.level.value,
        "limits": msgspec.to_builtins(request.limits),
        "stdin": len(request.stdin),
        **({} if request.checkpoint is None else {"checkpoint": request.checkpoint}),
        **_beside(asked),
    }
    filled = {name: value for name, value in theirs.items() if value}
    told = {**theirs, **redactor.redact_data(filled)[0], **({"argv": words} if words else {})}
    missing = {**_missing(asked, theirs, told), **kept.missing}
    if kept.stdin or kept.files:
        ours["inputs"] = {"stdin": kept.stdin, "files": list(kept.files)}
    if missing:
        told["missing"] = {redactor.redact(what)[0]: why for what, why in missing.items()}
    return encodable({**told, **ours})  # type: ignore[no-any-return]


def _approval(approval: Approval) -> dict[str, Any]:
    who = {"approver": approval.approver, "decision": approval.decision}
    return {"id": approval.id, **who, "pinned": approval.pinned}


def _judged(judged: Request, request: Request) -> dict[str, Any]:
    """In what it is less than the request."""
    told = {"env": sorted(judged.env), "time": judged.limits.time}
    told |= {"code": judged.code} if judged.code != request.code else {}
    return told | ({"stdin": False} if judged.stdin != request.stdin else {})


def _beside(asked: Asked) -> dict[str, Any]:
    """What the request itself doesn't say, where it is not as usual."""
    beside = {
        "pack": asked.policy,
        "entry": asked.entry,
        "live_input": asked.live_input,
        "unread_input": asked.unread_input,
        "no_wait": not asked.wait,
        "objections": len(asked.objections),
    }
    return {name: value for name, value in beside.items() if value}


def _missing(asked: Asked, theirs: dict[str, Any], told: dict[str, Any]) -> dict[str, str]:
    """What of the request the record does not have word for word."""
    request, missing = asked.request, dict[str, str]()
    given = {**theirs, "argv": list(request.argv)}
    words = "argv" if request.language == "command" else "code"  # the other is made of it, for reading
    for name in (words, "requester", "reason", "outputs", "cwd", "require", "project", "label", "writes"):
        _note(missing, name, given.get(name), told.get(name))
    if request.language != "command":
        _note(missing, "argv", given["argv"], told.get("argv", []))
    for field, what in (("env", "variable"), ("files", "the name of a file")):
        if len(given[field]) != len(told[field]):
            missing[field] = "the record has no room for all of them"
        for pair, shown in zip(given[field].items(), told[field].items(), strict=False):
            _note(missing, f"{what} {shown[0]}", list(pair), list(shown))
    if request.secrets:
        missing["secrets"] = "their values are never kept"
    return missing


def _note(missing: dict[str, str], what: str, given: Any, told: Any) -> None:
    if given != told:
        missing[what] = "something sensitive was taken out of it"
    elif encodable(given) != given:
        missing[what] = "it is no text that can be written as UTF-8"
