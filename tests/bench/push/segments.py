"""A push of a whole segment to another process, against copying the same bytes in memory."""

import contextlib
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from statistics import median

import torch
from bench.push.buckets import HERE, ROUNDS, copy_seconds
from bench.push.other_end import OtherEnd

from temper.learner.weight_sender import SegmentSender
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.receiver import WeightReceiver


def bench_segments(weights: dict[str, torch.Tensor], *, transport: str, wire_dtype: str) -> dict[str, float]:
    """Measure the seconds to publish weights from main memory and to receive them (read and verify), and their ratio to a copy
    of the bytes in memory.
    """
    publishing, receiving, rounds = [], [], []
    copying: list[float] = []
    with (
        publisher(weights, transport=transport, wire_dtype=wire_dtype) as sender,
        contextlib.closing(OtherEnd(_take_segments)) as end,
    ):
        for version in range(2 + ROUNDS):
            before, began = copy_seconds(sender.nbytes), time.perf_counter()
            manifest = sender.push(version, gathered=[weights])
            published = time.perf_counter() - began
            end.give(manifest, sender.offer(version, whole=True, audience=HERE))
            received = end.taken()
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
def publisher(weights: dict[str, torch.Tensor], *, transport: str, wire_dtype: str) -> Iterator[SegmentSender]:
    """Yield the sending end for weights like these."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with contextlib.closing(SegmentSender(transport, shapes=shapes, dtype=wire_dtype, device=device)) as sender:
        yield sender


def _take_segments(pipe: Connection) -> None:
    """Take pushes until the other end is closed."""
    with contextlib.closing(WeightReceiver()) as receiver, contextlib.suppress(EOFError):
        while True:
            pipe.send(_received(receiver, *pipe.recv()))


def _received(receiver: WeightReceiver, manifest: WeightManifest, offer: object) -> float:
    began = time.perf_counter()
    receiver.receive(manifest, offer)
    return time.perf_counter() - began
