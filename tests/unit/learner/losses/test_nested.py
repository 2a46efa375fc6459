"""Credit of nested budgets against values computed by hand, and against the formula of the paper."""

import random
from statistics import fmean

import pytest

from temper.learner.losses.advantages import dr_grpo, rloo
from temper.learner.losses.nested import part_advantages, recency_weighted_mean


def test_parts_of_two_thoughts_with_two_cuts() -> None:
    """Right from the first cut on, against right only without a cut. All weights P are 1/3.

    Returns are (2/3, 2/3, 1/3) and (1/3, 1/3, 1/3). The baseline is the other's return with weights 1, 2/3 and 1/3, and the
    thought's own rewards so far with weights 0, 1/3 and 2/3. These are 0 and 2/3, 0 and 0, times the weights ahead.
    """
    early, late = part_advantages([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]], rloo)
    assert early == pytest.approx([1 / 3, 2 / 3 * 1 / 3 + 1 / 3 * 2 / 3, 2 / 3 * (1 / 3 - 2 / 3 * 1 / 3)])
    assert late == pytest.approx([-1 / 3, -2 / 3 * 1 / 3 + 1 / 3 * 1 / 3, 2 / 3 * 1 / 3])


@pytest.mark.parametrize("weights", [[], [1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 1.0, 0.0, 2.0]])
def test_credit_is_the_formula_of_anytime_reasoner(weights: list[float]) -> None:
    """A(s) = sum of P_j r_j - (s V1 + (S - s) V2) / S, as in the authors' `brpo.py`, for random rewards."""
    rng = random.Random(0)
    for _ in range(20):
        rewards_GS = [[rng.choice((0.0, 0.5, 1.0)) for _ in range(5)] for _ in range(4)]
        shares = [weight / sum(weights or [1.0] * 5) for weight in weights or [1.0] * 5]
        for answer, parts in zip(rewards_GS, part_advantages(rewards_GS, dr_grpo, weights_S=weights), strict=True):
            for s in range(5):
                future = sum(shares[j] * answer[j] for j in range(s, 5))
                recent = sum(2**j * answer[j] for j in range(s)) / max(1, 2**s - 1)
                v1 = recent * sum(shares[s:])
                v2 = fmean(sum(shares[j] * other[j] for j in range(s, 5)) for other in rewards_GS)
                assert parts[s] == pytest.approx(future - (s * v1 + (5 - s) * v2) / 5, abs=1e-12)


def test_later_rewards_count_twice_in_the_baseline() -> None:
    assert recency_weighted_mean([]) == 0.0
    assert recency_weighted_mean([1.0, 0.0, 0.0]) == pytest.approx(1 / 7)
    assert recency_weighted_mean([0.0, 0.0, 1.0]) == pytest.approx(4 / 7)


def test_a_thought_that_spoils_a_right_answer_loses() -> None:
    spoilt, _ = part_advantages([[1.0, 0.0], [1.0, 1.0]], rloo)
    assert spoilt[1] == -0.5


@pytest.mark.parametrize("advantage", [rloo, dr_grpo])
def test_without_cuts_the_credit_is_the_advantage(advantage: object) -> None:
    rewards = [1.0, 0.0, 0.5]
    assert part_advantages([[reward] for reward in rewards], advantage) == [[one] for one in advantage(rewards)]  # type: ignore[operator, arg-type]
