"""The learner's ranks, seen as one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TypeVar

from temper.envs.core.member import Holding, LearnerDied, MemberNow, MemberState, Place, Process, Pulse
from temper.learner.batches.micro_batches import BatchShare, TrainBatch
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.token_records import TokenRecord
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.transports import Audience

T = TypeVar("T")
Shares = object
"""A rank's shares of mini-batches, put where it reads them: nobody between the two ends looks into that."""
DEATH_S = 20.0
"""How long the death of a rank may take to be known after the others noticed that it no longer answers them, in seconds."""


class RankHandle:
    """One rank as the group sees it, wherever its process runs: see `learner/worker.py`. Every call raises `LearnerDied` if the
    process has ended.
    """

    def __init__(self, process: Process, *, number: int) -> None:
        self._process = process
        self.name = f"the learner's rank {number}"

    @property
    def place(self) -> Place | None:
        """Where it runs, or None before it runs."""
        return self._process.place

    async def ready(self) -> None:
        """Wait until the rank has joined the others."""
        await self._process.placed()

    async def load(self, model_dir: str, *, optim: OptimConfig, total_steps: int, teacher_dir: str | None) -> None:
        """Load a model."""
        named = {"optim": optim, "total_steps": total_steps, "teacher_dir": teacher_dir}
        await self._process.call("load", model_dir, named=named)

    async def load_reference(self) -> None:
        """Load the weights that the loss compares with."""
        await self._process.call("load_reference")

    async def use_threads(self, threads: int) -> None:
        """Compute with this many CPU threads."""
        await self._process.call("use_threads", threads)

    async def occupy(self, *, weights: bool, states: bool) -> None:
        """Have weights and states on the device, or in main memory."""
        await self._process.call("occupy", named={"weights": weights, "states": states})

    async def holding(self) -> Holding:
        """Return what the rank has on its device."""
        return await self._process.call("holding")

    async def put(self, shares: Sequence[BatchShare]) -> Shares:
        """Copy the shares of the rank to where it reads them. Return the argument of `train`."""
        return await self._process.put(list(shares))

    async def train(self, shares: Shares, *, loss: LossConfig, epochs: int) -> dict[str, float]:
        """Take part in a step on shares that were put; returns its metrics."""
        return await self._process.call("train", shares, named={"loss": loss, "epochs": epochs})

    async def token_records(self) -> list[TokenRecord]:
        """Return the last step's figures of the tokens of the rank's answers."""
        return await self._process.call("token_records")

    async def publish(self, version: int) -> WeightManifest | None:
        """Take part in the gathering of the weights; rank 0 returns the manifest."""
        return await self._process.call("publish", version)

    async def why_merged(self) -> str:
        """Return why pushes carry adapters merged into the weights; empty if adapters travel alone."""
        return await self._process.call("why_merged")

    async def host(self) -> str:
        """Return the address at which the engines reach the rank."""
        return await self._process.host()

    def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
        """Begin to offer the last push."""
        return self._process.begin("offer", version, named={"whole": whole, "audience": audience})

    async def send(self, version: int) -> None:
        """Do the sender's part while the engines take the push."""
        await self._process.call("send", version)

    async def checkpoint_bytes(self) -> int:
        """Return the bytes that `save` writes, at the most."""
        return await self._process.call("checkpoint_bytes")

    async def save(self, directory: str, *, beside: bool, spare: int) -> bool:
        """Copy model and optimiser, or write them; returns whether there is something left to write."""
        return await self._process.call("save", directory, named={"beside": beside, "spare": spare})

    async def write(self) -> None:
        """Write the copy while the rank does something else."""
        await self._process.call("write")

    async def restore(self, directory: str) -> None:
        """Read what `save` wrote."""
        await self._process.call("restore", directory)

    async def pulse(self) -> Pulse:
        """Return the rank's signs of life, whatever it is computing."""
        return await self._process.call("pulse")

    def kill(self) -> None:
        """End the process at once; a call that waits raises `LearnerDied`."""
        self._process.kill()

    async def close(self) -> None:
        """Free what the rank holds, then end the process."""
        await self._process.close()


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
        self._here = True
        self._shares = False  # whether the ranks' devices are others' too, between steps

    def members(self, *, restarts: int = 0) -> list[MemberNow]:
        """Return what each rank does, of a group that was made again so often."""
        state: MemberState = "serving" if self._here else "asleep"
        return [MemberNow(name=rank.name, state=state, member=rank, restarts=restarts) for rank in self.ranks]

    async def ready(self) -> None:
        """Wait until the ranks have joined each other."""
        await self._call_all(lambda rank: rank.ready())

    async def load(
        self, model_dir: Path, *, optim: OptimConfig, loss: LossConfig, total_steps: int, teacher: Path | None = None
    ) -> None:
        """Load a model with a fresh optimiser, to learn from a teacher if one is given."""
        self._loss = loss
        teacher_dir = None if teacher is None else str(teacher)
        await self._call_all(
            lambda rank: rank.load(str(model_dir), optim=optim, total_steps=total_steps, teacher_dir=teacher_dir)
        )

    async def load_reference(self) -> None:
        """Load the frozen weights that the loss compares with, beside the model."""
        await self._call_all(lambda rank: rank.load_reference())

    async def use_threads(self, threads: int) -> None:
        """Compute with this many CPU threads in each rank."""
        await self._call_all(lambda rank: rank.use_threads(threads))

    async def occupy(self, *, weights: bool, states: bool) -> None:
        """Have the weights, and all else that training needs, on the ranks' devices from now on, or in main memory."""
        await self._call_all(lambda rank: rank.occupy(weights=weights, states=states))
        self._here = weights
        self._shares = self._shares or not (weights and states)

    async def holding(self) -> dict[str, Holding]:
        """Return what each rank has on its device, by its name."""
        held = await self._call_all(lambda rank: rank.holding())
        return {rank.name: one for rank, one in zip(self.ranks, held, strict=True)}

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        """Update from each of these mini-batches of so many `epochs`. The metrics are over all of them.

        Each rank is given its own share of them: all are put where they are read before any rank is called.
        """
        shares = [[batch.share(number) for batch in batches] for number in range(len(self.ranks))]
        own = await asyncio.gather(*(rank.put(one) for rank, one in zip(self.ranks, shares, strict=True)))
        calls = [rank.train(one, loss=self._loss, epochs=epochs) for rank, one in zip(self.ranks, own, strict=True)]
        return (await self._call(calls))[0]

    async def token_records(self) -> list[TokenRecord]:
        """Return what the last step made of the tokens of each answer that it trained."""
        return [record for own in await self._call_all(lambda rank: rank.token_records()) for record in own]

    async def publish(self, version: WeightVersion) -> Push:
        """Have the weights ready to be sent or read; returns what was published and how it is delivered."""
        manifest = (await self._call_all(lambda rank: rank.publish(version.step)))[0]
        assert manifest is not None, "rank 0 returns it"
        return Push(manifest=manifest, delivery=self._delivery)

    async def why_merged(self) -> str:
        """Return why pushes carry adapters merged into the weights; empty where adapters travel alone."""
        return await self.ranks[0].why_merged()

    async def host(self) -> str:
        """Return the address at which the engines reach rank 0."""
        return await self.ranks[0].host()

    def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
        """Begin to offer the last push, in rank 0."""
        return self.ranks[0].offer(version, whole=whole, audience=audience)

    async def send(self, version: int) -> None:
        """Do the ranks' part while the engines take the last push. It ends by itself, also where nobody waits for it."""
        await self._call([rank.send(version) for rank in self.ranks], ends=True)

    async def checkpoint_bytes(self) -> int:
        """Return what `save` writes, at the most."""
        return (await self._call_all(lambda rank: rank.checkpoint_bytes()))[0]

    async def save(self, directory: Path) -> bool:
        """Copy model and optimiser, for `write` to write them while the ranks go on.

        Returns whether there is something left to write: rank 0, which holds all but the random states, writes at once
        where main memory has no room for the copy, beside what is put aside next where devices are shared.
        """
        spare = await self._next_aside() if self._shares else 0
        return (await self._call_all(lambda rank: rank.save(str(directory), beside=True, spare=spare)))[0]

    async def _next_aside(self) -> int:
        """Return the bytes of main memory that the ranks on the machine of rank 0 need to leave their devices.

        On a CPU that is none: what they put aside they free.
        """
        held = await self._call_all(lambda rank: rank.holding())
        there = [one for rank, one in zip(self.ranks, held, strict=True) if _node(rank) == _node(self.ranks[0])]
        return sum(one.weights + one.states for one in there if one.device is not None)

    async def write(self) -> None:
        """Write what `save` has copied."""
        await self._call_all(lambda rank: rank.write())

    async def restore(self, directory: Path) -> None:
        """Read the optimiser, schedule and random state that `save` wrote."""
        await self._call_all(lambda rank: rank.restore(str(directory)))

    async def close(self) -> None:
        """Stop the ranks: at once where they may be in the middle of a call."""
        if self.stuck:
            self.kill()
        else:
            await self._call_all(lambda rank: rank.close())

    def kill(self) -> None:
        """End the ranks at once, whatever they do. What they held is gone with their processes."""
        for rank in self.ranks:
            rank.kill()

    async def _call_all(self, call: Callable[[RankHandle], Awaitable[T]]) -> list[T]:
        return await self._call([call(rank) for rank in self.ranks])

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
            if (death := await _death(answers)) is not None:
                self.stuck = True
                raise death from error
            if not ends:
                self.stuck = before or not all(answer.done() for answer in answers)
            raise
        finally:
            for answer in answers:
                answer.cancel()


def _node(rank: RankHandle) -> str | None:
    """Return how the cluster calls the node of a rank; None for one in no cluster."""
    return None if rank.place is None else rank.place.node


async def _death(answers: Sequence[asyncio.Future[T]]) -> LearnerDied | None:
    """Return the death of a rank among the answers of all, of which one has failed; None where no rank has died.

    The others notice that a connection broke, mostly before it is known that the process at its end has died.
    """
    deadline = monotonic() + DEATH_S
    while True:
        failed = [answer.exception() for answer in answers if answer.done() and not answer.cancelled()]
        pending = [answer for answer in answers if not answer.done()]
        death = next((error for error in failed if isinstance(error, LearnerDied)), None)
        left = deadline - monotonic()
        if death is not None or not pending or left <= 0:
            return death
        await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
