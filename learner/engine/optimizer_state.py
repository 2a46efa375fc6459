"""Optimiser state as tensors by parameter name, independent of the number of ranks and the ZeRO stage.

Any learner can resume from a checkpoint, and no file is a pickle. Each rank writes its own part, without communication, as
safetensors of up to `SHARD_BYTES` bytes, with tensors named `<kind>/<parameter>`: `master` (the float32 weight in bfloat16
training), and the optimiser's tensors, for Adam `exp_avg` and `exp_avg_sq`, and `ema`, the average of the weights. `step` is
the number of updates.

A tensor that several ranks own is in a file of each, as consecutive entries of the flat tensor. The file's metadata has its
first entry and its shape, and the number of writing ranks.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.utils import (
    safe_get_local_fp32_param,
    safe_get_local_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch.nn import functional

from temper.learner.engine.model_files import SHARD_BYTES, Piece, copy_to_cpu, file_piece
from temper.learner.engine.optimizer import EMA, GuardedAdamW, MatrixPart
from temper.learner.engine.saved_state import RANKS, SHARDS, SavedTensor, open_state, require_all_ranks, state_files
from temper.learner.models.expert_parallel import own_experts
from temper.learner.models.loading import full_shape

MASTER = "master"
STEP = "step"
MOMENTUM = "momentum_buffer"
"""Muon's running mean, its only state."""


