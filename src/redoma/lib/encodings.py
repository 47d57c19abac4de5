"""How programs write a text that they were given as a secret: what searches for secrets has to look for.

Whoever reads JSON, URLs or base64 reads the secret, so all of these are to be removed with it. A program can always
write it in yet another way; the list is of what ordinary encoders do.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from contextlib import suppress

# Never changed by URL-encoding or by JSON.
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_HTML = {'"': "quot", "'": "apos", "&": "amp", "<": "lt", ">": "gt"}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def encodings(value: bytes, *, min_base64: int) -> list[bytes]:
    """Return the usual encodings of a text: itself, in URLs, JSON and HTML, in hexadecimal and in base64.

    Each is one way to write all of it; for mixtures see `spellings`. `min_base64` is as in `base64_cores`.
    """
    import html  # loads a list of two thousand names, which is seldom needed
    import json
    from urllib.parse import quote, quote_plus

    in_urls = [encode(value, safe=safe) for encode in (quote, quote_plus) for safe in ("", "/")]
    found = [
        value.hex(),
        value.hex().upper(),
        *in_urls,
        *(re.sub("%..", lambda code: code[0].lower(), each) for each in in_urls),
        quote(quote(value, safe="")),  # a URL inside another
    ]
    for text in _texts(value):
        escaped, unescaped = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
        found += [html.escape(text), escaped, unescaped]
        found.append(escaped.replace("/", "\\/"))  # as PHP writes it
        found.append(json.dumps(escaped)[1:-1])  # a JSON text inside another
    in_base64 = [form for core in base64_cores(value, min_base64) for form in (core, core.translate(_URL_SAFE))]
    return list(dict.fromkeys([value, *(each.encode("utf-8", "surrogatepass") for each in found), *in_base64]))


def _texts(value: bytes) -> Iterator[str]:
    """Yield how programs decode it: they differ if it is not UTF-8."""
    yield value.decode("utf-8", "replace")
    with suppress(UnicodeDecodeError):
        yield value.decode("utf-8", "surrogatepass")


def base64_cores(value: bytes, min_size: int) -> Iterator[bytes]:
    """Yield the base64 characters that depend on the value alone, for each of its three alignments in a group of
    bytes: so it is found inside a longer base64 text. Fewer than `min_size` are left out: they would match by chance.
    """
    for shift in range(3):
        core = binascii.b2a_base64(bytes(shift) + value, newline=False)[
            (8 * shift + 5) // 6 : 8 * (shift + len(value)) // 6
        ]
        if len(core) >= min_size:
            yield core


def spellings(char: str) -> list[bytes]:
    """Return a character literally, then as encoders write it (%XX, JSON, Python, HTML); those are case-insensitive."""
    data, units = char.encode("utf-8", "surrogatepass"), char.encode("utf-16-be", "surrogatepass").hex()
    if char in _PLAIN:
        return [data]
    choices = [
        "".join(f"%{byte:02x}" for byte in data),
        *("".join(f"{slash}u{units[i : i + 4]}" for i in range(0, len(units), 4)) for slash in ("\\", "\\\\")),
        f"\\x{ord(char):02x}",
        "".join(f"%25{byte:02x}" for byte in data),  # a URL inside another
        *(f"&#{number};" for number in (ord(char), f"{ord(char):03}", f"x{ord(char):02x}")),
    ]
    if char in _HTML:
        choices.append(f"&{_HTML[char]};")
    if char in _ESCAPES:
        import json

        choices.append("\\" + _ESCAPES[char])
        choices.append(json.dumps("\\" + _ESCAPES[char])[1:-1])  # a JSON text inside another
    if char == " ":
        choices.append("+")
    return [data, *(choice.encode() for choice in choices)]
