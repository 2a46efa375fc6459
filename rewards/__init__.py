"""Rewards: pure functions over text, numbers, test reports and group statistics. No I/O."""

from temper.rewards.answers import equal_numbers, final_answer
from temper.rewards.short_answers import matches_any, short_answer


def number_equals(answer: str, reference: str) -> bool:
    """Return whether the final answer of a text is a number equal to the reference. See `rewards/answers.py` for the rules."""
    found = final_answer(answer)
    return found is not None and equal_numbers(found, reference) is True


def text_equals(answer: str, reference: str) -> bool:
    """Return whether the answer of a text is the reference, but for case, punctuation, articles and layout.

    See `rewards/short_answers.py` for the rules. Text around the answer needs a form such as `Answer: Paris`.
    """
    found = short_answer(answer)
    return found is not None and matches_any(found, [reference])
