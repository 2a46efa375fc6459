"""Right and wrong scripts of tool use, for generated tasks and for rows of function-calling data."""

from collections.abc import Iterator

from envs.core.task import Task
from envs.tool_use import function_rows, lookups


def gold(task: Task) -> list[str]:
    """The turns of a right answer."""
    return function_rows.gold(task) if "accepted" in task.spec else lookups.gold(task)


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Wrong scripts, by what was done to the right one."""
    return function_rows.corruptions(task) if "accepted" in task.spec else lookups.corruptions(task)
