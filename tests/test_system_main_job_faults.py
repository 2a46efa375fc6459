"""The main job when a process dies, and as a job of a Ray cluster."""

import re
import subprocess
from pathlib import Path

import psutil
import pytest
from main_job import DEMO, SMALL, command, finish, rows, start, wait_for_step

from orchestrator.cli.submit import submit


def processes(job: "subprocess.Popen[str]", name: str) -> list[psutil.Process]:
    """The processes of a job whose command line begins like this."""
    found = psutil.Process(job.pid).children(recursive=True)
    return [process for process in found if "".join(process.cmdline()[:1]).startswith(name)]


@pytest.mark.timeout(600)
def test_a_worker_whose_engine_is_killed_is_replaced_and_the_run_ends_as_it_should(tmp_path: Path) -> None:
    job = start(command(tmp_path, "stages=[init,rl]", "rl.steps=6", "rl.max_drops=0"))
    wait_for_step(job, tmp_path / "job", "rl", 2)
    (worker,) = processes(job, "ray::RolloutWorker")
    (engine,) = processes(job, "VLLM::EngineCore")
    engine.kill()
    status, output = finish(job)
    assert status == 0, output
    assert "rollout worker 0: the engine's process died" in output
    assert re.search(r"rollout worker 0 serves version \d+ after \d+ s", output), output
    assert [row.step for row in rows(tmp_path / "job", "rl")] == list(range(1, 7))
    _, alive = psutil.wait_procs([worker], timeout=20)
    assert not alive


@pytest.mark.timeout(600)
def test_a_submitted_run_leaves_its_results_in_the_callers_folder(tmp_path: Path) -> None:
    overrides = [f"runs_dir={tmp_path}", "name=job", "stages=[init,sft]", "sft.steps=2", *SMALL]
    assert submit(DEMO, overrides, None) == 0
    assert [row.step for row in rows(tmp_path / "job", "sft")] == [1, 2]
    with pytest.raises(ValueError, match="batch_size=-1"):
        submit(DEMO, [*overrides, "sft.batch_size=-1"], None)
