"""One update of the model: the loss of a micro-batch, values fixed before several updates, and the metrics.

Suffixes: `_BT` one entry per sequence and token of a micro-batch, `_N` trained token of all micro-batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch
import torch.distributed

from temper.learner.batches.micro_batches import MicroBatch, UncomputedRows
from temper.learner.engine.deepspeed_engine import DeepSpeedEngine
from temper.learner.engine.frozen_model import Reference
from temper.learner.losses.advantages import EPSILON
from temper.learner.losses.config import LossConfig
from temper.learner.losses.dpo import pair_loss
from temper.learner.losses.kl import ESTIMATES, distillation_advantages, penalised_advantages
from temper.learner.losses.policy import Loss, PolicyTerms, nll_loss, policy_loss
from temper.learner.models.experts import ExpertReplay
from temper.learner.models.scorer import Scorer, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedValues:
    """Log-probabilities of the old policy and the reference, and the advantages, or None if not fixed.

    They are computed before the first update of a batch, because an update changes the model.
    """

    old_BT: torch.Tensor | None = None
    ref_BT: torch.Tensor | None = None
    advantages_BT: torch.Tensor | None = None


NO_FIXED_VALUES = FixedValues()
MAX_LOGPROB_DIFF, MAX_LOGPROB_DIFF_ON_CPU = 0.05, 0.001
"""Maximum mean difference in nats per token between kernels at equal weights. On a GPU bfloat16 rounding causes 0.01 to
0.02. On a CPU a layer that runs a single token causes 1e-6 in float32."""


def compute_loss(
    engine: DeepSpeedEngine,
    replay: ExpertReplay,
    micro_batch: MicroBatch,
    *,
    config: LossConfig,
    reference: Reference | None = None,
    fixed: FixedValues = NO_FIXED_VALUES,
    starts: bool = False,
) -> Loss:
    """Run the model on a micro-batch and return the loss, compared with `reference` if given.

    `fixed` replaces values that are otherwise computed here. The reference runs first: if it is the policy without adapters,
    a pass between the policy's forward and backward pass would make ZeRO-3 gather the whole model. With `starts` the model
    still equals its reference. The call is then collective and raises `ValueError` if they differ.
    """
    ids_BT, weights_BT = _ids_and_weights(micro_batch, engine.device)
    trained_BT = weights_BT > 0
    scored = partial(_score, micro_batch=micro_batch, ids_BT=ids_BT, wanted_BT=trained_BT)
    ref_BT = fixed.ref_BT
    if ref_BT is None and reference is not None:
        reference.queue_passes(micro_batch.experts)
        with torch.no_grad():
            ref_BT = scored(reference.scorer).logprobs_BT
    replay.queue_passes(micro_batch.experts)
    scores = scored(engine.scorer, entropy=config.entropy_bonus > 0)
    if config.objective == "nll":
        return nll_loss(scores.logprobs_BT, weights_BT)
    if starts and ref_BT is not None:
        _require_equal(scores.logprobs_BT.detach(), ref_BT, trained_BT)
    if config.objective == "dpo":
        assert ref_BT is not None
        return pair_loss(scores.logprobs_BT, weights_BT, ref_BT, beta=config.beta)
    if config.objective == "distill":
        assert ref_BT is not None
        old_BT = scores.logprobs_BT if fixed.old_BT is None else fixed.old_BT
        advantages_BT = distillation_advantages(old_BT, ref_BT, clip=config.advantage_clip)
    elif fixed.advantages_BT is not None:
        advantages_BT = fixed.advantages_BT
    else:
        advantages_BT = torch.tensor(micro_batch.advantages_BT, device=engine.device)
    return policy_loss(
        scores.logprobs_BT,
        weights_BT,
        advantages_BT,
        torch.tensor(micro_batch.behaviour_BT, device=engine.device),
        terms=PolicyTerms.of(config),
        old_BT=fixed.old_BT,
        ref_BT=ref_BT,
        entropy_BT=scores.entropies_BT if config.entropy_bonus else None,
    )


def compute_fixed_values(
    engine: DeepSpeedEngine,
    replay: ExpertReplay,
    shares: Sequence[Sequence[MicroBatch]],
    *,
    loss: LossConfig,
    reference: Reference | None,
    on_progress: Callable[[], None],
) -> list[list[FixedValues]]:
    """Compute the fixed values for each micro-batch of this rank's shares; call `on_progress` after each. Collective."""
    engine.train(noise=False)  # as in the updates, so that the first ratio is exactly 1
    micro_batches = [micro_batch for share in shares for micro_batch in share]
    known = []
    for micro_batch in micro_batches:
        replay.queue_passes([experts.without_count() for experts in micro_batch.experts])
        known.append(compute_logprobs(engine.scorer, micro_batch, reference=reference, device=engine.device))
        on_progress()
    if loss.normalises_divergence and micro_batches:
        known = subtract_divergence(known, micro_batches, loss=loss)
    rest = iter(known)
    return [[next(rest) for _ in share] for share in shares]


