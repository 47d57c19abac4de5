"""Build the OpenAPI document from the routes and the structs that they take and return.

Litestar's own generator can't handle our structs: it fails on a default that is a mapping, and it does not know the
bounds that msgspec checks. msgspec describes exactly what it accepts.
"""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.params import BodyKwarg, ParameterKwarg

from ... import __version__
from .bodies import Problem

TAGS = {
    "runs": "Run code and commands, and follow them.",
    "sessions": "A Python that keeps its variables, and its files.",
    "environments": "Packages that runs and sessions find.",
    "approvals": "What waits for a person.",
    "changes": "What runs in overlays would change in a project.",
    "policy": "What policy says, without running anything.",
    "audit": "What is on record, and whether the record is whole.",
    "keys": "Who may do what.",
    "service": "The server itself.",
}
_ERRORS = {
    400: "The request can't be read.",
    401: "There is no key, or it is unknown, revoked or expired.",
    403: "The key lacks a scope.",
    404: "There is no such thing, or this key may not see it.",
    409: "It is not in a state in which that can be done.",
    413: "The request is too large.",
    415: "The request is not JSON.",
    422: "The request makes no sense.",
    429: "Too many requests: see `Retry-After`.",
    503: "Not now: see `Retry-After`.",
}
_REF = "#/components/schemas/{name}"


def document(app: Litestar) -> dict[str, Any]:
    """Return the OpenAPI document of all routes that have a tag and are not excluded."""
    handlers = [
        (route.path_format, method, handler)
        for route in app.routes
        for method, (handler, _) in getattr(route, "route_handler_map", {}).items()
        if method != "OPTIONS" and handler.include_in_schema is not False and handler.tags
    ]
    kinds: list[Any] = [Problem]
    for _, _, handler in handlers:
        kinds += [spec.data_container for spec in (handler.responses or {}).values()]
        if (body := _hints(handler).get("data")) is not None:
            kinds.append(get_args(body)[0])
    kinds = list(dict.fromkeys(kinds))
    schemas, parts = msgspec.json.schema_components(kinds, ref_template=_REF)
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, method, handler in sorted(handlers, key=lambda each: each[:2]):
        paths.setdefault(path, {})[method.lower()] = _operation(handler, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Redoma",
            "version": __version__,
            "description": "Runs code and commands that nobody has reviewed, safely.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": {"schemas": parts, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _hints(handler: HTTPRouteHandler) -> dict[str, Any]:
    hints = get_type_hints(_function(handler), include_extras=True)
    return {name: hint for name, hint in hints.items() if name not in ("request", "return")}


def _function(handler: HTTPRouteHandler) -> Any:
    """Return the handler's own function; litestar wraps those that are not asynchronous."""
    function: Any = handler.fn
    while hasattr(function, "func"):
        function = function.func
    return function


def name_of(handler: HTTPRouteHandler) -> str:
    """Return the name of an operation: that of its function."""
    name: str = _function(handler).__name__
    return name


def _operation(handler: HTTPRouteHandler, known: dict[Any, Any]) -> dict[str, Any]:
    guarded = handler.before_request is not None
    operation: dict[str, Any] = {
        "tags": list(handler.tags or ()),
        "summary": handler.summary,
        "operationId": name_of(handler),
        "security": [{"key": []}] if guarded else [],
    }
    parameters = []
    for name, hint in _hints(handler).items():
        kind, about = get_args(hint)[:2]
        if isinstance(about, BodyKwarg):
            content = {"schema": known[kind]}
            if about.examples:
                content["examples"] = {
                    f"example-{number}": {"summary": example.summary, "value": example.value}
                    for number, example in enumerate(about.examples)
                }
            operation["requestBody"] = {"required": True, "content": {"application/json": content}}
        else:
            parameters.append(_parameter(name, kind, about))
    if raw := handler.opt.get("raw_body"):
        operation["requestBody"] = {"required": True, "content": {raw: {"schema": {}}}}
    if parameters:
        operation["parameters"] = parameters
    responses = {
        str(status): {
            "description": spec.description,
            "content": {getattr(spec.media_type, "value", spec.media_type): {"schema": known[spec.data_container]}},
        }
        for status, spec in (handler.responses or {}).items()
    }
    problem = {"application/json": {"schema": known[Problem]}}
    errors = _ERRORS if guarded else {400: _ERRORS[400]}
    for status, about in errors.items():
        responses.setdefault(str(status), {"description": about, "content": problem})
    operation["responses"] = responses
    return operation


def _parameter(name: str, kind: Any, about: ParameterKwarg) -> dict[str, Any]:
    schema = msgspec.json.schema(kind)
    bounds = {"minimum": about.ge, "maximum": about.le, "pattern": about.pattern}
    bounds |= {"minLength": about.min_length, "maxLength": about.max_length}
    schema |= {word: value for word, value in bounds.items() if value is not None}
    return {
        "name": about.name or name,
        "in": about.param_type.value,
        "required": about.param_type.value == "path" or about.required is True,
        "schema": schema,
        **({"description": about.description} if about.description else {}),
    }
