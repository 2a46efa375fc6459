"""The code environment on rows of each format: right and wrong programs, and the feedback to the model."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.code_tasks import play, reward, task_of
from support.refusals import refuses
from support.task_data import DATA, needs_data

from temper.envs.binding import bind
from temper.envs.coding.reference import negatives, reference
from temper.envs.config import EnvConfig
from temper.envs.core.errors import GraderError
from temper.envs.source import open_source


def humaneval() -> Iterator[dict[str, Any]]:
    with (DATA / "humaneval.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


@needs_data
def test_every_canonical_solution_passes_in_each_form() -> None:
    def scores(row: dict[str, Any]) -> list[float]:
        task, whole = task_of(row), row["prompt"] + row["canonical_solution"]
        return [reward(task, answer) for answer in (f"```python\n{whole}\n```", whole, row["canonical_solution"])]

    with ThreadPoolExecutor(4) as pool:
        for row, result in zip(humaneval(), pool.map(scores, humaneval()), strict=True):
            assert result == [1.0, 1.0, 1.0], row["task_id"]


@needs_data
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_wrong_solution_of_humaneval_fails(every: int) -> None:
    def survivors(row: dict[str, Any]) -> list[str]:
        task = task_of(row)
        wrong = {name: reward(task, turns[0]) for name, turns in negatives(task)}
        wrong["no body"] = reward(task, row["prompt"] + "    pass")
        assert len(wrong) == 9
        return [name for name, value in wrong.items() if value != 0.0]

    with ThreadPoolExecutor(4) as pool:
        rows = list(humaneval())[::every]
        for row, found in zip(rows, pool.map(survivors, rows), strict=True):
            assert found == [], row["task_id"]


@needs_data
def test_with_fractional_credit_a_checks_statements_are_tests() -> None:
    row = next(humaneval())
    task = task_of(row, credit="fraction")
    assert reward(task, reference(task)[0]) == 1.0
    _, value, _, _, info = play(task, row["prompt"] + "    return True")
    assert 0.3 < value < 0.8
    assert info["parts"]["tests"] == info["parts"]["correct"] == value
    assert info["outcome"] == "wrong"
    assert info["evidence"] == {
        "comparator": "check",
        "tests": 7,
        "executed": 7,
        "isolation": info["evidence"]["isolation"],
    }


def mbpp(code: str, *tests: str, setup: str = "") -> dict[str, Any]:
    """Return a row in the style of the full MBPP."""
    return {
        "task_id": 1,
        "text": "Write a function.",
        "code": code,
        "test_list": list(tests),
        "test_setup_code": setup,
        "challenge_test_list": [],
    }


NODE = "class Node:\n    def __init__(self, data):\n        self.data, self.left, self.right = data, None, None\n"
HEIGHT = "def height(node):\n    return 0 if node is None else 1 + max(height(node.left), height(node.right))"
TREE = "root = Node(1)\nroot.left = Node(2)\nroot.right = Node(3)\nroot.left.left = Node(4)\n"
KINDS = (
    "import datetime\nfrom collections import *\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
    "P = namedtuple('P', 'x y')\ndef kinds():\n    return [Fraction(1, 3), Decimal('1.50'), datetime.date(2020, 1, 2),"
    " datetime.timedelta(1), P(1, 2), deque([1]), range(3), {1: 2}.keys(), bytearray(b'x'), 1j, OrderedDict(a=1),"
    " defaultdict(int, {1: 1}), int, frozenset({1}), datetime.datetime(2020, 1, 2, 3, 4), None, 1e400]"
)
MBPP = {
    "floats, with a module that is not imported": (
        mbpp(
            "import math\ndef area(r):\n    return math.pi*r*r",
            "assert math.isclose(area(1), 3.14159265, rel_tol=0.001)",
            "assert math.isclose(area(2), 12.566, rel_tol=0.001)",
        ),
        "import math\ndef area(r):\n    return 3.1*r*r",
    ),
    "sets": (
        mbpp("def common(a, b):\n    return tuple(set(a) & set(b))", "assert set(common((1, 2), (2, 3))) == set((2,))"),
        "def common(a, b):\n    return tuple(a)",
    ),
    "a tuple is no list": (
        mbpp("def pair(a, b):\n    return (a, b)", "assert pair(1, 2) == (1, 2)"),
        "def pair(a, b):\n    return [a, b]",
    ),
    "a counter": (
        mbpp(
            "from collections import Counter\ndef count(a):\n    return Counter(a)",
            "assert count([1, 1, 2]) == {1: 2, 2: 1}",
            "assert count([1]).most_common(1) == [(1, 1)]",
        ),
        "def count(a):\n    return dict.fromkeys(a, 1)",
    ),
    "a match": (
        mbpp(
            "import re\ndef begins(s):\n    return re.match('a+', s)",
            "assert begins('aab')",
            "assert not begins('b')",
            "assert begins('aab').group() == 'aa'",
        ),
        "def begins(s):\n    return s.startswith('a')",
    ),
    "a generator": (
        mbpp(
            "def squares(n):\n    return (i*i for i in range(n))",
            "assert list(squares(3)) == [0, 1, 4]",
            "assert next(squares(2)) == 0",
        ),
        "def squares(n):\n    return (i for i in range(n))",
    ),
    "objects made by the set-up": (
        mbpp(NODE + HEIGHT, "assert height(root) == 3", "assert height(root.left) == 2", setup=TREE),
        NODE + "def height(node):\n    return 3",
    ),
    "several calls in one assertion": (
        mbpp("def double(x):\n    return 2 * x", "assert double(1) + double(2) == double(3)", "assert double(2) == 4"),
        "def double(x):\n    return 3 * x",
    ),
    "an argument changed in place": (
        mbpp("def order(a):\n    a.sort()", "x = [3, 1, 2]\norder(x)\nassert x == [1, 2, 3]"),
        "def order(a):\n    return sorted(a)",
    ),
    "an exception": (
        mbpp(
            "def root(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x**0.5",
            "try:\n    root(-1)\n    assert False\nexcept ValueError:\n    pass",
            "assert root(4) == 2.0",
        ),
        "def root(x):\n    return abs(x)**0.5",
    ),
    "keywords": (
        mbpp("def scale(a, *, by=2):\n    return [by*x for x in a]", "assert scale([1], by=3) == [3]"),
        "def scale(a, by=2):\n    return [2*x for x in a]",
    ),
    "functions as arguments": (
        mbpp(
            "def each(f, a):\n    return [f(x) for x in a]",
            "assert each(lambda x: x + 1, [1, 2]) == [2, 3]",
            "assert each(len, ['ab']) == [2]",
        ),
        "def each(f, a):\n    return a",
    ),
    "a function as the result": (
        mbpp("def adder(n):\n    return lambda x: x + n", "assert adder(3)(4) == 7"),
        "def adder(n):\n    return lambda x: x",
    ),
    "a class": (
        mbpp(
            "class Stack:\n    def __init__(self):\n        self.a = []\n    def push(self, x):\n        self.a.append(x)\n"
            "    def pop(self):\n        return self.a.pop()\n    def __len__(self):\n        return len(self.a)",
            "s = Stack()\ns.push(3)\nassert len(s) == 1\nassert s.pop() == 3\nassert isinstance(s, Stack)",
        ),
        "class Stack:\n    def push(self, x):\n        pass\n    def pop(self):\n        return 3",
    ),
    "further types": (
        mbpp(
            KINDS,
            "from fractions import Fraction\nassert kinds()[0] == Fraction(1, 3) and kinds()[15] is None",
            "import decimal\nassert kinds()[1] == decimal.Decimal('1.5')",
            "import datetime\nassert kinds()[2].year == 2020 and kinds()[3].days == 1 and kinds()[14].hour == 3",
            "from collections import deque\nassert kinds()[4].y == 2 and kinds()[4] == (1, 2) and kinds()[5] == deque([1])",
            "assert kinds()[6] == range(3) and list(kinds()[7]) == [1] and kinds()[8] == b'x' and kinds()[9] == 1j",
            "assert kinds()[10] == {'a': 1} and kinds()[11][1] == 1 and kinds()[12] is int and kinds()[13] == {1}",
            "assert kinds()[16] == float('inf') and 1 in kinds()[7]",
        ),
        "def kinds():\n    return [1] * 17",
    ),
}


@pytest.mark.parametrize("name", MBPP)
def test_rows_like_mbpp(name: str) -> None:
    row, wrong = MBPP[name]
    task = task_of(row, credit="fraction")
    _, value, *_, info = play(task, reference(task)[0])
    assert value == 1.0, info
    assert reward(task, wrong) < 1.0
    assert reward(task_of(row), wrong) == 0.0


def test_the_sanitized_mbpp_and_lists_of_assertions_are_read() -> None:
    tests = ["assert math.floor(half(5)) == 2", "assert half(4) == 2.0"]
    rows: list[dict[str, Any]] = [
        {"task_id": 2, "prompt": "Halve.", "code": "def half(x):\n    return x/2", "test_imports": ["import math"]}
        | {"test_list": tests},
        {"prompt": "Halve.", "assertions": tests, "entry_point": "half"},
        {"question": "Halve.", "tests": "import math\n" + "\n".join(tests)},
        {
            "question": "Halve.",
            "test": f"from solution import half\nimport math\n\ndef test_it():\n    {tests[0]}\n    {tests[1]}\n",
        },
    ]
    for row in rows:
        task = task_of(row)
        assert task.spec["entry_point"] == "half"
        assert "`half`" in task.messages[0]["content"]
        assert reward(task, "def half(x):\n    return x/2") == 1.0
        assert reward(task, "def half(x):\n    return x//2 if x == 4 else 0") == 0.0


def test_a_check_of_humaneval_plus_is_carried_out() -> None:
    test = (
        "def is_floats(x):\n    return isinstance(x, float)\n\n"
        "def assertion(out, exp, atol):\n    if atol == 0 and is_floats(exp):\n        atol = 1e-6\n"
        "    if out != exp and atol != 0:\n        assert abs(out - exp) < atol\n    else:\n        assert out == exp\n\n"
        "def check(candidate):\n    inputs = [[1, 2], [3, 4], [0.1, 0.2]]\n    results = [3, 7, 0.3]\n"
        "    for i, (inp, exp) in enumerate(zip(inputs, results)):\n        assertion(candidate(*inp), exp, 0)\n"
    )
    task = task_of({"task_id": "x", "prompt": "def add(a, b):\n", "entry_point": "add", "test": test})
    assert reward(task, "    return a + b") == 1.0
    assert reward(task, "    return a + b if a < 3 else 8") == 0.0


@pytest.mark.parametrize("credit", ["all", "fraction"])
def test_a_check_may_call_the_entry_point_by_name(credit: str) -> None:
    row = {
        "prompt": "def ordered(x):\n",
        "entry_point": "ordered",
        "canonical_solution": "    return sorted(x)\n",
        "test": "def check(candidate):\n    assert tuple(candidate([2, 1])) == tuple(ordered([2, 1]))\n",
    }
    task = task_of(row, credit=credit)
    assert reward(task, "    return sorted(x)") == 1.0
    assert reward(task, "    return x") == 0.0
    both = row | {
        "test": "def check(candidate):\n    assert candidate([1]) == [1]\n    assert ordered([2, 1]) == [1, 2]\n"
    }
    assert reward(task_of(both), "    return sorted(x)") == 1.0
    assert reward(task_of(both), "    return x") == 0.0


def test_a_check_with_a_request_in_words_is_no_completion() -> None:
    row = {"prompt": "Add two numbers.", "entry_point": "add", "test": "def check(f):\n    assert f(1, 2) == 3\n"}
    assert reward(task_of(row), "```python\ndef add(a, b):\n    return a + b\n```") == 1.0


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"prompt": "p", "entry_point": "f", "test": "def chck(f): pass"}, "test"),
        ({"prompt": "p", "entry_point": "f", "test": "def check(f:"}, "test"),
        ({"prompt": "p", "entry_point": "f(", "test": ""}, "entry_point"),
        (mbpp("def f(x): return x", "assert f(1 == 1"), "test_list"),
        (mbpp("def f(x): return x", "assert f(1) == 1", "assert 1 == 1"), "test_list"),
        (mbpp("def f(x): return x"), "test_list"),
        ({"prompt": "p", "tests": "x = 1"}, "tests"),
        ({"question": "q", "input_output": "{'inputs': []}"}, "input_output"),
        ({"question": "q", "input_output": '{"inputs": ["1"], "outputs": []}'}, "input_output"),
        ({"question": "q", "tests": [{"input": "1"}]}, "tests"),
        ({"tests": [{"input": "1", "output": "1"}]}, "question"),
        ({"question": "q", "tests": [{"input": {}, "output": "1"}]}, "input"),
        ({"question": "q"}, "question"),
    ],
)
def test_a_broken_row_is_named(row: dict[str, Any], key: str) -> None:
    with refuses(key):
        task_of(row)


def test_a_check_that_breaks_is_the_graders_error() -> None:
    row = {"prompt": "def f(x):\n", "entry_point": "f"}
    for test in ("undefined\ndef check(f):\n    pass\n", "def check(f):\n    pass\n", "def check(f):\n    undefined\n"):
        with refuses("f", error=GraderError):
            play(task_of(row | {"test": test}), "    return x")


def test_generated_tasks_have_reference_and_wrong_answers() -> None:
    source = open_source(bind("code", EnvConfig(level=2)), split="train", seed=3)
    for index in range(10):
        task = source.task(index)
        assert play(task, *reference(task))[1] == 1.0
        for name, turns in negatives(task):
            assert play(task, *turns)[1] == 0.0, (task, name)
