"""Comparison of results, extraction of programs, and the weighted sum of parts."""

import math
from typing import Any

import pytest

from temper.rewards.program_output import is_strictly_equal
from temper.rewards.score import Outcome, binary_score, brevity, error_rate, policy_fault, weigh_reward


@pytest.mark.parametrize(
    ("equal", "pairs"),
    [
        (True, [(1, 1), ([1, (2, "a")], [1, (2, "a")]), (0.1 + 0.2, 0.3), (math.nan, math.nan), ({1, 2}, {2, 1})]),
        (False, [(1.0, 1), (True, 1), (None, 0), ((1, 2), [1, 2])]),
        (False, [({1: "a"}, {True: "a"}), ({1}, {True}), ({"a": [1]}, {"a": [1.0]})]),
    ],
)
def test_results_are_compared_with_their_types(equal: bool, pairs: list[tuple[Any, Any]]) -> None:
    assert [pair for pair in pairs if is_strictly_equal(*pair) is not equal] == []


def test_the_reward_is_the_weighted_sum_of_the_parts() -> None:
    assert weigh_reward(binary_score(True).parts) == 1.0
    assert weigh_reward(binary_score(False).parts) == 0.0
    assert weigh_reward({"correct": 1.0, "short": 0.5}, {"correct": 1.0, "short": 0.2}) == pytest.approx(1.1)
    assert weigh_reward({}, {"correct": 1.0}) == 0.0
    assert weigh_reward({"correct": 1.0, "tool_errors": 0.5}, {"correct": 1.0, "tool_errors": -0.2}) == pytest.approx(
        0.9
    )


@pytest.mark.parametrize(("length", "value"), [(0, 1.0), (100, 1.0), (150, 0.5), (200, 0.0), (10**9, 0.0)])
def test_brevity_falls_linearly_from_the_limit_to_its_double(length: int, value: float) -> None:
    assert brevity(length, limit=100) == value


def test_the_share_of_errors_is_0_without_calls() -> None:
    assert (error_rate(0, 0), error_rate(1, 4), error_rate(4, 4)) == (0.0, 0.25, 1.0)
    assert policy_fault("time").outcome is Outcome.POLICY_FAULT
