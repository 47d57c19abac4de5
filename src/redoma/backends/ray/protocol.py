"""What a client and a node say to each other, and how it is sealed. This is the boundary: everything that arrives is
bytes, opened with the cluster's key and decoded into the types below. Nothing is ever unpickled.

Ray carries `bytes` as they are. Its own token goes over the network in the clear with every call, and Ray keeps large
values in shared memory and on disk. So whole messages are sealed with a key of our own, which is never sent: code,
files, secrets and output can't be read on the way, nor can a message be forged, replayed or sent to another node.
"""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Any, TypeAlias, TypeVar

import msgspec

from ...lib.errors import BackendError, BackendUnavailable
from ...lib.extras import pip_install
from ...lib.types import resolved
from ...models import Isolation, NetworkRequest, Request, Stream
from ..base import Capabilities, Outcome, Repr, unmet_needs
from ..jail.value import encode as encode_value
from ..jail.value_reading import decode as decode_value

KEY_BYTES = 32
LINK_BYTES = 16
NO_LINK = bytes(LINK_BYTES)
CHALLENGE_BYTES = 16
RESOURCE = "redoma"
"""The custom resource of Ray by which nodes are found. A node has one unit, so it can have only one actor of ours."""
NAMESPACE = "redoma"
POLL = 5.0
"""Seconds that a node keeps a `Receive` waiting for news."""
LEASE = 30.0
"""Seconds without a call after which a node ends the runs of a client, and without an answer after which a client gives
a node up."""
MAX_BATCH = 8 << 20
"""Maximum size of a batch in bytes; a single larger message is sent alone."""
BLOB = 64 << 10
"""Files of at least this many bytes are sent separately, once to each node, and named by their hash."""
_MAX_VALUE = 1 << 26


class _Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A message."""


# --- from a client ---


class Start(_Said, frozen=True, tag="start"):
    """Run a request. `blobs`: the paths of its large files, with their hashes; see `Blob`."""

    request: Request
    backends: tuple[str, ...]
    """Which of the node's backends may run it."""
    blobs: dict[str, str] = {}
    controlled: bool = False
    """Whether input and signals may follow."""
    lasts: bool = False
    session: bool = False
    """Whether it is the driver of a session that can be copied."""
    copy_of: str = ""
    """The name of the image of which it is a copy; empty if it isn't a copy."""


class Blob(_Said, frozen=True, tag="blob"):
    """The content of a file that a `Start` names by its hash."""

    data: bytes


class EnvironmentPart(_Said, frozen=True, tag="environment-part"):
    """The next piece of an environment that the node doesn't have: see `environments.transfer`."""

    digest: str
    data: bytes


class EnvironmentEnd(_Said, frozen=True, tag="environment-end"):
    """No more pieces follow. `whole`: whether all were sent."""

    digest: str
    whole: bool = True


class Cancel(_Said, frozen=True, tag="cancel"):
    """End a run. It is answered by `Ended` or `Failed`."""

    id: str


class Input(_Said, frozen=True, tag="input"):
    """Input for a run; empty data ends the input. `image`: the name of an image to pass along with it, a new one of
    `room` bytes if that isn't 0.
    """

    id: str
    data: bytes
    image: str = ""
    room: int = 0


class CloseImage(_Said, frozen=True, tag="close-image"):
    """Close an image: no more copies will be made from it."""

    name: str


class Signal(_Said, frozen=True, tag="signal"):
    id: str
    number: int


Order: TypeAlias = Start | Blob | EnvironmentPart | EnvironmentEnd | Cancel | Input | CloseImage | Signal


class Hello(_Said, frozen=True, tag="hello"):
    """Open a link. The answer is `Welcome`."""


class Send(_Said, frozen=True, tag="send"):
    """A numbered batch of orders, obeyed in sequence, and only once even if sent again. The answer is `Taken`."""

    number: int
    orders: tuple[Order, ...]


class Receive(_Said, frozen=True, tag="receive"):
    """Wait for news. `seen` is the number of the last `News` that arrived; if the node has sent a later one, it sends
    that again.
    """

    seen: int


class Ask(_Said, frozen=True, tag="ask"):
    """Describe yourself. `drain`: first stop taking work (True), or begin again (False). The answer is `About`."""

    drain: bool | None = None


class Bye(_Said, frozen=True, tag="bye"):
    """Close the link, and end all its runs. The answer is `Taken`."""


class Prove(_Said, frozen=True, tag="prove"):
    """Return the challenge of a direct connection: see `line`. The answer is `Taken`."""

    challenge: bytes


