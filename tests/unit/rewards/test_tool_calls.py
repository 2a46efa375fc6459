"""Matching of function calls."""

from typing import Any

import pytest

from temper.rewards.tool_calls import ReferenceCall, Schema, Schemas, is_argument_accepted, match_calls

REFERENCE: list[ReferenceCall] = [{"area": {"base": [10], "height": [5], "unit": ["cm", "units", ""]}}]
SCHEMAS: Schemas = {
    "area": {
        "properties": {
            "base": {"type": "integer"},
            "height": {"type": "number"},
            "unit": {"type": "string"},
            "colour": {"type": "string"},
        },
        "required": ["base"],
    }
}
ONE: Schemas = {name: {"properties": {"x": {"type": "integer"}}} for name in ("f",)}


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("area", {"base": 10, "height": 5}, True),
        ("area", {"base": 10, "height": 5.0, "unit": "CM"}, True),
        ("area", {"base": 10, "height": 5, "unit": ""}, True),
        ("area", {"base": 10, "height": 5, "unit": "miles"}, False),
        ("area", {"base": 10, "height": 5, "unit": None}, False),
        ("area", {"base": 10, "height": 5, "unit": "-"}, True),
        ("area", {"base": 10, "height": 10**400}, False),
        ("area", {"base": 10}, False),
        ("area", {}, False),
        ("area", {"base": 10.0, "height": 5}, False),
        ("area", {"base": 10.5, "height": 5}, False),
        ("area", {"base": "10", "height": 5}, False),
        ("area", {"base": [10], "height": 5}, False),
        ("area", {"base": True, "height": 5}, False),
        ("area", {"base": 10, "height": float("nan")}, False),
        ("area", {"base": 10, "height": 5, "colour": "red"}, False),
        ("volume", {"base": 10, "height": 5}, False),
        ("AREA", {"base": 10, "height": 5}, False),
    ],
)
def test_a_call_is_right_when_every_argument_is_accepted(name: str, arguments: dict[str, Any], right: bool) -> None:
    assert match_calls([(name, arguments)], REFERENCE, SCHEMAS) is right


def test_a_dot_in_a_functions_name_may_be_an_underscore() -> None:
    reference: list[ReferenceCall] = [{"math.area.circle": {"radius": [2]}}]
    schemas: Schemas = {"math.area.circle": {"properties": {"radius": {"type": "integer"}}}}
    for name, radius, right in (
        ("math.area.circle", 2, True),
        ("math_area_circle", 2, True),
        ("math_area_circle", 2.0, False),
        ("math.area_circle", 2, False),
        ("circle", 2, False),
    ):
        assert match_calls([(name, {"radius": radius})], reference, schemas) is right


def test_calls_match_in_any_order_but_each_once() -> None:
    reference: list[ReferenceCall] = [
        {"play": {"artist": ["A"], "minutes": [20]}},
        {"play": {"artist": ["B"], "minutes": [15]}},
    ]
    schemas: Schemas = {"play": {"properties": {"artist": {"type": "string"}, "minutes": {"type": "integer"}}}}
    first, second = ("play", {"artist": "A", "minutes": 20}), ("play", {"artist": "B", "minutes": 15})
    assert match_calls([second, first], reference, schemas)
    assert not match_calls([first, first], reference, schemas)
    assert not match_calls([first], reference, schemas)
    assert not match_calls([first, second, second], reference, schemas)
    assert not match_calls([], reference, schemas)


def test_no_call_is_right_where_none_is_wanted() -> None:
    assert match_calls([], [], {})
    assert not match_calls([("f", {})], [], {})


def test_a_call_that_fits_two_leaves_the_narrow_one_free() -> None:
    reference: list[ReferenceCall] = [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}]
    assert match_calls([("f", {"x": 1}), ("f", {"x": 2})], reference, ONE)
    assert not match_calls([("f", {"x": 2}), ("f", {"x": 2})], reference, ONE)


def test_more_calls_than_the_limit_never_match() -> None:
    reference: list[ReferenceCall] = [{"f": {}}]
    assert match_calls([("f", {})] * 64, reference * 64, ONE)
    assert not match_calls([("f", {})] * 65, reference * 65, ONE)


