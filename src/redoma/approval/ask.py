"""The question that a person is asked, and the digest that an answer is bound to. Pure: reads no files and no clock."""

from __future__ import annotations

import hashlib
import hmac
import os
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from ..lib.errors import ApprovalError, StoreError
from ..lib.sanitise import sanitise
from ..lib.types import resolved
from ..models import Approval, Effect, Evaluation, ExecutedFiles, Judged, Level, PolicyView, Request, Submission

_NOT_BOUND = frozenset({"id", "reason", "secrets"})
"""Fields of a request that don't determine what happens. (Secrets do, but are bound by a keyed hash.) Every other field
is bound, including fields added to `Request` later.
"""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A judged submission as it is shown to a person."""

    id: str
    digest: str
    content: str
    """SHA-256 of the request and the files it executes. If it differs from that of a pin with the same label, the
    script has changed.
    """
    request: Request
    """Without its secrets."""
    secrets: tuple[str, ...] = ()
    """The names of its secrets."""
    evaluation: Evaluation
    level: Level
    effect: Effect | None = None
    policy: str | None = None
    entry: str = ""
    view: PolicyView | None = None
    unread_input: bool = False
    """As of the submission. Its `live_input` is not kept: whatever nobody has read is judged as unknown again."""
    session: str = ""
    scripts: dict[str, str] = {}
    unbound: tuple[str, ...] = ()
    created: datetime
    expires: datetime
    """Until when it can be answered."""

    @property
    def submission(self) -> Submission:
        """The submission, as far as it was kept."""
        return Submission(
            request=self.request,
            policy=self.policy,
            entry=self.entry,
            view=self.view,
            live_input=self.unread_input,
            unread_input=self.unread_input,
            session=self.session,
        )

    @property
    def requester(self) -> str:
        return self.request.requester

    @property
    def reason(self) -> str:
        return self.request.reason

    @property
    def label(self) -> str:
        return self.request.label

    def answer(
        self,
        decision: Literal["approved", "denied", "expired"],
        *,
        approver: str,
        reason: str,
        at: datetime,
        expires: datetime | None = None,
        pinned: bool = False,
    ) -> Approval:
        """Return an answer to this question, for an approver to return. By default it expires together with the
        question.
        """
        return Approval(
            id=self.id,
            digest=self.digest,
            decision=decision,
            approver=approver,
            reason=reason,
            at=at,
            expires=expires or self.expires,
            pinned=pinned,
        )


def digest_of(judged: Judged, key: bytes) -> tuple[str, str]:
    """Return two digests: of the request and the files it executes, and of everything that determines what happens.

    `key` prevents guessing secrets from their hash.
    """
    request, submission, evaluation = judged.request, judged.submission, judged.evaluation
    bound = [(name, getattr(request, name)) for name in request.__struct_fields__ if name not in _NOT_BOUND]
    files = judged.executed.files if judged.executed else {}
    content = _sha256(["redoma request 2", bound, sorted(request.secrets), files])
    whole = [
        "redoma case 2",
        content,
        # An effect is what a run has already done: the secrets of the run can't change it any more.
        "" if judged.effect else _seal(request.secrets, key),
        [evaluation.policy, evaluation.digest, evaluation.findings, submission.policy, evaluation.reach],
        submission.entry,
        submission.view,
        judged.configuration_digest,
        judged.effect.digest if judged.effect else "",
        submission.unread_input,  # approving a program doesn't approve its input
        *([submission.session] if submission.session else []),  # an approval in one session doesn't count in another
    ]
    return content, _sha256(whole)


def configuration_digest(*parts: Any) -> str:
    """Return the SHA-256 of configuration that also determines what happens, such as the entry that runs a request."""
    return _sha256(["redoma setting 1", *parts])


def is_same_person(one: str, other: str) -> bool:
    """Return whether two names belong to the same person. Case and invisible characters don't matter. Nor does the
    client: `key:maria` and `key:maria e2b` are both whoever has the key maria.
    """
    return _name(one) == _name(other)


def _name(text: str) -> str:
    name = " ".join(sanitise(unicodedata.normalize("NFKC", text)).casefold().split())
    return name.partition(" ")[0] if name.startswith("key:") else name  # no name of a key has a space


def _seal(secrets: Mapping[str, str], key: bytes) -> str:
    return hmac.new(key, ascii(_plain(secrets)).encode(), "sha256").hexdigest() if secrets else ""


def _sha256(value: Any) -> str:
    return hashlib.sha256(ascii(_plain(value)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return the value as lists, text and numbers, in the same form for equal data: 30 for 30.0, a list for a tuple."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return str(value)  # also for an enumeration
        case float():
            return int(value) if value.is_integer() else value
        case os.PathLike():
            return os.fspath(value)
        case bytes():
            return ["bytes", len(value), hashlib.sha256(value).hexdigest()]
        case list() | tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return ["map", sorted([_plain(key), _plain(item)] for key, item in value.items())]
        case msgspec.Struct():
            return [type(value).__name__, [[name, _plain(getattr(value, name))] for name in value.__struct_fields__]]
        case _ if hasattr(value, "value"):
            return _plain(value.value)
    # Refused, because a value that isn't in the digest could be replaced by another one after the approval.
    raise ApprovalError(
        "nobody can be asked about this request", why=f"it holds a {type(value).__name__}", next="leave that out"
    )


def encode(ask: Ask) -> str:
    """Return a question as JSON, for the ledger."""
    # Not with msgspec's encoder: it can't encode lone surrogates, which stand for bytes that are not UTF-8.
    import json

    return json.dumps(msgspec.to_builtins(ask))


def decode(text: str) -> Ask:
    """Return the question that `encode` encoded. Raises `StoreError` if it can't be read."""
    import json

    try:
        return msgspec.convert(json.loads(text), resolved(Ask))
    except (ValueError, RecursionError) as error:  # includes msgspec's errors
        raise StoreError(
            "what was asked can't be read", why=f"its record is damaged ({error})", next="ask again, by running it"
        ) from error


