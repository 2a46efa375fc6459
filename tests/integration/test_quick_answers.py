"""Help and usage errors appear without the libraries that take seconds to import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from temper.orchestrator.run.folder import RunDir

HEAVY = (
    "torch",
    "transformers",
    "ray",
    "vllm",
    "deepspeed",
    "mlflow",
    "huggingface_hub",
    "gymnasium",
    "numpy",
    "matplotlib",
)
PROGRAM = f"""
import sys
from temper.orchestrator.__main__ import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print("status", status, *sorted({{*{HEAVY}}} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["rnu"], 2),
        (["env", "chek"], 2),
        (["run", "nothere.yaml"], 2),
        (["run", "configs/demo.yaml", "rl.max_lagg=2"], 2),
        (["doctor", "--plan", "configs/demo.yaml", "++num_generations=8"], 2),
        (["eval", "configs/demo.yaml", "evall.tasks=8"], 2),
        (["run", "configs/demo.yaml", "rl.steps=many"], 2),
        (["run", "configs/demo.yaml", "learner.zero_stage=7"], 2),
        (["run", "configs/demo.yaml", "stages=[init,rll]"], 2),
        (["run", "configs/demo.yaml", "rl.loss.surrogate=pppo"], 2),
        (["report", "configs/demo.yaml", "sft.optim.schedule=cosin"], 2),
        (["doctor", "--plan", "configs/demo.yaml", "--gpus", "1xRTX4099"], 2),
        (["doctor", "--plan", "configs/demo.yaml", "rollout.workers=0"], 2),
    ],
)
def test_an_answer_needs_no_heavy_import(arguments: list[str], status: int) -> None:
    assert imported_by(arguments, status) == set()


@pytest.mark.parametrize(
    "override",
    [
        "envs.math.data=nowhere.jsonl",
        "envs.math.data=data/nowhere",
        "envs.math.eval_data=nowhere.jsonl",
        "sft.data=nowhere.jsonl",
        "envs.math.reward=nowhere.good",
        "envs.math.reward=json.nothing",
        "envs.maths={}",
        "model.path=models/none",
        "model.path=./none",
        "model.path=~/none/of/them",
        "model.path=package:nowhere",
        "{distill: {teacher: runs/none}, stages: [init, distill]}",
    ],
)
def test_a_missing_input_is_refused_before_heavy_imports(override: str, tmp_path: Path) -> None:
    overrides = [override]
    if override.startswith("{"):
        (tmp_path / "more.yaml").write_text(override)
        overrides = [str(tmp_path / "more.yaml")]
    arguments = ["run", "configs/demo.yaml", f"runs_dir={tmp_path}", *overrides]
    assert imported_by(arguments, 2) <= {"gymnasium", "numpy"}  # environments are gymnasium's
    assert [path.name for path in tmp_path.iterdir()] == ["more.yaml"] * override.startswith("{")


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_dry_run_needs_no_heavy_import(command: str, tmp_path: Path) -> None:
    found = imported_by([command, "configs/demo.yaml", "--dry-run", f"runs_dir={tmp_path}"], 0)
    assert found <= {"gymnasium", "numpy"}  # environments are gymnasium's


def test_a_second_driver_is_refused_before_heavy_imports(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "demo")
    first.open()
    assert imported_by(["run", "configs/demo.yaml", f"runs_dir={tmp_path}"], 2) <= {"gymnasium", "numpy"}
    first.close()


def imported_by(arguments: list[str], status: int) -> set[str]:
    """Return the heavy libraries that a command imports until it ends with this status."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    after = os.times()
    words = done.stdout.splitlines()[-1].split()
    assert words[:2] == ["status", str(status)], done.stderr
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert seconds < 4  # 0.4 to 0.9 on a quiet machine
    return set(words[2:])


def test_a_near_command_and_a_near_option_are_suggested() -> None:
    command = [sys.executable, "-m", "temper.orchestrator"]
    wrong = subprocess.run([*command, "rnu"], capture_output=True, text=True, check=False, timeout=60)
    assert "run" in wrong.stderr.splitlines()[-1].split("'")
    wrong = subprocess.run(
        [*command, "run", "configs/demo.yaml", "--dryrun"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "--dry-run" in wrong.stderr.splitlines()[-1]
