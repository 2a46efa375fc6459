"""What every stage knows of its run and writes to: no process is behind it."""

from pathlib import Path

from orchestrator.deadline import StopFlag
from orchestrator.run.folder import RunDir
from orchestrator.run.metrics_log import MetricsLog
from orchestrator.run.progress import Progress
from orchestrator.run.tracking import Tracker
from orchestrator.settings.run_config import RunConfig
from rollout.trajectory import WeightVersion


class RunContext:
    """The settings of a run, its folder, and where its metrics and notes go."""

    def __init__(
        self, config: RunConfig, *, folder: RunDir, tracker: Tracker, progress: Progress, stop: StopFlag
    ) -> None:
        self.config = config
        self.folder = folder
        self.tracker = tracker
        self.progress = progress
        self.stop = stop
        self.metrics = MetricsLog(folder.metrics)

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

    def log(self, name: str, step: int, metrics: dict[str, float]) -> None:
        """Log one step's metrics of an instance: to `metrics.jsonl`, which the tracker reads, and to the screen."""
        self.metrics.append(name, step, metrics)
        self.progress.update(step, metrics)
