"""One run in progress: its folder, its tracker, and its engines and learner, which start when a stage first needs them."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from pathlib import Path

from envs.sandbox.sandbox import MIN_LEVEL
from learner.config import OptimConfig
from learner.losses.config import LossConfig
from learner.trainer_group import TrainerGroup
from orchestrator.cluster.actors import gpus_taken
from orchestrator.cluster.ray_cluster import stop_ray
from orchestrator.cluster.rollout_actors import start_rollout_pool
from orchestrator.cluster.trainer_actors import start_trainer_group
from orchestrator.deadline import Deadline, StopFlag, in_thread, within
from orchestrator.run.checkpoint import begin, commit, discarded_on_failure, is_whole, latest, place, size_of, step_of
from orchestrator.run.folder import RunDir
from orchestrator.run.metrics_log import MetricsLog
from orchestrator.run.progress import Progress
from orchestrator.run.tracking import Tracker
from orchestrator.settings.run_config import RunConfig
from rollout.episodes.pool import RolloutPool
from rollout.trajectory import WeightVersion


class Run:
    """What the stages share. Closed by the pipeline, whatever happens."""

    def __init__(
        self,
        config: RunConfig,
        *,
        folder: RunDir,
        tracker: Tracker,
        progress: Progress,
        stop: StopFlag,
        will_train: bool,
    ) -> None:
        self.config = config
        self._will_train = will_train
        self.folder = folder
        self.tracker = tracker
        self.progress = progress
        self.stop = stop
        self._limits = config.deadlines
        self.metrics = MetricsLog(folder.metrics)
        self.pool: RolloutPool | None = None
        self.learner: TrainerGroup | None = None
        self._served: Path | None = None

    @property
    def model_dir(self) -> Path:
        """The newest model of the run."""
        model = self.folder.state().model
        if model is None:
            raise ValueError(f"{self.folder.root} has no model yet; run the stage `init` first")
        return self.folder.root / model

    @property
    def version(self) -> WeightVersion:
        """The newest weight version."""
        return WeightVersion(step=self.folder.state().version)

    def log(self, stage: str, step: int, metrics: dict[str, float]) -> None:
        """One step's metrics: to `metrics.jsonl`, from which the tracker reads them, and the screen."""
        self.metrics.append(stage, step, metrics)
        self.progress.update(step, metrics)

    async def learning(
        self,
        *,
        stage: str,
        optim: OptimConfig,
        loss: LossConfig,
        steps: int,
        beside_engines: bool,
        teacher: Path | None = None,
    ) -> tuple[TrainerGroup, int]:
        """The learner, ready to train `stage`, and the step that was done last (0 for a fresh start).

        Raises `DamagedCheckpointError` where what it would begin with is not as it was saved.
        A loss that compares with frozen weights takes those of `teacher`, without one those that the stage began with.
        """
        learner, config = await self._learner(stage), self.config.learner
        threads = config.threads_beside if beside_engines else config.threads
        await within(
            self._limits.start(), learner.use_threads(threads), stage=stage, waiting_for=lambda: "the learner's ranks"
        )
        checkpoint = await in_thread(latest, self.folder.checkpoints(stage))
        base = checkpoint or self.model_dir
        await in_thread(self.folder.verified, base)
        if checkpoint is not None and (self.config.learner.lora.rank or (loss.needs_reference and teacher is None)):
            await in_thread(self.folder.verified, self._began_with(stage))
        await self._read(learner.load(base, optim=optim, loss=loss, total_steps=steps, teacher=teacher), base, stage)
        if checkpoint is not None:
            await self._read(learner.restore(checkpoint), checkpoint, stage)
            self.progress.note(f"{stage}: continuing after step {step_of(checkpoint)}")
        if loss.needs_reference:
            await self._read(learner.load_reference(), teacher or base, stage)
        return learner, 0 if checkpoint is None else step_of(checkpoint)

    def _began_with(self, stage: str) -> Path:
        """The model that a stage began with, which its adapters or its reference belong to."""
        began = self.folder.state().began.get(stage)
        return self.model_dir if began is None else self.folder.root / began

    async def _read(self, reading: Awaitable[None], directory: Path, stage: str) -> None:
        """Wait for the learner to read a model or a checkpoint, as long as its bytes may take."""
        limit = self._limits.files(size_of(directory))
        await within(limit, reading, stage=stage, waiting_for=lambda: f"the learner to read {directory}")

    async def save(self, stage: str, step: int, files: dict[str, str]) -> None:
        """Commit the learner's state as checkpoint `step` of a stage, with further text files by name.

        Raises `OSError` naming the place and the size where the disk is full; earlier checkpoints stay.
        """
        assert self.learner is not None
        folder = self.folder.checkpoints(stage)
        if await in_thread(is_whole, place(folder, step)):
            return  # saved already, and nothing was trained since
        needed = await within(
            self._limits.start(),
            self.learner.checkpoint_bytes(),
            stage=stage,
            waiting_for=lambda: "the learner's ranks",
        )
        directory = await in_thread(partial(begin, folder, step, needed_bytes=needed))
        with discarded_on_failure(directory, needed_bytes=needed):
            writing = self._write(self.learner, directory, files)
            limit = self._limits.files(needed)
            await within(limit, writing, stage=stage, waiting_for=lambda: f"checkpoint {directory} to be written")

    async def _write(self, learner: TrainerGroup, directory: Path, files: dict[str, str]) -> None:
        await learner.save(directory)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
        await in_thread(commit, directory)

    def trained(self, stage: str, *, served: bool = False) -> Path:
        """Return the newest checkpoint of a finished stage, which the engines hold where it was pushed."""
        model = latest(self.folder.checkpoints(stage))
        assert model is not None
        if served:
            self._served = model
        return model

    async def serving(self, model: Path, *, stage: str) -> RolloutPool:
        """Return the rollout workers, serving `model`: started on it, or told to read it.

        Raises `DamagedCheckpointError` where it is a model of the run that is not as it was saved.
        """
        await in_thread(self.folder.verified, model)
        if self.pool is None:
            await self._start_pool(model, stage=stage)
        elif self._served != model:
            await self._load_checkpoint(model, stage=stage)
        assert self.pool is not None
        self._served = model
        return self.pool

    async def close(self) -> None:
        """Stop engines, learner and cluster."""
        await asyncio.gather(*(part.close() for part in (self.learner, self.pool) if part is not None))
        stop_ray()

    async def _start_pool(self, model: Path, *, stage: str) -> None:
        self.progress.note(f"{stage}: starting {self.config.rollout.workers} rollout engine(s)")
        began = time.monotonic()
        starting = start_rollout_pool(
            self.config.rollout,
            model_dir=model,
            version=self.version,
            seed=self.config.seed,
            actors=self.config.actors,
            record_experts=self.config.learner.router_replay,
        )
        limit = self._limits.start(size_of(model))
        waiting = within(
            limit, starting, stage=stage, waiting_for=lambda: f"the rollout engines to start{gpus_taken()}"
        )
        if self._will_train:  # both take long to start, mostly on one core each
            self.pool, _ = await asyncio.gather(waiting, self._learner(stage))
        else:
            self.pool = await waiting
        self.metrics.append("start", 0, {"engine/start_s": time.monotonic() - began})
        # below the usual level anyway: the processes that grade are sealed by the same layers as programs
        programs = any(env.runs_programs for env in self.config.environments.values())
        if programs or self.config.sandbox.min_level < MIN_LEVEL:
            await self._show_isolation(stage)

    async def _show_isolation(self, stage: str) -> None:
        assert self.pool is not None
        asking = within(
            self._limits.start(), self.pool.isolation(), stage=stage, waiting_for=lambda: "the sandboxes to start"
        )
        lines = sorted(await asking)
        for line in lines:
            self.progress.note(line)
        self.tracker.params({"sandbox.isolation": " | ".join(lines)})

    async def _load_checkpoint(self, model: Path, *, stage: str) -> None:
        assert self.pool is not None
        version = WeightVersion(step=self.version.step + 1)
        self.folder.store(replace(self.folder.state(), version=version.step))
        reading = self.pool.load_checkpoint(model, version)
        limit = self._limits.files(size_of(model))
        await within(limit, reading, stage=stage, waiting_for=lambda: f"the engines to read {model}")

    def push_limit(self, nbytes: int) -> Deadline:
        """The deadline of a push of so many bytes."""
        seconds = self.config.rollout.engine.push_deadline_s(nbytes)
        return Deadline(seconds=seconds, setting="rollout.engine.push_timeout_s")

    async def _learner(self, stage: str) -> TrainerGroup:
        if self.learner is None:
            starting = start_trainer_group(self.config.learner, actors=self.config.actors)
            self.learner = await within(
                self._limits.start(),
                starting,
                stage=stage,
                waiting_for=lambda: f"the learner's ranks to meet{gpus_taken()}",
            )
        return self.learner
