import math

import pytest

from temper.learner.losses.advantages import (
    ADVANTAGES,
    advantage_function,
    dr_grpo,
    grpo,
    has_nonzero_advantage,
    normalise_and_clip,
    normalise_over_batch,
    rloo,
)

EVEN = [[5, 5], [5, 5]]
"""Trained tokens of two answers in two groups."""


def batch_advantages(rewards_NG, tokens_NG, *, kind, clip=20.0, normalise=True):
    """The advantages of all groups by a rule."""
    values_NG = [advantage_function(kind)(rewards_G) for rewards_G in rewards_NG]
    return normalise_and_clip(values_NG, tokens_NG, kind=kind, clip=clip, normalise=normalise)


def test_leave_one_out_subtracts_the_mean_of_the_others():
    assert rloo([1.0, 0.0, 0.0, 1.0]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert rloo([3.0, 1.0]) == pytest.approx([2.0, -2.0])


def test_a_lone_answer_has_no_leave_one_out_advantage():
    assert rloo([1.0]) == [0.0]
    assert rloo([]) == []


@pytest.mark.parametrize("rewards_G", [[0.1 + 0.2, 0.3, 0.3], [1e9 + 1e-3, 1e9], [-0.7, -0.1 - 0.6], [0.1] * 3])
def test_rewards_equal_within_rounding_have_no_advantage(rewards_G):
    zeros_G, lone = [0.0] * len(rewards_G), rewards_G[:1]
    for kind in ("rloo", "dr_grpo", "grpo"):
        assert advantage_function(kind)(rewards_G) == zeros_G
        assert not has_nonzero_advantage(rewards_G, kind=kind)
    for kind in ADVANTAGES:
        assert batch_advantages([rewards_G, lone], [[5] * len(rewards_G), [4]], kind=kind) == [zeros_G, [0.0]]
    assert not has_nonzero_advantage(rewards_G, kind=f"{__name__}.divided_by_deviation")


def divided_by_deviation(rewards_G):
    """A custom rule that would make any difference large."""
    centred_G = dr_grpo(rewards_G)
    deviation = math.sqrt(sum(x * x for x in centred_G)) or 1.0
    return [x / deviation for x in centred_G]


@pytest.mark.parametrize("rewards_G", [[1e-6, 0.0], [1.0, 1.0 + 1e-6], [math.nan, 0.0], [0.0, math.nan, 0.0]])
def test_small_rewards_and_nan_are_no_rounding(rewards_G):
    assert has_nonzero_advantage(rewards_G, kind="rloo")


def test_mean_centred_subtracts_the_groups_mean():
    assert dr_grpo([1.0, 0.0, 0.0, 1.0]) == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert dr_grpo([]) == []


def test_grpo_divides_by_the_population_deviation():
    assert grpo([1.0, 0.0, 0.0, 1.0]) == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-5)
    assert grpo([2.0, 4.0, 6.0]) == pytest.approx([-1.2247, 0.0, 1.2247], abs=1e-4)


def test_values_are_normalised_over_all_groups_in_place():
    # 1, 3 | 2 | 6: mean 3, squares 4, 0, 1, 9, deviation sqrt(14 / 4)
    deviation = math.sqrt(3.5)
    first, second, nothing, third = normalise_over_batch([[1.0, 3.0], [2.0], [], [6.0]], [[7, 7], [7], [], [7]])
    assert first == pytest.approx([-2 / deviation, 0.0], abs=1e-5)
    assert nothing == []
    assert [*second, *third] == pytest.approx([-1 / deviation, 3 / deviation], abs=1e-5)


def test_reinforce_pp_compares_an_answer_with_the_whole_batch():
    # rewards 1, 0 | 0, 0: mean 1/4, deviation sqrt(3) / 4
    easy, hard = batch_advantages([[1.0, 0.0], [0.0, 0.0]], EVEN, kind="reinforce_pp", clip=20.0)
    assert easy == pytest.approx([math.sqrt(3), -1 / math.sqrt(3)], abs=1e-5)
    assert hard == pytest.approx([-1 / math.sqrt(3)] * 2, abs=1e-5)


def test_reinforce_pp_with_a_baseline_compares_within_the_group():
    # centred 1/2, -1/2 | 0, 0: deviation sqrt(1 / 8)
    easy, hard = batch_advantages([[1.0, 0.0], [3.0, 3.0]], EVEN, kind="reinforce_pp_baseline", clip=20.0)
    assert easy == pytest.approx([math.sqrt(2), -math.sqrt(2)], abs=1e-5)
    assert hard == [0.0, 0.0]


def test_rules_within_a_group_do_not_see_the_other_groups():
    together = batch_advantages([[1.0, 0.0], [9.0, 5.0, 1.0]], [[1, 2], [3, 4, 5]], kind="rloo", clip=20.0)
    assert together == [rloo([1.0, 0.0]), rloo([9.0, 5.0, 1.0])]


def test_advantages_are_clipped_on_both_sides():
    assert batch_advantages([[100.0, 0.0], [1.0, 0.0]], EVEN, kind="rloo", clip=20.0) == [[20.0, -20.0], [1.0, -1.0]]


def test_an_answer_counts_as_often_as_it_has_tokens():
    # rewards 1, 0 | 0, 0 with 3, 1 | 0, 2 tokens: mean 1/2, deviation 1/2
    easy, hard = batch_advantages([[1.0, 0.0], [0.0, 0.0]], [[3, 1], [0, 2]], kind="reinforce_pp", clip=20.0)
    assert [*easy, *hard] == pytest.approx([1.0, -1.0, -1.0, -1.0], abs=1e-5)
    assert batch_advantages([[1.0, 0.0]], [[0, 0]], kind="reinforce_pp", clip=20.0) == [[0.0, 0.0]]


def test_what_is_normalised_later_is_left_as_it_is():
    raw = batch_advantages([[100.0, 0.0]], [[1, 1]], kind="reinforce_pp", clip=20.0, normalise=False)
    assert raw == [[100.0, 0.0]]


@pytest.mark.parametrize(("kind", "kept"), [("rloo", False), ("grpo", False), ("reinforce_pp", True)])
def test_equal_rewards_teach_if_compared_with_the_batch(kind, kept):
    assert has_nonzero_advantage([1.0, 1.0], kind=kind) is kept
    assert has_nonzero_advantage([1.0, 0.0], kind=kind)
