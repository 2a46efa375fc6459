"""The phases of engines and learner on colocated devices. Each change has a deadline and a line in a log."""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from time import monotonic
from typing import TypeVar

from temper.envs.core.process import MemoryUsage
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.loop.deadline import Deadline, in_thread, within
from temper.orchestrator.loop.interfaces import DevicePhase, DevicePhases
from temper.orchestrator.session.context import RunContext
from temper.rollout.pool.pool import RolloutPool

T = TypeVar("T")
PHASES_FILE = "phases.jsonl"
"""In a run's folder: one line a phase, with the device memory of each process."""
PARTS = 2
"""A change may take the deadline of one process this many times: some processes free memory before the others take it."""


class ColocatedPhases(DevicePhases):
    """Runs engines and learner in phases."""

    def __init__(
        self,
        run: RunContext,
        *,
        learner: Callable[[], TrainerGroup | None],
        pool: Callable[[], RolloutPool | None],
    ) -> None:
        self._run = run
        self._learner = learner
        self._pool = pool
        self._limit = run.config.deadlines.phase()
        self._now: tuple[DevicePhase, TrainerGroup | None, RolloutPool | None] | None = None

    async def begin(self, phase: DevicePhase) -> None:
        """See `DevicePhases.begin`. Raise `StuckError` past the deadline, and `LearnerDied` if a rank fails.

        An engine past the deadline counts as failed. It is replaced in the next sampling phase.
        """
        learner, pool = self._learner(), self._pool()
        if self._now == (phase, learner, pool):
            return
        self._now, began = None, monotonic()  # no phase until all processes have changed
        if phase.states:
            await self._engines(pool, phase)
            await self._ranks(learner, phase)
        else:
            await self._ranks(learner, phase)
            await self._engines(pool, phase)
        self._now = phase, learner, pool
        await self._log(phase, learner, pool, seconds=monotonic() - began)

    async def _engines(self, pool: RolloutPool | None, phase: DevicePhase) -> None:
        if pool is not None:
            limit_s = self._limit.seconds
            changing = pool.set_onloaded(weights=phase.engine_weights, cache=phase.cache, limit_s=limit_s)
            limit = Deadline(seconds=PARTS * limit_s, setting=self._limit.setting)
            what = "the engines to fall asleep" if not phase.engine_weights else "the engines to wake"
            await self._within(limit, changing, phase, what, last_progress=pool.starting)

    async def _ranks(self, learner: TrainerGroup | None, phase: DevicePhase) -> None:
        if learner is not None:
            changing = learner.set_onloaded(weights=phase.learner_weights, states=phase.states)
            await self._within(self._limit, changing, phase, "the learner to move its weights and states")

    async def _within(
        self,
        limit: Deadline,
        changing: Awaitable[T],
        phase: DevicePhase,
        what: str,
        *,
        last_progress: Callable[[], float] = lambda: 0.0,
    ) -> T:
        stage = f"the phase of {phase.name}"
        return await within(limit, changing, stage=stage, waiting_for=what, last_progress=last_progress)

    async def _log(
        self, phase: DevicePhase, learner: TrainerGroup | None, pool: RolloutPool | None, *, seconds: float
    ) -> None:
        """Log the memory of each process. If the write fails, the run continues.

        An engine or a rank that does not answer ends the stage.
        """
        held: dict[str, MemoryUsage] = {}
        for asked in (learner, pool):
            if asked is not None:
                held |= await self._within(
                    self._limit, asked.memory_usage(), phase, "the device memory of each process"
                )
        view = self._run.progress.current
        row = {
            "time": time.time(),
            "stage": "" if view is None else view.name,
            "step": 0 if view is None else view.step,
            "phase": phase.name,
            "seconds": round(seconds, 3),
            "memory_usage": {name: asdict(one) for name, one in held.items()},
        }
        try:
            await in_thread(self._append, json.dumps(row))
        except OSError as error:
            self._run.progress.note(f"{PHASES_FILE} lacks a {phase.name} phase: {error}")

    def _append(self, line: str) -> None:
        with (self._run.folder.root / PHASES_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