class OptimizerState:
    """The state of one DeepSpeed engine, of which this rank holds a part."""

    def __init__(self, engine: Any, *, zero_stage: int, bf16: bool) -> None:
        self._zero = engine.optimizer if zero_stage else None
        self._optimizer: GuardedAdamW = engine.basic_optimizer
        self._trained = {name: p for name, p in engine.module.named_parameters() if p.requires_grad}
        self._ids = {id(parameter) for parameter in self._trained.values()}
        self._stage = zero_stage
        self._bf16 = bf16

    def pieces(self) -> Iterator[Piece]:
        """Yield the copied files of this rank. Without partitions, rank 0 has all."""
        self._link()
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        shard: dict[str, torch.Tensor] = {} if rank else {STEP: torch.tensor(self._steps())}
        written_by = {RANKS: str(1 if self._zero is None else ranks)}
        places = {**written_by}
        number, size = rank, 0
        for name, parameter in self._trained.items():
            first, end = self._own(parameter)
            shape = full_shape(parameter)
            if first == end or (rank and self._zero is None):
                continue
            for kind in ([MASTER] if self._bf16 else []) + self._kinds(parameter):
                tensor, key = self._get(parameter, kind)[: end - first], f"{kind}/{name}"
                if size + tensor.nbytes > SHARD_BYTES and size:
                    yield file_piece(_shard(number), shard, places)
                    shard, places, number, size = {}, {**written_by}, number + ranks, 0
                if end - first == shape.numel():
                    tensor = tensor.view(shape)
                else:
                    places[key] = json.dumps([first, list(shape)])
                shard[key] = copy_to_cpu(tensor)
                size += tensor.nbytes
        if shard or self._zero is not None:  # a file of each rank, so that a missing one is noticed
            yield file_piece(_shard(number), shard, places)

    def load(self, directory: Path) -> None:
        """Read the files. Raises `ValueError` if they belong to another model or optimiser."""
        require_all_ranks(directory)
        with ExitStack() as stack:
            self._load(directory, open_state(state_files(directory, SHARDS), stack))

    def _load(self, directory: Path, saved: dict[str, SavedTensor]) -> None:
        if STEP not in saved:
            raise ValueError(
                f"{directory} holds no optimiser state; remove this checkpoint to resume from the previous one"
            )
        dropped = {STEP, MASTER} if self._optimizer.ema_decay else {STEP, MASTER, EMA}
        kinds = sorted({name.split("/", 1)[0] for name in saved} - dropped)
        ours = {name.split("/", 1)[1] for name in saved if name != STEP}
        if ours - set(self._trained):
            raise ValueError(
                f"{directory} has the state of {min(ours - set(self._trained))}, which is not trained; use its run's settings"
            )
        step = float(saved[STEP].join())
        if kinds:  # else there was no update yet
            self._prepare(kinds, step=step)
        for name, parameter in self._trained.items():
            for kind in (MASTER, *kinds):
                key = f"{kind}/{name}"
                if key in saved and self._keeps(parameter, kind):
                    self._set(parameter, kind, saved[key].entries(*self._own(parameter)))
            if self._zero is None and "exp_avg" in self._optimizer.state[parameter]:
                self._optimizer.state[parameter][STEP] = torch.tensor(step, device=parameter.device)

    def set_master(self, parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
        """Set the float32 weights of a parameter, if it is trained. A tied copy in the file is not."""
        if id(parameter) in self._ids:
            first, end = self._own(parameter)
            self._set(parameter, MASTER, whole.flatten()[first:end])

    def _own(self, parameter: torch.nn.Parameter) -> tuple[int, int]:
        """Return the first and the end of this rank's entries in the flat parameter."""
        count = full_shape(parameter).numel()
        if self._zero is None:
            return 0, count
        held: Any = parameter
        if self._stage == 3:
            size = held.ds_tensor.ds_numel  # the last rank's is padded
            first = min(held.ds_zero_partition_rank * size, count)
            return first, min(first + size, count)
        if held._hp_mapping is None:
            return 0, 0
        place, own = held._hp_mapping.lp_fragment_address, own_experts(held)
        start = place.start + (0 if own is None else own.first * held[0].numel())
        return start, start + place.numel

    def _kinds(self, parameter: Any) -> list[str]:
        """Return the optimiser's tensors of a parameter's shape."""
        state = self._optimizer.state
        if self._zero is None:
            held = state.get(parameter, {})
        elif self._stage == 3:
            group, *_ = self._zero.grad_position[self._zero.get_param_id(parameter)]
            held = state.get(self._zero.fp32_partitioned_groups_flat[group], {})
        else:
            held = parameter._hp_mapping.optim_fragment or {}
        return sorted(key for key, value in held.items() if isinstance(value, torch.Tensor) and value.ndim)

    def _keeps(self, parameter: Any, kind: str) -> bool:
        """Return whether the optimiser has a tensor of this kind. In checkpoints of version 0.2.0, AdamW has Muon's experts."""
        by_muon = id(parameter) in self._optimizer.matrices
        return kind in (MASTER, EMA) or (kind == MOMENTUM) == by_muon

    def _get(self, parameter: torch.nn.Parameter, kind: str) -> torch.Tensor:
        """Return this rank's entries, with padding at stage 3."""
        if self._zero is None:
            held = self._optimizer.state[parameter][kind]
        elif self._stage < 3:
            held = self._fragment(parameter, kind)
        elif kind == MASTER:
            held = safe_get_local_fp32_param(parameter)
        else:
            held = safe_get_local_optimizer_state(parameter, kind)
        flat: torch.Tensor = held.flatten()
        return flat

    def _fragment(self, parameter: Any, kind: str) -> Any:
        return parameter._hp_mapping.get_hp_fragment(None if kind == MASTER else kind)

    def _set(self, parameter: Any, kind: str, entries: torch.Tensor) -> None:
        if self._zero is None:  # a copy, else it shares the file's memory
            self._optimizer.state[parameter][kind] = entries.view(parameter.shape).to(parameter.device, copy=True)
        elif self._stage < 3:
            if len(entries):
                self._fragment(parameter, kind).data.copy_(entries)
        else:
            padded = functional.pad(entries, (0, parameter.ds_tensor.ds_numel - len(entries)))
            if kind == MASTER:
                safe_set_local_fp32_param(parameter, padded)
            else:
                safe_set_local_optimizer_state(parameter, padded, kind)

    def _steps(self) -> float:
        """Return the optimiser's number of updates, equal for every parameter that counts them."""
        counts = {float(state[STEP]) for state in self._optimizer.state.values() if STEP in state}
        assert len(counts) < 2, counts
        return max(counts, default=0.0)

    def _prepare(self, kinds: list[str], *, step: float) -> None:
        """Create the tensors that an optimiser would create at its first step."""
        if self._zero is None:
            return
        for partition, _ in self._partitions():
            by_muon = id(partition) in self._optimizer.parts
            own = [kind for kind in kinds if kind != EMA and (kind == MOMENTUM) == by_muon]
            self._optimizer.state[partition] = {kind: torch.zeros_like(partition) for kind in own}
            if EMA in kinds:  # a parameter that no update has changed has none in the files
                self._optimizer.state[partition][EMA] = partition.detach().clone()
            if not by_muon:
                self._optimizer.state[partition][STEP] = torch.tensor(step, device=partition.device)
        self._link()

    def _partitions(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Return this rank's float32 weights, one flat tensor per group and key of the optimiser's state, with the group's
        parameters.
        """
        zero: Any = self._zero
        if self._stage == 3:
            return zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True)
        if isinstance(zero, BF16_Optimizer):  # DeepSpeed's choice for bfloat16 at stage 1, without offload
            return zip(zero.fp32_groups_flat_partition, zero.bf16_groups, strict=True)
        return zip(zero.single_partition_of_fp32_groups, zero.bit16_groups, strict=True)

    def parts(self) -> Iterator[tuple[torch.Tensor, list[Any], list[MatrixPart]]]:
        """Yield this rank's partitions, with the parameters in each and this rank's parts of them."""
        for partition, parameters in self._partitions():
            start, parts = 0, []
            for parameter in parameters:
                first, end = self._own(parameter)
                shape = full_shape(parameter)
                parts.append(MatrixPart(shape=shape, first=first, start=start, count=end - first))
                start += parameter.ds_tensor.ds_numel if self._stage == 3 else end - first
            yield partition, parameters, parts

    def _link(self) -> None:
        """Let DeepSpeed find each parameter's part of the state. Its default, in the first step, finds only one group."""
        if self._zero is not None and self._stage < 3 and self._optimizer.state:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()


def _shard(number: int) -> str:
    return SHARDS.replace("*", f"{number:05d}")
