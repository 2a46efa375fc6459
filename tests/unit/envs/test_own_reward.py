"""A user's function scores the answers of an environment: of rows, of generated tasks, with tools."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.bound import opened, say
from support.in_loop import in_loop
from support.refusals import failure_kind

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.errors import FailureKind
from temper.envs.core.task import Task
from temper.envs.data.config import DataConfig
from temper.envs.source import content_key, open_source, read_row_tasks
from temper.envs.transcript import score_turns

MINE = "support.user_functions"


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    rows = [{"question": f"How much is {number}+1?", "answer": str(number + 1)} for number in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig(path=str(path))


def first(name: str, **settings: Any) -> Task:
    config = EnvConfig(**settings)
    return open_source(bind(name, config), split="train", seed=0).task(0)


def test_a_function_judges_rows_that_are_asked_as_they_are(data: DataConfig) -> None:
    task = first("mine", data=data, reward=f"{MINE}.length")
    assert task.messages == ({"role": "user", "content": task.spec["row"]["question"]},)
    assert score_turns(task, [task.spec["row"]["answer"]]).reward == 0.0
    assert score_turns(task, [task.spec["row"]["answer"] + "xyz"]).reward == -3.0


def test_several_parts_are_summed_or_weighed(data: DataConfig) -> None:
    task = first("mine", data=data, reward=f"{MINE}.parts")
    right = score_turns(task, [task.spec["row"]["answer"]])
    assert (right.reward, right.score.parts) == (1.5, {"right": 1.0, "short": 0.5})
    weighed = first("mine", data=data, reward=f"{MINE}.parts", weights={"right": 2.0})
    assert score_turns(weighed, [weighed.spec["row"]["answer"]]).reward == 2.0


def test_a_truncated_or_unreadable_answer_is_judged_as_empty(data: DataConfig) -> None:
    task = first("mine", data=data, reward=f"{MINE}.parts")
    assert opened(task).step("reasoning without an end")[1] == 0.5
    assert opened(task).truncate("by tokens", "half an ans").reward == 0.5


def test_a_function_gets_the_text_around_calls(data: DataConfig) -> None:
    called = say("xy", ("finish", {"text": "z"}))
    alone = first("mine", data=data, reward=f"{MINE}.parts", thinking=False)
    expected = score_turns(alone, ["xy"])
    assert score_turns(alone, [called]).score == expected.score
    env = opened(first("mine", data=data, reward=f"{MINE}.parts", tools=["calculator"], max_turns=1, thinking=False))
    assert env.step(called)[2:4] == (False, True)


@in_loop
async def test_an_async_function_judges_inside_a_running_loop(data: DataConfig) -> None:
    task = first("mine", data=data, reward=f"{MINE}.parts")
    assert score_turns(task, [task.spec["row"]["answer"]]).reward == 1.5


@pytest.mark.parametrize("function", ["broken", "nothing", "empty", "exiting"])
def test_a_function_that_fails_is_a_failure_of_the_grader(data: DataConfig, function: str) -> None:
    scored = score_turns(first("mine", data=data, reward=f"{MINE}.{function}"), ["4"])
    assert scored.reward is None
    assert failure_kind(scored) is FailureKind.GRADER


def test_a_function_may_change_its_row_and_name_a_part_length(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"{number}?", "tests": ["a", "b"]}) + "\n" for number in range(40)))
    rows, function = DataConfig(path=str(path)), f"{MINE}.emptying"
    task = first("mine", data=rows, reward=function)
    assert [score_turns(task, ["4"]).reward for _ in range(2)] == [3.0, 3.0]
    limited = score_turns(first("mine", data=rows, reward=function, length_limit=9), ["4"])
    assert limited.failure is not None


def test_a_function_judges_generated_tasks_by_their_spec() -> None:
    task = first("math", reward=f"{MINE}.parts")
    assert score_turns(task, [task.spec["answer"]]).reward == 1.5


def test_a_function_judges_the_answer_behind_tool_calls(data: DataConfig) -> None:
    """Calls that can't be executed return errors, and the episode continues until an answer or its limit."""
    task = first("mine", data=data, reward=f"{MINE}.parts", tools=[f"{MINE}.population", "calculator"], max_turns=4)
    env = opened(task)
    *_, info = env.step(say("", ("population", {"city": "Oslo"}), ("calculator", {"expression": "1+1"}), thinks=True))
    assert [message["content"] for message in info["messages"]] == ["702020", "2"]
    for bad in (say("", ("nowhere", {}), thinks=True), "</think><tool_call>{</tool_call>"):
        _, _, over, _, info = env.step(bad)
        assert (over, info["messages"][0]["content"][:6]) == (False, "error:")
    assert env.step(f"</think>{task.spec['row']['answer']}")[1:3] == (1.5, True)


def test_a_function_can_be_named_by_its_file(data: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "my-file.py").write_text("def f(answer, row):\n    return len(answer)\n")
    assert score_turns(first("mine", data=data, reward=f"{tmp_path}/my-file.py:f"), ["12345"]).reward == 5.0


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"reward": "nowhere.f"}, "nowhere.f"),
        ({"reward": f"{MINE}.nothing_there"}, "nothing_there"),
        ({"reward": f"{MINE}.partz"}, "'parts'"),
        ({"reward": "f"}, "module.function"),
        ({"reward": f"{MINE}.over_a_batch"}, "answer, row"),
        ({"kind": "tool_use", "reward": f"{MINE}.length"}, "reward"),
        ({"kind": "rows"}, "reward"),
        ({"kind": "math", "tools": [f"{MINE}.untyped"]}, "untyped"),
        ({"kind": "math", "tools": [f"{MINE}.population", f"{MINE}.population"]}, "population"),
        ({"kind": "math", "tools": ["search"]}, "search"),
    ],
)
def test_an_unusable_function_is_refused_with_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key) as error:
        bind("mine", EnvConfig(**settings))
    assert "envs.mine" in str(error.value)


def test_rows_with_other_hidden_fields_are_other_tasks(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "?", "n": 1}\n{"prompt": [{"role": "user", "content": "?"}], "n": 2}\n')
    env = bind("mine", EnvConfig(data=DataConfig(path=str(path)), reward=f"{MINE}.length"))
    assert env.config.data is not None
    tasks = [each.task for each in read_row_tasks(env, env.config.data)]
    assert [task.spec["row"]["n"] for task in tasks] == [1, 2]
    assert len({content_key(task) for task in tasks}) == 2
