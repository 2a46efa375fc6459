"""Ranks of the learner without Ray, as `TrainerGroup` sees them: one in the test's process, or several in separate ones."""

import asyncio
import multiprocessing
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from support.plain_process import PlainProcess

from temper.envs.core.process import NOTHING
from temper.learner.batches.pass_experts import PassExperts
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig
from temper.learner.trainer_group import RankHandle, TrainerGroup
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port


class Here(PlainProcess):
    """Calls a `TrainerWorker` directly."""

    def __init__(self, config: LearnerConfig) -> None:
        self.worker = TrainerWorker(0, 1, LOOPBACK, free_port(), config)

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        own = partial(getattr(self.worker, method), *args, **named)
        return await asyncio.to_thread(own) if method == "build" else own()  # it has an event loop

    async def close(self) -> None:
        self.worker.close()


class Elsewhere(PlainProcess):
    """Calls one in a separate process."""

    def __init__(self, config: LearnerConfig, rank: int, port: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["temper.learner.worker"])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, config, rank, port), daemon=True)
        self.process.start()
        self.turn = threading.Lock()

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        return await asyncio.to_thread(self._call, method, args, named)

    async def close(self) -> None:
        await self.call("close")

    def _call(self, method: str, args: tuple[object, ...], named: Mapping[str, object]) -> Any:
        with self.turn:  # a checkpoint is written beside other calls
            self.connection.send((method, args, named))
            answer, failure = self.connection.recv()
        if failure is not None:
            raise RuntimeError(failure)
        return answer


def work(connection: Any, config: LearnerConfig, rank: int, port: int) -> None:
    """Execute the commands of the other end until it closes the learner."""
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


async def plain_ranks(learner: LearnerConfig) -> TrainerGroup:
    """The group of one rank in this process, or of several in separate ones."""
    if learner.ranks == 1:
        return TrainerGroup([RankHandle(Here(learner), number=0)], engine_processes=1)
    port = free_port(LOOPBACK)
    ranks = [RankHandle(Elsewhere(learner, number, port), number=number) for number in range(learner.ranks)]
    return TrainerGroup(ranks, engine_processes=1)


def rank_logprobs(rank: TrainerWorker, samples: Sequence[TrainingSample]) -> list[list[float]]:
    """The log-probability of each token of each sample (0 for the first), computed one sample at a time."""
    engine, replay = rank.engine, rank.replay
    assert engine is not None
    assert replay is not None
    engine.engine.eval()
    values = []
    with torch.no_grad():
        for sample in samples:
            ids_BT = torch.tensor(sample.ids, dtype=torch.int64, device=engine.device)[None]
            replay.queue_passes([PassExperts.from_uncounted(sample.experts, length=len(sample.ids))])
            temperatures_B = torch.tensor([sample.temperature], device=ids_BT.device)
            scores = engine.scorer(ids_BT, torch.ones_like(ids_BT).bool(), temperatures_B=temperatures_B)
            values.append(scores.logprobs_BT[0].tolist())
    return values
