"""The loop of the supervised stages with an instant learner: saves after a failure, and restarts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.orchestrator.session.test_session import HealthyLearner, on_a_run

from temper.envs.core.process import LearnerDied
from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.orchestrator.config.supervised import SftConfig
from temper.orchestrator.loop.deadline import StopRequested
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.pipeline.runner import run_with_restart
from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import StageInstance
from temper.orchestrator.stages.supervised_loop import train_supervised

CONFIG = SftConfig(steps=5, batch_size=2, checkpoint_every=2)
SAMPLES = [TrainingSample.supervised(ids=range(n), trained_T=[False] + [True] * (n - 1)) for n in (5, 4)]


def batch(step: int) -> TrainBatch:
    return build_batch(SAMPLES, ranks=1, micro_batch_tokens=9, pad_id=0)


class FailingLearner(HealthyLearner):
    def __init__(self, *, fails_at: int = 0, fault: Exception | None = None) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.fault = fault
        self.done = 0

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        self.done += 1
        if self.fault is not None and self.done == self.fails_at:
            raise self.fault
        return {"skipped": 0.0, "loss": 1.0}


def saved_after(
    folder: Path, learner: FailingLearner, batch: Callable[[int], TrainBatch], error: type[Exception]
) -> Any:
    """Return the newest checkpoint of a stage that ends by this error, and its measured steps."""

    async def work(run: Run) -> None:
        try:
            await train_supervised(run, "sft", CONFIG, batch, sequences=2)
        finally:
            await run.trainer.close()

    with pytest.raises(error):
        on_a_run(folder, learner, work)
    rows = read_metrics(folder / "run" / "metrics.jsonl")
    return max(steps(folder / "run" / "checkpoints" / "sft"), default=0), [row.step for row in rows]


def refused(step: int) -> TrainBatch:
    if step == 4:
        raise ValueError("row 17 is malformed")
    return batch(step)


def test_a_fault_of_a_batch_saves_the_steps_before_it_and_one_of_the_learner_does_not(tmp_path: Path) -> None:
    assert saved_after(tmp_path / "batch", FailingLearner(), refused, ValueError) == (3, [1, 2, 3])
    learner = FailingLearner(fails_at=4, fault=RuntimeError("no memory for a gradient"))
    assert saved_after(tmp_path / "learner", learner, batch, RuntimeError) == (2, [1, 2, 3])


def test_a_stop_between_two_steps_saves_the_last_one(tmp_path: Path) -> None:
    async def work(run: Run) -> None:
        def stopping(step: int) -> TrainBatch:
            if step == 3:
                run.stop.set()
            return batch(step)

        await train_supervised(run, "sft", CONFIG, stopping, sequences=2)

    with pytest.raises(StopRequested):
        on_a_run(tmp_path, FailingLearner(), work)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert steps(tmp_path / "run" / "checkpoints" / "sft")[-1] == rows[-1].step


class Successors(Trainer):
    def __init__(self, run: Run, learners: list[FailingLearner]) -> None:
        super().__init__(run)
        self.learners = learners

    async def start(self, name: str) -> Any:
        if self.learner is None:
            self.learner = self.learners.pop(0)  # type: ignore[assignment]
        return self.learner


def test_a_learner_that_dies_in_a_step_costs_the_steps_since_the_checkpoint_and_none_is_measured_twice(
    tmp_path: Path,
) -> None:
    dies, lives = FailingLearner(fails_at=4, fault=LearnerDied("rank 1 died")), FailingLearner()

    async def stage(run: Run, config: Any, instance: StageInstance) -> Path:
        return await train_supervised(run, instance.name, CONFIG, batch, sequences=2)

    async def work(run: Run) -> Path | None:
        run.trainer = Successors(run, [dies, lives])
        one = single_instance(replace(all_stages()["sft"], run=stage))
        return await run_with_restart(run, one, load_config(Path("configs/demo.yaml"), []))

    model = on_a_run(tmp_path, HealthyLearner(), work)
    assert model.name == "000005"
    assert "kill" in dies.calls
    assert "restore" in lives.calls
    assert (dies.done, lives.done) == (4, 3)  # the third step runs again
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row.is_measured]
    assert [row.step for row in rows] == [1, 2, 3, 4, 5]
