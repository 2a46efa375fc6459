"""The home of DeepSpeed: one model under training, partitioned over the ranks by ZeRO.

Every method is collective: all ranks call it together, in the same order.
"""

import gc
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # deepspeed looks for a device when it is imported
if hide_mlflow := "mlflow" not in sys.modules:  # its autotuner would import it, which takes seconds
    sys.modules["mlflow"] = None  # type: ignore[assignment]

import deepspeed
from deepspeed.moe.layer import MoE
from deepspeed.ops import __compatible_ops__ as compatible_ops
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.utils import groups as process_groups

if hide_mlflow:
    del sys.modules["mlflow"]
from transformers import PreTrainedModel
from transformers.core_model_loading import dot_natural_key, revert_weight_conversion

from temper.learner.config import BUCKET, GATHER_BYTES, LearnerConfig, OptimConfig, require_together
from temper.learner.engine.device_memory import DeviceMemory
from temper.learner.engine.model_files import METADATA, Piece, copy_to_cpu, file_piece, split_model, write_config
from temper.learner.engine.optimizer import GuardedAdamW, muon_groups, parameter_groups
from temper.learner.engine.optimizer_state import OptimizerState
from temper.learner.engine.placement import Placement, offload_param_config, offload_target, place_rest
from temper.learner.engine.saved_state import ADAPTERS_FILE
from temper.learner.models.adapters import (
    adapter_names,
    adapter_shapes,
    is_adapter,
    merge_adapters,
    strip_adapters,
)
from temper.learner.models.expert_parallel import ExpertGroup, own_experts
from temper.learner.models.layer_types import layer_of
from temper.learner.models.loading import full_shape, reread, train_without_noise
from temper.learner.models.scorer import Scorer
from temper.learner.models.sequence_parallel import SequenceGroup
from temper.learner.models.shape import require_shareable
from temper.learner.models.shared_prompt import require_recomputable
from temper.rollout.weights.expert_owners import UNSHARED, ExpertOwners
from temper.rollout.weights.process_group import GroupMember, find_interface, open_store

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
# deepspeed calls functions that torch has renamed
warnings.filterwarnings("ignore", message=".*torch.distributed.*is deprecated", category=FutureWarning)
compatible_ops["deepspeed_shm_comm"] = False  # else the first run on a CPU needs a C++ compiler

IN_FLOAT32 = {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
"""Gradients accumulate in float32, over micro-batches and over ranks. DeepSpeed's default, bfloat16, changes the norm by 0.9
% over 64 micro-batches, as much as all bfloat16 rounding in the passes."""


def join_ranks(*, timeout_seconds: float) -> None:
    """Join the process group of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. A second call does nothing.

    Store and gloo listen only on the interface of the ranks: loopback, or the network of that address.
    """
    backend, timeout = "nccl" if torch.cuda.is_available() else "gloo", timedelta(seconds=timeout_seconds)
    if not torch.distributed.is_initialized():
        host, *numbers = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
        port, rank, size = map(int, numbers)
        if os.environ.get("GLOO_SOCKET_IFNAME") in (None, "lo"):  # loopback, which engines set, reaches no other host
            os.environ["GLOO_SOCKET_IFNAME"] = find_interface(host, port)
        _, store = open_store(GroupMember(host=host, port=port, rank=rank, size=size, timeout_s=timeout_seconds))
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False, timeout=timeout)


