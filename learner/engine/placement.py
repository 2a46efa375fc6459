"""Placement of a model's parameters while it is read: in the computing type, and partitioned at ZeRO stage 3.

Main memory holds one whole parameter at a time if training is on a GPU. At stage 3 the device does too.
"""

from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from transformers import PreTrainedModel

from temper.learner.config import LearnerConfig
from temper.learner.models.expert_parallel import STACKS, ExpertGroup, exchange_tokens, keep_own_experts
from temper.learner.models.loading import cast, full_shape, read_model
from temper.rollout.weights.host_memory import release_free_memory


class Placement:
    """Receives the parameters from `read_model`. At stage 3 each call is collective, in the same order."""

    def __init__(self, learner: LearnerConfig, *, folder: str = "") -> None:
        """Offloaded parameters are in files of this subfolder, as for the engine of the model."""
        self.placed: list[torch.nn.Parameter] = []
        self.rounded: list[torch.nn.Parameter] = []
        """Parameters whose values in the file have more digits than the computing type."""
        self.expert_group = ExpertGroup.open(learner.expert_parallel, timeout_s=learner.collective_timeout_s)
        self._type = torch.bfloat16 if learner.bf16 else torch.float32
        self._device = torch.device(get_accelerator().current_device_name())
        self.is_partitioned = learner.zero_stage == 3
        self._config = {
            "train_micro_batch_size_per_gpu": 1,  # only a label
            "bf16": {"enabled": learner.bf16},
            "zero_optimization": {"stage": 3, **offload_param_config(learner, folder=folder)},
        }

    def __call__(self, module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
        if self.expert_group is not None and isinstance(module, STACKS):
            keep_own_experts(parameter, self.expert_group)
        read = parameter.data.to(self._device)
        # DeepSpeed broadcasts into it. In the memory of a file that would copy each page.
        mapped = self.is_partitioned and not read.untyped_storage().resizable()
        parameter.data = read.to(self._type, copy=mapped)
        if self._type != read.dtype and not torch.equal(parameter.data.to(read.dtype), read):
            self.rounded.append(parameter)
        if self.is_partitioned:
            if self.placed:
                first: Any = self.placed[0]
                first.convert_to_zero_parameters(param_list=[parameter])
            else:
                deepspeed.zero.Init(module=torch.nn.ParameterList([parameter]), config_dict_or_path=self._config)
        self.placed.append(parameter)
        release_free_memory(pause_s=0)  # gaps between the parts would add up to a whole model


def read_placed(directory: Path, placement: Placement) -> PreTrainedModel:
    """Read a model with this placement. Raise `ValueError` if transformers ties two weights that differ, or ranks cannot
    share its experts.

    It compares them, but those of stage 3 are empty then. Collective at stage 3.
    """
    model = read_model(directory, place=placement)
    if placement.expert_group is not None:
        exchange_tokens(model, placement.expert_group)
    kept = {id(parameter) for parameter in model.parameters()}
    embedding = model.get_input_embeddings().weight
    for parameter in placement.placed if placement.is_partitioned else ():
        if id(parameter) in kept or full_shape(parameter) != full_shape(embedding):
            continue
        with deepspeed.zero.GatheredParameters([parameter, embedding]):
            equal = torch.equal(parameter.data, embedding.data)
        if not equal:
            raise ValueError(
                f"{directory}: config.json ties the output layer to the embedding, but their weights differ; set "
                "tie_word_embeddings to false there"
            )
    return model


def place_rest(model: PreTrainedModel, *, learner: LearnerConfig) -> None:
    """Convert parameters that no file had, such as adapters, and move them and the buffers to the device."""
    cast(model, bf16=learner.bf16)
    if learner.zero_stage == 3:  # DeepSpeed moves nothing of a model that has partitioned parameters
        model.to(get_accelerator().current_device_name())


def offload_param_config(learner: LearnerConfig, *, folder: str = "") -> dict[str, Any]:
    """Return the storage of stage 3 parameters between uses. Files are in this subfolder of the common folder."""
    if learner.offload == "none" or learner.zero_stage < 3:
        return {}
    return {"offload_param": offload_target(learner, folder=folder)}


def offload_target(learner: LearnerConfig, *, folder: str = "") -> dict[str, Any]:
    """Return the storage of offloaded tensors."""
    place: dict[str, Any] = {"device": learner.offload, "pin_memory": torch.cuda.is_available()}
    if learner.offload_dir is not None:
        place["nvme_path"] = str(Path(learner.offload_dir) / folder)
    return place
