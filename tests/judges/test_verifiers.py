"""A task set of the package verifiers, in its own environment, plays episodes with a real engine."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judges.packages import python_with
from support import tiny_models
from unit.rollout.serving.test_agent_endpoint import CONFIG, writes_letters

from temper.envs.binding import EnvConfig, bind
from temper.envs.core.task import Task
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.trajectory import Group, Ticket, WeightVersion

VERSION = "0.4.0"
FOREIGN = Path(__file__).parents[1] / "support" / "foreign"
SAMPLES = 4


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of an environment with verifiers."""
    return python_with(f"verifiers=={VERSION}")


def task_of(options: dict[str, Any], letter: str) -> Task:
    """The task that wants this letter."""
    env = bind("letters", EnvConfig(kind="verifiers", options=options, thinking=False))
    assert env.definition.generate is not None
    made = (env.definition.generate(random.Random(number), 1) for number in range(100))
    task = next(one for one in made if one.messages[0]["content"] == f"Write {letter}.")
    return env.task(task, task.key)


async def play(model: Path, tasks: Sequence[Task]) -> list[Group]:
    worker = RolloutWorker(replace(CONFIG, limits=replace(CONFIG.limits, timeout_s=300.0)), seed=1)
    await worker.start(str(model), 0)
    tickets = [Ticket(number=n, task=task, admitted=WeightVersion(step=0)) for n, task in enumerate(tasks)]
    try:
        return list(await asyncio.gather(*(worker.run_group(ticket, SAMPLES) for ticket in tickets)))
    finally:
        await worker.close()


@pytest.mark.judges(suite="verifiers", run="a task set over the endpoint, a reward that raises")
def test_a_task_set_scores_what_the_engine_sampled(python: str, tmp_path: Path, record_property: Any) -> None:
    options = {"python": python, "taskset": "letters_v1", "folder": str(FOREIGN)}
    model = writes_letters(tiny_models.qwen3(tmp_path / "model"))
    *scored, broken = asyncio.run(play(model, [task_of(options, letter) for letter in "abc"]))
    for group, letter in zip(scored, "ab", strict=True):
        assert len(group.trajectories) == SAMPLES
        for one in group.trajectories:
            (turn,) = one.turns
            share = turn.answer.count(letter) / len(turn.answer)
            assert one.score.parts["share"] == pytest.approx(2 * share)
            assert one.reward == pytest.approx(2 * share)
    assert not broken.trajectories
    assert all(one.failure is not None and "no c here" in one.failure.message for one in broken.failed)
    record_property("version", VERSION)
    record_property("passed", 3 * SAMPLES)


@pytest.mark.judges
def test_a_task_set_that_does_not_exist_is_a_mistake_in_the_settings(python: str) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        task_of({"python": python, "taskset": "nowhere"}, "a")
