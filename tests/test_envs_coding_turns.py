"""The turns of a coding episode: failing tests are shown, the program may be repaired."""

from dataclasses import replace

from code_tasks import play, task_of

from envs.coding.env import CodeEnv
from envs.core.thinking_mode import UNLIMITED

ROW = {"text": "Write f.", "code": "def f(x): return x + 1", "test_list": ["assert f(1) == 2", "assert f(5) == 6"]}


def test_a_failing_program_may_be_repaired() -> None:
    task = task_of(ROW, max_turns=3)
    env = CodeEnv()
    env.reset(options={"task": task})
    observation, value, terminated, _, info = env.step("def f(x):\n    return 2")
    assert (value, terminated) == (0.0, False)
    assert "assert f(5) == 6 failed: f(5) returned 2" in observation
    assert "f(1)" not in observation
    assert info["messages"] == [{"role": "user", "content": observation}]
    assert env.step("I give up.")[0].startswith("There is no program")
    assert env.step("def f(x):\n    return x + 1")[1:3] == (1.0, True)
    _, value, terminated, _, info = play(task, "", "pass", "def f(x):\n    return 2")
    assert (value, terminated, info["parts"]["tests"]) == (0.0, True, 0.5)


def test_hidden_tests_are_not_shown() -> None:
    row = {"question": "Double.", "public_tests": {"input": ["1"], "output": ["2"]}}
    row["private_tests"] = {"input": ["4321"], "output": ["8642"]}
    env = CodeEnv()
    env.reset(options={"task": task_of(row, max_turns=2)})
    observation = env.step("print(2)")[0]
    assert "hidden test 2" in observation
    assert "4321" not in observation
    assert "8642" not in observation


def test_a_program_in_the_thought_does_not_count() -> None:
    task = replace(task_of(ROW), thinking=UNLIMITED)
    env = CodeEnv()
    env.reset(options={"task": task})
    assert env.step("```python\ndef f(x):\n    return x + 1\n```</think>That was it.")[1] == 0.0


def test_a_check_function_shows_its_statements_that_fail() -> None:
    test = "def check(g):\n    assert g(1) == 1, 'one'\n    for n in (3, 4):\n        assert g(n) == n, f'of {n}'\n"
    task = task_of({"prompt": "def f(x):\n", "entry_point": "f", "test": test}, max_turns=2)
    env = CodeEnv()
    env.reset(options={"task": task})
    observation = env.step("    return min(x, 3)")[0]
    assert "f(4) returned 3" in observation
    assert "of 4" in observation
    assert "'one'" not in observation
    assert env.step("    return x")[1] == 1.0


def test_what_is_shown_of_a_failing_test_is_short() -> None:
    task = task_of({"text": "Write f.", "test_list": [f"assert f('{'a' * 5000}') == '{'b' * 5000}'"]}, max_turns=2)
    env = CodeEnv()
    env.reset(options={"task": task})
    assert 100 < len(env.step("def f(x):\n    return x * 9")[0]) < 1500
