"""Every transport is delivered by the same code, which knows none of them; a new one is a class and a line."""

import asyncio
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.pushes import HERE, Nothing, PlainSender, empty_push, held
from unit.rollout.weights.test_push import Weights, nudged, publisher, same, weights

from temper.envs.core.member import WorkerDied
from temper.learner.config import LearnerConfig
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered
from temper.rollout.weights.manifest import WeightManifest, WholeWeightsNeeded
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports.catalog import TRANSPORTS
from temper.rollout.weights.transports.shared_memory import SharedMemory
from temper.rollout.weights.transports.transport import Audience, Memory, SegmentTransport


class Files(SegmentTransport[str]):
    """A transport for engines that see a folder of the learner's: an offer is the path of a file."""

    name = "files"
    sparse = True
    folder = Path()

    def offer(self, name: str, audience: Audience) -> str:
        file = self.folder / name
        self._held[name].data.numpy().tofile(file)
        return str(file)

    def take(self, offer: str, *, number: int, nbytes: int) -> np.ndarray:
        return np.fromfile(offer, dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[None]:
    Files.folder = tmp_path
    TRANSPORTS["files"] = Files
    yield
    del TRANSPORTS["files"]


class Engine:
    """A rollout worker that keeps what its engine would read."""

    def __init__(self) -> None:
        self.receiver = WeightReceiver()
        self.weights: Weights = {}

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        arrived = await asyncio.to_thread(self.receiver.accept, manifest, await offer, number=number)
        self.weights = held(arrived)
        return arrived.manifest.weight_version


async def pushes(transport: str, *, sparse: bool) -> list[bool]:
    """Push three versions to two engines, one of which starts anew before the last; returns which offers were made."""
    source = publisher(transport, sparse=sparse)
    sender, engines = PlainSender(source), [Engine(), Engine()]
    delivery = Delivery(sender, processes=1)
    for version in (1, 2, 3):
        if version == 3:
            engines[1].receiver.close()
        wanted = nudged(weights(seed=0), count=version)
        manifest = source.push(version, gathered=[wanted])
        assert await delivery.deliver(manifest, engines, limit_s=60.0) == [WeightVersion(step=version)] * 2
        assert all(same(engine.weights, wanted) for engine in engines)
    for engine in engines:
        engine.receiver.close()
    source.close()
    return sender.asked


@pytest.mark.parametrize("transport", ["shared_memory", "ray"])
def test_a_push_reaches_every_engine_by_any_transport(transport: str) -> None:
    assert asyncio.run(pushes(transport, sparse=False)) == [False] * 3


@pytest.mark.parametrize("transport", ["shared_memory", "ray"])
def test_an_engine_that_lost_its_copy_is_offered_the_whole_weights(transport: str) -> None:
    assert asyncio.run(pushes(transport, sparse=True)) == [False, False, False, True]


def test_a_busy_learner_costs_no_engine_its_time_for_the_whole_weights_that_it_lacks() -> None:
    class Busy(PlainSender):
        """Does one thing after the other, and is in its next step when whole weights are asked for."""

        step: Offered | None = None

        def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
            if not whole:
                return super().offer(version, whole=whole, audience=audience)
            self.step = asyncio.ensure_future(asyncio.sleep(0.3))
            return self.step

        async def send(self, version: int) -> None:
            if self.step is not None:
                await self.step

    class Lacks:
        """An engine without the base of a delta."""

        refused = False

        async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
            await offer
            if not self.refused:
                self.refused = True
                await asyncio.sleep(0.02)  # the sender has done its part by then
                raise WholeWeightsNeeded("it was started anew")
            return manifest.weight_version

    async def work() -> list[WeightVersion | WorkerDied]:
        manifest = empty_push(3, nbytes=64).manifest
        return await Delivery(Busy(Nothing()), processes=1).deliver(manifest, [Lacks()], limit_s=0.1)

    assert asyncio.run(work()) == [WeightVersion(step=3)]


def test_a_new_transport_is_a_class_and_a_line(files: None) -> None:
    assert LearnerConfig(transport="files", sparse_push=True).transport == "files"
    assert asyncio.run(pushes("files", sparse=True)) == [False, False, False, True]


def test_an_engine_lets_go_of_a_segment_that_the_learner_has_freed() -> None:
    learner, engine = SharedMemory(), SharedMemory()

    def taken(nbytes: int) -> weakref.ref[torch.Tensor]:
        learner.room("delta", nbytes=nbytes)
        return weakref.ref(engine.take(learner.offer("delta", HERE), number=0, nbytes=nbytes).segment)

    below = os.open(os.devnull, os.O_RDONLY)
    first = taken(64)
    os.close(below)  # whose number the next segment has, and with it another path
    second, again = taken(128), taken(128)
    assert first() is None
    assert second() is not None
    assert second() is again()
    engine.close()
    learner.close()


def test_a_segment_of_another_size_is_freed_before_the_next_is_allocated() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    class Watched(SharedMemory):
        def allocate(self, nbytes: int) -> Memory:
            assert all(segment() is None for segment in made)
            memory = super().allocate(nbytes)
            made.append(weakref.ref(memory.data))
            return memory

    transport = Watched()
    for nbytes in (64, 64, 128):
        transport.room("delta", nbytes=nbytes)
    assert len(made) == 2
    transport.close()