class DeepSpeedEngine:
    """A causal language model with its optimiser state."""

    def __init__(self, model: PreTrainedModel, *, optim: OptimConfig, learner: LearnerConfig) -> None:
        self.model = model
        self.ranks = learner.ranks
        self.zero_stage = learner.zero_stage
        self.offloads_state = learner.offload != "none" and learner.zero_stage < 3
        self.has_adapters = learner.lora.rank > 0
        require_together(optim, learner)
        if learner.shared_prompts:
            require_shareable(model.config)
        if learner.offload == "nvme":
            _require_nvme()
        place_rest(model, learner=learner)
        self.expert_group = ExpertGroup.open(learner.expert_parallel, timeout_s=learner.collective_timeout_s)
        self.expert_owners = UNSHARED
        if self.expert_group is not None:
            self.expert_owners = mark_experts(model, ranks=learner.expert_parallel)
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=_optimizer(model, optim=optim, zero_stage=learner.zero_stage),
            config=_config(model, optim=optim, learner=learner),
            dist_init_required=False,
        )
        self.device = self.engine.device
        self._state = OptimizerState(self.engine, zero_stage=learner.zero_stage, bf16=learner.bf16)
        if optim.kind == "muon" and learner.zero_stage:
            self.engine.basic_optimizer.set_parts(self._state.parts())
        self.memory = DeviceMemory(self.engine)
        if learner.zero_stage == 3:
            register_mixer_weights(model)  # before the scorer's first pass
        self.sequence_group = SequenceGroup.open(learner.sequence_parallel, timeout_s=learner.collective_timeout_s)
        self.scorer = Scorer(
            self.engine,
            model,
            tokens=learner.logit_tokens,
            whole_graph=learner.zero_stage == 3,
            float32_head=learner.float32_head,
            group=self.sequence_group,
        )
        if learner.recompute == "full" and learner.shared_prompts:
            self.train(noise=False)
            require_recomputable(self.engine, model, packs=self.scorer.packs)

    def train(self, *, noise: bool) -> None:
        """Switch to training mode, with the dropout of the model's configuration or without any."""
        self.engine.train(True)
        if not noise:
            train_without_noise(self.model)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of this rank's share of the loss. A step's gradient is the *sum* over ranks and calls.

        A loss that is not finite makes the whole gradient NaN, so that `step` skips it on every rank.
        """
        nan_unless_finite = 1.0 + 0.0 * loss.detach()  # without a wait for the device
        self.engine.backward(loss * nan_unless_finite * self.ranks)  # DeepSpeed takes the mean over ranks

    def step(self, *, learning_rate: float) -> tuple[bool, float]:
        """Update the parameters. Returns whether it was applied, and the gradient's norm before clipping.

        If the norm is not finite, no rank applies it, and parameters and optimiser state stay unchanged.
        """
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        self.engine.step()
        applied = bool(self.engine.was_step_applied())
        if not applied and self.offloads_state:  # else deepspeed adds the skipped gradient to later ones
            self.engine.optimizer.averaged_gradients = {}
        norm = self.engine.get_global_grad_norm()
        return applied, float("nan") if norm is None or not applied else float(norm)

    def parameters(self) -> Iterator[dict[str, torch.Tensor]]:
        """Gather whole parameters by name, in buckets, tied ones once. A bucket is valid until the next one. Adapters are
        merged into their weights."""
        for bucket in self._gathered(dict(self.model.named_parameters())):
            with torch.no_grad():
                yield merge_adapters(self.model, bucket) if self.has_adapters else bucket

    def _gathered(self, parameters: dict[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
        for bucket in self._buckets(_in_order(parameters)):
            with deepspeed.zero.GatheredParameters(list(bucket.values()), enabled=self.zero_stage == 3):
                yield {name: self._gather(parameter) for name, parameter in bucket.items()}

    def _gather(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        own = parameter.detach()
        if self.expert_group is None or own_experts(parameter) is None:
            return own
        return self.expert_group.gather(own)

    def _buckets(self, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        if self.expert_group is not None:  # one stack is whole at a time
            return [{name: parameter} for name, parameter in parameters.items()]
        if self.zero_stage < 3 and not self.has_adapters:
            return [parameters]
        return split_buckets(parameters, most_bytes=GATHER_BYTES)

    def checkpoint_parameters(self) -> Iterator[dict[str, torch.Tensor]]:
        """Gather like `parameters`, under the names and in the layout of a checkpoint, which engines load.

        Buffers, such as the bias that balances a router, are not trained. Engines keep their initial ones.
        """
        for bucket in self.parameters():
            yield revert_weight_conversion(self.model, bucket)

    def own_checkpoint_parameters(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield like `checkpoint_parameters`. If experts are spread, yield only this rank's own, without a collective."""
        if self.expert_group is None:
            yield from self.checkpoint_parameters()
            return
        for name, parameter in _in_order(dict(self.model.named_parameters())).items():
            tensors = revert_weight_conversion(self.model, {name: parameter.detach()})
            place = 0 if own_experts(parameter) is None else self.expert_group.rank
            yield {self.expert_owners.to_checkpoint_name(key, place=place): tensor for key, tensor in tensors.items()}

    def base_parameters(self) -> Iterator[dict[str, torch.Tensor]]:
        """Gather all parameters but the adapters, like `checkpoint_parameters`."""
        for bucket in self._gathered({n: p for n, p in self.model.named_parameters() if not is_adapter(n)}):
            yield revert_weight_conversion(self.model, strip_adapters(bucket))

    def adapter_parameters(self) -> Iterator[dict[str, torch.Tensor]]:
        """Gather the adapters by the names of `adapter_names`."""
        names = adapter_names(self.model)
        for bucket in self._gathered({n: p for n, p in self.model.named_parameters() if n in names}):
            yield {names[name]: tensor for name, tensor in bucket.items()}

    def checkpoint_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of `checkpoint_parameters`."""
        parameters = _in_order(strip_adapters(dict(self.model.named_parameters())))
        meta = {name: torch.empty(full_shape(p), device="meta") for name, p in parameters.items()}
        return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(self.model, meta).items()}

    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of `adapter_parameters`. Raises `ValueError` like `adapter_names`."""
        return adapter_shapes(self.model)

    def model_pieces(self) -> Iterator[Piece]:
        """Copy this rank's share of the model for files in Hugging Face format (safetensors).

        Whole parameters are gathered in buckets.
        """
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        itemsize = next(self.model.parameters()).element_size()
        buffers = revert_weight_conversion(self.model, saved_buffers(self.model))
        sizes = {name: math.prod(shape) * itemsize for name, shape in self.checkpoint_shapes().items()}
        sizes |= {name: buffer.nbytes for name, buffer in buffers.items()}
        files = split_model(sizes, ranks=ranks if self.zero_stage else 1, owners=self.expert_owners)
        own = {name: file for file in files for name in file.tensors if file.rank == rank}
        copies: dict[str, dict[str, torch.Tensor]] = {file.name: {} for file in own.values()}
        for bucket in chain([buffers], self.own_checkpoint_parameters()):
            for name in bucket.keys() & own.keys():
                file = own[name]
                copies[file.name][name] = copy_to_cpu(bucket[name])
                if copies[file.name].keys() == file.tensors:
                    yield file_piece(file.name, copies.pop(file.name), METADATA)
        assert not copies, copies.keys()
        if rank == 0:
            yield partial(write_config, model=self.model, files=files, nbytes=sum(sizes.values()))

    def state_pieces(self) -> Iterator[Piece]:
        """Copy this rank's part of the optimiser's state and, in bfloat16 training, of the float32 weights.

        Rank 0 also copies the adapters, which the saved model has merged.
        """
        yield from self._state.pieces()
        adapters = {name: p for name, p in self.model.named_parameters() if is_adapter(name)}
        keep = torch.distributed.get_rank() == 0
        whole: dict[str, torch.Tensor] = {}
        for bucket in self._gathered(adapters) if adapters else ():
            whole |= {name: copy_to_cpu(tensor) for name, tensor in bucket.items()} if keep else {}
        if whole:
            yield file_piece(ADAPTERS_FILE, whole)

    def load_state(self, directory: Path) -> None:
        self._state.load(directory)

    def load_float32(self, model_dir: Path, placement: Placement) -> None:
        """Train the float32 weights of the model's file, if the computing type has rounded any."""
        if any(parameter.requires_grad for parameter in placement.rounded):
            reread(model_dir, placement.placed, self._state.set_master)

    def close(self) -> None:
        """Free the model and its optimiser state, so that this process can load another."""
        parameters = list(self.model.parameters())
        self.engine.destroy()
        self.engine.basic_optimizer.state.clear()
        if self.zero_stage == 3:
            free_partitions(parameters, self.engine.optimizer)
        del self.engine, self.model, self.scorer, self._state, self.memory
        gc.collect()