def ask_of(judged: Judged, key: bytes, *, id: str, created: datetime, expires: datetime, kept: bool = True) -> Ask:  # noqa: A002 - the field's name
    """Return the question that a person is asked, without the values of secrets.

    Raises `ApprovalError` if it will be `kept` and one of its texts contains the value of a secret.
    """
    submission, secrets = judged.submission, judged.request.secrets
    for name, value in secrets.items() if kept else ():
        if any(_holds(text, value) for text in _texts(judged)):
            raise ApprovalError(
                f"nobody can be asked about this request: it holds the value of its secret {name}",
                why="what is asked is kept and shown, and secrets are neither",
                next=f"take it from the variable {name}, where the code has it",
            )
    content, digest = digest_of(judged, key)
    executed = judged.executed or ExecutedFiles()
    return Ask(
        id=id,
        digest=digest,
        content=content,
        request=msgspec.structs.replace(submission.request, secrets={}),
        secrets=tuple(sorted(secrets)),
        evaluation=judged.evaluation,
        level=judged.level,
        effect=judged.effect and _without(judged.effect, secrets),
        policy=submission.policy,
        entry=submission.entry,
        view=submission.view,
        unread_input=submission.unread_input,
        session=submission.session,
        scripts=executed.files,
        unbound=executed.unbound,
        created=created,
        expires=expires,
    )


def _texts(judged: Judged) -> Iterator[Any]:
    """Yield all texts that may contain a secret: what the caller wrote, and what a run wrote in its effect."""
    names = ("code", "argv", "env", "files", "stdin", "outputs", "reason", "label", "cwd", "project")
    yield from (getattr(judged.request, name) for name in names)
    if judged.submission.view is not None:
        yield judged.submission.view.code or ""
    if judged.effect is not None:
        yield from (judged.effect.refused, judged.effect.conflicts)
        for change in judged.effect.changes:
            targets = [version.target for version in (change.before, change.after) if version]
            yield [change.path, change.old_path, *targets]


def _without(effect: Effect, secrets: Mapping[str, str]) -> Effect:
    """Return the effect without secrets in its diffs. No digest includes diffs, so they may be changed."""
    changes = []
    for change in effect.changes:
        diff = change.diff
        for name, value in secrets.items():
            diff = diff.replace(value, f"[secret {name}]")
        changes.append(msgspec.structs.replace(change, diff=diff))
    return msgspec.structs.replace(effect, changes=tuple(changes))


def _holds(value: Any, secret: str) -> bool:
    match value:
        case str():
            return secret in value
        case bytes():
            return secret.encode("utf-8", "surrogateescape") in value
        case list() | tuple():
            return any(_holds(item, secret) for item in value)
        case Mapping():
            return any(_holds(part, secret) for item in value.items() for part in item)
    return False
