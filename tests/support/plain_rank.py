"""Ranks of the learner without Ray, as `TrainerGroup` sees them: one in the test's own process, or several in theirs."""

import asyncio
import multiprocessing
import threading
from collections.abc import Sequence
from typing import Any

from temper.envs.core.member import Holding, Place, Pulse
from temper.learner.batches.micro_batches import BatchShare
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.token_records import TokenRecord
from temper.learner.trainer_group import Shares, TrainerGroup
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.rollout.weights.delivery import Offered
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.transports import Audience


class Here:
    """Calls a `TrainerWorker` as it is."""

    def __init__(self, config: LearnerConfig) -> None:
        self.worker = TrainerWorker(0, 1, LOOPBACK, free_port(), config)

    async def call(self, method: str, *args: object, **named: object) -> Any:
        return getattr(self.worker, method)(*args, **named)


class Elsewhere:
    """Calls one in a process of its own."""

    def __init__(self, config: LearnerConfig, rank: int, port: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["temper.learner.worker"])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, config, rank, port), daemon=True)
        self.process.start()
        self.turn = threading.Lock()

    async def call(self, method: str, *args: object, **named: object) -> Any:
        return await asyncio.to_thread(self._call, method, args, named)

    def _call(self, method: str, args: tuple[object, ...], named: dict[str, object]) -> Any:
        with self.turn:  # a checkpoint is written beside other calls
            self.connection.send((method, args, named))
            answer, failure = self.connection.recv()
        if failure is not None:
            raise RuntimeError(failure)
        return answer


def work(connection: Any, config: LearnerConfig, rank: int, port: int) -> None:
    """Do as the other end says, until it closes the learner for good."""
    worker = TrainerWorker(rank, config.ranks, LOOPBACK, port, config)
    while True:
        try:
            method, args, named = connection.recv()
        except EOFError:
            return
        try:
            connection.send((getattr(worker, method)(*args, **named), None))
        except Exception as error:
            connection.send((None, f"rank {rank}: {error!r}"))


class PlainRank:
    """Calls a `TrainerWorker` wherever it is."""

    place: Place | None = None

    def __init__(self, there: Here | Elsewhere, *, number: int = 0) -> None:
        self.name = f"rank {number}"
        self.there = there

    async def ready(self) -> None: ...

    async def load(self, model_dir: str, *, optim: OptimConfig, total_steps: int, teacher_dir: str | None) -> None:
        await self.there.call("load", model_dir, optim=optim, total_steps=total_steps, teacher_dir=teacher_dir)

    async def load_reference(self) -> None:
        await self.there.call("load_reference")

    async def use_threads(self, threads: int) -> None:
        await self.there.call("use_threads", threads)

    async def occupy(self, *, weights: bool, states: bool) -> None:
        await self.there.call("occupy", weights=weights, states=states)

    async def holding(self) -> Holding:
        return await self.there.call("holding")

    async def put(self, shares: Sequence[BatchShare]) -> Shares:
        return list(shares)

    async def train(self, shares: Any, *, loss: LossConfig, epochs: int) -> dict[str, float]:
        return await self.there.call("train", shares, loss=loss, epochs=epochs)

    async def token_records(self) -> list[TokenRecord]:
        return await self.there.call("token_records")

    async def publish(self, version: int) -> WeightManifest | None:
        return await self.there.call("publish", version)

    async def why_merged(self) -> str:
        return await self.there.call("why_merged")

    async def host(self) -> str:
        return LOOPBACK

    def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
        raise AssertionError("nobody takes what is pushed here")

    async def send(self, version: int) -> None:
        await self.there.call("send", version)

    async def checkpoint_bytes(self) -> int:
        return await self.there.call("checkpoint_bytes")

    async def save(self, directory: str, *, beside: bool, spare: int) -> bool:
        return await self.there.call("save", directory, beside=beside, spare=spare)

    async def write(self) -> None:
        await self.there.call("write")

    async def restore(self, directory: str) -> None:
        await self.there.call("restore", directory)

    async def pulse(self) -> Pulse:
        return await self.there.call("pulse")

    def kill(self) -> None: ...

    async def close(self) -> None:
        await self.there.call("close")


async def plain_ranks(learner: LearnerConfig) -> TrainerGroup:
    """The group of one rank in this process, or of several in theirs."""
    if learner.ranks == 1:
        return TrainerGroup([PlainRank(Here(learner))], engine_processes=1)
    port = free_port(LOOPBACK)
    ranks = [PlainRank(Elsewhere(learner, number, port), number=number) for number in range(learner.ranks)]
    return TrainerGroup(ranks, engine_processes=1)
