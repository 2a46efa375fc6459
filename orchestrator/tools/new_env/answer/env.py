"""Words, to be put in alphabetical order: tasks that are made here, each with one answer.

Make it yours from top to bottom, and after each change run `temper envcheck --env temper.orchestrator.tools.new_env.answer`:

    generate      makes a task: what the model is asked, and in `spec` what its answer is judged by, which it never sees; an
                  eighth of the questions is held out for evaluation, so let there be many
    demonstrate   thinks and answers as an expert: what the stage `sft` trains on; leave it out where nobody can say
    gold          gives an answer that must be worth 1
    corruptions   names wrong answers that must not be: those that a careless judge would accept
    Words.turn    judges an answer; `parsed.answer` is the turn without its thought
"""

import random
from collections.abc import Iterator

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.verdict import verdict

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "owl", "pig", "rat", "sow", "yak")


def generate(rng: random.Random, level: int) -> Task:
    words = rng.sample(WORDS, 2 + level)  # `level` is envs.my_env.level, from 1
    question = {"role": "user", "content": f"Alphabetical order, with spaces between: {', '.join(words)}"}
    return Task(messages=(question,), spec={"answer": " ".join(sorted(words))})  # of plain JSON data


def demonstrate(task: Task) -> list[Message]:
    thought = " < ".join(task.spec["answer"].split())
    return [{"role": "assistant", "reasoning_content": thought, "content": task.spec["answer"]}]


def gold(task: Task) -> list[str]:
    return [task.spec["answer"]]  # one text for each turn of the model


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    words = task.spec["answer"].split()
    yield "the last two the other way round", [" ".join([*words[:-2], words[-1], words[-2]])]
    yield "one missing", [" ".join(words[1:])]
    yield "empty", [""]


class Words(TaskEnv):
    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        right = parsed.answer.split() == task.spec["answer"].split()
        return self.end(verdict(right, detail=f"answered {parsed.answer[:40]!r}"))


ENVIRONMENT = EnvDefinition(
    id="my_env",
    entry_point="temper.orchestrator.tools.new_env.answer.env:Words",
    generate=generate,
    levels=len(WORDS) - 2,
    demonstrate=demonstrate,
    gold=gold,
    corruptions=corruptions,
)
