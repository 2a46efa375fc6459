"""The engines of a run, with deadlines for starts, loads and pushes."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from temper.envs.agents import remove_folders
from temper.envs.core.locked_folder import remove_abandoned
from temper.envs.core.process import ProcessInfo
from temper.envs.sandbox.sandbox import MIN_LEVEL
from temper.orchestrator.cluster.bundles import describe_used_gpus
from temper.orchestrator.cluster.run_actors import make_rollout_pool
from temper.orchestrator.loop.deadline import Deadline, in_thread, together, within
from temper.orchestrator.loop.interfaces import SAMPLING, DevicePhases
from temper.orchestrator.run.checkpoint import size_of
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.run_supervision import RunSupervision
from temper.rollout.engines.scratch_folder import PREFIX, scratch_base
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.restarts import TOGETHER_S, RestartLimit
from temper.rollout.pool.slot_keeper import RestartPolicy
from temper.rollout.trajectory import WeightVersion

DELIVERIES = 2


class Engines:
    """The rollout workers and the model that they serve."""

    def __init__(
        self,
        run: RunContext,
        *,
        start_learner: Callable[[str], Awaitable[object]] | None,
        start_judges: Callable[[str], Awaitable[dict[str, str]]] | None = None,
        supervision: RunSupervision | None = None,
        device_phases: DevicePhases | None = None,
    ) -> None:
        """`start_learner` starts the learner at the same time. `start_judges` starts the judges before, and returns
        environment variables of the workers. `supervision` records failures.
        """
        self._run = run
        self._phases = device_phases or DevicePhases()
        self._start_learner = start_learner
        self._start_judges = start_judges
        self._supervision = supervision
        self._limits = run.config.deadlines
        self._served: Path | None = None
        self._undoing = False
        self._starting: RolloutPool | None = None
        self.pool: RolloutPool | None = None

    async def serve(self, model: Path, *, who: str) -> RolloutPool:
        """Return the workers, serving `model` for `who`. Raise `DamagedCheckpointError` for a damaged model."""
        await in_thread(self._run.folder.verify_model, model)
        await self._phases.begin(SAMPLING)
        if self.pool is None:
            await self._start_pool(model, who=who)
        elif self._served != model:
            await self._load_checkpoint(model, who=who)
        assert self.pool is not None
        self._served, self._undoing = model, False
        return self.pool

    def forget_served(self) -> None:
        """Forget the pushes of a stage that restarts. The next model is loaded from disk under its former version."""
        self._served, self._undoing = None, True

    def set_served(self, model: Path) -> None:
        """Record that the weights of `model` were pushed to the engines."""
        self._served = model
        if self.pool is not None:
            self.pool.hold(model)

    def processes(self) -> list[ProcessInfo]:
        pool = self.pool or self._starting
        return [] if pool is None else pool.processes()

    def last_restart_at(self) -> float:
        """Return the time of the last restart of a worker, on the monotonic clock."""
        return 0.0 if self.pool is None else self.pool.last_restart_at()

    def resize(self, workers: int) -> bool:
        """Change the number of workers. Return False before their start."""
        if self.pool is not None:
            self.pool.resize(workers)
        return self.pool is not None

    async def close(self) -> None:
        """Stop the workers. Remove local files of killed ones."""
        if self.pool is not None:
            await self.pool.close()
        await in_thread(remove_abandoned, PREFIX, scratch_base())
        await in_thread(remove_folders)

    async def _start_pool(self, model: Path, *, who: str) -> None:
        config = self._run.config
        variables = {} if self._start_judges is None else await self._start_judges(who)
        self._run.progress.note(f"{who}: starting {config.rollout.workers} rollout engine(s)")
        began = time.monotonic()
        starting = within(
            self._limits.start(size_of(model)),
            self._start(model, variables),
            stage=who,
            waiting_for=lambda: f"the rollout engines to start{describe_used_gpus()}",
            on_stuck=None if self._supervision is None else self._supervision.inspect_starting,
        )
        if self._start_learner is not None:  # both starts are long and mostly single-threaded
            await together((starting, self._start_learner(who)))
        else:
            await starting
        self._run.metrics.append_next("start", {"engine/start_s": time.monotonic() - began})
        # also at a level below the default, since grading processes have the same sandbox layers
        programs = any(env.runs_programs for env in config.environments.values())
        if programs or config.sandbox.min_level < MIN_LEVEL:
            await self._show_isolation(who)

    async def _start(self, model: Path, variables: dict[str, str]) -> None:
        config = self._run.config
        assert self._run.bundles is not None
        engine = config.rollout.engine
        self._starting = pool = make_rollout_pool(
            replace(config.rollout, engine=engine.with_float32_head() if config.learner.float32_head else engine),
            bundles=self._run.bundles,
            model_dir=model,
            version=self._run.version,
            seed=config.seed,
            record_experts=config.learner.router_replay,
            sleeps=config.placement == "colocated",
            restart_policy=self._restart_policy(model),
            newest=lambda: self._run.model_dir,
            variables=variables,
        )
        try:
            await pool.start()
        finally:
            self._starting = None
        self.pool = pool

    def _restart_policy(self, model: Path) -> RestartPolicy:
        config, record = self._run.config.supervision, self._supervision
        restart_policy = RestartPolicy(
            restarts=RestartLimit(config.restarts, window_s=config.window_s, together_s=TOGETHER_S),
            start_s=self._limits.start(size_of(model)).seconds,
            log=self._run.progress.note,
        )
        if record is None:
            return restart_policy
        return replace(
            restart_policy,
            on_late_start=record.end_starting,
            on_failure=record.record_failure,
            on_restart=record.record_restart,
        )

    async def _show_isolation(self, who: str) -> None:
        assert self.pool is not None
        asking = within(self._limits.start(), self.pool.isolation(), stage=who, waiting_for="the sandboxes to start")
        lines = sorted(await asking)
        for line in lines:
            self._run.progress.note(line)
        self._run.tracker.params({"sandbox.isolation": " | ".join(lines)})

    async def _load_checkpoint(self, model: Path, *, who: str) -> None:
        assert self.pool is not None
        version = self._run.version if self._undoing else WeightVersion(step=self._run.version.step + 1)
        await in_thread(self._run.folder.store, replace(self._run.folder.state(), version=version.step))
        reading = self.pool.load_checkpoint(model, version)
        limit = self._limits.files(size_of(model))
        await within(limit, reading, stage=who, waiting_for=f"the engines to read {model}")

    def push_limit(self, nbytes: int) -> Deadline:
        """Return the deadline of a push, which is sent at most twice. An engine that takes half of it is replaced."""
        seconds = DELIVERIES * self._run.config.rollout.engine.push_deadline_s(nbytes)
        return Deadline(seconds=seconds, setting="rollout.engine.push_timeout_s")
