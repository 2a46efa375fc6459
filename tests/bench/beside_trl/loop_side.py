"""The loop's side: an engine and a learner that do parts of a work, as those of `orchestrator/loop/loop.py` do."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from bench.beside_trl.trl_side import Part
from bench.loop import run_steps

from temper.envs.binding import EnvConfig
from temper.envs.sandbox.sandbox import SandboxConfig
from temper.learner.batches.builder import BatchBuilder
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step_report import StepReport
from temper.orchestrator.tools.bench.processes import started
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.engine_process import cpu_s
from temper.rollout.episodes.episode import EpisodeLimits
from temper.rollout.episodes.worker import RolloutConfig
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import Group, WeightVersion

ANSWERS, ANSWER_TOKENS = 64, 64
"""Answers of a step, and most tokens of one."""
LENGTH = 1024
LEARNING_RATE = 1e-4
SKIPPED = 2
"""Steps at the start of a part that are not counted: the pipeline fills."""
ROLLOUT = RolloutConfig(
    engine=EngineConfig(max_model_len=LENGTH),
    limits=EpisodeLimits(turn_tokens=ANSWER_TOKENS, total_tokens=LENGTH, turns=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind of work: answers to a prompt, the characters that its prompts have at the least, and the steps of a part."""

    name: str
    group_size: int
    characters: int
    steps: int


class LoopSide:
    """Our side: an engine and a learner that stay from part to part."""

    def __init__(
        self,
        pool: RolloutPool,
        learner: TrainerGroup,
        mixture: Mixture,
        rl: RlConfig,
        builder: BatchBuilder,
        *,
        steps: int,
    ) -> None:
        self._pool = pool
        self._learner = learner
        self._mixture = mixture
        self._rl = rl
        self._builder = builder
        self._steps = steps
        self._version = VersionCell(WeightVersion(step=0))
        self._draw = random.Random(0)

    @classmethod
    @asynccontextmanager
    async def started(cls, model: Path, work: Work, mixture: Mixture, threads: int) -> AsyncIterator["LoopSide"]:
        rl = RlConfig(
            groups_per_step=ANSWERS // work.group_size,
            group_size=work.group_size,
            optim=OptimConfig(learning_rate=LEARNING_RATE, warmup_steps=0),
        )
        learner = LearnerConfig(
            threads=threads,
            threads_beside=max(1, threads - 1),
            micro_batch_tokens=8192,
            transport="shared_memory",
        )
        config = RunConfig(
            name="bench",
            envs={"math": EnvConfig()},
            rollout=ROLLOUT,
            learner=learner,
            sandbox=SandboxConfig(min_level=0),  # nothing is run there
        )
        async with started(config, model) as made:
            await made.learner.load(model, optim=rl.optim, loss=rl.loss, total_steps=10**6)
            builder = BatchBuilder(config=learner, pad_id=pad_id(load_tokenizer(model)))
            yield cls(made.pool, made.learner, mixture, rl, builder, steps=work.steps)

    async def steps(self, lag: int) -> Part:
        """Make the steps of a part, and those before it while the pipeline fills."""
        config = self._builder.config
        await self._learner.use_threads(config.threads_beside if lag else config.threads)
        marks: list[tuple[float, float]] = []
        groups: list[Group] = []

        async def mark(report: StepReport) -> None:
            marks.append((time.monotonic(), self._cpu_s()))
            if report.step > SKIPPED:
                groups.extend(report.groups)

        await run_steps(
            self._pool,
            self._learner,
            self._mixture,
            self._rl,
            self._builder,
            buffer=Buffer(groups_per_step=self._rl.groups_per_step, max_lag=lag, max_drops=0),
            version=self._version,
            steps=SKIPPED + self._steps,
            on_step=mark,
            on_group=self._with_rewards,
        )
        (began, used), (ended, used_since) = marks[SKIPPED - 1], marks[-1]
        answers = [trajectory for group in groups for trajectory in group.trajectories]
        return Part(
            seconds=ended - began,
            cpu_s=used_since - used,
            answers=len(answers),
            tokens=sum(answer.sampled_tokens for answer in answers),
        )

    def _with_rewards(self, group: Group) -> Group:
        """Return the group with rewards at random, as TRL's have: a fresh model's answers are all wrong."""
        return replace(group, trajectories=tuple(replace(t, reward=self._draw.random()) for t in group.trajectories))

    def _cpu_s(self) -> float:
        """Return the CPU seconds of this process, of its actors and of all that these started."""
        members = [*self._pool.members(), *self._learner.members()]
        pids = [now.member.place.pid for now in members if now.member.place is not None]
        children = [child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)]
        return time.process_time() + cpu_s([*pids, *children])
