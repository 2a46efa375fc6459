"""The memory of a CPU cache, released and reused."""

import torch

from temper.rollout.engines.cache_pages import nbytes_of, release_pages, resident_bytes


def test_pages_that_are_given_back_are_gone_and_come_back_empty() -> None:
    whole = torch.ones(4_000_000)
    views = [whole[:1000].view(10, 100), whole[1000:]]  # layers of a cache share one tensor's memory
    assert nbytes_of(views) == whole.nbytes
    before = resident_bytes(views)
    assert 0 <= whole.nbytes - before < 2 * 4096  # except for the pages at both ends, which others may use too
    release_pages(views)
    assert resident_bytes(views) == 0
    assert views[1][5000:-5000].count_nonzero() == 0
    whole[2_000_000] = 3.0
    assert 0 < resident_bytes([whole]) <= before
    assert whole[2_000_000] == 3.0
