"""Segments in GPU memory, opened by another process. Needs a GPU."""

import multiprocessing
from multiprocessing.connection import Connection

import pytest
import torch

from temper.rollout.weights.checksum import checksum, tensor_checksum
from temper.rollout.weights.transports import open_segment, segment_name

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BYTES = 3 * 4096 + 5


def reader(pipe: Connection) -> None:
    """Returns the checksum of a segment for each name."""
    while name := pipe.recv():
        pipe.send(tensor_checksum(open_segment(name, nbytes=BYTES)))


def test_another_process_reads_what_was_written_push_after_push() -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=reader, args=(theirs,))
    process.start()
    segment = torch.zeros(BYTES, dtype=torch.uint8, device="cuda")
    for value in (1, 2):
        segment.fill_(value)
        ours.send(segment_name(segment))
        assert ours.poll(120)
        assert ours.recv() == checksum(torch.full((BYTES,), value, dtype=torch.uint8).numpy())
    ours.send("")
    process.join(60)
    assert process.exitcode == 0
