"""Checks what a pattern found: is it really a card number, a password, an e-mail address?

A pattern only has to be cheap and to miss nothing. A check gets the text and the position of the candidate, reads a few
bytes around it, and returns the span to remove, or None for a false alarm. Every check reads a bounded number of bytes,
so that text made of near-misses still takes time linear in its length.
"""

from __future__ import annotations

import binascii
import functools
import itertools
import re
from collections.abc import Callable
from types import ModuleType

import msgspec

from ..lib.patterns import lazy_pattern

Span = tuple[int, int]
Check = Callable[[bytes, int, int], Span | None]


_MAX_VALUE = 200
_MAX_JWT_HEADER = 1024
_MAX_KEY = 16 * 1024
_MAX_JWK = 2048


# --- passwords, tokens and other values that are recognised only by their name --------------------------------

# Quoted (also with quotes as written inside a JSON string, HTML or a URL), or bare. A bare value ends where a query
# string, a connection string, a list or a call would end it. An unclosed quote still opens a value.
_VALUE = lazy_pattern(
    rb"""(?:[bBrRuUN@]{1,2}(?=["']))?(?:""(?="))?(?:\\{1,7}["'](?P<escaped>[^"'\\\n]+)|\\{1,3}u002[27](?P<unicode>[^"'\\\n]+)"""
    rb"""|"(?P<double>[^"\\\n]*(?:\\.[^"\\\n]*)*)|'(?P<single>[^'\\\n]*(?:\\.[^'\\\n]*)*)"""
    rb"""|(?i:&(?:quot|apos|\#0{0,2}3[49]|\#x0{0,2}2[27]);)(?P<html>[^&<>\n]+(?:&(?:amp|lt|gt|\#\d{2});[^&<>\n]*)*)"""
    rb"""|%2[27](?P<encoded>[^%\s&"'<>]+(?:%(?!2[27])[0-9A-Fa-f]{2}[^%\s&"'<>]*)*)|(?P<bare>[^\s"'`,;&<>(){}\[\]|\\\x1b]+))"""
)
_ENCODED_END = lazy_pattern(rb"(?i)%(?:2[267]|7d|20|0[ad])")
_REST_OF_WORD = lazy_pattern(rb"[^\s\"'`]*")
# `NAME=` at the beginning of a line in an .env file.
_ENV_LINE = lazy_pattern(rb"(?:^|\n)[ \t]*(?:export )?[A-Z0-9_]*$")

# Values in place of a secret that are not one: a variable, a template, a mask, our own replacement.
_STAND_IN = lazy_pattern(
    rb"""(?i)\$\w|\$[({]|%[(sv{]|\[redacted:|<[^<>]*>$|[^{]{0,99}(?:\$\{|\{\{|\{[a-z_][\w.]*\})"""
    rb"""|(?:[*x.\-_#?]|\xe2\x80\xa2|\xe2\x80\xa6)+$|your[-_ ]"""
    rb"""|!(?:vault|ref|env|include|secret)\w*$|(?-i:\[[A-Z][A-Z_ ]+\]$|[A-Z0-9]+_[A-Z0-9_]+=$)"""
    rb"""|(?:os|process|env|self|settings|config|secrets)\."""
)

# Words that documentation, schemas, types and messages use as values.
_WORDS = frozenset(
    b"string str bytes text null none nil true false undefined optional required empty hidden redacted masked unset"
    b" invalid expired missing incorrect wrong valid disabled enabled default password passwd pass secret token bearer"
    b" basic input prompt stdin file number integer boolean object field type name value example".split()
)
_DOTTED = lazy_pattern(rb"[A-Za-z_]\w*(?:\??\.[A-Za-z_]\w*)+$")
_IDENTIFIER = lazy_pattern(rb"[A-Za-z_]\w*$")
_MOMENT = lazy_pattern(rb"[0-9TZ:.+-]+$")
_DIGITS, _LETTERS = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _count(value: bytes, of: bytes) -> int:
    """Return how many of the bytes are in `of`."""
    return len(value) - len(value.translate(None, of))


def _is_strong(value: bytes) -> bool:
    """Return whether it looks generated: long enough, with several classes and many different characters."""
    digits, different = _count(value, _DIGITS), len(set(value))
    if len(value) < 8 or different < 6 or not _count(value, _LETTERS) or _MOMENT.match(value):
        return False
    return digits >= 2 or (digits == 1 and not value.islower()) or (len(value) >= 20 and different >= 16)


