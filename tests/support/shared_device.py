"""A device that engines and a learner share, and stand-ins of both. A process whose memory does not fit fails."""

from collections.abc import Mapping
from typing import Any

from support.plain_pool import Worker
from support.plain_process import PlainProcess

from temper.envs.core.process import NOTHING, Heartbeat, MemoryUsage
from temper.learner.losses.config import LossConfig
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.weights.manifest import WeightManifest

WEIGHTS, CACHE, STATES = 2, 5, 6
ROOM = WEIGHTS + STATES
"""A whole learner, an engine, or the weights of both fit, but no more."""


class Device:
    """Device memory and its owners."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.said: list[str] = []
        """Uses of the device, in order."""

    def take(self, who: str, nbytes: int) -> None:
        """Replace the share of one owner. Raises `MemoryError` if too little is free."""
        self.taken[who] = nbytes
        if sum(self.taken.values()) > ROOM:
            raise MemoryError(f"{self.taken} on a device of {ROOM}")

    def use(self, who: str, nbytes: int, what: str) -> None:
        """Use the device, which must hold so much memory of this owner."""
        assert self.taken[who] >= nbytes, f"{who}: {what} with {self.taken}"
        self.said.append(what)


class SharingWorker(Worker):
    """A rollout worker whose engine has memory on the device from its start."""

    def __init__(self, device: Device, **told: Any) -> None:
        super().__init__(**told)
        self.device = device

    async def start(self, model_dir: Any, version: WeightVersion) -> WeightVersion:
        self.device.take(self.name, WEIGHTS + CACHE)
        self.device.said.append(f"{self.name} starts")
        return await super().start(model_dir, version)

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        await super().set_onloaded(weights=weights, cache=cache, limit_s=limit_s)
        self.device.take(self.name, WEIGHTS * weights + CACHE * cache)
        self.device.said.append(self.did[-1])

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        self.device.use(self.name, WEIGHTS + CACHE, "sample")
        await self._alive(self.released.wait())
        answers = (Trajectory(task=ticket.task, turns=(), stop=Stop.ENV, reward=reward) for reward in (0.0, 1.0))
        return Group(ticket=ticket, trajectories=tuple(answers))

    async def load_weights(self, manifest: WeightManifest, offer: Any, number: int) -> WeightVersion:
        self.device.use(self.name, WEIGHTS, f"load {manifest.version}")
        return await super().load_weights(manifest, offer, number)

    def kill(self) -> None:
        self.device.taken.pop(self.name, None)
        super().kill()


class SharingRank(PlainProcess):
    """A rank that has weights and states on the device after its first update."""

    name = "the learner's rank 0"

    def __init__(self, device: Device) -> None:
        self.device = device
        self.has = (True, True)

    async def set_onloaded(self, *, weights: bool, states: bool) -> None:
        self.device.take(self.name, WEIGHTS * weights + STATES * states)
        self.has = (weights, states)
        self.device.said.append("learner " + ("whole" if states else "weights" if weights else "nothing"))

    async def memory_usage(self) -> MemoryUsage:
        return MemoryUsage(weights=WEIGHTS * self.has[0], states=STATES * self.has[1])

    async def train(self, shares: Any = (), *, loss: LossConfig, epochs: int) -> dict[str, float]:
        self.device.use(self.name, WEIGHTS + STATES, "learn")
        return {"loss": 0.0, "skipped": 0.0}

    async def publish(self, version: int) -> WeightManifest:
        self.device.use(self.name, WEIGHTS, f"publish {version}")
        none: tuple[()] = ()
        return WeightManifest(
            transport="none", version=version, names=none, dtypes=none, shapes=none, offsets=none, nbytes=8, checksum=""
        )

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Any:
        return None  # nobody looks into an offer

    async def send(self, version: int) -> None: ...

    async def save(self, directory: str, *, beside: bool, spare: int, together: int) -> bool:
        self.device.use(self.name, WEIGHTS + STATES, "save")
        return False

    async def heartbeat(self) -> Heartbeat:
        return Heartbeat(progress=0, doing="", quiet_s=0.0)

    def kill(self) -> None:
        self.device.taken.pop(self.name, None)
