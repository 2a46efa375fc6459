"""The turns of a coding episode: failing tests are shown, the program may be repaired."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from support.bound import bound, opened
from support.code_tasks import play, task_of

from temper.envs.coding.env import ENVIRONMENT
from temper.envs.coding.exercises import generate
from temper.envs.core.thinking_mode import OFF, UNLIMITED

ROW = {"text": "Write f.", "code": "def f(x): return x + 1", "test_list": ["assert f(1) == 2", "assert f(5) == 6"]}


def test_a_failing_program_may_be_repaired() -> None:
    task = task_of(ROW, max_turns=3)
    env = opened(task)
    observation, value, terminated, _, info = env.step("def f(x):\n    return 2")
    assert (value, terminated) == (0.0, False)
    assert "hidden test 2" in observation
    assert info["messages"] == [{"role": "user", "content": observation}]
    assert env.step("I give up.")[0].startswith("There is no program")
    assert env.step("def f(x):\n    return x + 1")[1:3] == (1.0, True)
    _, value, terminated, _, info = play(task, "", "pass", "def f(x):\n    return 2")
    assert (value, terminated, info["parts"]["tests"]) == (0.0, True, 0.5)


ASSERTIONS = ["assert f(2) == 4321", "assert f(30) == 8642", "assert f(77) == 9753"]
IO = {"inputs": ["17\n", "77\n"], "outputs": ["4321", "8642"]}
PAIRS = [{"input": "17", "output": "4321"}, {"input": "77", "output": "8642"}]


@pytest.mark.parametrize(
    ("row", "options", "shown", "hidden"),
    [
        ({"text": "Write f.", "test_list": ASSERTIONS}, {}, ("f(2)", "4321"), ("30", "77", "8642", "9753")),
        (
            {"text": "Write f.", "test_list": ASSERTIONS},
            {"prompt": "{question} {tests}"},
            ("f(2)", "f(30)", "8642", "f(77)", "9753"),
            (),
        ),
        (
            {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(g):\n    assert g(17) == 4321\n"},
            {},
            (),
            ("17", "4321"),
        ),
        ({"question": "Double.", "input_output": json.dumps(IO)}, {}, (), ("17", "4321", "77", "8642")),
        ({"question": "Double.", "examples": PAIRS[:1] * 2, "tests": PAIRS}, {}, ("17", "4321"), ("77", "8642")),
    ],
)
def test_a_repair_shows_no_test_that_the_prompt_does_not_show(
    row: dict[str, Any], options: dict[str, Any], shown: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    env = opened(task_of(row, options=options, max_turns=2))
    observation = env.step("```python\nf = print\n```")[0]
    assert "hidden test" in observation or not hidden
    assert [text for text in shown if text not in observation] == []
    assert [text for text in hidden if text in observation] == []


def test_a_hidden_test_names_the_fault_but_no_values() -> None:
    task = replace(bound(generate(random.Random(3), 2), ENVIRONMENT, max_turns=2), thinking=OFF)
    env = opened(task)
    observation = env.step(f"def {task.spec['entry_point']}(*x):\n    raise ValueError(x)")[0]
    assert "hidden test 1: the program raised an error" in observation
    assert "ValueError" not in observation
    observation = opened(task).step("def f(x):\n    return None")[0]
    assert "hidden test 1: the result is wrong" in observation
    assert "expected" not in observation


def test_a_program_in_the_thought_does_not_count() -> None:
    task = replace(task_of(ROW), thinking=UNLIMITED)
    env = opened(task)
    assert env.step("```python\ndef f(x):\n    return x + 1\n```</think>That was it.")[1] == 0.0


def test_what_is_shown_of_a_failing_test_is_short() -> None:
    task = task_of({"text": "Write f.", "test_list": [f"assert f('{'a' * 5000}') == '{'b' * 5000}'"]}, max_turns=2)
    env = opened(task)
    assert 100 < len(env.step("def f(x):\n    return x * 9")[0]) < 1500
