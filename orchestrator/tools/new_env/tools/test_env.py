"""Tests of my_env: plain functions, without a model."""

import pytest

from temper.envs.core.task import Task
from temper.envs.core.turn_text import call_message, turn_text
from temper.envs.data.split import split_of
from temper.envs.playback import score
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.tasks import generated_tasks
from temper.orchestrator.tools.new_env.tools.env import ENVIRONMENT, demonstrate, tools

TASKS = generated_tasks(ENVIRONMENT, 32, seed=0)
PEOPLE = {"Amy": {"boss": "Ben", "number": "111"}, "Ben": {"boss": "Amy", "number": "222"}}
BY_HAND = Task(
    messages=({"role": "user", "content": "?"},),
    spec={"people": PEOPLE, "asked": "Amy", "answer": "222"},
    env=ENVIRONMENT.ref(),
)


def called(name: str) -> str:
    return turn_text({"content": "", "tool_calls": [call_message("look_up", {"name": name})]}, thinks=False)


def test_an_episode_made_by_hand_is_judged_as_by_hand() -> None:
    assert score(BY_HAND, [called("Amy"), called("Ben"), "222"]).reward == 1.0
    assert score(BY_HAND, [called("Amy"), "111"]).reward == 0.0


def test_the_tool_says_what_is_known_and_what_is_a_mistake() -> None:
    look_up = tools(PEOPLE)["look_up"].run
    assert look_up("Ben") == "boss Amy, number 222"
    with pytest.raises(ValueError, match="nobody is called 'Zoe'"):
        look_up("Zoe")


def test_the_expert_is_right() -> None:
    for task in TASKS:
        said = [turn_text(turn, thinks=True) for turn in demonstrate(task) if turn["role"] == "assistant"]
        assert score(task, said).reward == 1.0


def test_some_tasks_are_held_out_for_evaluation() -> None:
    assert {split_of(task) for task in TASKS} == {"train", "heldout"}


def test_the_environment_passes_envcheck() -> None:
    report = self_test(ENVIRONMENT, TASKS)
    assert report.passed, [(finding.name, finding.against) for finding in report.findings if finding.against]