class _Value(msgspec.Struct, frozen=True):
    """The value that follows a name; for a long one, its beginning."""

    text: bytes
    quoted: bool
    start: int


def _value_at(text: bytes, at: int) -> _Value | None:
    """Return the value that begins at a position; None if it is code, a path, a placeholder or an ordinary word."""
    found = _VALUE.match(text, at, at + _MAX_VALUE)
    if not found or not found.lastgroup:
        return None
    value, quoted = found[found.lastgroup], found.lastgroup != "bare"
    if not quoted and text[at - 3 : at - 1] == b"%3" and (cut := _ENCODED_END.search(value)):
        value = value[: cut.start()]
    if _STAND_IN.match(value) or value.lower() in _WORDS or value.startswith((b"/", b"./", b"~/")) or b"://" in value:
        return None
    # `get_token()`, `tokens[0]` and `config.token` are code, not literals.
    if not quoted and (_is_code_after(text, found.end()) or (_DOTTED.match(value) and not _is_token(value))):
        return None
    if not quoted and len(value) < _MAX_VALUE:
        value = value.rstrip(b".:")  # the end of a sentence
        if text[found.end() : found.end() + 1] == b"&" and text[at - 1 : at] == b"=":
            # In a query string the rest would be other fields; in a line of an .env file it belongs to the value.
            name = text[max(0, at - 65) : at - 1]
            if _ENV_LINE.search(name) and (rest := _REST_OF_WORD.match(text, found.end(), at + _MAX_VALUE)):
                value += rest[0]
    return _Value(value, quoted, found.start(found.lastgroup))


def _is_code_after(text: bytes, end: int) -> bool:
    return text[end : end + 1] in (b"(", b"[", b"{", b"<") and not text.startswith(b"</", end)


def _is_token(value: bytes) -> bool:
    """Return whether a value with dots is a token (`s.WJNIZfh1Za3L1RxhVSDqw6Cn`), not code (`settings.API_KEY_V2`)."""
    last = value.rpartition(b".")[2]
    return len(last) >= 16 and _count(last, _DIGITS) >= 2 and b"_" not in last and _is_strong(last)


def _all_of(value: _Value, text: bytes, at: int) -> Span:
    """Return the span of the whole value, however long."""
    end = value.start + len(value.text)
    if end - at >= _MAX_VALUE and (found := _VALUE.match(text, at)) and found.lastgroup:
        end = found.end(found.lastgroup)
    return value.start, end


def _of_value(is_secret: Callable[[_Value, bytes, int, int], bool]) -> Check:
    """Return a check for the value after a name. It removes the whole value if `is_secret` accepts it."""

    @functools.wraps(is_secret)
    def check(text: bytes, start: int, end: int) -> Span | None:
        value = _value_at(text, end)
        return _all_of(value, text, end) if value and is_secret(value, text, start, end) else None

    return check


# If a whole line is one setting, even an ordinary word is its value.
_LINE_BEFORE = lazy_pattern(rb"(?:^|[\n\r])(?P<margin>[ \t]*(?:- |export )?)(?P<name>[\w.-]*)$")
_LINE_AFTER = lazy_pattern(rb"[ \t]*(?:[\r\n]|\Z)")
_SETTING_BEFORE = lazy_pattern(
    rb"(?i)(?:^|\n)[ \t]*(?:\[[^\]\n]+\]|(?:user(?:name)?|login|host|port|server|email|database|dbname|repository|url)"
    rb"[ \t]*[=:][^\n()]*)[ \t]*\r?\n$"
)
_DOTTED_NAME = lazy_pattern(rb"[a-z][\w-]*(?:\.[\w-]+)+$")
_ENV_NAME = lazy_pattern(rb"[A-Z][A-Z0-9_]*$")
_NAME_OF_SECRET = lazy_pattern(rb"(?i)pass|pwd|secret|token|key|hash|hidden|change|example|dummy|test|user")
_ELEMENT = lazy_pattern(rb"[^<>\s]{4,200}(?=</)")
_IN_EXPANSION = lazy_pattern(rb"\$\{\w*$")


