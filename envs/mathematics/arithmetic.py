"""Generated arithmetic and simple algebra, with column-by-column demonstrations.

Level 1 has sums and `x-a=b` of two-digit numbers. Level 2 adds differences, `x+a=b`, three digits, three summands and mixed
chains. Level 3 adds products and `ax+b=c`. A level draws from all levels up to it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from temper.envs.core.task import Message, Task
from temper.envs.core.worked_steps import demonstrate_answer, difference_steps, sum_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question, its solution steps and its answer."""

    question: str
    steps: str
    answer: int


def _number(rng: random.Random, digits: int) -> int:
    """Return a number of 1 to `digits` digits. Longer ones are more likely."""
    length = max(rng.randint(1, digits), rng.randint(1, digits))
    return rng.randint(10 ** (length - 1) if length > 1 else 1, 10**length - 1)


def _sum(rng: random.Random, digits: int) -> Problem:
    numbers = [_number(rng, digits) for _ in range(2 if digits < 3 else rng.choice((2, 2, 3)))]
    return Problem(question="+".join(map(str, numbers)) + "=?", steps=sum_steps(numbers), answer=sum(numbers))


def _difference(rng: random.Random, digits: int) -> Problem:
    small, large = sorted(_number(rng, digits) for _ in range(2))
    return Problem(question=f"{large}-{small}=?", steps=difference_steps(large, small), answer=large - small)


def _sum_equation(rng: random.Random, digits: int) -> Problem:
    a, b = _number(rng, digits), _number(rng, digits)
    return Problem(question=f"x-{a}={b}, x=?", steps=f"{b}+{a} {sum_steps([b, a])}", answer=a + b)


def _difference_equation(rng: random.Random, digits: int) -> Problem:
    a, b = sorted(_number(rng, digits) for _ in range(2))
    return Problem(question=f"x+{a}={b}, x=?", steps=f"{b}-{a} {difference_steps(b, a)}", answer=b - a)


def _chain(rng: random.Random, digits: int) -> Problem:
    a, b = _number(rng, digits), _number(rng, digits)
    c = rng.randint(1, a + b)
    steps = f"{sum_steps([a, b])} {a + b}-{c} {difference_steps(a + b, c)}"
    return Problem(question=f"{a}+{b}-{c}=?", steps=steps, answer=a + b - c)


def _product(rng: random.Random, digits: int) -> Problem:
    a, b = _number(rng, digits), rng.randint(2, 9)
    parts = [int(digit) * 10**place * b for place, digit in enumerate(str(a)[::-1])]
    return Problem(question=f"{a}*{b}=?", steps=f"{'+'.join(map(str, parts))} {sum_steps(parts)}", answer=a * b)


def _linear(rng: random.Random, _digits: int) -> Problem:
    a, x, b = rng.randint(2, 9), rng.randint(1, 20), rng.randint(1, 50)
    c = a * x + b
    steps = f"{c}-{b} {difference_steps(c, b)} {c - b}/{a}={x}"
    return Problem(question=f"{a}x+{b}={c}, x=?", steps=steps, answer=x)


MakeProblem = Callable[[random.Random, int], Problem]
LEVELS: dict[int, tuple[tuple[MakeProblem, int], ...]] = {
    1: ((_sum, 2), (_sum, 2), (_sum_equation, 2)),
    2: ((_sum, 3), (_sum_equation, 3), (_difference, 3), (_difference_equation, 3), (_chain, 2)),
    3: ((_product, 2), (_linear, 2), (_chain, 3)),
}


def generate(rng: random.Random, level: int) -> Task:
    choices = [choice for step in range(1, level + 1) for choice in LEVELS[step]]
    make_problem, digits = rng.choice(choices)
    problem = make_problem(rng, digits)
    spec = {"answer": str(problem.answer), "steps": problem.steps}
    return Task(messages=({"role": "user", "content": problem.question},), spec=spec)


def demonstrate(task: Task) -> list[Message]:
    return demonstrate_answer(task, f"\\boxed{{{task.spec['answer']}}}")
