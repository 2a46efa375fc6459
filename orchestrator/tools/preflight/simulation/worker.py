"""A rollout worker as the pool sees one, whose engine only takes time, and which dies now and then."""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temper.envs.core.member import Holding, Place, Pulse, WorkerDied
from temper.orchestrator.tools.preflight.simulation.engine import EngineModel
from temper.orchestrator.tools.preflight.simulation.lengths import Lengths
from temper.orchestrator.tools.preflight.simulation.meter import FleetMeter
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.token_arrays import Ids, as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Times, Trajectory, Turn, WeightVersion
from temper.rollout.weights.delivery import Offered
from temper.rollout.weights.manifest import WeightManifest

PROMPT = as_ids((1,))
KEPT = 8
"""Versions whose arrays are kept; others are made again."""


class Arrays:
    """Arrays as long as they need to be, all parts of the same ones: a million answers take no memory for their tokens."""

    def __init__(self) -> None:
        self._versions: dict[int, Ids] = {}
        self._grow(1 << 15)

    def turn(self, length: int, version: int) -> Turn:
        """Return a turn of so many tokens, all of them sampled by one version."""
        if length > self._length:
            self._grow(2 * length)
        if version not in self._versions:
            self._versions = {**self._newest(), version: as_ids([version] * self._length)}
        return Turn(
            context_ids=PROMPT,
            sampled_ids=self._ids[:length],
            logprobs_T=self._floats[:length],
            versions_T=self._versions[version][:length],
            forced_T=self._marks[:length],
            text="",
        )

    def _newest(self) -> dict[int, Ids]:
        return dict(list(self._versions.items())[-KEPT:])

    def _grow(self, length: int) -> None:
        self._length = length
        self._ids, self._floats = as_ids([2] * length), as_floats([-1.0] * length)
        self._marks = as_marks([False] * length)
        self._versions.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What all workers share. `deaths` is how often an engine dies in an hour, in the mean; `kept` is the share of groups that
    teach something.
    """

    speeds: Speeds
    lengths: Lengths
    meter: FleetMeter
    deaths: float
    kept: float
    seed: int
    arrays: Arrays = field(default_factory=Arrays)


class SimulatedWorker:
    """The worker of a slot, the `life`-th that is there. All methods belong to one event loop of virtual time."""

    def __init__(self, number: int, life: int, fleet: Fleet) -> None:
        self.name = f"rollout worker {number}"
        self.place: Place | None = None
        self._fleet = fleet
        self._life = life
        self._draw = random.Random(f"{fleet.seed}/worker/{number}/{life}")
        self._engine = EngineModel(fleet.speeds.pass_s, fleet.meter)
        self._told = 0.0
        self._down = life > 0
        self._dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def placed(self) -> None:
        """Find room at once."""

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        """Take the time of a start; the first one of a run is not counted."""
        await self._alive(self._fleet.speeds.start_s if self._life else 0.0)
        self._is_down(False)
        return version

    async def died(self) -> None:
        """Wait until the engine dies, if it does."""
        if self._fleet.deaths:
            await asyncio.wait({self._dead}, timeout=3600 * self._draw.expovariate(self._fleet.deaths))
        else:
            await asyncio.wait({self._dead})
        raise WorkerDied(f"{self.name} died")

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        """Return a group after the time that its answers take in this engine, and then outside of it."""
        if self._dead.done():
            raise WorkerDied(f"{self.name} died")
        began = asyncio.get_running_loop().time()
        tokens = self._fleet.lengths.of(ticket.number, samples)
        group = self._engine.add(tokens)
        try:
            ends: set[asyncio.Future[Any]] = {group.done, self._dead}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not group.done.done():
                raise WorkerDied(f"{self.name} died")
        finally:
            self._engine.drop(group)
        if self._fleet.speeds.beside_s:
            await self._alive(self._fleet.speeds.beside_s)
        return self._group(ticket, tokens, [at - began for at in group.ended])

    def _group(self, ticket: Ticket, tokens: list[int], seconds: list[float]) -> Group:
        """Return the group with rewards that teach something in as many groups as they should."""
        teaches = random.Random(f"{self._fleet.seed}/reward/{ticket.number}").random() < self._fleet.kept
        beside = self._fleet.speeds.beside_s
        answers = (
            Trajectory(
                task=ticket.task,
                turns=(self._fleet.arrays.turn(length, ticket.admitted.step),),
                stop=Stop.ENV,
                reward=float(teaches and number == 0),
                seconds=spent + beside,
                times=Times(generate_s=spent, step_s=beside),
            )
            for number, (length, spent) in enumerate(zip(tokens, seconds, strict=True))
        )
        return Group(ticket=ticket, trajectories=tuple(answers))

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        """Stand still for the time of a load."""
        self._engine.stand(still=True)
        try:
            await self._alive(self._fleet.speeds.load_s)
        finally:
            self._engine.stand(still=False)
        return manifest.weight_version

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Take the time of a load too."""
        await self._alive(self._fleet.speeds.load_s)
        return version

    async def engine_stats(self) -> EngineStats:
        """Return the tokens since this was asked last."""
        sampled, self._told = self._engine.sampled - self._told, self._engine.sampled
        return EngineStats(sampled_tokens=round(sampled))

    async def groups_in_flight(self) -> list[BegunGroup]:
        """Return nothing: no checkpoint is made."""
        return []

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        """Take the time of prompts with so many tokens each."""
        await self._engine.add([max_tokens] * len(prompts)).done
        return max_tokens * len(prompts)

    async def isolation(self) -> str:
        """Return that there is no sandbox."""
        return "simulated"

    async def occupy(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Do nothing: devices are not shared."""

    async def holding(self) -> Holding:
        """Return that nothing is held."""
        return Holding()

    async def pulse(self) -> Pulse:
        """Return the pulse of one that is idle."""
        return Pulse(progress=0, doing="", quiet_s=0.0)

    def kill(self) -> None:
        """Die at once; everything that is asked raises `WorkerDied`."""
        if not self._dead.done():
            self._dead.set_result(None)
            self._engine.end()
            self._is_down(True)

    async def close(self) -> None:
        """End."""
        self.kill()

    def _is_down(self, down: bool) -> None:
        """Tell the meter once where this changes: a successor takes over that the slot is down."""
        if down != self._down:
            meter = self._fleet.meter
            meter.count()
            meter.down += 1 if down else -1
            self._down = down

    async def _alive(self, seconds: float) -> None:
        """Wait so long, unless the worker dies before."""
        if seconds and not self._dead.done():
            await asyncio.wait({self._dead}, timeout=seconds)
        if self._dead.done():
            raise WorkerDied(f"{self.name} died")
