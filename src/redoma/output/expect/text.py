"""JSON as a run printed it, read strictly: what two readers could take for different things is not taken for either.

Names that stand twice in one object, NaN and Infinity, numbers too large for what they are, text that is no Unicode and
nesting without end are mismatches, each with its path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...models import MiB

MOST_BYTES = 16 * MiB
"""Of text that is looked at."""
DEEPEST = 100
"""Lists and objects inside each other."""
MOST_DIGITS = 1000
"""Of an integer: to read one takes time with the square of its digits."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LONGEST_NAME = 80
_LABEL = re.compile(r"(\[redacted:[a-z0-9-]+\])")
_QUOTES = re.compile(r'\\.|"', re.DOTALL)

Redact = Callable[[bytes], bytes]
"""Takes secrets out of text."""


class Mismatch(Exception):
    """The output is not what was expected: where, and how it differs."""


class _Odd:
    """Stands in the data for what JSON can't or shouldn't say, until its path is known."""

    def __init__(self, why: str) -> None:
        self.why = why


def parse(text: str) -> tuple[Any, int]:
    """The data, and how many values it has."""
    if not text.strip():
        raise Mismatch("$: expected JSON, got nothing: the output is empty")
    try:
        data = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Mismatch(
            f"line {error.lineno}, column {error.colno}: expected JSON alone, got other text ({error.msg})"
        ) from None
    except RecursionError:
        raise Mismatch(f"$: nested deeper than {DEEPEST} lists and objects") from None
    return data, _checked(data)


def without_secrets(data: Any, text: str, redact: Redact) -> tuple[Any, str]:
    """The data and its text once more free of secrets: an escape such as `\\u0041` may have hidden one from us."""
    if "\\" not in text:
        return data, text
    try:
        plain = json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Mismatch("$: it has text that is no Unicode (half a character, such as \\ud800)") from None
    cleaned = redact(plain)
    if cleaned == plain:
        return data, text
    text = with_quoted_labels(cleaned.decode())
    return parse(text)[0], text


def with_quoted_labels(text: str) -> str:
    """A number that was taken out leaves a label without quotes; with them it is JSON again."""
    pieces, inside = _LABEL.split(text), False
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            quotes = sum(match[0] == '"' for match in _QUOTES.finditer(piece))
            inside ^= bool(quotes % 2)
        elif not inside:
            pieces[index] = f'"{piece}"'
    return "".join(pieces)


def path_of(keys: Sequence[str | int]) -> str:
    """As people write it: `$.items[3].price`."""
    return "$" + "".join(map(_step, keys))


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if len(key) > _LONGEST_NAME:
        key = key[:_LONGEST_NAME] + "…"
    return f".{key}" if _PLAIN_NAME.match(key) else f"[{json.dumps(key, ensure_ascii=False)}]"


def _integer(text: str) -> Any:
    digits = len(text.lstrip("-"))
    return int(text) if digits <= MOST_DIGITS else _Odd(f"an integer of {digits:,} digits, at most {MOST_DIGITS:,}")


def _decimal(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else _Odd("a number too large for what computers count with")


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    read = dict(pairs)
    if len(read) == len(pairs):
        return read
    seen: set[str] = set()
    twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return _Odd(f"the name {_step(twice)[1:]} stands in it twice")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_int=_integer,
    parse_float=_decimal,
    parse_constant=lambda name: _Odd(f"{name} is no JSON"),
)


def _checked(data: Any) -> int:
    """Every value looked at, without recursion; how many there are."""
    stack: list[Iterator[tuple[str | int, Any]]] = [iter([("", data)])]
    path: list[str | int] = [""]
    count = 0
    while stack:
        for key, value in stack[-1]:
            path[-1] = key
            count += 1
            if isinstance(value, _Odd):
                raise Mismatch(f"{path_of(path[1:])}: {value.why}")
            if isinstance(value, (dict, list)):
                if len(stack) > DEEPEST:
                    raise Mismatch(f"{path_of(path[1:4])}…: nested deeper than {DEEPEST} lists and objects")
                stack.append(iter(value.items()) if isinstance(value, dict) else iter(enumerate(value)))
                path.append("")
                break
        else:
            stack.pop()
            path.pop()
    return count
