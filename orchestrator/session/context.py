"""The context that all stages share: settings, folder, metrics and notes. It starts no process."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.core.process import ResultLost
from temper.orchestrator.cluster.bundles import Bundles
from temper.orchestrator.cluster.ray_cluster import COPY_S, SessionLogs
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.deadline import StopFlag, StuckError, in_thread
from temper.orchestrator.run.folder import RunDir, evaluations_of
from temper.orchestrator.run.metrics_log import ALARM, UNWRITTEN, MetricsLog, MetricsRow, read_metrics, step_rows
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.recording import BatchKeeper
from temper.orchestrator.tracking.tracker import Tracker
from temper.rollout.stored_turns import GroupsLost
from temper.rollout.trajectory import Group, WeightVersion
from temper.rollout.trajectory_json import write_groups


class RunContext:
    """The settings of a run, its folder, and the destinations of its metrics and notes."""

    def __init__(
        self, config: RunConfig, *, folder: RunDir, tracker: Tracker, progress: Progress, stop: StopFlag
    ) -> None:
        self.config = config
        self.folder = folder
        self.tracker = tracker
        self.progress = progress
        self.stop = stop
        self.metrics = MetricsLog(folder.metrics)
        self.bundles: Bundles | None = None
        """Reserved resources of the run's processes, once its cluster has started."""
        self.printed: SessionLogs | None = None
        """Output of these processes, if this process started or joined the cluster."""
        self.in_process: Callable[..., Awaitable[Any]] = in_thread
        """Runs a function that reads stored turns. With a cluster it has a separate process."""
        self._copying = asyncio.Lock()

    @property
    def model_dir(self) -> Path:
        model = self.folder.state().model
        if model is None:
            raise ValueError(f"{self.folder.root} has no model yet; run the stage `init` first")
        return self.folder.root / model

    @property
    def version(self) -> WeightVersion:
        return WeightVersion(step=self.folder.state().version)

    def truncate_records(self, name: str, step: int) -> None:
        """Remove the records of an instance after a step, which it will repeat, and the evaluations from then."""
        files = [self.folder.step_evaluations(name), self.folder.batch_files(name)]
        for each in (name, evaluations_of(name)):
            self.metrics.truncate(each, step)
            files.append(self.folder.trajectory_files(each))
        for path in (path for found in files for abandoned, path in found.items() if abandoned > step):
            path.unlink()

    async def write_trajectories(
        self, path: Path, groups: Iterable[Group], *, name: str, step: int, leave: int = 0
    ) -> None:
        """Write a trajectory file. If that fails, note it and continue. Leave `leave` bytes free for a checkpoint."""
        await self.write_trajectory_file(path, name, step, in_thread(partial(write_groups, path, groups, leave=leave)))

    async def write_trajectory_file(self, path: Path, name: str, step: int, writing: Awaitable[None]) -> None:
        """Wait until a trajectory file is written. If that fails, note it and continue."""
        with self._optional(name, step, path.name, f"no trajectories: {path} cannot be written"):
            await writing
            self.tracker.episodes(path)

    async def record_batch(
        self, keeper: BatchKeeper, stage: str, step: int, write: Callable[[Path], Awaitable[object]]
    ) -> None:
        """Record a batch for replay. If that fails, note it and continue."""
        name = self.folder.batch_file(stage, step).name
        lost = f"no replay of steps before the next checkpoint: {name} cannot be written"
        with self._optional(stage, step, name, lost):
            await keeper.keep(step, write)

    @contextmanager
    def _optional(self, stage: str, step: int, file: str, lost: str) -> Iterator[None]:
        """Write an optional file in the block. If that fails, note the text `lost` and continue."""
        try:
            yield
        except (OSError, GroupsLost, ResultLost, StuckError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.progress.note(f"{stage}: {lost} ({why}); the run continues")
            self.metrics.event(stage, step, UNWRITTEN, {file: why})

    async def copy_output(self) -> None:
        """Copy the output of engines and ranks to the run's folder."""
        if self.printed is None:
            return
        try:
            async with asyncio.timeout(2 * COPY_S), self._copying:
                why = await in_thread(partial(self.printed.copy_to, self.folder.printed))
        except TimeoutError:
            why = f"{self.folder.printed} cannot be written in {2 * COPY_S:g} s"
        if why:
            self.progress.note(f"output of engines and ranks: {why}")

    def log(self, name: str, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of a step to `metrics.jsonl`, which the tracker reads, and to the screen."""
        self.metrics.append(name, step, metrics)
        self.progress.update(step, metrics)

    def alarm(self, name: str, step: int, what: dict[str, str]) -> None:
        """Report the metrics that left their bands in a step or came back."""
        if what:
            self.metrics.event(name, step, ALARM, what)
            for setting, text in what.items():
                self.progress.note(f"{name} step {step}: {setting}: {text}")

    def rows(self, name: str) -> list[MetricsRow]:
        return step_rows(read_metrics(self.folder.metrics), name)


def skipped_steps(rows: Iterable[MetricsRow]) -> Iterator[tuple[int, bool]]:
    """Yield each step of a training instance and whether it was skipped."""
    for row in rows:
        if (skipped := row.values.get("train/skipped")) is not None:
            yield row.step, skipped == 1.0
