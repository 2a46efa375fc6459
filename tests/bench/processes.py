"""The processes that a benchmark measures: engines and a learner on a model directory."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temper.envs.core.task import Task
from temper.learner.models.fresh import make_model
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.cluster.bundles import reserve
from temper.orchestrator.cluster.placement import build_request
from temper.orchestrator.cluster.ray_cluster import start_ray, stop_ray
from temper.orchestrator.cluster.run_actors import make_rollout_pool, start_trainer_group
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.run.progress import Progress, SamplingCount, sampling_shown
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.stored_turns import read_group
from temper.rollout.trajectory import Group, Ticket, WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Engines that serve, and a learner without a model."""

    pool: RolloutPool
    learner: TrainerGroup
    start_s: float
    """Seconds until the engines served."""


def first_model(config: Config, folder: Path) -> Path:
    """Return the directory of a configuration's model. A fresh one is made in `folder`."""
    if config.model.path:
        return Path(config.model.path)
    model = folder / "model"
    make_model(model, config.model.fresh, seed=config.seed)
    return model


@asynccontextmanager
async def started(config: RunConfig, model: Path) -> AsyncIterator[Processes]:
    """Start a configuration's processes. The engines serve a model directory as version 0. All end with the block."""
    start_ray(slots=config.actors, min_sandbox_level=config.sandbox.min_level)
    try:
        began, bundles = time.monotonic(), await reserve(build_request(config))
        version = WeightVersion(step=0)
        pool = make_rollout_pool(config.rollout, bundles=bundles, model_dir=model, version=version, seed=config.seed)
        try:
            await pool.start()
            start_s, engine = time.monotonic() - began, config.rollout.engine
            learner = await start_trainer_group(config.learner, bundles=bundles, engine_processes=engine.processes)
            try:
                yield Processes(pool=pool, learner=learner, start_s=start_s)
            finally:
                await learner.close()
        finally:
            await pool.close()
            bundles.free()
    finally:
        stop_ray()


async def sample_groups(pool: RolloutPool, tasks: list[Task], *, answers: int, first: int) -> list[Group]:
    """Sample so many answers to each task, all at once. Ticket numbers begin at `first`."""
    tickets = [
        Ticket(number=first + place, task=task, admitted=WeightVersion(step=0)) for place, task in enumerate(tasks)
    ]
    count = SamplingCount("bench", asked=len(tasks) * answers)

    async def answered(ticket: Ticket) -> Group:
        group = await read_group(pool.run_group(ticket, answers))
        count.add(group)
        return group

    async with sampling_shown(Progress("bench", stream=sys.stderr), count):
        return list(await asyncio.gather(*map(answered, tickets)))
