"""Short answers: extraction, matching, and lists in any or a given order."""

from itertools import permutations

import pytest

from temper.rewards import text_equals
from temper.rewards.short_answers import list_f1, matches_any, short_answer, word_f1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris", "Paris"),
        ("\n**Paris**.\n", "Paris"),
        ("\\boxed{Paris}", "Paris"),
        ("It is \\boxed{\\text{the Seine}}.", "the Seine"),
        ("\\boxed{Paris} and so \\boxed{paris.}", "paris"),
        ("I thought of Rome.\nAnswer: Paris", "Paris"),
        ("Well, the answer is Paris.", "Paris"),
        ("**Final answer:** Paris", "Paris"),
        ("The answers are: Paris; Rome", "Paris; Rome"),
        ("Answer: Rome\nAnswer: Paris", None),
        ("\\boxed{Rome} \\boxed{Paris}", None),
        ("\\boxed{Paris", None),
        ("\\boxed{}", None),
        ("Answer:", None),
        ("", None),
        ("Paris " * 1000, None),
    ],
)
def test_the_answer_is_box_then_statement_then_text(text: str, answer: str | None) -> None:
    assert short_answer(text) == answer


@pytest.mark.parametrize(
    "texts",
    [
        ("the Eiffel Tower", "Eiffel tower."),
        ("U.S.", "US"),
        ("well known", "well-known"),
        ("wellknown", "well-known"),
        ("snake_case", "snake case"),
        ("\u201cHamlet\u201d", "Hamlet"),
        ("1,234", "1234", "1{,}234", "1\\,234"),
        ("18.0", "18"),
        ("1/2", "0.5", "\u00bd", "\\frac{1}{2}"),
        ("$5", "5", "+5"),
        ("\u22125", "-5", "\u20135", "- 5", "-$5"),
        ("the", "The"),
        ("...", "..."),
        ("caf\u00e9", "cafe\u0301"),
        ("C++", "c++"),
        ("\u20ac5", "5"),
        ("5%", "0.05", "5 percent"),
        ("5%", "5"),
        ("3\u00bd", "3.5"),
        ("10\u2076", "10^6", "10^{6}"),
        ("10\u207b\u00b3", "10^{-3}"),
        ("\u221a2", "\\sqrt{2}"),
        ("\u03c0", "pi"),
        ("-\u03c0", "-pi"),
        ("2\u00d73", "2 \\times 3"),
        ("3 - 1", "3-1"),
        ("3 + 4", "3+4"),
        ("x + 1", "x+1"),
        ("1914 \u2013 1918", "1914-1918"),
        ("3 : 1", "3:1"),
        ("1 234 567", "1,234,567"),
        ("5 million", "5,000,000"),
        ("25^\\circ", "25\u00b0"),
        ("50\\%", "50%"),
        ("mother\u2010in\u2010law", "mother-in-law"),
        ("Paris\u2014Dakar", "Paris\u2013Dakar"),
        ("AC/DC", "ACDC"),
        ("F-16", "F16"),
        ("(3, 4)", "(3,4)"),
        ("Na^+", "Na+"),
        ("Ca^{2+}", "Ca2+", "Ca\u00b2\u207a"),
        ("C\\#", "C#"),
        ("R\\&B", "R&B"),
        ("B&B", "B & B"),
        ("Gerard \u00b7 Way", "Gerard Way"),
        ("\u9a6c\u514b\u00b7\u5410\u6e29", "\u9a6c\u514b\u5410\u6e29"),
        ("Wall\u2022E", "WALL-E"),
        ("Lego\u00ae", "Lego"),
        ("May 5, 1990", "May 5 1990"),
        ("zero\u200bwidth", "zerowidth"),
    ],
)
def test_texts_that_say_the_same(texts: tuple[str, ...]) -> None:
    for text, other in permutations(texts, 2):
        assert matches_any(text, ["certainly not this", other]), (text, other)


