"""Which letter a text chooses: right forms, several letters, articles that look like letters."""

import time

import pytest

from temper.rewards.choices import chosen


@pytest.mark.parametrize(
    "text",
    [
        "B",
        " b \n",
        "(B)",
        "**B**",
        "B.",
        "B) Paris",
        "B. Paris, the capital",
        "Option B",
        "**B.** Paris",
        "\\boxed{B}",
        "So it is $\\boxed{\\text{(B)}}$.",
        "\\boxed{B. Paris}",
        "A is too small. \\boxed{B}",
        "\\boxed{B}, as I said: \\boxed{b}",
        "Answer: B",
        "answer: b",
        "**Answer: B**",
        "Answer:\nB",
        "**Final answer:** $\\text{B}$",
        "The correct answer is: **B. Paris**",
        "Correct option: (B)",
        "Answer: the answer is B",
        "**Answer:** B",
        "**Answer**: (B) Paris",
        "Because Paris is a capital, the answer is B.",
        "The correct answer is (B) Paris.",
        "The correct option is **B**",
        "the correct choice is option b.",
        "The answer is B, a city in France.",
        "The answer is B\nThe answer is b.",
        "The answer is B. A is too small.",
        "The answer is B. A and C are wrong.",
        "The answer is B. A, C and D are wrong.",
        "The answer is B. A whale is a mammal.",
        "The answer is B (A is too small).",
        "The correct answer is B, not C.",
        "The answer is B, and A is wrong.",
        "The answer is B because C is too large",
        "The answer is B. I am sure.",
        "The answer should be B.",
        "\\boxed{B. Vitamin C}",
        "\\boxed{B. A city in France}",
        "\\boxed{B. C++}",
        "\\boxed{B: C-shaped}",
        "\\boxed{B (Paris)}",
        "\\boxed{B - Paris}",
        "\\boxed{B \u2013 Paris}",
        "\\boxed{B, Paris}",
        "\\boxed{{B}}",
        "\uff08\uff22\uff09",
        "\\boxed{\\textbf{(B)}\\ 24}",
        "\\boxed{\\textbf{(B)}~24}",
        "\\boxed{\\textit{B}}",
        "The answer is I think B. Answer: B",
    ],
)
def test_a_letter_is_found(text: str) -> None:
    assert chosen(text, count=4) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Paris",
        "A B C D",
        "A or B",
        "A/B",
        "\\boxed{A} \\boxed{B}",
        "\\boxed{A or B}",
        "\\boxed{B",
        "\\boxed{}",
        "\\boxed{E}",
        "E",
        "Answer: E",
        "The answer is A. No, the answer is B.",
        "The answer is A or B",
        "The answer is (A), (B)",
        "Answer: A and C",
        "The answer is a city in France",
        "A city in France",
        "Because of that, B",
        "The answer is not B",
        "The answer isn't B",
        "A. Rome\nB. Paris\nC. Oslo",
        "The answer is Both",
        "Option A: Rome\nOption B: Paris",
        "My choice: bread",
        "B)C",
        "The answer is A B C D",
        "A. B. C. D.",
        "\\boxed{A) B) C) D)}",
        "\\boxed{A: B: C: D}",
        "\\boxed{(A) (B)}",
        "Answer: A, or B",
        "Answer: A; B",
        "Answer: A (or B)",
        "Answer: A - or B",
        "Answer: A, B, C",
        "Answer: A, B or C",
        "**A**, **B**",
        "\\boxed{A | B}",
        "\\boxed{A. or maybe B.}",
        "The answer is A but could be B",
        "The answer is A or B, I can not tell which",
        "The answer is A. Or maybe it is B.",
    ],
)
def test_no_letter_or_several_choose_nothing(text: str) -> None:
    assert chosen(text, count=4) is None


def test_letters_go_as_far_as_the_choices() -> None:
    assert chosen("J", count=10) == "J"
    assert chosen("J", count=9) is None
    assert chosen("The answer is B, I think", count=4) == "B"
    assert chosen("The answer is B, I think", count=10) == "B"
    assert chosen("The answer is I", count=10) == "I"
    assert chosen("The answer is B or I.", count=10) is None
    assert chosen("The answer is I believe C", count=10) is None
    assert chosen("The answer is I believe C. The answer is C", count=10) == "C"


@pytest.mark.parametrize(
    "text", ["answer is " * 10_000, "\\boxed{" * 5_000, "(" * 50_000, "A" * 50_000, "answer: ** " * 9999]
)
def test_hostile_texts_take_little_time(text: str) -> None:
    start = time.monotonic()
    assert chosen(text, count=4) is None
    assert time.monotonic() - start < 2
