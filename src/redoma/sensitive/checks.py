"""Second looks at what a pattern found: is it really a card number, a password, an e-mail address?

A pattern only has to be cheap and to miss nothing; a check then reads the few bytes around one candidate
and returns the span to take out, or None for a false alarm. Every check looks at a bounded number of bytes,
so that a text made of nothing but near-misses still takes time linear in its length.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

Span = tuple[int, int]
Check = Callable[[bytes, int, int], Span | None]

_LONGEST_VALUE = 200
_LONGEST_JWT_HEADER = 1024
_LONGEST_KEY = 16 * 1024


# --- passwords, tokens and other values that only their name gives away --------------------------------------

# Quoted, quoted inside a JSON string (\"…\"), or bare. A bare value ends where a query string, a connection string,
# a list or a call would end it. A quote that is never closed still opens a value.
_VALUE = re.compile(
    rb"""(?:[bBrRuU]{1,2}(?=["']))?(?:\\"(?P<escaped>[^"\\\n]+)|"(?P<double>[^"\\\n]*(?:\\.[^"\\\n]*)*)"""
    rb"""|'(?P<single>[^'\\\n]*(?:\\.[^'\\\n]*)*)|(?P<bare>[^\s"'`,;&<>(){}\[\]|\\]+))"""
)

# What stands where a secret would, without being one: a variable, a template, a mask, our own replacement.
_STAND_IN = re.compile(
    rb"""(?i)\$\w|\$[({]|%[(sv{]|\[redacted:|<[^<>]*>$|[^{]{0,99}(?:\$\{|\{\{|\{[a-z_][\w.]*\})"""
    rb"""|(?:[*x.\-_#?]|\xe2\x80\xa2|\xe2\x80\xa6)+$|your[-_ ]|(?:os|process|env|self|settings|config|secrets)\."""
)

# Words that documentation, schemas, types and messages put there.
_WORDS = frozenset(
    b"string str bytes text null none nil true false undefined optional required empty hidden redacted masked unset"
    b" invalid expired missing incorrect wrong valid disabled enabled default password passwd secret token bearer"
    b" basic input prompt stdin file number integer boolean object field type name value example".split()
)
_DOTTED = re.compile(rb"[A-Za-z_]\w*(?:\??\.[A-Za-z_]\w*)+$")
_IDENTIFIER = re.compile(rb"[A-Za-z_]\w*$")
_MOMENT = re.compile(rb"[0-9TZ:.+-]+$")
_DIGITS, _LETTERS = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _count(value: bytes, of: bytes) -> int:
    return len(value) - len(value.translate(None, of))


def _is_strong(value: bytes) -> bool:
    """Whether it looks made by a machine: long enough, of mixed classes, and of many different characters."""
    digits, different = _count(value, _DIGITS), len(set(value))
    if len(value) < 8 or different < 6 or not _count(value, _LETTERS) or _MOMENT.match(value):
        return False
    return digits >= 2 or (digits == 1 and not value.islower()) or (len(value) >= 20 and different >= 16)


class _Value(NamedTuple):
    """What a name is given, as far as it takes to decide about it."""

    text: bytes
    quoted: bool
    start: int


def _value_at(text: bytes, at: int) -> _Value | None:
    found = _VALUE.match(text, at, at + _LONGEST_VALUE)
    if not found or not found.lastgroup:
        return None
    value, quoted = found[found.lastgroup], found.lastgroup != "bare"
    if _STAND_IN.match(value) or value.lower() in _WORDS or value.startswith((b"/", b"./", b"~/")) or b"://" in value:
        return None
    # `get_token()`, `tokens[0]` and `config.token` are code, not literals.
    if not quoted and (text[found.end() : found.end() + 1] in (b"(", b"[", b"{", b"<") or _DOTTED.match(value)):
        return None
    if not quoted and len(value) < _LONGEST_VALUE:
        value = value.rstrip(b".:")  # the end of a sentence
    return _Value(value, quoted, found.start(found.lastgroup))


def _all_of(value: _Value, text: bytes, at: int) -> Span:
    """Once it is decided, the whole value goes, however long."""
    end = value.start + len(value.text)
    if end - at >= _LONGEST_VALUE and (found := _VALUE.match(text, at)) and found.lastgroup:
        end = found.end(found.lastgroup)
    return value.start, end


def password(text: bytes, start: int, end: int) -> Span | None:
    """A password can be any word, so a quoted literal is enough; a bare one must not look like a name in code."""
    found = _value_at(text, end)
    if not found:
        return None
    value = found.text
    if found.quoted:
        likely = len(value) >= 4 and (b" " not in value or _is_strong(value))
    elif text[end - 1 : end].isspace() and text[start:end].rstrip().endswith(b"=") and _IDENTIFIER.match(value):
        likely = _is_strong(value)  # `password = pw1` is a name; `password=hunter2` is what files and logs print
    else:
        likely = len(value) >= 6 and len(value) > _count(value, _LETTERS + b"_-")
    return _all_of(found, text, end) if likely else None


def credential(text: bytes, start: int, end: int) -> Span | None:
    """Tokens and keys are made by machines: anything that doesn't look it (`token: next`) is a name or a word."""
    found = _value_at(text, end)
    if not found or b" " in found.text or not _is_strong(found.text):
        return None
    return _all_of(found, text, end)


def aws_secret(text: bytes, start: int, end: int) -> Span | None:
    found = _value_at(text, end)
    return _all_of(found, text, end) if found and re.fullmatch(rb"[A-Za-z0-9/+]{40}", found.text) else None


def url_password(text: bytes, start: int, end: int) -> Span | None:
    """`scheme://user:password@host`: only the password goes, so that a reader still sees which host it was."""
    colon = text.index(b":", start + len(b"://"))
    value = text[colon + 1 : end - 1]
    return None if _STAND_IN.match(value) else (colon + 1, end - 1)


def authorization(text: bytes, start: int, end: int) -> Span | None:
    """`Bearer …` and `Basic …`: after the header's name anything counts, elsewhere ("basic knowledge") only a token."""
    scheme, _, value = text[start:end].partition(b" ")
    value = value.lstrip()
    named = re.search(rb"(?i)authorization\W{1,6}$", text[max(0, start - 24) : start])
    if not named and not (_is_strong(value) if scheme[:2].lower() == b"be" else _is_basic(value)):
        return None
    return end - len(value), end


def _is_basic(value: bytes) -> bool:
    try:
        return b":" in base64.b64decode(value, validate=True)
    except binascii.Error:
        return False


def random_token(text: bytes, start: int, end: int) -> Span | None:
    """A prefix short enough to occur in ordinary names (`sk-fading-circle`) needs a random rest."""
    return (start, end) if _is_strong(text[start : min(end, start + _LONGEST_VALUE)]) else None


# --- things with a shape of their own ------------------------------------------------------------------------

_JWT = re.compile(rb"[\w-]{10,%d}\.eyJ[\w-]{2,}(?:\.[\w-]*)?" % _LONGEST_JWT_HEADER)
# Headers (`DEK-Info: AES-128-CBC,0A1B`) and a literal \\n, as in JSON, belong to the body. Without a last line there
# is only the shape of the lines to say where the key ends and other output begins.
KEY_BODY = re.compile(rb"[\w+/=\s\\:,.()-]*")
_KEY_LINES = re.compile(
    rb"(?:\s|\\n)*(?:[A-Z][A-Za-z-]+: [^\n]*\n\s*)*(?:[A-Za-z0-9+/=]+(?:\s*\n\s*|\\n|\Z))*(?:[A-Za-z0-9+/=]{16,})?"
)
_KEY_END = re.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
BASE64 = _LETTERS + _DIGITS + b"+/=-_"
BASE64_LINES = _LETTERS + _DIGITS + b"+/=\r\n"


def jwt(text: bytes, start: int, end: int) -> Span | None:
    # Not part of the one pattern: a run of `eyJ` without a dot would be read again from each of them.
    found = _JWT.match(text, start)
    return found.span() if found else None


def key(text: bytes, start: int, end: int) -> Span | None:
    """A private key up to its last line, or, where that is missing, as far as its body goes."""
    # Not part of the one pattern either: each of many beginnings would look for the end all over again.
    dashes = text.find(b"-----", end)
    if dashes >= 0 and (last := _KEY_END.match(text, dashes)) and KEY_BODY.fullmatch(text, end, dashes):
        return start, last.end()
    body = _KEY_LINES.match(text, end, dashes if dashes >= 0 else len(text))
    return start, body.end() if body else end


def key_end(text: bytes, start: int, end: int) -> Span | None:
    """The end of a private key whose beginning was cut off: everything before it that can be its body goes too."""
    window = text[max(0, start - _LONGEST_KEY) : start]
    body = window[len(window.rstrip(BASE64_LINES)) :]
    return start - len(body.lstrip()), end


def email(text: bytes, start: int, end: int) -> Span | None:
    # The pattern starts at the last character before the @; reading on backwards here keeps it from trying
    # every word of the text as the beginning of an address.
    begin = start
    while begin > max(0, start - 63) and (text[begin - 1 : begin].isalnum() or text[begin - 1] in b"._%+-"):
        begin -= 1
    local = text[begin : text.index(b"@", start)]
    if local == b"git" or text[end : end + 1] == b"(":  # a git remote, and `a@b.dot(c)` in Python
        return None
    return begin, end


# --- numbers with a check digit ------------------------------------------------------------------------------


@functools.cache
def _stdnum(name: str) -> ModuleType:
    # 60 ms to import, so not before there is a candidate.
    from importlib import import_module

    return import_module(f"stdnum.{name}")


def _stands_alone(text: bytes, start: int, end: int) -> bool:
    """Not a part of a longer number, a decimal fraction, a version or an identifier."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before[-1:].isalnum() or before[-1:] in (b"_", b".") or after[:1].isalnum() or after[:1] == b"_":
        return False
    return not (before[-1:] in (b"-", b"/") and before[:1].isalnum()) and not (
        after[:1] in (b".", b"-", b"/") and after[1:].isalnum()
    )


def _numbered(name: str) -> Check:
    """A check by the validator of that name; the number is what stands after any words (`CPF: 123…`)."""

    def check(text: bytes, start: int, end: int) -> Span | None:
        hint = re.match(rb"(?i)(?:cpf|cnpj)[^0-9a-z]*", text[start:end])
        start += hint.end() if hint else 0
        number = text[start:end].decode("latin-1")
        return (start, end) if _stands_alone(text, start, end) and _stdnum(name).is_valid(number) else None

    return check


cpf = _numbered("br.cpf")
cnpj = _numbered("br.cnpj")


def card(text: bytes, start: int, end: int) -> Span | None:
    digits = text[start:end].translate(None, b" -").decode()
    return (start, end) if _stands_alone(text, start, end) and _stdnum("luhn").is_valid(digits) else None


_IN_DIGITS = {ord(letter): str(int(letter, 36)) for letter in _LETTERS.decode().upper()}


def iban(text: bytes, start: int, end: int) -> Span | None:
    """Groups of four run on into the next word in capitals, so the longest valid beginning is what counts."""
    while end - start >= 15:
        number = text[start:end].replace(b" ", b"").decode()
        turned = (number[4:] + number[:4]).translate(_IN_DIGITS)
        # The remainder alone is cheap, and turns nearly everything away.
        if int(turned) % 97 == 1 and _stdnum("iban").is_valid(number):
            return start, end
        end = text.rfind(b" ", start, end)
    return None


def ssn(text: bytes, start: int, end: int) -> Span | None:
    area, group, serial = text[start:end].split(b"-")
    issued = area not in (b"000", b"666") and area < b"900" and group != b"00" and serial != b"0000"
    return (start, end) if issued and _stands_alone(text, start, end) else None


def phone(text: bytes, start: int, end: int) -> Span | None:
    digits = _count(text[start:end], _DIGITS)
    alone = not text[end : end + 1].isalnum() and not text[max(0, start - 1) : start].isalnum()
    return (start, end) if alone and 10 <= digits <= 15 else None
