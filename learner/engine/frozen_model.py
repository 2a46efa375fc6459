"""A model that is only looked at, a reference or a teacher: whole on every rank, or at ZeRO stage 3 partitioned over them."""

from collections.abc import Iterable
from typing import Any

import deepspeed
import torch
from transformers import PreTrainedModel

from learner.config import LearnerConfig
from learner.engine.aside import Aside, memory_of, nbytes, reachable
from learner.engine.deepspeed_engine import free_partitions, register_convolutions
from learner.models.scorer import Scorer


class FrozenModel:
    """Scores tokens without gradients. At stage 3 making it and every call are collective, and so is the order of calls."""

    def __init__(self, model: PreTrainedModel, *, learner: LearnerConfig, device: torch.device) -> None:
        self._model = model.eval().requires_grad_(False)
        self._engine: Any = None
        self._device, self._aside = device, Aside()
        if learner.zero_stage == 3:
            self._engine, *_ = deepspeed.initialize(model=model, config=_config(learner), dist_init_required=False)
            register_convolutions(model)
        else:
            model.to(device=device, dtype=torch.bfloat16 if learner.bf16 else torch.float32)
        self.scorer = Scorer(self._engine or model, model, tokens=learner.logit_tokens)

    def occupy(self, *, weights: bool) -> None:
        """Have the model on its device from now on, or in main memory."""
        if weights:
            self._aside.put_back()
            return
        if self._engine is not None:
            self._engine.empty_partition_cache()
        self._aside.take(self._memory())

    def nbytes(self) -> int:
        """Return how many bytes it has on its device; on a CPU without those that are mapped from a file."""
        return nbytes(storage for storage in self._memory() if storage.resizable())

    def _memory(self) -> Iterable[torch.UntypedStorage]:
        tensors = reachable(list(self._model.parameters()), list(self._model.buffers()))
        return memory_of(tensors, device=self._device).values()

    def close(self) -> None:
        """Free the model."""
        if self._engine is not None:
            parameters = list(self._model.parameters())
            self._engine.destroy()
            free_partitions(parameters, self._engine.optimizer)
        del self._engine, self._model, self.scorer


def _config(learner: LearnerConfig) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,  # only a label
        "steps_per_print": 2**31,
        "bf16": {"enabled": learner.bf16},
        "zero_optimization": {"stage": 3, "overlap_comm": False, "stage3_param_persistence_threshold": 0},
    }
