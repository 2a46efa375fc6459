"""The final answer of a text, and equality of numbers."""

from fractions import Fraction

import pytest

from rewards.answers import boxes, equal_numbers, final_answer, plain_number, refusal


def test_boxes_balance_their_braces() -> None:
    assert boxes("\\boxed{\\frac{1}{2}} and \\boxed{3}") == ["\\frac{1}{2}", "3"]
    assert boxes("\\boxed{1") == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{85}", "85"),
        ("\\boxed{85} that is \\boxed{ 85 }", "85"),
        ("\\boxed{84} no, \\boxed{85}", None),
        ("\\boxed{85", None),
        ("\\boxed{}", None),
        ("4+4 = 8\n#### 85\n", "85"),
        ("first 12, then 85.", "85"),
        ("it costs $1,085 in all", "$1,085"),
        ("no number here", None),
        ("\\boxed{\uff18\uff15}", "85"),
        ("\\boxed{" + "1" * 600 + "}", None),
    ],
)
def test_the_final_answer_follows_the_rule(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("85", Fraction(85)),
        ("-85.50", Fraction(-171, 2)),
        ("$1,234.5", Fraction(2469, 2)),
        ("1/3", Fraction(1, 3)),
        ("-\\frac{3}{4}", Fraction(-3, 4)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("40\\%", Fraction(2, 5)),
        ("85 \\text{ apples}", Fraction(85)),
        ("12 dollars.", Fraction(12)),
        ("1/0", None),
        ("2+2", None),
        ("x", None),
        ("(1,234)", None),
        ("9" * 65, None),
        ("", None),
    ],
)
def test_plain_numbers_have_exact_values(text: str, value: Fraction | None) -> None:
    assert plain_number(text) == value


def test_numbers_are_compared_exactly_and_other_texts_not_at_all() -> None:
    assert equal_numbers("85.0", "85") is True
    assert equal_numbers("0.3333333333", "1/3") is False
    assert equal_numbers("40\\%", "40") is False
    assert equal_numbers("x+1", "85") is None


@pytest.mark.parametrize(
    "answer", ["2+2", "8/2 - 0", "2^2", "4!", "\\sum_{i=1}^4 1", "\\int_0^4 1 dx", "1=2=3=4", "400%"]
)
def test_unevaluated_forms_of_a_number_are_refused(answer: str) -> None:
    assert refusal(answer, gold="4") is not None


@pytest.mark.parametrize(
    "answer", ["9^{9^{9}}", "9**9**9", "x^{99999}", "2^{(1000)}", "(" * 30 + "x" + ")" * 30, "x^" * 9]
)
def test_hostile_sizes_are_refused(answer: str) -> None:
    assert refusal(answer, gold="x") is not None


def test_ordinary_expressions_are_let_through() -> None:
    assert refusal("x^{2}+2x+1", gold="(x+1)^2") is None
    assert refusal("\\sqrt{16}", gold="4") is None
