"""The way of a push from the learner's rank 0 to the engines, the same for every transport."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollout.trajectory import WeightVersion
from rollout.weights.manifest import WeightManifest, WholeWeightsNeeded
from rollout.weights.transports.transport import Audience

Offered = Awaitable[object]
"""An offer (see `Transport`) on its way: nobody between the two ends looks into it, or waits for it."""


class WeightSender(Protocol):
    """The learner's rank 0, wherever it runs."""

    async def host(self) -> str:
        """Return the address at which the engines reach it."""
        ...

    def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
        """Begin to offer the last push: its changes alone where it has any, unless `whole`."""
        ...

    async def send(self, version: int) -> None:
        """Do the sender's part while the engines take what was offered."""
        ...


class WeightTaker(Protocol):
    """A rollout worker, wherever it runs."""

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        """Serve a push by its offer, as engine `number` of the audience; returns the version that the engine confirms."""
        ...


class Delivery:
    """Brings the pushes of one sender to its engines."""

    def __init__(self, sender: WeightSender) -> None:
        self._sender = sender
        self._takers: list[WeightTaker] = []
        self._audience = Audience(number=0, size=0, host="")

    async def deliver(self, manifest: WeightManifest, takers: Sequence[WeightTaker]) -> list[WeightVersion]:
        """Bring a push to all engines at once, whole to one that lacks a delta's base; returns what each confirms."""
        audience = await self._audience_of(takers)
        offers: dict[bool, Offered] = {}

        def offer(*, whole: bool) -> Offered:
            """Return the offer, the same to all: it travels to each host once."""
            if whole not in offers:
                offers[whole] = self._sender.offer(manifest.version, whole=whole, audience=audience)
            return offers[whole]

        async def load(number: int, taker: WeightTaker) -> WeightVersion:
            try:
                return await taker.load_weights(manifest, offer(whole=False), number)
            except WholeWeightsNeeded:
                return await taker.load_weights(manifest.whole(), offer(whole=True), number)

        offer(whole=False)  # the sender does one thing at a time, and sending may wait for engines that have the offer
        loads = (load(number, taker) for number, taker in enumerate(takers))
        _, confirmed = await asyncio.gather(self._sender.send(manifest.version), asyncio.gather(*loads))
        return confirmed

    async def _audience_of(self, takers: Sequence[WeightTaker]) -> Audience:
        """Return the audience that these are: another one where they are not those of the push before."""
        if self._takers != list(takers):
            host = await self._sender.host()
            self._audience = Audience(number=self._audience.number + 1, size=len(takers), host=host)
            self._takers = list(takers)
        return self._audience


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What was published, and how it is delivered."""

    manifest: WeightManifest
    delivery: Delivery
