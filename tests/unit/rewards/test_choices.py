"""The letter that a text chooses: valid forms, several letters, articles that look like letters."""

import time

import pytest

from temper.rewards.choices import chosen_letter

FOUND = {
    "the letter alone": ["B", " b \n", "(B)", "**B**", "B.", "Option B", "\uff08\uff22\uff09"],
    "the letter before its text": ["B) Paris", "B. Paris, the capital", "**B.** Paris"],
    "a box": ["\\boxed{B}", "So it is $\\boxed{\\text{(B)}}$.", "\\boxed{{B}}", "\\boxed{\\textit{B}}"],
    "boxes that agree": ["\\boxed{B}, as I said: \\boxed{b}", "A is too small. \\boxed{B}"],
    "a box with its text": [
        "\\boxed{B. Paris}",
        "\\boxed{B. Vitamin C}",
        "\\boxed{B. A city in France}",
        "\\boxed{B. C++}",
    ],
    "a box with another sign": [
        "\\boxed{B: C-shaped}",
        "\\boxed{B (Paris)}",
        "\\boxed{B - Paris}",
        "\\boxed{B, Paris}",
    ],
    "a box with a dash or a space of LaTeX": [
        "\\boxed{B \u2013 Paris}",
        "\\boxed{\\textbf{(B)}\\ 24}",
        "\\boxed{\\textbf{(B)}~24}",
    ],
    "an answer with a colon": [
        "Answer: B",
        "answer: b",
        "**Answer: B**",
        "Answer:\nB",
        "**Answer:** B",
        "**Answer**: (B) Paris",
    ],
    "an answer with a colon and more": [
        "**Final answer:** $\\text{B}$",
        "The correct answer is: **B. Paris**",
        "Correct option: (B)",
        "Answer: the answer is B",
        "The answer is I think B. Answer: B",
    ],
    "a statement": [
        "Because Paris is a capital, the answer is B.",
        "The correct answer is (B) Paris.",
        "The correct option is **B**",
        "the correct choice is option b.",
        "The answer is B, a city in France.",
        "The answer is B\nThe answer is b.",
        "The answer should be B.",
    ],
    "a statement and why": [
        "The answer is B. A is too small.",
        "The answer is B. A and C are wrong.",
        "The answer is B. A, C and D are wrong.",
        "The answer is B. A whale is a mammal.",
        "The answer is B (A is too small).",
        "The correct answer is B, not C.",
        "The answer is B, and A is wrong.",
        "The answer is B because C is too large",
        "The answer is B. I am sure.",
        "The answer is B. No other choice fits.",
        "Could it be A? No, A is too small. The answer is B.",
        "The answer is B. Statement A is correct, but C is not.",
    ],
    "a sentence": [
        "A is too small, so B is correct.",
        "Option B is the correct one.",
        "B) Paris is correct.",
        "We choose (B).",
    ],
    "its text with another letter": ["B) Paris (see A)", "A) is wrong. \\boxed{B) not A) or C) or D)}"],
}
NOTHING = {
    "no letter": ["", "Paris", "The answer is a city in France", "A city in France", "My choice: bread"],
    "no box of a letter": ["\\boxed{B", "\\boxed{}", "\\boxed{E}"],
    "a letter of no choice": ["E", "Answer: E"],
    "letters in a row": ["A B C D", "B)C", "The answer is A B C D", "A. B. C. D.", "A. Rome\nB. Paris\nC. Oslo"],
    "letters with words between": [
        "A or B",
        "A/B",
        "The answer is A or B",
        "The answer is (A), (B)",
        "Answer: A and C",
    ],
    "letters after a colon": [
        "Answer: A, or B",
        "Answer: A; B",
        "Answer: A (or B)",
        "Answer: A - or B",
        "Answer: A, B, C",
    ],
    "more of them": ["Answer: A, B or C", "**A**, **B**", "Option A: Rome\nOption B: Paris", "The answer is Both"],
    "several in boxes": ["\\boxed{A} \\boxed{B}", "\\boxed{A or B}", "\\boxed{A) B) C) D)}", "\\boxed{A: B: C: D}"],
    "several in one box": ["\\boxed{(A) (B)}", "\\boxed{A | B}", "\\boxed{A. or maybe B.}"],
    "doubt": [
        "The answer is A. No, the answer is B.",
        "The answer is A but could be B",
        "The answer is A or B, I can not tell which",
        "The answer is A. Or maybe it is B.",
        "The answer is A. Actually, B.",
        "The answer is A\nNo, it is B.",
        "A is correct. B is correct.",
    ],
    "a copy of all choices": [
        "A) x B) y C) z D) w",
        "(A) x (B) y (C) z (D) w",
        "A. x B. y C. z D. w",
        "Answer: A: x, B: y, C: z, D: w",
    ],
    "a sentence of no choice": [
        "A city in France is correct.",
        "If A is correct, then",
        "E is correct.",
        "I choose bread",
    ],
    "not a statement": ["Because of that, B", "The answer is not B", "The answer isn't B"],
}


@pytest.mark.parametrize("texts", FOUND.values(), ids=FOUND)
def test_a_letter_is_found(texts: list[str]) -> None:
    assert {text: chosen_letter(text, count=4) for text in texts} == dict.fromkeys(texts, "B")


@pytest.mark.parametrize("texts", NOTHING.values(), ids=NOTHING)
def test_no_letter_or_several_choose_nothing(texts: list[str]) -> None:
    assert {text: chosen_letter(text, count=4) for text in texts} == dict.fromkeys(texts)


def test_letters_go_as_far_as_the_choices() -> None:
    assert chosen_letter("J", count=10) == "J"
    assert chosen_letter("J", count=9) is None
    assert chosen_letter("The answer is B, I think", count=4) == "B"
    assert chosen_letter("The answer is B, I think", count=10) == "B"
    assert chosen_letter("The answer is I", count=10) == "I"
    assert chosen_letter("The answer is B or I.", count=10) is None
    assert chosen_letter("The answer is I believe C", count=10) is None
    assert chosen_letter("The answer is I believe C. The answer is C", count=10) == "C"


@pytest.mark.parametrize(
    "text", ["answer is " * 10_000, "\\boxed{" * 5_000, "(" * 50_000, "A" * 50_000, "answer: ** " * 9999]
)
def test_hostile_texts_take_little_time(text: str) -> None:
    start = time.monotonic()
    assert chosen_letter(text, count=4) is None
    assert time.monotonic() - start < 2
