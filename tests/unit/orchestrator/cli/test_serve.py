"""The budget of `temper serve --accuracy`: from the newest curve of a run."""

from dataclasses import replace
from pathlib import Path

import pytest
from unit.orchestrator.evaluation.test_budget_curve import RolloutPool, evaluated

from temper.orchestrator.cli.serve_command import least_budget
from temper.orchestrator.run.folder import RunDir


def test_the_budget_comes_from_the_newest_curve_of_the_model(tmp_path: Path) -> None:
    evaluated(tmp_path, "eval.budgets=[2,6,7]", "eval.tasks=64", pool=RolloutPool())  # whose model needs 4 tokens
    run = RunDir(tmp_path / "run")
    assert least_budget(run.root, 0.95) == 6
    run.store(replace(run.state(), model="checkpoints/rl/000010"))
    with pytest.raises(ValueError, match=r"checkpoints/rl/000010.*temper eval"):
        least_budget(run.root, 0.95)


def test_a_run_without_a_curve_and_an_impossible_share_are_refused(tmp_path: Path) -> None:
    evaluated(tmp_path, pool=RolloutPool())
    with pytest.raises(ValueError, match=r"eval\.budgets"):
        least_budget(tmp_path / "run", 0.95)
    with pytest.raises(ValueError, match="1.5"):
        least_budget(tmp_path / "run", 1.5)
