"""The programs of an agent."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from temper.envs.agents import AgentEpisode, Endpoint, end_with_reward
from temper.envs.core.errors import EnvironmentFault, GraderError
from temper.envs.core.task import EnvRef, EnvSettings, Task

ENDPOINT = Endpoint(url="http://127.0.0.1:9/v1", key="k", model="m")


def task_of(**settings: object) -> Task:
    ref = EnvRef(name="e", settings=EnvSettings(agent="mine.solve", **settings))  # type: ignore[arg-type]
    return Task(messages=({"role": "user", "content": "?"},), spec={"answer": "4"}, env=ref)


@pytest.fixture
def episode() -> Iterator[AgentEpisode]:
    made = AgentEpisode.of(task_of(), ({"role": "user", "content": "first"},), ENDPOINT)
    yield made
    made.close()


def test_a_program_runs_in_the_folder_with_the_endpoint_and_nothing_else_of_the_run(
    episode: AgentEpisode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "1")
    shown = episode.run(
        ["sh", "-c", "pwd; echo $OPENAI_BASE_URL $ANTHROPIC_BASE_URL $MODEL [$A_SECRET]; cat"], stdin="in"
    )
    folder, endpoint, given = shown.split("\n")
    assert Path(folder) == episode.folder
    assert endpoint == "http://127.0.0.1:9/v1 http://127.0.0.1:9 m []"
    assert given == "in"
    assert [message["content"] for message in episode.messages] == ["?", "first"]


def test_a_program_with_a_child_in_the_background_ends_with_it(episode: AgentEpisode) -> None:
    began = time.monotonic()
    child = int(episode.run(["sh", "-c", "sleep 60 & echo $!"]))
    assert time.monotonic() - began < 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() - began < 20
        time.sleep(0.01)


def test_a_program_that_fails_is_a_fault_with_its_errors(episode: AgentEpisode) -> None:
    with pytest.raises(EnvironmentFault, match="status 3: broken"):
        episode.run(["sh", "-c", "echo broken >&2; exit 3"])


def test_after_the_episode_nothing_runs_and_the_folder_is_gone(episode: AgentEpisode) -> None:
    folder = episode.folder
    assert os.path.isdir(folder)
    episode.close()
    assert not os.path.exists(folder)
    with pytest.raises(EnvironmentFault, match="over"):
        episode.run(["true"])


def test_parts_of_the_agent_are_weighed() -> None:
    result = end_with_reward(task_of(weights={"good": 2.0}), {"good": 0.5, "other": 9.0})
    assert (result.reward, result.done) == (1.0, True)


@pytest.mark.parametrize("settings", [{"weights": {"correct": 1.0}}, {"length_limit": 10}])
def test_a_reward_that_the_settings_do_not_weigh_is_a_fault(settings: dict[str, object]) -> None:
    with pytest.raises(GraderError):
        end_with_reward(task_of(**settings), 1.0)
