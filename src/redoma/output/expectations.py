"""What a caller expects a run to print (`expect=`), and checking it.

    "json"                   any JSON
    {"type": "array", …}     JSON that matches this JSON Schema (the extra `schema`)
    "regex:[0-9]+ rows"      text that this RE2 pattern matches as a whole; so does `re.compile(…)`
    Report, list[int]        JSON that becomes this type: msgspec's, pydantic's, or one of plain data

Standard output is checked as the result shows it: without secrets, control characters and surrounding white space. If
the result had to cut it, the artifact is checked instead, if that is complete. If nothing was printed, the value of the
last expression is checked. A failed run is not checked: it already has an error.

Invalid expectations raise `InvalidRequest` before anything runs. A `Request` is recorded data and can't hold a type, so
the expectation is kept beside it, and its description is recorded.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from ..lib.errors import InvalidRequest, RedomaError
from ..lib.text import compile_re2, shorten
from ..models import Result, Status
from ..redaction import Redactor, clean
from . import strict_json
from .strict_json import MAX_BYTES, Mismatch, Redact, path_of

MAX_REGEX = 10_000
_MAX_MISMATCH = 1000  # characters
_AT = re.compile(r"(?P<what>.*) - at `(?P<key>key in )?(?P<path>\$.*)`\Z", re.DOTALL)
_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}


class Expectation(msgspec.Struct, frozen=True):
    """An expectation, ready to be checked."""

    description: str
    """The text that is recorded."""
    read: Callable[[str, Redact], Any]
    """Returns the data in a text; raises `Mismatch`."""
    of_text: bool = False
    """Whether it is about text, not data."""


def expectation(expect: Any) -> Expectation:
    """Return the expectation that a caller gave as `expect`. Raises `InvalidRequest` if it is invalid."""
    match expect:
        case Expectation():
            return expect
        case "json":
            return Expectation("json", lambda text, redact: _json(text, redact)[0])
        case str() if expect.startswith("regex:"):
            return _regex(expect.removeprefix("regex:"))
        case re.Pattern():
            return _regex(_with_flags(expect))
        case dict():
            return _schema(expect)
        case str() | bytes() | bool() | int() | float() | list() | tuple() | set() | None:
            raise InvalidRequest(
                f"{shorten(repr(expect), 80)} says nothing to expect",
                why="it is neither 'json', 'regex:…', a JSON Schema (a dict) nor a type",
                next="write 'json', or 'regex:' before a pattern",
            )
        case _:
            return _type(expect)


def schema_file(data: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON Schema in a file. Raises `InvalidRequest`."""
    try:
        schema, _ = strict_json.parse(data.decode())
    except (UnicodeDecodeError, Mismatch) as error:
        raise InvalidRequest(f"{name} is not a JSON Schema", why=str(error), next="give a file of JSON") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{name} is not a JSON Schema", why="it holds no object", next="begin it with {")
    return schema


def check_result(expected: Expectation, result: Result, redactor: Redactor) -> Result:
    """Check a result. Returns it with its `data`, or with status `error` and the difference if the output is not as
    expected. Exit status and everything else stay, because it did run. Never raises for anything that was printed.
    """
    if result.status is not Status.OK:
        return result
    counts = Counter(result.redacted)

    def redact(data: bytes) -> bytes:
        cleaned, more = redactor.redact_bytes(data)
        counts.update(more)
        return cleaned

    try:
        data = expected.read(_printed(result, expected.of_text), redact)
    except Mismatch as mismatch:
        return _differs(result, str(mismatch), redactor)
    except RecursionError:
        return _differs(result, "$: it is nested too deep to be checked", redactor)
    except Exception as error:  # from the caller's own type, whose code runs here: the result must not be lost
        return _differs(result, f"$: the expected type failed: {type(error).__name__}: {error}", redactor)
    return msgspec.structs.replace(result, data=data, redacted=dict(counts))


def _differs(result: Result, how: str, redactor: Redactor) -> Result:
    how = clean(how, redactor)[0][:_MAX_MISMATCH]
    error = f"the output is not what was expected: {how}"
    return msgspec.structs.replace(result, status=Status.ERROR, mismatch=how, error=error)


def _printed(result: Result, of_text: bool) -> str:
    """Return the text to check. Raises `Mismatch`."""
    text = _whole(result) if result.omitted.get("stdout") else result.stdout
    if not text.strip() and result.value is not None:
        if of_text and isinstance(result.value, str):
            return result.value
        try:
            text = msgspec.json.encode(result.value).decode()
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise Mismatch("$: nothing was printed, and the value of the last expression is not JSON") from None
    if len(text) > MAX_BYTES:
        raise Mismatch(f"$: {len(text):,} characters were printed, and at most {MAX_BYTES:,} are looked at")
    return text.strip()


def _whole(result: Result) -> str:
    artifact = result.artifacts.get("stdout")
    if artifact is None or artifact.missing:
        raise Mismatch(
            "$: more was printed than is shown, and the rest was not kept; print less, or raise limits.output_bytes"
        )
    if artifact.size > MAX_BYTES:
        raise Mismatch(f"$: {artifact.size:,} bytes were printed, and at most {MAX_BYTES:,} are looked at")
    try:
        return artifact.read(0, artifact.size).decode()
    except RedomaError as error:
        raise Mismatch(f"$: what was printed can't be read again: {error}") from None


# --- JSON ----------------------------------------------------------------------------------------------------


def _json(text: str, redact: Redact) -> tuple[Any, str, int]:
    """Return the data, its text, and the number of values in it. Raises `Mismatch`."""
    try:
        data, count = strict_json.parse(text)
    except Mismatch:
        quoted = strict_json.with_quoted_labels(text)
        if quoted == text:
            raise
        text = quoted
        data, count = strict_json.parse(text)
    return *strict_json.without_secrets(data, text, redact), count


def _schema(schema: dict[str, Any]) -> Expectation:
    check, canonical = strict_json.compile_schema(schema)

    def read(text: str, redact: Redact) -> Any:
        data, _, count = _json(text, redact)
        check(data, count)
        return data

    return Expectation(f"schema sha256:{hashlib.sha256(canonical).hexdigest()}", read)


# --- patterns ------------------------------------------------------------------------------------------------


def _with_flags(pattern: re.Pattern[Any]) -> str:
    if not isinstance(pattern.pattern, str):
        raise _bad_regex(pattern.pattern, "it is one of bytes, and output is text")
    letters = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    if pattern.flags & (re.VERBOSE | re.LOCALE):
        raise _bad_regex(pattern.pattern, "its flags VERBOSE and LOCALE are not offered")
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern


def _regex(pattern: str) -> Expectation:
    if len(pattern) > MAX_REGEX:
        raise _bad_regex(pattern, f"it has more than {MAX_REGEX:,} characters")
    try:
        automaton = compile_re2(pattern)
    except UnicodeEncodeError:
        raise _bad_regex(pattern, "it is not Unicode") from None
    except ValueError as error:
        raise _bad_regex(pattern, str(error)) from None

    def read(text: str, redact: Redact) -> Any:
        match = automaton.fullmatch(text)
        if match is None:
            raise Mismatch(f"$: expected text that fits {pattern[:200]!r} as a whole, got {shorten(text, 80)!r}")
        return match.groupdict() or list(match.groups()) or match[0]

    return Expectation(f"regex:{pattern[:200]}", read, of_text=True)


def _bad_regex(pattern: object, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the pattern {str(pattern)[:80]!r} can't be used",
        why=why,
        next="the syntax is RE2's: no lookaround, no back-references",
    )


# --- types ---------------------------------------------------------------------------------------------------


def _type(expected: Any) -> Expectation:
    name = f"type {expected.__module__}.{expected.__qualname__}" if isinstance(expected, type) else f"type {expected}"
    try:
        custom = _unknown_types(expected)
        if custom and all(map(_is_pydantic, custom)):
            from pydantic import TypeAdapter

            return Expectation(name[:200], functools.partial(_by_pydantic, TypeAdapter(expected)))
        if not custom:
            return Expectation(name[:200], functools.partial(_by_msgspec, msgspec.json.Decoder(expected)))
        why = f"neither msgspec nor pydantic knows how to make {_name(custom[0])} of JSON"
    except Exception as error:  # from msgspec, pydantic, or the caller's type
        why = f"{type(error).__name__}: {error}"
    raise InvalidRequest(
        f"{name[:200]} can't be expected",
        why=why[:500],
        next="expect a msgspec Struct, a dataclass, a TypedDict, a pydantic model, or plain types such as list[int]",
    )


def _is_pydantic(one: Any) -> bool:
    return hasattr(one, "__pydantic_validator__")


def _name(of: Any) -> str:
    return getattr(of, "__qualname__", None) or repr(of)[:80]


def _unknown_types(expected: Any) -> list[Any]:
    """Return the types inside a type that msgspec can't construct."""
    unknown: list[Any] = []
    seen: set[int] = set()
    todo: list[Any] = [msgspec.inspect.type_info(expected)]
    while todo:
        node = todo.pop()
        # msgspec would construct a pydantic dataclass without running its validators.
        if isinstance(node, msgspec.inspect.CustomType) or _is_pydantic(getattr(node, "cls", None)):
            unknown.append(node.cls)
        elif isinstance(node, tuple):
            todo += node
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))  # recursive types are cycles here
            todo += [getattr(node, field) for field in node.__struct_fields__]
    return unknown


def _by_msgspec(decoder: msgspec.json.Decoder[Any], text: str, redact: Redact) -> Any:
    _, text, _ = _json(text, redact)
    try:
        return decoder.decode(text)
    except msgspec.DecodeError as error:
        raise Mismatch(_with_path_first(str(error))) from None


def _with_path_first(message: str) -> str:
    """Rewrite msgspec's ``Expected `int`, got `str` - at `$.a` `` as `$.a: expected int, got str`."""
    at = _AT.match(message)
    what = (at["what"] if at else message).replace("`", "")
    where = f"{at['path']}{' (a name)' if at['key'] else ''}" if at else "$"
    return f"{where}: {what[:1].lower()}{what[1:]}"


def _by_pydantic(adapter: Any, text: str, redact: Redact) -> Any:
    from pydantic import ValidationError

    _, text, _ = _json(text, redact)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise Mismatch(f"{path_of(first['loc'])}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None
