"""`bench`, rollouts: episodes against the bare engine on the same requests, and thoughts closed by force against free ones."""

import asyncio
import time
from dataclasses import replace

from envs.core.task import Task
from envs.core.thinking_mode import up_to
from orchestrator.mixture import Mixture
from orchestrator.pipeline.config import Config
from orchestrator.settings.loop import RlConfig
from rollout.episodes.worker import RolloutConfig
from rollout.pool.pool import RolloutPool
from rollout.token_arrays import tokens_of
from rollout.trajectory import Group, Ticket, WeightVersion

GROUPS = 48
REPEATS = 3


async def bench_rollout(pool: RolloutPool, mixture: Mixture, config: Config) -> tuple[dict[str, float], list[Group]]:
    """Measure tokens a second through episodes and environments, and two ratios; the ways take turns, the best of each counts.

    Returns the last groups too. The fresh model hardly ever ends a turn by itself, so all ways sample turns of the same
    length.
    """
    budget, free, enforced, bare = enforced_budget(config), 0.0, 0.0, 0.0
    groups: list[Group] = []
    for repeat in range(REPEATS):
        tasks = [mixture.task(mixture.draw()) for _ in range(GROUPS)]
        first = 2 * repeat * GROUPS
        groups, speed = await _episodes(pool, tasks, config, first=first)
        free = max(free, speed)
        bare = max(bare, await _bare(pool, groups, config))
        limited = [replace(task, thinking=up_to(budget)) for task in tasks]
        _, speed = await _episodes(pool, limited, config, first=first + GROUPS)
        enforced = max(enforced, speed)
    figures = {
        "rollout/tokens_per_s": free,
        "rollout/times_bare_engine": free / bare,
        "rollout/enforced_times_free": enforced / free,
    }
    return figures, groups


def enforced_budget(config: Config) -> int:
    """Return the budget of the measurement: a quarter of a turn."""
    return max(1, config.rollout.limits.turn_tokens // 4)


def same_length(config: Config, closing: int) -> RolloutConfig:
    """Return settings whose turns are as long with the budget, its closing included, as without."""
    rollout = config.rollout
    answer = rollout.limits.turn_tokens - enforced_budget(config) - closing
    return replace(rollout, thought=replace(rollout.thought, grace=0, answer_tokens=max(1, answer)))


async def sample_groups(pool: RolloutPool, tasks: list[Task], *, answers: int, first: int) -> list[Group]:
    """Sample so many answers to each task, all at once; the tickets are numbered from `first`."""
    tickets = [
        Ticket(number=first + place, task=task, admitted=WeightVersion(step=0)) for place, task in enumerate(tasks)
    ]
    return list(await asyncio.gather(*(pool.run_group(ticket, answers) for ticket in tickets)))


async def _episodes(pool: RolloutPool, tasks: list[Task], config: Config, *, first: int) -> tuple[list[Group], float]:
    began = time.monotonic()
    groups = await sample_groups(pool, tasks, answers=config.section(RlConfig).group_size, first=first)
    seconds = time.monotonic() - began
    return groups, sum(t.sampled_tokens for group in groups for t in group.trajectories) / seconds


async def _bare(pool: RolloutPool, groups: list[Group], config: Config) -> float:
    """Return tokens a second of the same first turns, asked of the engines directly: no episodes, no environments."""
    prompts = [tokens_of(t.turns[0].context_ids) for group in groups for t in group.trajectories if t.turns]
    began = time.monotonic()
    sampled = await pool.sample_bare(prompts, max_tokens=config.rollout.limits.turn_tokens)
    return sampled / (time.monotonic() - began)
