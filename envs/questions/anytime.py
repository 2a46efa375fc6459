"""Tasks that need different amounts of reasoning, shown only by the question. Partial reasoning raises the chance to be right.

- `tally`: votes for names, weighted by the voter. Which name has most? The heaviest votes decide first.
- `scan`: numbers by letter and a limit. At which letter does the running total reach it? Nothing after it matters. Lines
  count down from the limit.
- `filter`: numbers, some of them marked with a star. What is the sum of the marked ones? The others do not matter.

Demonstrations waste lines: nearly all go through every item, votes in random order. `spec["best_lines"]` is the shortest
reasoning in the best order, and `spec["chances"][n]` the chance to be right for a reader of its first n lines alone.

Option: `task`, one of these names, by default all.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from string import ascii_lowercase
from typing import Any

from temper.envs.core.bounds import require_choice, require_known
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.core.worked_steps import demonstrate_answer
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score

PEOPLE, WEIGHTS = "pqrst", (1, 1, 2, 4, 9)
LARGEST = 5
"""The largest number of `scan` and `filter`."""
BRIEF_SHARE = {"tally": 0.1, "scan": 0.15, "filter": 0.15}
"""Shares of demonstrations that stop once the answer is certain, and leave out needless lines."""
CHANCE = 0.45
"""Highest mean reward of one fixed answer: `tally` has three names at level 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question and its answer, all lines of a reasoning, the brief ones, and the best ones with their `chances`."""

    question: str
    answer: str
    lines: list[str]
    brief_lines: list[str]
    best_lines: list[str]
    chances: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCount:
    """The lines of votes in one order. After each number of lines: the leaders, and whether the lead is certain."""

    lines: list[str]
    leaders: list[list[str]]
    certain: list[bool]


def tally(rng: random.Random, level: int) -> Problem:
    names, count = ascii_lowercase[: 2 + level], 2 + 4 * level
    while True:
        weights = dict(zip(PEOPLE, rng.sample(WEIGHTS, len(PEOPLE)), strict=True))
        votes = [(rng.choice(PEOPLE), rng.choice(names)) for _ in range(count)]
        best = count_votes(sorted(votes, key=lambda vote: -weights[vote[0]]), weights, names)
        if len(best.leaders[-1]) == 1:
            break
    answer, need = best.leaders[-1][0], best.certain.index(True)
    shown = count_votes(rng.sample(votes, count), weights, names)
    weights_text = " ".join(f"{person}{weight}" for person, weight in weights.items())
    votes_text = " ".join(person + name for person, name in votes)
    return Problem(
        question=f"{weights_text}; {votes_text}; who has most?",
        answer=answer,
        lines=shown.lines,
        brief_lines=shown.lines[: shown.certain.index(True)],
        best_lines=best.lines[:need],
        chances=[(answer in first) / len(first) for first in best.leaders[: need + 1]],
    )


def count_votes(votes: Sequence[tuple[str, str]], weights: Mapping[str, int], names: str) -> VoteCount:
    totals, left = dict.fromkeys(names, 0), sum(weights[person] for person, _ in votes)
    lines, leaders, certain = list[str](), [list(names)], [False]
    for person, name in votes:
        totals[name] += weights[person]
        left -= weights[person]
        lines.append(f"{person}{name}{weights[person]} {','.join(map(str, totals.values()))}")
        first, second = sorted(totals.values(), reverse=True)[:2]
        leaders.append([each for each in names if totals[each] == first])
        certain.append(first - second > left)
    return VoteCount(lines=lines, leaders=leaders, certain=certain)


def scan(rng: random.Random, level: int) -> Problem:
    count = 6 + 4 * level
    letters, numbers = rng.sample(ascii_lowercase, count), [rng.randint(1, LARGEST) for _ in range(count)]
    totals = list(accumulate(numbers))
    need = rng.randint(1, count)
    limit = rng.randint(totals[need - 1] - numbers[need - 1] + 1, totals[need - 1])
    items = " ".join(f"{letter}{number}" for letter, number in zip(letters, numbers, strict=True))
    lines = [f"{letter}{max(0, limit - total)}" for letter, total in zip(letters, totals, strict=True)]
    return Problem(
        question=f"{items}; where is {limit} reached?",
        answer=letters[need - 1],
        lines=lines,
        brief_lines=lines[:need],
        best_lines=lines[:need],
        chances=[1 / (count - seen) for seen in range(need)] + [1.0],
    )


def filter_marked(rng: random.Random, level: int) -> Problem:
    count = 6 + 4 * level
    marked = set(rng.sample(range(count), rng.randint(1, count // 2 + 1)))
    letters, numbers = rng.sample(ascii_lowercase, count), [rng.randint(1, LARGEST) for _ in range(count)]
    totals = list(accumulate(number * (place in marked) for place, number in enumerate(numbers)))
    items = [f"{'*' * (place in marked)}{letters[place]}{numbers[place]}" for place in range(count)]
    lines = [f"{item} {total}" for item, total in zip(items, totals, strict=True)]
    brief = [line for place, line in enumerate(lines) if place in marked]
    return Problem(
        question=f"{' '.join(items)}; sum of the marked ones?",
        answer=str(totals[-1]),
        lines=lines,
        brief_lines=brief,
        best_lines=brief,
        chances=[0.0] * len(brief) + [1.0],
    )


TASKS: dict[str, Callable[[random.Random, int], Problem]] = {"tally": tally, "scan": scan, "filter": filter_marked}


def generate(rng: random.Random, level: int, *, tasks: Sequence[str] = tuple(TASKS)) -> Task:
    name = rng.choice(tasks)
    problem = TASKS[name](rng, level)
    lines = problem.brief_lines if rng.random() < BRIEF_SHARE[name] else problem.lines
    spec = {
        "answer": problem.answer,
        "steps": "\n".join(lines),
        "best_lines": problem.best_lines,
        "chances": problem.chances,
    }
    return Task(messages=({"role": "user", "content": problem.question},), spec=spec)


def demonstrate(task: Task) -> list[Message]:
    return demonstrate_answer(task, task.spec["answer"])


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
    require_known(options, ("task",), "options")
    if (name := options.get("task")) is None:
        return ENVIRONMENT
    require_choice("options.task", name, tuple(TASKS))
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
