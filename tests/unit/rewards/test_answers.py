"""The final answer of a text, and equality of numbers."""

import time

import pytest

from temper.rewards.answers import boxes, equal_numbers, final_answer, find_answers
from temper.rewards.choices import chosen_letter
from temper.rewards.short_answers import short_answer

FORMS = {
    "tags": ["<answer>{}</answer>", "so <ANSWER>\n{}\n</ANSWER>.", "<answer>The answer is {}.</answer>"],
    "a box in tags": ["<answer>\\boxed{{{}}}</answer>", "\\boxed{{9}} <answer>{}</answer>"],
    "boxes": ["\\boxed{{{}}}", "9 is too large, so \\fbox{{{0}}} and \\boxed{{{0}}}"],
    "statements": ["Answer: {}", "Well, the answer is {}.", "It was 9.\n**Answer:** {}", "Answer: the answer is {}"],
    "the next line": ["Answer:\n{}", "**Final Answer**\n\n{}", "## Final answer:\n\n**{}**", "The answer is:\n\n{}"],
    "a sentence": ["So, {} is correct.", "{} is the correct answer.", "I choose {}", "Choose **{}**."],
    "the whole text": ["{}", " **{}**.\n"],
}
NONE_OF_THEM = [
    *("<answer>{}</answer> <answer>9</answer>", "<answer></answer>", "\\boxed{{{}}} no, \\boxed{{9}}", "\\boxed{{{}"),
    *("The answer is {}. No, 9.", "The answer is {}.\n\nWait, no. 9", "Answer: {}\nAnswer: 9", "{} or 9 is correct."),
]


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS)
def test_every_environment_finds_an_answer_in_the_same_forms(forms: list[str]) -> None:
    for form in forms:
        assert equal_numbers(final_answer(form.format("12")) or "", "12"), form
        assert short_answer(form.format("Paris")) == "Paris", form
        assert chosen_letter(form.replace("9", "C").format("B"), count=4) == "B", form


@pytest.mark.parametrize("form", NONE_OF_THEM)
def test_no_environment_takes_one_of_several_answers(form: str) -> None:
    assert final_answer(form.format("12")) in (None, "9")
    assert short_answer(form.format("Paris")) != "Paris"
    assert chosen_letter(form.replace("9", "C").format("B"), count=4) is None


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("Answer: 1\nThe answers are: 2; 3", ["1", "2; 3"]),
        ("No, 12.", ["No, 12."]),
        ("Answer: 1\nNo other number fits.", ["1"]),
        ("It is 12. That is correct.", ["It is 12. That is correct."]),
        ("<answer>1\n2</answer>", ["1\n2"]),
        ("<answer>1", ["<answer>1"]),
        ("Answer:", [""]),
        ("**Answer:** *12*", ["12"]),
        ("Answer: the U.S. No. 1 song", ["the U.S. No. 1 song"]),
    ],
)
def test_texts_without_a_form_are_answers_as_a_whole(text: str, given: list[str]) -> None:
    assert [one.strip() for one in find_answers(text)] == given


def test_boxes_balance_their_braces() -> None:
    assert boxes("\\boxed{\\frac{1}{2}} and \\fbox{3}, \\boxed 4") == ["\\frac{1}{2}", "3", "4"]
    assert boxes("\\boxed{\\left\\{1, 2\\right.}") == ["\\left\\{1, 2\\right."]
    assert boxes("\\boxed{1} \\boxed{2") is None
    assert boxes("\\boxed{\\boxed{5}} \\boxed{}") == ["5"]


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("85", ["so \\boxed{85}", "\\boxed{85} that is \\boxed{ 85 }", "#### 84\n\\boxed{85}"]),
        ("85", ["\\boxed{\uff18\uff15}"]),
        ("\\frac12", ["\\boxed{0.5} or \\boxed{\\frac12}"]),
        (None, ["\\boxed{84} no, \\boxed{85}", "\\boxed{85", "\\boxed{85} \\boxed{86", "\\boxed{}"]),
        (None, ["\\boxed{" + "1" * 600 + "}", "".join(f"\\boxed{{{n}}}" for n in range(99))]),
    ],
)
def test_the_last_box_counts_unless_boxes_differ(answer: str | None, texts: list[str]) -> None:
    assert {text: final_answer(text) for text in texts} == dict.fromkeys(texts, answer)


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("85", ["4+4 = 8\n#### 85\n", "#### 85<|endoftext|>", "#### 85\nmore words about 12", "#### 85\n\n#### 85"]),
        ("85", ["#### Step 1\nadd 4\n#### Final answer\nIt is **85**."]),
        ("85", ["#### 1. Add\nadd 4\n#### 2. Answer\n85 eggs"]),
        (None, ["#### 85\n\n#### 86", "12\n####"]),
        ("$85.00 per day", ["#### $85.00 per day"]),
        ("85 she said", ["#### 85, she said"]),
        ("85 or 86", ["#### 85 or 86"]),
        ("7 days 3 hours", ["#### 7 days 3 hours"]),
        ("x+1", ["#### x+1"]),
    ],
)
def test_without_a_box_what_follows_four_hashes_counts(answer: str | None, texts: list[str]) -> None:
    assert {text: final_answer(text) for text in texts} == dict.fromkeys(texts, answer)


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
def test_else_the_last_number_counts_unless_the_text_was_cut(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


STEPS = "16-3 = <<16-3=13>>13 eggs\n13*2 = $<<13*2=26>>26\n"


@pytest.mark.parametrize("steps", [STEPS, "16-3 = 13 eggs\n13*2 = $26\n", ""])
@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ("26", ["A: 26", "### Answer:\n\n\\[\n26\n\\]", "**26**", "$26$", "A: 13*2 = <<13*2=26>>26"]),
        ("26", ["So the final answer is **26** for 2 days", "The answer is that she makes 26 dollars"]),
        ("26", ["Therefore, the answer to the question is: 13*2 = 26", "Answer: see below\nAnswer: 26"]),
        ("26.", ["The answer is 26."]),
        ("26.0", ["Answer: 26\nI am sure.\nAnswer: 26.0"]),
        ("$26", ["Answer: $26", "She makes **$26** in 2 days."]),
        ("26 dollars", ["**Answer:** 26 dollars", "**Final answer: 26 dollars**"]),
        ("-1,026.5", ["A: -1,026.5"]),
        ("x+26", ["Answer: x+26"]),
        ("Monday", ["Answer: Monday"]),
        ("25, 26", ["A: 25, 26"]),
        ("one of 25, 26 and 27", ["The answer is one of 25, 26 and 27"]),
        (None, ["A:", "A: $", "So the answer is"]),
        (None, ["A: 26 or 27", "A: **26**, or maybe 27", "The answer is not 26", "It is **26** or **27**"]),
        (None, ["The answer is about 26 dollars, for 13 eggs or fewer", "A: 25\nor 26", "A: 25. Wait, 26"]),
        (None, ["A: 25\nA: 26", "A: 25 = 26", "A: 25, so **26**", "The answer is 25. The answer is 26."]),
        (None, ["Answer: 25\nShe makes **26**", "Answer: 25\nWait.\nAnswer: 26"]),
    ],
)
def test_the_last_line_may_state_the_answer(steps: str, answer: str | None, lines: list[str]) -> None:
    assert {line: final_answer(steps + line) for line in lines} == dict.fromkeys(lines, answer)


