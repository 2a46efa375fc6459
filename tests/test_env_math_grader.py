"""Grading of answers that are no plain numbers: right, hostile, and with a child that dies."""

import time

import pytest

from envs.math_env import grade
from envs.math_grader import MathGrader
from rewards.verdict import Outcome


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("x+1", "1+x", True),
        ("x+2", "1+x", False),
        ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", True),
        ("\\sqrt{16}", "4", True),
        ("(1,2)", "(1,2)", True),
        ("(2,1)", "(1,2)", False),
        ("2+2", "4", False),
        ("__import__('os').system('touch /tmp/x')", "x", False),
    ],
)
def test_expressions_are_judged(answer: str, gold: str, right: bool) -> None:
    assert grade(f"\\boxed{{{answer}}}", gold=gold).parts["correct"] == float(right)


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9}}",
        "100000!",
        "(" * 9999,
        "\\sqrt{" * 20,
        "x^{64}" * 6,
        "a" * 100_000,
        "\\binom{99999}{9999}",
        "{" * 400,
    ],
)
def test_hostile_answers_are_wrong_within_the_deadline(answer: str) -> None:
    grade("\\boxed{x}", gold="y")
    start = time.monotonic()
    assert grade(f"\\boxed{{{answer}}}", gold="x+1").outcome is not Outcome.OK
    assert time.monotonic() - start < 4


def test_a_child_that_died_is_started_again() -> None:
    grader = MathGrader()
    assert grader.equal(gold="x", answer="x") is True
    assert grader.process is not None
    grader.process.kill()
    grader.process.wait()
    assert grader.equal(gold="x", answer="x") is None
    assert grader.equal(gold="x", answer="x") is True
    grader.close()
