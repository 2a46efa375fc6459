"""Weight pushes by hand: both ends of a transport in one process."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

import torch

from temper.rollout.engines.protocol import Engine
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.delivery import Delivery, Offered, Push
from temper.rollout.weights.manifest import LocalWeights, WeightManifest, from_plain, read_weights
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports import MappedFiles, Receivers

HERE = Receivers(number=1, size=1, host="127.0.0.1")
ELSEWHERE = Receivers(number=1, size=1, host="10.0.0.1")


class Offering(Protocol):
    """A publisher, or a rank of the learner."""

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> object: ...


class Receiver(Protocol):
    """An engine's end."""

    def receive(self, manifest: WeightManifest, offer: object) -> LocalWeights: ...


def offered(sender: Offering, manifest: WeightManifest, receivers: Receivers = HERE) -> object:
    """Return an engine's offer of the push in the manifest."""
    with_base = manifest.adapted is None or not manifest.adapted.alone
    return sender.offer(manifest.version, with_base=with_base, receivers=receivers)


def accepted(
    receiver: Receiver, sender: Offering, manifest: WeightManifest, receivers: Receivers = HERE
) -> LocalWeights:
    """Return a receiver's weights for its engine's process."""
    return receiver.receive(manifest, offered(sender, manifest, receivers))


def held(weights: LocalWeights) -> dict[str, torch.Tensor]:
    """Return copies of the engine's weights, by name."""
    found = from_plain(LocalWeights, asdict(weights))
    read = read_weights(found, MappedFiles(), device=torch.device("cpu"))
    return {name: tensor.clone() for name, tensor in read}


def received(sender: Offering, manifest: WeightManifest) -> dict[str, torch.Tensor]:
    """Return copies of a new receiver's weights, by name."""
    receiver = WeightReceiver()
    try:
        return held(accepted(receiver, sender, manifest.with_base()))
    finally:
        receiver.close()


async def loaded(engine: Engine, sender: Offering, manifest: WeightManifest) -> WeightVersion:
    """Let an engine load a push."""
    return await engine.load_weights(manifest, offered(sender, manifest), number=0)


class PlainSender:
    """A sender in this process for deliveries. It keeps which offers were requested, with the base or not."""

    def __init__(self, sender: Offering, send: Callable[[int], None] | None = None) -> None:
        """`send` is the sender's part while engines load a push. It runs in a thread. Without it nothing waits."""
        self._sender, self._send = sender, send
        self.asked: list[bool] = []

    async def host(self) -> str:
        return HERE.host

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> Offered:
        self.asked.append(with_base)
        future = asyncio.get_running_loop().create_future()
        future.set_result(self._sender.offer(version, with_base=with_base, receivers=receivers))
        return future

    async def send(self, version: int) -> None:
        if self._send is not None:
            await asyncio.to_thread(self._send, version)


class Nothing:
    """Offers nothing."""

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> object:
        return None


def empty_push(version: int, *, nbytes: int, transport: str = "shared_memory") -> Push:
    """Return a push without weights, with a given nominal size."""
    none: tuple[()] = ()
    manifest = WeightManifest(
        transport=transport,
        version=version,
        names=none,
        dtypes=none,
        shapes=none,
        offsets=none,
        nbytes=nbytes,
        checksum="",
    )
    return Push(manifest=manifest, delivery=Delivery(PlainSender(Nothing()), processes=1))
