"""A run that `rl` or `distill` really trains, with the loop, a DeepSpeed rank and checkpoints, on answers without an engine."""

import asyncio
import io
import random
from pathlib import Path
from typing import Any

from support.plain_rank import plain_ranks
from unit.orchestrator.evaluation.test_budget_curve import Tracked

from temper.envs.core.task import EnvRef, Task
from temper.learner.batches.builder import BatchBuilder
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.engines import Engines
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, TurnFault, WeightVersion
from temper.rollout.weights.delivery import Push

DEMO = Path("configs/demo.yaml")
SETTINGS = [
    *("groups_per_step=3", "group_size=3", "checkpoint_every=2", "max_lag=0", "max_failures=1.0"),
    *("optim.learning_rate=3e-4", "optim.warmup_steps=0", "optim.grad_clip=0", "sampling.temperature=0.8"),
    *("loss.malformed_thinking=-1.5", "loss.mask_truncated=true", "loss.error_guard=0"),
]
USUAL = -5.7
"""Approximate log-probability of any of 288 ids under an untrained model, in nats."""


class Questions:
    """A source of meaningless tasks."""

    def task(self, index: int) -> Task:
        return Task(env=EnvRef(name="math"), key=str(index), messages=({"role": "user", "content": "?"},), spec={})


class AskingStage(StageInstance):
    """An instance with these tasks."""

    def mixture(self, *_told: Any) -> Mixture:
        return Mixture({"math": Questions()}, {"math": 1.0})


class Rollouts:
    """Random answers: one turn or two, with injected tokens, malformed thinking, and truncations."""

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None = None) -> Group:
        rng = random.Random(ticket.number)
        prompt = [rng.randrange(32, 127) for _ in range(9)]
        return Group(ticket=ticket, trajectories=tuple(self._answer(ticket, rng, prompt) for _ in range(samples)))

    def _answer(self, ticket: Ticket, rng: random.Random, prompt: list[int]) -> Trajectory:
        turns = [self._turn(ticket, rng, prompt)]
        if rng.random() < 0.5:
            turns.append(self._turn(ticket, rng, [10, 62, 10]))
        stop = Stop.LENGTH if rng.random() < 0.3 else Stop.ENV
        return Trajectory(task=ticket.task, turns=tuple(turns), stop=stop, reward=rng.random())

    def _turn(self, ticket: Ticket, rng: random.Random, context: list[int]) -> Turn:
        count = rng.randrange(4, 20)
        forced = [place < 2 and count > 14 for place in range(count)]
        values = [float("nan") if mark else USUAL + rng.uniform(-0.7, 0.7) for mark in forced]
        return Turn(
            context_ids=as_ids(context),
            sampled_ids=as_ids([rng.randrange(32, 127) for _ in range(count)]),
            logprobs_T=as_floats(values),
            versions_T=as_ids([ticket.admitted.step] * count),
            injected_T=as_marks(forced),
            text="an answer",
            faults=(TurnFault.THINKING,) if rng.random() < 0.2 else (),
        )

    async def groups_in_flight(self) -> list[PartialGroup]:
        return []

    async def load_weights(self, push: Push) -> WeightVersion:
        return push.manifest.weight_version

    async def engine_stats(self) -> EngineStats:
        return EngineStats()


class PlainTrainer(Trainer):
    """Its rank is in this process."""

    async def start(self, name: str) -> TrainerGroup:
        if self.learner is None:
            self.learner = await plain_ranks(self._run.config.learner)
        return self.learner

    def batch_builder(self) -> BatchBuilder:
        return BatchBuilder(config=self._run.config.learner, pad_id=0)


class NoEngines(Engines):
    """There are none."""

    async def serve(self, model: Path, *, who: str) -> Any:
        return Rollouts()


def train(root: Path, model: Path, *overrides: str, stage: str = "rl") -> RunDir:
    """Train the stage from a model in a run's folder. Return the folder. Settings of the stage have no prefix."""
    own = [f"{stage}.{one}" for one in SETTINGS if stage == "rl" or not one.startswith("loss.m")]
    config = load_config(DEMO, ["learner.micro_batch_tokens=256", *own, *overrides])
    folder, kind = RunDir(root), single_instance(all_stages()[stage])
    folder.open()
    if folder.state().model is None:
        folder.store(RunState(model=str(model), began={stage: str(model)}, stages={stage: stage}))
    instance = AskingStage(stage=kind.stage, name=kind.name, overrides=kind.overrides)

    async def work() -> None:
        with Progress(stream=io.StringIO()) as progress:
            run = Run(config, folder=folder, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=True)
            run.trainer = PlainTrainer(run)
            run.engines = NoEngines(run, start_learner=None)
            try:
                await instance.stage.run(run, config.settings(instance), instance)
            finally:
                await run.trainer.close()

    try:
        asyncio.run(work())
    finally:
        folder.close()
    return folder
