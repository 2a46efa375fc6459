"""The shifts of engines and learner on the devices that they share, each change with a deadline and a line of a log."""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from time import monotonic
from typing import TypeVar

from temper.envs.core.member import Holding
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.loop.deadline import Deadline, in_thread, within
from temper.orchestrator.loop.interfaces import Shift, Shifts
from temper.orchestrator.session.context import RunContext
from temper.rollout.pool.pool import RolloutPool

T = TypeVar("T")
SHIFTS_FILE = "shifts.jsonl"
"""In a run's folder: a line a shift, with what each process then had on its device."""
PARTS = 2
"""How often the deadline of one process a change may take: those that give come before those that take."""


class SharedShifts(Shifts):
    """Lets engines and learner work in shifts."""

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
        self._limit = run.config.deadlines.shift()
        self._now: tuple[Shift, TrainerGroup | None, RolloutPool | None] | None = None

    async def begin(self, shift: Shift) -> None:
        """See `Shifts.begin`. Raise `StuckError` if that takes too long, and `LearnerDied` if a rank died.

        An engine that does not change in its time counts as dead, and is replaced in the next shift of sampling.
        """
        learner, pool = self._learner(), self._pool()
        if self._now == (shift, learner, pool):
            return
        self._now, began = None, monotonic()  # neither the one nor the other until all have changed
        if shift.states:
            await self._engines(pool, shift)
            await self._ranks(learner, shift)
        else:
            await self._ranks(learner, shift)
            await self._engines(pool, shift)
        self._now = shift, learner, pool
        await self._log(shift, learner, pool, seconds=monotonic() - began)

    async def _engines(self, pool: RolloutPool | None, shift: Shift) -> None:
        if pool is not None:
            limit_s = self._limit.seconds
            changing = pool.occupy(weights=shift.engine_weights, cache=shift.cache, limit_s=limit_s)
            limit = Deadline(seconds=PARTS * limit_s, setting=self._limit.setting)
            what = "the engines to fall asleep" if not shift.engine_weights else "the engines to wake"
            await self._within(limit, changing, shift, what, last_sign=pool.starting)

    async def _ranks(self, learner: TrainerGroup | None, shift: Shift) -> None:
        if learner is not None:
            changing = learner.occupy(weights=shift.learner_weights, states=shift.states)
            await self._within(self._limit, changing, shift, "the learner to move its weights and states")

    async def _within(
        self,
        limit: Deadline,
        changing: Awaitable[T],
        shift: Shift,
        what: str,
        *,
        last_sign: Callable[[], float] = lambda: 0.0,
    ) -> T:
        stage = f"the shift of {shift.name}"
        return await within(limit, changing, stage=stage, waiting_for=what, last_sign=last_sign)

    async def _log(
        self, shift: Shift, learner: TrainerGroup | None, pool: RolloutPool | None, *, seconds: float
    ) -> None:
        """Add a line on what each process has now. If it can't be written, the run continues.

        An engine or a rank that does not answer ends the stage.
        """
        held: dict[str, Holding] = {}
        for asked in (learner, pool):
            if asked is not None:
                held |= await self._within(self._limit, asked.holding(), shift, "what each process has on its device")
        view = self._run.progress.current
        row = {
            "time": time.time(),
            "stage": "" if view is None else view.name,
            "step": 0 if view is None else view.step,
            "shift": shift.name,
            "seconds": round(seconds, 3),
            "holding": {name: asdict(one) for name, one in held.items()},
        }
        try:
            await in_thread(self._append, json.dumps(row))
        except OSError as error:
            self._run.progress.note(f"{SHIFTS_FILE} lacks a shift of {shift.name}: {error}")

    def _append(self, line: str) -> None:
        with (self._run.folder.root / SHIFTS_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
