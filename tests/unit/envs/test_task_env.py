"""The three environments through gymnasium's interface: demonstrations, wrong answers, faults."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import pytest
from support.bound import made, opened, say
from support.code_tasks import task_of

from temper.envs.binding import bind
from temper.envs.catalog import ENVIRONMENTS, environment, make_drawing_env
from temper.envs.coding import checks
from temper.envs.config import EnvConfig
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import GymStep, StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import ParsedTurn, call_message, turn_text
from temper.envs.source import open_source
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score

IDS = ("math", "code", "tool_use")
ALL = [environment(env_id) for env_id in IDS]


def play(task: Task, messages: list[Message]) -> GymStep:
    """Send the assistant's messages in order, and check the tool messages in between."""
    env = opened(task)
    said = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index in said[:-1]:
        *_, terminated, truncated, info = env.step(turn_text(messages[index], thinks=task.thinks))
        assert (terminated, truncated) == (False, False)
        observed = info["messages"]
        assert observed == messages[index + 1 : index + 1 + len(observed)]
    return env.step(turn_text(messages[said[-1]], thinks=task.thinks))


def one_step(env_id: str, action: str, *, thinks: bool = True) -> tuple[Task, GymStep]:
    task = open_source(bind(env_id, EnvConfig(thinking=thinks)), split="train", seed=0).task(0)
    env = opened(task)
    return task, env.step(action)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("env", ALL, ids=lambda env: env.id)
def test_every_demonstration_scores_one(env: EnvDefinition, level: int, thinks: bool) -> None:
    assert env.demonstrate is not None
    source = open_source(bind(env.id, EnvConfig(level=level, thinking=thinks)), split="train", seed=5)
    for task in (source.task(index) for index in range(30)):
        observation, reward, terminated, truncated, info = play(task, env.demonstrate(task))
        assert (observation, reward, terminated, truncated) == ("", 1.0, True, False), (task, info)
        assert info["outcome"] == "ok"
        assert info["parts"]["correct"] == 1.0


@pytest.mark.parametrize("env_id", IDS)
def test_a_thought_left_open_is_wrong(env_id: str) -> None:
    task = open_source(bind(env_id, EnvConfig()), split="train", seed=0).task(0)
    demonstrate = environment(env_id).demonstrate
    assert demonstrate is not None
    answer = turn_text(demonstrate(task)[-1], thinks=False)
    _, (_, reward, terminated, _, info) = one_step(env_id, f"thinking {answer}")
    assert (reward, terminated, info["outcome"], info["parts"]["format"]) == (0.0, True, "wrong", 0.0)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("action", ["", "</think>", "</think>\\boxed{99999}", "</think>```\n```", "</think>\x00\ud800"])
def test_rubbish_is_wrong_and_no_fault_of_ours(env_id: str, action: str) -> None:
    _, (_, reward, terminated, _, info) = one_step(env_id, action)
    assert (reward, terminated) == (0.0, True)
    assert info["outcome"] in ("wrong", "policy_fault")


def test_reset_takes_only_tasks() -> None:
    with pytest.raises(ValueError, match=r"options\['task'\].* None"):
        made("math").reset()
    with pytest.raises(ValueError, match=r"options\['task'\].*'code'"):
        made("math").reset(options={"task": "code"})
    with pytest.raises(ValueError, match="tsak"):
        made("math").reset(options={"tsak": None})


def test_an_episode_that_has_ended_takes_no_more_steps() -> None:
    env = make_drawing_env(environment("math"))
    env.reset(seed=1)
    env.step("</think>1")
    with pytest.raises(RuntimeError, match="reset"):
        env.step("</think>1")


def test_an_async_turn_is_refused_where_it_is_defined() -> None:
    with pytest.raises(ValueError, match=r"Waits\.turn"):

        class Waits(TaskEnv):
            async def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:  # type: ignore[override]
                return self.end(binary_score(True))


def test_an_end_without_a_verdict_names_what_it_got() -> None:
    class Careless(TaskEnv):
        def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
            return self.end(1.0)  # type: ignore[arg-type]

    env = Careless()
    env.reset(options={"task": open_source(bind("math", EnvConfig()), split="train", seed=0).task(0)})
    with pytest.raises(ValueError, match="1.0"):
        env.step("</think>1")


def test_episodes_run_from_many_threads() -> None:
    sources = [open_source(bind(env.id, EnvConfig()), split="train", seed=9) for env in ALL]
    tasks = [source.task(index) for index in range(16) for source in sources]

    def reward(task: Task) -> float:
        demonstrate = environment(task.env.name).demonstrate
        assert demonstrate is not None
        return float(play(task, demonstrate(task))[1])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(reward, tasks)) == {1.0}


