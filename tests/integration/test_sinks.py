"""A real run that reports to MLflow and W&B and is killed. Both have each step once, with the same values."""

import pytest
from mlflow import MlflowClient
from support.fault_job import rows, runs
from support.sink_records import Points, wandb_points
from unit.orchestrator.tracking.test_sinks import needs_wandb

STEPS = 12
SAVED_EVERY = 5


def mlflow_points(uri: str) -> Points:
    """Return the points of the one run in MLflow that is not deleted. No metric may have a step twice."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("temper")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    (run,) = (one for one in found if "mlflow.parentRunId" not in one.data.tags)
    points: Points = {}
    for name in (name for name in run.data.metrics if not name.startswith("system/")):
        history = client.get_metric_history(run.info.run_id, name)
        points[name] = {metric.step: metric.value for metric in history}
        assert len(points[name]) == len(history), name
    return points


@needs_wandb
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_goes_on_in_both_places_with_the_same_metrics() -> None:
    arguments = ["stages=[init,sft]", f"sft.checkpoint_every={SAVED_EVERY}", "tracking.also=[wandb]"]
    with runs() as found:
        job = found.start("job", *arguments, "sft.steps=5000")
        job.wait_until(job.said("wandb sync"), "W&B said where it is")
        job.wait_until(job.reached("sft", 1), "a step")
        last = max(row.step for row in rows(job.run, "sft"))
        job.wait_until(
            job.reached("sft", last // SAVED_EVERY * SAVED_EVERY + SAVED_EVERY + 3), "steps that are made again"
        )
        job.kill()
        again = max(row.step for row in rows(job.run, "sft"))
        job = found.start("job", *arguments, f"sft.steps={again + STEPS}")
        assert job.end() == 0, job.output
        assert [row.step for row in rows(job.run, "sft")] == list(range(1, again + STEPS + 1))
        expected = mlflow_points(f"sqlite:///{found.folder}/mlflow.db")
        assert len(expected["4_train/sft/loss"]) == again + STEPS
        assert wandb_points(job.run) == expected
