"""Weights of experts, loaded as stacks: one call of vLLM's loader for the experts of a projection, instead of one each."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from temper.rollout.weights.expert_owners import EXPERT
from temper.rollout.weights.manifest import align

STACK_BYTES = 2**28
"""Most bytes of a stack: vLLM may copy a part of it once more on the device."""
Weight = tuple[str, torch.Tensor]


@RoutedExperts.register_oot
class StackedExperts(RoutedExperts):
    """Expert layers of every model, which also load stacks. vLLM itself cuts a stack to the part of this process."""

    @property
    def is_stackable(self) -> bool:
        """Whether the layer has all experts, in the order of the checkpoint and without quantization.

        vLLM takes a stack for all experts, from the first one on, unless the name has "experts." once.
        """
        moe = self.moe_config
        plain = isinstance(self.quant_method, UnquantizedFusedMoEMethod)
        whole = not self.use_ep and moe.num_experts == moe.num_logical_experts
        return plain and whole and f"{self.layer_name}.".count("experts.") == 1

    def weight_loader(
        self,
        param: Any,
        loaded_weight: torch.Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        """Load an expert's matrix, or a stack of experts from `expert_id` on."""
        if loaded_weight.dim() == 3 and self.is_stackable:
            param, expert_id = param.data[expert_id : expert_id + len(loaded_weight)], 0
        loaded: bool | None = super().weight_loader(
            param, loaded_weight, weight_name, shard_id, expert_id, return_success=return_success
        )
        return loaded


def has_stackable_experts(model: torch.nn.Module) -> bool:
    """Return whether the model has experts, and all of them load as stacks."""
    layers = [module for module in model.modules() if isinstance(module, RoutedExperts)]
    return bool(layers) and all(isinstance(layer, StackedExperts) and layer.is_stackable for layer in layers)


def join_experts(weights: Iterable[Weight]) -> Iterator[Weight]:
    """Join matrices of consecutive experts that are neighbours in a segment, under the name of the first.

    The result is a view of the segment, (experts, rows, columns).
    """
    run: list[Weight] = []
    for name, tensor in weights:
        if run and not _is_next(run, name, tensor):
            yield _stack(run)
            run = []
        run.append((name, tensor))
    if run:
        yield _stack(run)


def _is_next(run: list[Weight], name: str, tensor: torch.Tensor) -> bool:
    last_name, last = run[-1]
    return (
        name == EXPERT.sub(lambda number: str(int(number[0]) + 1), last_name)
        and (tensor.shape, tensor.dtype) == (last.shape, last.dtype)
        and tensor.is_contiguous()
        and last.is_contiguous()
        and tensor.dim() == 2
        and tensor.data_ptr() == last.data_ptr() + align(last.nbytes)
        and tensor.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
        and (len(run) + 1) * align(last.nbytes) <= STACK_BYTES
    )


def _stack(run: list[Weight]) -> Weight:
    name, first = run[0]
    if len(run) == 1:
        return name, first
    return name, first.as_strided((len(run), *first.shape), (align(first.nbytes) // first.itemsize, *first.stride()))
