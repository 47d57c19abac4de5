"""Whatever is sent to any address of the OpenAPI document: no 500, and the answer is what the document says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from redoma import Limits
from redoma.frontends.http.bodies import SomeLimits
from redoma.models.request import SIZES
from serving import Serving

EXAMPLES = 8
"""For each operation: bounded, so that the whole takes seconds."""
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.fixture(scope="session")
def operations(server: Serving) -> dict[str, Any]:
    document = server.ask("GET", "/v1/openapi.json", key=None).json
    found = [each.ok() for each in schemathesis.openapi.from_dict(document).get_all_operations()]  # type: ignore[union-attr]
    return {operation.definition.raw["operationId"]: operation for operation in found}


@pytest.fixture(scope="session")
def session(server: Serving) -> str:
    """The id of a session that is open: else nothing of what is sent to one would get far."""
    opened: str = server.ask("POST", "/v1/sessions", {}, key=server.key("schema", "admin", concurrency=64)).json["id"]
    return opened


def names() -> list[str]:
    from redoma.frontends.http.app import ROUTES
    from redoma.frontends.http.openapi import name_of

    return sorted(name_of(handler) for route in ROUTES for handler in route.HANDLERS if handler.tags)


@pytest.mark.parametrize("name", names())
def test_no_request_gets_a_500_or_an_answer_that_the_document_does_not_have(
    server: Serving, operations: dict[str, Any], session: str, name: str
) -> None:
    headers = {"Authorization": f"Bearer {server.key('schema', 'admin', concurrency=64)}"}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def send(data: st.DataObject) -> None:
        case = data.draw(operations[name].as_strategy(generation_mode=data.draw(st.sampled_from(MODES))))
        if isinstance(case.body, dict):
            case.body.pop("backend", None)  # containers would take minutes
            if "packages" in case.body and name == "environment_create":
                case.body["packages"] = ["no requirement!"]  # an install would take minutes, and reach the index
            if isinstance(case.body.get("limits"), dict):
                case.body["limits"]["time"] = 1
        if name != "session_close" and data.draw(st.booleans()) and "session_id" in (case.path_parameters or {}):
            case.path_parameters["session_id"] = session
        answer = case.call(base_url=server.url, headers=headers, timeout=180)
        case.validate_response(answer, checks=CHECKS)

    send()


def test_every_limit_of_the_library_can_be_requested_in_its_own_unit() -> None:
    offered = msgspec.json.schema(SomeLimits)["$defs"]["SomeLimits"]["properties"]
    kinds = {name: {each["type"] for each in field["anyOf"]} for name, field in offered.items()}
    assert kinds == {
        field.name: {"number" if field.type is float else "integer", "null"}
        | ({"string"} if field.name in SIZES else set())
        for field in msgspec.structs.fields(Limits)
    }
