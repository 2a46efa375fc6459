"""A run with full disks for its trajectories, tracker, checkpoints and metrics."""

import time
from collections.abc import Iterator

import pytest
from support.fault_job import SYNCHRONOUS, Job, Runs, rows, runs
from support.fault_report import saw
from support.small_disk import SmallDisks

STEPS = 60
ROWS = ("disk-checkpoint", "disk-metrics", "disk-trajectories", "disk-tracker")
ENOUGH_FOR_ROWS = 400_000
"""Bytes for the rows of some steps, but not for a checkpoint."""


@pytest.fixture
def found() -> Iterator[Runs]:
    with runs() as made:
        yield made


def disks_of(found: Runs) -> SmallDisks:
    """Return the disks: one for the run, a full one for its trajectories, and one for the tracker's database."""
    run, database = found.folder / "job", found.folder / "database"
    try:
        disks = SmallDisks({run: "64m", run / "trajectories": "16k", database: "256k"})
    except OSError as error:
        for name in ROWS:
            saw(name, str(error), skipped=True)
        pytest.skip(str(error))
    disks.fill(run / "trajectories", leave=0)
    return disks


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_full_disks_are_named_and_cost_nothing_that_was_reached(found: Runs) -> None:
    disks = disks_of(found)
    try:
        run, database = found.folder / "job", found.folder / "database"
        seen = disks.seen(run)

        def start(*overrides: str) -> Job:
            uri = f"tracking.uri=sqlite:///{database}/mlflow.db"
            job = found.start("job", *SYNCHRONOUS, f"rl.steps={STEPS}", uri, *overrides, before=disks.before)
            job.run = seen
            return job

        job = start()
        job.wait_until(lambda: (seen / "checkpoints" / "rl" / "000004").exists(), "checkpoint 4")
        disks.fill(run, leave=ENOUGH_FOR_ROWS)
        began = time.monotonic()
        assert job.end() == 1, job.output
        assert "no space for a checkpoint" in job.output
        kept = sorted(path.name for path in (seen / "checkpoints" / "rl").iterdir())
        assert kept
        assert not [name for name in kept if not name.isdecimal()], kept
        saw(
            "disk-checkpoint",
            f"exit status 1 after {time.monotonic() - began:.0f} s: no space for a checkpoint, with what it needs and what "
            f"is free; checkpoints {', '.join(kept)} stayed",
        )
        reached = int(kept[-1])

        disks.free(run)
        job = start("rl.checkpoint_every=1000", "checkpoints.batches=0")  # a batch that is refused gives its room back
        job.wait_until(job.reached("rl", max(14, reached + 2)), "steps after the first file of trajectories")
        disks.fill(run, leave=0)
        assert job.end() == 1, job.output
        assert f"rl: resuming after step {reached}" in job.output
        assert f"{database}/mlflow.db is unreachable" in job.output
        (line,) = [line for line in job.output.splitlines() if line.startswith("fault: ")]
        assert "metrics.jsonl" in line or "event_log.jsonl" in line, job.output  # whichever is written first
        saw("disk-metrics", f"exit status 1: {line.replace(str(found.folder), '...')}")

        disks.free(run)
        job = start()
        assert job.end() == 0, job.output
        assert [row.step for row in rows(seen, "rl")] == list(range(1, STEPS + 1))
        assert not list((seen / "trajectories").glob("rl-*.jsonl"))
        said = next(line for line in job.output.splitlines() if "no trajectories" in line).partition("] ")[2]
        saw("disk-trajectories", f"exit status 0 after {STEPS} steps; said: {said.replace(str(found.folder), '...')}")
        saw(
            "disk-tracker",
            "said that it can't be reached; the run went on, and ended with 0 once the other disks had room",
        )
    finally:
        disks.close()
