"""Tasks whose need of thought varies, is visible only in the question, and is known: partial thoughts are worth something.

- `tally`: votes of people for names, each with the weight of its person. Who has most? The heaviest votes decide first.
- `scan`: numbers by letter and a limit. At which letter does the running total reach it? Nothing after it matters.
- `filter`: numbers, some of them marked. What is the sum of the marked ones? The others do not matter.

The demonstrated thoughts waste lines: nearly all go through every item, votes in random order. `spec["values"][n]` is the
chance to answer rightly from the first n of the best lines, for the reference frontier of accuracy over tokens.

Option: `task`, one of these names, by default all.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from string import ascii_lowercase
from typing import Any

from temper.envs.core.bounds import one_of, only_known
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.core.worked_steps import worked_answer
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score

PEOPLE, WEIGHTS = "pqrst", (1, 1, 2, 4, 9)
BRIEF = {"tally": 0.1, "scan": 0.15, "filter": 0.15}
"""Shares of demonstrations that stop once the answer is certain."""
CHANCE = 0.45
"""Highest mean reward of one fixed answer: `tally` has three names at level 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question and its answer, all lines of a thought, the best ones, and their `values`: see the module."""

    question: str
    answer: str
    lines: list[str]
    best: list[str]
    values: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The lines of votes in one order, and after each number of lines the leaders and whether they are certain."""

    lines: list[str]
    leaders: list[list[str]]
    certain: list[bool]


def tally(rng: random.Random, level: int) -> Problem:
    names, count = ascii_lowercase[: 2 + level], 4 + 4 * level
    while True:
        weights = dict(zip(PEOPLE, rng.sample(WEIGHTS, len(PEOPLE)), strict=True))
        votes = [(rng.choice(PEOPLE), rng.choice(names)) for _ in range(count)]
        best = count_votes(sorted(votes, key=lambda vote: -weights[vote[0]]), weights, names)
        if len(best.leaders[-1]) == 1:
            break
    answer = best.leaders[-1][0]
    need = best.certain.index(True)
    shares = " ".join(f"{person}{weight}" for person, weight in weights.items())
    cast = " ".join(person + name for person, name in votes)
    return Problem(
        question=f"{shares}; {cast}; who has most?",
        answer=answer,
        lines=_in_time(rng, "tally", count_votes(rng.sample(votes, count), weights, names)),
        best=best.lines[:need],
        values=[(answer in first) / len(first) for first in best.leaders[: need + 1]],
    )


def count_votes(votes: Sequence[tuple[str, str]], weights: Mapping[str, int], names: str) -> Count:
    totals, left = dict.fromkeys(names, 0), sum(weights[person] for person, _ in votes)
    lines, leaders, certain = list[str](), [list(names)], [False]
    for person, name in votes:
        totals[name] += weights[person]
        left -= weights[person]
        lines.append(f"{person}{name}{weights[person]} {','.join(map(str, totals.values()))}")
        first, second = sorted(totals.values(), reverse=True)[:2]
        leaders.append([each for each in names if totals[each] == first])
        certain.append(first - second > left)
    return Count(lines=lines, leaders=leaders, certain=certain)


def _in_time(rng: random.Random, task: str, count: Count) -> list[str]:
    """Return all lines, or for a share of the tasks only those until the answer is certain."""
    return count.lines[: count.certain.index(True)] if rng.random() < BRIEF[task] else count.lines


def scan(rng: random.Random, level: int) -> Problem:
    count = 6 + 4 * level
    letters, numbers = rng.sample(ascii_lowercase, count), [rng.randint(1, 9) for _ in range(count)]
    totals = list(accumulate(numbers))
    need = rng.randint(1, count)
    limit = rng.randint(totals[need - 1] - numbers[need - 1] + 1, totals[need - 1])
    lines = [f"{letter}{total}" for letter, total in zip(letters, totals, strict=True)]
    items = " ".join(f"{letter}{number}" for letter, number in zip(letters, numbers, strict=True))
    return Problem(
        question=f"{items}; where is {limit} reached?",
        answer=letters[need - 1],
        lines=lines[:need] if rng.random() < BRIEF["scan"] else lines,
        best=lines[:need],
        values=[1 / (count - seen) for seen in range(need)] + [1.0],
    )


def filter_marked(rng: random.Random, level: int) -> Problem:
    count = 6 + 4 * level
    marked = set(rng.sample(range(count), rng.randint(1, count // 2 + 1)))
    items = [(rng.choice(ascii_lowercase), rng.randint(2, 9)) for _ in range(count)]
    totals = list(accumulate(number * (place in marked) for place, (_, number) in enumerate(items)))
    lines = [f"{letter}{number} {total}" for (letter, number), total in zip(items, totals, strict=True)]
    best = [line for place, line in enumerate(lines) if place in marked]
    shown = " ".join(f"{letter}{number}{'*' * (place in marked)}" for place, (letter, number) in enumerate(items))
    return Problem(
        question=f"{shown}; sum of the marked ones?",
        answer=str(totals[-1]),
        lines=best if rng.random() < BRIEF["filter"] else lines,
        best=best,
        values=[0.0] * len(best) + [1.0],
    )


TASKS: dict[str, Callable[[random.Random, int], Problem]] = {"tally": tally, "scan": scan, "filter": filter_marked}


def generate(rng: random.Random, level: int, *, tasks: Sequence[str] = tuple(TASKS)) -> Task:
    problem = TASKS[rng.choice(tasks)](rng, level)
    spec = {
        "answer": problem.answer,
        "steps": "\n".join(problem.lines),
        "best": problem.best,
        "values": problem.values,
    }
    return Task(messages=({"role": "user", "content": problem.question},), spec=spec)


def demonstrate(task: Task) -> list[Message]:
    return worked_answer(task, task.spec["answer"])


def reference(task: Task) -> list[str]:
    return [task.spec["answer"]]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    answer = task.spec["answer"]
    yield "another answer", [str(int(answer) + 1) if answer.isdecimal() else chr(ord(answer) ^ 1)]
    yield "the answer in a sentence", [f"It is {answer}."]
    yield "empty", [""]


class Anytime(TaskEnv):
    """Single turn: the answer alone."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        answer = parsed.answer.strip()
        return self.end(
            binary_score(answer == task.spec["answer"], well_formed=answer.isalnum(), detail=f"answered {answer[:40]}")
        )


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    only_known(options, ("task",), "options")
    if (name := options.get("task")) is None:
        return ENVIRONMENT
    one_of("options.task", name, tuple(TASKS))
    return replace(ENVIRONMENT, generate=partial(generate, tasks=(name,)), options=dict(options))


ENVIRONMENT = EnvDefinition(
    id="anytime",
    entry_point="temper.envs.questions.anytime:Anytime",
    generate=generate,
    levels=5,
    demonstrate=demonstrate,
    reference=reference,
    negatives=negatives,
    configure=configure,
    chance=CHANCE,
)