DIFFERENT = {
    "digits": [("3.5", "35"), ("3.5 million people", "35 million people"), ("10:30", "1030"), ("1990-95", "199095")],
    "groups of digits": [
        ("3;4", "34"),
        ("3|4", "34"),
        ("3,4", "34"),
        ("5'10", "510"),
        ("3\u20131", "31"),
        ("3\u20141", "31"),
    ],
    "words": [("vitamin", "vitamin A"), ("Paris or Rome", "Paris"), ("Paris, Texas", "Paris"), ("3 apples", "3 pears")],
    "nothing": [("", "Paris"), ("", "the"), ("..", "..."), ("\u0915\u0940", "\u0915\u093e")],
    "operators": [
        ("1+2", "12"),
        ("3 + 4", "3 - 4"),
        ("2*3", "23"),
        ("2\u00d73", "23"),
        ("2\u00b73", "23"),
        ("48/2", "24"),
    ],
    "powers": [
        ("10^6", "106"),
        ("10\u00b2", "102"),
        ("10^{2}", "102"),
        ("x^2+1", "x2+1"),
        ("x^2", "x2"),
        ("\u221a2", "2"),
    ],
    "fractions": [("\u00bd", "12"), ("\\frac{1}{2}", "12")],
    "minus": [
        ("-5", "5"),
        ("\u20135", "5"),
        ("- 5", "5"),
        ("-$5", "$5"),
        ("-x", "x"),
        ("x+1", "x-1"),
        ("-\u221e", "\u221e"),
    ],
    "comparisons": [("\u00b15", "5"), ("> 5", "5"), ("\u2265 5", "5"), ("<5", ">5"), ("x<y", "x>y")],
    "signs behind words": [
        ("C", "C++"),
        ("C#", "C"),
        ("O+", "O-"),
        ("A+", "A"),
        ("AB-", "AB"),
        ("Na+", "Na"),
        ("Na^+", "Na"),
    ],
    "other signs": [("Disney+", "Disney"), ("F#", "F"), ("B\u266d", "B"), ("K\u2660", "K\u2665")],
    "units": [("$5", "\u20ac5"), ("$5", "5%"), ("5 million", "5"), ("5 million", "5 thousand")],
}


@pytest.mark.parametrize("pairs", DIFFERENT.values(), ids=DIFFERENT)
def test_texts_that_do_not_say_the_same(pairs: list[tuple[str, str]]) -> None:
    assert [pair for pair in pairs if matches_any(pair[0], [pair[1]]) or matches_any(pair[1], [pair[0]])] == []


def test_f1_is_that_of_the_words() -> None:
    assert word_f1("the tower in Paris", ["Rome", "Eiffel tower, Paris"]) == pytest.approx(2 * 2 / (3 + 3))
    assert word_f1("", ["Rome"]) == word_f1("Rome", []) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "Rome; Paris; New York",
        "Rome, Paris and New York",
        "Rome, Paris, and New York",
        "- Rome\n- Paris\n- New York",
        "1. Rome\n2. Paris\n3. NYC",
        '["Rome", "Paris", "New York"]',
        "[rome, paris, nyc]",
    ],
)
def test_a_list_is_read_however_it_is_written(text: str) -> None:
    assert list_f1(text, [["Rome"], ["Paris"], ["New York", "NYC"]], ordered=True) == 1.0


@pytest.mark.parametrize(
    ("text", "any_order", "in_order"),
    [
        ("2, 1, 3", 1.0, 1 / 3),
        ("1, 2", 4 / 5, 4 / 5),
        ("1, 2, 3, 4", 6 / 7, 6 / 7),
        ("1, 2, 3, 3", 6 / 7, 6 / 7),
        ("1, 1, 1", 1 / 3, 1 / 3),
        ("123", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_every_item_counts_once_and_in_its_place(text: str, any_order: float, in_order: float) -> None:
    wanted = [["1"], ["2"], ["3"]]
    assert list_f1(text, wanted, ordered=False) == pytest.approx(any_order)
    assert list_f1(text, wanted, ordered=True) == pytest.approx(in_order)


def test_an_item_may_contain_and_or_a_comma() -> None:
    assert (
        list_f1(
            "Simon and Garfunkel; Earth, Wind & Fire", [["Earth, Wind & Fire"], ["Simon and Garfunkel"]], ordered=False
        )
        == 1
    )
    assert list_f1("Queen, Simon and Garfunkel", [["Simon and Garfunkel"], ["Queen"]], ordered=False) == 1


def test_items_are_paired_as_well_as_they_can_be() -> None:
    assert list_f1("x1, x2", [["x1", "x2"], ["x1"]], ordered=False) == 1.0


def test_long_texts_are_bounded() -> None:
    assert list_f1(", ".join(map(str, range(10_000))), [["1"]], ordered=False) == 0.0
    assert short_answer("\\boxed{a}" * 3000) == "a"
    assert not matches_any("-" * 1_000_000, ["Paris"])


@pytest.mark.parametrize(
    "answer", ["Paris", "**paris**.", "Answer: Paris", "\\boxed{Paris}", "\\(Paris\\)", "the Paris"]
)
def test_text_equals_takes_the_answer_in_any_form(answer: str) -> None:
    assert text_equals(answer, "Paris")


@pytest.mark.parametrize(
    "answer", ["", "Pari", "Parisian", "not Paris", "Paris or Rome", "Rome\nParis", "Paris, Rome", "?"]
)
def test_text_equals_takes_neither_other_answers_nor_several(answer: str) -> None:
    assert not text_equals(answer, "Paris")
