"""What a client and a node say to each other, and how it is sealed. This is the boundary: everything that arrives is
bytes, opened with the cluster's key and decoded into the types below. Nothing is ever unpickled.

Ray carries `bytes` as they are. Its own token goes over the network in the clear with every call, and Ray keeps large
values in shared memory and on disk. So whole messages are sealed with a key of our own, which is never sent: code,
files, secrets and output can't be read on the way, nor can a message be forged, replayed or sent to another node.
"""

from __future__ import annotations

import json
import os
from typing import Any, TypeAlias

import msgspec

from ...lib.errors import BackendError, BackendUnavailable
from ...lib.extras import pip_install
from ...models import Isolation, NetworkRequest, Request, Stream
from ..base import Capabilities, Outcome, Repr
from ..jail.value import encode as encode_value
from ..jail.value_reading import decode as decode_value

VERSION = 1
KEY_BYTES = 32
LINK_BYTES = 16
NO_LINK = bytes(LINK_BYTES)
RESOURCE = "redoma"
"""The custom resource of Ray by which nodes are found. A node has one of it, so it can have one actor of ours."""
NAMESPACE = "redoma"
POLL = 5.0
"""Seconds that a node keeps a `Receive` waiting for news."""
LEASE = 30.0
"""Seconds without a `Receive` after which a node ends the runs of a client, and a client gives a node up."""
MAX_BATCH = 8 << 20
"""Bytes from which on no more is added to one message."""
BLOB = 64 << 10
"""Bytes from which on a file travels by its hash, once to a node."""
_MAX_VALUE = 1 << 26


class _Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A message."""


# --- from a client ---


class Start(_Said, frozen=True, tag="start"):
    """Run this. `blobs` are those of its files that are named by their hash."""

    request: Request
    backends: tuple[str, ...]
    """Which of the node's backends may run it."""
    blobs: dict[str, str] = {}
    controlled: bool = False
    """Whether input and signals may follow."""
    lasts: bool = False


class Blob(_Said, frozen=True, tag="blob"):
    """The content of files that are named by the hash of it."""

    data: bytes


class Cancel(_Said, frozen=True, tag="cancel"):
    """End a run. It is answered by `Ended` or `Failed`."""

    id: str


class Input(_Said, frozen=True, tag="input"):
    """Input for a run; empty: its end."""

    id: str
    data: bytes


class Signal(_Said, frozen=True, tag="signal"):
    id: str
    number: int


Order: TypeAlias = Start | Blob | Cancel | Input | Signal


class Hello(_Said, frozen=True, tag="hello"):
    """Open a link. The answer is `Welcome`."""

    version: int = VERSION


class Send(_Said, frozen=True, tag="send"):
    """Orders, in order. A number that was sent before is not obeyed again. The answer is `Taken`."""

    number: int
    orders: tuple[Order, ...]


class Receive(_Said, frozen=True, tag="receive"):
    """Wait for news. `seen` is the number of the last `News` that arrived; if that is not the last one, it is sent
    again.
    """

    seen: int


class Ask(_Said, frozen=True, tag="ask"):
    """Describe yourself; with `drain`, take no more work first, or again. The answer is `About`."""

    drain: bool | None = None


class Bye(_Said, frozen=True, tag="bye"):
    """Close the link, and end all its runs. The answer is `Taken`."""


Call: TypeAlias = Hello | Send | Receive | Ask | Bye


# --- from a node ---


class Output(_Said, frozen=True, tag="output"):
    id: str
    stream: Stream
    data: bytes


class Began(_Said, frozen=True, tag="began"):
    """The isolation of a run that takes input, as soon as it is known."""

    id: str
    isolation: Isolation


class Ended(_Said, frozen=True, tag="ended"):
    """A run has ended, and nothing of it is left. `value` is the JSON of its value, as a cell sends it."""

    id: str
    outcome: Outcome
    value: bytes


class Failed(_Said, frozen=True, tag="failed"):
    """A run has no outcome, and nothing of it is left."""

    id: str
    kind: str
    """`cancelled`; `unsupported`, `busy`, `draining` and `blobs`: nothing ran; or `error`."""
    what: str = ""
    why: str = ""
    next: str = ""
    blobs: tuple[str, ...] = ()
    """The hashes of files that the node doesn't have."""
    network: tuple[NetworkRequest, ...] = ()


News1: TypeAlias = Output | Began | Ended | Failed


class Load(_Said, frozen=True):
    """How busy a node is."""

    capacity: int
    running: int = 0
    queued: int = 0
    draining: bool = False


class Offered(_Said, frozen=True):
    """A backend of a node, as far as it was found to work there by running something on it."""

    name: str
    languages: frozenset[str] = frozenset()
    isolation: Isolation = Isolation()
    limits: frozenset[str] = frozenset()
    abilities: frozenset[str] = frozenset()
    """The names of those fields of `Capabilities` that are true."""
    environments: frozenset[str] = frozenset()
    """The digests of the environments that the node has."""
    why_not: str = ""
    """Why it does not work."""

    @property
    def capabilities(self) -> Capabilities:
        abilities: dict[str, Any] = dict.fromkeys(self.abilities, True)
        return Capabilities(languages=self.languages, isolation=self.isolation, limits=self.limits, **abilities)


_CARRIED = ("arguments", "stdin", "env", "files", "outputs", "value", "control", "network", "environments")
"""What can be had across a cluster. Projects and directories of the host can't, nor can descriptors."""


