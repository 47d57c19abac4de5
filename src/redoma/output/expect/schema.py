"""JSON Schema, by the library `jsonschema` (the extra `schema`), with bounds that it doesn't have.

Nothing is ever fetched: a schema may refer to its own parts alone. Patterns are RE2's, so none takes longer than the
text it looks at. What a check may cost is counted, since references that fan out can make it any number of steps.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from ...lib.errors import InvalidRequest
from ...lib.extras import pip_install
from ...models import KiB
from .text import Mismatch, path_of

LARGEST_SCHEMA = 256 * KiB
MOST_VALUES = 50_000
"""In the data: more are for a msgspec type, which is a thousand times as fast."""
MOST_STEPS = 250_000
"""Keywords that one check may look at."""
MAX_PATTERN = 2000

_MOST_ERRORS = 20  # that are weighed against each other for the one to tell
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NO_SCHEMAS = frozenset({"enum", "const", "default", "examples"})  # what is in these is data
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_GOT = {bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object", type(None): "null"}

Check = Callable[[Any, int], None]


class _TooMuch(Exception):
    pass


def compiled(given: dict[str, Any]) -> tuple[Check, bytes]:
    """What checks data against the schema (and raises `Mismatch`), and the schema as it was understood."""
    text, schema = _copied(given)
    try:
        import jsonschema
    except ImportError:
        raise InvalidRequest(
            "a JSON Schema can't be checked here",
            why="the library jsonschema is missing",
            next=f"{pip_install('redoma[schema]')}, or expect a msgspec type",
        ) from None
    patterns: dict[str, Any] = {}
    try:
        _look_through(schema, patterns)
        known: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        if "$schema" in schema and known is jsonschema.Draft202012Validator and "2020-12" not in schema["$schema"]:
            raise _invalid(f"its $schema is unknown: {str(schema['$schema'])[:80]!r}")
        # No check of formats: the only one that matters, `regex`, would ask Python's `re`, whose syntax is another.
        known.check_schema(schema, format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as error:
        raise _invalid(f"{path_of(list(error.absolute_path))}: {_said(error)}") from None
    except RecursionError:
        raise _invalid("it is nested too deep") from None
    check = _check_by(known, schema, patterns)
    try:
        with suppress(Mismatch):
            check(None, 1)
    except RecursionError:
        raise _invalid("it refers to itself without end") from None
    return check, text


def _copied(given: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """A copy that its owner can't change any more, and that is JSON."""
    try:
        text = msgspec.json.encode(given, order="sorted")
        schema = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"it is no JSON: {str(error)[:200]}") from None
    if len(text) > LARGEST_SCHEMA:
        raise _invalid(f"it has {len(text):,} bytes, and at most {LARGEST_SCHEMA:,} are taken")
    return text, schema


def _look_through(schema: dict[str, Any], patterns: dict[str, Any]) -> None:
    """Compile every pattern in it, and refuse what would need something from elsewhere."""
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
        # The library matches these with Python's `re`, deep inside, where a pattern can take for ever.
        raise _invalid("patternProperties and unevaluatedProperties together are not offered; use additionalProperties")
    _require_here(schema, refers)


def _require_here(schema: dict[str, Any], refers: set[str]) -> None:
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
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        if len(pattern) > MAX_PATTERN:
            raise _invalid(f"its pattern {pattern[:40]!r}… is longer than {MAX_PATTERN} characters")
        return re2.compile(pattern, options)
    except re2.error as error:
        raise _invalid(f"its pattern {pattern[:80]!r} can't be used: {_words(error)} (the syntax is RE2's)") from None


def _words(error: Exception) -> str:
    """The text of an error of RE2, which comes as bytes."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def _check_by(known: Any, schema: dict[str, Any], patterns: dict[str, Any]) -> Check:
    import jsonschema
    import referencing

    def search(pattern: str, text: str) -> bool:
        return patterns[pattern].search(text) is not None

    steps = [0]
    keywords = {name: _counted(function, steps) for name, function in {**known.VALIDATORS, **_bounded(search)}.items()}
    bounded: Any = jsonschema.validators.extend(known, keywords)  # type: ignore[no-untyped-call]
    validator = bounded(schema, registry=referencing.Registry())

    def check(data: Any, values: int) -> None:
        if values > MOST_VALUES:
            raise Mismatch(f"$: {values:,} values are too many for a schema ({MOST_VALUES:,}); expect a msgspec type")
        steps[0] = MOST_STEPS
        try:
            errors = list(itertools.islice(validator.iter_errors(data), _MOST_ERRORS))
        except _TooMuch:
            raise Mismatch(f"$: to check it takes more than {MOST_STEPS:,} steps") from None
        except ArithmeticError as error:
            raise Mismatch(f"$: a number in it can't be checked: {error}") from None
        if worst := jsonschema.exceptions.best_match(errors):
            raise Mismatch(f"{path_of(list(worst.absolute_path))}: {_said(worst)}")

    return check


def _counted(function: Any, steps: list[int]) -> Any:
    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps[0] -= 1
        if steps[0] < 0:
            raise _TooMuch
        return function(validator, value, instance, schema)

    return keyword


def _bounded(search: Callable[[str, str], bool]) -> dict[str, Any]:
    """The keywords whose time the library doesn't bound, anew."""
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
    """The same for what JSON Schema takes for equal: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return ("bool", value)
        case list():
            return ("list", *map(_identity, value))
        case dict():
            return ("dict", frozenset((name, _identity(item)) for name, item in value.items()))
        case _:
            return value


def _said(error: Any) -> str:
    """In our words, since the library's quote the data at full length."""
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
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest("the JSON Schema can't be used", why=why, next="mend the schema")
