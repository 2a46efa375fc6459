"""Demonstrations: sums and differences by columns, and the answer after them."""

from temper.envs.core.task import Message, Task


def demonstrate_answer(task: Task, content: str, *, steps: str = "steps") -> list[Message]:
    """Return an answer after the steps of a generated task. Raise `ValueError` for a row of data, which has none."""
    if steps not in task.spec:
        raise ValueError("a row of data has no worked steps; use a generated task")
    return [{"role": "assistant", "reasoning_content": task.spec[steps], "content": content}]


def sum_steps(numbers: list[int]) -> str:
    """Work out a sum in columns from the right, with the carry as last summand: 47+38 -> `7+8=15 4+3+1=8`."""
    columns, carry, steps = [str(n)[::-1] for n in numbers], 0, []
    for place in range(max(map(len, columns))):
        digits = [int(column[place]) for column in columns if place < len(column)] + [carry] * (carry > 0)
        total = sum(digits)
        steps.append("+".join(map(str, digits)) + f"={total}")
        carry = total // 10
    return " ".join(steps)


def difference_steps(a: int, b: int) -> str:
    """Work out a difference in columns from the right, with the borrow: 52-17 -> `12-7=5 4-1=3`. Needs a >= b >= 0."""
    top, bottom, borrow, steps = str(a)[::-1], str(b)[::-1], 0, []
    for place, digit in enumerate(top):
        upper = int(digit) - borrow
        lower = int(bottom[place]) if place < len(bottom) else 0
        borrow = int(upper < lower)
        steps.append(f"{upper + 10 * borrow}-{lower}={upper + 10 * borrow - lower}")
    return " ".join(steps)
