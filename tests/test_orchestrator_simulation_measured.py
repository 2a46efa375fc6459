"""A simulation with the durations of a real run, beside that run: its step time and its lag come out again."""

import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from orchestrator.planning.assumptions import Assumptions
from orchestrator.planning.comparison import FILLING
from orchestrator.run.folder import RunDir
from orchestrator.simulation.measured import steps_of
from orchestrator.simulation.study import Asked, ground_of, run_study

ERROR = 0.25
"""Of the step time, as a share of what was measured."""
LAG_ERROR = 0.2
SMALL = ("stages=[init,sft,rl]", "sft.steps=60", "rl.steps=20", "rl.groups_per_step=8", "rl.group_size=4")


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_simulation_with_measured_durations_predicts_the_steps_of_its_run(max_lag: int, tmp_path: Path) -> None:
    given = ["configs/demo.yaml", f"name=lag{max_lag}", f"runs_dir={tmp_path}", *SMALL, f"rl.max_lag={max_lag}"]
    subprocess.run([sys.executable, "-m", "orchestrator", "run", *given], check=True, timeout=900)
    run = tmp_path / f"lag{max_lag}"
    ground = ground_of(run / "config.yaml", [], gpus=None, assumptions=Assumptions(), measured=run)
    (row,) = run_study(ground, Asked(steps=30))
    steps = [step.values for step in steps_of(RunDir(run), "rl")[FILLING:]]
    measured_s = fmean(values["time/step_s"] for values in steps)
    measured_lag = fmean(values["train/lag_mean"] for values in steps)
    print(f"step: {row.outcome.step_s:.3f} s simulated, {measured_s:.3f} s measured; lag {measured_lag:.2f}")
    assert row.outcome.step_s == pytest.approx(measured_s, rel=ERROR)
    assert row.outcome.lag_mean == pytest.approx(measured_lag, abs=LAG_ERROR)
