"""Optimiser state as whole tensors by parameter name, independent of the number of ranks and the ZeRO stage.

Any learner can resume from a checkpoint, and no file is a pickle. Files are safetensors of up to `SHARD_BYTES` bytes, with
tensors named `<kind>/<parameter>`: `master` (the float32 weight in bfloat16 training), and the optimiser's tensors, for Adam
`exp_avg` and `exp_avg_sq`. `step` is the number of updates.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from safetensors import safe_open

from temper.learner.engine.piece import Piece, copy_to_cpu, file_piece

SHARD_BYTES = 2**30
SHARDS = "optimizer-*.safetensors"
MASTER = "master"
STEP = "step"


class OptimizerState:
    """The state of one DeepSpeed engine. Every method is collective over its ranks."""

    def __init__(self, engine: Any, *, zero_stage: int, bf16: bool) -> None:
        self._zero = engine.optimizer if zero_stage else None
        self._optimizer: torch.optim.Optimizer = engine.basic_optimizer
        self._trained = {name: p for name, p in engine.module.named_parameters() if p.requires_grad}
        self._stage = zero_stage
        self._bf16 = bf16

    def pieces(self, *, keep: bool) -> Iterator[Piece]:
        """Yield the copied files on the rank with `keep`."""
        self._link()
        shard: dict[str, torch.Tensor] = {STEP: torch.tensor(self._steps())}
        number = size = 0
        for name, tensor in self._tensors():
            if not keep:
                continue
            if size + tensor.nbytes > SHARD_BYTES and size:
                yield file_piece(_shard(number), shard)
                shard, number, size = {}, number + 1, 0
            shard[name] = copy_to_cpu(tensor)
            size += tensor.nbytes
        if keep:
            yield file_piece(_shard(number), shard)

    def load(self, directory: Path) -> None:
        """Read the files. Raises `ValueError` if they belong to another model or optimiser."""
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(path, framework="pt")) for path in sorted(directory.glob(SHARDS))]
            self._load(directory, {name: file for file in files for name in file.keys()})  # noqa: SIM118 - not a mapping

    def _load(self, directory: Path, places: dict[str, Any]) -> None:
        if STEP not in places:
            raise ValueError(
                f"{directory} holds no optimiser state; remove this checkpoint to resume from the previous one"
            )
        kinds = sorted({name.split("/", 1)[0] for name in places} - {STEP, MASTER})
        ours = {name.split("/", 1)[1] for name in places if name != STEP}
        if ours - set(self._trained):
            raise ValueError(
                f"{directory} has the state of {min(ours - set(self._trained))}, which is not trained; use its run's settings"
            )
        step = float(places[STEP].get_tensor(STEP))
        if kinds:  # else there was no update yet
            self._prepare(kinds, step=step)
        for name, parameter in self._trained.items():
            for kind in (MASTER, *kinds):
                key = f"{kind}/{name}"
                if key in places:
                    self._set(parameter, kind, places[key].get_tensor(key))
            if self._zero is None:
                self._count(parameter, step)

    def set_master(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
        """Set the float32 weights of a parameter that is trained in bfloat16. Others keep theirs."""
        if parameter.requires_grad:
            self._set(parameter, MASTER, value)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._trained.items():
            for kind in ([MASTER] if self._bf16 else []) + self._kinds(parameter):
                yield f"{kind}/{name}", self._get(parameter, kind)

    def _kinds(self, parameter: torch.nn.Parameter) -> list[str]:
        """Return the optimiser's tensors of a parameter's shape. Above stage 0 they are the same for all."""
        state = self._optimizer.state
        held = state.get(parameter, {}) if self._zero is None else next(iter(state.values()), {})
        return sorted(key for key, value in held.items() if isinstance(value, torch.Tensor) and value.ndim)

    def _get(self, parameter: torch.nn.Parameter, kind: str) -> torch.Tensor:
        if self._zero is None:
            whole: torch.Tensor = self._optimizer.state[parameter][kind]
            return whole
        gathered = (
            safe_get_full_fp32_param(parameter) if kind == MASTER else safe_get_full_optimizer_state(parameter, kind)
        )
        assert gathered is not None
        return gathered

    def _set(self, parameter: torch.nn.Parameter, kind: str, value: torch.Tensor) -> None:
        if self._zero is None:
            self._optimizer.state[parameter][kind] = value.to(
                parameter.device, copy=True
            )  # else it shares the file's memory
        elif kind == MASTER:
            safe_set_full_fp32_param(parameter, value)
        else:
            safe_set_full_optimizer_state(parameter, value, kind)

    def _steps(self) -> float:
        """Return the optimiser's number of updates, equal for every parameter that counts them."""
        counts = {float(state[STEP]) for state in self._optimizer.state.values() if STEP in state}
        assert len(counts) < 2, counts
        return max(counts, default=0.0)

    def _prepare(self, kinds: list[str], *, step: float) -> None:
        """Create the tensors that an optimiser would create at its first step."""
        if self._zero is None:
            return
        for partition in self._partitions():
            self._optimizer.state[partition] = {kind: torch.zeros_like(partition) for kind in kinds}
            self._optimizer.state[partition][STEP] = torch.tensor(step, device=partition.device)
        self._link()

    def _partitions(self) -> list[torch.Tensor]:
        """Return this rank's float32 weights, one flat tensor per group. They are the keys of the optimiser's state."""
        assert self._zero is not None
        if self._stage == 3:
            flat: list[torch.Tensor] = self._zero.fp32_partitioned_groups_flat
        elif isinstance(self._zero, BF16_Optimizer):  # DeepSpeed's choice for bfloat16 at stage 1, without offload
            flat = self._zero.fp32_groups_flat_partition
        else:
            flat = self._zero.single_partition_of_fp32_groups
        return flat

    def _link(self) -> None:
        """Let DeepSpeed find each parameter's part of the state. Its default, in the first step, finds only one group."""
        if self._zero is not None and self._stage < 3 and self._optimizer.state:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()

    def _count(self, parameter: torch.nn.Parameter, step: float) -> None:
        """Set the number of updates in the optimiser's format: a tensor for torch, an int for Muon's Adam."""
        state = self._optimizer.state[parameter]
        if "exp_avg" in state:
            state[STEP] = torch.tensor(step) if isinstance(self._optimizer, torch.optim.AdamW) else int(step)


def _shard(number: int) -> str:
    return SHARDS.replace("*", f"{number:05d}")
