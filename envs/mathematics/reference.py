"""Right and wrong answers to mathematics questions, from a task's answer."""

from collections.abc import Iterator
from fractions import Fraction

from temper.envs.core.task import Task
from temper.envs.mathematics.rows import AGREE, BOXES, bare_question
from temper.envs.task_env import last_user_text
from temper.rewards.plain_numbers import plain_number


def reference(task: Task) -> list[str]:
    return [to_boxed(_reference(task))]


def to_boxed(answer: str) -> str:
    return f"The answer is \\boxed{{{answer}}}."


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    right = _reference(task)
    for name, answer in _wrong(right).items():
        yield name, [to_boxed(answer)]
    another = "0" if plain_number(right) is None else next(iter(_wrong(right).values()))
    yield "empty", [""]
    yield "an empty box", [to_boxed("")]
    if task.spec.get(BOXES, AGREE) == AGREE:
        yield "two boxes that differ", [f"{to_boxed(another)} {to_boxed(right)}"]
    yield "right box, then another", [f"{to_boxed(right)} {to_boxed(another)}"]
    yield "a box left open", [f"The answer is \\boxed{{{right}"]
    yield "the question repeated", [last_user_text(task)]
    yield "the question without its request", [bare_question(task)]
    if not task.thinks:
        yield "reasoning while thinking is off", [f"<think>\nWell.\n</think>\n\n{to_boxed(right)}"]


def _wrong(right: str) -> dict[str, str]:
    value = plain_number(right)
    if value is None:
        one_more = {} if "\\infty" in right else {"one more": f"{right}+1"}
        return one_more | {"another answer": "0", "denied": f"\\text{{not }} {right}"}
    wrong = {"the next number": value + 1, "the number before": value - 1, "half more": value + Fraction(1, 2)}
    if value:
        wrong |= {"negated": -value, "ten times": 10 * value}
    return {name: str(number) for name, number in wrong.items()} | {
        "left unevaluated": f"{right}+0",
        "a chain of equations": f"{value - 1}={value}",
        "two answers": f"{right} \\text{{ or }} {value + 1}",
    }


def _reference(task: Task) -> str:
    if not isinstance(task.spec.get("answer"), str):
        raise ValueError(f"task {task.label} has no 'answer' in its spec: {sorted(task.spec)}")
    return str(task.spec["answer"])