@pytest.mark.parametrize("cut", ["", "She makes $26", "26 dollars", "<<13*2=26>>26", "##", "She makes **$26", "= 26"])
def test_an_annotated_solution_that_states_no_answer_was_cut_off(cut: str) -> None:
    assert final_answer(STEPS + cut) is None


@pytest.mark.parametrize("cut", ["So 13*2 = $26", "So 13*2 = $26\n##", "13*2 = 26 or 27", "25, 26 and 27", "x = 26"])
def test_a_last_line_that_calculates_or_hedges_is_no_answer(cut: str) -> None:
    assert final_answer(f"16-3 is 13\n{cut}") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 26.\n\nThis is because 16-3 = 13 and 13*2 = 26.", "26"),
        ("The answer is **26** dollars.\n\nCheck: 13*2 = $26", "$26"),
        ("Answer: 26\n\nExplanation:\n16-3 = <<16-3=13>>13\n13*2 = <<13*2=26>>26", "26"),
        ("The answer is 26.\n\nThis is because 16-3 = 13", None),
        ("The answer is 13*2.\nSo 13*2 = 26", None),
        ("A: 13\nB: 2\n13*2 = 26", None),
    ],
)
def test_an_answer_before_its_calculation_is_not_cut_off(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_numbers_are_compared_exactly_and_other_texts_not_at_all() -> None:
    assert equal_numbers("85.0", "85") is True
    assert equal_numbers("1/2", "0.5") is True
    assert equal_numbers("0.3333333333", "1/3") is False
    assert equal_numbers("48/2", "24") is False
    assert equal_numbers("x+1", "85") is None


def test_a_percentage_equals_its_number_only_if_asked_for() -> None:
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
        "A:" * LONG,
        "A: 1\n" * LONG,
        "\n".join(f"Answer: {n}" for n in range(LONG)),
        "the answer is " * LONG,
        "the answer to " * LONG,
        "<answer>" * LONG,
        "<answer>" * LONG + "</answer>" * LONG,
        "No, " * LONG,
        "1 is correct" * LONG,
        "**1" * LONG,
        "**1** " * LONG,
        "Answer:" + "\n" * LONG + "1 or" * LONG,
    ]
    + ["x" + "\u0300\u0316" * LONG, "\ufdfa" * LONG, "\ud800" * LONG, "\x00" * LONG, "\u00b2" * LONG, "\\text{" * LONG],
    ids=range(38),
)
def test_hostile_texts_are_searched_in_bounded_time(text: str) -> None:
    def seconds() -> float:
        start = time.thread_time()  # of this computation: a busy machine does not add to it
        answer = final_answer(text)
        if answer is not None:
            assert equal_numbers(answer, "18") is not True
        return time.thread_time() - start

    assert min(seconds() for _ in range(3)) < 1  # a collection of the whole process's garbage falls into one at most


@pytest.mark.parametrize(
    "guesses", ["70 71 72", "70\n71\n72", "1. 70\n2. 71\n3. 72", "- 70\n- 72", "(70) (72)", "70; 71; 72"]
)
def test_a_text_that_only_lists_numbers_has_no_answer(guesses: str) -> None:
    assert final_answer(guesses) is None
    assert final_answer(f"{guesses}\nSo it is 72.") == "72"
    assert final_answer("72\n72.0") == "72.0"


@pytest.mark.parametrize("text", ["17 - 5\n12", "17-5\n12", "24 / 2\n12", "1. 12", "1) 12", "1.\n12"])
def test_a_calculation_or_a_single_entry_is_no_list(text: str) -> None:
    assert final_answer(text) == "12"
    assert final_answer("70-72") is None
