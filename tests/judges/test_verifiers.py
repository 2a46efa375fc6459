"""A task set of the package verifiers, in its own environment, plays episodes with a real engine."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judges.packages import PACKAGES
from support import tiny_models
from unit.rollout.serving.test_agent_endpoint import CONFIG, writes_letters

from temper.envs.binding import EnvConfig, bind
from temper.envs.source import open_source
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.trajectory import Group, Ticket, WeightVersion

VERSION = "0.4.0"
FOREIGN = Path(__file__).parents[1] / "support" / "foreign"
SAMPLES = 4


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of an environment with verifiers."""
    place, uv = PACKAGES / f"verifiers-{VERSION}", Path(sys.executable).with_name("uv")
    made = place / "bin" / "python"
    if not made.exists():
        try:
            subprocess.run([uv, "venv", "-q", place, "--python", sys.executable], check=True, timeout=120)
            install = [uv, "pip", "install", "-q", "--python", made, f"verifiers=={VERSION}"]
            subprocess.run(install, check=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"verifiers {VERSION} can't be installed: {error}")
    return str(made)


async def play(model: Path, options: dict[str, Any]) -> list[Group]:
    worker = RolloutWorker(replace(CONFIG, limits=replace(CONFIG.limits, timeout_s=300.0)), seed=1)
    await worker.start(str(model), 0)
    source = open_source(
        bind("letters", EnvConfig(kind="verifiers", options=options, thinking=False)), split="train", seed=1
    )
    tickets = [Ticket(number=number, task=source.task(number), admitted=WeightVersion(step=0)) for number in range(2)]
    try:
        return list(await asyncio.gather(*(worker.run_group(ticket, SAMPLES) for ticket in tickets)))
    finally:
        await worker.close()


@pytest.mark.judges(suite="verifiers", run="a task set with its own reward, harness and client, over the endpoint")
def test_a_task_set_scores_what_the_engine_sampled(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOREIGN))
    groups = asyncio.run(
        play(writes_letters(tiny_models.qwen3(tmp_path / "model")), {"python": python, "taskset": "letters_v1"})
    )
    answers = [one for group in groups for one in group.trajectories]
    assert len(answers) == 2 * SAMPLES
    for one in answers:
        (turn,) = one.turns
        wanted = one.task.messages[0]["content"][-2]
        share = turn.answer.count(wanted) / len(turn.answer)
        assert one.score.parts["share"] == pytest.approx(2 * share)
        assert one.reward == pytest.approx(2 * share)
    record_property("version", VERSION)
    record_property("passed", len(answers))


@pytest.mark.judges(suite="verifiers", run="a task set that does not exist, and a reward that raises")
def test_faults_of_a_task_set_are_typed(python: str, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOREIGN))
    with pytest.raises(ValueError, match="nowhere"):
        open_source(
            bind("letters", EnvConfig(kind="verifiers", options={"python": python, "taskset": "nowhere"})),
            split="train",
            seed=1,
        ).task(0)
    record_property("version", VERSION)
    record_property("passed", 1)
