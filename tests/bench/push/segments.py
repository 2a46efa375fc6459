"""A push of a whole segment to another process, against copying the same bytes in memory."""

import contextlib
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from statistics import median

import torch
from bench.push.buckets import HERE, ROUNDS, copy_seconds
from bench.push.other_end import OtherEnd

from temper.learner.publisher import WeightPublisher
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports.catalog import open_transport
from temper.rollout.weights.transports.ray_objects import RayObjects

Receive = Callable[[WeightManifest, object], float]


def bench_segments(weights: dict[str, torch.Tensor], *, transport: str, wire_dtype: str) -> dict[str, float]:
    """Measure the seconds to publish weights from main memory and to receive them (read and verify), and their ratio to a copy
    of the bytes in memory.

    What Ray takes to hand the bytes over comes on top for transport ray.
    """
    publishing, receiving, rounds = [], [], []
    copying: list[float] = []
    with publisher(weights, transport=transport, wire_dtype=wire_dtype) as sender, _receiving(transport) as receive:
        for version in range(2 + ROUNDS):
            before, began = copy_seconds(sender.nbytes), time.perf_counter()
            manifest = sender.push(version, gathered=[weights])
            published = time.perf_counter() - began
            received = receive(manifest, sender.offer(version, whole=True, audience=HERE))
            if version < 2:  # the first two allocate the memory
                continue
            publishing.append(published)
            receiving.append(received)
            copying.append((before + copy_seconds(sender.nbytes)) / 2)
            rounds.append((published + received) / copying[-1])
    return {
        "bytes": float(manifest.nbytes),
        "publish_s": min(publishing),
        "receive_s": min(receiving),
        "copy_s": min(copying),
        "gb_per_s": manifest.nbytes / 1e9 / (min(publishing) + min(receiving)),
        "times_memory_copy": median(rounds),
    }


@contextlib.contextmanager
def publisher(weights: dict[str, torch.Tensor], *, transport: str, wire_dtype: str) -> Iterator[WeightPublisher]:
    """Yield the sending end for weights like these."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    opened = open_transport(transport)
    with contextlib.closing(WeightPublisher(opened, shapes=shapes, dtype=wire_dtype)) as sender:
        yield sender


@contextlib.contextmanager
def _receiving(transport: str) -> Iterator[Receive]:
    """Yield what receives an offer and returns the seconds of that: in another process, which alone can open a segment of a
    GPU's memory; for transport ray in this one, as its offer is the bytes themselves.
    """
    if transport == RayObjects.name:
        with contextlib.closing(WeightReceiver()) as receiver:
            yield lambda manifest, offer: _received(receiver, manifest, offer)
        return
    with contextlib.closing(OtherEnd(_take_segments)) as end:

        def receive(manifest: WeightManifest, offer: object) -> float:
            end.give(manifest, offer)
            return end.taken()

        yield receive


def _take_segments(pipe: Connection) -> None:
    """Take pushes until the other end is closed."""
    with contextlib.closing(WeightReceiver()) as receiver, contextlib.suppress(EOFError):
        while True:
            pipe.send(_received(receiver, *pipe.recv()))


def _received(receiver: WeightReceiver, manifest: WeightManifest, offer: object) -> float:
    began = time.perf_counter()
    receiver.accept(manifest, offer, number=0)
    return time.perf_counter() - began
