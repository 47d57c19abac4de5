"""How a secret may be written: what the encoders of the standard library make of any text is on the list."""

from __future__ import annotations

import base64
import html
import json
import re
import string
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

from hypothesis import given
from hypothesis import strategies as st

from redoma.lib.encodings import encodings, spellings
from redoma.network.credentials import StreamRedactor, forms
from redoma.redaction import Redactor

_SIGNS = "-_/+=%&<>\"'\\ é中😀"
SECRETS = st.text(st.sampled_from(string.ascii_letters + string.digits + _SIGNS), min_size=10, max_size=30)
"""Long enough to be found everywhere, and without blanks around them, which belong to no secret."""


def encoded(value: str) -> Iterator[str]:
    """Yield what ordinary encoders make of a text."""
    data = value.encode()
    for encode in (quote, quote_plus):
        for safe in ("", "/"):
            yield encode(value, safe=safe)
            yield re.sub("%..", lambda code: code[0].lower(), encode(value, safe=safe))  # as .NET
    yield quote(quote(value, safe=""))
    yield data.hex()
    yield data.hex().upper()
    yield html.escape(value)
    for ascii_alone in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_alone)[1:-1]
    yield json.dumps(value)[1:-1].replace("/", "\\/")  # as PHP
    yield json.dumps(json.dumps(value))[3:-3]
    yield value


def in_base64(value: str, before: bytes, after: bytes) -> Iterator[str]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(before + value.encode() + after).decode()


@given(SECRETS)
def test_every_way_to_write_a_secret_is_listed(value: str) -> None:
    assert set(encoded(value)) <= {form.decode() for form in encodings(value.encode(), min_base64=8)}


@given(st.binary(min_size=6), st.binary(max_size=10), st.binary(max_size=10))
def test_bytes_of_any_kind_are_found_in_base64_wherever_they_begin(value: bytes, before: bytes, after: bytes) -> None:
    found = encodings(value, min_base64=5)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert any(form in encode(before + value + after) for form in found)


@given(st.characters(codec="utf-8"))
def test_every_way_to_write_one_character_is_listed(char: str) -> None:
    in_hexadecimal = char.encode().hex()
    ways = {form.lower() for form in encoded(char)} - {in_hexadecimal}
    assert ways <= {spelling.decode().lower() for spelling in spellings(char)} | {char.lower()}


@given(SECRETS, st.binary(max_size=10), st.binary(max_size=10))
def test_a_secret_is_redacted_however_it_is_written(value: str, before: bytes, after: bytes) -> None:
    """In output, where short values are found by an automaton and long ones literally, and in what hosts answer."""
    value = value.strip() + "Tr0ub4dor"
    long = value * (5000 // len(value))
    for secret in (value, long):
        redactor = Redactor([secret])
        assert bool(redactor.literals) is (secret is long)
        for form in (*encoded(secret), *in_base64(secret, before, after)):
            cleaned, counts = redactor.redact(f"<{form}>")
            assert counts.get("known-secret"), form
            assert secret not in cleaned
    for form in (*encoded(value), *in_base64(value, before, after)):
        stream = StreamRedactor(forms(value.encode()))
        shown = stream.feed(f"<{form}>".encode()) + stream.finish()
        assert b"****" in shown
        assert len(shown) == len(f"<{form}>".encode())
