"""Temper's environments in gymnasium, and gymnasium's environments in Temper."""

import random
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

import temper.envs.registration
from temper.envs.catalog import ENVIRONMENTS
from temper.envs.core.task import EnvRef, Task
from temper.envs.task_env import ANY_TEXT, TaskEnv
from temper.envs.transcript import score_turns


def made(env_id: str, **settings: Any) -> "gymnasium.Env[str, str]":
    return gymnasium.make(f"{temper.envs.registration.NAMESPACE}/{env_id}-v0", **settings)


def task_in(env: "gymnasium.Env[str, str]") -> Task:
    assert isinstance(env.unwrapped, TaskEnv)
    assert env.unwrapped.task is not None
    return env.unwrapped.task


def test_an_environment_of_an_id_grades_a_bare_answer() -> None:
    env = made("math")
    observation, _ = env.reset(seed=3)
    task = task_in(env)
    assert observation == task.messages[-1]["content"]
    _, reward, terminated, truncated, info = env.step(f"\\boxed{{{task.spec['answer']}}}")
    assert (reward, terminated, truncated, info["outcome"]) == (1.0, True, False, "ok")
    again, _ = env.reset(seed=3)
    assert again == observation
    assert env.step("\\boxed{no number}")[1] == 0.0
    assert len({env.reset()[0] for _ in range(20)}) > 10


def test_level_options_and_thinking_are_arguments() -> None:
    for level in (1, 2):
        env = made("math", level=level)
        drawn = {env.reset(seed=seed)[0] for seed in range(20)}
        generate = ENVIRONMENTS["math"].generate
        assert generate is not None
        own = {generate(random.Random(seed), level).messages[-1]["content"] for seed in range(3000)}
        assert len(drawn & own) > 0 or level > 1
    cliff = made("gym", options={"id": "CliffWalking-v1"}, split="train")
    assert "cliff" in cliff.reset(seed=0)[0]
    thinking = made("math", thinking=True)
    thinking.reset(seed=3)
    assert thinking.step(f"so </think>\\boxed{{{task_in(thinking).spec['answer']}}}")[1] == 1.0
    with pytest.raises(ValueError, match="level=99"):
        made("math", level=99)


def test_rows_of_data_are_tasks_too(tmp_path: Any) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "1+1", "answer": "so #### 2"}\n{"question": "5", "answer": "so #### 5"}\n' * 9)
    env = made("math", data=str(data))
    env.reset(seed=0)
    assert env.step(f"\\boxed{{{task_in(env).spec['answer']}}}")[1] == 1.0


@pytest.mark.parametrize("env_id", ["math", "tool_use", "gym", "multiple_choice"])
def test_gymnasiums_own_check_passes(env_id: str) -> None:
    env = made(env_id)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.action_space.contains("\\boxed{\u221a2 \U0001f600}")
    assert "\\" in env.action_space.character_list  # type: ignore[attr-defined]


def test_long_texts_pass_between_processes() -> None:
    memory = create_shared_memory(ANY_TEXT, n=1)
    write_to_shared_memory(ANY_TEXT, 0, "x" * 5000, memory)  # type: ignore[arg-type]
    assert read_from_shared_memory(ANY_TEXT, memory, n=1) == ("x" * 5000,)


def test_environments_step_side_by_side() -> None:
    both = gymnasium.make_vec("temper/math-v0", num_envs=2, vectorization_mode="sync")
    both.reset(seed=1)
    _, rewards, ended, _, _ = both.step(["\\boxed{1}", "\\boxed{x}"])
    assert rewards.shape == (2,)
    assert ended.all()


class Plain(gymnasium.Env[str, str]):
    """Accepts `x`, and knows no thinking."""

    metadata = {"render_modes": []}
    observation_space = action_space = gymnasium.spaces.Text(99)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Say x.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == "x"), True, False, {}


class Raw(Plain):
    metadata = {"render_modes": [], "raw_turns": True}


@pytest.mark.parametrize(("name", "rewards"), [("Plain", (1.0, 1.0, 0.0, 1.0)), ("Raw", (0.0,) * 4)])
def test_a_class_of_gymnasium_is_given_the_answer_alone(name: str, rewards: tuple[float, ...]) -> None:
    ref = EnvRef(name="own", entry_point=f"{__name__}:{name}")
    task = replace(Task(messages=({"role": "user", "content": "Say x."},), spec={}), env=ref)
    turns = ("x", "why?</think>x", "x, why?", "x<tool_call>y</tool_call>")
    assert tuple(score_turns(task, [text]).reward for text in turns) == rewards
