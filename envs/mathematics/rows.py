"""Rows of mathematics data as tasks, and answers to such tasks that are right or wrong by construction."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from envs.core.jsonl import field
from envs.core.row_format import RowFormat, has_fields
from envs.core.task import Task
from envs.task_env import last_user_text
from rewards.answers import boxes
from rewards.plain_numbers import MAX_CHARACTERS, plain_number

ENV = "math"
REQUEST = "\nPut the final answer in \\boxed{}."


def load_gsm8k(row: dict[str, Any], key: str) -> Task:
    """A GSM8K row: `question`, and `answer` with the final number after `####`. ValueError names what is wrong."""
    question, answer = field(row, "question", str), field(row, "answer", str)
    _, mark, gold = answer.rpartition("####")
    if not mark or not gold.strip():
        raise ValueError("field 'answer' has no final answer after '####'")
    return _task(question, gold, key)


def load_math(row: dict[str, Any], key: str) -> Task:
    """A row as in the MATH data: `problem`, and the final `answer`, or a worked `solution` that ends in a box."""
    problem = field(row, "problem", str)
    if isinstance(row.get("answer"), int) and not isinstance(row["answer"], bool):
        return _task(problem, str(row["answer"]), key)
    if row.get("answer") is not None:
        answer = field(row, "answer", str)
        boxed = boxes(answer)
        return _task(problem, boxed[-1] if boxed else answer.strip().strip("$"), key)
    boxed = boxes(field(row, "solution", str))
    if not boxed:
        raise ValueError("field 'solution' has no closed \\boxed{...}; give one, or a field 'answer'")
    return _task(problem, boxed[-1], key)


FORMATS = (
    RowFormat(name="gsm8k", matches=has_fields("question", "answer"), load=load_gsm8k),
    RowFormat(
        name="math", matches=lambda row: "problem" in row and ("answer" in row or "solution" in row), load=load_math
    ),
)


def _task(question: str, gold: str, key: str) -> Task:
    gold = gold.strip()
    if not 0 < len(gold) <= MAX_CHARACTERS:
        raise ValueError(f"the final answer {gold[:40]!r} must have 1 to {MAX_CHARACTERS} characters, not {len(gold)}")
    if not question.strip():
        raise ValueError("the question is empty")
    message = {"role": "user", "content": question.strip() + REQUEST}
    return Task(env=ENV, key=key, messages=(message,), spec={"answer": gold})


def gold(task: Task) -> list[str]:
    """The turn of a right answer. ValueError where the task holds none."""
    return [boxed(_gold(task))]


def boxed(answer: str) -> str:
    """A sentence with the answer in a box."""
    return f"The answer is \\boxed{{{answer}}}."


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Wrong answers by what was done to the right one. ValueError where the task holds none."""
    right = _gold(task)
    for name, answer in _wrong(right).items():
        yield name, [boxed(answer)]
    another = "0" if plain_number(right) is None else next(iter(_wrong(right).values()))
    yield "empty", [""]
    yield "an empty box", [boxed("")]
    yield "two boxes that differ", [f"{boxed(another)} {boxed(right)}"]
    yield "right box, then another", [f"{boxed(right)} {boxed(another)}"]
    yield "a box left open", [f"The answer is \\boxed{{{right}"]
    yield "the question repeated", [last_user_text(task)]
    yield "the question without its request", [last_user_text(task).removesuffix(REQUEST)]
    if not task.thinks:
        yield "a thought where thinking is off", [f"<think>\nWell.\n</think>\n\n{boxed(right)}"]


def _wrong(right: str) -> dict[str, str]:
    """Wrong answers near the right one."""
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


def _gold(task: Task) -> str:
    if not isinstance(task.spec.get("answer"), str):
        raise ValueError(f"task {task.env}/{task.key} has no 'answer' in its spec: {sorted(task.spec)}")
    return str(task.spec["answer"])
