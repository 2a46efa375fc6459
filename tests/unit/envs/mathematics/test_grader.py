"""Grading of answers that are not plain numbers: right, wrong, echoed, and with processes that die."""

import random
import socket
import time

import pytest
from support.refusals import refuses

from temper.envs.core.errors import GraderError
from temper.envs.mathematics.env import grade
from temper.envs.mathematics.grader import ANSWER_S, REFERENCE_S, MathGrader


@pytest.mark.parametrize(
    ("right", "cases"),
    [
        (True, [("x+1", "1+x"), ("x^2-1", "(x-1)(x+1)"), ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}")]),
        (True, [("2^{1/3}", "\\sqrt[3]{2}"), ("1024", "2^{10}"), ("y=2x+1", "2x+1"), ("2x+1=y", "y=2x+1")]),
        (True, [("3<x", "x>3"), ("(1,2)", "(1,2)"), ("2,1", "1,2"), ("\\{2,1\\}", "\\{1,2\\}")]),
        (True, [("(2,\\infty)\\cup(-\\infty,1)", "(-\\infty,1)\\cup(2,\\infty)")]),
        (True, [("\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}")]),
        (True, [("3\\pi", "3\\pi\\text{ cm}"), ("x<2", "(-\\infty,2)"), ("2>x", "(-\\infty,2)")]),
        (True, [("1\\le x<2", "[1,2)"), ("\\frac{1}{-2}", "-\\frac{1}{2}"), ("\\sqrt{2}\\text{ cm}", "\\sqrt{2}")]),
        (True, [("Monday", "\\text{Monday}"), ("A", "\\text{(A)}"), ("x = 4", "4")]),
        (True, [("\\$4.00 \\text{ per egg}", "4")]),
        (False, [("x+2", "1+x"), ("x+1+0", "1+x"), ("1.41421356", "\\sqrt{2}"), ("2=x+1", "x+1")]),
        (False, [("(2,1)", "(1,2)"), ("[1,2]", "(1,2)"), ("(1,2)", "\\{1,2\\}")]),
        (False, [("\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}")]),
        (False, [("x\\le 2", "(-\\infty,2)"), ("1\\le x\\le 2", "[1,2)"), ("x=1", "(1,2)")]),
        (False, [("\\frac{-1}{-2}", "-\\frac{1}{2}"), ("a^4 \\equiv a^3 \\equiv a^2", "a^2")]),
        (False, [("\\sqrt{2}\\approx 1.5", "\\sqrt{2}"), ("10^3", "1000"), ("vene", "even"), ("12_9", "12_8")]),
        (False, [("2+2", "4"), ("\\sqrt{16}", "4"), ("40\\%", "40"), ("1=2=3=4", "4"), ("48/2", "24")]),
        (False, [("18 \\text{ or } 19", "18"), ("__import__('os').system('touch /tmp/x')", "x")]),
    ],
)
def test_expressions_are_judged(right: bool, cases: list[tuple[str, str]]) -> None:
    judged = {case: grade(f"So it is \\boxed{{{case[0]}}}.", reference=case[1]).parts["correct"] for case in cases}
    assert judged == dict.fromkeys(cases, float(right))


LABELLED = r"""
1 | e^{-x/2} | e^{-\frac{x}{2}}
1 | 1+x^{\frac{3}{2}} | x^{\frac{3}{2}}+1
1 | 1+2^{n_1} | 2^{n_{1}}+1
1 | \frac{1}{2^{70}} | 2^{-70}
1 | -1+2^{2023} | 2^{2023}-1
1 | 5\text{ m} | 500\text{ cm}
1 | 5\text{ m} | $5$ m
1 | 5\text{ m} | 5
1 | 5 | 5\text{ km}
1 | 200\text{ min} | 3\text{ h }20\text{ min}
1 | 30^\circ | 30^\circ\text{C}
1 | 3\pi\text{ cm}^2 | 3\pi\text{ cm$^2$}
1 | \$20 | \$20\text{ per hour}
1 | 20\text{ dollars/hour} | 20\text{ dollars}
1 | 2\text{ pounds} | 2\text{ GBP}
1 | 2\text{ fluid ounces} | 2\text{ ounces}
1 | 5\text{ minutes} | 5\text{ m}
1 | 3\text{ cups} | 3\text{ C}
1 | 30^\circ | 30\text{ C}
1 | 273.15\text{ K} | 0^\circ\text{C}
1 | 32^\circ\text{F} | 0^\circ\text{C}
0 | 30^\circ\text{C} | 30\text{ F}
0 | 300\text{ s} | 5\text{ m}
0 | 2\text{ GBP} | 2\text{ lb}
0 | \$20\text{ per hour} | \$20\text{ per day}
0 | \$20\text{ per hour} | \$21
0 | 5\text{ m} | 5\text{ km}
0 | 5\text{ m} | 5\text{ s}
0 | 5\text{ m} | 5\text{ m}^2
0 | 60\text{ km/h} | 60\text{ m/s}
0 | 3\pi\text{ cm} | 3\pi\text{ m}
0 | 18 | 18\text{ dozen}
0 | 5 | 5\text{ fewer}
0 | 5 | 5\text{ below zero}
0 | 5 | 5\text{ in base seven}
0 | 5 | 5\text{ Mega}
1 | \frac{3}{7} | \frac{{3}}{{7}}
1 | \frac{3}{7} | {3}/{7}
1 | \frac{3}{7} | 3\div7
1 | 3.2\times10^5 | 32\times10^4
1 | 3.2\times10^{-5} | 0.32\times10^{-4}
0 | 3.2\times10^5 | 32\times10^5
0 | 3.2\times10^5 | 32.00000000000000000000000000000000001\times10^4
0 | 320000 | 32\times10^4
1 | 0.\overline{3} | 0.333\ldots
1 | \frac{1}{6} | 0.1666\ldots
0 | 0.333 | 0.333\ldots
0 | 1,2,3 | 1,2,3,\ldots
1 | -i | \frac{1}{i}
1 | (2,3) | (x,y)=(2,3)
1 | (2,3) | x=2,\ y=3
1 | (2,3) | x=2\text{ and }y=3
0 | (3,2) | x=2, y=3
0 | (2,3) | a=2, b=3
1 | (1,2),(3,4) | \{(1,2),(3,4)\}
0 | \{(1,2),(3,4)\} | ((1,2),(3,4))
1 | \binom{10}{3} | {10 \choose 3}
1 | \emptyset | \varnothing
1 | \{1,2\} | \left\lbrace 1,2\right\rbrace
1 | [1,4) | \left[1,4\right[
1 | (1,4) | ]1,4[
0 | [1,4] | ]1,4[
1 | \sqrt[3]{2},\sqrt[3]{4} | \sqrt[3]{4},\sqrt[3]{2}
1 | (-\infty,1)\cup[2,\infty) | x<1\text{ or }x\geqslant 2
0 | (-\infty,1)\cup(2,\infty) | x<1\text{ or }x\ge 2
0 | (-\infty,1)\cup(2,\infty) | x<1\text{ or }y>2
1 | (1,-2) | \langle 1,-2\rangle
1 | (1,-2) | \begin{pmatrix}1\\-2\end{pmatrix}
1 | \begin{pmatrix}1\\-2\end{pmatrix} | (1,-2)
0 | \begin{pmatrix}1\\-2\end{pmatrix} | (1,2)
0 | \begin{pmatrix}1\\-2\end{pmatrix} | \begin{pmatrix}1&-2\end{pmatrix}
"""


def test_notations_and_units_are_judged_as_labelled() -> None:
    """Lines of label, reference answer and answer."""
    for line in LABELLED.strip().splitlines():
        label, reference, answer = line.split(" | ")
        judged = grade(f"\\boxed{{{answer}}}", reference=reference, question="Find all pairs $(x, y)$ of this kind.")
        assert judged.parts["correct"] == float(label), line


def test_a_gold_times_a_wrong_unit_never_pays() -> None:
    rng = random.Random(0)
    names = ("m", "cm", "km", "s", "h", "kg", "g", "km/h", "m/s", "m^2", "L", "degrees", "dollars", "C")
    for _ in range(300):
        number, (right, wrong) = rng.choice(("5", "-2.5", "\\frac{3}{7}", "3\\sqrt{2}", "2\\pi")), rng.sample(names, 2)
        gold, answer = (f"{number}\\text{{ {name}}}" for name in (right, wrong))
        if {right, wrong} != {"degrees", "C"}:
            assert grade(f"\\boxed{{{answer}}}", reference=gold).parts["correct"] == 0.0, (gold, answer)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many dozen eggs does she need?", "5 dozen eggs"),
        ("How many fewer apples has he?", "5 fewer apples"),
        ("How much is it, in thousands of dollars?", "5 thousand dollars"),
        ("How many pairs?", "5 pairs"),
    ],
)
def test_a_word_that_the_question_counts_in_is_a_unit(question: str, answer: str) -> None:
    assert grade(f"#### {answer}", reference="5", question=question).parts["correct"] == 1.0


