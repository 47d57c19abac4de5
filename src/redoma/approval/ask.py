"""What is asked, and its digest. Pure: no files, no clock."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from ..lib.errors import ApprovalError, StoreError
from ..lib.sanitise import sanitise
from ..models import Approval, Effect, Evaluation, Level, Request

_NOT_BOUND = frozenset({"id", "reason", "secrets"})
"""Of a request, what decides nothing of what happens: each run has its own id, and a reason is words. The values of
secrets are bound by their seal. Every other field is bound, also one that is added to `Request` one day."""
_LATER = ("checkpoint", "seed")
"""Fields that were added to `Request` when there were pins already."""


class Case(NamedTuple):
    """What a person has to decide on: all that decides what would happen."""

    request: Request
    evaluation: Evaluation
    level: Level = Level.L4
    effect: Effect | None = None
    """What it did in an overlay, where that and not the run itself is what needs a yes."""
    policy: str | None = None
    """The pack that was asked for; None for the configured one."""
    entry: str = ""
    """The address of the configured executor that runs it."""
    judged_env: dict[str, str] | None = None
    """The variables that policy looks at, where they are fewer than those of the request."""
    setting: str = ""
    """See `setting_of`."""
    live_input: bool = False
    """Whether it can be given input while it runs, which nobody has read when they decide."""
    scripts: dict[str, str] | None = None
    """The files of the host that it would execute, and what they hold: path → SHA-256, or why there is none. None: it
    was not looked, since nobody's yes is needed."""
    unbound: tuple[str, ...] = ()
    """What else it runs, or may run, that no approval can be bound to: then it can't be pinned."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A case as it is put to somebody."""

    id: str
    digest: str
    content: str
    """Of the request and of the files it executes: another one under the same label is a script that has changed."""
    request: Request
    """Without its secrets."""
    secrets: tuple[str, ...] = ()
    """Their names."""
    evaluation: Evaluation
    level: Level
    effect: Effect | None = None
    policy: str | None = None
    entry: str = ""
    judged_env: dict[str, str] | None = None
    live_input: bool = False
    scripts: dict[str, str] = {}
    unbound: tuple[str, ...] = ()
    created: datetime
    expires: datetime
    """Until when it can be answered."""

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
        """What an approver returns. An approval that says nothing else is good for as long as the question was."""
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


def digest_of(case: Case, key: bytes) -> tuple[str, str]:
    """SHA-256 of the request's content, and of the whole case. `key` keeps secrets from being guessed by their seal."""
    request = case.request
    bound = [(name, getattr(request, name)) for name in request.__struct_fields__ if name not in _NOT_BOUND]
    for name in _LATER:  # who says nothing of it has the digest that there was before it could be said
        if getattr(request, name) is None:
            bound.remove((name, None))
    files = [case.scripts] if case.scripts else []
    content = _sha256(["redoma request 1", bound, sorted(request.secrets), *files])
    # An effect has happened already: which secrets the run had can't change it any more.
    sealed = "" if case.effect else _seal(request.secrets, key)
    evaluation = case.evaluation
    rules = [evaluation.policy, evaluation.digest, evaluation.findings, case.policy, evaluation.reach]
    effect = case.effect.digest if case.effect else ""
    whole = ["redoma case 1", content, sealed, rules, case.entry, case.judged_env, case.setting, effect]
    whole += ["live input"] if case.live_input else []  # a yes to a program is none to what it will be told
    return content, _sha256(whole)


def setting_of(*parts: Any) -> str:
    """SHA-256 of what else decides what happens: the entry that runs it, the images of its containers."""
    return _sha256(["redoma setting 1", *parts])


def is_same_person(one: str, other: str) -> bool:
    """Whether two names are one to a reader: neither case nor anything invisible makes another person."""
    return _name(one) == _name(other)


def _name(text: str) -> str:
    return " ".join(sanitise(unicodedata.normalize("NFKC", text)).casefold().split())


def _seal(secrets: Mapping[str, str], key: bytes) -> str:
    return hmac.new(key, ascii(_plain(secrets)).encode(), "sha256").hexdigest() if secrets else ""


def _sha256(value: Any) -> str:
    return hashlib.sha256(ascii(_plain(value)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Lists, text and numbers, the same for equal data however it came here: 30 is 30.0, a tuple is a list."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return str(value)  # of an enumeration, too
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
    # What can't be bound must not be approved: the digest would be the same for another one.
    raise ApprovalError(
        "this request can't be put to anybody", why=f"it holds a {type(value).__name__}", next="leave that out"
    )


def encode(ask: Ask) -> str:
    # The standard library's writer: names that are no UTF-8 keep their bytes as lone surrogates.
    return json.dumps(msgspec.to_builtins(ask))


def decode(text: str) -> Ask:
    try:
        return msgspec.convert(json.loads(text), Ask)
    except (ValueError, RecursionError) as error:  # of which msgspec's errors are some
        raise StoreError(
            "what was asked can't be read", why=f"its record is damaged ({error})", next="ask again, by running it"
        ) from error


def stored(case: Case, key: bytes, *, id: str, created: datetime, expires: datetime) -> Ask:  # noqa: A002 - the field's name
    """The case as it is kept, without the values of its secrets."""
    for name, value in case.request.secrets.items():
        if any(_holds(text, value) for text in _texts(case)):
            raise ApprovalError(
                f"this request can't be put to anybody: it holds the value of its secret {name}",
                why="what is asked is kept and shown, and secrets are neither",
                next=f"take it from the variable {name}, where the code has it",
            )
    return unchecked(case, key, id=id, created=created, expires=expires)


def unchecked(case: Case, key: bytes, *, id: str, created: datetime, expires: datetime) -> Ask:  # noqa: A002 - as above
    """As `stored`, for what is neither kept nor shown: it may hold the value of a secret."""
    content, digest = digest_of(case, key)
    secrets = case.request.secrets
    return Ask(
        id=id,
        digest=digest,
        content=content,
        request=msgspec.structs.replace(case.request, secrets={}),
        secrets=tuple(sorted(secrets)),
        evaluation=case.evaluation,
        level=case.level,
        effect=case.effect and _without(case.effect, secrets),
        policy=case.policy,
        entry=case.entry,
        judged_env=case.judged_env,
        live_input=case.live_input,
        scripts=case.scripts or {},
        unbound=case.unbound,
        created=created,
        expires=expires,
    )


def _texts(case: Case) -> Iterator[Any]:
    """What somebody has written into it, or a run into its effect. Words of ours, such as `auto`, hold no secret."""
    names = ("code", "argv", "env", "files", "stdin", "outputs", "reason", "label", "cwd", "project")
    yield from (getattr(case.request, name) for name in names)
    if case.effect is not None:
        yield from (case.effect.refused, case.effect.conflicts)
        for change in case.effect.changes:
            targets = [version.target for version in (change.before, change.after) if version]
            yield [change.path, change.old_path, *targets]


def _without(effect: Effect, secrets: Mapping[str, str]) -> Effect:
    """With the secrets that the run has written taken out of its diffs, which are for reading: no digest has them."""
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
