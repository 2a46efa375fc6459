"""Rows of programming data (HumanEval): a prompt to complete, an entry point and a check function."""

from typing import Any

from envs.programs import ENV
from envs.rows import field
from envs.task import Task

REQUEST = "Complete this Python function. Answer with the whole function in a code block.\n\n```python\n{}\n```"


def load(row: dict[str, Any], key: str) -> Task:
    """A HumanEval row: `prompt`, `entry_point`, `test` (defines `check(candidate)`)."""
    prompt, test = field(row, "prompt", str), field(row, "test", str)
    entry_point = field(row, "entry_point", str)
    if not entry_point.isidentifier():
        raise ValueError(f"field 'entry_point' is no name of a function: {entry_point!r}")
    if "def check(" not in test:
        raise ValueError("field 'test' defines no function check(candidate)")
    spec = {"entry_point": entry_point, "prompt": prompt, "check": test}
    message = {"role": "user", "content": REQUEST.format(prompt.rstrip())}
    return Task(env=ENV, key=key, messages=(message,), spec=spec)