def password(text: bytes, start: int, end: int) -> Span | None:
    """Accept the text between tags (`<password>…</password>`), or the value after a name that means a password."""
    if text[end - 1 : end] == b">" and (element := _ELEMENT.match(text, end)):
        value = element[0]
        if b"<td" in text[start:end].lower() and not _is_strong(value):  # a table of columns and their types
            return None
        return None if _STAND_IN.match(value) or value.lower() in _WORDS else element.span()
    return _named_password(text, start, end)


@_of_value
def _named_password(found: _Value, text: bytes, start: int, end: int) -> bool:
    """Accept any quoted literal, since a password can be any word; a bare value must not look like a name in code."""
    if _IN_EXPANSION.search(text, max(0, start - 40), start):  # `${DB_PASSWORD:?missing}`
        return False
    value, sign = found.text, text[start:end].rstrip()
    if found.quoted or (sign.endswith((b"=", b"%3D", b"%3d")) and _in_query(text, start)):
        return len(value) >= 4 and (b" " not in value or _is_strong(value))
    if sign.endswith(b">"):  # in code, a comparison
        return False
    if text[end - 1 : end].isspace() and sign.endswith(b"=") and _IDENTIFIER.match(value):
        # `password = pw1` is a name; `password=hunter2` is what files and logs contain
        likely = _is_strong(value)
    else:
        likely = len(value) > _count(value, _LETTERS + b"_-") or _is_scrambled(value)
    return len(value) >= 6 and (likely or _is_setting(text, start, found))


def _in_query(text: bytes, start: int) -> bool:
    """Return whether a name is a field of a query string: `?user=ana&password=`."""
    return re.search(rb"[?&][\w.-]*$", text[max(0, start - 24) : start]) is not None


def _is_setting(text: bytes, start: int, value: _Value) -> bool:
    """Return whether the line is a setting of a file and nothing else: `POSTGRES_PASSWORD: sunflower`."""
    after = value.start + len(value.text)
    before = _LINE_BEFORE.search(text, max(0, start - 80), start)
    if not before or not _LINE_AFTER.match(text, after, after + 8) or _NAME_OF_SECRET.search(value.text):
        return False
    name = re.match(rb"[\w.-]*", text[before.start("name") : value.start])
    if name and (_ENV_NAME.match(name[0]) or _DOTTED_NAME.match(name[0])):
        return True
    # In Python the previous line would not look like this, with nothing in quotes.
    at = before.start("margin")
    return bool(_SETTING_BEFORE.search(text, max(0, at - 120), at)) and not before["margin"]


def _is_scrambled(value: bytes) -> bool:
    """Return whether upper and lower case alternate as in no name: `CvDplDlDJtkL`."""
    turns = sum(1 for at in range(1, len(value)) if value[at - 1 : at].islower() and value[at : at + 1].isupper())
    return len(value) >= 8 and turns >= 3 and len(value) < 4 * turns + 2


@_of_value
def netrc(value: _Value, text: bytes, start: int, end: int) -> bool:
    """Accept the password in a `~/.netrc`."""
    machine = re.search(rb"\b(?:machine[ \t]+\S+|default)\s+$", text[max(0, start - 160) : start])
    return len(value.text) >= 4 and (bool(machine) or len(value.text) > _count(value.text, _LETTERS))


def quoted_password(text: bytes, _start: int, end: int) -> Span | None:
    """Accept a quoted literal that can only be a password: `IDENTIFIED BY 'hunter2'`. The match ends with its quote."""
    found = _value_at(text, end - 1)
    return _all_of(found, text, end - 1) if found and found.quoted and len(found.text) >= 4 else None


@_of_value
def setting_password(value: _Value, text: bytes, _start: int, _end: int) -> bool:
    """Accept the value of a setting that is alone on its line: `requirepass hunter2`."""
    after = value.start + len(value.text) + value.quoted
    return len(value.text) >= 4 and _LINE_AFTER.match(text, after, after + 8) is not None


