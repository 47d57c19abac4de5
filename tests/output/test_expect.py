"""What was expected is found and given as data, or the result says where it differs; and nothing that is printed, and
no schema, can make the check dangerous, endless or wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redoma.lib.errors import InvalidRequest
from redoma.models import Evaluation, Result, Status
from redoma.output import strict_json
from redoma.output.expectations import check_result, expectation
from redoma.output.strict_json import MAX_BYTES, MAX_DEPTH
from redoma.redaction import Redactor

TOKEN = "ghp_Abcdefghijklmnopqrstuvwxyz0123456789"


def result(stdout: str = "", **more: Any) -> Result:
    fields = {"status": Status.OK, "exit_code": 0, **more}
    return Result(id="r", stdout=stdout, evaluation=Evaluation(policy="none", digest=""), **fields)


def looked_at(expect: Any, stdout: str = "", *, secrets: tuple[str, ...] = (), **more: Any) -> Result:
    return check_result(expectation(expect), result(stdout, **more), Redactor(secrets))


class Item(msgspec.Struct):
    price: float


class Order(msgspec.Struct):
    items: list[Item]


class Tree(msgspec.Struct):
    children: list[Tree] = []


@dataclasses.dataclass
class Point:
    x: int


class Model(pydantic.BaseModel):
    price: float = pydantic.Field(gt=0)


@pydantic.dataclasses.dataclass
class Strict:
    count: int = pydantic.Field(gt=0)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["items"],
    "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
    "$defs": {"item": {"type": "object", "properties": {"price": {"type": "number"}}}},
}

# --- what fits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "printed", "data"),
    [
        ("json", ' {"a": [1, 2.5, null, true, "é"]}\n', {"a": [1, 2.5, None, True, "é"]}),
        ("json", "123456789012345678901234567890", 123456789012345678901234567890),
        (SCHEMA, '{"items": [{"price": 3}]}', {"items": [{"price": 3}]}),
        ({"uniqueItems": True}, '[1, true, {"a": 1}, {"a": 2}]', [1, True, {"a": 1}, {"a": 2}]),
        ({"properties": {"default": {"pattern": "^x+$"}}}, '{"default": "xx"}', {"default": "xx"}),
        ({"enum": [{"$ref": "http://x/"}]}, '{"$ref": "http://x/"}', {"$ref": "http://x/"}),
        ({"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, '{"ab": null}', {"ab": None}),
        ("regex:[0-9]+ rows", "42 rows\n", "42 rows"),
        ("regex:([0-9]+) (rows|columns)", "42 rows", ["42", "rows"]),
        ("regex:(?P<n>[0-9]+) rows", "42 rows", {"n": "42"}),
        (re.compile("A.B", re.IGNORECASE | re.DOTALL), "a\nb", "a\nb"),
        (Order, '{"items": [{"price": 3}]}', Order([Item(3.0)])),
        (list[int], "[1, 2]", [1, 2]),
        (Tree, '{"children": [{}]}', Tree([Tree()])),
        (Point, '{"x": 3}', Point(3)),
        (Model, '{"price": 3}', Model(price=3)),
        (list[Model], '[{"price": 3}]', [Model(price=3)]),
    ],
)
def test_what_fits_is_given_as_data(expect: Any, printed: str, data: Any) -> None:
    found = looked_at(expect, printed)
    assert (found.status, found.data, found.mismatch, found.error) == (Status.OK, data, None, None)


# --- what differs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "printed", "how"),
    [
        ("json", "", "$: expected JSON, got nothing: the output is empty"),
        ("json", "loading…\n{}", "line 1, column 1: expected JSON alone"),
        ("json", "{}\ndone", "line 2, column 1: expected JSON alone"),
        ("json", '{"a": {"b": 1, "c": 2, "b": 3}}', "$.a: the name b stands in it twice"),
        ("json", '{"x": [1, NaN]}', "$.x[1]: NaN is not JSON"),
        ("json", "[-Infinity]", "$[0]: -Infinity is not JSON"),
        ("json", '{"a b": [1e999]}', '$["a b"][0]: a number too large'),
        ("json", f"[{'9' * 5000}]", "$[0]: an integer of 5,000 digits"),
        ("json", '"\\ud800"', "$: it has text that is not Unicode"),
        ("json", "[" * 100_000, "$: nested deeper"),
        ("json", "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "$[0][0][0]…: nested deeper"),
        (SCHEMA, '{"items": [{}, {}, {}, {"price": "x"}]}', "$.items[3].price: expected number, got str"),
        (SCHEMA, "{}", "$: 'items' is missing"),
        ({"additionalProperties": False}, '{"b": 1}', "$: there may be no 'b'"),
        ({"enum": ["a", "b"]}, '"c"', '$: expected "a", "b", got "c"'),
        ({"uniqueItems": True}, '[{"a": 1}, {"a": 1.0}]', "$: its items are not all different"),
        ({"multipleOf": 0.1}, "1" + "0" * 500, "$: a number in it can't be checked"),
        ({"type": "boolean"}, "1", "$: expected boolean, got int"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "1", "$: it fits none of the 2 schemas"),
        ({"minItems": 2}, "[1]", "$: expected minItems 2, got 1"),
        ("regex:[0-9]+", "12 rows", "$: expected text that fits '[0-9]+' as a whole, got '12 rows'"),
        (Order, '{"items": [{"price": 1}, {"price": "x"}]}', "$.items[1].price: expected float, got str"),
        (Order, '{"items": [{"price": 1, "price": 2}]}', "$.items[0]: the name price stands in it twice"),
        (Model, '{"price": -1}', "$.price: input should be greater than 0"),
        (Strict, '{"count": -1}', "$.count: input should be greater than 0"),
    ],
)
def test_what_differs_is_told_with_its_path(expect: Any, printed: str, how: str) -> None:
    found = looked_at(expect, printed)
    assert found.mismatch is not None
    assert found.mismatch.startswith(how), found.mismatch
    assert found.error == f"the output is not what was expected: {found.mismatch}"
    assert (found.status, found.data, found.exit_code, found.stdout) == (Status.ERROR, None, 0, printed)


def test_it_ran_all_the_same() -> None:
    found = looked_at("json", "no")
    assert found.status.ending == "ran"
    assert found.shell_exit == 1


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_run_that_did_not_end_well_keeps_its_own_error(status: Status) -> None:
    ended = result("no", status=status, exit_code=3, error="its own")
    assert check_result(expectation("json"), ended, Redactor()) == ended


def test_a_long_mismatch_is_cut_and_harmless_to_a_terminal() -> None:
    found = looked_at({"enum": [1]}, json.dumps("\x1b[31m" + "x" * 100_000))
    assert found.mismatch is not None
    assert len(found.mismatch) < 200
    assert "\x1b" not in found.mismatch
    named = looked_at("json", '{"' + "\\u001b[2J" + "k" * 5000 + '": NaN}')
    assert len(named.mismatch or "") < 200
    assert "\x1b" not in (named.mismatch or "")


# --- what is looked at ---------------------------------------------------------------------------------------


def test_the_value_counts_where_nothing_was_printed_and_only_there() -> None:
    assert looked_at("json", " \n", value={"a": (1, 2)}).data == {"a": [1, 2]}
    assert looked_at(list[int], "[1]", value=[2]).data == [1]
    assert looked_at("regex:h.", value="hi").data == "hi"
    assert looked_at("json", value="hi").data == "hi"
    assert "is not JSON" in (looked_at("json", value=object()).mismatch or "")


def test_output_that_was_cut_is_not_taken_for_the_whole() -> None:
    found = looked_at("regex:(?s).*", "[1,\n[… 1 KB left out …]\n2]", omitted={"stdout": 1024})
    assert found.mismatch is not None
    assert "limits.output_bytes" in found.mismatch


def test_too_much_is_not_looked_at() -> None:
    assert "at most" in (looked_at("json", "[" + " " * MAX_BYTES + "]").mismatch or "")


# --- secrets -------------------------------------------------------------------------------------------------


def test_a_number_that_was_taken_out_leaves_json_behind() -> None:
    found = looked_at("json", '{"card": [redacted:card], "text": "a \\" [redacted:card]"}', redacted={"card": 2})
    assert found.data == {"card": "[redacted:card]", "text": 'a " [redacted:card]'}


def test_a_secret_in_escapes_does_not_come_out_as_data() -> None:
    hidden = json.dumps({"a": TOKEN}).replace("A", "\\u0041")
    kinds: tuple[Any, ...] = ("json", {}, dict[str, str])
    for expect in kinds:
        found = looked_at(expect, hidden)
        assert found.data == {"a": "[redacted:github-token]"}
        assert found.redacted == {"github-token": 1}
    known = looked_at("json", '["\\u0063orrect-horse"]', secrets=("correct-horse",))
    assert known.data == ["[redacted:known-secret]"]


def test_a_secret_in_escapes_does_not_come_out_in_a_message() -> None:
    for expect in ({"enum": [1]}, {"additionalProperties": False}, "json"):
        for printed in (f'"{TOKEN}"', json.dumps({TOKEN: 1}), f'{{"{TOKEN}": NaN}}'):
            shown = looked_at(expect, printed.replace("A", "\\u0041"))
            assert TOKEN not in f"{shown.mismatch} {shown.error} {shown.data}"


# --- expectations that make no sense -------------------------------------------------------------------------


class Alien:
    pass


@pytest.mark.parametrize(
    ("expect", "why"),
    [
        ("xml", "neither"),
        ("", "neither"),
        (True, "neither"),
        (3, "neither"),
        ([1], "neither"),
        (b"json", "neither"),
        ("regex:(", "missing"),
        ("regex:(?=x)", "RE2"),
        ("regex:(a{1000}){1000}", "RE2"),
        ("regex:" + "x" * 20_000, "10,000"),
        ("regex:\ud800", "Unicode"),
        (re.compile(b"x"), "bytes"),
        (re.compile("x", re.VERBOSE), "VERBOSE"),
        (Alien, "Alien"),
        (list[Alien], "Alien"),
        (dict[str, Model | Alien], "can't be expected"),
        (lambda: 1, "can't be expected"),
        ({"type": "nope"}, "$.type"),
        ({"type": 3}, "$.type"),
        ({"$schema": "http://evil.invalid/"}, "unknown"),
        ({"$ref": "#"}, "itself without end"),
        ({"properties": {"a": {"$ref": "#/nope"}}}, "#/nope"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}, "nothing is fetched"),
        ({"$defs": {"a": {"$dynamicRef": "other.json"}}}, "nothing is fetched"),
        ({"properties": {"enum": {"$ref": "file:///etc/passwd"}}}, "nothing is fetched"),
        ({"pattern": "(?!x)"}, "RE2"),
        ({"patternProperties": {"(": {}}}, "RE2"),
        ({"pattern": "x" * 3000}, "2000"),
        ({"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False}, "not offered"),
        ({"a": object()}, "not JSON"),
        ({1: 2}, "not JSON"),
        ({"description": "x" * 300_000}, "bytes"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(expect: Any, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        expectation(expect)
    assert why in str(refused.value)
    assert refused.value.next


def test_a_schema_that_nests_without_end_is_refused_or_mends_itself() -> None:
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = {"not": schema}
    with pytest.raises(InvalidRequest, match="nested too deep"):
        expectation(schema)


def test_a_schema_is_what_it_was_when_it_was_given() -> None:
    schema = {"type": "integer"}
    expected = expectation(schema)
    schema["type"] = "string"
    assert check_result(expected, result("1"), Redactor()).data == 1


def test_the_record_gets_a_description_and_no_object() -> None:
    assert expectation("json").description == "json"
    assert expectation("regex:x+").description == "regex:x+"
    assert re.fullmatch("schema sha256:[0-9a-f]{64}", expectation({"type": "null"}).description)
    assert expectation(Order).description.endswith(".Order")
    assert len(expectation("regex:" + "x" * 5000).description) < 300


# --- hostile -------------------------------------------------------------------------------------------------


def test_no_schema_makes_us_connect_anywhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in ({"$schema": url}, {"$id": url, "$ref": "other.json"}, {"$id": url, "items": {"$ref": url}}):
            with pytest.raises(InvalidRequest):
                expectation(schema)
        looked_at({"$id": url, "type": "object"}, '{"$ref": "' + url + '"}')
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()


BOMB: dict[str, Any] = {
    "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(12)}
    | {"d12": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("schema", "printed"),
    [
        ({"pattern": "^(a+)+$"}, '"' + "a" * 50_000 + '!"'),
        ({"patternProperties": {"^(a|a)*$": {}}}, '{"' + "a" * 50_000 + '!": 1}'),
        ({"additionalProperties": False, "patternProperties": {"^(a+)+$": {}}}, '{"' + "a" * 5000 + '!": 1}'),
        ({"propertyNames": {"pattern": "(x+x+)+y"}}, '{"' + "x" * 50_000 + '": 1}'),
        ({"uniqueItems": True}, json.dumps([{"a": n} for n in range(50_000)] + [{"a": 0}])),
        ({"items": {"type": "integer"}}, "[" + "1," * 200_000 + "1]"),
        (BOMB | {"items": {"$ref": "#/$defs/d0"}}, "[1]"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "items": {"$ref": "#/$defs/a"}}, "[1]"),
    ],
    ids=["pattern", "properties", "additional", "names", "unique", "many", "fan-out", "loop"],
)
def test_hostile_schemas_and_data_come_to_an_end(
    schema: dict[str, Any], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these would take hours, or for ever, if it were looked at naively: the test ends, or it fails."""
    monkeypatch.setattr(strict_json, "MAX_STEPS", 20_000)
    done: list[Result] = []
    worker = threading.Thread(target=lambda: done.append(looked_at(schema, printed)), daemon=True)
    worker.start()
    worker.join(120)
    assert done
    assert done[0].mismatch or schema.keys() == {"patternProperties"}


