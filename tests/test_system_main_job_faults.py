"""The main job when a process dies, and as a job of a Ray cluster."""

from pathlib import Path

import psutil
import pytest
from main_job import DEMO, SMALL, command, finish, rows, start, wait_for_step

from orchestrator.cli.submit import submit


@pytest.mark.timeout(600)
def test_a_rollout_worker_that_is_killed_ends_the_run_with_its_name(tmp_path: Path) -> None:
    job = start(command(tmp_path, "stages=[init,rl]", "rl.steps=500"))
    wait_for_step(job, tmp_path / "job", "rl", 2)
    (worker,) = [
        process
        for process in psutil.Process(job.pid).children(recursive=True)
        if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::RolloutWorker")
    ]
    engines = worker.children(recursive=True)
    assert engines
    worker.kill()
    status, output = finish(job)
    assert status == 1, output
    assert "fault: WorkerDied: rollout worker 0 died (" in output
    _, alive = psutil.wait_procs(engines, timeout=20)
    assert not alive


@pytest.mark.timeout(600)
def test_a_submitted_run_leaves_its_results_in_the_callers_folder(tmp_path: Path) -> None:
    overrides = [f"runs_dir={tmp_path}", "name=job", "stages=[init,sft]", "sft.steps=2", *SMALL]
    assert submit(DEMO, overrides, None) == 0
    assert [row.step for row in rows(tmp_path / "job", "sft")] == [1, 2]
    with pytest.raises(ValueError, match="batch_size=-1"):
        submit(DEMO, [*overrides, "sft.batch_size=-1"], None)
