"""A number, to be found by guesses: tasks of several turns, each of which the environment answers.

Make it yours from top to bottom, and after each change run `temper envcheck --env temper.orchestrator.tools.new_env.turns`:

    generate      makes a task: what the model is told first, and in `spec` (plain JSON data) what its turns are judged by,
                  which it never sees; an eighth of the first messages is held out for evaluation, so let there be many
    reply         is what the environment says to a turn, as the user
    demonstrate   plays as an expert, with what is replied: what the stage `sft` trains on
    gold          gives the turns of a right episode
    corruptions   names turns that must not be worth 1: those that a careless judge would accept
    Guess         judges turns; `parsed.answer` is a turn without its thought. `standing` says what an episode is worth that a
                  limit ends: here half, for a guess next to the number
"""

import random
from collections.abc import Iterator
from typing import Any

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn, turn_text
from temper.envs.task_env import TaskEnv
from temper.rewards.verdict import CORRECT, Verdict, verdict


def generate(rng: random.Random, level: int) -> Task:
    low = rng.randint(1, 90)
    high = low + 10 * level  # `level` is envs.my_env.level, from 1
    question = {"role": "user", "content": f"Guess my number, from {low} to {high}."}
    return Task(messages=(question,), spec={"low": low, "high": high, "number": rng.randint(low, high)})


def reply(guess: int | None, number: int) -> str:
    if guess is None:
        return "Say a number."
    return "Higher." if guess < number else "Lower."


def demonstrate(task: Task) -> list[Message]:
    low, high, number = task.spec["low"], task.spec["high"], task.spec["number"]
    said: list[Message] = []
    while True:
        guess = (low + high) // 2
        said.append({"role": "assistant", "reasoning_content": f"{low} to {high}", "content": str(guess)})
        if guess == number:
            return said
        said.append({"role": "user", "content": reply(guess, number)})
        low, high = (guess + 1, high) if guess < number else (low, guess - 1)


def gold(task: Task) -> list[str]:
    return [turn_text(said, thinks=False) for said in demonstrate(task) if said["role"] == "assistant"]


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    yield "next to it", [str(task.spec["number"] + 1)] * 3
    yield "two numbers in one guess", [f"{task.spec['number']} or {task.spec['number'] + 1}"]
    yield "no number", ["hm", "hm"]


class Guess(TaskEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.nearest: int | None = None  # what an episode remembers begins here
        return super().reset(seed=seed, options=options)

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        said, number = parsed.answer.strip(), task.spec["number"]
        guess = int(said) if said.isdecimal() and len(said) < 6 else None
        if guess == number:
            return self.end(verdict(True))
        if guess is not None:
            self.nearest = min(abs(guess - number), self.nearest or abs(guess - number))
        if self.is_last(task):
            return self.cut(f"after {self.turns} guesses")
        return self.go_on([{"role": "user", "content": reply(guess, number)}])

    def standing(self, task: Task) -> Verdict:
        judged = verdict(False)
        judged.parts[CORRECT] = 0.5 if self.nearest == 1 else 0.0
        return judged


ENVIRONMENT = EnvDefinition(
    id="my_env",
    entry_point="temper.orchestrator.tools.new_env.turns.env:Guess",
    generate=generate,
    demonstrate=demonstrate,
    gold=gold,
    corruptions=corruptions,
    max_turns=5,
)
