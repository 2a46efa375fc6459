"""The rates of this machine, measured: one engine fleet and one learner do a step's work, each alone, twice.

The first round warms both up and is not counted. What is measured is bound to this model, these settings and this hour.
"""

import asyncio
import tempfile
from pathlib import Path
from time import monotonic

from learner.batches.builder import BatchBuilder
from learner.models.fresh import make_model
from orchestrator.bench.loop import batch_of
from orchestrator.bench.processes import Processes, started
from orchestrator.bench.rollout import sample_groups
from orchestrator.mixture import Mixture
from orchestrator.pipeline.config import Config
from orchestrator.planning.seconds.rates import Rates
from orchestrator.settings.loop import LoopConfig
from orchestrator.stages.stage import StageInstance
from rollout.tokenizer import load_tokenizer, pad_id
from rollout.trajectory import WeightVersion

ROUNDS = 2
LONGEST_S = 1800.0
"""How long all of it may take, in seconds, processes to start among it."""
FIRST = 10**8
"""Where the tickets of its episodes begin."""


def probed(config: Config, loop: StageInstance, model: Path | None) -> Rates:
    """Return the rates of this machine, with a model's folder, or with a fresh one of the configuration's shape.

    Raise as `measured_rates`.
    """
    if model is not None:
        return asyncio.run(measured_rates(config, model, loop))
    with tempfile.TemporaryDirectory(prefix="temper-plan-") as folder:
        make_model(Path(folder) / "model", config.model.fresh, seed=config.seed)
        return asyncio.run(measured_rates(config, Path(folder) / "model", loop))


async def measured_rates(config: Config, model: Path, loop: StageInstance) -> Rates:
    """Return what engines and learner of a configuration do with a model in the stage `loop`, on the cluster there is.

    Raise `TimeoutError` where that takes too long.
    """
    settings: LoopConfig = config.settings(loop)
    mixture = loop.mixture(config, settings.shares, settings.thinking)
    padding = pad_id(load_tokenizer(model, config.model.declared()))
    builder = BatchBuilder(config=config.learner, pad_id=padding)
    async with asyncio.timeout(LONGEST_S), started(config, model) as made:
        await made.learner.load(model, optim=settings.optim, loss=settings.loss, total_steps=settings.steps)
        beside = config.learner.threads_beside if settings.max_lag else config.learner.threads
        await made.learner.use_threads(beside)
        engines = config.rollout.workers
        rates = [
            await _round(made, mixture, settings, builder, number=number, engines=engines) for number in range(ROUNDS)
        ]
    return rates[-1]


async def _round(
    made: Processes, mixture: Mixture, settings: LoopConfig, builder: BatchBuilder, *, number: int, engines: int
) -> Rates:
    """Sample as many groups as are in flight at once, learn from those of a step, push."""
    tasks = [mixture.task(mixture.draw()) for _ in range(settings.slots)]
    began = monotonic()
    groups = await sample_groups(made.pool, tasks, answers=settings.group_size, first=FIRST + number * settings.slots)
    sampled = monotonic()
    batch = batch_of(groups[: settings.groups_per_step], settings, builder)
    batched = monotonic()
    await made.learner.step(batch)
    learnt = monotonic()
    push = await made.learner.publish(WeightVersion(step=number + 1))
    published = monotonic()
    await made.pool.load_weights(push)
    loaded = monotonic()
    tokens = sum(answer.sampled_tokens for group in groups for answer in group.trajectories)
    longest = max(answer.sampled_tokens for group in groups for answer in group.trajectories)
    return Rates(
        sampled_per_s=tokens / (sampled - began) / engines,
        token_s=(sampled - began) / max(1, longest),
        trained_per_s=batch.tokens / (learnt - batched),
        updates_s=0.0,
        publish_s=published - learnt,
        load_s=loaded - published,
        source="measured here",
    )
