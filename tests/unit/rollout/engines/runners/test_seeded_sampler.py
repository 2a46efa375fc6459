"""Seeds drawn ahead give the tokens of vLLM's own sampler, bit for bit."""

import random
from weakref import WeakSet

import pytest
import torch
import vllm._custom_ops  # noqa: F401  loads the operators
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from temper.rollout.engines.runners.seeded_sampler import DRAWN, SeededSampler

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a path of vLLM's CPU build")
ROWS, VOCABULARY = 6, 40


@pytest.mark.parametrize("top_p", [None, 0.8])
def test_tokens_equal_those_of_vllm_while_requests_come_and_go(top_p: float | None) -> None:
    """Requests 0 and 3 have no seed. The others change rows, and end after different numbers of tokens."""
    found: list[list[torch.Tensor]] = []
    alive: WeakSet[torch.Generator] = WeakSet()
    for sampler in (own := TopKTopPSampler("processed_logprobs"), SeededSampler(own)):
        torch.manual_seed(5)
        order, noise, passes = random.Random(1), torch.Generator().manual_seed(2), []
        requests = {number: torch.Generator().manual_seed(number) for number in range(ROWS) if number % 3}
        alive.update(requests.values())
        for step in range(2 * DRAWN + 3):
            rows = list(range(ROWS))
            order.shuffle(rows)
            if step == DRAWN // 2:
                requests[1] = torch.Generator().manual_seed(99)
            generators = {row: requests[number] for row, number in enumerate(rows) if number in requests}
            logits = torch.randn(ROWS, VOCABULARY, generator=noise)
            p = None if top_p is None else torch.full((ROWS,), top_p)
            tokens, logprobs = sampler(logits, generators, None, p)
            assert logprobs is not None
            passes += [tokens, logprobs]
        found.append(passes)
    assert all(torch.equal(before, after) for before, after in zip(*found, strict=True))
    assert len({int(token) for tokens in found[0][::2] for token in tokens}) > VOCABULARY / 2
    del requests, generators
    assert not alive  # the sampler keeps no generator of an ended request
