"""One run in progress: its folder, its tracker, and its engines and learner, which start when a stage first needs them."""

import asyncio
import hashlib
import time
from dataclasses import replace
from pathlib import Path

from envs.source import runs_programs
from envs.thinking import ThinkingMix
from learner.checkpoint import begin, commit, discarded_on_failure, is_whole, latest, place, step_of
from learner.config import OptimConfig
from learner.loss_config import LossConfig
from orchestrator.cluster import Fleet, LearnerGroup, stop_ray
from orchestrator.config import Config
from orchestrator.deadline import StopFlag, within
from orchestrator.metrics import MetricsLog
from orchestrator.mixture import Mixture, open_mixture
from orchestrator.progress import Progress
from orchestrator.run_dir import RunDir
from orchestrator.stage_list import STAGES
from orchestrator.tracking import Tracker
from rollout.trajectory import WeightVersion

START_TIMEOUT_S = 300.0
"""Deadline for starting an engine or a learner, in seconds."""
BYTES_PER_PARAMETER = 16
"""A checkpoint's size: the weights and AdamW's two moments in float32, and the master weights of bf16."""


class Run:
    """What the stages share. Closed by the pipeline, whatever happens."""

    def __init__(
        self,
        config: Config,
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
        self.metrics = MetricsLog(folder.metrics)
        self.fleet: Fleet | None = None
        self.learner: LearnerGroup | None = None
        self._served: Path | None = None
        self._held: Path | None = None
        self._parameters = 0

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

    def seed(self, name: str) -> int:
        """The seed of an instance of a stage: a further instance of the same stage sees other tasks in another order."""
        if name in STAGES:
            return self.config.seed
        return int.from_bytes(hashlib.sha256(f"{self.config.seed}/{name}".encode()).digest()[:6], "big")

    def mixture(self, name: str, shares: dict[str, float], thinking: ThinkingMix | None = None) -> Mixture:
        """The mixture over the training tasks, with the shares and modes of thinking of the instance `name` of a stage."""
        return open_mixture(self.config.envs, shares, split="train", seed=self.seed(name), thinking=thinking)

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
    ) -> tuple[LearnerGroup, int]:
        """The learner, ready to train `stage`, and the step that was done last (0 for a fresh start).

        Raises `DamagedCheckpointError` where what it would begin with is not as it was saved.
        A loss that compares with frozen weights takes those of `teacher`, without one those that the stage began with.
        """
        learner, config = await self._learner(stage), self.config.learner
        await learner.use_threads(config.threads_beside if beside_engines else config.threads)
        checkpoint = await asyncio.to_thread(latest, self.folder.checkpoints(stage))
        base = checkpoint or self.model_dir
        await asyncio.to_thread(self.folder.verified, base)
        self._parameters = await within(
            START_TIMEOUT_S,
            learner.load(base, optim=optim, loss=loss, total_steps=steps, teacher=teacher),
            stage=stage,
            waiting_for=lambda: f"the learner to load {base}",
        )
        self._held = base
        if checkpoint is None:
            return learner, 0
        await within(
            START_TIMEOUT_S, learner.restore(checkpoint), stage=stage, waiting_for=lambda: f"the state in {checkpoint}"
        )
        self.progress.note(f"{stage}: continuing after step {step_of(checkpoint)}")
        return learner, step_of(checkpoint)

    async def save(self, stage: str, step: int, files: dict[str, str]) -> None:
        """Commit the learner's state as checkpoint `step` of a stage, with further text files by name.

        Raises `OSError` naming the place and the size where the disk is full; earlier checkpoints stay.
        """
        assert self.learner is not None
        folder, needed = self.folder.checkpoints(stage), self._parameters * BYTES_PER_PARAMETER
        if await asyncio.to_thread(is_whole, place(folder, step)):
            return  # saved already, and nothing was trained since
        directory = await asyncio.to_thread(begin, folder, step, needed_bytes=needed)
        with discarded_on_failure(directory, needed_bytes=needed):
            saving = self.learner.save(directory)
            await within(START_TIMEOUT_S, saving, stage=stage, waiting_for=lambda: f"checkpoint {directory}")
            for name, text in files.items():
                (directory / name).write_text(text, encoding="utf-8")
            await asyncio.to_thread(commit, directory)

    def trained(self, stage: str, *, served: bool = False) -> Path:
        """The newest checkpoint of a finished stage: the learner now holds it, and the engines where it was pushed."""
        model = latest(self.folder.checkpoints(stage))
        assert model is not None
        self._held = model
        if served:
            self._served = model
        return model

    async def serving(self, model: Path, *, stage: str) -> Fleet:
        """The rollout workers, serving `model`: started on it, or brought to it by a weight push.

        Raises `DamagedCheckpointError` where it is a model of the run that is not as it was saved.
        """
        await asyncio.to_thread(self.folder.verified, model)
        if self.fleet is None:
            await self._start_fleet(model, stage=stage)
        elif self._served != model:
            await self._push(model, stage=stage)
        assert self.fleet is not None
        self._served = model
        return self.fleet

    async def close(self) -> None:
        """Stop engines, learner and cluster."""
        await asyncio.gather(*(part.close() for part in (self.learner, self.fleet) if part is not None))
        stop_ray()

    async def _start_fleet(self, model: Path, *, stage: str) -> None:
        self.progress.note(f"{stage}: starting {self.config.rollout.workers} rollout engine(s)")
        began = time.monotonic()
        starting = Fleet.start(
            self.config.rollout,
            model_dir=model,
            version=self.version,
            seed=self.config.seed,
            actors=self.config.actors,
            record_experts=self.config.learner.router_replay,
        )
        waiting = within(START_TIMEOUT_S, starting, stage=stage, waiting_for=lambda: "the rollout engines to start")
        if self._will_train:  # both take long to start, mostly on one core each
            self.fleet, _ = await asyncio.gather(waiting, self._learner(stage))
        else:
            self.fleet = await waiting
        self.metrics.append("start", 0, {"engine/start_s": time.monotonic() - began})
        if any(runs_programs(name, env) for name, env in self.config.envs.items()):
            await self._show_isolation(stage)

    async def _show_isolation(self, stage: str) -> None:
        assert self.fleet is not None
        asking = within(
            START_TIMEOUT_S, self.fleet.isolation(), stage=stage, waiting_for=lambda: "the sandboxes to start"
        )
        lines = sorted(await asking)
        for line in lines:
            self.progress.note(line)
        self.tracker.params({"sandbox.isolation": " | ".join(lines)})

    async def _push(self, model: Path, *, stage: str) -> None:
        learner = await self._learner(stage)
        assert self.fleet is not None
        if self._held != model:
            loading = learner.load(model, optim=OptimConfig(), loss=LossConfig(), total_steps=1)
            await within(START_TIMEOUT_S, loading, stage=stage, waiting_for=lambda: f"the learner to load {model}")
            self._held = model
        version = WeightVersion(step=self.version.step + 1)
        self.folder.store(replace(self.folder.state(), version=version.step))
        timeout = self.config.rollout.engine.push_timeout_s
        manifest = await within(
            timeout, learner.publish(version), stage=stage, waiting_for=lambda: "the learner's weights"
        )
        await within(
            timeout, self.fleet.load_weights(manifest), stage=stage, waiting_for=lambda: "the engines to load weights"
        )

    async def _learner(self, stage: str) -> LearnerGroup:
        if self.learner is None:
            starting = LearnerGroup.start(self.config.learner, actors=self.config.actors)
            self.learner = await within(
                START_TIMEOUT_S, starting, stage=stage, waiting_for=lambda: "the learner's ranks to meet"
            )
        return self.learner