_QUOTED_REST = lazy_pattern(rb"""[^'"\n]{0,200}""")
_PASS_WORD = lazy_pattern(rb"""[ =]?['"]?([^\s'"]+)""")
_GLUED = lazy_pattern(rb"\b(?:mysql\w*|mariadb(?:-\w+)?|7z[ar]?|(?:un)?rar)\s[^\n|;&]*$")
_APART = {
    b"w": lazy_pattern(rb"\bldap\w+\b[^\n|;&]*$"),
    b"P": lazy_pattern(rb"\b(?:zip|unzip|zipcloak|sqlcmd|bcp|mosquitto_[ps]ub)\b[^\n|;&]*$"),
    b"U": lazy_pattern(rb"\b(?:smbclient|rpcclient|smbmap|net)\b[^\n|;&]*$"),
    b"a": lazy_pattern(rb"\bredis-cli\b[^\n|;&]*$"),
    b"p": lazy_pattern(rb"\b(?:sshpass|mongo\w*|(?:docker|podman|oc|az|helm registry|skopeo) login)\b[^\n|;&]*$"),
}
_WEB = lazy_pattern(rb"\b(?:curl|wget|http|https|xh|etcdctl)\b")


def short_option(text: bytes, start: int, end: int) -> Span | None:
    """Accept the password after a one-letter option, if the command's name shows that it is one."""
    if text.startswith(b"pass", start + 2):
        at = text.find(b"pass:", end - 1, end + 4) + len(b"pass:")
        value = _PASS_WORD.match(text, at, at + _MAX_VALUE) if at >= len(b"pass:") else None
        return value.span(1) if value and not _STAND_IN.match(value[1]) else None
    line = text[max(0, start - 200) : start]
    line = line[line.rfind(b"\n") + 1 :]
    option, apart = text[start + 2 : start + 3], text[start + 3 : start + 4].isspace()
    # Most options with these letters belong to other commands.
    if option == b"p" and _GLUED.search(line):
        known = not apart
    elif commands := _APART.get(option):
        known = bool(commands.search(line)) and (apart or b"sshpass" in line)
    else:
        known = bool(_WEB.search(line))  # -u, --user
    at = end - 1  # the first letter of the value
    quoted = text[at - 1 : at] in (b"'", b'"')
    value = (_QUOTED_REST if quoted else _REST_OF_WORD).match(text, at, at + _MAX_VALUE) if known else None
    if value is None:
        return None
    first, last = value.span()
    if option in (b"u", b"U", b"-"):  # `user:password`
        colon = text.find(b"%" if option == b"U" else b":", first, last)
        first = colon + 1 if colon >= 0 else last
        if first == last and text[first : first + 1] in (b"'", b'"'):  # `user:'password'`
            rest = _QUOTED_REST.match(text, first + 1, first + _MAX_VALUE)
            first, last = rest.span() if rest else (first, last)
    return (first, last) if last - first >= 4 and not _STAND_IN.match(text[first:last]) else None


@_of_value
def whole_value(value: _Value, text: bytes, start: int, _end: int) -> bool:
    """Accept whatever stands there. Of Windows' options, only that of `net use`."""
    known = not text.startswith(b" /user:", start) or b"net use " in text[max(0, start - 200) : start]
    return known and len(value.text) >= 4


def dsn_password(text: bytes, start: int, end: int) -> Span | None:
    """Accept `user:password@tcp(`: what is between the colon and the last `@`."""
    first, last = start + 1, text.rindex(b"@", start, end)
    value = text[first:last]
    named = text[max(0, start - 1) : start].isalnum()
    return (first, last) if named and not _STAND_IN.match(value) and value.lower() not in _WORDS else None


_PIPED = lazy_pattern(rb"""echo (?:-[ne] )?["']?([^\s"'|$`<>]+)""")


def piped(text: bytes, start: int, end: int) -> Span | None:
    """Accept what `echo` writes to a program that reads a password; of `user:password` the second part."""
    found = _PIPED.match(text, start, end)
    if not found:
        return None
    first, last = found.span(1)
    program = text[last:end]
    if b"-stdin" in program and not re.search(rb"-(?:passw(?:or)?d|pass|token|secret|key)-stdin$", program):
        return None
    if program.endswith(b"chpasswd"):
        first = text.find(b":", first, last) + 1
    return (first, last) if first and last - first >= 4 else None


@_of_value
def credential(value: _Value, text: bytes, start: int, _end: int) -> bool:
    """Accept tokens and keys, which are generated: a value that doesn't look so (`token: next`) is a name or a word.
    The name of a secret (`arn:aws:secretsmanager:…:secret:name`) is not one."""
    return b" " not in value.text and _is_strong(value.text) and b"arn:aws:" not in text[max(0, start - 60) : start]