@pytest.mark.parametrize(
    ("text", "reference", "question"),
    [
        ("24+24-24=?", "24", "24+24-24=?"),
        ("What is  2+24", "24", "What is 2+24 - 2?"),
        ("\\boxed{x^2+2x+1}", "(x+1)^2", "Factor $x^2 + 2x + 1$."),
        ("\\boxed{6/8}", "\\frac{3}{4}", "Reduce 6/8 to lowest terms."),
        ("#### 2 + 2", "4", "What is 2+2?"),
    ],
)
def test_a_repeated_question_is_wrong_and_flagged(text: str, reference: str, question: str) -> None:
    assert grade(text, reference=reference, question=question).parts == {"correct": 0.0, "format": 1.0, "echo": 1.0}


@pytest.mark.parametrize(
    ("text", "reference", "question"),
    [
        ("24", "24", "24+24-24=?"),
        ("24+24-24=? \\boxed{24}", "24", "24+24-24=?"),
        ("\\boxed{x+1}", "x+1", "Which is smaller, x+1 or x+2?"),
        ("\\boxed{40\\%}", "40", "What percentage of them is black?"),
        ("\\boxed{50\\%}", "50", "What is the percent increase?"),
    ],
)
def test_an_answer_that_occurs_in_the_question_may_be_right(text: str, reference: str, question: str) -> None:
    assert grade(text, reference=reference, question=question).parts == {"correct": 1.0, "format": 1.0, "echo": 0.0}


