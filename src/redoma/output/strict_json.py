"""Parses JSON strictly as a run printed it, and checks it against a JSON Schema.

Anything that two parsers could interpret differently is refused: duplicate names in an object, NaN and Infinity,
numbers too large to be represented, invalid Unicode, unbounded nesting. Each is a `Mismatch` with its path.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ..lib.errors import InvalidRequest
from ..lib.extras import pip_install
from ..lib.text import compile_re2, shorten
from ..models import KiB, MiB

MAX_BYTES = 16 * MiB
MAX_DEPTH = 100
"""Depth of nested lists and objects."""
MAX_DIGITS = 1000
"""Maximum digits of an integer: parsing takes time quadratic in their number."""

MAX_SCHEMA = 256 * KiB
MAX_VALUES = 50_000
"""Maximum values in the data. For more, expect a msgspec type, which is a thousand times as fast."""
MAX_STEPS = 250_000
"""Keywords that one check may evaluate."""
MAX_PATTERN = 2000

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_NAME = 80
_LABEL = re.compile(r"(\[redacted:[a-z0-9-]+\])")
_QUOTES = re.compile(r'\\.|"', re.DOTALL)

Redact = Callable[[bytes], bytes]
"""Removes secrets from UTF-8 text."""


class Mismatch(Exception):
    """The output is not what was expected; the message says where and how it differs."""


class _Invalid:
    """Marks a value that strict JSON doesn't allow, until its path is known."""

    def __init__(self, why: str) -> None:
        self.why = why


def parse(text: str) -> tuple[Any, int]:
    """Parse JSON strictly. Returns the data and the number of its values. Raises `Mismatch`."""
    if not text.strip():
        raise Mismatch("$: expected JSON, got nothing: the output is empty")
    try:
        data = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Mismatch(
            f"line {error.lineno}, column {error.colno}: expected JSON alone, got other text ({error.msg})"
        ) from None
    except RecursionError:
        raise Mismatch(f"$: nested deeper than {MAX_DEPTH} lists and objects") from None
    return data, _checked(data)


def without_secrets(data: Any, text: str, redact: Redact) -> tuple[Any, str]:
    """Redact parsed data and its text once more: an escape such as `\\u0041` may have hidden a secret. Raises
    `Mismatch`.
    """
    if "\\" not in text:
        return data, text
    try:
        plain = json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Mismatch("$: it has text that is not Unicode (half a character, such as \\ud800)") from None
    cleaned = redact(plain)
    if cleaned == plain:
        return data, text
    text = with_quoted_labels(cleaned.decode())
    return parse(text)[0], text


def with_quoted_labels(text: str) -> str:
    """Put quotes around redaction labels that replace a number, so that the text is JSON again."""
    pieces, inside = _LABEL.split(text), False
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            quotes = sum(match[0] == '"' for match in _QUOTES.finditer(piece))
            inside ^= bool(quotes % 2)
        elif not inside:
            pieces[index] = f'"{piece}"'
    return "".join(pieces)


def path_of(keys: Sequence[str | int]) -> str:
    """Return a path in the usual notation: `$.items[3].price`."""
    return "$" + "".join(map(_step, keys))


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if len(key) > _MAX_NAME:
        key = key[:_MAX_NAME] + "…"
    return f".{key}" if _PLAIN_NAME.match(key) else f"[{json.dumps(key, ensure_ascii=False)}]"


def _integer(text: str) -> Any:
    digits = len(text.lstrip("-"))
    return int(text) if digits <= MAX_DIGITS else _Invalid(f"an integer of {digits:,} digits, at most {MAX_DIGITS:,}")


def _decimal(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else _Invalid("a number too large for what computers count with")


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    read = dict(pairs)
    if len(read) == len(pairs):
        return read
    seen: set[str] = set()
    twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return _Invalid(f"the name {_step(twice)[1:]} stands in it twice")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_int=_integer,
    parse_float=_decimal,
    parse_constant=lambda name: _Invalid(f"{name} is not JSON"),
)


def _checked(data: Any) -> int:
    """Check every value, without recursion. Returns their number. Raises `Mismatch`."""
    stack: list[Iterator[tuple[str | int, Any]]] = [iter([("", data)])]
    path: list[str | int] = [""]
    count = 0
    while stack:
        for key, value in stack[-1]:
            path[-1] = key
            count += 1
            if isinstance(value, _Invalid):
                raise Mismatch(f"{path_of(path[1:])}: {value.why}")
            if isinstance(value, (dict, list)):
                if len(stack) > MAX_DEPTH:
                    raise Mismatch(f"{path_of(path[1:4])}…: nested deeper than {MAX_DEPTH} lists and objects")
                stack.append(iter(value.items()) if isinstance(value, dict) else iter(enumerate(value)))
                path.append("")
                break
        else:
            stack.pop()
            path.pop()
    return count


