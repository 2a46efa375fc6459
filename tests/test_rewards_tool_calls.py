"""Matching of function calls."""

from typing import Any

import pytest

from rewards.tool_calls import GoldCall, Schema, Schemas, match_calls, same_value, standard

GOLD: list[GoldCall] = [{"area": {"base": [10], "height": [5], "unit": ["cm", "units", ""]}}]
SCHEMAS: Schemas = {"area": {"base": {"type": "integer"}, "height": {"type": "number"}, "unit": {"type": "string"}}}


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("area", {"base": 10, "height": 5}, True),
        ("area", {"base": 10, "height": 5.0, "unit": "CM"}, True),
        ("area", {"base": 10, "height": 5, "unit": ""}, True),
        ("area", {"base": 10, "height": 5, "unit": "miles"}, False),
        ("area", {"base": 10, "height": 5, "unit": None}, False),
        ("area", {"base": 10, "height": 5, "unit": "-"}, False),
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
    assert match_calls([(name, arguments)], GOLD, SCHEMAS) is right


def test_a_dot_in_a_functions_name_may_be_an_underscore() -> None:
    gold: list[GoldCall] = [{"math.area.circle": {"radius": [2]}}]
    schemas: Schemas = {"math.area.circle": {"radius": {"type": "integer"}}}
    for name, radius, right in (
        ("math.area.circle", 2, True),
        ("math_area_circle", 2, True),
        ("math_area_circle", 2.0, False),
        ("math.area_circle", 2, False),
        ("circle", 2, False),
    ):
        assert match_calls([(name, {"radius": radius})], gold, schemas) is right


def test_calls_match_in_any_order_but_each_once() -> None:
    gold: list[GoldCall] = [{"play": {"artist": ["A"], "minutes": [20]}}, {"play": {"artist": ["B"], "minutes": [15]}}]
    first, second = ("play", {"artist": "A", "minutes": 20}), ("play", {"artist": "B", "minutes": 15})
    assert match_calls([second, first], gold)
    assert not match_calls([first, first], gold)
    assert not match_calls([first], gold)
    assert not match_calls([first, second, second], gold)
    assert not match_calls([], gold)


def test_no_call_is_right_where_none_is_wanted() -> None:
    assert match_calls([], [])
    assert not match_calls([("f", {})], [])


def test_a_call_that_fits_two_gold_calls_leaves_the_narrow_one_free() -> None:
    gold: list[GoldCall] = [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}]
    assert match_calls([("f", {"x": 1}), ("f", {"x": 2})], gold)
    assert not match_calls([("f", {"x": 2}), ("f", {"x": 2})], gold)


def test_more_calls_than_the_limit_never_match() -> None:
    gold: list[GoldCall] = [{"f": {}}]
    assert match_calls([("f", {})] * 64, gold * 64)
    assert not match_calls([("f", {})] * 65, gold * 65)


@pytest.mark.parametrize(
    ("value", "option"),
    [
        ("New York, NY", "new york ny"),
        ("it's", 'It"s'),
        ("2023-05/01", "2023.05_01"),
        (2, 2.0),
        (2.0, 2),
        ([1, 2.0], [1, 2]),
        (["A b"], ["ab"]),
        ([[1], [2]], [[1], [2]]),
        ([], []),
        ({}, {}),
        ({"a": "X"}, {"a": ["x", "y"], "b": [""]}),
        ({"a": "x"}, {"a": "X"}),
        ([{"a": 1}, {"a": 2}], [{"a": [1]}, {"a": [3, 2]}]),
        ({"a": {"b": 1}}, {"a": [{"b": [1, 2]}]}),
        ({"a": {"b": [1, 2]}}, {"a": [{"b": [1, 2]}]}),
        ({"a": {"b": 2}}, {"a": {"b": [1, 2]}}),
        (True, True),
        (None, None),
    ],
)
def test_equal_values_are_the_same(value: Any, option: Any) -> None:
    assert same_value(value, option)


@pytest.mark.parametrize(
    ("value", "option"),
    [
        ("New York", "New York City"),
        ("-", "/"),
        ("-", ""),
        ("1", 1),
        (1, "1"),
        (True, 1),
        (1, True),
        (0, False),
        (True, False),
        (None, ""),
        ("", None),
        (None, False),
        (0, None),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ("a", ["a"]),
        (["a"], "a"),
        ({"a": "X", "c": 1}, {"a": ["x"]}),
        ({"a": "z"}, {"a": ["x"]}),
        ({}, {"a": ["x"]}),
        ({"a": ["x"]}, {"a": ["x"]}),
        ({"a": {"b": 3}}, {"a": [{"b": [1, 2]}]}),
        ([{"a": 1}], [{"a": [2]}]),
        ("{}", {}),
        (2.5, 2),
    ],
)
def test_different_values_and_equal_ones_of_another_type_are_not(value: Any, option: Any) -> None:
    assert not same_value(value, option)


def test_a_float_never_passes_for_an_integer_wherever_the_schema_has_one() -> None:
    integers = {"type": "array", "items": {"type": "integer"}}
    numbers = {"type": "array", "items": {"type": "number"}}
    point = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number"}}}
    assert same_value([1, 2], [1, 2], integers)
    assert not same_value([1, 2.0], [1, 2], integers)
    assert same_value([1, 2.0], [1, 2], numbers)
    assert same_value({"x": 1, "y": 2.0}, {"x": [1], "y": [2]}, point)
    assert not same_value({"x": 1.0, "y": 2}, {"x": [1], "y": [2]}, point)


def test_an_accepted_value_decides_where_it_is_not_of_the_schemas_type() -> None:
    assert same_value("user_list", "user_list", {"type": "array"})
    assert not same_value(["user_list"], "user_list", {"type": "array"})
    assert same_value(True, True, {"type": "string"})
    assert same_value(None, None, {"type": "number"})
    assert same_value(1.5, 1.5, {"type": "integer"})


def test_schemas_of_any_shape_do_no_harm() -> None:
    schemas: list[Schema] = [{"type": ["string", "null"]}, {"items": 1}, {"items": [{}]}, {"properties": None}, {}]
    for schema in schemas:
        assert same_value([1.0], [1], schema)
        assert same_value({"a": 1.0}, {"a": [1]}, schema)


def test_strings_are_compared_without_case_spaces_and_punctuation() -> None:
    assert standard(" a,B./-_*^'") == 'ab"'
    assert standard("-_-") == "-_-"
