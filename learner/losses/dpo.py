"""Losses over preference pairs. Pure functions of tensors.

Suffixes: `_B` one entry per pair, `_RT` per row of a micro-batch of pairs and token. The rows of a pair are adjacent, the
preferred answer first (`learner/batches/pairs.py`).
"""

import torch

from temper.learner.losses.policy import Loss


def dpo_loss(
    chosen_B: torch.Tensor,
    rejected_B: torch.Tensor,
    ref_chosen_B: torch.Tensor,
    ref_rejected_B: torch.Tensor,
    *,
    beta: float = 0.1,
) -> Loss:
    """Return -log sigmoid(beta ((log pi - log ref) of the chosen answer - (log pi - log ref) of the rejected one)), summed.

    The arguments are sums of log-probabilities over an answer's tokens. Rafailov et al., "Direct Preference Optimization:
    Your Language Model is Secretly a Reward Model", eq. 7, 2023.
    """
    margin_B = beta * ((chosen_B - ref_chosen_B) - (rejected_B - ref_rejected_B))
    total = -torch.nn.functional.logsigmoid(margin_B).sum()
    sums = {
        "weight": torch.tensor(float(len(margin_B))),
        "loss": total.detach(),
        "margin": margin_B.detach().sum(),
        "accuracy": (margin_B.detach() > 0).float().sum(),
    }
    return Loss(total=total, sums=sums)


def pair_loss(logprobs_RT: torch.Tensor, weights_RT: torch.Tensor, ref_RT: torch.Tensor, *, beta: float) -> Loss:
    """Return the `dpo_loss` of a micro-batch of pairs. Pairs whose weights are all 0 are padding and do not count."""
    trained_RT = weights_RT > 0
    sums_R, ref_R = (torch.where(trained_RT, values_RT, 0.0).sum(-1) for values_RT in (logprobs_RT, ref_RT))
    real_B = trained_RT.any(-1)[0::2]
    chosen_B, rejected_B = sums_R[0::2][real_B], sums_R[1::2][real_B]
    return dpo_loss(chosen_B, rejected_B, ref_R[0::2][real_B], ref_R[1::2][real_B], beta=beta)
