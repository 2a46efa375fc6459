"""A run on this machine beside its plan, which a probe of the machine measured the rates of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ERROR = 0.25
"""Of each part's seconds, as a share of what the run measured."""
PARTS = ("generating", "learning", "a step")
DEMO = ("configs/demo.yaml", "stages=[init,sft,rl]", "sft.steps=100", "rl.steps=12")
LARGER = (
    *("configs/hybrid_10m.yaml", "stages=[init,rl]", "rl.max_lag=1", "rl.max_drops=0"),
    *("rl.steps=6", "rl.groups_per_step=4", "rl.group_size=8"),
)
RUNS = {
    "demo": DEMO,
    "by turns": (*DEMO, "rl.max_lag=0", "rl.groups_per_step=12"),
    "bound by learning": (*DEMO, "rl.groups_per_step=8", "rl.epochs=4"),
    "larger": LARGER,
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RUNS)
def test_the_seconds_of_a_run_on_a_cpu_are_those_of_its_plan(name: str, tmp_path: Path) -> None:
    file, *given = RUNS[name]
    command = [sys.executable, "-m", "temper.orchestrator"]
    run = [*command, "run", file, *given, "name=run", f"runs_dir={tmp_path}", "profile=cpu"]
    subprocess.run(run, check=True, timeout=900)
    compared = [*command, "plan", "--compare", str(tmp_path / "run"), "--probe", "--json"]
    told = subprocess.run(compared, check=True, timeout=600, capture_output=True, text=True).stdout
    errors = {one["name"].removeprefix("seconds of "): one["error"] for one in json.loads(told)["figures"]}
    print(name, {part: f"{error:+.1%}" for part, error in errors.items() if error is not None})
    assert {part: errors[part] for part in PARTS} == pytest.approx(dict.fromkeys(PARTS, 0.0), abs=ERROR)