Call: TypeAlias = Hello | Send | Receive | Ask | Bye | Prove


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
    """`cancelled`; `unsupported`, `busy`, `draining`, `blobs` and `environment`: nothing ran; or `error`."""
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
    """A backend of a node, with what it offers there, as tested by running something on it."""

    name: str
    languages: frozenset[str] = frozenset()
    isolation: Isolation = Isolation()
    limits: frozenset[str] = frozenset()
    abilities: frozenset[str] = frozenset()
    """The names of those fields of `Capabilities` that are true."""
    environments: frozenset[str] = frozenset()
    """The digests of the environments that the node has."""
    sessions: bool = False
    """Whether sessions there can be copied."""
    why_not: str = ""
    """Why it doesn't work; empty if it does."""

    @property
    def capabilities(self) -> Capabilities:
        abilities: dict[str, Any] = dict.fromkeys(self.abilities, True)
        return Capabilities(languages=self.languages, isolation=self.isolation, limits=self.limits, **abilities)

    def unmet(self, request: Request, *, controlled: bool, session: bool) -> list[str]:
        """Return what a run needs that isn't offered. `session`: whether it is a session that can be copied."""
        unmet = unmet_needs(self.capabilities, request, controlled=controlled)
        return [*unmet, "sessions that can be copied"] if session and not self.sessions else unmet


_CARRIED = ("arguments", "stdin", "env", "files", "outputs", "value", "control", "network", "environments")
"""Capabilities that also work across a cluster. Projects, directories of the host and descriptors don't."""


def offered(
    name: str, can: Capabilities, isolation: Isolation, environments: frozenset[str], *, sessions: bool
) -> Offered:
    """Describe a backend whose runs were found to have this isolation."""
    return Offered(
        name=name,
        languages=frozenset(can.languages),
        isolation=isolation,
        limits=can.limits,
        abilities=frozenset(ability for ability in _CARRIED if getattr(can, ability)),
        environments=environments if can.environments else frozenset(),
        sessions=sessions,
    )


class About(_Said, frozen=True, tag="about"):
    """A node, described by itself."""

    node: str
    """Ray's id of the node."""
    host: str
    pid: int
    versions: dict[str, str]
    load: Load
    ended: int
    """Runs that have ended since it was started."""
    rate: float
    """Runs that ended per second, over the last ten seconds."""
    armed: int
    """Cells and containers that wait for a run."""
    backends: tuple[Offered, ...]
    python: str = ""
    """The interpreter and platform that environments there are for."""
    port: int = 0
    """The port for direct connections, on the node's address: see `line`. 0 if it has none."""
    address: str = ""


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
    """There is no such link: the node was restarted, or hadn't heard from the client for too long and has ended
    its runs.
    """


Answer: TypeAlias = Welcome | Taken | News | About | Unknown

_calls: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(resolved(Call))
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(resolved(Answer))
_encoder = msgspec.msgpack.Encoder()


class NotOurs(Exception):
    """Bytes that weren't sealed with the key for this purpose, or that aren't a message of this version."""


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
        """Return the link of a call, the call, and its nonce, which the answer is bound to. Raises `NotOurs`."""
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
        raise NotOurs(f"it is not a message of this version: {error}") from error


def encoded_size(order: Order | News1) -> int:
    """Return the size of a message in bytes. Raises `UnicodeEncodeError` for text that is not Unicode."""
    return len(_encoder.encode(order))


_Message = TypeVar("_Message")


def take_batch(queue: deque[tuple[_Message, int]]) -> tuple[tuple[_Message, ...], int]:
    """Remove the first messages of a queue; return them and their total size: as many as fit into `MAX_BATCH` bytes,
    but at least one. `queue`: messages, each with its size.
    """
    batch, size = list[_Message](), 0
    while queue and (not batch or size + queue[0][1] <= MAX_BATCH):
        message, own = queue.popleft()
        batch.append(message)
        size += own
    return tuple(batch), size


# --- outcomes ---


def ended(run: str, outcome: Outcome) -> Ended:
    """Return the message for an outcome: with its value as JSON, and without text that can't be encoded."""
    value = ["repr", str(outcome.value)] if isinstance(outcome.value, Repr) else encode_value(outcome.value, _MAX_VALUE)
    message = Ended(
        id=run, outcome=msgspec.structs.replace(outcome, value=None, entries=None), value=json.dumps(value).encode()
    )
    try:
        encoded_size(message)
    except UnicodeEncodeError:
        message = msgspec.structs.replace(message, outcome=_without_surrogates(message.outcome))
    return message


def _without_surrogates(outcome: Outcome) -> Outcome:
    """Return an outcome whose text is Unicode. Files with other names are left out, which `left_out` says."""
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
    """Return the outcome with its value. Raises `BackendError` if the value can't be read."""
    try:
        value = decode_value(message.value)
    except (ValueError, RecursionError) as error:
        raise BackendError("a node sent a value that can't be read", why=str(error), next="report it") from error
    return msgspec.structs.replace(message.outcome, value=value)
