"""Extraction of the program from an answer, on texts that models write."""

import time

import pytest

from temper.rewards.program_text import Block, blocks, program_of

PROMPT = (
    "from typing import List\n\n\ndef g(x):\n    return x\n\n\n"
    'def f(x: int) -> int:\n    """Adds 1.\n    >>> f(1)\n    2\n    """\n'
)
WHOLE = {
    "a block between prose": "Sure:\n```python\ndef f(x):\n    return x+1\n```\nDone, it's f.",
    "a block marked py": "```py\ndef f(x):\n    return x+1\n```",
    "a block with attributes": '```python title="a.py"\ndef f(x):\n    return x+1\n```',
    "a block of tildes": "~~~\ndef f(x):\n    return x+1\n~~~",
    "an indented block": "1. Code:\n   ```python\n   def f(x):\n       return x+1\n   ```\n2. more",
    "an unclosed block": "Here\n```python\ndef f(x):\n    return x+1",
    "a block that opens after text": "Here is it: ```python\ndef f(x):\n    return x+1\n```",
    "a block that closes after code": "```python\ndef f(x):\n    return x+1```",
    "the last block that defines it": "```python\ndef f(x):\n    return 0\n```\nbetter:\n"
    "```python\ndef f(x):\n    return x+1\n```\n"
    "use\n```python\nprint(f(3))\n```\nout\n```\n4\n```",
    "a block begun before the last was closed": "```python\ndef f(x):\n    return 0\n\n"
    "```python\ndef f(x):\n    return x+1\n```",
    "a block in a block": "````markdown\n```python\ndef f(x):\n    return x+1\n```\n````",
    "a fence in a docstring": '```python\ndef f(x):\n    """Adds.\n\n    ```\n    f(1)\n    ```\n    """\n    return x+1\n```',
    "carriage returns": "```python\r\ndef f(x):\r\n    return x+1\r\n```\r\n",
    "a session in the block": "```python\ndef f(x):\n    return x+1\n\n>>> f(1)\n2\n```",
    "bare code": "def f(x):\n    return x+1",
    "bare code between prose": "Here's the solution you're after:\n\nimport math\n\ndef f(x):\n    # don't\n    return x+1\n\n"
    "This works because it's right.\nprint(f(3)) shows 4.",
    "bare code before a session": "def f(x):\n    return x+1\n\n>>> f(1)\n2",
    "bare code with a main guard": "def f(x):\n    return x+1\n\nif __name__ == '__main__':\n    print(g(f(3)))\n",
    "a lambda": "f = lambda x: x+1",
    "bare code with text and lists at the margin": "from collections import (\nCounter,\n)\nTABLE = [\n1,\n2,\n]\nTEXT = '''\n"
    "not code at all\n'''\n\n@staticmethod\ndef h(): pass\n\ndef f(x):\n    return x + TABLE[0]\n\nExplanation: none",
    "an import from the future": "```python\nfrom __future__ import annotations\n"
    "def f(x: int | None) -> int:\n    return x+1\n```",
}
BODIES = {
    "a body": "    return g(x)+1",
    "a body in a block": "```python\n    y = 1\n    return g(x)+y\n```",
    "a body at the margin": "y = 1\nif y:\n    y = 1\nreturn g(x) + y",
    "a body whose first line is at the margin": "y = 1\n    return x + y",
    "a body before prose": "    return g(x)+1\n\nThis function adds one.",
    "the signature again": "def f(x: int) -> int:\n    return g(x)+1",
}


def result(source: str | None) -> int:
    """Return f(3) of a program. The programs are defined in this file."""
    assert source is not None
    namespace = {"__name__": "solution"}
    exec(source, namespace)
    return namespace["f"](3)  # type: ignore[operator]


@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
def test_a_whole_program_is_found(answer: str) -> None:
    assert result(program_of(answer, entry_point="f")) == 4
    assert result(program_of(answer, entry_point="f", prompt=PROMPT)) == 4


@pytest.mark.parametrize("answer", BODIES.values(), ids=BODIES)
def test_a_completion_continues_the_prompt(answer: str) -> None:
    assert result(program_of(answer, entry_point="f", prompt=PROMPT)) == 4


def test_a_program_that_reads_input_is_the_last_python_block() -> None:
    answer = "```python\nprint(1)\n```\nno:\n```python\nprint(int(input())+1)\n```\nIt prints\n```\n5\n```"
    assert program_of(answer) == "print(int(input())+1)"
    assert program_of("while True: pass") == "while True: pass"
    assert program_of("for _ in range(2): print(1)\nif 1: x += 1\nDone.") == "for _ in range(2): print(1)\nif 1: x += 1"
    assert program_of("```\nprint(2)\n```\n```bash\npython a.py\n```") == "print(2)"
    assert (
        program_of("n = int(input())\nfor i in range(n):\n    print(i)")
        == "n = int(input())\nfor i in range(n):\n    print(i)"
    )


@pytest.mark.parametrize("answer", ["", " \n ", "```\n\n```", "```python\n```", "x" * 70_000])
def test_nothing_and_far_too_much_are_no_program(answer: str) -> None:
    assert program_of(answer, entry_point="f", prompt=PROMPT) is None
    assert program_of(answer) is None


def test_blocks_keep_their_mark_and_lose_their_indentation() -> None:
    assert blocks("  ```Py\n    a\n  b\n c\n  ```\n~~~~\n~~~\n~~~~") == [Block("py", "  a\nb\nc"), Block("", "~~~")]


HOSTILE = [
    "`" * 100_000,
    "`" * 100_000 + " x y",
    "```" + " " * 100_000 + "x y",
    "```\n" * 25_000,
    '"' * 100_000,
    '"\\' * 50_000,
    "'''\\" * 25_000,
    "(" * 100_000,
    "a[" * 50_000,
    "a," * 50_000 + "=",
    "a =" * 33_000,
    "word " * 20_000,
    "if " + ":#" * 50_000,
    "\n" * 100_000,
    " \n" * 50_000,
    "def f" * 20_000,
    "def " + " " * 100_000,
    "async \t\n" * 12_000,
    "from __future__ import a\n" * 4000 + "def f(x):",
    "a(" + ")#" * 50_000 + "z",
    "a(" + ") " * 50_000 + "z",
    ">>> \n" * 20_000,
]


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_read_in_linear_time(answer: str) -> None:
    start = time.process_time()
    program_of(answer, entry_point="f", prompt=PROMPT)
    program_of(answer)
    assert time.process_time() - start < 2.0
