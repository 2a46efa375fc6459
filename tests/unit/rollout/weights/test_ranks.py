"""Pushes in buckets by two ranks of the learner, real processes with collective gathering."""

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from support.pushes import HERE

from temper.learner.weight_sender import BucketSender
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.weights.buckets import BucketReceiver, Named

CPU = torch.device("cpu")
PIECES: dict[str, tuple[int, ...]] = {f"w{number}": (16,) for number in range(12)}
PUSHES = ((1, 1), (2, 1), (3, 2), (3, 3))
"""Version and receivers' number of each push. The engine of the third dies on the way."""
DIED = 3


def piece(version: int, number: int) -> torch.Tensor:
    return torch.full((16,), 20.0 * version + number)


def rank_of_two(rank: int, port: int, pipe: Connection) -> None:
    """One of two ranks, with every second tensor. They gather together, as if each had a part of every tensor."""
    limit = timedelta(seconds=100)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=limit)
    sender = BucketSender(
        shapes=PIECES,
        dtype="bfloat16",
        rank=rank,
        ranks=2,
        device=CPU,
        timeout_s=10.0,
        bucket_bytes=64,
    )

    def gathered(version: int) -> Iterator[dict[str, torch.Tensor]]:
        for number, name in enumerate(PIECES):
            if number == len(PIECES) // 2:
                pipe.recv()
            dist.barrier()
            yield {name: piece(version, number)}

    for version, receivers in PUSHES:
        manifest = sender.push(version)
        if rank == 0:
            pipe.send((manifest, sender.offer(version, with_base=True, receivers=replace(HERE, number=receivers))))
        try:
            sender.send(version, gathered(version))
            pipe.send("")
        except RuntimeError as error:
            pipe.send(str(error))
    dist.destroy_process_group()


def engine_that_dies(pipe: Connection) -> None:
    """An engine that its third bucket kills."""
    manifest, bucket_group = pipe.recv()
    loaded: list[str] = []

    def load(named: Named) -> None:
        loaded.extend(name for name, _ in named)
        if len(loaded) == 3:
            os._exit(DIED)

    BucketReceiver().receive(manifest, bucket_group, load, member=1, device=CPU)


def heard(pipe: Connection) -> Any:
    assert pipe.poll(100)
    return pipe.recv()


def test_two_ranks_send_again_after_an_engine_died() -> None:
    context, port = multiprocessing.get_context("spawn"), free_port()
    pipes = [context.Pipe() for _ in range(3)]
    ranks = [context.Process(target=rank_of_two, args=(rank, port, pipes[rank][1]), daemon=True) for rank in range(2)]
    dies = context.Process(target=engine_that_dies, args=(pipes[2][1],), daemon=True)
    for process in (*ranks, dies):
        process.start()
    receiver = BucketReceiver()
    for version, receivers in PUSHES:
        manifest, bucket_group = heard(pipes[0][0])
        assert bucket_group.senders == 2
        if receivers == 2:
            pipes[2][0].send((manifest, bucket_group))
            dies.join(100)
            assert dies.exitcode == DIED
        for ours, _ in pipes[:2]:
            ours.send(None)
        if receivers != 2:
            found: dict[str, torch.Tensor] = {}
            receiver.receive(manifest, bucket_group, found.update, member=1, device=CPU)
            assert all(torch.equal(found[name].float(), piece(version, number)) for number, name in enumerate(PIECES))
        failures = [heard(ours) for ours, _ in pipes[:2]]
        assert any(failures) == (receivers == 2)
    for process in ranks:
        process.join(30)
        assert process.exitcode == 0
    receiver.close()
