"""Replace placeholders by secrets in requests to the hosts they belong to, and redact secrets in the responses.

The guest only ever holds placeholders. A placeholder sent to another host, or in a part of the request that the secret
is not meant for, is refused. Redacted bytes become as many stars, so lengths stay the same.

Responses are searched for the usual encodings (`lib/encodings.py`). A host that encodes a secret in another way
(reversed, encrypted, a letter at a time) is not caught.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import msgspec

from ..lib.encodings import encodings
from ..models.network import SecretUse
from .upstream import Denied

MAX_BODY = 1 << 20
"""Bytes of a body in which placeholders are replaced. Such a body is held in memory until it is complete."""
_MIN_FORM, _MIN_BASE64 = 4, 8
_IN_BASE64 = 7  # bytes of a secret from which on it is recognised in base64, wherever it begins
_MAX_TOKEN, _MAX_TOKENS = 256, 100

Header = tuple[bytes, bytes]


class Held(msgspec.Struct, frozen=True):
    """One secret: its name in the run, its value, its placeholder, and where it may be used."""

    name: str
    value: bytes
    placeholder: bytes
    use: SecretUse

    def __repr__(self) -> str:
        return f"Held({self.name!r}, …)"


class Credentials:
    """All secrets of one run that are kept out of its cell."""

    def __init__(self, held: Iterable[Held] = ()) -> None:
        self._held = tuple(held)
        self._forms = dict.fromkeys(form for each in self._held for form in forms(each.value))
        self._tokens: dict[bytes, None] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def belong_to(self, host: str) -> bool:
        """Return whether a secret may be sent to this host."""
        return any(each.use.names(host) for each in self._held)

    def in_target(self, host: str, target: bytes, *, encrypted: bool) -> bytes:
        """Return the request target with the secrets in its query. Raises `Denied` for a placeholder in its path."""
        path, question, query = target.partition(b"?")
        self._refuse_all(path, host, "its path")
        for each in self._in(query):
            self._may(each, host, encrypted, each.use.query, "the query of a URL")
            query = query.replace(each.placeholder, quote(each.value, safe="").encode())
        return path + question + query

    def in_headers(self, host: str, headers: Iterable[Header], *, encrypted: bool) -> list[Header]:
        """Return the request headers with the secrets in them. Raises `Denied` for a placeholder of another host."""
        return [(name, self._in_header(host, name, value, encrypted)) for name, value in headers]

    def _in_header(self, host: str, name: bytes, value: bytes, encrypted: bool) -> bytes:
        self._refuse_all(name, host, "the name of a header")
        for each in self._in(value):
            self._may(each, host, encrypted, True, "a header")
            if b"\r" in each.value or b"\n" in each.value:
                raise Denied(f"the secret {each.name} has more than one line, so it can't stand in a header")
            value = value.replace(each.placeholder, each.value)
        scheme, _, token = value.partition(b" ")
        if scheme.lower() == b"basic" and (plain := _decoded(token.strip())) and any(self._in(plain)):
            for each in self._in(plain):
                self._may(each, host, encrypted, True, "a header")
                plain = plain.replace(each.placeholder, each.value)
            token = base64.b64encode(plain)
            if any(len(each.value) < _IN_BASE64 for each in self._held):
                self._remember(token)
            return scheme + b" " + token
        return value

    def _remember(self, token: bytes) -> None:
        """A host may echo it, and a short secret in it would not be recognised. The guest chooses the rest of it, and
        how often: so neither its length nor their number is left to the guest."""
        if len(token) > _MAX_TOKEN:
            raise Denied("the user and password are too long for a secret that is so short")
        if len(self._tokens) >= _MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[token] = None

    def in_body(self, host: str, body: bytes, *, encrypted: bool) -> bytes:
        """Return a complete body with the secrets in it. Raises `Denied` for one not meant for bodies."""
        for each in self._in(body):
            self._may(each, host, encrypted, each.use.body, "a body")
            body = body.replace(each.placeholder, each.value)
        return body

    def fills_bodies_of(self, host: str) -> bool:
        """Return whether a secret may be sent to this host in a body."""
        return any(each.use.body and each.use.names(host) for each in self._held)

    def watch(self) -> Watch:
        """Return a `Watch` that finds placeholders in a streamed body, also when one is split between two pieces."""
        return Watch([each.placeholder for each in self._held])

    def stray(self, host: str) -> Denied:
        """Return the error for a placeholder in a body."""
        return Denied(f"a placeholder of a secret stands in a body for {host}, and no secret may be used there")

    def redactor(self) -> StreamRedactor:
        """Return a `StreamRedactor` for one streamed response."""
        return StreamRedactor((*self._forms, *self._tokens))

    def redacted(self, data: bytes) -> bytes:
        """Return complete data with its secrets redacted."""
        redactor = self.redactor()
        return redactor.feed(data) + redactor.finish()

    def redacted_name(self, name: bytes) -> bytes:
        """Return a header name, or stars if it contains a secret in any case (servers write names in lower case)."""
        return b"*" * len(name) if any(form.lower() in name.lower() for form in self._forms) else name

    def _in(self, data: bytes) -> list[Held]:
        return [each for each in self._held if each.placeholder in data]

    def _refuse_all(self, data: bytes, host: str, where: str) -> None:
        for each in self._in(data):
            raise Denied(
                f"the placeholder of the secret {each.name} stands in {where}, where it is not put in, for {host}"
            )

    @staticmethod
    def _may(each: Held, host: str, encrypted: bool, place: bool, where: str) -> None:
        if not each.use.names(host):
            raise Denied(f"the placeholder of the secret {each.name} was sent to {host}, which it does not belong to")
        if not encrypted:
            raise Denied(f"the secret {each.name} would travel to {host} without encryption: use https")
        if not place:
            raise Denied(f"the placeholder of the secret {each.name} stands in {where}, which it is not for")


def _decoded(token: bytes) -> bytes:
    try:
        return base64.b64decode(token, validate=True)
    except binascii.Error:
        return b""


def forms(value: bytes) -> list[bytes]:
    """Return the usual encodings of a secret. Very short ones are left out: they would match by chance."""
    return [form for form in encodings(value, min_base64=_MIN_BASE64) if len(form) >= _MIN_FORM]


class Watch:
    """Looks for some words in a stream of bytes."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self._words = list(words)
        self._keep = max(map(len, self._words), default=1) - 1
        self._tail = b""

    def sees(self, data: bytes) -> bool:
        """Return whether a word is in this piece, or began in an earlier one and ends in it."""
        data = self._tail + data
        self._tail = data[-self._keep :] if self._keep else b""
        return any(word in data for word in self._words)


