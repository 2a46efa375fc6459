"""One request in the words of vLLM."""

from collections.abc import Sequence

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from rollout.budget.request_args import extra_args
from rollout.engines.protocol import TurnRequest


def request_params(request: TurnRequest, *, ends: Sequence[int]) -> SamplingParams:
    """Return how vLLM is to sample the rest of a turn, whose beginning it is given as a part of the prompt.

    `ends` are the ids that end a turn, and nothing else does: the model's own files may say otherwise than its chat template.
    It makes text only where it has to look for a text, of every token, those that a reader would not see included.
    """
    sampling, limit = request.sampling, request.limit
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=list(sampling.stop),
        ignore_eos=True,
        stop_token_ids=list(ends),
        max_tokens=request.max_tokens,
        seed=request.seed,
        logprobs=0,
        flat_logprobs=True,  # else an object a token
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=None if limit is None else extra_args(limit, begun=len(request.begun)),
    )
