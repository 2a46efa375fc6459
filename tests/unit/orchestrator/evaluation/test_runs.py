"""Evaluations between the steps of a real run: training is unchanged, and a kill loses no evaluation."""

import json
from pathlib import Path

import pytest
from support.fault_job import SYNCHRONOUS, Job, rows, runs
from support.healing import audited
from support.same_trajectories import compare_runs, largest_loss_gap

from temper.orchestrator.run.checkpoint import steps

STEPS, EVERY = 6, 2
RUN = ["stages=[init,rl]", f"rl.steps={STEPS}", "rl.groups_per_step=2", "checkpoints.keep=1", *SYNCHRONOUS]
EVALUATED = [
    *(f"rl.eval_every={EVERY}", "rl.eval_tasks=16", "rl.eval_samples=2"),
    "checkpoints.best=eval/avg_at_k",
]
DUE = list(range(0, STEPS + 1, EVERY))


def best_of(scores: dict[int, float]) -> int:
    """Return the best step with a checkpoint. If several tie, return the last."""
    return max((step for step in scores if step), key=lambda step: (scores[step], step))


def evaluated_steps(job: Job) -> list[int]:
    """Return the steps whose evaluation is in the job's output."""
    said = (line.partition("rl step ")[2] for line in job.output.splitlines() if ": held out: " in line)
    return [int(text.partition(":")[0]) for text in said]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_has_a_whole_curve_and_trains_as_without_evaluations(tmp_path: Path) -> None:
    with runs() as found:
        plain = found.start("plain", *RUN)
        assert plain.end() == 0, plain.output
        first = found.start("evaluated", *RUN, *EVALUATED)
        first.wait_until(first.reached("rl", 4), "the step before an evaluation")
        first.kill()
        job = found.start("evaluated", *RUN, *EVALUATED)
        assert job.end() == 0, job.output
        verdict = audited(job.run)
        compared = list(compare_runs(plain.run, job.run))
        losses = largest_loss_gap(plain.run, job.run)
        measured = rows(job.run, "rl.eval")
        files = sorted((job.run / "eval" / "steps").glob("*.json"))
        results = [json.loads(path.read_text("utf-8")) for path in files]
        kept = steps(job.run / "checkpoints" / "rl")
        before, after = evaluated_steps(first), evaluated_steps(job)
    assert compared
    assert all(one.same and not one.only_one for one in compared), compared
    assert losses[0] == STEPS
    assert losses[1] < 1e-4
    assert before[:2] == DUE[:2]
    assert after in ([4, STEPS], [STEPS])  # the killed evaluation runs again
    assert [row.step for row in measured] == DUE
    assert [path.name for path in files] == [f"rl-{step}.json" for step in DUE]
    scores = {row.step: row.values["avg_at_k"] for row in measured}
    assert [result["envs"]["coin"]["avg_at_k"] for result in results] == list(scores.values())
    assert all(result["envs"]["coin"]["stale"] == 0 for result in results)
    assert set(kept) == {STEPS, best_of(scores)}, (kept, scores)
    print(f"scores {scores}, kept {kept}, losses {losses}, audit: {verdict}")
