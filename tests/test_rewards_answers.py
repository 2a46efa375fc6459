"""The final answer of a text, and equality of numbers."""

import time

import pytest

from rewards.answers import boxes, equal_numbers, final_answer


def test_boxes_balance_their_braces() -> None:
    assert boxes("\\boxed{\\frac{1}{2}} and \\fbox{3}, \\boxed 4") == ["\\frac{1}{2}", "3", "4"]
    assert boxes("\\boxed{\\left\\{1, 2\\right.}") == ["\\left\\{1, 2\\right."]
    assert boxes("\\boxed{1} \\boxed{2") is None
    assert boxes("\\boxed{\\boxed{5}} \\boxed{}") == ["5"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{85}", "85"),
        ("\\boxed{85} that is \\boxed{ 85 }", "85"),
        ("\\boxed{0.5} or \\boxed{\\frac12}", "\\frac12"),
        ("\\boxed{84} no, \\boxed{85}", None),
        ("#### 84\n\\boxed{85}", "85"),
        ("\\boxed{85", None),
        ("\\boxed{85} \\boxed{86", None),
        ("\\boxed{}", None),
        ("\\boxed{\uff18\uff15}", "85"),
        ("\\boxed{" + "1" * 600 + "}", None),
        ("".join(f"\\boxed{{{n}}}" for n in range(99)), None),
    ],
)
def test_the_last_box_counts_unless_boxes_differ(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("4+4 = 8\n#### 85\n", "85"),
        ("#### 85<|endoftext|>", "85"),
        ("#### 85\nmore words about 12", "85"),
        ("#### 85\n\n#### 85", "85"),
        ("#### 85\n\n#### 86", None),
        ("#### $85.00 per day", "$85.00 per day"),
        ("#### 85, she said", "85 she said"),
        ("#### 85 or 86", "85 or 86"),
        ("#### 7 days 3 hours", "7 days 3 hours"),
        ("#### x+1", "x+1"),
        ("12\n####", None),
        ("#### Step 1\nadd 4\n#### Final answer\nIt is **85**.", "85"),
        ("#### 1. Add\nadd 4\n#### 2. Answer\n85 eggs", "85"),
    ],
)
def test_without_a_box_what_follows_four_hashes_counts(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("first 12, then 85.", "85"),
        ("it costs $1,085 in all", "$1,085"),
        ("**-85**", "-85"),
        ("from 90-5", "5"),
        ("which is 40%.", "40%"),
        ("takes 3 1/2 hours", "3 1/2"),
        ("so it is 85, or", "85"),
        ("so it is 80 + 5 =", None),
        ("Then 48/2 = <<48/2=24>>24 clips", None),
        ("no number here", None),
        ("", None),
    ],
)
def test_without_either_the_last_number_counts_unless_the_text_was_cut_off(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_numbers_are_compared_exactly_and_other_texts_not_at_all() -> None:
    assert equal_numbers("85.0", "85") is True
    assert equal_numbers("1/2", "0.5") is True
    assert equal_numbers("0.3333333333", "1/3") is False
    assert equal_numbers("48/2", "24") is False
    assert equal_numbers("x+1", "85") is None


def test_a_percentage_equals_the_bare_number_only_where_one_was_asked_for() -> None:
    assert equal_numbers("40\\%", "40") is False
    assert equal_numbers("40\\%", "40", percent=True) is True
    assert equal_numbers("0.4", "40", percent=True) is False


LONG = 100_000


@pytest.mark.parametrize(
    "text",
    [
        "9" * LONG,
        "1," * LONG,
        "1,000" * LONG,
        "1/" * LONG,
        "1." * LONG,
        "-" * LONG,
        "$" * LONG,
        "#" * LONG,
        "5" + " " * LONG,
    ]
    + ["#### 5 " * LONG, "####\n" * LONG, "\\" * LONG, "\\boxed{" * LONG, "\\boxed{x}" * LONG, "\\boxed{" + "{" * LONG]
    + [
        "\\boxed{" * 9999 + "}" * 9999,
        "".join(f"\\boxed{{{n}}}" for n in range(LONG)),
        "<<" * LONG,
        "<<1" * LONG,
        "<|" * LONG,
    ]
    + ["x" + "\u0300\u0316" * LONG, "\ufdfa" * LONG, "\ud800" * LONG, "\x00" * LONG, "\u00b2" * LONG, "\\text{" * LONG],
    ids=range(26),
)
def test_hostile_texts_are_searched_in_bounded_time(text: str) -> None:
    start = time.monotonic()
    answer = final_answer(text)
    if answer is not None:
        assert equal_numbers(answer, "18") is not True
    assert time.monotonic() - start < 1
