"""Interrupted episodes that continue in another process, with engines of known turns."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from support.bound import bound
from support.held_engine import HeldEngine, Said
from support.scripted_engine import RENDERER, ROOM, TAGS

from temper.envs.catalog import make_env
from temper.envs.core.task import EnvRef, Task
from temper.envs.env_episode import MakeEnv
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.codec import from_json
from temper.rollout.config import EpisodeLimits
from temper.rollout.episodes.resume import PartialGroup, partial_lines
from temper.rollout.episodes.runner import EpisodeRunner, GroupInProgress
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.token_arrays import as_floats
from temper.rollout.trajectory import Ticket, Trajectory, WeightVersion

LONG_S = 30.0
"""A deadline for the slowest machine."""


def ticket_of(task: Task) -> Ticket:
    return Ticket(number=5, task=task, admitted=WeightVersion(step=2))


def runner_of(
    engine: HeldEngine,
    *,
    limits: EpisodeLimits = ROOM,
    make: MakeEnv = make_env,
    thinking: ThinkingConfig | None = None,
) -> EpisodeRunner:
    sampler = TurnSampler(engine, TAGS, thinking or ThinkingConfig(), turn_tokens=limits.turn_tokens)
    return EpisodeRunner(sampler=sampler, renderer=RENDERER, limits=limits, make_env=make)


def written_and_read(partial: PartialGroup) -> PartialGroup:
    """The group after writing and reading it."""
    lines = partial_lines([partial], [], unfinished={partial.ticket.number})
    return from_json(PartialGroup, lines).with_ticket(partial.ticket) if lines else partial


async def stopped(
    task: Task, engine: HeldEngine, *, partial: PartialGroup | None = None, **settings: Any
) -> PartialGroup:
    """The partial group of one episode whose engine stops. The attempt is then cancelled."""
    running = GroupInProgress(ticket_of(task), runner_of(engine, **settings), attempt=0, seeds=[1], partial=partial)
    playing = asyncio.create_task(running.play())
    async with asyncio.timeout(LONG_S):
        await engine.held.wait()
    left = written_and_read(running.to_partial())
    playing.cancel()
    await asyncio.wait([playing], timeout=LONG_S)
    return left


async def gone_on(task: Task, engine: HeldEngine, partial: PartialGroup, **settings: Any) -> Trajectory:
    running = GroupInProgress(ticket_of(task), runner_of(engine, **settings), attempt=0, seeds=[1], partial=partial)
    async with asyncio.timeout(LONG_S):
        (trajectory,) = (await running.play()).trajectories
    return trajectory


def interrupted(task: Task, said: Said, *, turn: int, tokens: int, **settings: Any) -> tuple[PartialGroup, Trajectory]:
    """The episode, interrupted in this turn after so many tokens of version 3 and continued with version 4."""

    async def both() -> tuple[PartialGroup, Trajectory]:
        left = await stopped(task, HeldEngine(said, version=3, hold_at=turn, tokens=tokens), **settings)
        return left, await gone_on(task, HeldEngine(said, version=4), left, **settings)

    return asyncio.run(both())


def same_but_for_versions(trajectory: Trajectory, whole: Trajectory) -> None:
    """Fail unless turns, reward and end are equal. Log-probabilities of injected tokens are NaN in both."""
    assert len(trajectory.turns) == len(whole.turns)
    for ours, theirs in zip(trajectory.turns, whole.turns, strict=True):
        np.testing.assert_array_equal(ours.logprobs_T, theirs.logprobs_T)
        assert dataclasses.replace(
            ours, logprobs_T=as_floats((0.0,) * len(ours.sampled_ids)), versions_T=theirs.versions_T
        ) == (dataclasses.replace(theirs, logprobs_T=as_floats((0.0,) * len(theirs.sampled_ids))))
    assert (trajectory.stop, trajectory.reward, trajectory.score, trajectory.failure) == (
        whole.stop,
        whole.reward,
        whole.score,
        whole.failure,
    )


def mathematics(path: Path) -> tuple[Task, list[str]]:
    task = bound(Task(key="t", messages=({"role": "user", "content": "2+2=?"},), spec={"answer": "4"}), "math")
    return task, ["2+2=4\n</think>\n\\boxed{4}"]


class Echo(gymnasium.Env[str, str]):
    """A custom environment: it repeats the text with the number of the turn, and ends after three."""

    def __init__(self) -> None:
        self.number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "", {"messages": [{"role": "user", "content": "begin"}]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.number += 1
        shown = {"role": "user", "content": f"{self.number}: {action[-3:]}"}
        return "", float(self.number), self.number == 3, False, {"messages": [shown]}


def own(path: Path) -> tuple[Task, list[str]]:
    ref = EnvRef(name="echo", entry_point=f"{__name__}:Echo")
    return Task(env=ref, key="1", messages=({"role": "user", "content": "?"},), spec={}), [
        "</think>a",
        "b",
        "</think>c",
    ]
