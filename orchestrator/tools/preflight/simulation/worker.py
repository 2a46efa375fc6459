"""A rollout worker as the pool sees one, whose engine only takes time."""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

from temper.envs.core.member import Holding, Place, Pulse
from temper.orchestrator.tools.preflight.simulation.driver import CALL_S, TOKEN_S, Driver
from temper.orchestrator.tools.preflight.simulation.engine import EngineModel
from temper.orchestrator.tools.preflight.simulation.lengths import LogNormal
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.pool.worker_handle import WorkerHandle
from temper.rollout.token_arrays import Ids, as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Times, Trajectory, Turn, WeightVersion
from temper.rollout.weights.delivery import Offered
from temper.rollout.weights.manifest import WeightManifest

PROMPT = as_ids((1,))
KEPT = 8
"""Versions whose arrays are kept."""


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
class Shared:
    """Everything that all workers share. `kept` is the share of groups that teach something."""

    speeds: Speeds
    lengths: LogNormal
    kept: float
    seed: int
    driver: Driver
    arrays: Arrays = field(default_factory=Arrays)


class SimulatedWorker(WorkerHandle):
    """A worker of the pool. All methods belong to one event loop of virtual time."""

    place: Place | None = None

    def __init__(self, number: int, shared: Shared) -> None:
        self.name = f"rollout worker {number}"
        self.engine = EngineModel(shared.speeds.pass_s)
        self._shared = shared
        self._counted = 0.0

    async def placed(self) -> None:
        """Find room at once."""

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        """Take the time of a start."""
        await asyncio.sleep(self._shared.speeds.start_s)
        return version

    async def died(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        """Return a group after the time of its answers in this engine, and then of its tokens in the driver."""
        began = asyncio.get_running_loop().time()
        tokens = self._shared.lengths.of(ticket.number, samples)
        group = self.engine.add(tokens)
        try:
            await group.done
        finally:
            self.engine.drop(group)
        await self._shared.driver.take(TOKEN_S * sum(tokens))
        return self._group(ticket, tokens, [at - began for at in group.ended])

    def _group(self, ticket: Ticket, tokens: list[int], seconds: list[float]) -> Group:
        """Return the group, with rewards that teach something in as many groups as they should."""
        teaches = random.Random(f"{self._shared.seed}/reward/{ticket.number}").random() < self._shared.kept
        answers = (
            Trajectory(
                task=ticket.task,
                turns=(self._shared.arrays.turn(length, ticket.admitted.step),),
                stop=Stop.ENV,
                reward=float(teaches and number == 0),
                seconds=spent,
                times=Times(generate_s=spent, step_s=0.0),
            )
            for number, (length, spent) in enumerate(zip(tokens, seconds, strict=True))
        )
        return Group(ticket=ticket, trajectories=tuple(answers))

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        """Pause for the time of a load, after the driver's call of it."""
        await self._shared.driver.take(CALL_S)
        self.engine.pause(paused=True)
        try:
            await asyncio.sleep(self._shared.speeds.load_s)
        finally:
            self.engine.pause(paused=False)
        return manifest.weight_version

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Take the time of a load too."""
        await asyncio.sleep(self._shared.speeds.load_s)
        return version

    async def engine_stats(self) -> EngineStats:
        """Return the tokens since the last call."""
        sampled, self._counted = self.engine.sampled - self._counted, self.engine.sampled
        return EngineStats(sampled_tokens=round(sampled))

    async def groups_in_flight(self) -> list[BegunGroup]:
        """Return nothing: there are no checkpoints."""
        return []

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        """Take the time of prompts with so many tokens each."""
        await self.engine.add([max_tokens] * len(prompts)).done
        return max_tokens * len(prompts)

    async def isolation(self) -> str:
        """Return that there is no sandbox."""
        return "simulated"

    async def occupy(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Do nothing: devices are not shared."""

    async def holding(self) -> Holding:
        """Return that it holds nothing."""
        return Holding()

    async def pulse(self) -> Pulse:
        """Return an idle pulse."""
        return Pulse(progress=0, doing="", quiet_s=0.0)

    def kill(self) -> None:
        """Do nothing: there is no process."""

    async def close(self) -> None:
        """Do nothing likewise."""
