"""Stacks of experts in vLLM's own loader, with and without a gate, for both processes of two."""

from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from temper.rollout.engines.expert_stacks import StackedExperts, has_stackable_experts, join_experts
from temper.rollout.weights.manifest import WeightManifest, tensors

EXPERTS, WIDTH, HIDDEN = 12, 6, 10
PROCESSES = 2


def pushed(projections: tuple[str, ...]) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a layer in a segment, as a learner pushes them. Their bytes are no multiples of the alignment."""
    shapes: dict[str, tuple[int, ...]] = {"layer.router.weight": (EXPERTS, HIDDEN)}
    for projection in projections:
        shape = (HIDDEN, WIDTH) if projection == "down_proj" else (WIDTH, HIDDEN)
        shapes |= {f"layer.experts.{expert}.{projection}.weight": shape for expert in range(EXPERTS)}
    manifest = WeightManifest.of(shapes, dtype="float32", transport="broadcast", version=1)
    found = tensors(torch.zeros(manifest.nbytes, dtype=torch.uint8), manifest)
    for number, (_, tensor) in enumerate(found):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
    return found


def plain_layer(
    *, gated: bool, process: int, spread: bool = False, quantized: bool = False, name: str = "layer.experts"
) -> StackedExperts:
    """The parts of vLLM's layer that its loader reads. Its kernels without a gate need a GPU."""
    layer = StackedExperts.__new__(StackedExperts)
    torch.nn.Module.__init__(layer)
    parallel = SimpleNamespace(tp_size=PROCESSES, use_ep=spread)
    layer.moe_config = SimpleNamespace(
        is_act_and_mul=gated,
        tp_rank=process,
        tp_shard_with_padding=False,
        moe_parallel_config=parallel,
        num_experts=EXPERTS,
        num_logical_experts=EXPERTS,
    )
    layer.layer_name = name
    layer.quant_config = None
    if not quantized:
        layer.quant_method = UnquantizedFusedMoEMethod.__new__(UnquantizedFusedMoEMethod)
        torch.nn.Module.__init__(layer.quant_method)
    else:
        layer.quant_method = torch.nn.Identity()
    layer._fused_shared_expert_quantizer = None
    layer.expert_map_manager = SimpleNamespace(map_global_to_local=lambda expert: expert, expert_map=None)
    own = WIDTH // PROCESSES
    layer.w13_weight = torch.nn.Parameter(torch.zeros(EXPERTS, own * (2 if gated else 1), HIDDEN), requires_grad=False)
    layer.w2_weight = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, own), requires_grad=False)
    return layer


SHARDS = {
    True: {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
    False: {"up_proj": "w1", "down_proj": "w2"},
}


def load(layer: StackedExperts, weights: list[tuple[str, torch.Tensor]], shards: dict[str, str]) -> int:
    """Load the experts. Return the number of calls."""
    experts = [(name.split("."), tensor) for name, tensor in weights if ".experts." in name]
    for (_, _, expert, projection, _), tensor in experts:
        shard = shards[projection]
        param = layer.w2_weight if shard == "w2" else layer.w13_weight
        assert layer.weight_loader(param, tensor, "w_weight", shard, int(expert), return_success=True)
    return len(experts)


@pytest.mark.parametrize("gated", SHARDS)
@pytest.mark.parametrize("process", range(PROCESSES))
@pytest.mark.parametrize("bucket", [1, 5, 100])
def test_stacks_fill_the_same_weights_as_single_experts(gated: bool, process: int, bucket: int) -> None:
    """Buckets of a push cut stacks anywhere."""
    weights, shards = pushed(tuple(SHARDS[gated])), SHARDS[gated]
    alone, joined = (plain_layer(gated=gated, process=process) for _ in range(2))
    calls = load(alone, weights, shards)
    assert all(len(weight.unique()) > EXPERTS for weight in (alone.w13_weight, alone.w2_weight))
    buckets = [weights[first : first + bucket] for first in range(0, len(weights), bucket)]
    fewer = sum(load(joined, list(join_experts(one)), shards) for one in buckets)
    assert torch.equal(joined.w13_weight, alone.w13_weight)
    assert torch.equal(joined.w2_weight, alone.w2_weight)
    assert fewer == {1: calls, 5: 3 * len(shards), 100: len(shards)}[bucket]


def test_only_neighbours_in_a_segment_are_joined() -> None:
    weights = pushed(("up_proj",))
    assert [name for name, _ in join_experts(weights)] == ["layer.router.weight", "layer.experts.0.up_proj.weight"]
    copies = [(name, tensor.clone()) for name, tensor in weights]
    assert len(list(join_experts(copies))) == len(weights)
    gap = [*weights[:4], *weights[5:]]
    assert [len(tensor) for _, tensor in join_experts(gap)] == [EXPERTS, 3, EXPERTS - 4]


def test_only_plain_layers_take_stacks() -> None:
    layer = plain_layer(gated=True, process=0)
    assert has_stackable_experts(layer)
    for unlike in ({"spread": True}, {"quantized": True}, {"name": "experts.layer.experts"}):
        other = plain_layer(gated=True, process=0, **unlike)
        assert not has_stackable_experts(torch.nn.ModuleList([layer, other]))
    assert not has_stackable_experts(torch.nn.Linear(1, 1))
