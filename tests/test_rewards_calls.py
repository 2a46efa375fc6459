"""Matching of function calls."""

from typing import Any

import pytest

from rewards.calls import GoldCall, has_type, match_calls, same_value

GOLD: list[GoldCall] = [{"area": {"base": [10], "height": [5], "unit": ["cm", "units", ""]}}]
TYPES = {"area": {"base": "integer", "height": "number", "unit": "string"}}


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("area", {"base": 10, "height": 5}, True),
        ("area", {"base": 10, "height": 5.0, "unit": "CM"}, True),
        ("area", {"base": 10, "height": 5, "unit": ""}, True),
        ("area", {"base": 10, "height": 5, "unit": "miles"}, False),
        ("area", {"base": 10}, False),
        ("area", {"base": 10.5, "height": 5}, False),
        ("area", {"base": "10", "height": 5}, False),
        ("area", {"base": True, "height": 5}, False),
        ("area", {"base": 10, "height": 5, "colour": "red"}, False),
        ("volume", {"base": 10, "height": 5}, False),
    ],
)
def test_a_call_is_right_when_every_argument_is_accepted(name: str, arguments: dict[str, Any], right: bool) -> None:
    assert match_calls([(name, arguments)], GOLD, TYPES) is right


def test_calls_match_in_any_order_but_each_once() -> None:
    gold: list[GoldCall] = [{"play": {"artist": ["A"], "minutes": [20]}}, {"play": {"artist": ["B"], "minutes": [15]}}]
    first, second = ("play", {"artist": "A", "minutes": 20}), ("play", {"artist": "B", "minutes": 15})
    assert match_calls([second, first], gold, {})
    assert not match_calls([first, first], gold, {})
    assert not match_calls([first], gold, {})
    assert not match_calls([first, second, second], gold, {})


def test_a_call_that_fits_two_gold_calls_leaves_the_narrow_one_free() -> None:
    gold: list[GoldCall] = [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}]
    assert match_calls([("f", {"x": 1}), ("f", {"x": 2})], gold, {})


def test_values_compare_without_case_and_punctuation_but_keep_types_apart() -> None:
    assert same_value("New York, NY", "new york ny")
    assert same_value([1, 2.0], [1, 2])
    assert same_value({"a": "X"}, {"a": ["x", "y"], "b": [""]})
    assert not same_value({"a": "X", "c": 1}, {"a": ["x"]})
    assert not same_value(True, 1)
    assert not same_value([1, 2], [2, 1])
    assert not same_value("1", 1)


def test_types_follow_the_schema() -> None:
    assert has_type(2, "number")
    assert has_type([1], "array")
    assert not has_type(2.5, "integer")
    assert not has_type(True, "integer")
    assert not has_type(1, "boolean")
