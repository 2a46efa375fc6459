"""A run's folder with everything that `rl` writes, built by the loop's real parts in a tenth of a second, without a model."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepClock, StepReport
from temper.orchestrator.run.checkpoint import begin, commit, latest, step_of
from temper.orchestrator.run.event_log import EventLog
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.loop_state import (
    EPISODES_FILE,
    GROUPS_FILE,
    STATE_FILE,
    LoopState,
    held_group_lines,
    read_loop,
)
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.trajectory_json import write_groups

STAGE = "rl"
EVERY = 5
"""Steps between checkpoints, and between files of trajectories."""
LAG = 1


class Source:
    """The tasks of an environment."""

    def __init__(self, env: str) -> None:
        self._env = env

    def task(self, index: int) -> Task:
        return Task(env=EnvRef(name=self._env), key=str(index), messages=({"role": "user", "content": "?"},), spec={})


def answers(ticket: Ticket, rng: random.Random) -> Group:
    """A group of three: with a nonzero advantage, with equal rewards, or with two failures."""
    task, kind = ticket.task, rng.choice(("mixed", "mixed", "mixed", "equal", "failed"))
    failure = Failure(kind=FailureKind.TIMEOUT, message="too slow")
    rewards = {"mixed": [0.0, 1.0, 1.0], "equal": [1.0, 1.0, 1.0], "failed": [1.0]}[kind]
    return Group(
        ticket=ticket,
        trajectories=tuple(Trajectory(task=task, turns=(), stop=Stop.ENV, reward=reward) for reward in rewards),
        failed=tuple(
            Trajectory(task=task, turns=(), stop=Stop.FAILURE, failure=failure) for _ in range(3 - len(rewards))
        ),
    )


class Past:
    """One process of the stage, which begins at the newest checkpoint."""

    def __init__(self, root: Path, *, seed: int = 0) -> None:
        self.folder = RunDir(root)
        self._rng = random.Random(seed)
        self._mixture = Mixture({env: Source(env) for env in ("math", "code")}, {"math": 1.0, "code": 1.0})

    def steps(self, until: int, *, done: bool = False) -> None:
        """Make the steps up to this one. Then the stage is done, or its process is killed."""
        self.folder.open()
        asyncio.run(self._steps(until))
        state = replace(self.folder.state(), stages={STAGE: "rl"}, began={STAGE: "model"})
        self.folder.store(replace(state, done={STAGE: until} if done else {}))
        self.folder.close()

    async def _steps(self, until: int) -> None:
        self._metrics, self._event_log = MetricsLog(self.folder.metrics), EventLog(self.folder.event_log, STAGE)
        self._buffer = Buffer(groups_per_step=3, max_lag=LAG, max_replaced_groups=2, event_log=self._event_log.add)
        newest = latest(self.folder.checkpoints(STAGE))
        first = 1 if newest is None else step_of(newest) + 1
        version = VersionCell(WeightVersion(step=first - 1))
        self._restore(newest, version.value)
        self._metrics.truncate(STAGE, first - 1)
        producer = asyncio.create_task(self._produce(version))
        for step in range(first, until + 1):
            await self._step(step, version)
        producer.cancel()
        await asyncio.wait({producer})

    async def _produce(self, version: VersionCell) -> None:
        while True:
            ticket = await self._buffer.admit(self._mixture, version)
            await self._buffer.put(answers(ticket, self._rng))

    async def _step(self, step: int, version: VersionCell) -> None:
        groups, served = await self._buffer.take(version.value), version.value
        left_over = len(self._buffer.unfinished)
        dropped, occupancy = await self._buffer.record_trained(step), self._buffer.occupancy()
        version.value = WeightVersion(step=step)
        await self._buffer.release(step)
        report = StepReport(
            step=step,
            groups=groups,
            dropped=dropped,
            learner={"loss": 0.5, "skipped": 0.0},
            version=served,
            left_over=left_over,
            pushed_bytes=0,
            pushed_share=1.0,
            load_s=0.0,
            times=replace(StepClock().report(), seconds=dict.fromkeys(StepClock().report().seconds, 0.1)),
            occupancy=occupancy,
            engine=EngineStats(),
        )
        self._metrics.append(STAGE, step, step_metrics(report))
        if step % EVERY == 0:
            self._save(step)
            write_groups(self.folder.trajectory_file(STAGE, step), groups)

    def _save(self, step: int) -> None:
        state = self._buffer.state()
        told = LoopState(
            buffer=replace(state, groups=()),
            mixture=self._mixture.state(),
            failures={},
            version=step,
            event_rows=self._event_log.rows,
        )
        directory = begin(self.folder.checkpoints(STAGE), step, needed_bytes=0)
        (directory / STATE_FILE).write_text(told.to_text(), encoding="utf-8")
        (directory / EPISODES_FILE).write_text("", encoding="utf-8")
        (directory / GROUPS_FILE).write_text(held_group_lines(state.groups), encoding="utf-8")
        (directory / "model.safetensors").write_bytes(b"weights")
        commit(directory)

    def _restore(self, checkpoint: Path | None, version: WeightVersion) -> None:
        if checkpoint is None:
            return
        saved = read_loop(checkpoint)
        self._event_log.cut(saved.state.event_rows)
        self._event_log.add("continued", {"step": step_of(checkpoint)})
        self._mixture.restore(saved.state.mixture)
        made = (replace(one, group=one.group.with_task(self._mixture.task(one.draw))) for one in saved.groups)
        state = replace(saved.state.buffer, groups=tuple(made))
        self._buffer.restore(state, was=version, now=version, envs=self._mixture.envs)


def accounted_run(root: Path) -> RunDir:
    """A run that was killed after step 8, resumed from its checkpoint of step 5, and finished at step 20."""
    folder = RunDir(root)
    folder.root.mkdir()
    folder.store(RunState(model="model", label="init"))
    for until in (8, 20):
        Past(root, seed=until).steps(until, done=until == 20)
    return folder
