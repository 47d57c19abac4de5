"""Finds where the end of a text may be the beginning of a secret, for code that shows text before all of it has
arrived.

For values that were given as secrets the answer is exact, in every encoding that the redactor knows. Secrets that are
recognised only by their form end with their line, except private keys; inside a line, heuristics are used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from ..lib.encodings import base64_cores
from ..lib.patterns import lazy_pattern
from . import checks
from .redactor import MIN_BASE64, Redactor, spellings
from .scanner import options

_KEY_BEGIN = lazy_pattern(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = 32
"""Characters of the shortest line that may be part of a key; ordinary words are shorter."""
_MAX_KEY = 16 * 1024
_MIN_WRAPPED = 16
"""Characters of the shortest line of wrapped base64."""

_NEAR_END, _ROUNDS = 4096, 5
_PROBE = b"x9Yk2LmN4pQr7StUvWxZ"
"""If this, appended to the text, becomes part of something that begins before it, then so may the real continuation."""
_SIGNS = (
    rb"[A-Za-z0-9_+/=~-]{12,}",  # a token
    rb"\+?\(?[0-9](?:[ ().+-]{0,2}[0-9]){3,}[ ().+-]?",  # a card or a telephone number
    rb"[A-Za-z0-9_.%+-]+@[A-Za-z0-9.-]*",  # an address
    rb"://[^\s/@]*",  # a password in a URL
    rb"(?i:\b(?:cpf|cnpj)\b)[^0-9A-Za-z\n]{0,5}[0-9A-Z]*",
    rb"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{1,4})*",  # an IBAN
    rb"-----[A-Z -]*",
    rb"-+",
)


@functools.cache
def _signs() -> Any:
    import re2

    return re2.compile(rb"(?:" + b"|".join(_SIGNS) + rb")\z", options())


class Unfinished:
    """Finds unfinished secrets: values of a redactor, and what looks like the beginning of a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._forms = [form for value in redactor.flexible for form in _forms(value)]
        self._forms += [_Form([(bytes([byte]),) for byte in literal]) for literal in redactor.literals]

    def after_lines(self, data: bytes, start: int = 0) -> int:
        """Return the position, at `start` or later, from which whole lines may be part of a secret that continues in
        the next lines; the length of the text if there is none.
        """
        return max(start, min(self._value(data, start, patient=True), _key(data), _key_body(data)))

    def inside_line(self, data: bytes, start: int = 0) -> int:
        """Return the same for text that ends anywhere, after a pause. A program that writes base64 doesn't pause at a
        line end unless the line is full, so a short line is not part of a wrapped secret.
        """
        stop = len(data)
        for _ in range(_ROUNDS):  # text before something held back may be a secret once that is removed
            text = data[:stop]
            position = min(self._value(text, start, patient=False), _key(text), _key_body(text), self._begun(text))
            if position == stop:
                break
            stop = position
        return max(start, stop)

    def _begun(self, data: bytes) -> int:
        """Return the position from which the end of the text looks like the beginning of a secret."""
        start = max(0, len(data) - _NEAR_END)
        near = data[start:]
        matches = [*self._redactor.find(near + _PROBE), *self._redactor.find(near)]
        starts = [item.start for item in matches if item.start < len(near) <= item.end]
        if sign := _signs().search(near):
            starts.append(sign.start())
        return start + min(starts, default=len(near))

    def _value(self, data: bytes, start: int, *, patient: bool) -> int:
        short = data.endswith(b"\n") and _last_run(data) < _MIN_WRAPPED
        forms = (form for form in self._forms if patient or not short or not form.wraps)
        return min((form.begun(data, start) for form in forms), default=len(data))


def _last_run(data: bytes) -> int:
    """Return how many base64 characters are before the last line end."""
    line = data[-_MIN_WRAPPED - 1 : -1]
    return len(line) - len(line.rstrip(checks.BASE64))


class _Form:
    """One way to write a value: a sequence of pieces, each in one of several spellings. The first spelling of a piece
    is case-sensitive.
    """

    def __init__(self, pieces: list[tuple[bytes, ...]], *, wraps: bool = False) -> None:
        self._pieces, self.wraps = pieces, wraps
        self._max_size = sum(max(map(len, piece)) for piece in pieces)
        firsts: set[bytes] = set()
        for piece in pieces:
            firsts.update(spelling[:1] for spelling in piece)
            if b"" not in piece:  # otherwise it may be left out, and the next be the first
                break
        firsts.discard(b"")
        self._first = re.compile(b"(?i:%s)" % b"|".join(map(re.escape, sorted(firsts))))

    def begun(self, data: bytes, start: int) -> int:
        """Return where a beginning of the value starts that reaches the end of the text; the text's length if none
        does.
        """
        for first in self._first.finditer(data, max(start, len(data) - self._max_size)):
            if self._reaches_end(data, first.start()):
                return first.start()
        return len(data)

    def _reaches_end(self, data: bytes, start: int) -> bool:
        seen: set[tuple[int, int]] = set()
        todo = [(0, start)]
        while todo:
            index, at = todo.pop()
            if at >= len(data):
                return True
            if index == len(self._pieces) or (index, at) in seen:
                continue
            seen.add((index, at))
            exact, *others = self._pieces[index]
            for spelling in self._pieces[index]:
                there = data[at : at + len(spelling)]
                if others and spelling is not exact:
                    there = there.lower()
                if spelling.startswith(there) and (there or not spelling):
                    todo.append((index + 1, at + len(spelling)))
        return False


def _forms(value: str) -> Iterator[_Form]:
    data = value.encode("utf-8", "surrogatepass")
    yield _Form(
        [
            tuple(spelling if at == 0 else spelling.lower() for at, spelling in enumerate(spellings(char)))
            for char in value
        ]
    )
    yield _Form([(digit.upper(), digit) for digit in (bytes([byte]) for byte in data.hex().encode())])
    for core in base64_cores(data, MIN_BASE64):
        pieces: list[tuple[bytes, ...]] = []
        for byte in core:
            pieces += [({0x2B: (b"+", b"-"), 0x2F: (b"/", b"_")}.get(byte, (bytes([byte]),))), (b"\n", b"")]
        yield _Form([*pieces[:-1], (b"=", b""), (b"=", b"")], wraps=True)


def _key(data: bytes) -> int:
    """Return where an unfinished private key begins: everything after its first line can be part of it."""
    last = max(_KEY_BEGIN.finditer(data), key=re.Match.start, default=None)
    if last is None or b"-----" in data[last.end() :] or not checks.KEY_BODY.fullmatch(data, last.end()):
        return len(data)
    return last.start()


def _key_body(data: bytes) -> int:
    """Return where lines begin that may belong to a private key whose first line was not seen."""
    near = data[-_MAX_KEY:]
    body = near[len(near.rstrip(checks.BASE64_LINES)) :]
    if all(len(line) < _KEY_LINE for line in body.split(b"\n")):
        return len(data)
    return len(data) - len(body.lstrip())
