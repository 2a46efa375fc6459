"""The rollout workers as actors of Ray, and the pool of them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray

from temper.envs.core.member import Holding, Place, Pulse, WorkerDied
from temper.orchestrator.cluster.actors import await_actor, close_actor, placed
from temper.orchestrator.cluster.bundles import Bundle, Bundles
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.episodes.worker import RolloutConfig, RolloutWorker
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.served_weights import ServedWeights
from temper.rollout.pool.slot_keeper import Healing
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Offered
from temper.rollout.weights.manifest import WeightManifest

CONCURRENT_CALLS = 4096


def make_rollout_pool(
    config: RolloutConfig,
    *,
    bundles: Bundles,
    model_dir: Path,
    version: WeightVersion,
    seed: int,
    record_experts: bool = False,
    sleeps: bool = False,
    healing: Healing | None = None,
    newest: Callable[[], Path] | None = None,
) -> RolloutPool:
    """Return a pool of workers, which its `start` starts: every engine on a model directory, whose weights count as `version`.

    Each is placed in its bundle of `bundles`. With `record_experts` the engines record the experts that they choose; those that
    `sleeps` says may give their devices to the learner for a while. `healing` says how dead workers are replaced, and `newest`
    which model of the same shape there is by then. The start raises `ValueError` where experts can't be recorded, and
    `TooManyRestarts` where workers die before they serve.
    """
    actor = ray.remote(max_restarts=0)(RolloutWorker)

    def spawn(number: int) -> RolloutActor:
        bundle = bundles.engine(number)
        options = bundle.options() | {"max_concurrency": CONCURRENT_CALLS}
        started = actor.options(**options).remote(config, seed=seed)
        return RolloutActor(started, number=number, record_experts=record_experts, sleeps=sleeps, bundle=bundle)

    weights = ServedWeights(model_dir, version, push_s=config.engine.push_deadline_s, newest=newest)
    return RolloutPool(spawn, workers=config.workers, weights=weights, retries=config.retries, healing=healing)


class RolloutActor:
    """One actor, as `rollout/pool/pool.py` sees a worker."""

    def __init__(
        self,
        actor: Any,
        *,
        number: int,
        record_experts: bool = False,
        sleeps: bool = False,
        bundle: Bundle | None = None,
    ) -> None:
        """`bundle` is what it lies in, which it may give back when it ends."""
        self._actor = actor
        self._bundle = bundle
        self._record_experts, self._sleeps = record_experts, sleeps
        self.name = f"rollout worker {number}"
        self.place: Place | None = None

    async def placed(self) -> None:
        """Wait until the cluster has room for the actor, and its process runs."""
        self.place = await self._answer(placed(self._actor))

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        """Start the engine; returns the version that it confirms."""
        starting = self._actor.start.remote(str(model_dir), version.step, self._record_experts, self._sleeps)
        confirmed: WeightVersion = await self._answer(starting)
        return confirmed

    async def died(self) -> None:
        """Wait for as long as actor and engine live."""
        await self._answer(self._actor.died.remote())

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        """Return the group; a call that is given up ends in the actor too, else it would go on beside what comes next."""
        call = self._actor.run_group.remote(ticket, samples, attempt, begun)
        group: Group = await await_actor(call, self.name, died=WorkerDied, cancels=True)
        return group

    async def groups_in_flight(self) -> list[BegunGroup]:
        """Return what there is of the groups in flight."""
        begun: list[BegunGroup] = await self._answer(self._actor.groups_in_flight.remote())
        return begun

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        """Sample turns by the engine alone; returns their tokens."""
        tokens: int = await self._answer(self._actor.sample_bare.remote(prompts, max_tokens))
        return tokens

    async def isolation(self) -> str:
        """Return what the worker says about its sandbox."""
        line: str = await self._answer(self._actor.isolation.remote())
        return line

    async def engine_stats(self) -> EngineStats:
        """Return what the engine did since it was last asked."""
        stats: EngineStats = await self._answer(self._actor.engine_stats.remote())
        return stats

    async def occupy(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Have weights and cache on the device, or not."""
        await self._answer(self._actor.occupy.remote(weights=weights, cache=cache, limit_s=limit_s))

    async def holding(self) -> Holding:
        """Return what the engine has on its device."""
        held: Holding = await self._answer(self._actor.holding.remote())
        return held

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        """Serve the pushed weights; Ray hands the actor the offer itself in place of a reference to it."""
        version: WeightVersion = await self._answer(self._actor.load_weights.remote(manifest, offer, number))
        return version

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Serve the weights of a model directory."""
        confirmed: WeightVersion = await self._answer(self._actor.load_checkpoint.remote(str(directory), version.step))
        return confirmed

    async def pulse(self) -> Pulse:
        """Return the worker's signs of life."""
        pulse: Pulse = await self._answer(self._actor.pulse.remote())
        return pulse

    def kill(self) -> None:
        """End the process at once; what it was asked raises `WorkerDied`."""
        ray.kill(self._actor)
        self._free()

    async def close(self) -> None:
        """Stop the engine, then the actor."""
        await close_actor(self._actor)
        self._free()

    def _free(self) -> None:
        if self._bundle is not None:
            self._bundle.free()

    async def _answer(self, call: Awaitable[Any]) -> Any:
        return await await_actor(call, self.name, died=WorkerDied)
