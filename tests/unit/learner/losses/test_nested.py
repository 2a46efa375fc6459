"""Credit of nested budgets against values computed by hand."""

import pytest

from temper.learner.losses.advantages import dr_grpo, rloo
from temper.learner.losses.nested import part_advantages, recency_weighted_mean


def test_parts_of_two_thoughts_with_two_cuts() -> None:
    """Right from the first cut on, against right only without a cut.

    Returns are (2/3, 1, 1) and (1/3, 1/2, 1). The second and third part have the other answer's return with weights 1/2 and 0,
    and the thought's own outcomes so far, which are 0 and 2/3, 0 and 0.
    """
    early, late = part_advantages([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]], rloo)
    assert early == pytest.approx([1 / 3, 0.5 * 0.5 + 0.5 * 1.0, 1.0 - 2 / 3])
    assert late == pytest.approx([-1 / 3, -0.5 * 0.5 + 0.5 * 0.5, 1.0])


def test_later_outcomes_count_twice_in_the_baseline() -> None:
    assert recency_weighted_mean([]) == 0.0
    assert recency_weighted_mean([1.0, 0.0, 0.0]) == pytest.approx(1 / 7)
    assert recency_weighted_mean([0.0, 0.0, 1.0]) == pytest.approx(4 / 7)


def test_a_thought_that_spoils_a_right_answer_loses() -> None:
    spoilt, _ = part_advantages([[1.0, 0.0], [1.0, 1.0]], rloo)
    assert spoilt[1] == -1.0


@pytest.mark.parametrize("advantage", [rloo, dr_grpo])
def test_without_cuts_the_credit_is_the_advantage(advantage: object) -> None:
    rewards = [1.0, 0.0, 0.5]
    assert part_advantages([[reward] for reward in rewards], advantage) == [[one] for one in advantage(rewards)]  # type: ignore[operator, arg-type]