def test_a_dead_worker_is_replaced_without_losing_the_answer() -> None:
    grader = MathGrader()
    assert grader.is_equal(reference="x", answer="x+0y") is not None
    grader.idle[0].channel.shutdown(socket.SHUT_RDWR)
    assert grader.is_equal(reference="x+1", answer="1+x") is True
    grader.close()


def test_a_mother_that_died_is_started_again() -> None:
    grader = MathGrader()
    grader.start()
    assert grader.mother is not None
    grader.mother.kill()
    grader.mother.wait()
    with pytest.raises(GraderError):
        grader.is_equal(reference="x+1", answer="1+x")
    assert grader.is_equal(reference="x+1", answer="1+x") is True
    assert grader.mother is not None
    grader.mother.kill()
    grader.mother.wait()
    grader.idle.pop().end()
    assert grader.is_equal(reference="x+1", answer="1+x") is True
    grader.close()


def test_a_check_past_its_deadline_does_not_delay_the_next() -> None:
    grader = MathGrader()
    assert grader.is_equal(reference="x+1", answer="1+x") is True
    mother, start = grader.mother, time.monotonic()
    assert grader.is_equal(reference="x+1", answer="(1+x)^{64}(1+y)^{64}(1+z)^{64}") is None
    assert ANSWER_S <= time.monotonic() - start < REFERENCE_S
    assert grader.is_equal(reference="x+1", answer="1+x") is True
    assert mother is not None
    assert (grader.mother, mother.poll()) == (mother, None)  # the worker of this check was forked, not started
    grader.close()


def test_an_unreadable_reference_is_the_graders_error() -> None:
    grader = MathGrader()
    for answer in ("x", "\\frac{1}", "(1+x)^{64}(1+y)^{64}(1+z)^{64}"):
        with refuses("reference", error=GraderError):
            grader.is_equal(reference="\\frac{1}{", answer=answer)
    grader.close()


@pytest.mark.parametrize("answer", ["3", "36", "3 dozen eggs"])
def test_a_reference_in_dozens_is_also_met_by_their_count(answer: str) -> None:
    judged = grade(f"#### {answer}", reference="3 dozen", question="How many dozen eggs does she need?")
    assert judged.parts["correct"] == 1.0
