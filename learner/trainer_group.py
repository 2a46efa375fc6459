"""The learner's ranks, seen as one."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
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
)
from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.token_records import TokenRecord
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.transports import Receivers

T = TypeVar("T")
FAILURE_S = 20.0
"""How long the death of a rank may take to be known after the others noticed that it no longer answers them, in seconds."""


class RankHandle:
    """One rank as the group sees it, wherever its process runs. Every call of the process raises `LearnerDied` if it has ended.

    The group calls the methods of `learner/worker.py` by their names.
    """

    def __init__(self, process: Process, *, number: int) -> None:
        self.process = process
        self.name = f"the learner's rank {number}"

    @property
    def place(self) -> Place | None:
        """Where it runs, or None before it runs."""
        return self.process.place

    async def heartbeat(self) -> Heartbeat:
        return await self.process.call("heartbeat")

    def kill(self) -> None:
        """End the process at once; a call that waits raises `LearnerDied`."""
        self.process.kill()


class TrainerGroup:
    """Every call goes to all ranks at once, since each is a collective: without one of them it fails or waits in the others.
    For the same reason calls reach all ranks in one order, whoever makes them beside each other.

    Where a rank dies in a call, that raises `LearnerDied`, whatever the other ranks made of it.
    """

    def __init__(self, ranks: Sequence[RankHandle], *, engine_processes: int) -> None:
        """Group these ranks, whose weights go to engines of so many processes each."""
        self.ranks = ranks
        self.stuck = False
        """Whether a rank may be in the middle of a call for ever: it was given up, or has failed in another rank alone."""
        self._loss = LossConfig()
        self._delivery = Delivery(self, processes=engine_processes)
        self._on_device = True
        self._shares_devices = False  # whether the ranks' devices are others' too, between steps

    def processes(self, *, restarts: int = 0) -> list[ProcessInfo]:
        """Return what each rank does, of a group that was made again so often."""
        state: ProcessState = "serving" if self._on_device else "asleep"
        return [ProcessInfo(name=rank.name, state=state, process=rank, restarts=restarts) for rank in self.ranks]

    async def ready(self) -> None:
        await self._call([rank.process.wait_until_running() for rank in self.ranks])

    async def load(
        self, model_dir: Path, *, optim: OptimConfig, loss: LossConfig, total_steps: int, teacher: Path | None = None
    ) -> None:
        """Load a model with a fresh optimiser, to learn from a teacher if one is given."""
        self._loss = loss
        teacher_dir = None if teacher is None else str(teacher)
        named = {"optim": optim, "total_steps": total_steps, "teacher_dir": teacher_dir}
        await self._call_all("load", str(model_dir), named=named)

    async def load_reference(self) -> None:
        await self._call_all("load_reference")

    async def use_threads(self, threads: int) -> None:
        await self._call_all("use_threads", threads)

    async def set_onloaded(self, *, weights: bool, states: bool) -> None:
        """Have the weights, and all else that training needs, on the ranks' devices from now on, or in main memory."""
        await self._call_all("set_onloaded", named={"weights": weights, "states": states})
        self._on_device = weights
        self._shares_devices = self._shares_devices or not (weights and states)

    async def memory_usage(self) -> dict[str, MemoryUsage]:
        held = await self._call_all("memory_usage")
        return {rank.name: one for rank, one in zip(self.ranks, held, strict=True)}

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        """Update from each of these mini-batches of so many `epochs`. The metrics are over all of them.

        Each rank is given its own share of them: all are put where they are read before any rank is called.
        """
        shares = [[batch.share(number) for batch in batches] for number in range(len(self.ranks))]
        own = await asyncio.gather(*(rank.process.put(one) for rank, one in zip(self.ranks, shares, strict=True)))
        named = {"loss": self._loss, "epochs": epochs}
        calls = [rank.process.call("train", one, named=named) for rank, one in zip(self.ranks, own, strict=True)]
        return (await self._call(calls))[0]

    async def token_records(self) -> list[TokenRecord]:
        """Return what the last step made of the tokens of each answer that it trained."""
        return [record for own in await self._call_all("token_records") for record in own]

    async def publish(self, version: WeightVersion) -> Push:
        """Have the weights ready to be sent or read; returns what was published and how it is delivered."""
        manifest = (await self._call_all("publish", version.step))[0]
        assert manifest is not None, "rank 0 returns it"
        return Push(manifest=manifest, delivery=self._delivery)

    async def merge_reason(self) -> str:
        """Return why pushes carry adapters merged into the weights; empty where adapters travel alone."""
        return await self.ranks[0].process.call("merge_reason")

    async def host(self) -> str:
        return await self.ranks[0].process.host()

    def offer(self, version: int, *, whole: bool, receivers: Receivers) -> Offered:
        return self.ranks[0].process.begin("offer", version, named={"whole": whole, "receivers": receivers})

    async def send(self, version: int) -> None:
        """Do the ranks' part while the engines take the last push. It ends by itself, also where nobody waits for it."""
        await self._call([rank.process.call("send", version) for rank in self.ranks], ends=True)

    async def checkpoint_bytes(self) -> int:
        return (await self._call_all("checkpoint_bytes"))[0]

    async def save(self, directory: Path) -> bool:
        """Copy model and optimiser, for `write` to write them while the ranks go on.

        Returns whether there is something left to write: rank 0, which holds all but the random states, writes at once
        where main memory has no room for the copy, beside what is put aside next where devices are shared.
        """
        spare = await self._offload_bytes() if self._shares_devices else 0
        return (await self._call_all("save", str(directory), named={"beside": True, "spare": spare}))[0]

    async def _offload_bytes(self) -> int:
        """Return the bytes of main memory that the ranks on the machine of rank 0 need to leave their devices.

        On a CPU that is none: what they put aside they free.
        """
        held = await self._call_all("memory_usage")
        there = [one for rank, one in zip(self.ranks, held, strict=True) if _node(rank) == _node(self.ranks[0])]
        return sum(one.weights + one.states for one in there if one.device is not None)

    async def write(self) -> None:
        await self._call_all("write")

    async def restore(self, directory: Path) -> None:
        """Read the optimiser, schedule and random state that `save` wrote."""
        await self._call_all("restore", str(directory))

    async def close(self) -> None:
        """Stop the ranks: at once where they may be in the middle of a call."""
        if self.stuck:
            self.kill()
        else:
            await self._call([rank.process.close() for rank in self.ranks])

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()

    async def _call_all(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> list[Any]:
        return await self._call([rank.process.call(method, *args, named=named) for rank in self.ranks])

    async def _call(self, calls: Sequence[Awaitable[T]], *, ends: bool = False) -> list[T]:
        """Return what the ranks answer to a call to each, which `ends` in each that lives even where others are missing."""
        answers = [asyncio.ensure_future(call) for call in calls]
        try:
            return list(await asyncio.gather(*answers))
        except asyncio.CancelledError:
            self.stuck = self.stuck or not ends
            raise
        except LearnerDied:
            self.stuck = True
            raise
        except Exception as error:
            before, self.stuck = self.stuck, self.stuck or not ends  # for whoever gives up waiting meanwhile
            if (death := await _find_failure(answers)) is not None:
                self.stuck = True
                raise death from error
            if not ends:
                self.stuck = before or not all(answer.done() for answer in answers)
            raise
        finally:
            for answer in answers:
                answer.cancel()


def _node(rank: RankHandle) -> str | None:
    return None if rank.place is None else rank.place.node


async def _find_failure(answers: Sequence[asyncio.Future[T]]) -> LearnerDied | None:
    """Return the death of a rank among the answers of all, of which one has failed; None where no rank has died.

    The others notice that a connection broke, mostly before it is known that the process at its end has died.
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