def test_required_arguments_are_given_and_no_unknown_ones() -> None:
    reference: list[ReferenceCall] = [{"f": {"x": [1, ""], "y": [2, ""]}}]
    schemas: Schemas = {"f": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    assert match_calls([("f", {"x": 1})], reference, schemas)
    assert not match_calls([("f", {})], reference, schemas)
    assert not match_calls([("f", {"x": 1, "y": 2})], reference, schemas)
    assert not match_calls([("f", {"x": 1})], reference, {})


INTEGERS = {"type": "array", "items": {"type": "integer"}}
NUMBERS = {"type": "array", "items": {"type": "number"}}
TEXTS = {"type": "array", "items": {"type": "string"}}
OBJECTS = {"type": "array", "items": {"type": "object"}}


@pytest.mark.parametrize(
    ("schema", "cases"),
    [
        (
            {"type": "string"},
            [
                ("New York, NY", ["new york ny"]),
                ("it's", ['It"s']),
                ("2023-05/01", ["2023.05_01"]),
                (" a,B./-_*^'", ['ab"']),
            ],
        ),
        ({"type": "string"}, [("-", ["", "x"]), (True, [True])]),
        ({}, [("anything", ["Anything"])]),
        ({"type": "number"}, [(2, [2.0]), (None, [None, ""])]),
        ({"type": "integer"}, [(2, [2]), (1.5, [1.5])]),
        ({"type": "boolean"}, [(True, [True])]),
        (INTEGERS, [([1, 2], [[1, 2]]), ([1, 2.0], [[1.0, 2.0], ""])]),
        (NUMBERS, [([1.0, 2.0], [[1.0, 2]]), ([1, 2], [[1, 2]])]),
        (TEXTS, [(["A b"], [["c"], ["ab"]]), ([], [""]), ([], ["", ["x"]])]),
        ({"type": "array", "items": {"type": "array"}}, [([[1], [2]], [[[1], [2]]])]),
        ({"type": "array"}, [([], [[]]), ("user_list", ["user_list"])]),
        ({"type": "object"}, [({}, [{"a": [""]}]), ({"a": "X"}, ["", {"a": ["x", "y"], "b": [""]}])]),
        ({"type": "object"}, [({"a": "x"}, [{"a": "X"}]), ({"a": {"b": 1}}, [{"a": [{"b": 1}]}])]),
        ({"type": "object"}, [({"a": 1}, [{"a": [True]}])]),
        (OBJECTS, [([{"a": 1}, {"a": 2}], [[{"a": [1]}, {"a": [3, 2]}]])]),
    ],
)
def test_accepted_values_are_right(schema: Schema, cases: list[tuple[Any, list[Any]]]) -> None:
    assert [case for case in cases if not is_argument_accepted(*case, schema)] == []


@pytest.mark.parametrize(
    ("schema", "cases"),
    [
        ({"type": "string"}, [("New York", ["New York City"]), (1, ["1"]), (None, [""]), ("x", [])]),
        ({"type": "integer"}, [("1", [1]), (2.0, [2]), (True, [1]), ("", [None]), ("", ["", 5])]),
        ({"type": "number"}, [(2.5, [2]), (10**400, [2.0])]),
        ({"type": "boolean"}, [(1, [True]), (0, [False])]),
        (INTEGERS, [([1, 2], [[2, 1]]), ([1, 2.0], [[1, 2]]), ([1], [[1, 1]])]),
        (NUMBERS, [([1.0, 2], [[1.0, 2.0]])]),
        ({"type": "array", "items": {"type": "array"}}, [([["A"]], [[["a"]]])]),
        (TEXTS, [("a", [["a"]]), (["a"], ["a"])]),
        ({"type": "array"}, [(["user_list"], ["user_list"]), ("User_list", ["user_list"])]),
        ({"type": "object"}, [({"a": "X", "c": 1}, [{"a": ["x"]}]), ({"a": "z"}, [{"a": ["x"]}])]),
        ({"type": "object"}, [({}, [{"a": ["x"]}]), ({}, [""]), ({"a": {"b": 1}}, [{"a": [{"b": [1]}]}])]),
        ({"type": "object"}, [("{}", [{}])]),
        (OBJECTS, [([{"a": 1}], [[{"a": [2]}]]), ([{"a": 1}], [[{"a": [1]}, {"a": [1]}]]), ([1], [[{"a": [1]}]])]),
    ],
)
def test_other_values_and_equal_ones_of_another_type_are_not(
    schema: Schema, cases: list[tuple[Any, list[Any]]]
) -> None:
    assert [case for case in cases if is_argument_accepted(*case, schema)] == []


def test_schemas_of_any_shape_do_no_harm() -> None:
    schemas: list[Schema] = [{"type": ["string", "null"]}, {"items": 1}, {"items": [{}]}, {"properties": None}, {}]
    for schema in schemas:
        assert is_argument_accepted([1.0], [[1]], schema)
        assert not is_argument_accepted([2.0], [[1]], schema)


@pytest.mark.parametrize(
    ("schema", "accepted", "right", "wrong"),
    [
        ({"type": "string"}, ["3.5"], "3.5", "35"),
        ({"type": "string"}, ["-5"], "-5", "5"),
        ({"type": "string"}, ["2023-10-1"], "2023-10-1", "2023-101"),
        ({"type": "string"}, ["New York"], "New York", "newyork"),
        ({"type": "array", "items": {"type": "string"}}, [["a b"]], ["a b"], ["ab"]),
        ({"type": "object"}, [{"a": ["x-y"]}], {"a": "x-y"}, {"a": "xy"}),
        ({"type": "array", "items": {"type": "object"}}, [[{"a": ["x-y"]}]], [{"a": "x-y"}], [{"a": "xy"}]),
    ],
)
def test_an_exact_match_takes_texts_as_they_are(schema: Schema, accepted: list[Any], right: Any, wrong: Any) -> None:
    assert is_argument_accepted(right, accepted, schema, exact=True)
    assert not is_argument_accepted(wrong, accepted, schema, exact=True)
    assert is_argument_accepted(wrong, accepted, schema)
