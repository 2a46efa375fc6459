"""Rows of inputs and outputs: the layouts of public data sets, comparison of outputs, partial credit."""

import json
from typing import Any

import pytest
from support.code_tasks import play, reward, task_of

from temper.envs.coding.reference import negatives, reference
from temper.rewards.program_output import is_json_equal, is_same_output

DOUBLE = "for line in open(0):\n    print(2 * int(line))"


def double(**fields: Any) -> dict[str, Any]:
    return {"question": "Double each number.", "solution": DOUBLE} | fields


SPELLINGS = {
    "tests": double(tests=[{"input": "1\n2\n", "output": "2\n4\n"}, {"input": "5", "output": "10"}]),
    "tests in JSON": double(tests=json.dumps([{"input": "1\n", "output": "2"}, {"input": "7", "output": "14"}])),
    "inputs and outputs": double(inputs=["1\n", "3\n"], outputs=["2\n", "6\n"]),
    "APPS": double(
        input_output=json.dumps({"inputs": ["1\n", "3"], "outputs": ["2", "6\n"]}), solutions=json.dumps([DOUBLE])
    ),
    "lists of lines": double(input_output={"inputs": [["1", "2"], ["3"]], "outputs": [["2", "4"], ["6"]]}),
    "CodeContests": double(
        description="Double each number.",
        public_tests={"input": ["1"], "output": ["2"]},
        private_tests={"input": ["3"], "output": ["6"]},
        generated_tests={"input": [], "output": []},
    ),
    "LiveCodeBench": double(
        question_content="Double each number.",
        public_test_cases=json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]),
        private_test_cases=json.dumps([{"input": "3", "output": "6", "testtype": "stdin"}]),
        metadata="{}",
        starter_code="",
    ),
    "Codeforces": double(examples=[{"input": "1", "output": "2"}], official_tests=[{"input": "3", "output": "6"}]),
    "test cases": double(test_cases=[{"stdin": "1", "expected_output": "2"}, {"stdin": "4", "expected_output": "8"}]),
    "numbers": double(inputs=[1, 2], outputs=[2, 4]),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_accepts_only_the_solution(name: str) -> None:
    task = task_of(SPELLINGS[name])
    assert len(task.spec["stdio"]) == 2
    assert reward(task, reference(task)[0]) == 1.0
    wrong = {name: reward(task, turns[0]) for name, turns in negatives(task)}
    assert set(wrong.values()) == {0.0}, wrong
    assert "a line too many" in wrong
    assert reward(task, "print(2)") == 0.0


PROBLEMS = [
    ("Sum.", [("1 2", "3"), ("-1 1", "0")], "print(sum(map(int, input().split())))", "print(3)"),
    (
        "Greet.",
        [("Ann", "Hello, Ann!"), ("Bo", "Hello, Bo!")],
        "print(f'Hello, {input()}!')",
        "print('Hello,', input())",
    ),
    (
        "Mean.",
        [("1 2", "1.5"), ("1 1 2", "1.3333333")],
        "a = [*map(int, input().split())]\nprint(sum(a) / len(a))",
        "print(1.5)",
    ),
    (
        "Lines.",
        [("2\na\nb", "b\na")],
        "n = int(input())\nfor s in [input() for _ in range(n)][::-1]:\n    print(s)",
        "print('b a')",
    ),
    (
        "Count.",
        [("a b a", "a 2\nb 1")],
        "from collections import Counter\nfor k, n in Counter(input().split()).items():\n    print(k, n)",
        "print('a 2')",
    ),
    ("Max.", [("3 9 2", "9"), ("1", "1")], "import sys\nprint(max(map(int, sys.stdin.read().split())))", "print(9)"),
    ("Even.", [("2", "YES"), ("3", "NO")], "print('NO' if int(input()) % 2 else 'YES')", "print('yes')"),
    (
        "Sort.",
        [("3 1 2", "1 2 3")],
        "def main():\n    print(*sorted(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        "print('123')",
    ),
    ("Big.", [("40", str(3**400))], "print(3 ** (10 * int(input())))", "print(float(3) ** 400)"),
    (
        "Exit.",
        [("0", "zero"), ("1", "one")],
        "import sys\nif input() == '0':\n    print('zero')\n    sys.exit()\nprint('one')",
        "print('zero')",
    ),
]


@pytest.mark.parametrize(("text", "tests", "right", "wrong"), PROBLEMS, ids=[problem[0] for problem in PROBLEMS])
def test_programs_that_read_and_write(text: str, tests: list[tuple[str, str]], right: str, wrong: str) -> None:
    task = task_of({"problem": text, "tests": [{"input": given, "output": wanted} for given, wanted in tests]})
    assert play(task, f"```python\n{right}\n```")[4]["outcome"] == "ok"
    assert reward(task, f"```python\n{wrong}\n```") == 0.0


def test_an_exit_with_code_0_earns_what_the_output_is_worth() -> None:
    task = task_of({"problem": "Twice.", "tests": [{"input": "2", "output": "4"}, {"input": "3", "output": "6"}]})
    program = "import os\nprint({}, flush=True)\nos._exit(0)"
    assert reward(task, program.format("2 * int(input())")) == 1.0
    assert reward(task, program.format("4")) == 0.0
    assert reward(task, "import os\nos._exit(0)") == 0.0