def split_buckets(parameters: dict[str, Any], *, most_bytes: int) -> list[dict[str, Any]]:
    """Return the parameters in buckets of whole layers, of up to `most_bytes` or one layer.

    A checkpoint may join the weights of a layer to one tensor, and adapters are merged into their weight.
    """
    buckets: list[dict[str, Any]] = [{}]
    held = 0
    for _, layer in groupby(parameters, key=_layer_of_parameter):
        names = list(layer)
        nbytes = sum(full_shape(parameters[name]).numel() * parameters[name].element_size() for name in names)
        if held and held + nbytes > most_bytes:
            buckets.append({})
            held = 0
        buckets[-1] |= {name: parameters[name] for name in names}
        held += nbytes
    return buckets


def _layer_of_parameter(name: str) -> str:
    return layer_of(name.partition(".lora_")[0] if is_adapter(name) else name.replace(".base_layer.", "."))


def _in_order(parameters: dict[str, Any]) -> dict[str, Any]:
    """Order parameters like `revert_weight_conversion`, so that a push gathers them in the order of its buckets."""
    return dict(sorted(parameters.items(), key=lambda item: dot_natural_key(item[0])))


def _optimizer(model: PreTrainedModel, *, optim: OptimConfig, zero_stage: int) -> torch.optim.Optimizer:
    if optim.kind == "adamw":
        groups = parameter_groups(model, weight_decay=optim.weight_decay)
        return GuardedAdamW(groups, optim=optim, guard=zero_stage == 0)
    from temper.learner.engine.muon import GuardedMuon  # this imports torch's compiler, which takes seconds

    return GuardedMuon(muon_groups(model, optim=optim), optim=optim, guard=zero_stage == 0)


