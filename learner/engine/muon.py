"""DeepSpeed's Muon with our gradient guard."""

from typing import Any

import torch
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

from temper.learner.config import OptimConfig
from temper.learner.engine.optimizer import GradientGuard


class GuardedMuon(GradientGuard, MuonWithAuxAdam):
    """DeepSpeed's Muon, with AdamW for the other parameters, behind the guard.

    Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    def __init__(self, groups: list[dict[str, Any]], *, optim: OptimConfig) -> None:
        super().__init__(groups)
        self.grad_clip = optim.grad_clip

    def step(self) -> None:
        if self.accept(grad_clip=self.grad_clip):
            # deepspeed compiles its functions, which needs a compiler and costs more than it saves
            with torch.compiler.set_stance("force_eager"):
                super().step()
