"""The budget of `temper serve --accuracy`: from the newest curve of a run."""

from pathlib import Path

import pytest
from unit.orchestrator.evaluation.test_budget_curve import RolloutPool, evaluated

from temper.orchestrator.cli.serve_command import least_budget


def test_the_budget_comes_from_the_runs_newest_curve(tmp_path: Path) -> None:
    evaluated(tmp_path, "eval.budgets=[2,6,7]", pool=RolloutPool())  # whose model needs 4 tokens
    assert least_budget(tmp_path / "run", 0.95) == 6


def test_a_run_without_a_curve_and_an_impossible_share_are_refused(tmp_path: Path) -> None:
    evaluated(tmp_path, pool=RolloutPool())
    with pytest.raises(ValueError, match=r"eval\.budgets"):
        least_budget(tmp_path / "run", 0.95)
    with pytest.raises(ValueError, match="1.5"):
        least_budget(tmp_path / "run", 1.5)
