"""Plain numbers and their exact values."""

from fractions import Fraction

import pytest

from temper.rewards.plain_numbers import number, plain_number, to_bare, to_readable


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (85, ["85", "85 \\text{ apples}"]),
        (Fraction(-171, 2), ["-85.50"]),
        (Fraction(2469, 2), ["$1,234.5"]),
        (1234, ["1{,}234", "1\\,234", "1\u2009234"]),
        (18, ["18.00", "18\\text{ cm}^2", "18 dollars a day.", "18\\$", "\u20ac18", "18km/h", "**18**"]),
        (Fraction(1, 2), [".5", "\\frac12"]),
        (Fraction(1, 3), ["1/3", "\\cfrac{1}{3}", "\\left( \\frac{1}{3} \\right)"]),
        (Fraction(3, 2), ["1 1/2", "1\\frac{1}{2}"]),
        (Fraction(7, 2), ["3\u00bd"]),
        (Fraction(-3, 4), ["-\\frac{3}{4}", "\\dfrac{-3}{4}"]),
        (Fraction(1, 6), ["0.1\\overline{6}"]),
        (Fraction(2, 5), ["40\\%", "40 percent"]),
        (1200, ["1.2\\times 10^{3}"]),
        (Fraction(12, 10000), ["1.2 \u00d7 10\u207b\u00b3"]),
        (3000000, ["3 million"]),
        (4, ["x = 4"]),
        (30, ["\\theta=30^\\circ"]),
        (-18, ["\u2212\uff11\uff18"]),
        (45, ["45\u00b0"]),
    ],
)
def test_plain_numbers_have_exact_values(value: Fraction | int, texts: list[str]) -> None:
    assert [plain_number(text) for text in texts] == [value] * len(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["2+2", "2^2", "4!", "1=2=3=4", "1 -1/2", "5 - 3", "10^2", "12\\times 10^2", "5\u00b2", "1/0", "\\approx 18"],
        ["(10)-(k)", "(3)-(two)", "(10)/(k)", "(10)(k)", "(1)+(2)", "(3"],
        ["18 or 19", "18 and a half", "18, 19", "(1,234)", "12,34", "7:30"],
        ["5x", "5 x", "5xy", "5\\pi", "x", "", "1e9999", "9" * 65],
    ],
)
def test_what_leaves_work_to_the_reader_is_no_plain_number(texts: list[str]) -> None:
    assert [text for text in texts if plain_number(text) is not None] == []


def test_undone_divisions_and_unreduced_fractions_are_told_apart() -> None:
    undone, coarse, fine = number("48/2"), number("6/8"), number("3/4")
    assert undone is not None
    assert coarse is not None
    assert fine is not None
    assert (undone.is_undivided, coarse.is_undivided, fine.is_undivided) == (True, False, False)
    assert (undone.is_reduced, coarse.is_reduced, fine.is_reduced) == (False, False, True)


def test_unicode_becomes_what_it_means() -> None:
    assert to_readable("x\u00b2 \u2212 \uff11\u200b") == "x^{2} - 1"
    assert to_bare("\\left( \\text{Monday}~\\right).") == "( Monday )"
