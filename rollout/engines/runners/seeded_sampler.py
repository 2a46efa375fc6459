"""Sampling with the requests' seeds in vLLM's first model runner on a CPU, with the tokens of vLLM's own sampler.

vLLM draws the noise's seed of each token by a call of torch for each request. That was a tenth of a small model's pass. Here a
request's generator draws many at once, which gives the same numbers.
"""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p

DRAWN = 64
"""Seeds drawn at once from a request's generator."""


class SeededSampler(TopKTopPSampler):
    """vLLM's sampler, with seeds drawn ahead. `forward_cpu` is the only path that differs."""

    def __init__(self, sampler: TopKTopPSampler) -> None:
        super().__init__(sampler.logprobs_mode, sampler.use_fp64_gumbel)
        assert self.logprobs_mode == "processed_logprobs"
        self._drawn: WeakKeyDictionary[torch.Generator, list[int]] = WeakKeyDictionary()
        """Seeds not used yet by generator, the next one last."""

    def forward_cpu(
        self,
        logits: torch.Tensor,
        generators: Mapping[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the sampled tokens, and the log-probabilities after temperature and truncation."""
        if self.use_fp64_gumbel:
            return super().forward_cpu(logits, dict(generators), k, p)
        logits = apply_top_k_top_p(logits, k, p)
        logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
        seeds = torch.randint(0, 2**31, (len(logits),))  # of requests without a seed
        if generators:
            seeds[list(generators)] = torch.tensor([self._draw(one) for one in generators.values()])
        return torch.ops._C.fused_gumbel_argmax(logits.float(), seeds), logprobs

    def _draw(self, generator: torch.Generator) -> int:
        drawn = self._drawn.get(generator)
        if not drawn:
            drawn = torch.randint(0, 2**31, (DRAWN,), generator=generator).tolist()
            drawn.reverse()
            self._drawn[generator] = drawn
        return drawn.pop()
