"""Shared tools: they answer, their errors go back to the model, the episode continues."""

import time
from typing import Any

import pytest
from support.bound import made, opened

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn, call_message, parse_turn, turn_text
from temper.envs.env_episode import EnvEpisode
from temper.envs.source import open_source
from temper.envs.task_env import TaskEnv


def task_with(tools: list[str], env_id: str = "math") -> Task:
    return open_source(bind(env_id, EnvConfig(tools=tools)), split="train", seed=0).task(0)


def turn(*calls: tuple[str, dict[str, Any]]) -> str:
    said = [call_message(name, arguments) for name, arguments in calls]
    return turn_text({"content": "", "tool_calls": said}, thinks=True)


def test_a_task_shows_its_shared_tools_beside_its_own() -> None:
    names = [tool["function"]["name"] for tool in task_with(["python", "calculator"], "tool_use").tools]
    assert names == ["get", "calc", "python", "calculator"]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (("python", {"code": "x = 6\nprint(x * 7)"}), "42\n"),
        (("python", {"code": "print(open('/etc/passwd').read())"}), "error: raised: "),
        (("python", {"code": "while True: pass"}), "error: time: "),
        (("python", {"code": 3}), "error: python takes one string, code"),
        (("calculator", {"expression": "2*(3+4)"}), "14"),
        (("calculator", {"expression": "__import__('os')"}), "error: only numbers"),
        (("calculator", {"expression": "1/0"}), "error: division by zero"),
    ],
)
def test_a_shared_tool_answers_or_says_what_was_wrong(call: tuple[str, dict[str, Any]], answer: str) -> None:
    env, task = made("math"), task_with(["python", "calculator"])
    env.reset(options={"task": task})
    _, reward, terminated, truncated, info = env.step(turn(call))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["messages"][0]["content"].startswith(answer), info
    assert env.step(f"</think>\\boxed{{{task.spec['answer']}}}")[1] == 1.0


def test_several_calls_are_answered_in_order() -> None:
    env = opened(task_with(["calculator"]))
    calls = [("calculator", {"expression": "1+1"}), ("python", {"code": "1"}), ("calculator", {"expression": "2+2"})]
    *_, info = env.step(turn(*calls))
    assert [message["content"] for message in info["messages"]] == [
        "2",
        "error: unknown tool; there are calculator",
        "4",
    ]


def test_own_and_shared_calls_are_answered_in_order() -> None:
    task = task_with(["calculator", "python"], "tool_use")
    key, value = next(iter(task.spec["database"].items()))
    env = opened(task)
    calls = [
        ("calculator", {"expression": "1+1"}),
        ("get", {"key": key}),
        ("sql", {}),
        ("python", {"code": "print(3)"}),
    ]
    *_, info = env.step(turn(*calls) + "<tool_call>{</tool_call>")
    told = [message["content"] for message in info["messages"]]
    assert (told[0], told[1], told[3]) == ("2", str(value), "3\n")
    assert all(text.startswith("error:") for text in (told[2], told[4]))
    *_, info = env.step(f"</think>\\boxed{{{task.spec['answer']}}}")
    assert (info["parts"]["correct"], info["parts"]["tool_errors"]) == (1.0, pytest.approx(2 / 3))


@pytest.mark.parametrize("call", [("calculator", {"expression": "1+1"}), ("calc", {"expr": "1+1"})])
def test_eight_of_twelve_calls_are_carried_out(call: tuple[str, dict[str, Any]]) -> None:
    env = opened(task_with(["calculator"], "tool_use"))
    *_, info = env.step(turn(*[call] * 12))
    told = [message["content"] for message in info["messages"]]
    assert told[:8] == ["2"] * 8
    assert [text.startswith("error:") for text in told[8:]] == [True] * 4


class Careless(TaskEnv):
    """Answers only the first of its calls."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        return self.continue_with([{"role": "user", "content": "and?"}, {"role": "tool", "content": "first"}])


def test_an_unanswered_own_call_gets_an_error() -> None:
    task = task_with(["calculator"], "tool_use")
    env = Careless()
    env.reset(options={"task": task})
    *_, info = env.step(turn(("get", {"key": "a"}), ("get", {"key": "b"}), ("calculator", {"expression": "1"})))
    told = [(message["role"], message["content"][:6]) for message in info["messages"]]
    assert told == [("tool", "first"), ("tool", "error:"), ("tool", "1"), ("user", "and?")]


def test_each_call_of_a_turn_is_timed_alone() -> None:
    episode = EnvEpisode(task_with(["calculator", "python"]))
    episode.begin()
    sleeps = ("python", {"code": "import time\ntime.sleep(0.3)\nprint(1)"})
    text = turn(sleeps, ("calculator", {"expression": "1+1"})) + "<tool_call>{</tool_call>"
    began = time.monotonic()
    result = episode.step(parse_turn(text, thinks=True))
    took = time.monotonic() - began
    episode.close()
    assert [message["content"] for message in result.messages][:2] == ["1\n", "2"]
    slow, quick, unread = result.tool_spans
    assert [(one.name, one.arguments) for one in (slow, quick)] == [sleeps, ("calculator", {"expression": "1+1"})]
    assert (unread.name, unread.arguments) == ("", {})
    assert 0.3 <= slow.seconds <= took
    assert quick.seconds < 0.1
    assert 0 <= slow.began_s < slow.began_s + slow.seconds <= quick.began_s <= unread.began_s <= took


def test_without_a_shared_tool_a_call_is_no_answer() -> None:
    env = opened(task_with([]))
    _, reward, terminated, *_ = env.step(turn(("python", {"code": "print(1)"})))
    assert (reward, terminated) == (0.0, True)


def test_the_last_turn_may_not_call_a_tool() -> None:
    env = opened(task_with(["calculator"]))
    for _ in range(3):
        assert env.step(turn(("calculator", {"expression": "1"})))[2:4] == (False, False)
    assert env.step(turn(("calculator", {"expression": "1"})))[1:4] == (0.0, False, True)