class StreamRedactor:
    """Replaces words in a stream of bytes by as many stars.

    What it holds back must not depend on the words: a guest that chooses what a slow host answers would see which of
    its guesses are held back, and so find a secret letter by letter. So it holds back the last line as far as it is
    not longer than the longest word; a word that has line breaks itself may begin in any of the last bytes.
    """

    def __init__(self, words: Mapping[bytes, None] | Iterable[bytes]) -> None:
        self._words = tuple(words)
        self._keep = max(map(len, self._words), default=1) - 1
        self._in_lines = not any(b"\n" in word for word in self._words)
        self._held = self._shown = b""
        """The bytes that are held back, as they came and as they will be passed on."""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece, and return the bytes that can be passed on."""
        if not self._words:
            return data
        whole = self._held + data
        shown = _without(whole, self._words, self._shown + data)
        start = max(0, len(whole) - self._keep)
        if self._in_lines:
            start = max(start, whole.rfind(b"\n", start) + 1)
        self._held, self._shown = whole[start:], shown[start:]
        return shown[:start]

    def finish(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        rest, self._held, self._shown = self._shown, b"", b""
        return rest


def _without(data: bytes, words: Iterable[bytes], shown: bytes) -> bytes:
    """`shown`, with stars wherever `data` has one of the words: both have the same length."""
    starred = bytearray(shown)
    for word in words:
        place = data.find(word)
        while place >= 0:
            starred[place : place + len(word)] = b"*" * len(word)
            place = data.find(word, place + len(word))
    return bytes(starred)
