"""Rewards for length, by hand."""

import pytest

from temper.rewards.length_shaping import effort_reward, length_rewards, relative_brevity, shortest_of_the_best


def test_relative_brevity_is_centred_on_the_groups_mean() -> None:
    # w = 1, 0.75, 0; mean 7/12
    assert relative_brevity([10, 15, 30]) == pytest.approx([5 / 12, 1 / 6, -7 / 12])
    assert relative_brevity([7, 7]) == [0.0, 0.0]
    assert relative_brevity([]) == []


def test_the_shortest_earns_the_bonus_only_among_the_best_fifth() -> None:
    assert shortest_of_the_best([3, 5, 5], [1.0, 1.0, 0.0]) == [True, False, False]
    assert shortest_of_the_best([3, 5, 5], [0.0, 1.0, 1.0]) == [False, False, False]
    assert shortest_of_the_best([3, 3, 9], [1.0, 1.0, 0.0]) == [True, True, False]
    # ten answers: the best fifth is two, the bar the second best reward
    assert shortest_of_the_best([2, *[9] * 9], [0.9, 1.0, *[0.5] * 8]) == [True, *[False] * 9]


def test_length_rewards_are_weight_times_brevity_plus_the_bonus() -> None:
    added = length_rewards([10, 15, 30], [1.0, 1.0, 1.0], [True] * 3, weight=0.5, bonus=0.5)
    assert added == pytest.approx([5 / 24 + 0.5, 1 / 12, -7 / 24])


def test_a_wrong_answer_only_loses_by_its_length() -> None:
    # brevity 5/12, 1/6, -7/12; min(0, .) for the wrong ones
    added = length_rewards([10, 15, 30], [0.0, 1.0, 0.0], [False, True, False], weight=0.5, bonus=0.5)
    assert added == pytest.approx([0.0, 1 / 12, -7 / 24])
    # among eight answers the best fifth is two, so that a wrong one is among them where one alone is right
    rewards, lengths = [1.0, *[0.0] * 7], [50, 10, *[60] * 6]
    added = length_rewards(lengths, rewards, [True, *[False] * 7], weight=0.5, bonus=0.5)
    assert added[1] == 0.0


@pytest.mark.parametrize("lengths", [[90, 10, 50, 70], [10, 90, 50, 70], [50, 10, 90, 11]])
def test_the_longest_right_answer_beats_any_wrong_one(lengths) -> None:
    rewards, correct = [1.0, 0.0, 1.0, 0.0], [True, False, True, False]
    once = length_rewards(lengths, rewards, correct, weight=0.5, bonus=0.5)
    worth = [reward + 2 * added for reward, added in zip(rewards, once, strict=True)]
    assert min(worth[0], worth[2]) > 0 >= max(worth[1], worth[3])


def test_wrong_or_equally_long_groups_get_nothing() -> None:
    assert length_rewards([10, 30], [0.0, 0.0], [False, False], weight=0.5, bonus=0.5) == [0.0, 0.0]
    assert length_rewards([10, 10], [1.0, 0.0], [True, False], weight=0.5, bonus=0.5) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "length", "expected"),
    [
        (1.0, 0, 1.2),  # l = 0.2
        (1.0, 1500, 1.1),  # l = 0.1
        (1.0, 3000, 1.0),  # l = 0
        (1.0, 6000, 0.8),  # l = -0.2
        (0.0, 0, 0.0),  # a wrong answer gains nothing by being short
        (0.0, 6000, -0.2),
    ],
)
def test_effort_rewards_short_answers_and_punishes_long_ones(reward: float, length: int, expected: float) -> None:
    assert effort_reward(reward, length, slope=0.2, penalty=1.0, free_length=3000) == pytest.approx(expected)
