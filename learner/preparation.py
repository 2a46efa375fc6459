"""What is fixed before the first update of a batch, because an update changes the model that it is computed with.

Suffixes: `_BT` one entry per sequence and token of a micro-batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from learner.batches.batch import MicroBatch
from learner.engine.deepspeed_engine import DeepSpeedEngine
from learner.engine.sums import sum_over_ranks
from learner.losses.advantages import EPSILON
from learner.losses.config import LossConfig
from learner.losses.kl import ESTIMATES, penalised_advantages
from learner.models.expert_replay import Routing
from learner.models.scorer import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Log-probabilities of the old policy and of the reference, and the advantages; None where they are not fixed here."""

    old_BT: torch.Tensor | None = None
    ref_BT: torch.Tensor | None = None
    advantages_BT: torch.Tensor | None = None


NOTHING_FIXED = Fixed()


def prepare(
    engine: DeepSpeedEngine,
    routing: Routing,
    shares: Sequence[Sequence[MicroBatch]],
    *,
    loss: LossConfig,
    reference: Scorer | None,
) -> list[list[Fixed]]:
    """What is fixed for each micro-batch of each mini-batch's share of this rank. A collective."""
    engine.train(True)  # as in the updates, so that the first ratio is 1 to the last digit
    micro_batches = [micro_batch for share in shares for micro_batch in share]
    known = []
    for micro_batch in micro_batches:
        routing.follow([routes.without_count() for routes in micro_batch.routes])
        known.append(current_logprobs(engine.scorer, micro_batch, reference=reference, device=engine.device))
    if loss.normalises_divergence and micro_batches:
        known = with_divergence(known, micro_batches, loss=loss)
    rest = iter(known)
    return [[next(rest) for _ in share] for share in shares]


def current_logprobs(
    policy: Scorer, micro_batch: MicroBatch, *, reference: Scorer | None, device: torch.device
) -> Fixed:
    """The log-probabilities that the policy, and the reference if there is one, give to the trained tokens now."""
    ids_BT = torch.from_numpy(micro_batch.ids_BT).to(device)
    trained_BT = torch.from_numpy(micro_batch.weights_BT).to(device) > 0
    with torch.no_grad():
        old_BT = policy(ids_BT, trained_BT, micro_batch.prompts).logprobs_BT
        if reference is None:
            return Fixed(old_BT=old_BT)
        return Fixed(old_BT=old_BT, ref_BT=reference(ids_BT, trained_BT, micro_batch.prompts).logprobs_BT)


def with_divergence(
    fixed: Sequence[Fixed],
    micro_batches: Sequence[MicroBatch],
    *,
    loss: LossConfig,
    summed: Callable[[dict[str, torch.Tensor]], dict[str, float]] = sum_over_ranks,
) -> list[Fixed]:
    """With advantages that have paid for the divergence still to come and are normalised after that, over all tokens.

    A_t = R - beta sum over i >= t of KL(i), less its mean over the trained tokens of the batch, divided by its (population)
    deviation over them. Hu et al., "REINFORCE++", eq. 8 to 10, 2025; the baseline, if any, is in R.
    """
    paid, trained = [], []
    for known, micro_batch in zip(fixed, micro_batches, strict=True):
        assert known.old_BT is not None
        assert known.ref_BT is not None
        raw_BT = torch.from_numpy(micro_batch.advantages_BT).to(known.old_BT.device)
        trained.append(torch.from_numpy(micro_batch.weights_BT).to(known.old_BT.device) > 0)
        kl_BT = ESTIMATES[loss.kl](known.old_BT, known.ref_BT)
        paid.append(penalised_advantages(raw_BT, kl_BT, trained[-1], coefficient=loss.kl_coefficient))
    all_N = torch.cat([values_BT[own_BT] for values_BT, own_BT in zip(paid, trained, strict=True)]).double()
    count = torch.tensor(float(len(all_N)), dtype=torch.float64)
    sums = summed({"count": count, "sum": all_N.sum().cpu(), "squares": all_N.square().sum().cpu()})
    mean = sums["sum"] / sums["count"]
    deviation = max(0.0, sums["squares"] / sums["count"] - mean**2) ** 0.5
    clip = loss.advantage_clip
    return [
        replace(known, advantages_BT=((values_BT - mean) / (deviation + EPSILON)).clamp(-clip, clip))
        for known, values_BT in zip(fixed, paid, strict=True)
    ]