def quoted_credential(text: bytes, start: int, end: int) -> Span | None:
    """Accept a value in a sentence: `password is: …`, `password '…'`."""
    quoted = text[end - 1 : end] in (b"'", b'"')
    return credential(text, start, end - quoted)


_HARMLESS_KEYS = frozenset(
    b"cache object idempotency partition sort primary foreign public pub s3 file dedup dedupe group route routing"
    b" lookup unique index hash row item map translation i18n message event job query section feature flag tracking"
    b" issue record parent child candidate natural composite surrogate image blob asset bundle chunk module lock state"
    b" registry value entity host known ssh gpg verify verification storage data list dict json field column".split()
)
_UUID = lazy_pattern(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")


@_of_value
def named_key(found: _Value, text: bytes, start: int, _end: int) -> bool:
    """Accept `ANYTHING_KEY=…`, unless the kind of key is not secret, or the value is a path or an identifier."""
    before, value = re.search(rb"[A-Za-z0-9]+$", text[max(0, start - 24) : start + 1]), found.text
    if not before or len(value) < 16:
        return False
    if re.fullmatch(rb"[A-Za-z0-9+/]{40,}={1,2}", value) and _count(value, _DIGITS) >= 2:  # paths don't end like this
        return True
    if before[0].lower() in _HARMLESS_KEYS:
        return False
    if not re.fullmatch(rb"[\w+/=:~.-]+", value) or (b"/" in value and b"." in value) or value.count(b"/") > 2:
        return False  # an expression or a path
    return not _UUID.match(value) and _count(value, _DIGITS) >= 2 and _is_strong(value)


@_of_value
def key_value(found: _Value, _text: bytes, _start: int, _end: int) -> bool:
    """Accept `key=…` only with a long value, since the name alone says little."""
    value = found.text
    is_word = len(value) >= 20 and re.fullmatch(rb"[A-Za-z0-9_.%-]+={0,2}", value)
    return bool(is_word) and _is_strong(value) and not _UUID.match(value)


@_of_value
def aws_secret(value: _Value, _text: bytes, _start: int, _end: int) -> bool:
    """Accept an AWS secret key: exactly 40 characters."""
    return re.fullmatch(rb"[A-Za-z0-9/+]{40}", value.text) is not None


def url_password(text: bytes, start: int, end: int) -> Span | None:
    """Accept `scheme://user:password@host`. Only the password is removed, so that the host stays readable."""
    colon = text.index(b":", start + len(b"://"))
    value = text[colon + 1 : end - 1]
    if re.fullmatch(rb"\[redacted:[a-z-]+\]", text[start + len(b"://") : end - 1]):  # our own replacement of both
        return None
    return None if _STAND_IN.match(value) or value.lower() in _WORDS else (colon + 1, end - 1)


def url_token(text: bytes, start: int, end: int) -> Span | None:
    """Accept `https://token@host`."""
    first, last = start + 3, end - 2
    return (first, last) if _is_strong(text[first:last]) else None


def signature(text: bytes, start: int, end: int) -> Span | None:
    """Accept the value after the first `=` or `:`."""
    found = re.match(rb"""[^=%:]*(?:=|%3[dD]|:)\s?["']?""", text[start:end])
    return None if not found else (start + found.end(), end - text[start:end].endswith(b'"'))


def authorization(text: bytes, start: int, end: int) -> Span | None:
    """Accept `Bearer …` and `Basic …`: any value after the header's name, elsewhere ("basic knowledge") only a
    token.
    """
    scheme, _, value = text[start:end].partition(b" ")
    value = value.lstrip()
    named = re.search(rb"(?i)authorization\W{1,6}$", text[max(0, start - 24) : start])
    if not named and not (_is_strong(value) if scheme[:2].lower() == b"be" else _is_basic(value)):
        return None
    if _STAND_IN.match(value):
        return None
    return end - len(value), end


def authorization_header(text: bytes, start: int, end: int) -> Span | None:
    """Accept `Authorization: SCHEME value` with any scheme, and a value without a scheme if it looks like a token."""
    head = text[start : min(end, start + 120)]
    at = start + max(len(b"authorization="), *(head.rfind(sign) + 1 for sign in (b" ", b'"', b"'", b">")))
    at += len(text[at:end]) - len(text[at:end].lstrip(b":="))
    named = re.search(rb"(?i)\b(?:bearer|basic) {1,4}$", text[max(start, at - 12) : at])
    if text.startswith((b"token=", b"key="), at):
        at = text.index(b"=", at) + 1
    value = text[at : min(end, at + _MAX_VALUE)]
    return (at, end) if end - at >= 8 and (named or _is_strong(value)) and not _STAND_IN.match(value) else None


_COOKIES = lazy_pattern(rb"[^\n\r\"']{1,1024}")
_COOKIE = lazy_pattern(rb"=([^;\s]{8,})")
_ATTRIBUTES = (b"path", b"expires", b"domain", b"max-age", b"samesite", b"priority", b"version")
_MAX_COOKIES = 20


def cookie(text: bytes, start: int, end: int) -> Span | None:
    """Accept the cookies of a header from the first to the last that looks like a token, including those between."""
    at = end + (text[end : end + 1] in (b'"', b"'"))
    header = _COOKIES.match(text, at)
    if not header or b"=" not in header[0]:
        return None
    strong = [
        one
        for one in itertools.islice(_COOKIE.finditer(text, at, header.end()), _MAX_COOKIES)
        if not text[max(at, one.start() - 12) : one.start()].lower().endswith(_ATTRIBUTES)
        and _is_strong(one[1][:_MAX_VALUE])
        and b"(" not in one[1]
    ]
    if not strong:
        return None
    last = _REST_OF_WORD.match(text, strong[-1].start(1)) if strong[-1].end() == header.end() else None
    return strong[0].start(1), max(strong[-1].end(1), last.end() if last else 0)


_COOKIE_OPTION = lazy_pattern(rb"\s-[\w-]+[ =]")


def cookie_option(text: bytes, start: int, end: int) -> Span | None:
    """Accept the cookies after `curl -b`."""
    option = _COOKIE_OPTION.match(text, start, end)
    named = option and _WEB.search(text, max(0, start - 200), start)
    return cookie(text, start, option.end()) if option and named else None


def _is_basic(value: bytes) -> bool:
    import base64

    try:
        return b":" in base64.b64decode(value, validate=True)
    except binascii.Error:
        return False


def random_token(text: bytes, start: int, end: int) -> Span | None:
    """Require a random rest after a prefix that is short enough to occur in ordinary names (`sk-fading-circle`)."""
    return (start, end) if _is_strong(text[start : min(end, start + _MAX_VALUE)]) else None


# --- values with a distinctive form --------------------------------------------------------------------------

_JWT = lazy_pattern(rb"[\w-]{10,%d}\.eyJ[\w-]{2,}(?:\.[\w-]*)?" % _MAX_JWT_HEADER)
# Headers (`DEK-Info: AES-128-CBC,0A1B`) and a literal \\n, as in JSON, belong to the body. Without a last line, only
# the shape of the lines shows where the key ends and other output begins.
KEY_BODY = lazy_pattern(rb"[\w+/=\s\\:,.()-]*")
_KEY_LINES = lazy_pattern(
    rb"(?:\s|\\n)*(?:[A-Z][A-Za-z-]+: [^\n]*\n\s*)*(?:[A-Za-z0-9+/=]+(?:\s*\n\s*|\\n|\Z))*(?:[A-Za-z0-9+/=]{16,})?"
)
_KEY_END = lazy_pattern(rb"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
BASE64 = _LETTERS + _DIGITS + b"+/=-_"
BASE64_LINES = _LETTERS + _DIGITS + b"+/=\r\n"


def jwt(text: bytes, start: int, end: int) -> Span | None:
    """Accept a JSON Web Token: at least header and payload."""
    # Not part of the combined pattern: a run of `eyJ` without a dot would be read again from each of them.
    found = _JWT.match(text, start)
    return found.span() if found else None


def key(text: bytes, start: int, end: int) -> Span | None:
    """Accept a private key up to its last line, or, if that is missing, as far as its body goes."""
    # Not part of the combined pattern: each of many beginnings would search for the end again.
    if text[end : end + 1] in (b'"', b"'", b"`"):  # a sentence about the first line of one
        return None
    dashes = text.find(b"-----", end)
    if dashes >= 0 and (last := _KEY_END.match(text, dashes)) and KEY_BODY.fullmatch(text, end, dashes):
        return start, last.end()
    body = _KEY_LINES.match(text, end, dashes if dashes >= 0 else len(text))
    return start, body.end() if body else end


def encoded_key(text: bytes, start: int, end: int) -> Span | None:
    """Accept a base64-encoded PEM file whose first line says that it is a private key."""
    import base64

    return (start, end) if b"PRIVATE KEY" in base64.b64decode(text[start : start + 64] + b"==") else None


def json_web_key(text: bytes, start: int, end: int) -> Span | None:
    """Accept the private part of a JSON Web Key, which has its type nearby."""
    near = text[max(0, start - _MAX_JWK) : end + _MAX_JWK]
    return (start + 5, end) if b'"kty"' in near or b"'kty'" in near else None


def putty_key(text: bytes, start: int, end: int) -> Span | None:
    """Accept the private lines of a PuTTY key."""
    lines = int(text[start:end].split(b":")[1])
    body = re.compile(rb"(?:[A-Za-z0-9+/=]{1,80}\r?\n?){1,%d}" % max(lines, 1)).match(text, end, end + _MAX_KEY)
    return (end, end + len(body[0].rstrip())) if body and len(body[0]) >= 16 else None


def key_end(text: bytes, start: int, end: int) -> Span | None:
    """Accept the end of a private key whose beginning was cut off, including everything before it that can be its
    body.
    """
    window = text[max(0, start - _MAX_KEY) : start]
    body = window[len(window.rstrip(BASE64_LINES)) :]
    return start - len(body.lstrip()), end


# `react@18.2.0.tgz`, `logo@2x.png`, `user@1000.service`: a version, and file extensions that are not top-level domains.
_NO_DOMAIN = lazy_pattern(
    rb"@(?:[0-9]+\.){2}|\.(?:deb|gif|gz|html?|jar|jpe?g|js|json|mount|png|rpm|scope|service|slice|socket|svg|tar|tgz"
    rb"|timer|tsx?|txt|webp|whl|xz|ya?ml)\Z",
    re.IGNORECASE,
)


_USER_OF_A_URL = lazy_pattern(rb"://[^\s/@]*:\Z")  # `http://user:` of `http://user:pass@host.org`


def email(text: bytes, start: int, end: int) -> Span | None:
    """Accept an address; not a package version, a file name, a git remote or the user of a URL."""
    # The pattern starts at the last character before the @, and the address is read backwards here. Otherwise the
    # pattern would try every word of the text as the beginning of an address.
    begin = start
    while begin > max(0, start - 63) and (text[begin - 1 : begin].isalnum() or text[begin - 1] in b"._%+-"):
        begin -= 1
    local = text[begin : start + 1]
    if text[begin - 1 : begin] == b":" and _USER_OF_A_URL.search(text, max(0, begin - 70), begin):
        return None
    if text[max(0, begin - 3) : begin] == b"://" and text[start + 1 : start + 2] == b"@":  # `https://user@host.org`
        return None
    if _NO_DOMAIN.search(text, start + 1, end):
        return None
    if local == b"git" or text[end : end + 1] == b"(":  # a git remote, or `a@b.dot(c)` in Python
        return None
    return begin, end


# --- numbers with a check digit ------------------------------------------------------------------------------


@functools.cache
def _stdnum(name: str) -> ModuleType:
    # Imported only for a candidate, because it takes 60 ms.
    from importlib import import_module

    return import_module(f"stdnum.{name}")


def _stands_alone(text: bytes, start: int, end: int) -> bool:
    """Return whether it is not part of a longer number, a decimal fraction, a version or an identifier."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before[-1:].isalnum() or before[-1:] in (b"_", b".") or after[:1].isalnum() or after[:1] == b"_":
        return False
    return not (before[-1:] in (b"-", b"/") and before[:1].isalnum()) and not (
        after[:1] in (b".", b"-", b"/") and after[1:].isalnum()
    )


def _numbered(name: str) -> Check:
    """Return a check that uses the stdnum validator of that name. A word before the number (`CPF: 123…`) is not part of
    it.
    """

    def check(text: bytes, start: int, end: int) -> Span | None:
        hint = re.match(rb"(?i)(?:cpf|cnpj)[^0-9a-z]*", text[start:end])
        start += hint.end() if hint else 0
        number = text[start:end].decode("latin-1")
        return (start, end) if _stands_alone(text, start, end) and _stdnum(name).is_valid(number) else None

    return check


cpf = _numbered("br.cpf")
cnpj = _numbered("br.cnpj")


def card(text: bytes, start: int, end: int) -> Span | None:
    """Accept a card number with a valid Luhn digit."""
    digits = text[start:end].translate(None, b" -").decode()
    return (start, end) if _stands_alone(text, start, end) and _stdnum("luhn").is_valid(digits) else None


_IN_DIGITS = {ord(letter): str(int(letter, 36)) for letter in _LETTERS.decode().upper()}


def iban(text: bytes, start: int, end: int) -> Span | None:
    """Accept the longest valid prefix, since groups of four run on into a following word in capitals."""
    while end - start >= 15:
        number = text[start:end].replace(b" ", b"").decode()
        turned = (number[4:] + number[:4]).translate(_IN_DIGITS)
        # The remainder is cheap to compute, and rejects nearly everything.
        if int(turned) % 97 == 1 and _stdnum("iban").is_valid(number):
            return start, end
        end = text.rfind(b" ", start, end)
    return None


def ssn(text: bytes, start: int, end: int) -> Span | None:
    """Accept a US social security number in a range that is issued."""
    area, group, serial = text[start:end].split(b"-")
    issued = area not in (b"000", b"666") and area < b"900" and group != b"00" and serial != b"0000"
    return (start, end) if issued and _stands_alone(text, start, end) else None


_PHONE_START = lazy_pattern(rb"[+(]*[0-9]")


def phone(text: bytes, start: int, end: int) -> Span | None:
    """Accept a telephone number of 10 to 15 digits."""
    if number := _PHONE_START.search(text, start, end):  # after a name
        start = number.start()
    digits = _count(text[start:end], _DIGITS)
    alone = not text[end : end + 1].isalnum() and not text[max(0, start - 1) : start].isalnum()
    return (start, end) if alone and 10 <= digits <= 15 else None


# Names that are sufficient evidence before a number of that form; other names need a check digit as well.
_BY_SHAPE = {
    b"ssn": rb"[0-9]{9}",
    b"social": rb"[0-9]{9}",
    b"ni": rb"[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]",
    b"nino": rb"[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]",
    b"national": rb"[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]",
    b"pis": rb"[0-9]{3}\.[0-9]{5}\.[0-9]{2}-[0-9]",
    b"passport": rb"[A-Z]{0,3}[0-9]{6,9}[A-Z]?",
    b"passaporte": rb"[A-Z]{2}[0-9]{6}",
}
_BY_NUMBER = {
    b"nhs": ("gb.nhs",),
    b"aadhaar": ("in_.aadhaar",),
    b"aadhar": ("in_.aadhaar",),
    b"nif": ("pt.nif", "es.nif"),
    b"nie": ("es.nie",),
    b"dni": ("es.dni",),
    b"nir": ("fr.nir",),
    b"codice": ("it.codicefiscale",),
    b"steuer": ("de.idnr",),
    b"bsn": ("nl.bsn",),
    b"pesel": ("pl.pesel",),
}
_HINT = lazy_pattern(rb"([A-Za-z]+)(?i:[ -](?:security|insurance|fiscale|id|no\.?|number|nr\.?))*")
_ID = lazy_pattern(rb"(?:[0-9]|[A-Z]{1,6} ?[0-9])[0-9A-Z .-]*")


def national_id(text: bytes, start: int, end: int) -> Span | None:
    """Accept a personal number after its name: `SSN: …`, `NIF …`."""
    hint = _HINT.match(text, start, end)
    found = _ID.search(text, hint.end(), end) if hint else None
    if not hint or not found or text[end : end + 1].isalnum():
        return None
    name, at = hint[1].lower(), found.start()
    value = text[at:end]
    if shape := _BY_SHAPE.get(name):
        if not re.fullmatch(shape, value) or (value.startswith((b"000", b"666", b"9")) and name in (b"ssn", b"social")):
            return None
        return at, end
    number = value.decode()
    return (at, end) if any(_stdnum(module).is_valid(number) for module in _BY_NUMBER.get(name, ())) else None


def last_word(text: bytes, start: int, end: int) -> Span | None:
    """Accept the number at the end of the match."""
    found = re.search(rb"[0-9][0-9./-]*$", text[start:end])
    return (start + found.start(), end) if found else None
