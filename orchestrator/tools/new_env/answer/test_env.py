"""Tests of my_env: plain functions, without a model."""

from temper.envs.core.task import Task
from temper.envs.core.turn_text import turn_text
from temper.envs.data.split import split_of
from temper.envs.playback import score
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.tasks import generated_tasks
from temper.orchestrator.tools.new_env.answer.env import ENVIRONMENT, demonstrate

TASKS = generated_tasks(ENVIRONMENT, 32, seed=0)
BY_HAND = Task(messages=({"role": "user", "content": "?"},), spec={"answer": "ant bee cat"}, env=ENVIRONMENT.ref())


def test_a_task_made_by_hand_is_judged_as_by_hand() -> None:
    assert score(BY_HAND, ["ant bee cat"]).reward == 1.0
    assert score(BY_HAND, ["ant cat bee"]).reward == 0.0


def test_the_words_of_every_task_stand_in_its_question() -> None:
    assert all(word in task.messages[0]["content"] for task in TASKS for word in task.spec["answer"].split())


def test_the_expert_is_right() -> None:
    for task in TASKS:
        assert score(task, [turn_text(said, thinks=True) for said in demonstrate(task)]).reward == 1.0


def test_some_tasks_are_held_out_for_evaluation() -> None:
    assert {split_of(task) for task in TASKS} == {"train", "heldout"}


def test_the_environment_passes_envcheck() -> None:
    report = self_test(ENVIRONMENT, TASKS)
    assert report.passed, [(finding.name, finding.against) for finding in report.findings if finding.against]
