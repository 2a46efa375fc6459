"""Binding of environments: their tasks carry everything that another process needs to run them, as plain data."""

import json
import pickle
import random
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_shop import write_shop

from temper.envs.binding import bind
from temper.envs.catalog import ENVIRONMENTS, make_env
from temper.envs.config import EnvConfig
from temper.envs.core.task import CHAT, EnvSettings, Task
from temper.envs.data.config import DataConfig
from temper.envs.source import open_source, read_row_tasks
from temper.envs.transcript import score_turns
from temper.orchestrator.pipeline.config import load_config, make_config

LAKE = EnvConfig(kind="gym", options={"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "max_steps": 9})


@pytest.mark.parametrize("env_id", ["math", "code", "tool_use"])
def test_a_tasks_spec_does_not_depend_on_the_settings(env_id: str) -> None:
    told = EnvConfig(
        max_turns=3, weights={"format": 0.5}, length_limit=9, tools=["python"], threads=2, credit="fraction"
    )
    plain, other = (open_source(bind(env_id, config), split="train", seed=1).task(0) for config in (EnvConfig(), told))
    assert (plain.spec, plain.key) == (other.spec, other.key)
    assert other.env.settings == EnvSettings(
        max_turns=3,
        tool_turns=3,
        weights={"format": 0.5},
        length_limit=9,
        tools=("python",),
        threads=2,
        credit="fraction",
    )


@pytest.mark.parametrize(
    ("name", "config"), [("sums", EnvConfig(kind="math", weights={"format": 2.0})), ("lake", LAKE)]
)
def test_a_task_is_plain_data_that_anyone_can_play(name: str, config: EnvConfig) -> None:
    env = bind(name, config)
    task = open_source(env, split="train", seed=1).task(0)
    sent: Task = pickle.loads(pickle.dumps(task))
    assert sent == task
    json.dumps(asdict(task.env))
    assert env.definition.reference is not None
    assert score_turns(sent, env.definition.reference(sent)).score.parts["correct"] == 1.0


@pytest.mark.parametrize(
    ("env_id", "options", "said"),
    [
        ("math", {}, "math has levels 1 to 3"),
        ("code", {}, "code has levels 1 to 2"),
        ("tool_use", {}, "tool_use has levels 1 to 2"),
        ("search", {}, "search has levels 1 to 3"),
        ("needles", {}, "needles has levels 1 to 4"),
        ("multiple_choice", {}, "multiple_choice has levels 1 to 3"),
        ("short_answer", {}, "short_answer has levels 1 to 3"),
        ("structured_output", {}, "structured_output has levels 1 to 3"),
        ("instruction_following", {}, "instruction_following has levels 1 to 3"),
        ("reasoning_gym", {"dataset": "ab"}, "reasoning_gym has only level 1"),
        ("gym", LAKE.options, "gym has only level 1"),
    ],
)
def test_a_level_that_does_not_exist_is_found_with_the_settings(
    env_id: str, options: dict[str, Any], said: str
) -> None:
    """The hardest level gives tasks. The next one is refused before any is made. Rows of data have no levels."""
    highest = int(re.findall(r"\d+", said)[-1])
    one = EnvConfig(kind=env_id, options=options)
    env = bind("mine", replace(one, level=highest))
    assert env.definition.generate is not None
    assert env.definition.generate(random.Random(0), highest).messages
    with pytest.raises(ValueError, match=re.escape(f"envs.mine.level={highest + 1}: {said}")):
        make_config({"name": "levels", "envs": {"mine": {"kind": env_id, "options": options, "level": highest + 1}}})
    bind("mine", replace(one, level=highest + 1, data=DataConfig(path="rows.jsonl")))


def test_all_environments_that_generate_say_their_levels() -> None:
    silent = [env.id for env in ENVIRONMENTS.values() if env.generate is not None and env.levels is None]
    assert silent == []


def test_a_task_of_a_game_has_only_its_number() -> None:
    task = open_source(bind("lake", LAKE), split="train", seed=1).task(0)
    assert set(task.spec) == {"number"}
    assert (task.env.name, task.env.options["max_steps"], task.env.settings.max_turns) == ("lake", 9, 9)


def test_the_database_of_a_shop_is_found_beside_the_rows(tmp_path: Path) -> None:
    write_shop(tmp_path)
    row = {"user_id": "bob_ray_2", "instruction": "You.", "actions": [], "outputs": ["2"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    data = DataConfig(path=str(tmp_path / "rows.jsonl"))
    (task,) = (each.task for each in read_row_tasks(bind("shop", EnvConfig(kind="retail", data=data)), data))
    assert (task.env.name, task.env.options) == ("shop", {"database": str(tmp_path.resolve())})
    assert set(task.spec) == {"user_id", "actions", "outputs"}


def test_turns_with_shared_tools_are_at_least_four() -> None:
    def turns(env_id: str, max_turns: int | None = None) -> tuple[int | None, int]:
        settings = bind(env_id, EnvConfig(tools=["python"], max_turns=max_turns)).ref.settings
        return settings.max_turns, settings.tool_turns

    assert [turns("math"), turns("retail"), turns("math", 2)] == [(1, 4), (30, 30), (2, 2)]


def test_a_run_binds_each_of_its_environments_once() -> None:
    config = load_config(Path("configs/demo.yaml"), [])
    assert config.environments is config.environments
    assert {name: env.ref.name for name, env in config.environments.items()} == {name: name for name in config.envs}


def test_a_prompt_of_a_chat_file_has_no_environment() -> None:
    with pytest.raises(ValueError, match="'chat'"):
        make_env(CHAT)
