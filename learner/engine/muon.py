"""DeepSpeed's Muon with our gradient guard."""

from typing import Any

import torch
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

from temper.learner.config import OptimConfig
from temper.learner.engine.optimizer import GradientGuard


class GuardedMuon(GradientGuard, MuonWithAuxAdam):
    """DeepSpeed's Muon, with AdamW for the other parameters, behind the guard at stage 0.

    Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    def __init__(self, groups: list[dict[str, Any]], *, optim: OptimConfig, guard: bool) -> None:
        super().__init__(groups)
        self.guard = guard
        self.grad_clip = optim.grad_clip
        # DeepSpeed compiles Muon's functions, which needs a compiler and costs more than it saves. This holds for the process,
        # in which nothing else is compiled.
        torch.compiler.set_stance("force_eager")

    def step(self) -> None:
        if self.accept():
            super().step()
