"""The stage `rl` with instant engines and a learner whose ranks fail: its records match a run without failures."""

import asyncio
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.audit import failures
from support.event_rows import read_event_log
from support.pushes import empty_push
from unit.orchestrator.evaluation.test_budget_curve import Tracked
from unit.orchestrator.loop.test_loop import Rollouts, told_folder
from unit.orchestrator.session.test_session import HealthyLearner

from temper.envs.core.process import LearnerDied, ProcessInfo, StoredResult
from temper.learner.batches.builder import BuildBatches
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.pipeline.runner import run_with_restart
from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import read_metrics, step_rows
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.stages.registry import RL
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Push

STEPS = 6
SETTINGS = [
    f"rl.steps={STEPS}",
    "rl.groups_per_step=2",
    "rl.group_size=2",
    "rl.checkpoint_every=2",
    "rl.max_replaced_groups=0",
    "envs={math: {share: 1}}",
    "rl.shares={}",
    "sft.shares={}",
]


class Engines(Rollouts):
    """Rollout workers that record the versions they served. The first push of each version in `fails` fails."""

    def __init__(self, fails: dict[int, Exception]) -> None:
        super().__init__(last=10**6)
        self.fails = fails
        self.served: list[tuple[str, int]] = []

    async def run_group(self, ticket: Ticket, samples: int, partial: Any = None) -> Group:
        await asyncio.sleep(0.002 * (ticket.number % 3))  # some groups are in flight when a step ends
        return await super().run_group(ticket, samples, partial)

    async def load_weights(self, push: Push) -> WeightVersion:
        version = await super().load_weights(push)
        self.served.append(("push", version.step))
        if version.step in self.fails:
            raise self.fails.pop(version.step)
        return version

    def hold(self, directory: Path) -> None: ...

    def last_restart_at(self) -> float:
        return 0.0

    def processes(self) -> list[ProcessInfo]:
        return []

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        self.served.append((directory.name, version.step))
        return version


class MortalLearner(HealthyLearner):
    """Fails once in each step of `deaths`, a set that all learners share."""

    def __init__(self, deaths: set[int], in_writes: set[int]) -> None:
        """Also fail in the checkpoint writes of the steps `in_writes`."""
        super().__init__()
        self.deaths = deaths
        self.in_writes = in_writes
        self.steps = 0

    async def write(self) -> None:
        if (step := int(self.directory.stem)) in self.in_writes:
            self.in_writes.remove(step)
            raise LearnerDied("the learner's rank 0 died while it wrote")
        await super().write()

    async def restore(self, directory: Path) -> None:
        self.steps = int(directory.name)

    async def token_records(self) -> list[StoredResult]:
        return []

    async def build(self, groups: Sequence[Group], builds: BuildBatches) -> None: ...

    async def step(self, *, epochs: int = 1) -> dict[str, float]:
        self.steps += 1
        if self.steps in self.deaths:
            self.deaths.remove(self.steps)
            raise LearnerDied("the learner's rank 1 died in a step")
        return {"skipped": 0.0, "loss": 1.0}

    async def publish(self, version: WeightVersion) -> Push:
        return empty_push(version.step, nbytes=64)


class MortalTrainer(Trainer):
    def __init__(self, run: Run, made: Callable[[], MortalLearner]) -> None:
        super().__init__(run)
        self.made = made

    async def start(self, name: str) -> Any:
        if self.learner is None:
            self.learner = self.made()  # type: ignore[assignment]
        return self.learner


def trained(
    folder: RunDir,
    engines: Engines,
    *overrides: str,
    in_steps: set[int],
    max_lag: int,
    in_writes: set[int] | None = None,
) -> None:
    """Run the stage. The learner fails once in each of these steps and checkpoint writes."""
    settings = [*SETTINGS, f"rl.max_lag={max_lag}", "supervision.restarts=9", *overrides]
    config, writes = load_config(Path("configs/demo.yaml"), settings), set(in_writes or ())

    async def work(run: Run) -> None:
        run.trainer = MortalTrainer(run, lambda: MortalLearner(in_steps, writes))
        run.engines.pool = engines  # type: ignore[assignment]
        try:
            await run_with_restart(run, single_instance(RL), config)
        finally:
            await run.trainer.close()

    with Progress(stream=io.StringIO()) as progress:
        run = Run(config, folder=folder, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=True)
        asyncio.run(work(run))


def taught(folder: RunDir) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for row in read_event_log(folder.event_log):
        if row.event == "trained":
            assert row.step is not None
            assert row.ticket is not None
            steps.setdefault(row.step, []).append(row.ticket)
    return steps


def require_accounts(folder: RunDir, *, max_lag: int) -> list[int]:
    """Check that each step and ticket occurs exactly once. Return the tickets in training order."""
    assert failures(folder) == []
    rows = step_rows(read_metrics(folder.metrics), "rl")
    assert [row.step for row in rows] == [*range(1, STEPS + 1)]
    assert all(row.values["train/lag_max"] <= max_lag for row in rows)
    tickets = [ticket for step in sorted(taught(folder)) for ticket in taught(folder)[step]]
    assert len(tickets) == len(set(tickets)) == 2 * STEPS
    return tickets


@pytest.mark.parametrize("max_lag", [0, 1])
def test_deaths_in_steps_and_pushes_leave_every_account_as_without_them(tmp_path: Path, max_lag: int) -> None:
    folder = told_folder(tmp_path)
    engines = Engines({version: LearnerDied("the learner's rank 0 died in a push") for version in (3, 4)})
    trained(folder, engines, in_steps={1, 4, 6}, max_lag=max_lag)
    folder.close()
    events = [row.event["kind"] for row in read_metrics(folder.metrics) if row.event]
    assert events.count("restarted") in ((5,) if max_lag == 0 else (4, 5))  # a push and the next step may fail together
    tickets = require_accounts(folder, max_lag=max_lag)
    if max_lag == 0:
        assert tickets == [*range(2 * STEPS)]  # as in a run without failures
        assert ("000002", 3) in engines.served  # served under its original version


@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_push_that_fails_ends_the_run_with_its_step_saved_and_the_same_command_goes_on(
    tmp_path: Path, max_lag: int
) -> None:
    folder = told_folder(tmp_path)
    engines = Engines({4: OSError("no worker takes it")})
    with pytest.raises(OSError, match="no worker takes it"):
        trained(folder, engines, in_steps=set(), max_lag=max_lag)
    saved = steps(folder.checkpoints("rl"))[-1]
    assert saved == [row.step for row in read_metrics(folder.metrics) if row.stage == "rl"][-1]
    assert saved in ((3,) if max_lag == 0 else (3, 4))  # the step of the push, or the step that was trained during it
    trained(folder, engines, in_steps=set(), max_lag=max_lag)
    folder.close()
    require_accounts(folder, max_lag=max_lag)


def test_engines_are_brought_back_where_the_learner_dies_in_the_writing_of_the_last_checkpoint(tmp_path: Path) -> None:
    folder = told_folder(tmp_path)
    engines = Engines({})
    trained(folder, engines, f"rl.checkpoint_every={STEPS}", in_steps=set(), max_lag=0, in_writes={STEPS})
    folder.close()
    model, *rest = [name for name, _ in engines.served]
    assert [model, *rest] == [model, *["push"] * STEPS] * 2  # the stage begins again with the same model
    assert require_accounts(folder, max_lag=0) == [*range(2 * STEPS)]
