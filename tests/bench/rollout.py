"""`bench`, rollouts: episodes against the bare engine on the same requests, and forced ends of thinking against free ones.

`python -m bench.rollout CONFIG [key=value ...]` measures rollouts alone.
"""

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.processes import first_model, sample_groups, started

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import up_to
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.mixture import Mixture, open_mixture
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.profiles.resolve import load_resolved_config
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.config import RolloutConfig
from temper.rollout.engines.engine_process import cpu_s
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.token_arrays import tokens_of
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Group

GROUPS = 48
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens a second, and the CPU seconds of the worker processes without their engines."""

    tokens_per_s: float
    worker_cpu_s: float


async def bench_rollout(
    pool: RolloutPool, mixture: Mixture, config: Config, *, thinks: bool
) -> tuple[dict[str, float], list[Group]]:
    """Measure tokens a second through episodes and environments, two ratios, and the cost of episodes over the bare engine.

    The ways take turns. Each repeat gives a ratio, and the median counts. Episodes over the bare engine also have the least
    and the most. `python_ms_per_episode` is the CPU time of the workers beyond their time for the bare requests. Returns the
    last groups too. A fresh model hardly ever ends a turn by itself, so all ways sample turns of the same length. Only a model
    that `thinks` gives `enforced_times_free`.
    """
    budget, groups = enforced_budget(config), list[Group]()
    free, bare, enforced = list[Speed](), list[Speed](), list[Speed]()
    for repeat in range(REPEATS):
        tasks = [mixture.task(mixture.draw()) for _ in range(GROUPS)]
        first = 2 * repeat * GROUPS
        groups, speed = await _episodes(pool, tasks, config, first=first)
        free.append(speed)
        bare.append(await _bare(pool, groups, config))
        if thinks:
            limited = [replace(task, thinking=up_to(budget)) for task in tasks]
            enforced.append((await _episodes(pool, limited, config, first=first + GROUPS))[1])
    ratios = [ours.tokens_per_s / engine.tokens_per_s for ours, engine in zip(free, bare, strict=True)]
    beside = [ours.worker_cpu_s - engine.worker_cpu_s for ours, engine in zip(free, bare, strict=True)]
    figures = {
        "rollout/tokens_per_s": max(speed.tokens_per_s for speed in free),
        "rollout/times_bare_engine": median(ratios),
        "rollout/times_bare_engine_least": min(ratios),
        "rollout/times_bare_engine_most": max(ratios),
        "rollout/python_ms_per_episode": 1e3 * median(beside) / (GROUPS * config.section(RlConfig).group_size),
    }
    if thinks:
        closed = [forced.tokens_per_s / ours.tokens_per_s for forced, ours in zip(enforced, free, strict=True)]
        figures["rollout/enforced_times_free"] = median(closed)
    return figures, groups


def enforced_budget(config: Config) -> int:
    """Return the budget of the measurement: a quarter of a turn."""
    return max(1, config.rollout.limits.turn_tokens // 4)


def with_same_length(config: Config, model: Path) -> tuple[Config, bool]:
    """Return the configuration with turns of `same_length`, and whether the model thinks. Else it is unchanged."""
    tags = ThinkingTags.find(load_tokenizer(model))
    return (
        (replace(config, rollout=same_length(config, len(tags.complete_closing(())))), True)
        if tags
        else (config, False)
    )


def same_length(config: Config, closing: int) -> RolloutConfig:
    """Return settings with equally long turns with and without the budget, its forced end included."""
    rollout = config.rollout
    answer = rollout.limits.turn_tokens - enforced_budget(config) - closing
    return replace(rollout, thinking=replace(rollout.thinking, grace=0, answer_tokens=max(1, answer)))


async def _episodes(pool: RolloutPool, tasks: list[Task], config: Config, *, first: int) -> tuple[list[Group], Speed]:
    began, used = time.monotonic(), _worker_cpu_s(pool)
    groups = await sample_groups(pool, tasks, answers=config.section(RlConfig).group_size, first=first)
    seconds, cpu = time.monotonic() - began, _worker_cpu_s(pool) - used
    tokens = sum(t.sampled_tokens for group in groups for t in group.trajectories)
    return groups, Speed(tokens_per_s=tokens / seconds, worker_cpu_s=cpu)


async def _bare(pool: RolloutPool, groups: list[Group], config: Config) -> Speed:
    """Measure the same first turns, requested directly from the engines without episodes or environments."""
    prompts = [tokens_of(t.turns[0].context_ids) for group in groups for t in group.trajectories if t.turns]
    began, used = time.monotonic(), _worker_cpu_s(pool)
    sampled = await pool.sample_bare(prompts, max_tokens=config.rollout.limits.turn_tokens)
    seconds, cpu = time.monotonic() - began, _worker_cpu_s(pool) - used
    return Speed(tokens_per_s=sampled / seconds, worker_cpu_s=cpu)


def _worker_cpu_s(pool: RolloutPool) -> float:
    return cpu_s(now.process.place.pid for now in pool.processes() if now.process.place is not None)


async def bench_alone(config: Config) -> dict[str, float]:
    mixture = open_mixture(config.environments, {}, split="train", seed=config.seed)
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        model = first_model(config, Path(folder))
        alike, thinks = with_same_length(config, model)
        async with started(alike, model) as made:
            return (await bench_rollout(made.pool, mixture, config, thinks=thinks))[0]


if __name__ == "__main__":
    path, *overrides = sys.argv[1:]
    print(json.dumps(asyncio.run(bench_alone(load_resolved_config(Path(path), overrides))), indent=1))
