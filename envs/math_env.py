"""The math environment: one question, one final answer, checked exactly."""

import random

from envs import arithmetic
from envs.episode import StepReturn, TaskEnv
from envs.math_grader import shared_grader
from envs.task import Task
from rewards.answers import equal_numbers, final_answer, normal, refusal
from rewards.verdict import Verdict, policy_fault, verdict


class MathEnv(TaskEnv):
    """Single turn: the final answer must equal the task's."""

    env_id = arithmetic.ENV

    def draw(self, rng: random.Random) -> Task:
        return arithmetic.generate(rng, 1)

    def turn(self, task: Task, answer: str) -> StepReturn:
        return self.end(grade(answer, gold=task.spec["answer"]))


def grade(text: str, *, gold: str) -> Verdict:
    """Judges the answer part of a turn: plain numbers exactly, other expressions by math-verify in its own process."""
    found = final_answer(text)
    if found is None:
        return verdict(False, well_formed=False, detail="no final answer, or several that differ")
    detail = f"answered {found[:80]}"
    equal = equal_numbers(found, gold)
    if equal is not None:
        return verdict(equal, detail=detail)
    refused = refusal(found, gold=gold)
    if refused is not None:
        return verdict(False, detail=f"{detail}: {refused}")
    equal = shared_grader().equal(gold=normal(gold), answer=normal(found))
    return policy_fault(f"{detail}: over the time limit") if equal is None else verdict(equal, detail=detail)
