"""Help and usage errors appear without the libraries that take seconds to import."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.run_folders import write_forkable_run

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
import json, sys
from temper.orchestrator.__main__ import main
seen = []
for command in json.loads(sys.argv[1]):
    try:
        status = main(command)
    except SystemExit as end:
        status = end.code
    seen.append([status, sorted({{*{HEAVY}}} & sys.modules.keys())])
print("seen", json.dumps(seen), sep="\\n")
"""
DEMO = "configs/demo.yaml"
ANSWERS: list[tuple[list[str], int]] = [
    (["--help"], 0),
    (["config", DEMO, "--explain", "rl.max_lag"], 0),
    (["rnu"], 2),
    (["env", "chek"], 2),
    (["run", "nothere.yaml"], 2),
    (["run", DEMO, "rl.max_lagg=2"], 2),
    (["doctor", "--plan", DEMO, "++num_generations=8"], 2),
    (["eval", DEMO, "evall.tasks=8"], 2),
    (["run", DEMO, "rl.steps=many"], 2),
    (["run", DEMO, "learner.zero_stage=7"], 2),
    (["run", DEMO, "stages=[init,rll]"], 2),
    (["run", DEMO, "rl.loss.surrogate=pppo"], 2),
    (["report", DEMO, "sft.optim.schedule=cosin"], 2),
    (["doctor", "--plan", DEMO, "--gpus", "1xRTX4099"], 2),
    (["doctor", "--plan", DEMO, "rollout.workers=0"], 2),
    (["ui", "--port", "70000"], 2),
    (["view", "runs/demo", "--port", "-1"], 2),
    (["serve", "runs/demo", "--port", "65536"], 2),
]
"""Commands with their exit statuses."""
MISSING = (
    *("envs.math.data=nowhere.jsonl", "envs.math.data=data/nowhere", "envs.math.eval_data=nowhere.jsonl"),
    *("sft.data=nowhere.jsonl", "envs.math.reward=nowhere.good", "envs.math.reward=json.nothing", "envs.maths={}"),
    *("model.path=models/none", "model.path=./none", "model.path=~/none/of/them", "model.path=package:nowhere"),
)


def test_an_answer_needs_no_heavy_import() -> None:
    assert imported_by([command for command, _ in ANSWERS]) == [[status, []] for _, status in ANSWERS]


def test_a_missing_input_is_refused_before_heavy_imports(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("{distill: {teacher: runs/none}, stages: [init, distill]}")
    command = ["run", DEMO, f"runs_dir={tmp_path}"]
    found = imported_by([[*command, override] for override in (*MISSING, str(tmp_path / "more.yaml"))])
    assert [status for status, _ in found] == [2] * (len(MISSING) + 1)
    assert set(found[-1][1]) <= {"gymnasium", "numpy"}  # environments are gymnasium's
    assert [path.name for path in tmp_path.iterdir()] == ["more.yaml"]


def test_a_dry_run_needs_no_heavy_import(tmp_path: Path) -> None:
    found = imported_by([[name, DEMO, "--dry-run", f"runs_dir={tmp_path}"] for name in ("run", "report")])
    assert [status for status, _ in found] == [0, 0]
    assert set(found[-1][1]) <= {"gymnasium", "numpy"}  # environments are gymnasium's


def test_a_dry_run_of_a_fork_needs_no_heavy_import(tmp_path: Path) -> None:
    source = write_forkable_run(tmp_path)
    ((status, loaded),) = imported_by([["fork", str(source), "--from", "rl/150", "name=new", "--dry-run"]])
    assert status == 0
    assert set(loaded) <= {"gymnasium", "numpy"}


def test_a_second_driver_is_refused_before_heavy_imports(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "demo")
    first.open()
    ((status, loaded),) = imported_by([["run", DEMO, f"runs_dir={tmp_path}"]])
    assert status == 2
    assert set(loaded) <= {"gymnasium", "numpy"}
    first.close()


def test_a_port_in_use_is_refused_before_heavy_imports(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert imported_by([["serve", str(tmp_path), "--port", str(taken.getsockname()[1])]]) == [[2, []]]


def imported_by(commands: list[list[str]]) -> list[Any]:
    """Return the exit status of each command, and the heavy libraries that it and those before it imported."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], capture_output=True, text=True, check=True, timeout=120
    )
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert seconds < 4 * len(commands)  # 0.4 to 0.9 for one on a quiet machine
    found: list[Any] = json.loads(done.stdout.rpartition("seen\n")[2])
    return found


def test_a_near_command_and_a_near_option_are_suggested() -> None:
    command = [sys.executable, "-m", "temper.orchestrator"]
    wrong = subprocess.run([*command, "rnu"], capture_output=True, text=True, check=False, timeout=60)
    assert "run" in wrong.stderr.splitlines()[-1].split("'")
    wrong = subprocess.run(
        [*command, "run", "configs/demo.yaml", "--dryrun"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "--dry-run" in wrong.stderr.splitlines()[-1]
