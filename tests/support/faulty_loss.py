"""The plain policy loss. If the FAULTY_LOSS file exists, one update is NaN and the file is removed."""

import os
from pathlib import Path

import torch

from temper.learner.losses.surrogates import Clip, Surrogate, Tokens, bounded_exp

VARIABLE = "FAULTY_LOSS"


def nan_once(tokens: Tokens, *, clip: Clip) -> Surrogate:
    ratio_BT = bounded_exp(tokens.logprobs_BT - tokens.old_BT)
    loss_BT = -tokens.advantages_BT * ratio_BT
    wanted = Path(os.environ[VARIABLE])
    if wanted.exists():
        wanted.unlink()
        loss_BT = loss_BT * float("nan")
    return Surrogate(loss_BT=loss_BT, ratio_BT=ratio_BT.detach(), clipped_BT=torch.zeros_like(tokens.trained_BT))
