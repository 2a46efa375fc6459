"""A push in buckets by gloo to another process, against copying the same bytes in memory."""

import contextlib
import os
import time
from multiprocessing.connection import Connection
from statistics import median

import torch
from bench.push.other_end import ANSWER_S, OtherEnd

from temper.learner.weight_sender import BucketSender
from temper.orchestrator.cluster.this_machine import LOOPBACK
from temper.rollout.engines.vllm_settings import KEEP_FREED
from temper.rollout.weights.buckets import BucketReceiver
from temper.rollout.weights.transports import Audience

ROUNDS = 4
"""Pushes measured, after those that allocate the memory."""
COPY_BYTES = 2**28
"""Most bytes copied at once for comparison."""
HERE = Audience(number=1, size=1, host=LOOPBACK)


def copy_seconds(nbytes: int) -> float:
    """Measure the seconds of copying so many bytes between two places in memory that are both in use already."""
    source, target = (torch.ones(min(nbytes, COPY_BYTES), dtype=torch.uint8) for _ in range(2))
    left, began = nbytes, time.perf_counter()
    while left > 0:
        size = min(left, len(source))
        target[:size].copy_(source[:size])
        left -= size
    return time.perf_counter() - began


def bench_buckets(weights: dict[str, torch.Tensor], *, wire_dtype: str) -> dict[str, float]:
    """Measure the seconds to send weights in buckets to another process, which verifies them, and their ratio to a copy."""
    os.environ.setdefault("GLIBC_TUNABLES", KEEP_FREED)  # as in an engine's process
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    sender = BucketSender(
        shapes=shapes,
        dtype=wire_dtype,
        rank=0,
        ranks=1,
        device=torch.device("cpu"),
        timeout_s=ANSWER_S,
    )
    sending, rounds = [], []
    with contextlib.closing(sender), contextlib.closing(OtherEnd(_take_buckets)) as end:
        for version in range(ROUNDS + 1):
            manifest = sender.push(version)
            before, began = copy_seconds(manifest.nbytes), time.perf_counter()
            end.give(manifest, sender.offer(version, whole=True, audience=HERE))
            sender.send(version, [weights])
            end.taken()
            sending.append(time.perf_counter() - began)
            rounds.append(sending[-1] / ((before + copy_seconds(manifest.nbytes)) / 2))
    return {
        "bytes": float(manifest.nbytes),
        "send_s": min(sending),
        "gb_per_s": manifest.nbytes / 1e9 / min(sending),
        "times_memory_copy": median(rounds[1:]),
    }


def _take_buckets(pipe: Connection) -> None:
    """Take pushes until the other end is closed."""
    receiver = BucketReceiver()
    with contextlib.suppress(EOFError):
        while True:
            manifest, ways = pipe.recv()
            began = time.perf_counter()
            receiver.receive(manifest, ways, lambda named: None, member=1, device=torch.device("cpu"))
            pipe.send(time.perf_counter() - began)