def compute_logprobs(
    policy: Scorer, micro_batch: MicroBatch, *, reference: Reference | None, device: torch.device
) -> FixedValues:
    """Compute the current log-probabilities of the trained tokens under the policy, and the reference if given."""
    ids_BT, weights_BT = _ids_and_weights(micro_batch, device)
    scored = partial(_score, micro_batch=micro_batch, ids_BT=ids_BT, wanted_BT=weights_BT > 0)
    with torch.no_grad():
        old_BT = scored(policy).logprobs_BT
        if reference is None:
            return FixedValues(old_BT=old_BT)
        reference.queue_passes(micro_batch.experts)
        return FixedValues(old_BT=old_BT, ref_BT=scored(reference.scorer).logprobs_BT)


def _require_equal(logprobs_BT: torch.Tensor, ref_BT: torch.Tensor, trained_BT: torch.Tensor) -> None:
    """Raise `ValueError`, on every rank, if a model before its first update differs from its reference.

    Both run on equal weights. The memory layout of a matrix can change the chosen kernel, on a GPU and for a single row on a
    CPU. Another kernel adds in another order.
    """
    gap = ((logprobs_BT - ref_BT).abs() * trained_BT).sum()
    sums = sum_over_ranks({"gap": gap.double().cpu(), "tokens": trained_BT.sum().double().cpu()})
    mean = sums["gap"] / max(sums["tokens"], 1.0)
    if mean > (
        MAX_LOGPROB_DIFF if logprobs_BT.is_cuda else MAX_LOGPROB_DIFF_ON_CPU
    ):  # not a number: the step is skipped
        raise ValueError(
            f"before the first update the log-probabilities of model and reference differ by {mean:.2g} nats per token, at "
            "equal weights; the KL term would include this error. Set learner.bf16=false, or train without a reference"
        )


def sum_over_ranks(totals: dict[str, torch.Tensor]) -> dict[str, float]:
    """Sum over all ranks. Every rank passes the same names in the same order."""
    values = torch.stack(list(totals.values()))
    if torch.cuda.is_available():
        values = values.cuda()  # nccl moves device memory only
    torch.distributed.all_reduce(values)
    return dict(zip(totals, values.tolist(), strict=True))


def subtract_divergence(
    fixed: Sequence[FixedValues],
    micro_batches: Sequence[MicroBatch],
    *,
    loss: LossConfig,
    summed: Callable[[dict[str, torch.Tensor]], dict[str, float]] = sum_over_ranks,
) -> list[FixedValues]:
    """Add advantages that subtract the divergence still to come and are then normalised over all tokens.

    A_t = R - beta sum over i >= t of KL(i), minus its mean over the trained tokens of the batch, divided by the (population)
    deviation. Hu et al., "REINFORCE++", eq. 8 to 10, 2025. R includes the baseline, if any.
    """
    paid, trained = [], []
    for known, micro_batch in zip(fixed, micro_batches, strict=True):
        assert known.old_BT is not None
        assert known.ref_BT is not None
        raw_BT = torch.tensor(micro_batch.advantages_BT, device=known.old_BT.device)
        trained.append(torch.tensor(micro_batch.weights_BT, device=known.old_BT.device) > 0)
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


def normalise_sums(sums: dict[str, float], *, denominator: float, uncomputed: UncomputedRows) -> dict[str, float]:
    """Divide the loss by the batch's denominator, all other sums by the weight of their tokens.

    The mean surprise (`entropy`) and the mean advantage include uncomputed tokens, with the engine's log-probabilities. The
    others leave them out, and are missing if no token was computed.
    """
    weight = sums.pop("weight")
    added = {"entropy": uncomputed.surprise, "advantage_abs": 0.0}
    means = {"loss": sums.pop("loss") / denominator}
    for name, value in sums.items():
        total = weight + (uncomputed.weight if name in added else 0.0)
        if total:
            means[name] = (value + added.get(name, 0.0)) / total
    return means


def average_updates(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the updates that have it. `updates` counts those that changed the weights.

    The learning rate is the last one.
    """
    names = dict.fromkeys(name for update in updates for name in update)
    means = {name: fmean(update[name] for update in updates if name in update) for name in names}
    rates = [update["learning_rate"] for update in updates if "learning_rate" in update]
    applied = sum(not update["skipped"] for update in updates)
    return means | ({"learning_rate": rates[-1]} if rates else {}) | {"updates": float(applied)}


def _score(
    scorer: Callable[..., Scores],
    *,
    micro_batch: MicroBatch,
    ids_BT: torch.Tensor,
    wanted_BT: torch.Tensor,
    entropy: bool = False,
) -> Scores:
    """Score tokens at the sampling temperature of their sequence.

    The sampling policy is softmax(z / T), so ratio, divergence and entropy refer to it: Huang et al., "The N+ Implementation
    Details of RLHF with PPO: A Case Study on TL;DR Summarization", 2024.
    """
    given_B = micro_batch.temperatures_B
    temperatures_B = None if given_B is None else torch.tensor(given_B, device=ids_BT.device)
    return scorer(ids_BT, wanted_BT, micro_batch.prompts, entropy=entropy, temperatures_B=temperatures_B)


def _ids_and_weights(micro_batch: MicroBatch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(micro_batch.ids_BT, device=device), torch.tensor(micro_batch.weights_BT, device=device)
