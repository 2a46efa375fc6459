"""Tests of my_env: plain functions, without a model."""

from pathlib import Path

import pytest

from temper.envs.data.config import DataConfig
from temper.envs.playback import score
from temper.orchestrator.tools.debug.grading.envcheck import self_test
from temper.orchestrator.tools.debug.grading.tasks import read_tasks
from temper.orchestrator.tools.new_env.rows.env import ENVIRONMENT, load

TASKS = read_tasks(DataConfig(path=str(Path(__file__).with_name("rows.jsonl"))), ENVIRONMENT)


def test_a_row_that_is_known_is_judged_as_by_hand() -> None:
    assert TASKS["0"].messages[0]["content"].startswith("What is the capital of Egypt?")
    assert score(TASKS["0"], ["Cairo."]).reward == 1.0
    assert score(TASKS["0"], ["Lima"]).reward == 0.0


def test_a_broken_row_is_refused() -> None:
    with pytest.raises(ValueError, match="field 'answer' is empty"):
        load({"question": "What is the capital of Egypt?", "answer": " "})


def test_the_environment_passes_envcheck() -> None:
    report = self_test(ENVIRONMENT, list(TASKS.values()))
    assert report.passed, [(finding.name, finding.against) for finding in report.findings if finding.against]
