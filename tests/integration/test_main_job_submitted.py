"""The main job as a job of a Ray cluster."""

from pathlib import Path

import pytest
from support.main_job import DEMO, SMALL, rows

from temper.orchestrator.cli.submit import submit


@pytest.mark.timeout(600)
def test_a_submitted_run_leaves_its_results_and_what_its_ranks_printed_in_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")  # travels with the job, and is what a run tells its workers too
    overrides = [f"runs_dir={tmp_path}", "name=job", "stages=[init,sft]", "sft.steps=2", *SMALL]
    assert submit(DEMO, overrides, None) == 0
    assert [row.step for row in rows(tmp_path / "job", "sft")] == [1, 2]
    printed = (tmp_path / "job" / "logs" / "ray").glob("worker-*")
    assert any("TrainerWorker" in file.read_text(errors="replace") for file in printed)
