"""Delivery of a push: offered once to all, whole to an engine without the base weights of adapters."""

import asyncio
import os
import weakref

import torch
from support.in_loop import in_loop
from support.pushes import Nothing, PlainSender, empty_push, held
from unit.rollout.weights.test_push import Weights, nudged, same, segment_sender, weights

from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered
from temper.rollout.weights.manifest import WeightManifest, WholeWeightsNeeded
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports import HostMemory, MappedFiles, Receivers


class Engine:
    """A rollout worker that keeps the weights its engine would read."""

    def __init__(self) -> None:
        self.name = "engine"
        self.receiver = WeightReceiver()
        self.weights: Weights = {}

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        arrived = await asyncio.to_thread(self.receiver.receive, manifest, await offer)
        self.weights = held(arrived)
        return arrived.manifest.weight_version


@in_loop
async def test_a_push_reaches_every_engine_by_one_offer() -> None:
    source = segment_sender()
    sender, engines = PlainSender(source), [Engine(), Engine()]
    delivery = Delivery(sender, processes=1)
    for version in (1, 2, 3):
        wanted = nudged(weights(seed=0), count=version)
        manifest = source.push(version, gathered=[wanted])
        assert await delivery.deliver_push(manifest, engines, limit_s=60.0) == [WeightVersion(step=version)] * 2
        assert all(same(engine.weights, wanted) for engine in engines)
    for engine in engines:
        engine.receiver.close()
    source.close()
    assert sender.asked == [False] * 3


@in_loop
async def test_a_busy_learner_does_not_use_up_the_engines_time() -> None:
    class Busy(PlainSender):
        """Works sequentially, and is in its next step when whole weights are requested."""

        step: Offered | None = None

        def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> Offered:
            if not with_base:
                return super().offer(version, with_base=with_base, receivers=receivers)
            self.step = asyncio.ensure_future(asyncio.sleep(0.3))
            return self.step

        async def send(self, version: int) -> None:
            if self.step is not None:
                await self.step

    class Lacks:
        """An engine without the base weights of adapters."""

        name = "lacks"
        refused = False

        async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
            await offer
            if not self.refused:
                self.refused = True
                await asyncio.sleep(0.02)  # the sender has finished by then
                raise WholeWeightsNeeded("it was started anew")
            return manifest.weight_version

    manifest = empty_push(3, nbytes=64).manifest
    assert (await Delivery(Busy(Nothing()), processes=1).deliver_push(manifest, [Lacks()], limit_s=0.1)) == [
        WeightVersion(step=3)
    ]


def test_an_engine_unmaps_a_freed_segment() -> None:
    engine = MappedFiles()

    def taken(memory: HostMemory) -> weakref.ref[torch.Tensor]:
        return weakref.ref(engine.map(memory.path, nbytes=memory.data.numel()))

    below = os.open(os.devnull, os.O_RDONLY)
    freed = HostMemory(64)
    first = taken(freed)
    freed.close()
    os.close(below)  # the next segment gets its number, and with it another path
    memory = HostMemory(128)
    second, again = taken(memory), taken(memory)
    assert first() is None
    assert second() is not None
    assert second() is again()
    engine.close()
    memory.close()
