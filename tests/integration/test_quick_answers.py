"""Help and usage errors appear without the libraries that take seconds to import."""

import os
import subprocess
import sys

import pytest

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
    ],
)
def test_an_answer_needs_no_heavy_import(arguments: list[str], status: int) -> None:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    after = os.times()
    assert done.stdout.splitlines()[-1].split() == ["status", str(status)]
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert seconds < 2  # 0.5 on a quiet machine


def test_a_near_command_and_a_near_option_are_suggested() -> None:
    command = [sys.executable, "-m", "temper.orchestrator"]
    wrong = subprocess.run([*command, "rnu"], capture_output=True, text=True, check=False, timeout=60)
    assert "run" in wrong.stderr.splitlines()[-1].split("'")
    wrong = subprocess.run(
        [*command, "run", "configs/demo.yaml", "--dryrun"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "--dry-run" in wrong.stderr.splitlines()[-1]
