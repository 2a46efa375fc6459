"""Rows of programming data: the formats of the code environment, and HumanEval's own."""

from typing import Any

from envs import assertion_rows, stdio_rows
from envs.code_source import check_of, defined, imports_for, is_completed_by, parsed, wanted
from envs.formats import Row, RowFormat
from envs.programs import ENV
from envs.rows import field
from envs.task import Task
from rewards.source_text import defines, joined, preamble

COMPLETE = "Complete this Python function. Answer with the whole function in a code block.\n\n```python\n{}\n```"
WRITE = "{}\n\nAnswer with the whole Python program in a code block. It must define `{}`."


def load(row: dict[str, Any], key: str) -> Task:
    """A HumanEval row: `prompt`, `entry_point`, `test` (defines `check(candidate)`), optionally `canonical_solution`.

    The prompt is code to be completed where it defines the entry point, else it is the request in words. HumanEval+
    has the same fields.
    """
    prompt, test = field(row, "prompt", str), field(row, "test", str)
    entry_point = field(row, "entry_point", str)
    if not entry_point.isidentifier():
        raise ValueError(f"field 'entry_point' is no name of a function: {entry_point!r}")
    tree = parsed(test, "test")
    if check_of(tree) is None:
        raise ValueError("field 'test' defines no function check(candidate)")
    completes = defines(prompt, entry_point) and is_completed_by(prompt, "    pass")
    setup = preamble(prompt, entry_point) if completes else ""
    missing = [name for name in wanted(tree) if name not in defined(parsed(setup, "prompt"))]
    spec: dict[str, Any] = {"entry_point": entry_point, "check": test, "names": [entry_point]}
    spec["setup"] = imports_for(missing) + setup
    if completes:
        spec["prompt"] = prompt
    solution = row.get("canonical_solution")
    if isinstance(solution, str):
        whole = defines(solution, entry_point)
        spec["solution"] = joined(setup, solution) if whole or not completes else prompt + solution
    request = COMPLETE.format(prompt.rstrip()) if completes else WRITE.format(prompt.rstrip(), entry_point)
    return Task(env=ENV, key=key, messages=({"role": "user", "content": request},), spec=spec)


def matches(row: Row) -> bool:
    """Whether a row is one of HumanEval's."""
    return all(name in row for name in ("prompt", "test", "entry_point"))


FORMATS = (
    RowFormat(name="humaneval", matches=matches, load=load),
    *stdio_rows.FORMATS,
    *assertion_rows.FORMATS,
)
"""In the order in which they are tried; MBPP's rows are also lists of assertions."""
