"""Right and wrong answers to coding tasks, from a task's solution."""

from collections.abc import Iterator

from temper.envs.core.task import Task
from temper.rewards.program_text import join_code

BLOCK = "```python\n{}\n```"
# runs the solution in a separate namespace, so that its recursive calls stay right
OFF_BY_ONE = """
def _off(value):
    if value is None:
        return 0
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, (float, complex)):
        return value + abs(value) + 1  # a test may allow a thousandth of the value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return value[::-1] + [0]
    if isinstance(value, tuple):
        return tuple(value[::-1]) + (0,)
    if isinstance(value, (set, frozenset)):
        return value ^ {{"x"}}
    return {{**value, "x": 0}} if isinstance(value, dict) else None


_right = {{"__name__": "right"}}
exec({solution!r}, _right)


def {name}(*arguments, **keywords):
    return _off(_right[{name!r}](*arguments, **keywords))
"""
METHOD_OFF_BY_ONE = OFF_BY_ONE.replace("_right[{name!r}]", "_right['Solution']().{name}")
FUNCTIONS = {
    "pass": "def {name}(*arguments, **keywords):\n    pass",
    "raises": "def {name}(*arguments, **keywords):\n    raise RuntimeError('no')",
    "ends the check": "def {name}(*arguments, **keywords):\n    raise StopIteration",
    "exits": "import os\n\n\ndef {name}(*arguments, **keywords):\n    os._exit(0)",
    "equal to everything": (
        "class Equal:\n    __eq__ = __le__ = __ge__ = __contains__ = lambda self, other: True\n"
        "    __ne__ = __lt__ = __gt__ = lambda self, other: False\n    __hash__ = object.__hash__\n\n\n"
        "def {name}(*arguments, **keywords):\n    return Equal()"
    ),
}
PROGRAMS = {
    "pass": "pass",
    "raises": "raise RuntimeError('no')",
    "exits": "import os\nos._exit(0)",
    "exits quietly": "raise SystemExit(0)",
}


def reference(task: Task) -> list[str]:
    if "solution" not in task.spec:
        raise ValueError(f"task {task.label} has no solution")
    return [BLOCK.format(task.spec["solution"].strip("\n"))]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    solution, name = task.spec.get("solution"), task.spec.get("entry_point")
    yield "empty", [""]
    yield "prose", ["I would rather not write a program."]
    if name is None:
        yield from ((what, [BLOCK.format(source)]) for what, source in PROGRAMS.items())
        if solution is not None:
            yield "a line too many", [BLOCK.format(join_code("print('a line too many')", solution))]
        return
    yield from ((what, [BLOCK.format(source.format(name=name))]) for what, source in FUNCTIONS.items())
    if solution is not None:
        spoilt = METHOD_OFF_BY_ONE if task.spec.get("method") else OFF_BY_ONE
        program = join_code(task.spec.get("imports", ""), solution)
        yield "off by one", [BLOCK.format(spoilt.format(name=name, solution=program).strip())]
