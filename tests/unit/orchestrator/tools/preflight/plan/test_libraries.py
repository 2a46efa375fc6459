"""Memory planned for DeepSpeed and vLLM against their measured memory."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from support.public_models import NANO_9B, NANO_30B, qwen3
from transformers import AutoConfig
from unit.learner.test_worker import POLICY, batch, in_processes
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator, MambaStateShapeCalculator
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, MambaSpec

from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig, ZeroStage
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model
from temper.learner.worker import TrainerWorker
from temper.orchestrator.pipeline.estimate.memory import pages_of, rank_memory
from temper.orchestrator.pipeline.estimate.model import count_model, read_config

LEARNERS = [
    LearnerConfig(ranks=2, zero_stage=stage, bf16=bf16, lora=LoraConfig(rank=rank))
    for stage in get_args(ZeroStage)
    for bf16 in (False, True)
    for rank in (0, 8)
    if stage or not bf16
]

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
    "all_to_all_single",
    "broadcast",
)
Measured = tuple[int, int, dict[str, int]]


def counted_collectives() -> Counter[str]:
    """Count the bytes of each torch collective in this process, one entry per call."""
    seen: Counter[str] = Counter()
    for name in COLLECTIVES:
        setattr(torch.distributed, name, _counting(getattr(torch.distributed, name), name, seen))
    return seen


def _counting(collective: Callable[..., Any], name: str, seen: Counter[str]) -> Callable[..., Any]:
    def counting(*given: Any, **also: Any) -> Any:
        seen[name] += max(one.nbytes for one in (*given, *also.values()) if isinstance(one, torch.Tensor))
        return collective(*given, **also)

    return counting


def measured(rank: int, port: int, folder: str) -> list[Measured]:
    """Return the bytes of weights and states after a step, and the bytes sent in it, for each learner."""
    found, seen = [], counted_collectives()
    for learner in LEARNERS:
        worker = TrainerWorker(rank, learner.ranks, "127.0.0.1", port, learner)
        worker.load(folder, optim=OptimConfig(), total_steps=10)
        seen.clear()
        worker.train_step(batch(ranks=learner.ranks).share(rank), loss=POLICY)
        assert worker.engine is not None
        found.append((*worker.engine.memory.nbytes(), dict(seen)))
        worker.close()
    return found


@pytest.mark.slow
def test_weights_and_states_of_two_ranks_are_those_of_deepspeed(tmp_path: Path) -> None:
    make_model(tmp_path, FreshModelConfig(), seed=1)
    first, _ = in_processes(measured, ranks=2, arguments=(str(tmp_path),))
    for learner, (weights, states, sent) in zip(LEARNERS, first, strict=True):
        model = count_model(read_config(tmp_path), learner, name="fresh")
        planned = rank_memory(model, learner, [OptimConfig()], pass_tokens=1, gpu=False)
        # stage 3 leaves small parameters whole; without float32 accumulation, gradients exist only within a step
        assert planned.weights == pytest.approx(weights, rel=0.2 if learner.lora.rank else 0.02), learner
        kept = planned.optimiser + (planned.gradients if learner.zero_stage == 3 or _added_up(learner) else 0)
        kept += planned.buckets if learner.zero_stage == 3 else 0
        assert kept == pytest.approx(states, rel=0.05), learner
        if not learner.lora.rank:
            require_sent({name: each / model.parameters for name, each in sent.items()}, learner)


def require_sent(each: dict[str, float], learner: LearnerConfig) -> None:
    """Compare the bytes per parameter that collectives send in a step of two passes with the plan.

    At stage 3, DeepSpeed keeps the gathered parameters of so small a model for backward, once it knows the order.
    """
    stage, width = learner.zero_stage, 2 if learner.bf16 else 4
    found = {name: size for name, size in each.items() if size > 0.05}
    gathered = found.pop("all_gather_into_tensor", 0.0) / width
    expected = {"reduce_scatter_tensor" if stage == 3 else "all_reduce": 4.0 * (2 if stage >= 2 else 1)}
    assert found == pytest.approx(expected, rel=0.02), learner
    if stage == 3:
        assert 1.98 < gathered < 4.02, learner
    else:
        assert gathered == pytest.approx(1 if stage else 0, rel=0.02), learner


def _added_up(learner: LearnerConfig) -> bool:
    return learner.zero_stage == 1 and learner.bf16


def specs_of(config: Any, *, tensor: int, block: int) -> dict[str, KVCacheSpec]:
    """Return vLLM's cache specs with attention pages of `block` tokens. States are padded to a page, as in vLLM."""
    attention = FullAttentionSpec(
        block_size=block,
        num_kv_heads=max(1, config.num_key_value_heads // tensor),
        head_size=config.head_dim,
        dtype=torch.bfloat16,
    )
    specs: dict[str, KVCacheSpec] = {}
    kinds = getattr(config, "layers_block_type", None) or ["full_attention"] * config.num_hidden_layers
    for at, kind in enumerate(kinds):
        if kind == "full_attention":
            specs[f"{at}"] = attention
        elif kind == "linear_attention":
            specs[f"{at}"] = MambaSpec(
                shapes=state_shapes(config, tensor),
                dtypes=MambaStateDtypeCalculator.mamba2_state_dtype(torch.bfloat16, "auto", "float32"),
                block_size=block,
                page_size_padded=attention.page_size_bytes,
            )
    return specs


def state_shapes(config: Any, tensor: int) -> tuple[tuple[int, ...], ...]:
    return MambaStateShapeCalculator.mamba2_state_shape(
        tp_world_size=tensor,
        intermediate_size=config.mamba_num_heads * config.mamba_head_dim,
        n_groups=config.n_groups,
        num_heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        state_size=config.ssm_state_size,
        conv_kernel=config.conv_kernel,
    )


def state_pages(specs: dict[str, KVCacheSpec]) -> list[tuple[int, int]]:
    """Return the bytes of the states of each Mamba-2 layer and of their page."""
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    return [(spec.real_page_size_bytes, spec.page_size_padded or 0) for spec in states]


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize(
    "given", [NANO_9B, NANO_30B, qwen3(4096, 12288, 36, 32, tied=False)], ids=["9B", "30B", "Qwen3"]
)
def test_a_sequence_takes_the_pages_that_vllm_gives_it(given: dict[str, Any], tensor: int) -> None:
    config = AutoConfig.for_model(**given)
    pages = pages_of(
        count_model(config, LearnerConfig(), name=""), width=2, tensor=tensor, gpu=True, cached_prefixes=False
    )
    specs = specs_of(config, tensor=tensor, block=pages.tokens)
    assert all(real <= padded for real, padded in state_pages(specs))
    assert all(real > padded for real, padded in state_pages(specs_of(config, tensor=tensor, block=pages.tokens - 16)))
    groups = kv_cache_utils._get_kv_cache_groups_uniform_page_size(specs)
    (width,) = {max(len(group.layer_names) for group in groups)}
    assert pages.bytes_each == width * next(iter(specs.values())).page_size_bytes
    attention = sum(not isinstance(group.kv_cache_spec, MambaSpec) for group in groups)
    assert (pages.attention_groups, pages.state_pages) == (attention, len(groups) - attention)
