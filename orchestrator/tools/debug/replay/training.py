"""The training of recorded batches by the ranks that a run has: the same calls in the same order, without engines."""

import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import TypeVar

from temper.learner.config import LearnerConfig
from temper.learner.token_records import TokenRecord
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.cluster.bundles import Bundles, reserve
from temper.orchestrator.cluster.placement import PlacementRequest
from temper.orchestrator.cluster.ray_cluster import start_ray
from temper.orchestrator.cluster.run_actors import start_trainer_group
from temper.orchestrator.config.schema import to_settings
from temper.orchestrator.config.text import read_value
from temper.orchestrator.loop.deadline import Deadline, DeadlineConfig, in_thread, within
from temper.orchestrator.run.checkpoint import size_of
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.recording import StepBatch, TrainedWith
from temper.orchestrator.stages.step_metrics import read_records
from temper.rollout.weights.config import AUTO

T = TypeVar("T")
StartRanks = Callable[[LearnerConfig], Awaitable[TrainerGroup]]
STEP_S = 1800.0
"""Seconds of a step if neither the command nor the run has a longer deadline."""
DEADLINE = "--deadline"
ADVICE = f"the run is unchanged. If the deadline was too short, use a longer {DEADLINE}, which applies to all waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A batch that was trained: the learner's metrics, and the records of its tokens by place."""

    batch: StepBatch
    metrics: dict[str, float]
    records: list[TokenRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The starting point: a model, with the optimizer's state if it is the checkpoint of a step."""

    model: Path
    has_state: bool


def deadlines_of(run: RunDir) -> DeadlineConfig:
    """Return the deadlines of a run's configuration, or the defaults. Raise `ValueError` if they are invalid."""
    given = read_value(run.config, "deadlines") if run.config.is_file() else None
    found: DeadlineConfig = to_settings(DeadlineConfig, given or {}, under="deadlines.")
    return found


class Ranks:
    """The ranks of one replay. They start with the first batch, and restart if the learner's settings change."""

    def __init__(
        self,
        start: StartRanks,
        *,
        scratch: Path,
        note: Callable[[str], None],
        limits: DeadlineConfig | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """`start` starts the ranks. `scratch` is a folder for checkpoints. `limits` are the run's deadlines.

        A step may take `deadline_s` seconds, and no other deadline is shorter.
        """
        self._start, self._scratch, self._note = start, scratch, note
        limits, least = limits or DeadlineConfig(), deadline_s or 0.0
        self._limits = replace(limits, start_s=max(limits.start_s, least), files_s=max(limits.files_s, least))
        self._step = Deadline(seconds=deadline_s or max(STEP_S, limits.step_s), setting=DEADLINE)
        self._numbers = count()
        self._group: TrainerGroup | None = None
        self._config: LearnerConfig | None = None

    async def train(self, start: Start, batches: Sequence[StepBatch]) -> tuple[list[Trained], Path]:
        """Train each batch with its settings. Return the results and the last checkpoint.

        If the settings change between steps, the learner continues from a checkpoint, as in the run.
        """
        trained: list[Trained] = []
        for settings, members in groupby(batches, key=lambda batch: batch.trained_with):
            group = await self._begin(start, settings, batches[0].teacher)
            trained += [await self._train(group, batch) for batch in members]
            start = Start(model=await self._saved(group), has_state=True)
        return trained, start.model

    async def _begin(self, start: Start, settings: TrainedWith, teacher: str | None) -> TrainerGroup:
        """Return the ranks, with the model and the optimiser's state that training begins with."""
        learner = replace(settings.learner, transport=AUTO)
        if learner.offload_dir is not None:  # the run's folder may be in use
            learner = replace(learner, offload_dir=str(self._scratch / "offloaded"))
        if self._config != learner:
            await self.close()
            self._note(f"starting {learner.ranks} rank{'s' * (learner.ranks > 1)} of the learner")
            self._group = await self._within(self._limits.start(), self._start(learner), "the ranks to start")
            self._config = learner
        group = self._group
        assert group is not None
        limit = self._limits.files(await in_thread(size_of, start.model))
        await self._within(limit, group.use_threads(settings.threads), "the ranks")
        loading = group.load(
            start.model,
            optim=settings.optim,
            loss=settings.loss,
            total_steps=settings.total_updates,
            teacher=None if teacher is None else Path(teacher),
        )
        await self._within(limit, loading, f"the learner to read {start.model}")
        if start.has_state:
            await self._within(limit, group.restore(start.model), f"the learner to read {start.model}")
        if settings.loss.needs_reference:
            await self._within(limit, group.load_reference(), "the weights that the loss compares with")
        return group

    async def _train(self, group: TrainerGroup, batch: StepBatch) -> Trained:
        self._note(f"training step {batch.step} again")
        settings, waited = batch.trained_with, f"step {batch.step} to be trained"
        build = partial(settings.builder.build_from_groups, list(batch.groups), settings.loss)
        made = await in_thread(partial(build, updates=settings.updates_per_step, epochs=settings.epochs))
        metrics = await self._within(self._step, group.step(*made, epochs=settings.epochs), waited)
        stored = await self._within(self._step, group.token_records(), waited)
        records = await self._within(self._step, read_records(stored), waited)
        return Trained(batch=batch, metrics=metrics, records=records)

    async def _saved(self, group: TrainerGroup) -> Path:
        """Save a checkpoint in the scratch folder and return its directory."""
        directory = self._scratch / f"{next(self._numbers):06d}"
        directory.mkdir()
        needed, free = await group.checkpoint_bytes(), shutil.disk_usage(directory).free
        if free < needed:
            raise ValueError(
                f"{self._scratch} has {free} bytes free, but a checkpoint needs {needed}. Use another --scratch"
            )
        limit = self._limits.files(needed)
        await self._within(limit, group.save(directory), "a checkpoint to be copied")
        await self._within(limit, group.write(), "a checkpoint to be written")
        if not (directory / "config.json").is_file():
            raise ValueError(
                f"{self._scratch} is another folder for the ranks. Use a --scratch on storage that all machines share"
            )
        return directory

    async def close(self) -> None:
        """End the ranks."""
        group, self._group, self._config = self._group, None, None
        if group is not None:
            await group.close()

    async def _within(self, limit: Deadline, awaitable: Awaitable[T], what: str) -> T:
        return await within(limit, awaitable, stage="the replay", waiting_for=what, advice=ADVICE)


class RayRanks:
    """Starts ranks as a run does, on a Ray cluster, one group at a time."""

    def __init__(self) -> None:
        self._bundles: Bundles | None = None

    async def __call__(self, learner: LearnerConfig) -> TrainerGroup:
        """Return the ranks for these settings. Raise `NoRoomError` if they do not fit into the cluster."""
        start_ray(slots=learner.ranks, min_sandbox_level=0)
        if self._bundles is not None:
            self._bundles.free()
        self._bundles = await reserve(PlacementRequest(ranks=learner.ranks))
        return await start_trainer_group(learner, bundles=self._bundles, engine_processes=1)
