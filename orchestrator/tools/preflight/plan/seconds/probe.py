"""The rates of this machine, measured: one engine fleet and one learner do the work of some steps, alone and beside each other.

Where the loop makes both work at once, each is measured with the other idle and with the other at work: on cores that they
share each is slower then, by how much only the machine can tell. What comes first warms both up and is not counted. What is
measured is bound to this model, these settings and this hour.
"""

import asyncio
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from temper.envs.core.clock import loop_time
from temper.learner.batches.builder import BatchBuilder
from temper.learner.models.fresh import make_model
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.stages.stage import StageInstance
from temper.orchestrator.tools.bench.processes import Processes, sample_groups, started
from temper.orchestrator.tools.preflight.plan.seconds.rates import Rates, Slowdown
from temper.orchestrator.tools.preflight.plan.seconds.steady import SteadySampling, steady_sampling
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import Group, WeightVersion

LEARNT = 2
"""Steps of the learner that are counted, alone and beside the engines."""
TRIES = 10
"""How often a learner that is done before the engines put out a token is measured beside them again."""
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
        probe = Probe(made, mixture, settings, builder, engines=config.rollout.workers)
        return await (probe.at_once() if settings.max_lag else probe.by_turns())


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What the learner takes for a step on some groups, in the mean over several one after the other."""

    tokens: int
    """Those of a step, of a further epoch again."""
    batch_s: float
    """Seconds to make a step's batches."""
    step_s: float


class Probe:
    """Measures processes that have started, with the work of a stage."""

    def __init__(
        self, made: Processes, mixture: Mixture, settings: LoopConfig, builder: BatchBuilder, *, engines: int
    ) -> None:
        self._made, self._mixture, self._settings, self._builder = made, mixture, settings, builder
        self._engines = engines

    async def by_turns(self) -> Rates:
        """Measure a step whose sides wait for each other."""
        groups = await self._sampled(FIRST)
        await self._learnt(groups)
        began = loop_time()
        groups = await self._sampled(FIRST + len(groups))
        seconds = loop_time() - began
        lengths = [answer.sampled_tokens for group in groups for answer in group.trajectories]
        rate = sum(lengths) / seconds / self._engines
        return await self._rates(groups, sampled_per_s=rate, token_s=seconds / max(lengths))

    async def at_once(self) -> Rates:
        """Measure each side alone and beside the other one, with as many groups in flight as the loop leaves to the engines.

        Of its slots a step's groups are being trained, or are ready for it.
        """
        settings = self._settings
        in_flight, count = max(1, settings.slots - settings.groups_per_step), settings.groups_per_step
        async with steady_sampling(
            self._made.pool, self._mixture, groups=in_flight, answers=settings.group_size, first=FIRST
        ) as sampling:
            groups = await sampling.groups(count)
            await self._learnt(groups)
            groups = await sampling.groups(max(count, in_flight))
            alone = await sampling.rate_until(sampling.groups(count))
            beside, together = await self._beside(sampling, groups[-count:])
        token_s = in_flight * settings.group_size / alone
        rates = await self._rates(groups[-count:], sampled_per_s=alone / self._engines, token_s=token_s)
        learnt_s = beside.tokens / rates.trained_per_s
        slower = Slowdown(engines=max(1.0, alone / together), learner=max(1.0, beside.step_s / learnt_s))
        return replace(rates, slowdown=slower)

    async def _beside(self, sampling: SteadySampling, groups: list[Group]) -> tuple[Learnt, float]:
        """Return what was learnt while engines sampled, and their tokens a second meanwhile.

        Raise `RuntimeError` where they put out none: learning was always shorter than a pass of an engine.
        """
        for _ in range(TRIES):
            learning = asyncio.ensure_future(self._learnt(groups))
            rate = await sampling.rate_until(learning)
            if rate:
                return learning.result(), rate
        raise RuntimeError(f"the engines put out no token while the learner stepped {TRIES * LEARNT} times")

    async def _sampled(self, first: int) -> list[Group]:
        tasks = [self._mixture.task(self._mixture.draw()) for _ in range(self._settings.slots)]
        return await sample_groups(self._made.pool, tasks, answers=self._settings.group_size, first=first)

    async def _learnt(self, groups: list[Group]) -> Learnt:
        settings, began = self._settings, loop_time()
        counts = {"updates": settings.updates_per_step, "epochs": settings.epochs}
        batches = await in_thread(partial(self._builder.of_groups, groups, settings.loss, **counts))
        made = loop_time()
        for _ in range(LEARNT):
            await self._made.learner.step(*batches, epochs=settings.epochs)
        step_s = (loop_time() - made) / LEARNT
        tokens = sum(batch.tokens for batch in batches)
        return Learnt(tokens=tokens, batch_s=made - began, step_s=step_s)

    async def _rates(self, groups: list[Group], *, sampled_per_s: float, token_s: float) -> Rates:
        """Measure learner and push alone."""
        learnt = await self._learnt(groups)
        began = loop_time()
        push = await self._made.learner.publish(WeightVersion(step=1))
        published = loop_time()
        await self._made.pool.load_weights(push)
        loaded = loop_time()
        return Rates(
            sampled_per_s=sampled_per_s,
            token_s=token_s,
            trained_per_s=learnt.tokens / learnt.step_s,
            updates_s=0.0,
            publish_s=published - began,
            load_s=loaded - published,
            source="measured here",
            batch_s=learnt.batch_s,
        )
