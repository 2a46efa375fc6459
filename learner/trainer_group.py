"""The learner's ranks as one object."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from temper.envs.core.process import (
    NOTHING,
    Heartbeat,
    LearnerDied,
    MemoryUsage,
    Place,
    Process,
    ProcessInfo,
    ProcessState,
    StoredResult,
)
from temper.learner.batches.builder import BuildBatches
from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.training_state import LoadedModel
from temper.rollout.stored_turns import GroupsLost
from temper.rollout.trajectory import Group, WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.transports import Receivers

T = TypeVar("T")
FAILURE_S = 20.0
"""Seconds until the failure of a rank is known after other ranks lose their connection to it."""


class RankHandle:
    """One rank as seen by the group, on any machine. Its calls raise `LearnerDied` if the process has ended.

    The group calls the methods of `learner/worker.py` by name.
    """

    def __init__(self, process: Process, *, number: int) -> None:
        self.process = process
        self.name = f"the learner's rank {number}"

    @property
    def place(self) -> Place | None:
        """Where the rank runs, or None before it runs."""
        return self.process.place

    async def heartbeat(self) -> Heartbeat:
        return await self.process.call("heartbeat")

    def kill(self) -> None:
        """End the process at once. A waiting call raises `LearnerDied`."""
        self.process.kill()


class TrainerGroup:
    """Calls all ranks at once, in one order for all callers. Each call is a collective and blocks if a rank is missing.

    If a rank dies in a call, the call raises `LearnerDied`, regardless of the other ranks' results.
    """

    def __init__(self, ranks: Sequence[RankHandle], *, engine_processes: int) -> None:
        """Group these ranks. Their weights go to engines of `engine_processes` processes each."""
        self.ranks = ranks
        self.is_stuck = False
        """Whether a rank may block in a call forever, because the call was abandoned or failed in only some ranks."""
        self.loaded = LoadedModel()
        """Rank 0's findings about the model, which all ranks' batches follow."""
        self._loss = LossConfig()
        self._delivery = Delivery(self, processes=engine_processes)
        self._on_device = True
        self._shares_devices = False  # whether engines use the same devices between steps

    def processes(self, *, restarts: int = 0) -> list[ProcessInfo]:
        """Return each rank's state; `restarts` is the group's number of restarts."""
        state: ProcessState = "serving" if self._on_device else "asleep"
        return [ProcessInfo(name=rank.name, state=state, process=rank, restarts=restarts) for rank in self.ranks]

    async def wait_until_running(self) -> None:
        await self._call([rank.process.wait_until_running() for rank in self.ranks])

    async def load(
        self, model_dir: Path, *, optim: OptimConfig, loss: LossConfig, total_steps: int, teacher: Path | None = None
    ) -> None:
        """Load a model with a fresh optimiser, and a teacher if given. Sets `loaded`."""
        self._loss = loss
        teacher_dir = None if teacher is None else str(teacher)
        named = {"optim": optim, "total_steps": total_steps, "teacher_dir": teacher_dir}
        self.loaded = (await self._call_all("load", str(model_dir), named=named))[0]

    async def load_reference(self) -> None:
        await self._call_all("load_reference")

    async def use_threads(self, threads: int) -> None:
        await self._call_all("use_threads", threads)

    async def set_onloaded(self, *, weights: bool, states: bool) -> None:
        """Move the weights, and all other training state, to the ranks' devices, or to main memory."""
        await self._call_all("set_onloaded", named={"weights": weights, "states": states})
        self._on_device = weights
        self._shares_devices = self._shares_devices or not (weights and states)

    async def memory_usage(self) -> dict[str, MemoryUsage]:
        held = await self._call_all("memory_usage")
        return {rank.name: one for rank, one in zip(self.ranks, held, strict=True)}

    async def build(self, groups: Sequence[Group], build_batches: BuildBatches) -> None:
        """Let each rank read the turns of groups and build its share of their batches, for the next `step`.

        Raise `GroupsLost` if turns are lost.
        """
        given = await self.ranks[0].process.put(groups)
        if lost := set[int]().union(*await self._call_all("build", given, build_batches)):
            raise GroupsLost(lost)

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        """Update once per mini-batch, over `epochs` epochs. The metrics cover all updates.

        Each rank gets its share of `batches`, but ranks that share sequences get the same one. All shares are in shared memory
        before any rank is called, so that the ranks start together. Without batches they train the shares from `build`.
        """
        named = {"loss": self._loss, "epochs": epochs}
        if not batches:
            return (await self._call_all("train", named=named))[0]
        shares = []
        for number in range(len(self.ranks)):
            shares.append([batch.share(number * len(batch.plan) // len(self.ranks)) for batch in batches])
        own = await asyncio.gather(*(rank.process.put(one) for rank, one in zip(self.ranks, shares, strict=True)))
        calls = [rank.process.call("train", one, named=named) for rank, one in zip(self.ranks, own, strict=True)]
        return (await self._call(calls))[0]

    async def token_records(self) -> list[StoredResult]:
        """Return the per-token results of the last step: for each rank its list of `TokenRecord`."""
        calls = [rank.process.call_stored("token_records") for rank in self.ranks]
        return [stored for _, stored in await self._call(calls)]

    async def publish(self, version: WeightVersion) -> Push:
        """Prepare the weights for sending or reading. Return the manifest and the delivery."""
        manifest = (await self._call_all("publish", version.step))[0]
        assert manifest is not None, "rank 0 returns it"
        return Push(manifest=manifest, delivery=self._delivery)

    async def merge_reason(self) -> str:
        """Return why pushes carry adapters merged into the weights; empty if adapters travel alone."""
        return await self.ranks[0].process.call("merge_reason")

    async def host(self) -> str:
        return await self.ranks[0].process.host()

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> Offered:
        return self.ranks[0].process.begin("offer", version, named={"with_base": with_base, "receivers": receivers})

    async def send(self, version: int) -> None:
        """Run the ranks' part of the last push while the engines receive it. It ends by itself, even if nobody waits."""
        await self._call([rank.process.call("send", version) for rank in self.ranks], ends=True)

    async def checkpoint_bytes(self) -> int:
        return (await self._call_all("checkpoint_bytes"))[0]

    async def save(self, directory: Path) -> bool:
        """Copy model and optimiser to main memory, so that `write` writes them during training.

        Returns whether every rank has a copy. A rank writes at once if its machine has no room for the copies of its ranks
        plus, on shared devices, their next offload.
        """
        held = await self._call_all("memory_usage") if self._shares_devices else []
        calls = []
        for rank in self.ranks:
            there = [number for number, other in enumerate(self.ranks) if _node_of(other) == _node_of(rank)]
            named = {
                "beside": True,
                "spare": _offload_bytes(held[number] for number in there if held),
                "together": len(there),
            }
            calls.append(rank.process.call("save", str(directory), named=named))
        return all(await self._call(calls))

    async def write(self) -> None:
        await self._call_all("write")

    async def restore(self, directory: Path) -> None:
        """Read the optimiser, schedule and random state of a checkpoint."""
        await self._call_all("restore", str(directory))

    async def close(self) -> None:
        """Stop the ranks. Stuck ranks are killed."""
        if self.is_stuck:
            self.kill()
        else:
            await self._call([rank.process.close() for rank in self.ranks])

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()

    async def _call_all(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> list[Any]:
        return await self._call([rank.process.call(method, *args, named=named) for rank in self.ranks])

    async def _call(self, calls: Sequence[Awaitable[T]], *, ends: bool = False) -> list[T]:
        """Return the ranks' results. A call that `ends` returns in each living rank even if others are missing."""
        answers = [asyncio.ensure_future(call) for call in calls]
        try:
            return list(await asyncio.gather(*answers))
        except asyncio.CancelledError:
            self.is_stuck = self.is_stuck or not ends
            raise
        except LearnerDied:
            self.is_stuck = True
            raise
        except Exception as error:
            before, self.is_stuck = self.is_stuck, self.is_stuck or not ends  # in case the caller stops waiting
            if (death := await _find_failure(answers)) is not None:
                self.is_stuck = True
                raise death from error
            if not ends:
                self.is_stuck = before or not all(answer.done() for answer in answers)
            raise
        finally:
            for answer in answers:
                answer.cancel()


def _node_of(rank: RankHandle) -> str | None:
    return None if rank.place is None else rank.place.node


def _offload_bytes(ranks: Iterable[MemoryUsage]) -> int:
    """Return the bytes of main memory that these ranks need to offload. On a CPU offloading frees as much as it copies."""
    return sum(one.weights + one.states for one in ranks if one.device is not None)


async def _find_failure(answers: Sequence[asyncio.Future[T]]) -> LearnerDied | None:
    """Return the `LearnerDied` among the results, of which one has failed, or None if no rank has died.

    Other ranks often notice a broken connection before the process is known to be dead.
    """
    deadline = monotonic() + FAILURE_S
    while True:
        failed = [answer.exception() for answer in answers if answer.done() and not answer.cancelled()]
        pending = [answer for answer in answers if not answer.done()]
        death = next((error for error in failed if isinstance(error, LearnerDied)), None)
        left = deadline - monotonic()
        if death is not None or not pending or left <= 0:
            return death
        await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
