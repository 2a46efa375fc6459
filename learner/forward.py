"""The forward pass of a micro-batch, up to its loss."""

import torch

from learner.batches.batch import MicroBatch
from learner.engine.deepspeed_engine import DeepSpeedEngine
from learner.losses.config import LossConfig
from learner.losses.dpo import pair_loss
from learner.losses.kl import distillation_advantages
from learner.losses.objective import objective
from learner.losses.policy import Loss, nll_loss, policy_loss
from learner.models.scorer import Scorer
from learner.preparation import NOTHING_FIXED, Fixed


def micro_batch_loss(
    engine: DeepSpeedEngine,
    micro_batch: MicroBatch,
    *,
    config: LossConfig,
    reference: Scorer | None = None,
    fixed: Fixed = NOTHING_FIXED,
) -> Loss:
    """Forward pass and loss of one micro-batch; `reference` is what the model is held against, if anything.

    What is `fixed` is taken in place of what is computed here.
    """
    ids_BT = torch.from_numpy(micro_batch.ids_BT).to(engine.device)
    weights_BT = torch.from_numpy(micro_batch.weights_BT).to(engine.device)
    trained_BT = weights_BT > 0
    scores = engine.scorer(ids_BT, trained_BT, micro_batch.prompts, entropy=config.entropy_bonus > 0)
    if config.objective == "nll":
        return nll_loss(scores.logprobs_BT, weights_BT)
    ref_BT = fixed.ref_BT
    if ref_BT is None and reference is not None:
        with torch.no_grad():
            ref_BT = reference(ids_BT, trained_BT, micro_batch.prompts).logprobs_BT
    if config.objective == "dpo":
        assert ref_BT is not None
        return pair_loss(scores.logprobs_BT, weights_BT, ref_BT, beta=config.beta)
    advantages_BT = fixed.advantages_BT
    if advantages_BT is None:
        advantages_BT = torch.from_numpy(micro_batch.advantages_BT).to(engine.device)
    if config.objective == "distill":
        assert ref_BT is not None
        old_BT = scores.logprobs_BT if fixed.old_BT is None else fixed.old_BT
        advantages_BT = distillation_advantages(old_BT, ref_BT, clip=config.advantage_clip)
    return policy_loss(
        scores.logprobs_BT,
        weights_BT,
        advantages_BT,
        torch.from_numpy(micro_batch.behaviour_BT).to(engine.device),
        objective=objective(config),
        old_BT=fixed.old_BT,
        ref_BT=ref_BT,
        entropy_BT=scores.entropies_BT if config.entropy_bonus else None,
    )
