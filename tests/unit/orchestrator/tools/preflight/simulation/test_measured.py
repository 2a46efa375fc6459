"""A simulation with the durations of a real run, beside that run: its step time and its lag come out again."""

import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.comparison import FILLING
from temper.orchestrator.tools.preflight.simulation.measured import steps_of
from temper.orchestrator.tools.preflight.simulation.study import Asked, ground_of, run_study

ERROR = 0.25
"""Of the step time, as a share of what was measured."""
LAG_ERROR = 0.2
IDLE_ERROR = 0.15
"""Of the share of the engines' time in which they have nothing to do, or load."""
SMALL = ("stages=[init,sft,rl]", "sft.steps=60", "rl.steps=20", "rl.groups_per_step=8", "rl.group_size=4")


RUNS = {"lag0": ("rl.max_lag=0",), "lag1": ("rl.max_lag=1",), "learner-bound": ("rl.max_lag=1", "rl.epochs=4")}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", RUNS)
def test_a_simulation_with_measured_durations_predicts_the_steps_of_its_run(name: str, tmp_path: Path) -> None:
    given = ["configs/demo.yaml", f"name={name}", f"runs_dir={tmp_path}", *SMALL, *RUNS[name]]
    subprocess.run([sys.executable, "-m", "temper.orchestrator", "run", *given], check=True, timeout=900)
    run = tmp_path / name
    ground = ground_of(run / "config.yaml", [], gpus=None, assumptions=Assumptions(), measured=run)
    (row,) = run_study(ground, Asked(steps=30))
    steps = [step.values for step in steps_of(RunDir(run), "rl")[FILLING:]]
    measured_s = fmean(values["time/step_s"] for values in steps)
    measured_lag = fmean(values["train/lag_mean"] for values in steps)
    measured_idle = 1 - fmean(values["engine/busy_s"] for values in steps) / measured_s
    print(
        f"{name}: a step {row.outcome.step_s:.3f} s simulated, {measured_s:.3f} s measured; lag {row.outcome.lag_mean:.2f}, "
        f"{measured_lag:.2f}; engines idle {row.outcome.engines_idle:.2f}, {measured_idle:.2f}"
    )
    assert row.outcome.step_s == pytest.approx(measured_s, rel=ERROR)
    assert row.outcome.lag_mean == pytest.approx(measured_lag, abs=LAG_ERROR)
    assert row.outcome.engines_idle == pytest.approx(measured_idle, abs=IDLE_ERROR)
