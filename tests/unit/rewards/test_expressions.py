"""Checks of an answer before computer algebra."""

import random

import pytest

from temper.rewards.expressions import asks_percentage, is_echo, is_same_text, refusal, remove_question, to_formula


@pytest.mark.parametrize("answer", ["2+2", "8/2 - 0", "2^2", "4!", "\\sum_{i=1}^4 1", "1=2=3=4", "400%", "\\sqrt{16}"])
def test_a_number_as_reference_takes_no_expression(answer: str) -> None:
    assert refusal(answer, reference="4") == "an expression where a number is due"


@pytest.mark.parametrize("answer", ["\\sum_{i=1}^4 x", "\\int_0^4 x dx", "\\binom{n}{2}", "n!", "\\lim_{x\\to 0} x"])
def test_unevaluated_forms_are_refused_unless_the_reference_is_one(answer: str) -> None:
    assert refusal(answer, reference="x+1") == "unevaluated"
    assert refusal(answer, reference=f"{answer}+x") is None


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9}}",
        "2^({9})^({99999999999999})",
        "e^{-\\frac{x^{999999}}{2}}",
        "9**9**9",
        "x^{999999}",
        "2^{(1000000)}",
        "(" * 30 + "x" + ")" * 30,
        "x" * 600,
        "1" * 65,
        "",
    ],
)
def test_hostile_sizes_are_refused(answer: str) -> None:
    assert refusal(answer, reference="x") is not None


def test_large_factorials_are_refused_despite_the_reference() -> None:
    assert refusal("x+99999!", reference="x+5!") == "factorials too large"
    assert refusal("(9!)!+x", reference="x+5!") == "factorials too large"


def test_chains_of_equations_and_foreign_brackets_are_refused() -> None:
    assert refusal("2=x+1", reference="x+1") == "an equation where an expression is due"
    assert refusal("y=x=x+1", reference="x+1") == "an equation where an expression is due"
    assert refusal("f(x)=x+1", reference="1+x") is None
    assert refusal("(1,2)", reference="\\{1,2\\}") == "another kind of brackets"
    assert refusal("1,2", reference="\\{1,2\\}") is None


HEDGES = {
    "nearly equal": [
        "\\sqrt{2}\\approx 1.5",
        "\\sqrt{3}\\equiv\\sqrt{2}",
        "\\sqrt{3}\\simeq\\sqrt{2}",
        "\\sqrt{3} \u2248 \\sqrt{2}",
    ],
    "two values": ["\\sqrt{2}\\text{ m}, \\sqrt{3}\\text{ m}", "\\sqrt{2}\\mathrm{cm}, \\sqrt{3}\\mathrm{cm}"],
    "words": ["\\sqrt{2}\\text{ is wrong}", "\\sqrt{2}\\text{ squared}", "\\sqrt{2}\\text{ m}/\\text{it is wrong}"],
    "words between": [
        "\\sqrt{2}\\text{ is not it, }\\sqrt{3}\\text{ is}",
        "\\sqrt{2}\\text{ for }\\sqrt{3}",
        "\\sqrt{2}\\mbox{ or maybe }\\sqrt{3}",
    ],
}
NO_HEDGES = {
    "units": ["\\sqrt{2}\\text{ square units}", "\\sqrt{2}\\text{ sq. units}", "\\sqrt{2}\\text{ units squared}"],
    "powers of units": ["\\sqrt{2}\\ \\text{cm}^2.", "\\sqrt{2}\\text{ cm$^2$}", "\\sqrt{2}\\text{ m}/\\text{s}^2"],
    "other spaces": ["\\sqrt{2}\\mathrm{\\,cm}", "\\sqrt{2}\\mathrm{~cm}", "\\sqrt{2}\\text{ N}\\cdot\\text{m}"],
    "joins": ["k\\pi\\text{ for }k\\in\\mathbb{Z}", "x<1\\text{ or }x>2"],
    "names": ["\\mathbf{i}+2\\mathbf{j}", "\\operatorname{arsinh}(x)", "2\\mathrm{e}^x"],
}


@pytest.mark.parametrize("answers", HEDGES.values(), ids=HEDGES)
def test_hedges_are_refused_unless_the_reference_has_them(answers: list[str]) -> None:
    assert [answer for answer in answers if refusal(answer, reference="\\sqrt{2}") is None] == []
    assert [answer for answer in answers if refusal(answer, reference=answer) is not None] == []