def offered(name: str, can: Capabilities, isolation: Isolation, environments: frozenset[str]) -> Offered:
    """Describe a backend whose runs were found to have this isolation."""
    return Offered(
        name=name,
        languages=frozenset(can.languages),
        isolation=isolation,
        limits=can.limits,
        abilities=frozenset(ability for ability in _CARRIED if getattr(can, ability)),
        environments=environments if can.environments else frozenset(),
    )


class About(_Said, frozen=True, tag="about"):
    """A node, described by itself."""

    node: str
    """Ray's id of it."""
    host: str
    pid: int
    versions: dict[str, str]
    load: Load
    ended: int
    """Runs that have ended since it was started."""
    rate: float
    """Runs a second that ended in the last ten seconds."""
    armed: int
    """Cells and containers that wait for a run."""
    backends: tuple[Offered, ...]


class Welcome(_Said, frozen=True, tag="welcome"):
    link: bytes
    about: About


class Taken(_Said, frozen=True, tag="taken"):
    number: int = 0


class News(_Said, frozen=True, tag="news"):
    number: int
    load: Load
    items: tuple[News1, ...] = ()


class Unknown(_Said, frozen=True, tag="unknown"):
    """There is no such link: the node was restarted, or had not heard of the client for too long and has ended its
    runs.
    """


Answer: TypeAlias = Welcome | Taken | News | About | Unknown

_calls = msgspec.msgpack.Decoder(Call)
_answers = msgspec.msgpack.Decoder(Answer)
_encoder = msgspec.msgpack.Encoder()


class NotOurs(Exception):
    """Bytes that nobody with the key has written for this purpose."""


class Seal:
    """Seals and opens messages with the key of a cluster."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise BackendUnavailable(
                "messages of a cluster can't be sealed",
                why="the package cryptography is not installed",
                next=pip_install("redoma[ray]"),
            ) from error
        self._cipher = AESGCM(key)

    def call(self, node: str, link: bytes, call: Call) -> bytes:
        """Seal a call for one node and link."""
        return link + self._close(_encoder.encode(call), b"call:" + node.encode() + link)

    def open_call(self, node: str, data: bytes) -> tuple[bytes, Call, bytes]:
        """Return the link of a call, the call, and what its answer has to be bound to. Raises `NotOurs`."""
        link, body = data[:LINK_BYTES], data[LINK_BYTES:]
        plain = self._open(body, b"call:" + node.encode() + link)
        return link, _decoded(_calls, plain), body[:_NONCE]

    def answer(self, node: str, nonce: bytes, answer: Answer) -> bytes:
        """Seal an answer to the call with this nonce."""
        return self._close(_encoder.encode(answer), b"answer:" + node.encode() + nonce)

    def open_answer(self, node: str, call: bytes, data: bytes) -> Answer:
        """Open the answer to a sealed call. Raises `NotOurs`."""
        nonce = call[LINK_BYTES : LINK_BYTES + _NONCE]
        answer: Answer = _decoded(_answers, self._open(data, b"answer:" + node.encode() + nonce))
        return answer

    def _close(self, plain: bytes, about: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, plain, about)

    def _open(self, data: bytes, about: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(data[:_NONCE], data[_NONCE:], about)
        except (InvalidTag, ValueError) as error:
            raise NotOurs("it was not sealed with this cluster's key, or not for this") from error


_NONCE = 12


def _decoded(decoder: msgspec.msgpack.Decoder[Any], plain: bytes) -> Any:
    try:
        return decoder.decode(plain)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NotOurs(f"it is no message of this version: {error}") from error


def encoded_size(order: Order | News1) -> int:
    """Return the bytes of a message; raises `UnicodeEncodeError` for text that is not Unicode."""
    return len(_encoder.encode(order))


# --- outcomes ---


def ended(run: str, outcome: Outcome) -> Ended:
    """Return the message for an outcome: its value as JSON, and only text that can travel."""
    value = ["repr", str(outcome.value)] if isinstance(outcome.value, Repr) else encode_value(outcome.value, _MAX_VALUE)
    message = Ended(
        id=run,
        outcome=msgspec.structs.replace(outcome, value=None, entries=None),
        value=json.dumps(value).encode(),
    )
    try:
        encoded_size(message)
    except UnicodeEncodeError:
        message = msgspec.structs.replace(message, outcome=_without_surrogates(message.outcome))
    return message


def _without_surrogates(outcome: Outcome) -> Outcome:
    """Return an outcome whose text is Unicode. Files under other names are left out, and said to be."""
    plain = {path: data for path, data in outcome.files.items() if _text(path) == path}
    odd = {_text(path): "its name is not UTF-8, and can't be sent" for path in outcome.files if _text(path) != path}
    return msgspec.structs.replace(
        outcome,
        files=plain,
        left_out={**{_text(path): _text(why) for path, why in outcome.left_out.items()}, **odd},
        error=None if outcome.error is None else _text(outcome.error),
        exception=None if outcome.exception is None else _text(outcome.exception),
        displays=tuple(
            msgspec.structs.replace(
                one, data={kind: _text(data) if isinstance(data, str) else data for kind, data in one.data.items()}
            )
            for one in outcome.displays
        ),
    )


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def outcome_of(message: Ended) -> Outcome:
    """Return the outcome with its value. Raises `BackendError` if the value is none."""
    try:
        value = decode_value(message.value)
    except (ValueError, RecursionError) as error:
        raise BackendError("a node sent a value that can't be read", why=str(error), next="report it") from error
    return msgspec.structs.replace(message.outcome, value=value)
