"""A run whose model repairs files by shell commands in containers, with a killed driver. No container remains."""

import json
import time
from pathlib import Path

import pytest
import yaml
from support.containers import containers, require_image
from support.fault_job import START_S, TINY, rows, runs
from support.fault_report import saw
from support.healing import audited, steps_done

from temper.envs.core.turn_text import call_message
from temper.envs.workspace.env import DONE
from temper.envs.workspace.tools import SHELL_TOOLS

STEPS = 6
LENGTH = 1024
REMOVED_S = 60.0
"""Time limit for the containers of a killed run."""
REPAIR = "sed -i s/-/+/ m.py"


def write_rows(path: Path) -> None:
    """Write workspaces with a bug, each with the dialogue that repairs it in a shell."""
    call = call_message("exec", {"command": REPAIR})
    dialogue = [
        {"role": "assistant", "reasoning_content": "fix", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "\nexit 0\n"},
        {"role": "assistant", "reasoning_content": "done", "content": DONE},
    ]
    with path.open("w", encoding="utf-8") as lines:
        for added in range(2, 6):
            prompt = f"f must add {added}."
            request = {"role": "user", "content": f"{prompt}\n\nFiles: m.py"}
            files = {"m.py": f"def f(x):\n    return x - {added}\n"}
            tests = {"test_m.py": f"from m import f\nassert f(1) == {1 + added}\n"}
            row = {"prompt": prompt, "files": files, "tests": tests}
            lines.write(json.dumps(row | {"messages": [request, *dialogue], "tools": SHELL_TOOLS}) + "\n")


def write_config(folder: Path, image: str) -> Path:
    """Write the tiny configuration with workspaces in the image, whose model learns the shell by heart."""
    write_rows(data := folder / "rows.jsonl")
    workspace = {"data": str(data), "options": {"image": image}, "max_turns": 3}
    sft = {"data": str(data), "steps": 60, "optim": {"learning_rate": 5e-3}}
    rollout = {
        "workers": 1,
        "limits": {"turn_tokens": 96, "total_tokens": LENGTH, "timeout_s": START_S},
        "engine": {"max_model_len": LENGTH, "max_sequences": 64},
    }
    settings = {"stages": ["init", "sft", "rl"], "envs": {"workspace": workspace}, "rollout": rollout}
    tiny = yaml.safe_load(TINY)
    path = folder / "shell.yaml"
    path.write_text(yaml.safe_dump(tiny | settings | {"sft": tiny["sft"] | sft, "rl": tiny["rl"] | {"steps": STEPS}}))
    return path


def require_removed(before: set[str]) -> float:
    """Return the seconds until all containers but those before the run are gone. Fail if they stay."""
    began = time.monotonic()
    while left := set(containers()) - before:
        assert time.monotonic() - began < REMOVED_S, left
        time.sleep(0.2)
    return time.monotonic() - began


@pytest.mark.faults
@pytest.mark.timeout(2400)
def test_no_container_outlives_a_killed_run_or_a_finished_one(tmp_path: Path) -> None:
    config, before = write_config(tmp_path, require_image()), set(containers())
    with runs(config) as found:
        job = found.start("job")
        job.wait_until(job.reached("rl", 2), "two steps")
        job.wait_until(lambda: bool(set(containers()) - before), "a container", every_s=0.1)
        killed = len(set(containers()) - before)
        done = steps_done(job)
        job.kill()
        removed_s = require_removed(before)
        again = found.start("job")
        assert again.end() == 0, again.output
        require_removed(before)
        found.require_gone()
        steps = rows(job.run, "rl")
        assert [row.step for row in steps] == list(range(1, STEPS + 1))
        assert max(row.values["env/workspace/correct"] for row in steps) > 0.5  # only a shell can repair the files
        assert all(row.values["env/workspace/failure_rate"] == 0.0 for row in steps)
        saw(
            "containers-killed",
            f"{killed} containers after {done} steps gone {removed_s:.0f} s after the driver's processes; resumed, "
            f"{STEPS} steps, none left; audit: {audited(job.run)}",
        )
