"""How the bytes of a push get from the learner's rank 0 to the engines: in place, by reference, or by broadcast."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from rollout.trajectory import WeightVersion
from rollout.weights.manifest import WeightManifest, WholeWeightsNeeded
from rollout.weights.process_group import Seat


class WeightSender(Protocol):
    """The learner's rank 0, wherever it runs."""

    def payload(self, version: int, *, whole: bool) -> Awaitable[np.ndarray]:
        """Return a reference to the bytes of the last push, which can be handed on before they are there."""
        ...

    async def host(self) -> str:
        """Return the address at which the engines reach it."""
        ...

    async def meet(self, host: str, size: int) -> Seat: ...

    async def broadcast(self, version: int) -> None: ...


class WeightTaker(Protocol):
    """A rollout worker, wherever it runs."""

    async def load_weights(
        self, manifest: WeightManifest, payload: Awaitable[np.ndarray] | None = None
    ) -> WeightVersion: ...


class Delivery(Protocol):
    """The way of one push to the engines."""

    async def deliver(self, manifest: WeightManifest, takers: Sequence[WeightTaker]) -> list[WeightVersion]:
        """Bring the push to all of them at once; returns the version that each confirms."""
        ...


class InPlace:
    """The engines read the bytes where the manifest's path says."""

    async def deliver(self, manifest: WeightManifest, takers: Sequence[WeightTaker]) -> list[WeightVersion]:
        """See `Delivery.deliver`."""

        async def load(taker: WeightTaker) -> WeightVersion:
            try:
                return await taker.load_weights(manifest)
            except WholeWeightsNeeded:
                return await taker.load_weights(manifest.whole())

        return await asyncio.gather(*(load(taker) for taker in takers))


class Parcel:
    """The bytes of one push, which lie in the learner's rank 0. They travel from its host to the engines' hosts, once to
    each however many engines it has, and not through this process.
    """

    def __init__(self, sender: WeightSender, *, version: WeightVersion) -> None:
        self._sender = sender
        self._version = version
        self._fetched: dict[bool, Awaitable[np.ndarray]] = {}

    async def deliver(self, manifest: WeightManifest, takers: Sequence[WeightTaker]) -> list[WeightVersion]:
        """See `Delivery.deliver`; one that lacks a delta's base gets the whole weights."""

        async def load(taker: WeightTaker) -> WeightVersion:
            try:
                return await taker.load_weights(manifest, self._fetch(whole=False))
            except WholeWeightsNeeded:
                return await taker.load_weights(manifest.whole(), self._fetch(whole=True))

        return await asyncio.gather(*(load(taker) for taker in takers))

    def _fetch(self, *, whole: bool) -> Awaitable[np.ndarray]:
        """Return a reference to the bytes: the changes alone where there are any, unless `whole`."""
        if whole not in self._fetched:
            self._fetched[whole] = self._sender.payload(self._version.step, whole=whole)
        return self._fetched[whole]


class Meeting:
    """The group in which rank 0 broadcasts to the engines. It is opened at the first push and serves all later ones to the
    same engines.
    """

    def __init__(self, sender: WeightSender) -> None:
        self._sender = sender
        self._takers: list[WeightTaker] = []
        self._seats: list[Seat] = []

    async def seats(self, takers: Sequence[WeightTaker]) -> list[Seat]:
        """Return the places of these engines, in their order."""
        if self._takers != list(takers):
            size = len(takers) + 1
            seat = await self._sender.meet(await self._sender.host(), size)
            self._seats = [replace(seat, rank=rank) for rank in range(1, size)]
            self._takers = list(takers)
        return self._seats


class Broadcast:
    """One push that goes to all engines at once."""

    def __init__(self, sender: WeightSender, meeting: Meeting, *, version: WeightVersion) -> None:
        self._sender = sender
        self._version = version
        self._meeting = meeting

    async def deliver(self, manifest: WeightManifest, takers: Sequence[WeightTaker]) -> list[WeightVersion]:
        """See `Delivery.deliver`; all of them take part while it is sent."""
        seats = await self._meeting.seats(takers)
        loads = (taker.load_weights(replace(manifest, seat=seat)) for taker, seat in zip(takers, seats, strict=True))
        _, confirmed = await asyncio.gather(self._sender.broadcast(self._version.step), asyncio.gather(*loads))
        return confirmed
