import pytest

from learner.advantages import group_advantages, grpo, leave_one_out, mean_centred


def test_leave_one_out_subtracts_the_mean_of_the_others():
    assert leave_one_out([1.0, 0.0, 0.0, 1.0]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert leave_one_out([3.0, 1.0]) == pytest.approx([2.0, -2.0])


def test_a_lone_answer_has_no_leave_one_out_advantage():
    assert leave_one_out([1.0]) == [0.0]
    assert leave_one_out([]) == []


def test_mean_centred_subtracts_the_groups_mean():
    assert mean_centred([1.0, 0.0, 0.0, 1.0]) == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert mean_centred([]) == []


def test_grpo_divides_by_the_population_deviation():
    assert grpo([1.0, 0.0, 0.0, 1.0]) == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-5)
    assert grpo([2.0, 4.0, 6.0]) == pytest.approx([-1.2247, 0.0, 1.2247], abs=1e-4)


def test_equal_rewards_have_no_advantage_by_any_rule():
    for kind in ("loo", "mean", "grpo"):
        assert group_advantages([0.5, 0.5, 0.5], kind=kind, clip=20.0) == [0.0, 0.0, 0.0]


def test_advantages_are_clipped_on_both_sides():
    assert group_advantages([100.0, 0.0], kind="loo", clip=20.0) == [20.0, -20.0]
