"""The main job when ranks of its learner are killed: it goes on from the newest checkpoint, in the same process."""

import contextlib
import json
from pathlib import Path

import psutil
import pytest
from main_job import command, finish, rows, start, wait_for_step

TWO_RANKS = ["learner.ranks=2", "learner.threads=1", "sft.steps=40", "sft.checkpoint_every=2", "rl.steps=5"]


def ranks(pid: int) -> list[psutil.Process]:
    """The processes of the learner's ranks below a driver, rank 0 first."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("ray::TrainerWor") or process.cmdline()[0].startswith("ray::TrainerWorker"):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_ranks_are_killed_in_sft_and_in_rl_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    job = start(command(tmp_path, "stages=[init,sft,rl]", *TWO_RANKS))
    gone: list[psutil.Process] = []
    for stage, victim in (("sft", 1), ("rl", 0)):
        wait_for_step(job, tmp_path / "job", stage, 3)
        alive = ranks(job.pid)
        assert len(alive) == 2
        alive[victim].kill()
        gone += alive
    status, output = finish(job)
    assert status == 0, output
    assert [row.step for row in rows(tmp_path / "job", "sft")] == [*range(1, 41)]
    assert [row.step for row in rows(tmp_path / "job", "rl")] == [1, 2, 3, 4, 5]
    lines = map(json.loads, (tmp_path / "job" / "metrics.jsonl").read_text().splitlines())
    healed = [(line["stage"], line["step"]) for line in lines if line.get("event", {}).get("kind") == "healed"]
    assert [stage for stage, _ in healed] == ["sft", "rl"]
    assert all(step >= 2 for _, step in healed)
    assert not [process for process in gone if process.is_running()]
