"""What a client sends and gets: a caller's options as the body of a request, and JSON as results and displays.

Options are read as the library reads them. Its module for that is imported only when such an option is given.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from ...lib.errors import ServiceError
from ...lib.types import resolved
from ...models import Display, Limits, Result

T = TypeVar("T")
_AS_THEY_ARE = (
    *("backend", "charts", "context", "cwd", "env", "environment", "expect", "idle", "label", "lifetime", "policy"),
    *("project", "reason", "secrets", "workspace"),
)
_LISTS = ("network", "outputs", "packages", "require")
_LIMITS = ("limits", "timeout", "memory")
_PICTURES = ("image/png", "image/jpeg")
"""Types of displays whose content is bytes."""
_RESULT = msgspec.json.Decoder(resolved(Result))


# --- what is sent ---


def must_be_known(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `InvalidRequest` for an option that is not in `known`."""
    if not options.keys() <= set(known):
        from ...pipeline import intake

        intake.must_be_known("option", options, known)


def body_of(options: Mapping[str, Any], known: Collection[str], **what: Any) -> dict[str, Any]:
    """Return the body of a request: `what`, and those of the options that are set.

    Raises `InvalidRequest` for an option that is not in `known`, or that makes no sense.
    """
    must_be_known(options, known)
    body = dict(what)
    if limits := _limits(options):
        body["limits"] = limits
    for name, value in options.items():
        if not value:
            continue
        if name in _AS_THEY_ARE:
            body[name] = value
        elif name in _LISTS:
            body[name] = _words(name, value)
        elif name == "args":
            body["argv"] = _arguments(value, what["language"])
        elif name == "stdin":
            body["stdin"] = _content(value)
        elif name == "files":
            body["files"] = _files(value)
    return body


def _limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits among the options, including `timeout` and `memory`."""
    if options.keys().isdisjoint(_LIMITS):
        return {}
    from ...pipeline.intake import limits_given

    limits = limits_given(options)
    return msgspec.structs.asdict(limits) if isinstance(limits, Limits) else dict(limits or {})


def _words(name: str, given: Any) -> list[str]:
    from ...pipeline.intake import words

    return list(words(name, given))


def _arguments(given: Any, language: str) -> list[str]:
    if language == "command":
        from ...pipeline.intake import args_with_command

        raise args_with_command()
    return _words("args", given)


def _files(given: Any) -> dict[str, Any]:
    """Return files for a request: from a mapping of names to contents, or from paths."""
    from ...pipeline.intake import named_files

    return {name: _content(one) for name, one in named_files(given).items()}


def _content(given: bytes | str | os.PathLike[str]) -> Any:
    """Return content for a request: text as it is, bytes or the file at a path as base64."""
    from ...pipeline.intake import content

    found = content(given)
    return found if isinstance(found, str) else {"base64": base64.b64encode(found).decode()}


# --- what comes back: every function raises `ServiceError` if it is malformed ---


def json_of(data: bytes) -> Any:
    """Return decoded JSON."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ServiceError("the answer can't be read", why="it is not JSON", next="check the address") from error


def converted(shape: Any, kind: type[T]) -> T:
    """Return decoded JSON as a `kind`."""
    try:
        return msgspec.convert(shape, resolved(kind))
    except msgspec.ValidationError as error:
        raise ServiceError("the answer can't be read", why=str(error), next="use a client of its version") from error


def decoded_result(data: bytes) -> Result:
    """Return the `Result` in an answer that is nothing else."""
    try:
        return _with_pictures(_RESULT.decode(data))
    except msgspec.MsgspecError:  # not this type; or JSON that msgspec does not take: lone surrogates
        return result_of(json_of(data))


def result_of(shape: Any) -> Result:
    """Return decoded JSON as a `Result`."""
    return _with_pictures(converted(shape, Result))


def display_of(shape: Any) -> Display:
    """Return decoded JSON as a `Display`."""
    return _with_bytes(converted(shape, Display))


def _with_pictures(result: Result) -> Result:
    if not result.displays:
        return result
    return msgspec.structs.replace(result, displays=tuple(map(_with_bytes, result.displays)))


def _with_bytes(display: Display) -> Display:
    """Decode the pictures of a display from base64."""
    try:
        data = {
            kind: base64.b64decode(content, validate=True) if kind in _PICTURES else content
            for kind, content in display.data.items()
        }
    except (ValueError, TypeError) as error:
        raise ServiceError("the answer can't be read", why="a picture is not base64", next="report it") from error
    return msgspec.structs.replace(display, data=data)
