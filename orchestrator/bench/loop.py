"""`bench`, the loop: what a step takes against its parts alone, and samples a second at each lag."""

import time
from collections.abc import Callable
from statistics import median

from learner.batches.builder import BatchBuilder
from learner.batches.micro_batches import TrainBatch
from learner.batches.samples import samples_from_groups
from learner.trainer_group import TrainerGroup
from orchestrator.bench.rollout import sample_groups
from orchestrator.buffer import Buffer, VersionCell
from orchestrator.deadline import Deadline, StopFlag
from orchestrator.loop import Loop, StepReport
from orchestrator.mixture import Mixture
from orchestrator.pipeline.config import Config
from orchestrator.settings.loop import RlConfig
from rollout.pool.pool import RolloutPool
from rollout.trajectory import Group, WeightVersion

STEPS = 6
SKIPPED = 2
"""Steps at the start that are not counted: the pipeline fills."""
LAGS = (0, 1, 2)
REPEATS = 3


async def bench_loop(
    pool: RolloutPool, learner: TrainerGroup, mixture: Mixture, config: Config, *, pad_id: int, version: int
) -> dict[str, float]:
    """Measure generating and learning alone, then whole steps at lags 0, 1 and 2, as ratios.

    `version` is what the engines serve now. `loop/overlap` is a step at lag 1 over the longer of its two parts alone; 1
    would be perfect overlap.
    """
    rl, builder = config.section(RlConfig), BatchBuilder(config=config.learner, pad_id=pad_id)

    def batch(groups: list[Group]) -> TrainBatch:
        return builder.of_samples(samples_from_groups(groups, advantage=rl.loss.advantage))

    serving = VersionCell(WeightVersion(step=version))
    generate_s, learn_s = await _parts(pool, learner, mixture, config, batch)
    seconds = {lag: await _step_s(pool, learner, mixture, config, batch, version=serving, lag=lag) for lag in LAGS}
    again = await _parts(pool, learner, mixture, config, batch)  # on both sides: a shared machine's speed drifts
    generate_s, learn_s = min(generate_s, again[0]), min(learn_s, again[1])
    longer = max(generate_s, learn_s)
    return {
        "loop/generate_alone_s": generate_s,
        "loop/learn_alone_s": learn_s,
        "loop/overlap": seconds[1] / longer,
    } | {f"loop/samples_per_s_lag_{lag}": rl.answers_per_step / step for lag, step in seconds.items()}


async def _step_s(
    pool: RolloutPool,
    learner: TrainerGroup,
    mixture: Mixture,
    config: Config,
    batch: Callable[[list[Group]], TrainBatch],
    *,
    version: VersionCell,
    lag: int,
) -> float:
    """Return the seconds of a step of the loop, once the pipeline is full."""
    rl = config.section(RlConfig)
    limit = Deadline(seconds=rl.timeout_s, setting="rl.timeout_s")
    reports: list[StepReport] = []

    async def keep(report: StepReport) -> None:
        reports.append(report)

    async def nothing(told: object) -> None: ...

    loop = Loop(
        stage="bench",
        rollouts=pool,
        learner=learner,
        mixture=mixture,
        buffer=Buffer(groups_per_step=rl.groups_per_step, max_lag=lag, max_drops=0),
        version=version,
        group_size=rl.group_size,
        make_batches=lambda groups: [batch(groups)],
        on_group=lambda group: group,
        on_step=keep,
        save=nothing,
        on_fault=nothing,
        stop=StopFlag(),
        limit=limit,
        push_limit=lambda nbytes: limit,
    )
    await loop.run(1, STEPS)
    return median(report.times.total for report in reports[SKIPPED:])


async def _parts(
    pool: RolloutPool,
    learner: TrainerGroup,
    mixture: Mixture,
    config: Config,
    batch: Callable[[list[Group]], TrainBatch],
) -> tuple[float, float]:
    """Return the seconds of generating one step's groups, and of learning from them, each with nothing beside it."""
    rl = config.section(RlConfig)
    generate, learn = [], []
    for repeat in range(REPEATS):
        tasks = [mixture.task(mixture.draw()) for _ in range(rl.groups_per_step)]
        first = 10**6 + repeat * rl.groups_per_step
        began = time.monotonic()
        groups = await sample_groups(pool, tasks, answers=rl.group_size, first=first)
        generated = time.monotonic()
        await learner.step(batch(groups))
        generate.append(generated - began)
        learn.append(time.monotonic() - generated)
    return min(generate), min(learn)
