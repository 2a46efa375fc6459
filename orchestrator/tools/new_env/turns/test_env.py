"""Tests of my_env: plain functions, without a model."""

import pytest

from temper.envs.core.task import Task
from temper.envs.core.turn_text import turn_text
from temper.envs.data.split import split_of
from temper.envs.playback import score
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.tasks import generated_tasks
from temper.orchestrator.tools.new_env.turns.env import ENVIRONMENT, demonstrate

TASKS = generated_tasks(ENVIRONMENT, 32, seed=0)
BY_HAND = Task(
    messages=({"role": "user", "content": "?"},), spec={"low": 1, "high": 10, "number": 7}, env=ENVIRONMENT.ref()
)


@pytest.mark.parametrize(
    ("guesses", "worth"),
    [(["7"], 1.0), (["5", "8", "7"], 1.0), (["8", "2"], 0.5), (["5", "2"], 0.0), (["hm"], 0.0), (["7 or 8"], 0.0)],
)
def test_an_episode_made_by_hand_is_judged_as_by_hand(guesses: list[str], worth: float) -> None:
    assert score(BY_HAND, guesses).reward == worth


def test_the_expert_is_right_and_within_the_turns_that_there_are() -> None:
    for task in TASKS:
        said = [turn_text(turn, thinks=True) for turn in demonstrate(task) if turn["role"] == "assistant"]
        assert score(task, said).reward == 1.0
        assert len(said) <= (ENVIRONMENT.max_turns or 0)


def test_some_tasks_are_held_out_for_evaluation() -> None:
    assert {split_of(task) for task in TASKS} == {"train", "heldout"}


def test_the_environment_passes_envcheck() -> None:
    report = self_test(ENVIRONMENT, TASKS)
    assert report.passed, [(finding.name, finding.against) for finding in report.findings if finding.against]
