"""Generated programming tasks: a small Python function, given by an example or by its steps in words.

Level 1 has mostly functions with a constant to infer from an example, chains of one or two steps on a number, and one step
on each list element, with one-digit constants. Level 2 has larger constants and longer chains, list filters and string
chains. Expected results come from our implementation of each step.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temper.envs.core.task import Message, Task
from temper.envs.core.worked_steps import demonstrate_answer, sum_steps

# few inputs: each test runs in a new process, which costs 5 ms of CPU time
NUMBERS = (-7, 0, 13)
LISTS: tuple[list[int], ...] = ([3, 1, 2], [14, -2, 7, 7, 0], [])
STRINGS = ("abc", "Hello", "x", "a b C", "level9")
WORDS = {"+": ("add", "plus"), "-": ("subtract", "minus"), "*": ("times", "multiply by")}
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda x, n: x + n,
    "-": lambda x, n: x - n,
    "*": lambda x, n: x * n,
}
FILTERS: dict[str, tuple[str, Callable[[int, int], bool]]] = {
    "above": (">", lambda v, n: v > n),
    "below": ("<", lambda v, n: v < n),
}
REDUCERS: dict[str, tuple[str, Callable[[list[int]], Any]]] = {
    "sum": ("sum", sum),
    "count": ("len", len),
    "sorted": ("sorted", sorted),
    "list": ("list", list),
}
STRING_STEPS: dict[str, tuple[str, Callable[[str, int], str]]] = {
    "reverse": ("[::-1]", lambda s, n: s[::-1]),
    "upper": (".upper()", lambda s, n: s.upper()),
    "lower": (".lower()", lambda s, n: s.lower()),
    "first {}": ("[:{}]", lambda s, n: s[:n]),
    "last {}": ("[-{}:]", lambda s, n: s[-n:]),
    "repeat {}": ("*{}", lambda s, n: s * n),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A function in words, the demonstration's plan and expression, and the right results."""

    words: str
    argument: str
    plan: str
    expression: str
    inputs: Sequence[Any]
    outputs: Sequence[Any]


def _constant(rng: random.Random, *, largest: int) -> Exercise:
    """Make `f(x)=c-x, f(47)=38`, whose constant is argument plus result, or `x-c` with a result below 0."""
    a, b = rng.randint(1, largest), rng.randint(1, largest)
    c, falls = a + b, rng.random() < 0.5
    return Exercise(
        words=f"c-x, f({a})={b}" if falls else f"x-c, f({a})=-{b}",
        argument="x",
        plan=f"{a}+{b} {sum_steps([a, b])}",
        expression=f"{c}-x" if falls else f"x-{c}",
        inputs=NUMBERS,
        outputs=[c - value if falls else value - c for value in NUMBERS],
    )


def _number_chain(rng: random.Random, *, largest: int, steps: int) -> Exercise:
    words, forms, values, is_sum = [], ["x"], list(NUMBERS), False
    for _ in range(rng.randint(1, steps)):
        sign, n = rng.choice("+-*"), rng.randint(2, largest)
        words.append(f"{rng.choice(WORDS[sign])} {n}")
        inner = f"({forms[-1]})" if sign == "*" and is_sum else forms[-1]
        forms.append(f"{inner}{sign}{n}")
        is_sum = sign != "*"
        values = [ARITHMETIC[sign](value, n) for value in values]
    return Exercise(
        words=", ".join(words),
        argument="x",
        plan=" ".join(forms[1:]),
        expression=forms[-1],
        inputs=NUMBERS,
        outputs=values,
    )


def _list_step(rng: random.Random, *, largest: int, filtered: bool) -> Exercise:
    sign, n, bound = rng.choice("+-*"), rng.randint(2, largest), rng.randint(0, 9)
    reducer = rng.choice(list(REDUCERS) if filtered else [name for name in REDUCERS if name != "count"])
    condition, (comparison, holds) = rng.choice(list(FILTERS.items()))
    function, reduce = REDUCERS[reducer]
    words = f"{reducer} of each {rng.choice(WORDS[sign])} {n}" + f" if {condition} {bound}" * filtered
    source = f"v{sign}{n} for v in a" + f" if v{comparison}{bound}" * filtered
    kept = [[v for v in values if not filtered or holds(v, bound)] for values in LISTS]
    return Exercise(
        words=words,
        argument="a",
        plan=f"{function} v{sign}{n}" + f" v{comparison}{bound}" * filtered,
        expression=f"{function}([{source}])",
        inputs=LISTS,
        outputs=[reduce([ARITHMETIC[sign](v, n) for v in values]) for values in kept],
    )


def _string_chain(rng: random.Random) -> Exercise:
    words, forms, values = [], ["s"], list(STRINGS)
    for _ in range(rng.choice((1, 2, 2))):
        name, n = rng.choice(list(STRING_STEPS)), rng.randint(2, 5)
        suffix, step = STRING_STEPS[name]
        words.append(name.format(n))
        inner = f"({forms[-1]})" if "*" in forms[-1] and not forms[-1].endswith(")") else forms[-1]
        forms.append(inner + suffix.format(n))
        values = [step(value, n) for value in values]
    return Exercise(
        words=", ".join(words),
        argument="s",
        plan=" ".join(forms[1:]),
        expression=forms[-1],
        inputs=STRINGS,
        outputs=values,
    )


def generate(rng: random.Random, level: int) -> Task:
    largest, steps = (9, 2) if level == 1 else (19, 3)
    kinds: list[Callable[[], Exercise]] = [
        *[lambda: _constant(rng, largest=99)] * 5,
        lambda: _number_chain(rng, largest=largest, steps=steps),
        lambda: _list_step(rng, largest=largest, filtered=False),
    ]
    if level == 2:
        kinds += [lambda: _list_step(rng, largest=largest, filtered=True), lambda: _string_chain(rng)]
    exercise = rng.choice(kinds)()
    tests = [
        {"args": [value], "expected": result} for value, result in zip(exercise.inputs, exercise.outputs, strict=True)
    ]
    spec = {
        "entry_point": "f",
        "tests": tests,
        "plan": exercise.plan,
        "solution": f"def f({exercise.argument}):\n    return {exercise.expression}",
    }
    message = {"role": "user", "content": f"f({exercise.argument}): {exercise.words}"}
    return Task(messages=(message,), spec=spec)


def demonstrate(task: Task) -> list[Message]:
    return demonstrate_answer(task, task.spec.get("solution", ""), steps="plan")
