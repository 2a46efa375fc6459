"""What a transport is: what is known of a way of pushes, and, where whole segments travel, both of its ends in one class."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch

from temper.rollout.weights.host_memory import HostMemory

OfferT = TypeVar("OfferT")
Medium = Literal["main memory", "GPU memory", "object store", "network"]
"""What a push lies in between its two ends; the object store is Ray's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """The engines that pushes are for: how many processes, at which address they reach the sender, which audience it is."""

    number: int
    size: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Bytes that arrived where the engine's own process can map them, under `path`."""

    segment: torch.Tensor
    path: str


class Memory(Protocol):
    """Bytes that a transport holds, under a path by which other processes find them."""

    data: torch.Tensor

    @property
    def path(self) -> str: ...

    def close(self) -> None: ...


class Transport:
    """What is known of a way of pushes from the learner to the engines, by the name that `learner.transport` calls it."""

    name: ClassVar[str]
    one_machine: ClassVar[bool] = False
    """Whether it reaches only engines on the learner's machine."""
    one_gpu: ClassVar[bool] = False
    """Whether it reaches only an engine on the GPU of the learner's rank 0."""
    own_devices: ClassVar[bool] = False
    """Whether learner and engines need devices of their own: what is sent is what the learner has on its own at any time."""
    medium: ClassVar[Medium]
    """What has to have room for a push."""
    buckets: ClassVar[bool] = False
    """Whether every rank sends its share in buckets, else rank 0 whole segments: a `SegmentTransport`."""
    sparse: ClassVar[bool] = False
    """Whether changes alone can travel by it: they are found and made in main memory."""
    lasts: ClassVar[bool] = False
    """Whether a push lies apart from the learner's weights, in memory that its next step does not need, until the next push:
    engines may load it while the learner goes on."""
    adapters: ClassVar[bool] = False
    """Whether adapters can travel by it without the weights beside which they stand: the engines keep those in main memory."""
    slots: ClassVar[int] = 0
    """How many copies of the weights the learner holds for it."""

    @classmethod
    def require(cls) -> None:
        """Raise `ValueError` where a learner on this machine can't use it."""


class SegmentTransport(Transport, ABC, Generic[OfferT]):
    """One end of the way of whole segments: an object at the learner's rank 0 sends, one at each engine receives.

    An *offer* is what the sender gives a receiver so that it gets at a push: a path, or the bytes themselves. Whoever is
    between the two passes it on unseen. Segments have names: whole ones take turns, so that one that is being read is not
    overwritten, and "delta".
    """

    medium: ClassVar[Medium] = "main memory"
    slots = 1

    def __init__(self, *, device: torch.device | None = None) -> None:
        """`device` is that of the model at this end."""
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._held: dict[str, Memory] = {}

    def room(self, name: str, *, nbytes: int) -> torch.Tensor:
        """Return bytes to write to: the same ones for the same name and size, contents included.

        Raises `OSError` where there is not as much memory.
        """
        return self._memory(name, nbytes=nbytes).data

    @abstractmethod
    def offer(self, name: str, audience: Audience) -> OfferT:
        """Return what each engine of the audience needs to get at a segment."""

    @abstractmethod
    def take(self, offer: OfferT, *, number: int, nbytes: int) -> Placed | np.ndarray:
        """Return the bytes of an offer, not yet verified: where they lie, or as an array of uint8 that others can't reach.

        `number` is that of this engine in the audience, from 0.
        """

    def close(self) -> None:
        """Free the segments. Engines that have one mapped keep reading it."""
        for memory in self._held.values():
            memory.close()
        self._held.clear()

    def allocate(self, nbytes: int) -> Memory:
        """Return new memory for a segment."""
        return HostMemory(nbytes)

    def _memory(self, name: str, *, nbytes: int) -> Memory:
        if name in self._held and self._held[name].data.numel() != nbytes:
            self._held.pop(name).close()  # gone before there is another: the two may not fit beside each other
        if name not in self._held:
            self._held[name] = self.allocate(nbytes)
        return self._held[name]
