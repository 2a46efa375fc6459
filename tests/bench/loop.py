"""`bench`, the loop: a step against its parts alone, and samples a second at each lag.

`python -m bench.loop CONFIG [key=value ...]` measures the loop alone.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from bench.processes import first_model, sample_groups, started

from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import LoopConfig, RlConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, Waits
from temper.orchestrator.loop.interfaces import Hooks, Rollouts
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.mixture import Mixture, open_mixture
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.profiles.resolve import load_resolved_config
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import Group, WeightVersion

STEPS = 5
SKIPPED = 2
"""Uncounted steps at the start: the pipeline fills."""
LAGS = (0, 2)
ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Seconds per sampled token of generation and of learning, each measured alone."""

    generate_s: float
    learn_s: float
    tokens: int
    """Sampled tokens of the step."""

    @property
    def longer_s(self) -> float:
        """The longer of both."""
        return max(self.generate_s, self.learn_s)


async def bench_loop(
    pool: RolloutPool, learner: TrainerGroup, mixture: Mixture, config: Config, *, pad_id: int, version: int
) -> dict[str, float]:
    """Measure whole steps at lag 1 against generating and learning alone, and samples a second at lags 0, 1 and 2.

    `version` is the version that the engines serve. `loop/overlap` divides a step at lag 1 by the longer of its two parts
    alone. It is the median of five runs, with the least and the most. Perfect overlap is 1. The parts are measured before and
    after each run, because a shared machine's speed drifts. All seconds are per sampled token: tasks are drawn, and one step
    may have a tenth more tokens than another.
    """
    rl, builder = config.section(RlConfig), BatchBuilder(config=config.learner, pad_id=pad_id)
    serving = VersionCell(WeightVersion(step=version))

    async def token_s(lag: int) -> float:
        reports: list[StepReport] = []

        async def keep(report: StepReport) -> None:
            reports.append(report)

        buffer = Buffer(groups_per_step=rl.groups_per_step, max_lag=lag, max_replaced_groups=0)
        await run_steps(pool, learner, mixture, rl, builder, buffer=buffer, version=serving, steps=STEPS, on_step=keep)
        counted = reports[SKIPPED:]
        return sum(report.times.total for report in counted) / sum(_tokens(report.groups) for report in counted)

    alone, steps = [await _alone(pool, learner, mixture, rl, builder, number=0)], []
    for number in range(1, ROUNDS + 1):
        steps.append(await token_s(lag=1))
        alone.append(await _alone(pool, learner, mixture, rl, builder, number=number))
    overlaps = [
        step / fmean((before.longer_s, after.longer_s))
        for step, (before, after) in zip(steps, pairwise(alone), strict=True)
    ]
    seconds = {1: median(steps)} | {lag: await token_s(lag) for lag in LAGS}
    tokens = fmean(one.tokens for one in alone)
    return {
        "loop/generate_alone_s": median(one.generate_s for one in alone) * tokens,
        "loop/learn_alone_s": median(one.learn_s for one in alone) * tokens,
        "loop/overlap": median(overlaps),
        "loop/overlap_least": min(overlaps),
        "loop/overlap_most": max(overlaps),
    } | {f"loop/samples_per_s_lag_{lag}": rl.answers_per_step / tokens / step for lag, step in sorted(seconds.items())}


async def run_steps(
    rollouts: Rollouts,
    learner: TrainerGroup,
    mixture: Mixture,
    rl: RlConfig,
    builder: BatchBuilder,
    *,
    buffer: Buffer,
    version: VersionCell,
    steps: int,
    on_step: Callable[[StepReport], Awaitable[None]],
    on_group: Callable[[Group], Group] = lambda group: group,
) -> None:
    """Run so many steps of the loop without saving anything. Call `on_step` after each."""
    limit = Deadline(seconds=rl.timeout_s, setting="rl.timeout_s")

    async def nothing(told: object) -> None: ...

    async def build(groups: list[Group]) -> None:
        await learner.build(groups, lambda opened: [batch_of(opened, rl, builder)])

    loop = Loop(
        rollouts=rollouts,
        learner=learner,
        mixture=mixture,
        buffer=buffer,
        version=version,
        group_size=rl.group_size,
        hooks=Hooks(
            build_batches=build,
            on_group=on_group,
            on_step=on_step,
            save=nothing,
            on_fault=nothing,
        ),
        waits=Waits(stage="bench", stop=StopFlag(), limit=limit, push_limit=lambda nbytes: limit),
    )
    await loop.run(1, steps)


def batch_of(groups: Sequence[Group], rl: LoopConfig, builder: BatchBuilder) -> TrainBatch:
    """Return the batch of a step's groups."""
    return builder.build_from_groups(groups, rl.loss, updates=1)[0]


async def _alone(
    pool: RolloutPool,
    learner: TrainerGroup,
    mixture: Mixture,
    rl: RlConfig,
    builder: BatchBuilder,
    *,
    number: int,
) -> Alone:
    """Return the times of generation and of learning for the groups of one step."""
    tasks = [mixture.task(mixture.draw()) for _ in range(rl.groups_per_step)]
    began = time.monotonic()
    groups = await sample_groups(pool, tasks, answers=rl.group_size, first=10**6 + number * rl.groups_per_step)
    generated, tokens = time.monotonic(), _tokens(groups)
    await learner.step(batch_of(groups, rl, builder))
    learnt = time.monotonic()
    return Alone(generate_s=(generated - began) / tokens, learn_s=(learnt - generated) / tokens, tokens=tokens)


def _tokens(groups: list[Group]) -> int:
    return sum(answer.sampled_tokens for group in groups for answer in group.trajectories)


async def bench_alone(config: Config) -> dict[str, float]:
    """Measure the loop on the configuration's model, with separate processes."""
    rl, mixture = config.section(RlConfig), open_mixture(config.environments, {}, split="train", seed=config.seed)
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        model = first_model(config, Path(folder))
        async with started(config, model) as made:
            await made.learner.load(model, optim=rl.optim, loss=rl.loss, total_steps=100)
            await made.learner.use_threads(config.learner.threads_during_generation)
            pad = pad_id(load_tokenizer(model))
            return await bench_loop(made.pool, made.learner, mixture, config, pad_id=pad, version=0)


if __name__ == "__main__":
    path, *overrides = sys.argv[1:]
    print(json.dumps(asyncio.run(bench_alone(load_resolved_config(Path(path), overrides))), indent=1))
