"""Rewards: pure functions over text, numbers, test reports and group statistics. No I/O."""

from temper.rewards.answers import equal_numbers, final_answer


def number_equals(answer: str, reference: str) -> bool:
    """Return whether the final answer of a text is a number equal to the reference. See `rewards/answers.py` for the rules."""
    found = final_answer(answer)
    return found is not None and equal_numbers(found, reference) is True
