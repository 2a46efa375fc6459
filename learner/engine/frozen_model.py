"""A frozen model, as reference or teacher: whole on every rank, or partitioned at ZeRO stage 3."""

from collections.abc import Iterable, Sequence
from typing import Any

import deepspeed
import torch
from transformers import PreTrainedModel

from temper.learner.batches.pass_experts import PassExperts
from temper.learner.config import LearnerConfig
from temper.learner.engine.deepspeed_engine import DeepSpeedEngine, free_partitions, register_mixer_weights
from temper.learner.engine.device_memory import OffloadedStorage, find_storages, find_tensors, nbytes
from temper.learner.engine.placement import offload_param_config, place_rest
from temper.learner.models.adapters import disable_adapters
from temper.learner.models.experts import ExpertReplay
from temper.learner.models.loading import train_without_noise
from temper.learner.models.scorer import Scorer
from temper.learner.models.sequence_parallel import SequenceGroup

FOLDER = "frozen"
"""Separate folder for parameter files, because DeepSpeed empties its folder."""


class UnadaptedModel:
    """The policy with its adapters disabled: a reference without extra memory."""

    def __init__(self, engine: DeepSpeedEngine, *, replay: ExpertReplay) -> None:
        self._replay = replay
        self.scorer = disable_adapters(engine.model)(engine.scorer.__call__)

    def queue_passes(self, passes: Sequence[PassExperts]) -> None:
        self._replay.queue_passes([experts.without_count() for experts in passes])

    def set_onloaded(self, *, weights: bool) -> None:
        """Do nothing: the weights move with the policy."""

    def nbytes(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: the policy frees the weights."""


class FrozenModel:
    """Scores tokens without gradients. At stage 3 construction and every call are collective, in the same order."""

    def __init__(
        self, model: PreTrainedModel, *, learner: LearnerConfig, device: torch.device, replay: bool = False
    ) -> None:
        """With `replay` its expert layers use the recorded experts of a pass, like the policy's."""
        self._model = model.requires_grad_(False)
        self._engine: Any = None
        self._device, self._offloaded = device, OffloadedStorage()
        place_rest(model, learner=learner)
        if learner.zero_stage == 3:
            self._engine, *_ = deepspeed.initialize(model=model, config=_config(learner), dist_init_required=False)
            register_mixer_weights(model)
        else:
            model.to(device)
        train_without_noise(model)  # as the policy: evaluation mode uses other kernels
        group = SequenceGroup.open(learner.sequence_parallel, timeout_s=learner.collective_timeout_s)
        self.scorer = Scorer(
            self._engine or model,
            model,
            tokens=learner.logit_tokens,
            float32_head=learner.float32_head,
            group=group,
        )
        self._replay = ExpertReplay(model, replay=True, device=device, group=group) if replay else None

    def queue_passes(self, passes: Sequence[PassExperts]) -> None:
        """Set the experts of the next passes. Without a replay the routers decide."""
        if self._replay is not None:
            self._replay.queue_passes([experts.without_count() for experts in passes])

    def set_onloaded(self, *, weights: bool) -> None:
        if weights:
            self._offloaded.reload()
            return
        if self._engine is not None:
            self._engine.empty_partition_cache()
        self._offloaded.offload(self._memory())

    def nbytes(self) -> int:
        """Return its bytes on the device, on a CPU without those mapped from a file."""
        return nbytes(storage for storage in self._memory() if storage.resizable())

    def _memory(self) -> Iterable[torch.UntypedStorage]:
        tensors = find_tensors(list(self._model.parameters()), list(self._model.buffers()))
        return find_storages(tensors, device=self._device).values()

    def close(self) -> None:
        if self._engine is not None:
            parameters = list(self._model.parameters())
            self._engine.destroy()
            free_partitions(parameters, self._engine.optimizer)
        del self._engine, self._model, self._replay, self.scorer


def _config(learner: LearnerConfig) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,  # only a label
        "steps_per_print": 2**31,
        "bf16": {"enabled": learner.bf16},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": False,
            "stage3_param_persistence_threshold": 0,
            **offload_param_config(learner, folder=FOLDER),
        },
    }


Reference = FrozenModel | UnadaptedModel
"""The model that the policy is compared with."""