def test_more_values_than_a_schema_is_for_are_not_looked_at() -> None:
    assert "too many for a schema" in (looked_at({}, "[" + "1," * 60_000 + "1]").mismatch or "")


def test_a_type_whose_own_code_fails_costs_nobody_the_result() -> None:
    class Broken(msgspec.Struct):
        a: int

        def __post_init__(self) -> None:
            raise KeyError("oops")

    found = looked_at(Broken, '{"a": 1}')
    assert "KeyError" in (found.mismatch or "")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values, st.booleans())
@settings(max_examples=200, deadline=None)
def test_json_is_read_as_it_was_written(value: Any, as_ascii: bool) -> None:
    printed = json.dumps(value, ensure_ascii=as_ascii)
    if Redactor().redact(printed)[1] or Redactor().redact(json.dumps(value, ensure_ascii=False))[1]:
        return
    found = looked_at("json", printed)
    assert found.data == value
    assert found.mismatch is None


NO_SECRETS = Redactor()
EVERY_KIND = [expectation(expect) for expect in ("json", SCHEMA, Order, "regex:x")]


@given(st.text(alphabet='[]{}",:\\ \n0123456789eE+-.truefalsn[redacted:x]', max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(printed: str) -> None:
    for expected in EVERY_KIND:
        check_result(expected, result(printed), NO_SECRETS)


# --- the extra -----------------------------------------------------------------------------------------------


def test_without_the_library_the_message_names_the_extra_and_the_rest_works() -> None:
    script = """
import sys
sys.modules["jsonschema"] = None
from redoma.output.expectations import expectation
for fine in ("json", "regex:x", list[int]):
    expectation(fine)
try:
    expectation({"type": "null"})
except ValueError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "redoma[schema]" in said


def test_nothing_is_loaded_before_it_is_used() -> None:
    script = (
        "import sys; from redoma.output.expectations import expectation; expectation('json'); expectation(list[int]); "
        "print({'jsonschema', 'referencing', 'pydantic', 're2'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"
