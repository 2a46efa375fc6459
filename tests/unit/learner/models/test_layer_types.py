"""The type of a layer, by the names of its tensors or of its classes."""

import torch
from transformers import Qwen3MoeConfig

from temper.learner.config import LearnerConfig
from temper.learner.models.layer_types import type_of_modules, types_of_tensors
from temper.orchestrator.pipeline.estimate.model import count_model


def test_delta_nets_and_mamba_mixers_are_told_apart() -> None:
    delta = [f"model.layers.0.linear_attn.{part}" for part in ("in_proj_qkvz.weight", "conv1d.weight", "A_log")]
    mamba = [f"backbone.layers.1.mixer.{part}" for part in ("in_proj.weight", "conv1d.weight", "A_log")]
    assert set(types_of_tensors(delta).values()) == {"linear attention"}
    assert set(types_of_tensors(mamba).values()) == {"mamba"}


def test_a_tensor_that_no_type_names_is_told_by_those_beside_it() -> None:
    names = [f"model.layers.2.mlp.{part}.weight" for part in ("experts.0.up_proj", "gate", "shared_experts.up_proj")]
    assert set(types_of_tensors(names).values()) == {"expert"}
    others = {
        "model.layers.0.self_attn.o_proj.weight": "attention",
        "model.layers.0.self_attn.q_proj.weight": "attention",
        "model.layers.0.mlp.gate_proj.weight": "mlp",
        "model.layers.0.input_layernorm.weight": "norm",
        "model.embed_tokens.weight": "embedding",
        "lm_head.weight": "embedding",
    }
    assert types_of_tensors(others) == others


class Qwen3NextGatedDeltaNet(torch.nn.Module): ...


class LlamaAttention(torch.nn.Module): ...


class LlamaMLP(torch.nn.Module): ...


class MixtralSparseMoeBlock(torch.nn.Module): ...


class Unheard(torch.nn.Module): ...


def test_modules_are_told_by_their_classes() -> None:
    assert type_of_modules([Qwen3NextGatedDeltaNet()]) == "linear attention"
    assert type_of_modules([torch.nn.ModuleList([LlamaMLP(), LlamaAttention()])]) == "attention + mlp"
    assert type_of_modules([torch.nn.ModuleList([MixtralSparseMoeBlock(), LlamaMLP()])]) == "expert"
    assert type_of_modules([Unheard()]) == "Unheard"


def test_the_parts_of_a_plan_are_those_of_its_layers() -> None:
    qwen = Qwen3MoeConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=100,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        tie_word_embeddings=False,
    )
    parts = count_model(qwen, LearnerConfig(), name="small").parts
    assert parts == {
        "embedding": 6400,
        "attention": 2 * (2 * 64 * 64 + 2 * 64 * 32),
        "routed experts": 2 * 4 * 3 * 64 * 32,
        "norms and routers": 2 * (2 * 16 + 4 * 64 + 2 * 64) + 64,
        "output layer": 6400,
    }