# --- JSON Schema ---

_MAX_ERRORS = 20  # errors that are compared to pick the one to report
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NO_SCHEMAS = frozenset({"enum", "const", "default", "examples"})  # their contents are data
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_GOT = {bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object", type(None): "null"}

Check = Callable[[Any, int], None]


class _TooManySteps(Exception):
    """A check has taken `MAX_STEPS`."""


def compile_schema(original: dict[str, Any]) -> tuple[Check, bytes]:
    """Return a function that checks data against a JSON Schema, and the schema as canonical JSON.

    The function takes the data and the number of its values, and raises `Mismatch`. Raises `InvalidRequest` for an
    unusable schema, or if the library `jsonschema` (the extra `schema`) is missing.

    Bounds are added to the library: nothing is ever fetched, a schema may refer only to its own parts; patterns are
    RE2's, so matching is linear in the text; and the steps of a check are counted, since references that fan out can
    make any number of them.
    """
    text, schema = _copy(original)
    try:
        import jsonschema
    except ImportError:
        raise InvalidRequest(
            "a JSON Schema can't be checked here",
            why="the library jsonschema is missing",
            next=f"{pip_install('redoma[schema]')}, or expect a msgspec type",
        ) from None
    try:
        patterns = _compiled_patterns(schema)
        known: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        if "$schema" in schema and known is jsonschema.Draft202012Validator and "2020-12" not in schema["$schema"]:
            raise _invalid(f"its $schema is unknown: {str(schema['$schema'])[:80]!r}")
        # Without format checks: the only relevant one, `regex`, would use Python's `re`, whose syntax differs from
        # RE2's.
        known.check_schema(schema, format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as error:
        raise _invalid(f"{path_of(list(error.absolute_path))}: {_described(error)}") from None
    except RecursionError:
        raise _invalid("it is nested too deep") from None
    check = _check_by(known, schema, patterns)
    try:
        with suppress(Mismatch):
            check(None, 1)
    except RecursionError:
        raise _invalid("it refers to itself without end") from None
    return check, text


def _copy(original: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Return the schema as canonical JSON, and a copy that the caller can't change any more."""
    try:
        text = msgspec.json.encode(original, order="sorted")
        schema = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"it is not JSON: {str(error)[:200]}") from None
    if len(text) > MAX_SCHEMA:
        raise _invalid(f"it has {len(text):,} bytes, and at most {MAX_SCHEMA:,} are taken")
    return text, schema


def _compiled_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """Compile every pattern in the schema. Raises `InvalidRequest` for a reference to something outside it."""
    patterns: dict[str, Any] = {}
    keywords: set[str] = set()
    refers: set[str] = set()
    todo: list[Any] = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        if not isinstance(part, dict):
            continue
        keywords |= part.keys()
        refers |= {target for name in _REFERENCES if isinstance(target := part.get(name), str)}
        if isinstance(pattern := part.get("pattern"), str):
            patterns[pattern] = _pattern(pattern)
        if isinstance(named := part.get("patternProperties"), dict):
            patterns.update({pattern: _pattern(pattern) for pattern in named})
        for name, value in part.items():
            if name in _BY_NAME and isinstance(value, dict):
                todo += value.values()
            elif name not in _NO_SCHEMAS:
                todo.append(value)
    if {"patternProperties", "unevaluatedProperties"} <= keywords:
        # For these the library uses Python's `re` internally, where a pattern can take forever.
        raise _invalid("patternProperties and unevaluatedProperties together are not offered; use additionalProperties")
    _require_inside(schema, refers)
    return patterns


def _require_inside(schema: dict[str, Any], refers: set[str]) -> None:
    """Raise `InvalidRequest` unless all references are to parts of the schema."""
    import referencing
    import referencing.exceptions
    import referencing.jsonschema

    whole = referencing.Resource.from_contents(schema, default_specification=referencing.jsonschema.DRAFT202012)
    resolver = referencing.Registry().with_resource("", whole).resolver()
    for target in sorted(refers):
        if not target.startswith("#"):
            raise _invalid(f"it refers to {target[:200]!r}, and nothing is fetched: put that part under $defs")
        try:
            resolver.lookup(target)
        except referencing.exceptions.Unresolvable:
            raise _invalid(f"it has no {target[:200]!r}, which it refers to") from None


def _pattern(pattern: str) -> Any:
    if len(pattern) > MAX_PATTERN:
        raise _invalid(f"its pattern {pattern[:40]!r}… is longer than {MAX_PATTERN} characters")
    try:
        return compile_re2(pattern)
    except ValueError as error:
        raise _invalid(f"its pattern {pattern[:80]!r} can't be used: {error} (the syntax is RE2's)") from None


def _check_by(known: Any, schema: dict[str, Any], patterns: dict[str, Any]) -> Check:
    """Return a bounded check that uses a validator class of the library."""
    import jsonschema
    import referencing

    def search(pattern: str, text: str) -> bool:
        return patterns[pattern].search(text) is not None

    steps = [0]
    keywords = {name: _counted(function, steps) for name, function in {**known.VALIDATORS, **_bounded(search)}.items()}
    bounded: Any = jsonschema.validators.extend(known, keywords)  # type: ignore[no-untyped-call]
    validator = bounded(schema, registry=referencing.Registry())

    def check(data: Any, values: int) -> None:
        if values > MAX_VALUES:
            raise Mismatch(f"$: {values:,} values are too many for a schema ({MAX_VALUES:,}); expect a msgspec type")
        steps[0] = MAX_STEPS
        try:
            errors = list(itertools.islice(validator.iter_errors(data), _MAX_ERRORS))
        except _TooManySteps:
            raise Mismatch(f"$: to check it takes more than {MAX_STEPS:,} steps") from None
        except ArithmeticError as error:
            raise Mismatch(f"$: a number in it can't be checked: {error}") from None
        if worst := jsonschema.exceptions.best_match(errors):
            raise Mismatch(f"{path_of(list(worst.absolute_path))}: {_described(worst)}")

    return check


def _counted(function: Any, steps: list[int]) -> Any:
    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps[0] -= 1
        if steps[0] < 0:
            raise _TooManySteps
        return function(validator, value, instance, schema)

    return keyword


def _bounded(search: Callable[[str, str], bool]) -> dict[str, Any]:
    """Return our own implementations of the keywords whose time the library doesn't bound."""
    from jsonschema import ValidationError

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(instance, str) and not search(wanted, instance):
            yield ValidationError("")

    def pattern_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        for one, below in wanted.items() if isinstance(instance, dict) else ():
            for name, value in instance.items():
                if search(one, name):
                    yield from validator.descend(value, below, path=name, schema_path=one)

    def additional_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        named, matched = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items() if isinstance(instance, dict) else ():
            if name in named or any(search(one, name) for one in matched):
                continue
            if wanted is False:
                yield ValidationError(f"there may be no {name[:80]!r}")
            else:
                yield from validator.descend(value, wanted, path=name)

    def unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if wanted and isinstance(instance, list) and len({_identity(item) for item in instance}) < len(instance):
            yield ValidationError("its items are not all different")

    return {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
        "uniqueItems": unique_items,
    }


def _identity(value: Any) -> Any:
    """Return a value that is equal for what JSON Schema considers equal: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return ("bool", value)
        case list():
            return ("list", *map(_identity, value))
        case dict():
            return ("dict", frozenset((name, _identity(item)) for name, item in value.items()))
        case _:
            return value


def _described(error: Any) -> str:
    """Describe a violation in our own words, since the library's messages quote the data in full."""
    wanted, got = error.validator_value, error.instance
    match error.validator:
        case "type":
            names = [wanted] if isinstance(wanted, str) else wanted
            return f"expected {' or '.join(map(str, names))}, got {_GOT.get(type(got), type(got).__name__)}"
        case "required":
            missing = [name for name in wanted if name not in got] if isinstance(wanted, list) else []
            return f"{', '.join(map(repr, missing))[:200]} is missing" if missing else error.message[:200]
        case "enum" | "const":
            choices = wanted if error.validator == "enum" else [wanted]
            return f"expected {_short(choices)[1:-1]}, got {_short(got)}"
        case "pattern":
            return f"expected text that fits {str(wanted)[:80]!r}, got {_short(got)}"
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf":
            return f"expected {error.validator} {wanted}, got {_short(got)}"
        case "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties":
            return f"expected {error.validator} {wanted}, got {len(got)}"
        case "anyOf":
            return f"it fits none of the {len(wanted)} schemas"
        case "oneOf":
            return f"it fits none, or more than one, of the {len(wanted)} schemas"
        case _:
            return str(error.message)[:200]


def _short(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), 80)


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest("the JSON Schema can't be used", why=why, next="correct the schema")
