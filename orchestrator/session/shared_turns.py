"""The turns of engines and learner on the devices that they share, each change with a deadline and a line of a log."""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from time import monotonic
from typing import Any

from envs.core.member import Holding
from learner.trainer_group import TrainerGroup
from orchestrator.deadline import Deadline, in_thread, within
from orchestrator.session.context import RunContext
from orchestrator.turns import Turn, Turns
from rollout.pool.pool import RolloutPool

TURNS_FILE = "turns.jsonl"
"""In a run's folder: a line a turn, with what each process then had on its device."""
PARTS = 2
"""How often the deadline of one process a change may take: those that give come before those that take."""


class SharedTurns(Turns):
    """Lets engines and learner take turns."""

    def __init__(
        self,
        run: RunContext,
        *,
        learner: Callable[[], TrainerGroup | None],
        pool: Callable[[], RolloutPool | None],
    ) -> None:
        """`learner` and `pool` give those that there are by now."""
        self._run = run
        self._learner = learner
        self._pool = pool
        self._limit = run.config.deadlines.turn()
        self._now: tuple[Turn, TrainerGroup | None, RolloutPool | None] | None = None

    async def begin(self, turn: Turn) -> None:
        """See `Turns.begin`. Raise `StuckError` where that takes too long, and `LearnerDied` where a rank died.

        An engine that does not fall asleep or wake in its time is taken for dead, and replaced in the next turn of sampling.
        """
        learner, pool = self._learner(), self._pool()
        if self._now == (turn, learner, pool):
            return
        self._now, began = None, monotonic()  # neither the one nor the other until all have changed
        if turn.states:
            await self._engines(pool, turn)
            await self._ranks(learner, turn)
        else:
            await self._ranks(learner, turn)
            await self._engines(pool, turn)
        self._now = turn, learner, pool
        await self._log(turn, learner, pool, seconds=monotonic() - began)

    async def _engines(self, pool: RolloutPool | None, turn: Turn) -> None:
        if pool is not None:
            limit_s = self._limit.seconds
            changing = pool.take_turn(weights=turn.engine_weights, cache=turn.cache, limit_s=limit_s)
            limit = Deadline(seconds=PARTS * limit_s, setting=self._limit.setting)
            what = "the engines to fall asleep" if not turn.engine_weights else "the engines to wake"
            await self._within(limit, changing, turn, what, last_sign=pool.starting)

    async def _ranks(self, learner: TrainerGroup | None, turn: Turn) -> None:
        if learner is not None:
            changing = learner.take_turn(weights=turn.learner_weights, states=turn.states)
            await self._within(self._limit, changing, turn, "the learner to move its weights and states")

    async def _within(
        self,
        limit: Deadline,
        changing: Awaitable[Any],
        turn: Turn,
        what: str,
        *,
        last_sign: Callable[[], float] = lambda: 0.0,
    ) -> Any:
        stage = f"the turn of {turn.name}"
        return await within(limit, changing, stage=stage, waiting_for=lambda: what, last_sign=last_sign)

    async def _log(self, turn: Turn, learner: TrainerGroup | None, pool: RolloutPool | None, *, seconds: float) -> None:
        """Add a line on who has what now. The log is for people: that it can't be written is told, and the run goes on."""
        held: dict[str, Holding] = {}
        for asked in (learner, pool):
            if asked is not None:
                held |= await self._within(self._limit, asked.holding(), turn, "what each process has on its device")
        view = self._run.progress.current
        row = {
            "time": time.time(),
            "stage": "" if view is None else view.name,
            "step": 0 if view is None else view.step,
            "turn": turn.name,
            "seconds": round(seconds, 3),
            "holding": {name: asdict(one) for name, one in held.items()},
        }
        try:
            await in_thread(self._append, json.dumps(row))
        except OSError as error:
            self._run.progress.note(f"{TURNS_FILE} lacks a turn of {turn.name}: {error}")

    def _append(self, line: str) -> None:
        with (self._run.folder.root / TURNS_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