@pytest.mark.parametrize("name", ["checker", "generated_checker", "special_judge"])
def test_a_row_with_a_checker_of_its_own_is_refused(name: str) -> None:
    row = {"problem": "Any prime.", "tests": [{"input": "", "output": "2"}]}
    assert task_of(row | {name: None}).spec["stdio"]
    with pytest.raises(ValueError, match=name):
        task_of(row | {name: "def check(output): ..."})


def test_functions_of_a_row_get_values_from_json() -> None:
    apps = {"inputs": [[[1, 2]], [[]]], "outputs": [[[2, 1]], [[]]], "fn_name": "turn"}
    starter = "class Solution:\n    def turn(self, a: List[int]) -> List[int]:\n"
    cases = [{"input": "[1, 2]", "output": "[2, 1]", "testtype": "functional"}]
    rows = [
        {"question": "Turn.", "input_output": json.dumps(apps), "starter_code": starter},
        {"question": "Turn.", "input_output": json.dumps(apps | {"outputs": [[2, 1], []]}), "starter_code": starter},
        {
            "question_content": "Turn.",
            "public_test_cases": json.dumps(cases),
            "metadata": json.dumps({"func_name": "turn"}),
            "starter_code": starter,
        },
    ]
    for row in rows:
        task = task_of(row)
        assert "class Solution" in task.messages[0]["content"]
        assert reward(task, f"```python\n{starter}        return a[::-1]\n```") == 1.0
        assert reward(task, "def turn(a):\n    return tuple(reversed(a))") == 1.0
        assert reward(task, f"```python\n{starter}        return a\n```") == 0.0


CLASS = "class Solution:\n    def merge(self, a: List[int], b: Optional[List[int]] = None) -> List[int]:\n        return {}\n"
MAIN = "\nif __name__ == '__main__':\n    print(Solution().merge([1]))\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{CLASS}\n```",
        f"```python\n{CLASS}{MAIN}\n```",
        f"```python\n{CLASS}\n```\nSo it is used:\n```python\nprint(Solution().merge([1], [2]))\n```",
        f"```python\n{CLASS}\ndef merge(a, b):\n    return Solution().merge(a, b)\n```",
        "```python\nclass Solution:\n    @staticmethod\n    def merge(a, b):\n        return {}\n```",
        "```python\ndef merge(a: List[int], b: Optional[List[int]]) -> List[int]:\n    return {}\n```",
        f"```python\nfrom __future__ import annotations\n{CLASS}\n```",
        CLASS,
    ],
)
@pytest.mark.parametrize("starter", ["", CLASS.format("...")])
def test_a_class_solution_is_judged_with_and_without_a_starter(answer: str, starter: str) -> None:
    """`merge` is also a name of the module heapq, whose names these programs get."""
    tests = {"inputs": [[[1, 3], [2]]], "outputs": [[1, 2, 3]], "fn_name": "merge"}
    task = task_of({"question": "Merge.", "input_output": json.dumps(tests), "starter_code": starter})
    assert reward(task, answer.replace("{}", "sorted(a + b)")) == 1.0
    assert reward(task, answer.replace("{}", "a + b")) == 0.0


def test_credit_is_the_share_of_tests_where_it_is_a_fraction() -> None:
    row = double(tests=[{"input": str(n), "output": str(2 * n)} for n in range(4)])
    parts = play(task_of(row, credit="fraction"), "print(2 if input() == '1' else 0)")[4]["parts"]
    assert (parts["correct"], parts["tests"]) == (0.5, 0.5)
    parts = play(task_of(row), "print(2 if input() == '1' else 0)")[4]["parts"]
    assert (parts["correct"], parts["tests"]) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("same", "pairs"),
    [
        (True, [("1 2\n", "1 2"), ("1 2  \n\n", "1 2"), ("1  2", "1 2"), ("", "")]),
        (
            True,
            [("0.3333333", "0.33333330001"), ("1e3", "1000.0"), ("5.0", "5"), ("007", "7"), ("9" * 5000, "9" * 5000)],
        ),
        (False, [("1\n2", "1 2"), ("12", "1 2"), ("", "0"), ("a", "A")]),
        (False, [("0.3334", "0.3333"), ("5.1", "5"), ("8" * 5000, "9" * 5000), ("nan", "1.5")]),
        (False, [("1e999", "9" * 400), ("1e999", "1.5"), ("1e99999999999", "5")]),
        (False, [("12345678901234567891.0", "12345678901234567890")]),
    ],
)
def test_outputs_are_compared_by_lines_and_words(same: bool, pairs: list[tuple[str, str]]) -> None:
    assert [pair for pair in pairs if is_same_output(*pair) is not same] == []


@pytest.mark.parametrize(
    ("equal", "pairs"),
    [
        (True, [((1, 2), [1, 2]), (2.0, 2), ({1: "a"}, {"1": "a"})]),
        (False, [(True, 1), ([1], 1), ("1", 1)]),
    ],
)
def test_values_from_json_have_no_tuples_and_no_whole_floats(equal: bool, pairs: list[tuple[Any, Any]]) -> None:
    assert [pair for pair in pairs if is_json_equal(*pair) is not equal] == []