@pytest.mark.parametrize("answers", NO_HEDGES.values(), ids=NO_HEDGES)
def test_units_joins_and_names_are_no_hedges(answers: list[str]) -> None:
    assert [answer for answer in answers if refusal(answer, reference="\\sqrt{2}") is not None] == []


TERMS = (
    r"x^{2} | x^{\frac{A}{B}} | e^{-\frac{x}{A}} | A^{n_{B}} | A^{\sqrt{B}} | x^{y^{A}} | 2^{A0B0} | "
    r"3^{-7A} | \sqrt[A]{x^{B}} | a^{\log_{2} A} | \left(x+A\right)^{B} | \binom{A}{B} | A! | B\pi | "
    r"\frac{A}{B} | 2^{3^{B}} | e^{0.12345t} | \sin^{2}(Ax) | x^A | x^{A}_{B} | 10^{-A} | "
    r"\text{ or }A | y=A | (A,B) | (x+2^{A})^{B} | (2^{A})^{50}"
)


def test_a_gold_with_its_terms_swapped_is_never_refused() -> None:
    rng = random.Random(0)
    for _ in range(300):
        drawn = rng.sample(TERMS.split(" | "), rng.randint(2, 4))
        terms = [term.replace("A", str(rng.randint(2, 9))).replace("B", str(rng.randint(2, 9))) for term in drawn]
        for join in ("+", " - ", ", "):
            gold, swapped = (join.join(order) for order in (terms, terms[::-1]))
            assert refusal(swapped, reference=gold) is None, (gold, swapped)


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [
        ("Monday", "\\text{Monday}", True),
        ("\\text{monday}.", "Monday", True),
        ("Mondya", "Monday", False),
        ("A", "\\text{(A)}", True),
        ("(1, 2)", "\\left(1,2\\right)", True),
        ("12_{8}", "12_8", True),
        ("12", "12_8", False),
        ("x+1", "1+x", None),
    ],
)
def test_words_are_equal_as_texts_or_not_at_all(answer: str, reference: str, same: bool | None) -> None:
    assert is_same_text(answer, reference) is same


@pytest.mark.parametrize(
    ("question", "echo", "answers"),
    [
        ("What is $2 + 2$?", True, ["2+2"]),
        ("What is 2*2?", True, ["2 \\times 2"]),
        ("Simplify 6/8.", False, ["\\frac{6}{8}"]),
        ("Simplify 6/8.", True, ["6/8"]),
        ("What is 1 - 3/4 + 1/2?", False, ["3/4"]),
        ("What is 2+2?", False, ["2", "", "What is 2+2? 4"]),
        ("Expand 2x+10.", False, ["x+1"]),
        ("What is 2+2?", True, ["What is 2+2?", "what  is 2+2"]),
    ],
)
def test_an_answer_that_only_repeats_the_question_is_an_echo(question: str, echo: bool, answers: list[str]) -> None:
    assert [answer for answer in answers if is_echo(answer, question) is not echo] == []


def test_only_a_long_question_is_cut_out_of_an_answer() -> None:
    assert remove_question("What is 2+2?", "What is 2+2? 4") == "  4"
    assert remove_question("4", "4") == "4"


PERCENTAGES = (
    "What is the percent increase in price?",
    "Find the percent of students who walk.",
    "What's the percentage chance that she wins?",
    "What was the total percent change?",
    "By what percent did it grow?",
    "Calculate the percent decrease.",
)


def test_questions_that_ask_for_a_percentage_are_known() -> None:
    assert asks_percentage("There are 3 cats. What percentage of them is black?")
    assert asks_percentage("Give the chance as a percent.")
    assert all(map(asks_percentage, PERCENTAGES))
    assert not asks_percentage("What is 20 percent of 50?")
    assert not asks_percentage("What is twenty percent of 50?")
    assert not asks_percentage("He saves 20 percent. How much does he save?")


def test_formulas_lose_their_dollar_signs_only() -> None:
    assert to_formula("$\\left(x\u22121\\right)$.") == "\\left(x-1\\right)"
    assert refusal("\\frac{1}{2}\\mathrm{e}", reference="\\frac{e}{2}") is None
    assert to_formula("1 - \\frac{1}{\\mathrm{e}}") == "1 - \\frac{1}{e}"
    assert to_formula("\\begin{pmatrix}1\\\\[2pt]2\\end{pmatrix}") == "\\begin{pmatrix}1\\\\[2pt]2\\end{pmatrix}"
