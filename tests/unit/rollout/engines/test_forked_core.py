"""The fork that becomes vLLM's engine process on a CPU."""

import gc
import os
import socket
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest
import torch

from temper.rollout.engines.forked_core import CoreProcess, forked_core
from temper.rollout.engines.vllm_settings import ON_CPU

DEADLINE_S = 60.0


def compute(results: Connection, go_on: Connection) -> None:
    size = 512
    product = torch.ones(size, size) @ torch.ones(size, size)
    results.send((os.getppid(), torch.get_num_threads(), gc.get_freeze_count() > 0, product.sum().item() == size**3))
    go_on.recv()


def test_a_fork_of_a_computing_process_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes in parallel though its parent did, and does not hold the parent's connections."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    torch.ones(512, 512) @ torch.ones(512, 512)  # starts OpenMP's threads of this thread
    ours, theirs = socket.socketpair()
    results, send = Pipe(duplex=False)
    receive, go_on = Pipe(duplex=False)
    core = CoreProcess(target=compute, args=(send, receive))
    core.start()
    try:
        assert results.poll(DEADLINE_S)
        assert results.recv() == (os.getpid(), 3, True, True)
        theirs.close()
        ours.settimeout(DEADLINE_S)
        assert ours.recv(1) == b""  # closed, because the child has no copy
        assert core.exitcode is None
        go_on.send(None)
        core.join(DEADLINE_S)
        assert core.exitcode == 0
    finally:
        core.kill()


@pytest.mark.skipif(not ON_CPU, reason="CUDA does not survive a fork")
def test_only_engines_in_the_block_are_forked() -> None:
    from vllm.v1.engine import utils

    outside = utils.get_mp_context
    with forked_core():
        assert utils.get_mp_context().Process is CoreProcess
    assert utils.get_mp_context is outside
