"""One request in the words of vLLM, and what it answers in ours."""

from collections.abc import Sequence
from math import nan

from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.sampling_params import RequestOutputKind

from temper.rollout.budget.rule import extra_args
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.expert_choices import Choices


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
        skip_clone=True,  # no other request has these, so vLLM need not copy them deeply
    )


def completion(
    ids: tuple[int, ...],
    logprobs: FlatLogprobs,
    versions: Sequence[tuple[str, int]],
    *,
    forced_T: tuple[bool, ...],
    finished: bool,
    experts: Choices | None = None,
) -> Completion:
    """Return what vLLM says of tokens; `versions` are those of the weights, each with the first token that it sampled."""
    sampled = [(logprobs.token_ids[at], logprobs.logprobs[at]) for at in logprobs.start_indices]
    assert tuple(token for token, _ in sampled) == ids
    ends = [*(start for _, start in versions[1:]), len(ids)]
    return Completion(
        token_ids=ids,
        logprobs_T=tuple(nan if forced else value for (_, value), forced in zip(sampled, forced_T, strict=True)),
        versions_T=tuple(
            int(version)
            for (version, start), end in zip(versions, ends[: len(versions)], strict=True)
            for _ in range(start, end)
        ),
        forced_T=forced_T,
        finished=finished,
        experts=experts,
    )
