"""Invented rows of every benchmark in its published format, with prompts, right answers and wrong answers."""

import base64
import json
import pickle
import tempfile
import zlib
from pathlib import Path
from typing import Any

from support.tiny_shop import write_shop
from support.tiny_simulators import FILES, dialogue

from temper.envs.presets import tool_use
from temper.envs.presets.catalog import PRESETS

Row = dict[str, Any]
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
EVALPLUS = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
    "```\n{}\n```\n"
)
TWICE = 'def twice(x: int) -> int:\n    """ Double it.\n    >>> twice(2)\n    4\n    """'
PLUS = """import numpy as np

def is_floats(x) -> bool:
    return isinstance(x, float)

def assertion(out, exp, atol):
    exact = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact and atol != 0:
        np.testing.assert_allclose(out, exp, atol=atol)
    else:
        assert exact
"""
LOOP = "inputs = [[2], [0.5], [-1]]\nresults = [4, 1.0, -2]\nfor i, (inp, exp) in enumerate(zip(inputs, results)):\n"
MBPP_ROW: Row = {
    "task_id": 11,
    "text": "Write a function to double a number.",
    "code": "def twice(x):\r\n  return 2 * x",
    "test_list": ["assert twice(2) == 4", "assert twice(0) == 0", "assert twice(-1) == -2"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


def packed(tests: list[Row], protocol: int = 4) -> str:
    """Private tests in LiveCodeBench's packing."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests), protocol=protocol))).decode()


def contest(**more: Any) -> Row:
    """A row of LiveCodeBench."""
    test = {"input": "1 2\n", "output": "3\n", "testtype": "stdin"}
    plain = {
        "question_title": "Sum",
        "question_content": "Print the sum of two numbers.",
        "platform": "atcoder",
        "question_id": "abc300_a",
        "contest_id": "abc300",
        "contest_date": "2024-09-01T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([test]),
        "private_test_cases": packed([{"input": "20 5\n", "output": "25", "testtype": "stdin"}]),
        "metadata": "{}",
    }
    return plain | more


LEETCODE = contest(
    question_content="Add two numbers.",
    starter_code="class Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        ",
    public_test_cases=json.dumps([{"input": "1\n[2]", "output": "3", "testtype": "functional"}]),
    private_test_cases=packed([{"input": "5\n[5, 1]", "output": "11", "testtype": "functional"}]),
    metadata='{"func_name": "add"}',
    contest_date="2023-05-01T00:00:00",
)
ROWS: dict[str, list[Row]] = {
    "gsm8k": [{"question": "How many are 3 and 4?", "answer": "3+4=<<3+4=7>>7.\n#### 7"}],
    "math500": [
        {
            "problem": "Halve $x$.",
            "solution": "It is $\\boxed{\\frac{x}{2}}$.",
            "answer": "\\frac{x}{2}",
            "subject": "Algebra",
            "level": 1,
            "unique_id": "test/algebra/1.json",
        }
    ],
    "aime24": [
        {
            "id": 60,
            "problem": "What is 5*5?",
            "solution": "...",
            "answer": "025",
            "url": "https://x.org",
            "year": "2024",
        }
    ],
    "aime25": [{"problem": "What is 5*5?", "answer": "25", "id": "0"}],
    "humaneval": [
        {
            "task_id": "HumanEval/900",
            "prompt": f"\n\n{TWICE}\n",
            "canonical_solution": "    return 2 * x\n",
            "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate(2) == 4\n",
            "entry_point": "twice",
        }
    ],
    "humanevalplus": [
        {
            "task_id": "HumanEval/900",
            "prompt": f"\n\n{TWICE}\n",
            "canonical_solution": "    return 2 * x\n",
            "entry_point": "twice",
            "test": f"\n\n{PLUS}\n\ndef check(candidate):\n"
            + "".join(f"    {line}\n" for line in LOOP.splitlines())
            + "        assertion(candidate(*inp), exp, 0)\n",
        }
    ],
    "mbpp": [MBPP_ROW],
    "mbppplus": [
        {
            "task_id": 11,
            "code": "def twice(x):\n  return 2 * x",
            "prompt": "Write a function to double a number.",
            "source_file": "Benchmark Questions Verification V2.ipynb",
            "test_imports": [],
            "test_list": MBPP_ROW["test_list"],
            "test": f"{PLUS}\n\n{LOOP}    assertion(twice(*inp), exp, 0)\n",
        }
    ],
    "livecodebench": [contest(), LEETCODE],
    "ifeval": [
        {
            "key": 1000,
            "prompt": "Say hello without a comma.",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        },
        {
            "key": 1001,
            "prompt": "Say hello in Hindi.",
            "instruction_id_list": ["language:response_language"],
            "kwargs": [{"language": "hi"}],
        },
    ],
}
"""Invented rows of each benchmark in its published format."""
DOUBLED = "It doubles:\n```python\ndef twice(x):\n    return 2 * x\n```"
RIGHT: dict[str, str] = {
    "gsm8k": "3+4 is \\boxed{7}",
    "math500": "\\boxed{x/2}",
    "aime24": "\\boxed{25}",
    "aime25": "\\boxed{025}",
    "humaneval": DOUBLED,
    "humanevalplus": DOUBLED,
    "mbpp": DOUBLED,
    "mbppplus": DOUBLED,
    "livecodebench": "```python\nprint(sum(map(int, input().split())))\n```",
    "ifeval": "Hello there",
}
TRIPLED = DOUBLED.replace("2", "3")
WRONG: dict[str, str] = {
    "gsm8k": "3+4 is \\boxed{8}",
    "math500": "\\boxed{2x}",
    "aime24": "\\boxed{24}",
    "aime25": "25 or 26",
    "humaneval": TRIPLED,
    "humanevalplus": "```python\ndef twice(x):\n    return 2 * int(x)\n```",
    "mbpp": TRIPLED,
    "mbppplus": "```python\ndef twice(x):\n    return 2 * int(x)\n```",
    "livecodebench": "```python\nprint(3)\n```",
    "ifeval": "Hello, there",
}
"""Right and wrong answers for the first row of each. If a set has hidden tests, an answer may pass only the visible ones."""
ASKED: dict[str, str] = {
    "gsm8k": f"How many are 3 and 4?{BOXED}",
    "math500": f"Halve $x$.{BOXED}",
    "aime24": f"What is 5*5?{BOXED}",
    "aime25": f"What is 5*5?{BOXED}",
    "humaneval": (
        "Read the following function signature and docstring, and fully implement the function described. Your response should "
        f"only contain the code for this function.\n{TWICE}\n"
    ),
    "humanevalplus": EVALPLUS.format(TWICE),
    "mbpp": (
        "You are an expert Python programmer, and here is your task: Write a function to double a number. Your code should "
        "pass these tests:\n\nassert twice(2) == 4\nassert twice(0) == 0\nassert twice(-1) == -2\n"
    ),
    "mbppplus": EVALPLUS.format('"""\nWrite a function to double a number.\nassert twice(2) == 4\n"""'),
    "livecodebench": (
        "### Question:\nPrint the sum of two numbers.\n\n### Format: Read the inputs from stdin solve the problem and write "
        "the answer to stdout (do not directly test on the sample inputs). Enclose your code within delimiters as follows.\n"
        "```python\n# YOUR CODE HERE\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    ),
    "ifeval": "Say hello without a comma.",
}
"""The prompt of its first row."""

BESIDE: dict[str, dict[str, str]] = {}
"""Further files by name."""
LATER: dict[str, list[str]] = {}
"""Turns after the first one."""
SILENCE = {preset.name for preset in PRESETS.values() if preset.rule == tool_use.NO_CALL}
"""The benchmarks in which a turn without a call is right."""


def add_function_calls() -> None:
    """Add rows, files and answers of the function-calling leaderboard."""
    says = {"java": ("long", '"3L"'), "javascript": ("float", '"3"')}
    for category in tool_use.ROWS:
        kind, value = says.get(category.removeprefix("simple_"), ("integer", "3"))
        parameters = {"type": "dict", "properties": {"n": {"type": kind, "description": "N."}}, "required": ["n"]}
        name, row_id = f"bfcl_{category}", f"{category}_0"
        function = {"name": "f.g", "description": "Does it.", "parameters": parameters}
        ROWS[name] = [{"id": row_id, "question": [[{"role": "user", "content": "Do 3."}]], "function": [function]}]
        ASKED[name] = "Do 3."
        call = f'<tool_call>{{"name": "f_g", "arguments": {{"n": {value}}}}}</tool_call>'
        RIGHT[name], WRONG[name] = call, call.replace("f_g", "f")
        if name in SILENCE:
            RIGHT[name], WRONG[name] = "I can't.", call
        elif tool_use.ROWS[category][1] == tool_use.ANY_CALL:
            WRONG[name] = "I can't."
        else:
            answer = {"id": row_id, "ground_truth": [{"f.g": {"n": [3]}}]}
            BESIDE[name] = {f"possible_answer/BFCL_v4_{category}.json": json.dumps(answer)}


def add_dialogues() -> None:
    """Add dialogues of two turns with simulators."""
    for preset in tool_use.BFCL_TURNS:
        category = preset.name.removeprefix("bfcl_")
        row, answer = dialogue(category)
        ROWS[preset.name] = [row]
        ASKED[preset.name] = "Make the folder docs."
        call = json.dumps({"name": "mkdir", "arguments": {"name": "docs"}})
        RIGHT[preset.name], WRONG[preset.name] = f"<tool_call>{call}</tool_call>", call
        LATER[preset.name] = ["Made.", '<tool_call>{"name": "ls", "arguments": {}}</tool_call>', "There it is."]
        BESIDE[preset.name] = FILES | {f"possible_answer/BFCL_v4_{category}.json": json.dumps(answer)}


def add_shop() -> None:
    """Add a shop with its files, the small database of other tests."""
    name, asked = "tau_retail", {"order_id": "#W1", "reason": "no longer needed"}
    ASKED[name] = "You are Ann Lee. Cancel it."
    call = {"name": "cancel_pending_order", "kwargs": asked}
    ROWS[name] = [{"user_id": "ann_lee_1", "instruction": ASKED[name], "actions": [call], "outputs": []}]
    called = json.dumps({"name": call["name"], "arguments": asked})
    RIGHT[name], WRONG[name] = f"<tool_call>{called}</tool_call>", "I have cancelled it."
    LATER[name] = ["Done.", "Bye."]
    with tempfile.TemporaryDirectory() as folder:
        BESIDE[name] = {file.name: file.read_text() for file in write_shop(Path(folder)).iterdir()}


add_function_calls()
add_dialogues()
add_shop()
