"""The pool's handle of a rollout worker in another process."""

from pathlib import Path

from temper.envs.core.process import Heartbeat, MemoryUsage, Place, Process
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.stored_turns import set_reference
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Offered
from temper.rollout.weights.manifest import WeightManifest


class WorkerHandle:
    """One process with one engine: see `rollout/episodes/worker.py`. Every call raises `WorkerDied` if the process or its
    engine ends.
    """

    def __init__(self, process: Process, *, number: int, record_experts: bool = False, sleeps: bool = False) -> None:
        """With `record_experts` the engine records expert choices. With `sleeps` it shares its device."""
        self._process = process
        self._record_experts, self._sleeps = record_experts, sleeps
        self.name = f"rollout worker {number}"

    @property
    def place(self) -> Place | None:
        return self._process.place

    async def wait_until_running(self) -> None:
        """Wait until the process runs, which needs a machine with room."""
        await self._process.wait_until_running()

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        return await self._process.call("start", str(model_dir), version.step, self._record_experts, self._sleeps)

    async def wait_until_dead(self) -> None:
        """Wait until the worker or its engine ends."""
        await self._process.call("wait_until_dead")

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        """Return the group with stored turns.

        Cancelling the call also cancels it in the process: otherwise it would run concurrently with the next one.
        """
        group, turns = await self._process.call_stored("run_stored_group", ticket, samples, attempt, partial)
        return set_reference(group, turns)

    async def compare_answers(self, group: Group) -> Group:
        """Return the group with the judge's comparisons in its rewards."""
        return await self._process.call("compare_answers", group, cancels=True)

    async def groups_in_flight(self) -> list[PartialGroup]:
        return await self._process.call("groups_in_flight")

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        return await self._process.call("sample_bare", prompts, max_tokens)

    async def isolation(self) -> str:
        return await self._process.call("isolation")

    async def engine_stats(self) -> EngineStats:
        return await self._process.call("engine_stats")

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        await self._process.call("set_onloaded", named={"weights": weights, "cache": cache, "limit_s": limit_s})

    async def memory_usage(self) -> MemoryUsage:
        return await self._process.call("memory_usage")

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        return await self._process.call("load_weights", manifest, offer, number)

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        return await self._process.call("load_checkpoint", str(directory), version.step)

    async def heartbeat(self) -> Heartbeat:
        return await self._process.call("heartbeat")

    def kill(self) -> None:
        """End the process at once. Waiting calls raise `WorkerDied`."""
        self._process.kill()

    async def close(self) -> None:
        """Stop the engine, then the process."""
        await self._process.close()
