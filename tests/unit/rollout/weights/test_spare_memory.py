"""Memory that was freed goes back to the system where a piece that stays lies behind it."""

import ctypes
import os

import pytest
import torch
from support.process_memory import MB, resident

from temper.rollout.weights import spare_memory
from temper.rollout.weights.spare_memory import give_back

PIECES = 2000
FLOATS = 25_000  # 100 kB, which malloc takes from a heap


def own_memory() -> int:
    return resident(os.getpid())["RssAnon"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is given back beside a GPU")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_memory_before_what_stays_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_memory._Next, "at", 0.0)
    give_back(pause_s=0)
    before = own_memory()
    pieces = [torch.ones(FLOATS) for _ in range(PIECES)]
    stays = torch.ones(FLOATS)
    pieces.clear()
    assert own_memory() - before > 150 * MB  # of 191
    give_back(pause_s=60)
    assert own_memory() - before < 20 * MB
    again = [torch.ones(FLOATS) for _ in range(PIECES)]
    stays_too = torch.ones(FLOATS)
    again.clear()
    give_back()
    assert own_memory() - before > 150 * MB  # too soon
    assert stays_too.sum() == FLOATS
    assert stays.sum() == FLOATS
