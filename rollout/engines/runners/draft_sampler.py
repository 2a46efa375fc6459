"""Speculative decoding in vLLM's first model runner: keeps a draft if it equals the token that is sampled anyway.

Each token is sampled with the same sampler and random numbers as without drafts. So a request's tokens depend only on its
seed, and budgets act on each token. vLLM's own rejection sampler does not work on CPUs: for batches that are not all greedy
its CPU build writes the temperatures as integers into an unused copy (`vllm/utils/cpu_triton_utils.py`). It also applies no
logits processors.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID, RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata


class DraftSampler(RejectionSampler):
    """Samples the token after each draft until a draft differs."""

    def __init__(self, model_runner: Any, processors: Iterable[type[LogitsProcessor]]) -> None:
        """Replace the runner's rejection sampler, which loads no `processors`."""
        assert not model_runner.use_async_scheduling  # the next pass begins with the sampled tokens known
        super().__init__(model_runner.sampler, model_runner.speculative_config, model_runner.device)
        self._batch = model_runner.input_batch
        model_runner.rejection_sampler = self
        for kind in processors:
            processor = kind(model_runner.vllm_config, model_runner.device, False)
            assert not processor.is_argmax_invariant()
            self._batch.logitsprocs.non_argmax_invariant.append(processor)

    def forward(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """Return the sampled tokens of each request, up to the first that differs from its draft.

        `logits` has, per request, a row before each draft and one after the last.
        """
        counts, ids = metadata.num_draft_tokens, iter(metadata.draft_token_ids.tolist())
        drafts = [list(islice(ids, count)) for count in counts]
        first = metadata.bonus_logits_indices - torch.tensor(counts, device=logits.device)
        sampled: list[list[int]] = [[] for _ in counts]
        steps: list[LogprobsTensors] = []
        before = self._batch.req_output_token_ids[: len(counts)]
        try:
            for place in range(max(counts) + 1):
                alive = {
                    row
                    for row, own in enumerate(sampled)
                    if len(own) == place <= counts[row] and own == drafts[row][:place]
                }
                if not alive:
                    break
                rows = first + torch.tensor([min(place, count) for count in counts], device=logits.device)
                drawn = {row: each for row, each in sampling_metadata.generators.items() if row in alive}
                output = self.sampler(logits[rows], replace(sampling_metadata, generators=drawn))
                if output.logprobs_tensors is not None:
                    steps.append(output.logprobs_tensors)
                for row in alive:
                    sampled[row].append(int(output.sampled_token_ids[row, 0]))
                    before[row].append(sampled[row][-1])  # where the processors read it
        finally:
            for tokens, own in zip(before, sampled, strict=True):
                del tokens[len(tokens) - len(own) :]
        width = max(counts) + 1
        padded = [[*own, *[PLACEHOLDER_TOKEN_ID] * (width - len(own))] for own in sampled]
        return SamplerOutput(
            sampled_token_ids=torch.tensor(padded, dtype=torch.int32, device=logits.device),
            logprobs_tensors=_side_by_side([*steps, *steps[-1:] * (width - len(steps))]) if steps else None,
        )


def _side_by_side(steps: list[LogprobsTensors]) -> LogprobsTensors:
    """Return the steps' log-probabilities as one row after the other for each request."""
    ids, logprobs, ranks = (
        torch.stack(parts, dim=1).flatten(0, 1)
        for parts in zip(
            *((one.logprob_token_ids, one.logprobs, one.selected_token_ranks) for one in steps), strict=True
        )
    )
    return LogprobsTensors(logprob_token_ids=ids, logprobs=logprobs, selected_token_ranks=ranks)
