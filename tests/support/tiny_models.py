"""Tiny models of four families, two of them with expert layers, and the byte-level tokenizer."""

from itertools import pairwise
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import byte_tokenizer, make_model

SMALL = FreshModelConfig(pattern="M-*-", hidden_size=64, intermediate_size=128, attention_heads=2, key_value_heads=1)
DENSE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
EXPERTS = FreshModelConfig(
    pattern="ME*E",
    hidden_size=64,
    intermediate_size=128,
    attention_heads=2,
    key_value_heads=1,
    experts=8,
    experts_per_token=2,
    expert_size=32,
)


def nemotron_h(directory: Path) -> Path:
    """A hybrid with a Mamba-2 and an attention layer."""
    make_model(directory, SMALL, seed=0)
    return directory


def nemotron_h_moe(directory: Path) -> Path:
    """A hybrid with two expert layers of 8 experts, 2 of them for each token."""
    make_model(directory, EXPERTS, seed=0)
    return directory


def qwen3(directory: Path) -> Path:
    """A tiny Qwen3 with a separate output layer."""
    return _save(Qwen3ForCausalLM(Qwen3Config(vocab_size=288, tie_word_embeddings=False, **DENSE, **_ids())), directory)


def qwen3_tied(directory: Path) -> Path:
    """The same with tied embeddings, as by default."""
    return _save(Qwen3ForCausalLM(Qwen3Config(vocab_size=288, tie_word_embeddings=True, **DENSE, **_ids())), directory)


def gemma2(directory: Path) -> Path:
    """A tiny Gemma 2: as Gemma 3 below, but with capped attention scores too."""
    caps = {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 5.0}
    shape = {"sliding_window": 16, "query_pre_attn_scalar": 32, "initializer_range": 0.1}
    return _save(Gemma2ForCausalLM(Gemma2Config(vocab_size=288, **DENSE, **shape, **caps, **_ids())), directory)


def gemma3(directory: Path) -> Path:
    """A tiny Gemma 3: tied, with scaled embeddings, capped logits, and a layer with a window of 16 tokens."""
    shape = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "query_pre_attn_scalar": 32}
    config = Gemma3TextConfig(vocab_size=288, final_logit_softcapping=5.0, **DENSE, **shape, **_ids())
    return _save(Gemma3ForCausalLM(config), directory)


def qwen3_moe(directory: Path, *, experts: int = 8, layers: int = 3) -> Path:
    """A tiny Qwen3 whose layers but the first have so many experts, 2 of them for each token."""
    shape = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "mlp_only_layers": [0]}
    config = Qwen3MoeConfig(
        vocab_size=288,
        tie_word_embeddings=False,
        norm_topk_prob=True,
        initializer_range=0.1,
        **{**DENSE, "num_hidden_layers": layers},
        **shape,
        **_ids(),
    )
    return _save(Qwen3MoeForCausalLM(config), directory)


def llama(directory: Path) -> Path:
    """A tiny Llama."""
    return _save(LlamaForCausalLM(LlamaConfig(vocab_size=288, **DENSE, **_ids())), directory)


def answering(directory: Path, text: str) -> Path:
    """A tiny Llama that ends its reasoning at once, and then answers every chat with a text, which is one token."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([text])
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **DENSE, **_ids()))
    chain = [tokenizer.encode("\n")[-1], *tokenizer.encode(f"</think>{text}<|im_end|>")]
    assert len(chain) == 4, "the next token depends on the last one alone"
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.zero_()
        model.lm_head.weight.zero_()
        for at, (token, following) in enumerate(pairwise(chain)):
            model.model.embed_tokens.weight[token, at] = model.lm_head.weight[following, at] = 10.0
    _save(model, directory)
    tokenizer.save_pretrained(directory)
    return directory


def two_llamas(folder: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two tiny Llamas with different initial weights, loaded in float32."""
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        made.append(AutoModelForCausalLM.from_pretrained(llama(folder / str(seed)), dtype=torch.float32).eval())
    return made[0], made[1]


def _ids() -> dict[str, int]:
    tokenizer = byte_tokenizer()
    return {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}


def _save(model: PreTrainedModel, directory: Path) -> Path:
    model.to(torch.float32).save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    return directory
