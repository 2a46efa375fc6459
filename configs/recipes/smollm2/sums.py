"""Sums of two numbers of two digits, asked in plain words: a task that a small chat model nearly always fails."""

import random
import re
from collections.abc import Iterator

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score


def generate(rng: random.Random, level: int) -> Task:
    low, high = 10**level, 10 ** (level + 1) - 1
    left, right = sorted((rng.randint(low, high), rng.randint(low, high)))  # else training shows held-out sums mirrored
    question = f"What is {left} + {right}? Reply with the number only."
    return Task(messages=({"role": "user", "content": question},), spec={"answer": str(left + right)})


def demonstrate(task: Task) -> list[Message]:
    return [{"role": "assistant", "content": task.spec["answer"]}]


def reference(task: Task) -> list[str]:
    return [task.spec["answer"]]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    yield "another sum", [str(int(task.spec["answer"]) + 10)]
    yield "the sum in a sentence", [f"The sum is {task.spec['answer']}."]
    yield "empty", [""]


class Sums(TaskEnv):
    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        answer = parsed.answer.strip()
        formed = re.fullmatch(r"\d+", answer) is not None
        return self.end(
            binary_score(answer == task.spec["answer"], well_formed=formed, detail=f"answered {answer[:40]}")
        )


ENVIRONMENT = EnvDefinition(
    id="sums",
    entry_point="temper.configs.recipes.smollm2.sums:Sums",
    generate=generate,
    levels=4,
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
)