def saved_buffers(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the buffers in a checkpoint by name, such as the bias that balances a router."""
    buffers = dict(model.named_buffers())
    return {name: buffers[name] for name in model.state_dict() if name in buffers}


def free_partitions(parameters: list[Any], optimizer: Any) -> None:
    """Free the memory of parameters at stage 3. DeepSpeed's classes keep module objects in caches."""
    for parameter in parameters:
        parameter.data = torch.empty(0)
        parameter.ds_tensor = None
    vars(optimizer).clear()


class _ExpertGroups(MoE):
    """Makes DeepSpeed look for expert groups. It looks only in models with a module of DeepSpeed's class."""

    def __init__(self, *, experts: int) -> None:
        torch.nn.Module.__init__(self)
        self.num_experts = experts

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_: bool = False) -> None:
        """Do nothing: the groups exist already."""


def mark_experts(model: PreTrainedModel, *, ranks: int) -> ExpertOwners:
    """Mark the parameters that DeepSpeed reduces only over the ranks with the same experts. Return the owners. Collective."""
    process_groups._create_expert_and_data_parallel(ranks)
    stacks: list[Any] = [parameter for parameter in model.parameters() if own_experts(parameter) is not None]
    for stack in stacks:
        stack.allreduce, stack.group_name = False, f"ep_size_{ranks}"
    experts = len(stacks[0])
    if any(stack.requires_grad for stack in stacks):
        model.add_module("expert_groups", _ExpertGroups(experts=experts * ranks))
    return ExpertOwners(ranks=ranks, experts_per_rank=experts)


def register_mixer_weights(model: PreTrainedModel) -> None:
    """Make ZeRO-3 gather the weights of `conv1d` and `norm` that Mamba layers read without calling the module."""
    for mixer in model.modules():
        children = dict(mixer.named_children())
        for name in ("conv1d", "norm") if "conv1d" in children else ():
            for parameter in children[name].parameters() if name in children else ():
                deepspeed.zero.register_external_parameter(mixer, parameter)


def _config(model: PreTrainedModel, *, optim: OptimConfig, learner: LearnerConfig) -> dict[str, Any]:
    sizes = [(full_shape(parameter).numel(), parameter.requires_grad) for parameter in model.parameters()]
    count = sum(size for size, _ in sizes)
    return {
        "train_micro_batch_size_per_gpu": 1,  # only a label: the caller forms the micro-batches
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # each call of step() ends an accumulation
        "gradient_clipping": optim.grad_clip if learner.zero_stage else 0.0,  # stage 0: see GuardedAdamW
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
        "bf16": {"enabled": learner.bf16, "immediate_grad_update": True},  # or stage 1 keeps bfloat16 gradients too
        **(IN_FLOAT32 if learner.bf16 else {}),
        "zero_optimization": {
            "stage": learner.zero_stage,
            # at stages 1 and 2 a second bucket would be allocated for it
            "overlap_comm": learner.zero_stage == 3 and learner.ranks > 1,
            # allocated in full
            "reduce_bucket_size": min(sum(size for size, is_trained in sizes if is_trained), BUCKET),
            "stage3_param_persistence_threshold": min(count // 100, 100_000),  # smaller ones stay whole on every rank
            **({} if learner.offload == "none" else {"offload_optimizer": offload_target(learner)}),
            **offload_param_config(learner),
        },
    }


def _require_nvme() -> None:
    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise ValueError(
            "learner.offload=nvme: DeepSpeed can't build async_io; install libaio with its headers and a C++ compiler, or "
            "set learner.offload=cpu"
        )
