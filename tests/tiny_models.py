"""Tiny models of three families with the byte-level tokenizer, made where they are needed."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from learner.fresh_model import FreshModelConfig, byte_tokenizer, make_model

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


def nemotron_h(directory: Path) -> Path:
    """A hybrid with a Mamba-2 and an attention layer."""
    make_model(directory, SMALL, seed=0)
    return directory


def qwen3(directory: Path) -> Path:
    """A tiny Qwen3 with an output layer of its own."""
    return _save(Qwen3ForCausalLM(Qwen3Config(vocab_size=288, tie_word_embeddings=False, **DENSE, **_ids())), directory)


def llama(directory: Path) -> Path:
    """A tiny Llama."""
    return _save(LlamaForCausalLM(LlamaConfig(vocab_size=288, **DENSE, **_ids())), directory)


def _ids() -> dict[str, int]:
    tokenizer = byte_tokenizer()
    return {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}


def _save(model: PreTrainedModel, directory: Path) -> Path:
    model.to(torch.float32).save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    return directory
