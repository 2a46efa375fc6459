"""Episodes of every environment that another process continues reach the same end."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.bound import generated, say
from support.code_tasks import task_of as code_task
from support.held_engine import said_in
from support.interruptions import interrupted, mathematics, own, same_but_for_versions
from support.scripted_engine import play
from support.tiny_shop import CANCEL, DETAILS, row, write_shop
from unit.envs.coding.test_turns import ROW as CODE_ROW
from unit.envs.remote.test_nemo_gym import SAY_ADD, CounterServer
from unit.envs.remote.test_nemo_gym import server as server
from unit.envs.remote.test_nemo_gym import task_of as remote_task
from unit.envs.retail.test_retail import task_of as shop_task

from temper.envs.binding import bind
from temper.envs.catalog import configure_env, environment
from temper.envs.config import EnvConfig
from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.core.turn_text import turn_text
from temper.envs.source import open_source
from temper.rollout.trajectory import Resumption


def program(path: Path) -> tuple[Task, list[str]]:
    wrong, right = "def f(x):\n    return 2", "def f(x):\n    return x + 1"
    return dataclasses.replace(code_task(CODE_ROW, max_turns=3), thinking=OFF), [wrong, "I give up.", right]


def tool_use(path: Path) -> tuple[Task, list[str]]:
    env = environment("tool_use")
    task = open_source(bind("tool_use", EnvConfig()), split="train", seed=1).task(0)
    assert env.demonstrate is not None
    said: list[Message] = [message for message in env.demonstrate(task) if message["role"] == "assistant"]
    return task, [turn_text(message, thinks=True) for message in said]


def shop(path: Path) -> tuple[Task, list[str]]:
    task = shop_task(write_shop(path), row(CANCEL, outputs=("10.1",)), max_turns=6)
    return task, [say("", DETAILS), say("Shall I?"), say("", CANCEL), say("10.1 it is")]


def puzzle(path: Path) -> tuple[Task, list[str]]:
    options = {"dataset": "basic_arithmetic"}
    task, reference = generated("reasoning_gym", options, seed=1), configure_env("reasoning_gym", options).reference
    assert reference is not None
    return task, ["</think>" + text for text in reference(task)]


def game(path: Path) -> tuple[Task, list[str]]:
    task = open_source(bind("gym", EnvConfig()), split="train", seed=1).task(0)
    reference = environment("gym").reference
    assert reference is not None
    return task, ["what now?</think>nowhere", *("a hole there</think>" + text for text in reference(task))]


FAMILIES = [mathematics, program, tool_use, shop, puzzle, game, own]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_an_interrupted_episode_reaches_the_same_end(family: Any, tmp_path: Path) -> None:
    if family is puzzle and importlib.util.find_spec("reasoning_gym") is None:
        pytest.skip("reasoning-gym is not installed (its pycosat needs a C compiler)")
    task, texts = family(tmp_path)
    whole = play(task, texts)
    assert whole.failure is None
    assert len(whole.turns) == len(texts)
    for turn, one in enumerate(whole.turns):
        length = len(one.sampled_ids)
        for tokens in sorted({0, 1, length // 2, length - 1}):
            left, trajectory = interrupted(task, said_in(whole), turn=turn, tokens=tokens)
            same_but_for_versions(trajectory, whole)
            assert trajectory.resumption is Resumption.RESUMED
            assert left.unfinished[0].tokens == tokens + sum(len(before.sampled_ids) for before in whole.turns[:turn])
            versions = [version for played in trajectory.turns for version in played.versions_T]
            before = left.unfinished[0].tokens
            assert versions == [3] * before + [4] * (len(versions) - before)


def test_a_remote_environment_starts_anew(server: CounterServer) -> None:
    task = remote_task(server)
    whole = play(task, [SAY_ADD, "</think>It is 8."])
    assert (whole.reward, len(whole.turns)) == (1.0, 2)
    _, trajectory = interrupted(task, said_in(whole), turn=0, tokens=1)
    same_but_for_versions(trajectory, whole)
    assert (trajectory.resumption, set(trajectory.turns[0].versions_T)) == (Resumption.RESUMED, {3, 4})
    _, trajectory = interrupted(task, said_in(whole), turn=1, tokens=1)
    same_but_for_versions(trajectory, whole)
    assert trajectory.resumption is Resumption.RESTARTED
    assert {version for turn in trajectory.turns for version in turn.versions_T} == {4}
