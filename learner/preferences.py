"""Losses over pairs of answers of which one is preferred. Pure functions of tensors; suffix: `_B` one entry per pair."""

import torch

from learner.loss import Loss


def dpo_loss(
    chosen_B: torch.Tensor,
    rejected_B: torch.Tensor,
    ref_chosen_B: torch.Tensor,
    ref_rejected_B: torch.Tensor,
    *,
    beta: float = 0.1,
) -> Loss:
    """-log sigmoid(beta ((log pi - log ref) of the chosen answer - the same of the rejected one)), summed over pairs.

    The arguments are sums of log-probabilities over an answer's tokens. Rafailov et al., "Direct Preference
    Optimization: Your Language Model is Secretly a Reward Model", eq. 7, 2023.
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
