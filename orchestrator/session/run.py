"""A run in progress, as its stages see it."""

import asyncio

from temper.envs.core.process import ProcessInfo
from temper.orchestrator.cluster.ray_cluster import stop_ray
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.loop.interfaces import DevicePhases
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.colocated_phases import ColocatedPhases
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.engines import Engines
from temper.orchestrator.session.judges import Judges
from temper.orchestrator.session.run_supervision import RunSupervision
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.tracking.tracker import Tracker


class Run(RunContext):
    """The context with engines, trainer and supervision. The pipeline always closes it."""

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
        """With `will_train` the ranks start together with the engines."""
        super().__init__(config, folder=folder, tracker=tracker, progress=progress, stop=stop)
        self.device_phases: DevicePhases = DevicePhases()
        if config.placement == "colocated":
            self.device_phases = ColocatedPhases(
                self, learner=lambda: self.trainer.learner, pool=lambda: self.engines.pool
            )
        self.trainer = Trainer(self, device_phases=self.device_phases)
        self.supervision = RunSupervision(
            self, processes=self._processes, resize=lambda workers: self.engines.resize(workers)
        )
        self.judges = Judges(self, supervision=self.supervision)
        start_learner = self.trainer.start if will_train else None
        self.engines = Engines(
            self,
            start_learner=start_learner,
            start_judges=self.judges.start,
            supervision=self.supervision,
            device_phases=self.device_phases,
        )

    async def close(self) -> None:
        """Stop engines, learner, judges and cluster. An error of one does not keep the others running."""
        closing = self.trainer.close(), self.engines.close(), self.judges.close()
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(error, Exception):
                self.progress.note(f"closing: {type(error).__name__}: {error}")
        stop_ray()

    def _processes(self) -> list[ProcessInfo]:
        return [*self.engines.processes(), *self.trainer.processes()]