def test_tool_calls_are_answered_one_by_one() -> None:
    task = open_source(bind("tool_use", EnvConfig()), split="train", seed=0).task(0)
    key, value = next(iter(task.spec["database"].items()))
    env = opened(task)
    calls = [call_message("get", {"key": key}), call_message("get", {"key": "nobody"}), call_message("sql", {})]
    said = turn_text({"content": "", "tool_calls": calls}, thinks=True) + "<tool_call>{</tool_call>"
    observation, reward, terminated, truncated, info = env.step(said)
    assert (reward, terminated, truncated) == (0.0, False, False)
    contents = [message["content"] for message in info["messages"]]
    assert contents[0] == str(value)
    assert all(content.startswith("error: ") for content in contents[1:])
    assert len(contents) == 4
    assert observation == "\n".join(contents)


GRADED = [env for env in ENVIRONMENTS.values() if env.generate is not None and env.reference is not None]
MISSING = "reasoning_gym" if find_spec("reasoning_gym") is None else ""
UNREADABLE = [
    ("}}</tool_call>", "}</tool_call>"),
    ("</tool_call>", ""),
    ('"arguments": {', '"arguments": "{'),
    ("", ""),
]
"""Replacements that break a call, and the last one that leaves it readable."""


@pytest.mark.parametrize("tools", [[], ["calculator"]], ids=["alone", "with a tool"])
@pytest.mark.parametrize("env", GRADED, ids=lambda env: env.id)
def test_an_answer_inside_a_call_earns_nothing(env: EnvDefinition, tools: list[str]) -> None:
    """A task with tools answers each such call by an error, and its episode continues."""
    if env.id == MISSING:
        pytest.skip("reasoning-gym is not installed")
    source = open_source(bind(env.id, EnvConfig(tools=tools, thinking=False)), split="train", seed=3)
    for task in (source.task(index) for index in range(2)):
        assert env.reference is not None
        finish = call_message("finish", {"text": env.reference(task)[-1]})
        call = turn_text({"content": "", "tool_calls": [finish]}, thinks=False)
        for old, new in UNREADABLE:
            episode = opened(task)
            _, reward, terminated, truncated, info = episode.step(call.replace(old, new))
            assert (reward, episode.answer) == (0.0, "")
            if task.tools:
                assert (terminated, truncated) == (False, False)
                assert [message["content"][:6] for message in info["messages"]] == ["error:"]
            episode.close()


def test_without_tools_the_text_around_a_call_is_the_answer() -> None:
    task, _ = one_step("math", "</think>")
    called = say(f"\\boxed{{{task.spec['answer']}}}", ("finish", {"text": "\\boxed{0}"}), thinks=True)
    assert opened(task).step(called)[1] == 1.0


def test_tool_use_is_cut_off_after_its_turns() -> None:
    task = open_source(bind("tool_use", EnvConfig(max_turns=2)), split="train", seed=0).task(0)
    env = opened(task)
    action = turn_text({"content": "", "tool_calls": [call_message("calc", {"expr": "1+1"})]}, thinks=True)
    assert env.step(action)[2:4] == (False, False)
    assert env.step(action)[1:4] == (0.0, False, True)


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("def f(*a):\n    return 10**9", "wrong"),
        ("def f(*a):\n    raise KeyError", "wrong"),
        ("def f(:", "wrong"),
        ("def g(x):\n    return x", "wrong"),
        ("while True: pass", "policy_fault"),
        ("def f(x):\n    return bytearray(1 << 40)", "policy_fault"),
        ("import os\nos._exit(0)", "policy_fault"),
        ("import os\ndef f(x):\n    return os.fork()", "policy_fault"),
        ("def f(x):\n    return 'a' * 2**21", "policy_fault"),
    ],
)
def test_a_programs_faults_have_an_outcome_and_no_reward(source: str, outcome: str) -> None:
    _, (_, reward, terminated, _, info) = one_step("code", f"</think>{source}")
    assert (reward, terminated, info["outcome"]) == (0.0, True, outcome), info


def test_a_slow_candidate_can_not_make_the_check_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LIMITS", replace(checks.LIMITS, wall_s=3.0))
    test = "def check(candidate):\n    assert candidate(1) == 2\n"
    task = task_of({"prompt": "def f(x):\n", "entry_point": "f", "test": test})
    slow = "import time\ntime.sleep(30)\ndef f(x):\n    return 2"
    *_, info = play(task, [{"role": "assistant", "content": slow}])
    assert info["outcome"] == "policy_fault"


def test_weights_and_length_limit_make_the_reward() -> None:
    config = EnvConfig(weights={"correct": 1.0, "tool_errors": -0.5, "length": 0.1}, length_limit=60)
    task = open_source(bind("tool_use", config), split="train", seed=0).task(0)
    env = opened(task)
    env.step("</think>" + turn_text({"content": "", "tool_calls": [call_message("get", {"key": "?"})]}, thinks=False))
    *_, info = env.step(f"</think>\\boxed{{{task.spec['answer']}}}")
    assert (info["parts"]["correct"], info["parts"]["tool_errors"]) == (1.0, 1.0)
    assert 0 < info["parts"]["length"] < 1
    env.reset(options={"task": task})
    *_, info = env.step(f"</think>{'x' * 130}")
    assert (info["parts"]["length"], info["parts"]["tool_errors"]) == (0.0, 0.0)
